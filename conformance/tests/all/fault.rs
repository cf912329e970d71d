//! Each fault, on the software device.

use std::os::fd::AsFd;
use std::sync::Arc;

use adverb_conformance::Operation;
use adverb_verbs::{
    Access, AsyncEvent, AsyncEventKind, CompChannel, CompEvent, CqInit, ErrorKind, EventSource, Provider,
    QpState, Region, SendFlags, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_fds};

use crate::common::{Bench, RECV_COOKIE, SEND_COOKIE, caps, poll};

const ENOMEM: i32 = 12;
const RECV_EVENT: Option<CompEvent> = Some(CompEvent { cookie: RECV_COOKIE });

fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll_fds(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        == 1
}

/// What a waiter would see: whether it is woken, and the event that it then finds.
fn event(channel: &Arc<dyn CompChannel>) -> Option<CompEvent> {
    if !is_readable(&channel.fd()) {
        return None;
    }
    channel.next_event().unwrap()
}

#[test]
fn a_lost_event_wakes_nobody_and_the_next_one_does() {
    let bench = Bench::new();
    let (mut a, mut b) = bench.pair();
    b.receive(3);
    // The second end's queues come after the first one's.
    let cq = bench
        .faults()
        .cqs()
        .into_iter()
        .rfind(|cq| cq.cookie() == RECV_COOKIE)
        .unwrap();
    b.recv_cq.req_notify(true).unwrap();
    cq.lose_events(1);
    a.send(b"lost", SendFlags::SOLICITED);
    assert_eq!(event(&b.channel), None);
    assert_eq!(poll(&b.recv_cq).len(), 1, "the completion itself is there");
    b.recv_cq.req_notify(true).unwrap();
    a.send(b"heard", SendFlags::SOLICITED);
    assert_eq!(event(&b.channel), RECV_EVENT);
    assert_eq!((b.recv_cq.unacked_events(), bench.faults().carried_out()), (1, 1));
}

#[test]
fn a_lost_event_does_not_silence_the_other_queues_of_its_channel() {
    let bench = Bench::new();
    let (mut a, mut b) = bench.pair();
    a.receive(1);
    b.receive(1);
    let faults = bench.faults();
    faults.cq(RECV_COOKIE).unwrap().lose_events(1);
    a.recv_cq.req_notify(false).unwrap();
    a.send_cq.req_notify(false).unwrap();
    b.send(b"lost", SendFlags::empty());
    a.send(b"heard", SendFlags::SIGNALED);
    assert_eq!(event(&a.channel), Some(CompEvent { cookie: SEND_COOKIE }));
    assert_eq!(event(&a.channel), None);
}

#[test]
fn a_duplicated_event_comes_twice_and_counts_twice() {
    let bench = Bench::new();
    let (mut a, mut b) = bench.pair();
    b.receive(1);
    for cq in bench.faults().cqs() {
        cq.duplicate_events(1);
    }
    b.recv_cq.req_notify(false).unwrap();
    a.send(b"x", SendFlags::empty());
    assert_eq!(event(&b.channel), RECV_EVENT);
    assert_eq!(event(&b.channel), RECV_EVENT);
    assert_eq!(event(&b.channel), None);
    assert_eq!(b.recv_cq.unacked_events(), 2);
    b.recv_cq.ack_events();
    assert_eq!(b.recv_cq.unacked_events(), 0);
}

#[test]
fn a_raised_event_wakes_for_nothing() {
    let bench = Bench::new();
    let (end, _) = bench.pair();
    bench.faults().cq(RECV_COOKIE).unwrap().raise_event();
    assert_eq!(event(&end.channel), RECV_EVENT);
    assert_eq!(event(&end.channel), None);
    assert_eq!(poll(&end.recv_cq), []);
}

#[test]
fn a_held_queue_shows_its_completions_after_those_of_another() {
    let bench = Bench::new();
    let (mut a, mut b) = bench.pair();
    a.receive(1);
    b.receive(2);
    let sends = bench.faults().cq(SEND_COOKIE).unwrap();
    sends.hold();
    a.send_cq.req_notify(false).unwrap();
    a.send(b"1", SendFlags::SIGNALED);
    a.send(b"2", SendFlags::SIGNALED);
    b.send(b"credits", SendFlags::SIGNALED);
    assert_eq!(poll(&a.send_cq), []);
    assert_eq!(event(&a.channel), None);
    assert_eq!(poll(&a.recv_cq).len(), 1, "the peer's credits come first");
    sends.release(1);
    assert_eq!(event(&a.channel), Some(CompEvent { cookie: SEND_COOKIE }));
    assert_eq!(poll(&a.send_cq).len(), 1);
    assert_eq!(poll(&a.send_cq), []);
    sends.release_all();
    assert_eq!(poll(&a.send_cq).len(), 1);
}

#[test]
fn arming_a_held_queue_is_answered_when_it_is_released() {
    for completions in [0, 1] {
        let bench = Bench::new();
        let (mut a, mut b) = bench.pair();
        b.receive(2);
        let sends = bench.faults().cq(SEND_COOKIE).unwrap();
        sends.hold();
        for _ in 0..completions {
            a.send(b"x", SendFlags::SIGNALED);
        }
        a.send_cq.req_notify(false).unwrap();
        sends.release_all();
        let expected = Some(CompEvent { cookie: SEND_COOKIE });
        if completions == 0 {
            assert_eq!(event(&a.channel), None);
            a.send(b"x", SendFlags::SIGNALED);
        }
        assert_eq!(event(&a.channel), expected);
        assert_eq!(poll(&a.send_cq).len(), 1);
        assert_eq!(event(&a.channel), None);
    }
}

#[test]
fn polls_fail_as_often_as_asked() {
    let bench = Bench::new();
    let (end, _) = bench.pair();
    bench.faults().cq(SEND_COOKIE).unwrap().fail_polls(2);
    for _ in 0..2 {
        let error = end.send_cq.poll(&mut []).unwrap_err();
        assert_eq!((error.operation, error.kind), ("ibv_poll_cq", ErrorKind::Os(5)));
    }
    assert_eq!(end.send_cq.poll(&mut []), Ok(0));
}

#[test]
fn a_post_is_accepted_in_part() {
    let bench = Bench::new();
    let (mut a, mut b) = bench.pair();
    bench.faults().fail_recv_after(3);
    let mut slots: Vec<_> = (0..8).map(|_| b.pool.take().unwrap()).collect();
    let error = b.rq.post(&mut slots).unwrap_err();
    assert_eq!((error.accepted, error.source.kind), (3, ErrorKind::Os(ENOMEM)));
    assert_eq!((slots.len(), b.rq.posted()), (5, 3));
    b.rq.post(&mut slots).unwrap();

    bench.faults().fail_send_after(2);
    a.send(b"first", SendFlags::SIGNALED);
    let mut requests: Vec<_> = (0..4).map(|_| a.request(b"more", SendFlags::SIGNALED)).collect();
    let error = a.sq.post(&mut requests).unwrap_err();
    assert_eq!((error.accepted, error.source.kind), (1, ErrorKind::Os(ENOMEM)));
    assert_eq!(requests.len(), 3);
    a.sq.post(&mut requests).unwrap();
    a.settle();
    assert_eq!(poll(&b.recv_cq).len(), 5);
}

#[test]
fn a_killed_queue_pair_flushes_behind_its_owners_back() {
    let bench = Bench::new();
    let (a, mut b) = bench.pair();
    b.receive(2);
    assert!(bench.faults().kill_qp(b.qp.qpn()));
    assert_eq!(b.qp.state(), Ok(QpState::Err));
    let statuses: Vec<_> = poll(&b.recv_cq).iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::WrFlushErr; 2]);
    assert_eq!(bench.faults().kill_qps(), 2);
    assert_eq!(a.qp.state(), Ok(QpState::Err));
    let gone = b.qp.qpn();
    drop(b);
    assert!(!bench.faults().kill_qp(gone));
}

#[test]
fn verbs_fail_as_often_as_asked() {
    let bench = Bench::new();
    let pd = bench.open().alloc_pd().unwrap();
    bench.faults().fail(Operation::RegMr, ENOMEM, 1);
    let error = Region::new(&*pd, 64, Access::LOCAL_WRITE).unwrap_err();
    assert!(error.to_string().contains("ulimit -l unlimited"), "{error}");
    Region::new(&*pd, 64, Access::LOCAL_WRITE).unwrap();
    bench.faults().fail(Operation::OpenDevice, 13, 1);
    assert_eq!(bench.provider.open("soft0").unwrap_err().kind, ErrorKind::Os(13));
    bench.open();
}

#[test]
fn an_injected_async_event_wakes_and_comes_once() {
    let bench = Bench::new();
    let device = bench.open();
    let event = AsyncEvent {
        kind: AsyncEventKind::DeviceFatal,
        source: EventSource::Device,
    };
    assert_eq!(bench.faults().inject("soft9", event), 0);
    assert!(!is_readable(&device.async_fd()));
    assert_eq!(bench.faults().inject("soft0", event), 1);
    assert!(is_readable(&device.async_fd()));
    assert_eq!(device.next_async_event(), Ok(Some(event)));
    assert_eq!(device.next_async_event(), Ok(None));
    assert!(!is_readable(&device.async_fd()));
}

#[test]
fn an_async_event_of_the_inner_device_comes_through() {
    let bench = Bench::new();
    let device = bench.open();
    bench.soft.set_port_active("soft0", false);
    assert!(is_readable(&device.async_fd()));
    assert_eq!(
        device.next_async_event().unwrap().unwrap().kind,
        AsyncEventKind::PortErr
    );
}

#[test]
fn handles_of_the_inner_provider_are_foreign() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.open(), bench.soft.open("soft0").unwrap());
    let channel = theirs.create_comp_channel().unwrap();
    let error = ours.create_cq(&CqInit::new(4).channel(&channel)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::WrongProvider);
    let cq = theirs.create_cq(&CqInit::new(4)).unwrap();
    let init = adverb_verbs::QpInit {
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        caps: caps(),
        sq_sig_all: false,
    };
    let error = ours.alloc_pd().unwrap().create_qp(&init).unwrap_err();
    assert_eq!(error.kind, ErrorKind::WrongProvider);
}
