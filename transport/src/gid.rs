//! Which of a port's GIDs a connection uses: by type and address, never by a fixed index.

use std::net::IpAddr;

use adverb_verbs::{GidEntry, GidType, LinkLayer};

/// Picks the GID for a connection.
///
/// On Ethernet only RoCEv2 entries count. Of those, in this order: the one whose address is `wanted`, IPv4, global IPv6,
/// link-local. On InfiniBand the first entry.
pub(crate) fn choose(table: &[GidEntry], link_layer: LinkLayer, wanted: Option<IpAddr>) -> Option<&GidEntry> {
    let usable = |entry: &&GidEntry| match link_layer {
        LinkLayer::Ethernet => entry.gid_type == GidType::RoceV2,
        _ => true,
    };
    table.iter().filter(usable).min_by_key(|entry| {
        let ip = entry.gid.ip();
        let rank = match ip {
            _ if link_layer != LinkLayer::Ethernet => 0,
            ip if Some(ip) == wanted => 0,
            IpAddr::V4(_) => 1,
            IpAddr::V6(_) if !entry.gid.is_link_local() => 2,
            IpAddr::V6(_) => 3,
        };
        (rank, entry.index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn entry(index: u8, ip: impl Into<IpAddr>, gid_type: GidType) -> GidEntry {
        GidEntry {
            index,
            gid: ip.into().into(),
            gid_type,
            netdev: None,
            udp_port: None,
        }
    }

    fn table() -> Vec<GidEntry> {
        let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
        let global: Ipv6Addr = "fd00::1".parse().unwrap();
        vec![
            entry(0, link_local, GidType::RoceV1),
            entry(1, link_local, GidType::RoceV2),
            entry(2, global, GidType::RoceV2),
            entry(3, Ipv4Addr::new(10, 0, 0, 1), GidType::RoceV1),
            entry(4, Ipv4Addr::new(10, 0, 0, 1), GidType::RoceV2),
            entry(5, Ipv4Addr::new(10, 0, 1, 1), GidType::RoceV2),
        ]
    }

    fn chosen(table: &[GidEntry], link_layer: LinkLayer, wanted: Option<IpAddr>) -> Option<u8> {
        choose(table, link_layer, wanted).map(|entry| entry.index)
    }

    #[test]
    fn ipv4_comes_before_global_ipv6_before_link_local() {
        let mut table = table();
        for index in [4, 5, 2, 1] {
            assert_eq!(chosen(&table, LinkLayer::Ethernet, None), Some(index));
            table.retain(|entry| entry.index != index);
        }
        assert_eq!(
            chosen(&table, LinkLayer::Ethernet, None),
            None,
            "RoCE v1 does not count"
        );
    }

    #[test]
    fn the_wanted_address_comes_first() {
        let wanted = |ip: &str| chosen(&table(), LinkLayer::Ethernet, Some(ip.parse().unwrap()));
        assert_eq!(wanted("10.0.1.1"), Some(5));
        assert_eq!(wanted("fd00::1"), Some(2));
        assert_eq!(wanted("192.0.2.1"), Some(4));
    }

    #[test]
    fn infiniband_takes_the_first() {
        assert_eq!(chosen(&table(), LinkLayer::InfiniBand, None), Some(0));
    }
}
