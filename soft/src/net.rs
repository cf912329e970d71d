//! This host's addresses, and what the interfaces under them can carry.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_types::Mtu;
use rustix::io::Errno;

use crate::sys::{InterfaceAddress, interface_addresses};
use crate::wire::UdpWire;

/// What a packet needs beside its payload: IPv6 header 40, UDP 8, BTH 12, RETH 16, immediate data 4, ICRC 4 bytes. With IPv4 it is 20 less, but both ends must
/// come to the same whatever they use.
const HEADERS: usize = 84;

/// Addresses tried before binding one of 127/8 is given up.
const ATTEMPTS: u32 = 64;

/// An address of this host and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) ip: IpAddr,
    pub(crate) interface: String,
}

/// The first address that other hosts can reach: of an Ethernet interface that is up, IPv4 before IPv6, not link-local.
pub(crate) fn first_reachable() -> Option<Local> {
    let all = interface_addresses().unwrap_or_default();
    let usable = |address: &&InterfaceAddress| {
        let link_local = match address.ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        address.running && !address.loopback && !link_local && is_ethernet(&address.interface)
    };
    let best = all
        .iter()
        .filter(usable)
        .min_by_key(|address| address.ip.is_ipv6())?;
    Some(Local {
        ip: best.ip,
        interface: best.interface.clone(),
    })
}

/// The interface that has an address. All of 127/8 is the loopback interface's.
pub(crate) fn interface_of(ip: IpAddr) -> Option<String> {
    let all = interface_addresses().ok()?;
    let has = |address: &&InterfaceAddress| {
        address.ip == ip || address.loopback && ip.is_loopback() && ip.is_ipv4() == address.ip.is_ipv4()
    };
    all.iter().find(has).map(|address| address.interface.clone())
}

/// The largest payload that fits an interface's MTU.
pub(crate) fn active_mtu(interface: Option<&str>) -> Mtu {
    let read = |interface| {
        fs::read_to_string(sysfs(interface, "mtu"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let mtu: usize = interface.and_then(read).unwrap_or(1500);
    largest_within(mtu)
}

fn largest_within(interface_mtu: usize) -> Mtu {
    let fits = |mtu: &Mtu| mtu.bytes() + HEADERS <= interface_mtu;
    Mtu::ALL.into_iter().rev().find(fits).unwrap_or(Mtu::Mtu256)
}

fn is_ethernet(interface: &str) -> bool {
    // ARPHRD_ETHER; virtual interfaces, bridges and bonds have it, too.
    fs::read_to_string(sysfs(interface, "type")).is_ok_and(|kind| kind.trim() == "1")
}

fn sysfs(interface: &str, file: &str) -> std::path::PathBuf {
    Path::new("/sys/class/net").join(interface).join(file)
}

/// Binds `port` at an address of 127/8 that nobody else has: each opening of a device needs an address of its own, and there are enough.
pub(crate) fn bind_loopback(port: u16) -> Result<UdpWire, Errno> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut result = Err(Errno::ADDRINUSE);
    for _ in 0..ATTEMPTS {
        let ip = loopback_address(process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        result = UdpWire::bind(ip.into(), port);
        if !matches!(result, Err(Errno::ADDRINUSE)) {
            break;
        }
    }
    result
}

/// Processes that count on from their ids seldom meet, and none takes 127.0.0.0/16, which other programs use.
fn loopback_address(pid: u32, n: u32) -> Ipv4Addr {
    // Consecutive ids lie far apart, so that each has many addresses to itself.
    let place = pid.wrapping_mul(0x9e37_79b1) >> 9;
    let place = place.wrapping_add(n) % (254 * 256 * 254);
    let (net, rest) = (place / (256 * 254), place % (256 * 254));
    Ipv4Addr::new(127, net as u8 + 1, (rest / 254) as u8, (rest % 254) as u8 + 1)
}

/// Binds `port` at `ip`, or a free one if another process has it.
pub(crate) fn bind(ip: IpAddr, port: u16) -> Result<UdpWire, Errno> {
    match UdpWire::bind(ip, port) {
        Err(Errno::ADDRINUSE) => UdpWire::bind(ip, 0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use std::collections::HashSet;

    #[test]
    fn mtus_are_those_that_rxe_takes() {
        for (interface, expected) in [
            (65536, Mtu::Mtu4096),
            (4200, Mtu::Mtu4096),
            (4179, Mtu::Mtu2048),
            (1500, Mtu::Mtu1024),
            (1400, Mtu::Mtu1024),
            (1100, Mtu::Mtu512),
            (68, Mtu::Mtu256),
        ] {
            assert_eq!(largest_within(interface), expected, "{interface}");
        }
    }

    #[test]
    fn loopback_addresses_are_in_their_nets_and_spread() {
        let mut seen = HashSet::new();
        for pid in [1, 2, 3, 4_194_303] {
            for n in 0..1000 {
                let ip = loopback_address(pid, n);
                let [_, net, _, host] = ip.octets();
                assert!(
                    ip.is_loopback() && (1..255).contains(&net) && (1..255).contains(&host),
                    "{ip}"
                );
                assert!(seen.insert(ip), "{ip} twice");
            }
        }
    }

    #[test]
    fn the_loopback_interface_carries_the_largest_packets() {
        let lo = interface_of(Ipv4Addr::new(127, 3, 2, 1).into());
        assert_eq!(lo.as_deref(), Some("lo"));
        assert_eq!(active_mtu(lo.as_deref()), Mtu::Mtu4096);
    }

    #[test]
    fn a_port_that_is_taken_makes_another_one_or_another_address() {
        let home = Ipv4Addr::LOCALHOST.into();
        let first = bind(home, 0).unwrap();
        let second = bind(home, first.local().port()).unwrap();
        assert_ne!(first.local(), second.local());
        let (a, b) = (bind_loopback(4791).unwrap(), bind_loopback(4791).unwrap());
        assert_ne!(a.local().ip(), b.local().ip());
        assert_eq!((a.local().port(), b.local().port()), (4791, 4791));
    }
}
