//! Requests and replies: which answer comes to whom, and what happens when none does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adverb::{Mode, Outcome, RefusalReason, RequestError, SendError};
use common::{ECHO, LONG, Pair, SINK, config, pattern};

/// A request that is answered with itself.
const MIRROR: u16 = 10;
/// A request that is kept.
const KEPT: u16 = 11;

fn mirror(pair: &Pair) {
    pair.server.on_request(MIRROR, |_, request| {
        let (header, payload) = (request.header().to_vec(), request.payload().to_vec());
        let _sent = request.reply(&header, &payload).unwrap();
    });
}

/// Requests that the server got and did not answer yet.
fn keep(pair: &Pair) -> Arc<Mutex<Vec<adverb::Request>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeper = Arc::clone(&kept);
    pair.server
        .on_request(KEPT, move |_, request| keeper.lock().unwrap().push(request));
    kept
}

#[test]
fn requests_of_every_size_get_their_replies() {
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        let pair = Pair::new(config(mode));
        mirror(&pair);
        let (client, _server) = pair.connect();
        let pending: Vec<_> = [0, 1, 180, 8152, 8153, 100_000]
            .map(|size| (size, client.request(MIRROR, &pattern(3, 1), &pattern(size, 2))))
            .into();
        for (size, pending) in pending {
            let reply = pending.wait(LONG).unwrap();
            assert_eq!(reply.header(), pattern(3, 1));
            assert!(
                reply.into_bytes() == pattern(size, 2),
                "{mode:?}: {size} bytes differ"
            );
        }
    }
}

#[test]
fn replies_find_their_requests_in_whatever_order_they_come() {
    let pair = Pair::new(config(Mode::Hybrid).window(16));
    let kept = keep(&pair);
    let (client, _server) = pair.connect();
    let pending: Vec<_> = (0..10_u8)
        .map(|i| client.request(KEPT, &[i], &[i, i]).within(LONG))
        .collect();
    pair.client
        .wait_until(LONG, || kept.lock().unwrap().len() == 10)
        .unwrap();
    let mut requests = std::mem::take(&mut *kept.lock().unwrap());
    fastrand::Rng::with_seed(7).shuffle(&mut requests);
    for request in requests {
        let answer = [request.payload()[0], 100];
        assert_eq!(request.id(), KEPT);
        let _sent = request.reply(&[], &answer).unwrap();
    }
    for (i, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait(LONG).unwrap().payload(), [i as u8, 100]);
    }
}

#[test]
fn what_is_not_answered_is_refused_with_the_reason() {
    let pair = Pair::new(config(Mode::Hybrid));
    pair.server.on_request(KEPT, |_, request| drop(request));
    let (client, _server) = pair.connect();
    // ECHO has a handler for messages, which is none for requests.
    for (id, expected) in [
        (KEPT, RefusalReason::Dropped),
        (ECHO, RefusalReason::NoHandler),
        (99, RefusalReason::NoHandler),
    ] {
        let error = client.request(id, b"", b"").wait(LONG).unwrap_err();
        assert!(
            matches!(&error, RequestError::Refused { reason, .. } if *reason == expected),
            "{id}: {error}"
        );
    }
    assert!(client.is_open());
}

#[test]
fn a_request_without_a_reply_ends_at_its_deadline_and_costs_no_credit_for_good() {
    // With a window of 2, two replies that were kept would block everything.
    let pair = Pair::new(config(Mode::Hybrid).window(2));
    let kept = keep(&pair);
    mirror(&pair);
    let (client, _server) = pair.connect();
    for _ in 0..5 {
        let limit = Duration::from_millis(2);
        let pending = client.request(KEPT, b"", b"").within(limit);
        let error = pending.wait(LONG).unwrap_err();
        assert!(
            matches!(error, RequestError::TimedOut { waited, .. } if waited == limit),
            "{error}"
        );
        // Now it comes after all.
        pair.client
            .wait_until(LONG, || kept.lock().unwrap().len() == 1)
            .unwrap();
        let request = kept.lock().unwrap().pop().unwrap();
        let _sent = request.reply(b"", b"late").unwrap();
    }
    let reply = client.request(MIRROR, b"", b"still here").wait(LONG).unwrap();
    assert_eq!(reply.payload(), b"still here");
}

#[test]
fn a_cancelled_request_is_forgotten_before_and_after_its_reply_came() {
    let pair = Pair::new(config(Mode::Hybrid).window(2));
    mirror(&pair);
    let (client, _server) = pair.connect();
    for i in 0..100 {
        let cancelled = client.request(MIRROR, b"", b"never mind");
        if i % 2 == 0 {
            drop(cancelled);
            client.request(MIRROR, b"", b"next").wait(LONG).unwrap();
        } else {
            // Its reply comes first.
            client.request(MIRROR, b"", b"next").wait(LONG).unwrap();
            drop(cancelled);
        }
    }
}

#[test]
fn the_end_of_the_endpoint_ends_its_requests_and_says_what_became_of_them() {
    let pair = Pair::new(config(Mode::Hybrid));
    let kept = keep(&pair);
    let (client, server) = pair.connect();
    let pending = client.request(KEPT, b"", b"");
    pair.client
        .wait_until(LONG, || kept.lock().unwrap().len() == 1)
        .unwrap();
    server.abort();
    // The next send finds out.
    let _ = client.send(SINK, b"", b"");
    let error = pending.wait(LONG).unwrap_err();
    let RequestError::Send(SendError::Ended { outcome, .. }) = error else {
        panic!("{error}");
    };
    assert_ne!(outcome, Outcome::NotSent);
    let error = client.request(KEPT, b"", b"").wait(LONG).unwrap_err();
    assert!(
        matches!(
            error,
            RequestError::Send(SendError::Ended {
                outcome: Outcome::NotSent,
                ..
            })
        ),
        "{error}"
    );
}

#[test]
fn a_handler_may_request_but_not_wait() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (client, _server) = pair.connect();
    pair.client.on_request(MIRROR, |_, request| {
        let payload = request.payload().to_vec();
        let _sent = request.reply(b"", &payload).unwrap();
    });
    let refused = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&refused);
    pair.server.on_request(KEPT, move |endpoint, request| {
        let back = endpoint.request(MIRROR, b"", request.payload());
        if matches!(back.wait(LONG), Err(RequestError::WouldDeadlock(_))) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        let _sent = request.reply(b"", b"").unwrap();
    });
    client.request(KEPT, b"", b"x").wait(LONG).unwrap();
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}

#[test]
fn a_reply_that_finds_no_room_gives_its_request_back() {
    let pair = Pair::new(config(Mode::Hybrid).window(2).max_queued_bytes(1000));
    let kept = keep(&pair);
    let (client, server) = pair.connect();
    let pending = client.request(KEPT, b"", b"");
    pair.client
        .wait_until(LONG, || kept.lock().unwrap().len() == 1)
        .unwrap();
    // The client does not drive its worker now, so that it grants nothing.
    while server.send(SINK, b"", &[0; 500]).is_ok() {}
    let request = kept.lock().unwrap().pop().unwrap();
    let unsent = request.reply(b"", &[1; 500]).unwrap_err();
    assert!(matches!(unsent.error, SendError::WouldBlock { .. }), "{unsent}");
    let mut request = Some(unsent.request);
    pair.client.on_message(SINK, |_, _| {});
    pair.client
        .wait_until(LONG, || match request.take().unwrap().reply(b"", b"at last") {
            Ok(_sent) => true,
            Err(unsent) => {
                request = Some(unsent.request);
                false
            }
        })
        .unwrap();
    assert_eq!(pending.wait(LONG).unwrap().payload(), b"at last");
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_awaited_and_answered_by_tasks() {
    let pair = Pair::new(config(Mode::Hybrid));
    pair.server.on_request(KEPT, |_, request| {
        std::thread::spawn(move || {
            let payload = request.payload().to_vec();
            let _sent = request.reply(b"", &payload).unwrap();
        });
    });
    let (keeper, kept) = std::sync::mpsc::channel();
    pair.server
        .on_request(MIRROR, move |_, request| keeper.send(request).unwrap());
    let (client, _server) = pair.connect();
    let worker = pair.client.clone();
    let driving = tokio::spawn(async move { worker.drive().await });
    for i in 0..50_u64 {
        let (one, other) = tokio::join!(
            client.request(KEPT, b"", &i.to_le_bytes()).within(LONG),
            client.request(KEPT, b"", &(i + 1).to_le_bytes())
        );
        assert_eq!(one.unwrap().payload(), i.to_le_bytes());
        assert_eq!(other.unwrap().payload(), (i + 1).to_le_bytes());
    }
    // A deadline ends the wait of a task, too.
    let silent = client
        .request(MIRROR, b"", b"")
        .within(Duration::from_millis(1))
        .await;
    assert!(matches!(silent, Err(RequestError::TimedOut { .. })), "{silent:?}");
    drop(kept);
    driving.abort();
}

#[test]
fn the_counts_of_an_endpoint_tell_what_it_did() {
    let pair = Pair::new(config(Mode::Hybrid));
    mirror(&pair);
    let (client, server) = pair.connect();
    let before = client.stats();
    assert_eq!((before.messages_sent, before.messages_received), (0, 0));
    assert!(before.credits > 0);

    let pending = client.request(MIRROR, b"", b"question");
    assert_eq!(client.stats().requests_waiting, 1);
    let _reply = pending.wait(LONG).unwrap();
    client.send(SINK, b"", b"message").unwrap().wait(LONG).unwrap();
    let after = client.stats();
    assert_eq!((after.messages_sent, after.messages_received), (2, 1));
    assert_eq!((after.messages_at_peer, after.requests_waiting), (2, 0));
    assert!(after.messages_acked >= 1, "the reply acknowledges the request");
    assert_eq!((after.queued_bytes, after.one_sided_posted), (0, 0));
    pair.client
        .wait_until(LONG, || server.stats().messages_received == 2)
        .unwrap();
}
