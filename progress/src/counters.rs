//! What progress did, counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Why the holder of the progress role got to work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeReason {
    /// It did not sleep: polling found a completion.
    Spin,
    /// A completion channel had an event.
    Event,
    /// The safety interval passed: it looks, in case an event was lost.
    Safety,
    /// Another thread asked ([`crate::Notifier`]).
    Command,
    /// A timer of the handler, or the caller's deadline, came.
    Timer,
}

/// Counters of one engine. The holder of the role writes them, anybody may read them at any time.
///
/// Each is written by one thread at a time, so adding is a load and a store: no locked instruction while polling.
#[derive(Debug, Default)]
pub struct Counters {
    polls: AtomicU64,
    empty_polls: AtomicU64,
    completions: AtomicU64,
    arms: AtomicU64,
    sleeps: AtomicU64,
    wakes_spin: AtomicU64,
    wakes_event: AtomicU64,
    wakes_safety: AtomicU64,
    wakes_command: AtomicU64,
    wakes_timer: AtomicU64,
    spurious_wakes: AtomicU64,
    missed_completions: AtomicU64,
    spin_ns: AtomicU64,
}

/// [`Counters`] at one moment. Each value is exact; together they may be a pass apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Passes over all completion queues.
    pub polls: u64,
    /// Passes that found nothing.
    pub empty_polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Completion queues armed (`ibv_req_notify_cq(3)`).
    pub arms: u64,
    /// Times gone to sleep.
    pub sleeps: u64,
    /// Wakes, by reason.
    pub wakes: Wakes,
    /// Event wakes after which nothing was found: the completions had been taken by polling before.
    pub spurious_wakes: u64,
    /// Completions that only the safety interval found although their queue was armed: a driver lost an event, or
    /// (SoftRoCE) raises none for an error on a queue armed for solicited completions.
    pub missed_completions: u64,
    /// Time spent polling in vain, in nanoseconds: from a wait's first empty pass until it found something or armed.
    pub spin_ns: u64,
}

/// Wakes by [`WakeReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wakes {
    /// Passes that found completions without having slept.
    pub spin: u64,
    /// Sleeps ended by an event.
    pub event: u64,
    /// Sleeps ended by the safety interval.
    pub safety: u64,
    /// Sleeps ended by another thread's request.
    pub command: u64,
    /// Sleeps ended by a timer or the caller's deadline.
    pub timer: u64,
}

impl Wakes {
    /// All wakes that ended a sleep.
    pub fn from_sleep(&self) -> u64 {
        self.event + self.safety + self.command + self.timer
    }
}

impl Counters {
    /// All at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The values now.
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            polls: read(&self.polls),
            empty_polls: read(&self.empty_polls),
            completions: read(&self.completions),
            arms: read(&self.arms),
            sleeps: read(&self.sleeps),
            wakes: Wakes {
                spin: read(&self.wakes_spin),
                event: read(&self.wakes_event),
                safety: read(&self.wakes_safety),
                command: read(&self.wakes_command),
                timer: read(&self.wakes_timer),
            },
            spurious_wakes: read(&self.spurious_wakes),
            missed_completions: read(&self.missed_completions),
            spin_ns: read(&self.spin_ns),
        }
    }

    /// So many rounds were polled, and only the last of them can have found anything.
    pub(crate) fn polled(&self, rounds: u32, completions: usize) {
        add(&self.polls, rounds.into());
        add(
            &self.empty_polls,
            u64::from(rounds).saturating_sub(u64::from(completions > 0)),
        );
        if completions > 0 {
            add(&self.completions, completions as u64);
        }
    }

    pub(crate) fn armed(&self, queues: u64) {
        add(&self.arms, queues);
    }

    pub(crate) fn slept(&self) {
        add(&self.sleeps, 1);
    }

    pub(crate) fn woke(&self, reason: WakeReason) {
        let counter = match reason {
            WakeReason::Spin => &self.wakes_spin,
            WakeReason::Event => &self.wakes_event,
            WakeReason::Safety => &self.wakes_safety,
            WakeReason::Command => &self.wakes_command,
            WakeReason::Timer => &self.wakes_timer,
        };
        add(counter, 1);
    }

    pub(crate) fn spurious(&self) {
        add(&self.spurious_wakes, 1);
    }

    pub(crate) fn missed(&self, completions: u64) {
        add(&self.missed_completions, completions);
    }

    pub(crate) fn spun(&self, time: Duration) {
        add(&self.spin_ns, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
