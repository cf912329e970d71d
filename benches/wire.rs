//! The header's codec.
#![allow(missing_docs, reason = "criterion's macros make functions without")]

use adverb_wire::{CreditLimit, Data, Header, Kind, Role};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

fn codec(c: &mut Criterion) {
    let data = Data {
        seq: 7,
        am_id: 3,
        header_len: 0,
        message_len: 8,
        offset: 0,
        role: Role::Message,
        fragment_len: 8,
    };
    let header = Header {
        control_ack: 1,
        credit_limit: CreditLimit::new(64),
        ack: 6,
        kind: Kind::Data(data),
    };
    let mut segment = [0; 64];
    let Some(room) = segment.first_chunk_mut() else {
        return;
    };
    let len = header.encode(room) + 8;
    c.bench_function("header_decode", |b| {
        b.iter(|| Header::decode(black_box(&segment[..len])))
    });
    c.bench_function("header_encode", |b| {
        b.iter(|| {
            let mut room = [0; Header::MAX_LEN];
            black_box(&header).encode(black_box(&mut room))
        });
    });
}

criterion_group!(benches, codec);
criterion_main!(benches);
