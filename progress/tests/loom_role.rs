//! Model check of the progress role: it is handed over without a lost wake-up, whoever comes and goes.
//!
//! `RUSTFLAGS="--cfg adverb_loom" cargo test -p adverb-progress --release --test 'loom_*'`

#![cfg(adverb_loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Wake, Waker};

use adverb_progress::{Deadline, Role, WaitError, Waiter};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// What the holder drives: completions come in this order, each for one waiter.
struct Progress {
    coming: VecDeque<usize>,
    requests: Vec<Arc<Request>>,
}

struct Request {
    done: AtomicBool,
    waiter: Waiter,
}

impl Progress {
    fn turn(&mut self) -> Result<(), Infallible> {
        if let Some(next) = self.coming.pop_front() {
            self.requests[next].done.store(true, Ordering::Release);
            self.requests[next].waiter.notify();
        }
        Ok(())
    }
}

fn requests(count: usize) -> Vec<Arc<Request>> {
    (0..count)
        .map(|_| {
            Arc::new(Request {
                done: AtomicBool::new(false),
                waiter: Waiter::new(),
            })
        })
        .collect()
}

fn wait(role: &Role<Progress>, request: &Request) {
    let done = || request.done.load(Ordering::Acquire).then_some(());
    role.wait(|| &request.waiter, &Deadline::never(), done, Progress::turn)
        .unwrap();
}

fn model(preemptions: impl Into<Option<usize>>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(body);
}

/// So many threads wait, and the completions come in this order.
fn waiters(preemptions: impl Into<Option<usize>>, order: &'static [usize]) {
    model(preemptions, move || {
        let requests = requests(order.len());
        let role = Arc::new(Role::new(Progress {
            coming: order.iter().copied().collect(),
            requests: requests.clone(),
        }));
        let threads: Vec<_> = requests[1..]
            .iter()
            .map(|request| {
                let (role, request) = (Arc::clone(&role), Arc::clone(request));
                thread::spawn(move || wait(&role, &request))
            })
            .collect();
        wait(&role, &requests[0]);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(role.try_acquire().is_some(), "nobody waits, so the role is free");
    });
}

#[test]
fn a_holder_completes_a_parked_waiter() {
    waiters(None, &[1, 0]);
}

#[test]
fn a_holder_that_leaves_hands_the_role_to_who_is_parking() {
    waiters(None, &[0, 1]);
}

#[test]
fn three_waiters_all_get_what_they_wait_for() {
    waiters(3, &[2, 1, 0]);
    waiters(3, &[0, 1, 2]);
    waiters(3, &[1, 2, 0]);
}

#[test]
fn an_offered_waiter_that_leaves_passes_the_offer_on() {
    model(4, || {
        let requests = requests(2);
        let role = Arc::new(Role::new(Progress {
            coming: [0, 1].into(),
            requests: requests.clone(),
        }));
        let mut guard = role.try_acquire().unwrap();
        let threads: Vec<_> = requests
            .iter()
            .map(|request| {
                let (role, request) = (Arc::clone(&role), Arc::clone(request));
                thread::spawn(move || wait(&role, &request))
            })
            .collect();
        // The first is done, and may be offered the role all the same: the second needs it.
        let Ok(()) = guard.turn();
        drop(guard);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_waiter_whose_drive_fails_passes_the_role_on() {
    model(4, || {
        let requests = requests(1);
        let role = Arc::new(Role::new(Progress {
            coming: [0].into(),
            requests: requests.clone(),
        }));
        let thread = {
            let role = Arc::clone(&role);
            thread::spawn(move || {
                let failed = role.wait(Waiter::new, &Deadline::never(), || None::<()>, |_| Err("gone"));
                assert_eq!(failed, Err(WaitError::Progress("gone")));
            })
        };
        wait(&role, &requests[0]);
        thread.join().unwrap();
    });
}

/// A task that sleeps until its waker is used.
struct Task {
    woken: Mutex<bool>,
    condvar: Condvar,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.condvar.notify_one();
    }
}

#[test]
fn a_driver_that_found_the_role_taken_is_woken_when_it_is_free_and_not_by_itself() {
    model(4, || {
        let role = Arc::new(Role::new(0));
        let caller = {
            let role = Arc::clone(&role);
            thread::spawn(move || {
                if let Some(mut guard) = role.try_acquire() {
                    *guard += 1;
                }
            })
        };
        let task = Arc::new(Task {
            woken: Mutex::new(false),
            condvar: Condvar::new(),
        });
        let waker = Waker::from(Arc::clone(&task));
        loop {
            role.register_driver(&waker);
            if let Some(guard) = role.try_acquire() {
                guard.release_as_driver();
                break;
            }
            let mut woken = task.woken.lock().unwrap();
            while !*woken {
                woken = task.condvar.wait(woken).unwrap();
            }
            *woken = false;
        }
        caller.join().unwrap();
        // If the caller had the role after the driver, the driver was told; if not, nobody told it.
        role.unregister_driver();
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_a_role_that_is_never_released() {
    model(4, || {
        let requests = requests(1);
        let role = Arc::new(Role::new(Progress {
            coming: [0].into(),
            requests: requests.clone(),
        }));
        let holder = {
            let role = Arc::clone(&role);
            thread::spawn(move || std::mem::forget(role.try_acquire()))
        };
        wait(&role, &requests[0]);
        holder.join().unwrap();
    });
}
