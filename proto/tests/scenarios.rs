//! What two endpoints do to each other, one story at a time.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod common;

use std::time::Duration;

use adverb_proto::{Event, FailReason, ProtocolError, Side, Urgency};
use common::{Message, NONCE, Pair};

fn same(_: Side, config: adverb_proto::Config) -> adverb_proto::Config {
    config
}

#[test]
fn both_sides_open_with_one_message_each() {
    let pair = Pair::open(same);
    assert_eq!((pair.client.controls, pair.server.controls), (1, 1));
}

#[test]
fn a_side_that_hears_nothing_gives_up_opening_in_time() {
    let mut pair = Pair::new(same, NONCE);
    pair.client.room = 0;
    pair.run_for(Duration::from_secs(6));
    for host in [&pair.client, &pair.server] {
        assert_eq!(host.events, [Event::Failed(FailReason::OpenTimeout)]);
        assert_eq!(host.endpoint.poll_timeout(), None);
    }
}

#[test]
fn a_link_to_somebody_else_does_not_open() {
    let mut pair = Pair::new(same, NONCE + 1);
    pair.run_for(Duration::from_secs(6));
    let wrong = ProtocolError::WrongNonce {
        got: NONCE,
        expected: NONCE + 1,
    };
    assert_eq!(pair.server.events, [Event::Failed(FailReason::Protocol(wrong))]);
    assert_eq!(pair.client.events, [Event::Failed(FailReason::OpenTimeout)]);
}

#[test]
fn a_message_passes_each_way() {
    let mut pair = Pair::open(same);
    for side in [Side::Client, Side::Server] {
        let now = pair.time;
        pair.host(side)
            .send(now, Message::new(1, 3, 5), Urgency::Latency)
            .unwrap();
    }
    pair.run();
    pair.assert_all_arrived();
}
