//! Model check of a ring's hand-over: in no interleaving does a reader sleep on what was written. One that waits in vain sleeps for ever, and loom
//! reports the deadlock.
//!
//! `RUSTFLAGS="--cfg adverb_loom" cargo test -p adverb-soft --release --test 'loom_*'`

#![cfg(adverb_loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../src/wire/shared/handover.rs"]
mod handover;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

struct Ring {
    tail: AtomicU64,
    sleeping: AtomicU64,
    /// What was written, which the tail hands over.
    data: AtomicU64,
    rung: AtomicUsize,
    /// The doorbell: rings that were not taken note of.
    doorbell: Mutex<bool>,
    bell: Condvar,
}

impl Ring {
    fn new(sleeping: u64) -> Arc<Self> {
        Arc::new(Self {
            tail: AtomicU64::new(0),
            sleeping: AtomicU64::new(sleeping),
            data: AtomicU64::new(0),
            rung: AtomicUsize::new(0),
            doorbell: Mutex::new(false),
            bell: Condvar::new(),
        })
    }

    fn write(&self, position: u64) {
        self.data.store(position, Ordering::Relaxed);
        if handover::publish(&self.tail, position, &self.sleeping) {
            self.rung.fetch_add(1, Ordering::Relaxed);
            *self.doorbell.lock().unwrap() = true;
            self.bell.notify_one();
        }
    }

    /// Sleeps until something is written beyond `position`, and says up to where. How often it slept.
    fn read_until(&self, end: u64) -> usize {
        let (mut position, mut slept) = (0, 0);
        while position < end {
            let tail = self.tail.load(Ordering::Acquire);
            if tail > position {
                assert!(
                    self.data.load(Ordering::Relaxed) >= tail,
                    "what was written before is there"
                );
                position = tail;
                continue;
            }
            if handover::about_to_sleep(&self.tail, position, &self.sleeping) {
                let mut rung = self.doorbell.lock().unwrap();
                while !*rung {
                    rung = self.bell.wait(rung).unwrap();
                }
                *rung = false;
                slept += 1;
            }
            handover::awake(&self.sleeping);
        }
        slept
    }
}

fn check(sleeping: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ring = Ring::new(sleeping);
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || (1..=2).for_each(|position| ring.write(position)))
        };
        let slept = ring.read_until(2);
        writer.join().unwrap();
        assert!(ring.rung.load(Ordering::Relaxed) >= slept.min(1));
    });
}

#[test]
fn no_reader_sleeps_on_what_was_written() {
    check(0);
}

#[test]
fn neither_does_one_that_counts_as_asleep_from_the_start() {
    check(1);
}
