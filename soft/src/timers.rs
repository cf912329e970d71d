//! When queue pairs are due, without looking at all of them.
//!
//! A queue pair's deadline moves on with nearly every packet, mostly to later. So it is not moved here: each queue pair knows the earliest
//! entry it has, and adds another only when it is due before that. When an entry comes up, its queue pair says whether it meant it, and if not
//! yet, enters the true time. In a steady flow that is one entry per queue pair and timeout, not one per packet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Times at which queue pairs, by their numbers, are to be looked at.
#[derive(Debug)]
pub(crate) struct Timers {
    epoch: Instant,
    /// A leaf in the lock order.
    entries: Mutex<BinaryHeap<Reverse<(Instant, u32)>>>,
    /// The earliest entry, in nanoseconds since `epoch`; [`NEVER`] if there is none. Written under the lock.
    earliest: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Timers {
    /// No entries. All times lie after `epoch`.
    pub(crate) fn new(epoch: Instant) -> Self {
        Self {
            epoch,
            entries: Mutex::default(),
            earliest: AtomicU64::new(NEVER),
        }
    }

    pub(crate) fn add(&self, at: Instant, qpn: u32) {
        let mut entries = self.entries.lock();
        entries.push(Reverse((at, qpn)));
        self.note(&entries);
    }

    /// The earliest entry's time. No lock is taken.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        match self.earliest.load(Ordering::SeqCst) {
            NEVER => None,
            nanos => Some(self.epoch + Duration::from_nanos(nanos)),
        }
    }

    /// Takes out an entry that is due by `now`.
    pub(crate) fn pop(&self, now: Instant) -> Option<(Instant, u32)> {
        if self.earliest().is_none_or(|at| at > now) {
            return None;
        }
        let mut entries = self.entries.lock();
        let due = entries.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let entry = if due { entries.pop() } else { None };
        self.note(&entries);
        entry.map(|Reverse(entry)| entry)
    }

    fn note(&self, entries: &BinaryHeap<Reverse<(Instant, u32)>>) {
        let nanos = entries.peek().map_or(NEVER, |Reverse((at, _))| {
            let since = at.saturating_duration_since(self.epoch).as_nanos();
            u64::try_from(since).unwrap_or(NEVER - 1)
        });
        // The thread that sleeps until the earliest looks again after it said so: one of the two sees what the other did.
        self.earliest.store(nanos, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_up_in_order_and_not_before_they_are_due() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let timers = Timers::new(start);
        assert_eq!((timers.earliest(), timers.pop(at(9))), (None, None));
        for (ms, qpn) in [(5, 1), (3, 2), (8, 1)] {
            timers.add(at(ms), qpn);
        }
        assert_eq!(timers.earliest(), Some(at(3)));
        assert_eq!(timers.pop(at(2)), None);
        assert_eq!(timers.pop(at(6)), Some((at(3), 2)));
        assert_eq!(timers.pop(at(6)), Some((at(5), 1)));
        assert_eq!(timers.pop(at(6)), None);
        assert_eq!(timers.earliest(), Some(at(8)));
    }
}
