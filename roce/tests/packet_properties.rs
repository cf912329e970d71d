//! The packet format, whatever comes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "checks/packet_bytes.rs"]
mod checks;

use adverb_roce::{Aeth, AtomicEth, Nak, Opcode, Packet, ParseError, Reth, Syndrome};
use adverb_types::{Psn, Qpn, Rkey};
use proptest::prelude::*;

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0_u8..32).prop_map(Syndrome::Ack),
        (0_u8..32).prop_map(Syndrome::RnrNak),
        Just(Syndrome::Nak(Nak::SequenceError)),
        Just(Syndrome::Nak(Nak::InvalidRequest)),
        Just(Syndrome::Nak(Nak::RemoteAccess)),
        Just(Syndrome::Nak(Nak::RemoteOperational)),
    ]
}

/// Values for all headers, of which a packet then has those of its operation.
fn packet(
    opcode: Opcode,
    values: (u64, u32, u64, u64, u32),
    aeth: Aeth,
    bits: (bool, bool, u16),
) -> Packet<'static> {
    let (addr, key, a, b, small) = values;
    let rkey = Rkey::new(key);
    let mut packet = Packet::new(opcode, Qpn::truncating(small), Psn::new(key));
    (packet.solicited, packet.ack_req, packet.pkey) = bits;
    let reth = Reth {
        addr,
        rkey,
        length: small,
    };
    let atomic = AtomicEth {
        addr,
        rkey,
        swap_or_add: a,
        compare: b,
    };
    packet.reth = opcode.has_reth().then_some(reth);
    packet.atomic = opcode.has_atomic().then_some(atomic);
    packet.aeth = opcode.has_aeth().then_some(aeth);
    packet.original = opcode.has_original().then_some(a);
    packet.imm = opcode.has_imm().then_some(small);
    packet.invalidate = opcode.has_invalidate().then_some(rkey);
    packet
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed_again(
        code in 0_u8..0x18,
        values in any::<(u64, u32, u64, u64, u32)>(),
        syndrome in syndrome(),
        msn in 0_u32..1 << 24,
        bits in any::<(bool, bool, u16)>(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let Some(opcode) = Opcode::from_code(code) else {
            prop_assert_eq!(code, 0x15);
            return Ok(());
        };
        let mut packet = packet(opcode, values, Aeth { syndrome, msn }, bits);
        if opcode.has_payload() {
            packet.payload = &payload;
        }
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
    }

    #[test]
    fn whatever_comes_nothing_panics_and_what_is_parsed_is_emitted_again(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        code in 0_u8..0x18,
        likely in any::<bool>(),
    ) {
        if likely && bytes.len() > 1 {
            bytes[0] = code;
            bytes[1] &= 0xf0;
        }
        if likely {
            // Or three of four would be turned away for their length.
            bytes.truncate(bytes.len() & !3);
        }
        checks::check(&bytes);
    }

    #[test]
    fn a_packet_that_ends_within_its_headers_is_an_error(cut in any::<prop::sample::Index>(), code in 0_u8..0x18) {
        let Some(opcode) = Opcode::from_code(code) else { return Ok(()) };
        let aeth = Aeth { syndrome: Syndrome::Ack(31), msn: 1 };
        let whole = packet(opcode, (1, 2, 3, 4, 5), aeth, (false, true, 0xffff));
        let mut bytes = Vec::new();
        whole.emit(&mut bytes);
        let cut = cut.index(bytes.len());
        prop_assert_eq!(Packet::parse(&bytes[..cut]), Err(ParseError::Truncated));
    }
}

#[test]
fn what_is_not_of_this_transport_is_named() {
    let mut bytes = Vec::new();
    Packet::new(Opcode::SendOnly, Qpn::truncating(1), Psn::new(1)).emit(&mut bytes);
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Packet::parse(&bytes).map(drop)
    };
    assert_eq!(with(0, 0x15), Err(ParseError::Opcode(0x15)));
    // UD's SEND only.
    assert_eq!(with(0, 0x64), Err(ParseError::Opcode(0x64)));
    assert_eq!(with(1, 0x41), Err(ParseError::Version(1)));
    // Three bytes of padding, and no byte there.
    assert_eq!(with(1, 0x70), Err(ParseError::Truncated));
    let mut ack = Packet::new(Opcode::Acknowledge, Qpn::truncating(1), Psn::new(1));
    ack.aeth = Some(Aeth {
        syndrome: Syndrome::Ack(0),
        msn: 0,
    });
    let mut bytes = Vec::new();
    ack.emit(&mut bytes);
    bytes[12] = 0x65;
    assert_eq!(Packet::parse(&bytes), Err(ParseError::Syndrome(0x65)));
    bytes[12] = 0;
    bytes.extend_from_slice(&[0; 4]);
    assert_eq!(Packet::parse(&bytes), Err(ParseError::Payload));
}
