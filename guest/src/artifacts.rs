//! Building what runs in guests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// `cargo` with these arguments, in this workspace.
pub fn cargo(workspace: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace);
    command
}

/// Builds with `cargo` and these arguments, and gives the executables of the targets with these names, in this order.
///
/// # Errors
/// Cargo failed, or did not build one of them.
pub fn executables(workspace: &Path, arguments: &[&str], targets: &[&str]) -> Result<Vec<PathBuf>> {
    let mut command = cargo(workspace, arguments);
    command
        .args(["--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let output = command.output().context("running cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let executable = |name: &&str| {
        let of_target =
            |message: &&Value| message["target"]["name"] == **name && message["executable"].is_string();
        let found = messages
            .iter()
            .rfind(of_target)
            .and_then(|message| message["executable"].as_str());
        found
            .map(PathBuf::from)
            .with_context(|| format!("cargo built no executable named {name}"))
    };
    targets.iter().map(executable).collect()
}

/// `am_pingpong` for real devices, built for release.
///
/// # Errors
/// Cargo failed.
pub fn am_pingpong(workspace: &Path) -> Result<PathBuf> {
    let arguments = [
        "build",
        "--release",
        "-p",
        "adverb-examples",
        "--features",
        "ibverbs",
        "--example",
        "am_pingpong",
    ];
    let mut built = executables(workspace, &arguments, &["am_pingpong"])?;
    built.pop().context("cargo built no am_pingpong")
}
