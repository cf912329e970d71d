//! Shared receive queues.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::Arc;

use adverb_roce::Receive;
use adverb_types::Lkey;
use adverb_verbs::{AsyncEvent, AsyncEventKind, Bell, EventSource};
use parking_lot::Mutex;

use crate::qp::names;

/// A shared receive queue.
pub(crate) struct SrqCore {
    cookie: u64,
    pub(crate) capacity: u32,
    pub(crate) max_sge: u32,
    /// A leaf in the lock order, but for the device's events.
    inner: Mutex<Inner>,
}

struct Inner {
    receives: VecDeque<Receive>,
    /// 0 is not armed.
    limit: u32,
}

impl SrqCore {
    pub(crate) fn new(capacity: u32, max_sge: u32, cookie: u64) -> Arc<Self> {
        Arc::new(Self {
            cookie,
            capacity,
            max_sge,
            inner: Mutex::new(Inner {
                receives: VecDeque::with_capacity(capacity as usize),
                limit: 0,
            }),
        })
    }

    /// Adds a receive. Whether there was room for it.
    pub(crate) fn push(&self, receive: Receive) -> bool {
        let mut inner = self.inner.lock();
        let fits = inner.receives.len() < self.capacity as usize;
        if fits {
            inner.receives.push_back(receive);
        }
        fits
    }

    /// Takes the oldest receive.
    pub(crate) fn take(&self, events: &Bell<AsyncEvent>) -> Option<Receive> {
        let mut inner = self.inner.lock();
        let receive = inner.receives.pop_front()?;
        self.check_limit(&mut inner, events);
        Some(receive)
    }

    /// It is destroyed: its receives end without a completion. The device may remember a queue pair that was on it for a while.
    pub(crate) fn destroy(&self) {
        self.inner.lock().receives.clear();
    }

    /// How many of its receives name memory by this key.
    pub(crate) fn naming(&self, lkey: Lkey) -> usize {
        let inner = self.inner.lock();
        let naming = inner.receives.iter().filter(|receive| names(&receive.sges, lkey));
        naming.count()
    }

    /// Puts back what [`Self::take`] took, as it was not used.
    pub(crate) fn untake(&self, receive: Receive) {
        self.inner.lock().receives.push_front(receive);
    }

    /// Arms the limit event, which comes at once if the queue is below it. Whether the limit is one that it can have.
    pub(crate) fn set_limit(&self, limit: u32, events: &Bell<AsyncEvent>) -> bool {
        if limit > self.capacity {
            return false;
        }
        let mut inner = self.inner.lock();
        inner.limit = limit;
        self.check_limit(&mut inner, events);
        true
    }

    fn check_limit(&self, inner: &mut Inner, events: &Bell<AsyncEvent>) {
        if inner.receives.len() < inner.limit as usize {
            inner.limit = 0;
            events.push(AsyncEvent {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_event_comes_once_when_fewer_are_left() {
        let events = Bell::new().unwrap();
        let srq = SrqCore::new(4, 1, 9);
        let receive = |wr_id| Receive {
            wr_id,
            sges: Default::default(),
        };
        assert!((0..4).all(|wr_id| srq.push(receive(wr_id))));
        assert!(!srq.push(receive(4)), "it is full");
        assert!(!srq.set_limit(5, &events), "a limit that it cannot have");
        assert!(srq.set_limit(3, &events));
        assert_eq!(srq.take(&events), Some(receive(0)));
        assert_eq!(events.pop(), None);
        assert_eq!(srq.take(&events), Some(receive(1)));
        let reached = AsyncEvent {
            kind: AsyncEventKind::SrqLimitReached,
            source: EventSource::Srq(9),
        };
        assert_eq!(events.pop(), Some(reached));
        srq.untake(receive(1));
        assert_eq!(srq.take(&events), Some(receive(1)), "it is the oldest again");
        assert_eq!(events.pop(), None, "not without a new limit");
        assert!(srq.set_limit(3, &events));
        assert_eq!(events.pop(), Some(reached), "at once, as it is below");
    }
}
