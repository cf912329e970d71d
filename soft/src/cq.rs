//! Completion queues.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use adverb_verbs::{AsyncEvent, AsyncEventKind, Bell, EventSource, WcStatus, WorkCompletion};
use parking_lot::Mutex;

use crate::channel::Channel;

/// A completion queue. It has a fixed size, and what does not fit is dropped with a `CQ_ERR` event each, as on rxe.
pub(crate) struct CqCore {
    pub(crate) cookie: u64,
    pub(crate) capacity: u32,
    channel: Option<Arc<Channel>>,
    errors_wake_solicited: bool,
    /// A leaf in the lock order, but for the channel.
    ring: Mutex<Ring>,
    /// What `ring` holds, so that an empty poll takes no lock.
    len: AtomicUsize,
    unacked: AtomicU32,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<WorkCompletion>,
    armed: Armed,
}

/// Which completion makes the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

impl CqCore {
    pub(crate) fn new(
        capacity: u32,
        cookie: u64,
        channel: Option<Arc<Channel>>,
        errors_wake_solicited: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            cookie,
            capacity,
            channel,
            errors_wake_solicited,
            ring: Mutex::new(Ring {
                entries: VecDeque::with_capacity(capacity as usize),
                armed: Armed::No,
            }),
            len: AtomicUsize::new(0),
            unacked: AtomicU32::new(0),
        })
    }

    /// Adds a completion and raises the event that it was armed for. `solicited` says whether the sender asked to wake the receiver.
    pub(crate) fn push(self: &Arc<Self>, wc: WorkCompletion, solicited: bool, events: &Bell<AsyncEvent>) {
        let wakes = solicited || (self.errors_wake_solicited && wc.status != WcStatus::Success);
        let mut ring = self.ring.lock();
        if ring.entries.len() >= self.capacity as usize {
            drop(ring);
            events.push(AsyncEvent {
                kind: AsyncEventKind::CqErr,
                source: EventSource::Cq(self.cookie),
            });
            return;
        }
        ring.entries.push_back(wc);
        self.len.store(ring.entries.len(), Ordering::Release);
        if ring.armed == Armed::Any || (ring.armed == Armed::Solicited && wakes) {
            ring.armed = Armed::No;
            if let Some(channel) = &self.channel {
                channel.push(Arc::downgrade(self));
            }
        }
    }

    /// Takes completions that are there, oldest first, and says how many.
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = self.ring.lock();
        let n = out.len().min(ring.entries.len());
        for (out, wc) in out.iter_mut().zip(ring.entries.drain(..n)) {
            *out = wc;
        }
        self.len.store(ring.entries.len(), Ordering::Release);
        n
    }

    /// Arming for any completion is not taken back by arming for solicited ones.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut ring = self.ring.lock();
        if !solicited_only {
            ring.armed = Armed::Any;
        } else if ring.armed == Armed::No {
            ring.armed = Armed::Solicited;
        }
    }

    /// Counts an event that was taken from the channel.
    pub(crate) fn event_taken(&self) {
        self.unacked.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn unacked(&self) -> u32 {
        self.unacked.load(Ordering::Acquire)
    }

    pub(crate) fn ack(&self) {
        self.unacked.store(0, Ordering::Release);
    }

    /// Takes the queue's events out of its channel, as destroying it does.
    pub(crate) fn leave_channel(&self) {
        if let Some(channel) = &self.channel {
            channel.retain(|cq| !std::ptr::eq(cq.as_ptr(), self));
        }
    }
}

impl Debug for CqCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqCore")
            .field("cookie", &self.cookie)
            .field("capacity", &self.capacity)
            .field("len", &self.len)
            .field("unacked", &self.unacked)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::next_event;

    struct Bench {
        cq: Arc<CqCore>,
        channel: Arc<Channel>,
        events: Bell<AsyncEvent>,
    }

    fn bench(capacity: u32, errors_wake: bool) -> Bench {
        let channel = Arc::new(Channel::new().unwrap());
        Bench {
            cq: CqCore::new(capacity, 7, Some(Arc::clone(&channel)), errors_wake),
            channel,
            events: Bell::new().unwrap(),
        }
    }

    impl Bench {
        /// Whether a completion like this raises an event.
        fn rings(&self, solicited: bool, status: WcStatus) -> bool {
            let wc = WorkCompletion {
                status,
                ..WorkCompletion::EMPTY
            };
            self.cq.push(wc, solicited, &self.events);
            next_event(&self.channel).is_some()
        }
    }

    #[test]
    fn an_arm_is_for_one_event_and_for_what_it_says() {
        let bench = bench(64, true);
        let ok = WcStatus::Success;
        assert!(!bench.rings(true, ok), "not armed");
        bench.cq.arm(true);
        assert!(!bench.rings(false, ok));
        assert!(bench.rings(true, ok));
        assert!(!bench.rings(true, ok), "the arm is spent");
        bench.cq.arm(false);
        bench.cq.arm(true);
        assert!(bench.rings(false, ok), "not weakened");
        bench.cq.arm(true);
        assert!(bench.rings(false, WcStatus::WrFlushErr), "errors wake");
        assert_eq!(bench.cq.unacked(), 3);
        bench.cq.ack();
        assert_eq!(bench.cq.unacked(), 0);
    }

    #[test]
    fn with_rxes_quirk_errors_do_not_wake_a_solicited_arm() {
        let bench = bench(64, false);
        bench.cq.arm(true);
        assert!(!bench.rings(false, WcStatus::WrFlushErr));
        assert!(bench.rings(true, WcStatus::Success));
        bench.cq.arm(false);
        assert!(bench.rings(false, WcStatus::WrFlushErr));
    }

    #[test]
    fn what_does_not_fit_raises_cq_err_each() {
        let bench = bench(2, true);
        for _ in 0..4 {
            bench.rings(false, WcStatus::Success);
        }
        let expected = AsyncEvent {
            kind: AsyncEventKind::CqErr,
            source: EventSource::Cq(7),
        };
        assert_eq!(bench.events.pop(), Some(expected));
        assert_eq!(bench.events.pop(), Some(expected));
        assert_eq!(bench.events.pop(), None);
        assert_eq!(bench.cq.take(&mut [WorkCompletion::EMPTY; 4]), 2);
    }

    #[test]
    fn a_queue_that_goes_takes_its_events_along() {
        let bench = bench(2, true);
        bench.cq.arm(false);
        bench.cq.push(WorkCompletion::EMPTY, false, &bench.events);
        bench.cq.leave_channel();
        assert_eq!(next_event(&bench.channel), None);
    }
}
