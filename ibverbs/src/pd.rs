//! Protection domains and memory regions.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_verbs::{Access, Device, Lkey, Mr, Pd, Qp, QpInit, Rkey, Srq, SrqInit, VerbsError};

use crate::device::{Context, IbDevice, leak};
use crate::qp::{IbQp, IbSrq};
use crate::sys;

/// A protection domain, as users hold it.
#[derive(Clone, Debug)]
pub(crate) struct IbPd {
    inner: Arc<PdInner>,
}

/// The domain of libibverbs, freed when the last object made from it is gone.
pub(crate) struct PdInner {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' domains may be used by all threads at once; the rest is not changed.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl IbPd {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: `context` holds the context open.
        let raw = unsafe { sys::alloc_pd(context.raw()) };
        let raw = raw.map_err(|error| context.error("ibv_alloc_pd", &error))?;
        Ok(Self {
            inner: Arc::new(PdInner {
                raw,
                context: Arc::clone(context),
            }),
        })
    }
}

impl PdInner {
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_pd> {
        self.raw
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl fmt::Debug for PdInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("context", &self.context).finish()
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: everything made from the domain holds it, so nothing is left that uses it.
        if let Err(error) = unsafe { sys::dealloc_pd(self.raw) } {
            leak("ibv_dealloc_pd", &error, Arc::clone(&self.context));
        }
    }
}

// SAFETY: regions, queues and queue pairs hold the domain; memory is reached only through registrations.
unsafe impl Pd for IbPd {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(IbDevice::of(&self.inner.context))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Mr>, VerbsError> {
        // SAFETY: `self` holds the domain; the caller keeps the memory until `deregister` succeeded.
        let raw = unsafe { sys::reg_mr(self.inner.raw, addr, len, access.bits()) };
        let raw = raw.map_err(|error| self.inner.context.error("ibv_reg_mr", &error))?;
        // SAFETY: the region was registered just now.
        let (lkey, rkey) = unsafe { sys::mr_keys(raw) };
        let (lkey, rkey) = (Lkey::new(lkey), Rkey::new(rkey));
        Ok(Box::new(IbMr {
            raw: Some(raw),
            lkey,
            rkey,
            pd: Arc::clone(&self.inner),
        }))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn Srq>, VerbsError> {
        Ok(Arc::new(IbSrq::new(&self.inner, init)?))
    }

    fn create_qp(&self, init: &QpInit<'_>) -> Result<Arc<dyn Qp>, VerbsError> {
        Ok(Arc::new(IbQp::new(&self.inner, init)?))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A memory region's registration.
struct IbMr {
    /// `None` once it was ended.
    raw: Option<NonNull<sys::ibv_mr>>,
    lkey: Lkey,
    rkey: Rkey,
    pd: Arc<PdInner>,
}

// SAFETY: libibverbs' regions may be used by all threads at once; the rest is not changed but through `&mut`.
unsafe impl Send for IbMr {}
// SAFETY: as above.
unsafe impl Sync for IbMr {}

impl fmt::Debug for IbMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}

// SAFETY: `ibv_dereg_mr` returns when the device does not use the region any more.
unsafe impl Mr for IbMr {
    fn lkey(&self) -> Lkey {
        self.lkey
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }

    fn deregister(&mut self) -> Result<(), VerbsError> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: the region was registered and not yet deregistered.
        let ended = unsafe { sys::dereg_mr(raw) };
        ended.map_err(|error| self.pd.context.error("ibv_dereg_mr", &error))?;
        self.raw = None;
        Ok(())
    }
}

impl Drop for IbMr {
    fn drop(&mut self) {
        let Some(raw) = self.raw else { return };
        // SAFETY: the region was registered and not yet deregistered.
        if let Err(error) = unsafe { sys::dereg_mr(raw) } {
            leak("ibv_dereg_mr", &error, Arc::clone(&self.pd));
        }
    }
}
