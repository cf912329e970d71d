//! Grants that come late or are lost: the sender goes on all the same, whatever the window, and no message ever meets an empty receive queue.
//!
//! Two workers on one thread, over a simulated network that picks the packets which grant something. `ADVERB_TEST_MESSAGES` says how many messages each
//! case sends; `cargo xtask soak credits` sends a million.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adverb::{Config, Context, Endpoint, Mode, SendError, Worker};
use adverb_roce::{Packet, Syndrome};
use adverb_soft::{SimFaults, SimNetwork, SimVerdict, SoftConfig, SoftProvider};
use adverb_types::Qpn;
use adverb_wire::{CreditLimit, Header};

const DATA: u16 = 1;

/// Time enough for a packet to arrive.
const STEP: Duration = Duration::from_micros(10);

/// Virtual time without any news after which the two sides count as stalled: longer than the RC protocol goes on trying.
const STALLED: Duration = Duration::from_secs(20);

/// Length of the invariant CRC behind each packet, in bytes.
const ICRC_LEN: usize = 4;

/// One in so many grants suffers.
const EVERY: u64 = 10;

/// What the network saw.
#[derive(Debug, Default)]
struct Seen {
    /// Packets that granted more than any before them.
    grants: AtomicU64,
    /// Of these: dropped or delayed.
    hit: AtomicU64,
    /// Receiver-not-ready answers.
    rnr: AtomicU64,
}

/// Does `verdict` to every tenth packet that grants more than those before it to the same queue pair.
fn hit_grants(network: &SimNetwork, verdict: SimVerdict) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let counted = Arc::clone(&seen);
    let mut limits: HashMap<Qpn, CreditLimit> = HashMap::new();
    network.set_filter(move |bytes| {
        let Some(Ok(packet)) = bytes
            .len()
            .checked_sub(ICRC_LEN)
            .map(|len| Packet::parse(&bytes[..len]))
        else {
            return SimVerdict::Pass;
        };
        if packet
            .aeth
            .is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::RnrNak(_)))
        {
            counted.rnr.fetch_add(1, Ordering::Relaxed);
        }
        let Ok((header, _)) = Header::decode(packet.payload) else {
            return SimVerdict::Pass;
        };
        let known = limits.insert(packet.dest_qpn, header.credit_limit);
        if known.is_none_or(|known| header.credit_limit.since(known) <= 0) {
            if let Some(known) = known {
                limits.insert(packet.dest_qpn, known);
            }
            return SimVerdict::Pass;
        }
        if counted.grants.fetch_add(1, Ordering::Relaxed) % EVERY != EVERY - 1 {
            return SimVerdict::Pass;
        }
        counted.hit.fetch_add(1, Ordering::Relaxed);
        verdict
    });
    seen
}

/// One side: what it sends, and what it got.
struct Side {
    worker: Worker,
    endpoint: Endpoint,
    sent: u64,
    got: Arc<AtomicU64>,
}

impl Side {
    /// Sends numbered messages until there is no room or all `total` are sent.
    fn send(&mut self, total: u64) {
        while self.sent < total {
            match self.endpoint.send(DATA, b"", &self.sent.to_le_bytes()) {
                Ok(_) => self.sent += 1,
                Err(SendError::WouldBlock { .. }) => return,
                Err(error) => panic!("message {}: {error}", self.sent),
            }
        }
    }

    fn got(&self) -> u64 {
        self.got.load(Ordering::Relaxed)
    }
}

fn pair(network: &SimNetwork, window: u32) -> [Side; 2] {
    let provider = Arc::new(SoftProvider::simulated(SoftConfig::default(), network));
    let worker = || {
        let config = Config::new()
            .mode(Mode::Poll)
            .window(window)
            .max_queued_bytes(16 << 10)
            .keepalive(None);
        let context = Context::builder().provider(provider.clone()).open().unwrap();
        let worker = context.worker(config).unwrap();
        let got = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&got);
        worker.on_message(DATA, move |_, message| {
            let number = u64::from_le_bytes(message.payload().try_into().unwrap());
            let due = counted.fetch_add(1, Ordering::Relaxed);
            assert_eq!(number, due, "lost, repeated or out of order");
        });
        (worker, got)
    };
    let (client, server) = (worker(), worker());
    let listener = server.0.listen("127.0.0.1:0").unwrap();
    let (near, far) = network.in_real_time(|| {
        let _driving = server.0.progress_thread().unwrap();
        let near = client.0.connect(listener.local_addr()).unwrap();
        (near, listener.accept(Duration::from_secs(60)).unwrap())
    });
    let side = |(worker, got), endpoint| Side {
        worker,
        endpoint,
        sent: 0,
        got,
    };
    [side(client, near), side(server, far)]
}

/// Sends `totals` messages from each side, while every tenth grant suffers `verdict`.
fn run(window: u32, verdict: SimVerdict, totals: [u64; 2]) {
    let network = SimNetwork::new(SimFaults::default());
    let mut sides = pair(&network, window);
    let seen = hit_grants(&network, verdict);

    let mut news_at = network.elapsed();
    let mut before = [0; 2];
    loop {
        for (side, total) in sides.iter_mut().zip(totals) {
            side.send(total);
        }
        network.advance(STEP);
        for side in &sides {
            assert!(side.worker.try_progress());
        }
        let got = [sides[1].got(), sides[0].got()];
        if got == totals {
            break;
        }
        if got != before {
            (before, news_at) = (got, network.elapsed());
        } else if network.elapsed() - news_at > STEP * 20 {
            // Only a timer of the RC protocol can help now.
            network.advance(Duration::from_millis(1));
        }
        assert!(
            network.elapsed() - news_at < STALLED,
            "window {window}, {verdict:?}: stalled after {got:?} messages; {seen:?}"
        );
    }
    let [grants, hit, rnr] = [&seen.grants, &seen.hit, &seen.rnr].map(|count| count.load(Ordering::Relaxed));
    println!("window {window}, {verdict:?}, {totals:?} messages: {hit} of {grants} grants hit, {rnr} RNR");
    assert_eq!(rnr, 0, "window {window}, {verdict:?}");
    assert_eq!(hit, grants / EVERY);
    assert!(hit > 0, "no grant was hit");
}

/// How many messages a case sends.
fn messages() -> u64 {
    std::env::var("ADVERB_TEST_MESSAGES").map_or(2_000, |count| count.parse().unwrap())
}

/// All cases of one window. What is delayed is overtaken by what follows, which the receiver refuses: that costs as much as a loss.
fn all(window: u32) {
    let total = messages();
    for verdict in [SimVerdict::Drop, SimVerdict::Delay(Duration::from_millis(2))] {
        // Grants on their own, and grants that ride on messages.
        run(window, verdict, [total, 0]);
        run(window, verdict, [total / 2, total - total / 2]);
    }
}

#[test]
fn lost_and_late_grants_at_a_window_of_2() {
    all(2);
}

#[test]
fn lost_and_late_grants_at_a_window_of_3() {
    all(3);
}

#[test]
fn lost_and_late_grants_at_a_window_of_8() {
    all(8);
}

#[test]
fn lost_and_late_grants_at_a_window_of_64() {
    all(64);
}
