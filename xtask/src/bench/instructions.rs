//! What a message costs in instructions, counted by callgrind: the same on a busy machine as on an idle one.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::row::{Better, Row};
use crate::workspace;

/// What stands for the device and the network: everything in calls of these is theirs. By the beginnings and ends of the names of functions.
const PROVIDER: [(&str, &str); 5] = [
    ("<adverb_soft::handles::SoftQp as ", "::post_send"),
    ("<adverb_soft::handles::SoftQp as ", "::post_recv"),
    ("<adverb_soft::handles::SoftSrq as ", "::post_recv"),
    ("<adverb_soft::handles::SoftCq as ", "::poll"),
    ("adverb_benches::ping_pong::PingPong::carry", ""),
];

/// Rounds of the shorter and the longer run. Their difference is without what is done once.
const ROUNDS: [u32; 2] = [1_000, 6_000];

pub(super) fn run() -> Result<Vec<Row>> {
    let root = workspace::root();
    let program = program(&root)?;
    [
        ("message_8B", "message", 8),
        ("message_1K", "message", 1024),
        ("message_64K", "message", 65536),
        ("request_8B", "request", 8),
    ]
    .into_iter()
    .map(|(name, what, bytes)| {
        let [short, long] = ROUNDS.map(|rounds| count(&program, &root, what, bytes, rounds));
        let (short, long) = (short?, long?);
        // A round is two messages.
        let each = |long: u64, short: u64| {
            long.saturating_sub(short) as f64 / f64::from(2 * (ROUNDS[1] - ROUNDS[0]))
        };
        let all = each(long.all, short.all);
        let provider = each(long.provider, short.provider);
        Ok(Row {
            bench: "instructions",
            name,
            value: all - provider,
            goal: None,
            better: Better::Lower,
            raw: vec![("provider_and_network", provider), ("all", all)],
        })
    })
    .collect()
}

/// Instructions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instructions {
    all: u64,
    /// Those below [`PROVIDER`].
    provider: u64,
}

fn count(program: &Path, root: &Path, what: &str, bytes: u32, rounds: u32) -> Result<Instructions> {
    let profile = root
        .join("target")
        .join(format!("callgrind.{what}-{bytes}-{rounds}"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args([what, &bytes.to_string(), &rounds.to_string()])
        .output()
        .context("running valgrind (`cargo xtask setup` installs it)")?;
    ensure!(
        output.status.success(),
        "the run under callgrind failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(&profile).context("reading callgrind's profile")?;
    std::fs::remove_file(&profile).context("removing callgrind's profile")?;
    instructions(&text)
}

/// Adds up a profile ("Callgrind Format Specification", valgrind's manual): after `fn=`, lines of costs are the function's own; the one after
/// `calls=` is the cost of what it called, all in all.
fn instructions(profile: &str) -> Result<Instructions> {
    let mut all = None;
    let mut functions = HashSet::new();
    let mut provider = 0;
    let (mut function, mut callee) = ("", "");
    let mut is_call = false;
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
            functions.insert(name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(total) = line.strip_prefix("totals:").or(line.strip_prefix("summary:")) {
            all = total.trim().parse().ok().or(all);
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost: u64 = line
                .split_whitespace()
                .nth(1)
                .and_then(|cost| cost.parse().ok())
                .unwrap_or(0);
            if std::mem::take(&mut is_call) && is_provider(callee) && !is_provider(function) {
                provider += cost;
            }
        }
    }
    ensure!(
        functions.iter().any(|name| is_provider(name)),
        "the profile names none of the provider's functions"
    );
    Ok(Instructions {
        all: all.context("the profile has no total")?,
        provider,
    })
}

fn is_provider(function: &str) -> bool {
    PROVIDER
        .iter()
        .any(|(begin, end)| function.starts_with(begin) && function.ends_with(end))
}

/// Builds what is counted.
fn program(root: &Path) -> Result<std::path::PathBuf> {
    let arguments = ["build", "--release", "-p", "adverb-benches", "--bin", "ping_pong"];
    let mut built = adverb_guest::executables(root, &arguments, &["ping_pong"])?;
    built.pop().context("cargo built no ping_pong")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_from_outside_count_as_the_providers_with_all_that_they_call() {
        let profile = "\
            fn=main\n\
            1 100\n\
            cfn=<adverb_soft::handles::SoftQp as adverb_verbs::qp::Qp>::post_send\n\
            calls=2 1\n\
            1 50\n\
            cfn=other\n\
            calls=1 1\n\
            * 7\n\
            \n\
            fn=<adverb_soft::handles::SoftQp as adverb_verbs::qp::Qp>::post_send\n\
            +3 30\n\
            cfn=adverb_benches::ping_pong::PingPong::carry\n\
            calls=1 1\n\
            1 20\n\
            \n\
            fn=adverb_benches::ping_pong::PingPong::carry\n\
            1 20\n\
            fn=other\n\
            1 7\n\
            totals: 157\n";
        let expected = Instructions {
            all: 157,
            provider: 50,
        };
        assert_eq!(instructions(profile).unwrap(), expected);
    }

    #[test]
    fn a_profile_without_the_provider_or_a_total_is_an_error() {
        assert!(instructions("fn=main\n1 100\ntotals: 100\n").is_err());
        assert!(instructions("fn=adverb_benches::ping_pong::PingPong::carry\n1 1\n").is_err());
    }
}
