//! What can go wrong with regions and one-sided operations.

use std::net::SocketAddr;
use std::time::Duration;

use adverb_progress::ProgressError;
use adverb_proto::Outcome;
use adverb_verbs::VerbsError;
use adverb_wire::Rights;
use thiserror::Error;

use crate::{EndpointError, WouldDeadlock};

/// Memory was not registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// [`Rights::REMOTE_ATOMIC`] on a device without atomics.
    #[error("registering memory: {device} does no atomics; leave REMOTE_ATOMIC out, or use another device")]
    NoAtomics {
        /// The device.
        device: String,
    },
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// A one-sided operation was not posted, or failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RmaError {
    /// The send queue is full. Nothing was posted.
    #[error(
        "{operation} at {peer}: the send queue is full; wait until the endpoint is ready (`Endpoint::one_sided_ready`)"
    )]
    WouldBlock {
        /// What was to be done.
        operation: &'static str,
        /// The peer.
        peer: SocketAddr,
    },
    /// The local bytes do not lie within the local region. Nothing was posted.
    #[error("{operation}: bytes {start} to {end} do not lie within a local region of {region_len} bytes")]
    LocalRange {
        /// What was to be done.
        operation: &'static str,
        /// Where the range starts.
        start: usize,
        /// Where it ends: the first byte that is not in it.
        end: usize,
        /// How long the region is, in bytes.
        region_len: usize,
    },
    /// The peer's bytes do not lie within the peer's region. Nothing was posted.
    #[error(
        "{operation}: {len} bytes at offset {offset} do not lie within the peer's region of {region_len} bytes"
    )]
    RemoteRange {
        /// What was to be done.
        operation: &'static str,
        /// Where the bytes start.
        offset: u64,
        /// How many they are.
        len: u64,
        /// How long the region is, in bytes.
        region_len: u64,
    },
    /// The word of an atomic operation is not aligned to 8 bytes. Nothing was posted.
    #[error(
        "{operation}: the word at offset {offset} of the peer's region is not aligned; atomics need multiples of 8"
    )]
    Misaligned {
        /// What was to be done.
        operation: &'static str,
        /// Where the word is.
        offset: u64,
    },
    /// The peer's region does not permit the operation. Nothing was posted.
    #[error(
        "{operation}: the peer's region permits {granted}, {needed} is needed; have the peer register it so"
    )]
    MissingRight {
        /// What was to be done.
        operation: &'static str,
        /// What it needs.
        needed: Rights,
        /// What the handle permits.
        granted: Rights,
    },
    /// The bytes are more than one operation carries. Nothing was posted.
    #[error(
        "{operation}: {len} bytes are more than the {limit} that the port carries at once; do it in pieces"
    )]
    TooLong {
        /// What was to be done.
        operation: &'static str,
        /// How many bytes.
        len: usize,
        /// The limit in bytes (`max_msg_sz` of the port).
        limit: u32,
    },
    /// The local region was registered on another context than the endpoint is on. Nothing was posted.
    #[error(
        "{operation}: the local region is of another context than the endpoint; register it on the worker's context"
    )]
    WrongContext {
        /// What was to be done.
        operation: &'static str,
    },
    /// One of the two devices cannot do it. Nothing was posted.
    #[error("{operation} at {peer}: {reason}")]
    Unsupported {
        /// What was to be done.
        operation: &'static str,
        /// The peer.
        peer: SocketAddr,
        /// What is missing.
        reason: &'static str,
    },
    /// Memory for the results of atomics could not be registered. Nothing was posted.
    #[error(transparent)]
    Register(VerbsError),
    /// The endpoint has ended.
    #[error("a one-sided operation ({}): {error}", crate::error::outcome_text(*.outcome))]
    Ended {
        /// What became of the operation: [`Outcome::MaybeDelivered`] may have been carried out whole, in part or not at all.
        outcome: Outcome,
        /// Why the endpoint ended.
        error: EndpointError,
    },
    /// Waiting took longer than allowed. The operation is still under way.
    #[error("a one-sided operation at {peer}: not done within {waited:?}; it is still under way")]
    Timeout {
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
