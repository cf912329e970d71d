//! A network in memory on a virtual clock, which loses, repeats, reorders and spoils packets as a seed says.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Inbox, Outbox, TrafficClass, Wire};
use crate::config::ROCE_PORT;

/// How often time passes in [`SimNetwork::in_real_time`].
const TICK: Duration = Duration::from_micros(50);

/// What a [`SimNetwork`] does to packets. Probabilities are from 0 to 1, of each packet on its own.
#[derive(Clone, Debug)]
#[must_use]
pub struct SimFaults {
    seed: u64,
    loss: f64,
    duplication: f64,
    reordering: f64,
    corruption: f64,
    delay: Duration,
    bottleneck: Option<SimBottleneck>,
}

/// A port of a switch, as each device of a [`SimNetwork`] then is at: packets to it leave at this rate, one behind the other, and queue up before.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct SimBottleneck {
    bytes_per_second: u64,
    queue: u64,
    mark_above: Option<u64>,
}

impl SimBottleneck {
    /// A port that sends so many bytes a second, at least one, and drops what does not fit a queue of `queue` bytes.
    pub fn new(bytes_per_second: u64, queue: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            queue,
            mark_above: None,
        }
    }

    /// Marks packets ("congestion experienced", ECN) that find more than so many bytes before them. Without it none are marked.
    pub fn mark_above(mut self, bytes: u64) -> Self {
        self.mark_above = Some(bytes);
        self
    }

    /// How long it takes to send so many bytes.
    fn time(&self, bytes: usize) -> Duration {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::from_nanos(nanos as u64)
    }

    /// How many bytes it sends in this time.
    fn bytes(&self, time: Duration) -> u64 {
        (time.as_nanos() * u128::from(self.bytes_per_second) / 1_000_000_000) as u64
    }
}

impl Default for SimFaults {
    /// Seed 0, no faults, and 2 µs for the way.
    fn default() -> Self {
        Self {
            seed: 0,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            corruption: 0.0,
            delay: Duration::from_micros(2),
            bottleneck: None,
        }
    }
}

impl SimFaults {
    /// Where chance starts: the same seed has the same chances.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many packets vanish.
    pub fn loss(mut self, probability: f64) -> Self {
        self.loss = probability;
        self
    }

    /// How many packets arrive twice.
    pub fn duplication(mut self, probability: f64) -> Self {
        self.duplication = probability;
        self
    }

    /// How many packets take up to four times the time, so that later ones overtake them.
    pub fn reordering(mut self, probability: f64) -> Self {
        self.reordering = probability;
        self
    }

    /// How many packets arrive with a bit flipped.
    pub fn corruption(mut self, probability: f64) -> Self {
        self.corruption = probability;
        self
    }

    /// How long the way takes, at least 1 µs.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay.max(Duration::from_micros(1));
        self
    }

    /// Where packets queue up before each device. By default they do nowhere.
    pub fn bottleneck(mut self, bottleneck: SimBottleneck) -> Self {
        self.bottleneck = Some(bottleneck);
        self
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimVerdict {
    /// What [`SimFaults`] say.
    Pass,
    /// It vanishes.
    Drop,
    /// It arrives so much later than it would.
    Delay(Duration),
}

/// Judges packets, each as it is sent, from the first byte of its BTH to the last of its ICRC.
type Filter = Box<dyn FnMut(&[u8]) -> SimVerdict + Send>;

/// A network between the devices of [`crate::SoftProvider::simulated`], on a clock that stands still until [`SimNetwork::advance`].
///
/// Its devices have no thread: `advance` also drives them, and rings their channels. With one thread and one seed, what happens is the same each
/// time. Once warm, packets allocate nothing, so that tests can count what else does. A clone is another handle to the same network.
///
/// ```
/// use std::time::Duration;
///
/// use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
/// use adverb_verbs::Provider;
///
/// let network = SimNetwork::new(SimFaults::default());
/// let provider = SoftProvider::simulated(SoftConfig::default(), &network);
/// let (near, far) = (provider.open("soft0")?, provider.open("soft0")?);
/// assert_ne!(near.gid_table(1)?, far.gid_table(1)?);
/// network.advance(Duration::from_millis(1));
/// assert_eq!(network.elapsed(), Duration::from_millis(1));
/// # Ok::<(), adverb_verbs::VerbsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimNetwork(Arc<Network>);

/// A device that runs when something arrived or is due.
pub(crate) trait Driven: Send + Sync {
    /// When it is to be driven although nothing arrived.
    fn deadline(&self) -> Option<Instant>;

    /// Takes what arrived and does what is due.
    fn drive(&self);
}

struct Network {
    start: Instant,
    /// Virtual time since then, in nanoseconds.
    elapsed: AtomicU64,
    /// Only one advances, with room for the devices that it drives.
    stepping: Mutex<Vec<Arc<dyn Driven>>>,
    state: Mutex<State>,
    /// Buffers of packets that arrived. A leaf in the lock order.
    spare: Mutex<Vec<Vec<u8>>>,
}

struct State {
    faults: SimFaults,
    filter: Option<Filter>,
    random: fastrand::Rng,
    nodes: Vec<Node>,
    /// How many devices there ever were.
    attached: u32,
    flying: BinaryHeap<Reverse<Flight>>,
    sent: u64,
    /// Until when the port before each address that ever got something is busy.
    ports: Vec<(SocketAddr, Instant)>,
    /// Packets that did not fit a queue.
    dropped: u64,
}

/// A packet on its way. The order is that of arrival, and among those that arrive at once that of sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    arrival: Instant,
    number: u64,
    to: SocketAddr,
    from: SocketAddr,
    class: u8,
    bytes: Vec<u8>,
}

struct Node {
    wire: Weak<Mailbox>,
    device: Weak<dyn Driven>,
}

/// What arrived at one device.
#[derive(Debug)]
struct Mailbox {
    address: SocketAddr,
    arrived: Mutex<VecDeque<(SocketAddr, TrafficClass, Vec<u8>)>>,
}

impl SimNetwork {
    /// A network that does this to packets.
    pub fn new(faults: SimFaults) -> Self {
        Self(Arc::new(Network {
            start: Instant::now(),
            elapsed: AtomicU64::new(0),
            stepping: Mutex::default(),
            state: Mutex::new(State {
                random: fastrand::Rng::with_seed(faults.seed),
                faults,
                filter: None,
                nodes: Vec::new(),
                attached: 0,
                flying: BinaryHeap::new(),
                sent: 0,
                ports: Vec::new(),
                dropped: 0,
            }),
            spare: Mutex::default(),
        }))
    }

    /// Does something else to packets from now on. Chance starts again from the new seed.
    pub fn set_faults(&self, faults: SimFaults) {
        let mut state = self.0.state.lock();
        state.random = fastrand::Rng::with_seed(faults.seed);
        state.faults = faults;
    }

    /// Has each packet judged from now on, beside what chance does to it: for faults that depend on what is in it. `filter` gets it from the first
    /// byte of its BTH to the last of its ICRC, as it is sent, and must not use this network.
    pub fn set_filter(&self, filter: impl FnMut(&[u8]) -> SimVerdict + Send + 'static) {
        self.0.state.lock().filter = Some(Box::new(filter));
    }

    /// How many packets did not fit the queue of a [`SimBottleneck`], ever.
    pub fn dropped(&self) -> u64 {
        self.0.state.lock().dropped
    }

    /// How much virtual time has passed.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.elapsed.load(Ordering::Acquire))
    }

    /// Lets virtual time pass: packets arrive, timers fire, and devices do what follows from it, each at its time.
    pub fn advance(&self, by: Duration) {
        let mut devices = self.0.stepping.lock();
        let target = self.0.now() + by;
        loop {
            self.0.gather(&mut devices);
            let Some(next) = self.0.next_event(&devices).filter(|next| *next <= target) else {
                break;
            };
            self.0.set(next);
            self.0.deliver();
            devices.drain(..).for_each(|device| device.drive());
        }
        devices.clear();
        self.0.set(target);
    }

    /// Does `work` while virtual time passes as real time does, so that it can sleep on what the network brings. This is for tests that cannot advance
    /// it themselves, and costs a thread that hardly sleeps.
    pub fn in_real_time<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Also when `work` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }

        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (start, before) = (Instant::now(), self.elapsed());
                while !stopped.load(Ordering::Relaxed) {
                    let target = before + start.elapsed();
                    self.advance(target.saturating_sub(self.elapsed()));
                    thread::sleep(TICK);
                }
            });
            let _stop = Stop(&stopped);
            work()
        })
    }

    /// A wire of this network, under an address that no other has or had.
    pub(crate) fn attach(&self) -> SimWire {
        let mut state = self.0.state.lock();
        state.attached += 1;
        let ip = Ipv4Addr::from_bits(0x0a00_0000 | state.attached);
        SimWire {
            network: Arc::clone(&self.0),
            mailbox: Arc::new(Mailbox {
                address: SocketAddr::new(ip.into(), ROCE_PORT),
                arrived: Mutex::default(),
            }),
        }
    }
}

impl Network {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.elapsed.load(Ordering::Acquire))
    }

    /// Sets the clock, which never goes back.
    fn set(&self, to: Instant) {
        let elapsed = to.saturating_duration_since(self.start).as_nanos() as u64;
        self.elapsed.fetch_max(elapsed, Ordering::AcqRel);
    }

    /// Puts the devices there are into `devices`, which is empty.
    fn gather(&self, devices: &mut Vec<Arc<dyn Driven>>) {
        let mut state = self.state.lock();
        state.nodes.retain(|node| node.device.strong_count() > 0);
        devices.extend(state.nodes.iter().filter_map(|node| node.device.upgrade()));
    }

    /// When the next packet arrives or the next of `devices` is due.
    fn next_event(&self, devices: &[Arc<dyn Driven>]) -> Option<Instant> {
        let arrival = self
            .state
            .lock()
            .flying
            .peek()
            .map(|Reverse(flight)| flight.arrival);
        devices
            .iter()
            .filter_map(|device| device.deadline())
            .chain(arrival)
            .min()
    }

    /// Puts what has arrived by now into mailboxes.
    fn deliver(&self) {
        let now = self.now();
        let state = &mut *self.state.lock();
        while let Some(Reverse(flight)) = state.flying.peek()
            && flight.arrival <= now
            && let Some(Reverse(flight)) = state.flying.pop()
        {
            let to = |mailbox: &Arc<Mailbox>| mailbox.address == flight.to;
            let mailbox = state.nodes.iter().filter_map(|node| node.wire.upgrade()).find(to);
            match mailbox {
                Some(mailbox) => {
                    let arrived = (flight.from, TrafficClass(flight.class), flight.bytes);
                    mailbox.arrived.lock().push_back(arrived);
                }
                None => self.spare.lock().push(flight.bytes),
            }
        }
    }
}

impl State {
    /// Sends one packet on its way, or not.
    fn fly(
        &mut self,
        spare: &mut Vec<Vec<u8>>,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
        class: TrafficClass,
        packet: &[u8],
    ) {
        let verdict = self
            .filter
            .as_mut()
            .map_or(SimVerdict::Pass, |filter| filter(packet));
        let later = match verdict {
            SimVerdict::Pass => Duration::ZERO,
            SimVerdict::Delay(later) => later,
            SimVerdict::Drop => return,
        };
        if self.chance(self.faults.loss) {
            return;
        }
        let mut class = class;
        let mut waits = Duration::ZERO;
        if let Some(bottleneck) = self.faults.bottleneck {
            let Some((time, marked)) = self.pass(&bottleneck, now, to, packet.len()) else {
                self.dropped += 1;
                return;
            };
            waits = time;
            if marked {
                class = class.marked();
            }
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplication));
        for _ in 0..copies {
            let mut bytes = spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(packet);
            if self.chance(self.faults.corruption) && !bytes.is_empty() {
                let place = self.random.usize(..bytes.len());
                bytes[place] ^= 1 << self.random.u8(..8);
            }
            let mut delay = self.faults.delay + later;
            if self.chance(self.faults.reordering) {
                delay += delay.mul_f64(self.random.f64() * 3.0);
            }
            delay += waits;
            self.sent += 1;
            self.flying.push(Reverse(Flight {
                arrival: now + delay,
                number: self.sent,
                to,
                from,
                class: class.0,
                bytes,
            }));
        }
    }

    /// How long a packet takes through the port before `to`, and whether it is marked there. `None` if it does not fit the queue.
    fn pass(
        &mut self,
        bottleneck: &SimBottleneck,
        now: Instant,
        to: SocketAddr,
        len: usize,
    ) -> Option<(Duration, bool)> {
        let place = match self.ports.iter().position(|(address, _)| *address == to) {
            Some(place) => place,
            None => {
                self.ports.push((to, now));
                self.ports.len() - 1
            }
        };
        let busy_until = &mut self.ports[place].1;
        let queued = bottleneck.bytes(busy_until.saturating_duration_since(now));
        if queued + len as u64 > bottleneck.queue {
            return None;
        }
        *busy_until = (*busy_until).max(now) + bottleneck.time(len);
        let marked = bottleneck.mark_above.is_some_and(|above| queued > above);
        Some((*busy_until - now, marked))
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("elapsed", &self.elapsed)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("faults", &self.faults)
            .field("nodes", &self.nodes.len())
            .field("flying", &self.flying.len())
            .finish_non_exhaustive()
    }
}

/// A device's way into a [`SimNetwork`].
#[derive(Debug)]
pub(crate) struct SimWire {
    network: Arc<Network>,
    mailbox: Arc<Mailbox>,
}

impl SimWire {
    /// How to make known the device that is on this wire.
    pub(crate) fn announcement(&self) -> impl FnOnce(Weak<dyn Driven>) + use<> {
        let (network, wire) = (Arc::clone(&self.network), Arc::downgrade(&self.mailbox));
        move |device| network.state.lock().nodes.push(Node { wire, device })
    }
}

impl Wire for SimWire {
    fn local(&self) -> SocketAddr {
        self.mailbox.address
    }

    fn send(&self, to: SocketAddr, outbox: &Outbox) {
        let now = self.network.now();
        let mut state = self.network.state.lock();
        let mut spare = self.network.spare.lock();
        for packet in outbox.packets() {
            state.fly(&mut spare, now, self.mailbox.address, to, outbox.class(), packet);
        }
    }

    fn receive(&self, inbox: &mut Inbox) -> usize {
        inbox.clear();
        let mut arrived = self.mailbox.arrived.lock();
        let n = arrived.len().min(Inbox::rooms());
        for (place, (from, class, bytes)) in arrived.drain(..n).enumerate() {
            if let Some(room) = inbox.room(place).get_mut(..bytes.len()) {
                room.copy_from_slice(&bytes);
                inbox.note(place, from, bytes.len(), bytes.len(), class);
            }
            self.network.spare.lock().push(bytes);
        }
        n
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn longest_run(&self) -> usize {
        1
    }

    fn now(&self) -> Instant {
        self.network.now()
    }
}

#[cfg(test)]
mod tests {
    use adverb_types::{Mtu, Psn, Qpn};
    use adverb_verbs::{
        Access, AddressVector, CqInit, InitAttr, Provider, QpCaps, QpInit, QpModify, RtrAttr, RtsAttr,
        SendOp, SendQueue, SendRequest,
    };

    use super::*;
    use crate::{SoftConfig, SoftProvider};

    /// A device that notes when it was driven, and what arrived.
    struct Probe {
        wire: SimWire,
        got: Mutex<Vec<(Duration, Vec<u8>)>>,
    }

    impl Driven for Probe {
        fn deadline(&self) -> Option<Instant> {
            None
        }

        fn drive(&self) {
            let mut inbox = Inbox::new();
            let at = self.wire.now() - self.wire.network.start;
            while self.wire.receive(&mut inbox) > 0 {
                let packets = inbox.packets().map(|packet| (at, packet.bytes.to_vec()));
                self.got.lock().extend(packets);
            }
        }
    }

    fn probe(network: &SimNetwork) -> Arc<Probe> {
        let wire = network.attach();
        let announce = wire.announcement();
        let probe = Arc::new(Probe {
            wire,
            got: Mutex::default(),
        });
        announce(Arc::downgrade(&probe) as Weak<dyn Driven>);
        probe
    }

    fn run(faults: SimFaults) -> Vec<(Duration, Vec<u8>)> {
        let network = SimNetwork::new(faults);
        let (a, b) = (probe(&network), probe(&network));
        for i in 0..200u8 {
            let mut outbox = Outbox::default();
            outbox.add(
                1,
                |out| {
                    out.extend_from_slice(&[i; 8]);
                    true
                },
                |_, _| None,
            );
            a.wire.send(b.wire.local(), &outbox);
            network.advance(Duration::from_micros(1));
        }
        network.advance(Duration::from_millis(1));
        std::mem::take(&mut *b.got.lock())
    }

    #[test]
    fn without_faults_everything_arrives_in_order_after_the_delay() {
        let got = run(SimFaults::default().delay(Duration::from_micros(5)));
        let expected: Vec<_> = (0..200u8)
            .map(|i| (Duration::from_micros(u64::from(i) + 5), vec![i; 8]))
            .collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn a_filter_chooses_packets_by_what_is_in_them() {
        let network = SimNetwork::new(SimFaults::default());
        let (a, b) = (probe(&network), probe(&network));
        network.set_filter(|packet| match packet {
            [1, ..] => SimVerdict::Drop,
            [2, ..] => SimVerdict::Delay(Duration::from_micros(10)),
            _ => SimVerdict::Pass,
        });
        for byte in 0..4u8 {
            let mut outbox = Outbox::default();
            outbox.add(
                1,
                |out| {
                    out.push(byte);
                    true
                },
                |_, _| None,
            );
            a.wire.send(b.wire.local(), &outbox);
        }
        network.advance(Duration::from_millis(1));
        let got: Vec<_> = b
            .got
            .lock()
            .iter()
            .map(|(at, bytes)| (at.as_micros(), bytes[0]))
            .collect();
        assert_eq!(got, [(2, 0), (2, 3), (12, 2)]);
    }

    #[test]
    fn a_bottleneck_sends_at_its_rate_marks_from_its_threshold_on_and_drops_what_does_not_fit() {
        // A packet of 8 bytes takes 8 µs; 10 fit, and the last 5 of these find more than 32 bytes before them.
        let bottleneck = SimBottleneck::new(1_000_000, 80).mark_above(32);
        let network = SimNetwork::new(SimFaults::default().bottleneck(bottleneck));
        let (a, b) = (probe(&network), probe(&network));
        let packets: Vec<_> = (0..12u8).map(|i| [i; 8]).collect();
        let outbox = Outbox::of(1, packets.iter().map(|packet| (&packet[..], None)));
        a.wire.send(b.wire.local(), &outbox);
        network.advance(Duration::from_millis(1));
        let got = std::mem::take(&mut *b.got.lock());
        let expected: Vec<_> = (0..10u8)
            .map(|i| (Duration::from_micros(10 + 8 * u64::from(i)), vec![i; 8]))
            .collect();
        assert_eq!((got, network.dropped()), (expected, 2));
        a.wire.send(b.wire.local(), &outbox);
        network.0.set(network.0.start + Duration::from_millis(2));
        network.0.deliver();
        let mut inbox = Inbox::new();
        let mut marked = Vec::new();
        while b.wire.receive(&mut inbox) > 0 {
            marked.extend(inbox.packets().map(|packet| packet.marked));
        }
        assert_eq!(marked, (0..10).map(|i| i > 4).collect::<Vec<_>>());
    }

    #[test]
    fn what_the_address_vector_asks_for_is_on_the_wire() {
        let network = SimNetwork::new(SimFaults::default());
        let device = SoftProvider::simulated(SoftConfig::default(), &network)
            .open("soft0")
            .unwrap();
        let (pd, cq) = (
            device.alloc_pd().unwrap(),
            device.create_cq(&CqInit::new(4)).unwrap(),
        );
        for (asked, expected) in [(0, 0b10), (96, 96 | 0b10), (97, 96 | 0b10)] {
            let caps = QpCaps {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let init = QpInit {
                send_cq: &cq,
                recv_cq: &cq,
                srq: None,
                caps,
                sq_sig_all: false,
            };
            let qp = pd.create_qp(&init).unwrap();
            let ah = AddressVector {
                traffic_class: asked,
                ..AddressVector::roce(1, 0, Ipv4Addr::new(10, 0, 0, 99).into())
            };
            for step in [
                QpModify::Init(InitAttr {
                    port_num: 1,
                    pkey_index: 0,
                    access: Access::empty(),
                }),
                QpModify::Rtr(RtrAttr {
                    ah,
                    path_mtu: Mtu::Mtu1024,
                    dest_qpn: Qpn::truncating(99),
                    rq_psn: Psn::new(0),
                    max_dest_rd_atomic: 0,
                    min_rnr_timer: 0,
                    access: None,
                    pkey_index: None,
                    alternate: None,
                }),
                QpModify::Rts(RtsAttr {
                    sq_psn: Psn::new(0),
                    timeout: 0,
                    retry_cnt: 0,
                    rnr_retry: 0,
                    max_rd_atomic: 0,
                    access: None,
                    min_rnr_timer: None,
                    alternate: None,
                }),
            ] {
                qp.modify(&step).unwrap();
            }
            let request = SendRequest::new(SendOp::Send);
            SendQueue::new(qp, 0, 0).post(&mut vec![request]).unwrap();
            let Reverse(flight) = network.0.state.lock().flying.pop().unwrap();
            assert_eq!(flight.class, expected, "{asked}");
        }
    }

    #[test]
    fn each_fault_shows_and_a_seed_replays() {
        let plain = run(SimFaults::default());
        let kinds: [fn(SimFaults) -> SimFaults; 4] = [
            |faults| faults.loss(0.1),
            |faults| faults.duplication(0.1),
            |faults| faults.reordering(0.1),
            |faults| faults.corruption(0.1),
        ];
        for (kind, set) in kinds.iter().enumerate() {
            let faulty = |seed| run(set(SimFaults::default().seed(seed)));
            assert_ne!(faulty(1), plain, "fault {kind}");
            assert_eq!(faulty(1), faulty(1), "fault {kind}");
            assert_ne!(faulty(1), faulty(2), "fault {kind}");
        }
    }
}
