//! RoCEv2 over an ordinary UDP socket.
//!
//! The socket is not connected and has DF set: so the kernel sends every packet with an IP identification of 0, which the invariant CRC
//! covers and the sender has to know. (A connected socket counts up.)
//!
//! Packets of one length leave as one run, which the kernel, or the card, cuts into datagrams (UDP GSO): these count their identifications up from that
//! 0. And datagrams of one sender that arrive together come as one (UDP GRO). What a datagram costs, a dozen so cost once.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::{Inbox, Outbox, TrafficClass, Wire};
use crate::sys::{self, Received};

/// What the socket's buffers are asked to hold, in bytes: a window of 256 packets of 4096 bytes from each of a few peers. The kernel gives at most
/// `net.core.rmem_max`.
const BUFFER: usize = 4 << 20;

/// Datagrams that a run has at most (`UDP_MAX_SEGMENTS` of the kernel's older versions).
const LONGEST_RUN: usize = 64;

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
    /// How often to ask for datagrams: more often when there were many, less when there were few.
    depth: AtomicUsize,
    /// Whether the kernel takes runs on this path.
    takes_runs: AtomicBool,
}

impl UdpWire {
    /// Binds a socket.
    pub(crate) fn bind(ip: IpAddr, port: u16) -> Result<Self, Errno> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let socket = UdpSocket::bind((ip, port)).map_err(errno)?;
        socket.set_nonblocking(true).map_err(errno)?;
        match ip {
            IpAddr::V4(_) => {
                sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
                sockopt::set_ip_tos(&socket, TrafficClass::DEFAULT.0)?;
                sockopt::set_ip_recvtos(&socket, true)?;
            }
            IpAddr::V6(_) => {
                sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
                sockopt::set_ipv6_tclass(&socket, TrafficClass::DEFAULT.0.into())?;
                sockopt::set_ipv6_recvtclass(&socket, true)?;
            }
        }
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        if !sys::enable_gro(socket.as_fd()) {
            tracing::debug!("the kernel does not put datagrams together");
        }
        Ok(Self {
            local: socket.local_addr().map_err(errno)?,
            socket,
            depth: AtomicUsize::new(1),
            takes_runs: AtomicBool::new(true),
        })
    }

    /// Lets `send` send datagrams, as often as it takes.
    fn send_all(&self, send: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        loop {
            match send(self.socket.as_fd()) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) if self.wait_for_room() => {}
                other => return other,
            }
        }
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
        // As lost as on the way: it is sent again, and if that never helps, its request ends with an error.
        let lost = |errno| tracing::debug!(%errno, %to, "a packet could not be sent");
        // The socket has the one that most packets have.
        let class = Some(outbox.class()).filter(|class| *class != TrafficClass::DEFAULT);
        for (bytes, segment, packets) in outbox.runs() {
            if let Ok(segment) = u16::try_from(segment)
                && packets > 1
                && self.takes_runs.load(Ordering::Relaxed)
            {
                match self.send_all(|socket| sys::send_with(socket, to, bytes, Some(segment), class)) {
                    Ok(()) => continue,
                    // A card that computes no checksums cannot cut runs either.
                    Err(Errno::INVAL | Errno::IO | Errno::OPNOTSUPP | Errno::MSGSIZE) => {
                        tracing::debug!(%to, "the kernel does not take runs of datagrams on this path");
                        self.takes_runs.store(false, Ordering::Relaxed);
                    }
                    Err(errno) => {
                        lost(errno);
                        continue;
                    }
                }
            }
            for packet in bytes.chunks(segment) {
                let sent = self.send_all(|socket| match class {
                    None => sys::send(socket, to, packet),
                    class => sys::send_with(socket, to, packet, None, class),
                });
                if let Err(errno) = sent {
                    lost(errno);
                }
            }
        }
    }

    fn receive(&self, inbox: &mut Inbox) -> usize {
        inbox.clear();
        let depth = self.depth.load(Ordering::Relaxed);
        let (mut n, mut packets) = (0, 0);
        while n < depth {
            match sys::receive(self.socket.as_fd(), inbox.room(n)) {
                Ok(Received {
                    from,
                    len,
                    segment,
                    class,
                }) => {
                    packets += from.map_or(1, |from| inbox.note(n, from, len, segment, class));
                    n += 1;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::debug!(%errno, "the socket reports an error");
                    break;
                }
            }
        }
        // Looking for one more than there are costs as much as half a datagram; so lone ones are asked for alone, and floods in batches.
        let next = if n == depth {
            Inbox::rooms().min(depth * 2)
        } else {
            (n + 1).min(depth)
        };
        if next != depth {
            self.depth.store(next, Ordering::Relaxed);
        }
        packets
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn longest_run(&self) -> usize {
        if self.takes_runs.load(Ordering::Relaxed) {
            LONGEST_RUN
        } else {
            1
        }
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(packets: &[&[u8]]) -> Outbox {
        let sealed = packets.iter().map(|packet| {
            let (packet, seal) = packet.split_last_chunk().unwrap();
            (packet, Some(*seal))
        });
        Outbox::of(LONGEST_RUN, sealed)
    }

    fn wires(ip: &str) -> (UdpWire, UdpWire) {
        let bind = || UdpWire::bind(ip.parse().unwrap(), 0).unwrap();
        (bind(), bind())
    }

    #[test]
    fn batches_arrive_whole_in_order_and_say_who_sent_them() {
        for ip in ["127.0.0.1", "::1"] {
            let (a, b) = wires(ip);
            let packets: Vec<Vec<u8>> = (1..=32).map(|i| vec![i as u8; i * 100]).collect();
            let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
            a.send(b.local(), &outbox(&slices));
            let mut inbox = Inbox::new();
            let mut got = Vec::new();
            while b.receive(&mut inbox) > 0 {
                got.extend(inbox.packets().map(|packet| (packet.from, packet.bytes.to_vec())));
            }
            let expected: Vec<_> = packets.into_iter().map(|bytes| (a.local(), bytes)).collect();
            assert_eq!(got, expected, "{ip}");
        }
    }

    #[test]
    fn a_run_arrives_as_the_packets_that_it_was() {
        for ip in ["127.0.0.1", "::1"] {
            let (a, b) = wires(ip);
            let mut packets: Vec<Vec<u8>> = (0..20).map(|i| vec![i; 1000]).collect();
            packets.push(vec![20; 10]);
            let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
            let outbox = outbox(&slices);
            assert_eq!(outbox.runs().count(), 1);
            a.send(b.local(), &outbox);
            let mut inbox = Inbox::new();
            let mut got = Vec::new();
            while b.receive(&mut inbox) > 0 {
                got.extend(inbox.packets().map(|packet| packet.bytes.to_vec()));
            }
            assert_eq!(got, packets, "{ip}");
        }
    }

    #[test]
    fn what_a_queue_pair_asks_for_is_in_the_ip_header_alone_and_in_runs() {
        for ip in ["127.0.0.1", "::1"] {
            let (a, b) = wires(ip);
            // A queue pair that asks for nothing, one for DSCP 24, and what a switch does to that.
            for class in [
                TrafficClass::DEFAULT,
                TrafficClass::of(96),
                TrafficClass(96 | 0b11),
            ] {
                let runs: [&[&[u8]]; 2] = [&[b"alone"], &[b"together", b"together", b"short"]];
                for packets in runs {
                    let mut outbox = outbox(packets);
                    outbox.set_class(class);
                    a.send(b.local(), &outbox);
                    let mut buffer = [0; 64];
                    let mut received = 0;
                    while received < packets.iter().map(|packet| packet.len()).sum() {
                        let got = sys::receive(b.socket.as_fd(), &mut buffer).unwrap();
                        assert_eq!((got.class, got.from), (class, Some(a.local())), "{ip}");
                        received += got.len;
                    }
                    a.send(b.local(), &outbox);
                    let mut inbox = Inbox::new();
                    let mut marked = Vec::new();
                    while b.receive(&mut inbox) > 0 {
                        marked.extend(inbox.packets().map(|packet| packet.marked));
                    }
                    assert_eq!(marked, vec![class.is_marked(); packets.len()], "{ip} {class:?}");
                }
            }
        }
    }

    #[test]
    fn a_packet_to_nowhere_does_not_stop_those_behind_it() {
        let (a, b) = wires("127.0.0.1");
        a.send("127.0.0.1:1".parse().unwrap(), &outbox(&[b"lost"]));
        a.send(b.local(), &outbox(&[b"here"]));
        assert_eq!(b.receive(&mut Inbox::new()), 1);
    }
}
