//! What carries packets between devices, and the batches in which it does.

mod sim;
mod udp;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use arrayvec::ArrayVec;

pub(crate) use sim::Driven;
pub use sim::{SimFaults, SimNetwork};
pub(crate) use udp::UdpWire;

/// Packets in a batch at most.
pub(crate) const BATCH: usize = 32;

/// Room for one packet: the largest payload is 4096 bytes, and the longest headers with the ICRC are 44.
pub(crate) const ROOM: usize = 4096 + 128;

/// A way to other devices, by socket addresses. Like the network that it stands for, it may lose packets.
pub(crate) trait Wire: Debug + Send + Sync {
    /// Where this device's packets come from.
    fn local(&self) -> SocketAddr;

    /// Sends all packets of `outbox` to one address.
    fn send(&self, to: SocketAddr, outbox: &Outbox);

    /// Fills `inbox` with what has arrived, never waits, and says how many packets that were, with those that were no good.
    fn receive(&self, inbox: &mut Inbox) -> usize;

    /// Becomes readable when something arrives. `None` if whoever steps the network also drives the device, so that it needs no thread.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Whether each packet ends with an invariant CRC.
    fn has_icrc(&self) -> bool;

    /// The time, on this wire's clock.
    fn now(&self) -> Instant;
}

/// Packets that arrived.
#[derive(Debug)]
pub(crate) struct Inbox {
    rooms: Box<[[u8; ROOM]]>,
    /// The room, the sender and the length of each packet.
    packets: ArrayVec<(usize, SocketAddr, usize), BATCH>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            rooms: vec![[0; ROOM]; BATCH].into_boxed_slice(),
            packets: ArrayVec::new(),
        }
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let packet = |(room, from, len): &(usize, SocketAddr, usize)| (*from, &self.rooms[*room][..*len]);
        self.packets.iter().map(packet)
    }

    pub(crate) fn clear(&mut self) {
        self.packets.clear();
    }

    /// Where packets go, one in each.
    pub(crate) fn rooms(&mut self) -> impl Iterator<Item = &mut [u8; ROOM]> {
        self.rooms.iter_mut()
    }

    /// Says that a packet of `len` bytes is in a room.
    pub(crate) fn note(&mut self, room: usize, from: SocketAddr, len: usize) {
        if room < BATCH && len <= ROOM {
            // There are as many places as rooms.
            let _ = self.packets.try_push((room, from, len));
        }
    }
}

/// Packets to be sent to one address.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Where each packet ends. Together they stay far below 4 GiB.
    ends: ArrayVec<u32, BATCH>,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ends.is_full()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Lets `emit` append a packet, and `seal` put behind it what belongs behind it. Whether there was one.
    pub(crate) fn add(
        &mut self,
        emit: impl FnOnce(&mut Vec<u8>) -> bool,
        seal: impl FnOnce(&[u8]) -> Option<[u8; 4]>,
    ) -> bool {
        let start = self.bytes.len();
        if self.is_full() || !emit(&mut self.bytes) {
            return false;
        }
        if let Some(icrc) = seal(&self.bytes[start..]) {
            self.bytes.extend_from_slice(&icrc);
        }
        self.ends.push(self.bytes.len() as u32);
        true
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.bytes[start as usize..*end as usize])
    }
}
