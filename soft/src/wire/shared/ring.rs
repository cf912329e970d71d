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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::thread;

    /// The smallest that a reader takes.
    const SMALL: u32 = SIZES.start;

    fn ring() -> (Writer, Reader) {
        let (writer, memory) = Writer::new(SMALL).unwrap();
        (writer, Reader::new(&memory, SMALL).unwrap())
    }

    fn write(writer: &mut Writer, packets: &[Vec<u8>]) -> Result<Written, Broken> {
        writer.write(packets.iter().map(Vec::as_slice))
    }

    fn read(reader: &mut Reader, room: usize) -> Result<Vec<Vec<u8>>, Broken> {
        let mut room = vec![0; room];
        let mut places = Vec::new();
        reader.read(&mut room, |place| places.push(place))?;
        Ok(places.into_iter().map(|place| room[place].to_vec()).collect())
    }

    fn packet(i: usize) -> Vec<u8> {
        let len = [1, 12, 56, 57, 64, 1000, 4096, LONGEST][i % 8];
        (0..len).map(|at| (at ^ i.wrapping_mul(31)) as u8).collect()
    }

    #[test]
    fn packets_come_out_as_they_went_in_however_often_the_ring_wraps() {
        let (mut writer, mut reader) = ring();
        let mut waiting = VecDeque::new();
        for i in 0..4000 {
            let batch: Vec<_> = (i..i + i % 4).map(packet).collect();
            assert_eq!(write(&mut writer, &batch).unwrap().lost, 0);
            waiting.extend(batch);
            for got in read(&mut reader, Reader::least_room() + i % 3 * 1000).unwrap() {
                assert_eq!(Some(got), waiting.pop_front());
            }
            // Small rooms fall behind.
            while waiting.len() > 8 {
                for got in read(&mut reader, SMALL as usize).unwrap() {
                    assert_eq!(Some(got), waiting.pop_front());
                }
            }
        }
        assert!(reader.head > 100 * u64::from(SMALL), "it wrapped often");
    }

    #[test]
    fn what_finds_no_room_is_lost_with_all_behind_it_and_told() {
        let (mut writer, mut reader) = ring();
        // Each takes a 64th of the ring.
        let batch = vec![vec![7; 1000]; 63];
        assert_eq!(write(&mut writer, &batch).unwrap().lost, 0);
        let mixed = [vec![8; 1000], vec![9; 1000], vec![10; 1]];
        assert_eq!(write(&mut writer, &mixed).unwrap().lost, 2);
        assert_eq!(
            write(&mut writer, &mixed).unwrap(),
            Written { lost: 3, wake: false }
        );
        let mut got = Vec::new();
        while got.len() < 64 {
            got.extend(read(&mut reader, SMALL as usize).unwrap());
        }
        assert_eq!(got[63], vec![8; 1000]);
        assert_eq!(write(&mut writer, &mixed).unwrap().lost, 0);
        let too_long = [vec![0; LONGEST + 1]];
        assert_eq!(write(&mut writer, &too_long).unwrap().lost, 1);
    }

    #[test]
    fn a_reader_is_woken_once_each_time_that_it_sleeps() {
        let (mut writer, mut reader) = ring();
        let mut wakes = |n| write(&mut writer, &vec![vec![1]; n]).unwrap().wake;
        assert!(wakes(3), "a new reader counts as asleep");
        assert!(!wakes(1));
        assert!(!reader.about_to_sleep(), "there is something");
        assert_eq!(read(&mut reader, SMALL as usize).unwrap().len(), 4);
        assert!(reader.about_to_sleep());
        assert!(wakes(1));
        assert!(!wakes(1));
        read(&mut reader, SMALL as usize).unwrap();
        assert!(reader.about_to_sleep());
        reader.awake();
        assert!(!wakes(1));
    }

    #[test]
    fn only_sealed_memory_of_the_right_length_is_taken() {
        let (_writer, memory) = Writer::new(SMALL).unwrap();
        for size in [
            0,
            1,
            SMALL / 2,
            SMALL - 64,
            SMALL + 64,
            SMALL * 2,
            1 << 27,
            u32::MAX,
        ] {
            assert_eq!(Reader::new(&memory, size).unwrap_err(), Errno::INVAL, "{size}");
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&open, u64::from(SMALL) + DATA as u64).unwrap();
        assert_eq!(Reader::new(&open, SMALL).unwrap_err(), Errno::PERM);
        rustix::fs::fcntl_add_seals(&open, SealFlags::GROW).unwrap();
        assert_eq!(Reader::new(&open, SMALL).unwrap_err(), Errno::PERM);
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        Reader::new(&open, SMALL).unwrap();
        let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(Reader::new(&other, SMALL).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn a_position_that_cannot_be_ends_the_writer() {
        // Beyond what was written, and before what was read.
        for head in [1 << 40, u64::MAX, u64::from(SMALL) * 100, 64] {
            let (mut writer, mut reader) = ring();
            for _ in 0..70 {
                assert_eq!(write(&mut writer, &[vec![1; 1000]]).unwrap().lost, 0);
                read(&mut reader, SMALL as usize).unwrap();
            }
            writer.ring.head().store(head, Ordering::Relaxed);
            // Until the ring looks full, nobody asks where the reader is.
            let results: Vec<_> = (0..70).map(|_| write(&mut writer, &[vec![1; 1000]])).collect();
            assert!(results.contains(&Err(Broken)), "{head}");
        }
    }

    #[test]
    fn two_threads_lose_and_mix_up_nothing() {
        const COUNT: usize = 200_000;
        let (mut writer, mut reader) = ring();
        let writing = thread::spawn(move || {
            let (mut sent, mut full) = (0usize, 0usize);
            while sent < COUNT {
                let n = (1 + sent % 7).min(COUNT - sent);
                let batch: Vec<_> = (sent..sent + n).map(|i| vec![i as u8; 8 + i % 200]).collect();
                let lost = write(&mut writer, &batch).unwrap().lost;
                sent += n - lost;
                full += lost;
                if lost > 0 {
                    thread::yield_now();
                }
            }
            full
        });
        let mut received = 0;
        while received < COUNT {
            for got in read(&mut reader, SMALL as usize / 4).unwrap() {
                assert_eq!(got, vec![received as u8; 8 + received % 200]);
                received += 1;
            }
            if received.is_multiple_of(5) {
                thread::yield_now();
            }
        }
        println!("full {} times", writing.join().unwrap());
        assert_eq!(read(&mut reader, SMALL as usize).unwrap(), Vec::<Vec<u8>>::new());
    }

    proptest! {
        /// A writer that writes anything: the reader ends, or reads packets of what it was given, and never more than there can be.
        #[test]
        fn whatever_the_writer_does_the_reader_stays_within_the_ring(
            tails in prop::collection::vec(prop_oneof![
                any::<u64>(),
                0..u64::from(SMALL) + 256,
                (0..1025u64).prop_map(|n| n * 64),
            ], 1..8),
            data in prop::collection::vec((0..1024u64, prop_oneof![any::<u64>(), 0..9000u64]), 0..64),
            start in 0..8u64,
        ) {
            let (writer, mut reader) = ring();
            let start = start * 64 + u64::from(SMALL) * 3 - 256;
            reader.head = start;
            for (line, value) in data {
                writer.ring.copy_in(line * 64, &value.to_ne_bytes());
            }
            for tail in tails {
                let tail = start.wrapping_add(tail);
                writer.ring.tail().store(tail, Ordering::Relaxed);
                let before = reader.head;
                match read(&mut reader, SMALL as usize) {
                    Ok(packets) => {
                        let bytes: usize = packets.iter().map(|packet| record_len(packet.len())).sum();
                        prop_assert!(packets.iter().all(|packet| (1..=LONGEST).contains(&packet.len())));
                        prop_assert_eq!(reader.head, before + bytes as u64);
                        prop_assert!(bytes as u64 <= tail.wrapping_sub(before));
                    }
                    Err(Broken) => prop_assert_eq!(reader.head, before),
                }
            }
        }
    }
}
