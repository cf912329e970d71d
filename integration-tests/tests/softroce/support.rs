//! What all tests here need: guests for this workspace, and the results of `am_pingpong`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use adverb_guest::{Guests, HostOutcome, Outcome, Script, executables};
use serde_json::Value;

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub(crate) fn guests() -> Guests {
    Guests::new(workspace()).time_limit(Duration::from_secs(400))
}

/// `am_pingpong`, as a word for a shell.
pub(crate) fn am_pingpong() -> String {
    let path = adverb_guest::am_pingpong(&workspace()).unwrap();
    Script::command([path.to_str().unwrap()]).text().to_owned()
}

/// The program that runs the conformance suite.
pub(crate) fn conformance() -> PathBuf {
    let arguments = [
        "build",
        "-p",
        "adverb-integration-tests",
        "--features",
        "ibverbs",
        "--bin",
        "conformance",
    ];
    let mut built = executables(&workspace(), &arguments, &["conformance"]).unwrap();
    built.pop().unwrap()
}

/// Runs a script in which `$PINGPONG` is `am_pingpong`, and expects it to succeed everywhere and the kernel to be content.
pub(crate) fn run(guests: &Guests, script: &str) -> Outcome {
    let script = format!("PINGPONG={}\n{HELPERS}{script}", am_pingpong());
    let outcome = guests.run(&Script::shell(script)).unwrap();
    assert!(outcome.success(), "{:#?}", outcome.hosts);
    assert_eq!(outcome.complaints(), Vec::<&str>::new());
    outcome
}

/// Shell functions for scripts.
const HELPERS: &str = r#"
# Waits until a server listens on the default port of am_pingpong at address $1.
await_server() { for i in $(seq 200); do (exec 3<> /dev/tcp/$1/18515) 2> /dev/null && return; sleep 0.1; done; echo "no server at $1"; return 1; }
# Milliseconds.
now() { echo $(($(date +%s%N) / 1000000)); }
"#;

/// The JSON objects among a host's lines.
pub(crate) fn rows(host: &HostOutcome) -> Vec<Value> {
    host.output
        .iter()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The value of a line `name=value`.
pub(crate) fn value(host: &HostOutcome, name: &str) -> u64 {
    let prefix = format!("{name}=");
    let line = host.output.iter().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no {name} in {:#?}", host.output))
        .parse()
        .unwrap()
}
