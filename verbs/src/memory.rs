//! Registered memory that a peer may reach: owned, and accessed by copy only.

use std::fmt::{self, Debug};
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adverb_types::{Lkey, Rkey};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{Access, Pd, RemoteAddr, VerbsError};

/// A registration of memory (`ibv_reg_mr(3)`). [`Region`] owns one together with the memory.
///
/// # Safety
/// After [`Mr::deregister`] returned `Ok`, the device does not touch the memory again.
pub unsafe trait Mr: Debug + Send + Sync {
    /// The key for this process's own work requests.
    fn lkey(&self) -> Lkey;

    /// The key for peers.
    fn rkey(&self) -> Rkey;

    /// Ends the registration (`ibv_dereg_mr(3)`). A second call does nothing.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses: it may then still touch the memory. [`crate::ErrorKind::RegionInUse`] if work requests still name it.
    fn deregister(&mut self) -> Result<(), VerbsError>;
}

/// Page-aligned memory of its own, registered with a protection domain.
///
/// Peers may write it, if it was registered so, at any time. That is why it is never lent out as a slice: read and write it
/// by copy with [`Region::read_at`] and [`Region::write_at`]. A copy may see a peer's write half done; only aligned
/// 8-byte words are whole.
///
/// The memory is freed only after the device confirmed the end of the registration; if it does not, the memory is leaked
/// with a log line.
pub struct Region {
    mr: Box<dyn Mr>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the region alone; all access to it goes through methods that copy with volatile or atomic
// operations, which any thread may do at any time, as a device may.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A copy to or from a region that does not lie within it, or a word that is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len} bytes at offset {offset} do not lie within a region of {region_len} bytes, or are not aligned as needed"
)]
pub struct RegionError {
    /// Where the access starts.
    pub offset: usize,
    /// How long it is, in bytes.
    pub len: usize,
    /// How long the region is, in bytes.
    pub region_len: usize,
}

impl Region {
    /// Maps at least `len` zeroed bytes (at least one) and registers them with `access`.
    ///
    /// # Errors
    /// [`VerbsError`] of `mmap` if memory ran out, of `ibv_reg_mr` if the device or the locked-memory limit refuses.
    pub fn new(pd: &dyn Pd, len: usize, access: Access) -> Result<Self, VerbsError> {
        let len = len.max(1);
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let base = mapped
            .map_err(|errno| {
                VerbsError::new(
                    "mmap",
                    pd.device().info().name.as_str(),
                    crate::ErrorKind::Os(errno.raw_os_error()),
                )
            })?
            .cast::<u8>();
        let unmap = || {
            // SAFETY: the mapping made above, which nobody else knows yet.
            if let Err(errno) = unsafe { munmap(base.cast(), len) } {
                tracing::error!(%errno, "munmap of an unregistered region failed");
            }
        };
        let Some(base) = NonNull::new(base) else {
            unmap();
            return Err(VerbsError::new(
                "mmap",
                pd.device().info().name.as_str(),
                crate::ErrorKind::Os(0),
            ));
        };
        // SAFETY: the mapping is one live allocation; `Drop` unmaps it only after it was deregistered. No reference to it
        // is ever made while the registration lasts: `Region` copies, and `Slot` lends only what no work request holds.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }.inspect_err(|_| unmap())?;
        Ok(Self { mr, base, len })
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The virtual address of its first byte, as work requests name it.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The key for this process's own work requests.
    pub fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }

    /// The key for peers.
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// What a peer needs to reach the byte at `offset`.
    pub fn remote_addr(&self, offset: usize) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr().wrapping_add(offset as u64),
            rkey: self.rkey(),
        }
    }

    /// Copies out `into.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// [`RegionError`] if they do not lie within the region.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        self.check(offset, into.len(), 1)?;
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: `check` proved that offset + i lies within the mapping.
            let at = unsafe { self.base.add(offset + i) };
            // SAFETY: mapped, readable and initialised (the kernel zeroed it). Volatile, because a device may write it meanwhile.
            *byte = unsafe { at.read_volatile() };
        }
        Ok(())
    }

    /// Copies `from` in, from `offset` on.
    ///
    /// # Errors
    /// [`RegionError`] if it does not fit there.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), RegionError> {
        self.check(offset, from.len(), 1)?;
        for (i, byte) in from.iter().enumerate() {
            // SAFETY: `check` proved that offset + i lies within the mapping.
            let at = unsafe { self.base.add(offset + i) };
            // SAFETY: mapped and writable; no reference to it exists. Volatile, because a device may read it meanwhile.
            unsafe { at.write_volatile(*byte) };
        }
        Ok(())
    }

    /// The aligned 8-byte word at `offset`, in native byte order.
    ///
    /// # Errors
    /// [`RegionError`] if it does not lie within the region or `offset` is no multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, RegionError> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores an aligned 8-byte word at `offset`, in native byte order.
    ///
    /// # Errors
    /// As for [`Region::load_u64`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), RegionError> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        self.check(offset, 8, 8)?;
        // SAFETY: `check` proved that offset lies within the mapping.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: within the mapping, which lives as long as `self`, and aligned because the mapping starts at a page. An
        // atomic may be shared with whoever else accesses the word.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// The first byte; for [`crate::pool`], which hands out exclusive pieces.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn check(&self, offset: usize, len: usize, align: usize) -> Result<(), RegionError> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if fits && offset.is_multiple_of(align) {
            Ok(())
        } else {
            Err(RegionError {
                offset,
                len,
                region_len: self.len,
            })
        }
    }
}

/// One more registration of a region's memory, with keys and rights of its own, which can end while the region goes on.
///
/// It keeps the region. If the device does not confirm its end, the region is leaked with a log line.
#[derive(Debug)]
pub struct Registration {
    // Dropped before the memory.
    mr: Box<dyn Mr>,
    region: Arc<Region>,
}

impl Registration {
    /// Registers the memory of `region` once more, with `access`.
    ///
    /// # Errors
    /// [`VerbsError`] if the device or the locked-memory limit refuses: memory counts once for each registration.
    pub fn new(pd: &dyn Pd, region: &Arc<Region>, access: Access) -> Result<Self, VerbsError> {
        // SAFETY: the mapping is one live allocation until `region` is dropped, of which the result keeps a handle until the registration has
        // ended (`Drop`). No reference to the memory is made while it lasts: whoever has an `Arc` of a region copies, as only a pool, which
        // hands no region out, lends slices.
        let mr = unsafe { pd.reg_mr(region.base.as_ptr(), region.len, access) }?;
        Ok(Self {
            mr,
            region: Arc::clone(region),
        })
    }

    /// The key for peers.
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// Ends it: when this returns `Ok`, its keys are good for nothing. A second call does nothing.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses: the keys may then still be good.
    pub fn end(&mut self) -> Result<(), VerbsError> {
        self.mr.deregister()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, len = self.region.len, "a registration could not be ended: its memory is leaked");
            mem::forget(Arc::clone(&self.region));
        }
    }
}

impl Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len)
            .field("mr", &self.mr)
            .finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(error) = self.mr.deregister() {
            tracing::error!(%error, len = self.len, "a memory region could not be deregistered: its memory is leaked");
            return;
        }
        // SAFETY: the mapping that `new` made; its registration has ended, so neither the device nor anybody else uses it.
        if let Err(errno) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::error!(%errno, "munmap of a region failed");
        }
    }
}
