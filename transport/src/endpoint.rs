//! One end of a connection, as programs hold it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use adverb_proto::{GoodbyeReason, Outgoing, Role, Urgency};

use crate::completion::{Closed, Ready, SendCompletion};
use crate::connection::Connection;
use crate::worker::Owner;
use crate::{EndpointError, EndpointErrorKind, LinkInfo, PendingReply, SendError};

/// One end of a connection.
///
/// Cloning gives another handle. When the last handle is dropped, the endpoint closes in order; what was sent is still
/// delivered, as long as somebody drives the worker.
#[derive(Clone)]
pub struct Endpoint(Arc<Handle>);

/// What the handles of a connection are handles of. The connection itself does not hold it, so that it goes with the last of them, and closes the
/// connection then.
pub(crate) struct Handle {
    connection: Arc<Connection>,
    owner: Arc<Owner>,
}

/// What an endpoint did since it was opened, and what it holds now ([`Endpoint::stats`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Messages taken to be sent, requests and replies included.
    pub messages_sent: u64,
    /// Of these: known to be at the peer's device. It lags, as one send in [`Config::signal_every`](crate::Config::signal_every) is signaled.
    pub messages_at_peer: u64,
    /// Of these: known to have been handed to the peer's program. It lags by what the peer has not yet told with a message or a grant of its own.
    pub messages_acked: u64,
    /// Messages of the peer that were handed out, requests and replies included.
    pub messages_received: u64,
    /// One-sided operations posted.
    pub one_sided_posted: u64,
    /// Requests that wait for their answers, and answers that nobody has taken yet.
    pub requests_waiting: usize,
    /// Bytes that wait for credits or for room in the send queue: more than a moment's worth says that the peer does not keep up.
    pub queued_bytes: usize,
    /// Segments that the peer lets this side send now.
    pub credits: u32,
    /// Work requests posted whose end is not known.
    pub sends_outstanding: usize,
}

impl Endpoint {
    /// The first handle of a connection, or the first again after the last was dropped.
    pub(crate) fn first(connection: &Arc<Connection>, owner: &Arc<Owner>) -> Self {
        let handle = Arc::new(Handle {
            connection: Arc::clone(connection),
            owner: Arc::clone(owner),
        });
        connection.held_by(Arc::downgrade(&handle));
        Self(handle)
    }

    /// One more handle.
    pub(crate) fn another(handle: Arc<Handle>) -> Self {
        Self(handle)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.0.connection
    }

    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.0.owner
    }

    /// Sends an active message: `header`, at most 65535 bytes, and `payload` arrive together at the handler that the peer has
    /// set for `id`, after all messages sent before.
    ///
    /// The bytes are copied before this returns. What credits and the send queue allow is posted at once, on this thread; the
    /// rest follows as the peer returns credits. The returned [`SendCompletion`] can be awaited, waited for, or dropped.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message was taken.
    pub fn send(&self, id: u16, header: &[u8], payload: &[u8]) -> Result<SendCompletion, SendError> {
        self.send_with(&Outgoing {
            am_id: id,
            header,
            payload,
            role: Role::Message,
            urgency: Urgency::Latency,
        })
    }

    /// Like [`Endpoint::send`], but need not wake the peer before more of the burst has come: for bulk data.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    pub fn send_bulk(&self, id: u16, header: &[u8], payload: &[u8]) -> Result<SendCompletion, SendError> {
        self.send_with(&Outgoing {
            am_id: id,
            header,
            payload,
            role: Role::Message,
            urgency: Urgency::Bulk,
        })
    }

    /// Sends a request: like a [message](Endpoint::send), but the peer's handler for requests with this id
    /// ([`Worker::on_request`](crate::Worker::on_request)) replies to it. Await the returned [`PendingReply`], or wait for it. Any number of
    /// requests can be under way, and replies may come in any order.
    ///
    /// ```
    /// use std::time::Duration;
    /// use adverb::{Config, Context};
    ///
    /// let server = Context::builder().device("soft0").open()?.worker(Config::new())?;
    /// server.on_request(1, |_, request| {
    ///     let doubled = request.payload().repeat(2);
    ///     if let Err(unsent) = request.reply(b"", &doubled) {
    ///         eprintln!("{unsent}");
    ///     }
    /// });
    /// let listener = server.listen("127.0.0.1:0")?;
    /// let _driving = server.progress_thread()?;
    ///
    /// let client = Context::builder().device("soft0").open()?.worker(Config::new())?;
    /// let endpoint = client.connect(listener.local_addr())?;
    /// let reply = endpoint.request(1, b"", b"ha").wait(Duration::from_secs(10))?; // or `.await?`
    /// assert_eq!(reply.payload(), b"haha");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn request(&self, id: u16, header: &[u8], payload: &[u8]) -> PendingReply {
        PendingReply::send(self, id, header, payload)
    }

    pub(crate) fn send_with(&self, message: &Outgoing<'_>) -> Result<SendCompletion, SendError> {
        let seq = self.connection().send(message)?;
        Ok(SendCompletion::new(self.clone(), seq))
    }

    /// Resolves when there is room to send more: after [`SendError::WouldBlock`].
    pub fn ready(&self) -> Ready {
        Ready::new(self.clone())
    }

    /// Closes in order: what was sent is delivered, the peer learns that nothing more comes, and the returned [`Closed`] resolves
    /// when it has answered. It need not be waited for.
    pub fn close(&self) -> Closed {
        self.connection().close(GoodbyeReason::Closed);
        self.closed()
    }

    /// Resolves when the endpoint has ended, for whatever reason.
    pub fn closed(&self) -> Closed {
        Closed::new(self.clone())
    }

    /// Ends the endpoint at once, without a word to the peer, which finds out by its next send or keepalive probe.
    pub fn abort(&self) {
        self.connection().fail(EndpointErrorKind::Aborted);
    }

    /// Whether messages can be sent.
    pub fn is_open(&self) -> bool {
        self.connection().is_open()
    }

    /// Why the endpoint has ended, if it has.
    pub fn error(&self) -> Option<EndpointError> {
        self.connection().ended()
    }

    /// What it did so far, and what it holds now. Takes the lock that a send takes.
    pub fn stats(&self) -> EndpointStats {
        self.connection().stats()
    }

    /// The address that the handshake was made with.
    pub fn peer(&self) -> SocketAddr {
        self.connection().link.peer
    }

    /// The link it is on.
    pub fn link(&self) -> &LinkInfo {
        &self.connection().link
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.connection.close(GoodbyeReason::Closed);
    }
}

impl PartialEq for Endpoint {
    /// Whether both are handles of the same endpoint.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.connection(), other.connection())
    }
}

impl Eq for Endpoint {}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("link", &self.connection().link)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("link", &self.connection.link)
            .finish_non_exhaustive()
    }
}
