//! Packets that the kernel's rxe sent: parsed, checked and emitted again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod data;

use std::iter::repeat_n;

use adverb_roce::{Opcode, Packet, Syndrome};
use adverb_types::Psn;
use data::{Capture, Datagram};

fn datagrams() -> Vec<Datagram> {
    let datagrams: Vec<Datagram> = data::all()
        .into_iter()
        .flat_map(|capture| capture.datagrams)
        .collect();
    assert_eq!(datagrams.len(), 190);
    datagrams
}

fn capture(name: &str) -> Capture {
    data::all()
        .into_iter()
        .find(|capture| capture.name == name)
        .unwrap()
}

#[test]
fn every_packet_parses_and_is_emitted_byte_for_byte() {
    for datagram in datagrams() {
        let packet = Packet::parse(&datagram.packet).unwrap();
        let mut again = Vec::new();
        packet.emit(&mut again);
        // rxe leaves the migration state at 0: it knows no migration.
        assert_eq!(datagram.packet[1] & 0x40, 0);
        again[1] &= !0x40;
        assert_eq!(again, datagram.packet, "{packet:?}");
    }
}

#[test]
fn every_crc_is_right_with_the_identification_and_accepted_without() {
    let datagrams = datagrams();
    for datagram in &datagrams {
        assert_eq!(datagram.compute(), datagram.icrc);
        assert!(datagram.check_exact(&datagram.packet, datagram.identification));
        assert!(!datagram.check_exact(&datagram.packet, datagram.identification ^ 1));
        assert!(datagram.check(&datagram.packet));
    }
    // Or accepting any would say nothing.
    let known = datagrams
        .iter()
        .filter(|datagram| datagram.identification == 0)
        .count();
    assert!(known < 2, "{known} without identification");
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    for mut datagram in datagrams() {
        let mut packet = std::mem::take(&mut datagram.packet);
        for bit in 0..packet.len() * 8 {
            packet[bit / 8] ^= 1 << (bit % 8);
            // Byte 4 of the BTH is not covered.
            let masked = bit / 8 == 4;
            let exact = datagram.check_exact(&packet, datagram.identification);
            assert_eq!((exact, datagram.check(&packet)), (masked, masked), "bit {bit}");
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..32 {
            datagram.icrc ^= 1 << bit;
            assert!(
                !datagram.check_exact(&packet, datagram.identification),
                "bit {bit}"
            );
            assert!(!datagram.check(&packet), "bit {bit}");
            datagram.icrc ^= 1 << bit;
        }
    }
}

/// Five messages of 9000 bytes at an MTU of 1024, nine packets each.
fn five_messages(first: Opcode, middle: Opcode, last: Opcode) -> Vec<Opcode> {
    let message = [first].into_iter().chain(repeat_n(middle, 7)).chain([last]);
    repeat_n(message, 5).flatten().collect()
}

/// The operations of a capture, of requests or of responses, in order. Requests and responses each follow one another without a gap.
fn opcodes(capture: &Capture, responses: bool) -> Vec<Opcode> {
    let packets: Vec<Packet<'_>> = capture
        .datagrams
        .iter()
        .map(|datagram| Packet::parse(&datagram.packet).unwrap())
        .filter(|packet| packet.opcode.is_response() == responses)
        .collect();
    packets.iter().map(|packet| packet.opcode).collect()
}

#[test]
fn messages_have_the_packets_that_they_should_have() {
    use Opcode::*;
    let five = |opcode| vec![opcode; 5];
    let table = [
        (
            "send_multi",
            five_messages(SendFirst, SendMiddle, SendLast),
            five(Acknowledge),
        ),
        (
            "write_multi",
            five_messages(WriteFirst, WriteMiddle, WriteLast),
            five(Acknowledge),
        ),
        (
            "read_multi",
            five(ReadRequest),
            five_messages(ReadResponseFirst, ReadResponseMiddle, ReadResponseLast),
        ),
        ("fetch_add", five(FetchAdd), five(AtomicAcknowledge)),
        ("cmp_swap", five(CompareSwap), five(AtomicAcknowledge)),
        // Five each way.
        ("send_only", vec![SendOnly; 10], vec![Acknowledge; 10]),
    ];
    for (name, requests, responses) in table {
        let capture = capture(name);
        assert_eq!(opcodes(&capture, false), requests, "{name}");
        assert_eq!(opcodes(&capture, true), responses, "{name}");
    }
}

#[test]
fn requests_number_their_packets_one_after_another() {
    for name in ["send_multi", "write_multi", "fetch_add", "cmp_swap"] {
        let capture = capture(name);
        let psns: Vec<Psn> = capture
            .datagrams
            .iter()
            .map(|datagram| Packet::parse(&datagram.packet).unwrap())
            .filter(|packet| !packet.opcode.is_response())
            .map(|packet| packet.psn)
            .collect();
        assert!(
            psns.windows(2).all(|pair| pair[1] == pair[0].next()),
            "{name}: {psns:?}"
        );
    }
}

#[test]
fn headers_say_what_perftest_asked_for() {
    for datagram in datagrams() {
        let packet = Packet::parse(&datagram.packet).unwrap();
        if let Some(reth) = packet.reth {
            assert_eq!(reth.length, 9000);
            assert_ne!(reth.rkey.get(), 0);
        }
        if let Some(atomic) = packet.atomic {
            // An atomic operation's address is a multiple of 8.
            assert_eq!(atomic.addr % 8, 0);
        }
        if let Some(aeth) = packet.aeth {
            // rxe does not count credits.
            assert_eq!(aeth.syndrome, Syndrome::Ack(31));
        }
        let payload = match packet.opcode {
            Opcode::SendOnly => 8,
            Opcode::SendLast | Opcode::WriteLast | Opcode::ReadResponseLast => 9000 % 1024,
            opcode if opcode.is_response() && packet.payload.is_empty() => 0,
            Opcode::ReadRequest | Opcode::FetchAdd | Opcode::CompareSwap => 0,
            _ => 1024,
        };
        assert_eq!(packet.payload.len(), payload, "{packet:?}");
        assert_eq!((packet.pkey, packet.solicited), (0xffff, false));
    }
}
