//! `cargo xtask guest`: a command in SoftRoCE guests.

use std::process::ExitCode;
use std::time::Duration;

use adverb_guest::{Guests, Script};
use anyhow::Result;
use clap::value_parser;

use crate::{setup, workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Guests to boot: one has rxe0 and rxe1, two have rxe0 on a network between them.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// Run the command in two containers of one guest instead.
    #[arg(long, conflicts_with = "hosts")]
    containers: bool,
    /// Memory of each guest, in MiB.
    #[arg(long, default_value_t = 2048)]
    memory: u32,
    /// Seconds after which the guests are ended.
    #[arg(long, default_value_t = 600)]
    time_limit: u64,
    /// The command. It finds ADVERB_HOST, ADVERB_ADDR, ADVERB_PEER and ADVERB_OUT in its environment.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::install_if_possible()?;
    let guests = Guests::new(workspace::root())
        .hosts(args.hosts)
        .memory_mib(args.memory)
        .time_limit(Duration::from_secs(args.time_limit));
    let guests = if args.containers {
        guests.containers()
    } else {
        guests
    };
    // A single word with spaces is a script.
    let script = match args.command.as_slice() {
        [script] if script.contains(char::is_whitespace) => Script::shell(script.as_str()),
        words => Script::command(words),
    };
    let outcome = guests.run(&script)?;
    for complaint in outcome.complaints() {
        eprintln!("guest: the kernel said: {complaint}");
    }
    Ok(ExitCode::from(
        u8::try_from(outcome.status().rem_euclid(256)).unwrap_or(255),
    ))
}
