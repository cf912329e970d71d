//! What two endpoints do to each other, one story at a time.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod common;

use std::time::Duration;

use adverb_proto::{
    CONTROL_RESERVE, Config, Endpoint, Event, FailReason, GoodbyeReason, Outcome, PeerLimits, Phase,
    ProtocolError, SendError, Side, Urgency,
};
use common::{Message, NONCE, ONE_SEGMENT, Pair};

fn same(_: Side, config: Config) -> Config {
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

const BOTH: [Side; 2] = [Side::Client, Side::Server];

/// Sends until nothing more is taken, and says how many were.
fn fill(pair: &mut Pair, side: Side, len: usize, urgency: Urgency) -> usize {
    let now = pair.time;
    for taken in 0..10_000 {
        match pair
            .host(side)
            .send(now, Message::new(taken as u16, 0, len), urgency)
        {
            Ok(_) => {}
            Err(SendError::WouldBlock) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("a sender whose receiver returns nothing is not bounded");
}

#[test]
fn messages_of_every_size_arrive_unchanged() {
    let max = 1 << 16;
    let sizes = [
        (0, 0),
        (0, 1),
        (1, 0),
        (ONE_SEGMENT, 0),
        (0, ONE_SEGMENT),
        (3, ONE_SEGMENT - 3),
        (0, ONE_SEGMENT + 1),
        (3, ONE_SEGMENT - 2),
        (ONE_SEGMENT + 1, 0),
        (ONE_SEGMENT + 1, 1),
        (1000, 10 * ONE_SEGMENT),
        (0, max),
        (65535, 1),
    ];
    let mut pair = Pair::open(same);
    for (header, payload) in sizes {
        for side in BOTH {
            let now = pair.time;
            let message = Message::new(7, header, payload);
            pair.host(side).send(now, message, Urgency::Latency).unwrap();
        }
        pair.run();
        pair.assert_all_arrived();
    }
    assert_eq!(pair.server.got.len(), sizes.len());
}

#[test]
fn what_the_peer_cannot_take_is_refused_before_it_is_sent() {
    let mut pair = Pair::open(same);
    let now = pair.time;
    let mut send = |header, payload| {
        let message = Message::new(1, header, payload);
        pair.client.send(now, message, Urgency::Latency)
    };
    let (len, max) = ((1 << 16) + 1, 1 << 16);
    assert_eq!(send(0, 65537), Err(SendError::TooLarge { len, max }));
    assert_eq!(send(65535, 2), Err(SendError::TooLarge { len, max }));
    assert_eq!(send(65536, 0), Err(SendError::HeaderTooLarge { len: 65536 }));
    assert_eq!(pair.client.endpoint.messages(), 0);
}

/// Every window, with receivers that sleep or not, and with senders in a hurry or not.
fn every_way(run: impl Fn(Pair)) {
    for window in [2, 3, 8, 64] {
        for sleeps in [false, true] {
            for hasty in [false, true] {
                for (room, polls_every) in
                    [(1, 1), (3, 7), (usize::MAX, 1), (usize::MAX, 3), (usize::MAX, 20)]
                {
                    let mut pair = Pair::open(|_, config| Config { window, ..config });
                    for side in BOTH {
                        let host = pair.host(side);
                        (host.sleeps, host.hasty, host.room) = (sleeps, hasty, room);
                    }
                    // The two sides must not keep step.
                    pair.client.polls_every = polls_every;
                    println!(
                        "window {window}, sleeps {sleeps}, hasty {hasty}, room {room}, every {polls_every}"
                    );
                    run(pair);
                }
            }
        }
    }
}

/// Sends `count` messages from each of `sides`, as fast as they are taken.
fn flood(mut pair: Pair, sides: &[Side], count: usize, urgency: Urgency) {
    let lens = [0, 1, ONE_SEGMENT, 3 * ONE_SEGMENT + 1, 5];
    while sides.iter().any(|side| pair.host(*side).sent.len() < count) {
        let before = pair.client.sent.len() + pair.server.sent.len();
        for side in sides {
            let now = pair.time;
            let host = pair.host(*side);
            while host.sent.len() < count {
                let number = host.sent.len();
                let message = Message::new(number as u16, number % 3, lens[number % lens.len()]);
                match host.send(now, message, urgency) {
                    Ok(_) => {}
                    Err(SendError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if !pair.step() {
            let after = pair.client.sent.len() + pair.server.sent.len();
            assert!(after > before, "the flood stands still");
        }
    }
    pair.run();
    pair.assert_all_arrived();
}

#[test]
fn a_flood_one_way_never_stalls() {
    for urgency in [Urgency::Latency, Urgency::Bulk] {
        every_way(|pair| flood(pair, &[Side::Client], 1000, urgency));
        every_way(|pair| flood(pair, &[Side::Server], 1000, urgency));
    }
}

#[test]
fn floods_both_ways_never_stall() {
    for urgency in [Urgency::Latency, Urgency::Bulk] {
        every_way(|pair| flood(pair, &BOTH, 1000, urgency));
    }
}

#[test]
fn a_receiver_that_returns_nothing_bounds_the_sender_which_recovers() {
    for len in [0, 1, ONE_SEGMENT] {
        every_way(|mut pair| {
            pair.server.keeps = true;
            let window = pair.client.endpoint.credits() as usize;
            let mut taken = 0;
            loop {
                let more = fill(&mut pair, Side::Client, len, Urgency::Bulk);
                taken += more;
                pair.run();
                if more == 0 {
                    break;
                }
            }
            assert_eq!(pair.server.got.len(), window);
            assert!(taken > window);

            pair.server.keeps = false;
            let now = pair.time;
            pair.server.give_back(now, window);
            pair.run();
            pair.assert_all_arrived();
        });
    }
}

#[test]
fn one_free_receive_is_enough_to_go_on() {
    every_way(|mut pair| {
        pair.server.keeps = true;
        let window = pair.client.endpoint.credits() as usize;
        fill(&mut pair, Side::Client, 0, Urgency::Latency);
        pair.run();
        for more in 1..5 {
            let now = pair.time;
            pair.server.give_back(now, 1);
            pair.run();
            assert_eq!(
                pair.server.got.len(),
                window + more,
                "a message waits beside a free receive"
            );
        }
    });
}

#[test]
fn grants_that_are_used_before_their_receives_are_posted_again_do_not_block_later_ones() {
    for goodbye in [false, true] {
        let mut pair = Pair::open(|_, config| Config { window: 2, ..config });
        (pair.client.hasty, pair.server.keeps) = (true, true);
        for number in 0..20 {
            let now = pair.time;
            let message = Message::new(number, 0, 1);
            pair.client.send(now, message, Urgency::Latency).unwrap();
        }
        pair.run();
        // Two grants are taken in one go, and both are used up while neither message's receive is posted again.
        for _ in 0..2 {
            let now = pair.time;
            pair.server.give_back(now, 1);
        }
        if goodbye {
            let now = pair.time;
            pair.server.endpoint.close(now, GoodbyeReason::Closed);
        }
        pair.run();
        while pair.server.got.len() < 20 {
            let (now, got) = (pair.time, pair.server.got.len());
            pair.server.give_back(now, 2);
            pair.run();
            assert!(pair.server.got.len() > got, "stuck after {got}");
        }
        pair.assert_all_arrived();
    }
}

#[test]
fn messages_sent_in_the_same_breath_as_the_opening_do_not_block_later_grants() {
    let mut pair = Pair::new(|_, config| Config { window: 2, ..config }, NONCE);
    (pair.client.hasty, pair.server.keeps) = (true, true);
    pair.client.first = (0..20).map(|number| Message::new(number, 0, 1)).collect();
    pair.run();
    let now = pair.time;
    pair.server.endpoint.close(now, GoodbyeReason::Closed);
    pair.run();
    while pair.server.got.len() < 20 {
        let (now, got) = (pair.time, pair.server.got.len());
        pair.server.give_back(now, 2);
        pair.run();
        assert!(pair.server.got.len() > got, "stuck after {got}");
    }
}
