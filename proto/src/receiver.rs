//! Incoming messages: order and reassembly.

use std::mem;
use std::ops::Range;

use adverb_wire::{Data, Header, Role};

use crate::ProtocolError;

/// What a received segment was.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// A whole message. Its bytes are in the segment, which the program may keep.
    Message(Incoming),
    /// The last fragment of a message, which is whole now. The segment is free.
    Assembled(Assembled),
    /// A fragment, which was copied. The segment is free.
    Fragment,
    /// A control message. The segment is free.
    Control,
}

impl Received {
    /// Whether the segment took one of the peer's data credits.
    pub fn is_data(&self) -> bool {
        !matches!(self, Self::Control)
    }
}

/// A message that came in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Its number, from 0.
    pub seq: u64,
    /// Which handler it is for.
    pub am_id: u16,
    /// What it expects, or answers.
    pub role: Role,
    /// Where in the segment the user header is.
    pub header: Range<usize>,
    /// Where in the segment the payload is.
    pub payload: Range<usize>,
}

/// A message that came in several segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// Its number, from 0.
    pub seq: u64,
    /// Which handler it is for.
    pub am_id: u16,
    /// What it expects, or answers.
    pub role: Role,
    /// Where the user header ends and the payload starts in `bytes`.
    pub header_len: usize,
    /// The message.
    pub bytes: Vec<u8>,
}

/// The receiving half of an endpoint.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The message that is due.
    seq: u64,
    /// What came of it.
    partial: Vec<u8>,
    /// What its first fragment said, if one came.
    first: Option<Data>,
    max_message: u32,
}

impl Receiver {
    pub(crate) fn new(max_message: u32) -> Self {
        Self {
            seq: 0,
            partial: Vec::new(),
            first: None,
            max_message,
        }
    }

    /// Messages that are whole: all below were handed out.
    pub(crate) fn delivered(&self) -> u64 {
        self.seq
    }

    /// Whether a message has begun and not ended.
    pub(crate) fn is_partial(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn data(&mut self, data: &Data, fragment: &[u8]) -> Result<Received, ProtocolError> {
        if data.message_len > self.max_message {
            return Err(ProtocolError::TooLarge {
                len: data.message_len,
                max: self.max_message,
            });
        }
        let due = self.partial.len() as u32;
        if (data.seq, data.offset) != (self.seq, due) {
            return Err(ProtocolError::OutOfOrder {
                seq: self.seq,
                offset: due,
                got_seq: data.seq,
                got_offset: data.offset,
            });
        }
        let header_len = usize::from(data.header_len);
        match self.first {
            None if data.is_last() => {
                self.seq += 1;
                let header_end = Header::DATA_LEN + header_len;
                return Ok(Received::Message(Incoming {
                    seq: data.seq,
                    am_id: data.am_id,
                    role: data.role,
                    header: Header::DATA_LEN..header_end,
                    payload: header_end..Header::DATA_LEN + fragment.len(),
                }));
            }
            None => {
                // The kernel gives the memory page by page as fragments fill it: a peer that only announces gets none.
                self.partial = Vec::with_capacity(data.message_len as usize);
                self.first = Some(*data);
            }
            Some(first) => {
                let told = |data: &Data| (data.am_id, data.header_len, data.message_len, data.role);
                if told(&first) != told(data) {
                    return Err(ProtocolError::Inconsistent { seq: data.seq });
                }
            }
        }
        self.partial.extend_from_slice(fragment);
        if !data.is_last() {
            return Ok(Received::Fragment);
        }
        self.first = None;
        self.seq += 1;
        let bytes = mem::take(&mut self.partial);
        Ok(Received::Assembled(Assembled {
            seq: data.seq,
            am_id: data.am_id,
            role: data.role,
            header_len,
            bytes,
        }))
    }
}
