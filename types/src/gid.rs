//! Global identifiers: the addresses of ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A 128-bit global identifier, in network byte order (IBTA volume 1, section 4.1).
///
/// For RoCEv2 it is an IPv6 address, or an IPv4 address mapped into one (`::ffff:a.b.c.d`, annex A17).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The identifier made of these 16 bytes, most significant first.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes, most significant first.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether every byte is zero: an entry of the GID table that is not in use.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether this is a link-local address (`fe80::/10`), which no router forwards.
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The IP address that a RoCEv2 GID stands for: IPv4 if it is mapped, else IPv6.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self(ip.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What a GID table entry's packets look like on the wire (`ibv_query_gid_ex(3)`, `enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, or a device that does not say.
    Ib,
    /// RoCE version 1: Ethernet type 0x8915, not routable.
    RoceV1,
    /// RoCE version 2: UDP port 4791 over IPv4 or IPv6.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_ipv4_addresses_come_back_as_ipv4() {
        let ip = Ipv4Addr::new(10, 0, 0, 2);
        let gid = Gid::from(ip);
        assert_eq!(gid.ip(), IpAddr::V4(ip));
        assert_eq!(gid.bytes()[10..], [0xff, 0xff, 10, 0, 0, 2]);
        assert!(!gid.is_link_local());
    }

    #[test]
    fn link_local_is_told_from_global() {
        assert!(Gid::from("fe80::1".parse::<Ipv6Addr>().unwrap()).is_link_local());
        assert!(!Gid::from("fd00::1".parse::<Ipv6Addr>().unwrap()).is_link_local());
        assert!(Gid::default().is_zero());
    }
}
