//! Receives that wait for a message, in a queue of one queue pair or in a shared one.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::{Arc, Weak};

use adverb_verbs::{AsyncEvent, AsyncEventKind, EventSource};
use parking_lot::Mutex;

use super::context::Context;
use super::memory::Held;
use super::qp::QpCore;

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) held: Held,
}

/// A shared receive queue.
pub(super) struct SrqCore {
    pub(super) context: Arc<Context>,
    cookie: u64,
    pub(super) capacity: u32,
    pub(super) max_sge: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    receives: VecDeque<Receive>,
    /// 0 is not armed.
    limit: u32,
    /// Senders that found the queue empty.
    waiters: Vec<Weak<QpCore>>,
}

impl SrqCore {
    pub(super) fn new(context: Arc<Context>, capacity: u32, max_sge: u32, cookie: u64) -> Arc<Self> {
        Arc::new(Self {
            context,
            cookie,
            capacity,
            max_sge,
            inner: Mutex::new(Inner {
                receives: VecDeque::with_capacity(capacity as usize),
                limit: 0,
                waiters: Vec::new(),
            }),
        })
    }

    /// Adds a receive. Whether there was room for it.
    pub(super) fn push(&self, receive: Receive) -> bool {
        let mut inner = self.inner.lock();
        let fits = inner.receives.len() < self.capacity as usize;
        if fits {
            inner.receives.push_back(receive);
        }
        fits
    }

    /// Lets the senders go on that found the queue empty. Call after receives were added, holding no lock.
    pub(super) fn wake_senders(&self) {
        let waiters = {
            let mut inner = self.inner.lock();
            if inner.waiters.is_empty() {
                return;
            }
            std::mem::take(&mut inner.waiters)
        };
        for sender in waiters.iter().filter_map(Weak::upgrade) {
            sender.go_on();
        }
    }

    /// Takes the oldest receive. If there is none, `sender` is told of the next one.
    pub(super) fn take(&self, sender: &Arc<QpCore>) -> Option<Receive> {
        let mut inner = self.inner.lock();
        let Some(receive) = inner.receives.pop_front() else {
            if !inner
                .waiters
                .iter()
                .any(|waiter| waiter.as_ptr() == Arc::as_ptr(sender))
            {
                inner.waiters.push(Arc::downgrade(sender));
            }
            return None;
        };
        self.check_limit(&mut inner);
        Some(receive)
    }

    /// Puts back what [`Self::take`] took, as it was not used.
    pub(super) fn untake(&self, receive: Receive) {
        self.inner.lock().receives.push_front(receive);
    }

    /// Arms the limit event, which comes at once if the queue is below it. Whether the limit is one that it can have.
    pub(super) fn set_limit(&self, limit: u32) -> bool {
        if limit > self.capacity {
            return false;
        }
        let mut inner = self.inner.lock();
        inner.limit = limit;
        self.check_limit(&mut inner);
        true
    }

    fn check_limit(&self, inner: &mut Inner) {
        if inner.receives.len() < inner.limit as usize {
            inner.limit = 0;
            self.context.raise(AsyncEvent {
                kind: AsyncEventKind::SrqLimitReached,
                source: EventSource::Srq(self.cookie),
            });
        }
    }
}

impl Debug for SrqCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqCore")
            .field("cookie", &self.cookie)
            .field("capacity", &self.capacity)
            .field("posted", &self.inner.lock().receives.len())
            .finish_non_exhaustive()
    }
}
