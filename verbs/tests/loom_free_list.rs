//! Model check of the stack of free slots: in no interleaving do two threads have the same slot, none is lost, and who takes one sees
//! what was done to it before.
//!
//! `RUSTFLAGS="--cfg adverb_loom" cargo test -p adverb-verbs --release --test 'loom_*'`

#![cfg(adverb_loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../src/free_list.rs"]
mod free_list;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::sync::Arc;

use free_list::FreeList;
use loom::cell::UnsafeCell;
use loom::thread;

/// A stack, and what its indices stand for: memory of which loom notices if two have it.
struct Pool {
    free: FreeList,
    slots: Vec<UnsafeCell<u32>>,
}

// SAFETY: what it is here for: loom's cells panic when two threads are at one of them.
#[allow(unsafe_code, reason = "the cells are shared, which is what the model checks")]
unsafe impl Sync for Pool {}

impl Pool {
    fn new(count: u32) -> Arc<Self> {
        Arc::new(Self {
            free: FreeList::full(count),
            slots: (0..count).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    /// Takes a slot, uses it and gives it back. Whether there was one.
    fn use_one(&self) -> bool {
        let Some(index) = self.free.take() else {
            return false;
        };
        self.count_up(index);
        self.free.give_back(index);
        true
    }

    #[allow(unsafe_code, reason = "see above")]
    fn count_up(&self, index: u32) {
        // SAFETY: loom panics if anybody else is at it.
        self.slots[index as usize].with_mut(|count| unsafe { *count += 1 });
    }
}

#[test]
fn nobody_has_a_slot_twice_and_none_is_lost() {
    loom::model(|| {
        let pool = Pool::new(2);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.use_one())
            })
            .collect();
        let used: u32 = others
            .into_iter()
            .map(|other| u32::from(other.join().unwrap()))
            .sum();
        assert_eq!(used, 2, "there was a slot for each");
        assert_eq!(pool.free.len(), 2);
        pool.count_up(pool.free.take().unwrap());
        pool.count_up(pool.free.take().unwrap());
        assert_eq!(pool.free.take(), None);
    });
}

/// Without the count of changes, a thread that read the head and what lies below it would bring back an index that is in use.
#[test]
fn a_slot_that_was_away_meanwhile_is_not_mistaken_for_one_that_stayed() {
    loom::model(|| {
        let pool = Pool::new(2);
        let other = {
            let pool = Arc::clone(&pool);
            // Takes both, and gives back the one that was on top: the other stays with this thread.
            thread::spawn(move || {
                let top = pool.free.take();
                let kept = pool.free.take();
                if let Some(top) = top {
                    pool.free.give_back(top);
                }
                if let Some(kept) = kept {
                    pool.count_up(kept);
                }
            })
        };
        for _ in 0..2 {
            if let Some(index) = pool.free.take() {
                pool.count_up(index);
            }
        }
        other.join().unwrap();
    });
}
