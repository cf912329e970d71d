//! Queue pair states: what each one takes, and what becomes of work when it changes.

use std::sync::Arc;
use std::time::Duration;

use adverb_types::Mtu;
use adverb_verbs::{
    AsyncEventKind, EventSource, QpModify, QpState, SendFlags, SendOp, WcStatus, WorkCompletion,
};

use super::fixture::{Check, End, Failure, Fixture, Setup, refused, same, statuses};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        state_follows_modify,
        "RESET, INIT, RTR, RTS, ERR and RESET again, as modified to",
        "ibv_modify_qp(3), ibv_query_qp(3)"
    ),
    case!(
        transitions_out_of_order_are_refused,
        "RESET to RTR, INIT to RTS and RTR to INIT are refused and leave the state alone",
        "IBTA volume 1, section 10.3.1"
    ),
    case!(
        a_wrong_attribute_is_refused,
        "a GID index or a path MTU that the port does not have is refused",
        "ibv_modify_qp(3)"
    ),
    case!(
        receive_before_init_is_refused,
        "a receive is refused in RESET and taken in INIT",
        "ibv_post_recv(3); EINVAL on rxe"
    ),
    case!(
        send_before_rts_is_refused,
        "a send is refused in RESET, INIT and RTR",
        "ibv_post_send(3); EINVAL on rxe"
    ),
    case!(
        err_flushes_both_queues,
        "moving to ERR completes all outstanding work with WR_FLUSH_ERR, in order",
        "IBTA volume 1, section 10.3.1"
    ),
    case!(
        send_in_err_is_flushed,
        "a send posted in ERR is taken and completes with WR_FLUSH_ERR",
        "IBTA volume 1, section 10.3.1"
    ),
    case!(
        receive_in_err_is_flushed,
        "a receive posted in ERR is taken and completes with WR_FLUSH_ERR",
        "IBTA volume 1, section 10.3.1; on rxe sometimes only once a send is posted"
    ),
    case!(
        reset_completes_nothing,
        "moving to RESET makes outstanding work vanish, and the queue pair can connect again",
        "ibv_modify_qp(3)"
    ),
    case!(
        last_wqe_is_reported,
        "a queue pair on a shared receive queue reports LAST_WQE_REACHED in ERR",
        "IBTA volume 1, section 11.6.3.2; rxe from Linux 6.6 on"
    ),
];

fn state_follows_modify(f: &Fixture<'_>) -> Check {
    let (a, b) = (f.end(&Setup::default())?, f.end(&Setup::default())?);
    let is = |state| same("state", a.qp.state().map_err(Failure::from)?, state);
    is(QpState::Reset)?;
    a.to_init(&a.qp)?;
    is(QpState::Init)?;
    a.to_rtr(&a.qp, &b, b.qp.qpn())?;
    is(QpState::Rtr)?;
    a.to_rts(&a.qp)?;
    is(QpState::Rts)?;
    a.qp.modify(&QpModify::Err)?;
    is(QpState::Err)?;
    a.qp.modify(&QpModify::Reset)?;
    is(QpState::Reset)?;
    a.to_init(&a.qp)?;
    is(QpState::Init)?;
    Ok(Outcome::Passed)
}

fn transitions_out_of_order_are_refused(f: &Fixture<'_>) -> Check {
    let (a, b) = (f.end(&Setup::default())?, f.end(&Setup::default())?);
    refused("RESET to RTR", a.to_rtr(&a.qp, &b, b.qp.qpn()))?;
    refused("RESET to RTS", a.to_rts(&a.qp))?;
    same("state", a.qp.state()?, QpState::Reset)?;
    a.to_init(&a.qp)?;
    refused("INIT to RTS", a.to_rts(&a.qp))?;
    same("state", a.qp.state()?, QpState::Init)?;
    a.to_rtr(&a.qp, &b, b.qp.qpn())?;
    refused("RTR to INIT", a.to_init(&a.qp))?;
    same("state", a.qp.state()?, QpState::Rtr)?;
    Ok(Outcome::Passed)
}

fn a_wrong_attribute_is_refused(f: &Fixture<'_>) -> Check {
    let (a, b) = (f.end(&Setup::default())?, f.end(&Setup::default())?);
    a.to_init(&a.qp)?;
    let good = a.rtr_attr(&b, b.qp.qpn());
    if good.ah.dgid.is_some() {
        let mut attr = good;
        attr.ah.sgid_index = 255;
        refused("GID index 255", a.qp.modify(&QpModify::Rtr(attr)))?;
    }
    if a.port.active_mtu < Mtu::Mtu4096 {
        let mut attr = good;
        attr.path_mtu = Mtu::Mtu4096;
        if a.qp.modify(&QpModify::Rtr(attr)).is_ok() {
            return Ok(Outcome::Quirk("a path MTU above the port's is accepted".into()));
        }
    }
    a.qp.modify(&QpModify::Rtr(good))?;
    Ok(Outcome::Passed)
}

fn receive_before_init_is_refused(f: &Fixture<'_>) -> Check {
    let mut a = f.end(&Setup::default())?;
    let mut slots = vec![a.slot()?];
    let error = refused("a receive in RESET", a.rq.post(&mut slots))?;
    same("accepted", error.accepted, 0)?;
    a.to_init(&a.qp)?;
    a.rq.post(&mut slots)?;
    same("posted", a.rq.posted(), 1)?;
    Ok(Outcome::Passed)
}

fn send_before_rts_is_refused(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = (f.end(&Setup::default())?, f.end(&Setup::default())?);
    let mut requests = vec![a.request(SendOp::Send, b"x", SendFlags::SIGNALED)?];
    let refuses = |a: &mut End, requests: &mut Vec<_>, state: &str| {
        let error = refused(&format!("a send in {state}"), a.sq.post(requests))?;
        same("accepted", error.accepted, 0)
    };
    refuses(&mut a, &mut requests, "RESET")?;
    a.to_init(&a.qp)?;
    refuses(&mut a, &mut requests, "INIT")?;
    a.to_rtr(&a.qp, &b, b.qp.qpn())?;
    refuses(&mut a, &mut requests, "RTR")?;
    a.to_rts(&a.qp)?;
    b.connect(&a)?;
    // As many receives as are sent to: a device that kept what it refused would use them up.
    b.receive(2)?;
    a.sq.post(&mut requests)?;
    f.sent_well(&mut a, 1)?;
    a.post(SendOp::Send, b"y", SendFlags::SIGNALED)?;
    f.sent_well(&mut a, 1)?;
    Ok(Outcome::Passed)
}

fn err_flushes_both_queues(f: &Fixture<'_>) -> Check {
    let (mut a, _b) = f.pair()?;
    a.receive(3)?;
    for i in 0..3 {
        // There is no receive for these: the first is retried, the others wait behind it.
        a.post(SendOp::Send, &[i], SendFlags::empty())?;
    }
    a.qp.modify(&QpModify::Err)?;
    let sent = statuses(&f.sent(&mut a, 3)?);
    same("send completions", sent, vec![WcStatus::WrFlushErr; 3])?;
    let received = f.received(&mut a, 3)?;
    let got: Vec<_> = received.iter().map(|message| message.wc.status).collect();
    same("receive completions", got, vec![WcStatus::WrFlushErr; 3])?;
    same("slots free", a.pool.available(), a.pool.count())?;
    Ok(Outcome::Passed)
}

fn send_in_err_is_flushed(f: &Fixture<'_>) -> Check {
    let (mut a, _b) = f.pair()?;
    a.qp.modify(&QpModify::Err)?;
    // Unsignaled: an error completes nevertheless.
    let request = a.request(SendOp::Send, b"x", SendFlags::empty())?;
    a.post_request(request)?;
    same(
        "send completions",
        statuses(&f.sent(&mut a, 1)?),
        vec![WcStatus::WrFlushErr],
    )?;
    Ok(Outcome::Passed)
}

fn receive_in_err_is_flushed(f: &Fixture<'_>) -> Check {
    let (mut a, _b) = f.pair()?;
    a.qp.modify(&QpModify::Err)?;
    a.receive(1)?;
    let recv_cq = Arc::clone(&a.recv_cq);
    let mut flushed = || {
        let mut wc = [WorkCompletion::EMPTY];
        let n = recv_cq.poll(&mut wc)?;
        Ok((n == 1).then_some(wc[0].status))
    };
    let at_once = f.within(Duration::from_millis(500), &mut flushed)?;
    if let Some(status) = at_once {
        same("receive completion", status, WcStatus::WrFlushErr)?;
        return Ok(Outcome::Passed);
    }
    a.post(SendOp::Send, b"x", SendFlags::empty())?;
    f.sent(&mut a, 1)?;
    let status = f.until("the receive's completion after a send was posted", flushed)?;
    same("receive completion", status, WcStatus::WrFlushErr)?;
    Ok(Outcome::Quirk("it is flushed only once a send is posted".into()))
}

fn reset_completes_nothing(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    a.receive(3)?;
    a.post(SendOp::Send, b"there is no receive for this", SendFlags::empty())?;
    a.qp.modify(&QpModify::Reset)?;
    let mut some = [WorkCompletion::EMPTY; 4];
    let quiet = f.within(Duration::from_millis(20), || {
        let n = a.send_cq.poll(&mut some)? + a.recv_cq.poll(&mut some)?;
        Ok((n > 0).then_some(some[0]))
    })?;
    same("completions after RESET", quiet, None)?;
    b.qp.modify(&QpModify::Err)?;
    b.qp.modify(&QpModify::Reset)?;
    a.connect(&b)?;
    b.connect(&a)?;
    // The owner of the send queue still counts what vanished, so the answer goes the other way.
    a.receive(1)?;
    b.post(SendOp::Send, b"again", SendFlags::empty())?;
    f.sent_well(&mut b, 1)?;
    let wc = f.completions(&a.recv_cq, 1)?;
    same("status", wc[0].status, WcStatus::Success)?;
    Ok(Outcome::Passed)
}

fn last_wqe_is_reported(f: &Fixture<'_>) -> Check {
    if f.open()?.attr().max_srq == 0 {
        return Ok(Outcome::Skipped("the device has no shared receive queues".into()));
    }
    let setup = Setup {
        srq: Some(8),
        ..Setup::default()
    };
    let (a, _b) = f.pair_of(&setup, &Setup::default())?;
    a.qp.modify(&QpModify::Err)?;
    let source = EventSource::Qp(a.qp.qpn());
    let limit = Some(Duration::from_secs(1));
    if f.async_event(&a.device, AsyncEventKind::QpLastWqeReached, source, limit)? {
        Ok(Outcome::Passed)
    } else {
        Ok(Outcome::Quirk(
            "no LAST_WQE_REACHED within 1 s: draining must not wait for it".into(),
        ))
    }
}
