//! Registered buffers of one size, each owned by one holder at a time.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_types::Lkey;

use crate::free_list::FreeList;
use crate::{Access, ErrorKind, Pd, Region, Sge, VerbsError};

/// Slots start at multiples of this: a cache line.
const ALIGN: usize = 64;

/// A pool of registered [`Slot`]s. Cloning it gives another handle to the same pool.
///
/// Taking and giving back is lock-free and does not allocate. The memory lives until the pool and all slots are dropped.
#[derive(Clone)]
pub struct SlotPool {
    inner: Arc<Inner>,
}

struct Inner {
    region: Region,
    slot_size: usize,
    count: usize,
    free: FreeList,
}

impl SlotPool {
    /// Registers `count` slots of at least `slot_size` bytes (rounded up to a multiple of 64).
    ///
    /// `access` is `LOCAL_WRITE` for buffers that receive, or empty for buffers that only send. Slots are lent out as
    /// slices, so peers get no rights on them.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for remote rights, [`ErrorKind::OutOfRange`] for more slots or bytes than can be
    /// counted, else as [`Region::new`].
    pub fn new(pd: &dyn Pd, slot_size: usize, count: usize, access: Access) -> Result<Self, VerbsError> {
        let refuse = |kind| VerbsError::new("ibv_reg_mr", pd.device().info().name.as_str(), kind);
        if !Access::LOCAL_WRITE.contains(access) {
            return Err(refuse(ErrorKind::Unsupported("remote access to pooled slots")));
        }
        let too_many = || {
            refuse(ErrorKind::OutOfRange {
                what: "count of slots",
                value: count as u64,
                limit: 1 << 31,
            })
        };
        let slot_size = slot_size
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .ok_or_else(too_many)?;
        if slot_size > u32::MAX as usize {
            return Err(refuse(ErrorKind::OutOfRange {
                what: "slot size",
                value: slot_size as u64,
                limit: 1 << 32,
            }));
        }
        let slots = u32::try_from(count)
            .ok()
            .filter(|n| *n < 1 << 31)
            .ok_or_else(too_many)?;
        let bytes = slot_size.checked_mul(count).ok_or_else(too_many)?;
        let region = Region::new(pd, bytes, access)?;
        Ok(Self {
            inner: Arc::new(Inner {
                region,
                slot_size,
                count,
                free: FreeList::full(slots),
            }),
        })
    }

    /// Takes the slot that was given back last, if there is one. Its contents are what its last holder left.
    pub fn take(&self) -> Option<Slot> {
        let index = self.inner.free.take()?;
        Some(Slot {
            pool: Arc::clone(&self.inner),
            index,
        })
    }

    /// Slots free now. Only roughly, while other threads take and give back.
    pub fn available(&self) -> usize {
        self.inner.free.len()
    }

    /// Slots in all.
    pub fn count(&self) -> usize {
        self.inner.count
    }

    /// Bytes of each slot.
    pub fn slot_size(&self) -> usize {
        self.inner.slot_size
    }
}

impl fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotPool")
            .field("slot_size", &self.slot_size())
            .field("count", &self.count())
            .field("available", &self.available())
            .finish()
    }
}

/// A registered buffer, owned: while somebody holds it, neither the device nor anybody else touches it.
///
/// Posting moves it into a queue, and the completion gives it back. Dropping it returns it to its pool.
pub struct Slot {
    pool: Arc<Inner>,
    index: u32,
}

impl Slot {
    /// Its size in bytes.
    pub fn capacity(&self) -> usize {
        self.pool.slot_size
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the slot lies within the region, which `self.pool` keeps alive and which the kernel zeroed, so it is
        // initialised. `self` owns the index, which is in circulation once, and no work request holds it, so nobody
        // writes the bytes while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr(), self.capacity()) }
    }

    /// Its bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.base().as_ptr(), self.capacity()) }
    }

    /// The key for work requests.
    pub fn lkey(&self) -> Lkey {
        self.pool.region.lkey()
    }

    /// `length` of its bytes from `offset` on as a gather or scatter element, cut to the slot.
    pub(crate) fn sge(&self, offset: u32, length: u32) -> Sge {
        let capacity = self.capacity() as u32;
        let offset = offset.min(capacity);
        Sge {
            addr: self.base().as_ptr() as u64 + u64::from(offset),
            length: length.min(capacity - offset),
            lkey: self.lkey(),
        }
    }

    fn base(&self) -> NonNull<u8> {
        // SAFETY: `index < count`, and `new` made the region `count * slot_size` bytes long.
        unsafe {
            self.pool
                .region
                .base()
                .add(self.index as usize * self.pool.slot_size)
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("index", &self.index)
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.free.give_back(self.index);
    }
}
