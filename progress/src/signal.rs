//! How other threads reach a holder of the progress role that sleeps, without a system call when it does not.
//!
//! One word tells whether the holder sleeps, whether the send queue is armed meanwhile, and whether a wake was asked for.
//! Both hand-overs rest on it:
//!
//! - **A command** ([`SleepState::command`]) and going to sleep are read-modify-write operations on that one word, so one comes first.
//!   Either the sleeper finds the command and does not sleep, or the command finds the sleeper and rings the bell. The bell rings once
//!   a sleep; further commands find the first one's bit.
//! - **New work** ([`SleepState::posted`]) is Dekker's protocol on two words. The poster counts its work, fences, reads this word.
//!   The sleeper writes this word, fences, reads the count. Sequentially consistent fences make it impossible that both
//!   read the old value: either the sleeper sees the work and arms, or the poster sees a sleeper that is not armed and
//!   rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::sync::{Arc, AtomicU32, Ordering, fence};

const SLEEPING: u32 = 1;
const SEND_ARMED: u32 = 2;
const COMMAND: u32 = 4;

/// The word that the holder of the role and everybody else share. Pure memory: who is told to ring the bell owns one.
///
/// It is public for programs that bring their own way of sleeping, and so that it can be model-checked.
#[derive(Debug)]
pub struct SleepState(AtomicU32);

impl SleepState {
    /// Awake, no command.
    #[expect(clippy::new_without_default, reason = "loom's atomics have no Default")]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Goes to sleep, unless a command came: then it is taken, and the answer is `false`.
    ///
    /// The caller was awake. After `true`, it must look once more whether work is outstanding that it did not arm for.
    #[must_use]
    pub fn fall_asleep(&self, send_armed: bool) -> bool {
        let asleep = SLEEPING | if send_armed { SEND_ARMED } else { 0 };
        let slept = self
            .0
            .compare_exchange(0, asleep, Ordering::SeqCst, Ordering::SeqCst);
        if slept.is_err() {
            self.0.swap(0, Ordering::SeqCst);
            return false;
        }
        // Pairs with the fence in `posted`.
        fence(Ordering::SeqCst);
        true
    }

    /// Wakes up, and says whether a command came meanwhile.
    pub fn wake_up(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) & COMMAND != 0
    }

    /// Leaves a command. `true`: the holder sleeps and this is the first since, so ring the bell.
    #[must_use]
    pub fn command(&self) -> bool {
        self.0.fetch_or(COMMAND, Ordering::SeqCst) & (SLEEPING | COMMAND) == SLEEPING
    }

    /// Work was posted, and counted where the holder reads it. `true`: the holder sleeps without watching the send queue, so
    /// ring the bell.
    #[must_use]
    pub fn posted(&self) -> bool {
        // Pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        let state = self.0.load(Ordering::Relaxed);
        state & (SLEEPING | SEND_ARMED) == SLEEPING && self.command()
    }
}

/// Wakes the holder of the progress role; clone it into every thread that may need to.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Signal>);

#[derive(Debug)]
struct Signal {
    state: SleepState,
    bell: OwnedFd,
}

impl Notifier {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(Signal {
            state: SleepState::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })))
    }

    /// Makes the holder of the role look again: at its `done` condition, its timers, its queues.
    ///
    /// If it sleeps it wakes, and if it is about to sleep it does not. A system call only for the first wake of a sleep.
    /// Use it when a condition became true, or a timer became earlier, outside of the handler.
    pub fn wake(&self) {
        if self.0.state.command() {
            self.ring();
        }
    }

    /// Tells the holder that send work was posted, so that it watches the send queue. A fence and a load, and a system
    /// call only if the holder sleeps without the send queue armed.
    ///
    /// Call it after posting, from threads that do not hold the role. The post must have been counted before in what
    /// [`crate::Handler::outstanding_sends`] reads; relaxed atomics will do.
    pub fn work_posted(&self) {
        if self.0.state.posted() {
            self.ring();
        }
    }

    pub(crate) fn state(&self) -> &SleepState {
        &self.0.state
    }

    /// Takes the bell's ring, so that the next sleep is not cut short by it.
    pub(crate) fn silence(&self) {
        // EAGAIN: somebody is between leaving the command and ringing. The ring will cut one sleep short.
        let _ = rustix::io::read(&self.0.bell, &mut [0; 8]);
    }

    fn ring(&self) {
        // A counter that cannot take another ring (EAGAIN) is readable already.
        let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}
