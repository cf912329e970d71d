//! RoCEv2 over an ordinary UDP socket.
//!
//! The socket is not connected and has DF set: so the kernel sends every packet with an IP identification of 0, which the invariant CRC
//! covers and the sender has to know. (A connected socket counts up, and so do the segments of UDP GSO.)

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::{BATCH, Inbox, Outbox, Wire};
use crate::sys;

/// What the socket's buffers are asked to hold, in bytes: a window of 256 packets of 4096 bytes from each of a few peers. The kernel gives at most
/// `net.core.rmem_max`.
const BUFFER: usize = 4 << 20;

/// How long to wait for room in the socket's send buffer before packets count as lost.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// A UDP socket.
#[derive(Debug)]
pub(crate) struct UdpWire {
    socket: UdpSocket,
    local: SocketAddr,
    /// How many datagrams to ask for: more when there were many, fewer when there were few.
    depth: AtomicUsize,
}

impl UdpWire {
    /// Binds a socket.
    pub(crate) fn bind(ip: IpAddr, port: u16) -> Result<Self, Errno> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let socket = UdpSocket::bind((ip, port)).map_err(errno)?;
        socket.set_nonblocking(true).map_err(errno)?;
        match ip {
            IpAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?,
            IpAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?,
        }
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        Ok(Self {
            local: socket.local_addr().map_err(errno)?,
            socket,
            depth: AtomicUsize::new(1),
        })
    }

    /// Waits until there is room to send, for a moment at most. Whether there is.
    fn wait_for_room(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        matches!(poll(&mut fds, Some(&PATIENCE)), Ok(1..))
    }
}

impl Wire for UdpWire {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn send(&self, to: SocketAddr, outbox: &Outbox) {
        let mut sent = 0;
        while sent < outbox.len() {
            match sys::send(self.socket.as_fd(), to, outbox, sent) {
                Ok(n) => sent += n.max(1),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) if self.wait_for_room() => {}
                Err(errno) => {
                    // As lost as on the way: it is sent again, and if that never helps, its request ends with an error.
                    tracing::debug!(%errno, %to, "a packet could not be sent");
                    sent += 1;
                }
            }
        }
    }

    fn receive(&self, inbox: &mut Inbox) -> usize {
        inbox.clear();
        let depth = self.depth.load(Ordering::Relaxed);
        let n = match sys::receive(self.socket.as_fd(), inbox, depth) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(errno) => {
                tracing::debug!(%errno, "the socket reports an error");
                0
            }
        };
        // Looking for one more than there are costs as much as half a datagram; so lone ones are asked for alone, and floods in batches.
        let next = if n == depth {
            BATCH.min(depth * 2)
        } else {
            (n + 1).min(depth)
        };
        if next != depth {
            self.depth.store(next, Ordering::Relaxed);
        }
        n
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn has_icrc(&self) -> bool {
        true
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(packets: &[&[u8]]) -> Outbox {
        let mut outbox = Outbox::default();
        for packet in packets {
            let emit = |out: &mut Vec<u8>| {
                out.extend_from_slice(packet);
                true
            };
            assert!(outbox.add(emit, |_| None));
        }
        outbox
    }

    fn wires(ip: &str) -> (UdpWire, UdpWire) {
        let bind = || UdpWire::bind(ip.parse().unwrap(), 0).unwrap();
        (bind(), bind())
    }

    #[test]
    fn batches_arrive_whole_in_order_and_say_who_sent_them() {
        for ip in ["127.0.0.1", "::1"] {
            let (a, b) = wires(ip);
            let packets: Vec<Vec<u8>> = (1..=BATCH).map(|i| vec![i as u8; i * 100]).collect();
            let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
            a.send(b.local(), &outbox(&slices));
            let mut inbox = Inbox::new();
            let mut got = Vec::new();
            while b.receive(&mut inbox) > 0 {
                got.extend(inbox.packets().map(|(from, bytes)| (from, bytes.to_vec())));
            }
            let expected: Vec<_> = packets.into_iter().map(|bytes| (a.local(), bytes)).collect();
            assert_eq!(got, expected, "{ip}");
        }
    }

    #[test]
    fn a_datagram_longer_than_any_packet_counts_and_is_left_out() {
        let (a, b) = wires("127.0.0.1");
        a.send(b.local(), &outbox(&[&[1; ROOM + 1], &[2; ROOM]]));
        let mut inbox = Inbox::new();
        assert_eq!(b.receive(&mut inbox), 1);
        assert_eq!(inbox.packets().count(), 0);
        assert_eq!(b.receive(&mut inbox), 1);
        let got: Vec<_> = inbox.packets().map(|(_, bytes)| bytes.to_vec()).collect();
        assert_eq!(got, [vec![2; ROOM]]);
    }

    #[test]
    fn a_packet_to_nowhere_does_not_stop_those_behind_it() {
        let (a, b) = wires("127.0.0.1");
        a.send("127.0.0.1:1".parse().unwrap(), &outbox(&[b"lost"]));
        a.send(b.local(), &outbox(&[b"here"]));
        assert_eq!(b.receive(&mut Inbox::new()), 1);
    }

    use super::super::ROOM;
}
