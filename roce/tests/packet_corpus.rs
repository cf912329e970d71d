//! Replays the fuzz target's corpus, so that what fuzzing once found stays found.
//!
//! The committed seeds are made by [`seeds`]. After a change of them write them anew with
//! `ADVERB_WRITE_CORPUS=1 cargo test -p adverb-roce --test packet_corpus`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "of the captures this needs the packets")]

#[path = "checks/packet_bytes.rs"]
mod checks;
mod data;

use std::collections::BTreeMap;

use adverb_roce::Packet;
use adverb_testing::Corpus;

#[test]
fn the_corpus_replays() {
    corpus().replay(checks::check);
}

#[test]
fn the_seeds_are_those_that_this_version_makes() {
    corpus().assert_holds(seeds());
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), "packet")
}

/// Of each operation that was captured the first packet, without most of its payload; and of each error one that leads there.
fn seeds() -> BTreeMap<String, Vec<u8>> {
    let mut seeds = BTreeMap::new();
    for datagram in data::all().into_iter().flat_map(|capture| capture.datagrams) {
        let mut packet = Packet::parse(&datagram.packet).unwrap();
        packet.payload = &packet.payload[..packet.payload.len().min(6)];
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        let name = format!("rxe-{:?}", packet.opcode).to_lowercase();
        seeds.entry(name).or_insert(bytes);
    }
    assert_eq!(seeds.len(), 15, "operations that were captured");
    let (send, acknowledge) = (seeds["rxe-sendonly"].clone(), seeds["rxe-acknowledge"].clone());
    let with = |bytes: &[u8], at: usize, byte: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = byte;
        bytes
    };
    let immediate = [&with(&send, 0, 0x05)[..12], &[1, 2, 3, 4], &send[12..]].concat();
    let errors = [
        ("empty", Vec::new()),
        ("cut-header", send[..11].to_vec()),
        ("cut-payload", send[..send.len() - 1].to_vec()),
        ("bad-opcode", with(&send, 0, 0x15)),
        ("bad-transport", with(&send, 0, 0x64)),
        ("bad-version", with(&send, 1, 0x4f)),
        ("bad-padding", with(&send[..12], 1, 0x70)),
        ("bad-syndrome", with(&acknowledge, 12, 0x40)),
        ("long-acknowledge", [&acknowledge[..], &[0; 4]].concat()),
        ("all-flags", with(&with(&with(&send, 1, 0xb0), 4, 0xff), 8, 0xff)),
        ("immediate", immediate.clone()),
        ("invalidate", with(&immediate, 0, 0x17)),
    ];
    seeds.extend(errors.map(|(name, bytes)| (name.to_owned(), bytes)));
    seeds
}
