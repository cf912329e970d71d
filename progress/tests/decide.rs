//! The decision core on a virtual clock.

#![cfg(not(adverb_loom))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_progress::{
    Action, Counters, Decider, Mode, Pass, Queue, SAFETY_FIRST, SAFETY_LONGEST, Snapshot, WakeReason,
};
use proptest::prelude::*;

const MICROSECOND: Duration = Duration::from_micros(1);

/// A worker with two queues in virtual time. An empty pass takes 200 ns, a wake-up 50 µs, and messages arrive when the test says.
struct World {
    now: Instant,
    start: Instant,
    decider: Decider,
    counters: Arc<Counters>,
    /// When messages arrive, rising; all solicited.
    arrivals: std::collections::VecDeque<Instant>,
    /// Arrived, not polled.
    queued: usize,
    /// What the hardware knows.
    armed: bool,
    event: bool,
    outstanding: bool,
    timer: Option<Instant>,
    lose_events: bool,
    /// Virtual CPU time burnt, and delay from arrival to handling.
    busy: Duration,
    delays: Vec<Duration>,
    arrived: std::collections::VecDeque<Instant>,
    sleeps: Vec<Duration>,
}

const PASS: Duration = Duration::from_nanos(200);
const WAKE: Duration = Duration::from_micros(50);
const ARM: Duration = Duration::from_micros(3);

impl World {
    fn new(mode: Mode) -> Self {
        let counters = Arc::new(Counters::new());
        let start = Instant::now();
        Self {
            now: start,
            start,
            decider: Decider::new(mode, Arc::clone(&counters)),
            counters,
            arrivals: std::collections::VecDeque::new(),
            queued: 0,
            armed: false,
            event: false,
            outstanding: false,
            timer: None,
            lose_events: false,
            busy: Duration::ZERO,
            delays: Vec::new(),
            arrived: std::collections::VecDeque::new(),
            sleeps: Vec::new(),
        }
    }

    fn count(&self) -> Snapshot {
        self.counters.snapshot()
    }

    /// Messages from now on, one each `gap`.
    fn every(&mut self, gap: Duration, count: u32) {
        let from = self.arrivals.back().copied().unwrap_or(self.now);
        self.arrivals.extend((1..=count).map(|n| from + gap * n));
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        while self.arrivals.front().is_some_and(|&at| at <= self.now) {
            self.arrived.extend(self.arrivals.pop_front());
            self.queued += 1;
            if self.armed {
                self.armed = false;
                self.event = !self.lose_events;
            }
        }
    }

    fn spend(&mut self, time: Duration) {
        self.busy += time;
        self.advance(time);
    }

    fn turn(&mut self) {
        self.spend(PASS);
        let completions = std::mem::take(&mut self.queued);
        for at in self.arrived.drain(..) {
            self.delays.push(self.now - at);
        }
        let pass = Pass {
            completions,
            rounds: 1,
            outstanding_sends: self.outstanding,
            next_timer: self.timer,
        };
        match self.decider.polled(&pass, || self.now) {
            Action::Poll => {}
            Action::Arm { recv, send } => {
                self.armed |= recv;
                self.spend(ARM);
                self.decider.armed(recv, send, ARM);
            }
            Action::Sleep { until, timeout } => self.sleep(until, timeout),
        }
    }

    fn sleep(&mut self, until: Instant, timeout: WakeReason) {
        assert!(
            self.armed || self.event || self.lose_events,
            "asleep and not armed"
        );
        let from = self.now;
        self.decider.sleeping();
        while !self.event && self.now < until {
            let next = self.arrivals.front().copied().unwrap_or(until).min(until);
            self.advance(next - self.now);
        }
        self.sleeps.push(self.now - from);
        self.spend(WAKE);
        if std::mem::take(&mut self.event) {
            self.decider.event(Queue::Recv);
            self.decider.woken(WakeReason::Event, Duration::ZERO);
        } else {
            self.decider.woken(timeout, self.now - until);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.turn();
        }
    }

    /// How long the next sleep lasts if nothing comes.
    fn sleep_at_most(&mut self) -> Duration {
        let known = self.sleeps.len();
        while self.sleeps.len() == known {
            self.turn();
        }
        self.sleeps[known]
    }

    /// Until all messages were handled.
    fn drain(&mut self) {
        while !self.arrivals.is_empty() || self.queued > 0 {
            self.turn();
        }
    }

    fn median_delay(&self) -> Duration {
        let mut delays = self.delays.clone();
        delays.sort();
        delays[delays.len() / 2]
    }
}

fn play(mode: Mode, gap: Duration, count: u32) -> World {
    let mut world = World::new(mode);
    world.every(gap, count);
    world.drain();
    world
}

#[test]
fn with_fifty_milliseconds_between_messages_hybrid_costs_what_event_mode_costs() {
    let gap = Duration::from_millis(50);
    let (event, hybrid) = (play(Mode::Event, gap, 200), play(Mode::Hybrid, gap, 200));
    assert!(
        hybrid.busy <= event.busy * 12 / 10,
        "{:?} {:?}",
        hybrid.busy,
        event.busy
    );
    assert!(hybrid.median_delay() <= event.median_delay() * 12 / 10);
}

#[test]
fn without_gaps_hybrid_is_as_quick_as_poll_mode_and_does_not_sleep() {
    let gap = Duration::from_micros(80);
    let (poll, hybrid) = (play(Mode::Poll, gap, 2000), play(Mode::Hybrid, gap, 2000));
    assert!(hybrid.median_delay() <= poll.median_delay() * 11 / 10);
    assert!(hybrid.count().sleeps < 20, "{:?}", hybrid.count());
    assert!(hybrid.count().wakes.spin > 1900);
}

#[test]
fn hybrid_learns_that_a_burst_has_begun_and_that_it_is_over() {
    let mut world = World::new(Mode::Hybrid);
    world.every(Duration::from_millis(50), 20);
    world.drain();
    world.run_for(Duration::from_millis(1));
    let before = world.count();
    world.every(Duration::from_micros(20), 200);
    world.drain();
    let burst = world.count();
    assert!(burst.sleeps - before.sleeps <= 8, "{before:?} {burst:?}");
    world.every(Duration::from_millis(50), 20);
    world.drain();
    assert_eq!(world.decider.spin_budget(), Some(Duration::ZERO));
}

#[test]
fn event_mode_does_not_spin_and_poll_mode_does_nothing_else() {
    let event = play(Mode::Event, Duration::from_millis(3), 50);
    assert_eq!(event.count().spin_ns, 0);
    assert!(event.count().sleeps >= 50);
    let poll = play(Mode::Poll, Duration::from_millis(3), 50);
    assert_eq!((poll.count().arms, poll.count().sleeps), (0, 0));
    assert_eq!(poll.count().wakes.spin, 50);
}

#[test]
fn the_safety_interval_doubles_from_one_to_a_hundred_milliseconds_and_begins_later_with_each_event() {
    let mut world = World::new(Mode::Event);
    world.run_for(Duration::from_secs(1));
    let milliseconds: Vec<u128> = world.sleeps.iter().take(9).map(Duration::as_millis).collect();
    assert_eq!(milliseconds, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
    for begin in [2, 4, 8, 16, 32, 64, 100, 100] {
        world.every(Duration::from_millis(100), 1);
        world.drain();
        assert_eq!(world.sleep_at_most().as_millis(), begin);
    }
    // What an event should have announced, and none did.
    world.lose_events = true;
    world.every(MICROSECOND, 1);
    world.drain();
    assert_eq!(world.sleep_at_most(), SAFETY_FIRST);
}

#[test]
fn an_idle_worker_wakes_ten_times_a_second() {
    let mut world = World::new(Mode::Hybrid);
    world.run_for(Duration::from_secs(1));
    let before = world.count().wakes.from_sleep();
    world.run_for(Duration::from_secs(10));
    assert!(world.count().wakes.from_sleep() - before <= 101);
    assert_eq!(world.count().arms, 1);
}

#[test]
fn a_lost_event_is_counted_as_missed_and_a_late_one_is_not() {
    let mut lost = World::new(Mode::Event);
    lost.lose_events = true;
    lost.every(Duration::from_millis(10), 5);
    lost.drain();
    lost.run_for(Duration::from_millis(50));
    assert_eq!(lost.count().missed_completions, 5);
    assert_eq!(lost.count().completions, 5);
    // It was armed anew for each.
    assert!(lost.count().arms >= 5);

    let mut late = World::new(Mode::Event);
    late.run_for(Duration::from_millis(1));
    late.lose_events = true;
    late.every(Duration::from_micros(100), 1);
    late.drain();
    late.lose_events = false;
    // The event comes after the safety interval found its completion.
    late.event = true;
    late.run_for(Duration::from_millis(50));
    assert_eq!(late.count().missed_completions, 0);
    assert_eq!(late.count().spurious_wakes, 1);
}

#[test]
fn a_timer_that_is_due_is_run_before_sleeping_and_one_to_come_ends_the_sleep() {
    let mut world = World::new(Mode::Event);
    let due = world.start + Duration::from_micros(400);
    world.timer = Some(due);
    while world.count().wakes.timer == 0 {
        world.turn();
    }
    assert!(world.now >= due && world.now < due + WAKE * 2);
    let sleeps = world.count().sleeps;
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.count().sleeps, sleeps, "slept although a timer was due");
}

#[test]
fn the_send_queue_is_armed_once_and_only_while_work_is_outstanding() {
    let counters = Arc::new(Counters::new());
    let mut decider = Decider::new(Mode::Event, counters);
    let now = Instant::now();
    let idle = Pass::default();
    let busy = Pass {
        outstanding_sends: true,
        ..idle
    };
    assert_eq!(
        decider.polled(&idle, || now),
        Action::Arm {
            recv: true,
            send: false
        }
    );
    decider.armed(true, false, ARM);
    assert_eq!(
        decider.polled(&busy, || now),
        Action::Arm {
            recv: false,
            send: true
        }
    );
    decider.armed(false, true, ARM);
    assert!(matches!(decider.polled(&busy, || now), Action::Sleep { .. }));
    decider.event(Queue::Send);
    decider.woken(WakeReason::Event, Duration::ZERO);
    assert_eq!(
        decider.polled(&busy, || now),
        Action::Arm {
            recv: false,
            send: true
        }
    );
}

#[test]
fn modes_are_read_as_they_are_written() {
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    let error = "sleepy".parse::<Mode>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown progress mode \"sleepy\": use poll, event or hybrid"
    );
}

/// What may happen to a decider, in any order.
#[derive(Clone, Debug)]
enum Happening {
    Pass {
        completions: usize,
        outstanding: bool,
        timer: Option<u64>,
    },
    Event(bool),
    Woken(u8),
    Time(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (
            prop_oneof![4 => Just(0_usize), 1 => 1_usize..40],
            any::<bool>(),
            prop::option::of(0_u64..5_000_000)
        )
            .prop_map(|(completions, outstanding, timer)| Happening::Pass { completions, outstanding, timer }),
        1 => any::<bool>().prop_map(Happening::Event),
        1 => (0_u8..4).prop_map(Happening::Woken),
        2 => (0_u64..10_000_000).prop_map(Happening::Time),
    ]
}

proptest! {
    #[test]
    fn it_never_sleeps_without_an_empty_pass_after_arming_nor_past_a_timer(
        mode in prop_oneof![Just(Mode::Poll), Just(Mode::Event), Just(Mode::Hybrid)],
        happenings in prop::collection::vec(happening(), 1..300),
    ) {
        let mut decider = Decider::new(mode, Arc::new(Counters::new()));
        let mut now = Instant::now();
        // The model: what is armed in truth, whether by an arm whose event was not taken.
        let (mut recv, mut send) = (false, false);
        for happening in happenings {
            match happening {
                Happening::Time(ns) => now += Duration::from_nanos(ns),
                Happening::Event(of_recv) => {
                    let queue = if of_recv { Queue::Recv } else { Queue::Send };
                    decider.event(queue);
                    if of_recv { recv = false } else { send = false }
                }
                Happening::Woken(reason) => {
                    let reason = [WakeReason::Event, WakeReason::Safety, WakeReason::Command, WakeReason::Timer]
                        [usize::from(reason)];
                    decider.woken(reason, Duration::ZERO);
                }
                Happening::Pass { completions, outstanding, timer } => {
                    let timer = timer.map(|ns| now + Duration::from_nanos(ns));
                    let pass = Pass { completions, rounds: 1, outstanding_sends: outstanding, next_timer: timer };
                    match decider.polled(&pass, || now) {
                        Action::Poll => {}
                        Action::Arm { recv: arm_recv, send: arm_send } => {
                            prop_assert!(mode != Mode::Poll && completions == 0);
                            prop_assert!(!arm_send || outstanding, "armed for sends that nobody posted");
                            prop_assert!(arm_recv || arm_send);
                            decider.armed(arm_recv, arm_send, ARM);
                            recv |= arm_recv;
                            send |= arm_send;
                            // The next pass is the one after arming.
                        }
                        Action::Sleep { until, .. } => {
                            prop_assert!(mode != Mode::Poll && completions == 0);
                            prop_assert!(recv, "asleep with the recv queue not armed before this pass");
                            prop_assert!(send || !outstanding, "asleep with sends outstanding and not armed");
                            prop_assert!(until > now && until <= now + SAFETY_LONGEST);
                            prop_assert!(timer.is_none_or(|timer| until <= timer));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn whatever_the_traffic_each_message_is_found_within_a_wake_up_and_none_is_missed(
        mode in prop_oneof![Just(Mode::Event), Just(Mode::Hybrid)],
        gaps in prop::collection::vec(prop_oneof![0_u64..100, 100_u64..3_000, 3_000_u64..60_000], 1..60),
    ) {
        let mut world = World::new(mode);
        for &gap in &gaps {
            world.every(MICROSECOND * u32::try_from(gap).unwrap_or(0), 1);
        }
        world.drain();
        world.run_for(Duration::from_millis(5));
        let counters = world.count();
        prop_assert_eq!(counters.completions, gaps.len() as u64);
        prop_assert_eq!(counters.missed_completions, 0);
        // In virtual time: a wake-up, an arm and two passes, and once more for a wake that was on its way already.
        let bound = (WAKE + ARM + PASS * 2) * 2;
        prop_assert!(world.delays.iter().all(|&delay| delay <= bound), "{:?}", world.delays);
    }
}
