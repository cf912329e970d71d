//! Replays the fuzz targets' corpora, so that what fuzzing once found stays found.
//!
//! The committed seeds are made by [`seeds`]. After a change of the format write them anew with
//! `ADVERB_WRITE_CORPUS=1 cargo test -p adverb-wire --test corpus`.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod checks;
mod samples;

use adverb_testing::Corpus;
use samples::Sample;

#[test]
fn the_header_corpus_replays() {
    corpus("header").replay(checks::header::check);
}

#[test]
fn the_handshake_corpus_replays() {
    corpus("handshake").replay(checks::handshake::check);
}

#[test]
fn the_region_corpus_replays() {
    corpus("region").replay(checks::region::check);
}

#[test]
fn the_seeds_are_those_that_this_version_makes() {
    for (target, seeds) in seeds() {
        corpus(target).assert_holds(seeds);
    }
}

fn corpus(target: &str) -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), target)
}

/// Every sample, and of each error one that leads there.
fn seeds() -> [(&'static str, Vec<Sample>); 3] {
    let mut sends = samples::sends();
    let mut frames = samples::frames();
    let (data, goodbye) = (named(&sends, "data"), named(&sends, "goodbye"));
    let (hello, refusal) = (named(&frames, "hello"), named(&frames, "refuse-full"));
    sends.extend([
        ("bad-kind", with(&goodbye, 0, 6)),
        ("bad-flags", with(&goodbye, 1, 1)),
        ("bad-last", with(&data, 1, 0)),
        ("bad-user-header", with(&data, 26, 6)),
        ("bad-offset", with(&data, 32, 1)),
        ("bad-message-len", with(&data, 31, 0xff)),
        ("cut-prefix", data[..15].to_vec()),
        ("cut-data", data[..39].to_vec()),
        ("long-goodbye", [&goodbye[..], b"later"].concat()),
    ]);
    frames.extend([
        ("bad-kind", with(&hello, 6, 4)),
        ("bad-length", with(&hello, 9, 0x10)),
        ("bad-version", with(&hello, 4, 0)),
        ("newer-version", with(&with(&hello, 4, 3), 16, 2)),
        ("bad-parameter-length", with(&hello, 14, 3)),
        ("unknown-parameter", with(&refusal, 18, 0xff)),
        ("duplicate-parameter", with(&hello, 18, 1)),
        ("cut-header", hello[..11].to_vec()),
        ("cut-body", hello[..50].to_vec()),
        ("two-frames", [&hello[..], &refusal].concat()),
        ("http", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ]);
    let mut regions = samples::regions();
    let region = named(&regions, "region");
    regions.extend([
        ("bad-version", with(&region, 0, 2)),
        ("bad-rights", with(&region, 1, 8)),
        ("bad-extent", with(&region, 23, 0xff)),
        ("cut", region[..23].to_vec()),
    ]);
    [("header", sends), ("handshake", frames), ("region", regions)]
}

fn named(samples: &[Sample], name: &str) -> Vec<u8> {
    samples.iter().find(|sample| sample.0 == name).unwrap().1.clone()
}

fn with(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = byte;
    bytes
}
