//! Two endpoints on a virtual clock, joined by two ordered, reliable queues: what an RC connection is to them.
//!
//! Each side has receives posted for its window and for control messages, and no more: a segment that meets none would be a
//! receiver-not-ready on a device, and panics here.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use adverb_proto::{
    CONTROL_RESERVE, Config, Endpoint, Event, Outgoing, PeerLimits, Phase, Received, Segment, Segments,
    SendError, Side, Urgency,
};

/// The nonce of every connection here.
pub(crate) const NONCE: u64 = 0x5eed;

/// Small, so that short messages have several.
pub(crate) const SEGMENT_SIZE: usize = 128;

/// The largest payload that fits one segment.
pub(crate) const ONE_SEGMENT: usize = SEGMENT_SIZE - adverb_wire::Header::DATA_LEN;

/// How long a segment is under way.
pub(crate) const DELAY: Duration = Duration::from_micros(10);

/// A message as the programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) am_id: u16,
    pub(crate) header: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Message {
    /// A message whose bytes tell it from its neighbours.
    pub(crate) fn new(am_id: u16, header_len: usize, payload_len: usize) -> Self {
        let bytes = |len, salt: usize| (0..len).map(|i| (i * 7 + salt) as u8).collect();
        Self {
            am_id,
            header: bytes(header_len, am_id.into()),
            payload: bytes(payload_len, usize::from(am_id) + 1),
        }
    }
}

/// A segment under way.
#[derive(Debug)]
struct Flight {
    arrives: Instant,
    bytes: Vec<u8>,
    solicited: bool,
}

/// One side: an endpoint, the device below it and the program above it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) events: Vec<Event>,
    /// What the program sent, and got, in order.
    pub(crate) sent: Vec<Message>,
    pub(crate) got: Vec<Message>,
    /// Whether the program keeps messages, and how many receives it holds by that.
    pub(crate) keeps: bool,
    pub(crate) kept: usize,
    /// How many segments the send queue holds until they arrive.
    pub(crate) room: usize,
    /// Whether it looks at what arrived only when woken by a solicited segment or by its own timer.
    pub(crate) sleeps: bool,
    /// Whether other threads use new credits before the receives of what brought them are posted again.
    pub(crate) hasty: bool,
    /// What the program sends as soon as it learns that the endpoint is open.
    pub(crate) first: Vec<Message>,
    /// It polls on every so many turns, and then takes all that came meanwhile in one go.
    pub(crate) polls_every: u32,
    /// Control messages sent.
    pub(crate) controls: usize,
    turns: u32,
    awake: bool,
    /// Receives posted.
    posted: u32,
    /// Segments that arrived and were not looked at.
    arrived: VecDeque<Vec<u8>>,
    /// What this side sent and the other's device does not have.
    wire: VecDeque<Flight>,
}

/// Where an endpoint writes to: a wire with bounded room.
struct Outbox<'a> {
    wire: &'a mut VecDeque<Flight>,
    controls: &'a mut usize,
    room: usize,
    arrives: Instant,
    buffer: [u8; SEGMENT_SIZE],
}

impl Segments for Outbox<'_> {
    fn next(&mut self, _len: usize) -> Option<&mut [u8]> {
        (self.wire.len() < self.room).then_some(&mut self.buffer)
    }

    fn commit(&mut self, segment: Segment) {
        let bytes = self.buffer[..segment.len].to_vec();
        let (header, _) = adverb_wire::Header::decode(&bytes).unwrap();
        *self.controls += usize::from(header.kind.is_control());
        self.wire.push_back(Flight {
            arrives: self.arrives,
            bytes,
            solicited: segment.solicited,
        });
    }
}

impl Host {
    fn new(now: Instant, side: Side, config: &Config, peer: &Config, nonce: u64) -> Self {
        let limits = PeerLimits {
            credits: peer.window,
            segment_size: SEGMENT_SIZE as u32,
            max_message: peer.max_message,
        };
        Self {
            endpoint: Endpoint::new(now, side, config.clone(), limits, nonce),
            events: Vec::new(),
            sent: Vec::new(),
            got: Vec::new(),
            keeps: false,
            kept: 0,
            room: usize::MAX,
            sleeps: false,
            hasty: false,
            first: Vec::new(),
            polls_every: 1,
            turns: 0,
            controls: 0,
            awake: true,
            posted: config.window + CONTROL_RESERVE,
            arrived: VecDeque::new(),
            wire: VecDeque::new(),
        }
    }

    fn with_outbox<R>(&mut self, now: Instant, act: impl FnOnce(&mut Endpoint, &mut Outbox<'_>) -> R) -> R {
        let mut outbox = Outbox {
            wire: &mut self.wire,
            controls: &mut self.controls,
            room: self.room,
            arrives: now + DELAY,
            buffer: [0; SEGMENT_SIZE],
        };
        act(&mut self.endpoint, &mut outbox)
    }

    /// Sends a message as a program does, without looking at what arrived.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        message: Message,
        urgency: Urgency,
    ) -> Result<u64, SendError> {
        let outgoing = Outgoing {
            urgency,
            ..Outgoing::new(message.am_id, &message.header, &message.payload)
        };
        let seq = self.with_outbox(now, |endpoint, outbox| endpoint.send(now, &outgoing, outbox))?;
        assert_eq!(seq, self.sent.len() as u64);
        self.sent.push(message);
        Ok(seq)
    }

    pub(crate) fn transmit(&mut self, now: Instant) {
        self.with_outbox(now, |endpoint, outbox| endpoint.transmit(now, outbox));
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push(event);
        }
        if self.endpoint.phase() == Phase::Open {
            for message in mem::take(&mut self.first) {
                self.send(now, message, Urgency::Latency).unwrap();
            }
        }
    }

    /// The program drops some of the messages that it kept.
    pub(crate) fn give_back(&mut self, now: Instant, count: usize) {
        for _ in 0..count.min(self.kept) {
            self.kept -= 1;
            self.posted += 1;
            self.endpoint.returned(true);
        }
        self.transmit(now);
    }

    /// Takes all that arrived, posts its receives again, and sends what became possible.
    fn poll(&mut self, now: Instant) {
        let mut returned = Vec::new();
        while let Some(bytes) = self.arrived.pop_front() {
            let Ok(received) = self.endpoint.receive(now, &bytes) else {
                continue;
            };
            let data = received.is_data();
            let kept = self.take(received, &bytes);
            if kept {
                self.kept += 1;
            } else {
                returned.push(data);
            }
            if self.hasty {
                self.transmit(now);
            }
        }
        for data in returned {
            self.posted += 1;
            self.endpoint.returned(data);
        }
        self.transmit(now);
        self.awake = !self.sleeps;
    }

    /// Says whether the program keeps the segment.
    fn take(&mut self, received: Received, bytes: &[u8]) -> bool {
        let number = self.got.len() as u64;
        match received {
            Received::Message(incoming) => {
                assert_eq!(incoming.seq, number);
                self.got.push(Message {
                    am_id: incoming.am_id,
                    header: bytes[incoming.header].to_vec(),
                    payload: bytes[incoming.payload].to_vec(),
                });
                self.keeps
            }
            Received::Assembled(assembled) => {
                assert_eq!(assembled.seq, number);
                let (header, payload) = assembled.bytes.split_at(assembled.header_len);
                self.got.push(Message {
                    am_id: assembled.am_id,
                    header: header.to_vec(),
                    payload: payload.to_vec(),
                });
                false
            }
            _ => false,
        }
    }

    /// Ends of life, of which there must be one at most.
    pub(crate) fn ends(&self) -> usize {
        let is_end = |event: &&Event| matches!(event, Event::Closed | Event::Failed(_));
        self.events.iter().filter(is_end).count()
    }
}

/// Both sides.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) time: Instant,
}

impl Pair {
    /// Two sides whose link was made and has carried nothing.
    pub(crate) fn new(config: impl Fn(Side, Config) -> Config, server_nonce: u64) -> Self {
        let time = Instant::now();
        let defaults = || Config {
            window: 8,
            max_message: 1 << 16,
            max_queued_bytes: 1 << 14,
            keepalive: None,
            ..Config::new(time)
        };
        let client = config(Side::Client, defaults());
        let server = config(Side::Server, defaults());
        Self {
            client: Host::new(time, Side::Client, &client, &server, NONCE),
            server: Host::new(time, Side::Server, &server, &client, server_nonce),
            time,
        }
    }

    pub(crate) fn host(&mut self, side: Side) -> &mut Host {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Brings what is due to the devices, fires the timers that are due, and lets both sides work.
    fn turn(&mut self) {
        let now = self.time;
        arrive(now, &mut self.client, &mut self.server);
        arrive(now, &mut self.server, &mut self.client);
        for host in [&mut self.client, &mut self.server] {
            if host.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                host.endpoint.handle_timeout(now);
                host.awake = true;
            }
            host.turns += 1;
            if host.awake && host.turns.is_multiple_of(host.polls_every) {
                host.poll(now);
            } else {
                // A completed send or the program's own call lets it send, and shows it nothing that arrived.
                host.transmit(now);
            }
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        let first = |host: &Host| host.wire.front().map(|flight| flight.arrives);
        [first(&self.client), first(&self.server)]
            .into_iter()
            .flatten()
            .min()
    }

    /// One turn, after moving the clock to the next arrival. Says whether anything was under way or about to be polled.
    pub(crate) fn step(&mut self) -> bool {
        let next = self.next_arrival();
        let about_to_poll = |host: &Host| host.awake && !host.arrived.is_empty();
        let busy = next.is_some() || about_to_poll(&self.client) || about_to_poll(&self.server);
        self.time = next.map_or(self.time, |next| next.max(self.time));
        self.turn();
        busy
    }

    /// Goes on until nothing is under way. Timers that are due later do not fire.
    pub(crate) fn run(&mut self) {
        self.turn();
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the two sides never come to rest");
    }

    /// Goes on for some time, timers included.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.time + time;
        self.turn();
        for _ in 0..100_000 {
            let timers = [&self.client, &self.server].map(|host| host.endpoint.poll_timeout());
            let next = timers.into_iter().chain([self.next_arrival()]).flatten().min();
            match next {
                Some(next) if next <= end => self.time = next.max(self.time),
                _ => {
                    self.time = end;
                    return;
                }
            }
            self.turn();
        }
        panic!("a timer is due for ever");
    }

    /// All that was sent was handed out, unchanged and in order, and nothing waits anywhere.
    pub(crate) fn assert_all_arrived(&self) {
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            assert_eq!(from.sent.len(), to.got.len(), "messages sent and got");
            assert!(from.sent == to.got, "a message was changed");
            assert_eq!(from.endpoint.queued_bytes(), 0);
            assert_eq!(to.arrived.len(), 0, "segments wait unseen");
        }
    }
}

fn arrive(now: Instant, from: &mut Host, to: &mut Host) {
    while from.wire.front().is_some_and(|flight| flight.arrives <= now) {
        let Some(flight) = from.wire.pop_front() else {
            return;
        };
        assert!(to.posted > 0, "receiver not ready");
        to.posted -= 1;
        to.arrived.push_back(flight.bytes);
        to.awake |= flight.solicited;
    }
}
