//! What a message costs above the provider: no allocation, and no system call.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "a global allocator that counts cannot be made without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adverb::{Config, Context, Mode, Worker};
use adverb_conformance::Loopback;

/// Counts allocations of the whole process.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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

/// Makes `rounds` of ping and pong on this thread alone, and says how many allocations that took.
fn allocations_of(
    rounds: u64,
    size: usize,
    client: &Worker,
    server: &Worker,
    pongs: &AtomicU64,
    endpoint: &adverb::Endpoint,
) -> u64 {
    let payload = vec![7; size];
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..rounds {
        let sent = pongs.load(Ordering::Relaxed);
        let _sent = endpoint.send(PING, b"header", &payload).unwrap();
        while pongs.load(Ordering::Relaxed) == sent {
            assert!(server.try_progress() && client.try_progress());
        }
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn a_message_allocates_nothing() {
    let provider = Loopback::default();
    let (client, server) = (worker(&provider, "loop0"), worker(&provider, "loop1"));
    server.on_message(PING, |endpoint, message| {
        let _sent = endpoint.send(PONG, message.header(), message.payload()).unwrap();
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
    let _accepted = listener.accept(std::time::Duration::from_secs(20)).unwrap();
    for (size, path) in [(8, "inline"), (1000, "copied")] {
        // What is made once: queues that grow to their size.
        allocations_of(1_000, size, &client, &server, &pongs, &endpoint);
        let allocations = allocations_of(10_000, size, &client, &server, &pongs, &endpoint);
        assert_eq!(allocations, 0, "20000 messages of {size} bytes, {path}");
    }
}
