//! Stopping in order when a signal asks for it, so that the other side hears a goodbye rather than nothing more.

use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use adverb::Worker;
use anyhow::anyhow;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};

/// Whether the program is to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The signal that asked for it; 0 while none has.
    signal: AtomicI32,
    /// Whom to wake then.
    waiting: Mutex<Option<Worker>>,
}

impl Stop {
    /// The first SIGINT or SIGTERM asks the program to stop, a second one ends it at once.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let failed = |error| anyhow!("watching for signals: {error}");
        let stop = Self::default();
        let asking = stop.clone();
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let watch = move || {
            for signal in signals.forever() {
                if asking.asked() {
                    // Of these signals it does not return.
                    let _ = emulate_default_handler(signal);
                }
                asking.ask(signal);
            }
        };
        std::thread::Builder::new().spawn(watch).map_err(failed)?;
        Ok(stop)
    }

    /// Asks the program to stop, as `signal` would.
    pub(crate) fn ask(&self, signal: i32) {
        self.0.signal.store(signal, Ordering::SeqCst);
        if let Some(worker) = &*self.waiting() {
            worker.wake();
        }
    }

    /// Whether it was asked to stop.
    pub(crate) fn asked(&self) -> bool {
        self.0.signal.load(Ordering::Relaxed) != 0
    }

    /// An error if it was asked to stop.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        match self.0.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stopped { signal }),
        }
    }

    /// Wakes who waits on this worker when it is asked to stop, until the guard is dropped.
    pub(crate) fn wakes(&self, worker: &Worker) -> Wakes<'_> {
        *self.waiting() = Some(worker.clone());
        Wakes(self)
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Option<Worker>> {
        // Nothing that panics is done under it.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Stop::wakes`].
pub(crate) struct Wakes<'a>(&'a Stop);

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        // Not dropped under the lock.
        let worker = self.0.waiting().take();
        drop(worker);
    }
}

/// A signal ended what was being done.
#[derive(Debug)]
pub(crate) struct Stopped {
    signal: i32,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by {}", signal_name(self.signal).unwrap_or("a signal"))
    }
}

impl std::error::Error for Stopped {}

impl Stopped {
    /// Ends the process as the signal would have done, which is what tells a shell that a loop is to end, too.
    pub(crate) fn end_process(&self) {
        // Of these signals it does not return.
        let _ = emulate_default_handler(self.signal);
    }
}
