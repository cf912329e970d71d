//! Refusals.

use std::fmt;

use adverb_types::GidType;

use crate::bytes::Writer;
use crate::handshake::{gid_type_code, gid_type_from_code};
use crate::parameter::{Fields, ParameterId, put};
use crate::{Features, HandshakeError, MissingFeatures, Text, VersionRange};

/// Why the sender of this frame does not connect.
///
/// Printed, it speaks to the side that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// The versions that the refuser speaks.
    pub versions: VersionRange,
    /// The reason.
    pub reason: RefuseReason,
    /// The refuser's own words; may be empty.
    pub text: Text<256>,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefuseReason {
    /// No version in common.
    VersionMismatch {
        /// What the refused side speaks, as the refuser understood it. The refuser's is [`Refuse::versions`].
        refused: VersionRange,
    },
    /// One side requires features that the other lacks: `here` is the refuser, `at_peer` the refused side.
    FeatureMissing(MissingFeatures),
    /// The GIDs are of different types.
    GidTypeMismatch {
        /// The refuser's.
        refuser: GidType,
        /// The refused side's.
        refused: GidType,
    },
    /// The refuser's device cannot reach the GID.
    NoRoute,
    /// The refuser's worker has no room for another endpoint.
    WorkerFull,
    /// The refuser has too many handshakes under way.
    Busy,
    /// The refuser is shutting down.
    ShuttingDown,
    /// The parameter with this id was missing, doubled or wrong.
    BadParameter(u16),
    /// Something failed at the refuser that has nothing to do with the refused side.
    Internal,
    /// The frame could not be read, or was not the one to come next.
    BadFrame,
    /// A code that this version does not know.
    Unknown(u16),
}

impl Refuse {
    pub(crate) fn decode(versions: VersionRange, fields: &Fields<'_>) -> Result<Self, HandshakeError> {
        Ok(Self {
            versions,
            reason: RefuseReason::decode(fields)?,
            text: fields.text(ParameterId::ReasonText)?,
        })
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        self.reason.encode(writer);
        put(writer, ParameterId::ReasonText, self.text.as_str().as_bytes());
    }
}

impl RefuseReason {
    /// The code on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::VersionMismatch { .. } => code::VERSION_MISMATCH,
            Self::FeatureMissing(_) => code::FEATURE_MISSING,
            Self::GidTypeMismatch { .. } => code::GID_TYPE_MISMATCH,
            Self::NoRoute => code::NO_ROUTE,
            Self::WorkerFull => code::WORKER_FULL,
            Self::Busy => code::BUSY,
            Self::ShuttingDown => code::SHUTTING_DOWN,
            Self::BadParameter(_) => code::BAD_PARAMETER,
            Self::Internal => code::INTERNAL,
            Self::BadFrame => code::BAD_FRAME,
            Self::Unknown(code) => code,
        }
    }

    fn decode(fields: &Fields<'_>) -> Result<Self, HandshakeError> {
        Ok(match fields.u16(ParameterId::Reason)? {
            code::VERSION_MISMATCH => {
                let [a, b, c, d] = fields.array(ParameterId::RefusedVersions)?;
                let refused = VersionRange::new(u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))?;
                Self::VersionMismatch { refused }
            }
            code::FEATURE_MISSING => {
                let bits = u128::from_le_bytes(fields.array(ParameterId::MissingFeatures)?);
                // The refuser's bits come first, so they are the low half.
                Self::FeatureMissing(MissingFeatures {
                    here: Features::from_bits_retain(bits as u64),
                    at_peer: Features::from_bits_retain((bits >> 64) as u64),
                })
            }
            code::GID_TYPE_MISMATCH => {
                let [refuser, refused] = fields.array(ParameterId::GidTypes)?;
                let gid_type = |code| gid_type_from_code(ParameterId::GidTypes, code);
                Self::GidTypeMismatch {
                    refuser: gid_type(refuser)?,
                    refused: gid_type(refused)?,
                }
            }
            code::NO_ROUTE => Self::NoRoute,
            code::WORKER_FULL => Self::WorkerFull,
            code::BUSY => Self::Busy,
            code::SHUTTING_DOWN => Self::ShuttingDown,
            code::BAD_PARAMETER => Self::BadParameter(fields.u16(ParameterId::BadParameter)?),
            code::INTERNAL => Self::Internal,
            code::BAD_FRAME => Self::BadFrame,
            code => Self::Unknown(code),
        })
    }

    fn encode(self, writer: &mut Writer<'_>) {
        put(writer, ParameterId::Reason, &self.code().to_le_bytes());
        match self {
            Self::VersionMismatch { refused } => {
                let ([a, b], [c, d]) = (refused.min().to_le_bytes(), refused.max().to_le_bytes());
                put(writer, ParameterId::RefusedVersions, &[a, b, c, d]);
            }
            Self::FeatureMissing(MissingFeatures { here, at_peer }) => {
                let bits = u128::from(here.bits()) | u128::from(at_peer.bits()) << 64;
                put(writer, ParameterId::MissingFeatures, &bits.to_le_bytes());
            }
            Self::GidTypeMismatch { refuser, refused } => {
                put(
                    writer,
                    ParameterId::GidTypes,
                    &[gid_type_code(refuser), gid_type_code(refused)],
                );
            }
            Self::BadParameter(id) => put(writer, ParameterId::BadParameter, &id.to_le_bytes()),
            Self::NoRoute
            | Self::WorkerFull
            | Self::Busy
            | Self::ShuttingDown
            | Self::Internal
            | Self::BadFrame
            | Self::Unknown(_) => {}
        }
    }
}

impl fmt::Display for Refuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            RefuseReason::VersionMismatch { refused } => {
                write!(
                    f,
                    "no common wire version: the peer speaks {}, this side {refused}",
                    self.versions
                )?;
            }
            RefuseReason::FeatureMissing(MissingFeatures { here, at_peer }) => {
                write!(f, "features missing: {here} at the peer, {at_peer} on this side")?;
            }
            RefuseReason::GidTypeMismatch { refuser, refused } => {
                write!(
                    f,
                    "GID types differ: the peer's is {refuser}, this side's {refused}"
                )?;
            }
            RefuseReason::NoRoute => f.write_str("the peer's device has no route to this side's GID")?,
            RefuseReason::WorkerFull => f.write_str("the peer's worker has no room for another endpoint")?,
            RefuseReason::Busy => {
                f.write_str("the peer has too many handshakes under way, try again later")?
            }
            RefuseReason::ShuttingDown => f.write_str("the peer is shutting down")?,
            RefuseReason::BadParameter(code) => match ParameterId::from_code(code) {
                Some(id) => write!(f, "the peer could not accept parameter {id}")?,
                None => write!(f, "the peer could not accept parameter {code}")?,
            },
            RefuseReason::Internal => f.write_str("the peer failed on its own side, see its log")?,
            RefuseReason::BadFrame => f.write_str("the peer could not read this side's frame")?,
            RefuseReason::Unknown(code) => {
                write!(f, "the peer gave reason {code}, which this version does not know")?
            }
        }
        if self.text.as_str().is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.text)
        }
    }
}

/// The reasons' codes.
mod code {
    pub(super) const VERSION_MISMATCH: u16 = 1;
    pub(super) const FEATURE_MISSING: u16 = 2;
    pub(super) const GID_TYPE_MISMATCH: u16 = 3;
    pub(super) const NO_ROUTE: u16 = 4;
    pub(super) const WORKER_FULL: u16 = 5;
    pub(super) const BUSY: u16 = 6;
    pub(super) const SHUTTING_DOWN: u16 = 7;
    pub(super) const BAD_PARAMETER: u16 = 8;
    pub(super) const INTERNAL: u16 = 9;
    pub(super) const BAD_FRAME: u16 = 10;
}
