//! The workspace's own commands: `cargo xtask help` lists them.
#![forbid(unsafe_code)]

mod bench;
mod guest;
mod setup;
mod soak;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The workspace's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the tests need (Debian, as root), or say which command does.
    Setup(setup::Args),
    /// Run all tests: format, lints, unit, property, doc and model tests, and those on SoftRoCE guests.
    Test(test::Args),
    /// Run a command in SoftRoCE guests.
    Guest(guest::Args),
    /// Measure, both sides in one run, and print ratios.
    Bench(bench::Args),
    /// Run a campaign that takes longer than tests may.
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup(args) => setup::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Guest(args) => guest::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Soak(args) => soak::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
