//! Every byte that adverb puts on the network: the header of each message, the handshake that opens a connection, and the handles of regions that
//! programs send.
//!
//! The crate turns bytes into plain values and back. It does no I/O, knows no verbs and no clock, keeps no state and
//! is little-endian throughout. Decoders are total: whatever a peer sends, the answer is a value or a typed error,
//! never a panic. `FORMAT.md` beside this crate documents every byte, with examples that the tests check.
//!
//! ```
//! use adverb_wire::{CreditLimit, Data, Header, Kind, Role};
//!
//! // One fragment that carries a whole message: 3 bytes of user header, 4 of payload.
//! let data = Data { seq: 0, am_id: 7, header_len: 3, message_len: 7, offset: 0, role: Role::Message, fragment_len: 7 };
//! let header = Header { control_ack: 0, credit_limit: CreditLimit::new(16), ack: 0, kind: Kind::Data(data) };
//!
//! let mut slot = [0; 64];
//! let len = header.encode(slot.first_chunk_mut().unwrap());
//! slot[len..len + 7].copy_from_slice(b"hdrbody");
//!
//! let (decoded, fragment) = Header::decode(&slot[..len + 7]).unwrap();
//! assert_eq!(decoded, header);
//! assert_eq!(fragment, b"hdrbody");
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod credit;
mod error;
mod features;
mod frame;
mod goodbye;
mod handshake;
mod header;
mod parameter;
mod refuse;
mod region;
mod role;
mod text;
mod version;

pub use credit::CreditLimit;
pub use error::{Disagreement, HandshakeError};
pub use features::{FeatureOffer, Features, MissingFeatures};
pub use frame::{Frame, FrameKind, MAX_HANDSHAKE, Peek};
pub use goodbye::GoodbyeReason;
pub use handshake::{Agreement, Handshake, MIN_SEGMENT_SIZE, Parameters};
pub use header::{Confirm, Data, DecodeError, Goodbye, Header, Kind};
pub use parameter::ParameterId;
pub use refuse::{Refuse, RefuseReason};
pub use region::{RemoteRegion, RemoteRegionError, Rights};
pub use role::{RefusalReason, Role};
pub use text::{Text, TextTooLong};
pub use version::{InvalidVersionRange, NoCommonVersion, VersionRange};
