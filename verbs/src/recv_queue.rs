//! A receive queue that owns what is posted to it until the device is done.

use std::fmt;
use std::mem;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::{
    PostError, Qp, QpModify, RecvWr, Sge, Slot, Srq, VerbsError, WcStatus, WorkCompletion, WrId, WrKind,
};

/// Receives handed to the device in one call.
const BATCH: usize = 32;

/// A receive that the device is done with.
#[derive(Debug)]
pub struct Received {
    /// Its memory.
    pub slot: Slot,
    /// Bytes received; 0 if it failed.
    pub len: usize,
}

/// A receive queue, shared or a queue pair's own, with the slots that are posted to it.
pub struct RecvQueue {
    /// Before `posted`, so that it is dropped before it.
    target: Target,
    /// By ticket; `None` is free.
    posted: Vec<Option<Slot>>,
    free: Vec<u32>,
    owner: u32,
    generation: u16,
}

#[derive(Debug)]
enum Target {
    Srq(Arc<dyn Srq>),
    Qp(Arc<dyn Qp>),
}

impl RecvQueue {
    /// Takes over a shared receive queue: nothing else may post to it.
    pub fn on_srq(srq: Arc<dyn Srq>) -> Self {
        let capacity = srq.capacity();
        Self::new(Target::Srq(srq), capacity, 0, 0)
    }

    /// Takes over a queue pair's own receive queue: nothing else may post to it. `owner` and `generation` go into the
    /// [`WrId`] of every receive.
    pub fn on_qp(qp: Arc<dyn Qp>, owner: u32, generation: u16) -> Self {
        let capacity = qp.caps().max_recv_wr;
        Self::new(Target::Qp(qp), capacity, owner, generation)
    }

    fn new(target: Target, capacity: u32, owner: u32, generation: u16) -> Self {
        let capacity = capacity.min(WrId::TICKETS);
        Self {
            target,
            posted: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            owner,
            generation,
        }
    }

    /// Receives posted and not completed.
    pub fn posted(&self) -> usize {
        self.posted.len() - self.free.len()
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Posts `slots` from the front, until they or the room end, and removes those that the device accepted.
    ///
    /// # Errors
    /// [`PostError`]; what was not accepted stays in `slots`.
    pub fn post(&mut self, slots: &mut Vec<Slot>) -> Result<(), PostError> {
        let mut accepted = 0;
        while !slots.is_empty() && !self.free.is_empty() {
            let n = slots.len().min(BATCH).min(self.free.len());
            let (batch, result) = self.post_batch(&slots[..n]);
            for slot in slots.drain(..batch) {
                if let Some(index) = self.free.pop() {
                    self.posted[index as usize] = Some(slot);
                }
            }
            accepted += batch;
            if let Err(source) = result {
                return Err(PostError { accepted, source });
            }
        }
        Ok(())
    }

    /// Hands one batch to the device under the tickets at the end of `free`, which the caller then takes.
    fn post_batch(&self, slots: &[Slot]) -> (usize, Result<(), VerbsError>) {
        // Filled in place: collected, they would be copied whole, however few there are.
        let mut sges: ArrayVec<[Sge; 1], BATCH> = ArrayVec::new();
        sges.extend(slots.iter().map(|slot| [slot.sge(0, u32::MAX)]));
        let mut wrs: ArrayVec<RecvWr<'_>, BATCH> = ArrayVec::new();
        let tickets = self.free.iter().rev();
        wrs.extend(sges.iter().zip(tickets).map(|(sges, ticket)| RecvWr {
            wr_id: WrId::new(WrKind::Recv, self.owner, self.generation, *ticket).raw(),
            sges,
        }));
        let result = match &self.target {
            // SAFETY: every element is a slot that `post` moves into `posted` if it was accepted, from where only
            // `complete` takes it, after the device said it is done, or `Drop`, after the queue is gone. Slots are exclusive.
            Target::Srq(srq) => unsafe { srq.post_recv(&wrs) },
            // SAFETY: as above.
            Target::Qp(qp) => unsafe { qp.post_recv(&wrs) },
        };
        match result {
            Ok(()) => (wrs.len(), Ok(())),
            Err(error) => (error.accepted.min(wrs.len()), Err(error.source)),
        }
    }

    /// Takes a completion of this queue and gives back the slot. `None` if it is none of its receives.
    pub fn complete(&mut self, wc: &WorkCompletion) -> Option<Received> {
        let id = WrId::from_raw(wc.wr_id)?;
        if (id.kind(), id.owner(), id.generation()) != (WrKind::Recv, self.owner, self.generation) {
            return None;
        }
        let slot = self.posted.get_mut(id.ticket() as usize)?.take()?;
        self.free.push(id.ticket());
        // An RDMA WRITE with immediate reports the length of the write, which did not land here.
        let received = wc.status == WcStatus::Success && wc.opcode == crate::WcOpcode::Recv;
        let len = if received {
            (wc.byte_len as usize).min(slot.capacity())
        } else {
            0
        };
        Some(Received { slot, len })
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("target", &self.target)
            .field("posted", &self.posted())
            .finish()
    }
}

impl Drop for RecvQueue {
    fn drop(&mut self) {
        if self.posted() == 0 {
            return;
        }
        let done = match &mut self.target {
            // Queue pairs hold the `Arc` they were created with: ours is the last only when all of them are destroyed. It
            // is then dropped before the slots, because its field comes first.
            Target::Srq(srq) => Arc::get_mut(srq).is_some(),
            Target::Qp(qp) => qp.modify(&QpModify::Reset).is_ok(),
        };
        if !done {
            tracing::error!(
                posted = self.posted(),
                "a receive queue outlives its owner: the memory posted to it is leaked"
            );
            mem::forget(mem::take(&mut self.posted));
        }
    }
}
