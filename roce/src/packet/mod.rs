//! Packets of the RC transport (IBTA volume 1, sections 9.2 to 9.3): the base transport header and the extended headers.
//!
//! A packet here runs from the first byte of the BTH to the last byte of the payload's padding: what a UDP datagram to port 4791 carries
//! without its last four bytes, the invariant CRC ([`crate::icrc`]).
//!
//! What a receiver need not look at is ignored and sent as 0: the congestion marks FECN and BECN in byte 4 of the BTH (RoCEv2 marks
//! congestion in the IP header, and only the notification that answers has BECN set), reserved bits, and what the padding holds. So is the migration state, which is sent as 1.

mod opcode;

use adverb_types::{Psn, Qpn, Rkey};

pub use opcode::Opcode;

/// Length of the base transport header, in bytes.
const BTH_LEN: usize = 12;

/// Bytes of a congestion notification that are reserved.
const RESERVED_LEN: usize = 16;

/// BECN, in the word of the destination queue pair.
const BECN: u32 = 1 << 30;

/// Length of all headers at once, in bytes: more than any operation has.
const MAX_HEADERS: usize = BTH_LEN + 16 + 28 + 4 + 8 + 4 + 4;

/// RDMA extended transport header: where in the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub addr: u64,
    /// Its key.
    pub rkey: Rkey,
    /// Length of the whole transfer in bytes.
    pub length: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of 8 bytes.
    pub addr: u64,
    /// Its key.
    pub rkey: Rkey,
    /// What to swap in, or to add.
    pub swap_or_add: u64,
    /// What must be there for the swap.
    pub compare: u64,
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Message sequence number of the responder: messages completed, modulo 2^24.
    pub msn: u32,
}

/// What an acknowledgement says (IBTA volume 1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Done up to and including the packet's PSN. With the credit count's code of 5 bits; 31 is "not told".
    Ack(u8),
    /// No receive: try again after the time that the code of 5 bits stands for.
    RnrNak(u8),
    /// Not done, for this reason.
    Nak(Nak),
}

/// Why a request was not done (IBTA volume 1, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing before this one; the acknowledgement's PSN is the one expected.
    SequenceError = 0,
    /// The request is malformed or not allowed.
    InvalidRequest = 1,
    /// The memory does not permit it.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperational = 3,
}

/// A packet, parsed or to be emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What it does.
    pub opcode: Opcode,
    /// Solicited event: wake a receiver that armed its queue solicited-only.
    pub solicited: bool,
    /// The requester wants an acknowledgement.
    pub ack_req: bool,
    /// The partition; 0xffff is the default one.
    pub pkey: u16,
    /// The queue pair it is for.
    pub dest_qpn: Qpn,
    /// Its sequence number.
    pub psn: Psn,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// ACK header.
    pub aeth: Option<Aeth>,
    /// What an atomic operation found.
    pub original: Option<u64>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub invalidate: Option<Rkey>,
    /// The payload without its padding.
    pub payload: &'a [u8],
}

/// Bytes are not a packet of RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than its headers or its padding.
    #[error("the packet ends within its headers or its padding")]
    Truncated,
    /// Transport header version other than 0.
    #[error("transport header version {0} is not known")]
    Version(u8),
    /// Not an operation of RC.
    #[error("operation {0:#04x} is not one of the RC transport")]
    Opcode(u8),
    /// A reserved acknowledgement code.
    #[error("acknowledgement code {0:#04x} is reserved")]
    Syndrome(u8),
    /// Not made of whole words of 4 bytes, as the padding would make it.
    #[error("the packet's length is not a multiple of 4")]
    Alignment,
    /// A payload where there can be none.
    #[error("the packet has a payload that its operation does not have")]
    Payload,
}

impl<'a> Packet<'a> {
    /// A packet of these basics, in the default partition, with nothing optional.
    pub fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            ack_req: false,
            pkey: 0xffff,
            dest_qpn,
            psn,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            imm: None,
            invalidate: None,
            payload: &[],
        }
    }

    /// Parses a packet without its invariant CRC.
    ///
    /// # Errors
    /// [`ParseError`]; no input makes it panic.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut rest = Reader(bytes);
        let bth: [u8; BTH_LEN] = rest.take()?;
        let opcode = Opcode::from_code(bth[0]).ok_or(ParseError::Opcode(bth[0]))?;
        if bth[1] & 0x0f != 0 {
            return Err(ParseError::Version(bth[1] & 0x0f));
        }
        let mut packet = Self::new(
            opcode,
            Qpn::truncating(u32::from_be_bytes([0, bth[5], bth[6], bth[7]])),
            Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]])),
        );
        packet.solicited = bth[1] & 0x80 != 0;
        packet.pkey = u16::from_be_bytes([bth[2], bth[3]]);
        packet.ack_req = bth[8] & 0x80 != 0;
        if opcode.has_reth() {
            packet.reth = Some(Reth {
                addr: u64::from_be_bytes(rest.take()?),
                rkey: Rkey::new(u32::from_be_bytes(rest.take()?)),
                length: u32::from_be_bytes(rest.take()?),
            });
        }
        if opcode.has_atomic() {
            packet.atomic = Some(AtomicEth {
                addr: u64::from_be_bytes(rest.take()?),
                rkey: Rkey::new(u32::from_be_bytes(rest.take()?)),
                swap_or_add: u64::from_be_bytes(rest.take()?),
                compare: u64::from_be_bytes(rest.take()?),
            });
        }
        if opcode.has_aeth() {
            let [code, msn @ ..] = rest.take::<4>()?;
            packet.aeth = Some(Aeth {
                syndrome: Syndrome::from_code(code).ok_or(ParseError::Syndrome(code))?,
                msn: u32::from_be_bytes([0, msn[0], msn[1], msn[2]]),
            });
        }
        if opcode.has_original() {
            packet.original = Some(u64::from_be_bytes(rest.take()?));
        }
        if opcode.has_imm() {
            packet.imm = Some(u32::from_be_bytes(rest.take()?));
        }
        if opcode.has_invalidate() {
            packet.invalidate = Some(Rkey::new(u32::from_be_bytes(rest.take()?)));
        }
        if opcode.has_reserved() {
            let _: [u8; RESERVED_LEN] = rest.take()?;
        }
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::Alignment);
        }
        let pad = usize::from(bth[1] >> 4 & 0b11);
        let len = rest.0.len().checked_sub(pad).ok_or(ParseError::Truncated)?;
        packet.payload = &rest.0[..len];
        if !opcode.has_payload() && !rest.0.is_empty() {
            return Err(ParseError::Payload);
        }
        Ok(packet)
    }

    /// Appends the headers for a payload of `payload_len` bytes, which the caller appends next, and then the padding
    /// ([`Packet::pad`]). [`Packet::payload`] is not looked at.
    ///
    /// # Panics
    /// In debug builds, if the headers are not those of the operation, or it has no payload. In release builds the packet is then
    /// malformed.
    pub fn emit_headers(&self, payload_len: usize, out: &mut Vec<u8>) {
        debug_assert!(
            self.has_its_headers(),
            "the headers are not those of the operation: {self:?}"
        );
        debug_assert!(
            payload_len == 0 || self.opcode.has_payload(),
            "the operation has no payload: {self:?}"
        );
        // On the stack first: one look at the vector's capacity, not a dozen.
        let mut headers = [0; MAX_HEADERS];
        let mut writer = Writer {
            rest: &mut headers,
            len: 0,
        };
        let pad = Self::pad(payload_len) as u8;
        // M (migration state) is set: migrated, as every device says that does not migrate.
        writer.put([self.opcode as u8, u8::from(self.solicited) << 7 | 0x40 | pad << 4]);
        writer.put(self.pkey.to_be_bytes());
        // RoCEv2 has the mark in the IP header, but the packet that answers it has it here.
        let becn = if self.opcode.has_reserved() { BECN } else { 0 };
        writer.put((self.dest_qpn.get() | becn).to_be_bytes());
        writer.put((u32::from(self.ack_req) << 31 | self.psn.get()).to_be_bytes());
        if let Some(reth) = &self.reth {
            writer.put(reth.addr.to_be_bytes());
            writer.put(reth.rkey.get().to_be_bytes());
            writer.put(reth.length.to_be_bytes());
        }
        if let Some(atomic) = &self.atomic {
            writer.put(atomic.addr.to_be_bytes());
            writer.put(atomic.rkey.get().to_be_bytes());
            writer.put(atomic.swap_or_add.to_be_bytes());
            writer.put(atomic.compare.to_be_bytes());
        }
        if let Some(aeth) = &self.aeth {
            let word = u32::from(aeth.syndrome.code()) << 24 | aeth.msn & 0xff_ffff;
            writer.put(word.to_be_bytes());
        }
        if let Some(original) = self.original {
            writer.put(original.to_be_bytes());
        }
        if let Some(imm) = self.imm {
            writer.put(imm.to_be_bytes());
        }
        if let Some(rkey) = self.invalidate {
            writer.put(rkey.get().to_be_bytes());
        }
        if self.opcode.has_reserved() {
            writer.put([0; RESERVED_LEN]);
        }
        let len = writer.len;
        out.extend_from_slice(&headers[..len]);
    }

    /// Appends the whole packet: headers, payload and padding.
    ///
    /// # Panics
    /// As [`Packet::emit_headers`] does.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.emit_headers(self.payload.len(), out);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(&[0; 3][..Self::pad(self.payload.len())]);
    }

    /// Bytes of padding behind a payload of this length: to the next multiple of 4.
    pub fn pad(payload_len: usize) -> usize {
        payload_len.wrapping_neg() & 3
    }

    fn has_its_headers(&self) -> bool {
        self.reth.is_some() == self.opcode.has_reth()
            && self.atomic.is_some() == self.opcode.has_atomic()
            && self.aeth.is_some() == self.opcode.has_aeth()
            && self.original.is_some() == self.opcode.has_original()
            && self.imm.is_some() == self.opcode.has_imm()
            && self.invalidate.is_some() == self.opcode.has_invalidate()
    }
}

impl Syndrome {
    fn from_code(code: u8) -> Option<Self> {
        let value = code & 0x1f;
        match code >> 5 {
            0b000 => Some(Self::Ack(value)),
            0b001 => Some(Self::RnrNak(value)),
            0b011 => Some(Self::Nak(match value {
                0 => Nak::SequenceError,
                1 => Nak::InvalidRequest,
                2 => Nak::RemoteAccess,
                3 => Nak::RemoteOperational,
                _ => return None,
            })),
            _ => None,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0b001 << 5 | timer & 0x1f,
            Self::Nak(nak) => 0b011 << 5 | nak as u8,
        }
    }
}

/// Takes fixed pieces from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (piece, rest) = self.0.split_first_chunk().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(*piece)
    }
}

/// Puts fixed pieces one behind the other.
struct Writer<'a> {
    rest: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, piece: [u8; N]) {
        // There is room for all headers at once.
        if let Some((place, rest)) = std::mem::take(&mut self.rest).split_first_chunk_mut() {
            *place = piece;
            (self.rest, self.len) = (rest, self.len + N);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet for queue pair 0x010203 with PSN 0x040506.
    fn new(opcode: Opcode) -> Packet<'static> {
        Packet::new(opcode, Qpn::truncating(0x01_0203), Psn::new(0x04_0506))
    }

    /// Emits to exactly these bytes, which parse to the same packet.
    fn assert_bytes(packet: &Packet<'_>, bytes: &[u8]) {
        let mut out = vec![0xee];
        packet.emit(&mut out);
        assert_eq!(out[1..], *bytes, "{packet:?}");
        assert_eq!(Packet::parse(bytes).as_ref(), Ok(packet));
    }

    /// The base transport header of [`new`], and what follows it.
    fn bytes(code: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
        [&[code, flags, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 5, 6], rest].concat()
    }

    #[test]
    fn base_transport_header() {
        let mut packet = new(Opcode::SendOnly);
        assert_bytes(&packet, &bytes(0x04, 0x40, &[]));
        packet.solicited = true;
        assert_bytes(&packet, &bytes(0x04, 0xc0, &[]));
        packet.ack_req = true;
        packet.pkey = 0x8001;
        assert_bytes(&packet, &[0x04, 0xc0, 0x80, 0x01, 0, 1, 2, 3, 0x80, 4, 5, 6]);
    }

    #[test]
    fn padding_reaches_the_next_word() {
        let mut packet = new(Opcode::SendOnly);
        packet.payload = &[7, 8, 9, 10, 11];
        assert_bytes(&packet, &bytes(0x04, 0x70, &[7, 8, 9, 10, 11, 0, 0, 0]));
        packet.payload = &packet.payload[..3];
        assert_bytes(&packet, &bytes(0x04, 0x50, &[7, 8, 9, 0]));
        packet.payload = &packet.payload[..2];
        assert_bytes(&packet, &bytes(0x04, 0x60, &[7, 8, 0, 0]));
        assert_eq!([0, 1, 2, 3, 4, usize::MAX].map(Packet::pad), [0, 3, 2, 1, 0, 1]);
    }

    #[test]
    fn rdma_header() {
        let mut packet = new(Opcode::WriteOnlyImm);
        packet.reth = Some(Reth {
            addr: 0x1011_1213_1415_1617,
            rkey: Rkey::new(0x1819_1a1b),
            length: 0x1c1d_1e1f,
        });
        packet.imm = Some(0x2021_2223);
        packet.payload = &[1, 2, 3, 4];
        let rest: Vec<u8> = (0x10..0x24).chain(1..5).collect();
        assert_bytes(&packet, &bytes(0x0b, 0x40, &rest));
    }

    #[test]
    fn atomic_header() {
        let mut packet = new(Opcode::CompareSwap);
        packet.atomic = Some(AtomicEth {
            addr: 0x1011_1213_1415_1617,
            rkey: Rkey::new(0x1819_1a1b),
            swap_or_add: 0x1c1d_1e1f_2021_2223,
            compare: 0x2425_2627_2829_2a2b,
        });
        assert_bytes(&packet, &bytes(0x13, 0x40, &(0x10..0x2c).collect::<Vec<u8>>()));
    }

    #[test]
    fn acknowledgement_headers() {
        let aeth = |syndrome| {
            Some(Aeth {
                syndrome,
                msn: 0x0a_0b0c,
            })
        };
        let mut packet = new(Opcode::Acknowledge);
        for (syndrome, code) in [
            (Syndrome::Ack(0), 0x00),
            (Syndrome::Ack(31), 0x1f),
            (Syndrome::RnrNak(0), 0x20),
            (Syndrome::RnrNak(14), 0x2e),
            (Syndrome::Nak(Nak::SequenceError), 0x60),
            (Syndrome::Nak(Nak::InvalidRequest), 0x61),
            (Syndrome::Nak(Nak::RemoteAccess), 0x62),
            (Syndrome::Nak(Nak::RemoteOperational), 0x63),
        ] {
            packet.aeth = aeth(syndrome);
            assert_bytes(&packet, &bytes(0x11, 0x40, &[code, 0x0a, 0x0b, 0x0c]));
        }
        let mut packet = new(Opcode::AtomicAcknowledge);
        packet.aeth = aeth(Syndrome::Ack(31));
        packet.original = Some(0x1011_1213_1415_1617);
        let rest = [
            0x1f, 0x0a, 0x0b, 0x0c, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
        ];
        assert_bytes(&packet, &bytes(0x12, 0x40, &rest));
    }

    #[test]
    fn reserved_acknowledgement_codes_are_errors() {
        for code in (0x40..0x60).chain(0x64..=0xff) {
            let packet = bytes(0x11, 0x40, &[code, 0, 0, 0]);
            assert_eq!(Packet::parse(&packet), Err(ParseError::Syndrome(code)));
        }
    }

    #[test]
    fn immediate_data_and_the_key_to_invalidate() {
        let mut packet = new(Opcode::SendLastImm);
        packet.imm = Some(0x1011_1213);
        packet.payload = &[7; 4];
        assert_bytes(&packet, &bytes(0x03, 0x40, &[0x10, 0x11, 0x12, 0x13, 7, 7, 7, 7]));
        let mut packet = new(Opcode::SendOnlyInvalidate);
        packet.invalidate = Some(Rkey::new(0x1011_1213));
        assert_bytes(&packet, &bytes(0x17, 0x40, &[0x10, 0x11, 0x12, 0x13]));
    }

    /// Annex A17, section A17.9.3.
    #[test]
    fn a_congestion_notification_is_marked_and_has_16_bytes_of_nothing() {
        let mut packet = new(Opcode::CongestionNotification);
        packet.psn = Psn::new(0);
        let mut expected = vec![0x81, 0x40, 0xff, 0xff, 0x40, 1, 2, 3, 0, 0, 0, 0];
        expected.extend([0; 16]);
        assert_bytes(&packet, &expected);
        expected.truncate(24);
        assert_eq!(Packet::parse(&expected), Err(ParseError::Truncated));
        expected.extend([0; 8]);
        assert_eq!(Packet::parse(&expected), Err(ParseError::Payload));
    }

    /// Congestion marks and reserved bits on the way, and the migration state: none of it is this side's concern.
    #[test]
    fn what_a_receiver_must_not_look_at_is_ignored() {
        let mut odd = bytes(0x04, 0x70, &[7, 0xff, 0xff, 0xff]);
        odd[1] &= !0x40;
        odd[4] = 0xff;
        odd[8] = 0x7f;
        let mut packet = new(Opcode::SendOnly);
        packet.payload = &[7];
        assert_eq!(Packet::parse(&odd), Ok(packet));
    }

    #[test]
    fn a_packet_is_made_of_whole_words() {
        for len in 1..4 {
            let packet = bytes(0x04, 0x40, &[7, 7, 7, 7][..len]);
            assert_eq!(Packet::parse(&packet), Err(ParseError::Alignment), "{len}");
        }
        // The padding alone would make it a payload of one byte.
        assert_eq!(
            Packet::parse(&bytes(0x04, 0x50, &[7, 0])),
            Err(ParseError::Alignment)
        );
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "headers")]
    fn headers_that_the_operation_does_not_have_are_a_bug() {
        let mut packet = new(Opcode::Acknowledge);
        packet.imm = Some(1);
        packet.emit(&mut Vec::new());
    }
}
