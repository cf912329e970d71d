//! `cargo xtask test`: everything that must hold, in one command.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use adverb_guest::cargo;
use anyhow::{Context, Result};
use comfy_table::Table;

use crate::{setup, workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave out what needs a SoftRoCE guest.
    #[arg(long)]
    fast: bool,
}

/// Packages with the feature `ibverbs`.
const IBVERBS: [&str; 8] = [
    "-p",
    "adverb-ibverbs",
    "-p",
    "adverb",
    "-p",
    "adverb-examples",
    "-p",
    "adverb-integration-tests",
];

/// Packages whose hand-overs between threads are model-checked.
const MODELS: [&str; 6] = ["-p", "adverb-progress", "-p", "adverb-soft", "-p", "adverb-verbs"];

/// One thing that must hold.
struct Step {
    name: &'static str,
    /// Arguments of cargo.
    cargo: Vec<&'static str>,
    environment: Vec<(&'static str, &'static str)>,
    /// Whether it runs tests, of which there must be some.
    counted: bool,
    /// Whether it needs a guest.
    guest: bool,
}

impl Step {
    fn new(name: &'static str, cargo: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            name,
            cargo: cargo.into_iter().collect(),
            environment: Vec::new(),
            counted: false,
            guest: false,
        }
    }

    fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    fn guest(mut self) -> Self {
        self.guest = true;
        self
    }

    fn environment(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }
}

fn steps() -> Vec<Step> {
    let clippy = |features: &[&'static str]| {
        let head = ["clippy", "--quiet", "--all-targets"];
        head.into_iter()
            .chain(features.iter().copied())
            .chain(["--", "-D", "warnings"])
            .collect::<Vec<_>>()
    };
    let with_ibverbs: Vec<&str> = IBVERBS.into_iter().chain(["--features", "ibverbs"]).collect();
    let nextest = |rest: &[&'static str]| {
        let head = [
            "nextest",
            "run",
            "--no-fail-fast",
            "--status-level",
            "fail",
            "--final-status-level",
            "fail",
        ];
        head.into_iter().chain(rest.iter().copied()).collect::<Vec<_>>()
    };
    let models = ["test", "--quiet", "--release", "--test", "loom_*"]
        .into_iter()
        .chain(MODELS);
    vec![
        Step::new("format", ["fmt", "--all", "--check"]),
        Step::new("lints", clippy(&["--workspace"])),
        Step::new("lints, ibverbs", clippy(&with_ibverbs)),
        Step::new(
            "lints, no tokio",
            [
                "clippy",
                "--quiet",
                "-p",
                "adverb",
                "--no-default-features",
                "--",
                "-D",
                "warnings",
            ],
        ),
        Step::new("docs", ["doc", "--quiet", "--workspace", "--no-deps"])
            .environment("RUSTDOCFLAGS", "-D warnings"),
        Step::new(
            "unit and property tests",
            nextest(&["--workspace", "--exclude", "adverb-integration-tests"]),
        )
        .counted(),
        Step::new(
            "tests, ibverbs",
            nextest(&["-p", "adverb-ibverbs", "--features", "ibverbs"]),
        )
        .counted(),
        Step::new("doc tests", ["test", "--quiet", "--doc", "--workspace"]).counted(),
        Step::new("model checks", models)
            .counted()
            .environment("RUSTFLAGS", "--cfg adverb_loom")
            .environment("CARGO_TARGET_DIR", "target/loom"),
        Step::new(
            "SoftRoCE guests",
            nextest(&[
                "-p",
                "adverb-integration-tests",
                "--features",
                "ibverbs",
                "--test-threads",
                "1",
            ]),
        )
        .counted()
        .guest(),
    ]
}

/// Tests of a step, by how they ended.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let started = Instant::now();
    println!("== setup");
    // What it installs, it installs as root only.
    setup::install_if_possible()?;
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY)
        .set_header(["step", "result", "passed", "failed", "skipped", "s"]);
    table.add_row([
        "setup",
        "ok",
        "",
        "",
        "",
        &started.elapsed().as_secs().to_string(),
    ]);
    let mut total = Counts::default();
    let mut all_well = true;
    for step in steps() {
        if step.guest && args.fast {
            println!("\n== {}: LEFT OUT, because of --fast", step.name);
            table.add_row([step.name, "left out", "", "", "", ""]);
            continue;
        }
        let (ok, counts, took) = run_step(&step)?;
        all_well &= ok;
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.skipped += counts.skipped;
        let number = |n: u64| {
            if step.counted {
                n.to_string()
            } else {
                String::new()
            }
        };
        table.add_row([
            step.name.to_owned(),
            if ok { "ok" } else { "FAILED" }.to_owned(),
            number(counts.passed),
            number(counts.failed),
            number(counts.skipped),
            took.as_secs().to_string(),
        ]);
    }
    println!("\n{table}");
    println!(
        "{} in {} s{}",
        if all_well { "all is well" } else { "FAILED" },
        started.elapsed().as_secs(),
        if args.fast { ", guests left out" } else { "" }
    );
    // A line that CI reads: a step that is no test and failed counts as one.
    let failed = if all_well { 0 } else { total.failed.max(1) };
    println!(
        "{} passed, {} failed, {} skipped",
        total.passed, failed, total.skipped
    );
    Ok(if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_step(step: &Step) -> Result<(bool, Counts, Duration)> {
    println!("\n== {}", step.name);
    let started = Instant::now();
    let mut command = cargo(&workspace::root(), &step.cargo);
    command.envs(step.environment.iter().copied());
    let (success, output) = run_and_show(command)?;
    let mut counts = Counts::default();
    let runner = Runner::of(&step.cargo);
    output.iter().for_each(|line| counts.add_line(runner, line));
    if step.counted && counts.passed + counts.failed == 0 {
        println!("{}: no test ran", step.name);
    }
    let ok = success && (!step.counted || counts.passed > 0 && counts.failed == 0);
    Ok((ok, counts, started.elapsed()))
}

/// Runs a command, shows its output as it comes, and gives its lines.
fn run_and_show(mut command: Command) -> Result<(bool, Vec<String>)> {
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("making a pipe")?)
        .stderr(writer);
    let mut child = command.spawn().context("running cargo")?;
    // Closes this side's ends of the pipe, so that it ends with the child.
    drop(command);
    let mut lines = Vec::new();
    for line in BufReader::new(reader).lines() {
        let line = line.context("reading cargo's output")?;
        println!("{line}");
        lines.push(line);
    }
    Ok((child.wait().context("waiting for cargo")?.success(), lines))
}

/// What runs the tests of a step, and sums them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Nextest,
    Libtest,
}

impl Runner {
    fn of(cargo: &[&str]) -> Self {
        if cargo.first() == Some(&"nextest") {
            Self::Nextest
        } else {
            Self::Libtest
        }
    }

    /// How the lines begin that sum up. Those of libtest in what nextest shows belong to tests that failed, or to suites that those ran
    /// in guests, and are not to be counted again.
    fn summary(self) -> &'static str {
        match self {
            Self::Nextest => "Summary [",
            Self::Libtest => "test result: ",
        }
    }
}

impl Counts {
    /// Adds what a line says that sums up. Other lines say nothing.
    fn add_line(&mut self, runner: Runner, line: &str) {
        if !line.trim_start().starts_with(runner.summary()) {
            return;
        }
        let words: Vec<&str> = line
            .split([' ', ',', ';', '.'])
            .filter(|word| !word.is_empty())
            .collect();
        for pair in words.windows(2) {
            let [count, what] = pair else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            match *what {
                "passed" => self.passed += count,
                "failed" | "timed" => self.failed += count,
                "skipped" | "ignored" => self.skipped += count,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runner_is_counted_by_its_own_summary() {
        let nextest = "     Summary [  16.116s] 39 tests run: 38 passed (1 slow), 1 failed, 2 skipped";
        let libtest =
            "test result: ok. 11 passed; 0 failed; 3 ignored; 0 measured; 5 filtered out; finished in 0.32s";
        for (runner, expected) in [(Runner::Nextest, (38, 1, 2)), (Runner::Libtest, (11, 0, 3))] {
            let mut counts = Counts::default();
            for line in [nextest, libtest, "I saw 4 passed"] {
                counts.add_line(runner, line);
            }
            assert_eq!(
                (counts.passed, counts.failed, counts.skipped),
                expected,
                "{runner:?}"
            );
        }
    }
}
