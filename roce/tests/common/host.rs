//! A device of plain memory, one region of all rights, and lists of what happened.

use std::collections::VecDeque;

use adverb_roce::{Completion, Denied, Host, Receive};
use adverb_verbs::{Access, AsyncEventKind, RemoteAddr, Sge};

use super::KEY;

/// Memory, addressed from 0.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    /// Whether the region is registered.
    pub(crate) registered: bool,
}

impl Memory {
    fn slice(&mut self, key: u32, addr: u64, len: usize) -> Result<&mut [u8], Denied> {
        let start = usize::try_from(addr).map_err(|_| Denied)?;
        let end = start.checked_add(len).ok_or(Denied)?;
        if key != KEY || !self.registered {
            return Err(Denied);
        }
        self.bytes.get_mut(start..end).ok_or(Denied)
    }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct TestHost {
    pub(crate) memory: Memory,
    pub(crate) srq: VecDeque<Receive>,
    pub(crate) sent: Vec<Completion>,
    pub(crate) received: Vec<Completion>,
    pub(crate) events: Vec<AsyncEventKind>,
    /// What atomic operations found, in the order in which they were carried out.
    pub(crate) atomics: Vec<u64>,
}

impl TestHost {
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            memory: Memory {
                bytes: vec![0; memory],
                registered: true,
            },
            srq: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            atomics: Vec::new(),
        }
    }

    /// Calls `visit` with each piece of local memory from `offset` on, and how far it lies from there.
    fn pieces(
        &mut self,
        sges: &[Sge],
        offset: u32,
        len: usize,
        mut visit: impl FnMut(&mut [u8], usize),
    ) -> Result<(), Denied> {
        let (mut skip, mut done) = (u64::from(offset), 0);
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let n = ((length - skip) as usize).min(len - done);
            visit(self.memory.slice(sge.lkey.get(), sge.addr + skip, n)?, done);
            (skip, done) = (0, done + n);
            if done == len {
                break;
            }
        }
        assert_eq!(done, len, "the queue pair asks for more than the elements hold");
        Ok(())
    }

    fn word(&mut self, at: RemoteAddr, change: impl FnOnce(u64) -> u64) -> Result<u64, Denied> {
        let bytes = self.memory.slice(at.rkey.get(), at.addr, 8)?;
        let old = u64::from_ne_bytes(bytes.try_into().unwrap());
        bytes.copy_from_slice(&change(old).to_ne_bytes());
        self.atomics.push(old);
        Ok(old)
    }
}

impl Host for TestHost {
    fn gather(&mut self, sges: &[Sge], offset: u32, into: &mut [u8]) -> Result<(), Denied> {
        self.pieces(sges, offset, into.len(), |piece, at| {
            into[at..at + piece.len()].copy_from_slice(piece);
        })
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, from: &[u8]) -> Result<(), Denied> {
        self.pieces(sges, offset, from.len(), |piece, at| {
            piece.copy_from_slice(&from[at..at + piece.len()]);
        })
    }

    fn check(&mut self, at: RemoteAddr, len: u32, _: Access) -> Result<(), Denied> {
        if len > 0 {
            self.memory.slice(at.rkey.get(), at.addr, len as usize)?;
        }
        Ok(())
    }

    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), Denied> {
        into.copy_from_slice(self.memory.slice(at.rkey.get(), at.addr, into.len())?);
        Ok(())
    }

    fn write(&mut self, at: RemoteAddr, from: &[u8]) -> Result<(), Denied> {
        self.memory
            .slice(at.rkey.get(), at.addr, from.len())?
            .copy_from_slice(from);
        Ok(())
    }

    fn compare_swap(&mut self, at: RemoteAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        self.word(at, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&mut self, at: RemoteAddr, add: u64) -> Result<u64, Denied> {
        self.word(at, |old| old.wrapping_add(add))
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.srq.pop_front()
    }

    fn untake_receive(&mut self, receive: Receive) {
        self.srq.push_front(receive);
    }

    fn complete(&mut self, completion: Completion) {
        if completion.recv {
            self.received.push(completion);
        } else {
            self.sent.push(completion);
        }
    }

    fn raise(&mut self, event: AsyncEventKind) {
        self.events.push(event);
    }
}
