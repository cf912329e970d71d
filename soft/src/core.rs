//! An opened device: its tables, and how packets get in and out of it.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use adverb_roce::{MAX_MESSAGE, Opcode, Packet};
use adverb_types::{Gid, GidType, Mtu, Qpn};
use adverb_verbs::{
    AsyncEvent, AsyncEventKind, Bell, DeviceAttr, DeviceInfo, ErrorKind, EventSource, GidEntry, LinkLayer,
    PortAttr, PortState, SrqInit, VerbsError,
};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::attention::Attention;
use crate::checksum;
use crate::config::{ROCE_PORT, SoftConfig};
use crate::counters::{Counter, Counters};
use crate::keys::{KeyHasher, random_u32};
use crate::memory::{Keys, Memory};
use crate::qp::{Parts, QpCore};
use crate::srq::SrqCore;
use crate::timers::Timers;
use crate::wire::{Arrived, Driven, Inbox, Link, Outbox, Wire};

/// Queue pair numbers below are special on InfiniBand.
const FIRST_QPN: u32 = 17;

/// Empty polls between two looks at the clock: a poll reads the socket, which takes some 0.3 µs, so timers are late by a few microseconds.
const POLLS_PER_LOOK: u32 = 16;

/// Of so many polls that find somebody else at the receive side, one gives its CPU away.
const POLLS_PER_YIELD: u32 = 64;

/// Batches that the device's thread takes in before it looks around.
const BATCHES_AT_ONCE: usize = 64;

/// A device, as everything made from it and its thread share it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) info: DeviceInfo,
    pub(crate) attr: DeviceAttr,
    pub(crate) config: SoftConfig,
    pub(crate) active_mtu: Mtu,
    pub(crate) memory: Memory,
    pub(crate) events: Bell<AsyncEvent>,
    pub(crate) attention: Attention,
    pub(crate) counters: Counters,
    pub(crate) wire: Box<dyn Wire>,
    /// The network interface it is on, where there is one.
    netdev: Option<String>,
    timers: Timers,
    receiver: Mutex<Receiver>,
    /// Polls that found somebody else at it.
    turned_away: AtomicU32,
    qps: RwLock<HashMap<u32, Arc<QpCore>, BuildHasherDefault<KeyHasher>>>,
    /// Asked only when memory is deregistered. Held alone.
    srqs: Mutex<Vec<Weak<SrqCore>>>,
    /// How many queue pairs were destroyed.
    qps_removed: AtomicU64,
    next_qpn: AtomicU32,
    next_pd: AtomicU32,
    port_active: AtomicBool,
    closed: Arc<Counters>,
}

/// What a device is made of.
#[derive(Debug)]
pub(crate) struct CoreParts {
    pub(crate) info: DeviceInfo,
    pub(crate) config: SoftConfig,
    pub(crate) active_mtu: Mtu,
    pub(crate) netdev: Option<String>,
    /// Gets what it counted when it is closed.
    pub(crate) closed: Arc<Counters>,
    pub(crate) wire: Box<dyn Wire>,
}

/// The receive side. Whoever holds it takes packets in.
#[derive(Debug)]
struct Receiver {
    inbox: Inbox,
    outbox: Outbox,
    /// Polls that found nothing since the clock was looked at.
    in_vain: u32,
    /// The queue pair that packets came for last: most often the next are for the same.
    recent: Option<Recent>,
}

/// A queue pair, and how many had been destroyed when it was looked up.
#[derive(Debug)]
struct Recent {
    qp: Arc<QpCore>,
    removed: u64,
}

impl Core {
    /// # Errors
    /// What the kernel says if there is no descriptor or no random number left.
    pub(crate) fn new(parts: CoreParts) -> Result<Self, Errno> {
        Ok(Self {
            attr: parts.config.attr(),
            memory: Memory::new(parts.config.max_mr),
            events: Bell::new()?,
            attention: Attention::new(parts.wire.now(), parts.wire.readiness().is_some())?,
            counters: Counters::default(),
            timers: Timers::new(parts.wire.now()),
            receiver: Mutex::new(Receiver {
                inbox: Inbox::new(),
                outbox: Outbox::default(),
                in_vain: 0,
                recent: None,
            }),
            turned_away: AtomicU32::new(0),
            qps: RwLock::default(),
            srqs: Mutex::default(),
            qps_removed: AtomicU64::new(0),
            next_qpn: AtomicU32::new(random_u32()?),
            next_pd: AtomicU32::new(1),
            port_active: AtomicBool::new(true),
            info: parts.info,
            config: parts.config,
            active_mtu: parts.active_mtu,
            netdev: parts.netdev,
            closed: parts.closed,
            wire: parts.wire,
        })
    }

    /// A number that no other protection domain of the device has.
    pub(crate) fn new_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a queue pair, under a number that none had for as long as possible: packets to the last one that had it may still be on their way.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many.
    pub(crate) fn add_qp(&self, parts: Parts) -> Result<Arc<QpCore>, Errno> {
        let mut qps = self.qps.write();
        if qps.len() >= self.attr.max_qp as usize {
            return Err(Errno::NOMEM);
        }
        // Ends, as there are more numbers than queue pairs.
        loop {
            let qpn = Qpn::truncating(self.next_qpn.fetch_add(1, Ordering::Relaxed));
            if qpn.get() >= FIRST_QPN && !qps.contains_key(&qpn.get()) {
                let qp = QpCore::new(qpn, parts);
                qps.insert(qpn.get(), Arc::clone(&qp));
                return Ok(qp);
            }
        }
    }

    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let mut qps = self.qps.write();
        qps.remove(&qpn.get());
        self.qps_removed.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<QpCore>> {
        self.qps.read().get(&qpn.get()).cloned()
    }

    /// Makes a shared receive queue.
    pub(crate) fn add_srq(&self, init: &SrqInit) -> Arc<SrqCore> {
        let srq = SrqCore::new(init.max_wr, init.max_sge, init.cookie);
        let mut srqs = self.srqs.lock();
        srqs.retain(|srq| srq.strong_count() > 0);
        srqs.push(Arc::downgrade(&srq));
        srq
    }

    /// Ends a registration, if no work request that is not complete names it. What peers do with it meanwhile does not count: they are refused
    /// from then on.
    ///
    /// Who names what is not counted as work is posted, which would cost each message, but asked of all queues now. A request that is posted by another
    /// thread at the same time may be missed; it ends with LOC_PROT_ERR.
    ///
    /// # Errors
    /// [`ErrorKind::RegionInUse`]; the registration stays then.
    pub(crate) fn deregister(&self, keys: Keys) -> Result<(), VerbsError> {
        let qps: Vec<_> = self.qps.read().values().cloned().collect();
        let srqs: Vec<_> = self.srqs.lock().iter().filter_map(Weak::upgrade).collect();
        let (mut sends, mut receives) = (0, 0);
        for qp in qps {
            let (more_sends, more_receives) = qp.naming(keys.lkey);
            sends += more_sends;
            receives += more_receives;
        }
        let shared_receives = srqs.iter().map(|srq| srq.naming(keys.lkey)).sum();
        if sends + receives + shared_receives == 0 {
            self.memory.deregister(keys);
            return Ok(());
        }
        let (addr, len) = self.memory.place(keys);
        let kind = ErrorKind::RegionInUse {
            lkey: keys.lkey.get(),
            addr: addr as u64,
            len: len as u64,
            sends,
            receives,
            shared_receives,
        };
        Err(self.error("ibv_dereg_mr", kind))
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.wire.local().ip()
    }

    pub(crate) fn gid(&self) -> Gid {
        self.address().into()
    }

    pub(crate) fn now(&self) -> Instant {
        self.wire.now()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.port_active.load(Ordering::Acquire)
    }

    /// Takes the port up or down, with the event that goes with it. Whether that is a change.
    pub(crate) fn set_active(&self, active: bool) -> bool {
        if self.port_active.swap(active, Ordering::AcqRel) == active {
            return false;
        }
        let kind = if active {
            AsyncEventKind::PortActive
        } else {
            AsyncEventKind::PortErr
        };
        self.events.push(AsyncEvent {
            kind,
            source: EventSource::Port(1),
        });
        true
    }

    pub(crate) fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.check_port("ibv_query_port", port)?;
        Ok(PortAttr {
            state: if self.is_active() {
                PortState::Active
            } else {
                PortState::Down
            },
            max_mtu: Mtu::Mtu4096,
            active_mtu: self.active_mtu,
            gid_tbl_len: 1,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
        })
    }

    pub(crate) fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.check_port("ibv_query_gid_table", port)?;
        Ok(vec![GidEntry {
            index: 0,
            gid: self.gid(),
            gid_type: GidType::RoceV2,
            netdev: self.netdev.clone(),
            udp_port: Some(self.wire.local().port()).filter(|port| *port != ROCE_PORT),
        }])
    }

    fn check_port(&self, operation: &'static str, port: u8) -> Result<(), VerbsError> {
        if port == 1 {
            Ok(())
        } else {
            Err(self.os(operation, Errno::INVAL))
        }
    }

    pub(crate) fn error(&self, operation: &'static str, kind: ErrorKind) -> VerbsError {
        VerbsError::new(operation, self.info.name.as_str(), kind)
    }

    pub(crate) fn os(&self, operation: &'static str, errno: Errno) -> VerbsError {
        self.error(operation, ErrorKind::Os(errno.raw_os_error()))
    }
}

/// Packets out.
impl Core {
    /// Lends an outbox to who sends outside of the receive side.
    pub(crate) fn with_outbox<T>(work: impl FnOnce(&mut Outbox) -> T) -> T {
        // One for each thread, so that no two wait for each other. While a thread ends there is none to keep.
        thread_local!(static SPARE: Cell<Outbox> = const { Cell::new(Outbox::new()) });
        let mut outbox = SPARE.try_with(Cell::take).unwrap_or_default();
        let result = work(&mut outbox);
        let _ = SPARE.try_with(|spare| spare.set(outbox));
        result
    }

    /// What belongs behind a packet to `peer`.
    pub(crate) fn icrc_to(&self, peer: SocketAddr, packet: &[u8], identification: u16) -> Option<[u8; 4]> {
        checksum::compute(self.wire.local(), peer, packet, identification)
    }

    /// Sends packets over the network, or through the memory that is shared with the peer. While the port is down they are lost.
    pub(crate) fn send(&self, peer: SocketAddr, link: Option<&Link>, outbox: &Outbox) {
        if outbox.is_empty() || !self.is_active() {
            return;
        }
        if let Some(link) = link {
            self.counters.add(Counter::SentShared, outbox.len());
            let lost = link.send(outbox);
            if lost > 0 {
                self.counters.add(Counter::RingFull, lost);
            }
        } else {
            self.counters.add(Counter::Sent, outbox.len());
            self.wire.send(peer, outbox);
        }
    }

    /// Has a queue pair looked at when `at` has come.
    pub(crate) fn wake_at(&self, at: Instant, qpn: Qpn) {
        self.timers.add(at, qpn.get());
        self.attention.timer_set(at);
    }
}

/// Packets in.
impl Core {
    /// Takes in what arrived and does what is due, unless somebody else is at it. For who found a completion queue empty.
    pub(crate) fn poll(&self) {
        let Some(mut receiver) = self.receiver.try_lock() else {
            // Who has it may have lost its CPU, perhaps to this very thread, which would then poll in vain until the scheduler's tick.
            let turned_away = self.turned_away.fetch_add(1, Ordering::Relaxed);
            if turned_away.is_multiple_of(POLLS_PER_YIELD) {
                std::thread::yield_now();
            }
            return;
        };
        let n = self.take_in(&mut receiver);
        self.attention.polled(n);
        if n > 0 {
            return;
        }
        receiver.in_vain += 1;
        if receiver.in_vain >= POLLS_PER_LOOK {
            receiver.in_vain = 0;
            self.run_due_timers();
        }
    }

    /// Takes in what arrived, up to a bound that keeps nobody for long, and does all that is due.
    pub(crate) fn work(&self) {
        let mut receiver = self.receiver.lock();
        for _ in 0..BATCHES_AT_ONCE {
            if self.take_in(&mut receiver) == 0 {
                break;
            }
        }
        self.run_timers(&mut receiver.outbox, self.now());
    }

    /// Does what is due, without a look at the socket.
    pub(crate) fn run_due_timers(&self) {
        if self.timers.earliest().is_none() {
            return;
        }
        let now = self.now();
        if self.timers.earliest().is_some_and(|at| at <= now) {
            Self::with_outbox(|outbox| self.run_timers(outbox, now));
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.earliest()
    }

    /// Takes in a batch, and says how many packets that were.
    fn take_in(&self, receiver: &mut Receiver) -> usize {
        let Receiver {
            inbox,
            outbox,
            recent,
            ..
        } = receiver;
        let n = self.wire.receive(inbox);
        if n == 0 {
            return 0;
        }
        // A batch came either way, not both.
        let shared = inbox.packets().next().is_some_and(|packet| !packet.sealed);
        let counter = if shared {
            Counter::ReceivedShared
        } else {
            Counter::Received
        };
        self.counters.add(counter, n);
        let now = self.now();
        let mut packets = inbox.packets();
        // Packets are looked at where they are: they are a dozen words, which each way through an adapter would copy.
        let mut next = packets.find_map(|packet| self.admit(packet));
        while let Some((_, packet, _)) = &next {
            let qpn = packet.dest_qpn;
            let Some(qp) = self.look_up(qpn, recent) else {
                self.counters.add(Counter::NoQueuePair, 1);
                next = packets.find_map(|packet| self.admit(packet));
                continue;
            };
            let mut inner = qp.lock();
            while let Some((from, packet, marked)) = &next
                && packet.dest_qpn == qpn
            {
                if !qp.take(self, &mut inner, now, *from, packet, *marked) {
                    self.counters.add(Counter::NotThePeer, 1);
                } else if packet.opcode == Opcode::CongestionNotification {
                    self.counters.add(Counter::Notified, 1);
                }
                next = packets.find_map(|packet| self.admit(packet));
            }
            qp.settle(self, &mut inner, outbox, now);
        }
        self.run_timers(outbox, now);
        n
    }

    /// The queue pair that packets are for, which is the recent one from now on.
    fn look_up<'a>(&self, qpn: Qpn, recent: &'a mut Option<Recent>) -> Option<&'a QpCore> {
        let removed = self.qps_removed.load(Ordering::Acquire);
        if !recent
            .as_ref()
            .is_some_and(|recent| recent.qp.qpn == qpn && recent.removed == removed)
        {
            *recent = self.qp(qpn).map(|qp| Recent { qp, removed });
        }
        recent.as_ref().map(|recent| &*recent.qp)
    }

    /// What arrived as a packet, if it is one, and whether a switch has marked it.
    fn admit<'a>(&self, arrived: Arrived<'a>) -> Option<(SocketAddr, Packet<'a>, bool)> {
        let Arrived {
            from,
            mut bytes,
            sealed,
            marked,
        } = arrived;
        if !self.is_active() {
            return None;
        }
        if sealed {
            let Some((packet, icrc)) = bytes.split_last_chunk() else {
                self.counters.add(Counter::Malformed, 1);
                return None;
            };
            if !checksum::check(from, self.wire.local(), packet, *icrc) {
                self.counters.add(Counter::BadIcrc, 1);
                return None;
            }
            bytes = packet;
        }
        if marked {
            self.counters.add(Counter::Marked, 1);
        }
        match Packet::parse(bytes) {
            Ok(packet) => Some((from, packet, marked)),
            Err(error) => {
                tracing::debug!(%error, %from, "a packet is malformed");
                self.counters.add(Counter::Malformed, 1);
                None
            }
        }
    }

    fn run_timers(&self, outbox: &mut Outbox, now: Instant) {
        while let Some((at, qpn)) = self.timers.pop(now) {
            if let Some(qp) = self.qp(Qpn::truncating(qpn)) {
                let mut inner = qp.lock();
                qp.due(self, &mut inner, now, at);
                qp.settle(self, &mut inner, outbox, now);
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.closed.absorb(&self.counters);
    }
}

impl Driven for Core {
    fn deadline(&self) -> Option<Instant> {
        self.next_timer()
    }

    fn drive(&self) {
        self.work();
    }
}
