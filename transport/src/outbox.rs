//! Where the protocol core writes its segments, collected into one list of work requests: what goes inline, memory of the connection's own; all else,
//! slots of the worker's pool.

use adverb_proto::{Segment, Segments};
use adverb_verbs::{Buffer, SendFlags, SendOp, SendRequest, Slot, SlotPool};

/// Collects requests until the send queue is full.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    pub(crate) pool: &'a SlotPool,
    pub(crate) requests: &'a mut Vec<SendRequest>,
    /// Memory for a segment that goes inline, if none of the list has it already. Registered memory is not needed for it, nor anything that other
    /// connections share.
    pub(crate) inline: &'a mut Option<Box<[u8]>>,
    /// What the core is writing.
    pub(crate) lent: Option<Lent>,
    /// Requests that the send queue takes.
    pub(crate) room: usize,
    /// Bytes that go inline.
    pub(crate) max_inline: usize,
    /// Set when the pool had no slot.
    pub(crate) starved: bool,
}

/// Memory that the core is writing.
#[derive(Debug)]
pub(crate) enum Lent {
    Inline(Box<[u8]>),
    Slot(Slot),
}

impl Segments for Outbox<'_> {
    fn next(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.requests.len() >= self.room {
            return None;
        }
        let fits = |lent: &Lent| match lent {
            Lent::Inline(bytes) => len <= bytes.len(),
            Lent::Slot(_) => true,
        };
        if !self.lent.as_ref().is_some_and(fits) {
            self.give_back();
            let inline = self.inline.take_if(|bytes| len <= bytes.len());
            self.lent = inline
                .map(Lent::Inline)
                .or_else(|| self.pool.take().map(Lent::Slot));
            self.starved = self.lent.is_none();
        }
        self.lent.as_mut().map(|lent| match lent {
            Lent::Inline(bytes) => &mut **bytes,
            Lent::Slot(slot) => slot.as_mut_slice(),
        })
    }

    fn commit(&mut self, segment: Segment) {
        let buffer = match self.lent.take() {
            Some(Lent::Inline(bytes)) => Buffer::unregistered(bytes, segment.len),
            Some(Lent::Slot(slot)) => Buffer::slot(slot, segment.len),
            None => return,
        };
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
        let _ = request.push(buffer);
        self.requests.push(request);
    }
}

impl Outbox<'_> {
    /// Takes back what was lent and not used.
    pub(crate) fn give_back(&mut self) {
        if let Some(Lent::Inline(bytes)) = self.lent.take() {
            *self.inline = Some(bytes);
        }
    }
}
