//! The device's view of memory: which keys cover what, and the copies in and out of it.
//!
//! This is the only file that touches memory by address. A key is looked up and the bytes are copied under one read lock, and ending a
//! registration takes the write lock: once it ended, no copy is under way.

#![allow(
    unsafe_code,
    reason = "a device copies from and to registered memory, which it knows by address"
)]

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use adverb_roce::Denied;
use adverb_types::{Lkey, Rkey};
use adverb_verbs::{Access, RemoteAddr, SendWr, Sge};
use parking_lot::RwLock;
use rustix::io::Errno;

use crate::keys::KeyTable;

/// All registrations of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    table: RwLock<KeyTable<Registration>>,
    /// Registrations that fit.
    most: usize,
}

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
struct Registration {
    pd: u32,
    start: usize,
    len: usize,
    access: Access,
    /// Whether this is the key for peers.
    remote: bool,
}

/// What a registration is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
}

/// Registered memory that covers an access, live for as long as the table is locked.
#[derive(Clone, Copy)]
struct Covered {
    start: usize,
    len: usize,
}

impl Memory {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            table: RwLock::default(),
            most: most as usize,
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// As for [`adverb_verbs::Pd::reg_mr`].
    ///
    /// # Errors
    /// `ENOMEM` if there are too many registrations.
    pub(crate) unsafe fn register(
        &self,
        pd: u32,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Keys, Errno> {
        let mut table = self.table.write();
        // Each has two keys.
        if table.len() / 2 >= self.most {
            return Err(Errno::NOMEM);
        }
        // The work requests name memory by address only: its provenance is picked up again when it is copied.
        let start = addr.expose_provenance();
        let mut key = |remote| {
            table.insert(Registration {
                pd,
                start,
                len,
                access,
                remote,
            })
        };
        let lkey = key(false)?;
        match key(true) {
            Ok(rkey) => Ok(Keys {
                lkey: Lkey::new(lkey),
                rkey: Rkey::new(rkey),
            }),
            Err(errno) => {
                table.remove(lkey);
                Err(errno)
            }
        }
    }

    /// Ends a registration. When it returns, no copy touches the memory any more.
    pub(crate) fn deregister(&self, keys: Keys) {
        let mut table = self.table.write();
        table.remove(keys.lkey.get());
        table.remove(keys.rkey.get());
    }

    /// Where the memory of a registration starts and how long it is; nowhere and 0 once it ended.
    pub(crate) fn place(&self, keys: Keys) -> (usize, usize) {
        let table = self.table.read();
        table.get(keys.lkey.get()).map_or((0, 0), |mr| (mr.start, mr.len))
    }

    /// Copies bytes of local memory out, from `offset` on.
    pub(crate) fn gather(&self, pd: u32, sges: &[Sge], offset: u32, into: &mut [u8]) -> Result<(), Denied> {
        let table = self.table.read();
        let mut done = 0;
        for piece in pieces(sges, offset, into.len()) {
            let (sge, skip, n) = piece;
            let from = table.cover(sge, pd, Access::empty())?;
            from.read(skip, &mut into[done..done + n]);
            done += n;
        }
        if done == into.len() { Ok(()) } else { Err(Denied) }
    }

    /// Copies bytes into local memory, from `offset` on.
    pub(crate) fn scatter(&self, pd: u32, sges: &[Sge], offset: u32, from: &[u8]) -> Result<(), Denied> {
        let table = self.table.read();
        let mut done = 0;
        for (sge, skip, n) in pieces(sges, offset, from.len()) {
            let to = table.cover(sge, pd, Access::LOCAL_WRITE)?;
            to.write(skip, &from[done..done + n]);
            done += n;
        }
        if done == from.len() { Ok(()) } else { Err(Denied) }
    }

    /// Whether a peer may do `access` with these bytes.
    pub(crate) fn check(&self, pd: u32, at: RemoteAddr, len: u32, access: Access) -> Result<(), Denied> {
        if len == 0 {
            return Ok(());
        }
        self.table
            .read()
            .cover_remote(pd, at, len as usize, access)
            .map(drop)
    }

    /// Copies a peer's READ out.
    pub(crate) fn read(&self, pd: u32, at: RemoteAddr, into: &mut [u8]) -> Result<(), Denied> {
        if into.is_empty() {
            return Ok(());
        }
        let table = self.table.read();
        let from = table.cover_remote(pd, at, into.len(), Access::REMOTE_READ)?;
        from.read(0, into);
        Ok(())
    }

    /// Copies a peer's WRITE in.
    pub(crate) fn write(&self, pd: u32, at: RemoteAddr, from: &[u8]) -> Result<(), Denied> {
        if from.is_empty() {
            return Ok(());
        }
        let table = self.table.read();
        let to = table.cover_remote(pd, at, from.len(), Access::REMOTE_WRITE)?;
        to.write(0, from);
        Ok(())
    }

    /// Changes an aligned 8-byte word with `change`, which does so in one atomic step and gives what was there.
    pub(crate) fn atomic(
        &self,
        pd: u32,
        at: RemoteAddr,
        change: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<u64, Denied> {
        let table = self.table.read();
        let word = table.cover_remote(pd, at, 8, Access::REMOTE_ATOMIC)?;
        Ok(change(word.word()?))
    }
}

impl KeyTable<Registration> {
    /// The memory of a local element, if its key covers it.
    fn cover(&self, sge: &Sge, pd: u32, needs: Access) -> Result<Covered, Denied> {
        let len = sge.length as usize;
        self.find(sge.lkey.get(), false, pd, needs, sge.addr, len)
    }

    /// A peer's view of memory, if its key covers it.
    fn cover_remote(&self, pd: u32, at: RemoteAddr, len: usize, needs: Access) -> Result<Covered, Denied> {
        self.find(at.rkey.get(), true, pd, needs, at.addr, len)
    }

    fn find(
        &self,
        key: u32,
        remote: bool,
        pd: u32,
        needs: Access,
        addr: u64,
        len: usize,
    ) -> Result<Covered, Denied> {
        let mr = self.get(key).ok_or(Denied)?;
        let start = usize::try_from(addr).map_err(|_| Denied)?;
        let fits = start
            .checked_sub(mr.start)
            .and_then(|offset| offset.checked_add(len))
            .is_some_and(|end| end <= mr.len);
        if fits && mr.remote == remote && mr.pd == pd && mr.access.contains(needs) {
            Ok(Covered { start, len })
        } else {
            Err(Denied)
        }
    }
}

impl Covered {
    fn read(self, skip: usize, into: &mut [u8]) {
        debug_assert!(skip + into.len() <= self.len);
        let from = ptr::with_exposed_provenance_mut::<u8>(self.start + skip);
        // SAFETY: `KeyTable::find` found it registered, which is live memory while the table is locked. Posted memory is
        // left alone by its poster, and a peer's memory is accessed by others with atomic or volatile operations only
        // (`Pd::reg_mr`, `Qp::post_send`).
        unsafe { load(from, into) };
    }

    fn write(self, skip: usize, from: &[u8]) {
        debug_assert!(skip + from.len() <= self.len);
        let to = ptr::with_exposed_provenance_mut::<u8>(self.start + skip);
        // SAFETY: as in `read`.
        unsafe { store(to, from) };
    }

    /// It as the one aligned 8-byte word that it is.
    fn word(&self) -> Result<&AtomicU64, Denied> {
        if self.len != 8 || !self.start.is_multiple_of(8) {
            return Err(Denied);
        }
        let word = ptr::with_exposed_provenance_mut::<u64>(self.start);
        // SAFETY: aligned, and registered as in `read`: accessed by others with atomic or volatile operations only.
        Ok(unsafe { AtomicU64::from_ptr(word) })
    }
}

/// The elements that hold `len` bytes from `offset` on, with how much of each to skip and how much to take. An element without bytes is not
/// among them: its key is not looked at.
fn pieces(sges: &[Sge], offset: u32, len: usize) -> impl Iterator<Item = (&Sge, usize, usize)> {
    let (mut skip, mut left) = (offset as usize, len);
    sges.iter().filter_map(move |sge| {
        let here = skip.min(sge.length as usize);
        skip -= here;
        let n = left.min(sge.length as usize - here);
        left -= n;
        (n > 0).then_some((sge, here, n))
    })
}

/// Appends the data of a request that is posted inline.
///
/// # Safety
/// As for [`adverb_verbs::Qp::post_send`], within which it is called.
pub(crate) unsafe fn inline_data(wr: &SendWr<'_>, out: &mut Vec<u8>) {
    for sge in wr.sges {
        let start = out.len();
        out.resize(start + sge.length as usize, 0);
        let from = ptr::with_exposed_provenance_mut::<u8>(sge.addr as usize);
        // SAFETY: the poster promises that it can be read until the post returns.
        unsafe { load(from, &mut out[start..]) };
    }
}

/// Copies registered memory out, from low to high addresses. Aligned 8-byte words are read whole, as [`adverb_verbs::Region`] says of a device.
///
/// # Safety
/// `from` is live for as many bytes, and everybody else who accesses them meanwhile does so with atomic or volatile operations.
unsafe fn load(from: *mut u8, into: &mut [u8]) {
    let head = from.align_offset(8).min(into.len());
    let (head, rest) = into.split_at_mut(head);
    let mut at = from;
    for byte in head {
        // SAFETY: within the bytes, and bytes are always aligned.
        *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
    let mut words = rest.chunks_exact_mut(8);
    for word in &mut words {
        // SAFETY: within the bytes, and aligned after the head.
        let value = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
        at = at.wrapping_add(8);
    }
    for byte in words.into_remainder() {
        // SAFETY: as for the head.
        *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
}

/// Copies into registered memory, as [`load`] copies out.
///
/// # Safety
/// As for [`load`], of `to`.
unsafe fn store(to: *mut u8, from: &[u8]) {
    let (head, rest) = from.split_at(to.align_offset(8).min(from.len()));
    let mut at = to;
    for byte in head {
        // SAFETY: within the bytes, and bytes are always aligned.
        unsafe { AtomicU8::from_ptr(at) }.store(*byte, Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks::<8>();
    for word in words {
        // SAFETY: within the bytes, and aligned after the head.
        unsafe { AtomicU64::from_ptr(at.cast()) }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at = at.wrapping_add(8);
    }
    for byte in tail {
        // SAFETY: as for the head.
        unsafe { AtomicU8::from_ptr(at) }.store(*byte, Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Access = Access::all();
    const PD: u32 = 1;

    fn register(memory: &Memory, bytes: &mut [u8], access: Access) -> Keys {
        // SAFETY: each test keeps its buffer until its end and looks at it only between copies.
        unsafe { memory.register(PD, bytes.as_mut_ptr(), bytes.len(), access) }.unwrap()
    }

    fn element(bytes: &mut [u8], offset: usize, length: usize, keys: Keys) -> Sge {
        Sge {
            addr: (bytes.as_mut_ptr().expose_provenance() + offset) as u64,
            length: length as u32,
            lkey: keys.lkey,
        }
    }

    #[test]
    fn every_alignment_split_and_offset_copies_all_bytes_and_no_other() {
        let memory = Memory::new(8);
        let mut bytes: Vec<u8> = (0..96).collect();
        let keys = register(&memory, &mut bytes, ALL);
        for place in 0..9 {
            for split in 0..17 {
                for offset in 0..20 {
                    bytes.iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
                    // Two pieces that lie apart, and one without bytes and with a wrong key between them.
                    let sges = [
                        element(&mut bytes, place, split, keys),
                        Sge {
                            addr: 0,
                            length: 0,
                            lkey: Lkey::new(0),
                        },
                        element(&mut bytes, place + split + 3, 40 - split, keys),
                    ];
                    let whole: Vec<u8> = (place..place + split)
                        .chain(place + split + 3..place + 43)
                        .map(|i| i as u8)
                        .collect();
                    let mut got = [0; 20];
                    memory.gather(PD, &sges, offset, &mut got).unwrap();
                    assert_eq!(got[..], whole[offset as usize..][..20]);

                    memory.scatter(PD, &sges, offset, &[0xee; 20]).unwrap();
                    let mut expected: Vec<u8> = (0..96).collect();
                    for i in &whole[offset as usize..][..20] {
                        expected[usize::from(*i)] = 0xee;
                    }
                    assert_eq!(bytes, expected, "place {place} split {split} offset {offset}");
                }
            }
        }
    }

    #[test]
    fn more_bytes_than_the_elements_hold_are_denied() {
        let memory = Memory::new(8);
        let mut bytes = vec![0; 16];
        let keys = register(&memory, &mut bytes, ALL);
        let sges = [element(&mut bytes, 0, 16, keys)];
        assert_eq!(memory.gather(PD, &sges, 8, &mut [0; 9]), Err(Denied));
        assert_eq!(memory.scatter(PD, &sges, 17, &[0; 1]), Err(Denied));
        assert_eq!(memory.gather(PD, &sges, 8, &mut [0; 8]), Ok(()));
    }

    #[test]
    fn a_key_covers_only_its_bytes_rights_domain_and_side() {
        let memory = Memory::new(8);
        let mut bytes = vec![0; 64];
        let keys = register(&memory, &mut bytes, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let at = RemoteAddr {
            addr: bytes.as_ptr() as u64,
            rkey: keys.rkey,
        };
        let check = |at, len, access| memory.check(PD, at, len, access);
        let read = Access::REMOTE_READ;
        let moved = |addr| RemoteAddr { addr, ..at };
        assert_eq!(check(at, 64, read), Ok(()));
        assert_eq!(check(at, 65, read), Err(Denied));
        assert_eq!(check(moved(at.addr - 1), 8, read), Err(Denied));
        assert_eq!(check(moved(at.addr + 57), 8, read), Err(Denied));
        assert_eq!(check(moved(u64::MAX), 8, read), Err(Denied));
        assert_eq!(check(at, 64, Access::REMOTE_WRITE), Err(Denied));
        assert_eq!(memory.write(PD, at, &[1]), Err(Denied));
        assert_eq!(memory.atomic(PD, at, |_| 0), Err(Denied));
        assert_eq!(memory.check(PD + 1, at, 64, read), Err(Denied));
        let lkey_as_rkey = RemoteAddr {
            rkey: Rkey::new(keys.lkey.get()),
            ..at
        };
        assert_eq!(check(lkey_as_rkey, 8, read), Err(Denied));
        let rkey_as_lkey = Sge {
            addr: at.addr,
            length: 8,
            lkey: Lkey::new(keys.rkey.get()),
        };
        assert_eq!(memory.gather(PD, &[rkey_as_lkey], 0, &mut [0; 8]), Err(Denied));
        memory.deregister(keys);
        assert_eq!(check(at, 8, read), Err(Denied));
        assert_eq!(check(at, 0, read), Ok(()), "of no bytes the key is not looked at");
    }

    #[test]
    fn atomics_work_on_aligned_words_only() {
        let memory = Memory::new(8);
        let mut words = [5u64, 6];
        let addr = words.as_mut_ptr();
        // SAFETY: the words outlive the table, and are looked at only after the changes.
        let keys = unsafe { memory.register(PD, addr.cast(), 16, ALL) }.unwrap();
        let at = |offset| RemoteAddr {
            addr: addr as u64 + offset,
            rkey: keys.rkey,
        };
        let add = |word: &AtomicU64| word.fetch_add(10, Ordering::AcqRel);
        assert_eq!(memory.atomic(PD, at(8), add), Ok(6));
        assert_eq!(memory.atomic(PD, at(4), add), Err(Denied));
        assert_eq!(memory.atomic(PD, at(16), add), Err(Denied));
        assert_eq!(words, [5, 16]);
    }

    #[test]
    fn registrations_are_limited() {
        let memory = Memory::new(2);
        let mut bytes = vec![0; 8];
        let first = register(&memory, &mut bytes, ALL);
        register(&memory, &mut bytes, ALL);
        // SAFETY: as in `register`.
        let third = unsafe { memory.register(PD, bytes.as_mut_ptr(), 8, ALL) };
        assert_eq!(third, Err(Errno::NOMEM));
        memory.deregister(first);
        register(&memory, &mut bytes, ALL);
    }
}
