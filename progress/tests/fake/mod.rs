//! A completion queue and its channel, as small as they can be: what is pushed can be polled, and raises an event if the
//! queue was armed for it.

#![allow(
    unsafe_code,
    reason = "the verbs traits are unsafe to implement; these touch no memory but their own"
)]

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use adverb_progress::{CqSource, Handler, Queue};
use adverb_verbs::{CompChannel, CompEvent, Cq, VerbsError, WcStatus, WorkCompletion};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug)]
pub(crate) struct FakeChannel {
    /// Counts events; each read takes one.
    events: OwnedFd,
    unacked: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct FakeCq {
    channel: Arc<FakeChannel>,
    inner: Mutex<Inner>,
    pub(crate) acks: AtomicU32,
    pub(crate) arms: AtomicU32,
    /// Loses events, as a broken driver would.
    pub(crate) deaf: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<WorkCompletion>,
    /// Armed, and whether for solicited completions only.
    armed: Option<bool>,
}

impl FakeCq {
    pub(crate) fn new() -> (Arc<Self>, CqSource) {
        let channel = Arc::new(FakeChannel {
            events: eventfd(
                0,
                EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE,
            )
            .unwrap(),
            unacked: AtomicU32::new(0),
        });
        let cq = Arc::new(Self {
            channel: Arc::clone(&channel),
            inner: Mutex::default(),
            acks: AtomicU32::new(0),
            arms: AtomicU32::new(0),
            deaf: AtomicBool::new(false),
        });
        let source = CqSource {
            cq: Arc::clone(&cq) as Arc<dyn Cq>,
            channel,
        };
        (cq, source)
    }

    /// A completion arrives.
    pub(crate) fn push(&self, wr_id: u64, status: WcStatus, solicited: bool) {
        let mut inner = self.inner.lock();
        inner.entries.push_back(WorkCompletion {
            wr_id,
            status,
            ..WorkCompletion::EMPTY
        });
        // As on SoftRoCE: an error counts only if it was armed for any completion.
        if inner
            .armed
            .is_some_and(|solicited_only| solicited || !solicited_only)
        {
            inner.armed = None;
            if !self.deaf.load(Ordering::Relaxed) {
                rustix::io::write(&self.channel.events, &1_u64.to_ne_bytes()).unwrap();
            }
        }
    }

    /// A solicited completion without error.
    pub(crate) fn message(&self, wr_id: u64) {
        self.push(wr_id, WcStatus::Success, true);
    }

    pub(crate) fn armed(&self) -> Option<bool> {
        self.inner.lock().armed
    }
}

// SAFETY: it keeps no pointer of a caller.
unsafe impl CompChannel for FakeChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError> {
        if rustix::io::read(&self.events, &mut [0; 8]).is_err() {
            return Ok(None);
        }
        self.unacked.fetch_add(1, Ordering::Relaxed);
        Ok(Some(CompEvent { cookie: 0 }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

// SAFETY: no work request is behind its completions, so none is reported too early.
unsafe impl Cq for FakeCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut inner = self.inner.lock();
        let found = out.len().min(inner.entries.len());
        for (slot, entry) in out.iter_mut().zip(inner.entries.drain(..found)) {
            *slot = entry;
        }
        Ok(found)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.arms.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        // Arming for any completion is not undone by arming for solicited ones.
        inner.armed = Some(solicited_only && inner.armed != Some(false));
        Ok(())
    }

    fn unacked_events(&self) -> u32 {
        self.channel.unacked.load(Ordering::Relaxed)
    }

    fn ack_events(&self) {
        self.acks
            .fetch_add(self.channel.unacked.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn capacity(&self) -> u32 {
        u32::MAX
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Keeps what it is given. Posts are counted in an atomic that other threads share.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) seen: Vec<(Queue, u64)>,
    pub(crate) outstanding: Arc<AtomicUsize>,
    pub(crate) timer: Option<Instant>,
    pub(crate) timers_run: usize,
}

impl Handler for Recorder {
    fn handle(&mut self, queue: Queue, completions: &[WorkCompletion]) {
        assert!(!completions.is_empty());
        if queue == Queue::Send {
            self.outstanding.fetch_sub(completions.len(), Ordering::Relaxed);
        }
        self.seen.extend(completions.iter().map(|wc| (queue, wc.wr_id)));
    }

    fn on_timer(&mut self, now: Instant) {
        assert!(self.timer.is_some_and(|timer| timer <= now));
        self.timer = None;
        self.timers_run += 1;
    }

    fn outstanding_sends(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) > 0
    }

    fn next_timer(&self) -> Option<Instant> {
        self.timer
    }
}
