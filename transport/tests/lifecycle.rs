//! Connections: how they open, how they end, and who hears of it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adverb::{
    ConnectErrorKind, EndpointErrorKind, GoodbyeReason, Mode, OpenError, Outcome, SendError, WaitError,
};
use adverb_verbs::{AsyncEvent, AsyncEventKind, EventSource, WcStatus};
use adverb_wire::{Frame, Handshake, Peek, Refuse, RefuseReason};
use common::{ECHO, LONG, Pair, SINK, config};

#[test]
fn a_close_delivers_what_was_sent_and_tells_the_peer() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (client, server) = pair.connect();
    for _ in 0..500 {
        let _sent = client.send(SINK, &[], &[7; 100]).unwrap();
    }
    assert_eq!(client.close().wait(LONG).unwrap().kind, EndpointErrorKind::Closed);
    assert_eq!(pair.sunk.1.load(Ordering::Relaxed), 500);
    assert_eq!(
        server.closed().wait(LONG).unwrap().kind,
        EndpointErrorKind::PeerClosed(GoodbyeReason::Closed)
    );
    let error = client.send(SINK, &[], &[]).unwrap_err();
    assert!(
        matches!(
            error,
            SendError::Ended {
                outcome: Outcome::NotSent,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn either_side_may_close_and_both_at_once() {
    let pair = Pair::new(config(Mode::Event));
    let (client, server) = pair.connect();
    let closed = server.close();
    assert_eq!(
        client.closed().wait(LONG).unwrap().kind,
        EndpointErrorKind::PeerClosed(GoodbyeReason::Closed)
    );
    assert_eq!(closed.wait(LONG).unwrap().kind, EndpointErrorKind::Closed);

    let (client, server) = pair.connect();
    let (a, b) = (client.close(), server.close());
    for ended in [a.wait(LONG).unwrap(), b.wait(LONG).unwrap()] {
        assert!(
            matches!(
                ended.kind,
                EndpointErrorKind::Closed | EndpointErrorKind::PeerClosed(GoodbyeReason::Closed)
            ),
            "{ended}"
        );
    }
}

#[test]
fn dropping_the_last_handle_closes_and_leaves_nothing() {
    let pair = Pair::new(config(Mode::Hybrid));
    for _ in 0..40 {
        // More in turn than the worker takes at once.
        let (client, server) = pair.connect();
        let another = client.clone();
        drop(client);
        assert!(another.is_open());
        drop(another.send(SINK, &[], b"last words").unwrap());
        drop(another);
        assert_eq!(
            server.closed().wait(LONG).unwrap().kind,
            EndpointErrorKind::PeerClosed(GoodbyeReason::Closed)
        );
    }
    pair.client
        .wait_until(LONG, || pair.client.stats().endpoints == 0)
        .unwrap();
    pair.server
        .wait_until(LONG, || pair.server.stats().endpoints == 0)
        .unwrap();
    assert_eq!(pair.sunk.1.load(Ordering::Relaxed), 40);
}

#[test]
fn an_abort_is_told_by_the_next_send() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (client, server) = pair.connect();
    server.abort();
    pair.server
        .wait_until(LONG, || pair.server.stats().endpoints == 0)
        .unwrap();
    let error = client
        .send(SINK, &[], b"into the void")
        .unwrap()
        .wait(LONG)
        .unwrap_err();
    let SendError::Ended {
        outcome: Outcome::MaybeDelivered,
        error,
    } = error
    else {
        panic!("{error:?}")
    };
    assert!(
        matches!(
            error.kind,
            EndpointErrorKind::Completion {
                status: WcStatus::RetryExcErr,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    let device = pair.client.context().device_name();
    for part in [
        device,
        "RETRY_EXC_ERR",
        &client.peer().to_string(),
        "the peer's process ended",
        "connect again",
        "ack_timeout",
    ] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
}

#[test]
fn an_idle_peer_that_vanishes_is_found_by_a_probe() {
    // Longer than this test waits: no other timer may be what ends it.
    let config = config(Mode::Hybrid)
        .keepalive(Some(Duration::from_millis(50)))
        .connect_timeout(2 * LONG);
    let pair = Pair::new(config);
    let (client, server) = pair.connect();
    server.abort();
    let ended = client.closed().wait(LONG).unwrap();
    assert!(
        matches!(
            ended.kind,
            EndpointErrorKind::Completion {
                operation: "reaching the peer",
                ..
            }
        ),
        "{ended}"
    );
}

#[test]
fn one_connections_failure_is_no_others() {
    let pair = Pair::new(config(Mode::Hybrid));
    let replies = pair.replies();
    let (bad, bad_server) = pair.connect();
    let (good, _good_server) = pair.connect();
    bad_server.abort();
    pair.server
        .wait_until(LONG, || pair.server.stats().endpoints == 1)
        .unwrap();
    let _sent = bad.send(ECHO, &[], b"lost");
    let _sent = good.send(ECHO, &[], b"kept").unwrap();
    assert_eq!(replies.wait(&pair.client, 1)[0].1, b"kept");
    bad.closed().wait(LONG).unwrap();
    assert!(good.is_open());
}

#[test]
fn a_full_worker_refuses_and_takes_again_when_there_is_room() {
    let small = config(Mode::Hybrid).max_endpoints(2);
    let pair = Pair::with(config(Mode::Hybrid), small);
    let (first, _first_server) = pair.connect();
    let _second = pair.connect();
    let error = pair.client.connect(pair.listener.local_addr()).unwrap_err();
    let ConnectErrorKind::Refused(refuse) = &*error.kind else {
        panic!("{error}")
    };
    assert_eq!(refuse.reason, RefuseReason::WorkerFull);
    assert_eq!(
        pair.client.stats().endpoints,
        2,
        "the refused one left nothing behind"
    );
    first.close().wait(LONG).unwrap();
    pair.server
        .wait_until(LONG, || pair.server.stats().endpoints == 1)
        .unwrap();
    pair.connect();
}

#[test]
fn strangers_on_the_tcp_port_are_sent_away() {
    let pair = Pair::new(config(Mode::Hybrid));
    let address = pair.listener.local_addr();
    // One that says nothing, one that leaves at once, and one that speaks HTTP.
    let _silent = TcpStream::connect(address).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let mut http = TcpStream::connect(address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    http.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    // Closed with unread input may be a reset; either way nothing is answered.
    let _ = http.read_to_end(&mut answer);
    assert!(answer.is_empty());
    // Others go on.
    let (client, _server) = pair.connect();
    client.send(SINK, &[], b"hello").unwrap().wait(LONG).unwrap();
}

#[test]
fn silent_strangers_do_not_keep_peers_waiting() {
    // Longer than this test waits: none of them is sent away because its time is up.
    let pair = Pair::new(config(Mode::Hybrid).connect_timeout(2 * LONG));
    let connect = |_| TcpStream::connect(pair.listener.local_addr()).unwrap();
    let mut strangers: Vec<_> = (0..200).map(connect).collect();
    let (client, _server) = pair.connect();
    client.send(SINK, &[], b"hello").unwrap().wait(LONG).unwrap();
    for stranger in &mut strangers {
        stranger.set_nonblocking(true).unwrap();
        let waiting = stranger.read(&mut [0]).unwrap_err();
        assert_eq!(
            waiting.kind(),
            ErrorKind::WouldBlock,
            "all of them are still there"
        );
    }

    // More than there is room for: those that came first make it.
    strangers.extend((0..200).map(connect));
    let _another = pair.connect();
    strangers[0].set_nonblocking(false).unwrap();
    strangers[0].set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(strangers[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_hello_may_come_byte_by_byte() {
    let pair = Pair::new(config(Mode::Hybrid));
    let mut stream = TcpStream::connect(pair.listener.local_addr()).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in *ANOTHER_VERSION {
        stream.write_all(&[byte]).unwrap();
        // Usually long enough for each to come alone.
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(
        refusal(stream).reason,
        RefuseReason::VersionMismatch { .. }
    ));
}

#[test]
fn another_wire_version_is_refused_with_both_sides_ranges() {
    let pair = Pair::new(config(Mode::Hybrid));
    let mut stream = TcpStream::connect(pair.listener.local_addr()).unwrap();
    stream.write_all(ANOTHER_VERSION).unwrap();
    let refuse = refusal(stream);
    assert!(
        matches!(refuse.reason, RefuseReason::VersionMismatch { .. }),
        "{refuse}"
    );
}

/// A hello of version 9, with the one parameter that comes first: min_version 9.
const ANOTHER_VERSION: &[u8; 18] = b"ADVB\x09\x00\x01\x00\x06\x00\x00\x00\x01\x00\x02\x00\x09\x00";

/// What a listener that refuses answers.
fn refusal(mut stream: TcpStream) -> Refuse {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let Ok(Peek::Complete { frame, .. }) = Frame::peek(&answer) else {
        panic!("no frame: {answer:?}")
    };
    match Handshake::decode(&frame) {
        Ok(Handshake::Refuse(refuse)) => refuse,
        other => panic!("no refusal: {other:?}"),
    }
}

#[test]
fn a_peer_that_is_no_adverb_is_named_so() {
    let pair = Pair::new(config(Mode::Hybrid));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stranger = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        stream
    });
    let error = pair.client.connect(address).unwrap_err();
    assert!(matches!(*error.kind, ConnectErrorKind::Handshake(_)), "{error}");
    assert_eq!(pair.client.stats().endpoints, 0);
    drop(stranger.join().unwrap());
}

#[test]
fn a_silent_peer_costs_no_more_than_the_timeout() {
    let config = config(Mode::Hybrid).connect_timeout(Duration::from_millis(200));
    let pair = Pair::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let started = Instant::now();
    let error = pair.client.connect(listener.local_addr().unwrap()).unwrap_err();
    assert!(
        matches!(
            *error.kind,
            ConnectErrorKind::Timeout {
                stage: "the peer's answer to the handshake",
                ..
            }
        ),
        "{error}"
    );
    assert!(started.elapsed() < LONG);
    assert_eq!(pair.client.stats().endpoints, 0);
}

#[test]
fn a_connection_may_take_for_ever_to_open() {
    let pair = Pair::new(config(Mode::Hybrid).connect_timeout(Duration::MAX));
    pair.connect();
}

#[test]
fn nobody_listening_says_so() {
    let pair = Pair::new(config(Mode::Hybrid));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = pair.client.connect(free).unwrap_err();
    assert!(
        error.to_string().contains("see whether the peer listens there"),
        "{error}"
    );
}

#[test]
fn a_port_that_goes_down_ends_its_endpoints_with_that_reason() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (client, _server) = pair.connect();
    let Some(device) = pair.controls() else { return };
    assert!(device.set_port_active("soft0", false));
    let ended = client.closed().wait(LONG).unwrap();
    let event = AsyncEvent {
        kind: AsyncEventKind::PortErr,
        source: EventSource::Port(1),
    };
    assert_eq!(ended.kind, EndpointErrorKind::Device(event));
    let error = pair.client.connect(pair.listener.local_addr()).unwrap_err();
    assert!(
        matches!(
            &*error.kind,
            ConnectErrorKind::Port(OpenError::PortDown { port: 1, .. })
        ),
        "{error}"
    );
    assert!(device.set_port_active("soft0", true));
    pair.connect();
}

#[test]
fn a_fatal_device_ends_everything_on_it() {
    let pair = Pair::new(config(Mode::Event));
    let connections: Vec<_> = (0..3).map(|_| pair.connect()).collect();
    let event = AsyncEvent {
        kind: AsyncEventKind::DeviceFatal,
        source: EventSource::Device,
    };
    let Some(device) = pair.controls() else { return };
    device.inject("soft0", event);
    for (client, _) in &connections {
        assert_eq!(
            client.closed().wait(LONG).unwrap().kind,
            EndpointErrorKind::Device(event)
        );
    }
}

#[test]
fn a_worker_that_is_dropped_ends_its_connections() {
    let pair = Pair::new(config(Mode::Hybrid).keepalive(Some(Duration::from_millis(50))));
    let (client, server) = pair.connect();
    let Pair { client: worker, .. } = &pair;
    let worker = worker.clone();
    drop(client);
    drop(worker);
    assert_eq!(
        server.closed().wait(LONG).map(|ended| ended.kind),
        Ok(EndpointErrorKind::PeerClosed(GoodbyeReason::Closed))
    );
}

#[test]
fn waiting_ends_in_time() {
    let pair = Pair::new(config(Mode::Hybrid));
    let short = Duration::from_millis(10);
    assert_eq!(
        pair.client.wait_until(short, || false),
        Err(WaitError::Timeout(short))
    );
    assert_eq!(
        pair.listener.accept(short).map(|_| ()),
        Err(WaitError::Timeout(short))
    );
}
