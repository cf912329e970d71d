//! The invariant CRC that ends every RoCEv2 packet.
//!
//! It is CRC-32 with Ethernet's polynomial over 8 bytes of ones, the IP header, the UDP header and the packet from its BTH on, where what
//! routers may change counts as ones: TOS, TTL and checksum of IPv4, traffic class, flow label and hop limit of IPv6, the checksum
//! of UDP, and byte 4 of the BTH. It is stored with its low byte first. (IBTA volume 1, annex A17, section A17.3.3; checked against packets of the
//! kernel's rxe.)
//!
//! # The identification
//! The CRC covers IPv4's identification, which neither the sender nor the receiver of an ordinary UDP socket sees. A socket that is not connected and
//! sends with DF set sends 0, so its CRC can be computed. A receiver cannot know what another device chose. But CRCs are linear: what
//! an identification changes in the CRC is that identification, seen as a polynomial, times a power of x that depends on the
//! packet's length alone. Dividing the difference by that power gives the identification back: 16 bits of it. That the other
//! 16 bits are zero is the check. Every single wrong bit it still finds, in packets up to the longest that RC has; of random errors it
//! lets one in 65 536 through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

/// CRC-32's polynomial, with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// 1 as such a polynomial.
const ONE: u32 = 1 << 31;
/// Bytes that the CRC covers between the identification and the packet: the rest of the IP header, and the UDP header.
const BETWEEN: usize = 14 + 8;
/// The headers before the packet, of either family, and as much of the packet as is worth copying.
const START: usize = 192;
/// The byte of the BTH that routers may change.
const VARIANT: usize = 4;
/// The longest packet whose power is in the table, in words of 4 bytes: a payload of 4096 bytes and all headers fit.
const LONGEST: usize = (4096 + 128) / 4;
/// `x^(-8 × (4 × words + BETWEEN + 2))` by words: what divides a difference down to the identification.
static DIVISORS: [u32; LONGEST] = divisors();

/// From where to where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// By IPv4.
    V4 {
        /// Its source.
        src: Ipv4Addr,
        /// Its destination.
        dst: Ipv4Addr,
    },
    /// By IPv6.
    V6 {
        /// Its source.
        src: Ipv6Addr,
        /// Its destination.
        dst: Ipv6Addr,
    },
}

impl Path {
    /// The path between two addresses of one family. `None` if they are of two. IPv4 addresses mapped into IPv6, as a dual-stack
    /// socket tells them, are IPv4: that is what the packets are.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }
}

/// The CRC of `packet`, from its BTH to its padding, between these UDP ports, sent with DF set and an identification of 0.
pub fn compute(path: &Path, src_port: u16, dst_port: u16, packet: &[u8]) -> u32 {
    compute_with(path, src_port, dst_port, packet, 0)
}

/// [`compute`] for an IPv4 identification that is known. IPv6 has none.
pub fn compute_with(path: &Path, src_port: u16, dst_port: u16, packet: &[u8], identification: u16) -> u32 {
    // No datagram is so long that this wraps, but a caller's slice may be.
    let udp_len = (packet.len() + 12) as u16;
    // Headers and the packet's start in one piece: most packets fit, and each further piece would cost as much as a short packet.
    let mut start = [0xff; START];
    let udp = match path {
        Path::V4 { src, dst } => {
            start[8] = 0x45;
            start[10..12].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            start[12..14].copy_from_slice(&identification.to_be_bytes());
            // DF.
            start[14..16].copy_from_slice(&[0x40, 0]);
            start[17] = 17;
            start[20..24].copy_from_slice(&src.octets());
            start[24..28].copy_from_slice(&dst.octets());
            8 + 20
        }
        Path::V6 { src, dst } => {
            start[8] = 0x6f;
            start[12..14].copy_from_slice(&udp_len.to_be_bytes());
            start[14] = 17;
            start[16..32].copy_from_slice(&src.octets());
            start[32..48].copy_from_slice(&dst.octets());
            8 + 40
        }
    };
    start[udp..udp + 2].copy_from_slice(&src_port.to_be_bytes());
    start[udp + 2..udp + 4].copy_from_slice(&dst_port.to_be_bytes());
    start[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
    let (head, room) = start.split_at_mut(udp + 8);
    let (first, rest) = packet.split_at(packet.len().min(room.len()));
    room[..first.len()].copy_from_slice(first);
    if first.len() > VARIANT {
        room[VARIANT] = 0xff;
    }
    let used = head.len() + first.len();
    let mut hasher = Hasher::new();
    hasher.update(&start[..used]);
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

/// Whether `received` is the CRC of `packet` for the identification 0 or, by IPv4, for any other: then it is a check of 16 bits, and
/// packets longer than RC's longest, or not of whole words, fail it.
pub fn check(path: &Path, src_port: u16, dst_port: u16, packet: &[u8], received: u32) -> bool {
    let difference = compute(path, src_port, dst_port, packet) ^ received;
    if difference == 0 {
        return true;
    }
    let Path::V4 { .. } = path else {
        return false;
    };
    let words = packet.len() / 4;
    match DIVISORS.get(words) {
        Some(divisor) if packet.len().is_multiple_of(4) => multiply(*divisor, difference) >> 16 == 0,
        _ => false,
    }
}

/// Whether `received` is the CRC of `packet` for this identification: a check of all 32 bits.
pub fn check_exact(
    path: &Path,
    src_port: u16,
    dst_port: u16,
    packet: &[u8],
    identification: u16,
    received: u32,
) -> bool {
    compute_with(path, src_port, dst_port, packet, identification) == received
}

/// The product of two polynomials modulo the CRC's.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        // Times x.
        b = b >> 1 ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

/// `x^-bits`.
const fn inverse_power(bits: usize) -> u32 {
    let (mut power, mut i) = (ONE, 0);
    while i < bits {
        // Through x: the polynomial's lowest power is 1, so a set highest bit says that it was subtracted.
        power = if power & ONE != 0 {
            (power ^ POLYNOMIAL) << 1 | 1
        } else {
            power << 1
        };
        i += 1;
    }
    power
}

const fn divisors() -> [u32; LONGEST] {
    let step = inverse_power(32);
    let mut table = [inverse_power(8 * (BETWEEN + 2)); LONGEST];
    let mut i = 1;
    while i < LONGEST {
        table[i] = multiply(table[i - 1], step);
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path::V4 {
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
    };

    fn packet(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7) as u8).collect()
    }

    #[test]
    fn any_identification_is_accepted_at_any_length() {
        for len in (12..=4224 - 4).step_by(4) {
            let packet = packet(len);
            for identification in [0, 1, 0x8000, 0x1234, 0xffff] {
                let crc = compute_with(&PATH, 49152, 4791, &packet, identification);
                assert!(
                    check(&PATH, 49152, 4791, &packet, crc),
                    "{len} {identification:#x}"
                );
            }
        }
    }

    #[test]
    fn one_wrong_bit_is_found_whatever_the_identification() {
        let good = packet(64);
        let crc = compute_with(&PATH, 49152, 4791, &good, 0x4321);
        for bit in 0..64 * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // Byte 4 is not covered.
            assert_eq!(check(&PATH, 49152, 4791, &bad, crc), bit / 8 == 4, "bit {bit}");
        }
        let right = (0..32)
            .filter(|bit| check(&PATH, 49152, 4791, &good, crc ^ 1 << bit))
            .count();
        assert_eq!(right, 0);
    }

    /// Half or twice as many would be a check of 17 or of 15 bits.
    #[test]
    fn of_random_values_one_in_65536_passes() {
        let packet = packet(100);
        let mut random = fastrand::Rng::with_seed(1);
        let passed = (0..1 << 23)
            .filter(|_| check(&PATH, 1, 4791, &packet, random.u32(..)))
            .count();
        // 128 are expected, with a standard deviation of 11.
        assert!((90..180).contains(&passed), "{passed}");
    }

    #[test]
    fn ipv6_has_no_identification_and_all_32_bits_count() {
        let path = Path::V6 {
            src: Ipv6Addr::LOCALHOST,
            dst: Ipv6Addr::LOCALHOST,
        };
        let packet = packet(40);
        let crc = compute(&path, 5, 4791, &packet);
        assert!(check(&path, 5, 4791, &packet, crc));
        let mut random = fastrand::Rng::with_seed(1);
        let passed = (0..1 << 20)
            .filter(|_| check(&path, 5, 4791, &packet, random.u32(..)))
            .count();
        assert_eq!(passed, 0);
    }

    /// The expected value is zlib's `crc32` over the bytes written out by hand.
    #[test]
    fn ipv6_masks_traffic_class_flow_label_and_hop_limit() {
        let path = Path::V6 {
            src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
            dst: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
        };
        let packet: Vec<u8> = (0..16).collect();
        assert_eq!(compute(&path, 49152, 4791, &packet), 0xe244_d894);
    }

    /// What one wrong bit changes is a power of x, whatever the packet: none up to the longest may look like an identification.
    #[test]
    fn one_wrong_bit_is_found_at_any_length() {
        for words in [3, 4, 16, 256, LONGEST - 1] {
            let packet = packet(4 * words);
            let crc = compute(&PATH, 49152, 4791, &packet);
            // From the CRC's own last bit to the first of the UDP header.
            let mut wrong = ONE;
            for bit in 0..32 + 8 * (packet.len() + 8) {
                assert!(!check(&PATH, 49152, 4791, &packet, crc ^ wrong), "{words} {bit}");
                wrong = multiply(wrong, ONE >> 1);
            }
        }
    }

    #[test]
    fn addresses_of_a_dual_stack_socket_are_those_of_ipv4() {
        let mapped = |last| IpAddr::V6(Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped());
        assert_eq!(Path::new(mapped(1), mapped(2)), Some(PATH));
        assert_eq!(
            Path::new(mapped(1), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))),
            Some(PATH)
        );
        assert_eq!(Path::new(mapped(1), IpAddr::V6(Ipv6Addr::LOCALHOST)), None);
    }

    #[test]
    fn whatever_the_length_nothing_panics() {
        for len in [0, 1, 4, 5, 13, 5000, 65_503, 65_510, 65_536] {
            check(&PATH, 1, 2, &packet(len), 3);
        }
    }
}
