//! `cargo xtask soak`: campaigns that take longer than tests may.
use anyhow::Result;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    name: String,
}
pub(crate) fn run(_args: &Args) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
