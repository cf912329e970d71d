//! Queue pairs and shared receive queues.

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use adverb_verbs::{
    Cq, ErrorKind, PostError, Qp, QpCaps, QpInit, QpModify, QpState, Qpn, RecvWr, SendWr, Srq, SrqInit,
    VerbsError,
};

use crate::cq::IbCq;
use crate::pd::PdInner;
use crate::{convert, sys};

/// Work requests linked on the stack for one call.
const BATCH: usize = 16;

/// Scatter/gather elements of them all.
const BATCH_SGES: usize = 64;

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
        post_receives(wrs, post, |error| {
            self.pd.context().error("ibv_post_srq_recv", &error)
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
            tracing::error!(%error, "ibv_destroy_srq failed");
        }
    }
}

/// An RC queue pair.
pub(crate) struct IbQp {
    raw: NonNull<sys::ibv_qp>,
    qpn: Qpn,
    caps: QpCaps,
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
        let (mut attr, mask) = convert::qp_modify(to);
        // SAFETY: `self` holds the queue pair.
        let modified = unsafe { sys::modify_qp(self.raw, &mut attr, mask) };
        modified.map_err(|error| self.pd.context().error("ibv_modify_qp", &error))
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
        let mut accepted = 0;
        let mut rest = wrs;
        while !rest.is_empty() {
            let mut sges = [sys::zeroed::<sys::ibv_sge>(); BATCH_SGES];
            let mut list = [sys::zeroed::<sys::ibv_send_wr>(); BATCH];
            let n = fitting(rest.iter().map(|wr| wr.sges.len()));
            if n == 0 {
                return Err(self.too_many_sges(accepted, rest[0].sges.len()));
            }
            let mut used = 0;
            for (wr, raw) in rest[..n].iter().zip(&mut list) {
                let place = &mut sges[used..used + wr.sges.len()];
                used += wr.sges.len();
                convert::sges(wr.sges, place);
                convert::send_wr(wr, place, raw);
            }
            link(&mut list[..n], |wr, next| wr.next = next);
            let first = list.as_mut_ptr();
            // SAFETY: `self` holds the queue pair; the list is linked and the caller keeps the requests' memory.
            if let Err((error, bad)) = unsafe { sys::post_send(self.raw, first) } {
                accepted += place_of(bad, first, n);
                return Err(PostError {
                    accepted,
                    source: self.pd.context().error("ibv_post_send", &error),
                });
            }
            accepted += n;
            rest = &rest[n..];
        }
        Ok(())
    }

    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: `self` holds the queue pair; the caller keeps the requests' memory.
        let post = |first| unsafe { sys::post_recv(self.raw, first) };
        post_receives(wrs, post, |error| {
            self.pd.context().error("ibv_post_recv", &error)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl IbQp {
    fn too_many_sges(&self, accepted: usize, value: usize) -> PostError {
        let kind = ErrorKind::OutOfRange {
            what: "count of scatter/gather elements",
            value: value as u64,
            limit: BATCH_SGES as u64 + 1,
        };
        PostError {
            accepted,
            source: self.pd.context().refuse("ibv_post_send", kind),
        }
    }
}

impl Drop for IbQp {
    fn drop(&mut self) {
        // SAFETY: this is the last handle.
        if let Err(error) = unsafe { sys::destroy_qp(self.raw) } {
            tracing::error!(%error, "ibv_destroy_qp failed: the queue pair and its queues are leaked");
            // The device may still use them.
            std::mem::forget((
                self.srq.clone(),
                Arc::clone(&self._send_cq),
                Arc::clone(&self._recv_cq),
                Arc::clone(&self.pd),
            ));
        }
    }
}

/// Posts receives in batches, with `post` for each linked list.
fn post_receives(
    wrs: &[RecvWr<'_>],
    post: impl Fn(*mut sys::ibv_recv_wr) -> Result<(), (std::io::Error, *mut sys::ibv_recv_wr)>,
    error_of: impl Fn(std::io::Error) -> VerbsError,
) -> Result<(), PostError> {
    let mut accepted = 0;
    let mut rest = wrs;
    while !rest.is_empty() {
        let mut sges = [sys::zeroed::<sys::ibv_sge>(); BATCH_SGES];
        let mut list = [sys::zeroed::<sys::ibv_recv_wr>(); BATCH];
        let n = fitting(rest.iter().map(|wr| wr.sges.len()));
        if n == 0 {
            let error = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            return Err(PostError {
                accepted,
                source: error_of(error),
            });
        }
        let mut used = 0;
        for (wr, raw) in rest[..n].iter().zip(&mut list) {
            let place = &mut sges[used..used + wr.sges.len()];
            used += wr.sges.len();
            convert::sges(wr.sges, place);
            raw.wr_id = wr.wr_id;
            raw.sg_list = place.as_mut_ptr();
            raw.num_sge = place.len() as i32;
        }
        link(&mut list[..n], |wr, next| wr.next = next);
        let first = list.as_mut_ptr();
        if let Err((error, bad)) = post(first) {
            accepted += place_of(bad, first, n);
            return Err(PostError {
                accepted,
                source: error_of(error),
            });
        }
        accepted += n;
        rest = &rest[n..];
    }
    Ok(())
}

/// How many requests, of these numbers of elements, fit one batch.
fn fitting(sges: impl Iterator<Item = usize>) -> usize {
    let mut left = BATCH_SGES;
    sges.take(BATCH)
        .take_while(|n| match left.checked_sub(*n) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
        .count()
}

/// Links a list, whose last element's pointer stays null.
fn link<T>(list: &mut [T], set_next: impl Fn(&mut T, *mut T)) {
    let first = list.as_mut_ptr();
    for (i, wr) in list.iter_mut().enumerate().rev().skip(1) {
        set_next(wr, first.wrapping_add(i + 1));
    }
}

/// How many requests lie before the one that was refused; none if the provider did not say which.
fn place_of<T>(bad: *const T, first: *const T, n: usize) -> usize {
    (0..n).find(|i| ptr::eq(bad, first.wrapping_add(*i))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_where_requests_or_elements_do() {
        assert_eq!(fitting([1; 100].into_iter()), BATCH);
        assert_eq!(fitting([30, 30, 4, 1].into_iter()), 3);
        assert_eq!(fitting([65].into_iter()), 0);
        assert_eq!(fitting([].into_iter()), 0);
    }

    #[test]
    fn lists_are_linked_to_the_end() {
        let mut list = [sys::zeroed::<sys::ibv_recv_wr>(); 3];
        let first = list.as_mut_ptr();
        link(&mut list, |wr, next| wr.next = next);
        assert_eq!(
            list.map(|wr| wr.next),
            [first.wrapping_add(1), first.wrapping_add(2), ptr::null_mut()]
        );
        assert_eq!(place_of(first.wrapping_add(2), first, 3), 2);
        assert_eq!(place_of(ptr::null(), first, 3), 0);
    }
}
