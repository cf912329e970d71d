//! Packets of the RC transport (IBTA volume 1, sections 9.2 to 9.3): the base transport header and the extended headers.
//!
//! A packet here runs from the first byte of the BTH to the last byte of the payload's padding: what a UDP datagram to port 4791 carries
//! without its last four bytes, the invariant CRC ([`crate::icrc`]).

use adverb_types::{Psn, Qpn, Rkey};

/// Length of the base transport header, in bytes.
const BTH_LEN: usize = 12;

/// What a packet does (the low 5 bits select the operation, the high 3 the transport, which is 0: RC; IBTA volume 1, table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the specification's")]
#[repr(u8)]
pub enum Opcode {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
}

impl Opcode {
    /// The operation of this code, if it is one of RC.
    pub fn from_code(code: u8) -> Option<Self> {
        use Opcode::*;
        const ALL: [Option<Opcode>; 0x18] = [
            Some(SendFirst),
            Some(SendMiddle),
            Some(SendLast),
            Some(SendLastImm),
            Some(SendOnly),
            Some(SendOnlyImm),
            Some(WriteFirst),
            Some(WriteMiddle),
            Some(WriteLast),
            Some(WriteLastImm),
            Some(WriteOnly),
            Some(WriteOnlyImm),
            Some(ReadRequest),
            Some(ReadResponseFirst),
            Some(ReadResponseMiddle),
            Some(ReadResponseLast),
            Some(ReadResponseOnly),
            Some(Acknowledge),
            Some(AtomicAcknowledge),
            Some(CompareSwap),
            Some(FetchAdd),
            None,
            Some(SendLastInvalidate),
            Some(SendOnlyInvalidate),
        ];
        ALL.get(usize::from(code)).copied().flatten()
    }

    /// Whether it goes from responder to requester.
    pub fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm | Self::ReadRequest
        )
    }

    fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    fn has_imm(self) -> bool {
        matches!(
            self,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm
        )
    }

    fn has_payload(self) -> bool {
        !matches!(
            self,
            Self::ReadRequest
                | Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::CompareSwap
                | Self::FetchAdd
        )
    }
}

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
    SequenceError,
    /// The request is malformed or not allowed.
    InvalidRequest,
    /// The memory does not permit it.
    RemoteAccess,
    /// The responder failed.
    RemoteOperational,
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
        if matches!(opcode, Opcode::CompareSwap | Opcode::FetchAdd) {
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
        if opcode == Opcode::AtomicAcknowledge {
            packet.original = Some(u64::from_be_bytes(rest.take()?));
        }
        if opcode.has_imm() {
            packet.imm = Some(u32::from_be_bytes(rest.take()?));
        }
        if matches!(opcode, Opcode::SendLastInvalidate | Opcode::SendOnlyInvalidate) {
            packet.invalidate = Some(Rkey::new(u32::from_be_bytes(rest.take()?)));
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
    pub fn emit_headers(&self, payload_len: usize, out: &mut Vec<u8>) {
        let pad = Self::pad(payload_len) as u8;
        // M (migration state) is set: migrated, as every device says that does not migrate.
        out.push(self.opcode as u8);
        out.push(u8::from(self.solicited) << 7 | 0x40 | pad << 4);
        out.extend_from_slice(&self.pkey.to_be_bytes());
        out.extend_from_slice(&self.dest_qpn.get().to_be_bytes());
        out.extend_from_slice(&(u32::from(self.ack_req) << 31 | self.psn.get()).to_be_bytes());
        if let Some(reth) = &self.reth {
            out.extend_from_slice(&reth.addr.to_be_bytes());
            out.extend_from_slice(&reth.rkey.get().to_be_bytes());
            out.extend_from_slice(&reth.length.to_be_bytes());
        }
        if let Some(atomic) = &self.atomic {
            out.extend_from_slice(&atomic.addr.to_be_bytes());
            out.extend_from_slice(&atomic.rkey.get().to_be_bytes());
            out.extend_from_slice(&atomic.swap_or_add.to_be_bytes());
            out.extend_from_slice(&atomic.compare.to_be_bytes());
        }
        if let Some(aeth) = &self.aeth {
            let word = u32::from(aeth.syndrome.code()) << 24 | aeth.msn & 0xff_ffff;
            out.extend_from_slice(&word.to_be_bytes());
        }
        if let Some(original) = self.original {
            out.extend_from_slice(&original.to_be_bytes());
        }
        if let Some(imm) = self.imm {
            out.extend_from_slice(&imm.to_be_bytes());
        }
        if let Some(rkey) = self.invalidate {
            out.extend_from_slice(&rkey.get().to_be_bytes());
        }
    }

    /// Appends the whole packet: headers, payload and padding.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.emit_headers(self.payload.len(), out);
        out.extend_from_slice(self.payload);
        out.resize(out.len() + Self::pad(self.payload.len()), 0);
    }

    /// Bytes of padding behind a payload of this length: to the next multiple of 4.
    pub fn pad(payload_len: usize) -> usize {
        payload_len.wrapping_neg() & 3
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
