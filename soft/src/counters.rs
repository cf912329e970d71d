//! What became of packets.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a device did with packets since it was opened. RoCEv2 devices drop silently, so that a wrong packet looks like a dead peer: this tells them
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftCounters {
    /// Packets sent, whichever way.
    pub sent: u64,
    /// Of these: through memory that is shared with the peer.
    pub sent_shared: u64,
    /// Of these: lost, because there was no room in that memory.
    pub ring_full: u64,
    /// Packets that arrived, whichever way.
    pub received: u64,
    /// Of these: through memory that is shared with the peer.
    pub received_shared: u64,
    /// Of these: too short or no packets of the RC transport.
    pub malformed: u64,
    /// Of these: with a wrong invariant CRC.
    pub bad_icrc: u64,
    /// Of these: to a queue pair that there is not.
    pub no_queue_pair: u64,
    /// Of these: to a queue pair that is not connected, or not with the address they came from.
    pub not_the_peer: u64,
    /// Of these: marked by a congested switch (ECN).
    pub marked: u64,
    /// Of these: congestion notifications, by which peers say that they get marked packets.
    pub notified: u64,
}

/// One of [`SoftCounters`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    /// Over the network only, as the next one.
    Sent,
    Received,
    SentShared,
    RingFull,
    ReceivedShared,
    Malformed,
    BadIcrc,
    NoQueuePair,
    NotThePeer,
    Marked,
    Notified,
}

/// [`SoftCounters`] as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; 11]);

impl Counters {
    /// Adds all of another's.
    pub(crate) fn absorb(&self, other: &Self) {
        for (counter, other) in self.0.iter().zip(&other.0) {
            counter.fetch_add(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(crate) fn add(&self, counter: Counter, n: usize) {
        self.0[counter as usize].fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> SoftCounters {
        let get = |counter: Counter| self.0[counter as usize].load(Ordering::Relaxed);
        let (sent_shared, received_shared) = (get(Counter::SentShared), get(Counter::ReceivedShared));
        SoftCounters {
            sent: get(Counter::Sent) + sent_shared,
            sent_shared,
            ring_full: get(Counter::RingFull),
            received: get(Counter::Received) + received_shared,
            received_shared,
            malformed: get(Counter::Malformed),
            bad_icrc: get(Counter::BadIcrc),
            no_queue_pair: get(Counter::NoQueuePair),
            not_the_peer: get(Counter::NotThePeer),
            marked: get(Counter::Marked),
            notified: get(Counter::Notified),
        }
    }
}
