//! The transport on a device that goes wrong on demand: lost and spurious events, queues out of step, refused posts, dead queue pairs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adverb::{
    Config, ConnectErrorKind, Context, Endpoint, EndpointErrorKind, GoodbyeReason, Listener, Mode, Outcome,
    ProgressThread, RegisterError, Rights, RmaError, Worker, WorkerError,
};
use adverb_conformance::{CqFaults, FaultProvider, Faults, Operation};
use adverb_verbs::{AsyncEvent, AsyncEventKind, ErrorKind, EventSource, WcStatus};
use common::{ECHO, LONG, REPLY, config, soft};

/// ENOMEM on Linux.
const ENOMEM: i32 = 12;

/// The cookies of a worker's queues.
const RECV: u64 = 0;
const SEND: u64 = 1;

/// A client on the device with faults, and a server that echoes on one without.
struct Bench {
    faults: Faults,
    client: Worker,
    server: Worker,
    listener: Listener,
    replies: Arc<AtomicU64>,
    _driver: ProgressThread,
}

impl Bench {
    fn new(config: Config) -> Self {
        let faulty = FaultProvider::new(Arc::new(soft()));
        let faults = faulty.faults();
        let server = Context::builder().provider(Arc::new(soft())).open().unwrap();
        let server = server.worker(config.clone()).unwrap();
        server.on_message(ECHO, |endpoint, message| {
            drop(endpoint.send(REPLY, &[], message.payload()))
        });
        let client = Context::builder().provider(Arc::new(faulty)).open().unwrap();
        let client = client.worker(config).unwrap();
        let replies = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&replies);
        client.on_message(REPLY, move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let listener = server.listen("127.0.0.1:0").unwrap();
        let driver = server.progress_thread().unwrap();
        Self {
            faults,
            client,
            server,
            listener,
            replies,
            _driver: driver,
        }
    }

    fn connect(&self) -> (Endpoint, Endpoint) {
        let client = self.client.connect(self.listener.local_addr()).unwrap();
        (client, self.listener.accept(LONG).unwrap())
    }

    fn cq(&self, cookie: u64) -> CqFaults {
        self.faults.cq(cookie).unwrap()
    }

    /// Sends one message and waits for its echo.
    fn echo(&self, endpoint: &Endpoint) {
        let before = self.replies.load(Ordering::Relaxed);
        drop(endpoint.send(ECHO, &[], b"payload").unwrap());
        self.client
            .wait_until(LONG, || self.replies.load(Ordering::Relaxed) > before)
            .unwrap();
    }
}

#[test]
fn a_lost_event_delays_a_message_by_no_more_than_the_safety_interval() {
    let bench = Bench::new(config(Mode::Event));
    let (endpoint, _server) = bench.connect();
    bench.echo(&endpoint);
    for _ in 0..20 {
        bench.cq(RECV).lose_events(1);
        bench.echo(&endpoint);
    }
    // All came, by safety interval or because they were there before it slept. A driver that loses every event is found out.
    bench.cq(RECV).lose_events(u32::MAX);
    bench.cq(SEND).lose_events(u32::MAX);
    for _ in 0..50 {
        // The echo arrives while the client sleeps for something else.
        drop(endpoint.send(ECHO, &[], b"payload").unwrap());
        let _ = bench.client.wait_until(Duration::from_millis(20), || false);
    }
    bench
        .client
        .wait_until(LONG, || bench.replies.load(Ordering::Relaxed) == 71)
        .unwrap();
    let progress = bench.client.stats().progress;
    assert!(progress.wakes.safety > 0, "{progress:?}");
}

#[test]
fn events_for_nothing_are_counted_and_harmless() {
    let bench = Bench::new(config(Mode::Event));
    let (endpoint, _server) = bench.connect();
    for _ in 0..20 {
        bench.cq(RECV).duplicate_events(1);
        bench.cq(RECV).raise_event();
        bench.echo(&endpoint);
        let _ = bench.client.wait_until(Duration::from_millis(5), || false);
    }
    let progress = bench.client.stats().progress;
    assert!(progress.spurious_wakes > 0, "{progress:?}");
    assert_eq!(progress.missed_completions, 0);
}

#[test]
fn credits_that_come_before_the_send_completions_do_no_harm() {
    // The send queue's completions stay away: the peer's answers, and with them credits, come first.
    let bench = Bench::new(config(Mode::Hybrid).send_depth(8).window(4));
    let (endpoint, _server) = bench.connect();
    bench.cq(SEND).hold();
    for _ in 0..50 {
        drop(endpoint.send(ECHO, &[], &[1; 2000]).unwrap());
    }
    let _ = bench.client.wait_until(Duration::from_millis(100), || false);
    let before = bench.replies.load(Ordering::Relaxed);
    assert!(
        before < 50,
        "eight sends fit the queue, {before} messages came back"
    );
    bench.cq(SEND).release_all();
    bench
        .client
        .wait_until(LONG, || bench.replies.load(Ordering::Relaxed) == 50)
        .unwrap();
}

#[test]
fn receives_that_come_late_are_still_in_order() {
    let bench = Bench::new(config(Mode::Hybrid));
    let (endpoint, _server) = bench.connect();
    bench.cq(RECV).hold();
    for _ in 0..20 {
        drop(endpoint.send(ECHO, &[], b"x").unwrap());
    }
    for _ in 0..20 {
        bench.cq(RECV).release(1);
        let _ = bench.client.wait_until(Duration::from_millis(1), || false);
    }
    bench.cq(RECV).release_all();
    bench
        .client
        .wait_until(LONG, || bench.replies.load(Ordering::Relaxed) == 20)
        .unwrap();
    assert!(endpoint.is_open());
}

#[test]
fn a_refused_post_ends_the_endpoint_with_the_verbs_error() {
    let bench = Bench::new(config(Mode::Hybrid));
    let (bad, _bad_server) = bench.connect();
    let (good, _good_server) = bench.connect();
    bench.faults.fail_send_after(0);
    drop(bad.send(ECHO, &[], b"x").unwrap());
    let ended = bad.closed().wait(LONG).unwrap();
    let EndpointErrorKind::Post(error) = &ended.kind else {
        panic!("{ended}")
    };
    assert_eq!(
        (error.operation, &error.kind),
        ("ibv_post_send", &ErrorKind::Os(ENOMEM))
    );
    bench.echo(&good);
}

#[test]
fn a_queue_pair_that_dies_ends_its_endpoint_only() {
    let bench = Bench::new(config(Mode::Event));
    let (bad, _bad_server) = bench.connect();
    let (good, _good_server) = bench.connect();
    assert!(bench.faults.kill_qp(bad.link().local.qpn));
    drop(bad.send(ECHO, &[], b"x"));
    let ended = bad.closed().wait(LONG).unwrap();
    assert!(
        matches!(
            ended.kind,
            EndpointErrorKind::Completion {
                status: WcStatus::WrFlushErr,
                ..
            }
        ),
        "{ended}"
    );
    bench.echo(&good);
}

#[test]
fn a_queue_pairs_fatal_event_ends_its_endpoint_at_once() {
    for kind in [
        AsyncEventKind::QpFatal,
        AsyncEventKind::QpReqErr,
        AsyncEventKind::QpAccessErr,
    ] {
        let bench = Bench::new(config(Mode::Event));
        let (bad, _bad_server) = bench.connect();
        let (good, _good_server) = bench.connect();
        let event = AsyncEvent {
            kind,
            source: EventSource::Qp(bad.link().local.qpn),
        };
        assert!(bench.faults.inject("soft0", event) > 0);
        assert_eq!(
            bad.closed().wait(LONG).unwrap().kind,
            EndpointErrorKind::Device(event)
        );
        bench.echo(&good);
    }
}

#[test]
fn events_that_end_nothing_end_nothing() {
    let bench = Bench::new(config(Mode::Event));
    let (endpoint, _server) = bench.connect();
    let qpn = endpoint.link().local.qpn;
    for (kind, source) in [
        (AsyncEventKind::CommEst, EventSource::Qp(qpn)),
        (AsyncEventKind::SqDrained, EventSource::Qp(qpn)),
        (AsyncEventKind::PortActive, EventSource::Port(1)),
        (AsyncEventKind::GidChange, EventSource::Port(1)),
        (AsyncEventKind::PortErr, EventSource::Port(2)),
        (AsyncEventKind::SrqLimitReached, EventSource::Srq(0)),
        (AsyncEventKind::Unknown(99), EventSource::Other),
    ] {
        bench.faults.inject("soft0", AsyncEvent { kind, source });
    }
    bench.echo(&endpoint);
    assert!(endpoint.is_open());
}

#[test]
fn memory_that_may_not_be_locked_is_named_so() {
    let faulty = FaultProvider::new(Arc::new(soft()));
    let faults = faulty.faults();
    let context = Context::builder().provider(Arc::new(faulty)).open().unwrap();
    faults.fail(Operation::RegMr, ENOMEM, 1);
    let error = context.worker(Config::new()).unwrap_err();
    assert!(matches!(error, WorkerError::Verbs(_)), "{error}");
    assert!(error.to_string().contains("ulimit -l unlimited"), "{error}");
}

#[test]
fn a_connection_that_cannot_be_made_leaves_nothing() {
    let bench = Bench::new(config(Mode::Hybrid));
    for operation in [Operation::CreateQp, Operation::ModifyQp, Operation::RegMr] {
        // `create_qp` is tried again without inline data.
        bench.faults.fail(operation, ENOMEM, 2);
        let result = bench.client.connect(bench.listener.local_addr());
        match result {
            Err(error) => assert!(
                matches!(*error.kind, ConnectErrorKind::Verbs(_)),
                "{operation:?}: {error}"
            ),
            Ok(endpoint) => panic!("{operation:?}: {endpoint:?}"),
        }
        bench.faults.fail(operation, ENOMEM, 0);
        assert_eq!(bench.client.stats().endpoints, 0, "{operation:?}");
    }
    let (endpoint, _server) = bench.connect();
    bench.echo(&endpoint);
}

#[test]
fn a_completion_queue_that_fails_stops_the_worker_with_that_error() {
    let bench = Bench::new(config(Mode::Event));
    let (_endpoint, _server) = bench.connect();
    bench.cq(RECV).fail_polls(u32::MAX);
    let error = bench.client.wait_until(LONG, || false).unwrap_err();
    assert!(error.to_string().contains("ibv_poll_cq on soft0"), "{error}");
}

/// A program that ends as soon as it hears that the peer has closed must not take the answer to the goodbye with it.
#[test]
fn the_side_that_answers_a_goodbye_has_ended_when_the_answer_is_at_the_peer() {
    let bench = Bench::new(config(Mode::Hybrid));
    let (endpoint, server) = bench.connect();
    bench.cq(SEND).hold();
    let closing = server.close();
    // The answer goes out, and its completion stays away.
    let early = bench
        .client
        .wait_until(Duration::from_millis(100), || endpoint.error().is_some());
    assert!(early.is_err(), "{:?}", endpoint.error());
    assert!(!endpoint.is_open());
    bench.cq(SEND).release_all();
    let ended = endpoint.closed().wait(LONG).unwrap();
    assert_eq!(ended.kind, EndpointErrorKind::PeerClosed(GoodbyeReason::Closed));
    assert_eq!(closing.wait(LONG).unwrap().kind, EndpointErrorKind::Closed);

    // Nor does it wait for ever: what never comes is given up when the queue pair is.
    let (endpoint, server) = bench.connect();
    bench.cq(SEND).hold();
    drop(server.close());
    let ended = endpoint.closed().wait(LONG).unwrap();
    assert_eq!(ended.kind, EndpointErrorKind::PeerClosed(GoodbyeReason::Closed));
}

#[test]
fn a_one_sided_operation_that_the_device_does_not_take_was_not_sent() {
    let bench = Bench::new(config(Mode::Hybrid));
    let (endpoint, _server) = bench.connect();
    let there = bench.server.context().register(8, Rights::all()).unwrap();
    let here = bench.client.context().register(8, Rights::empty()).unwrap();
    bench.faults.fail_send_after(0);
    let refused = endpoint.put(&here, .., &there.remote().unwrap(), 0);
    let Err(RmaError::Ended { outcome, error }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(outcome, Outcome::NotSent);
    assert!(matches!(error.kind, EndpointErrorKind::Post(_)), "{error}");
    // Nothing is under way.
    endpoint.flush().wait(LONG).unwrap();
}

#[test]
fn memory_that_cannot_be_registered_is_an_error_and_harms_no_endpoint() {
    let bench = Bench::new(config(Mode::Hybrid));
    let (endpoint, _server) = bench.connect();
    bench.faults.fail(Operation::RegMr, ENOMEM, 1);
    let refused = bench.client.context().register(64, Rights::REMOTE_READ);
    let Err(RegisterError::Verbs(error)) = refused else {
        panic!("{refused:?}")
    };
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    // What the first atomic brings needs memory, too.
    let there = bench.server.context().register(8, Rights::all()).unwrap();
    let word = there.remote().unwrap();
    bench.faults.fail(Operation::RegMr, ENOMEM, 1);
    let refused = endpoint.fetch_add(&word, 0, 1);
    assert!(matches!(refused, Err(RmaError::Register(_))), "{refused:?}");
    endpoint.flush().wait(LONG).unwrap();
    bench.echo(&endpoint);
    assert_eq!(endpoint.fetch_add(&word, 0, 1).unwrap().wait(LONG), Ok(0));
}

#[test]
fn an_operation_whose_completion_never_comes_ends_with_its_endpoint() {
    let bench = Bench::new(config(Mode::Hybrid));
    let (endpoint, _server) = bench.connect();
    let near = bench.client.context().register(1 << 16, Rights::empty()).unwrap();
    let far = bench.server.context().register(1 << 16, Rights::all()).unwrap();
    let remote = far.remote().unwrap();
    bench.cq(SEND).hold();
    let put = endpoint.put(&near, .., &remote, 0).unwrap();
    let fetch = endpoint.fetch_add(&remote, 0, 1).unwrap();
    let early = put.wait(Duration::from_millis(20));
    assert!(matches!(early, Err(RmaError::Timeout { .. })), "{early:?}");
    drop(near);
    endpoint.abort();
    let outcome = put.wait(LONG);
    let Err(RmaError::Ended {
        outcome: Outcome::MaybeDelivered,
        ..
    }) = &outcome
    else {
        panic!("{outcome:?}")
    };
    assert!(fetch.wait(LONG).is_err());
    // What comes later is nobody's.
    bench.cq(SEND).release_all();
    let _ = bench.client.wait_until(Duration::from_millis(20), || false);
    assert_eq!(put.wait(LONG), outcome);
}
