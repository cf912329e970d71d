//! The provider, its devices and protection domains.

#![allow(
    unsafe_code,
    reason = "the verbs traits are unsafe to implement; the promises are the inner provider's"
)]

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use adverb_verbs::{
    Access, AsyncEvent, Bell, CompChannel, Cq, CqInit, Device, DeviceAttr, DeviceInfo, ErrorKind, GidEntry,
    Mr, Pd, PortAttr, Provider, Qp, QpInit, Srq, SrqInit, VerbsError,
};
use rustix::event::epoll;
use rustix::io::Errno;

use super::control::{Faults, Operation, Plan};
use super::cq::{ChannelState, CqState, FaultChannel, FaultCq, listen};
use super::qp::{FaultQp, FaultSrq};

const PROVIDER: &str = "fault";

/// A provider that does what another does, and goes wrong on demand.
///
/// ```
/// use std::sync::Arc;
/// use adverb_conformance::{FaultProvider, Operation};
/// use adverb_soft::{SoftConfig, SoftProvider};
/// use adverb_verbs::{Access, Provider, Region};
///
/// let provider = FaultProvider::new(Arc::new(SoftProvider::new(SoftConfig::default().loopback(true))));
/// let pd = provider.open("soft0")?.alloc_pd()?;
/// provider.faults().fail(Operation::RegMr, 12, 1);
/// assert!(Region::new(&*pd, 4096, Access::LOCAL_WRITE).is_err());
/// assert!(Region::new(&*pd, 4096, Access::LOCAL_WRITE).is_ok());
/// # Ok::<(), adverb_verbs::VerbsError>(())
/// ```
#[derive(Debug)]
pub struct FaultProvider {
    inner: Arc<dyn Provider>,
    faults: Faults,
}

impl FaultProvider {
    /// Wraps `inner`, with no fault set.
    pub fn new(inner: Arc<dyn Provider>) -> Self {
        Self {
            inner,
            faults: Faults::default(),
        }
    }

    /// The control of everything made from this provider.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }
}

// SAFETY: all that touches memory is done by the inner provider, which keeps the promises.
unsafe impl Provider for FaultProvider {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        self.inner.devices()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        self.faults.plan.check(Operation::OpenDevice, name)?;
        wrap(self.inner.open(name)?, &self.faults)
    }
}

/// A device that does what `inner` does, with handles of its own, and goes wrong as `faults` says.
pub(crate) fn wrap(inner: Arc<dyn Device>, faults: &Faults) -> Result<Arc<dyn Device>, VerbsError> {
    let plan = Arc::clone(&faults.plan);
    let state = DeviceState::new(inner, plan)?;
    faults.plan.add_device(&state);
    Ok(Arc::new(FaultDevice(state)))
}

/// An opened device.
#[derive(Debug)]
pub(super) struct DeviceState {
    inner: Arc<dyn Device>,
    pub(super) plan: Arc<Plan>,
    /// Readable when the inner device has an event or one was injected.
    set: OwnedFd,
    injected: Bell<AsyncEvent>,
}

impl DeviceState {
    fn new(inner: Arc<dyn Device>, plan: Arc<Plan>) -> Result<Arc<Self>, VerbsError> {
        let failed = |errno| os("ibv_open_device", &inner.info().name, errno);
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let injected = Bell::new().map_err(failed)?;
        listen(&set, injected.as_fd()).map_err(failed)?;
        listen(&set, inner.async_fd()).map_err(failed)?;
        Ok(Arc::new(Self {
            inner,
            plan,
            set,
            injected,
        }))
    }

    /// Raises `event` if this is an opening of `device`.
    pub(super) fn inject(&self, device: &str, event: AsyncEvent) -> bool {
        let ours = self.inner.info().name == device;
        if ours {
            self.plan.count();
            self.injected.push(event);
        }
        ours
    }

    pub(super) fn name(&self) -> Arc<str> {
        self.inner.info().name.as_str().into()
    }

    fn check(&self, operation: Operation) -> Result<(), VerbsError> {
        self.plan.check(operation, &self.inner.info().name)
    }

    fn os(&self, operation: &'static str, errno: Errno) -> VerbsError {
        os(operation, &self.inner.info().name, errno)
    }

    fn foreign(&self, operation: &'static str) -> VerbsError {
        VerbsError::new(operation, self.name(), ErrorKind::WrongProvider)
    }
}

fn os(operation: &'static str, device: &str, errno: Errno) -> VerbsError {
    VerbsError::new(operation, device, ErrorKind::Os(errno.raw_os_error()))
}

#[derive(Debug)]
struct FaultDevice(Arc<DeviceState>);

// SAFETY: as for the provider.
unsafe impl Device for FaultDevice {
    fn info(&self) -> &DeviceInfo {
        self.0.inner.info()
    }

    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn attr(&self) -> &DeviceAttr {
        self.0.inner.attr()
    }

    fn num_comp_vectors(&self) -> u32 {
        self.0.inner.num_comp_vectors()
    }

    fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.0.inner.port(port)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.0.inner.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>, VerbsError> {
        self.0.check(Operation::AllocPd)?;
        Ok(Arc::new(FaultPd {
            device: Arc::clone(&self.0),
            inner: self.0.inner.alloc_pd()?,
        }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>, VerbsError> {
        self.0.check(Operation::CreateCompChannel)?;
        let state = ChannelState::new().map_err(|errno| self.0.os("ibv_create_comp_channel", errno))?;
        Ok(Arc::new(FaultChannel {
            device: Arc::clone(&self.0),
            state,
        }))
    }

    fn create_cq(&self, init: &CqInit<'_>) -> Result<Arc<dyn Cq>, VerbsError> {
        const OPERATION: &str = "ibv_create_cq";
        self.0.check(Operation::CreateCq)?;
        let outer = match init.channel {
            None => None,
            Some(handle) => match handle.as_any().downcast_ref::<FaultChannel>() {
                Some(ours) if Arc::ptr_eq(&ours.device, &self.0) => Some(Arc::clone(&ours.state)),
                _ => return Err(self.0.foreign(OPERATION)),
            },
        };
        let channel = match outer {
            None => None,
            Some(outer) => Some((self.0.inner.create_comp_channel()?, outer)),
        };
        let inner = self.0.inner.create_cq(&CqInit {
            cqe: init.cqe,
            channel: channel.as_ref().map(|(own, _)| own),
            comp_vector: init.comp_vector,
            cookie: init.cookie,
        })?;
        let state = CqState::new(inner, init.cookie, &self.0, channel)
            .map_err(|errno| self.0.os(OPERATION, errno))?;
        Ok(Arc::new(FaultCq {
            device: Arc::clone(&self.0),
            state,
            _channel: init.channel.cloned(),
        }))
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.set.as_fd()
    }

    fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        match self.0.injected.pop() {
            Some(event) => Ok(Some(event)),
            None => self.0.inner.next_async_event(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct FaultPd {
    device: Arc<DeviceState>,
    inner: Arc<dyn Pd>,
}

// SAFETY: as for the provider.
unsafe impl Pd for FaultPd {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(FaultDevice(Arc::clone(&self.device)))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Mr>, VerbsError> {
        self.device.check(Operation::RegMr)?;
        // SAFETY: what the caller promises is what the inner domain asks for.
        unsafe { self.inner.reg_mr(addr, len, access) }
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn Srq>, VerbsError> {
        self.device.check(Operation::CreateSrq)?;
        Ok(Arc::new(FaultSrq {
            device: Arc::clone(&self.device),
            name: self.device.name(),
            inner: self.inner.create_srq(init)?,
        }))
    }

    fn create_qp(&self, init: &QpInit<'_>) -> Result<Arc<dyn Qp>, VerbsError> {
        self.device.check(Operation::CreateQp)?;
        let foreign = || self.device.foreign("ibv_create_qp");
        let cq = |handle: &Arc<dyn Cq>| {
            let ours = handle.as_any().downcast_ref::<FaultCq>();
            ours.filter(|cq| Arc::ptr_eq(&cq.device, &self.device))
                .map(|cq| Arc::clone(cq.state.inner()))
                .ok_or_else(foreign)
        };
        let (send_cq, recv_cq) = (cq(init.send_cq)?, cq(init.recv_cq)?);
        let srq = match init.srq {
            None => None,
            Some(handle) => match handle.as_any().downcast_ref::<FaultSrq>() {
                Some(ours) if Arc::ptr_eq(&ours.device, &self.device) => Some(&ours.inner),
                _ => return Err(foreign()),
            },
        };
        let inner = self.inner.create_qp(&QpInit {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq,
            caps: init.caps,
            sq_sig_all: init.sq_sig_all,
        })?;
        Ok(Arc::new(FaultQp::new(inner, &self.device, init)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
