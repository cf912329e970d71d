//! Carries the decision out: polls, arms and sleeps on real completion queues and channels.
//!
//! # The protocol
//!
//! Exactly one thread at a time drives an [`Engine`], the holder of the progress role ([`crate::Role`]); `&mut` says so.
//! What each thread may do:
//!
//! | who | does | with what |
//! |---|---|---|
//! | the holder | polls, arms, takes events, sleeps, calls the [`Handler`] | `&mut Engine` |
//! | a poster of sends | posts, counts the work, then [`Notifier::work_posted`] | a fence and a load |
//! | anybody | [`Notifier::wake`] | one atomic; one system call for the first wake of a sleep |
//!
//! One turn of the holder ([`Engine::step`]):
//!
//! 1. **Pass.** Poll the recv queue, then the send queue, a batch of 32 each, and run due timers. Receives come first as they are
//!    what somebody waits for; the send queue comes in every pass, so a stream of receives cannot starve it. The two queues
//!    have no mutual order: a peer's credit may be seen before the send completion that frees the slot it is for.
//!    While it spins, a pass polls up to 16 rounds, until something is found.
//! 2. **Decide** ([`crate::Decider`]). Anything found, or spin budget left: pass again. Every 32 empty rounds give way
//!    (`sched_yield(2)`) to whoever waits for this CPU.
//! 3. **Arm** what is not armed: the recv queue for solicited completions, the send queue for any and only while work
//!    is outstanding. Then pass again, over *both* queues, since a completion that came before the arm raises no event.
//! 4. **Fall asleep** (`SleepState::fall_asleep`), unless a command came. With the send queue not armed, look once more whether
//!    work is outstanding: whoever posts later sees a sleeper that does not watch its sends, and wakes it.
//! 5. **Sleep** in `ppoll(2)`, which takes nanoseconds (`epoll_wait(2)` rounds to milliseconds), on both channels and the bell, until the
//!    safety interval, a timer or the caller's deadline.
//! 6. **Wake.** Take one event from each readable channel: its queue's arm is spent. Acknowledge in batches of 64,
//!    as `ibv_ack_cq_events(3)` takes a lock; the provider acknowledges the rest when the queue is dropped.
//!
//! Nothing of this lives in the thread that did it. That an event was taken, what is armed, what is suspected: all is in the
//! engine. So if one waiter takes an event and leaves, and another polls the completion, a third that takes
//! the role next finds the arm spent, and arms again before it sleeps.
//!
//! A failed send means that the queue pair's receives are being flushed. SoftRoCE raises no event for them on a queue armed for solicited
//! completions, though the specification says it should; so after any error completion the recv queue is armed
//! once for *any* completion.
//!
//! # Event loops
//!
//! An event loop does 1–4 with [`Engine::prepare_sleep`], waits itself on [`Engine::readiness_fd`], and does 6 with
//! [`Engine::on_ready`]. Nothing readable is left behind by `prepare_sleep`, so edge-triggered loops are served too.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::{CompChannel, Cq, VerbsError, WcStatus, WorkCompletion};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::counters::{Counters, WakeReason};
use crate::deadline::Deadline;
use crate::decide::{Action, Decider, Mode, Pass, Queue};
use crate::signal::Notifier;

/// Completions taken from a queue at once.
const BATCH: usize = 32;
/// Unacknowledged events at which a queue's events are acknowledged.
const ACK_BATCH: u32 = 64;
/// Passes in a row that find something until one looks at timers all the same.
const BUSY_PASSES_PER_LOOK: u32 = 16;
/// How often a spinning thread polls before it looks at the clock, at timers and at whether to go on: all of that costs more than a poll.
const ROUNDS_PER_TURN: u32 = 16;
/// Turns in vain after which a spinning thread gives way. Without it, a woken peer that the scheduler put on this very CPU, or the kernel's
/// worker that carries the packet, waits until a tick ends the spinning: in a ping-pong on two busy cores p50 was 60 to 300 µs, and 2 µs
/// with it; on SoftRoCE p99 was 1.5 ms, and 0.2 ms with it. Where nobody waits it costs less than the polls before it.
const TURNS_IN_VAIN: u32 = 2;

/// What the completions are for. Called by the holder of the role, from within its own pass.
pub trait Handler {
    /// Takes completions of one queue, oldest first; never empty.
    fn handle(&mut self, queue: Queue, completions: &[WorkCompletion]);

    /// Runs what is due at `now`. Afterwards [`Handler::next_timer`] must lie after `now`.
    fn on_timer(&mut self, now: Instant);

    /// Whether send work that will raise a completion is still to complete. Other threads may post at any time: count the post
    /// in an atomic, then call [`Notifier::work_posted`].
    fn outstanding_sends(&self) -> bool;

    /// When [`Handler::on_timer`] is due, if ever. A thread without the role that makes it earlier calls [`Notifier::wake`].
    fn next_timer(&self) -> Option<Instant>;
}

/// A completion queue and the channel that it alone sends its events to.
#[derive(Clone, Debug)]
pub struct CqSource {
    /// The queue.
    pub cq: Arc<dyn Cq>,
    /// The channel that the queue was created with.
    pub channel: Arc<dyn CompChannel>,
}

/// Progress cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgressError {
    /// A completion queue or a channel failed.
    #[error("progress stopped: {0}")]
    Verbs(#[from] VerbsError),
    /// The system refused what sleeping needs.
    #[error("{operation} for sleeping on completions: {source} (for EMFILE raise `ulimit -n`)")]
    Os {
        /// The system call.
        operation: &'static str,
        /// What it said.
        source: Errno,
    },
    /// A completion channel was closed from the other side, so nothing wakes a sleeper any more.
    #[error(
        "the completion channel of the {queue:?} queue was closed: the device is gone, drop everything on it and open it again"
    )]
    ChannelClosed {
        /// Whose channel.
        queue: Queue,
    },
}

/// How an event loop is to go on ([`Engine::prepare_sleep`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Prepared {
    /// There is more to do: let others run, then call again.
    Ready,
    /// Wait until the descriptor is readable or this moment comes, then call [`Engine::on_ready`].
    Sleep {
        /// The latest moment to call again.
        until: Instant,
    },
}

/// Polls, arms and sleeps for one worker: one recv queue, one send queue.
#[derive(Debug)]
pub struct Engine {
    recv: CqSource,
    send: CqSource,
    decider: Decider,
    counters: Arc<Counters>,
    notifier: Notifier,
    batch: [WorkCompletion; BATCH],
    /// The next arm of the recv queue is for any completion: flushed receives are to be expected.
    flush_expected: bool,
    /// The sleep that `prepare_sleep` began: until when, and what its end means.
    prepared: Option<(Instant, WakeReason)>,
    turns_in_vain: u32,
    /// Passes since the last look at timers.
    busy_passes: u32,
}

impl Engine {
    /// An engine that is awake, with nothing armed.
    ///
    /// # Errors
    /// [`ProgressError::Os`] if there is no descriptor left for the bell.
    pub fn new(recv: CqSource, send: CqSource, mode: Mode) -> Result<Self, ProgressError> {
        let counters = Arc::new(Counters::new());
        Ok(Self {
            recv,
            send,
            decider: Decider::new(mode, Arc::clone(&counters)),
            counters,
            notifier: Notifier::new().map_err(os("eventfd"))?,
            batch: [WorkCompletion::EMPTY; BATCH],
            flush_expected: false,
            prepared: None,
            turns_in_vain: 0,
            busy_passes: 0,
        })
    }

    /// The mode it was made with.
    pub fn mode(&self) -> Mode {
        self.decider.mode()
    }

    /// What it did so far; may be read from any thread.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// How other threads wake whoever drives it.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Says that a queue pair was moved to the error state, so that its flushed receives wake a sleeper on every device.
    ///
    /// Error completions say so by themselves.
    pub fn expect_flush(&mut self) {
        self.flush_expected = true;
        // A pending arm is for solicited completions: it has to be done anew.
        self.decider.event(Queue::Recv);
    }

    /// One pass over both queues and the timers, and how many completions it found. Never blocks, arms or sleeps.
    ///
    /// # Errors
    /// [`ProgressError`] if a queue is in error.
    pub fn poll<H: Handler>(&mut self, handler: &mut H) -> Result<usize, ProgressError> {
        self.rouse();
        let mut now = Now::default();
        let pass = self.pass(handler, &mut now, &Deadline::never(), 1)?;
        // Not this caller's to act upon.
        let _ = self.decider.polled(&pass, || now.get());
        Ok(pass.completions)
    }

    /// One turn: polls, for a few microseconds at most, and arms or sleeps when it is time to. Returns after anything was found or slept
    /// through, so that the caller can look whether what it waits for has happened.
    ///
    /// Sleeps until `deadline` at most. In poll mode it never sleeps.
    ///
    /// # Errors
    /// [`ProgressError`] if a queue, a channel or the system fails; what was found until then has been handled.
    pub fn step<H: Handler>(&mut self, handler: &mut H, deadline: &Deadline) -> Result<(), ProgressError> {
        self.rouse();
        let mut now = Now::default();
        loop {
            let rounds = if self.decider.spins(|| now.get()) {
                ROUNDS_PER_TURN
            } else {
                1
            };
            let pass = self.pass(handler, &mut now, deadline, rounds)?;
            match self.decider.polled(&pass, || now.get()) {
                Action::Poll => {
                    self.give_way(pass.completions == 0 && pass.rounds == ROUNDS_PER_TURN);
                    return Ok(());
                }
                Action::Arm { recv, send } => {
                    self.arm(recv, send)?;
                    now = Now::default();
                }
                Action::Sleep { until, timeout } => {
                    if self.fall_asleep(handler) {
                        let ready = self.look(Some(until.saturating_duration_since(now.get())))?;
                        self.wake(ready, until, timeout)?;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Drives until `done` says so (`true`) or `deadline` has passed (`false`).
    ///
    /// `done` is asked between turns. Another thread that makes it true outside of the handler calls
    /// [`Notifier::wake`] afterwards.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn wait_until<H: Handler>(
        &mut self,
        handler: &mut H,
        deadline: &Deadline,
        mut done: impl FnMut(&mut H) -> bool,
    ) -> Result<bool, ProgressError> {
        while !done(handler) {
            if deadline.has_come() {
                return Ok(false);
            }
            self.step(handler, deadline)?;
        }
        Ok(true)
    }

    /// A new descriptor that is readable whenever the engine has an event or a command to take: an `epoll(7)` over both
    /// channels and the bell, for an event loop to watch. The engine itself does not use it.
    ///
    /// # Errors
    /// [`ProgressError::Os`] if the system gives no descriptor.
    pub fn readiness_fd(&self) -> Result<OwnedFd, ProgressError> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("epoll_create1"))?;
        let sources = [
            self.recv.channel.fd(),
            self.send.channel.fd(),
            self.notifier.as_fd(),
        ];
        for source in sources {
            // Level-triggered, as the engine takes one event at a time.
            epoll::add(&fd, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(os("epoll_ctl"))?;
        }
        Ok(fd)
    }

    /// For event loops: polls, arms and falls asleep, as far as that goes without blocking.
    ///
    /// After [`Prepared::Sleep`] the role can be let go: what wakes the loop stands. In poll mode it is always
    /// [`Prepared::Ready`].
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn prepare_sleep<H: Handler>(&mut self, handler: &mut H) -> Result<Prepared, ProgressError> {
        self.rouse();
        loop {
            let mut now = Now::default();
            let pass = self.pass(handler, &mut now, &Deadline::never(), 1)?;
            match self.decider.polled(&pass, || now.get()) {
                Action::Poll => return Ok(Prepared::Ready),
                Action::Arm { recv, send } => self.arm(recv, send)?,
                Action::Sleep { until, timeout } => {
                    if !self.fall_asleep(handler) {
                        return Ok(Prepared::Ready);
                    }
                    self.prepared = Some((until, timeout));
                    // An event may have come before the arm that is pending. An edge-triggered loop saw its edge long ago.
                    let ready = self.look(None)?;
                    if ready.any() {
                        self.prepared = None;
                        self.wake(ready, until, timeout)?;
                        return Ok(Prepared::Ready);
                    }
                    return Ok(Prepared::Sleep { until });
                }
            }
        }
    }

    /// For event loops: ends the sleep that [`Engine::prepare_sleep`] began. Takes events and commands; polls nothing.
    ///
    /// Harmless when nothing was readable, or when somebody else had the role in between.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn on_ready(&mut self) -> Result<(), ProgressError> {
        if let Some((until, timeout)) = self.prepared.take() {
            let mut ready = self.look(None)?;
            ready.timed_out = !ready.any() && until <= Instant::now();
            self.wake(ready, until, timeout)?;
        }
        Ok(())
    }

    /// Polls both queues until something is found, `rounds` times at most, then runs timers: each time that nothing was found, and now and then else.
    fn pass<H: Handler>(
        &mut self,
        handler: &mut H,
        now: &mut Now,
        deadline: &Deadline,
        rounds: u32,
    ) -> Result<Pass, ProgressError> {
        let (mut polled, mut completions) = (0, 0);
        while completions == 0 && polled < rounds {
            polled += 1;
            completions = self.take(Queue::Recv, handler)? + self.take(Queue::Send, handler)?;
        }
        if completions > 0 {
            // Handling them took its time.
            *now = Now::default();
            // What comes next is another pass. Timers are due by milliseconds: a look at the clock for each completion would cost more than it.
            self.busy_passes += 1;
            if self.busy_passes < BUSY_PASSES_PER_LOOK {
                return Ok(Pass {
                    completions,
                    rounds: polled,
                    ..Pass::default()
                });
            }
        }
        self.busy_passes = 0;
        let mut next_timer = handler.next_timer();
        if next_timer.is_some_and(|timer| timer <= now.get()) {
            handler.on_timer(now.get());
            next_timer = handler.next_timer();
        }
        let deadline = deadline.moment(|| now.get());
        Ok(Pass {
            completions,
            rounds: polled,
            outstanding_sends: handler.outstanding_sends(),
            next_timer: [next_timer, deadline].into_iter().flatten().min(),
        })
    }

    fn take<H: Handler>(&mut self, queue: Queue, handler: &mut H) -> Result<usize, ProgressError> {
        let source = match queue {
            Queue::Recv => &self.recv,
            Queue::Send => &self.send,
        };
        let found = source.cq.poll(&mut self.batch)?;
        let completions = &self.batch[..found];
        if completions.is_empty() {
            return Ok(0);
        }
        let failed = completions.iter().any(|wc| wc.status != WcStatus::Success);
        handler.handle(queue, completions);
        if failed {
            self.expect_flush();
        }
        Ok(found)
    }

    fn arm(&mut self, recv: bool, send: bool) -> Result<(), ProgressError> {
        let start = Instant::now();
        if recv {
            self.recv.cq.req_notify(!self.flush_expected)?;
            self.flush_expected = false;
        }
        if send {
            self.send.cq.req_notify(false)?;
        }
        self.decider.armed(recv, send, start.elapsed());
        Ok(())
    }

    /// Publishes that the holder sleeps; `false` if there is a reason to look again first.
    fn fall_asleep<H: Handler>(&mut self, handler: &H) -> bool {
        let send_armed = self.decider.is_armed(Queue::Send);
        if !self.notifier.state().fall_asleep(send_armed) {
            return false;
        }
        if !send_armed && handler.outstanding_sends() {
            // Posted since the last pass. The poster may have seen a sleeper, and ring.
            if self.notifier.state().wake_up() {
                self.notifier.silence();
            }
            return false;
        }
        self.decider.sleeping();
        true
    }

    /// Waits for `timeout` at most, or not at all, and says what is readable.
    fn look(&self, timeout: Option<Duration>) -> Result<Readiness, ProgressError> {
        let (recv, send) = (self.recv.channel.fd(), self.send.channel.fd());
        let mut fds = [
            PollFd::from_borrowed_fd(recv, PollFlags::IN),
            PollFd::from_borrowed_fd(send, PollFlags::IN),
            PollFd::from_borrowed_fd(self.notifier.as_fd(), PollFlags::IN),
        ];
        let timeout = timeout.unwrap_or_default();
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // This is ppoll(2) on Linux.
        let ready = match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => ready,
            // A signal: as good a reason as any to look again.
            Err(Errno::INTR) => return Ok(Readiness::default()),
            Err(errno) => return Err(os("ppoll")(errno)),
        };
        Ok(Readiness {
            recv: fds[0].revents(),
            send: fds[1].revents(),
            bell: fds[2].revents(),
            timed_out: ready == 0,
        })
    }

    /// Ends a sleep: takes what is there to take, and tells the decider why it woke.
    fn wake(&mut self, ready: Readiness, until: Instant, timeout: WakeReason) -> Result<(), ProgressError> {
        let mut command = self.notifier.state().wake_up();
        if command || !ready.bell.is_empty() {
            command = true;
            self.notifier.silence();
        }
        let mut event = self.take_event(Queue::Recv, ready.recv)?;
        event |= self.take_event(Queue::Send, ready.send)?;
        if event {
            self.decider.woken(WakeReason::Event, Duration::ZERO);
        } else if command {
            self.decider.woken(WakeReason::Command, Duration::ZERO);
        } else if ready.timed_out {
            self.decider
                .woken(timeout, Instant::now().saturating_duration_since(until));
        }
        Ok(())
    }

    fn take_event(&mut self, queue: Queue, ready: PollFlags) -> Result<bool, ProgressError> {
        if ready.is_empty() {
            return Ok(false);
        }
        let source = match queue {
            Queue::Recv => &self.recv,
            Queue::Send => &self.send,
        };
        // One is all there is, usually: an arm gives one event. Should there be more, the channel stays readable.
        if source.channel.next_event()?.is_none() {
            if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return Err(ProgressError::ChannelClosed { queue });
            }
            return Ok(false);
        }
        if source.cq.unacked_events() >= ACK_BATCH {
            source.cq.ack_events();
        }
        self.decider.event(queue);
        Ok(true)
    }

    /// After a turn in vain, lets run who waits for this CPU: it may be the peer that this thread waits for.
    fn give_way(&mut self, in_vain: bool) {
        self.turns_in_vain = if in_vain { self.turns_in_vain + 1 } else { 0 };
        if self.turns_in_vain >= TURNS_IN_VAIN {
            self.turns_in_vain = 0;
            std::thread::yield_now();
        }
    }

    /// Takes over from an event loop that sleeps: this thread is awake. Events stay where they are.
    fn rouse(&mut self) {
        if self.prepared.take().is_some() && self.notifier.state().wake_up() {
            self.notifier.silence();
        }
    }
}

/// The time, from the first look at the clock on.
#[derive(Clone, Copy, Debug, Default)]
struct Now(Option<Instant>);

impl Now {
    fn get(&mut self) -> Instant {
        *self.0.get_or_insert_with(Instant::now)
    }
}

#[derive(Clone, Copy, Debug)]
struct Readiness {
    recv: PollFlags,
    send: PollFlags,
    bell: PollFlags,
    timed_out: bool,
}

impl Readiness {
    fn any(&self) -> bool {
        !(self.recv | self.send | self.bell).is_empty()
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            recv: PollFlags::empty(),
            send: PollFlags::empty(),
            bell: PollFlags::empty(),
            timed_out: false,
        }
    }
}

fn os(operation: &'static str) -> impl Fn(Errno) -> ProgressError {
    move |source| ProgressError::Os { operation, source }
}
