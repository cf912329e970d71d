//! Ping-pong with active messages: latency, rate and bandwidth between two hosts.
//!
//! ```text
//! host a$ am_pingpong --listen 0.0.0.0
//! host b$ am_pingpong a
//! ```
//!
//! Without arguments it starts a server in a second process and plays with it in all three modes.
//!
//! To learn how adverb is used, read `../hello.rs` first, then `server.rs` and `client.rs`.
#![forbid(unsafe_code)]

mod both;
mod client;
mod idle;
mod options;
mod report;
mod server;
mod stop;
#[cfg(test)]
mod tests;
mod wire;

use std::process::ExitCode;

use adverb::Context;
use clap::Parser;
use options::{Options, Test};
use stop::{Stop, Stopped};

fn main() -> ExitCode {
    execute(&Options::parse())
}

fn execute(options: &Options) -> ExitCode {
    // `RUST_LOG=debug` shows what the transport has to say.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match Stop::on_signals().and_then(|stop| run(options, &stop)) {
        Ok(()) => ExitCode::SUCCESS,
        // An error of adverb says in one line what failed, with whom, why, and what to do.
        Err(error) => {
            eprintln!("am_pingpong: {error}");
            if let Some(stopped) = error.downcast_ref::<Stopped>() {
                stopped.end_process();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, stop: &Stop) -> anyhow::Result<()> {
    if options.listen.is_none() {
        report::check_stdout()?;
    }
    match (&options.listen, &options.server) {
        (Some(address), _) => server::run(&open(options)?, address, options, stop),
        (None, Some(server)) => play(&open(options)?, server, options, stop),
        (None, None) => both::play_in_all_modes(options, stop),
    }
}

/// Opens the RDMA device.
fn open(options: &Options) -> anyhow::Result<Context> {
    Ok(match &options.device {
        Some(name) => Context::builder().device(name).open()?,
        // The one that ADVERB_DEVICE names, or the first with an active port.
        None => Context::open()?,
    })
}

/// Measures against the server at this address, and prints the result.
fn play(context: &Context, server: &str, options: &Options, stop: &Stop) -> anyhow::Result<()> {
    if options.test == Test::Idle {
        report::print_idle(&idle::measure(context, server, options, stop)?, options)
    } else {
        let (row, latencies) = client::measure(context, server, options, stop)?;
        report::print(&row, &latencies, options)
    }
}
