//! What the loopback device does beyond the conformance suite: its controls, its threads, its strictness.

use std::sync::Arc;

use crate::common::{End, RECV_COOKIE, pair, poll};
use adverb_conformance::{Loopback, LoopbackConfig};
use adverb_verbs::{
    AsyncEvent, AsyncEventKind, EventSource, Provider, QpModify, QpState, SendFlags, SrqInit, WcStatus,
};

fn statuses(completions: &[adverb_verbs::WorkCompletion]) -> Vec<WcStatus> {
    completions.iter().map(|wc| wc.status).collect()
}

#[test]
fn a_message_arrives_with_its_bytes_when_the_post_returns() {
    let (mut a, mut b) = pair(&Loopback::default());
    b.receive(1);
    a.send(b"hello", SendFlags::SIGNALED);
    let wc = poll(&b.recv_cq)[0];
    let received = b.rq.complete(&wc).unwrap();
    assert_eq!(&received.slot.as_slice()[..received.len], b"hello");
    assert_eq!(statuses(&poll(&a.send_cq)), [WcStatus::Success]);
}

#[test]
fn a_message_without_a_receive_waits_for_one() {
    let (mut a, mut b) = pair(&Loopback::default());
    a.send(b"one", SendFlags::SIGNALED | SendFlags::INLINE);
    a.send(b"two", SendFlags::SIGNALED);
    assert_eq!(poll(&a.send_cq), []);
    b.receive(1);
    assert_eq!(poll(&a.send_cq).len(), 1);
    b.receive(1);
    assert_eq!(poll(&a.send_cq).len(), 1);
    let texts: Vec<_> = poll(&b.recv_cq)
        .iter()
        .map(|wc| {
            let received = b.rq.complete(wc).unwrap();
            received.slot.as_slice()[..received.len].to_vec()
        })
        .collect();
    assert_eq!(texts, [b"one", b"two"]);
}

#[test]
fn a_message_without_a_shared_receive_waits_for_one() {
    let provider = Loopback::default();
    let srq = |pd: &dyn adverb_verbs::Pd| {
        let init = SrqInit {
            max_wr: 4,
            max_sge: 1,
            cookie: 9,
        };
        Some(pd.create_srq(&init).unwrap())
    };
    let mut a = End::new(&provider, "loop0");
    let mut b = End::with_srq(&provider, "loop0", srq);
    a.connect(&b, 7);
    b.connect(&a, 7);
    a.send(b"one", SendFlags::SIGNALED);
    assert_eq!(provider.expire_rnr(), 0, "rnr_retry 7 waits for ever");
    b.receive(1);
    assert_eq!(statuses(&poll(&a.send_cq)), [WcStatus::Success]);
    assert_eq!(statuses(&poll(&b.recv_cq)), [WcStatus::Success]);
}

#[test]
fn expired_rnr_retries_fail_the_first_and_flush_the_rest() {
    let provider = Loopback::default();
    let (mut a, b) = pair(&provider);
    a.send(b"one", SendFlags::empty());
    a.send(b"two", SendFlags::empty());
    assert_eq!(provider.expire_rnr(), 1);
    assert_eq!(
        statuses(&poll(&a.send_cq)),
        [WcStatus::RnrRetryExcErr, WcStatus::WrFlushErr]
    );
    assert_eq!(a.qp.state(), Ok(QpState::Err));
    assert_eq!(b.qp.state(), Ok(QpState::Rts));
}

#[test]
fn a_peer_that_goes_while_a_message_waits_for_its_receive_is_noticed() {
    for go in [
        (|b| drop(b)) as fn(End),
        |b| b.qp.modify(&QpModify::Err).unwrap(),
        |b| b.qp.modify(&QpModify::Reset).unwrap(),
    ] {
        let (mut a, b) = pair(&Loopback::new(LoopbackConfig::default()));
        a.send(b"one", SendFlags::empty());
        go(b);
        assert_eq!(statuses(&poll(&a.send_cq)), [WcStatus::RetryExcErr]);
    }
}

#[test]
fn a_place_in_the_send_queue_is_free_when_its_completion_was_polled() {
    let (mut a, mut b) = pair(&Loopback::default());
    b.receive(16);
    for i in 0..16 {
        let last = if i == 15 {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        a.send(b"x", last);
    }
    let received = poll(&b.recv_cq);
    assert_eq!(received.len(), 16, "all are carried out");
    received.iter().for_each(|wc| drop(b.rq.complete(wc)));
    let request = a.request(adverb_verbs::SendOp::Send, b"y", SendFlags::empty());
    let refused = a.sq.post(&mut vec![request]).unwrap_err();
    assert_eq!(refused.accepted, 0);
    let wc = poll(&a.send_cq);
    assert_eq!(wc.len(), 1);
    assert_eq!(a.sq.complete(&wc[0], drop), 16);
    b.receive(1);
    a.send(b"y", SendFlags::SIGNALED);
    assert_eq!(poll(&a.send_cq).len(), 1);
}

#[test]
fn two_ends_that_post_to_each_other_at_once_do_not_deadlock() {
    let (a, b) = pair(&Loopback::default());
    const MESSAGES: usize = 5_000;
    let run = |mut end: End| {
        move || {
            let (mut posted, mut sent, mut received) = (0, 0, 0);
            while sent < MESSAGES || received < MESSAGES {
                while end.rq.free() > 0 {
                    end.receive(1);
                }
                if posted < MESSAGES && end.sq.free() > 0 {
                    end.send(b"ping", SendFlags::SIGNALED | SendFlags::SOLICITED);
                    posted += 1;
                }
                // Gives the other one the processor, where there is only one.
                std::thread::yield_now();
                for wc in poll(&end.send_cq) {
                    assert_eq!(wc.status, WcStatus::Success);
                    sent += end.sq.complete(&wc, drop);
                }
                for wc in poll(&end.recv_cq) {
                    assert_eq!(wc.status, WcStatus::Success);
                    end.rq.complete(&wc).unwrap();
                    received += 1;
                }
            }
            end
        }
    };
    let (a, b) = (std::thread::spawn(run(a)), std::thread::spawn(run(b)));
    let (_a, _b) = (a.join().unwrap(), b.join().unwrap());
}

#[test]
fn each_opening_gets_its_own_copy_of_a_port_event() {
    let provider = Loopback::default();
    let devices = [provider.open("loop0").unwrap(), provider.open("loop0").unwrap()];
    let other = provider.open("loop1").unwrap();
    assert!(provider.set_port_active("loop0", false));
    assert!(!provider.set_port_active("loop0", false));
    for device in devices {
        let event = device.next_async_event().unwrap().unwrap();
        assert_eq!(
            (event.kind, event.source),
            (AsyncEventKind::PortErr, EventSource::Port(1))
        );
        assert_eq!(device.next_async_event(), Ok(None));
    }
    assert_eq!(other.next_async_event(), Ok(None));
}

#[test]
fn an_event_of_a_queue_pair_goes_to_the_opening_that_made_it() {
    let provider = Loopback::default();
    let (a, b) = pair(&provider);
    let stranger = provider.open("loop0").unwrap();
    let event = AsyncEvent {
        kind: AsyncEventKind::QpFatal,
        source: EventSource::Qp(a.qp.qpn()),
    };
    assert_eq!(provider.inject("loop0", event), 1);
    assert_eq!(a.device.next_async_event(), Ok(Some(event)));
    assert_eq!(b.device.next_async_event(), Ok(None));
    assert_eq!(stranger.next_async_event(), Ok(None));
}

#[test]
fn a_port_that_is_down_ends_what_is_sent() {
    let provider = Loopback::default();
    let (mut a, mut b) = pair(&provider);
    b.receive(1);
    provider.set_port_active("loop1", false);
    a.send(b"x", SendFlags::empty());
    assert_eq!(statuses(&poll(&a.send_cq)), [WcStatus::RetryExcErr]);
}

#[test]
fn handles_can_be_dropped_in_any_order_while_work_is_posted() {
    let (mut a, mut b) = pair(&Loopback::default());
    b.receive(4);
    a.send(b"x", SendFlags::SIGNALED);
    let End {
        device,
        pd,
        channel,
        send_cq,
        recv_cq,
        qp,
        sq,
        rq,
        pool,
    } = b;
    drop((device, pd, channel, send_cq, recv_cq, qp));
    drop(pool);
    drop(rq);
    drop(sq);
    assert_eq!(statuses(&poll(&a.send_cq)), [WcStatus::Success]);
}

#[test]
fn a_dropped_shared_queue_gives_its_slots_back() {
    let provider = Loopback::default();
    let srq = |pd: &dyn adverb_verbs::Pd| {
        let init = SrqInit {
            max_wr: 4,
            max_sge: 1,
            cookie: 9,
        };
        Some(pd.create_srq(&init).unwrap())
    };
    let mut end = End::with_srq(&provider, "loop0", srq);
    end.receive(4);
    let End { rq, qp, sq, pool, .. } = end;
    assert_eq!(pool.available(), 60);
    drop((qp, sq));
    drop(rq);
    assert_eq!(pool.available(), 64);
    assert_eq!(
        Arc::strong_count(&end.recv_cq),
        1,
        "the queue pair let go of its queues"
    );
}

#[test]
fn each_completion_that_finds_its_queue_full_raises_one_cq_err() {
    let (mut a, mut b) = End::pair_with_cqe(&Loopback::default(), 4);
    b.receive(7);
    for _ in 0..7 {
        a.send(b"x", SendFlags::SIGNALED);
        for wc in poll(&a.send_cq) {
            a.sq.complete(&wc, drop);
        }
    }
    for _ in 0..3 {
        let event = b.device.next_async_event().unwrap().unwrap();
        assert_eq!(
            (event.kind, event.source),
            (AsyncEventKind::CqErr, EventSource::Cq(RECV_COOKIE))
        );
    }
    assert_eq!(b.device.next_async_event(), Ok(None));
    assert_eq!(poll(&b.recv_cq).len(), 4, "what fitted is there");
}

#[test]
fn a_send_in_sqd_waits_until_the_queue_pair_resumes() {
    let (mut a, mut b) = pair(&Loopback::default());
    b.receive(1);
    a.qp.modify(&QpModify::Sqd { notify: true }).unwrap();
    let event = a.device.next_async_event().unwrap().unwrap();
    assert_eq!(
        (event.kind, event.source),
        (AsyncEventKind::SqDrained, EventSource::Qp(a.qp.qpn()))
    );
    a.send(b"x", SendFlags::SIGNALED);
    assert_eq!(poll(&a.send_cq), []);
    a.qp.modify(&QpModify::Resume).unwrap();
    assert_eq!(statuses(&poll(&a.send_cq)), [WcStatus::Success]);
    assert_eq!(poll(&b.recv_cq).len(), 1);
}
