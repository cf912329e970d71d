//! Who attends to the socket: pollers, or the device's thread.
//!
//! # The rules
//! Whoever polls a completion queue and finds it empty takes packets in itself, so that a message passes no other thread. The thread is for the
//! times when nobody polls: for sleepers on completion channels, and for programs that posted work and then do something else, whose packets must be
//! acknowledged and sent again all the same. It must not compete with pollers: a thread that sleeps on the socket is woken for every packet, which
//! costs its sender more than the packet. So the thread has three ways to sleep:
//!
//! | mode | when | sleeps on |
//! |---|---|---|
//! | parked | no queue pair is connected: nothing can arrive | its bell |
//! | watching | queue pairs are connected, and nobody polls | the socket, its bell, the next timer |
//! | lazy | somebody polls | its bell, for [`LAZY`] |
//!
//! - *Watching to lazy*: a packet woke it, and since it looked last, or a queue was armed, there were [`BUSY`] polls or more, and another
//!   one within [`GLANCE`]. It leaves the packet to the poller.
//! - *Lazy to watching*: fewer than [`FEW`] polls within the last [`LAZY`]; or a queue was armed, which is what a program does that is about to
//!   sleep. Arming rings the bell for it only in the lazy mode, so that arming is a system call only after a time of polling.
//!
//! So a program that polls and then neither polls nor arms is attended to after [`LAZY`] at the latest, and one that arms and sleeps, at once. Watching
//! and parked, a device without traffic uses no CPU.
//!
//! # What keeps wake-ups from being lost
//! The thread says what it is about to do, then looks once more whether it still should; the others first say what they want, then look at what the thread said.
//! All of it is sequentially consistent, so one of the two sees the other. Packets wait in the
//! socket, which is level-triggered, or in rings, whose writers ring when the reader sleeps (`wire/shared/handover.rs`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::core::Core;

/// How long the thread leaves the socket to pollers before it looks whether they are still there.
const LAZY: Duration = Duration::from_micros(500);

/// So many polls, or packets taken in by them, call the thread off. A program that wakes up, drains its queues, arms and sleeps polls less.
const BUSY: u32 = 16;

/// How long a poller has to show that it is still there, when a packet woke the thread.
const GLANCE: Duration = Duration::from_micros(20);

/// So many within [`LAZY`] keep it off.
const FEW: u32 = 4;

/// What the thread is about to do, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    Working,
    Parked,
    Watching,
    Lazy,
}

/// What the thread and the others tell each other.
#[derive(Debug)]
pub(crate) struct Attention {
    /// Whether there is to be a thread at all.
    wanted: bool,
    epoch: Instant,
    bell: OwnedFd,
    mode: AtomicU8,
    /// When a watching thread wakes up by itself, in nanoseconds since `epoch`.
    until: AtomicU64,
    /// Connected queue pairs.
    live: AtomicUsize,
    /// A queue was armed since the thread looked last.
    armed: AtomicBool,
    /// Polls and packets that they took in, and how many that were when a queue was armed, or the thread looked,
    /// last.
    polls: AtomicU32,
    polls_before: AtomicU32,
    stop: AtomicBool,
}

impl Attention {
    /// # Errors
    /// What the kernel says if there is no descriptor left.
    pub(crate) fn new(epoch: Instant, wanted: bool) -> Result<Self, Errno> {
        Ok(Self {
            wanted,
            epoch,
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            mode: AtomicU8::new(Mode::Working as u8),
            until: AtomicU64::new(u64::MAX),
            live: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            polls_before: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// A queue was polled, and so many packets were taken in for it. Of polls at the same time one may not be counted: that there are many is what
    /// matters.
    pub(crate) fn polled(&self, packets: usize) {
        // A batch counts as the polls that there would have been time for.
        let polls = self.polls.load(Relaxed).wrapping_add(1 + packets as u32);
        self.polls.store(polls, Relaxed);
    }

    /// A queue was armed: somebody may be about to sleep.
    pub(crate) fn armed(&self) {
        self.look();
        self.armed.store(true, SeqCst);
        if self.is(Mode::Lazy) {
            self.ring();
        }
    }

    /// A queue pair was connected, or is no more.
    pub(crate) fn count_live(&self, connected: bool) {
        if connected {
            self.live.fetch_add(1, SeqCst);
            if self.is(Mode::Parked) {
                self.ring();
            }
        } else {
            self.live.fetch_sub(1, SeqCst);
        }
    }

    /// There is a timer for `at`.
    pub(crate) fn timer_set(&self, at: Instant) {
        // In the other modes the thread wakes up before long, or there is nothing to be timed.
        if self.is(Mode::Watching) && self.nanos(at) < self.until.load(SeqCst) {
            self.ring();
        }
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(SeqCst) == mode as u8
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Counts polls from now on.
    fn look(&self) {
        self.polls_before.store(self.polls.load(Relaxed), Relaxed);
    }

    /// Polls since [`Self::look`].
    fn polls_since(&self) -> u32 {
        let (now, before) = (self.polls.load(Relaxed), self.polls_before.load(Relaxed));
        now.wrapping_sub(before)
    }

    fn ring(&self) {
        // Fails only when the count would pass 2^64 − 2; it is readable then anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Sleeps until the bell rings or `socket` is readable, or for `limit`. It may also wake up for nothing.
    fn sleep(&self, socket: Option<BorrowedFd<'_>>, limit: Option<Duration>) {
        let descriptors = [Some(self.bell.as_fd()), socket];
        let mut fds: ArrayVec<PollFd<'_>, 2> = descriptors
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        // Interrupted by a signal it woke up for nothing; nothing else can go wrong with descriptors that are open.
        let _ = poll(&mut fds, limit.as_ref());
        if !fds[0].revents().is_empty() {
            // Fails only when it is silent already.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }

    fn enter(&self, mode: Mode) {
        self.mode.store(mode as u8, SeqCst);
    }
}

/// The device's thread, from the first queue pair that is connected until the device is closed.
#[derive(Debug, Default)]
pub(crate) struct Keeper(Mutex<Option<JoinHandle<()>>>);

impl Keeper {
    /// Starts the thread, unless it runs or the wire needs none.
    ///
    /// # Errors
    /// What the system says if there can be no more threads.
    pub(crate) fn start(&self, core: &Arc<Core>) -> io::Result<()> {
        let mut thread = self.0.lock();
        if thread.is_none() && core.attention.wanted {
            let core = Arc::clone(core);
            let builder = std::thread::Builder::new().name("adverb-soft".into());
            *thread = Some(builder.spawn(move || run(&core))?);
        }
        Ok(())
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop(&self, attention: &Attention) {
        if let Some(thread) = self.0.lock().take() {
            attention.stop.store(true, SeqCst);
            attention.ring();
            if thread.join().is_err() {
                tracing::error!("a device's thread panicked");
            }
        }
    }
}

fn run(core: &Core) {
    let Some(socket) = core.wire.readiness() else {
        return;
    };
    let attention = &core.attention;
    let mut is_busy = false;
    while !attention.stop.load(SeqCst) {
        if attention.live.load(SeqCst) == 0 {
            park(attention);
        } else if is_busy {
            doze(core, LAZY);
            is_busy = attention.polls_since() >= FEW;
        } else {
            watch(core, socket);
            if attention.polls_since() >= BUSY {
                doze(core, GLANCE);
                is_busy = attention.polls_since() > 0;
            }
            if !is_busy {
                core.work();
            }
        }
    }
}

/// Sleeps until something is connected.
fn park(attention: &Attention) {
    attention.enter(Mode::Parked);
    if attention.live.load(SeqCst) == 0 {
        attention.sleep(None, None);
    }
    attention.enter(Mode::Working);
}

/// Leaves everything to pollers for a while, but for timers: who polls seldom looks seldom at the clock.
fn doze(core: &Core, limit: Duration) {
    core.run_due_timers();
    let attention = &core.attention;
    attention.look();
    attention.enter(Mode::Lazy);
    if !attention.armed.swap(false, SeqCst) {
        attention.sleep(None, Some(limit));
    }
    attention.enter(Mode::Working);
}

/// Sleeps until a packet comes or a timer is due.
fn watch(core: &Core, socket: BorrowedFd<'_>) {
    let attention = &core.attention;
    attention.armed.store(false, SeqCst);
    attention.enter(Mode::Watching);
    let due = core.next_timer();
    attention
        .until
        .store(due.map_or(u64::MAX, |at| attention.nanos(at)), SeqCst);
    if core.next_timer() == due && core.wire.about_to_sleep() {
        let limit = due.map(|at| at.saturating_duration_since(core.now()));
        attention.sleep(Some(socket), limit);
    }
    core.wire.awake();
    attention.enter(Mode::Working);
}
