//! What became of packets.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a device did with packets since it was opened. RoCEv2 devices drop silently, so that a wrong packet looks like a dead peer: this tells them
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftCounters {
    /// Packets handed to the wire.
    pub sent: u64,
    /// Datagrams that arrived.
    pub received: u64,
    /// Of these: too short or no packets of the RC transport.
    pub malformed: u64,
    /// Of these: with a wrong invariant CRC.
    pub bad_icrc: u64,
    /// Of these: to a queue pair that there is not.
    pub no_queue_pair: u64,
    /// Of these: to a queue pair that is not connected, or not with the address they came from.
    pub not_the_peer: u64,
}

/// One of [`SoftCounters`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Sent,
    Received,
    Malformed,
    BadIcrc,
    NoQueuePair,
    NotThePeer,
}

/// [`SoftCounters`] as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; 6]);

impl Counters {
    pub(crate) fn add(&self, counter: Counter, n: usize) {
        self.0[counter as usize].fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> SoftCounters {
        let get = |counter: Counter| self.0[counter as usize].load(Ordering::Relaxed);
        SoftCounters {
            sent: get(Counter::Sent),
            received: get(Counter::Received),
            malformed: get(Counter::Malformed),
            bad_icrc: get(Counter::BadIcrc),
            no_queue_pair: get(Counter::NoQueuePair),
            not_the_peer: get(Counter::NotThePeer),
        }
    }
}
