//! Peers that are gone, queues that are full, receives that are missing or too small.

use adverb_types::Mtu;
use adverb_verbs::{
    AsyncEventKind, EventSource, QpModify, QpState, SendFlags, SendOp, WcStatus, WorkCompletion,
};

use super::fixture::{Check, End, Failure, Fixture, RECV_COOKIE, Setup, ensure, pattern, same, statuses};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        a_peer_that_was_destroyed_is_noticed,
        "a send to a queue pair that is gone ends with RETRY_EXC_ERR, and those behind it are flushed",
        "IBTA volume 1, section 9.7.6.1.3; retry_cnt 7 is for ever on rxe"
    ),
    case!(
        a_peer_in_reset_is_noticed,
        "a send to a queue pair in RESET ends with RETRY_EXC_ERR",
        "IBTA volume 1, section 10.3.1"
    ),
    case!(
        a_peer_in_err_is_noticed,
        "a send to a queue pair in ERR ends with RETRY_EXC_ERR",
        "IBTA volume 1, section 10.3.1"
    ),
    case!(
        a_probe_notices_a_peer_that_is_gone,
        "an RDMA WRITE of no bytes to a queue pair that is gone ends with RETRY_EXC_ERR",
        "the keepalive probe"
    ),
    case!(
        a_missing_receive_is_noticed,
        "with rnr_retry 1 a message without a receive ends with RNR_RETRY_EXC_ERR",
        "IBTA volume 1, section 9.7.5.2.8"
    ),
    case!(
        a_missing_receive_is_waited_for,
        "with rnr_retry 7 a message waits until there is a receive",
        "ibv_modify_qp(3), rnr_retry"
    ),
    case!(
        a_receive_too_small_fails_both,
        "a message longer than its receive: LOC_LEN_ERR here, REM_INV_REQ_ERR there, both in ERR",
        "IBTA volume 1, section 9.7.5.2.4; REM_OP_ERR and LOC_QP_OP_ERR on rxe"
    ),
    case!(
        different_path_mtus_fail_on_the_first_large_message,
        "a message longer than the smaller MTU is refused as invalid; short ones pass",
        "measured on rxe: REM_INV_REQ_ERR"
    ),
    case!(
        cq_overflow_is_reported,
        "a completion that finds its queue full raises CQ_ERR",
        "ibv_get_async_event(3); one each on rxe, the queue is dead on mlx5"
    ),
];

/// Sends from `a` to a peer that will not answer: the first is told so, the second is flushed.
fn is_noticed(f: &Fixture<'_>, a: &mut End) -> Result<(), Failure> {
    a.post(SendOp::Send, b"first", SendFlags::empty())?;
    a.post(SendOp::Send, b"second", SendFlags::empty())?;
    let expected = vec![WcStatus::RetryExcErr, WcStatus::WrFlushErr];
    same("send completions", statuses(&f.sent(a, 2)?), expected)?;
    f.reaches(a, QpState::Err)
}

fn a_peer_that_was_destroyed_is_noticed(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(4)?;
    a.receive(2)?;
    drop(b);
    is_noticed(f, &mut a)?;
    let received: Vec<_> = f
        .received(&mut a, 2)?
        .iter()
        .map(|message| message.wc.status)
        .collect();
    same("receive completions", received, vec![WcStatus::WrFlushErr; 2])?;
    Ok(Outcome::Passed)
}

fn a_peer_in_reset_is_noticed(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    b.qp.modify(&QpModify::Reset)?;
    is_noticed(f, &mut a)?;
    Ok(Outcome::Passed)
}

fn a_peer_in_err_is_noticed(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    b.qp.modify(&QpModify::Err)?;
    is_noticed(f, &mut a)?;
    Ok(Outcome::Passed)
}

fn a_probe_notices_a_peer_that_is_gone(f: &Fixture<'_>) -> Check {
    use adverb_types::Rkey;
    use adverb_verbs::{RemoteAddr, SendRequest};
    let (mut a, b) = f.pair()?;
    drop(b);
    let nowhere = RemoteAddr {
        addr: 0,
        rkey: Rkey::new(0),
    };
    a.post_request(SendRequest::new(SendOp::Write(nowhere)).flags(SendFlags::SIGNALED))?;
    same(
        "status",
        statuses(&f.sent(&mut a, 1)?),
        vec![WcStatus::RetryExcErr],
    )?;
    Ok(Outcome::Passed)
}

fn a_missing_receive_is_noticed(f: &Fixture<'_>) -> Check {
    let setup = Setup {
        rnr_retry: 1,
        ..Setup::default()
    };
    let (mut a, b) = f.pair_of(&setup, &setup)?;
    a.post(SendOp::Send, b"x", SendFlags::empty())?;
    let sent = f.sent(&mut a, 1)?;
    f.reaches(&a, QpState::Err)?;
    same("the responder's state", b.qp.state()?, QpState::Rts)?;
    match sent[0].wc.status {
        WcStatus::RnrRetryExcErr => Ok(Outcome::Passed),
        WcStatus::RetryExcErr => Ok(Outcome::Quirk(
            "a missing receive ends with RETRY_EXC_ERR, as if the peer were gone".into(),
        )),
        status => Err(Failure::new(format!("another status: {status}"))),
    }
}

fn a_missing_receive_is_waited_for(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    a.post(SendOp::Send, b"patience", SendFlags::empty())?;
    let mut some = [WorkCompletion::EMPTY];
    let early = f.within(std::time::Duration::from_millis(50), || {
        let n = a.send_cq.poll(&mut some)?;
        Ok((n > 0).then_some(some[0].status))
    })?;
    same("completions without a receive", early, None)?;
    b.receive(1)?;
    f.sent_well(&mut a, 1)?;
    same("data", f.received_well(&mut b, 1)?, vec![b"patience".to_vec()])?;
    Ok(Outcome::Passed)
}

fn a_receive_too_small_fails_both(f: &Fixture<'_>) -> Check {
    let small = Setup {
        slot_size: 64,
        ..Setup::default()
    };
    let (mut a, mut b) = f.pair_of(&Setup::default(), &small)?;
    b.receive(2)?;
    a.post(SendOp::Send, &pattern(65), SendFlags::empty())?;
    let sent = statuses(&f.sent(&mut a, 1)?);
    let received: Vec<_> = f
        .received(&mut b, 2)?
        .iter()
        .map(|message| message.wc.status)
        .collect();
    f.reaches(&a, QpState::Err)?;
    f.reaches(&b, QpState::Err)?;
    same("the receive behind it", received[1], WcStatus::WrFlushErr)?;
    match (sent[0], received[0]) {
        (WcStatus::RemInvReqErr, WcStatus::LocLenErr) => Ok(Outcome::Passed),
        (WcStatus::Success, _) | (_, WcStatus::Success) => {
            Err(Failure::new(format!("sent {sent:?}, received {received:?}")))
        }
        (sent, received) => Ok(Outcome::Quirk(format!(
            "the sender has {}, the receiver {}",
            sent.name(),
            received.name()
        ))),
    }
}

fn different_path_mtus_fail_on_the_first_large_message(f: &Fixture<'_>) -> Check {
    let setup = |path_mtu| Setup {
        path_mtu: Some(path_mtu),
        slot_size: 4096,
        ..Setup::default()
    };
    let (mut a, mut b) = f.pair_of(&setup(Mtu::Mtu1024), &setup(Mtu::Mtu256))?;
    b.receive(2)?;
    a.post(SendOp::Send, &pattern(200), SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    same("a short message", f.received_well(&mut b, 1)?, vec![pattern(200)])?;
    a.post(SendOp::Send, &pattern(4000), SendFlags::empty())?;
    let sent = f.sent(&mut a, 1)?;
    match sent[0].wc.status {
        WcStatus::RemInvReqErr => Ok(Outcome::Passed),
        WcStatus::Success => Err(Failure::new("a message across different MTUs was acknowledged")),
        status => Ok(Outcome::Quirk(format!("it fails with {status}"))),
    }
}

fn cq_overflow_is_reported(f: &Fixture<'_>) -> Check {
    let mut setup = Setup {
        recv_cqe: 3,
        ..Setup::default()
    };
    setup.caps.max_recv_wr = 64;
    let (mut a, mut b) = f.pair_of(&Setup::default(), &setup)?;
    let capacity = b.recv_cq.capacity() as usize;
    let messages = capacity + 2;
    if messages > b.rq.free().min(b.pool.count()) {
        return Ok(Outcome::Skipped(format!(
            "the queue has room for {capacity} where 3 were asked for"
        )));
    }
    b.receive(messages)?;
    for _ in 0..messages {
        a.post(SendOp::Send, b"x", SendFlags::empty())?;
        // What became of each does not matter: devices may fail the queue pair, too.
        f.sent(&mut a, 1)?;
    }
    let source = EventSource::Cq(RECV_COOKIE);
    let reported = f.async_event(&b.device, AsyncEventKind::CqErr, source, None)?;
    ensure(reported, || {
        format!("no CQ_ERR after {messages} completions of a queue of {capacity}")
    })?;
    Ok(Outcome::Passed)
}
