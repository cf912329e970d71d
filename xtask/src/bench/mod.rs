//! `cargo xtask bench`: ratios, of two sides that were measured in one run.
use anyhow::Result;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    name: String,
    #[arg(long)]
    json: bool,
}
pub(crate) fn run(_args: &Args) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
