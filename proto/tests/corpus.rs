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

use adverb_testing::Corpus;
use samples::Sample;

#[test]
fn the_corpus_replays() {
    corpus().replay(checks::check);
}

#[test]
fn the_seeds_are_those_that_this_version_makes() {
    corpus().assert_holds(seeds());
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), "receive")
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
