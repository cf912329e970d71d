//! The primitives that loom takes over under `--cfg adverb_loom`: everything that two threads of this crate share goes
//! through here.

#[cfg(not(adverb_loom))]
mod primitives {
    use std::time::Instant;

    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
    pub(crate) use std::thread::ThreadId;

    /// Who this is, kept: asking each time would count a reference up and down.
    pub(crate) fn this_thread() -> ThreadId {
        thread_local!(static ID: ThreadId = std::thread::current().id());
        // While the thread ends there is no such place any more.
        ID.try_with(|id| *id)
            .unwrap_or_else(|_| std::thread::current().id())
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Waits for a notification, until `deadline` at most; may return early.
    pub(crate) fn wait<'a, T>(
        condvar: &Condvar,
        mut guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, T> {
        match deadline {
            Some(deadline) => {
                condvar.wait_until(&mut guard, deadline);
            }
            None => condvar.wait(&mut guard),
        }
        guard
    }
}

#[cfg(adverb_loom)]
mod primitives {
    use std::sync::PoisonError;
    use std::time::Instant;

    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::ThreadId;

    pub(crate) fn this_thread() -> ThreadId {
        loom::thread::current().id()
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loom has no clock: a model never times out.
    pub(crate) fn wait<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _deadline: Option<Instant>,
    ) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}

// Only counts: there is no hand-over in it to check.
pub(crate) use std::sync::Arc;

pub(crate) use primitives::{
    AtomicU32, Condvar, Mutex, MutexGuard, Ordering, ThreadId, fence, lock, this_thread, wait,
};
