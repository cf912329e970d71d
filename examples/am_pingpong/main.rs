//! Ping-pong with active messages: latency, rate and bandwidth between two hosts.
//!
//! ```text
//! host a$ am_pingpong --listen 0.0.0.0
//! host b$ am_pingpong a
//! ```
//!
//! Without arguments it starts a server in a second process and plays with it in all three modes.
#![forbid(unsafe_code)]

mod both;
mod client;
mod options;
mod server;
mod wire;

use std::process::ExitCode;

use adverb::{Config, Context, Worker};
use clap::Parser;
use options::Options;

fn main() -> ExitCode {
    // `RUST_LOG=debug` shows what the transport has to say.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("am_pingpong: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    match (&options.listen, &options.server) {
        (Some(address), _) => server::serve(&worker(options)?, address, options),
        (None, Some(server)) => client::play(&worker(options)?, server, options),
        (None, None) => both::play_in_all_modes(options),
    }
}

/// Opens the device and makes the worker that both sides need.
fn worker(options: &Options) -> anyhow::Result<Worker> {
    let context = match &options.device {
        Some(name) => Context::builder().device(name).open()?,
        // The one that ADVERB_DEVICE names, or the first with an active port.
        None => Context::open()?,
    };
    Ok(context.worker(
        Config::new()
            .mode(options.mode)
            .max_endpoints(options.endpoints.max(128)),
    )?)
}
