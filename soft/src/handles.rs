//! The verbs traits on the objects of the device: checks of handles and sizes, and nothing else.

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
    GidEntry, Mr, Pd, PortAttr, PostError, Qp, QpCaps, QpInit, QpModify, QpState, RecvWr, SendWr, Srq,
    SrqInit, VerbsError, WorkCompletion,
};
use rustix::io::Errno;

use crate::channel::{Channel, next_event};
use crate::cq::CqCore;
use crate::device::{Context, SoftDevice};
use crate::memory::{Keys, inline_data};
use crate::provider::PROVIDER;
use crate::qp::{Parts, QpCore, receive};
use crate::srq::SrqCore;

// SAFETY: what is made from it copies only from and to memory that `Memory` finds registered, with the right, in the domain.
unsafe impl Device for SoftDevice {
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
        self.0.config.num_comp_vectors
    }

    fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.0.port(port)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.0.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>, VerbsError> {
        Ok(Arc::new(SoftPd {
            context: Arc::clone(&self.0),
            id: self.0.new_pd(),
        }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>, VerbsError> {
        let channel = Channel::new().map_err(|errno| self.0.os("ibv_create_comp_channel", errno))?;
        Ok(Arc::new(SoftChannel {
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
            Some(handle) => match handle.as_any().downcast_ref::<SoftChannel>() {
                Some(ours) if Arc::ptr_eq(&ours.context, &self.0) => Some(Arc::clone(&ours.channel)),
                _ => return refuse(ErrorKind::WrongProvider),
            },
        };
        let errors_wake = self.0.config.errors_wake_solicited;
        Ok(Arc::new(SoftCq {
            core: CqCore::new(init.cqe, init.cookie, channel, errors_wake),
            context: Arc::clone(&self.0),
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
struct SoftPd {
    context: Arc<Context>,
    id: u32,
}

// SAFETY: as for `SoftDevice`.
unsafe impl Pd for SoftPd {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(SoftDevice(Arc::clone(&self.context)))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Mr>, VerbsError> {
        const OPERATION: &str = "ibv_reg_mr";
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let lacks_local = access.intersects(writes) && !access.contains(Access::LOCAL_WRITE);
        if len == 0 || addr.is_null() || addr.addr().checked_add(len).is_none() || lacks_local {
            return Err(self.context.os(OPERATION, Errno::INVAL));
        }
        // SAFETY: what the caller promises is what `Memory::register` asks for.
        let keys = unsafe { self.context.memory.register(self.id, addr, len, access) };
        Ok(Box::new(SoftMr {
            context: Arc::clone(&self.context),
            keys: keys.map_err(|errno| self.context.os(OPERATION, errno))?,
            registered: true,
            told: false,
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
        Ok(Arc::new(SoftSrq {
            core: self.context.add_srq(init),
            context: Arc::clone(&self.context),
        }))
    }

    fn create_qp(&self, init: &QpInit<'_>) -> Result<Arc<dyn Qp>, VerbsError> {
        const OPERATION: &str = "ibv_create_qp";
        let foreign = || self.context.error(OPERATION, ErrorKind::WrongProvider);
        let own = |context: &Arc<Context>| Arc::ptr_eq(context, &self.context);
        let cq = |handle: &Arc<dyn Cq>| {
            let ours = handle.as_any().downcast_ref::<SoftCq>();
            ours.filter(|cq| own(&cq.context)).map(|cq| Arc::clone(&cq.core))
        };
        let send_cq = cq(init.send_cq).ok_or_else(foreign)?;
        let recv_cq = cq(init.recv_cq).ok_or_else(foreign)?;
        let srq = match init.srq {
            None => None,
            Some(handle) => match handle.as_any().downcast_ref::<SoftSrq>() {
                Some(ours) if own(&ours.context) => Some(Arc::clone(&ours.core)),
                _ => return Err(foreign()),
            },
        };
        let attr = &self.context.attr;
        let mut caps = init.caps;
        if srq.is_some() {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        let fits = caps.max_send_wr.max(caps.max_recv_wr) <= attr.max_qp_wr
            && caps.max_send_sge.max(caps.max_recv_sge) <= attr.max_sge
            && caps.max_inline_data <= self.context.config.max_inline;
        if !fits {
            return Err(self.context.os(OPERATION, Errno::INVAL));
        }
        let core = self.context.add_qp(Parts {
            pd: self.id,
            caps,
            send_cq,
            recv_cq,
            srq,
            sq_sig_all: init.sq_sig_all,
        });
        Ok(Arc::new(SoftQp {
            core: core.map_err(|errno| self.context.os(OPERATION, errno))?,
            context: Arc::clone(&self.context),
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
struct SoftMr {
    context: Arc<Context>,
    keys: Keys,
    registered: bool,
    /// Whether it was logged that the end was refused.
    told: bool,
}

// SAFETY: copies look keys up and copy under the lock that `Memory::deregister` takes for writing.
unsafe impl Mr for SoftMr {
    fn lkey(&self) -> Lkey {
        self.keys.lkey
    }

    fn rkey(&self) -> Rkey {
        self.keys.rkey
    }

    fn deregister(&mut self) -> Result<(), VerbsError> {
        if self.registered {
            self.context.deregister(self.keys).inspect_err(|error| {
                if !std::mem::replace(&mut self.told, true) {
                    tracing::error!(%error, "a memory region that is in use was to be deregistered");
                }
            })?;
            self.registered = false;
        }
        Ok(())
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        // Refused, it stays registered until the device is closed, so that what names it ends as it should. That is logged.
        let _ = self.deregister();
    }
}

#[derive(Debug)]
struct SoftChannel {
    context: Arc<Context>,
    channel: Arc<Channel>,
}

// SAFETY: it touches no memory of its caller.
unsafe impl CompChannel for SoftChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError> {
        Ok(next_event(&self.channel).map(|cookie| CompEvent { cookie }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct SoftCq {
    core: Arc<CqCore>,
    context: Arc<Context>,
    _channel: Option<Arc<dyn CompChannel>>,
}

// SAFETY: a completion is pushed after the last copy of its request.
unsafe impl Cq for SoftCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let n = self.core.take(out);
        if n > 0 || out.is_empty() {
            // Who polls is to be left to it also where the device's thread was faster each time.
            self.context.attention.polled(0);
            return Ok(n);
        }
        self.context.poll();
        Ok(self.core.take(out))
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.core.arm(solicited_only);
        self.context.attention.armed();
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

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.core.leave_channel();
    }
}

#[derive(Debug)]
struct SoftSrq {
    core: Arc<SrqCore>,
    context: Arc<Context>,
}

// SAFETY: only queue pairs write into its receives; they hold the handle, and let go of it once they were destroyed.
unsafe impl Srq for SoftSrq {
    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            let receive = receive(wr, self.core.max_sge).ok_or(Errno::INVAL);
            let posted = receive.and_then(|receive| match self.core.push(receive) {
                true => Ok(()),
                false => Err(Errno::NOMEM),
            });
            posted.map_err(|errno| PostError {
                accepted,
                source: self.context.os("ibv_post_srq_recv", errno),
            })?;
        }
        Ok(())
    }

    fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        if self.core.set_limit(limit, &self.context.events) {
            Ok(())
        } else {
            Err(self.context.os("ibv_modify_srq", Errno::INVAL))
        }
    }

    fn capacity(&self) -> u32 {
        self.core.capacity
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        self.core.destroy();
    }
}

#[derive(Debug)]
struct SoftQp {
    core: Arc<QpCore>,
    context: Arc<Context>,
    // Let go after `Drop` destroyed the queue pair: their owners take it from the counts that it is gone.
    _send_cq: Arc<dyn Cq>,
    _recv_cq: Arc<dyn Cq>,
    _srq: Option<Arc<dyn Srq>>,
}

// SAFETY: it copies from and to the memory of its work requests under its lock, which `modify` to RESET and `destroy` take.
unsafe impl Qp for SoftQp {
    fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    fn caps(&self) -> QpCaps {
        self.core.caps
    }

    fn modify(&self, to: &QpModify) -> Result<(), VerbsError> {
        const OPERATION: &str = "ibv_modify_qp";
        if matches!(to, QpModify::Rtr(_)) {
            let started = self.context.keep();
            started.map_err(|error| VerbsError::os(OPERATION, self.context.info.name.as_str(), &error))?;
        }
        self.core
            .modify(&self.context, to)
            .map_err(|errno| self.context.os(OPERATION, errno))
    }

    fn state(&self) -> Result<QpState, VerbsError> {
        Ok(self.core.state())
    }

    unsafe fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller promises it, and this is called within the call.
        let inline = |wr: &SendWr<'_>, out: &mut Vec<u8>| unsafe { inline_data(wr, out) };
        self.core
            .post_send(&self.context, wrs, inline)
            .map_err(|(accepted, errno)| PostError {
                accepted,
                source: self.context.os("ibv_post_send", errno),
            })
    }

    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.core
            .post_recv(&self.context, wrs)
            .map_err(|(accepted, errno)| PostError {
                accepted,
                source: self.context.os("ibv_post_recv", errno),
            })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.core.destroy(&self.context);
    }
}
