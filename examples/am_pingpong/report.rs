//! What is printed: a bar while it runs, then text for people or JSON for programs.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stdout};

use adverb_measure::{IdleRow, Latencies, PingPongRow, stdout_was_closed};
use anyhow::anyhow;
use indicatif::{ProgressBar, ProgressStyle};

use crate::options::Options;

/// Drawing costs more than a message, so the bar moves once in so many.
const REDRAW: u64 = 1024;

/// How far it is, on a terminal. Elsewhere nothing.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(options: &Options) -> Self {
        if options.json || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(options.iters);
        // A template that indicatif did not understand would leave its default.
        match ProgressStyle::with_template("{bar:40} {pos}/{len}, {per_sec}") {
            Ok(style) => Self(bar.with_style(style)),
            Err(_) => Self(bar),
        }
    }

    pub(crate) fn show(&self, done: u64) {
        if done.is_multiple_of(REDRAW) {
            self.0.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub(crate) fn print(row: &PingPongRow, latencies: &Latencies, options: &Options) -> anyhow::Result<()> {
    let mut out = stdout();
    if options.json {
        return say(&mut out, row.to_json());
    }
    say(&mut out, row)?;
    if out.is_terminal() && latencies.count() > 0 {
        say(&mut out, latencies.to_text().trim_end())?;
    }
    Ok(())
}

pub(crate) fn print_idle(row: &IdleRow, options: &Options) -> anyhow::Result<()> {
    let mut out = stdout();
    if options.json {
        say(&mut out, row.to_json())
    } else {
        say(&mut out, row)
    }
}

/// An error if nobody could see what is printed: told before anything is measured.
pub(crate) fn check_stdout() -> anyhow::Result<()> {
    if stdout_was_closed() {
        return Err(anyhow!("standard output is closed, and the result goes there"));
    }
    Ok(())
}

/// Prints a line, of which an error means that it was not printed whole.
pub(crate) fn say(out: &mut impl Write, line: impl Display) -> anyhow::Result<()> {
    let printed = writeln!(out, "{line}").and_then(|()| out.flush());
    printed.map_err(|error| anyhow!("printing to standard output: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_is_told() {
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let error = say(&mut full, "{}").unwrap_err().to_string();
        assert!(
            error.starts_with("printing to standard output: No space left"),
            "{error}"
        );
    }
}
