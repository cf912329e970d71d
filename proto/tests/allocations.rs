//! What a message costs in allocations. Alone in its binary, because the count is for the whole thread.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

use std::time::Instant;

use adverb_proto::{
    Config, Endpoint, Event, Outgoing, PeerLimits, Received, Segment, Segments, Side, Urgency,
};
use adverb_testing::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SEGMENT_SIZE: usize = 4096;

/// Segments under way, in buffers made before.
struct Wire {
    buffers: Vec<[u8; SEGMENT_SIZE]>,
    lens: Vec<usize>,
}

impl Segments for Wire {
    fn next(&mut self, _len: usize) -> Option<&mut [u8]> {
        self.buffers
            .get_mut(self.lens.len())
            .map(|buffer| &mut buffer[..])
    }

    fn commit(&mut self, segment: Segment) {
        self.lens.push(segment.len);
    }
}

impl Wire {
    fn new() -> Self {
        let capacity = 16;
        Self {
            buffers: vec![[0; SEGMENT_SIZE]; capacity],
            lens: Vec::with_capacity(capacity),
        }
    }

    /// Hands all to the receiver, whose program looks at each message and drops it. Returns how many messages there were.
    fn deliver(&mut self, now: Instant, to: &mut Endpoint) -> usize {
        let mut messages = 0;
        for (buffer, len) in self.buffers.iter().zip(self.lens.drain(..)) {
            let received = to.receive(now, &buffer[..len]).unwrap();
            messages += usize::from(matches!(received, Received::Message(_)));
            to.returned(received.is_data());
        }
        messages
    }
}

#[test]
fn a_message_of_one_segment_allocates_nothing() {
    let now = Instant::now();
    let limits = PeerLimits {
        credits: 8,
        segment_size: SEGMENT_SIZE as u32,
        max_message: 1 << 20,
    };
    let config = Config {
        window: 8,
        ..Config::new(now)
    };
    let mut client = Endpoint::new(now, Side::Client, config.clone(), limits, 42);
    let mut server = Endpoint::new(now, Side::Server, config, limits, 42);
    let (mut to_server, mut to_client) = (Wire::new(), Wire::new());
    client.transmit(now, &mut to_server);
    to_server.deliver(now, &mut server);
    server.transmit(now, &mut to_client);
    to_client.deliver(now, &mut client);
    assert_eq!(client.poll_event(), Some(Event::Opened));

    let payload = [7; 4000];
    let before = allocations();
    let (mut sent, mut got, mut answers) = (0, 0, 0);
    for round in 0..1000 {
        for urgency in [Urgency::Latency, Urgency::Bulk] {
            let len = (round * 37) % payload.len();
            let message = Outgoing {
                urgency,
                ..Outgoing::new(1, b"header", &payload[..len])
            };
            client.send(now, &message, &mut to_server).unwrap();
            sent += 1;
        }
        got += to_server.deliver(now, &mut server);
        // Every third round nothing goes back but the grants.
        if round % 3 != 0 {
            let message = Outgoing::new(2, &[], b"answer");
            server.send(now, &message, &mut to_client).unwrap();
        }
        server.transmit(now, &mut to_client);
        answers += to_client.deliver(now, &mut client);
        client.transmit(now, &mut to_server);
        assert_eq!(client.poll_event(), None);
        client.handle_timeout(now);
    }
    assert_eq!(allocations(), before);
    assert_eq!((sent, got, answers), (2000, 2000, 666));

    // The count works: what must wait is copied.
    for _ in 0..9 {
        client
            .send(now, &Outgoing::new(1, &[], &payload), &mut to_server)
            .unwrap();
    }
    assert!(allocations() > before);
}
