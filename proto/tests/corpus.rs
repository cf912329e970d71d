//! Replays the fuzz target's corpus, so that what fuzzing once found stays found.
//!
//! The committed seeds are made by [`seeds`]. After a change of the format write them anew with
//! `ADVERB_WRITE_CORPUS=1 cargo test -p adverb-proto --test corpus`.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod checks;
mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use samples::Sample;

#[test]
fn the_corpus_replays() {
    write_seeds();
    let mut replayed = 0;
    for entry in fs::read_dir(corpus()).unwrap() {
        checks::check(&fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    println!("replayed {replayed} inputs");
    assert!(
        replayed >= seeds().len(),
        "only {replayed} inputs: is the corpus complete?"
    );
}

#[test]
fn the_seeds_are_those_that_this_version_makes() {
    write_seeds();
    for (name, bytes) in seeds() {
        let path = corpus().join(name);
        assert_eq!(fs::read(&path).ok().as_ref(), Some(&bytes), "{}", path.display());
    }
}

fn write_seeds() {
    if std::env::var_os("ADVERB_WRITE_CORPUS").is_some() {
        fs::create_dir_all(corpus()).unwrap();
        for (name, bytes) in seeds() {
            fs::write(corpus().join(name), bytes).unwrap();
        }
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/receive")
}

/// Every sample, and some whose peer goes wrong.
fn seeds() -> Vec<Sample> {
    let mut seeds = samples::scripts();
    let named = |name| {
        let found = samples::scripts().into_iter().find(|sample| sample.0 == name);
        found.unwrap().1
    };
    let (open_server, closed) = (named("open-server"), named("close"));
    // Its confirmation comes twice.
    let twice = [&open_server[..], &open_server[1..]].concat();
    // Without the server's own confirmation in between.
    let early = [
        &open_server[..open_server.len() - 1],
        &named("peer-closes")[open_server.len()..],
    ]
    .concat();
    seeds.extend([
        ("bad-nonce", {
            let mut bytes = open_server.clone();
            bytes[3 + adverb_wire::Header::PREFIX_LEN] = 1;
            bytes
        }),
        ("confirmed-twice", twice),
        ("early-goodbye", early),
        ("after-the-end", [&closed[..], &closed[2..]].concat()),
        (
            "goodbye-after-the-end",
            [&closed[..], &named("peer-closes")[open_server.len()..]].concat(),
        ),
    ]);
    seeds
}
