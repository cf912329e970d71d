//! Many at once: clients that all connect in the same moment, endpoints by the hundred, and one peer among others that takes nothing any more.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adverb::{Config, ConnectErrorKind, Context, Endpoint, Message, Mode, RefuseReason, SendError};
use common::{ECHO, LONG, Pair, REPLY, SINK, soft};

/// Small queues, so that many fit.
fn small(max_endpoints: u32) -> Config {
    Config::new()
        .mode(Mode::Event)
        .max_endpoints(max_endpoints)
        .window(4)
        .send_depth(8)
        .segment_size(1024)
}

fn pair(client: Config, server: Config) -> Option<Pair> {
    if std::env::var_os("ADVERB_TEST_DEVICE").is_some() {
        println!("SKIP: only the software device has a context for each of so many clients");
        return None;
    }
    Some(Pair::with(client, server))
}

/// What this process has open, sorted.
fn descriptors() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    // One is gone by now: that of the folder.
    let mut open: Vec<_> = open
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    open.sort();
    open
}

/// Memory of this process that is resident, in kB (`proc_pid_status(5)`).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What became of one client.
enum Came {
    /// An echo came back.
    Connected,
    Refused(RefuseReason),
}

/// A client with a device of its own: connects at the barrier, and proves that the connection carries messages both ways.
fn client(server: std::net::SocketAddr, together: &Barrier) -> Came {
    let context = Context::builder().provider(Arc::new(soft())).open().unwrap();
    let worker = context
        .worker(small(1).connect_timeout(Duration::from_secs(10)))
        .unwrap();
    let echoed = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&echoed);
    worker.on_message(REPLY, move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    together.wait();
    match worker.connect(server) {
        Ok(endpoint) => {
            let _sent = endpoint.send(ECHO, b"", b"here").unwrap();
            worker
                .wait_until(LONG, || echoed.load(Ordering::Relaxed) == 1)
                .unwrap();
            let _ended = endpoint.close().wait(LONG).unwrap();
            Came::Connected
        }
        Err(error) => match *error.kind {
            ConnectErrorKind::Refused(refuse) => Came::Refused(refuse.reason),
            kind => panic!("neither connected nor refused: {kind}"),
        },
    }
}

/// Has so many clients connect at once to a listener with room for `room`. Returns how many were connected, and how many refused as there was no room.
fn storm(clients: usize, room: u32) -> (usize, usize) {
    let Some(mut pair) = pair(small(1), small(room)) else {
        return (clients, 0);
    };
    let address = pair.listener.local_addr();
    let together = Barrier::new(clients);
    let started = Instant::now();
    let came: Vec<Came> = thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|_| scope.spawn(|| client(address, &together)))
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    println!("{clients} clients in {:?}", started.elapsed());
    let connected = came.iter().filter(|came| matches!(came, Came::Connected)).count();
    let full = came
        .iter()
        .filter(|came| matches!(came, Came::Refused(RefuseReason::WorkerFull)))
        .count();
    // What was accepted goes with its clients.
    while pair.listener.try_accept().is_some() {}
    pair.stop_server();
    pair.server
        .wait_until(LONG, || pair.server.stats().endpoints == 0)
        .unwrap();
    (connected, full)
}

#[test]
fn two_hundred_clients_at_once_are_all_served() {
    let (connected, _) = storm(200, 256);
    assert_eq!(connected, 200);
}

#[test]
fn who_finds_no_room_is_told_so() {
    let (connected, full) = storm(50, 20);
    assert_eq!(connected + full, 50);
    assert!(connected >= 20);
}

/// Descriptors of one piece of shared memory at both its ends. Devices notice that nobody uses it any more when they look next, which may be before
/// or after the test counts.
const LINK: usize = 4;

/// How many endpoints [`endpoints_by_the_hundred_leave_nothing_behind`] opens.
fn endpoints() -> u32 {
    std::env::var("ADVERB_TEST_ENDPOINTS").map_or(200, |count| count.parse().unwrap())
}

#[test]
fn endpoints_by_the_hundred_leave_nothing_behind() {
    let count = endpoints();
    let Some(pair) = pair(small(count), small(count)) else {
        return;
    };
    // With the first connection come the devices' threads, which stay.
    let (first, accepted) = pair.connect();
    let _ended = first.close().wait(LONG).unwrap();
    drop((first, accepted));
    let gone = || [&pair.client, &pair.server].map(|worker| worker.stats().endpoints) == [0, 0];
    pair.client.wait_until(LONG, gone).unwrap();

    let (before, resident_before) = (descriptors(), resident());
    let mut open: Vec<(Endpoint, Endpoint)> = (0..count).map(|_| pair.connect()).collect();
    assert_eq!(pair.client.stats().endpoints, count);
    let replies = pair.replies();
    for (endpoint, _) in &open {
        let _sent = endpoint.send(ECHO, b"", b"").unwrap();
    }
    assert_eq!(replies.wait(&pair.client, count as usize).len(), count as usize);
    let grown = resident().saturating_sub(resident_before);
    println!("{count} connections: {grown} kB of resident memory for both their ends");
    let closing: Vec<_> = open.iter().map(|(endpoint, _)| endpoint.close()).collect();
    for closed in closing {
        let _ended = closed.wait(LONG).unwrap();
    }
    open.clear();
    pair.client.wait_until(LONG, gone).unwrap();
    let after = descriptors();
    assert!(
        after.len() <= before.len() + LINK,
        "descriptors are left: {after:?}, there were {before:?}"
    );
}

/// A peer that keeps every message costs its sender what may be queued, and the others on the same worker nothing.
#[test]
fn a_receiver_that_keeps_everything_costs_a_bounded_amount_and_others_nothing() {
    const KEEP: u16 = 9;
    const QUEUED: usize = 64 << 10;
    let config = || common::config(Mode::Hybrid).max_queued_bytes(QUEUED);
    let pair = Pair::new(config());
    let kept: Arc<Mutex<Vec<Message>>> = Arc::default();
    let keeping = Arc::clone(&kept);
    pair.server.on_message(KEEP, move |_, message| {
        keeping.lock().unwrap().push(message);
    });
    let ((stuck, _stuck), (free, _free)) = (pair.connect(), pair.connect());

    let payload = [7; 1000];
    let mut taken = 0_usize;
    let refused = loop {
        match stuck.send(KEEP, b"", &payload) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 10_000, "its sender queues without end");
        pair.client.try_progress();
    };
    assert!(matches!(refused, SendError::WouldBlock { .. }), "{refused}");

    // The other endpoint has its credits to itself: all of this goes through while the first stands still.
    let mut sent = 0;
    while sent < 20_000 {
        match free.send(SINK, b"", &payload) {
            Ok(_) => sent += 1,
            Err(SendError::WouldBlock { .. }) => free.ready().wait(LONG).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
    pair.client
        .wait_until(LONG, || pair.sunk.1.load(Ordering::Relaxed) == sent)
        .unwrap();
    assert!(matches!(
        stuck.send(KEEP, b"", &payload),
        Err(SendError::WouldBlock { .. })
    ));
    let window = 32;
    assert_eq!(
        kept.lock().unwrap().len(),
        window,
        "what it got is what it granted"
    );

    // Once it lets go, all comes through.
    let mut released = 0;
    pair.client
        .wait_until(LONG, || {
            let freed = std::mem::take(&mut *kept.lock().unwrap());
            released += freed.len();
            released == taken
        })
        .unwrap();
}
