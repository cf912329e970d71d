//! `cargo xtask soak`: campaigns that take longer than tests may.

use std::process::{Command, ExitCode};
use std::time::Duration;

use adverb_guest::{Guests, Script, am_pingpong, cargo};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{setup, workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which campaign.
    #[arg(value_enum)]
    name: Name,
    /// Seconds for each fuzz target.
    #[arg(long, default_value_t = 600)]
    secs: u64,
    /// Seeds of the simulated network: `FROM..TO`. A single failing one replays as `N..N+1`.
    #[arg(long, default_value = "0..10000")]
    seeds: String,
    /// Messages for each case of `credits`.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Endpoints of `crowd`.
    #[arg(long, default_value_t = 1_000)]
    endpoints: u32,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Name {
    /// Every fuzz target, for --secs each. Needs a nightly toolchain; installs `cargo fuzz` if it is not there.
    Fuzz,
    /// Random programs of the RC protocol over a network that loses, repeats and reorders, one for each of --seeds.
    Simulated,
    /// Lost and late grants at windows of 2, 3, 8 and 64, --messages for each case.
    Credits,
    /// A connection storm, --endpoints on one worker, and a receiver that takes nothing.
    Crowd,
    /// Messages in event and hybrid mode on SoftRoCE, with pauses: no wake-up may be lost.
    Wakeups,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::install_if_possible()?;
    match args.name {
        Name::Fuzz => fuzz(args.secs),
        Name::Simulated => simulated(&args.seeds),
        Name::Credits => {
            let messages = args.messages;
            transport_test("credits", "ADVERB_TEST_MESSAGES", messages.to_string())?;
            println!(
                "{messages} messages for each case: all arrived once and in order, none met an empty receive queue"
            );
            Ok(ExitCode::SUCCESS)
        }
        Name::Crowd => {
            transport_test("crowd", "ADVERB_TEST_ENDPOINTS", args.endpoints.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        Name::Wakeups => wakeups(),
    }
}

/// The fuzz packages and their targets.
const TARGETS: [(&str, &str); 5] = [
    ("wire", "header"),
    ("wire", "handshake"),
    ("wire", "region"),
    ("proto", "receive"),
    ("roce", "packet"),
];

fn fuzz(secs: u64) -> Result<ExitCode> {
    install_cargo_fuzz()?;
    for (package, target) in TARGETS {
        println!("== {package}: {target}, {secs} s");
        let mut command = Command::new("cargo");
        command.args([
            "+nightly",
            "fuzz",
            "run",
            target,
            "--",
            &format!("-max_total_time={secs}"),
            "-max_len=4200",
        ]);
        let status = command
            .current_dir(workspace::root().join(package))
            .status()
            .context("running cargo fuzz")?;
        ensure!(status.success(), "{package}: {target} found something");
    }
    println!("{} targets, {secs} s each: nothing found", TARGETS.len());
    Ok(ExitCode::SUCCESS)
}

fn install_cargo_fuzz() -> Result<()> {
    let found = Command::new("cargo").args(["fuzz", "--version"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let status = Command::new("cargo")
        .args(["install", "--locked", "--quiet", "cargo-fuzz"])
        .status()
        .context("running cargo install")?;
    ensure!(status.success(), "cargo-fuzz could not be installed");
    Ok(())
}

fn simulated(seeds: &str) -> Result<ExitCode> {
    let status = cargo(
        &workspace::root(),
        &[
            "test",
            "--quiet",
            "--package",
            "adverb-roce",
            "--test",
            "simulated",
        ],
    )
    .env("ADVERB_SEEDS", seeds)
    .status()
    .context("running the simulated network's tests")?;
    ensure!(status.success(), "a seed of {seeds} failed; the test names it");
    println!("seeds {seeds}: every message exactly once and in order, or an error on both sides");
    Ok(ExitCode::SUCCESS)
}

/// Runs a test of the transport, released and alone, with `variable` set to `value`.
fn transport_test(name: &str, variable: &str, value: String) -> Result<()> {
    let arguments = [
        "test",
        "--release",
        "--quiet",
        "--package",
        "adverb",
        "--test",
        name,
        "--",
        "--nocapture",
        "--test-threads=1",
    ];
    let status = cargo(&workspace::root(), &arguments)
        .env(variable, value)
        .status()
        .with_context(|| format!("running the test {name}"))?;
    ensure!(status.success(), "a case of {name} failed; the test names it");
    Ok(())
}

/// Ping-pong with pauses around the safety interval, where a lost event would show as a missed completion.
fn wakeups() -> Result<ExitCode> {
    let program = am_pingpong(&workspace::root())?;
    let program = Script::command([program.to_string_lossy()]);
    let mut script = format!("PINGPONG={}\n", program.text());
    for mode in ["event", "hybrid"] {
        for (gap, iters) in [(0, 50_000), (100, 20_000), (1000, 10_000), (5000, 4_000)] {
            script.push_str(&format!(
                "$PINGPONG --listen 127.0.0.1 --device rxe0 --mode {mode} --once > /dev/null & server=$!; sleep 1\n\
                 $PINGPONG --device rxe0 --mode {mode} --gap-us {gap} --iters {iters} --json 127.0.0.1 || exit 1\nwait $server\n"
            ));
        }
    }
    let outcome = Guests::new(workspace::root())
        .time_limit(Duration::from_secs(1500))
        .run(&Script::shell(script))?;
    ensure!(outcome.success(), "a run failed");
    let rows: Vec<Value> = outcome.hosts[0]
        .output
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let sum = |key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
    let (messages, missed) = (sum("iters"), sum("missed_completions"));
    println!(
        "{messages} round trips in {} runs, {missed} missed completions",
        rows.len()
    );
    ensure!(
        rows.len() == 8 && missed == 0,
        "completions were missed, or runs are missing"
    );
    Ok(ExitCode::SUCCESS)
}
