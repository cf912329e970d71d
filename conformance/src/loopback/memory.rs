//! The device's view of memory: which keys cover what, and the copies between what they cover.
//!
//! This is the only file of the loopback device that touches memory by address. A key is looked up and the bytes are
//! copied under one read lock, and ending a registration takes the write lock: once it ended, no copy is under way.

#![allow(
    unsafe_code,
    reason = "a device copies between registered memory, which it knows by address"
)]

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use adverb_types::{Lkey, Rkey};
use adverb_verbs::{Access, RemoteAddr, Sge};
use arrayvec::ArrayVec;
use parking_lot::RwLock;

/// Most elements of one work request.
pub(super) const MAX_SGE: usize = 8;

/// Tells an rkey from an lkey, so that a program that mixes them up fails here as it would on a real device.
const REMOTE: u32 = 1 << 31;

/// Registrations that fit: the index has 23 bits of the key, below it are 8 bits of generation.
const MAX_MR: u32 = 1 << 23;

/// All registrations of a fabric.
#[derive(Debug, Default)]
pub(super) struct Memory {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    /// Counts registrations that had this index, so that a stale key is refused.
    generation: u8,
    registration: Option<Registration>,
}

#[derive(Clone, Copy, Debug)]
struct Registration {
    pd: u32,
    start: usize,
    len: usize,
    access: Access,
}

/// Which side of a copy is not covered by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    From,
    To,
}

/// Memory that a key must cover with a right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pd: u32,
    sges: &'a [Sge],
    needs: Access,
    /// Whether `lkey` of the elements carries an rkey.
    remote: bool,
}

/// One element that stands for a piece of a peer's memory.
pub(super) fn remote_sge(at: RemoteAddr, length: u32) -> [Sge; 1] {
    let lkey = Lkey::new(at.rkey.get());
    [Sge {
        addr: at.addr,
        length,
        lkey,
    }]
}

impl<'a> Span<'a> {
    /// Local memory that the device writes.
    pub(super) fn scatter(pd: u32, to: &'a Held) -> Self {
        Self {
            pd,
            sges: &to.sges,
            needs: Access::LOCAL_WRITE,
            remote: false,
        }
    }

    /// A piece of a peer's memory, made by [`remote_sge`].
    pub(super) fn remote(pd: u32, sges: &'a [Sge; 1], needs: Access) -> Self {
        Self {
            pd,
            sges,
            needs,
            remote: true,
        }
    }
}

/// Memory that its keys cover, live for as long as the table of registrations is locked.
#[derive(Clone, Copy)]
struct Covered<'t>(&'t [Sge]);

/// The memory of a work request, from a poster that keeps the promises which posting asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted<'a>(Data<'a>);

#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    /// Covered by keys.
    Registered(&'a [Sge]),
    /// Readable at its addresses while the post lasts.
    Inline(Inline<'a>),
    /// Inline data that had to wait.
    Copied(&'a [u8]),
}

impl<'a> Posted<'a> {
    /// # Safety
    /// The elements come from a work request whose poster keeps the promises of [`adverb_verbs::Qp::post_send`] or
    /// [`adverb_verbs::Qp::post_recv`]. With `inline`, the value does not outlive that call.
    pub(super) unsafe fn new(sges: &'a [Sge], inline: bool) -> Self {
        Self(if inline {
            Data::Inline(Inline(sges))
        } else {
            Data::Registered(sges)
        })
    }

    /// Bytes in all.
    pub(super) fn len(&self) -> u64 {
        match self.0 {
            Data::Registered(sges) | Data::Inline(Inline(sges)) => {
                sges.iter().map(|sge| u64::from(sge.length)).sum()
            }
            Data::Copied(bytes) => bytes.len() as u64,
        }
    }

    /// Elements.
    pub(super) fn count(&self) -> usize {
        match self.0 {
            Data::Registered(sges) | Data::Inline(Inline(sges)) => sges.len(),
            Data::Copied(_) => 1,
        }
    }

    /// Keeps it beyond the call: inline data is copied, as the poster may reuse its memory. Elements beyond [`MAX_SGE`] are
    /// cut off; posting refuses them before.
    pub(super) fn hold(&self) -> Held {
        let mut held = Held {
            sges: ArrayVec::new(),
            copied: None,
        };
        match self.0 {
            Data::Registered(sges) => held.sges.extend(sges.iter().copied().take(MAX_SGE)),
            Data::Inline(inline) => held.copied = Some(inline.chunks().flatten().copied().collect()),
            Data::Copied(bytes) => held.copied = Some(bytes.into()),
        }
        held
    }
}

/// The memory of a work request that outlives the call that posted it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    sges: ArrayVec<Sge, MAX_SGE>,
    copied: Option<Box<[u8]>>,
}

impl Held {
    /// It again, as it was posted.
    pub(super) fn posted(&self) -> Posted<'_> {
        Posted(match &self.copied {
            Some(bytes) => Data::Copied(bytes),
            None => Data::Registered(&self.sges),
        })
    }
}

impl Memory {
    /// Registers memory. `None` if there are too many registrations.
    ///
    /// # Safety
    /// As for [`adverb_verbs::Pd::reg_mr`].
    pub(super) unsafe fn register(&self, pd: u32, addr: *mut u8, len: usize, access: Access) -> Option<Keys> {
        // The work requests name memory by address only: its provenance is picked up again when it is copied.
        let registration = Some(Registration {
            pd,
            start: addr.expose_provenance(),
            len,
            access,
        });
        let table = &mut *self.table.write();
        let index = match table.free.pop() {
            Some(index) => {
                table.entries[index as usize].registration = registration;
                index
            }
            None => {
                let index = u32::try_from(table.entries.len())
                    .ok()
                    .filter(|index| *index < MAX_MR)?;
                table.entries.push(Entry {
                    generation: 1,
                    registration,
                });
                index
            }
        };
        Some(Keys(
            index << 8 | u32::from(table.entries[index as usize].generation),
        ))
    }

    /// Ends a registration. When it returns, no copy touches the memory any more.
    pub(super) fn deregister(&self, Keys(key): Keys) {
        let table = &mut *self.table.write();
        let index = key >> 8;
        if let Some(entry) = table.entries.get_mut(index as usize)
            && u32::from(entry.generation) == key & 0xff
            && entry.registration.take().is_some()
        {
            entry.generation = entry.generation.wrapping_add(1);
            table.free.push(index);
        }
    }

    /// Copies `from`, local memory of `pd`, to the front of `to`.
    ///
    /// # Errors
    /// The side that is not covered; nothing was copied then.
    pub(super) fn gather(&self, pd: u32, from: Posted<'_>, to: Span<'_>) -> Result<(), Side> {
        let table = self.table.read();
        match from.0 {
            Data::Registered(sges) => {
                let from = Span {
                    pd,
                    sges,
                    needs: Access::empty(),
                    remote: false,
                };
                let from = table.cover(from).ok_or(Side::From)?;
                table.cover(to).ok_or(Side::To)?.copy_from(from);
            }
            Data::Inline(inline) => table.cover(to).ok_or(Side::To)?.fill(inline.chunks()),
            Data::Copied(bytes) => table.cover(to).ok_or(Side::To)?.fill([bytes]),
        }
        Ok(())
    }

    /// Copies `from`, a peer's memory, to `to`, local memory of `pd`.
    ///
    /// # Errors
    /// As for [`Self::gather`].
    pub(super) fn scatter(&self, from: Span<'_>, pd: u32, to: Posted<'_>) -> Result<(), Side> {
        let table = self.table.read();
        let from = table.cover(from).ok_or(Side::From)?;
        table.cover(to.as_scatter(pd)?).ok_or(Side::To)?.copy_from(from);
        Ok(())
    }

    /// Changes the word at `at` with `change` in one atomic step and puts what was there into `to`.
    ///
    /// # Errors
    /// As for [`Self::gather`], with the word as [`Side::From`].
    pub(super) fn fetch_and(
        &self,
        at: Span<'_>,
        change: impl Fn(&AtomicU64) -> u64,
        pd: u32,
        to: Posted<'_>,
    ) -> Result<(), Side> {
        let table = self.table.read();
        let at = table.cover(at).ok_or(Side::From)?;
        let to = table.cover(to.as_scatter(pd)?).ok_or(Side::To)?;
        let old = change(at.word().ok_or(Side::From)?);
        to.fill([&old.to_ne_bytes()[..]]);
        Ok(())
    }
}

impl<'a> Posted<'a> {
    /// It as memory that the device writes; inline data is not.
    fn as_scatter(&self, pd: u32) -> Result<Span<'a>, Side> {
        match self.0 {
            Data::Registered(sges) => Ok(Span {
                pd,
                sges,
                needs: Access::LOCAL_WRITE,
                remote: false,
            }),
            Data::Inline(_) | Data::Copied(_) => Err(Side::To),
        }
    }
}

/// What a registration is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys(u32);

impl Keys {
    pub(super) fn lkey(self) -> Lkey {
        Lkey::new(self.0)
    }

    pub(super) fn rkey(self) -> Rkey {
        Rkey::new(self.0 | REMOTE)
    }
}

impl Table {
    fn find(&self, key: u32, remote: bool) -> Option<&Registration> {
        if (key & REMOTE != 0) != remote {
            return None;
        }
        let key = key & !REMOTE;
        let entry = self.entries.get((key >> 8) as usize)?;
        entry
            .registration
            .as_ref()
            .filter(|_| u32::from(entry.generation) == key & 0xff)
    }

    /// `span`, if its keys cover it.
    fn cover<'t>(&'t self, span: Span<'t>) -> Option<Covered<'t>> {
        let covers = |sge: &Sge| {
            // The key of an element without bytes is not looked at (IBTA volume 1, section 9.4.3 for zero-length RDMA).
            sge.length == 0
                || self.find(sge.lkey.get(), span.remote).is_some_and(|mr| {
                    let fits = (sge.addr as usize)
                        .checked_sub(mr.start)
                        .and_then(|offset| offset.checked_add(sge.length as usize))
                        .is_some_and(|end| end <= mr.len);
                    mr.pd == span.pd && mr.access.contains(span.needs) && fits
                })
        };
        span.sges.iter().all(covers).then_some(Covered(span.sges))
    }
}

impl Covered<'_> {
    /// Copies `from` to the front, until either ends.
    fn copy_from(self, from: Covered<'_>) {
        let mut room = Room::new(self);
        for sge in from.0 {
            let mut addr = sge.addr as usize;
            let mut left = sge.length as usize;
            while left > 0 {
                let Some((to, n)) = room.take(left) else {
                    return;
                };
                let from = ptr::with_exposed_provenance_mut::<u8>(addr);
                // SAFETY: both lie within what `Table::cover` found registered, which is live memory while the table is
                // locked; posted memory is left alone by its poster, and a peer's memory is accessed by others with
                // atomic or volatile operations only (`Pd::reg_mr`, `Qp::post_send`).
                unsafe { copy_registered(from, to, n) };
                addr += n;
                left -= n;
            }
        }
    }

    /// Copies `chunks` to the front, until either ends. They are bytes that no device writes: inline data, or our own.
    fn fill<'a>(self, chunks: impl IntoIterator<Item = &'a [u8]>) {
        let mut room = Room::new(self);
        for mut chunk in chunks {
            while let Some((to, n)) = room.take(chunk.len()) {
                let (now, later) = chunk.split_at(n);
                for (i, byte) in now.iter().enumerate() {
                    let to = to.wrapping_add(i);
                    // SAFETY: within what `Table::cover` found registered, as in `copy_from`; bytes are always aligned.
                    unsafe { AtomicU8::from_ptr(to) }.store(*byte, Ordering::Relaxed);
                }
                chunk = later;
            }
        }
    }

    /// The one aligned 8-byte word that this is.
    fn word(&self) -> Option<&AtomicU64> {
        let [sge] = self.0 else {
            return None;
        };
        if sge.length != 8 || !sge.addr.is_multiple_of(8) {
            return None;
        }
        let word = ptr::with_exposed_provenance_mut::<u64>(sge.addr as usize);
        // SAFETY: aligned, and within what `Table::cover` found registered, which is live memory while the table is locked. A
        // peer's memory is accessed by others with atomic or volatile operations only (`Pd::reg_mr`).
        Some(unsafe { AtomicU64::from_ptr(word) })
    }
}

/// Where the next bytes go.
struct Room<'a> {
    rest: std::slice::Iter<'a, Sge>,
    addr: usize,
    left: usize,
}

impl<'a> Room<'a> {
    fn new(covered: Covered<'a>) -> Self {
        Self {
            rest: covered.0.iter(),
            addr: 0,
            left: 0,
        }
    }

    /// At most `want` bytes in one piece, at least one; `None` if none are wanted or there is no room.
    fn take(&mut self, want: usize) -> Option<(*mut u8, usize)> {
        if want == 0 {
            return None;
        }
        while self.left == 0 {
            let sge = self.rest.next()?;
            self.addr = sge.addr as usize;
            self.left = sge.length as usize;
        }
        let n = want.min(self.left);
        let at = ptr::with_exposed_provenance_mut(self.addr);
        self.addr += n;
        self.left -= n;
        Some((at, n))
    }
}

/// Elements of a request posted inline, made by [`Posted::new`] only.
#[derive(Clone, Copy, Debug)]
struct Inline<'a>(&'a [Sge]);

impl<'a> Inline<'a> {
    /// The bytes of each element.
    fn chunks(self) -> impl Iterator<Item = &'a [u8]> {
        let with_bytes = self.0.iter().filter(|sge| sge.length > 0);
        with_bytes.map(|sge| {
            let at = ptr::with_exposed_provenance(sge.addr as usize);
            // SAFETY: the poster promised `Posted::new` that they can be read, and that nobody writes them, while the post
            // lasts, which this does not outlive.
            unsafe { std::slice::from_raw_parts(at, sge.length as usize) }
        })
    }
}

/// Copies from low to high addresses. Aligned 8-byte words arrive whole where both sides are aligned alike, as
/// [`adverb_verbs::Region`] says of a device.
///
/// # Safety
/// Both are live for `n` bytes, and everybody else who accesses them meanwhile does so with atomic or volatile operations.
unsafe fn copy_registered(from: *mut u8, to: *mut u8, n: usize) {
    let head = if from.addr() % 8 == to.addr() % 8 {
        from.align_offset(8).min(n)
    } else {
        n
    };
    let words = (n - head) / 8;
    for i in (0..head).chain(head + words * 8..n) {
        let (from, to) = (from.wrapping_add(i), to.wrapping_add(i));
        // SAFETY: i < n, and bytes are always aligned.
        let byte = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
    }
    for i in 0..words {
        let at = head + i * 8;
        let (from, to) = (from.wrapping_add(at).cast(), to.wrapping_add(at).cast());
        // SAFETY: at + 8 <= n, and `head` made it aligned.
        let word = unsafe { AtomicU64::from_ptr(from) }.load(Ordering::Relaxed);
        // SAFETY: as above, and both sides are aligned alike.
        unsafe { AtomicU64::from_ptr(to) }.store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Access = Access::all();

    fn sge(bytes: &mut [u8], keys: Keys) -> Sge {
        Sge {
            addr: bytes.as_mut_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: keys.lkey(),
        }
    }

    fn register(memory: &Memory, pd: u32, bytes: &mut [u8], access: Access) -> Keys {
        // SAFETY: each test keeps its buffer until its end and looks at it only between copies.
        unsafe { memory.register(pd, bytes.as_mut_ptr(), bytes.len(), access) }.unwrap()
    }

    fn posted(sges: &[Sge]) -> Posted<'_> {
        // SAFETY: as above.
        unsafe { Posted::new(sges, false) }
    }

    #[test]
    fn every_alignment_and_split_copies_all_bytes() {
        let memory = Memory::default();
        let mut from: Vec<u8> = (0..64).collect();
        for offset in 0..9 {
            for split in 0..17 {
                let mut to = vec![0xff; 64];
                let (a, b) = (
                    register(&memory, 1, &mut from, ALL),
                    register(&memory, 1, &mut to, ALL),
                );
                let whole = sge(&mut from, a);
                let gather = [
                    Sge {
                        length: split,
                        ..whole
                    },
                    Sge {
                        addr: whole.addr + u64::from(split),
                        length: 40 - split,
                        ..whole
                    },
                ];
                let at = sge(&mut to, b);
                let scatter = [
                    Sge {
                        addr: at.addr + offset,
                        length: 7,
                        ..at
                    },
                    Sge {
                        addr: at.addr + offset + 7,
                        length: 40,
                        ..at
                    },
                ];
                memory
                    .gather(1, posted(&gather), Span::scatter(1, &posted(&scatter).hold()))
                    .unwrap();
                memory.deregister(a);
                memory.deregister(b);
                let start = offset as usize;
                assert_eq!(to[start..start + 40], from[..40], "offset {offset} split {split}");
                assert!(
                    to[..start]
                        .iter()
                        .chain(&to[start + 40..])
                        .all(|byte| *byte == 0xff)
                );
            }
        }
    }

    #[test]
    fn a_key_covers_only_its_bytes_rights_and_domain() {
        let memory = Memory::default();
        let mut bytes = vec![0; 64];
        let keys = register(&memory, 1, &mut bytes, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let at = RemoteAddr {
            addr: bytes.as_ptr() as u64,
            rkey: keys.rkey(),
        };
        let covered = |at: RemoteAddr, len, pd, needs| {
            let sges = remote_sge(at, len);
            memory
                .table
                .read()
                .cover(Span::remote(pd, &sges, needs))
                .is_some()
        };
        assert!(covered(at, 64, 1, Access::REMOTE_READ));
        assert!(!covered(at, 65, 1, Access::REMOTE_READ));
        assert!(!covered(
            RemoteAddr {
                addr: at.addr - 1,
                ..at
            },
            8,
            1,
            Access::REMOTE_READ
        ));
        assert!(!covered(
            RemoteAddr { addr: u64::MAX, ..at },
            8,
            1,
            Access::REMOTE_READ
        ));
        assert!(!covered(at, 64, 1, Access::REMOTE_WRITE));
        assert!(!covered(at, 64, 2, Access::REMOTE_READ));
        let lkey_as_rkey = RemoteAddr {
            rkey: Rkey::new(keys.lkey().get()),
            ..at
        };
        assert!(!covered(lkey_as_rkey, 8, 1, Access::REMOTE_READ));
        memory.deregister(keys);
        assert!(!covered(at, 8, 1, Access::REMOTE_READ));
        let again = register(&memory, 1, &mut bytes, Access::all());
        assert_ne!(again, keys);
        assert!(!covered(at, 8, 1, Access::REMOTE_READ));
    }
}
