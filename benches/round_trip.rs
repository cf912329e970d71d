//! A message and its answer through the whole transport, both sides on one thread, over the reference device in memory: what adverb
//! itself costs, without any network.
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adverb::{Config, Context, Mode, Worker};
use adverb_conformance::Loopback;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const PING: u16 = 1;
const PONG: u16 = 2;

fn worker(provider: &Loopback, device: &str) -> Worker {
    let context = Context::builder()
        .provider(Arc::new(provider.clone()))
        .device(device)
        .open()
        .unwrap();
    context.worker(Config::new().mode(Mode::Poll)).unwrap()
}

fn round_trip(c: &mut Criterion) {
    let provider = Loopback::default();
    let (client, server) = (worker(&provider, "loop0"), worker(&provider, "loop1"));
    server.on_message(PING, |endpoint, message| {
        drop(endpoint.send(PONG, &[], message.payload()))
    });
    let pongs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&pongs);
    client.on_message(PONG, move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let listener = server.listen("127.0.0.1:0").unwrap();
    let endpoint = {
        let _driving = server.progress_thread().unwrap();
        client.connect(listener.local_addr()).unwrap()
    };
    let _accepted = listener.accept(Duration::from_secs(10)).unwrap();
    let mut group = c.benchmark_group("round_trip");
    for size in [8, 1024, 65536] {
        let payload = vec![7; size];
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let before = pongs.load(Ordering::Relaxed);
                drop(endpoint.send(PING, &[], &payload).unwrap());
                while pongs.load(Ordering::Relaxed) == before {
                    server.try_progress();
                    client.try_progress();
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, round_trip);
criterion_main!(benches);
