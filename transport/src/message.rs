//! Messages as handlers receive them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use adverb_verbs::Slot;
use bytes::Bytes;

use crate::receive::Returns;
use crate::table::Place;

/// A received message. It owns its memory: keep it, hand it to another thread, drop it anywhere.
///
/// A message of one segment lies in the receive buffer that the device wrote it to. While it is kept, the peer lacks that credit;
/// copy it with [`Message::into_bytes`] if it is to be kept for long.
pub struct Message {
    am_id: u16,
    storage: Storage,
    header: Range<usize>,
    payload: Range<usize>,
}

enum Storage {
    /// `None` only while it is dropped.
    Slot(Option<Slot>, Arc<Returns>, Place),
    Heap(Vec<u8>),
}

impl Message {
    pub(crate) fn in_slot(
        incoming: adverb_proto::Incoming,
        slot: Slot,
        returns: Arc<Returns>,
        place: Place,
    ) -> Self {
        let adverb_proto::Incoming {
            am_id,
            header,
            payload,
            ..
        } = incoming;
        Self {
            am_id,
            storage: Storage::Slot(Some(slot), returns, place),
            header,
            payload,
        }
    }

    pub(crate) fn assembled(assembled: adverb_proto::Assembled) -> Self {
        let adverb_proto::Assembled {
            am_id,
            header_len,
            bytes,
            ..
        } = assembled;
        let len = bytes.len();
        Self {
            am_id,
            storage: Storage::Heap(bytes),
            header: 0..header_len,
            payload: header_len..len,
        }
    }

    /// The id that it was sent with.
    pub fn id(&self) -> u16 {
        self.am_id
    }

    /// The user header.
    pub fn header(&self) -> &[u8] {
        self.bytes().get(self.header.clone()).unwrap_or(&[])
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.bytes().get(self.payload.clone()).unwrap_or(&[])
    }

    /// The payload as [`Bytes`]. A message of several segments is not copied; one of a single segment is, so that its receive
    /// buffer goes back at once. Allocates once.
    pub fn into_bytes(mut self) -> Bytes {
        match &mut self.storage {
            Storage::Slot(..) => Bytes::copy_from_slice(self.payload()),
            Storage::Heap(bytes) => Bytes::from(std::mem::take(bytes)).slice(self.payload.clone()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Slot(Some(slot), ..) => slot.as_slice(),
            Storage::Slot(None, ..) => &[],
            Storage::Heap(bytes) => bytes,
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Storage::Slot(slot, returns, place) = &mut self.storage
            && let Some(slot) = slot.take()
        {
            returns.give_back(slot, *place);
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.am_id)
            .field("header_len", &self.header.len())
            .field("payload_len", &self.payload.len())
            .finish()
    }
}
