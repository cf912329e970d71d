//! One-sided operations on a connection's send queue.

use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use adverb_proto::{Outcome, Phase};
use adverb_verbs::{Access, Buffer, Pd, SendFlags, SendOp, SendQueue, SendRequest, SlotPool};

use super::{Connection, State, add_waker};
use crate::rma::{Kind, Limits, Settled};
use crate::{EndpointErrorKind, RmaError};

/// Bytes of a result of an atomic operation.
const WORD: usize = 8;

impl Connection {
    /// What the link lets one-sided operations do.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether memory registered with `pd` can be used on it.
    pub(crate) fn is_on(&self, pd: &Arc<dyn Pd>) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.pd), Arc::as_ptr(pd))
    }

    /// Posts a one-sided operation with local memory, of which an atomic one has its own, and returns its number.
    pub(crate) fn post_one_sided(
        &self,
        kind: Kind,
        op: SendOp,
        buffer: Option<Buffer>,
    ) -> Result<u64, RmaError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(reason) = no_more(state) {
            return Err(self.not_sent(reason));
        }
        if !has_slot(state) {
            return Err(self.would_block(kind));
        }
        let buffer = if kind.is_atomic() {
            Some(self.word(state, kind)?)
        } else {
            buffer
        };
        let tag = state.one_sided.add(kind);
        // Signaled, each: their memory is to come back, and somebody waits for them most often.
        let mut request = SendRequest::new(op)
            .cookie(tag.cookie())
            .flags(SendFlags::SIGNALED);
        // A new request has room for one buffer.
        buffer.map(|buffer| request.push(buffer));
        state.requests.push(request);
        self.post(state);
        // It had not ended above.
        if let Some(reason) = state.ended.clone() {
            state.one_sided.take_back();
            return Err(self.not_sent(reason));
        }
        drop(guard);
        self.signals.work_posted();
        Ok(tag.number)
    }

    /// Memory for the result of an atomic operation.
    fn word(&self, state: &mut State, kind: Kind) -> Result<Buffer, RmaError> {
        let words = match &mut state.words {
            Some(words) => words,
            // As many as the send queue holds, so that there is one whenever there is room in that.
            words => {
                let pool = SlotPool::new(&*self.pd, WORD, self.depth, Access::LOCAL_WRITE);
                words.insert(pool.map_err(RmaError::Register)?)
            }
        };
        let slot = words.take().ok_or_else(|| self.would_block(kind))?;
        Ok(Buffer::slot(slot, WORD))
    }

    /// What is posted from now on, messages too, waits until the gets and atomics before it are done.
    pub(crate) fn fence(&self) {
        self.state.lock().fence = true;
    }

    /// How many one-sided operations were posted.
    pub(crate) fn one_sided_posted(&self) -> u64 {
        self.state.lock().one_sided.posted()
    }

    /// How one-sided operation `number` ended, if it has; else `waker` is woken when it does. Until then the device may use its memory.
    pub(crate) fn one_sided_result(
        &self,
        number: u64,
        waker: Option<&Waker>,
    ) -> Option<Result<(), RmaError>> {
        let mut state = self.state.lock();
        self.result_locked(&mut state, number, waker)
    }

    /// Like [`Connection::one_sided_result`], for an atomic operation.
    pub(crate) fn one_sided_word(&self, number: u64, waker: Option<&Waker>) -> Option<Result<u64, RmaError>> {
        let mut state = self.state.lock();
        let result = self.result_locked(&mut state, number, waker)?;
        // A result that was forgotten is not asked for any more.
        Some(result.map(|()| state.one_sided.word(number).unwrap_or_default()))
    }

    fn result_locked(
        &self,
        state: &mut State,
        number: u64,
        waker: Option<&Waker>,
    ) -> Option<Result<(), RmaError>> {
        match state.one_sided.look(number, waker)? {
            Settled::Done => Some(Ok(())),
            // Nothing is settled so while the connection goes on.
            Settled::Unknown => state.ended.clone().map(|reason| {
                Err(RmaError::Ended {
                    outcome: Outcome::MaybeDelivered,
                    error: self.error(reason),
                })
            }),
        }
    }

    /// Nobody asks for the result of atomic operation `number` any more.
    pub(crate) fn forget_word(&self, number: u64) {
        self.state.lock().one_sided.forget(number);
    }

    /// Whether a one-sided operation can be posted, or why none ever will be. If neither, `waker` is woken when that changes.
    pub(crate) fn one_sided_ready(&self, waker: Option<&Waker>) -> Option<Result<(), RmaError>> {
        let mut state = self.state.lock();
        if let Some(reason) = no_more(&state) {
            return Some(Err(self.not_sent(reason)));
        }
        if has_slot(&state) {
            return Some(Ok(()));
        }
        if let Some(waker) = waker {
            add_waker(&mut state.slot_waiters, waker);
        }
        None
    }

    fn not_sent(&self, reason: EndpointErrorKind) -> RmaError {
        RmaError::Ended {
            outcome: Outcome::NotSent,
            error: self.error(reason),
        }
    }

    fn would_block(&self, kind: Kind) -> RmaError {
        RmaError::WouldBlock {
            operation: kind.operation(),
            peer: self.link.peer,
        }
    }
}

/// Why nothing can be posted any more, or not yet.
fn no_more(state: &State) -> Option<EndpointErrorKind> {
    if state.ended.is_some() {
        return state.ended.clone();
    }
    if let Some(reason) = state.peer_reason {
        return Some(EndpointErrorKind::PeerClosed(reason));
    }
    (state.core.phase() != Phase::Open).then_some(EndpointErrorKind::Closed)
}

/// Whether the send queue has room.
pub(super) fn has_slot(state: &State) -> bool {
    state
        .queue
        .as_ref()
        .is_some_and(|queue| SendQueue::free(queue) > 0)
}
