//! What can go wrong, with whom, and what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adverb_progress::ProgressError;
use adverb_proto::{FailReason, GoodbyeReason, Outcome, RefusalReason};
use adverb_verbs::{AsyncEvent, Gid, GidEntry, PortState, Qpn, VerbsError, WcStatus};
use adverb_wire::{Disagreement, HandshakeError, Refuse};
use thiserror::Error;

use crate::{ConfigError, Request};

/// One end of a link, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkEnd {
    /// The port's address.
    pub gid: Gid,
    /// The queue pair.
    pub qpn: Qpn,
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queue pair {}", self.gid, self.qpn)
    }
}

/// The link that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The local device.
    pub device: String,
    /// This end.
    pub local: LinkEnd,
    /// The peer's end.
    pub remote: LinkEnd,
    /// The address that the handshake was made with.
    pub peer: SocketAddr,
    /// The peer's device, as it told.
    pub peer_device: String,
}

impl fmt::Display for LinkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "peer {} ({} on {}) from {} ({})",
            self.peer, self.remote, self.peer_device, self.device, self.local
        )
    }
}

/// An endpoint ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{link}: {kind}")]
pub struct EndpointError {
    /// The link it was on.
    pub link: Box<LinkInfo>,
    /// Why.
    pub kind: EndpointErrorKind,
}

/// Why an endpoint ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EndpointErrorKind {
    /// A work request failed.
    #[error("{operation} failed with {status}, vendor error {vendor_err:#x}; {}", completion_advice(*.status))]
    Completion {
        /// What was being done.
        operation: &'static str,
        /// How it ended.
        status: WcStatus,
        /// The vendor's own code.
        vendor_err: u32,
    },
    /// The device did not take a work request.
    #[error("{0}")]
    Post(VerbsError),
    /// The peer broke the protocol, or did not answer in time.
    #[error("{0}")]
    Protocol(FailReason),
    /// The peer closed the endpoint in order.
    #[error("closed by the peer: {0}; connect again if it is still needed")]
    PeerClosed(GoodbyeReason),
    /// This side closed the endpoint in order.
    #[error("closed on this side; connect again if it is still needed")]
    Closed,
    /// This side ended the endpoint at once.
    #[error("aborted on this side; connect again if it is still needed")]
    Aborted,
    /// The device reported an event that ends the endpoint.
    #[error("the device reported {0}; {advice}", advice = event_advice(.0))]
    Device(AsyncEvent),
    /// A handler panicked while it handled a message of this endpoint.
    #[error("the handler of message id {0} panicked; see the panic's message, and mend the handler")]
    HandlerPanicked(u16),
    /// The worker was shut down.
    #[error("its worker was shut down")]
    WorkerShutDown,
}

fn completion_advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => {
            "the peer's process ended or is stopped, its host is down, or the network drops packets: connect again when it is there, \
             and raise ack_timeout if it was only slow"
        }
        WcStatus::WrFlushErr => {
            "see whether the local port is up and its addresses are still there, then connect again"
        }
        WcStatus::RnrRetryExcErr | WcStatus::RemInvReqErr | WcStatus::LocLenErr => {
            "this should not happen between two ends of adverb: please report it"
        }
        WcStatus::RemAccessErr => {
            "the peer has revoked the region, or its handle came from another process: ask for a new handle, and connect again"
        }
        _ => "connect again; if it comes back, see the kernel's log",
    }
}

fn event_advice(event: &AsyncEvent) -> &'static str {
    match event.source {
        adverb_verbs::EventSource::Port(_) => "see `rdma link` and connect again when the port is active",
        adverb_verbs::EventSource::Device => "open a new context when the device is back",
        _ => "connect again",
    }
}

/// A message was not sent, or it is not known whether it arrived.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too much waits to be sent already. Nothing of the message was taken.
    #[error(
        "sending to {peer}: too much waits to be sent already; wait until the endpoint is ready (`Endpoint::ready`)"
    )]
    WouldBlock {
        /// The peer.
        peer: SocketAddr,
    },
    /// The message does not fit what the peer takes. Nothing of it was taken.
    #[error("sending to {peer}: {reason}")]
    Invalid {
        /// The peer.
        peer: SocketAddr,
        /// What does not fit.
        reason: adverb_proto::SendError,
    },
    /// The endpoint has ended.
    #[error("sending ({}): {error}", outcome_text(*.outcome))]
    Ended {
        /// What became of the message.
        outcome: Outcome,
        /// Why the endpoint ended.
        error: EndpointError,
    },
    /// Waiting took longer than allowed. The message is still under way.
    #[error("sending to {peer}: not done within {waited:?}; it is still under way")]
    Timeout {
        /// The peer.
        peer: SocketAddr,
        /// How long was waited.
        waited: Duration,
    },
    /// See [`WouldDeadlock`].
    #[error(transparent)]
    WouldDeadlock(#[from] WouldDeadlock),
}

/// A request got no reply.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request was not sent, or the endpoint ended before the reply came. [`SendError::Ended`] tells what became of the request.
    #[error("requesting: {0}")]
    Send(#[source] SendError),
    /// The peer's program will not reply.
    #[error("requesting from {peer}: the peer will not reply: {reason}")]
    Refused {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        reason: RefusalReason,
    },
    /// It took longer than allowed. The peer may carry the request out all the same.
    #[error(
        "requesting from {peer}: no reply within {waited:?}, and the peer may carry it out all the same; allow more time, or see what keeps the peer"
    )]
    TimedOut {
        /// The peer.
        peer: SocketAddr,
        /// How long was waited.
        waited: Duration,
    },
    /// See [`WouldDeadlock`].
    #[error(transparent)]
    WouldDeadlock(#[from] WouldDeadlock),
    /// The worker's queues or channels failed.
    #[error(transparent)]
    Worker(ProgressError),
}

/// A reply was not sent. Nothing of it was taken.
#[derive(Debug, Error)]
#[error("replying: {error}")]
pub struct UnsentReply {
    /// The request, to be replied to again. If it is dropped, the peer is told that no reply comes.
    pub request: Request,
    /// Why.
    pub error: SendError,
}

pub(crate) fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotSent => "not sent",
        Outcome::MaybeDelivered => "maybe delivered",
        Outcome::Delivered => "delivered",
    }
}

/// A message handler tried to wait. The thread that runs handlers is the one that would have to make what it waits for happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a message handler may not wait: hand the work to another thread or task")]
pub struct WouldDeadlock;

/// Waiting ended without what was waited for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It took longer than allowed.
    #[error("nothing came within {0:?}")]
    Timeout(Duration),
    /// See [`WouldDeadlock`].
    #[error(transparent)]
    WouldDeadlock(#[from] WouldDeadlock),
    /// The worker's queues or channels failed.
    #[error(transparent)]
    Worker(#[from] ProgressError),
}

/// A context could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The providers that the program brought have no device.
    #[error(
        "the providers that this program brought have no device; without any of its own, adverb brings `soft0`"
    )]
    NoDevice,
    /// None of adverb's own devices has this name, and the program was built without libibverbs.
    #[error(
        "{name:?} is none of adverb's own devices (soft0, soft:ADDRESS), and this program was built without libibverbs, which opens all others; \
         build it with `--features ibverbs`"
    )]
    WithoutIbverbs {
        /// The name asked for.
        name: String,
    },
    /// There are devices, but none has an active port.
    #[error("no RDMA device has an active port ({}); bring a link up, or name the device to open it all the same", .devices.join(", "))]
    NoActivePort {
        /// The devices and their ports' states.
        devices: Vec<String>,
    },
    /// The port is not active.
    #[error("port {port} of {device} is {state}; bring its link up (`ip link set … up`)")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: PortState,
    },
    /// The port has no GID that RoCEv2 could use.
    #[error("port {port} of {device} has no RoCEv2 GID (its table: {}); give its network interface an IP address", gid_table_text(.table))]
    NoRoceV2Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What the GID table holds.
        table: Vec<GidEntry>,
    },
    /// What the environment says of the device is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A thread or a descriptor could not be made.
    #[error("opening {device}: {reason}")]
    System {
        /// The device.
        device: String,
        /// What the system said.
        reason: String,
    },
}

fn gid_table_text(table: &[GidEntry]) -> String {
    if table.is_empty() {
        return "empty".into();
    }
    table
        .iter()
        .map(|entry| format!("{} {}", entry.gid, entry.gid_type))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A worker could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The device is too small for a single endpoint with this configuration.
    #[error(
        "{device} cannot hold one endpoint: {what} is {limit}, {needed} are needed; lower window or send_depth"
    )]
    DeviceTooSmall {
        /// The device.
        device: String,
        /// Which limit, by its name in `ibv_query_device`.
        what: &'static str,
        /// The limit.
        limit: u32,
        /// What one endpoint needs.
        needed: u32,
    },
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A thread or a descriptor could not be made.
    #[error("making a worker on {device}: {reason}")]
    System {
        /// The device.
        device: String,
        /// What the system said.
        reason: String,
    },
}

/// A connection was not made. Nothing is left of it.
#[derive(Debug, Error)]
#[error("connecting to {peer} from {device}: {kind}")]
pub struct ConnectError {
    /// Whom this side talked to.
    pub peer: SocketAddr,
    /// The local device.
    pub device: String,
    /// Why. It is part of the text, and so no source of its own.
    pub kind: Box<ConnectErrorKind>,
}

/// Why a connection was not made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The TCP connection failed.
    #[error("the TCP connection failed: {0}; see whether the peer listens there")]
    Io(#[from] io::Error),
    /// The peer did not do its part in time.
    #[error("{stage} was not done within {timeout:?}; see whether the peer is alive and makes progress")]
    Timeout {
        /// What was waited for.
        stage: &'static str,
        /// How long.
        timeout: Duration,
    },
    /// What came over the TCP connection was no handshake of adverb.
    #[error(
        "what came is no handshake of adverb that this side understands: {0}; see whether the peer is adverb, and of which version"
    )]
    Handshake(#[from] HandshakeError),
    /// The peer ended the TCP connection in the midst of the handshake.
    #[error("the peer ended the handshake without a word; see its log")]
    Hangup,
    /// The peer said no.
    #[error("refused: {0}")]
    Refused(Refuse),
    /// The two sides do not fit together.
    #[error("the two sides do not fit together: {0}")]
    Disagreement(#[from] Disagreement),
    /// The worker has as many endpoints as its queues hold.
    #[error(
        "the worker has {limit} endpoints, which is all that its queues hold; raise max_endpoints or use another worker"
    )]
    WorkerFull {
        /// Its limit.
        limit: u32,
    },
    /// The port is down or has no usable GID.
    #[error(transparent)]
    Port(OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The link was made but did not carry a message each way.
    #[error("{0}")]
    Endpoint(EndpointError),
    /// See [`WouldDeadlock`].
    #[error(transparent)]
    WouldDeadlock(#[from] WouldDeadlock),
    /// Waiting failed.
    #[error(transparent)]
    Wait(WaitError),
}

/// Listening failed.
#[derive(Debug, Error)]
#[error("listening on {address}: {reason}; use another address, or see who listens there")]
pub struct ListenError {
    /// The address asked for.
    pub address: String,
    /// What the system said. It is part of the text, and so no source of its own.
    pub reason: io::Error,
}
