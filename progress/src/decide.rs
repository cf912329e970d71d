//! The decision: poll again, arm, or sleep? Sans-IO: no verbs, no descriptors, no clock.
//!
//! The caller makes a *pass* (polls every completion queue once), reports it with [`Decider::polled`], and does what the
//! returned [`Action`] says:
//!
//! ```text
//!            ┌────────── found something, or budget left ─────────┐
//!            ▼                                                    │
//!   ──► pass over all queues ── nothing for the spin budget ──► arm what is not armed ──► pass over all queues
//!            ▲                                                                                 │ nothing
//!            └──────────── event · safety interval · timer · command ◄──── sleep ◄─────────────┘
//! ```
//!
//! Sleep is only ever the answer to an empty pass that began after every needed queue was armed: a completion that arrived between
//! the last poll and the arm raises no event (`ibv_req_notify_cq(3)`), so nothing but that pass finds it.
//!
//! **An arm is spent by its event, not by its completion.** When polling finds the completion first, the event still
//! comes. So a queue counts as armed until its event was taken, is not armed twice, and the late event
//! is a *spurious* wake: counted, harmless, and followed by a new arm.
//!
//! **Safety.** A sleep lasts 1 ms at most, then twice as long each time that nothing was found, up to 100 ms. Each event that announced its
//! completions doubles where the next sleep begins, too: a timer that will not be needed costs more than it looks (emulated,
//! a sleep of 1 ms at most made a one-way trip of 450 µs take 900 µs, as a processor that is to wake soon does not rest). What the interval finds puts the
//! beginning back to 1 ms. Completions found
//! without an event make their queue count as not armed any more, since its event may be lost. They are
//! suspects: an event that comes after all clears them, since it was only late, or theirs was never due (bulk is not solicited).
//! Three safety intervals without any event prove it lost, and then they count as *missed*. So a driver that loses
//! events shows, and one that is slow to raise them does not; a single loss shows if silence follows it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::{Counters, WakeReason};
use crate::spin::SpinBudget;

/// The first safety interval of a sleep, while no event has shown that the driver raises them.
pub const SAFETY_FIRST: Duration = Duration::from_millis(1);
/// The longest safety interval: what an idle worker costs is ten wake-ups a second.
pub const SAFETY_LONGEST: Duration = Duration::from_millis(100);

/// Whether a worker sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Never: lowest latency, one CPU always busy.
    Poll,
    /// As soon as there is nothing to do: least CPU.
    Event,
    /// After having spun about as long as is likely to pay ([`SpinBudget`]).
    #[default]
    Hybrid,
}

/// One of a worker's completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Receives: armed for solicited completions only.
    Recv,
    /// Sends: armed for any completion while work is outstanding, else not armed.
    Send,
}

/// What a pass over all completion queues found, and how things stand after it was handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Completions found, all queues together.
    pub completions: usize,
    /// How often the queues were polled; only the last time can have found anything.
    pub rounds: u32,
    /// Whether signaled send work has yet to complete.
    pub outstanding_sends: bool,
    /// When somebody must be awake at the latest: a timer or the caller's deadline.
    pub next_timer: Option<Instant>,
}

/// What to do after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Make another pass.
    Poll,
    /// Arm these queues, say so with [`Decider::armed`], and make another pass.
    Arm {
        /// Arm the recv queue, for solicited completions only.
        recv: bool,
        /// Arm the send queue, for any completion.
        send: bool,
    },
    /// Sleep, then report with [`Decider::woken`] and make another pass.
    Sleep {
        /// For no longer than this.
        until: Instant,
        /// What the wake's reason is when nothing else ends the sleep.
        timeout: WakeReason,
    },
}

/// Decides when to poll, arm and sleep.
#[derive(Debug)]
pub struct Decider {
    mode: Mode,
    counters: Arc<Counters>,
    spin: SpinBudget,
    recv_armed: bool,
    send_armed: bool,
    /// When the last completion was found.
    last_found: Option<Instant>,
    /// When the first of the empty passes since then ended.
    empty_since: Option<Instant>,
    /// Whether the time since then is still to be counted as spinning.
    spinning: bool,
    /// What the next pass is the first one after.
    woken: Option<WakeReason>,
    safety: Duration,
    /// The safety interval after a completion.
    safety_first: Duration,
    /// Completions found by the safety interval whose event may still come.
    suspects: u64,
    /// Safety intervals that ended since without any event.
    eventless: u32,
}

/// So many safety intervals without any event prove that the suspects' was lost.
const PROOF: u32 = 3;

impl Decider {
    /// Nothing armed, nothing known.
    pub fn new(mode: Mode, counters: Arc<Counters>) -> Self {
        Self {
            mode,
            counters,
            spin: SpinBudget::new(),
            recv_armed: false,
            send_armed: false,
            last_found: None,
            empty_since: None,
            spinning: false,
            woken: None,
            safety: SAFETY_FIRST,
            safety_first: SAFETY_FIRST,
            suspects: 0,
            eventless: 0,
        }
    }

    /// The mode it was made with.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether an event of this queue is due: it was armed, and no event was taken from it since.
    pub fn is_armed(&self, queue: Queue) -> bool {
        match queue {
            Queue::Recv => self.recv_armed,
            Queue::Send => self.send_armed,
        }
    }

    /// How long it would spin now, before it sleeps.
    pub fn spin_budget(&self) -> Option<Duration> {
        match self.mode {
            Mode::Poll => None,
            Mode::Event => Some(Duration::ZERO),
            Mode::Hybrid => Some(self.spin.budget()),
        }
    }

    /// Whether an empty pass that ended now would be followed by another one, with nothing armed: then a pass may poll several rounds. `now` is called
    /// if that depends on the time.
    pub fn spins(&self, now: impl FnOnce() -> Instant) -> bool {
        self.spin_budget().is_none_or(|budget| {
            let waited = self
                .empty_since
                .map(|since| now().saturating_duration_since(since));
            waited.unwrap_or_default() < budget
        })
    }

    /// Takes the result of a pass over all queues, and says what to do. `now` gives the moment when the pass ended; it is not called where that does not
    /// matter: completions that poll mode finds have no gaps between them that a spin budget could learn from.
    ///
    /// A caller that only wanted the pass may ignore the action.
    pub fn polled(&mut self, pass: &Pass, now: impl FnOnce() -> Instant) -> Action {
        self.counters.polled(pass.rounds, pass.completions);
        let woken = self.woken.take();
        if pass.completions > 0 {
            self.found(pass.completions, woken, now);
            return Action::Poll;
        }
        self.found_nothing(woken);
        let now = now();
        let since = *self.empty_since.get_or_insert_with(|| {
            self.spinning = true;
            now
        });
        let waited = now.saturating_duration_since(since);
        match self.spin_budget() {
            None => return Action::Poll,
            Some(budget) if waited < budget => return Action::Poll,
            Some(_) => {}
        }
        if self.spinning {
            self.spinning = false;
            self.counters.spun(waited);
        }
        if pass.next_timer.is_some_and(|timer| timer <= now) {
            return Action::Poll;
        }
        let recv = !self.recv_armed;
        let send = pass.outstanding_sends && !self.send_armed;
        if recv || send {
            return Action::Arm { recv, send };
        }
        let safety = now + self.safety;
        match pass.next_timer {
            Some(timer) if timer < safety => Action::Sleep {
                until: timer,
                timeout: WakeReason::Timer,
            },
            _ => Action::Sleep {
                until: safety,
                timeout: WakeReason::Safety,
            },
        }
    }

    /// The queues of an [`Action::Arm`] were armed, which took `time`.
    pub fn armed(&mut self, recv: bool, send: bool, time: Duration) {
        self.recv_armed |= recv;
        self.send_armed |= send;
        self.counters.armed(u64::from(recv) + u64::from(send));
        self.spin.observe_arm(time);
    }

    /// An event was taken from the queue's channel: its arm is spent.
    pub fn event(&mut self, queue: Queue) {
        match queue {
            Queue::Recv => self.recv_armed = false,
            Queue::Send => self.send_armed = false,
        }
    }

    /// The sleep of an [`Action::Sleep`] begins.
    pub fn sleeping(&mut self) {
        self.counters.slept();
    }

    /// The sleep ended. For one that nothing but its limit ended, `overrun` is how much later than asked it did.
    pub fn woken(&mut self, reason: WakeReason, overrun: Duration) {
        if matches!(reason, WakeReason::Safety | WakeReason::Timer) {
            self.spin.observe_overrun(overrun);
        }
        match reason {
            WakeReason::Event => (self.suspects, self.eventless) = (0, 0),
            WakeReason::Safety if self.suspects > 0 => {
                self.eventless += 1;
                if self.eventless >= PROOF {
                    self.counters.missed(std::mem::take(&mut self.suspects));
                }
            }
            _ => {}
        }
        self.counters.woke(reason);
        self.woken = Some(reason);
    }

    fn found(&mut self, completions: usize, woken: Option<WakeReason>, now: impl FnOnce() -> Instant) {
        // In poll mode all the time between is spun through, and when it ends is asked when there is something to add up.
        let empty_since = self.empty_since.take();
        if self.mode != Mode::Poll || self.spinning {
            let now = now();
            if let Some(since) = empty_since {
                if self.spinning {
                    self.counters.spun(now.saturating_duration_since(since));
                }
                if let Some(last) = self.last_found
                    && self.mode == Mode::Hybrid
                {
                    self.spin.observe_gap(now.saturating_duration_since(last));
                }
            }
            self.last_found = Some(now);
        }
        self.spinning = false;
        match woken {
            None => self.counters.woke(WakeReason::Spin),
            Some(WakeReason::Event) => self.safety_first = longer(self.safety_first),
            Some(reason) => {
                // No event came for these. Should it have been lost, then the arm went with it.
                self.recv_armed = false;
                self.send_armed = false;
                if reason == WakeReason::Safety {
                    self.suspects += completions as u64;
                    self.safety_first = SAFETY_FIRST;
                }
            }
        }
        self.safety = self.safety_first;
    }

    fn found_nothing(&mut self, woken: Option<WakeReason>) {
        match woken {
            Some(WakeReason::Event) => {
                self.counters.spurious();
                self.safety = self.safety_first;
            }
            Some(WakeReason::Safety) => self.safety = longer(self.safety),
            _ => {}
        }
    }
}

/// The next safety interval.
fn longer(interval: Duration) -> Duration {
    (interval * 2).min(SAFETY_LONGEST)
}

/// A word is not a [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown progress mode {0:?}: use poll, event or hybrid")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        match word {
            "poll" => Ok(Self::Poll),
            "event" => Ok(Self::Event),
            "hybrid" => Ok(Self::Hybrid),
            _ => Err(UnknownMode(word.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Poll => "poll",
            Self::Event => "event",
            Self::Hybrid => "hybrid",
        })
    }
}
