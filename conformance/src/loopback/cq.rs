//! Completion queues.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use adverb_verbs::{AsyncEvent, AsyncEventKind, EventSource, WcStatus, WorkCompletion};
use parking_lot::Mutex;

use super::context::Context;
use adverb_verbs::Bell;

/// A completion channel: the queues whose events wait in it.
pub(super) type Channel = Bell<Weak<CqCore>>;

/// A completion queue. It has a fixed size, and what does not fit is dropped with a `CQ_ERR` event each.
pub(super) struct CqCore {
    pub(super) context: Arc<Context>,
    pub(super) cookie: u64,
    pub(super) capacity: u32,
    channel: Option<Arc<Channel>>,
    ring: Mutex<Ring>,
    /// What `ring` holds, so that an empty poll takes no lock.
    len: AtomicUsize,
    unacked: AtomicU32,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Completion>,
    armed: Armed,
}

/// Which completion makes the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What a queue pair completes with.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) wc: WorkCompletion,
    /// Whether the sender asked to wake the receiver.
    pub(super) solicited: bool,
    /// The places in a send queue that are free again once this was polled (IBTA volume 1, section 10.8.5).
    pub(super) retires: Option<(Arc<AtomicU32>, u32)>,
}

impl CqCore {
    pub(super) fn new(
        context: Arc<Context>,
        capacity: u32,
        cookie: u64,
        channel: Option<Arc<Channel>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            cookie,
            capacity,
            channel,
            ring: Mutex::new(Ring {
                entries: VecDeque::with_capacity(capacity as usize),
                armed: Armed::No,
            }),
            len: AtomicUsize::new(0),
            unacked: AtomicU32::new(0),
        })
    }

    /// Adds a completion and raises the event that it was armed for.
    pub(super) fn push(self: &Arc<Self>, completion: Completion) {
        let errors_wake = self.context.fabric.config.errors_wake_solicited;
        let wakes = completion.solicited || (errors_wake && completion.wc.status != WcStatus::Success);
        let mut ring = self.ring.lock();
        if ring.entries.len() >= self.capacity as usize {
            drop(ring);
            self.context.raise(AsyncEvent {
                kind: AsyncEventKind::CqErr,
                source: EventSource::Cq(self.cookie),
            });
            return;
        }
        ring.entries.push_back(completion);
        self.len.store(ring.entries.len(), Ordering::Release);
        if ring.armed == Armed::Any || (ring.armed == Armed::Solicited && wakes) {
            ring.armed = Armed::No;
            if let Some(channel) = &self.channel {
                channel.push(Arc::downgrade(self));
            }
        }
    }

    pub(super) fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = self.ring.lock();
        let n = out.len().min(ring.entries.len());
        for (out, completion) in out.iter_mut().zip(ring.entries.drain(..n)) {
            *out = completion.wc;
            if let Some((outstanding, count)) = completion.retires {
                outstanding.fetch_sub(count, Ordering::AcqRel);
            }
        }
        self.len.store(ring.entries.len(), Ordering::Release);
        n
    }

    /// Arming for any completion is not taken back by arming for solicited ones.
    pub(super) fn arm(&self, solicited_only: bool) {
        let mut ring = self.ring.lock();
        if !solicited_only {
            ring.armed = Armed::Any;
        } else if ring.armed == Armed::No {
            ring.armed = Armed::Solicited;
        }
    }

    /// Counts an event that was taken from the channel.
    pub(super) fn event_taken(&self) {
        self.unacked.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn unacked(&self) -> u32 {
        self.unacked.load(Ordering::Acquire)
    }

    pub(super) fn ack(&self) {
        self.unacked.store(0, Ordering::Release);
    }

    /// Takes the queue's events out of its channel, as destroying it does.
    pub(super) fn leave_channel(&self) {
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
