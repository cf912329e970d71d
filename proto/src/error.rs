//! What can go wrong in the protocol.

use thiserror::Error;

use adverb_wire::{DecodeError, GoodbyeReason};

/// The peer broke the protocol. The endpoint has failed; close its link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A segment could not be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The first message on the link was not the confirmation, or it came twice.
    #[error("the peer sent {got} where {expected} was due")]
    Unexpected {
        /// What came.
        got: &'static str,
        /// What was due.
        expected: &'static str,
    },
    /// The confirmation was made for another connection.
    #[error(
        "the peer confirmed the connection with nonce {got:#018x} instead of {expected:#018x}: the link leads to somebody else"
    )]
    WrongNonce {
        /// The nonce that came.
        got: u64,
        /// The connection's.
        expected: u64,
    },
    /// The peer sent a data fragment without a credit.
    #[error("the peer sent data fragment number {fragment} with credits for {limit} only")]
    CreditOverrun {
        /// The fragment's number, from 0.
        fragment: u32,
        /// How many were allowed in all.
        limit: u32,
    },
    /// A fragment that does not continue what came before.
    #[error(
        "the peer sent message {got_seq} at offset {got_offset} where message {seq} at offset {offset} was due"
    )]
    OutOfOrder {
        /// The message that was due.
        seq: u64,
        /// The offset that was due.
        offset: u32,
        /// The message that came.
        got_seq: u64,
        /// The offset that came.
        got_offset: u32,
    },
    /// A fragment that tells other things of its message than the first one did.
    #[error("the fragments of message {seq} contradict each other")]
    Inconsistent {
        /// The message.
        seq: u64,
    },
    /// A message longer than this side said that it accepts.
    #[error("the peer sent a message of {len} bytes, of which at most {max} are accepted")]
    TooLarge {
        /// Its length in bytes.
        len: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// An acknowledgement of what was never sent.
    #[error("the peer acknowledged {acked} {what}, of which {sent} were sent")]
    AckOfUnsent {
        /// Messages or control messages.
        what: &'static str,
        /// How many it acknowledged.
        acked: u64,
        /// How many were sent.
        sent: u64,
    },
    /// The peer's goodbye counts other messages than came.
    #[error("the peer said goodbye after {announced} messages, of which {received} came")]
    GoodbyeTooEarly {
        /// How many it says that it sent.
        announced: u64,
        /// How many came.
        received: u64,
    },
}

/// A message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too much waits to be sent: try again when something was.
    #[error("too much waits to be sent already; try again when the endpoint is ready")]
    WouldBlock,
    /// The message is longer than the peer accepts.
    #[error(
        "a message of {len} bytes is longer than the {max} that the peer accepts; split it, or raise the peer's max_message"
    )]
    TooLarge {
        /// Its length, user header included, in bytes.
        len: u64,
        /// The limit in bytes.
        max: u32,
    },
    /// The user header is longer than 65535 bytes.
    #[error("a user header of {len} bytes is longer than 65535; put the rest into the payload")]
    HeaderTooLarge {
        /// Its length in bytes.
        len: usize,
    },
    /// This side closed the endpoint, or it has not opened.
    #[error("the endpoint is not open; connect again")]
    NotOpen,
    /// The peer said goodbye.
    #[error("the peer closed the endpoint: {0}; connect again")]
    PeerClosed(GoodbyeReason),
}

/// Why an endpoint failed by itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FailReason {
    /// The peer broke the protocol.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The peer did not confirm the link in time.
    #[error(
        "the peer did not confirm the link in time; check that RDMA traffic (for RoCEv2: UDP port 4791) passes between the hosts"
    )]
    OpenTimeout,
    /// The peer did not answer the goodbye in time.
    #[error(
        "the peer did not answer the goodbye in time; what it had not acknowledged may not have been handled"
    )]
    CloseTimeout,
}
