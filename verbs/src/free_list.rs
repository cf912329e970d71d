//! Which slots of a pool are free: a stack of their indices, without a lock.
//!
//! It is a stack, not a queue, so that a slot is used again while its memory is still in the cache and its page still in the TLB. The head
//! counts its changes beside the index (R. K. Treiber's stack with a modification counter): so a thread that was held up between
//! reading the head and replacing it notices that others took that index and gave it back meanwhile.

// The model check (`tests/loom_free_list.rs`) includes this file, and has loom's there.
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// No index: the end of the stack.
const NONE: u32 = u32::MAX;

/// A stack of indices, each of which is in it once or with somebody who took it.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// The index on top, and above its 32 bits how often it changed.
    head: AtomicU64,
    /// What lies under each index.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// With all indices below `count`, the lowest on top.
    pub(crate) fn full(count: u32) -> Self {
        let below = (1..=count).map(|next| if next == count { NONE } else { next });
        Self {
            head: AtomicU64::new(if count == 0 { NONE } else { 0 }.into()),
            below: below.map(AtomicU32::new).collect(),
        }
    }

    /// Takes the index that was given back last.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = index_of(head);
            let below = self.below.get(index as usize)?.load(Ordering::Relaxed);
            match self.replace(head, below) {
                Ok(()) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Gives an index back. The caller took it, or it is lost.
    pub(crate) fn give_back(&self, index: u32) {
        let Some(below) = self.below.get(index as usize) else {
            return;
        };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            below.store(index_of(head), Ordering::Relaxed);
            match self.replace(head, index) {
                Ok(()) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Replaces the head, if it is still the same. What was done to an index before it was given back is visible to who takes it.
    fn replace(&self, head: u64, index: u32) -> Result<(), u64> {
        let changes = (head >> 32).wrapping_add(1) << 32;
        self.head
            .compare_exchange_weak(
                head,
                changes | u64::from(index),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .map(drop)
    }

    /// How many there are. While others take and give back, it may be any number that there was, or another.
    pub(crate) fn len(&self) -> usize {
        let mut index = index_of(self.head.load(Ordering::Acquire));
        let mut len = 0;
        while let Some(below) = self.below.get(index as usize)
            && len < self.below.len()
        {
            index = below.load(Ordering::Relaxed);
            len += 1;
        }
        len
    }
}

fn index_of(head: u64) -> u32 {
    head as u32
}
