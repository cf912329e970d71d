//! System calls that rustix does not have, or not so: datagrams in runs, the addresses of the interfaces, and a unix socket's peer.

#![allow(unsafe_code, reason = "system calls take addresses of buffers")]

use std::ffi::CStr;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use crate::wire::TrafficClass;

/// What one call received: a datagram, or several of one sender that the kernel has put together, one behind the other (UDP GRO, `udp(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Who sent it; `None` if the address is of another kind, or if it did not fit the buffer.
    pub(crate) from: Option<SocketAddr>,
    /// Bytes in the buffer.
    pub(crate) len: usize,
    /// The length of each datagram; the last may be shorter.
    pub(crate) segment: usize,
    /// The class of all of them; 0 if the socket does not ask for it.
    pub(crate) class: TrafficClass,
}

/// Receives what is there, without waiting (`recvmsg(2)`).
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut name = Name::EMPTY;
    let mut piece = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = Control::EMPTY;
    let mut header = header(&mut name, Name::LEN, &mut piece);
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of::<Control>() as _;
    // SAFETY: the header points to a name, a piece and a control buffer that live until the end of this function and that nothing else refers to
    // meanwhile, and the piece to the buffer, which is borrowed as long.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let len = usize::try_from(len).map_err(|_| last_error())?;
    let whole = header.msg_flags & libc::MSG_TRUNC == 0;
    let (segment, class) = told_beside(&header);
    Ok(Received {
        from: name.address().filter(|_| whole),
        len,
        segment: segment.unwrap_or(len),
        class,
    })
}

/// What the control messages of a received datagram say: the length of the datagrams that were put together, if they were, and the class of all of
/// them. The kernel puts none together that differ in it.
fn told_beside(header: &libc::msghdr) -> (Option<usize>, TrafficClass) {
    let (mut segment, mut class) = (None, TrafficClass(0));
    // SAFETY: the header's control buffer is one that recvmsg filled, and says how far.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or a control message within that buffer, which is aligned for it.
    while let Some(message) = unsafe { next.as_ref() } {
        // SAFETY: the data of a control message lies behind it.
        let data = unsafe { libc::CMSG_DATA(next) };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: this one's is an int, wherever it is aligned to.
                let len = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                segment = usize::try_from(len).ok().filter(|len| *len > 0);
            }
            // SAFETY: this one's is a byte (`ip(7)`).
            (libc::IPPROTO_IP, libc::IP_TOS) => class = TrafficClass(unsafe { data.read() }),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: this one's is an int (`ipv6(7)`, RFC 3542).
                class = TrafficClass(unsafe { data.cast::<libc::c_int>().read_unaligned() } as u8);
            }
            _ => {}
        }
        // SAFETY: as for the first one.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    (segment, class)
}

/// Sends `bytes` as one datagram of the socket's own class, without waiting (`sendto(2)`, which takes less than `sendmsg(2)`).
pub(crate) fn send(fd: BorrowedFd<'_>, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
    let (name, len) = Name::of(to);
    // SAFETY: the bytes and the name are borrowed until the call returns, which only reads them.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            ptr::from_ref(&name.0).cast(),
            len,
        )
    };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Sends `bytes`, without waiting (`sendmsg(2)`): with a `segment` as datagrams of that length, of which the last may be shorter (UDP GSO, `udp(7)`); with a
/// `class` of that one, without one of the socket's own.
pub(crate) fn send_with(
    fd: BorrowedFd<'_>,
    to: SocketAddr,
    bytes: &[u8],
    segment: Option<u16>,
    class: Option<TrafficClass>,
) -> Result<(), Errno> {
    let (mut name, len) = Name::of(to);
    let mut piece = libc::iovec {
        // The system call only reads it.
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control::EMPTY;
    let mut used = 0;
    if let Some(segment) = segment {
        used = control.add(used, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    if let Some(TrafficClass(class)) = class {
        let value = libc::c_int::from(class).to_ne_bytes();
        used = match to {
            SocketAddr::V4(_) => control.add(used, libc::IPPROTO_IP, libc::IP_TOS, &value),
            SocketAddr::V6(_) => control.add(used, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value),
        };
    }
    let mut header = header(&mut name, len, &mut piece);
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = used as _;
    // SAFETY: the header points to a name, a piece and a control buffer that live until the end of this function, and the piece to bytes that
    // are borrowed as long. sendmsg writes nothing.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Lets the kernel put datagrams of one sender together. Whether it can.
pub(crate) fn enable_gro(fd: BorrowedFd<'_>) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int, which lives until the call returns.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    set == 0
}

/// The effective user of who is at the other end of a unix socket (`SO_PEERCRED`, `unix(7)`). rustix has it with the process's number, which it says is
/// never 0; in a namespace that does not know the process, it is.
pub(crate) fn peer_user(fd: BorrowedFd<'_>) -> Result<libc::uid_t, Errno> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = mem::size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the option's value is such a structure, which, like its length, lives until the call returns.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if got == 0 { Ok(peer.uid) } else { Err(last_error()) }
}

/// Room for two control messages with an int each.
#[repr(C, align(8))]
struct Control([u8; 48]);

impl Control {
    const EMPTY: Self = Self([0; 48]);

    /// Puts a control message of 4 bytes at most behind those that take `used` bytes, and says how many these are then.
    fn add(&mut self, used: usize, level: libc::c_int, kind: libc::c_int, value: &[u8]) -> usize {
        let len = value.len() as libc::c_uint;
        let message = libc::cmsghdr {
            // SAFETY: it only computes.
            cmsg_len: unsafe { libc::CMSG_LEN(len) } as _,
            cmsg_level: level,
            cmsg_type: kind,
        };
        // SAFETY: it only computes.
        let data = used + unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: it only computes.
        let end = used + unsafe { libc::CMSG_SPACE(len) } as usize;
        let place = &mut self.0[used..end];
        // SAFETY: the place has room for more than this, as it is the message's with its value.
        unsafe {
            place
                .as_mut_ptr()
                .cast::<libc::cmsghdr>()
                .write_unaligned(message)
        };
        self.0[data..data + value.len()].copy_from_slice(value);
        end
    }
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) interface: String,
    pub(crate) ip: IpAddr,
    /// Whether the interface is up, with a link.
    pub(crate) running: bool,
    pub(crate) loopback: bool,
}

/// The IP addresses of all interfaces, in the kernel's order (`getifaddrs(3)`).
pub(crate) fn interface_addresses() -> Result<Vec<InterfaceAddress>, Errno> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: it writes one pointer, to a place that is there for it.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(last_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `next` is null or an element of the list, which is freed after the loop only; nobody else knows it.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        // SAFETY: every element has a name, a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        let Some(ip) = address_of(element) else {
            continue;
        };
        let has = |flags: libc::c_int| element.ifa_flags & flags as libc::c_uint == flags as libc::c_uint;
        found.push(InterfaceAddress {
            interface: name.to_string_lossy().into_owned(),
            ip,
            running: has(libc::IFF_UP | libc::IFF_RUNNING),
            loopback: has(libc::IFF_LOOPBACK),
        });
    }
    // SAFETY: the list that getifaddrs made, once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn address_of(element: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: null, or a socket address that lives as long as the list.
    let family = i32::from(unsafe { element.ifa_addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in, wherever it is aligned to.
            let v4 = unsafe { element.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a sockaddr_in6, wherever it is aligned to.
            let v6 = unsafe { element.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Room for a socket address of either family. An IPv4 address has its port where an IPv6 address has it, and its four bytes where that has the
/// flow information (`ip(7)`, `ipv6(7)`).
struct Name(libc::sockaddr_in6);

impl Name {
    const LEN: libc::socklen_t = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;

    const EMPTY: Self = Self(libc::sockaddr_in6 {
        sin6_family: libc::AF_UNSPEC as libc::sa_family_t,
        sin6_port: 0,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    });

    fn of(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut name = Self::EMPTY;
        name.0.sin6_port = address.port().to_be();
        let len = match address {
            SocketAddr::V4(v4) => {
                name.0.sin6_family = libc::AF_INET as libc::sa_family_t;
                name.0.sin6_flowinfo = u32::from_ne_bytes(v4.ip().octets());
                mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
            }
            SocketAddr::V6(v6) => {
                name.0.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.0.sin6_addr.s6_addr = v6.ip().octets();
                name.0.sin6_scope_id = v6.scope_id();
                Self::LEN
            }
        };
        (name, len)
    }

    fn address(&self) -> Option<SocketAddr> {
        let port = u16::from_be(self.0.sin6_port);
        match i32::from(self.0.sin6_family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(self.0.sin6_flowinfo.to_ne_bytes());
                Some(SocketAddrV4::new(ip, port).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(self.0.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, port, 0, self.0.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// A message with one piece of data and no control message.
fn header(name: &mut Name, len: libc::socklen_t, piece: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a structure of numbers and pointers, for all of which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = ptr::from_mut(&mut name.0).cast();
    header.msg_namelen = len;
    header.msg_iov = piece;
    header.msg_iovlen = 1;
    header
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_of_both_families_survive_the_way_through_c() {
        for text in ["127.1.2.3:4791", "[fd00::1:2]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::of(address).0.address(), Some(address));
        }
        assert_eq!(Name::EMPTY.address(), None);
    }

    #[test]
    fn the_loopback_interface_is_among_the_addresses() {
        let all = interface_addresses().unwrap();
        let home = IpAddr::from(Ipv4Addr::LOCALHOST);
        let lo = all.iter().find(|address| address.ip == home).unwrap();
        assert!(lo.loopback && lo.running, "{lo:?}");
    }
}
