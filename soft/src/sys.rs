//! System calls that rustix does not have: datagrams in batches, and the addresses of the interfaces.

#![allow(unsafe_code, reason = "system calls take addresses of buffers")]

use std::ffi::CStr;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use arrayvec::ArrayVec;
use rustix::io::Errno;

use crate::wire::{BATCH, Inbox, Outbox, ROOM};

/// Receives up to `most` datagrams that are there, without waiting, and says how many (`recvmmsg(2)`). What is longer than
/// [`ROOM`] counts, and is left out.
pub(crate) fn receive(fd: BorrowedFd<'_>, inbox: &mut Inbox, most: usize) -> Result<usize, Errno> {
    let most = most.min(BATCH);
    let mut names: ArrayVec<Name, BATCH> = (0..most).map(|_| Name::EMPTY).collect();
    let mut pieces: ArrayVec<libc::iovec, BATCH> = inbox.rooms().take(most).map(piece).collect();
    let mut headers: ArrayVec<libc::mmsghdr, BATCH> = names
        .iter_mut()
        .zip(&mut pieces)
        .map(|(name, piece)| header(&mut name.0, Name::LEN, piece))
        .collect();
    // SAFETY: each header points to a name and a piece that live until the end of this function and that nothing else refers to
    // meanwhile, and each piece to a room of the inbox, which is borrowed as long. No control buffer, no timeout.
    let n = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let n = usize::try_from(n).map_err(|_| last_error())?;
    let received: ArrayVec<(usize, bool), BATCH> = headers
        .iter()
        .take(n)
        .map(|header| {
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            (header.msg_len as usize, whole)
        })
        .collect();
    inbox.clear();
    for (place, ((len, whole), name)) in received.iter().zip(&names).enumerate() {
        if let Some(from) = name.address().filter(|_| *whole) {
            inbox.note(place, from, *len);
        }
    }
    Ok(n)
}

/// Sends the packets of `outbox` from the `first` on to one address without waiting, and says how many went (`sendmmsg(2)`). An error is that of
/// the first of them.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    to: SocketAddr,
    outbox: &Outbox,
    first: usize,
) -> Result<usize, Errno> {
    let (mut name, len) = Name::of(to);
    let mut pieces: ArrayVec<libc::iovec, BATCH> = outbox
        .packets()
        .skip(first)
        .take(BATCH)
        .map(|packet| libc::iovec {
            // The system call only reads it.
            iov_base: packet.as_ptr().cast_mut().cast(),
            iov_len: packet.len(),
        })
        .collect();
    let mut headers: ArrayVec<libc::mmsghdr, BATCH> = pieces
        .iter_mut()
        .map(|piece| header(&mut name.0, len, piece))
        .collect();
    // SAFETY: each header points to the one name and to a piece, all of which live until the end of this function, and each piece
    // to a packet of the outbox, which is borrowed as long. sendmmsg writes only the headers.
    let n = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_DONTWAIT as _,
        )
    };
    usize::try_from(n).map_err(|_| last_error())
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

fn piece(room: &mut [u8; ROOM]) -> libc::iovec {
    libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    }
}

fn header(name: &mut libc::sockaddr_in6, len: libc::socklen_t, piece: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: a structure of numbers and pointers, for all of which zero is a value.
    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
    header.msg_hdr.msg_name = ptr::from_mut(name).cast();
    header.msg_hdr.msg_namelen = len;
    header.msg_hdr.msg_iov = piece;
    header.msg_hdr.msg_iovlen = 1;
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
