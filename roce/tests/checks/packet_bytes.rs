//! What must hold of any bytes that come in a datagram. Shared by the property tests, the corpus replay and the fuzz target.

use std::net::{Ipv4Addr, Ipv6Addr};

use adverb_roce::Packet;
use adverb_roce::icrc::{self, Path};

/// Takes the bytes for a packet: nothing may panic, and what parses is emitted as it was, except for what a receiver does not look at.
pub(crate) fn check(bytes: &[u8]) {
    check_crc(bytes);
    match Packet::parse(bytes) {
        Ok(packet) => {
            let mut again = Vec::new();
            packet.emit(&mut again);
            assert_eq!(again, canonical(bytes, &packet), "{packet:?}");
            assert_eq!(Packet::parse(&again), Ok(packet));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The bytes with the migration state set, and with congestion marks, reserved bits and padding at 0.
fn canonical(bytes: &[u8], packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[1] |= 0x40;
    bytes[4] = 0;
    bytes[8] &= 0x80;
    let pad = Packet::pad(packet.payload.len());
    let end = bytes.len();
    bytes[end - pad..].fill(0);
    bytes
}

/// The CRC of any bytes is accepted, with an identification taken from them, and not with a wrong bit.
fn check_crc(bytes: &[u8]) {
    let identification = bytes
        .iter()
        .fold(0_u16, |sum, &byte| sum.rotate_left(3) ^ u16::from(byte));
    let v4 = Path::V4 {
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
    };
    let crc = icrc::compute_with(&v4, 49152, 4791, bytes, identification);
    assert!(icrc::check_exact(&v4, 49152, 4791, bytes, identification, crc));
    // RC has no longer packets, and none of other lengths.
    if bytes.len().is_multiple_of(4) && bytes.len() <= 4200 {
        assert!(icrc::check(&v4, 49152, 4791, bytes, crc));
        assert!(!icrc::check(
            &v4,
            49152,
            4791,
            bytes,
            crc ^ 1 << (identification & 31)
        ));
    }
    let v6 = Path::V6 {
        src: Ipv6Addr::LOCALHOST,
        dst: Ipv6Addr::LOCALHOST,
    };
    let crc = icrc::compute(&v6, 49152, 4791, bytes);
    assert!(icrc::check(&v6, 49152, 4791, bytes, crc));
    assert!(!icrc::check(&v6, 49152, 4791, bytes, !crc));
}
