//! The engine on fake completion queues: arming, sleeping, waking, and who is woken.

#![cfg(not(adverb_loom))]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adverb_progress::{Deadline, Engine, Mode, Prepared, Queue, Role, WaitError, Waiter};
use adverb_verbs::WcStatus;
use fake::{FakeCq, Recorder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than any test takes: what should wake must not be the deadline.
const FOREVER: Duration = Duration::from_secs(60);

struct Bench {
    recv: Arc<FakeCq>,
    send: Arc<FakeCq>,
    engine: Engine,
    handler: Recorder,
}

fn bench(mode: Mode) -> Bench {
    let (recv, recv_source) = FakeCq::new();
    let (send, send_source) = FakeCq::new();
    Bench {
        recv,
        send,
        engine: Engine::new(recv_source, send_source, mode).unwrap(),
        handler: Recorder::default(),
    }
}

impl Bench {
    /// Drives until so many completions were handled in all.
    fn until_seen(&mut self, count: usize) {
        let deadline = Deadline::after(FOREVER);
        let done = self
            .engine
            .wait_until(&mut self.handler, &deadline, |handler| {
                handler.seen.len() >= count
            })
            .unwrap();
        assert!(done, "{:?}", self.engine.counters().snapshot());
    }

    /// Falls asleep as an event loop does.
    fn prepare(&mut self) -> Instant {
        for _ in 0..1_000_000 {
            if let Prepared::Sleep { until } = self.engine.prepare_sleep(&mut self.handler).unwrap() {
                return until;
            }
        }
        panic!("does not fall asleep: {:?}", self.engine);
    }
}

fn readable(fd: &impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).unwrap() == 1
}

#[test]
fn a_sleeper_is_woken_by_a_solicited_message() {
    for mode in [Mode::Event, Mode::Hybrid] {
        let mut bench = bench(mode);
        let recv = Arc::clone(&bench.recv);
        let counters = Arc::clone(bench.engine.counters());
        let sender = thread::spawn(move || {
            while counters.snapshot().sleeps == 0 {
                thread::yield_now();
            }
            recv.message(7);
        });
        bench.until_seen(1);
        sender.join().unwrap();
        assert_eq!(bench.handler.seen, [(Queue::Recv, 7)]);
        assert!(bench.engine.counters().snapshot().sleeps > 0);
    }
}

#[test]
fn a_thousand_messages_between_two_threads_lose_no_wake_in_any_mode() {
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        let mut bench = bench(mode);
        let recv = Arc::clone(&bench.recv);
        let heard = Arc::new(std::sync::Barrier::new(2));
        let theirs = Arc::clone(&heard);
        let sender = thread::spawn(move || {
            for wr_id in 0..1000 {
                recv.message(wr_id);
                theirs.wait();
            }
        });
        for count in 1..=1000 {
            bench.until_seen(count);
            heard.wait();
        }
        sender.join().unwrap();
        let counters = bench.engine.counters().snapshot();
        assert_eq!(counters.completions, 1000, "{mode}: {counters:?}");
        assert_eq!(counters.missed_completions, 0, "{mode}: {counters:?}");
    }
}

#[test]
fn poll_mode_neither_arms_nor_sleeps_and_keeps_the_callers_deadline() {
    let mut bench = bench(Mode::Poll);
    let deadline = Deadline::after(Duration::from_millis(5));
    assert!(
        !bench
            .engine
            .wait_until(&mut bench.handler, &deadline, |_| false)
            .unwrap()
    );
    let counters = bench.engine.counters().snapshot();
    assert_eq!((counters.arms, counters.sleeps), (0, 0));
    assert!(counters.polls > 1);
    assert_eq!(
        bench.engine.prepare_sleep(&mut bench.handler).unwrap(),
        Prepared::Ready
    );
}

#[test]
fn the_recv_queue_is_armed_for_solicited_completions_and_the_send_queue_only_while_work_is_outstanding() {
    let mut bench = bench(Mode::Event);
    bench.prepare();
    assert_eq!((bench.recv.armed(), bench.send.armed()), (Some(true), None));
    bench.handler.outstanding.store(1, Ordering::Relaxed);
    bench.prepare();
    assert_eq!(
        (bench.recv.armed(), bench.send.armed()),
        (Some(true), Some(false))
    );
    assert_eq!(
        bench.recv.arms.load(Ordering::Relaxed),
        1,
        "a pending arm is not done again"
    );
}

#[test]
fn idle_costs_at_most_twenty_wakes_a_second() {
    for mode in [Mode::Event, Mode::Hybrid] {
        let mut bench = bench(mode);
        let deadline = Deadline::after(Duration::from_secs(1));
        assert!(
            !bench
                .engine
                .wait_until(&mut bench.handler, &deadline, |_| false)
                .unwrap()
        );
        let counters = bench.engine.counters().snapshot();
        assert!(counters.wakes.from_sleep() <= 20, "{mode}: {counters:?}");
        assert_eq!(counters.arms, 1, "{mode}: {counters:?}");
    }
}

#[test]
fn a_completion_polled_before_its_event_makes_one_spurious_wake_and_a_new_arm() {
    let mut bench = bench(Mode::Event);
    bench.prepare();
    bench.recv.message(1);
    assert_eq!(bench.engine.poll(&mut bench.handler).unwrap(), 1);
    bench.prepare();
    let counters = bench.engine.counters().snapshot();
    assert_eq!((counters.wakes.event, counters.spurious_wakes), (1, 1));
    assert_eq!(bench.recv.armed(), Some(true));
    assert_eq!(bench.recv.arms.load(Ordering::Relaxed), 2);
}

#[test]
fn an_event_that_was_lost_delays_a_message_but_does_not_lose_it() {
    let mut bench = bench(Mode::Event);
    bench.prepare();
    bench.recv.deaf.store(true, Ordering::Relaxed);
    bench.recv.message(1);
    // The safety interval is the only thing that can find it.
    thread::sleep(Duration::from_millis(2));
    bench.engine.on_ready().unwrap();
    bench.until_seen(1);
    bench.recv.deaf.store(false, Ordering::Relaxed);
    // The arm went with the event, so it is armed anew, and the next message comes with its event.
    bench.prepare();
    assert_eq!(bench.recv.armed(), Some(true));
    bench.recv.message(2);
    bench.engine.on_ready().unwrap();
    bench.until_seen(2);
    let counters = bench.engine.counters().snapshot();
    assert_eq!((counters.wakes.safety, counters.wakes.event), (1, 1));
    // It might have been the first one's event, and late: in doubt no driver is blamed.
    assert_eq!(counters.missed_completions, 0);
}

#[test]
fn a_completion_that_no_event_ever_comes_for_is_counted_as_missed() {
    let mut bench = bench(Mode::Event);
    bench.prepare();
    bench.recv.deaf.store(true, Ordering::Relaxed);
    bench.recv.message(1);
    thread::sleep(Duration::from_millis(2));
    bench.engine.on_ready().unwrap();
    bench.until_seen(1);
    for missed in [0, 0, 1] {
        bench.prepare();
        // Longer than the safety interval has grown by now.
        thread::sleep(Duration::from_millis(10));
        bench.engine.on_ready().unwrap();
        assert_eq!(bench.engine.counters().snapshot().missed_completions, missed);
    }
}

#[test]
fn after_an_error_completion_flushed_receives_wake_a_sleeper_though_they_are_not_solicited() {
    let mut bench = bench(Mode::Event);
    bench.handler.outstanding.store(1, Ordering::Relaxed);
    bench.prepare();
    bench.send.push(1, WcStatus::RetryExcErr, false);
    bench.engine.on_ready().unwrap();
    bench.until_seen(1);
    bench.prepare();
    assert_eq!(bench.recv.armed(), Some(false));
    bench.recv.push(2, WcStatus::WrFlushErr, false);
    bench.engine.on_ready().unwrap();
    bench.until_seen(2);
    let counters = bench.engine.counters().snapshot();
    assert_eq!((counters.wakes.event, counters.wakes.safety), (2, 0));
}

#[test]
fn events_are_acknowledged_in_batches() {
    let mut bench = bench(Mode::Event);
    for round in 1..=200_u32 {
        bench.prepare();
        bench.recv.message(u64::from(round));
        bench.engine.on_ready().unwrap();
        bench.until_seen(round as usize);
    }
    assert_eq!(bench.recv.acks.load(Ordering::Relaxed), 192);
}

#[test]
fn timers_run_when_due_and_end_a_sleep() {
    let mut bench = bench(Mode::Event);
    bench.handler.timer = Some(Instant::now() + Duration::from_micros(300));
    let deadline = Deadline::after(FOREVER);
    let done = bench
        .engine
        .wait_until(&mut bench.handler, &deadline, |handler| handler.timers_run == 1)
        .unwrap();
    assert!(done);
}

#[test]
fn a_wake_before_the_sleep_prevents_it_and_one_during_the_sleep_ends_it() {
    let mut bench = bench(Mode::Event);
    bench.engine.notifier().wake();
    assert_eq!(
        bench.engine.prepare_sleep(&mut bench.handler).unwrap(),
        Prepared::Ready
    );
    bench.prepare();
    let fd = bench.engine.readiness_fd().unwrap();
    assert!(!readable(&fd));
    bench.engine.notifier().wake();
    bench.engine.notifier().wake();
    assert!(readable(&fd));
    bench.engine.on_ready().unwrap();
    assert!(!readable(&fd));
    assert_eq!(bench.engine.counters().snapshot().wakes.command, 1);
}

#[test]
fn a_post_wakes_a_sleeper_that_does_not_watch_its_sends_and_no_other() {
    let mut bench = bench(Mode::Event);
    let fd = bench.engine.readiness_fd().unwrap();
    let notifier = bench.engine.notifier().clone();
    let outstanding = Arc::clone(&bench.handler.outstanding);
    // Awake: nothing to wake.
    outstanding.fetch_add(1, Ordering::Relaxed);
    notifier.work_posted();
    outstanding.fetch_sub(1, Ordering::Relaxed);
    bench.prepare();
    assert!(!readable(&fd));
    // Asleep, send queue not armed.
    outstanding.fetch_add(1, Ordering::Relaxed);
    notifier.work_posted();
    assert!(readable(&fd));
    bench.engine.on_ready().unwrap();
    bench.prepare();
    assert_eq!(bench.send.armed(), Some(false));
    // Asleep, send queue armed.
    outstanding.fetch_add(1, Ordering::Relaxed);
    notifier.work_posted();
    assert!(!readable(&fd));
}

/// Work turns up after so many looks.
struct LateWork(std::cell::Cell<u32>);

impl adverb_progress::Handler for LateWork {
    fn handle(&mut self, _: Queue, _: &[adverb_verbs::WorkCompletion]) {}

    fn on_timer(&mut self, _: Instant) {}

    fn outstanding_sends(&self) -> bool {
        let looks_left = self.0.get();
        self.0.set(looks_left.saturating_sub(1));
        looks_left == 0
    }

    fn next_timer(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn work_posted_after_the_last_pass_is_seen_before_sleeping() {
    let mut bench = bench(Mode::Event);
    let notifier = bench.engine.notifier().clone();
    let fd = bench.engine.readiness_fd().unwrap();
    // The passes before and after arming see none; the look after falling asleep does.
    let mut handler = LateWork(2.into());
    assert_eq!(bench.engine.prepare_sleep(&mut handler).unwrap(), Prepared::Ready);
    notifier.work_posted();
    assert!(!readable(&fd), "awake again, so nobody needs to ring");
    assert!(matches!(
        bench.engine.prepare_sleep(&mut handler).unwrap(),
        Prepared::Sleep { .. }
    ));
    assert_eq!(bench.send.armed(), Some(false));
}

#[test]
fn nobody_rings_for_a_sleep_that_somebody_else_has_ended() {
    let mut bench = bench(Mode::Event);
    let fd = bench.engine.readiness_fd().unwrap();
    bench.prepare();
    bench.engine.poll(&mut bench.handler).unwrap();
    bench.engine.notifier().work_posted();
    assert!(!readable(&fd));
}

#[test]
fn the_callers_deadline_ends_a_sleep_before_a_later_timer_does() {
    let mut bench = bench(Mode::Event);
    bench.handler.timer = Some(Instant::now() + FOREVER * 60);
    // On a busy machine the deadline may have passed before the sleep; then try again.
    for _ in 0..100 {
        let deadline = Deadline::after(Duration::from_micros(500));
        assert!(
            !bench
                .engine
                .wait_until(&mut bench.handler, &deadline, |_| false)
                .unwrap()
        );
        if bench.engine.counters().snapshot().wakes.timer > 0 {
            return;
        }
    }
    panic!(
        "no sleep ended by a deadline: {:?}",
        bench.engine.counters().snapshot()
    );
}

#[test]
fn an_event_loop_finds_nothing_readable_left_behind_when_it_is_told_to_sleep() {
    let mut bench = bench(Mode::Event);
    let fd = bench.engine.readiness_fd().unwrap();
    bench.prepare();
    bench.recv.message(1);
    assert!(readable(&fd));
    // Somebody else takes the completion, and leaves the event where it is.
    bench.engine.poll(&mut bench.handler).unwrap();
    assert!(readable(&fd));
    bench.prepare();
    assert!(!readable(&fd));
    bench.recv.message(2);
    assert!(readable(&fd));
}

#[test]
fn an_engine_can_change_hands_between_an_event_loop_and_a_blocked_caller() {
    let mut bench = bench(Mode::Event);
    bench.prepare();
    bench.recv.message(1);
    bench.until_seen(1);
    // The loop comes late, to a sleep that is over.
    bench.engine.on_ready().unwrap();
    assert_eq!(bench.engine.counters().snapshot().wakes.event, 0);
    // The event is still there, and does not keep the next message from waking.
    let recv = Arc::clone(&bench.recv);
    let sender = thread::spawn(move || recv.message(2));
    bench.until_seen(2);
    sender.join().unwrap();
}

#[test]
fn batches_larger_than_one_poll_are_handled_in_order() {
    let mut bench = bench(Mode::Event);
    for wr_id in 0..100 {
        bench.recv.message(wr_id);
    }
    bench.until_seen(100);
    let ids: Vec<u64> = bench.handler.seen.iter().map(|seen| seen.1).collect();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
}

struct Core {
    engine: Engine,
    handler: Router,
}

/// Sends each completion to the one waiter it is for.
struct Router {
    waiters: Vec<(Arc<AtomicBool>, Waiter)>,
}

impl adverb_progress::Handler for Router {
    fn handle(&mut self, _: Queue, completions: &[adverb_verbs::WorkCompletion]) {
        for wc in completions {
            let (done, waiter) = &self.waiters[usize::try_from(wc.wr_id).unwrap()];
            done.store(true, Ordering::Release);
            waiter.notify();
        }
    }

    fn on_timer(&mut self, _: Instant) {}

    fn outstanding_sends(&self) -> bool {
        false
    }

    fn next_timer(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn many_blocked_threads_share_one_engine_and_none_is_left_asleep() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        let (recv, recv_source) = FakeCq::new();
        let (_send, send_source) = FakeCq::new();
        let waiters: Vec<_> = (0..THREADS)
            .map(|_| (Arc::new(AtomicBool::new(false)), Waiter::new()))
            .collect();
        let role = Role::new(Core {
            engine: Engine::new(recv_source, send_source, mode).unwrap(),
            handler: Router {
                waiters: waiters.clone(),
            },
        });
        thread::scope(|scope| {
            for (index, (done, waiter)) in waiters.iter().enumerate() {
                let (role, recv) = (&role, &recv);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let deadline = Deadline::after(FOREVER);
                        recv.message(index as u64);
                        role.wait(
                            || waiter,
                            &deadline,
                            || done.swap(false, Ordering::Acquire).then_some(()),
                            |core| core.engine.step(&mut core.handler, &deadline),
                        )
                        .unwrap();
                    }
                });
            }
        });
        let core = role.try_acquire().expect("nobody waits any more");
        let counters = core.engine.counters().snapshot();
        assert_eq!(counters.completions, (THREADS * ROUNDS) as u64);
    }
}

/// Wakes an event loop through a descriptor, as a runtime's own waker would.
struct Doorbell(std::os::fd::OwnedFd);

impl std::task::Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// Drives for those who do not: an event loop on the engine's descriptor and on the role's release.
fn event_loop(
    role: &Role<Core>,
    readiness: &std::os::fd::OwnedFd,
    stop: &AtomicBool,
    doorbell: &Arc<Doorbell>,
) {
    let waker = std::task::Waker::from(Arc::clone(doorbell));
    while !stop.load(Ordering::Acquire) {
        role.register_driver(&waker);
        let prepared = role.try_acquire().map(|mut guard| {
            let core = &mut *guard;
            let prepared = core.engine.prepare_sleep(&mut core.handler).unwrap();
            guard.release_as_driver();
            prepared
        });
        let mut fds = [
            PollFd::new(&doorbell.0, PollFlags::IN),
            PollFd::new(readiness, PollFlags::IN),
        ];
        match prepared {
            Some(Prepared::Ready) => continue,
            // Somebody else has the role: only its release matters.
            None => poll(&mut fds[..1], None).unwrap(),
            Some(Prepared::Sleep { until }) => {
                let timeout = until.saturating_duration_since(Instant::now());
                let timeout = Timespec {
                    tv_sec: i64::try_from(timeout.as_secs()).unwrap(),
                    tv_nsec: timeout.subsec_nanos().into(),
                };
                poll(&mut fds, Some(&timeout)).unwrap()
            }
        };
        let _ = rustix::io::read(&doorbell.0, &mut [0; 8]);
        if let Some(mut guard) = role.try_acquire() {
            guard.engine.on_ready().unwrap();
            guard.release_as_driver();
        }
    }
    role.unregister_driver();
}

#[test]
fn an_event_loop_and_blocked_threads_share_one_engine_and_none_waits_for_the_safety_interval() {
    const ROUNDS: usize = 500;
    for mode in [Mode::Event, Mode::Hybrid] {
        let (recv, recv_source) = FakeCq::new();
        let (_send, send_source) = FakeCq::new();
        // The first two take the role, the third leaves it to the event loop.
        let waiters: Vec<_> = (0..3)
            .map(|_| (Arc::new(AtomicBool::new(false)), Waiter::new()))
            .collect();
        let engine = Engine::new(recv_source, send_source, mode).unwrap();
        let readiness = engine.readiness_fd().unwrap();
        let role = Role::new(Core {
            engine,
            handler: Router {
                waiters: waiters.clone(),
            },
        });
        let stop = AtomicBool::new(false);
        let doorbell = Arc::new(Doorbell(
            rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap(),
        ));
        thread::scope(|scope| {
            scope.spawn(|| event_loop(&role, &readiness, &stop, &doorbell));
            let blocked: Vec<_> = waiters[..2]
                .iter()
                .enumerate()
                .map(|(index, (done, waiter))| {
                    let (role, recv) = (&role, &recv);
                    scope.spawn(move || {
                        for _ in 0..ROUNDS {
                            let deadline = Deadline::after(FOREVER);
                            recv.message(index as u64);
                            role.wait(
                                || waiter,
                                &deadline,
                                || done.swap(false, Ordering::Acquire).then_some(()),
                                |core| core.engine.step(&mut core.handler, &deadline),
                            )
                            .unwrap();
                        }
                    })
                })
                .collect();
            let deadline = Instant::now() + FOREVER;
            for _ in 0..ROUNDS {
                recv.message(2);
                while Instant::now() < deadline && !waiters[2].0.swap(false, Ordering::Acquire) {
                    thread::yield_now();
                }
            }
            for thread in blocked {
                thread.join().unwrap();
            }
            stop.store(true, Ordering::Release);
            std::task::Waker::from(Arc::clone(&doorbell)).wake();
        });
        let core = role.try_acquire().expect("nobody waits any more");
        let counters = core.engine.counters().snapshot();
        assert_eq!(counters.completions, 3 * ROUNDS as u64, "{mode}: {counters:?}");
        assert_eq!(counters.missed_completions, 0, "{mode}: {counters:?}");
    }
}

#[test]
fn what_threads_share_can_be_shared() {
    fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<Engine>();
    assert_send_sync::<Role<Engine>>();
    assert_send_sync::<Waiter>();
    assert_send_sync::<adverb_progress::Notifier>();
    assert_send_sync::<adverb_progress::Counters>();
}

#[test]
fn waiting_inside_of_a_handler_is_an_error_and_not_a_deadlock() {
    let role = Role::new(());
    let inner = std::cell::Cell::new(None);
    let outer = role.wait(
        Waiter::new,
        &Deadline::never(),
        || inner.take(),
        |()| {
            // What a handler that blocks would run into.
            assert!(role.held_by_current_thread());
            inner.set(Some(role.wait(
                Waiter::new,
                &Deadline::never(),
                || None::<()>,
                |()| Ok::<_, ()>(()),
            )));
            Ok::<_, ()>(())
        },
    );
    assert_eq!(outer, Ok(Err(WaitError::WouldDeadlock)));
    assert!(!role.held_by_current_thread());
}

#[test]
fn a_deadline_ends_the_wait_of_a_parked_thread_and_of_the_holder() {
    let role = Role::new(());
    let guard = role.try_acquire().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Deadline::after(Duration::from_millis(5));
            let parked = role.wait(Waiter::new, &deadline, || None::<()>, |()| Ok::<_, ()>(()));
            assert_eq!(parked, Err(WaitError::TimedOut));
        });
    });
    drop(guard);
    let deadline = Deadline::after(Duration::from_millis(5));
    let holder = role.wait(Waiter::new, &deadline, || None::<()>, |()| Ok::<_, ()>(()));
    assert_eq!(holder, Err(WaitError::TimedOut));
    assert!(role.try_acquire().is_some());
}
