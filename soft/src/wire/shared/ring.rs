//! A ring of packets in memory that two processes share: one writes, one reads.
//!
//! # Layout
//! A page with three words, each in a cache line (and its neighbour, which CPUs fetch with it) of its own, then the data:
//!
//! | offset | word | written by |
//! |---|---|---|
//! | 0 | tail: bytes written, ever | the writer |
//! | 128 | head: bytes read, ever | the reader |
//! | 256 | whether the reader sleeps | both |
//! | 4096 | the data, a power of two of bytes | the writer |
//!
//! A record is the packet's length (8 bytes of this machine's order), the packet, and what is missing to a whole cache line. It may go on at the
//! start of the data where it reaches their end.
//!
//! # Trust
//! The other process may write anything at any time. So nothing in this memory is ever borrowed: it is copied out first, and then looked at. Each
//! side keeps its own position to itself, and checks the other's before use. What cannot be is [`Broken`], and the ring is not used any more.

#![allow(
    unsafe_code,
    reason = "memory that another process writes has no owner that the compiler knows"
)]

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::handover;

/// Bytes of data that this side's rings have: two windows of 256 packets of 4096 bytes.
pub(crate) const SIZE: u32 = 2 << 20;

/// Sizes that the other side's may have.
const SIZES: Range<u32> = 1 << 16..(1 << 26) + 1;

/// Where the data begin.
const DATA: usize = 4096;

/// Records begin at multiples of this, so that two of them share no cache line.
const ALIGN: usize = 64;

/// Bytes of a record before its packet.
const RECORD: usize = 8;

/// Bytes that a packet has at most. The longest there are have 4096 and their headers.
const LONGEST: usize = 8192;

/// Seals that keep the memory where it is: reading beyond the end of a file that was cut off would kill this process (SIGBUS).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The other side did what it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The side that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Mapping,
    /// Bytes written, ever.
    tail: u64,
    /// Bytes that the reader had read when it was looked at last.
    head: u64,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Written {
    /// Packets for which there was no room.
    pub(crate) lost: usize,
    /// Whether the reader has to be woken.
    pub(crate) wake: bool,
}

impl Writer {
    /// An empty ring, and the memory that it is in.
    ///
    /// # Errors
    /// What the kernel says if there is no memory or no descriptor.
    pub(crate) fn new(size: u32) -> Result<(Self, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("adverb-soft", flags)?;
        rustix::fs::ftruncate(&memory, (DATA + size as usize) as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SEALS | SealFlags::SEAL)?;
        let ring = Mapping::of(&memory, size)?;
        let (tail, head) = (0, 0);
        Ok((Self { ring, tail, head }, memory))
    }

    /// Writes as many packets as there is room for, and lets the reader have them all at once.
    ///
    /// # Errors
    /// [`Broken`] if the reader's position cannot be; nothing was written then that it may look at.
    pub(crate) fn write<'a>(
        &mut self,
        mut packets: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Written, Broken> {
        let mut tail = self.tail;
        let mut lost = 0;
        for packet in packets.by_ref() {
            let len = record_len(packet.len());
            if packet.len() > LONGEST || !self.has_room(tail, len)? {
                // Whatever comes behind it would be out of order, and sent again anyway.
                lost = 1 + packets.count();
                break;
            }
            let header = (packet.len() as u64).to_ne_bytes();
            self.ring.copy_in(tail, &header);
            self.ring.copy_in(tail + RECORD as u64, packet);
            tail += len as u64;
        }
        if tail == self.tail {
            return Ok(Written { lost, wake: false });
        }
        self.tail = tail;
        let wake = handover::publish(self.ring.tail(), tail, self.ring.sleeping());
        Ok(Written { lost, wake })
    }

    fn has_room(&mut self, tail: u64, len: usize) -> Result<bool, Broken> {
        let size = self.ring.size as u64;
        let end = tail + len as u64;
        if end - self.head <= size {
            return Ok(true);
        }
        let head = self.ring.head().load(Ordering::Acquire);
        // It reads on, and not beyond what it was given.
        if head < self.head || head > self.tail {
            return Err(Broken);
        }
        self.head = head;
        Ok(end - head <= size)
    }
}

/// The side that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    ring: Mapping,
    /// Bytes read, ever.
    head: u64,
}

impl Reader {
    /// The ring in this memory, whose writer said that it has so many bytes of data. It counts as asleep until it says otherwise.
    ///
    /// # Errors
    /// `EINVAL` if the memory is not what it should be, `EPERM` if it is not sealed; what the kernel says if it cannot be mapped.
    pub(crate) fn new(memory: &OwnedFd, size: u32) -> Result<Self, Errno> {
        if !SIZES.contains(&size) || !size.is_power_of_two() {
            return Err(Errno::INVAL);
        }
        // EINVAL of what is no memory file. Seals cannot be broken, so the length stays what it is.
        if !rustix::fs::fcntl_get_seals(memory)?.contains(SEALS) {
            return Err(Errno::PERM);
        }
        if rustix::fs::fstat(memory)?.st_size != i64::from(size) + DATA as i64 {
            return Err(Errno::INVAL);
        }
        let ring = Mapping::of(memory, size)?;
        ring.sleeping().store(1, Ordering::Relaxed);
        Ok(Self { ring, head: 0 })
    }

    /// Copies records into `room`, as many as are there and fit, and calls `packet` with the place of each packet in it. `room` must have space for the
    /// longest record.
    ///
    /// # Errors
    /// [`Broken`] if a length or the writer's position cannot be.
    pub(crate) fn read(
        &mut self,
        room: &mut [u8],
        mut packet: impl FnMut(Range<usize>),
    ) -> Result<usize, Broken> {
        let tail = self.ring.tail().load(Ordering::Acquire);
        let there = tail.wrapping_sub(self.head);
        if there == 0 {
            return Ok(0);
        }
        if there > self.ring.size as u64 || !there.is_multiple_of(ALIGN as u64) {
            return Err(Broken);
        }
        let there = there as usize;
        let copied = there.min(room.len() / ALIGN * ALIGN);
        let room = &mut room[..copied];
        self.ring.copy_out(self.head, room);
        let mut read = 0;
        while let Some(header) = room[read..].first_chunk() {
            let len = u64::from_ne_bytes(*header);
            if len == 0 || len > LONGEST as u64 {
                return Err(Broken);
            }
            let (start, end) = (read + RECORD, read + record_len(len as usize));
            if end > there {
                return Err(Broken);
            }
            if end > copied {
                break;
            }
            packet(start..start + len as usize);
            read = end;
        }
        self.head += read as u64;
        self.ring.head().store(self.head, Ordering::Release);
        Ok(read)
    }

    /// It is about to wait for the writer to wake it. Whether it may: there is nothing to read.
    pub(crate) fn about_to_sleep(&self) -> bool {
        handover::about_to_sleep(self.ring.tail(), self.head, self.ring.sleeping())
    }

    /// It looks by itself again.
    pub(crate) fn awake(&self) {
        handover::awake(self.ring.sleeping());
    }

    /// Bytes that [`Self::read`] needs at least.
    pub(crate) const fn least_room() -> usize {
        record_len(LONGEST)
    }
}

const fn record_len(packet: usize) -> usize {
    (RECORD + packet).next_multiple_of(ALIGN)
}

/// The memory of a ring.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    /// Bytes of data, a power of two.
    size: usize,
}

// SAFETY: it owns its mapping, which is of no thread. All accesses go through atomics or are copies, and who copies where is told by the positions, of
// which each side has one and advances it with exclusive access.
unsafe impl Send for Mapping {}

// SAFETY: see above; by reference, only atomics and copies are to be had.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(memory: &OwnedFd, size: u32) -> Result<Self, Errno> {
        use std::os::fd::AsFd;
        let size = size as usize;
        let fd: BorrowedFd<'_> = memory.as_fd();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice: it takes the place of nothing.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), DATA + size, access, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, size })
    }

    fn tail(&self) -> &AtomicU64 {
        self.word::<0>()
    }

    fn head(&self) -> &AtomicU64 {
        self.word::<128>()
    }

    fn sleeping(&self) -> &AtomicU64 {
        self.word::<256>()
    }

    fn word<const OFFSET: usize>(&self) -> &AtomicU64 {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET < DATA) };
        let word = self.base.as_ptr().wrapping_add(OFFSET).cast();
        // SAFETY: within the first page of the mapping, which lives as long as `self`, and aligned as the page is. Both sides access these words with
        // atomic operations only.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies bytes out, from `position` on.
    fn copy_out(&self, position: u64, into: &mut [u8]) {
        let (first, rest) = into.split_at_mut(self.until_end(position).min(into.len()));
        for (at, part) in [(self.place(position), first), (0, rest)] {
            let from = self.data(at, part.len());
            // SAFETY: `data` checked that this many bytes are within the mapping, and `part` is no part of it. The positions keep the writer away from
            // them; if it does not keep to that, the bytes are any, which bytes may be.
            unsafe { ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
        }
    }

    /// Copies bytes in, from `position` on.
    fn copy_in(&self, position: u64, from: &[u8]) {
        let (first, rest) = from.split_at(self.until_end(position).min(from.len()));
        for (at, part) in [(self.place(position), first), (0, rest)] {
            let to = self.data(at, part.len());
            // SAFETY: as in `copy_out`; nothing of this process reads these bytes until the tail says that they are there.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
        }
    }

    fn place(&self, position: u64) -> usize {
        position as usize & (self.size - 1)
    }

    fn until_end(&self, position: u64) -> usize {
        self.size - self.place(position)
    }

    /// Where `len` bytes of data are, at a place.
    fn data(&self, place: usize, len: usize) -> *mut u8 {
        assert!(place <= self.size && len <= self.size - place);
        self.base.as_ptr().wrapping_add(DATA + place)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that `of` made, which only `self` knows.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), DATA + self.size) };
        if let Err(errno) = unmapped {
            tracing::error!(%errno, "a ring's memory could not be unmapped");
        }
    }
}
