//! What carries packets between devices, and the batches in which it does.

mod shared;
mod sim;
mod udp;

use std::fmt::{self, Debug};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

pub(crate) use shared::{Link, SharedWire};
pub(crate) use sim::Driven;
pub use sim::{SimBottleneck, SimFaults, SimNetwork, SimVerdict};
pub(crate) use udp::UdpWire;

/// Packets in a batch at most.
pub(crate) const BATCH: usize = 64;

/// Bytes that one datagram, or several put together, can have.
pub(crate) const ROOM: usize = 1 << 16;

/// Rooms of an inbox. With packets put together each holds dozens.
const ROOMS: usize = 8;

/// Packets that an inbox holds without growing: a room full of the shortest, in records of a cache line (`shared/ring.rs`).
const MOST: usize = ROOM / 64;

/// A way to other devices, by socket addresses. Like the network that it stands for, it may lose packets.
pub(crate) trait Wire: Debug + Send + Sync {
    /// Where this device's packets come from.
    fn local(&self) -> SocketAddr;

    /// The way to a peer, for a queue pair that is being connected with it. Where there is a better one than the network, it is looked for now.
    fn route(&self, peer: SocketAddr) -> Route {
        Route::new(peer, None)
    }

    /// Sends all packets of `outbox` to one address, over the network.
    fn send(&self, to: SocketAddr, outbox: &Outbox);

    /// Fills `inbox` with what has arrived, never waits, and says how many packets that were, with those that were no good.
    fn receive(&self, inbox: &mut Inbox) -> usize;

    /// Becomes readable when something arrives. `None` if whoever steps the network also drives the device, so that it needs no thread.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Its device's thread is about to sleep on [`Self::readiness`]. Whether it may: nothing has arrived.
    fn about_to_sleep(&self) -> bool {
        true
    }

    /// The device's thread has slept.
    fn awake(&self) {}

    /// Packets of one run that can leave at once. Their IP identifications count up from 0.
    fn longest_run(&self) -> usize;

    /// The time, on this wire's clock.
    fn now(&self) -> Instant;
}

/// The byte of the IP header that has DSCP and ECN: IPv4's TOS, IPv6's traffic class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrafficClass(pub(crate) u8);

impl TrafficClass {
    /// The bits of ECN (RFC 3168, section 5).
    const ECN: u8 = 0b11;
    /// ECT(0): the sender slows down if a switch changes it to [`Self::CE`].
    const ECT: u8 = 0b10;
    /// Congestion experienced.
    const CE: u8 = 0b11;

    /// What packets have whose queue pair asks for nothing.
    pub(crate) const DEFAULT: Self = Self(Self::ECT);

    /// What packets have whose queue pair asks for this. Its ECN bits are the device's to choose: it answers to marks.
    pub(crate) fn of(asked: u8) -> Self {
        Self(asked & !Self::ECN | Self::ECT)
    }

    /// It as a congested switch leaves it.
    fn marked(self) -> Self {
        Self(self.0 | Self::CE)
    }

    /// Whether a switch has marked the packet.
    pub(crate) fn is_marked(self) -> bool {
        self.0 & Self::ECN == Self::CE
    }
}

/// The way of a queue pair's packets to its peer.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    peer: SocketAddr,
    link: Option<Arc<Link>>,
    class: TrafficClass,
}

impl Route {
    fn new(peer: SocketAddr, link: Option<Arc<Link>>) -> Self {
        Self {
            peer,
            link,
            class: TrafficClass::DEFAULT,
        }
    }

    /// The same way, for packets of another traffic class.
    pub(crate) fn with_class(self, class: TrafficClass) -> Self {
        Self { class, ..self }
    }

    /// What its packets over the network have in their IP header.
    pub(crate) fn class(&self) -> TrafficClass {
        self.class
    }

    /// Where it ends.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The memory that is shared with the peer, while it is: packets through it have no invariant CRC, as nothing can happen to them there. All others
    /// have one, and go over the network.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_deref().filter(|link| link.is_up())
    }
}

/// Packets that arrived.
pub(crate) struct Inbox {
    rooms: Vec<Box<[u8]>>,
    packets: Vec<Place>,
}

/// Where a packet is.
#[derive(Clone, Debug)]
struct Place {
    room: usize,
    bytes: Range<usize>,
    from: SocketAddr,
    sealed: bool,
    marked: bool,
}

/// A packet as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) bytes: &'a [u8],
    /// Whether it ends with an invariant CRC.
    pub(crate) sealed: bool,
    /// Whether a switch has marked it, because it is congested.
    pub(crate) marked: bool,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            rooms: Vec::new(),
            packets: Vec::with_capacity(MOST),
        }
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = Arrived<'_>> {
        self.packets.iter().map(|place| {
            let bytes = self
                .rooms
                .get(place.room)
                .and_then(|room| room.get(place.bytes.clone()));
            Arrived {
                from: place.from,
                bytes: bytes.unwrap_or_default(),
                sealed: place.sealed,
                marked: place.marked,
            }
        })
    }

    /// How many packets that are.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn clear(&mut self) {
        self.packets.clear();
    }

    /// Room number `n`, less than [`Inbox::rooms`]. It is made when it is needed first.
    pub(crate) fn room(&mut self, n: usize) -> &mut [u8] {
        while self.rooms.len() <= n {
            self.rooms.push(vec![0; ROOM].into_boxed_slice());
        }
        &mut self.rooms[n]
    }

    /// How many rooms there can be.
    pub(crate) fn rooms() -> usize {
        ROOMS
    }

    /// Says that packets of `segment` bytes, of which the last may be shorter, are in a room, `len` bytes together, all of one class. How many that
    /// are.
    pub(crate) fn note(
        &mut self,
        room: usize,
        from: SocketAddr,
        len: usize,
        segment: usize,
        class: TrafficClass,
    ) -> usize {
        let before = self.packets.len();
        let starts = (0..len).step_by(segment.max(1));
        self.packets.extend(starts.map(|start| Place {
            room,
            bytes: start..len.min(start + segment),
            from,
            sealed: true,
            marked: class.is_marked(),
        }));
        self.packets.len() - before
    }

    /// Bytes of a room.
    fn room_len() -> usize {
        ROOM
    }

    /// Lets `read` put packets without invariant CRC into the first room, of which the first `used` bytes have some already, and say where they are.
    fn read<T>(
        &mut self,
        used: usize,
        from: SocketAddr,
        read: impl FnOnce(&mut [u8], &mut dyn FnMut(Range<usize>)) -> T,
    ) -> T {
        self.room(0);
        let (rooms, packets) = (&mut self.rooms, &mut self.packets);
        let mut note = |place: Range<usize>| {
            packets.push(Place {
                room: 0,
                bytes: used + place.start..used + place.end,
                from,
                sealed: false,
                marked: false,
            });
        };
        read(&mut rooms[0][used..], &mut note)
    }
}

impl Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("packets", &self.packets.len())
            .finish_non_exhaustive()
    }
}

/// Packets to be sent to one address, in runs: packets of one length, of which the last may be shorter.
#[derive(Debug)]
pub(crate) struct Outbox {
    class: TrafficClass,
    bytes: Vec<u8>,
    runs: Vec<Run>,
    packets: usize,
}

/// Packets that can leave at once.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: usize,
    end: usize,
    segment: usize,
    packets: usize,
}

/// Bytes that a run has at most: what fits a UDP datagram.
const LONGEST_RUN: usize = 65_000;

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    pub(crate) const fn new() -> Self {
        Self {
            class: TrafficClass::DEFAULT,
            bytes: Vec::new(),
            runs: Vec::new(),
            packets: 0,
        }
    }

    /// What packets have in their IP header, those there are and those to come.
    pub(crate) fn set_class(&mut self, class: TrafficClass) {
        self.class = class;
    }

    pub(crate) fn class(&self) -> TrafficClass {
        self.class
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.packets == BATCH
    }

    pub(crate) fn len(&self) -> usize {
        self.packets
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
        self.packets = 0;
    }

    /// Lets `emit` append a packet, and `seal` put behind it what belongs behind it, told the packet's place in its run. Runs have `longest` packets at
    /// most. Whether there was a packet.
    pub(crate) fn add(
        &mut self,
        longest: usize,
        emit: impl FnOnce(&mut Vec<u8>) -> bool,
        seal: impl FnOnce(&[u8], u16) -> Option<[u8; 4]>,
    ) -> bool {
        const SEAL: usize = 4;
        let start = self.bytes.len();
        if self.is_full() || !emit(&mut self.bytes) {
            return false;
        }
        self.packets += 1;
        let len = self.bytes.len() - start + SEAL;
        // A shorter packet ends a run.
        let run = self.runs.last_mut().filter(|run| {
            let is_whole = run.end - run.start == run.packets * run.segment;
            let fits = run.packets < longest && start + len - run.start <= LONGEST_RUN;
            is_whole && fits && len <= run.segment
        });
        let place = run.as_ref().map_or(0, |run| run.packets as u16);
        let icrc = seal(&self.bytes[start..], place);
        self.bytes
            .extend_from_slice(icrc.as_ref().map_or(&[], |icrc| &icrc[..]));
        let end = self.bytes.len();
        match run {
            Some(run) => {
                run.packets += 1;
                run.end = end;
            }
            None => self.runs.push(Run {
                start,
                end,
                segment: end - start,
                packets: 1,
            }),
        }
        true
    }

    /// The bytes of each run, the length of its packets, and how many they are.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&[u8], usize, usize)> {
        self.runs
            .iter()
            .map(|run| (&self.bytes[run.start..run.end], run.segment, run.packets))
    }

    /// Each packet alone.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.runs().flat_map(|(bytes, segment, _)| bytes.chunks(segment))
    }
}

#[cfg(test)]
impl Outbox {
    /// These packets, each with what stands behind it.
    fn of<'a>(longest: usize, packets: impl IntoIterator<Item = (&'a [u8], Option<[u8; 4]>)>) -> Self {
        let mut outbox = Self::default();
        for (packet, seal) in packets {
            let emit = |out: &mut Vec<u8>| {
                out.extend_from_slice(packet);
                true
            };
            assert!(outbox.add(longest, emit, |_, _| seal));
        }
        outbox
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(lens: &[usize], longest: usize) -> (Outbox, Vec<u16>) {
        let mut outbox = Outbox::default();
        let mut places = Vec::new();
        for (i, len) in lens.iter().enumerate() {
            let emit = |out: &mut Vec<u8>| {
                out.resize(out.len() + len, i as u8);
                true
            };
            outbox.add(longest, emit, |_, place| {
                places.push(place);
                Some([0xff; 4])
            });
        }
        (outbox, places)
    }

    #[test]
    fn packets_of_one_length_are_a_run_which_a_shorter_one_ends() {
        let (outbox, places) = outbox(&[100, 100, 40, 100, 60, 60, 80], 64);
        let runs: Vec<_> = outbox
            .runs()
            .map(|(bytes, segment, n)| (bytes.len(), segment, n))
            .collect();
        assert_eq!(runs, [(252, 104, 3), (168, 104, 2), (64, 64, 1), (84, 84, 1)]);
        assert_eq!(places, [0, 1, 2, 0, 1, 0, 0]);
        let lens: Vec<_> = outbox.packets().map(<[u8]>::len).collect();
        assert_eq!(lens, [104, 104, 44, 104, 64, 64, 84]);
    }

    #[test]
    fn runs_are_as_long_as_may_be() {
        let (outbox, places) = outbox(&[8; 5], 2);
        assert_eq!(outbox.runs().count(), 3);
        assert_eq!(places, [0, 1, 0, 1, 0]);
        let (outbox, _) = super::tests::outbox(&[4096; 40], 64);
        assert!(outbox.runs().all(|(bytes, ..)| bytes.len() <= LONGEST_RUN));
    }

    #[test]
    fn a_class_keeps_its_dscp_and_tells_that_marks_are_heeded() {
        assert_eq!(TrafficClass::of(0), TrafficClass::DEFAULT);
        for asked in 0..=u8::MAX {
            let class = TrafficClass::of(asked);
            assert_eq!(class.0, asked & 0xfc | 0b10);
            assert!(!class.is_marked() && class.marked().is_marked());
        }
        assert!(!TrafficClass(0b01).is_marked(), "ECT(1)");
    }

    #[test]
    fn packets_put_together_come_apart_again() {
        let mut inbox = Inbox::new();
        inbox.room(0)[..10].copy_from_slice(b"aaaabbbbcc");
        let from = "127.0.0.1:1".parse().unwrap();
        assert_eq!(inbox.note(0, from, 10, 4, TrafficClass::DEFAULT), 3);
        let packets: Vec<_> = inbox.packets().map(|packet| packet.bytes).collect();
        assert_eq!(packets, [&b"aaaa"[..], b"bbbb", b"cc"]);
    }
}
