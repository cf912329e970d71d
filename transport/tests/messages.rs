//! Messages between two workers: sizes, order, back-pressure, memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adverb::{Config, Endpoint, Mode, SendError};
use common::{ECHO, LONG, Pair, REPLY, SINK, config, pattern};

const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Hybrid];

#[test]
fn messages_of_every_size_come_back_whole_and_in_order() {
    for mode in MODES {
        let pair = Pair::new(config(mode));
        let replies = pair.replies();
        let (client, _server) = pair.connect();
        let segment = 8192 - 40;
        let sizes = [
            0,
            1,
            8,
            180,
            181,
            500,
            segment - 3,
            segment,
            segment + 1,
            3 * segment,
            100_000,
            1 << 20,
        ];
        for (i, size) in sizes.into_iter().enumerate() {
            let _sent = client
                .send(ECHO, &pattern(i % 3, 7), &pattern(size, i as u64))
                .unwrap();
        }
        let got = replies.wait(&pair.client, sizes.len());
        for (i, (size, (header, payload))) in sizes.into_iter().zip(got).enumerate() {
            assert_eq!(header, pattern(i % 3, 7), "{mode:?}");
            assert!(
                payload == pattern(size, i as u64),
                "{mode:?}: {size} bytes differ"
            );
        }
    }
}

#[test]
fn a_flood_is_neither_lost_nor_reordered_at_any_window() {
    for window in [2, 3, 8, 64] {
        let pair = Pair::new(config(Mode::Hybrid).window(window));
        let got = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&got);
        pair.server.on_message(SINK, move |_, message| {
            collected
                .lock()
                .unwrap()
                .push(u32::from_le_bytes(message.payload().try_into().unwrap()));
        });
        let (client, _server) = pair.connect();
        const COUNT: u32 = 20_000;
        let mut last = None;
        for i in 0..COUNT {
            last = Some(client.send(SINK, &[], &i.to_le_bytes()).unwrap());
        }
        last.unwrap().wait(LONG).unwrap();
        pair.client
            .wait_until(LONG, || {
                got.lock().unwrap().len() == COUNT as usize || !client.is_open()
            })
            .unwrap();
        assert_eq!(client.error(), None);
        assert!(
            got.lock().unwrap().iter().copied().eq(0..COUNT),
            "window {window}"
        );
    }
}

#[test]
fn both_sides_can_flood_at_once() {
    let pair = Pair::new(config(Mode::Hybrid).window(4));
    let replies = pair.replies();
    let (client, _server) = pair.connect();
    for i in 0..5_000_u32 {
        let _sent = client.send(ECHO, &i.to_le_bytes(), &pattern(300, 1)).unwrap();
    }
    let got = replies.wait(&pair.client, 5_000);
    assert!(
        got.iter()
            .map(|(header, _)| header.clone())
            .eq((0..5_000_u32).map(|i| i.to_le_bytes().to_vec()))
    );
}

#[test]
fn a_receiver_that_does_not_consume_costs_its_sender_a_bounded_queue() {
    let mut pair = Pair::new(config(Mode::Hybrid).max_queued_bytes(64 << 10));
    let (client, _server) = pair.connect();
    pair.stop_server();
    let payload = pattern(1000, 3);
    let mut taken = 0;
    let refused = loop {
        match client.send(SINK, &[], &payload) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 10_000, "nothing holds the sender back");
    };
    let would_block = SendError::WouldBlock { peer: client.peer() };
    assert_eq!(refused, would_block);
    assert_eq!(client.ready().wait(Duration::from_millis(5)), Err(would_block));
    pair.start_server();
    client.ready().wait(LONG).unwrap();
    for _ in 0..taken / 4 {
        let _sent = client.send(SINK, &[], &payload).unwrap();
        taken += 1;
    }
    let sunk = Arc::clone(&pair.sunk);
    pair.client
        .wait_until(LONG, || sunk.1.load(Ordering::Relaxed) == taken)
        .unwrap();
    client.send(SINK, &[], &payload).unwrap().wait(LONG).unwrap();
}

#[test]
fn who_waits_for_room_is_told_when_there_will_be_none() {
    type End = fn(&Endpoint, &Endpoint);
    let ends: [End; 3] = [
        |client, _| client.abort(),
        |client, _| drop(client.close()),
        |_, server| drop(server.close()),
    ];
    for end in ends {
        let mut pair = Pair::new(config(Mode::Hybrid).max_queued_bytes(4 << 10));
        let (client, server) = pair.connect();
        pair.stop_server();
        while client.send(SINK, &[], &[0; 1000]).is_ok() {}
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.ready().wait(LONG));
            // The server reads nothing, but sends its goodbye.
            end(&client, &server);
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, SendError::Ended { .. }), "{error}");
        });
    }
}

#[test]
fn a_message_may_be_kept_and_dropped_on_another_thread() {
    let pair = Pair::new(config(Mode::Event).window(2));
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    pair.server.on_message(SINK, move |_, message| {
        sender.lock().unwrap().send(message).unwrap()
    });
    let dropper = std::thread::spawn(move || {
        receiver
            .iter()
            .map(|message| message.payload().len())
            .take(500)
            .sum::<usize>()
    });
    let (client, _server) = pair.connect();
    for _ in 0..500 {
        let _sent = client.send(SINK, &[], &[1; 10]).unwrap();
    }
    // The credits of a window of 2 come back only by what the other thread drops.
    pair.client
        .wait_until(LONG, || dropper.is_finished() || !client.is_open())
        .unwrap();
    assert_eq!(dropper.join().unwrap(), 5_000);
}

#[test]
fn into_bytes_gives_the_receive_back() {
    let pair = Pair::new(config(Mode::Hybrid).window(2));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    pair.server.on_message(SINK, move |_, message| {
        keep.lock().unwrap().push(message.into_bytes())
    });
    let (client, _server) = pair.connect();
    for i in 0..50_u8 {
        let _sent = client.send(SINK, b"header", &[i; 20]).unwrap();
    }
    pair.client
        .wait_until(LONG, || kept.lock().unwrap().len() == 50 || !client.is_open())
        .unwrap();
    assert!(
        kept.lock()
            .unwrap()
            .iter()
            .enumerate()
            .all(|(i, bytes)| bytes[..] == [i as u8; 20])
    );
}

#[test]
fn receive_queues_of_their_own_do_as_well_as_a_shared_one() {
    let pair = Pair::new(config(Mode::Hybrid).window(4).use_srq(false));
    let replies = pair.replies();
    let connections: Vec<_> = (0..3).map(|_| pair.connect()).collect();
    for i in 0..300_u32 {
        let (client, _) = &connections[i as usize % 3];
        let _sent = client
            .send(ECHO, &i.to_le_bytes(), &pattern(9000, i.into()))
            .unwrap();
    }
    let got = replies.wait(&pair.client, 300);
    assert_eq!(got.len(), 300);
    for (header, payload) in got {
        let i = u32::from_le_bytes(header.try_into().unwrap());
        assert!(payload == pattern(9000, i.into()));
    }
}

#[test]
fn messages_of_several_endpoints_stay_apart() {
    let pair = Pair::new(config(Mode::Hybrid));
    let got = Arc::new(Mutex::new(std::collections::HashMap::<_, Vec<Vec<u8>>>::new()));
    let collected = Arc::clone(&got);
    pair.client.on_message(REPLY, move |endpoint, message| {
        collected
            .lock()
            .unwrap()
            .entry(endpoint.link().local)
            .or_default()
            .push(message.payload().to_vec());
    });
    let connections: Vec<_> = (0..5).map(|_| pair.connect()).collect();
    for i in 0..100_u8 {
        for (n, (client, _)) in connections.iter().enumerate() {
            let _sent = client.send(ECHO, &[], &[n as u8, i]).unwrap();
        }
    }
    let total = || got.lock().unwrap().values().map(Vec::len).sum::<usize>();
    pair.client.wait_until(LONG, || total() == 500).unwrap();
    for (n, (client, _)) in connections.iter().enumerate() {
        let got = got.lock().unwrap();
        let expected: Vec<_> = (0..100_u8).map(|i| vec![n as u8, i]).collect();
        assert_eq!(got[&client.link().local], expected);
    }
}

#[test]
fn what_does_not_fit_is_refused_whole() {
    let pair = Pair::with(config(Mode::Hybrid), config(Mode::Hybrid).max_message(10_000));
    let (client, _server) = pair.connect();
    let error = client.send(SINK, &[], &[0; 10_001]).unwrap_err().to_string();
    assert!(
        error.contains("10001 bytes is longer than the 10000 that the peer accepts"),
        "{error}"
    );
    let error = client.send(SINK, &[0; 65_536], &[]).unwrap_err().to_string();
    assert!(error.contains("a user header of 65536 bytes"), "{error}");
    client.send(SINK, &[], &[0; 10_000]).unwrap().wait(LONG).unwrap();
    let sunk = Arc::clone(&pair.sunk);
    pair.client
        .wait_until(LONG, || sunk.0.load(Ordering::Relaxed) == 10_000)
        .unwrap();
}

#[test]
fn a_handler_that_panics_fails_its_endpoint_only() {
    let pair = Pair::new(config(Mode::Hybrid));
    let replies = pair.replies();
    let (bad, bad_server) = pair.connect();
    let (good, _good_server) = pair.connect();
    pair.server.on_message(9, |_, _| panic!("a test's handler"));
    let _sent = bad.send(9, &[], b"x").unwrap();
    let error = bad_server.closed().wait(LONG).unwrap();
    assert!(
        error.to_string().contains("the handler of message id 9 panicked"),
        "{error}"
    );
    let _sent = good.send(ECHO, &[], b"still here").unwrap();
    assert_eq!(replies.wait(&pair.client, 1)[0].1, b"still here");
}

#[test]
fn a_handler_may_not_wait() {
    let pair = Pair::new(Config::new());
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    pair.server.on_message(9, move |endpoint, _| {
        let sent = endpoint.send(REPLY, &[], &[]).unwrap();
        *tell.lock().unwrap() = Some(sent.wait(LONG));
    });
    let (client, _server) = pair.connect();
    let _sent = client.send(9, &[], &[]).unwrap();
    pair.client
        .wait_until(LONG, || told.lock().unwrap().is_some())
        .unwrap();
    assert_eq!(
        told.lock().unwrap().take(),
        Some(Err(SendError::WouldDeadlock(adverb::WouldDeadlock)))
    );
}
