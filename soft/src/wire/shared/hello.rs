//! How two devices of one host find each other, and prove that they may share memory.
//!
//! Each listens on a unix socket whose name is made of its UDP address. Names without a file ("abstract", `unix(7)`) belong to a network
//! namespace, as UDP addresses do, and are gone with their process: who answers under such a name, is on this host, and there is nothing to clean up.
//! Both sides ask the kernel for the other's user (`SO_PEERCRED`), and deal with none but their own.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::sys;

/// Connections that may wait for the device to look.
const BACKLOG: i32 = 256;

const MAGIC: [u8; 8] = *b"adverbSH";

/// Changes with the layout of rings or of this message.
const VERSION: u32 = 1;

/// Bytes of the message.
const LEN: usize = 36;

/// The answer: from now on the ring is read.
const WELCOME: [u8; 1] = [1];

/// What who connects says first, beside the memory of its ring and the doorbell (an eventfd) that it rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Where its packets count as coming from.
    pub(crate) from: SocketAddr,
    /// Bytes of data that the ring has.
    pub(crate) ring: u32,
}

impl Hello {
    fn to_bytes(self) -> [u8; LEN] {
        let (family, ip) = match self.from.ip() {
            IpAddr::V4(v4) => (4, v4.to_ipv6_mapped()),
            IpAddr::V6(v6) => (6, v6),
        };
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.ring.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.from.port().to_le_bytes());
        bytes[18] = family;
        bytes[20..].copy_from_slice(&ip.octets());
        bytes
    }

    fn from_bytes(bytes: &[u8; LEN]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes[at..].first_chunk()?));
        let ip: [u8; 16] = *bytes[20..].first_chunk()?;
        let ip = std::net::Ipv6Addr::from(ip);
        let ip = match bytes[18] {
            4 => ip.to_ipv4_mapped()?.into(),
            6 => ip.into(),
            _ => return None,
        };
        let port = u16::from_le_bytes([bytes[16], bytes[17]]);
        (bytes[..8] == MAGIC && u32_at(8)? == VERSION).then_some(Self {
            from: SocketAddr::new(ip, port),
            ring: u32_at(12)?,
        })
    }
}

/// A hello with what came with it.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) hello: Hello,
    pub(crate) memory: OwnedFd,
    pub(crate) doorbell: OwnedFd,
}

/// The name of the device with this address.
fn name(address: SocketAddr) -> Result<SocketAddrUnix, Errno> {
    // Without what an IPv6 socket address has beside these: the peer does not know it.
    let name = format!("adverb-soft/{}", SocketAddr::new(address.ip(), address.port()));
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Listens under the name of the device with this address.
///
/// # Errors
/// What the kernel says: `EADDRINUSE` if somebody else does.
pub(crate) fn listen(local: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name(local)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the device with this address, if it is on this host, listens, and is of this user.
///
/// # Errors
/// What the kernel says: `ECONNREFUSED` if nobody listens, `EAGAIN` if too many wait. `EPERM` for another user's.
pub(crate) fn connect(peer: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &name(peer)?)?;
    check_user(&socket)?;
    Ok(socket)
}

/// Takes a connection. It may be of anybody: [`receive_hello`] checks that.
///
/// # Errors
/// `EAGAIN` if there is none; what the kernel says otherwise.
pub(crate) fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
}

/// Sends a hello.
///
/// # Errors
/// What the kernel says.
pub(crate) fn send_hello(
    connection: &OwnedFd,
    hello: Hello,
    memory: &OwnedFd,
    doorbell: &OwnedFd,
) -> Result<(), Errno> {
    let descriptors: [BorrowedFd<'_>; 2] = [memory.as_fd(), doorbell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let bytes = hello.to_bytes();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(connection, &[IoSlice::new(&bytes)], &mut control, flags).map(drop)
}

/// Receives a hello, of this user's processes only.
///
/// # Errors
/// `EAGAIN` if it is not there yet. `EPERM` for another user's, `EPROTO` if it is none. What the kernel says otherwise.
pub(crate) fn receive_hello(connection: &OwnedFd) -> Result<Offer, Errno> {
    check_user(connection)?;
    // More than it has would be none.
    let mut bytes = [0; LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let len = rustix::net::recvmsg(connection, &mut pieces, &mut control, flags)?.bytes;
    // What is not taken here is closed.
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut descriptors = descriptors.by_ref().flatten();
    let (memory, doorbell) = (descriptors.next(), descriptors.next());
    let whole = bytes[..len].first_chunk().filter(|_| len == LEN);
    let (Some(memory), Some(doorbell), Some(whole)) = (memory, doorbell, whole) else {
        return Err(Errno::PROTO);
    };
    Ok(Offer {
        hello: Hello::from_bytes(whole).ok_or(Errno::PROTO)?,
        memory,
        doorbell,
    })
}

/// Answers a hello: the ring is read from now on.
///
/// # Errors
/// What the kernel says.
pub(crate) fn welcome(connection: &OwnedFd) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::send(connection, &WELCOME, flags).map(drop)
}

/// Whether the answer came.
///
/// # Errors
/// `EAGAIN` if there is nothing yet. `EPROTO` if there is something else, `EPIPE` if the other side closed; what the kernel says otherwise.
pub(crate) fn receive_welcome(connection: &OwnedFd) -> Result<(), Errno> {
    let mut answer = [0; 2];
    match rustix::net::recv(connection, &mut answer, RecvFlags::DONTWAIT)? {
        (0, _) => Err(Errno::PIPE),
        (1, _) if answer[..1] == WELCOME => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

fn check_user(connection: &OwnedFd) -> Result<(), Errno> {
    let peer = sys::peer_user(connection.as_fd())?;
    if peer == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_survive_the_way_and_others_are_refused() {
        for text in ["127.0.0.1:4791", "[fd00::1:2]:65535", "10.0.0.1:1"] {
            let hello = Hello {
                from: text.parse().unwrap(),
                ring: 1 << 21,
            };
            let bytes = hello.to_bytes();
            assert_eq!(Hello::from_bytes(&bytes), Some(hello));
            // Magic, version, family.
            for at in [0, 7, 8, 11, 18] {
                let mut other = bytes;
                other[at] ^= 0x40;
                assert_eq!(Hello::from_bytes(&other), None, "{text} {at}");
            }
        }
    }

    #[test]
    fn a_name_belongs_to_one_and_is_gone_with_it() {
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 77, high, low], 9));
        assert_eq!(connect(address).unwrap_err(), Errno::CONNREFUSED);
        let listener = listen(address).unwrap();
        assert_eq!(listen(address).unwrap_err(), Errno::ADDRINUSE);
        connect(address).unwrap();
        drop(listener);
        assert_eq!(connect(address).unwrap_err(), Errno::CONNREFUSED);
    }

    #[test]
    fn neither_side_deals_with_another_user() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED neither_side_deals_with_another_user: only root can be another user");
            return;
        }
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 78, high, low], 9));
        let listener = listen(address).unwrap();
        // A thread may be another user than its process.
        let other = std::thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(48_621)).unwrap();
            assert_eq!(connect(address).unwrap_err(), Errno::PERM);
            // One that does not care whom it connects with.
            let socket = socket().unwrap();
            rustix::net::connect(&socket, &name(address).unwrap()).unwrap();
            socket
        });
        let _socket = other.join().unwrap();
        for _ in 0..2 {
            assert_eq!(
                receive_hello(&accept(&listener).unwrap()).unwrap_err(),
                Errno::PERM
            );
        }
        let _ours = connect(address).unwrap();
        assert_eq!(
            receive_hello(&accept(&listener).unwrap()).unwrap_err(),
            Errno::AGAIN
        );
    }
}
