//! `cargo xtask bench`: ratios, of two sides that were measured in one run.

mod hybrid;
mod idle;
mod instructions;
mod local;
mod peers;
mod row;
mod soft;
mod sweep;

use std::process::ExitCode;
use std::time::Duration;

use adverb_guest::{Guests, Outcome, Script};
use anyhow::{Result, ensure};

use crate::{setup, workspace};
use row::{Better, Row, Samples};

/// Interleaved runs of each side.
const RUNS: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which bench.
    #[arg(value_enum)]
    name: Name,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Name {
    /// am_pingpong beside ib_send_lat (two guests) and ucx_perftest (one guest).
    Peers,
    /// Hybrid mode beside event mode at long gaps and beside poll mode at none.
    Hybrid,
    /// What 100 idle connections cost a server.
    Idle,
    /// The software device beside bare UDP sockets and UCX over TCP, on this machine.
    Soft,
    /// The latency of every size from 1 B to 16 MiB over the software device, with a plot: how steep the steepest step is.
    Sweep,
    /// What a message costs in instructions, counted by callgrind.
    Instructions,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::install_if_possible()?;
    let rows = match args.name {
        Name::Peers => peers::run()?,
        Name::Hybrid => hybrid::run()?,
        Name::Idle => idle::run()?,
        Name::Soft => soft::run()?,
        Name::Sweep => sweep::run(args.json)?,
        Name::Instructions => instructions::run()?,
    };
    row::print(&rows, args.json);
    // A goal that is missed is a finding, not a failure of the bench.
    Ok(ExitCode::SUCCESS)
}

/// Runs a script, in which `$PINGPONG` is `am_pingpong` and `$RUNS` the count of runs, and collects what it measured.
fn measure(guests: Guests, script: &str) -> Result<Samples> {
    let program = adverb_guest::am_pingpong(&workspace::root())?;
    let program = Script::command([program.to_string_lossy()]);
    let script = format!(
        "PINGPONG={}\nRUNS=$(seq {RUNS})\n{FUNCTIONS}{script}",
        program.text()
    );
    let Outcome { hosts, .. } = guests
        .time_limit(Duration::from_secs(550))
        .echo(false)
        .run(&Script::shell(script))?;
    let lines: Vec<String> = hosts.iter().flat_map(|host| host.output.clone()).collect();
    let ended = hosts.iter().all(|host| host.status == Some(0));
    ensure!(ended, "the runs failed:\n{}", lines.join("\n"));
    Ok(Samples::of(&lines))
}

/// What scripts measure with. Clients try until their server is there.
const FUNCTIONS: &str = r#"
retry() { for i in $(seq 100); do "$@" 2> $ADVERB_OUT/error && return; sleep 0.2; done; cat $ADVERB_OUT/error; echo "failed: $*"; return 1; }
am() { name=$1; shift; retry $PINGPONG --device rxe0 --json "$@" > $ADVERB_OUT/am || { cat $ADVERB_OUT/am; return 1; }; sed "s/^/@$name /" $ADVERB_OUT/am; }
"#;

/// A row for `ours` over `theirs`, which is to be at most `goal`.
fn ratio(
    samples: &Samples,
    bench: &'static str,
    name: &'static str,
    goal: f64,
    sides: [(&'static str, &str); 2],
) -> Result<Row> {
    let [(our_name, ours), (their_name, theirs)] = sides;
    let (ours, theirs) = (samples.median(ours, RUNS)?, samples.median(theirs, RUNS)?);
    let raw = vec![(our_name, ours), (their_name, theirs)];
    Ok(Row {
        bench,
        name,
        value: ours / theirs,
        goal: Some(goal),
        better: Better::Lower,
        raw,
    })
}
