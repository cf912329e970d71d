//! `FORMAT.md` says what the code does: every example in it is what the encoder makes.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod samples;

use adverb_wire::ParameterId;
use samples::Sample;

const FORMAT: &str = include_str!("../FORMAT.md");

#[test]
fn every_example_is_what_the_encoder_makes() {
    let samples = [samples::sends(), samples::frames(), samples::regions()].concat();
    let examples = examples();
    assert_eq!(examples.len(), 15);
    for (name, bytes) in examples {
        let sample = samples.iter().find(|sample| sample.0 == name);
        assert_eq!(sample.map(|sample| &sample.1), Some(&bytes), "{name}");
    }
}

#[test]
fn every_kind_of_message_has_an_example() {
    let examples = examples();
    for (name, _) in samples::sends() {
        assert!(examples.iter().any(|example| example.0 == name), "{name}");
    }
}

#[test]
fn every_parameter_is_listed_with_its_id_and_name() {
    for id in ParameterId::ALL {
        let row = format!("\n| {} | `{id}` |", id.code());
        assert_eq!(FORMAT.matches(&row).count(), 1, "{row}");
    }
}

/// The blocks that start with ```` ```hex NAME ````. In each line a `#` starts a comment.
fn examples() -> Vec<Sample> {
    let blocks = FORMAT.split("\n```hex ").skip(1);
    blocks
        .map(|block| {
            let (name, rest) = block.split_once('\n').unwrap();
            let (dump, _) = rest.split_once("```").unwrap();
            let bytes = dump
                .lines()
                .flat_map(|line| line.split('#').next().unwrap().split_whitespace());
            (
                name,
                bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect(),
            )
        })
        .collect()
}
