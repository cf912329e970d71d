//! Requests and replies.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use adverb_proto::{Outgoing, Role, Urgency};
use bytes::Bytes;

use crate::awaited::Unanswered;
use crate::{
    Endpoint, Message, RefusalReason, RequestError, SendCompletion, SendError, UnsentReply, WaitError,
};

/// A request on its way. Awaited or waited for, it gives the reply.
///
/// # Cancel safety
/// Dropping it cancels the wait, and frees all that was kept for it: a reply that comes after all is thrown away. The request itself is not taken
/// back: the peer may carry it out.
#[must_use = "a request that nobody waits for is cancelled; send a message if no reply is needed"]
pub struct PendingReply {
    endpoint: Endpoint,
    sent: Result<u64, SendError>,
    limit: Option<Duration>,
    /// Whether its end was told.
    over: bool,
}

impl PendingReply {
    pub(crate) fn send(endpoint: &Endpoint, id: u16, header: &[u8], payload: &[u8]) -> Self {
        let sent = endpoint.connection().request(&Outgoing {
            am_id: id,
            header,
            payload,
            role: Role::Request,
            urgency: Urgency::Latency,
        });
        Self {
            endpoint: endpoint.clone(),
            sent,
            limit: None,
            over: false,
        }
    }

    /// Waits no longer than `limit` from now on. The worker has to be driven for it to end, as for the reply to come.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        // A limit that the clock cannot tell never comes.
        if let (Ok(seq), Some(deadline)) = (&self.sent, Instant::now().checked_add(limit)) {
            self.endpoint.connection().set_deadline(*seq, deadline);
        }
        self
    }

    /// Drives the worker until the reply is there, for `timeout` at most.
    ///
    /// # Errors
    /// [`RequestError`]; the wait is cancelled then.
    pub fn wait(mut self, timeout: Duration) -> Result<Reply, RequestError> {
        let mut result = None;
        let owner = self.endpoint.owner().clone();
        let waited = owner.wait_for(timeout, || {
            result = result.take().or_else(|| self.take(None));
            result.is_some()
        });
        match (result, waited) {
            (Some(result), _) => result,
            (None, Err(WaitError::WouldDeadlock(error))) => Err(error.into()),
            (None, Err(WaitError::Worker(error))) => Err(RequestError::Worker(error)),
            (None, _) => Err(self.timed_out(timeout)),
        }
    }

    /// Takes the result, if there is one; else `waker` will be woken.
    fn take(&mut self, waker: Option<&Waker>) -> Option<Result<Reply, RequestError>> {
        let seq = match &self.sent {
            Ok(seq) => *seq,
            Err(error) => return Some(Err(RequestError::Send(error.clone()))),
        };
        let peer = self.endpoint.peer();
        let result = match self.endpoint.connection().take_answer(seq, waker) {
            Ok(Ok(message)) => Ok(Reply(message)),
            Ok(Err(reason)) => Err(RequestError::Refused { peer, reason }),
            Err(Ok(Unanswered::Waiting)) => return None,
            Err(Ok(Unanswered::Expired)) => Err(self.timed_out(self.limit.unwrap_or_default())),
            Err(Err(error)) => Err(RequestError::Send(error)),
        };
        self.over = true;
        Some(result)
    }

    fn timed_out(&self, waited: Duration) -> RequestError {
        RequestError::TimedOut {
            peer: self.endpoint.peer(),
            waited,
        }
    }
}

impl Future for PendingReply {
    type Output = Result<Reply, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.take(Some(cx.waker())) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        self.take(None).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let (Ok(seq), false) = (&self.sent, self.over) {
            self.endpoint.connection().cancel_request(*seq);
        }
    }
}

impl fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReply")
            .field("peer", &self.endpoint.peer())
            .field("sent", &self.sent)
            .field("limit", &self.limit)
            .finish()
    }
}

/// The reply to a request. It owns its memory as a [`Message`] does.
pub struct Reply(Message);

impl Reply {
    /// The header.
    pub fn header(&self) -> &[u8] {
        self.0.header()
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.0.payload()
    }

    /// The payload as [`Bytes`], as [`Message::into_bytes`] gives it.
    pub fn into_bytes(self) -> Bytes {
        self.0.into_bytes()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("header_len", &self.header().len())
            .field("payload_len", &self.payload().len())
            .finish()
    }
}

/// A request that a peer waits for the reply to. Keep it and reply from anywhere, at any time.
///
/// It owns its memory as a [`Message`] does, and a handle of the endpoint. Dropping it without a reply tells the peer so
/// ([`RefusalReason::Dropped`]).
pub struct Request {
    endpoint: Endpoint,
    message: Message,
    seq: u32,
    answered: bool,
}

impl Request {
    pub(crate) fn new(endpoint: Endpoint, message: Message, seq: u32) -> Self {
        Self {
            endpoint,
            message,
            seq,
            answered: false,
        }
    }

    /// The id that it was sent with.
    pub fn id(&self) -> u16 {
        self.message.id()
    }

    /// The header.
    pub fn header(&self) -> &[u8] {
        self.message.header()
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.message.payload()
    }

    /// Whom it came from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Replies. The bytes are copied, as [`Endpoint::send`] copies them, and it does not wait either.
    ///
    /// # Errors
    /// [`UnsentReply`], which gives the request back: try again where too much waits to be sent ([`SendError::WouldBlock`]).
    pub fn reply(mut self, header: &[u8], payload: &[u8]) -> Result<SendCompletion, Box<UnsentReply>> {
        match self.answer(self.id(), Role::Reply(self.seq), header, payload) {
            Ok(sent) => {
                self.answered = true;
                Ok(sent)
            }
            Err(error) => Err(Box::new(UnsentReply { request: self, error })),
        }
    }

    /// Says that there will be no reply.
    pub(crate) fn refuse(mut self, reason: RefusalReason) {
        self.refuse_for(reason);
    }

    fn refuse_for(&mut self, reason: RefusalReason) {
        if mem::replace(&mut self.answered, true) {
            return;
        }
        if let Err(error) = self.answer(reason.code(), Role::Refusal(self.seq), &[], &[]) {
            tracing::debug!(%error, "a request could not be refused: its sender finds out by its own deadline");
        }
    }

    fn answer(
        &self,
        id: u16,
        role: Role,
        header: &[u8],
        payload: &[u8],
    ) -> Result<SendCompletion, SendError> {
        self.endpoint.send_with(&Outgoing {
            am_id: id,
            header,
            payload,
            role,
            urgency: Urgency::Latency,
        })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.refuse_for(RefusalReason::Dropped);
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.endpoint.peer())
            .field("message", &self.message)
            .finish()
    }
}
