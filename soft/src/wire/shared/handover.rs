//! The hand-over of a ring's bytes between one writer and one reader who may be asleep.
//!
//! As io_uring has it (`IORING_SQ_NEED_WAKEUP`): the reader says that it is about to sleep, then looks once more; the writer moves the tail, then
//! looks whether the reader sleeps. Between the two steps each has a sequentially consistent fence, so that at least one of them sees what the other did:
//! either the reader finds the bytes, or the writer rings. While nobody sleeps, the writer only reads a line that nobody writes.

// The model check (`tests/loom_handover.rs`) includes this file, and has loom's there.
use super::sync::{AtomicU64, Ordering, fence};

/// Lets the reader have what was written up to `position`. Whether it has to be woken: whoever is told so, is told alone.
pub(crate) fn publish(tail: &AtomicU64, position: u64, sleeping: &AtomicU64) -> bool {
    tail.store(position, Ordering::Release);
    fence(Ordering::SeqCst);
    sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
}

/// The reader, who has read up to `position`, is about to sleep. Whether it may: there is nothing else to read.
pub(crate) fn about_to_sleep(tail: &AtomicU64, position: u64, sleeping: &AtomicU64) -> bool {
    // Exchanged, not stored, as everywhere here: loom does not order a store after an exchange that read what the store overwrote.
    sleeping.swap(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    tail.load(Ordering::Relaxed) == position
}

/// The reader is awake: whoever writes need not wake it any more.
pub(crate) fn awake(sleeping: &AtomicU64) {
    sleeping.swap(0, Ordering::Relaxed);
}
