//! Shared receive queues.

use std::sync::Arc;

use adverb_verbs::{AsyncEventKind, EventSource, Qp, QpInit, SendFlags, SendOp, WcStatus};

use super::fixture::{Check, End, Failure, Fixture, SRQ_COOKIE, Setup, ensure, refused, same};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        two_queue_pairs_share_a_queue,
        "receives go to whichever queue pair's message comes, and the completion says which",
        "ibv_create_srq(3), ibv_poll_cq(3)"
    ),
    case!(
        srq_limit_raises_one_event,
        "falling below the limit raises SRQ_LIMIT_REACHED once, and not before",
        "ibv_modify_srq(3)"
    ),
    case!(
        srq_limit_above_its_size_is_refused,
        "a limit that the queue cannot hold is refused",
        "ibv_modify_srq(3)"
    ),
    case!(
        srq_outlives_a_failed_queue_pair,
        "a queue pair in ERR leaves the receives of its shared queue to the others",
        "IBTA volume 1, section 10.2.9.5"
    ),
];

const SIZE: u32 = 16;

/// One end with a shared receive queue and a second queue pair on it, and a peer for each.
struct Trio {
    // Dropped before `shared`, whose receive queue gives its memory back only when no queue pair holds it any more.
    second_qp: Arc<dyn Qp>,
    shared: End,
    first: End,
    second: End,
}

/// `None` where the device has no shared receive queues.
fn trio(f: &Fixture<'_>) -> Result<Option<Trio>, Failure> {
    if f.open()?.attr().max_srq == 0 {
        return Ok(None);
    }
    let setup = Setup {
        srq: Some(SIZE),
        ..Setup::default()
    };
    let (first, shared) = f.pair_of(&Setup::default(), &setup)?;
    // On the first one's opening: of the software device, only one on an address can have RoCEv2's port, and a NIC sends to no other.
    let second = End::new(Arc::clone(&first.device), &Setup::default())?;
    let second_qp = shared.pd.create_qp(&QpInit {
        send_cq: &shared.send_cq,
        recv_cq: &shared.recv_cq,
        srq: shared.srq.as_ref(),
        caps: setup.caps,
        sq_sig_all: false,
    })?;
    shared.to_init(&second_qp)?;
    shared.to_rtr(&second_qp, &second, second.qp.qpn())?;
    shared.to_rts(&second_qp)?;
    second.to_init(&second.qp)?;
    second.to_rtr(&second.qp, &shared, second_qp.qpn())?;
    second.to_rts(&second.qp)?;
    Ok(Some(Trio {
        shared,
        second_qp,
        first,
        second,
    }))
}

fn no_srq() -> Outcome {
    Outcome::Skipped("the device has no shared receive queues".into())
}

fn two_queue_pairs_share_a_queue(f: &Fixture<'_>) -> Check {
    let Some(mut trio) = trio(f)? else {
        return Ok(no_srq());
    };
    trio.shared.receive(3)?;
    let qpns = (trio.shared.qp.qpn(), trio.second_qp.qpn());
    for (from_second, text, qpn) in [
        (true, "one", qpns.1),
        (false, "two", qpns.0),
        (true, "three", qpns.1),
    ] {
        let from = if from_second {
            &mut trio.second
        } else {
            &mut trio.first
        };
        from.post(SendOp::Send, text.as_bytes(), SendFlags::empty())?;
        f.sent_well(from, 1)?;
        for message in f.received(&mut trio.shared, 1)? {
            same("status", message.wc.status, WcStatus::Success)?;
            same("data", message.data.as_slice(), text.as_bytes())?;
            same("qp_num", message.wc.qp_num, qpn)?;
        }
    }
    Ok(Outcome::Passed)
}

fn srq_limit_raises_one_event(f: &Fixture<'_>) -> Check {
    const LIMIT: u32 = 3;
    let Some(mut trio) = trio(f)? else {
        return Ok(no_srq());
    };
    trio.shared.receive(LIMIT as usize + 1)?;
    let srq = trio.shared.srq.clone();
    srq.ok_or_else(|| Failure::new("no shared receive queue"))?
        .set_limit(LIMIT)?;
    let mut send = || {
        trio.first.post(SendOp::Send, b"x", SendFlags::empty())?;
        f.sent_well(&mut trio.first, 1)
    };
    let source = EventSource::Srq(SRQ_COOKIE);
    let event = |limit| {
        f.async_event(
            &trio.shared.device,
            AsyncEventKind::SrqLimitReached,
            source,
            limit,
        )
    };
    let soon = Some(std::time::Duration::from_millis(20));
    send()?;
    ensure(!event(soon)?, || {
        "an event with as many receives left as the limit".into()
    })?;
    send()?;
    ensure(event(None)?, || {
        "no event with fewer receives left than the limit".into()
    })?;
    send()?;
    ensure(!event(soon)?, || "a second event without a new limit".into())?;
    Ok(Outcome::Passed)
}

fn srq_limit_above_its_size_is_refused(f: &Fixture<'_>) -> Check {
    let Some(trio) = trio(f)? else {
        return Ok(no_srq());
    };
    let srq = trio.shared.srq.clone();
    let srq = srq.ok_or_else(|| Failure::new("no shared receive queue"))?;
    let limit = trio.shared.device.attr().max_srq_wr.saturating_add(1);
    refused("a limit above the size", srq.set_limit(limit))?;
    srq.set_limit(SIZE / 2)?;
    Ok(Outcome::Passed)
}

fn srq_outlives_a_failed_queue_pair(f: &Fixture<'_>) -> Check {
    let Some(mut trio) = trio(f)? else {
        return Ok(no_srq());
    };
    trio.shared.receive(2)?;
    trio.second_qp.modify(&adverb_verbs::QpModify::Err)?;
    trio.first.post(SendOp::Send, b"one", SendFlags::empty())?;
    trio.first.post(SendOp::Send, b"two", SendFlags::empty())?;
    f.sent_well(&mut trio.first, 2)?;
    let got = f.received_well(&mut trio.shared, 2)?;
    same("data", got, vec![b"one".to_vec(), b"two".to_vec()])?;
    Ok(Outcome::Passed)
}
