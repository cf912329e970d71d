//! What a worker's connections tell whoever drives it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use adverb_progress::Notifier;

/// Shared by a worker and its connections.
#[derive(Debug)]
pub(crate) struct Signals {
    notifier: Notifier,
    /// Connections that have sends outstanding.
    busy: AtomicUsize,
    /// Whether a connection found no send slot.
    starved: AtomicBool,
    /// Whether the next timer of some connection may have become earlier.
    timers_changed: AtomicBool,
}

impl Signals {
    pub(crate) fn new(notifier: Notifier) -> Self {
        Self {
            notifier,
            busy: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            timers_changed: AtomicBool::new(false),
        }
    }

    /// A connection has sends outstanding, or none any more. Called before the first post, so that a worker about to sleep sees it.
    pub(crate) fn set_busy(&self, busy: bool) {
        if busy {
            self.busy.fetch_add(1, Ordering::Relaxed);
        } else {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// A connection found no send slot.
    pub(crate) fn starved(&self) {
        self.starved.store(true, Ordering::Release);
    }

    pub(crate) fn take_starved(&self) -> bool {
        // The load keeps the usual case free of a write to a shared cache line.
        self.starved.load(Ordering::Acquire) && self.starved.swap(false, Ordering::AcqRel)
    }

    /// A timer may have become earlier: wakes the worker, if it sleeps.
    pub(crate) fn timers_changed(&self) {
        self.timers_changed.store(true, Ordering::Release);
        self.notifier.wake();
    }

    pub(crate) fn timers_pending(&self) -> bool {
        self.timers_changed.load(Ordering::Acquire)
    }

    pub(crate) fn take_timers_changed(&self) -> bool {
        self.timers_pending() && self.timers_changed.swap(false, Ordering::AcqRel)
    }

    /// Sends were posted by a thread that may not be the one that drives the worker.
    pub(crate) fn work_posted(&self) {
        self.notifier.work_posted();
    }

    /// Something happened that whoever drives the worker should look at.
    pub(crate) fn wake(&self) {
        self.notifier.wake();
    }
}
