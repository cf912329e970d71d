//! What can be wrong with a handshake.

use adverb_types::GidType;
use thiserror::Error;

use crate::{
    FrameKind, InvalidVersionRange, MAX_HANDSHAKE, MissingFeatures, NoCommonVersion, ParameterId,
    RefuseReason,
};

/// Why bytes are no handshake that this version understands. Typically the other end is not adverb, or much newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The stream does not begin as a handshake does: HTTP, a port scanner, another protocol. Close it without a word.
    #[error("reading a handshake: the other end does not speak adverb; check the address and the port")]
    NotAdverb,
    /// A kind of frame that this version does not know.
    #[error("reading a handshake: unknown frame kind {0}; the peer is newer than its version says")]
    UnknownFrameKind(u8),
    /// A body longer than [`MAX_HANDSHAKE`].
    #[error("reading a handshake: a body of {len} bytes exceeds {MAX_HANDSHAKE}; close the connection")]
    BodyTooLong {
        /// The length that the frame claims.
        len: u32,
    },
    /// A frame of another kind than was waited for.
    #[error("reading a handshake: got {0}, which does not come here; close the connection")]
    UnexpectedFrame(FrameKind),
    /// The peer's versions are no range.
    #[error("reading a handshake: {0}")]
    VersionRange(#[from] InvalidVersionRange),
    /// The peer speaks no version that this crate does. Nothing else of its frame was looked at.
    #[error("reading a handshake: {0}")]
    Version(#[from] NoCommonVersion),
    /// The body ends within a parameter.
    #[error("reading a handshake: the body ends within the parameter at byte {at}; close the connection")]
    TruncatedParameter {
        /// Where in the body the parameter starts.
        at: usize,
    },
    /// A parameter came twice.
    #[error("reading a handshake: parameter {0} comes twice; close the connection")]
    DuplicateParameter(ParameterId),
    /// A parameter that the kind of frame must have is not there.
    #[error("reading a handshake: parameter {0} is missing; close the connection")]
    MissingParameter(ParameterId),
    /// A parameter's value is too short or too long.
    #[error(
        "reading a handshake: {len} bytes are the wrong length for parameter {parameter}; close the connection"
    )]
    WrongLength {
        /// The parameter.
        parameter: ParameterId,
        /// The length that it came with, in bytes.
        len: usize,
    },
    /// A text is not UTF-8.
    #[error("reading a handshake: parameter {0} is not UTF-8; close the connection")]
    NotUtf8(ParameterId),
    /// A parameter has a value that it may not have.
    #[error("reading a handshake: {value:#x} is no value for parameter {parameter}; close the connection")]
    InvalidValue {
        /// The parameter.
        parameter: ParameterId,
        /// The value.
        value: u32,
    },
}

impl HandshakeError {
    /// What to answer the sender of the faulty frame; `None` if it does not speak adverb and should get no answer.
    pub const fn refusal(&self) -> Option<RefuseReason> {
        Some(match *self {
            Self::NotAdverb => return None,
            Self::Version(NoCommonVersion { theirs, .. }) => {
                RefuseReason::VersionMismatch { refused: theirs }
            }
            Self::VersionRange(_) => RefuseReason::BadParameter(ParameterId::MinVersion.code()),
            Self::DuplicateParameter(id)
            | Self::MissingParameter(id)
            | Self::NotUtf8(id)
            | Self::WrongLength { parameter: id, .. }
            | Self::InvalidValue { parameter: id, .. } => RefuseReason::BadParameter(id.code()),
            Self::UnknownFrameKind(_)
            | Self::BodyTooLong { .. }
            | Self::UnexpectedFrame(_)
            | Self::TruncatedParameter { .. } => RefuseReason::BadFrame,
        })
    }
}

/// Why two sides that understand each other cannot connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// No version in common.
    #[error(transparent)]
    Version(#[from] NoCommonVersion),
    /// Features that one side requires and the other lacks.
    #[error(transparent)]
    Features(#[from] MissingFeatures),
    /// The packets of one side's port would not be understood by the other's.
    #[error("this side's GID is {ours}, the peer's {theirs}; choose GIDs of the same type")]
    GidType {
        /// This side's.
        ours: GidType,
        /// The peer's.
        theirs: GidType,
    },
    /// The answer belongs to another connection.
    #[error(
        "the peer answered with nonce {theirs:#x} instead of {ours:#x}; close the connection and try again"
    )]
    Nonce {
        /// This side's.
        ours: u64,
        /// The peer's.
        theirs: u64,
    },
}

impl Disagreement {
    /// What to answer the peer.
    pub const fn refusal(&self) -> RefuseReason {
        match *self {
            Self::Version(NoCommonVersion { theirs, .. }) => {
                RefuseReason::VersionMismatch { refused: theirs }
            }
            Self::Features(missing) => RefuseReason::FeatureMissing(missing),
            Self::GidType { ours, theirs } => RefuseReason::GidTypeMismatch {
                refuser: ours,
                refused: theirs,
            },
            Self::Nonce { .. } => RefuseReason::BadParameter(ParameterId::Nonce.code()),
        }
    }
}
