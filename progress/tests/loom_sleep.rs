//! Model check of arm → poll again → sleep → wake, with two completion queues: no interleaving leaves the holder asleep with
//! a completion, a command or new work waiting. Loom has no clock, so the safety interval cannot help: who sleeps
//! in vain sleeps for ever, and loom reports the deadlock.
//!
//! `RUSTFLAGS="--cfg adverb_loom" cargo test -p adverb-progress --release --test 'loom_*'`

#![cfg(adverb_loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_progress::{Action, Counters, Decider, Mode, Pass, Queue, SleepState, WakeReason};
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// A mistake to make on purpose, to see that the model would notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Sleeps after arming without having polled again.
    NoPollAfterArm,
    /// Polls only the recv queue again.
    OnlyOneQueuePolledAgain,
    /// Takes an event and believes that its queue is armed still.
    ArmOutlivesEvent,
    /// Does not look for new work after publishing that it sleeps.
    NoLookAfterFallingAsleep,
    /// Counts work only after having looked for a sleeper.
    CountsAfterLooking,
}

const QUEUES: [Queue; 2] = [Queue::Recv, Queue::Send];

/// The device and the kernel: completion queues, their channels, the bell, and `ppoll`.
struct Device {
    queues: [Mutex<ModelQueue>; 2],
    readable: Mutex<Readable>,
    ppoll: Condvar,
}

#[derive(Default)]
struct ModelQueue {
    completions: usize,
    armed: bool,
}

#[derive(Default)]
struct Readable {
    events: [usize; 2],
    bell: bool,
}

impl Device {
    fn new() -> Self {
        Self {
            queues: [
                Mutex::new(ModelQueue::default()),
                Mutex::new(ModelQueue::default()),
            ],
            readable: Mutex::new(Readable::default()),
            ppoll: Condvar::new(),
        }
    }

    fn complete(&self, queue: Queue) {
        let mut model = self.queues[queue as usize].lock().unwrap();
        model.completions += 1;
        let raise = std::mem::take(&mut model.armed);
        // The event comes after the completion can be seen, as on real devices.
        drop(model);
        if raise {
            self.readable.lock().unwrap().events[queue as usize] += 1;
            self.ppoll.notify_one();
        }
    }

    fn poll(&self, queue: Queue) -> usize {
        std::mem::take(&mut self.queues[queue as usize].lock().unwrap().completions)
    }

    fn arm(&self, queue: Queue) {
        self.queues[queue as usize].lock().unwrap().armed = true;
    }

    fn ring(&self) {
        self.readable.lock().unwrap().bell = true;
        self.ppoll.notify_one();
    }
}

/// What all threads share.
struct Shared {
    device: Device,
    sleep: SleepState,
    outstanding: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            device: Device::new(),
            sleep: SleepState::new(),
            outstanding: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Posts a send, which completes.
    fn post(&self, mistake: Mistake) {
        if mistake == Mistake::CountsAfterLooking {
            if self.sleep.posted() {
                self.device.ring();
            }
            self.outstanding.fetch_add(1, Ordering::Relaxed);
        } else {
            self.outstanding.fetch_add(1, Ordering::Relaxed);
            if self.sleep.posted() {
                self.device.ring();
            }
        }
        self.device.complete(Queue::Send);
    }
}

/// The holder of the role: `Engine::step`, on the model.
struct Holder {
    shared: Arc<Shared>,
    decider: Decider,
    now: Instant,
    found: usize,
    mistake: Mistake,
    just_armed: bool,
}

impl Holder {
    fn new(shared: &Arc<Shared>, mistake: Mistake) -> Self {
        Self {
            shared: Arc::clone(shared),
            decider: Decider::new(Mode::Event, Arc::new(Counters::new())),
            now: Instant::now(),
            found: 0,
            mistake,
            just_armed: false,
        }
    }

    fn step(&mut self) {
        let pass = self.pass();
        match self.decider.polled(&pass, || self.now) {
            Action::Poll => {}
            Action::Arm { recv, send } => {
                if recv {
                    self.shared.device.arm(Queue::Recv);
                }
                if send {
                    self.shared.device.arm(Queue::Send);
                }
                self.decider.armed(recv, send, Duration::ZERO);
                self.just_armed = true;
            }
            Action::Sleep { .. } => self.sleep(),
        }
    }

    fn pass(&mut self) -> Pass {
        let again = std::mem::take(&mut self.just_armed);
        let mut completions = 0;
        for queue in QUEUES {
            let skip = match self.mistake {
                Mistake::NoPollAfterArm => again,
                Mistake::OnlyOneQueuePolledAgain => again && queue == Queue::Send,
                _ => false,
            };
            if skip {
                continue;
            }
            let found = self.shared.device.poll(queue);
            if queue == Queue::Send && found > 0 {
                self.shared.outstanding.fetch_sub(found, Ordering::Relaxed);
            }
            completions += found;
        }
        self.found += completions;
        Pass {
            completions,
            rounds: 1,
            outstanding_sends: self.outstanding(),
            next_timer: None,
        }
    }

    fn outstanding(&self) -> bool {
        self.shared.outstanding.load(Ordering::Relaxed) > 0
    }

    fn sleep(&mut self) {
        let send_armed = self.decider.is_armed(Queue::Send);
        if !self.shared.sleep.fall_asleep(send_armed) {
            return;
        }
        let look = self.mistake != Mistake::NoLookAfterFallingAsleep;
        if look && !send_armed && self.outstanding() {
            self.shared.sleep.wake_up();
            return;
        }
        let mut readable = self.shared.device.readable.lock().unwrap();
        while readable.events == [0, 0] && !readable.bell {
            readable = self.shared.device.ppoll.wait(readable).unwrap();
        }
        readable.bell = false;
        let mut reason = WakeReason::Command;
        for queue in QUEUES {
            if readable.events[queue as usize] > 0 {
                readable.events[queue as usize] -= 1;
                reason = WakeReason::Event;
                if self.mistake != Mistake::ArmOutlivesEvent {
                    self.decider.event(queue);
                }
            }
        }
        drop(readable);
        self.shared.sleep.wake_up();
        self.decider.woken(reason, Duration::ZERO);
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Two messages come one after the other.
fn two_messages(mistake: Mistake) {
    model(move || {
        let shared = Shared::new();
        let mut holder = Holder::new(&shared, mistake);
        let peer = thread::spawn(move || {
            shared.device.complete(Queue::Recv);
            shared.device.complete(Queue::Recv);
        });
        while holder.found < 2 {
            holder.step();
        }
        peer.join().unwrap();
    });
}

/// A message comes, and a send that is outstanding completes.
fn one_completion_on_each_queue(mistake: Mistake) {
    model(move || {
        let shared = Shared::new();
        shared.outstanding.store(1, Ordering::Relaxed);
        let mut holder = Holder::new(&shared, mistake);
        let device = Arc::clone(&shared);
        let sends = thread::spawn(move || device.device.complete(Queue::Send));
        let recvs = thread::spawn(move || shared.device.complete(Queue::Recv));
        while holder.found < 2 {
            holder.step();
        }
        sends.join().unwrap();
        recvs.join().unwrap();
    });
}

/// Another thread posts a send; nothing else ever happens.
fn a_post_from_another_thread(mistake: Mistake) {
    model(move || {
        let shared = Shared::new();
        let mut holder = Holder::new(&shared, mistake);
        let poster = thread::spawn(move || shared.post(mistake));
        while holder.found < 1 {
            holder.step();
        }
        poster.join().unwrap();
    });
}

#[test]
fn messages_are_never_slept_through() {
    two_messages(Mistake::None);
}

#[test]
fn completions_of_both_queues_are_never_slept_through() {
    one_completion_on_each_queue(Mistake::None);
}

#[test]
fn the_completion_of_another_threads_post_is_never_slept_through() {
    a_post_from_another_thread(Mistake::None);
}

#[test]
fn a_post_and_a_message_at_once_are_never_slept_through() {
    model(|| {
        let shared = Shared::new();
        let mut holder = Holder::new(&shared, Mistake::None);
        let peer = Arc::clone(&shared);
        let poster = thread::spawn(move || shared.post(Mistake::None));
        let peer = thread::spawn(move || peer.device.complete(Queue::Recv));
        while holder.found < 2 {
            holder.step();
        }
        poster.join().unwrap();
        peer.join().unwrap();
    });
}

#[test]
fn a_command_is_never_slept_through_and_rings_once() {
    model(|| {
        let shared = Shared::new();
        let mut holder = Holder::new(&shared, Mistake::None);
        let commanders: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.stop.store(true, Ordering::Relaxed);
                    let rings = shared.sleep.command();
                    if rings {
                        shared.device.ring();
                    }
                    usize::from(rings)
                })
            })
            .collect();
        let mut sleeps = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            holder.step();
            sleeps += 1;
        }
        let rings: usize = commanders.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(rings <= sleeps);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_a_missing_poll_after_arming() {
    two_messages(Mistake::NoPollAfterArm);
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_that_only_one_of_two_queues_was_polled_again() {
    one_completion_on_each_queue(Mistake::OnlyOneQueuePolledAgain);
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_an_arm_that_is_believed_to_outlive_its_event() {
    two_messages(Mistake::ArmOutlivesEvent);
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_a_sleeper_that_does_not_look_for_new_work() {
    a_post_from_another_thread(Mistake::NoLookAfterFallingAsleep);
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_work_that_is_counted_too_late() {
    a_post_from_another_thread(Mistake::CountsAfterLooking);
}
