//! A send queue that owns what is posted to it until the device is done.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use crate::{
    ErrorKind, Lkey, PostError, Qp, QpModify, Region, SendFlags, SendOp, SendWr, Sge, Slot, VerbsError,
    WcStatus, WorkCompletion, WrId, WrKind,
};

/// Most buffers of one request.
pub const MAX_SGE: usize = 4;

/// Requests handed to the device in one call.
const BATCH: usize = 16;

/// Local memory of a request. The device has it from the post to the completion.
#[derive(Debug)]
pub enum Buffer {
    /// A piece of a slot.
    Slot {
        /// The slot.
        slot: Slot,
        /// Where the piece starts, in bytes.
        offset: u32,
        /// How long it is, in bytes.
        len: u32,
    },
    /// A piece of a region.
    Region {
        /// The region.
        region: Arc<Region>,
        /// Where the piece starts, in bytes.
        offset: usize,
        /// How long it is, in bytes.
        len: u32,
    },
    /// The beginning of memory that is not registered. It can only be posted inline.
    Unregistered {
        /// The memory.
        bytes: Box<[u8]>,
        /// How long the piece is, in bytes.
        len: u32,
    },
}

impl Buffer {
    /// The first `len` bytes of memory that is not registered, to be posted inline.
    pub fn unregistered(bytes: Box<[u8]>, len: usize) -> Self {
        let len = len.min(bytes.len()) as u32;
        Self::Unregistered { bytes, len }
    }

    /// The memory, if it is not registered.
    pub fn into_unregistered(self) -> Option<Box<[u8]>> {
        match self {
            Self::Unregistered { bytes, .. } => Some(bytes),
            Self::Slot { .. } | Self::Region { .. } => None,
        }
    }

    /// The first `len` bytes of `slot`.
    pub fn slot(slot: Slot, len: usize) -> Self {
        let len = len.min(slot.capacity()) as u32;
        Self::Slot { slot, offset: 0, len }
    }

    /// The 8 bytes at the start of the slot, in native byte order: the old value that an atomic operation brought. `None` if it is no slot, or too
    /// small a one.
    pub fn word(&self) -> Option<u64> {
        match self {
            Self::Slot { slot, .. } => slot.as_slice().first_chunk().copied().map(u64::from_ne_bytes),
            Self::Region { .. } | Self::Unregistered { .. } => None,
        }
    }

    fn is_unregistered(&self) -> bool {
        matches!(self, Self::Unregistered { .. })
    }

    fn sge(&self) -> Sge {
        match self {
            Self::Slot { slot, offset, len } => slot.sge(*offset, *len),
            Self::Region { region, offset, len } => {
                let offset = (*offset).min(region.len());
                let rest = u32::try_from(region.len() - offset).unwrap_or(u32::MAX);
                Sge {
                    addr: region.addr() + offset as u64,
                    length: (*len).min(rest),
                    lkey: region.lkey(),
                }
            }
            Self::Unregistered { bytes, len } => Sge {
                addr: bytes.as_ptr() as u64,
                length: *len,
                // Not looked at where the data is copied at the post (`ibv_post_send(3)`).
                lkey: Lkey::new(0),
            },
        }
    }
}

/// Buffers of a request. One is the rule; that one lies in place, and moving requests about is cheap.
pub type Buffers = SmallVec<[Buffer; 1]>;

/// What to post.
#[derive(Debug)]
pub struct SendRequest {
    /// What to do.
    pub op: SendOp,
    /// With which memory.
    pub buffers: Buffers,
    /// How.
    pub flags: SendFlags,
    /// Comes back in [`Retired`].
    pub cookie: u64,
}

impl SendRequest {
    /// A request without memory and flags.
    pub fn new(op: SendOp) -> Self {
        Self {
            op,
            buffers: Buffers::new(),
            flags: SendFlags::empty(),
            cookie: 0,
        }
    }

    /// Adds memory. More than [`MAX_SGE`] pieces are refused.
    ///
    /// # Errors
    /// The buffer, if there is no room for it.
    pub fn push(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        if self.buffers.len() >= MAX_SGE {
            return Err(buffer);
        }
        self.buffers.push(buffer);
        Ok(())
    }

    /// Sets flags.
    #[must_use]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Names the request.
    #[must_use]
    pub fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }
}

/// A request that the device is done with.
#[derive(Debug)]
pub struct Retired {
    /// The request's name.
    pub cookie: u64,
    /// How it ended.
    pub status: WcStatus,
    /// Its memory; empty if it was posted inline.
    pub buffers: Buffers,
}

/// The send queue of a queue pair, with the memory of all that is in flight on it.
///
/// RC completes sends in order, so that one completion retires the unsignaled requests before it, too (IBTA volume 1,
/// section 10.8.5). A slot in the queue counts until then: [`SendQueue::free`] is what can be posted now.
pub struct SendQueue {
    qp: Arc<dyn Qp>,
    in_flight: VecDeque<InFlight>,
    /// The ticket of the front of `in_flight`.
    first: u32,
    owner: u32,
    generation: u16,
    depth: usize,
    max_inline: u32,
    max_sge: usize,
}

#[derive(Debug)]
struct InFlight {
    cookie: u64,
    buffers: Buffers,
}

impl SendQueue {
    /// Takes over the send queue of `qp`: nothing else may post to it. `owner` and `generation` go into the
    /// [`WrId`] of every request.
    pub fn new(qp: Arc<dyn Qp>, owner: u32, generation: u16) -> Self {
        let caps = qp.caps();
        let depth = caps.max_send_wr as usize;
        Self {
            qp,
            in_flight: VecDeque::with_capacity(depth),
            first: 0,
            owner,
            generation,
            depth,
            max_inline: caps.max_inline_data,
            max_sge: (caps.max_send_sge as usize).min(MAX_SGE),
        }
    }

    /// Keeps no more than `depth` requests in flight, though the device may hold more: for who has sized a completion queue by it.
    #[must_use]
    pub fn limited_to(mut self, depth: u32) -> Self {
        self.depth = self.depth.min(depth as usize);
        self
    }

    /// The queue pair.
    pub fn qp(&self) -> &Arc<dyn Qp> {
        &self.qp
    }

    /// Requests that can be posted now.
    pub fn free(&self) -> usize {
        self.depth - self.in_flight.len()
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Bytes that a request may carry inline.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Posts `requests` in order, as one list, and removes those that the device accepted from the front. Inline buffers are dropped at once.
    ///
    /// # Errors
    /// [`PostError`]; what was not accepted stays in `requests`. More than [`SendQueue::free`] requests are not accepted
    /// (`ENOMEM`, as libibverbs says it), nor is one whose memory is [not registered](Buffer::Unregistered) and that is not inline.
    pub fn post(&mut self, requests: &mut Vec<SendRequest>) -> Result<(), PostError> {
        self.post_with(requests, drop)
    }

    /// Like [`SendQueue::post`], but hands the buffers of requests that were posted inline to `spent`.
    ///
    /// # Errors
    /// As for [`SendQueue::post`].
    pub fn post_with(
        &mut self,
        requests: &mut Vec<SendRequest>,
        mut spent: impl FnMut(Buffer),
    ) -> Result<(), PostError> {
        let mut accepted = 0;
        while !requests.is_empty() {
            let n = requests.len().min(BATCH).min(self.free());
            let (batch, result) = if n == 0 {
                (
                    0,
                    Err(self.refuse(ErrorKind::Os(rustix::io::Errno::NOMEM.raw_os_error()))),
                )
            } else {
                self.post_batch(&requests[..n])
            };
            for request in requests.drain(..batch) {
                let SendRequest {
                    buffers,
                    flags,
                    cookie,
                    ..
                } = request;
                let buffers = if flags.contains(SendFlags::INLINE) {
                    buffers.into_iter().for_each(&mut spent);
                    Buffers::new()
                } else {
                    buffers
                };
                self.in_flight.push_back(InFlight { cookie, buffers });
            }
            accepted += batch;
            if let Err(error) = result {
                return Err(PostError {
                    accepted,
                    source: error,
                });
            }
        }
        Ok(())
    }

    /// Hands one batch to the device and says how many requests it accepted. The caller moves those into `in_flight`.
    fn post_batch(&self, requests: &[SendRequest]) -> (usize, Result<(), VerbsError>) {
        let mut sges: ArrayVec<Sge, { BATCH * MAX_SGE }> = ArrayVec::new();
        let mut ends: ArrayVec<usize, BATCH> = ArrayVec::new();
        for request in requests {
            if let Some(kind) = self.objection(request) {
                // Those before it go out first, so that the error names the right one.
                return match self.post_batch(&requests[..ends.len()]) {
                    (accepted, Ok(())) => (accepted, Err(self.refuse(kind))),
                    failed => failed,
                };
            }
            sges.extend(request.buffers.iter().map(Buffer::sge));
            ends.push(sges.len());
        }
        if requests.is_empty() {
            return (0, Ok(()));
        }
        let mut start = 0;
        let mut ticket = self.first.wrapping_add(self.in_flight.len() as u32);
        // Filled in place: collected, they would be copied whole, however few there are.
        let mut wrs: ArrayVec<SendWr<'_>, BATCH> = ArrayVec::new();
        wrs.extend(requests.iter().zip(&ends).map(|(request, end)| {
            let wr_id = WrId::new(WrKind::Send, self.owner, self.generation, ticket).raw();
            let wr = SendWr {
                wr_id,
                op: request.op,
                sges: &sges[start..*end],
                flags: request.flags,
            };
            (start, ticket) = (*end, ticket.wrapping_add(1));
            wr
        }));
        // SAFETY: every element lies within memory that the request owns. `post` moves the buffers of the accepted requests into `in_flight`, from
        // where only `complete` takes them, after the device said it is done, or `Drop`, after a reset; those of inline requests are not touched
        // after the post, and only they may be unregistered memory (`objection`). Slots and boxes are exclusive; regions are accessed by copy only.
        match unsafe { self.qp.post_send(&wrs) } {
            Ok(()) => (wrs.len(), Ok(())),
            Err(error) => (error.accepted.min(wrs.len()), Err(error.source)),
        }
    }

    /// Takes a completion of this queue: hands all that it retires to `retired`, oldest first, and says how many.
    ///
    /// Requests before the completed one succeeded: had they not, they would have made completions of their own. A
    /// completion that retires nothing in flight is ignored.
    pub fn complete(&mut self, wc: &WorkCompletion, mut retired: impl FnMut(Retired)) -> usize {
        let Some(id) = WrId::from_raw(wc.wr_id) else {
            return 0;
        };
        if (id.kind(), id.owner(), id.generation()) != (WrKind::Send, self.owner, self.generation) {
            return 0;
        }
        let last = id.ticket().wrapping_sub(self.first) % WrId::TICKETS;
        let n = last as usize + 1;
        if n > self.in_flight.len() {
            return 0;
        }
        for (i, InFlight { cookie, buffers }) in self.in_flight.drain(..n).enumerate() {
            let status = if i + 1 == n { wc.status } else { WcStatus::Success };
            retired(Retired {
                cookie,
                status,
                buffers,
            });
        }
        self.first = self.first.wrapping_add(n as u32);
        n
    }

    /// Why a request cannot be posted, whatever else is in the queue.
    fn objection(&self, request: &SendRequest) -> Option<ErrorKind> {
        let inline = request.flags.contains(SendFlags::INLINE);
        if request.buffers.len() > self.max_sge {
            Some(ErrorKind::OutOfRange {
                what: "count of scatter/gather elements",
                value: request.buffers.len() as u64,
                limit: self.max_sge as u64 + 1,
            })
        } else if !inline && request.buffers.iter().any(Buffer::is_unregistered) {
            Some(ErrorKind::Unsupported(
                "memory that is not registered, other than inline",
            ))
        } else {
            None
        }
    }

    fn refuse(&self, kind: ErrorKind) -> VerbsError {
        VerbsError::new("ibv_post_send", format!("queue pair {}", self.qp.qpn()), kind)
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("qp", &self.qp)
            .field("in_flight", &self.in_flight.len())
            .field("depth", &self.depth)
            .finish()
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        // Others may hold the queue pair, so dropping our handle need not destroy it: a reset makes the device let go.
        if let Err(error) = self.qp.modify(&QpModify::Reset) {
            tracing::error!(%error, in_flight = self.in_flight.len(), "a queue pair could not be reset: the memory in flight is leaked");
            mem::forget(mem::take(&mut self.in_flight));
        }
    }
}
