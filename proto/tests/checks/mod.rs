//! What must hold of any bytes that a peer sends. Shared by the property tests, the corpus replay and the fuzz target.

use std::time::{Duration, Instant};

use adverb_proto::{
    CONTROL_RESERVE, Config, Endpoint, Event, GoodbyeReason, Outgoing, PeerLimits, Phase, Received, Segment,
    Segments, Side,
};
use adverb_wire::Header;

const WINDOW: u32 = 4;
const SEGMENT_SIZE: usize = 256;

/// Takes what an endpoint sends, and checks that the peer could read it.
struct Wire {
    buffer: [u8; SEGMENT_SIZE],
    room: usize,
}

impl Segments for Wire {
    fn next(&mut self, _len: usize) -> Option<&mut [u8]> {
        (self.room > 0).then_some(&mut self.buffer)
    }

    fn commit(&mut self, segment: Segment) {
        self.room -= 1;
        assert!(Header::decode(&self.buffer[..segment.len]).is_ok());
    }
}

/// Reads `bytes` as a script: what the program and the peer do, one after the other. A byte says what, and for a segment of
/// the peer the next one says how long it is.
///
/// Nothing may panic, an endpoint ends once at most and then holds still, messages come in order and within their segments,
/// and no more than its window of them is taken in without a receive for each.
pub(crate) fn check(bytes: &[u8]) {
    let Some((first, mut rest)) = bytes.split_first() else {
        return;
    };
    let side = if first & 1 == 0 {
        Side::Client
    } else {
        Side::Server
    };
    let mut now = Instant::now();
    let config = Config {
        window: WINDOW,
        max_message: 1 << 16,
        max_queued_bytes: 1 << 12,
        ..Config::new(now)
    };
    let peer = PeerLimits {
        credits: 3,
        segment_size: SEGMENT_SIZE as u32,
        max_message: 1 << 12,
    };
    // What a script has to know to come further is short: the nonce is 0.
    let mut endpoint = Endpoint::new(now, side, config, peer, 0);
    let mut wire = Wire {
        buffer: [0; SEGMENT_SIZE],
        room: 64,
    };
    let mut kept = Vec::new();
    let (mut messages, mut ends) = (0, 0);
    while let Some((&op, after)) = rest.split_first() {
        rest = after;
        match op % 8 {
            0..=2 => {
                let (&len, after) = rest.split_first().unwrap_or((&0, &[]));
                let (segment, after) = after.split_at(after.len().min(len.into()));
                rest = after;
                // A device has no receive for more.
                if kept.len() < (WINDOW + CONTROL_RESERVE) as usize
                    && let Ok(received) = endpoint.receive(now, segment)
                {
                    kept.push(received.is_data());
                    messages += check_received(&received, segment, messages);
                }
                // A peer that is never overtaken by its own receives may always send again.
                if op & 8 != 0 {
                    kept.drain(..).for_each(|data| endpoint.returned(data));
                }
            }
            3 => kept.drain(..).for_each(|data| endpoint.returned(data)),
            4 => endpoint.transmit(now, &mut wire),
            5 => {
                let payload = [op; SEGMENT_SIZE];
                let message = Outgoing::new(0, &payload[..usize::from(op >> 6)], &payload[..op.into()]);
                let taken = endpoint.send(now, &message, &mut wire);
                assert!(taken.is_err() || endpoint.phase() == Phase::Open);
            }
            6 => {
                now += Duration::from_millis(u64::from(op) * 8);
                endpoint.handle_timeout(now);
                endpoint.take_probe();
                assert!(endpoint.poll_timeout().is_none_or(|due| due > now));
            }
            _ if op & 0x80 == 0 => endpoint.close(now, GoodbyeReason::Closed),
            _ => wire.room = usize::from(op & 0x78),
        }
        while let Some(event) = endpoint.poll_event() {
            assert_eq!(ends, 0, "{event:?} after the end");
            ends += usize::from(matches!(event, Event::Closed | Event::Failed(_)));
        }
        let ended = matches!(endpoint.phase(), Phase::Closed | Phase::Failed);
        assert_eq!(ends, usize::from(ended));
        assert!(!ended || endpoint.poll_timeout().is_none() && endpoint.queued_bytes() == 0);
        assert!(endpoint.acked() <= endpoint.messages());
    }
}

/// Says how many messages it was.
fn check_received(received: &Received, segment: &[u8], due: u64) -> u64 {
    match received {
        Received::Message(incoming) => {
            assert_eq!(incoming.seq, due);
            assert_eq!(incoming.header.start, Header::DATA_LEN);
            assert_eq!(incoming.header.end, incoming.payload.start);
            assert_eq!(incoming.payload.end, segment.len());
            assert!(incoming.header.start <= incoming.header.end && incoming.payload.start <= segment.len());
            1
        }
        Received::Assembled(assembled) => {
            assert_eq!(assembled.seq, due);
            assert!(assembled.header_len <= assembled.bytes.len());
            1
        }
        _ => 0,
    }
}
