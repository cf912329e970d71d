//! Queue pairs and shared receive queues that refuse and die.

#![allow(
    unsafe_code,
    reason = "the verbs traits are unsafe to implement; the promises are the inner provider's"
)]

use std::any::Any;
use std::sync::Arc;

use adverb_types::Qpn;
use adverb_verbs::{Cq, PostError, Qp, QpCaps, QpInit, QpModify, RecvWr, SendWr, Srq, VerbsError};
use parking_lot::RwLock;

use super::control::{Countdown, FULL, Operation, Plan};
use super::device::DeviceState;

/// What the user holds as a queue pair.
#[derive(Debug)]
pub(super) struct FaultQp {
    inner: Arc<dyn Qp>,
    state: Arc<QpState>,
    // Let go after `Drop` destroyed the inner queue pair: their owners take it from the counts that it is gone.
    _send_cq: Arc<dyn Cq>,
    _recv_cq: Arc<dyn Cq>,
    _srq: Option<Arc<dyn Srq>>,
}

/// A queue pair as [`super::Faults`] reaches it.
#[derive(Debug)]
pub(super) struct QpState {
    qpn: Qpn,
    device: Arc<str>,
    plan: Arc<Plan>,
    /// `None` once its owner let go of it: then no fault may keep it alive.
    inner: RwLock<Option<Arc<dyn Qp>>>,
}

impl QpState {
    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Moves it to ERR. Whether it did.
    pub(super) fn kill(&self) -> bool {
        let inner = self.inner.read();
        let killed = inner.as_ref().is_some_and(|qp| qp.modify(&QpModify::Err).is_ok());
        if killed {
            self.plan.count();
        }
        killed
    }
}

impl FaultQp {
    pub(super) fn new(inner: Arc<dyn Qp>, device: &DeviceState, init: &QpInit<'_>) -> Self {
        let state = Arc::new(QpState {
            qpn: inner.qpn(),
            device: device.name(),
            plan: Arc::clone(&device.plan),
            inner: RwLock::new(Some(Arc::clone(&inner))),
        });
        state.plan.add_qp(&state);
        Self {
            inner,
            state,
            _send_cq: Arc::clone(init.send_cq),
            _recv_cq: Arc::clone(init.recv_cq),
            _srq: init.srq.cloned(),
        }
    }
}

impl Drop for FaultQp {
    fn drop(&mut self) {
        // Waits for a fault that is at it.
        *self.state.inner.write() = None;
    }
}

// SAFETY: all that touches memory is done by the inner queue pair, which keeps the promises, and is destroyed with this one.
unsafe impl Qp for FaultQp {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    fn caps(&self) -> QpCaps {
        self.inner.caps()
    }

    fn modify(&self, to: &QpModify) -> Result<(), VerbsError> {
        self.state.plan.check(Operation::ModifyQp, &self.state.device)?;
        self.inner.modify(to)
    }

    fn state(&self) -> Result<adverb_verbs::QpState, VerbsError> {
        self.inner.state()
    }

    unsafe fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let (sends, device) = (&self.state.plan.sends, &self.state.device);
        in_part("ibv_post_send", device, &self.state.plan, sends, wrs, |wrs| {
            // SAFETY: what the caller promises is what the inner queue pair asks for.
            unsafe { self.inner.post_send(wrs) }
        })
    }

    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let (recvs, device) = (&self.state.plan.recvs, &self.state.device);
        in_part("ibv_post_recv", device, &self.state.plan, recvs, wrs, |wrs| {
            // SAFETY: what the caller promises is what the inner queue pair asks for.
            unsafe { self.inner.post_recv(wrs) }
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the user holds as a shared receive queue.
#[derive(Debug)]
pub(super) struct FaultSrq {
    pub(super) device: Arc<DeviceState>,
    pub(super) name: Arc<str>,
    pub(super) inner: Arc<dyn Srq>,
}

// SAFETY: all that touches memory is done by the inner queue, which keeps the promises. Inner queue pairs hold it only as long
// as the outer ones hold this one.
unsafe impl Srq for FaultSrq {
    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let plan = &self.device.plan;
        in_part("ibv_post_srq_recv", &self.name, plan, &plan.recvs, wrs, |wrs| {
            // SAFETY: what the caller promises is what the inner queue asks for.
            unsafe { self.inner.post_recv(wrs) }
        })
    }

    fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        self.inner.set_limit(limit)
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Posts what `countdown` lets pass, and refuses the rest.
fn in_part<T>(
    operation: &'static str,
    device: &Arc<str>,
    plan: &Plan,
    countdown: &Countdown,
    wrs: &[T],
    post: impl FnOnce(&[T]) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let Some(accepted) = countdown.pass(wrs.len()) else {
        return post(wrs);
    };
    if accepted > 0 {
        post(&wrs[..accepted])?;
    }
    plan.count();
    Err(PostError {
        accepted,
        source: VerbsError::new(operation, Arc::clone(device), FULL),
    })
}
