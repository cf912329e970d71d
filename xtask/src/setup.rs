//! `cargo xtask setup`: what the tests and benches need beyond Rust, on Debian.

use std::path::Path;
use std::process::{Command, ExitCode};

use adverb_guest::{Guests, cargo};
use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Debian packages, each with a file that tells that it is there.
const PACKAGES: [(&str, &str); 19] = [
    ("gcc", "/usr/bin/gcc"),
    ("g++", "/usr/bin/g++"),
    ("make", "/usr/bin/make"),
    ("cmake", "/usr/bin/cmake"),
    ("pkg-config", "/usr/bin/pkg-config"),
    ("libclang1-14", "/usr/lib/llvm-14/lib/libclang.so.1"),
    ("libclang-common-14-dev", "/usr/lib/llvm-14/lib/clang"),
    ("libibverbs-dev", "/usr/include/infiniband/verbs.h"),
    ("ibverbs-providers", "/etc/libibverbs.d/rxe.driver"),
    ("ibverbs-utils", "/usr/bin/ibv_devinfo"),
    ("qemu-system-x86", "/usr/bin/qemu-system-x86_64"),
    ("kmod", "/sbin/depmod"),
    ("xz-utils", "/usr/bin/xz"),
    ("util-linux", "/usr/bin/setpriv"),
    ("iproute2", "/usr/bin/rdma"),
    ("crun", "/usr/bin/crun"),
    ("perftest", "/usr/bin/ib_send_lat"),
    ("ucx-utils", "/usr/bin/ucx_perftest"),
    ("valgrind", "/usr/bin/valgrind"),
];

/// The test runner.
const NEXTEST: &str = "cargo-nextest";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Install without asking.
    #[arg(long)]
    yes: bool,
}

/// Installs what is missing if this is root on Debian, else says what to do.
pub(crate) fn install_if_possible() -> Result<()> {
    // The owner of this process's own entry is its user.
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    ensure!(
        install(root && in_path("apt-get"))?,
        "something is missing, see above"
    );
    Ok(())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !install(args.yes)? {
        return Ok(ExitCode::FAILURE);
    }
    if args.yes {
        // So that nothing needs the network later.
        Guests::new(workspace::root()).fetch()?;
    }
    eprintln!("setup: everything is there");
    Ok(ExitCode::SUCCESS)
}

/// Installs what is missing if `yes`, else says how. Whether nothing is missing any more.
fn install(yes: bool) -> Result<bool> {
    let packages: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, file)| !Path::new(file).exists())
        .map(|(name, _)| *name)
        .collect();
    let nextest = !in_path(NEXTEST);
    if packages.is_empty() && !nextest {
        return Ok(true);
    }
    if !yes {
        eprintln!(
            "setup: something is missing. As root on Debian, this installs it:\n  {}",
            by_hand(&packages, nextest)
        );
        return Ok(false);
    }
    if !packages.is_empty() {
        eprintln!("setup: installing {}", packages.join(" "));
        apt(&["update", "-qq"])?;
        apt(&[
            &["install", "-y", "-qq", "--no-install-recommends"],
            packages.as_slice(),
        ]
        .concat())?;
    }
    if nextest {
        eprintln!("setup: building {NEXTEST}");
        let status = cargo(&workspace::root(), &["install", "--locked", NEXTEST])
            .status()
            .context("running cargo install")?;
        ensure!(status.success(), "cargo install {NEXTEST} failed");
    }
    Ok(true)
}

/// One command that installs what is missing.
fn by_hand(packages: &[&str], nextest: bool) -> String {
    let mut commands = Vec::new();
    if !packages.is_empty() {
        commands.push("apt-get update".to_owned());
        commands.push(format!(
            "apt-get install -y --no-install-recommends {}",
            packages.join(" ")
        ));
    }
    if nextest {
        commands.push(format!("cargo install --locked {NEXTEST}"));
    }
    commands.join(" && ")
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(arguments);
    let output = command
        .output()
        .context("running apt-get; on another system than Debian install the like by hand")?;
    ensure!(
        output.status.success(),
        "apt-get {} failed; it needs root: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_one_command_away() {
        assert_eq!(
            by_hand(&["gcc", "crun"], true),
            "apt-get update && apt-get install -y --no-install-recommends gcc crun && cargo install --locked cargo-nextest"
        );
        assert_eq!(by_hand(&[], true), "cargo install --locked cargo-nextest");
    }
}
