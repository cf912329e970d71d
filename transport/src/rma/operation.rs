//! One-sided operations of an endpoint, and what can be awaited or waited for of them.

use std::fmt;
use std::future::Future;
use std::ops::{Bound, Range, RangeBounds};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use adverb_verbs::{Buffer, RemoteAddr, SendOp};
use adverb_wire::{RemoteRegion, Rights};

use super::{Kind, Region, RmaError};
use crate::{Endpoint, WaitError};

/// Bytes that an atomic operation changes.
const WORD: u64 = 8;

/// One-sided operations: the peer's device carries them out, without its program.
///
/// They are posted at once, on the calling thread, or refused: they share the send queue ([`Config::send_depth`](crate::Config::send_depth)) with
/// messages, and where that is full, wait for [`Endpoint::one_sided_ready`]. Handles of regions come from the peer, by whatever message.
///
/// # Order
/// Puts and messages take effect in the order in which they were posted: a peer's handler that runs for a message sees all puts before that. Gets
/// and atomics begin in that order, too, but may still be under way when what follows them takes effect, unless there is a
/// [fence](Endpoint::fence) between. A message that waits for credits is posted later than a put that follows it.
///
/// # Failure
/// The checks of this side (bounds, rights, alignment) refuse an operation and harm nothing. What the *peer's* device refuses, because the region was
/// revoked or the handle was not the peer's at all, ends the whole endpoint, as it does every RC queue pair: the operation, those behind it and the
/// messages fail with [`WcStatus::RemAccessErr`](adverb_verbs::WcStatus::RemAccessErr) as the endpoint's error
/// ([`EndpointErrorKind::Completion`](crate::EndpointErrorKind::Completion)). Other endpoints go on. The peer's end fails by itself where its
/// device tells, else when it next sends, or probes.
///
/// When an endpoint closes, operations under way may still be carried out; each ends once, with success or an error. Wait for
/// [`Endpoint::flush`] first to know that all were.
impl Endpoint {
    /// Writes the bytes `range` of `from` to the peer's region `to`, from `offset` on (RDMA WRITE).
    ///
    /// Leave the bytes alone until the [`Transfer`] is done: what is written meanwhile may or may not arrive. That it is done says that the peer's
    /// device has all of it; send a message to tell the peer's program.
    ///
    /// # Errors
    /// [`RmaError`]; nothing was posted.
    pub fn put(
        &self,
        from: &Region,
        range: impl RangeBounds<usize>,
        to: &RemoteRegion,
        offset: u64,
    ) -> Result<Transfer, RmaError> {
        self.transfer(Kind::Put, Rights::REMOTE_WRITE, from, range, to, offset)
    }

    /// Reads the peer's region `from`, from `offset` on, into the bytes `range` of `into` (RDMA READ).
    ///
    /// The bytes are there when the [`Transfer`] is done; before that, and if it fails, they are anything.
    ///
    /// # Errors
    /// [`RmaError`]; nothing was posted.
    pub fn get(
        &self,
        into: &Region,
        range: impl RangeBounds<usize>,
        from: &RemoteRegion,
        offset: u64,
    ) -> Result<Transfer, RmaError> {
        self.needs_reads(Kind::Get)?;
        self.transfer(Kind::Get, Rights::REMOTE_READ, into, range, from, offset)
    }

    /// Adds `add`, wrapping, to the aligned 8-byte word at `offset` of the peer's region, and brings what was there before.
    ///
    /// The word is in the peer's native byte order. What it is atomic with, the peer's device says (`ibv_query_device(3)`, `atomic_cap`): all
    /// atomics through that device at least.
    ///
    /// # Errors
    /// [`RmaError`]; nothing was posted.
    pub fn fetch_add(&self, at: &RemoteRegion, offset: u64, add: u64) -> Result<Fetch, RmaError> {
        let remote = self.word(Kind::FetchAdd, at, offset)?;
        self.fetch(Kind::FetchAdd, SendOp::FetchAdd { remote, add })
    }

    /// Puts `swap` into the aligned 8-byte word at `offset` of the peer's region if `compare` is there, and brings what was there before: it was
    /// swapped if that is `compare`. All else is as for [`Endpoint::fetch_add`].
    ///
    /// # Errors
    /// [`RmaError`]; nothing was posted.
    pub fn compare_swap(
        &self,
        at: &RemoteRegion,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Fetch, RmaError> {
        let remote = self.word(Kind::CompareSwap, at, offset)?;
        let op = SendOp::CompareSwap {
            remote,
            compare,
            swap,
        };
        self.fetch(Kind::CompareSwap, op)
    }

    /// Whatever is posted on the endpoint from now on, messages too, waits until all gets and atomics posted before are done (`IBV_SEND_FENCE`). It
    /// does not wait itself.
    pub fn fence(&self) {
        self.connection().fence();
    }

    /// Resolves when all one-sided operations posted on the endpoint so far are done, by whichever thread.
    pub fn flush(&self) -> Flushed {
        Flushed {
            endpoint: self.clone(),
            posted: self.connection().one_sided_posted(),
        }
    }

    /// Resolves when the send queue has room for a one-sided operation: after [`RmaError::WouldBlock`].
    pub fn one_sided_ready(&self) -> OneSidedReady {
        OneSidedReady {
            endpoint: self.clone(),
        }
    }

    fn transfer(
        &self,
        kind: Kind,
        needed: Rights,
        local: &Region,
        range: impl RangeBounds<usize>,
        remote: &RemoteRegion,
        offset: u64,
    ) -> Result<Transfer, RmaError> {
        let connection = self.connection();
        let operation = kind.operation();
        if !connection.is_on(local.pd()) {
            return Err(RmaError::WrongContext { operation });
        }
        let Range { start, end } = resolve(&range, local.len());
        let len = end
            .checked_sub(start)
            .filter(|_| end <= local.len())
            .ok_or(RmaError::LocalRange {
                operation,
                start,
                end,
                region_len: local.len(),
            })?;
        let limit = connection.limits().max_len;
        let bytes = u32::try_from(len)
            .ok()
            .filter(|bytes| *bytes <= limit)
            .ok_or(RmaError::TooLong {
                operation,
                len,
                limit,
            })?;
        let at = reach(kind, needed, remote, offset, len as u64)?;
        let op = match kind {
            Kind::Get if bytes > 0 => SendOp::Read(at),
            // To read nothing is as good as to write nothing, of which devices do not look at the key.
            _ => SendOp::Write(at),
        };
        let buffer = (bytes > 0).then(|| Buffer::Region {
            region: local.memory().clone(),
            offset: start,
            len: bytes,
        });
        let number = connection.post_one_sided(kind, op, buffer)?;
        Ok(Transfer {
            endpoint: self.clone(),
            number,
        })
    }

    /// Where the word of an atomic operation is.
    fn word(&self, kind: Kind, at: &RemoteRegion, offset: u64) -> Result<RemoteAddr, RmaError> {
        self.needs_reads(kind)?;
        if !self.connection().limits().atomics {
            return Err(self.unsupported(kind, "the local device does no atomics"));
        }
        let remote = reach(kind, Rights::REMOTE_ATOMIC, at, offset, WORD)?;
        if remote.addr.is_multiple_of(WORD) {
            Ok(remote)
        } else {
            Err(RmaError::Misaligned {
                operation: kind.operation(),
                offset,
            })
        }
    }

    fn fetch(&self, kind: Kind, op: SendOp) -> Result<Fetch, RmaError> {
        let number = self.connection().post_one_sided(kind, op, None)?;
        Ok(Fetch {
            endpoint: self.clone(),
            number,
        })
    }

    /// Gets and atomics need that the two devices agreed on how many can be under way.
    fn needs_reads(&self, kind: Kind) -> Result<(), RmaError> {
        if self.connection().limits().max_rd_atomic > 0 {
            return Ok(());
        }
        Err(self.unsupported(
            kind,
            "one of the two devices does no RDMA READs and atomics (max_qp_rd_atom, max_qp_init_rd_atom)",
        ))
    }

    fn unsupported(&self, kind: Kind, reason: &'static str) -> RmaError {
        RmaError::Unsupported {
            operation: kind.operation(),
            peer: self.peer(),
            reason,
        }
    }

    /// Drives the worker until `take` gives something.
    fn wait_one_sided<T>(
        &self,
        timeout: Duration,
        mut take: impl FnMut() -> Option<Result<T, RmaError>>,
    ) -> Result<T, RmaError> {
        let mut result = None;
        let waited = self.owner().wait_for(timeout, || {
            result = result.take().or_else(&mut take);
            result.is_some()
        });
        match (result, waited) {
            (Some(result), _) => result,
            (None, Err(WaitError::WouldDeadlock(error))) => Err(error.into()),
            (None, Err(WaitError::Worker(error))) => Err(RmaError::Worker(error)),
            (None, _) => Err(RmaError::Timeout {
                peer: self.peer(),
                waited: timeout,
            }),
        }
    }
}

/// Where the bytes are at the peer, if its region has them and permits it.
fn reach(
    kind: Kind,
    needed: Rights,
    remote: &RemoteRegion,
    offset: u64,
    len: u64,
) -> Result<RemoteAddr, RmaError> {
    let operation = kind.operation();
    let granted = remote.rights();
    if !granted.contains(needed) {
        return Err(RmaError::MissingRight {
            operation,
            needed,
            granted,
        });
    }
    let addr = remote.addr_of(offset, len).ok_or(RmaError::RemoteRange {
        operation,
        offset,
        len,
        region_len: remote.len(),
    })?;
    Ok(RemoteAddr {
        addr,
        rkey: remote.rkey(),
    })
}

/// The range within `len` bytes. What does not fit there is kept as it is, for the error.
fn resolve(range: &impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    start..end
}

/// A put or get under way. Awaited or waited for, it tells when it is done, and the device does not touch the local bytes any more.
///
/// # Cancel safety
/// Dropping it changes nothing for the transfer, which goes on; the region's memory stays until it is over.
#[must_use = "a dropped transfer goes on, and nobody hears how it ended; use `drop` and `Endpoint::flush` if that is meant"]
pub struct Transfer {
    endpoint: Endpoint,
    number: u64,
}

impl Transfer {
    /// Drives the worker until the transfer is done, for `timeout` at most.
    ///
    /// # Errors
    /// [`RmaError::Ended`] if the endpoint ended first, [`RmaError::Timeout`] if it is still under way, [`RmaError::WouldDeadlock`] if a
    /// message handler called this.
    pub fn wait(&self, timeout: Duration) -> Result<(), RmaError> {
        let connection = self.endpoint.connection();
        self.endpoint
            .wait_one_sided(timeout, || connection.one_sided_result(self.number, None))
    }
}

impl Future for Transfer {
    type Output = Result<(), RmaError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let connection = self.endpoint.connection();
        if let Some(result) = connection.one_sided_result(self.number, Some(cx.waker())) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        connection
            .one_sided_result(self.number, None)
            .map_or(Poll::Pending, Poll::Ready)
    }
}

/// An atomic operation under way. Awaited or waited for, it brings what was there before.
///
/// # Cancel safety
/// Dropping it forgets the result; the operation is carried out all the same.
#[must_use = "what an atomic operation brings is lost if it is dropped"]
pub struct Fetch {
    endpoint: Endpoint,
    number: u64,
}

impl Fetch {
    /// Drives the worker until the old value is there, for `timeout` at most.
    ///
    /// # Errors
    /// As for [`Transfer::wait`].
    pub fn wait(&self, timeout: Duration) -> Result<u64, RmaError> {
        let connection = self.endpoint.connection();
        self.endpoint
            .wait_one_sided(timeout, || connection.one_sided_word(self.number, None))
    }
}

impl Future for Fetch {
    type Output = Result<u64, RmaError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let connection = self.endpoint.connection();
        if let Some(result) = connection.one_sided_word(self.number, Some(cx.waker())) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        connection
            .one_sided_word(self.number, None)
            .map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.endpoint.connection().forget_word(self.number);
    }
}

/// The end of all one-sided operations that were posted before. Awaited or waited for, it tells when they are done.
///
/// # Cancel safety
/// It may be dropped at any time.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Flushed {
    endpoint: Endpoint,
    /// How many those are.
    posted: u64,
}

impl Flushed {
    /// Drives the worker until they are done, for `timeout` at most.
    ///
    /// # Errors
    /// [`RmaError::Ended`] if one of them may not have been carried out, else as for [`Transfer::wait`].
    pub fn wait(&self, timeout: Duration) -> Result<(), RmaError> {
        self.endpoint.wait_one_sided(timeout, || self.result(None))
    }

    fn result(&self, waker: Option<&std::task::Waker>) -> Option<Result<(), RmaError>> {
        match self.posted.checked_sub(1) {
            // RC completes them in order.
            Some(last) => self.endpoint.connection().one_sided_result(last, waker),
            None => Some(Ok(())),
        }
    }
}

impl Future for Flushed {
    type Output = Result<(), RmaError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.result(Some(cx.waker())) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        self.result(None).map_or(Poll::Pending, Poll::Ready)
    }
}

/// Room for a one-sided operation in the send queue. Awaited or waited for, it tells when to go on after [`RmaError::WouldBlock`].
///
/// # Cancel safety
/// It may be dropped at any time.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct OneSidedReady {
    endpoint: Endpoint,
}

impl OneSidedReady {
    /// Drives the worker until there is room, for `timeout` at most.
    ///
    /// # Errors
    /// [`RmaError::Ended`] if nothing can be posted any more, [`RmaError::Timeout`] if there is no room in time, and
    /// [`RmaError::WouldDeadlock`] if a message handler called this.
    pub fn wait(&self, timeout: Duration) -> Result<(), RmaError> {
        let connection = self.endpoint.connection();
        self.endpoint
            .wait_one_sided(timeout, || connection.one_sided_ready(None))
    }
}

impl Future for OneSidedReady {
    type Output = Result<(), RmaError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let connection = self.endpoint.connection();
        if let Some(result) = connection.one_sided_ready(Some(cx.waker())) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        connection
            .one_sided_ready(None)
            .map_or(Poll::Pending, Poll::Ready)
    }
}

macro_rules! debug {
    ($($name:ident { $($field:ident),* })*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("peer", &self.endpoint.peer())
                    $(.field(stringify!($field), &self.$field))*
                    .finish()
            }
        })*
    };
}

debug! {
    Transfer { number }
    Fetch { number }
    Flushed { posted }
    OneSidedReady {}
}
