//! Queue pairs and shared receive queues.

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use adverb_verbs::{
    Cq, ErrorKind, PostError, Qp, QpCaps, QpInit, QpModify, QpState, Qpn, RecvWr, SendWr, Srq, SrqInit,
    VerbsError,
};
use rustix::io::Errno;

use crate::cq::IbCq;
use crate::device::leak;
use crate::pd::PdInner;
use crate::wr_list::post_all;
use crate::{convert, sys};

/// A shared receive queue.
pub(crate) struct IbSrq {
    raw: NonNull<sys::ibv_srq>,
    capacity: u32,
    pd: Arc<PdInner>,
}

// SAFETY: libibverbs' queues lock themselves; the rest is not changed.
unsafe impl Send for IbSrq {}
// SAFETY: as above.
unsafe impl Sync for IbSrq {}

impl IbSrq {
    pub(crate) fn new(pd: &Arc<PdInner>, init: &SrqInit) -> Result<Self, VerbsError> {
        if pd.context().attr().max_srq == 0 {
            let kind = ErrorKind::Unsupported("a shared receive queue");
            return Err(pd.context().refuse("ibv_create_srq", kind));
        }
        // The cookie itself is the context, so that an event needs no memory to be looked at. 64 bits, as on every machine with RDMA.
        let context = ptr::without_provenance_mut(init.cookie as usize);
        // SAFETY: `pd` holds the domain.
        let created = unsafe { sys::create_srq(pd.raw(), init.max_wr, init.max_sge, context) };
        let (raw, capacity) = created.map_err(|error| pd.context().error("ibv_create_srq", &error))?;
        Ok(Self {
            raw,
            capacity,
            pd: Arc::clone(pd),
        })
    }
}

impl fmt::Debug for IbSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("pd", &self.pd)
            .field("capacity", &self.capacity)
            .finish()
    }
}

// SAFETY: the device writes only to what the caller posted.
unsafe impl Srq for IbSrq {
    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: `self` holds the queue; the caller keeps the requests' memory.
        let post = |first| unsafe { sys::post_srq_recv(self.raw, first) };
        post_all(wrs, post, |kind| {
            self.pd.context().refuse("ibv_post_srq_recv", kind)
        })
    }

    fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        // SAFETY: `self` holds the queue.
        let set = unsafe { sys::set_srq_limit(self.raw, limit) };
        set.map_err(|error| self.pd.context().error("ibv_modify_srq", &error))
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for IbSrq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queue, so none is left that uses it.
        if let Err(error) = unsafe { sys::destroy_srq(self.raw) } {
            leak("ibv_destroy_srq", &error, Arc::clone(&self.pd));
        }
    }
}

/// An RC queue pair.
pub(crate) struct IbQp {
    raw: NonNull<sys::ibv_qp>,
    qpn: Qpn,
    caps: QpCaps,
    /// A value of [`may_post`].
    may_post: AtomicU8,
    // The very handles that it was created with: their owners count them.
    srq: Option<Arc<dyn Srq>>,
    _send_cq: Arc<dyn Cq>,
    _recv_cq: Arc<dyn Cq>,
    pd: Arc<PdInner>,
}

// SAFETY: libibverbs' queue pairs lock themselves; the rest is not changed.
unsafe impl Send for IbQp {}
// SAFETY: as above.
unsafe impl Sync for IbQp {}

impl IbQp {
    pub(crate) fn new(pd: &Arc<PdInner>, init: &QpInit<'_>) -> Result<Self, VerbsError> {
        const VERB: &str = "ibv_create_qp";
        let context = pd.context();
        let foreign = || context.refuse(VERB, ErrorKind::WrongProvider);
        let send_cq = IbCq::raw_of(init.send_cq, context).ok_or_else(foreign)?;
        let recv_cq = IbCq::raw_of(init.recv_cq, context).ok_or_else(foreign)?;
        let srq = match init.srq {
            None => None,
            Some(srq) => match (**srq).as_any().downcast_ref::<IbSrq>() {
                Some(srq) if Arc::ptr_eq(srq.pd.context(), context) => Some(srq.raw),
                _ => return Err(foreign()),
            },
        };
        let queues = sys::QpQueues {
            send_cq,
            recv_cq,
            srq,
            sq_sig_all: init.sq_sig_all,
        };
        let mut cap = convert::qp_cap(&init.caps);
        // SAFETY: the domain and the queues are held, and will be as long as the queue pair.
        let created = unsafe { sys::create_qp(pd.raw(), queues, &mut cap) };
        let (raw, number) = created.map_err(|error| context.error(VERB, &error))?;
        Ok(Self {
            raw,
            qpn: Qpn::truncating(number),
            caps: convert::qp_caps(&cap),
            may_post: AtomicU8::new(may_post::NOTHING),
            srq: init.srq.cloned(),
            _send_cq: Arc::clone(init.send_cq),
            _recv_cq: Arc::clone(init.recv_cq),
            pd: Arc::clone(pd),
        })
    }
}

impl fmt::Debug for IbQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("pd", &self.pd)
            .field("qpn", &self.qpn)
            .finish_non_exhaustive()
    }
}

// SAFETY: the device touches only what the caller posted; a queue pair in RESET is quiet when `ibv_modify_qp` has returned.
unsafe impl Qp for IbQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    fn modify(&self, to: &QpModify) -> Result<(), VerbsError> {
        if let QpModify::Rtr(attr) = to
            && attr.ah.udp_port.is_some()
        {
            let kind = ErrorKind::Unsupported(
                "a UDP port other than RoCEv2's 4791, which the peer's software device has",
            );
            return Err(self.pd.context().refuse("ibv_modify_qp", kind));
        }
        let (mut attr, mask) = convert::qp_modify(to);
        // SAFETY: `self` holds the queue pair.
        let modified = unsafe { sys::modify_qp(self.raw, &mut attr, mask) };
        modified.map_err(|error| self.pd.context().error("ibv_modify_qp", &error))?;
        // Who posts while another thread moves the queue pair may meet either state; what C then refuses without saying where counts as
        // accepted, so that its memory stays where it is.
        self.may_post
            .store(may_post::in_state(to.state()), Ordering::Relaxed);
        Ok(())
    }

    fn state(&self) -> Result<QpState, VerbsError> {
        // SAFETY: `self` holds the queue pair.
        let state = unsafe { sys::query_qp_state(self.raw) };
        let state = state.map_err(|error| self.pd.context().error("ibv_query_qp", &error))?;
        let unknown = || {
            self.pd
                .context()
                .refuse("ibv_query_qp", ErrorKind::Unsupported("an unknown state"))
        };
        convert::qp_state(state).ok_or_else(unknown)
    }

    unsafe fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.may_post.load(Ordering::Relaxed) < may_post::ALL {
            return Err(self.not_now("ibv_post_send"));
        }
        // SAFETY: `self` holds the queue pair; the caller keeps the requests' memory.
        let post = |first| unsafe { sys::post_send(self.raw, first) };
        post_all(wrs, post, |kind| self.pd.context().refuse("ibv_post_send", kind))
    }

    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.srq.is_some() || self.may_post.load(Ordering::Relaxed) < may_post::RECEIVES {
            return Err(self.not_now("ibv_post_recv"));
        }
        // SAFETY: `self` holds the queue pair; the caller keeps the requests' memory.
        let post = |first| unsafe { sys::post_recv(self.raw, first) };
        post_all(wrs, post, |kind| self.pd.context().refuse("ibv_post_recv", kind))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl IbQp {
    /// What C says to a post that the queue pair's state does not permit.
    fn not_now(&self, verb: &'static str) -> PostError {
        let kind = ErrorKind::Os(Errno::INVAL.raw_os_error());
        PostError {
            accepted: 0,
            source: self.pd.context().refuse(verb, kind),
        }
    }
}

impl Drop for IbQp {
    fn drop(&mut self) {
        // SAFETY: this is the last handle.
        if let Err(error) = unsafe { sys::destroy_qp(self.raw) } {
            let queues = (
                self.srq.clone(),
                Arc::clone(&self._send_cq),
                Arc::clone(&self._recv_cq),
            );
            leak("ibv_destroy_qp", &error, (queues, Arc::clone(&self.pd)));
        }
    }
}

/// What may be posted to a queue pair, by its state (IBTA volume 1, section 10.3.1).
///
/// This is checked here, because providers do not do it in time: rxe's puts a send into the queue that it shares with the kernel, and then
/// learns that the kernel refuses it. When the queue pair gets to RTS the request is carried out after all, from memory that was given
/// back long since.
mod may_post {
    use adverb_verbs::QpState;

    pub(super) const NOTHING: u8 = 0;
    pub(super) const RECEIVES: u8 = 1;
    pub(super) const ALL: u8 = 2;

    pub(super) fn in_state(state: QpState) -> u8 {
        match state {
            QpState::Init | QpState::Rtr => RECEIVES,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => ALL,
            // RESET, and states that this crate does not move to.
            _ => NOTHING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_permit_what_the_specification_says() {
        for (state, permitted) in [
            (QpState::Reset, may_post::NOTHING),
            (QpState::Init, may_post::RECEIVES),
            (QpState::Rtr, may_post::RECEIVES),
            (QpState::Rts, may_post::ALL),
            (QpState::Sqd, may_post::ALL),
            (QpState::Err, may_post::ALL),
        ] {
            assert_eq!(may_post::in_state(state), permitted, "{state}");
        }
    }
}
