//! What lies between: packets and alarms in the order in which they come due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use adverb_roce::Packet;

/// What the network does to packets. Probabilities run from 0 to 1. A corrupted packet is a lost one: its CRC is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    /// How likely a packet is held up, so that later ones overtake it.
    pub(crate) reordering: f64,
    /// From then on, everything is lost.
    pub(crate) partition: Option<Instant>,
}

/// When it comes, the order of its making, to whom, and what: a packet or an alarm.
type Due = (Instant, u64, usize, Option<Vec<u8>>);

/// Whether a packet is lost.
type Loses = Box<dyn FnMut(&Packet<'_>) -> bool>;

/// See the module's page.
pub(crate) struct Network {
    random: fastrand::Rng,
    pub(crate) faults: Faults,
    queue: BinaryHeap<Reverse<Due>>,
    /// Loses what it says, beside the random losses.
    pub(crate) loses: Option<Loses>,
    count: u64,
    pub(crate) sent: u64,
}

impl Network {
    const DELAY: Duration = Duration::from_micros(10);

    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            faults,
            queue: BinaryHeap::new(),
            loses: None,
            count: 0,
            sent: 0,
        }
    }

    pub(crate) fn send(&mut self, now: Instant, to: usize, bytes: &[u8]) {
        self.sent += 1;
        let cut = self.faults.partition.is_some_and(|from| now >= from);
        let packet = Packet::parse(bytes).unwrap();
        let chosen = self.loses.as_mut().is_some_and(|loses| loses(&packet));
        if cut || chosen || self.random.f64() < self.faults.loss {
            return;
        }
        let copies = 1 + usize::from(self.random.f64() < self.faults.duplication);
        for _ in 0..copies {
            let held_up = self.random.f64() < self.faults.reordering;
            let delay = if held_up {
                Self::DELAY * self.random.u32(2..30)
            } else {
                Self::DELAY
            };
            self.push(now + delay, to, Some(bytes.to_vec()));
        }
    }

    /// End `i` wants to be looked at then.
    pub(crate) fn alarm(&mut self, at: Instant, i: usize) {
        self.push(at, i, None);
    }

    fn push(&mut self, at: Instant, to: usize, packet: Option<Vec<u8>>) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count, to, packet)));
    }

    /// The next packet or alarm, if it comes by `until`.
    pub(crate) fn next(&mut self, until: Instant) -> Option<(Instant, usize, Option<Vec<u8>>)> {
        if self.queue.peek()?.0.0 > until {
            return None;
        }
        let Reverse((at, _, to, packet)) = self.queue.pop()?;
        Some((at, to, packet))
    }
}
