//! What a message costs: no allocation, neither above the provider nor in the software device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use adverb::{Config, Context, Mode, Rights, Worker};
use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
use adverb_testing::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PING: u16 = 1;
const PONG: u16 = 2;

/// Time enough for a packet to arrive.
const STEP: Duration = Duration::from_micros(10);

/// Two workers that are connected over a simulated network, where nothing has a thread.
struct Bench {
    network: SimNetwork,
    client: Worker,
    server: Worker,
    endpoint: adverb::Endpoint,
    _accepted: adverb::Endpoint,
    pongs: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let network = SimNetwork::new(SimFaults::default());
        let provider = Arc::new(SoftProvider::simulated(SoftConfig::default(), &network));
        let worker = || {
            let context = Context::builder().provider(provider.clone()).open().unwrap();
            context.worker(Config::new().mode(Mode::Poll)).unwrap()
        };
        let (client, server) = (worker(), worker());
        server.on_message(PING, |endpoint, message| {
            let _sent = endpoint.send(PONG, message.header(), message.payload()).unwrap();
        });
        server.on_request(PING, |_, request| {
            // A reply takes the request, of which the test wants the bytes to come back.
            let mut bytes = [0; 1000];
            let bytes = &mut bytes[..request.payload().len()];
            bytes.copy_from_slice(request.payload());
            let _sent = request.reply(b"header", bytes).unwrap();
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
            (endpoint, listener.accept(Duration::from_secs(20)).unwrap())
        });
        Self {
            network,
            client,
            server,
            endpoint,
            _accepted,
            pongs,
        }
    }

    /// Sends a ping and drives all until the pong is there, on this thread alone.
    fn round(&self, payload: &[u8]) {
        let before = self.pongs.load(Ordering::Relaxed);
        let _sent = self.endpoint.send(PING, b"header", payload).unwrap();
        while self.pongs.load(Ordering::Relaxed) == before {
            self.network.advance(STEP);
            assert!(self.server.try_progress() && self.client.try_progress());
        }
    }

    /// The same with a request and its reply.
    fn request(&self, payload: &[u8]) {
        let mut pending = pin!(self.endpoint.request(PING, b"header", payload));
        loop {
            self.network.advance(STEP);
            assert!(self.server.try_progress());
            if let Poll::Ready(reply) = pending.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
                assert_eq!(reply.unwrap().payload(), payload);
                return;
            }
        }
    }
}

#[test]
fn a_one_sided_operation_allocates_nothing() {
    let bench = Bench::new();
    let there = bench.server.context().register(4096, Rights::all()).unwrap();
    let here = bench.client.context().register(4096, Rights::empty()).unwrap();
    let remote = there.remote().unwrap();
    let round = |i: u64| {
        let put = bench.endpoint.put(&here, .., &remote, 0).unwrap();
        bench.endpoint.fence();
        let got = bench.endpoint.get(&here, 8.., &remote, 0).unwrap();
        let mut added = pin!(bench.endpoint.fetch_add(&remote, 0, i).unwrap());
        let mut flushed = pin!(bench.endpoint.flush());
        let mut context = TaskContext::from_waker(Waker::noop());
        loop {
            bench.network.advance(STEP);
            assert!(bench.server.try_progress());
            let added = added.as_mut().poll(&mut context);
            if let (Poll::Ready(Ok(())), Poll::Ready(Ok(_))) = (flushed.as_mut().poll(&mut context), added) {
                break;
            }
        }
        drop((put, got));
    };
    // What is made once: queues that grow to their size, and memory for what atomics bring.
    (0..1_000).for_each(round);
    let before = allocations();
    (0..5_000).for_each(round);
    assert_eq!(allocations() - before, 0, "20000 operations");
}

#[test]
fn a_message_allocates_nothing() {
    let bench = Bench::new();
    for (size, path) in [(8, "inline"), (1000, "copied")] {
        let payload = vec![7; size];
        let rounds = |count, round: &dyn Fn()| {
            let before = allocations();
            (0..count).for_each(|_| round());
            allocations() - before
        };
        for (what, round) in [
            ("messages", &(|| bench.round(&payload)) as &dyn Fn()),
            ("requests and replies", &|| bench.request(&payload)),
        ] {
            // What is made once: queues that grow to their size.
            rounds(1_000, round);
            assert_eq!(rounds(10_000, round), 0, "20000 {what} of {size} bytes, {path}");
        }
    }
}
