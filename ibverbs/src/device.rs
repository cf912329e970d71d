//! An opened device.

use std::any::Any;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_verbs::{
    AsyncEvent, AsyncEventKind, CompChannel, Cq, CqInit, Device, DeviceAttr, DeviceInfo, ErrorKind,
    EventSource, GidEntry, Pd, PortAttr, Qpn, VerbsError,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::cq::{Channel, IbCq};
use crate::pd::IbPd;
use crate::{convert, provider, sys};

/// Room for the GIDs of all ports. The kernel takes no larger buffer than 64 KiB, at 32 bytes each.
const MAX_GIDS: usize = 2047;

/// An opened device, as users hold it.
#[derive(Clone, Debug)]
pub(crate) struct IbDevice {
    context: Arc<Context>,
}

/// The context of libibverbs, closed when the last object made from it is gone.
pub(crate) struct Context {
    raw: NonNull<sys::ibv_context>,
    info: DeviceInfo,
    attr: DeviceAttr,
    num_comp_vectors: u32,
}

// SAFETY: libibverbs' contexts may be used by all threads at once (it locks where it has to); the rest is not changed.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl IbDevice {
    pub(crate) fn new(raw: NonNull<sys::ibv_context>, info: DeviceInfo) -> Result<Self, VerbsError> {
        // Made first, so that the context is closed whatever fails below.
        let mut context = Context {
            raw,
            attr: convert::no_device_attr(),
            num_comp_vectors: 0,
            info,
        };
        // SAFETY: `raw` is a context that was opened just now and belongs to `context`.
        let attr = unsafe { sys::query_device(raw) };
        context.attr =
            convert::device_attr(&attr.map_err(|error| context.error("ibv_query_device", &error))?);
        // SAFETY: as above.
        context.num_comp_vectors = unsafe { sys::num_comp_vectors(raw) };
        // SAFETY: as above; the descriptor lives as long as the context.
        let fd = unsafe { sys::async_fd(raw) };
        context.set_nonblocking(fd)?;
        Ok(Self {
            context: Arc::new(context),
        })
    }

    pub(crate) fn of(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }
}

impl Context {
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_context> {
        self.raw
    }

    pub(crate) fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// An error of the system in `operation`.
    pub(crate) fn error(&self, operation: &'static str, error: &io::Error) -> VerbsError {
        VerbsError::os(operation, self.info.name.as_str(), error)
    }

    /// An error of ours in `operation`.
    pub(crate) fn refuse(&self, operation: &'static str, kind: ErrorKind) -> VerbsError {
        VerbsError::new(operation, self.info.name.as_str(), kind)
    }

    pub(crate) fn set_nonblocking(&self, fd: RawFd) -> Result<(), VerbsError> {
        // SAFETY: the callers give a descriptor of an object that they hold.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
        set.map_err(|errno| self.refuse("fcntl", ErrorKind::Os(errno.raw_os_error())))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.info.name).finish()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made from the context holds it, so nothing is left that uses it.
        if let Err(error) = unsafe { sys::close_device(self.raw) } {
            tracing::error!(device = self.info.name, %error, "ibv_close_device failed");
        }
    }
}

/// Says that an object could not be destroyed, and keeps for ever what it stands on, as the device may still use it.
pub(crate) fn leak<T>(verb: &'static str, error: &io::Error, parents: T) {
    tracing::error!(%error, "{verb} failed: the object and what it stands on are leaked");
    mem::forget(parents);
}

// SAFETY: objects hold the context; memory is reached only through registrations and work requests.
unsafe impl Device for IbDevice {
    fn info(&self) -> &DeviceInfo {
        &self.context.info
    }

    fn provider(&self) -> &'static str {
        provider::NAME
    }

    fn attr(&self) -> &DeviceAttr {
        &self.context.attr
    }

    fn num_comp_vectors(&self) -> u32 {
        self.context.num_comp_vectors
    }

    fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        // SAFETY: `self.context` holds the context open.
        let attr = unsafe { sys::query_port(self.context.raw, port) };
        let attr = attr.map_err(|error| self.context.error("ibv_query_port", &error))?;
        convert::port_attr(&attr).ok_or_else(|| {
            self.context.refuse(
                "ibv_query_port",
                ErrorKind::Unsupported("an MTU that is none of enum ibv_mtu"),
            )
        })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let ports = self.context.attr.phys_port_cnt;
        if port == 0 || port > ports {
            let kind = ErrorKind::OutOfRange {
                what: "port",
                value: port.into(),
                limit: u64::from(ports) + 1,
            };
            return Err(self.context.refuse("ibv_query_gid_table", kind));
        }
        // SAFETY: `self.context` holds the context open.
        let entries = unsafe { sys::query_gid_table(self.context.raw, MAX_GIDS) };
        let entries = entries.map_err(|error| self.context.error("ibv_query_gid_table", &error))?;
        let mut table: Vec<_> = entries
            .iter()
            .filter(|entry| entry.port_num == u32::from(port))
            .filter_map(convert::gid_entry)
            .collect();
        table.sort_by_key(|entry| entry.index);
        Ok(table)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>, VerbsError> {
        Ok(Arc::new(IbPd::new(&self.context)?))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>, VerbsError> {
        Ok(Arc::new(Channel::new(&self.context)?))
    }

    fn create_cq(&self, init: &CqInit<'_>) -> Result<Arc<dyn Cq>, VerbsError> {
        let limits = [
            ("comp_vector", init.comp_vector, self.context.num_comp_vectors),
            ("cqe", init.cqe, self.context.attr.max_cqe.saturating_add(1)),
        ];
        for (what, value, limit) in limits {
            if value >= limit {
                let kind = ErrorKind::OutOfRange {
                    what,
                    value: value.into(),
                    limit: limit.into(),
                };
                return Err(self.context.refuse("ibv_create_cq", kind));
            }
        }
        Ok(Arc::new(IbCq::new(&self.context, init)?))
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self.context` holds the context open.
        let fd = unsafe { sys::async_fd(self.context.raw) };
        // SAFETY: the descriptor lives as long as the context, which `self` holds.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        // SAFETY: `self.context` holds the context open. The copy below reads cookies while their objects cannot be destroyed.
        let event = unsafe {
            sys::take_async_event(self.context.raw, |event| AsyncEvent {
                kind: AsyncEventKind::from_code(event.kind),
                source: match event.element {
                    sys::RawElement::Qp(number) => EventSource::Qp(Qpn::truncating(number)),
                    sys::RawElement::Cq(context) => EventSource::Cq(crate::cq::cookie_of(context)),
                    sys::RawElement::Srq(context) => EventSource::Srq(context.addr() as u64),
                    sys::RawElement::Port(port) => EventSource::Port(u8::try_from(port).unwrap_or(0)),
                    sys::RawElement::Device => EventSource::Device,
                    sys::RawElement::Other => EventSource::Other,
                },
            })
        };
        event.map_err(|error| self.context.error("ibv_get_async_event", &error))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
