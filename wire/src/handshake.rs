//! The frames' contents, and what two sides agree on.

use adverb_types::{Gid, GidType, Mtu, Psn, Qpn};

use crate::bytes::Writer;
use crate::parameter::{Fields, ParameterId, put};
use crate::{
    Disagreement, FeatureOffer, Features, Frame, FrameKind, HandshakeError, Header, Refuse, Text,
    VersionRange,
};

/// The contents of a handshake frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// See [`FrameKind::Hello`].
    Hello(Parameters),
    /// See [`FrameKind::Welcome`].
    Welcome(Parameters),
    /// See [`FrameKind::Refuse`].
    Refuse(Refuse),
}

/// What one side tells the other of itself. Hello and Welcome carry the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The versions that the sender speaks.
    pub versions: VersionRange,
    /// The sender's features.
    pub features: FeatureOffer,
    /// A random number that Hello chooses and Welcome and the confirmation on the link repeat.
    pub nonce: u64,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The PSN of the first packet that the sender will send.
    pub psn: Psn,
    /// The address of the sender's port.
    pub gid: Gid,
    /// The type of that GID.
    pub gid_type: GidType,
    /// The active MTU of the sender's port.
    pub mtu: Mtu,
    /// The LID of the sender's port, on InfiniBand.
    pub lid: Option<u16>,
    /// The UDP port of the sender's device if it is not RoCEv2's own, 4791: only a software device can send there.
    pub udp_port: Option<u16>,
    /// RDMA reads and atomics that the sender can have outstanding (`max_rd_atomic` of `ibv_modify_qp(3)`).
    pub max_rd_atomic: u8,
    /// RDMA reads and atomics that the sender can serve at a time (`max_dest_rd_atomic` of `ibv_modify_qp(3)`).
    pub max_dest_rd_atomic: u8,
    /// Data credits that the sender grants at the start: the first [`CreditLimit`](crate::CreditLimit). Less than 2^31.
    pub credits: u32,
    /// The largest SEND that the sender can receive, header included, in bytes. At least [`MIN_SEGMENT_SIZE`].
    pub segment_size: u32,
    /// The largest active message that the sender accepts, user header included, in bytes.
    pub max_message: u32,
    /// The sender's software and its version, for diagnostics.
    pub software: Text<64>,
    /// The name of the sender's device, for diagnostics.
    pub device: Text<64>,
}

/// The smallest segment that a side may ask for, in bytes: every header fits, and some of a message.
pub const MIN_SEGMENT_SIZE: u32 = 64;

/// What follows from both sides' parameters. Both sides come to the same `version`, `features` and `path_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The version to speak.
    pub version: u16,
    /// The features to use.
    pub features: Features,
    /// The path MTU of the queue pair: the smaller of both active MTUs. A larger one connects, and then fails the
    /// first large send with `REM_INV_REQ`.
    pub path_mtu: Mtu,
    /// `max_rd_atomic` of this side's queue pair: no more than the peer can serve.
    pub max_rd_atomic: u8,
    /// `max_dest_rd_atomic` of this side's queue pair: no more than the peer will have outstanding.
    pub max_dest_rd_atomic: u8,
}

impl Handshake {
    /// Interprets a frame.
    ///
    /// A Hello or a Welcome is read only if it comes from a side that speaks a version of
    /// [`VersionRange::SUPPORTED`]; a refusal is understood from any version.
    ///
    /// # Errors
    /// [`HandshakeError`] if a parameter is missing, doubled, of the wrong length or out of range, or if there is no
    /// common version. [`HandshakeError::refusal`] gives the answer to send.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, HandshakeError> {
        let fields = Fields::read(frame.body)?;
        let versions = VersionRange::new(fields.u16(ParameterId::MinVersion)?, frame.version)?;
        Ok(match frame.kind {
            FrameKind::Hello => Self::Hello(Parameters::decode(versions, &fields)?),
            FrameKind::Welcome => Self::Welcome(Parameters::decode(versions, &fields)?),
            FrameKind::Refuse => Self::Refuse(Refuse::decode(versions, &fields)?),
        })
    }

    /// Writes the frame to the start of `out` and returns its length.
    ///
    /// Nothing is checked: `credits` or a `segment_size` out of range is refused by the peer.
    pub fn encode(&self, out: &mut [u8; Frame::MAX_LEN]) -> usize {
        let versions = self.versions();
        Frame::encode(out, versions.max(), self.kind(), |body| {
            put(body, ParameterId::MinVersion, &versions.min().to_le_bytes());
            match self {
                Self::Hello(parameters) | Self::Welcome(parameters) => parameters.encode(body),
                Self::Refuse(refuse) => refuse.encode(body),
            }
        })
    }

    /// The kind of frame.
    pub const fn kind(&self) -> FrameKind {
        match self {
            Self::Hello(_) => FrameKind::Hello,
            Self::Welcome(_) => FrameKind::Welcome,
            Self::Refuse(_) => FrameKind::Refuse,
        }
    }

    /// The versions that the sender speaks.
    pub const fn versions(&self) -> VersionRange {
        match self {
            Self::Hello(parameters) | Self::Welcome(parameters) => parameters.versions,
            Self::Refuse(refuse) => refuse.versions,
        }
    }
}

impl Parameters {
    /// What follows from this side's parameters, `self`, and the peer's.
    ///
    /// The side that listens calls it on a Hello, with the parameters of the Welcome that it is about to send;
    /// the side that connects on the Welcome.
    ///
    /// # Errors
    /// [`Disagreement`] if the two sides cannot connect. [`Disagreement::refusal`] gives the answer to send.
    pub fn agree(&self, peer: &Self) -> Result<Agreement, Disagreement> {
        let version = self.versions.negotiate(peer.versions)?;
        if self.nonce != peer.nonce {
            return Err(Disagreement::Nonce {
                ours: self.nonce,
                theirs: peer.nonce,
            });
        }
        let features = self.features.negotiate(peer.features)?;
        if self.gid_type != peer.gid_type {
            return Err(Disagreement::GidType {
                ours: self.gid_type,
                theirs: peer.gid_type,
            });
        }
        Ok(Agreement {
            version,
            features,
            path_mtu: self.mtu.min(peer.mtu),
            max_rd_atomic: self.max_rd_atomic.min(peer.max_dest_rd_atomic),
            max_dest_rd_atomic: self.max_dest_rd_atomic.min(peer.max_rd_atomic),
        })
    }

    fn decode(versions: VersionRange, fields: &Fields<'_>) -> Result<Self, HandshakeError> {
        // First of all: what another version makes of the other parameters is not known here.
        VersionRange::SUPPORTED.negotiate(versions)?;
        let bounded_u32 = |id, valid: fn(u32) -> bool| match fields.u32(id)? {
            value if valid(value) => Ok(value),
            value => Err(HandshakeError::InvalidValue { parameter: id, value }),
        };
        let qpn = fields.u32(ParameterId::Qpn)?;
        let mtu = fields.u8(ParameterId::Mtu)?;
        Ok(Self {
            versions,
            features: FeatureOffer {
                offered: Features::from_bits_retain(fields.u64(ParameterId::FeaturesOffered)?),
                required: Features::from_bits_retain(fields.u64(ParameterId::FeaturesRequired)?),
            },
            nonce: fields.u64(ParameterId::Nonce)?,
            qpn: Qpn::new(qpn).map_err(|_| HandshakeError::InvalidValue {
                parameter: ParameterId::Qpn,
                value: qpn,
            })?,
            psn: Psn::new(bounded_u32(ParameterId::Psn, |psn| psn < 1 << 24)?),
            gid: Gid::new(fields.array(ParameterId::Gid)?),
            gid_type: gid_type_from_code(ParameterId::GidType, fields.u8(ParameterId::GidType)?)?,
            mtu: Mtu::try_from(mtu).map_err(|_| HandshakeError::InvalidValue {
                parameter: ParameterId::Mtu,
                value: mtu.into(),
            })?,
            lid: fields.optional_u16(ParameterId::Lid)?,
            udp_port: fields.optional_u16(ParameterId::UdpPort)?,
            max_rd_atomic: fields.u8(ParameterId::MaxRdAtomic)?,
            max_dest_rd_atomic: fields.u8(ParameterId::MaxDestRdAtomic)?,
            // Limits are compared as serial numbers, which tells nothing of distances of 2^31 and more.
            credits: bounded_u32(ParameterId::Credits, |credits| credits < 1 << 31)?,
            segment_size: bounded_u32(ParameterId::SegmentSize, |size| size >= MIN_SEGMENT_SIZE)?,
            max_message: fields.u32(ParameterId::MaxMessage)?,
            software: fields.text(ParameterId::Software)?,
            device: fields.text(ParameterId::Device)?,
        })
    }

    fn encode(&self, w: &mut Writer<'_>) {
        put(
            w,
            ParameterId::FeaturesOffered,
            &self.features.offered.bits().to_le_bytes(),
        );
        put(
            w,
            ParameterId::FeaturesRequired,
            &self.features.required.bits().to_le_bytes(),
        );
        put(w, ParameterId::Nonce, &self.nonce.to_le_bytes());
        put(w, ParameterId::Qpn, &self.qpn.get().to_le_bytes());
        put(w, ParameterId::Psn, &self.psn.get().to_le_bytes());
        put(w, ParameterId::Gid, &self.gid.bytes());
        put(w, ParameterId::GidType, &[gid_type_code(self.gid_type)]);
        put(w, ParameterId::Mtu, &[self.mtu.code()]);
        if let Some(lid) = self.lid {
            put(w, ParameterId::Lid, &lid.to_le_bytes());
        }
        if let Some(port) = self.udp_port {
            put(w, ParameterId::UdpPort, &port.to_le_bytes());
        }
        put(w, ParameterId::MaxRdAtomic, &[self.max_rd_atomic]);
        put(w, ParameterId::MaxDestRdAtomic, &[self.max_dest_rd_atomic]);
        put(w, ParameterId::Credits, &self.credits.to_le_bytes());
        put(w, ParameterId::SegmentSize, &self.segment_size.to_le_bytes());
        put(w, ParameterId::MaxMessage, &self.max_message.to_le_bytes());
        put(w, ParameterId::Software, self.software.as_str().as_bytes());
        put(w, ParameterId::Device, self.device.as_str().as_bytes());
    }
}

/// The code of a GID type: one more than in `enum ibv_gid_type`, so that 0 stands for none.
pub(crate) const fn gid_type_code(gid_type: GidType) -> u8 {
    match gid_type {
        GidType::Ib => 1,
        GidType::RoceV1 => 2,
        GidType::RoceV2 => 3,
        // A type that has no code yet: the peer names the parameter in its refusal.
        _ => 0,
    }
}

/// The GID type with a code, which came in parameter `id`.
pub(crate) fn gid_type_from_code(id: ParameterId, code: u8) -> Result<GidType, HandshakeError> {
    [GidType::Ib, GidType::RoceV1, GidType::RoceV2]
        .into_iter()
        .find(|gid_type| gid_type_code(*gid_type) == code)
        .ok_or(HandshakeError::InvalidValue {
            parameter: id,
            value: code.into(),
        })
}

const _: () = assert!(
    MIN_SEGMENT_SIZE as usize > Header::MAX_LEN,
    "a segment holds more than a header"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MissingFeatures, NoCommonVersion, Peek, RefuseReason};

    fn parameters() -> Parameters {
        Parameters {
            versions: VersionRange::SUPPORTED,
            features: FeatureOffer::default(),
            nonce: 0x1122_3344_5566_7788,
            qpn: Qpn::truncating(0x11),
            psn: Psn::new(0xab_cdef),
            gid: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
            gid_type: GidType::RoceV2,
            mtu: Mtu::Mtu4096,
            lid: None,
            udp_port: None,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 8,
            credits: 32,
            segment_size: 8192,
            max_message: 1 << 20,
            software: Text::truncated("adverb 0.1.0"),
            device: Text::truncated("rxe0"),
        }
    }

    fn refuse(reason: RefuseReason) -> Refuse {
        Refuse {
            versions: VersionRange::SUPPORTED,
            reason,
            text: Text::default(),
        }
    }

    fn bytes(handshake: &Handshake) -> Vec<u8> {
        let mut out = [0; Frame::MAX_LEN];
        let len = handshake.encode(&mut out);
        out[..len].to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Handshake, HandshakeError> {
        match Frame::peek(bytes)? {
            Peek::Complete { frame, rest: [] } => Handshake::decode(&frame),
            other => panic!("not one frame: {other:?}"),
        }
    }

    /// The frame with the value of one parameter replaced, or without it.
    fn with(handshake: &Handshake, id: ParameterId, value: Option<&[u8]>) -> Vec<u8> {
        let original = bytes(handshake);
        let (header, mut rest) = original.split_at(Frame::HEADER_LEN);
        let mut body = Vec::new();
        while let [a, b, c, d, tail @ ..] = rest {
            let len = usize::from(u16::from_le_bytes([*c, *d]));
            let old;
            (old, rest) = tail.split_at(len);
            let code = u16::from_le_bytes([*a, *b]);
            if let Some(new) = if code == id.code() { value } else { Some(old) } {
                body.extend(code.to_le_bytes());
                body.extend((new.len() as u16).to_le_bytes());
                body.extend(new);
            }
        }
        let mut frame = header.to_vec();
        frame[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend(body);
        frame
    }

    /// The parameters of Hello and Welcome.
    const OF_HELLO: [ParameterId; 18] = {
        let mut ids = [ParameterId::UdpPort; 18];
        let mut i = 0;
        while i < 17 {
            ids[i] = ParameterId::ALL[i];
            i += 1;
        }
        ids
    };

    #[test]
    fn every_parameter_but_the_lid_and_the_port_is_required() {
        let all = Parameters {
            lid: Some(7),
            udp_port: Some(50_000),
            ..parameters()
        };
        let hello = Handshake::Hello(all.clone());
        for id in OF_HELLO {
            let decoded = decode(&with(&hello, id, None));
            let without = match id {
                ParameterId::Lid => Ok(Parameters {
                    lid: None,
                    ..all.clone()
                }),
                ParameterId::UdpPort => Ok(Parameters {
                    udp_port: None,
                    ..all.clone()
                }),
                _ => Err(HandshakeError::MissingParameter(id)),
            };
            assert_eq!(decoded, without.map(Handshake::Hello));
        }
    }

    #[test]
    fn every_parameter_has_its_length() {
        let hello = Handshake::Hello(Parameters {
            lid: Some(7),
            udp_port: Some(50_000),
            ..parameters()
        });
        for id in OF_HELLO {
            let error = decode(&with(&hello, id, Some(&[b'x'; 65]))).unwrap_err();
            assert_eq!(
                error,
                HandshakeError::WrongLength {
                    parameter: id,
                    len: 65
                }
            );
            assert_eq!(error.refusal(), Some(RefuseReason::BadParameter(id.code())));
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let hello = Handshake::Hello(parameters());
        for (id, value) in [
            (ParameterId::Qpn, 1 << 24),
            (ParameterId::Psn, 1 << 24),
            (ParameterId::Credits, 1 << 31),
            (ParameterId::SegmentSize, MIN_SEGMENT_SIZE - 1),
        ] {
            assert_eq!(
                decode(&with(&hello, id, Some(&u32::to_le_bytes(value)))),
                Err(HandshakeError::InvalidValue { parameter: id, value })
            );
        }
        for (id, value) in [
            (ParameterId::Mtu, 0),
            (ParameterId::Mtu, 6),
            (ParameterId::GidType, 0),
            (ParameterId::GidType, 4),
        ] {
            assert_eq!(
                decode(&with(&hello, id, Some(&[value]))),
                Err(HandshakeError::InvalidValue {
                    parameter: id,
                    value: value.into()
                })
            );
        }
        assert_eq!(
            decode(&with(&hello, ParameterId::Device, Some(&[0xff]))),
            Err(HandshakeError::NotUtf8(ParameterId::Device))
        );
    }

    #[test]
    fn another_version_is_refused_before_its_parameters_are_looked_at() {
        let theirs = VersionRange::new(2, 3).unwrap();
        let hello = Handshake::Hello(Parameters {
            versions: theirs,
            ..parameters()
        });
        let error = decode(&with(&hello, ParameterId::Qpn, None)).unwrap_err();
        assert_eq!(
            error,
            HandshakeError::Version(NoCommonVersion {
                ours: VersionRange::SUPPORTED,
                theirs
            })
        );
        assert_eq!(
            error.refusal(),
            Some(RefuseReason::VersionMismatch { refused: theirs })
        );
    }

    #[test]
    fn a_newer_side_that_still_speaks_this_version_is_understood() {
        let versions = VersionRange::new(1, 9).unwrap();
        let hello = Handshake::Hello(Parameters {
            versions,
            ..parameters()
        });
        assert_eq!(decode(&bytes(&hello)), Ok(hello));
    }

    #[test]
    fn a_refusal_from_another_version_is_understood() {
        let refusal = Handshake::Refuse(Refuse {
            versions: VersionRange::new(5, 6).unwrap(),
            ..refuse(RefuseReason::VersionMismatch {
                refused: VersionRange::SUPPORTED,
            })
        });
        let Ok(Handshake::Refuse(decoded)) = decode(&bytes(&refusal)) else {
            panic!("no refusal")
        };
        assert_eq!(
            decoded.to_string(),
            "no common wire version: the peer speaks versions 5 to 6, this side version 1"
        );
    }

    #[test]
    fn both_sides_agree_on_the_smaller_of_what_they_can() {
        let ours = parameters();
        let theirs = Parameters {
            mtu: Mtu::Mtu1024,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 128,
            ..parameters()
        };
        let agreement = Agreement {
            version: 1,
            features: Features::empty(),
            path_mtu: Mtu::Mtu1024,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 4,
        };
        assert_eq!(ours.agree(&theirs), Ok(agreement));
        let mirrored = Agreement {
            max_rd_atomic: 4,
            max_dest_rd_atomic: 16,
            ..agreement
        };
        assert_eq!(theirs.agree(&ours), Ok(mirrored));
    }

    #[test]
    fn each_disagreement_has_its_refusal() {
        let ours = parameters();
        let versions = VersionRange::new(2, 2).unwrap();
        let required = Features::from_bits_retain(4);
        let cases = [
            (
                Parameters {
                    versions,
                    ..parameters()
                },
                RefuseReason::VersionMismatch { refused: versions },
            ),
            (
                Parameters {
                    features: FeatureOffer {
                        required,
                        ..FeatureOffer::default()
                    },
                    ..parameters()
                },
                RefuseReason::FeatureMissing(MissingFeatures {
                    here: required,
                    at_peer: Features::empty(),
                }),
            ),
            (
                Parameters {
                    gid_type: GidType::Ib,
                    ..parameters()
                },
                RefuseReason::GidTypeMismatch {
                    refuser: GidType::RoceV2,
                    refused: GidType::Ib,
                },
            ),
            (
                Parameters {
                    nonce: 1,
                    ..parameters()
                },
                RefuseReason::BadParameter(4),
            ),
        ];
        for (theirs, reason) in cases {
            assert_eq!(ours.agree(&theirs).unwrap_err().refusal(), reason);
            let refusal = Handshake::Refuse(refuse(reason));
            assert_eq!(decode(&bytes(&refusal)), Ok(refusal));
        }
    }

    #[test]
    fn a_refusal_speaks_to_the_refused_side() {
        let at_peer = Features::from_bits_retain(4);
        let mut refusal = refuse(RefuseReason::FeatureMissing(MissingFeatures {
            here: Features::empty(),
            at_peer,
        }));
        assert_eq!(
            refusal.to_string(),
            "features missing: 0x0 at the peer, 0x4 on this side"
        );
        refusal.reason = RefuseReason::BadParameter(5);
        assert_eq!(refusal.to_string(), "the peer could not accept parameter qpn");
        refusal.reason = RefuseReason::BadParameter(999);
        refusal.text = Text::truncated("no 999\n");
        assert_eq!(
            refusal.to_string(),
            "the peer could not accept parameter 999 (no 999\\n)"
        );
    }

    #[test]
    fn a_reason_comes_with_its_details() {
        for (reason, details) in [
            (
                RefuseReason::VersionMismatch {
                    refused: VersionRange::SUPPORTED,
                },
                ParameterId::RefusedVersions,
            ),
            (
                RefuseReason::FeatureMissing(MissingFeatures::default()),
                ParameterId::MissingFeatures,
            ),
            (
                RefuseReason::GidTypeMismatch {
                    refuser: GidType::Ib,
                    refused: GidType::RoceV1,
                },
                ParameterId::GidTypes,
            ),
            (RefuseReason::BadParameter(3), ParameterId::BadParameter),
        ] {
            let frame = with(&Handshake::Refuse(refuse(reason)), details, None);
            assert_eq!(decode(&frame), Err(HandshakeError::MissingParameter(details)));
        }
    }

    #[test]
    fn the_longest_frames_fit() {
        let long = "x".repeat(300);
        let hello = Handshake::Hello(Parameters {
            lid: Some(1),
            software: Text::truncated(&long),
            device: Text::truncated(&long),
            ..parameters()
        });
        let refusal = Handshake::Refuse(Refuse {
            text: Text::truncated(&long),
            ..refuse(RefuseReason::FeatureMissing(MissingFeatures::default()))
        });
        for handshake in [hello, refusal] {
            assert_eq!(decode(&bytes(&handshake)), Ok(handshake));
        }
    }
}
