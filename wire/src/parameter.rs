//! The parameters that a handshake frame's body is made of: (id, length, value), in any order.

use std::fmt;

use crate::HandshakeError;
use crate::bytes::{Reader, Writer};
use crate::text::Text;

/// The parameters that this version knows. The discriminant is the id on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)]
pub enum ParameterId {
    /// The lowest version that the sender speaks; its highest is in the frame's header.
    MinVersion = 1,
    /// Features that the sender offers.
    FeaturesOffered = 2,
    /// Features that the sender requires.
    FeaturesRequired = 3,
    /// The connection's nonce.
    Nonce = 4,
    /// The sender's queue pair number.
    Qpn = 5,
    /// The PSN of the first packet that the sender will send.
    Psn = 6,
    /// The sender's GID.
    Gid = 7,
    /// The type of the sender's GID.
    GidType = 8,
    /// The active MTU of the sender's port.
    Mtu = 9,
    /// The sender's LID, on InfiniBand.
    Lid = 10,
    /// RDMA reads and atomics that the sender can have outstanding as initiator.
    MaxRdAtomic = 11,
    /// RDMA reads and atomics that the sender can serve at a time as target.
    MaxDestRdAtomic = 12,
    /// Data credits that the sender grants at the start.
    Credits = 13,
    /// The largest SEND that the sender can receive.
    SegmentSize = 14,
    /// The largest active message that the sender accepts.
    MaxMessage = 15,
    /// The sender's software and its version.
    Software = 16,
    /// The name of the sender's device.
    Device = 17,
    /// Why a handshake is refused.
    Reason = 18,
    /// The refusal in words.
    ReasonText = 19,
    /// The versions that the refused side speaks, as its refuser understood it.
    RefusedVersions = 20,
    /// The required features that each side lacks.
    MissingFeatures = 21,
    /// The GID types of both sides.
    GidTypes = 22,
    /// The parameter that was refused.
    BadParameter = 23,
    /// The UDP port of the sender's device, if it is not RoCEv2's own.
    UdpPort = 24,
}

impl ParameterId {
    /// Every parameter, in the order of ids.
    pub const ALL: [Self; 24] = [
        Self::MinVersion,
        Self::FeaturesOffered,
        Self::FeaturesRequired,
        Self::Nonce,
        Self::Qpn,
        Self::Psn,
        Self::Gid,
        Self::GidType,
        Self::Mtu,
        Self::Lid,
        Self::MaxRdAtomic,
        Self::MaxDestRdAtomic,
        Self::Credits,
        Self::SegmentSize,
        Self::MaxMessage,
        Self::Software,
        Self::Device,
        Self::Reason,
        Self::ReasonText,
        Self::RefusedVersions,
        Self::MissingFeatures,
        Self::GidTypes,
        Self::BadParameter,
        Self::UdpPort,
    ];

    /// The id on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The parameter with this id, if this version knows it.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.code() == code)
    }

    /// The name, as `FORMAT.md` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MinVersion => "min_version",
            Self::FeaturesOffered => "features_offered",
            Self::FeaturesRequired => "features_required",
            Self::Nonce => "nonce",
            Self::Qpn => "qpn",
            Self::Psn => "psn",
            Self::Gid => "gid",
            Self::GidType => "gid_type",
            Self::Mtu => "mtu",
            Self::Lid => "lid",
            Self::MaxRdAtomic => "max_rd_atomic",
            Self::MaxDestRdAtomic => "max_dest_rd_atomic",
            Self::Credits => "credits",
            Self::SegmentSize => "segment_size",
            Self::MaxMessage => "max_message",
            Self::Software => "software",
            Self::Device => "device",
            Self::Reason => "reason",
            Self::ReasonText => "reason_text",
            Self::RefusedVersions => "refused_versions",
            Self::MissingFeatures => "missing_features",
            Self::GidTypes => "gid_types",
            Self::BadParameter => "bad_parameter",
            Self::UdpPort => "udp_port",
        }
    }
}

impl fmt::Display for ParameterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parameters found in a body, by id. The values are not yet interpreted.
#[derive(Debug)]
pub(crate) struct Fields<'a>([Option<&'a [u8]>; ParameterId::ALL.len() + 1]);

impl<'a> Fields<'a> {
    /// Splits a body into parameters. Those that this version does not know are skipped.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, HandshakeError> {
        let mut fields = Self([None; ParameterId::ALL.len() + 1]);
        let mut reader = Reader::new(body);
        while !reader.rest().is_empty() {
            let at = body.len() - reader.rest().len();
            let (code, value) =
                Self::read_one(&mut reader).ok_or(HandshakeError::TruncatedParameter { at })?;
            let Some(id) = ParameterId::from_code(code) else {
                continue;
            };
            if let Some(field) = fields.0.get_mut(usize::from(code))
                && field.replace(value).is_some()
            {
                return Err(HandshakeError::DuplicateParameter(id));
            }
        }
        Ok(fields)
    }

    fn read_one(reader: &mut Reader<'a>) -> Option<(u16, &'a [u8])> {
        let code = reader.u16()?;
        let len = reader.u16()?;
        Some((code, reader.slice(usize::from(len))?))
    }

    fn optional_slice(&self, id: ParameterId) -> Option<&'a [u8]> {
        self.0.get(usize::from(id.code())).copied().flatten()
    }

    fn slice(&self, id: ParameterId) -> Result<&'a [u8], HandshakeError> {
        self.optional_slice(id)
            .ok_or(HandshakeError::MissingParameter(id))
    }

    pub(crate) fn array<const N: usize>(&self, id: ParameterId) -> Result<[u8; N], HandshakeError> {
        let value = self.slice(id)?;
        value.try_into().map_err(|_| HandshakeError::WrongLength {
            parameter: id,
            len: value.len(),
        })
    }

    pub(crate) fn u8(&self, id: ParameterId) -> Result<u8, HandshakeError> {
        self.array(id).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&self, id: ParameterId) -> Result<u16, HandshakeError> {
        self.array(id).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&self, id: ParameterId) -> Result<u32, HandshakeError> {
        self.array(id).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self, id: ParameterId) -> Result<u64, HandshakeError> {
        self.array(id).map(u64::from_le_bytes)
    }

    pub(crate) fn optional_u16(&self, id: ParameterId) -> Result<Option<u16>, HandshakeError> {
        self.optional_slice(id).map(|_| self.u16(id)).transpose()
    }

    pub(crate) fn text<const MAX: usize>(&self, id: ParameterId) -> Result<Text<MAX>, HandshakeError> {
        let value = self.slice(id)?;
        let text = str::from_utf8(value).map_err(|_| HandshakeError::NotUtf8(id))?;
        Text::try_from(text).map_err(|_| HandshakeError::WrongLength {
            parameter: id,
            len: value.len(),
        })
    }
}

/// Writes one parameter. No value here comes near 2^16 bytes: they are integers, GIDs and [`Text`]s.
pub(crate) fn put(writer: &mut Writer<'_>, id: ParameterId, value: &[u8]) {
    writer.u16(id.code());
    writer.u16(value.len() as u16);
    writer.slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dense_and_names_unique() {
        let codes = ParameterId::ALL.map(ParameterId::code);
        assert!(codes.into_iter().eq(1..=ParameterId::ALL.len() as u16));
        assert_eq!(ParameterId::from_code(0), None);
        assert_eq!(ParameterId::from_code(25), None);
        let names = ParameterId::ALL
            .map(ParameterId::name)
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>();
        assert_eq!(names.len(), ParameterId::ALL.len());
    }

    #[test]
    fn unknown_parameters_are_skipped_even_twice() {
        let body = [0xff, 0xff, 1, 0, 9, 10, 0, 2, 0, 5, 0, 0xff, 0xff, 0, 0];
        let fields = Fields::read(&body).unwrap();
        assert_eq!(fields.u16(ParameterId::Lid), Ok(5));
    }

    #[test]
    fn a_known_parameter_may_come_once() {
        let body = [10, 0, 2, 0, 5, 0, 10, 0, 2, 0, 5, 0];
        assert_eq!(
            Fields::read(&body).err(),
            Some(HandshakeError::DuplicateParameter(ParameterId::Lid))
        );
    }

    #[test]
    fn a_parameter_cut_short_is_an_error_that_says_where() {
        let body = [10, 0, 2, 0, 5, 0, 9, 0, 1, 0, 3];
        for len in [7, 8, 9, 10] {
            assert_eq!(
                Fields::read(&body[..len]).err(),
                Some(HandshakeError::TruncatedParameter { at: 6 })
            );
        }
        assert!(Fields::read(&body[..6]).is_ok() && Fields::read(&body).is_ok());
    }

    #[test]
    fn lengths_and_presence_are_checked_when_a_value_is_taken() {
        let fields = Fields::read(&[10, 0, 2, 0, 5, 0, 16, 0, 1, 0, 0xff]).unwrap();
        let wrong = HandshakeError::WrongLength {
            parameter: ParameterId::Lid,
            len: 2,
        };
        assert_eq!(fields.u32(ParameterId::Lid), Err(wrong));
        assert_eq!(
            fields.u8(ParameterId::Mtu),
            Err(HandshakeError::MissingParameter(ParameterId::Mtu))
        );
        assert_eq!(fields.optional_u16(ParameterId::Psn), Ok(None));
        assert_eq!(
            fields.text::<64>(ParameterId::Software),
            Err(HandshakeError::NotUtf8(ParameterId::Software))
        );
        assert_eq!(fields.text::<1>(ParameterId::Lid), Err(wrong));
    }
}
