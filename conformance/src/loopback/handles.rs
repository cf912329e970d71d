//! The verbs traits on the objects of the loopback device: checks of handles, and nothing else.

#![allow(
    unsafe_code,
    reason = "the verbs traits are unsafe to implement, because a device accesses memory by address"
)]

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use adverb_types::{Lkey, Qpn, Rkey};
use adverb_verbs::{
    Access, AsyncEvent, CompChannel, CompEvent, Cq, CqInit, Device, DeviceAttr, DeviceInfo, ErrorKind,
    GidEntry, Mr, Pd, PortAttr, PostError, Provider, Qp, QpCaps, QpInit, QpModify, QpState, RecvWr,
    SendFlags, SendWr, Srq, SrqInit, VerbsError, WorkCompletion,
};
use rustix::io::Errno;

use super::context::Context;
use super::cq::{Channel, CqCore};
use super::memory::{Keys, Posted};
use super::qp::{Parts, QpCore, Request};
use super::srq::{Receive, SrqCore};
use super::{Loopback, PROVIDER};

// SAFETY: the objects below keep the traits' promises, each for the reason given at it.
unsafe impl Provider for Loopback {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        Ok(self.fabric().infos())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        Ok(Arc::new(LoopDevice(self.fabric().open(name)?)))
    }
}

#[derive(Debug)]
struct LoopDevice(Arc<Context>);

// SAFETY: what is made from it copies only between memory that `Memory` finds registered, with the right, in the domain.
unsafe impl Device for LoopDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    fn num_comp_vectors(&self) -> u32 {
        self.0.fabric.config.num_comp_vectors
    }

    fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.0.port(port)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.0.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>, VerbsError> {
        Ok(Arc::new(LoopPd {
            context: Arc::clone(&self.0),
            id: self.0.fabric.new_pd(),
        }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>, VerbsError> {
        let channel = Channel::new().map_err(|errno| self.0.os("ibv_create_comp_channel", errno))?;
        Ok(Arc::new(LoopChannel {
            context: Arc::clone(&self.0),
            channel: Arc::new(channel),
        }))
    }

    fn create_cq(&self, init: &CqInit<'_>) -> Result<Arc<dyn Cq>, VerbsError> {
        const OPERATION: &str = "ibv_create_cq";
        let refuse = |kind| Err(self.0.error(OPERATION, kind));
        let limits = [
            ("comp_vector", init.comp_vector, self.num_comp_vectors()),
            ("cqe", init.cqe, self.0.attr.max_cqe + 1),
        ];
        for (what, value, limit) in limits {
            if value >= limit {
                let (value, limit) = (value.into(), limit.into());
                return refuse(ErrorKind::OutOfRange { what, value, limit });
            }
        }
        if init.cqe == 0 {
            return Err(self.0.os(OPERATION, Errno::INVAL));
        }
        let channel = match init.channel {
            None => None,
            Some(handle) => match handle.as_any().downcast_ref::<LoopChannel>() {
                Some(ours) if Arc::ptr_eq(&ours.context, &self.0) => Some(Arc::clone(&ours.channel)),
                _ => return refuse(ErrorKind::WrongProvider),
            },
        };
        Ok(Arc::new(LoopCq {
            core: CqCore::new(Arc::clone(&self.0), init.cqe, init.cookie, channel),
            _channel: init.channel.cloned(),
        }))
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }

    fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        Ok(self.0.events.pop())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct LoopPd {
    context: Arc<Context>,
    id: u32,
}

// SAFETY: as for `LoopDevice`.
unsafe impl Pd for LoopPd {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(LoopDevice(Arc::clone(&self.context)))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Mr>, VerbsError> {
        const OPERATION: &str = "ibv_reg_mr";
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let lacks_local = access.intersects(writes) && !access.contains(Access::LOCAL_WRITE);
        if len == 0 || addr.is_null() || addr.addr().checked_add(len).is_none() || lacks_local {
            return Err(self.context.os(OPERATION, Errno::INVAL));
        }
        // SAFETY: what the caller promises is what `Memory::register` asks for.
        let keys = unsafe { self.context.fabric.memory.register(self.id, addr, len, access) };
        Ok(Box::new(LoopMr {
            context: Arc::clone(&self.context),
            keys: keys.ok_or_else(|| self.context.os(OPERATION, Errno::NOMEM))?,
        }))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn Srq>, VerbsError> {
        const OPERATION: &str = "ibv_create_srq";
        let attr = &self.context.attr;
        if attr.max_srq == 0 {
            let kind = ErrorKind::Unsupported("shared receive queue");
            return Err(self.context.error(OPERATION, kind));
        }
        if init.max_wr == 0 || init.max_wr > attr.max_srq_wr || init.max_sge > attr.max_srq_sge {
            return Err(self.context.os(OPERATION, Errno::INVAL));
        }
        let context = Arc::clone(&self.context);
        Ok(Arc::new(LoopSrq(SrqCore::new(
            context,
            init.max_wr,
            init.max_sge,
            init.cookie,
        ))))
    }

    fn create_qp(&self, init: &QpInit<'_>) -> Result<Arc<dyn Qp>, VerbsError> {
        const OPERATION: &str = "ibv_create_qp";
        let foreign = || self.context.error(OPERATION, ErrorKind::WrongProvider);
        let own = |context: &Arc<Context>| Arc::ptr_eq(context, &self.context);
        let cq = |handle: &Arc<dyn Cq>| {
            let ours = handle.as_any().downcast_ref::<LoopCq>();
            ours.filter(|cq| own(&cq.core.context))
                .map(|cq| Arc::clone(&cq.core))
        };
        let send_cq = cq(init.send_cq).ok_or_else(foreign)?;
        let recv_cq = cq(init.recv_cq).ok_or_else(foreign)?;
        let srq = match init.srq {
            None => None,
            Some(handle) => match handle.as_any().downcast_ref::<LoopSrq>() {
                Some(ours) if own(&ours.0.context) => Some(Arc::clone(&ours.0)),
                _ => return Err(foreign()),
            },
        };
        let (attr, config) = (&self.context.attr, &self.context.fabric.config);
        let mut caps = init.caps;
        if srq.is_some() {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        let fits = caps.max_send_wr.max(caps.max_recv_wr) <= attr.max_qp_wr
            && caps.max_send_sge.max(caps.max_recv_sge) <= attr.max_sge
            && caps.max_inline_data <= config.max_inline;
        if !fits {
            return Err(self.context.os(OPERATION, Errno::INVAL));
        }
        let core = self.context.fabric.add_qp(|qpn| {
            QpCore::new(Parts {
                qpn,
                pd: self.id,
                context: Arc::clone(&self.context),
                caps,
                send_cq,
                recv_cq,
                srq,
                sq_sig_all: init.sq_sig_all,
            })
        });
        Ok(Arc::new(LoopQp {
            core: core.ok_or_else(|| self.context.os(OPERATION, Errno::NOMEM))?,
            _send_cq: Arc::clone(init.send_cq),
            _recv_cq: Arc::clone(init.recv_cq),
            _srq: init.srq.cloned(),
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct LoopMr {
    context: Arc<Context>,
    keys: Keys,
}

// SAFETY: copies look keys up and copy under the lock that `Memory::deregister` takes for writing.
unsafe impl Mr for LoopMr {
    fn lkey(&self) -> Lkey {
        self.keys.lkey()
    }

    fn rkey(&self) -> Rkey {
        self.keys.rkey()
    }

    fn deregister(&mut self) -> Result<(), VerbsError> {
        self.context.fabric.memory.deregister(self.keys);
        Ok(())
    }
}

impl Drop for LoopMr {
    fn drop(&mut self) {
        self.context.fabric.memory.deregister(self.keys);
    }
}

#[derive(Debug)]
struct LoopChannel {
    context: Arc<Context>,
    channel: Arc<Channel>,
}

// SAFETY: it touches no memory of its caller.
unsafe impl CompChannel for LoopChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError> {
        while let Some(cq) = self.channel.pop() {
            // A queue that is gone took its events with it, or is about to.
            if let Some(cq) = cq.upgrade() {
                cq.event_taken();
                return Ok(Some(CompEvent { cookie: cq.cookie }));
            }
        }
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct LoopCq {
    core: Arc<CqCore>,
    _channel: Option<Arc<dyn CompChannel>>,
}

// SAFETY: a completion is pushed after the copy that it tells of.
unsafe impl Cq for LoopCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        Ok(self.core.poll(out))
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.core.arm(solicited_only);
        Ok(())
    }

    fn unacked_events(&self) -> u32 {
        self.core.unacked()
    }

    fn ack_events(&self) {
        self.core.ack();
    }

    fn capacity(&self) -> u32 {
        self.core.capacity
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for LoopCq {
    fn drop(&mut self) {
        self.core.leave_channel();
    }
}

#[derive(Debug)]
struct LoopSrq(Arc<SrqCore>);

// SAFETY: only queue pairs write into its receives; they hold the handle, and let go of it once they were destroyed.
unsafe impl Srq for LoopSrq {
    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut result = Ok(());
        for (accepted, wr) in wrs.iter().enumerate() {
            // SAFETY: the caller promises it.
            let (sges, receive) = unsafe { receive(wr) };
            let refused = if sges > self.0.max_sge as usize {
                Some(Errno::INVAL)
            } else {
                (!self.0.push(receive)).then_some(Errno::NOMEM)
            };
            if let Some(errno) = refused {
                let source = self.0.context.os("ibv_post_srq_recv", errno);
                result = Err(PostError { accepted, source });
                break;
            }
        }
        self.0.wake_senders();
        result
    }

    fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        if self.0.set_limit(limit) {
            Ok(())
        } else {
            Err(self.0.context.os("ibv_modify_srq", Errno::INVAL))
        }
    }

    fn capacity(&self) -> u32 {
        self.0.capacity
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct LoopQp {
    core: Arc<QpCore>,
    // Let go after `Drop` destroyed the queue pair: their owners take it from the counts that it is gone.
    _send_cq: Arc<dyn Cq>,
    _recv_cq: Arc<dyn Cq>,
    _srq: Option<Arc<dyn Srq>>,
}

// SAFETY: it copies from and to the memory of its work requests under its locks, which `modify` to RESET and ERR and
// `destroy` take.
unsafe impl Qp for LoopQp {
    fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    fn caps(&self) -> QpCaps {
        self.core.caps
    }

    fn modify(&self, to: &QpModify) -> Result<(), VerbsError> {
        self.core
            .modify(to)
            .map_err(|errno| self.core.context.os("ibv_modify_qp", errno))
    }

    fn state(&self) -> Result<QpState, VerbsError> {
        Ok(self.core.state())
    }

    unsafe fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let requests = wrs.iter().map(|wr| Request {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            // SAFETY: the caller promises it; what is posted inline is copied before this call returns.
            data: unsafe { Posted::new(wr.sges, wr.flags.contains(SendFlags::INLINE)) },
        });
        self.core
            .post_send(requests)
            .map_err(|(accepted, errno)| PostError {
                accepted,
                source: self.core.context.os("ibv_post_send", errno),
            })
    }

    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller promises it.
        let receives = wrs.iter().map(|wr| unsafe { receive(wr) });
        self.core
            .post_recv(receives)
            .map_err(|(accepted, errno)| PostError {
                accepted,
                source: self.core.context.os("ibv_post_recv", errno),
            })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for LoopQp {
    fn drop(&mut self) {
        self.core.destroy();
    }
}

/// A receive as it is kept, and how many elements it was posted with.
///
/// # Safety
/// As for [`Qp::post_recv`].
unsafe fn receive(wr: &RecvWr<'_>) -> (usize, Receive) {
    // SAFETY: what the caller promises is what `Posted::new` asks for.
    let posted = unsafe { Posted::new(wr.sges, false) };
    let receive = Receive {
        wr_id: wr.wr_id,
        held: posted.hold(),
    };
    (posted.count(), receive)
}
