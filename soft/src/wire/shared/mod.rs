//! UDP, and shared memory with the devices of this host that have it, too.
//!
//! Packets are what they are on UDP, but without the invariant CRC. Each direction is a ring of its own, made by who writes it (`ring.rs`) and
//! offered over a unix socket (`hello.rs`), when a queue pair is connected. Until the peer has taken it, and after it is gone, packets go over UDP; what
//! that loses or reorders, the protocol mends, as on any network. Packets of a ring count as coming from the address that its writer claimed: it is
//! a process of the same user.
//!
//! # Who looks where
//! Whoever receives looks at the rings, without a system call. At all else, an epoll instance, it looks after [`POLLS_IN_VAIN`], and at the latest each
//! [`POLLS_PER_LOOK`] times: at the listener and the connections, and at the UDP socket, unless something came there lately or there are no rings. Who
//! sleeps, sleeps on the epoll instance, and says so in all rings before.

mod handover;
mod hello;
mod link;
mod ring;

/// The primitives of `handover.rs`.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::{Inbox, Outbox, Route, UdpWire, Wire};
use hello::Offer;
pub(crate) use link::Link;
use ring::{Broken, Reader};

/// After so many looks at the rings in a row that found nothing, one is at everything else, too. That costs 0.3 µs, about what is left of a message.
const POLLS_IN_VAIN: u32 = 32;

/// The same, however much comes through the rings.
const POLLS_PER_LOOK: u32 = 512;

/// For so many polls after a datagram came, the UDP socket is looked at each time.
const UDP_POLLS: u32 = 64;

/// Rings from other devices at most, with those that are still being made.
const MOST: usize = 1024;

/// What an event in the epoll instance is about; connections count on from here.
const UDP: u64 = 0;
const LISTENER: u64 = 1;
const DOORBELL: u64 = 2;
const FIRST_CONNECTION: u64 = 3;

/// Without waiting.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A UDP socket, and rings.
#[derive(Debug)]
pub(crate) struct SharedWire {
    udp: UdpWire,
    /// Readable when there is something to do at any of the descriptors.
    epoll: OwnedFd,
    /// Below the receive side in the lock order, and above nothing.
    hub: Mutex<Hub>,
}

/// The connections and rings.
#[derive(Debug)]
struct Hub {
    /// `None` if there is none to be had: then others send over UDP.
    listener: Option<OwnedFd>,
    /// Connections whose hello has not come.
    greeting: Vec<(u64, OwnedFd)>,
    inbound: Vec<Inbound>,
    outbound: Vec<(u64, Weak<Link>)>,
    next_token: u64,
    /// The ring to look at first.
    first: usize,
    /// Receives, ever.
    polls: u32,
    /// Receives in a row that found nothing, since the last look at everything else.
    in_vain: u32,
    /// Receives that look at the UDP socket, too.
    udp_polls: u32,
}

/// A ring from another device.
#[derive(Debug)]
struct Inbound {
    token: u64,
    from: SocketAddr,
    reader: Reader,
    doorbell: OwnedFd,
    /// `None` once it ended: then what is still in the ring is read, and no more comes.
    connection: Option<OwnedFd>,
}

impl SharedWire {
    /// Adds shared memory to a UDP socket.
    ///
    /// # Errors
    /// What the kernel says if there is no descriptor left.
    pub(crate) fn over(udp: UdpWire) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(socket) = udp.readiness() {
            watch(&epoll, socket, UDP, EventFlags::IN)?;
        }
        let listener = hello::listen(udp.local())
            .inspect_err(
                |errno| tracing::warn!(%errno, "no device of this host can share memory with this one"),
            )
            .ok();
        if let Some(listener) = &listener {
            watch(&epoll, listener.as_fd(), LISTENER, EventFlags::IN)?;
        }
        Ok(Self {
            udp,
            epoll,
            hub: Mutex::new(Hub {
                listener,
                greeting: Vec::new(),
                inbound: Vec::new(),
                outbound: Vec::new(),
                next_token: FIRST_CONNECTION,
                first: 0,
                polls: 0,
                in_vain: 0,
                udp_polls: UDP_POLLS,
            }),
        })
    }
}

impl Wire for SharedWire {
    fn local(&self) -> SocketAddr {
        self.udp.local()
    }

    fn route(&self, peer: SocketAddr) -> Route {
        let mut hub = self.hub.lock();
        // A link whose end nobody has noticed yet is none.
        hub.look(&self.epoll);
        let link = hub.link_to(&self.epoll, self.udp.local(), peer);
        // If the peer is this device itself, the one look takes the offer, and the other the answer.
        hub.look(&self.epoll);
        hub.look(&self.epoll);
        Route::new(peer, link)
    }

    fn send(&self, to: SocketAddr, outbox: &Outbox) {
        self.udp.send(to, outbox);
    }

    fn receive(&self, inbox: &mut Inbox) -> usize {
        let hub = &mut *self.hub.lock();
        hub.polls = hub.polls.wrapping_add(1);
        hub.in_vain += 1;
        if hub.in_vain >= POLLS_IN_VAIN || hub.polls.is_multiple_of(POLLS_PER_LOOK) {
            hub.in_vain = 0;
            hub.look(&self.epoll);
        }
        // Neither of the two starves the other.
        let udp_first = hub.inbound.is_empty() || hub.polls.is_multiple_of(2);
        for udp in [udp_first, !udp_first] {
            let n = if udp {
                hub.receive_datagrams(&self.udp, inbox)
            } else {
                hub.read_rings(&self.epoll, inbox)
            };
            if n > 0 {
                hub.in_vain = 0;
                return n;
            }
        }
        0
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn about_to_sleep(&self) -> bool {
        let hub = self.hub.lock();
        hub.inbound.iter().all(|inbound| inbound.reader.about_to_sleep())
    }

    fn awake(&self) {
        let mut hub = self.hub.lock();
        hub.inbound.iter().for_each(|inbound| inbound.reader.awake());
        // Takes note of doorbells, too, which else would keep the epoll instance readable.
        hub.look(&self.epoll);
    }

    fn longest_run(&self) -> usize {
        self.udp.longest_run()
    }

    fn now(&self) -> Instant {
        self.udp.now()
    }
}

/// Packets in.
impl Hub {
    fn receive_datagrams(&mut self, udp: &UdpWire, inbox: &mut Inbox) -> usize {
        inbox.clear();
        if self.inbound.is_empty() {
            return udp.receive(inbox);
        }
        if self.udp_polls == 0 {
            return 0;
        }
        let n = udp.receive(inbox);
        self.udp_polls = if n > 0 { UDP_POLLS } else { self.udp_polls - 1 };
        n
    }

    /// Fills one room from the rings.
    fn read_rings(&mut self, epoll: &OwnedFd, inbox: &mut Inbox) -> usize {
        inbox.clear();
        let (mut at, mut used, mut looked) = (self.first, 0, 0);
        while looked < self.inbound.len() {
            if at >= self.inbound.len() {
                at = 0;
            }
            let inbound = &mut self.inbound[at];
            match inbox.read(used, inbound.from, |room, packet| {
                inbound.reader.read(room, packet)
            }) {
                Ok(0) if inbound.connection.is_none() => {
                    self.remove(epoll, at);
                    continue;
                }
                Ok(read) => used += read,
                Err(Broken) => {
                    tracing::warn!(from = %inbound.from, "the writer of a ring broke its rules");
                    self.remove(epoll, at);
                    continue;
                }
            }
            (at, looked) = (at + 1, looked + 1);
            if Inbox::room_len() - used < Reader::least_room() {
                break;
            }
        }
        // What did not fit comes first the next time.
        self.first = at;
        inbox.len()
    }

    /// Lets go of a ring.
    fn remove(&mut self, epoll: &OwnedFd, at: usize) {
        let inbound = self.inbound.swap_remove(at);
        // The writer has the doorbell, too: closing this descriptor alone would not end its events.
        let _ = epoll::delete(epoll, &inbound.doorbell);
    }
}

/// Everything but packets.
impl Hub {
    /// Sees to whatever happened.
    fn look(&mut self, epoll: &OwnedFd) {
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [nothing; 16];
        // Interrupted, or nothing: the next look finds it.
        let n = epoll::wait(epoll, &mut events[..], Some(&NOW)).unwrap_or(0);
        for event in &events[..n] {
            match event.data.u64() {
                UDP => self.udp_polls = UDP_POLLS,
                LISTENER => self.accept(epoll),
                DOORBELL => {}
                token => self.connection_event(epoll, token),
            }
        }
    }

    /// Takes connections.
    fn accept(&mut self, epoll: &OwnedFd) {
        let Some(listener) = &self.listener else {
            return;
        };
        let connection = match hello::accept(listener) {
            Ok(connection) => connection,
            Err(errno) => {
                tracing::debug!(%errno, "a connection could not be taken");
                return;
            }
        };
        // Who is turned away sends over UDP.
        if self.greeting.len() + self.inbound.len() < MOST {
            let token = self.token();
            if watch(epoll, connection.as_fd(), token, EventFlags::IN).is_ok() {
                self.greeting.push((token, connection));
                // As a rule it is there.
                self.connection_event(epoll, token);
            }
        }
    }

    /// Something came over a connection, or it ended.
    fn connection_event(&mut self, epoll: &OwnedFd, token: u64) {
        if let Some(at) = self.greeting.iter().position(|(of, _)| *of == token) {
            match hello::receive_hello(&self.greeting[at].1) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                offer => {
                    let (_, connection) = self.greeting.swap_remove(at);
                    let taken = offer.and_then(|offer| self.take(epoll, token, connection, offer));
                    if let Err(errno) = taken {
                        tracing::info!(%errno, "an offer to share memory was refused: those packets come over UDP");
                    }
                }
            }
        } else if let Some(inbound) = self.inbound.iter_mut().find(|inbound| inbound.token == token) {
            // After the hello there is nothing to say but its end.
            inbound.connection = None;
        } else if let Some(at) = self.outbound.iter().position(|(of, _)| *of == token) {
            let link = self.outbound[at].1.upgrade();
            if let Some(link) = link.filter(|link| !link.look()) {
                let _ = epoll::delete(epoll, &link);
                self.outbound.swap_remove(at);
            }
        }
    }

    /// Takes a ring that was offered.
    fn take(&mut self, epoll: &OwnedFd, token: u64, connection: OwnedFd, offer: Offer) -> Result<(), Errno> {
        let Offer {
            hello,
            memory,
            doorbell,
        } = offer;
        // From here on the writer has to wake the reader, who might be asleep.
        let reader = Reader::new(&memory, hello.ring)?;
        // By edges: so it need not be read.
        watch(epoll, doorbell.as_fd(), DOORBELL, EventFlags::IN | EventFlags::ET)?;
        if let Err(errno) = hello::welcome(&connection) {
            let _ = epoll::delete(epoll, &doorbell);
            return Err(errno);
        }
        tracing::debug!(from = %hello.from, "packets come through shared memory");
        self.inbound.push(Inbound {
            token,
            from: hello.from,
            reader,
            doorbell,
            connection: Some(connection),
        });
        Ok(())
    }

    /// The link to a device, which is offered now if there is none. `None` if there can be none.
    fn link_to(&mut self, epoll: &OwnedFd, local: SocketAddr, peer: SocketAddr) -> Option<Arc<Link>> {
        self.outbound.retain(|(_, link)| link.strong_count() > 0);
        let mut links = self.outbound.iter().filter_map(|(_, link)| link.upgrade());
        if let Some(link) = links.find(|link| link.peer() == peer && !link.is_down()) {
            return Some(link);
        }
        let token = self.token();
        let offered = Link::offer(local, peer).and_then(|link| {
            watch(epoll, link.as_fd(), token, EventFlags::IN)?;
            Ok(Arc::new(link))
        });
        match offered {
            Ok(link) => {
                self.outbound.push((token, Arc::downgrade(&link)));
                Some(link)
            }
            Err(Errno::CONNREFUSED) => None,
            Err(errno) => {
                tracing::debug!(%errno, %peer, "no memory is shared");
                None
            }
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token - 1
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64, what: EventFlags) -> Result<(), Errno> {
    epoll::add(epoll, fd, EventData::new_u64(token), what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::{SIZE, Writer};
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

    fn wire() -> SharedWire {
        SharedWire::over(UdpWire::bind("127.0.0.1".parse().unwrap(), 0).unwrap()).unwrap()
    }

    fn look(wire: &SharedWire) {
        wire.hub.lock().look(&wire.epoll);
    }

    fn rings(wire: &SharedWire) -> usize {
        wire.hub.lock().inbound.len()
    }

    /// A route from `a` to `b` whose link is up.
    fn link(a: &SharedWire, b: &SharedWire) -> Route {
        let route = a.route(b.local());
        assert!(route.link().is_none(), "not before the other side took it");
        look(b);
        look(a);
        assert!(route.link().is_some());
        route
    }

    fn send(route: &Route, packet: &[u8]) {
        let outbox = Outbox::of(1, [(packet, None)]);
        assert_eq!(route.link().unwrap().send(&outbox), 0);
    }

    fn receive(wire: &SharedWire) -> Vec<(SocketAddr, Vec<u8>, bool)> {
        let mut inbox = Inbox::new();
        let n = wire.receive(&mut inbox);
        let packets = inbox.packets();
        let got: Vec<_> = packets
            .map(|packet| (packet.from, packet.bytes.to_vec(), packet.sealed))
            .collect();
        assert_eq!(got.len(), n);
        got
    }

    fn is_readable(wire: &SharedWire) -> bool {
        poll(&mut [PollFd::new(&wire.epoll, PollFlags::IN)], Some(&NOW)).unwrap() == 1
    }

    #[test]
    fn packets_take_the_ring_once_it_is_taken_and_say_who_sent_them() {
        let (a, b) = (wire(), wire());
        let (to_b, to_a) = (link(&a, &b), link(&b, &a));
        send(&to_b, b"there");
        send(&to_a, b"back");
        assert_eq!(receive(&b), [(a.local(), b"there".to_vec(), false)]);
        assert_eq!(receive(&a), [(b.local(), b"back".to_vec(), false)]);
        assert_eq!(receive(&b), []);
    }

    #[test]
    fn a_device_can_share_memory_with_itself() {
        let a = wire();
        let route = a.route(a.local());
        send(&route, b"self");
        assert_eq!(receive(&a), [(a.local(), b"self".to_vec(), false)]);
    }

    #[test]
    fn one_ring_serves_all_routes_to_a_peer_and_ends_with_the_last() {
        let (a, b) = (wire(), wire());
        let first = link(&a, &b);
        let second = a.route(b.local());
        assert!(second.link().is_some(), "at once");
        assert_eq!(rings(&b), 1);
        drop(first);
        send(&second, b"last words");
        drop(second);
        look(&b);
        assert_eq!(receive(&b), [(a.local(), b"last words".to_vec(), false)]);
        assert_eq!((receive(&b), rings(&b)), (vec![], 0));
        // And there can be another one.
        let third = link(&a, &b);
        send(&third, b"again");
        assert_eq!(receive(&b).len(), 1);
    }

    #[test]
    fn when_the_reader_is_gone_packets_take_the_network_until_the_next_connection() {
        let (a, b) = (wire(), wire());
        let route = link(&a, &b);
        let address = b.local();
        drop(b);
        look(&a);
        assert!(route.link().is_none());
        assert!(a.route(address).link.is_none(), "nobody listens");
        let b = SharedWire::over(UdpWire::bind(address.ip(), address.port()).unwrap()).unwrap();
        let again = a.route(address);
        look(&b);
        look(&a);
        send(&again, b"hello");
        assert_eq!(receive(&b).len(), 1);
        assert!(route.link().is_none(), "the old one stays what it is");
    }

    #[test]
    fn datagrams_and_rings_do_not_starve_each_other() {
        let (a, b, c) = (wire(), wire(), wire());
        let route = link(&a, &b);
        let datagram = Outbox::of(1, [(&[7][..], Some([0; 4]))]);
        let (mut by_ring, mut by_udp) = (0, 0);
        for _ in 0..4 * POLLS_PER_LOOK {
            send(&route, b"ring");
            c.send(b.local(), &datagram);
            for (_, _, sealed) in receive(&b) {
                *(if sealed { &mut by_udp } else { &mut by_ring }) += 1;
            }
        }
        assert!(
            by_ring > POLLS_PER_LOOK && by_udp > POLLS_PER_LOOK,
            "{by_ring} {by_udp}"
        );
    }

    #[test]
    fn a_datagram_is_found_though_rings_are_looked_at_first() {
        let (a, b) = (wire(), wire());
        let _route = link(&a, &b);
        (0..2 * UDP_POLLS).for_each(|_| assert_eq!(receive(&b), []));
        assert_eq!(b.hub.lock().udp_polls, 0, "nobody asks for datagrams any more");
        let datagram = Outbox::of(1, [(&[7][..], Some([0; 4]))]);
        a.send(b.local(), &datagram);
        let got = (0..POLLS_PER_LOOK).find_map(|_| receive(&b).pop());
        assert_eq!(got, Some((a.local(), vec![7, 0, 0, 0, 0], true)));
    }

    #[test]
    fn a_sleeper_is_woken_by_the_first_packet_and_no_other() {
        let (a, b) = (wire(), wire());
        let route = link(&a, &b);
        b.awake();
        assert!(!is_readable(&b));
        send(&route, b"awake");
        assert!(!is_readable(&b), "who polls is not rung for");
        assert!(!b.about_to_sleep(), "there is something");
        receive(&b);
        assert!(b.about_to_sleep());
        send(&route, b"wake up");
        assert!(is_readable(&b));
        b.awake();
        assert!(!is_readable(&b), "the doorbell is silent again");
        send(&route, b"more");
        assert!(!is_readable(&b));
        assert_eq!(receive(&b).len(), 2);
    }

    /// Offers a ring, by hand.
    fn offer(to: &SharedWire, ring: u32, memory: &OwnedFd) -> OwnedFd {
        let connection = hello::connect(to.local()).unwrap();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let from = "127.0.0.1:9".parse().unwrap();
        hello::send_hello(&connection, hello::Hello { from, ring }, memory, &doorbell).unwrap();
        look(to);
        connection
    }

    #[test]
    fn offers_that_are_none_are_refused_and_leave_nothing_behind() {
        let b = wire();
        let (_writer, memory) = Writer::new(SIZE).unwrap();
        let refused = |connection: OwnedFd| {
            assert_eq!(hello::receive_welcome(&connection), Err(Errno::PIPE));
            assert_eq!(rings(&b), 0);
            assert_eq!(b.hub.lock().greeting.len(), 0);
        };
        refused(offer(&b, SIZE / 2, &memory));
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        refused(offer(&b, SIZE, &file));
        // No hello, and one without descriptors.
        for bytes in [&b"x"[..], &[0; 36], &[0; 64]] {
            let connection = hello::connect(b.local()).unwrap();
            look(&b);
            assert_eq!(b.hub.lock().greeting.len(), 1, "it may still come");
            rustix::net::send(&connection, bytes, rustix::net::SendFlags::empty()).unwrap();
            look(&b);
            refused(connection);
        }
        drop(hello::connect(b.local()).unwrap());
        look(&b);
        look(&b);
        assert_eq!(b.hub.lock().greeting.len(), 0);
        assert_eq!(hello::receive_welcome(&offer(&b, SIZE, &memory)), Ok(()));
    }

    #[test]
    fn a_writer_that_breaks_the_rules_loses_its_ring() {
        let (a, b) = (wire(), wire());
        let (_writer, memory) = Writer::new(SIZE).unwrap();
        let connection = offer(&b, SIZE, &memory);
        assert_eq!(hello::receive_welcome(&connection), Ok(()));
        let route = link(&a, &b);
        // A tail that is no multiple of a record's unit.
        rustix::io::pwrite(&memory, &1u64.to_ne_bytes(), 0).unwrap();
        send(&route, b"well-behaved");
        assert_eq!(receive(&b), [(a.local(), b"well-behaved".to_vec(), false)]);
        assert_eq!(rings(&b), 1);
        assert_eq!(hello::receive_welcome(&connection), Err(Errno::PIPE));
    }

    #[test]
    fn where_somebody_has_the_name_but_takes_nothing_packets_take_the_network() {
        let udp = UdpWire::bind("127.0.0.1".parse().unwrap(), 0).unwrap();
        let squatter = hello::listen(udp.local()).unwrap();
        let (a, b) = (wire(), SharedWire::over(udp).unwrap());
        let route = a.route(b.local());
        look(&a);
        look(&b);
        assert!(route.link().is_none());
        // It takes the offer, but says something else.
        let connection = hello::accept(&squatter).unwrap();
        rustix::net::send(&connection, b"no", rustix::net::SendFlags::empty()).unwrap();
        look(&a);
        assert!(route.link().is_none() && route.link.as_ref().unwrap().is_down());
    }
}
