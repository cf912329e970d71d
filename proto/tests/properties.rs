//! What holds of two endpoints whatever their programs, their devices and their schedulers do, and of one endpoint whatever
//! its peer sends.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod checks;
mod common;
mod samples;

use std::time::Duration;

use adverb_proto::{Config, GoodbyeReason, Phase, SendError, Side, Urgency};
use common::{Message, NONCE, ONE_SEGMENT, Pair};
use proptest::prelude::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Op {
    Send(Side, usize, usize, Urgency),
    /// Time passes until the next segment arrives, so many times.
    Steps(usize),
    Keep(Side, bool),
    GiveBack(Side, usize),
    Room(Side, usize),
    Sleeps(Side, bool),
    Hasty(Side, bool),
    PollsEvery(Side, u32),
    /// Closing is rare.
    Close(Side),
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Server)]
}

fn op() -> impl Strategy<Value = Op> {
    let urgency = prop_oneof![Just(Urgency::Latency), Just(Urgency::Bulk)];
    let len = prop_oneof![
        4 => 0..=ONE_SEGMENT,
        1 => ONE_SEGMENT..5 * ONE_SEGMENT,
    ];
    prop_oneof![
        60 => (side(), 0..4_usize, len, urgency).prop_map(|(side, header, len, urgency)| Op::Send(side, header, len, urgency)),
        40 => (1..4_usize).prop_map(Op::Steps),
        5 => (side(), any::<bool>()).prop_map(|(side, keeps)| Op::Keep(side, keeps)),
        20 => (side(), 1..4_usize).prop_map(|(side, count)| Op::GiveBack(side, count)),
        5 => (side(), prop_oneof![0..4_usize, Just(usize::MAX)]).prop_map(|(side, room)| Op::Room(side, room)),
        3 => (side(), any::<bool>()).prop_map(|(side, sleeps)| Op::Sleeps(side, sleeps)),
        3 => (side(), any::<bool>()).prop_map(|(side, hasty)| Op::Hasty(side, hasty)),
        3 => (side(), 1..6_u32).prop_map(|(side, every)| Op::PollsEvery(side, every)),
        1 => side().prop_map(Op::Close),
    ]
}

fn apply(pair: &mut Pair, op: Op) {
    let now = pair.time;
    match op {
        Op::Send(side, header, len, urgency) => {
            let host = pair.host(side);
            let message = Message::new(host.sent.len() as u16, header, len);
            let taken = host.send(now, message, urgency);
            let open = host.endpoint.phase() == Phase::Open;
            match taken {
                Ok(_) | Err(SendError::WouldBlock) => assert!(open),
                Err(SendError::NotOpen | SendError::PeerClosed(_)) => assert!(!open),
                Err(error) => panic!("{error}"),
            }
        }
        Op::Steps(count) => (0..count).for_each(|_| _ = pair.step()),
        Op::Keep(side, keeps) => pair.host(side).keeps = keeps,
        Op::GiveBack(side, count) => pair.host(side).give_back(now, count),
        Op::Room(side, room) => pair.host(side).room = room,
        Op::Sleeps(side, sleeps) => pair.host(side).sleeps = sleeps,
        Op::Hasty(side, hasty) => pair.host(side).hasty = hasty,
        Op::PollsEvery(side, every) => pair.host(side).polls_every = every,
        Op::Close(side) => pair.host(side).endpoint.close(now, GoodbyeReason::Closed),
    }
}

fn pair(windows: (u32, u32)) -> Pair {
    Pair::new(
        |side, config| Config {
            window: match side {
                Side::Client => windows.0,
                Side::Server => windows.1,
            },
            max_queued_bytes: 2000,
            ..config
        },
        NONCE,
    )
}

fn window() -> impl Strategy<Value = u32> {
    prop_oneof![Just(2), Just(3), Just(8), Just(64), 2..20_u32]
}

proptest! {
    /// Once there is room and the programs keep nothing, all that was taken arrives, and a close comes to its end.
    #[test]
    fn everything_taken_arrives_once_in_order_and_unchanged(
        windows in (window(), window()),
        ops in proptest::collection::vec(op(), 0..300),
        opened_first in any::<bool>(),
        close in proptest::option::of(side()),
    ) {
        let mut pair = pair(windows);
        if opened_first {
            pair.run();
        }
        for op in ops {
            apply(&mut pair, op);
        }
        // Nobody is woken here but by what arrives: who sleeps goes on sleeping.
        for side in [Side::Client, Side::Server] {
            let now = pair.time;
            let host = pair.host(side);
            (host.room, host.keeps) = (usize::MAX, false);
            host.give_back(now, usize::MAX);
        }
        pair.run();
        pair.assert_all_arrived();

        if let Some(side) = close {
            apply(&mut pair, Op::Close(side));
            pair.run();
        }
        let closing = [&pair.client, &pair.server].map(|host| host.endpoint.phase() != Phase::Open);
        prop_assert_eq!(closing[0], closing[1]);
        for host in [&pair.client, &pair.server] {
            prop_assert_eq!(host.ends(), usize::from(closing[0]));
            let phase = if closing[0] { Phase::Closed } else { Phase::Open };
            prop_assert_eq!(host.endpoint.phase(), phase);
        }
        pair.assert_all_arrived();
    }

    /// The program never gives back more than one message at a time, and one free receive is always enough for the next.
    #[test]
    fn no_message_waits_beside_a_free_receive(
        windows in (window(), window()),
        ops in proptest::collection::vec(op(), 0..200),
    ) {
        let mut pair = pair(windows);
        pair.run();
        for op in ops {
            if !matches!(op, Op::Close(_)) {
                apply(&mut pair, op);
            }
        }
        for side in [Side::Client, Side::Server] {
            let host = pair.host(side);
            (host.room, host.keeps) = (usize::MAX, true);
        }
        pair.run();
        for _ in 0..pair.client.sent.len() + pair.server.sent.len() {
            let before = (pair.client.got.len(), pair.server.got.len());
            for (host, window, waits) in [
                (&pair.client, windows.0, pair.server.endpoint.queued_bytes()),
                (&pair.server, windows.1, pair.client.endpoint.queued_bytes()),
            ] {
                prop_assert!(waits == 0 || host.kept == window as usize, "{} of {window} kept", host.kept);
            }
            let now = pair.time;
            pair.client.give_back(now, 1);
            pair.server.give_back(now, 1);
            pair.run();
            if before == (pair.client.got.len(), pair.server.got.len()) {
                break;
            }
        }
        pair.assert_all_arrived();
    }

    /// Whatever happens, and even if room never comes back, an endpoint that closes ends once and in time.
    #[test]
    fn each_side_ends_once_and_in_time(
        windows in (window(), window()),
        ops in proptest::collection::vec(op(), 0..100),
        abort in proptest::option::of(side()),
    ) {
        let mut pair = pair(windows);
        for op in ops {
            apply(&mut pair, op);
        }
        let now = pair.time;
        if let Some(side) = abort {
            pair.host(side).endpoint.abort();
        }
        for side in [Side::Client, Side::Server] {
            pair.host(side).endpoint.close(now, GoodbyeReason::Closed);
        }
        pair.run_for(Duration::from_secs(11));
        for side in [Side::Client, Side::Server] {
            let aborted = abort == Some(side);
            let host = pair.host(side);
            prop_assert!(matches!(host.endpoint.phase(), Phase::Closed | Phase::Failed));
            // An abort that came after the end took nothing back.
            prop_assert!(host.ends() == 1 || aborted && host.ends() == 0, "{:?}", host.events);
            prop_assert_eq!(host.endpoint.poll_timeout(), None);
            prop_assert_eq!(host.endpoint.queued_bytes(), 0);
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        checks::check(&bytes);
    }

    /// Bytes changed, cut out and put in, in what a good peer sends.
    #[test]
    fn good_peers_gone_wrong_are_taken_or_refused(
        script in proptest::sample::select(samples::scripts()),
        more in proptest::sample::select(samples::scripts()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 0..6),
    ) {
        // The other script's peer goes on where this one's ended.
        let mut bytes = [&script.1[..], &more.1[1..]].concat();
        for (at, how, byte) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes.insert(at, byte),
                _ => _ = bytes.remove(at),
            }
        }
        checks::check(&bytes);
    }
}
