//! What can be awaited or waited for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::{Endpoint, EndpointError, SendError, WaitError};

/// A message on its way. Awaited or waited for, it tells when the peer's device has the message.
///
/// That is not yet the peer's program: a reply, or an orderly close, proves that. Dropping it changes nothing for the message.
///
/// # Cancel safety
/// Dropping a pending future loses nothing: ask for the outcome with another message's, or by closing.
#[must_use = "a dropped completion loses the outcome of the send; use `let _ =` if that is meant"]
pub struct SendCompletion {
    endpoint: Endpoint,
    seq: u64,
}

impl SendCompletion {
    pub(crate) fn new(endpoint: Endpoint, seq: u64) -> Self {
        Self { endpoint, seq }
    }

    /// The number of the message among those sent on this endpoint, from 0.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Drives the worker until the message is at the peer's device, for `timeout` at most.
    ///
    /// # Errors
    /// [`SendError::Ended`] says what became of the message, [`SendError::Timeout`] that it is still under way,
    /// [`SendError::WouldDeadlock`] that a message handler called this.
    pub fn wait(&self, timeout: Duration) -> Result<(), SendError> {
        let connection = self.endpoint.connection();
        let mut result = connection.poll_sent(self.seq, std::task::Waker::noop());
        let waited = self.endpoint.owner().wait_for(timeout, || {
            result = result.take().or_else(|| connection.sent_result(self.seq));
            result.is_some()
        });
        match (result, waited) {
            (Some(result), _) => result,
            (None, Err(WaitError::WouldDeadlock(error))) => Err(error.into()),
            (None, _) => Err(SendError::Timeout {
                peer: self.endpoint.peer(),
                waited: timeout,
            }),
        }
    }
}

impl Future for SendCompletion {
    type Output = Result<(), SendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let connection = self.endpoint.connection();
        if let Some(result) = connection.poll_sent(self.seq, cx.waker()) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        connection
            .sent_result(self.seq)
            .map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for SendCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendCompletion")
            .field("peer", &self.endpoint.peer())
            .field("seq", &self.seq)
            .finish()
    }
}

/// Room to send more. Awaited or waited for, it tells when half of what an endpoint may queue ([`Config::max_queued_bytes`]) is free: after
/// [`SendError::WouldBlock`], when to go on.
///
/// # Cancel safety
/// It may be dropped at any time.
///
/// [`Config::max_queued_bytes`]: crate::Config::max_queued_bytes
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Ready {
    endpoint: Endpoint,
}

impl Ready {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Drives the worker until there is room, for `timeout` at most.
    ///
    /// # Errors
    /// [`SendError::Ended`] if nothing can be sent any more, [`SendError::WouldBlock`] if there is no room in time, and
    /// [`SendError::WouldDeadlock`] if a message handler called this.
    pub fn wait(&self, timeout: Duration) -> Result<(), SendError> {
        let connection = self.endpoint.connection();
        let mut result = None;
        let waited = self.endpoint.owner().wait_for(timeout, || {
            result = result.take().or_else(|| connection.ready(None));
            result.is_some()
        });
        match (result, waited) {
            (Some(result), _) => result,
            (None, Err(WaitError::WouldDeadlock(error))) => Err(error.into()),
            (None, _) => Err(SendError::WouldBlock {
                peer: self.endpoint.peer(),
            }),
        }
    }
}

impl Future for Ready {
    type Output = Result<(), SendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let connection = self.endpoint.connection();
        if let Some(result) = connection.ready(Some(cx.waker())) {
            return Poll::Ready(result);
        }
        self.endpoint.owner().try_progress();
        connection.ready(None).map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready")
            .field("peer", &self.endpoint.peer())
            .finish()
    }
}

/// The end of an endpoint. Awaited or waited for, it tells why the endpoint ended: [`EndpointErrorKind::Closed`] and
/// [`EndpointErrorKind::PeerClosed`] are orderly, all others are not.
///
/// [`EndpointErrorKind::Closed`]: crate::EndpointErrorKind::Closed
/// [`EndpointErrorKind::PeerClosed`]: crate::EndpointErrorKind::PeerClosed
#[must_use = "an endpoint closes by itself, but nobody will hear how it ended"]
pub struct Closed {
    endpoint: Endpoint,
}

impl Closed {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Drives the worker until the endpoint has ended, for `timeout` at most.
    ///
    /// # Errors
    /// [`WaitError`] if it has not.
    pub fn wait(&self, timeout: Duration) -> Result<EndpointError, WaitError> {
        let connection = self.endpoint.connection();
        let mut ended = None;
        let waited = self.endpoint.owner().wait_for(timeout, || {
            ended = connection.ended();
            ended.is_some()
        });
        match (ended, waited) {
            (Some(ended), _) => Ok(ended),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(WaitError::Timeout(timeout)),
        }
    }
}

impl Future for Closed {
    type Output = EndpointError;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let connection = self.endpoint.connection();
        if let Some(error) = connection.poll_ended(cx.waker()) {
            return Poll::Ready(error);
        }
        self.endpoint.owner().try_progress();
        connection.ended().map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed")
            .field("peer", &self.endpoint.peer())
            .finish()
    }
}
