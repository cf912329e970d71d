//! What is printed: a bar while it runs, then text for people or JSON for programs.

use std::io::{IsTerminal, Write, stdout};

use adverb_measure::{IdleRow, Latencies, PingPongRow};
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
        writeln!(out, "{}", row.to_json())?;
        return Ok(());
    }
    writeln!(out, "{row}")?;
    if out.is_terminal() {
        write!(out, "{}", latencies.to_text())?;
    }
    Ok(())
}

pub(crate) fn print_idle(row: &IdleRow, options: &Options) -> anyhow::Result<()> {
    if options.json {
        writeln!(stdout(), "{}", row.to_json())?;
    } else {
        writeln!(stdout(), "{row}")?;
    }
    Ok(())
}
