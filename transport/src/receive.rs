//! A worker's receives: what is posted, what is spare, and how the memory of messages comes back.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::ptr;
use std::sync::Arc;

use adverb_progress::Notifier;
use adverb_verbs::{
    Access, Pd, PostError, Qp, Received, RecvQueue, Slot, SlotPool, Srq, VerbsError, WorkCompletion, WrId,
};
use crossbeam_queue::ArrayQueue;

use crate::table::Place;

/// Slots are registered in chunks of at least so many bytes, so that registrations stay few.
const CHUNK_BYTES: usize = 256 << 10;

/// The way back of receive slots from messages that the program dropped, on whatever thread.
pub(crate) struct Returns {
    queue: ArrayQueue<(Slot, Place)>,
    notifier: Notifier,
}

impl Returns {
    pub(crate) fn new(capacity: usize, notifier: Notifier) -> Arc<Self> {
        Arc::new(Self {
            queue: ArrayQueue::new(capacity.max(1)),
            notifier,
        })
    }

    /// Gives back the slot of a message of this endpoint. Lock-free; wakes the worker if it sleeps, because the peer may wait for the credit.
    pub(crate) fn give_back(&self, slot: Slot, place: Place) {
        let Some((slot, place)) = self.put_at_hand(slot, place) else {
            return;
        };
        if self.queue.push((slot, place)).is_err() {
            // It holds as many as receives exist. The slot went back to its pool, and only the credit is lost.
            tracing::error!(?place, "the queue of returned receives is full");
        }
        self.notifier.wake();
    }

    /// If this thread drives the worker, and a handler dropped the message, nobody else need hear of the slot.
    fn put_at_hand(&self, slot: Slot, place: Place) -> Option<(Slot, Place)> {
        let mut returned = Some((slot, place));
        // There is none while a thread ends.
        let _ = AT_HAND.try_with(|at_hand| {
            if let Some(at_hand) = &mut *at_hand.borrow_mut()
                && ptr::eq(at_hand.of, self)
            {
                at_hand.slots.extend(returned.take());
            }
        });
        returned
    }

    /// Has slots that this thread gives back put into `slots`, until the answer is dropped.
    pub(crate) fn collect<'a>(self: &Arc<Self>, slots: &'a mut Vec<(Slot, Place)>) -> Collecting<'a> {
        let ours = AtHand {
            of: Arc::as_ptr(self),
            slots: mem::take(slots),
        };
        Collecting {
            slots,
            outer: AT_HAND.with(|at_hand| at_hand.replace(Some(ours))),
        }
    }

    pub(crate) fn take(&self) -> Option<(Slot, Place)> {
        // A queue that is looked into costs less than one that is taken from in vain.
        self.is_pending().then(|| self.queue.pop()).flatten()
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.queue.is_empty()
    }
}

impl fmt::Debug for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returns").field("len", &self.queue.len()).finish()
    }
}

thread_local! {
    static AT_HAND: RefCell<Option<AtHand>> = const { RefCell::new(None) };
}

/// Slots of the worker whose handlers run on this thread. A handler may drive another worker, whose come first meanwhile.
struct AtHand {
    /// Only to be compared.
    of: *const Returns,
    slots: Vec<(Slot, Place)>,
}

/// While this exists, slots that this thread gives back to a worker are put into a list.
pub(crate) struct Collecting<'a> {
    slots: &'a mut Vec<(Slot, Place)>,
    outer: Option<AtHand>,
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        let ours = AT_HAND.with(|at_hand| at_hand.replace(self.outer.take()));
        *self.slots = ours.map_or_else(Vec::new, |ours| ours.slots);
    }
}

/// The receives of a worker.
///
/// Each endpoint has a share: its window and the control reserve. The sum of the shares is posted, less what messages that the
/// program still holds take, so that whatever the peers' credits allow meets a receive.
#[derive(Debug)]
pub(crate) struct Receives {
    queues: Queues,
    share: usize,
    /// Receives that should be posted on the shared queue.
    target: usize,
    spare: Vec<Slot>,
    pools: Vec<SlotPool>,
    slot_size: usize,
    /// Slots on their way to the device, kept for its memory.
    posting: Vec<Slot>,
}

#[derive(Debug)]
enum Queues {
    Shared(RecvQueue),
    /// By the endpoint's index.
    Own(HashMap<u32, RecvQueue>),
}

impl Receives {
    pub(crate) fn new(srq: Option<Arc<dyn Srq>>, share: usize, slot_size: usize) -> Self {
        let queues = match srq {
            Some(srq) => Queues::Shared(RecvQueue::on_srq(srq)),
            None => Queues::Own(HashMap::new()),
        };
        Self {
            queues,
            share,
            target: 0,
            spare: Vec::new(),
            pools: Vec::new(),
            slot_size,
            posting: Vec::new(),
        }
    }

    /// Posts the share of a new endpoint.
    pub(crate) fn admit(&mut self, pd: &dyn Pd, place: Place, qp: &Arc<dyn Qp>) -> Result<(), VerbsError> {
        let Place {
            index: endpoint,
            generation,
        } = place;
        let missing = match &mut self.queues {
            Queues::Shared(queue) => (self.target + self.share).saturating_sub(queue.posted()),
            Queues::Own(queues) => {
                queues.insert(endpoint, RecvQueue::on_qp(Arc::clone(qp), endpoint, generation));
                self.share
            }
        };
        self.stock(pd, missing)?;
        self.target += self.share;
        self.posting
            .extend(self.spare.drain(self.spare.len() - missing..));
        self.post(Some(endpoint)).map_err(|error| {
            self.leave(endpoint);
            error.source
        })
    }

    /// Makes sure that `n` slots are spare.
    fn stock(&mut self, pd: &dyn Pd, n: usize) -> Result<(), VerbsError> {
        self.spare.extend(
            self.pools
                .iter()
                .flat_map(|pool| std::iter::from_fn(|| pool.take())),
        );
        let missing = n.saturating_sub(self.spare.len());
        if missing > 0 {
            let count = missing.max(CHUNK_BYTES / self.slot_size.max(1));
            let pool = SlotPool::new(pd, self.slot_size, count, Access::LOCAL_WRITE)?;
            self.spare.extend(std::iter::from_fn(|| pool.take()));
            self.pools.push(pool);
        }
        Ok(())
    }

    /// Takes the share of an endpoint that is gone out of the reckoning. Its queue, if it has one of its own, goes with its queue pair.
    pub(crate) fn leave(&mut self, endpoint: u32) {
        self.target = self.target.saturating_sub(self.share);
        if let Queues::Own(queues) = &mut self.queues {
            queues.remove(&endpoint);
        }
    }

    /// Takes a completion and gives the slot.
    pub(crate) fn complete(&mut self, wc: &WorkCompletion) -> Option<Received> {
        match &mut self.queues {
            Queues::Shared(queue) => queue.complete(wc),
            Queues::Own(queues) => queues.get_mut(&WrId::from_raw(wc.wr_id)?.owner())?.complete(wc),
        }
    }

    /// Posts the slots of `returned` again, or keeps them if enough are posted. `endpoint` is whose they were, if it is still there.
    pub(crate) fn put_back(
        &mut self,
        endpoint: Option<u32>,
        returned: impl IntoIterator<Item = Slot>,
    ) -> Result<(), PostError> {
        let room = match &self.queues {
            Queues::Shared(queue) => self.target.saturating_sub(queue.posted()),
            Queues::Own(queues) => endpoint
                .and_then(|index| queues.get(&index))
                .map_or(0, RecvQueue::free),
        };
        for slot in returned {
            let destination = if self.posting.len() < room {
                &mut self.posting
            } else {
                &mut self.spare
            };
            destination.push(slot);
        }
        self.post(endpoint)
    }

    fn post(&mut self, endpoint: Option<u32>) -> Result<(), PostError> {
        let queue = match &mut self.queues {
            Queues::Shared(queue) => Some(queue),
            Queues::Own(queues) => endpoint.and_then(|index| queues.get_mut(&index)),
        };
        let posted = queue.map_or(Ok(()), |queue| queue.post(&mut self.posting));
        self.spare.append(&mut self.posting);
        posted
    }
}
