//! A message and its answer through the whole transport and the software device, both sides on one thread, over a simulated network: what adverb itself
//! costs, without the kernel's network.
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adverb::{Config, Context, Mode, Worker};
use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const PING: u16 = 1;
const PONG: u16 = 2;

/// Time enough for a packet to arrive.
const STEP: Duration = Duration::from_micros(2);

fn worker(network: &SimNetwork) -> Worker {
    let provider = SoftProvider::simulated(SoftConfig::default(), network);
    let context = Context::builder().provider(Arc::new(provider)).open().unwrap();
    context.worker(Config::new().mode(Mode::Poll)).unwrap()
}

fn round_trip(c: &mut Criterion) {
    let network = SimNetwork::new(SimFaults::default());
    let (client, server) = (worker(&network), worker(&network));
    server.on_message(PING, |endpoint, message| {
        drop(endpoint.send(PONG, &[], message.payload()))
    });
    let pongs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&pongs);
    client.on_message(PONG, move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let listener = server.listen("127.0.0.1:0").unwrap();
    let (endpoint, _accepted) = network.in_real_time(|| {
        let _driving = server.progress_thread().unwrap();
        let endpoint = client.connect(listener.local_addr()).unwrap();
        (endpoint, listener.accept(Duration::from_secs(10)).unwrap())
    });
    let mut group = c.benchmark_group("round_trip");
    for size in [8, 1024, 65536] {
        let payload = vec![7; size];
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let before = pongs.load(Ordering::Relaxed);
                drop(endpoint.send(PING, &[], &payload).unwrap());
                while pongs.load(Ordering::Relaxed) == before {
                    network.advance(STEP);
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
