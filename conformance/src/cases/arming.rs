//! Arming a completion queue: what raises an event, and what does not.

use std::sync::Arc;

use adverb_verbs::{Access, CompEvent, CqInit, QpInit, QpModify, SendFlags, SendOp, WcStatus};

use super::fixture::{Check, End, Failure, Fixture, RECV_COOKIE, SEND_COOKIE, Setup, same};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        no_event_without_arming,
        "a completion of a queue that is not armed raises no event",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        arming_with_a_completion_queued_raises_no_event,
        "the arm race: what came before the arm is found by the poll after it, and by nothing else",
        "IBTA volume 1, section 11.4.2.2; measured on rxe"
    ),
    case!(
        any_arm_wakes_for_unsolicited,
        "armed for any completion, an unsolicited message raises the event",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        solicited_arm_sleeps_through_unsolicited,
        "armed solicited-only, unsolicited messages raise no event, and are there to be polled",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        solicited_arm_wakes_for_solicited,
        "armed solicited-only, a solicited message raises the event, after unsolicited ones too",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        solicited_arm_wakes_for_write_imm,
        "armed solicited-only, a solicited RDMA WRITE with immediate raises the event",
        "ibv_post_send(3), IBV_SEND_SOLICITED"
    ),
    case!(
        one_event_per_arm,
        "several completions after one arm raise one event, and the next arm another",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        arming_twice_is_arming_once,
        "a queue armed twice raises one event",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        solicited_arm_does_not_weaken_any_arm,
        "a queue armed for any, then solicited-only, still wakes for any",
        "IBTA volume 1, section 11.4.2.2"
    ),
    case!(
        send_completion_wakes_any_arm,
        "a send queue armed for any raises the event of a signaled send",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        send_error_wakes_any_arm,
        "a send queue armed for any raises the event of a failed send",
        "ibv_req_notify_cq(3)"
    ),
    case!(
        error_under_solicited_arm,
        "whether a flushed receive wakes a queue armed solicited-only",
        "IBTA volume 1, section 11.4.2.2 says yes; rxe does not"
    ),
    case!(
        events_name_their_queue,
        "two queues on one channel: each event carries the cookie of its own",
        "ibv_get_cq_event(3), cq_context"
    ),
    case!(
        events_are_acknowledged_in_batches,
        "each event taken counts as unacknowledged until all are acknowledged at once",
        "ibv_ack_cq_events(3)"
    ),
];

const RECV_EVENT: CompEvent = CompEvent { cookie: RECV_COOKIE };
const PLAIN: SendFlags = SendFlags::empty();

/// Sends a message from `a` and waits until it was received, so that its event, if any, is there.
fn message(f: &Fixture<'_>, a: &mut End, b: &mut End, flags: SendFlags) -> Result<(), Failure> {
    a.post(SendOp::Send, b"message", flags)?;
    f.sent_well(a, 1)?;
    f.received_well(b, 1)?;
    Ok(())
}

/// A pair whose second end has receives posted.
fn pair(f: &Fixture<'_>) -> Result<(End, End), Failure> {
    let (a, mut b) = f.pair()?;
    b.receive(8)?;
    Ok((a, b))
}

fn no_event_without_arming(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    message(f, &mut a, &mut b, SendFlags::SOLICITED)?;
    f.no_event(&b.recv_channel)?;
    f.no_event(&a.send_channel)?;
    Ok(Outcome::Passed)
}

fn arming_with_a_completion_queued_raises_no_event(f: &Fixture<'_>) -> Check {
    for solicited_only in [false, true] {
        let (mut a, mut b) = pair(f)?;
        a.post(SendOp::Send, b"before", SendFlags::SOLICITED)?;
        f.sent_well(&mut a, 1)?;
        b.recv_cq.req_notify(solicited_only)?;
        f.no_event(&b.recv_channel)?;
        same(
            "polled after the arm",
            f.received_well(&mut b, 1)?,
            vec![b"before".to_vec()],
        )?;
        // The arm still stands.
        message(f, &mut a, &mut b, SendFlags::SOLICITED)?;
        same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
    }
    Ok(Outcome::Passed)
}

fn any_arm_wakes_for_unsolicited(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    b.recv_cq.req_notify(false)?;
    a.post(SendOp::Send, b"x", PLAIN)?;
    same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
    f.received_well(&mut b, 1)?;
    Ok(Outcome::Passed)
}

fn solicited_arm_sleeps_through_unsolicited(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    b.recv_cq.req_notify(true)?;
    message(f, &mut a, &mut b, PLAIN)?;
    message(f, &mut a, &mut b, PLAIN)?;
    f.no_event(&b.recv_channel)?;
    Ok(Outcome::Passed)
}

fn solicited_arm_wakes_for_solicited(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    b.recv_cq.req_notify(true)?;
    a.post(SendOp::Send, b"quiet", PLAIN)?;
    a.post(SendOp::Send, b"loud", SendFlags::SOLICITED)?;
    same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
    let got = f.received_well(&mut b, 2)?;
    same("messages", got, vec![b"quiet".to_vec(), b"loud".to_vec()])?;
    Ok(Outcome::Passed)
}

fn solicited_arm_wakes_for_write_imm(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    let target = b.region(&[0; 8], Access::all())?;
    b.recv_cq.req_notify(true)?;
    let op = SendOp::WriteImm(target.remote_addr(0), 1);
    a.post(op, b"quiet", PLAIN)?;
    f.sent_well(&mut a, 1)?;
    f.received(&mut b, 1)?;
    f.no_event(&b.recv_channel)?;
    a.post(op, b"loud", SendFlags::SOLICITED)?;
    same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
    f.received(&mut b, 1)?;
    Ok(Outcome::Passed)
}

fn one_event_per_arm(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    for _ in 0..2 {
        b.recv_cq.req_notify(true)?;
        for _ in 0..3 {
            message(f, &mut a, &mut b, SendFlags::SOLICITED)?;
        }
        same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
        f.no_event(&b.recv_channel)?;
    }
    same("unacknowledged events", b.recv_cq.unacked_events(), 2)?;
    Ok(Outcome::Passed)
}

fn arming_twice_is_arming_once(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    b.recv_cq.req_notify(true)?;
    b.recv_cq.req_notify(true)?;
    message(f, &mut a, &mut b, SendFlags::SOLICITED)?;
    message(f, &mut a, &mut b, SendFlags::SOLICITED)?;
    same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
    f.no_event(&b.recv_channel)?;
    Ok(Outcome::Passed)
}

fn solicited_arm_does_not_weaken_any_arm(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    b.recv_cq.req_notify(false)?;
    b.recv_cq.req_notify(true)?;
    message(f, &mut a, &mut b, PLAIN)?;
    same("event", f.event(&b.recv_channel)?, RECV_EVENT)?;
    Ok(Outcome::Passed)
}

fn send_completion_wakes_any_arm(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    a.send_cq.req_notify(false)?;
    a.post(SendOp::Send, b"x", PLAIN)?;
    let expected = CompEvent { cookie: SEND_COOKIE };
    same("event", f.event(&a.send_channel)?, expected)?;
    f.sent_well(&mut a, 1)?;
    f.received_well(&mut b, 1)?;
    Ok(Outcome::Passed)
}

fn send_error_wakes_any_arm(f: &Fixture<'_>) -> Check {
    let (mut a, b) = pair(f)?;
    drop(b);
    a.send_cq.req_notify(false)?;
    // Unsignaled: an error completes nevertheless.
    let request = a.request(SendOp::Send, b"x", PLAIN)?;
    a.post_request(request)?;
    let expected = CompEvent { cookie: SEND_COOKIE };
    same("event", f.event(&a.send_channel)?, expected)?;
    let sent = f.sent(&mut a, 1)?;
    same("status", sent[0].wc.status, WcStatus::RetryExcErr)?;
    Ok(Outcome::Passed)
}

fn error_under_solicited_arm(f: &Fixture<'_>) -> Check {
    let (_a, mut b) = pair(f)?;
    b.recv_cq.req_notify(true)?;
    b.qp.modify(&QpModify::Err)?;
    let event = f.maybe_event(&b.recv_channel)?;
    let statuses: Vec<_> = f
        .received(&mut b, 8)?
        .iter()
        .map(|message| message.wc.status)
        .collect();
    same("receive completions", statuses, vec![WcStatus::WrFlushErr; 8])?;
    match event.or(f.maybe_event(&b.recv_channel)?) {
        Some(event) => {
            same("event", event, RECV_EVENT)?;
            Ok(Outcome::Passed)
        }
        None => Ok(Outcome::Quirk(
            "error completions do not wake a queue armed solicited-only: only polling finds them".into(),
        )),
    }
}

fn events_name_their_queue(f: &Fixture<'_>) -> Check {
    let (mut a, end) = (f.end(&Setup::default())?, f.end(&Setup::default())?);
    // Both queues of this queue pair are on one channel.
    let channel = end.device.create_comp_channel()?;
    let cq = |cookie| {
        end.device
            .create_cq(&CqInit::new(16).channel(&channel).cookie(cookie))
    };
    let (send_cq, recv_cq) = (cq(1)?, cq(2)?);
    let qp = end.pd.create_qp(&QpInit {
        send_cq: &send_cq,
        recv_cq: &recv_cq,
        srq: None,
        caps: Setup::default().caps,
        sq_sig_all: false,
    })?;
    end.to_init(&qp)?;
    end.to_rtr(&qp, &a, a.qp.qpn())?;
    end.to_rts(&qp)?;
    a.to_init(&a.qp)?;
    a.to_rtr(&a.qp, &end, qp.qpn())?;
    a.to_rts(&a.qp)?;

    let mut rq = adverb_verbs::RecvQueue::on_qp(Arc::clone(&qp), 0, 0);
    rq.post(&mut vec![end.slot()?])?;
    a.receive(1)?;
    let mut sq = adverb_verbs::SendQueue::new(Arc::clone(&qp), 0, 0);
    recv_cq.req_notify(false)?;
    a.post(SendOp::Send, b"in", PLAIN)?;
    same(
        "event of the receive",
        f.event(&channel)?,
        CompEvent { cookie: 2 },
    )?;
    send_cq.req_notify(false)?;
    sq.post(&mut vec![end.request(
        SendOp::Send,
        b"out",
        SendFlags::SIGNALED,
    )?])?;
    same("event of the send", f.event(&channel)?, CompEvent { cookie: 1 })?;
    same(
        "unacknowledged",
        (send_cq.unacked_events(), recv_cq.unacked_events()),
        (1, 1),
    )?;
    Ok(Outcome::Passed)
}

fn events_are_acknowledged_in_batches(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = pair(f)?;
    same("unacknowledged at first", b.recv_cq.unacked_events(), 0)?;
    for taken in 1..=3 {
        b.recv_cq.req_notify(true)?;
        message(f, &mut a, &mut b, SendFlags::SOLICITED)?;
        f.event(&b.recv_channel)?;
        same("unacknowledged", b.recv_cq.unacked_events(), taken)?;
    }
    b.recv_cq.ack_events();
    same(
        "unacknowledged after the acknowledgement",
        b.recv_cq.unacked_events(),
        0,
    )?;
    b.recv_cq.ack_events();
    Ok(Outcome::Passed)
}
