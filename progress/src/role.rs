//! Progress is a role, not a thread.
//!
//! Whoever waits may take it: a blocked caller, a polled future, a progress thread. One has it at a time, drives for everybody,
//! and tells the others when what they wait for has come. The others park.
//!
//! The rules, each of which a model check holds to:
//!
//! - **Try, then queue, then park.** A waiter that finds the role taken queues in the same critical section, so
//!   the holder's release cannot miss it.
//! - **One is offered the role at each release**, the one that waited longest: no thundering herd. The offer is a baton, not a reservation: the role
//!   is free meanwhile, so an offered thread that is slow to be scheduled does not hold up one that is awake.
//! - **An offer is never dropped.** An offered waiter takes the role, or finds it taken (that holder's release will offer again),
//!   or leaves and passes the offer on.
//! - **What a waiter waits for is told to that waiter** ([`Waiter::notify`]), by whoever made it true.
//! - Nobody parked: the release leaves the role free, and wakes the event loop's driver if there is one, since it must prepare
//!   its sleep anew.
//!
//! Futures take the role within one `poll` only, never across `Pending`, and do not queue: a driver task watches the descriptor
//! for them all ([`Role::register_driver`]).

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::task::Waker;
use std::time::Instant;

use crate::Deadline;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, ThreadId, lock, this_thread, wait};

/// The progress role and what belongs to its holder alone: the engine, and whatever handles its completions.
pub struct Role<T> {
    state: Mutex<State>,
    /// Locked by the holder of the role only, so never contended for longer than a release takes.
    held: Mutex<T>,
}

#[derive(Debug)]
struct State {
    holder: Option<ThreadId>,
    parked: VecDeque<Waiter>,
    driver: Option<Waker>,
}

/// Why [`Role::wait`] ended without what it waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError<E> {
    /// This thread holds the progress role already: it waits inside of a handler, for something that only it could bring about.
    #[error(
        "waiting inside of a handler would deadlock: return from the handler first, or wait on another thread"
    )]
    WouldDeadlock,
    /// The deadline passed.
    #[error("the deadline passed while waiting for a completion")]
    TimedOut,
    /// Progress itself failed.
    #[error(transparent)]
    Progress(#[from] E),
}

impl<T> Role<T> {
    /// A free role, whose holder gets at `value`.
    pub fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                holder: None,
                parked: VecDeque::new(),
                driver: None,
            }),
            held: Mutex::new(value),
        }
    }

    /// Takes the role if it is free.
    pub fn try_acquire(&self) -> Option<RoleGuard<'_, T>> {
        let mut state = lock(&self.state);
        if state.holder.is_some() {
            return None;
        }
        state.holder = Some(this_thread());
        drop(state);
        Some(self.guard())
    }

    /// Whether this thread holds the role, so that blocking on progress would be waiting for itself.
    pub fn held_by_current_thread(&self) -> bool {
        lock(&self.state).holder == Some(this_thread())
    }

    /// Blocks until `done` returns something, driving progress whenever the role is free and parked while it is not.
    ///
    /// `drive` makes one turn ([`crate::Engine::step`]) and may sleep, until `deadline` at most. `done` is asked before
    /// anything else, after each turn, and after each [`Waiter::notify`]. Whoever makes it true
    /// notifies the waiter afterwards; a thread that is not the holder also calls [`crate::Notifier::wake`], since the waiter may be the
    /// holder, asleep in `drive`.
    ///
    /// `register` gives the waiter, and sees to it that it will be notified; it is called once, if somebody else has the role. A waiter serves one
    /// thread at a time, and may be used again.
    ///
    /// # Errors
    /// [`WaitError::WouldDeadlock`] if this thread holds the role; [`WaitError::TimedOut`] after `deadline`, but not before the role was driven once
    /// if it was free; [`WaitError::Progress`] with the error of `drive`.
    pub fn wait<W: AsRef<Waiter>, R, E>(
        &self,
        register: impl FnOnce() -> W,
        deadline: &Deadline,
        mut done: impl FnMut() -> Option<R>,
        drive: impl FnMut(&mut T) -> Result<(), E>,
    ) -> Result<R, WaitError<E>> {
        if let Some(value) = done() {
            return Ok(value);
        }
        if let Some(mut guard) = self.try_acquire() {
            return drive_until(&mut *guard, deadline, done, drive);
        }
        if self.held_by_current_thread() {
            return Err(WaitError::WouldDeadlock);
        }
        let registered = register();
        let waiter = registered.as_ref();
        // An offer this thread has not acted upon yet; passed on however it leaves.
        let mut offer = Offer {
            role: self,
            pending: false,
        };
        loop {
            if let Some(value) = done() {
                return Ok(value);
            }
            if deadline.has_come() {
                return Err(WaitError::TimedOut);
            }
            let guard = self.acquire_or_queue(waiter);
            // Taken, or somebody holds it who will offer it again.
            offer.pending = false;
            if let Some(mut guard) = guard {
                return drive_until(&mut *guard, deadline, done, drive);
            }
            waiter.park(deadline);
            offer.pending = self.leave_queue(waiter);
        }
    }

    /// Names the task that drives progress for an event loop. It is woken at each release of the role with nobody parked.
    ///
    /// The driver registers *before* it tries for the role: should the try fail, the holder's release wakes it. It lets go with
    /// [`RoleGuard::release_as_driver`].
    pub fn register_driver(&self, waker: &Waker) {
        let mut state = lock(&self.state);
        match &mut state.driver {
            Some(driver) => driver.clone_from(waker),
            None => state.driver = Some(waker.clone()),
        }
    }

    /// There is no driver any more.
    pub fn unregister_driver(&self) {
        let driver = lock(&self.state).driver.take();
        drop(driver);
    }

    fn guard(&self) -> RoleGuard<'_, T> {
        RoleGuard {
            value: lock(&self.held),
            release: Release {
                role: self,
                by_driver: false,
            },
        }
    }

    fn acquire_or_queue(&self, waiter: &Waiter) -> Option<RoleGuard<'_, T>> {
        let mut state = lock(&self.state);
        if state.holder.is_some() {
            state.parked.push_back(waiter.clone());
            return None;
        }
        state.holder = Some(this_thread());
        drop(state);
        Some(self.guard())
    }

    /// Leaves the queue, and says whether the role was offered meanwhile.
    fn leave_queue(&self, waiter: &Waiter) -> bool {
        let mut state = lock(&self.state);
        let place = state.parked.iter().position(|parked| parked.is(waiter));
        match place {
            Some(place) => {
                state.parked.remove(place);
                false
            }
            None => true,
        }
    }

    /// Offers the role to the next one, if it is free. The lock is gone before anybody is woken.
    fn offer(mut state: MutexGuard<'_, State>, by_driver: bool) {
        if state.holder.is_some() {
            return;
        }
        let next = state.parked.pop_front();
        let driver = if next.is_none() && !by_driver {
            state.driver.clone()
        } else {
            None
        };
        drop(state);
        if let Some(next) = next {
            next.notify();
        } else if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// Drives until `done` returns something.
fn drive_until<T, R, E>(
    value: &mut T,
    deadline: &Deadline,
    mut done: impl FnMut() -> Option<R>,
    mut drive: impl FnMut(&mut T) -> Result<(), E>,
) -> Result<R, WaitError<E>> {
    loop {
        drive(value)?;
        if let Some(value) = done() {
            return Ok(value);
        }
        if deadline.has_come() {
            return Err(WaitError::TimedOut);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Role<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Role")
            .field("state", &*lock(&self.state))
            .finish_non_exhaustive()
    }
}

/// An offer of the role that must be acted upon or passed on.
struct Offer<'a, T> {
    role: &'a Role<T>,
    pending: bool,
}

impl<T> Drop for Offer<'_, T> {
    fn drop(&mut self) {
        if self.pending {
            Role::<T>::offer(lock(&self.role.state), false);
        }
    }
}

/// The progress role, held. Dropping it releases the role and offers it to the one that waited longest.
#[must_use]
pub struct RoleGuard<'a, T> {
    // Dropped in this order: the value is unlocked before anybody is offered the role.
    value: MutexGuard<'a, T>,
    release: Release<'a, T>,
}

struct Release<'a, T> {
    role: &'a Role<T>,
    by_driver: bool,
}

impl<T> RoleGuard<'_, T> {
    /// Releases the role without waking the event loop's driver, because this is the driver, and its sleep is
    /// prepared. A parked waiter is offered the role as ever.
    pub fn release_as_driver(mut self) {
        self.release.by_driver = true;
    }
}

impl<T> Drop for Release<'_, T> {
    fn drop(&mut self) {
        let mut state = lock(&self.role.state);
        state.holder = None;
        Role::<T>::offer(state, self.by_driver);
    }
}

impl<T> Deref for RoleGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for RoleGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for RoleGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RoleGuard").field(&*self.value).finish()
    }
}

/// What a blocked thread parks on. Give a clone to whatever will complete what the thread waits for.
#[derive(Clone, Debug)]
pub struct Waiter(Arc<Parking>);

#[derive(Debug)]
struct Parking {
    notified: Mutex<bool>,
    condvar: Condvar,
}

impl Waiter {
    /// A waiter that nobody notified yet.
    #[expect(clippy::new_without_default, reason = "a Default would hide the allocation")]
    pub fn new() -> Self {
        Self(Arc::new(Parking {
            notified: Mutex::new(false),
            condvar: Condvar::new(),
        }))
    }

    /// Makes the thread look again, now or when it parks next. Never blocks for long; may be called by the holder of the role.
    pub fn notify(&self) {
        *lock(&self.0.notified) = true;
        self.0.condvar.notify_one();
    }

    /// Parks until notified, `deadline` at most, and takes the notification.
    fn park(&self, deadline: &Deadline) {
        let mut notified = lock(&self.0.notified);
        while !*notified {
            if deadline.has_come() {
                return;
            }
            notified = wait(&self.0.condvar, notified, deadline.moment(Instant::now));
        }
        *notified = false;
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsRef<Self> for Waiter {
    fn as_ref(&self) -> &Self {
        self
    }
}
