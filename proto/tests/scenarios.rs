//! What two endpoints do to each other, one story at a time.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod common;

use std::time::Duration;

use adverb_proto::{
    CONTROL_CREDITS, Config, Event, FailReason, GoodbyeReason, Outcome, Phase, ProtocolError, SendError,
    Side, Urgency,
};
use common::{Message, NONCE, ONE_SEGMENT, Pair};

fn same(_: Side, config: Config) -> Config {
    config
}

impl Pair {
    /// Two sides that are open.
    fn open(config: impl Fn(Side, Config) -> Config) -> Self {
        let mut pair = Self::new(config, NONCE);
        pair.run();
        assert_eq!(pair.client.events, [Event::Opened]);
        assert_eq!(pair.server.events, [Event::Opened]);
        pair
    }
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

fn close(pair: &mut Pair, side: Side) {
    let now = pair.time;
    let host = pair.host(side);
    host.endpoint.close(now, GoodbyeReason::Closed);
    host.transmit(now);
}

/// Both sides have come to an orderly end, and heard of it once.
fn assert_closed(pair: &Pair) {
    for host in [&pair.client, &pair.server] {
        assert_eq!(host.endpoint.phase(), Phase::Closed);
        assert_eq!(host.events.last(), Some(&Event::Closed));
        assert_eq!(host.ends(), 1, "{:?}", host.events);
        assert_eq!(host.endpoint.poll_timeout(), None);
    }
}

#[test]
fn either_side_may_close_and_both_may_at_once() {
    for closers in [&BOTH[..1], &BOTH[1..], &BOTH] {
        let mut pair = Pair::open(same);
        closers.iter().for_each(|side| close(&mut pair, *side));
        pair.run();
        assert_closed(&pair);
        let told = Event::PeerClosing(GoodbyeReason::Closed);
        for side in BOTH {
            let told_to_it = pair.host(side).events.contains(&told);
            assert_eq!(told_to_it, closers.len() == 2 || !closers.contains(&side));
        }
        let goodbyes = 2 * closers.len();
        assert_eq!(pair.client.controls + pair.server.controls, 2 + goodbyes);
    }
}

#[test]
fn a_close_waits_until_all_that_was_taken_is_handed_out() {
    for closers in [&BOTH[..1], &BOTH[1..], &BOTH] {
        every_way(|mut pair| {
            fill(&mut pair, Side::Client, ONE_SEGMENT + 1, Urgency::Bulk);
            fill(&mut pair, Side::Server, 0, Urgency::Latency);
            closers.iter().for_each(|side| close(&mut pair, *side));
            for side in closers {
                let now = pair.time;
                let refused = pair
                    .host(*side)
                    .send(now, Message::new(0, 0, 0), Urgency::Latency);
                assert_eq!(refused, Err(SendError::NotOpen));
            }
            pair.run();
            assert_closed(&pair);
            pair.assert_all_arrived();
        });
    }
}

#[test]
fn a_peer_that_learns_of_the_goodbye_still_sends_what_it_had_taken() {
    let mut pair = Pair::open(same);
    pair.client.room = 0;
    fill(&mut pair, Side::Client, 1, Urgency::Latency);
    close(&mut pair, Side::Server);
    pair.run();
    let now = pair.time;
    let refused = pair.client.send(now, Message::new(0, 0, 0), Urgency::Latency);
    assert_eq!(refused, Err(SendError::PeerClosed(GoodbyeReason::Closed)));
    assert_eq!(pair.server.endpoint.phase(), Phase::Closing);
    pair.client.room = 1;
    pair.run();
    assert_closed(&pair);
    pair.assert_all_arrived();
}

#[test]
fn a_close_after_the_peers_goodbye_says_goodbye_too() {
    let mut pair = Pair::open(same);
    pair.client.room = 0;
    close(&mut pair, Side::Server);
    pair.run();
    close(&mut pair, Side::Client);
    pair.client.room = 1;
    pair.run();
    assert_closed(&pair);
    assert_eq!((pair.client.controls, pair.server.controls), (3, 3));
}

#[test]
fn a_close_while_opening_is_done_when_it_is_open() {
    for closers in [&BOTH[..1], &BOTH[1..], &BOTH] {
        let mut pair = Pair::new(same, NONCE);
        closers.iter().for_each(|side| close(&mut pair, *side));
        pair.run();
        assert_closed(&pair);
        assert_eq!(pair.client.events[0], Event::Opened);
    }
}

#[test]
fn a_close_while_opening_is_given_up_in_time() {
    let mut pair = Pair::new(same, NONCE);
    pair.server.room = 0;
    close(&mut pair, Side::Client);
    pair.run_for(Duration::from_secs(6));
    assert_eq!(pair.client.events, [Event::Failed(FailReason::OpenTimeout)]);
}

#[test]
fn a_close_that_the_peer_does_not_answer_is_given_up_in_time() {
    let mut pair = Pair::open(same);
    pair.server.room = 0;
    close(&mut pair, Side::Client);
    pair.run_for(Duration::from_secs(4));
    assert_eq!(pair.client.ends(), 0);
    pair.run_for(Duration::from_secs(2));
    for host in [&pair.client, &pair.server] {
        assert_eq!(host.events.last(), Some(&Event::Failed(FailReason::CloseTimeout)));
        assert_eq!(host.ends(), 1);
        assert_eq!(host.endpoint.poll_timeout(), None);
    }
}

#[test]
fn nothing_comes_of_an_aborted_endpoint() {
    let mut pair = Pair::open(same);
    fill(&mut pair, Side::Client, 1, Urgency::Latency);
    pair.server.endpoint.abort();
    close(&mut pair, Side::Client);
    pair.run_for(Duration::from_secs(6));
    assert_eq!(pair.server.endpoint.phase(), Phase::Failed);
    assert_eq!(pair.server.events, [Event::Opened]);
    assert_eq!((pair.server.got.len(), pair.server.controls), (0, 1));
    assert_eq!(pair.server.endpoint.poll_timeout(), None);
    let now = pair.time;
    let refused = pair.server.send(now, Message::new(0, 0, 0), Urgency::Latency);
    assert_eq!(refused, Err(SendError::NotOpen));
    assert_eq!(
        pair.client.events.last(),
        Some(&Event::Failed(FailReason::CloseTimeout))
    );
}

#[test]
fn a_goodbye_to_an_aborted_endpoint_sets_no_timer() {
    let mut pair = Pair::open(same);
    close(&mut pair, Side::Client);
    pair.server.endpoint.abort();
    pair.run();
    assert_eq!(pair.server.events, [Event::Opened]);
    assert_eq!(pair.server.endpoint.poll_timeout(), None);
}

#[test]
fn outcomes_at_any_cut_point_are_never_better_or_worse_than_the_truth() {
    // Both ways, so that acknowledgements come back while messages are under way.
    for cut in 0..60 {
        let mut pair = Pair::open(|_, config| Config { window: 3, ..config });
        (pair.client.room, pair.server.room) = (2, 3);
        for number in 0..12 {
            let now = pair.time;
            let message = Message::new(number, 0, usize::from(number % 4) * ONE_SEGMENT);
            pair.client.send(now, message.clone(), Urgency::Bulk).unwrap();
            pair.server.send(now, message, Urgency::Latency).unwrap();
        }
        (0..cut).for_each(|_| _ = pair.step());
        for side in BOTH {
            pair.host(side).endpoint.abort();
        }
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            let got = to.got.len() as u64;
            let mut last = Outcome::Delivered;
            for seq in 0..12 {
                let outcome = from.endpoint.outcome(seq);
                match outcome {
                    Outcome::Delivered => assert!(seq < got),
                    Outcome::NotSent => assert!(seq >= got),
                    Outcome::MaybeDelivered => assert!(seq >= from.endpoint.acked()),
                }
                let rank = |outcome| match outcome {
                    Outcome::Delivered => 0,
                    Outcome::MaybeDelivered => 1,
                    Outcome::NotSent => 2,
                };
                assert!(
                    rank(last) <= rank(outcome),
                    "message {seq} fared better than the one before"
                );
                last = outcome;
            }
        }
    }
}

#[test]
fn all_messages_of_an_answered_goodbye_were_delivered() {
    let mut pair = Pair::open(same);
    let taken = fill(&mut pair, Side::Client, 10, Urgency::Bulk) as u64;
    close(&mut pair, Side::Client);
    pair.run();
    assert_closed(&pair);
    assert_eq!(pair.client.endpoint.acked(), taken);
    assert_eq!(pair.client.endpoint.outcome(taken - 1), Outcome::Delivered);
}

#[test]
fn idle_endpoints_probe_on_the_ticks_of_their_worker() {
    let keepalive = Duration::from_secs(2);
    let mut pair = Pair::open(|_, config| Config {
        keepalive: Some(keepalive),
        ..config
    });
    let epoch = pair.time - 2 * common::DELAY;
    for probes in 1..5 {
        // Heard of a little after the epoch: due at the next tick of half a second, 2.5 s after the last.
        let due = pair.client.endpoint.poll_timeout().unwrap();
        assert_eq!(due, pair.server.endpoint.poll_timeout().unwrap());
        assert_eq!((due - epoch).as_millis() % 500, 0);
        assert!(due >= pair.time + keepalive || probes > 1);
        assert!(!pair.client.endpoint.take_probe(), "before it is due");
        for host in [&mut pair.client, &mut pair.server] {
            host.endpoint.handle_timeout(due);
            assert!(host.endpoint.take_probe());
            assert!(!host.endpoint.take_probe(), "asked twice");
        }
    }
    assert_eq!((pair.client.controls, pair.server.controls), (1, 1));
}

#[test]
fn signs_of_life_put_the_probe_off() {
    let mut pair = Pair::open(|_, config| Config {
        keepalive: Some(Duration::from_secs(2)),
        ..config
    });
    let opened = pair.time;
    let due = |pair: &Pair| pair.client.endpoint.poll_timeout().unwrap() - opened;
    assert!(due(&pair) > Duration::from_secs(2) && due(&pair) <= Duration::from_millis(2500));
    pair.client.endpoint.alive(opened + Duration::from_secs(1));
    assert!(due(&pair) > Duration::from_secs(3) && due(&pair) <= Duration::from_millis(3500));
    pair.time += Duration::from_secs(2);
    let now = pair.time;
    pair.server
        .send(now, Message::new(0, 0, 0), Urgency::Latency)
        .unwrap();
    pair.run();
    assert!(due(&pair) > Duration::from_secs(4) && due(&pair) <= Duration::from_millis(4500));
}

#[test]
fn intervals_beyond_the_clock_never_come_to_pass() {
    let mut pair = Pair::open(|_, config| Config {
        keepalive: Some(Duration::MAX),
        open_timeout: Duration::MAX,
        close_timeout: Duration::MAX,
        ..config
    });
    assert_eq!(pair.client.endpoint.poll_timeout(), None);
    close(&mut pair, Side::Client);
    assert_eq!(pair.client.endpoint.poll_timeout(), None);
}

#[test]
fn control_messages_never_outrun_the_receives_that_are_kept_for_them() {
    // With this window every single free receive is worth a grant.
    let window = 7;
    for goodbye in [false, true] {
        let mut pair = Pair::open(|_, config| Config { window, ..config });
        pair.server.keeps = true;
        for side in BOTH {
            // The client sees none of what comes until the end.
            pair.client.polls_every = u32::MAX;
            for number in 0..window as u16 {
                let now = pair.time;
                let message = Message::new(number, 0, 1);
                pair.host(side).send(now, message, Urgency::Latency).unwrap();
            }
            while pair.server.got.len() < window as usize {
                pair.step();
            }
        }
        let before = pair.server.controls;
        for _ in 0..window {
            let now = pair.time;
            pair.server.give_back(now, 1);
        }
        assert_eq!(pair.server.controls - before, CONTROL_CREDITS as usize);
        if goodbye {
            close(&mut pair, Side::Server);
            close(&mut pair, Side::Client);
        }
        // A segment that meets no receive panics.
        (0..50).for_each(|_| _ = pair.step());
        pair.client.polls_every = 1;
        pair.run();
        pair.assert_all_arrived();
        if goodbye {
            assert_closed(&pair);
        }
    }
}

#[test]
fn an_urgent_message_wakes_the_receiver_and_a_bulk_message_does_so_with_the_last_behind_it() {
    for (urgency, seen) in [(Urgency::Latency, 1), (Urgency::Bulk, 0)] {
        let mut pair = Pair::open(|_, config| Config { window: 64, ..config });
        // It falls asleep on the next turn.
        pair.server.sleeps = true;
        pair.run();
        pair.client.room = 0;
        for number in 0..2 {
            let now = pair.time;
            let message = Message::new(number, 0, 1);
            pair.client.send(now, message, urgency).unwrap();
        }
        let now = pair.time;
        pair.client.room = 1;
        pair.client.transmit(now);
        pair.client.room = 0;
        pair.run();
        assert_eq!(pair.server.got.len(), seen);
        pair.client.room = 1;
        pair.run();
        pair.assert_all_arrived();
    }
}

#[test]
fn if_both_close_each_is_closed_when_all_of_its_messages_are_acknowledged() {
    let mut pair = Pair::open(same);
    let taken = BOTH.map(|side| fill(&mut pair, side, 10, Urgency::Bulk) as u64);
    for side in BOTH {
        close(&mut pair, side);
    }
    pair.run();
    assert_closed(&pair);
    let acked = [pair.client.endpoint.acked(), pair.server.endpoint.acked()];
    assert_eq!(acked, taken);
}
