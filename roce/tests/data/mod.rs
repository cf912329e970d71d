//! The captures in this folder, as datagrams.

use std::net::Ipv4Addr;

use adverb_roce::icrc::{self, Path};

/// What was captured while one test of perftest ran.
pub(crate) struct Capture {
    pub(crate) name: &'static str,
    pub(crate) datagrams: Vec<Datagram>,
}

/// A captured datagram to port 4791.
pub(crate) struct Datagram {
    pub(crate) src: Ipv4Addr,
    dst: Ipv4Addr,
    src_port: u16,
    dst_port: u16,
    pub(crate) identification: u16,
    /// From the BTH to the padding.
    pub(crate) packet: Vec<u8>,
    /// As it stands behind the packet.
    pub(crate) icrc: u32,
}

/// Every capture.
pub(crate) fn all() -> [Capture; 6] {
    [
        capture("send_only", include_bytes!("send_only.pcap")),
        capture("send_multi", include_bytes!("send_multi_mtu1024.pcap")),
        capture("write_multi", include_bytes!("write_multi_mtu1024.pcap")),
        capture("read_multi", include_bytes!("read_multi_mtu1024.pcap")),
        capture("fetch_add", include_bytes!("fetch_add.pcap")),
        capture("cmp_swap", include_bytes!("cmp_swap.pcap")),
    ]
}

fn capture(name: &'static str, pcap: &[u8]) -> Capture {
    let magic = 0xa1b2_c3d4_u32.to_le_bytes();
    assert_eq!(pcap[..4], magic, "{name}: classic pcap, little-endian");
    let mut rest = &pcap[24..];
    let mut datagrams = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        datagrams.push(Datagram::of(&rest[16..16 + len]));
        rest = &rest[16 + len..];
    }
    Capture { name, datagrams }
}

impl Datagram {
    fn of(frame: &[u8]) -> Self {
        let ip = &frame[14..];
        assert_eq!(frame[12..14], [8, 0], "IPv4");
        assert_eq!((ip[0], ip[9]), (0x45, 17), "without options, UDP");
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        let (packet, icrc) = ip[28..usize::from(word(2))].split_last_chunk().unwrap();
        assert_eq!(word(22), 4791);
        Self {
            src: address(12),
            dst: address(16),
            src_port: word(20),
            dst_port: word(22),
            identification: word(4),
            packet: packet.to_vec(),
            icrc: u32::from_le_bytes(*icrc),
        }
    }

    fn path(&self) -> Path {
        Path::V4 {
            src: self.src,
            dst: self.dst,
        }
    }

    /// Whether the CRC that was captured is accepted for `packet`, to one who does not know the identification.
    pub(crate) fn check(&self, packet: &[u8]) -> bool {
        icrc::check(&self.path(), self.src_port, self.dst_port, packet, self.icrc)
    }

    /// The same, to one who thinks that the identification is this.
    pub(crate) fn check_exact(&self, packet: &[u8], identification: u16) -> bool {
        let (path, icrc) = (self.path(), self.icrc);
        icrc::check_exact(&path, self.src_port, self.dst_port, packet, identification, icrc)
    }

    /// The CRC of the packet with the identification that it had.
    pub(crate) fn compute(&self) -> u32 {
        let (path, identification) = (self.path(), self.identification);
        icrc::compute_with(&path, self.src_port, self.dst_port, &self.packet, identification)
    }
}
