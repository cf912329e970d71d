//! Outgoing messages: numbering, fragmentation, the queue of what must wait, and the solicited policy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use adverb_wire::{Data, Header, Role};

use crate::SendError;

/// At most this many bytes go unsolicited in a row.
const UNSOLICITED_BYTES: u64 = 1 << 20;

/// At most this long goes by without a solicited segment while unsolicited ones are sent.
const UNSOLICITED_TIME: Duration = Duration::from_millis(1);

/// How soon the receiver must see a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// At once: its last segment is solicited.
    #[default]
    Latency,
    /// With the rest of the burst: its last segment is solicited when nothing is queued behind it, and at the latest after a
    /// quarter of the window, 1 MiB or 1 ms of unsolicited segments.
    Bulk,
}

/// A message to send. The wire carries `header` directly before `payload`.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Which handler of the peer it is for.
    pub am_id: u16,
    /// The user header, at most 65535 bytes.
    pub header: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
    /// What it expects, or answers.
    pub role: Role,
    /// How soon the peer must see it.
    pub urgency: Urgency,
}

impl<'a> Outgoing<'a> {
    /// A message that the peer must see at once.
    pub fn new(am_id: u16, header: &'a [u8], payload: &'a [u8]) -> Self {
        Self {
            am_id,
            header,
            payload,
            role: Role::Message,
            urgency: Urgency::Latency,
        }
    }
}

/// A segment that was written into a lent buffer: one SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How many bytes of the buffer to send.
    pub len: usize,
    /// Whether the receiver must wake.
    pub solicited: bool,
    /// The message that ends with this segment: when the SEND completes, the peer's device has all of it.
    pub completes: Option<u64>,
}

/// Where segments go: lends a buffer at a time and takes it back filled.
pub trait Segments {
    /// A buffer for one more segment, which has `len` bytes if that many fit: the buffer is that long, or a whole segment. It is longer than
    /// [`Header::MAX_LEN`] in any case. `None` if there is no room now. Asked for twice without a commit in between, it may be the same one.
    fn next(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Sends the buffer that `next` lent last.
    fn commit(&mut self, segment: Segment);
}

/// What became of a message that was not confirmed before its endpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Nothing of it was sent.
    NotSent,
    /// Some of it was sent, and the peer did not say whether its program got it.
    MaybeDelivered,
    /// The peer's program got it.
    Delivered,
}

/// A message, or the rest of one, that waits for credits or for room.
#[derive(Debug)]
struct Queued {
    meta: Meta,
    /// The message's bytes from `start` on.
    bytes: Vec<u8>,
    /// Where in the message `bytes` start.
    start: u32,
    /// Where in the message the next fragment starts.
    offset: u32,
}

/// What all fragments of a message have in common.
#[derive(Clone, Copy, Debug)]
struct Meta {
    seq: u64,
    am_id: u16,
    header_len: u16,
    message_len: u32,
    role: Role,
    urgency: Urgency,
}

/// How a fragment gets its credit and its header's prefix: the endpoint's part in sending it.
pub(crate) trait Prefix {
    /// Data credits left.
    fn credits(&self) -> u32;
    /// Takes a credit and completes the header.
    fn data(&mut self, data: Data) -> Header;
}

/// The sending half of an endpoint.
#[derive(Debug)]
pub(crate) struct Sender {
    /// The number of the next message.
    next_seq: u64,
    /// Every message below was handed to the peer's program.
    acked: u64,
    /// Every message below was begun to be sent.
    begun: u64,
    /// Every message below was sent whole.
    finished: u64,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    max_queued_bytes: usize,
    peer_segment_size: usize,
    peer_max_message: u32,
    unsolicited: Unsolicited,
}

impl Sender {
    pub(crate) fn new(
        max_queued_bytes: usize,
        peer_segment_size: u32,
        peer_max_message: u32,
        peer_credits: u32,
    ) -> Self {
        Self {
            next_seq: 0,
            acked: 0,
            begun: 0,
            finished: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            max_queued_bytes,
            peer_segment_size: peer_segment_size as usize,
            peer_max_message,
            unsolicited: Unsolicited {
                quarter: (peer_credits / 4).max(1),
                segments: 0,
                bytes: 0,
                since: None,
            },
        }
    }

    /// Messages taken, which is the number of the next.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Messages sent whole.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// What is queued, in bytes. Each message counts its header too: empty ones must not pile up without end.
    fn queued(&self) -> usize {
        self.queued_bytes + self.queue.len() * Header::DATA_LEN
    }

    /// Whether half of what may be queued is free: then it pays to go on sending.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.is_empty() || self.queued() <= self.max_queued_bytes / 2
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The peer's program got every message below `ack`. Says whether all that was ever sent.
    pub(crate) fn on_ack(&mut self, ack: u64) -> bool {
        let sent = ack <= self.finished;
        if sent {
            self.acked = self.acked.max(ack);
        }
        sent
    }

    pub(crate) fn outcome(&self, seq: u64) -> Outcome {
        if seq < self.acked {
            Outcome::Delivered
        } else if seq < self.begun {
            Outcome::MaybeDelivered
        } else {
            Outcome::NotSent
        }
    }

    /// Takes a message: sends what credits and room allow at once, straight from the caller's bytes, and queues a copy of the rest.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        message: &Outgoing<'_>,
        prefix: &mut impl Prefix,
        out: &mut impl Segments,
    ) -> Result<u64, SendError> {
        let header_len = u16::try_from(message.header.len()).map_err(|_| SendError::HeaderTooLarge {
            len: message.header.len(),
        })?;
        let len = message.header.len() as u64 + message.payload.len() as u64;
        let message_len = u32::try_from(len)
            .ok()
            .filter(|len| *len <= self.peer_max_message)
            .ok_or(SendError::TooLarge {
                len,
                max: self.peer_max_message,
            })?;
        if !self.queue.is_empty()
            && self.queued().saturating_add(len as usize + Header::DATA_LEN) > self.max_queued_bytes
        {
            return Err(SendError::WouldBlock);
        }

        let seq = self.next_seq;
        self.next_seq += 1;
        let meta = Meta {
            seq,
            am_id: message.am_id,
            header_len,
            message_len,
            role: message.role,
            urgency: message.urgency,
        };
        let mut sent = Some(0);
        if self.queue.is_empty() {
            let source = [message.header, message.payload];
            sent = self.fragments(now, meta, 0, 0, &source, prefix, out);
        }
        if let Some(offset) = sent {
            let mut bytes = vec![0; (message_len - offset) as usize];
            copy(&[message.header, message.payload], offset as usize, &mut bytes);
            self.queued_bytes += bytes.len();
            self.queue.push_back(Queued {
                meta,
                bytes,
                start: offset,
                offset,
            });
        }
        Ok(seq)
    }

    /// Sends what is queued as far as credits and room allow.
    pub(crate) fn flush(&mut self, now: Instant, prefix: &mut impl Prefix, out: &mut impl Segments) {
        while let Some(mut queued) = self.queue.pop_front() {
            let source = [queued.bytes.as_slice(), &[]];
            match self.fragments(
                now,
                queued.meta,
                queued.start,
                queued.offset,
                &source,
                prefix,
                out,
            ) {
                None => self.queued_bytes -= queued.bytes.len(),
                Some(offset) => {
                    queued.offset = offset;
                    self.queue.push_front(queued);
                    return;
                }
            }
        }
    }

    /// Forgets what is queued, because the endpoint has ended.
    pub(crate) fn abandon(&mut self) {
        self.queue = VecDeque::new();
        self.queued_bytes = 0;
    }

    /// Sends fragments of one message from `offset` on, out of `source`, which starts at `start` of the message. Returns where
    /// it had to stop, or `None` if it came to the end.
    #[allow(
        clippy::too_many_arguments,
        reason = "called twice, from right above; a struct would only rename them"
    )]
    fn fragments(
        &mut self,
        now: Instant,
        meta: Meta,
        start: u32,
        mut offset: u32,
        source: &[&[u8]; 2],
        prefix: &mut impl Prefix,
        out: &mut impl Segments,
    ) -> Option<u32> {
        loop {
            if prefix.credits() == 0 {
                return Some(offset);
            }
            let rest = meta.message_len - offset;
            let Some(buffer) = out.next(Header::DATA_LEN + rest as usize) else {
                return Some(offset);
            };
            let limit = buffer.len().min(self.peer_segment_size);
            let Some((header_room, _)) = buffer.split_first_chunk_mut::<{ Header::MAX_LEN }>() else {
                return Some(offset);
            };
            let fragment_len = rest.min(limit.saturating_sub(Header::DATA_LEN) as u32);
            let data = Data {
                seq: meta.seq,
                am_id: meta.am_id,
                header_len: meta.header_len,
                message_len: meta.message_len,
                offset,
                role: meta.role,
                fragment_len,
            };
            let body = prefix.data(data).encode(header_room);
            let len = body + fragment_len as usize;
            copy(source, (offset - start) as usize, &mut buffer[body..len]);
            let last = data.is_last();
            let must_wake =
                prefix.credits() == 0 || last && (meta.urgency == Urgency::Latency || self.queue.is_empty());
            let solicited = self.unsolicited.decide(now, len, must_wake);
            out.commit(Segment {
                len,
                solicited,
                completes: last.then_some(meta.seq),
            });
            self.begun = meta.seq + 1;
            if last {
                self.finished = meta.seq + 1;
                return None;
            }
            offset += fragment_len;
        }
    }
}

/// How much went out since the last solicited segment.
#[derive(Debug)]
struct Unsolicited {
    /// A quarter of the peer's window, in segments.
    quarter: u32,
    segments: u32,
    bytes: u64,
    since: Option<Instant>,
}

impl Unsolicited {
    /// Decides for a segment of `len` bytes, which is solicited in any case if it `must_wake`.
    fn decide(&mut self, now: Instant, len: usize, must_wake: bool) -> bool {
        let since = *self.since.get_or_insert(now);
        self.segments += 1;
        self.bytes += len as u64;
        let solicited = must_wake
            || self.segments >= self.quarter
            || self.bytes >= UNSOLICITED_BYTES
            || now.saturating_duration_since(since) >= UNSOLICITED_TIME;
        if solicited {
            (self.segments, self.bytes, self.since) = (0, 0, None);
        }
        solicited
    }
}

/// Copies from two slices that stand for one, from `offset` on, as much as fits `into`.
fn copy(source: &[&[u8]; 2], offset: usize, into: &mut [u8]) {
    let [first, second] = source;
    let head = first.get(offset..).unwrap_or(&[]);
    let head_len = head.len().min(into.len());
    into[..head_len].copy_from_slice(&head[..head_len]);
    let tail = second.get(offset.saturating_sub(first.len())..).unwrap_or(&[]);
    let tail_len = tail.len().min(into.len() - head_len);
    into[head_len..head_len + tail_len].copy_from_slice(&tail[..tail_len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slices_are_read_as_one() {
        let source: [&[u8]; 2] = [b"abc", b"defg"];
        for offset in 0..=7 {
            for len in 0..=7 - offset {
                let mut into = vec![0; len];
                copy(&source, offset, &mut into);
                assert_eq!(into, b"abcdefg"[offset..offset + len]);
            }
        }
    }

    #[test]
    fn unsolicited_runs_are_bounded_by_count_bytes_and_time() {
        let now = Instant::now();
        let new = || Unsolicited {
            quarter: 4,
            segments: 0,
            bytes: 0,
            since: None,
        };

        let mut by_count = new();
        let decisions: Vec<bool> = (0..8).map(|_| by_count.decide(now, 1, false)).collect();
        assert_eq!(decisions, [false, false, false, true, false, false, false, true]);

        let mut by_bytes = new();
        assert!(!by_bytes.decide(now, 1 << 19, false));
        assert!(by_bytes.decide(now, 1 << 19, false));

        let mut by_time = new();
        assert!(!by_time.decide(now, 1, false));
        assert!(by_time.decide(now + UNSOLICITED_TIME, 1, false));
    }
}
