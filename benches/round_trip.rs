//! A message and its answer through the whole transport and the software device.
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]

use adverb_benches::PingPong;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn round_trip(c: &mut Criterion) {
    let ping_pong = PingPong::new().unwrap();
    let mut group = c.benchmark_group("round_trip");
    for size in [8, 1024, 65536] {
        let payload = vec![7; size];
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| ping_pong.message(&payload).unwrap());
        });
    }
    group.bench_function("request", |b| b.iter(|| ping_pong.request(&[7; 8]).unwrap()));
    group.finish();
}

criterion_group!(benches, round_trip);
criterion_main!(benches);
