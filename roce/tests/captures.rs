//! Packets that the kernel's rxe sent: parsed, checked and emitted again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::Ipv4Addr;

use adverb_roce::icrc::{self, Path};
use adverb_roce::{Opcode, Packet};

/// A captured datagram to port 4791.
struct Datagram {
    path: Path,
    identification: u16,
    ports: (u16, u16),
    /// From the BTH to the padding.
    packet: Vec<u8>,
    icrc: u32,
}

impl Datagram {
    fn of(frame: &[u8]) -> Self {
        let ip = &frame[14..];
        assert_eq!(
            (&frame[12..14], ip[0], ip[9]),
            (&[8, 0][..], 0x45, 17),
            "IPv4 without options, UDP"
        );
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        let payload = &ip[28..usize::from(word(2))];
        let (packet, icrc) = payload.split_last_chunk().unwrap();
        assert_eq!(word(22), 4791);
        Self {
            path: Path::V4 {
                src: address(12),
                dst: address(16),
            },
            identification: word(4),
            ports: (word(20), word(22)),
            packet: packet.to_vec(),
            icrc: u32::from_le_bytes(*icrc),
        }
    }

    fn check(&self, packet: &[u8]) -> bool {
        icrc::check(&self.path, self.ports.0, self.ports.1, packet, self.icrc)
    }

    fn compute(&self, packet: &[u8]) -> u32 {
        icrc::compute_with(
            &self.path,
            self.ports.0,
            self.ports.1,
            packet,
            self.identification,
        )
    }
}

fn capture(pcap: &[u8]) -> Vec<Datagram> {
    assert_eq!(
        pcap[..4],
        0xa1b2_c3d4_u32.to_le_bytes(),
        "classic pcap, little-endian"
    );
    let mut rest = &pcap[24..];
    let mut datagrams = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        datagrams.push(Datagram::of(&rest[16..16 + len]));
        rest = &rest[16 + len..];
    }
    datagrams
}

fn captures() -> [(&'static str, Vec<Datagram>); 6] {
    [
        ("send_only", capture(include_bytes!("data/send_only.pcap"))),
        (
            "send_multi",
            capture(include_bytes!("data/send_multi_mtu1024.pcap")),
        ),
        (
            "write_multi",
            capture(include_bytes!("data/write_multi_mtu1024.pcap")),
        ),
        (
            "read_multi",
            capture(include_bytes!("data/read_multi_mtu1024.pcap")),
        ),
        ("fetch_add", capture(include_bytes!("data/fetch_add.pcap"))),
        ("cmp_swap", capture(include_bytes!("data/cmp_swap.pcap"))),
    ]
}

#[test]
fn every_packet_parses_and_is_emitted_byte_for_byte() {
    let mut count = 0;
    for (name, datagrams) in captures() {
        for datagram in datagrams {
            let packet = Packet::parse(&datagram.packet).unwrap();
            let mut again = Vec::new();
            packet.emit(&mut again);
            // rxe leaves the migration state at 0; no device looks at it.
            again[1] = again[1] & !0x40 | datagram.packet[1] & 0x40;
            assert_eq!(again, datagram.packet, "{name}: {packet:?}");
            count += 1;
        }
    }
    assert_eq!(count, 190);
}

#[test]
fn every_crc_is_right_with_the_identification_and_accepted_without() {
    for (name, datagrams) in captures() {
        for datagram in datagrams {
            assert_eq!(datagram.compute(&datagram.packet), datagram.icrc, "{name}");
            assert!(datagram.check(&datagram.packet), "{name}");
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    for (_, datagrams) in captures() {
        for datagram in datagrams.iter().take(4) {
            for bit in 0..datagram.packet.len() * 8 {
                let mut bad = datagram.packet.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let masked = bit / 8 == 4;
                assert_eq!(datagram.compute(&bad) == datagram.icrc, masked, "bit {bit}");
                assert_eq!(datagram.check(&bad), masked, "bit {bit}");
            }
        }
    }
}

#[test]
fn messages_have_the_packets_that_they_should_have() {
    let opcodes = |wanted: &str| -> Vec<Opcode> {
        let (_, datagrams) = captures().into_iter().find(|(name, _)| *name == wanted).unwrap();
        let opcode = |datagram: &Datagram| Packet::parse(&datagram.packet).unwrap().opcode;
        datagrams.iter().map(opcode).collect()
    };
    let count = |name, opcode| opcodes(name).into_iter().filter(|found| *found == opcode).count();
    // Five messages of 9000 bytes at an MTU of 1024: nine packets each.
    assert_eq!(count("send_multi", Opcode::SendFirst), 5);
    assert_eq!(count("send_multi", Opcode::SendMiddle), 35);
    assert_eq!(count("send_multi", Opcode::SendLast), 5);
    assert_eq!(count("write_multi", Opcode::WriteFirst), 5);
    assert_eq!(count("read_multi", Opcode::ReadRequest), 5);
    assert_eq!(count("read_multi", Opcode::ReadResponseMiddle), 35);
    assert_eq!(count("fetch_add", Opcode::FetchAdd), 5);
    assert_eq!(count("cmp_swap", Opcode::CompareSwap), 5);
    assert_eq!(count("cmp_swap", Opcode::AtomicAcknowledge), 5);
}
