//! Handles: whose they are, and in which order they go.

use std::time::Duration;

use adverb_verbs::{CqInit, ErrorKind, QpInit, SendFlags, SendOp, SrqInit};

use super::fixture::{Check, End, Fixture, Setup, ensure, refused, same};
use super::{Case, Outcome, case};
use crate::fault;

pub(super) const CASES: &[Case] = &[
    case!(
        foreign_handles_are_refused,
        "channels, completion queues and shared receive queues of another provider are refused",
        "adverb_verbs::ErrorKind::WrongProvider"
    ),
    case!(
        handles_of_another_opening_are_refused,
        "a completion queue of another opening of the device is refused",
        "adverb_verbs::ErrorKind::WrongProvider"
    ),
    case!(
        handles_go_in_any_order,
        "parents may be dropped before their children, with work outstanding",
        "adverb_verbs: handles hold their parents"
    ),
    case!(
        slots_come_back_when_a_queue_pair_goes,
        "receives and sends that never completed give their memory back with the queue pair",
        "ibv_destroy_qp(3)"
    ),
    case!(
        slots_come_back_when_a_shared_queue_goes,
        "receives that never completed give their memory back with the shared receive queue",
        "ibv_destroy_srq(3)"
    ),
    case!(
        an_event_not_acknowledged_does_not_block_destruction,
        "a queue pair and queue go although an event of theirs was read and not acknowledged",
        "ibv_ack_cq_events(3): libibverbs alone waits for ever"
    ),
    case!(
        an_event_not_read_does_not_block_destruction,
        "a queue goes although an event of it waits in its channel, and the event goes too",
        "ibv_destroy_cq(3)"
    ),
];

fn foreign_handles_are_refused(f: &Fixture<'_>) -> Check {
    // A provider of its own around another opening: its handles lead to the same device, and yet are not the device's.
    let foreign = fault::wrap(f.open()?, &crate::Faults::default())?;
    let end = f.end(&Setup::default())?;
    let is_foreign =
        |what: &str, error: adverb_verbs::VerbsError| same(what, error.kind, ErrorKind::WrongProvider);

    let channel = foreign.create_comp_channel()?;
    let error = refused(
        "a foreign channel",
        end.device.create_cq(&CqInit::new(4).channel(&channel)),
    )?;
    is_foreign("channel", error)?;

    let cq = foreign.create_cq(&CqInit::new(4))?;
    let own = QpInit {
        send_cq: &end.send_cq,
        recv_cq: &end.recv_cq,
        srq: None,
        caps: Setup::default().caps,
        sq_sig_all: false,
    };
    let check = |what, init| is_foreign(what, refused(what, end.pd.create_qp(&init))?);
    let (mut send, mut recv) = (own.clone(), own.clone());
    send.send_cq = &cq;
    recv.recv_cq = &cq;
    check("send CQ", send)?;
    check("recv CQ", recv)?;
    if foreign.attr().max_srq > 0 {
        let srq = foreign.alloc_pd()?.create_srq(&SrqInit {
            max_wr: 4,
            max_sge: 1,
            cookie: 0,
        })?;
        let init = QpInit {
            srq: Some(&srq),
            ..own
        };
        check("SRQ", init)?;
    }
    Ok(Outcome::Passed)
}

fn handles_of_another_opening_are_refused(f: &Fixture<'_>) -> Check {
    let (end, other) = (f.end(&Setup::default())?, f.open()?);
    let cq = other.create_cq(&CqInit::new(4))?;
    let error = refused(
        "a completion queue of another opening",
        end.pd.create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &end.recv_cq,
            srq: None,
            caps: Setup::default().caps,
            sq_sig_all: false,
        }),
    )?;
    same("error", error.kind, ErrorKind::WrongProvider)?;
    Ok(Outcome::Passed)
}

fn handles_go_in_any_order(f: &Fixture<'_>) -> Check {
    let orders: [fn(End); 4] = [
        |end| drop(end),
        |End {
             device,
             pd,
             send_channel,
             recv_channel,
             send_cq,
             recv_cq,
             srq,
             qp,
             sq,
             rq,
             pool,
             ..
         }| {
            drop((device, pd, send_channel, recv_channel, send_cq, recv_cq));
            drop((srq, qp, pool));
            drop((rq, sq));
        },
        |End {
             sq,
             rq,
             qp,
             recv_cq,
             send_cq,
             recv_channel,
             send_channel,
             pd,
             device,
             ..
         }| {
            drop((sq, rq, qp));
            drop((recv_cq, send_cq, recv_channel, send_channel, pd, device));
        },
        |End {
             pool,
             rq,
             recv_channel,
             pd,
             sq,
             qp,
             ..
         }| {
            drop((pool, recv_channel, pd, rq));
            drop((qp, sq));
        },
    ];
    for order in orders {
        let (mut a, mut b) = f.pair()?;
        a.receive(4)?;
        b.receive(1)?;
        a.post(SendOp::Send, b"received", SendFlags::empty())?;
        f.received_well(&mut b, 1)?;
        // There is no receive for this one.
        a.post(SendOp::Send, b"outstanding", SendFlags::empty())?;
        f.ends("dropping the handles", move || order(a))?;
    }
    // The device is as good as before.
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    a.post(SendOp::Send, b"after", SendFlags::empty())?;
    same("data", f.received_well(&mut b, 1)?, vec![b"after".to_vec()])?;
    Ok(Outcome::Passed)
}

fn slots_come_back_when_a_queue_pair_goes(f: &Fixture<'_>) -> Check {
    let (mut a, _b) = f.pair()?;
    a.receive(8)?;
    a.post(SendOp::Send, b"there is no receive for this", SendFlags::empty())?;
    let pool = a.pool.clone();
    same("slots in use", pool.count() - pool.available(), 9)?;
    f.ends("dropping an end", move || drop(a))?;
    same("slots free", pool.available(), pool.count())?;
    Ok(Outcome::Passed)
}

fn slots_come_back_when_a_shared_queue_goes(f: &Fixture<'_>) -> Check {
    if f.open()?.attr().max_srq == 0 {
        return Ok(Outcome::Skipped("the device has no shared receive queues".into()));
    }
    let setup = Setup {
        srq: Some(8),
        ..Setup::default()
    };
    let mut end = f.end(&setup)?;
    end.receive(8)?;
    let pool = end.pool.clone();
    f.ends("dropping an end", move || {
        let End { qp, sq, srq, rq, .. } = end;
        drop((qp, sq, srq));
        drop(rq);
    })?;
    same("slots free", pool.available(), pool.count())?;
    Ok(Outcome::Passed)
}

fn an_event_not_acknowledged_does_not_block_destruction(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(2)?;
    b.recv_cq.req_notify(false)?;
    a.post(SendOp::Send, b"x", SendFlags::empty())?;
    f.event(&b.recv_channel)?;
    same("unacknowledged events", b.recv_cq.unacked_events(), 1)?;
    f.ends("dropping an end with an event unacknowledged", move || drop(b))?;
    Ok(Outcome::Passed)
}

fn an_event_not_read_does_not_block_destruction(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    b.recv_cq.req_notify(false)?;
    a.post(SendOp::Send, b"x", SendFlags::empty())?;
    f.received_well(&mut b, 1)?;
    let channel = std::sync::Arc::clone(&b.recv_channel);
    f.ends("dropping an end with an event unread", move || drop(b))?;
    let event = f.within(Duration::from_millis(20), || Ok(channel.next_event()?))?;
    ensure(event.is_none(), || {
        format!("an event of a queue that is gone: {event:?}")
    })?;
    Ok(Outcome::Passed)
}
