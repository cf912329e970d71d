//! Where the protocol core writes its segments: slots of the worker's pool, collected into one list of work requests.

use adverb_proto::{Segment, Segments};
use adverb_verbs::{Buffer, SendFlags, SendOp, SendRequest, Slot, SlotPool};

/// Collects requests until the send queue is full.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    pub(crate) pool: &'a SlotPool,
    pub(crate) requests: &'a mut Vec<SendRequest>,
    /// The slot that the core is writing.
    pub(crate) lent: Option<Slot>,
    /// Requests that the send queue takes.
    pub(crate) room: usize,
    /// Bytes that go inline.
    pub(crate) max_inline: usize,
    /// Set when the pool had no slot.
    pub(crate) starved: bool,
}

impl Segments for Outbox<'_> {
    fn next(&mut self) -> Option<&mut [u8]> {
        if self.requests.len() >= self.room {
            return None;
        }
        if self.lent.is_none() {
            self.lent = self.pool.take();
            self.starved = self.lent.is_none();
        }
        self.lent.as_mut().map(Slot::as_mut_slice)
    }

    fn commit(&mut self, segment: Segment) {
        let Some(slot) = self.lent.take() else { return };
        // One more than the message's number, so that 0 is left for what completes no message.
        let cookie = segment.completes.map_or(0, |seq| seq + 1);
        let mut request = SendRequest::new(SendOp::Send).cookie(cookie);
        if segment.solicited {
            request.flags |= SendFlags::SOLICITED;
        }
        if segment.len <= self.max_inline {
            request.flags |= SendFlags::INLINE;
        }
        // A new request has room for the one buffer.
        let _ = request.push(Buffer::slot(slot, segment.len));
        self.requests.push(request);
    }
}
