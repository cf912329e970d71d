//! Sizes: what is granted, and what is refused.

use adverb_verbs::{
    Access, CqInit, ErrorKind, Qp, QpCaps, QpInit, Region, SendFlags, SendOp, SrqInit, VerbsError,
};
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;

use super::fixture::{Check, End, Failure, Fixture, Setup, ensure, pattern, refused, same};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        last_comp_vector_is_accepted,
        "a queue can be put on each vector, 0 to num_comp_vectors - 1",
        "ibv_create_cq(3)"
    ),
    case!(
        comp_vector_beyond_the_last_is_refused,
        "vector num_comp_vectors is out of range",
        "ibv_create_cq(3); EINVAL on rxe"
    ),
    case!(
        cq_has_the_room_asked_for,
        "a queue has at least the entries asked for, up to max_cqe",
        "ibv_create_cq(3)"
    ),
    case!(
        cqe_above_the_maximum_is_refused,
        "a queue of max_cqe + 1 entries is refused",
        "ibv_create_cq(3); 32767 on rxe"
    ),
    case!(
        qp_has_the_room_asked_for,
        "the sizes returned are at least those asked for",
        "ibv_create_qp(3)"
    ),
    case!(
        qp_above_the_maximum_is_refused,
        "more work requests or elements than the device has are refused",
        "ibv_create_qp(3)"
    ),
    case!(
        inline_up_to_the_granted_size,
        "a message of exactly max_inline_data bytes arrives",
        "ibv_create_qp(3), ibv_post_send(3)"
    ),
    case!(
        inline_above_the_granted_size_is_refused,
        "one byte more than max_inline_data is refused at posting",
        "ibv_post_send(3)"
    ),
    case!(
        inline_1024_is_granted_or_refused,
        "asking for 1024 inline bytes gives them or an error, not less",
        "ibv_create_qp(3); EINVAL on rxe"
    ),
    case!(
        list_longer_than_the_queue_is_accepted_in_part,
        "posting too many says how many were accepted, and those complete",
        "ibv_post_send(3), bad_wr"
    ),
    case!(
        srq_has_the_room_asked_for,
        "a shared receive queue takes as many receives as its capacity says",
        "ibv_create_srq(3)"
    ),
    case!(
        locked_memory_limit_is_named,
        "a registration that the locked-memory limit refuses says so and what to do",
        "ibv_reg_mr(3), setrlimit(2) RLIMIT_MEMLOCK"
    ),
];

fn last_comp_vector_is_accepted(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    for vector in 0..device.num_comp_vectors() {
        device.create_cq(&CqInit::new(4).comp_vector(vector))?;
    }
    Ok(Outcome::Passed)
}

fn comp_vector_beyond_the_last_is_refused(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    for vector in [device.num_comp_vectors(), u32::MAX] {
        let error = refused(
            &format!("comp_vector {vector}"),
            device.create_cq(&CqInit::new(4).comp_vector(vector)),
        )?;
        let expected = ErrorKind::OutOfRange {
            what: "comp_vector",
            value: vector.into(),
            limit: device.num_comp_vectors().into(),
        };
        same("error", error.kind, expected)?;
    }
    Ok(Outcome::Passed)
}

fn cq_has_the_room_asked_for(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    for cqe in [1, 5, 100, device.attr().max_cqe.min(4096)] {
        let capacity = device.create_cq(&CqInit::new(cqe))?.capacity();
        ensure(capacity >= cqe, || format!("asked for {cqe}, got {capacity}"))?;
    }
    Ok(Outcome::Passed)
}

fn cqe_above_the_maximum_is_refused(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    let Some(cqe) = device.attr().max_cqe.checked_add(1) else {
        return Ok(Outcome::Skipped("max_cqe is 2^32 - 1".into()));
    };
    refused(&format!("cqe {cqe}"), device.create_cq(&CqInit::new(cqe)))?;
    Ok(Outcome::Passed)
}

/// A queue pair of these sizes beside that of `end`.
fn create_qp(end: &End, caps: QpCaps) -> Result<Arc<dyn Qp>, VerbsError> {
    end.pd.create_qp(&QpInit {
        send_cq: &end.send_cq,
        recv_cq: &end.recv_cq,
        srq: None,
        caps,
        sq_sig_all: false,
    })
}

fn qp_has_the_room_asked_for(f: &Fixture<'_>) -> Check {
    let end = f.end(&Setup::default())?;
    let asked = Setup::default().caps;
    let got = end.qp.caps();
    let enough = got.max_send_wr >= asked.max_send_wr
        && got.max_recv_wr >= asked.max_recv_wr
        && got.max_send_sge >= asked.max_send_sge
        && got.max_recv_sge >= asked.max_recv_sge
        && got.max_inline_data >= asked.max_inline_data;
    ensure(enough, || format!("asked for {asked:?}, got {got:?}"))?;
    Ok(Outcome::Passed)
}

fn qp_above_the_maximum_is_refused(f: &Fixture<'_>) -> Check {
    let end = f.end(&Setup::default())?;
    let caps = Setup::default().caps;
    let attr = end.device.attr();
    for (what, caps) in [
        (
            "max_send_wr",
            QpCaps {
                max_send_wr: attr.max_qp_wr.saturating_add(1),
                ..caps
            },
        ),
        (
            "max_recv_wr",
            QpCaps {
                max_recv_wr: attr.max_qp_wr.saturating_add(1),
                ..caps
            },
        ),
        (
            "max_send_sge",
            QpCaps {
                max_send_sge: attr.max_sge.saturating_add(1),
                ..caps
            },
        ),
    ] {
        refused(what, create_qp(&end, caps))?;
    }
    Ok(Outcome::Passed)
}

fn inline_up_to_the_granted_size(f: &Fixture<'_>) -> Check {
    let mut setup = Setup::default();
    setup.caps.max_inline_data = 200;
    // Devices grant more than was asked for; few more than this.
    setup.slot_size = 4096;
    let (mut a, mut b) = f.pair_of(&setup, &setup)?;
    let granted = a.qp.caps().max_inline_data as usize;
    let len = granted.min(setup.slot_size);
    b.receive(1)?;
    a.post(SendOp::Send, &pattern(len), SendFlags::INLINE)?;
    same(
        "slots that an inline send keeps",
        a.pool.available(),
        a.pool.count(),
    )?;
    f.sent_well(&mut a, 1)?;
    same("data", f.received_well(&mut b, 1)?, vec![pattern(len)])?;
    Ok(Outcome::Passed)
}

fn inline_above_the_granted_size_is_refused(f: &Fixture<'_>) -> Check {
    let setup = Setup {
        slot_size: 1 << 16,
        ..Setup::default()
    };
    let (mut a, mut b) = f.pair_of(&setup, &setup)?;
    let granted = a.qp.caps().max_inline_data as usize;
    if granted >= setup.slot_size {
        return Ok(Outcome::Skipped(format!("{granted} bytes inline were granted")));
    }
    b.receive(1)?;
    let request = a.request(SendOp::Send, &pattern(granted + 1), SendFlags::INLINE)?;
    let error = refused("too much inline data", a.sq.post(&mut vec![request]))?;
    same("accepted", error.accepted, 0)?;
    // The queue pair is as good as before.
    a.post(SendOp::Send, b"after", SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    Ok(Outcome::Passed)
}

fn inline_1024_is_granted_or_refused(f: &Fixture<'_>) -> Check {
    let end = f.end(&Setup::default())?;
    let caps = QpCaps {
        max_inline_data: 1024,
        ..Setup::default().caps
    };
    if let Ok(qp) = create_qp(&end, caps) {
        let granted = qp.caps().max_inline_data;
        ensure(granted >= 1024, || {
            format!("{granted} bytes were granted for 1024")
        })?;
    }
    Ok(Outcome::Passed)
}

fn list_longer_than_the_queue_is_accepted_in_part(f: &Fixture<'_>) -> Check {
    let mut setup = Setup::default();
    setup.caps.max_send_wr = 8;
    let (mut a, mut b) = f.pair_of(&setup, &Setup::default())?;
    let depth = a.sq.free();
    if depth > 24 {
        return Ok(Outcome::Skipped(format!(
            "the queue has room for {depth} where 8 were asked for"
        )));
    }
    b.receive(depth)?;
    let mut requests = Vec::new();
    for i in 0..depth + 3 {
        requests.push(a.request(SendOp::Send, &[i as u8], SendFlags::SIGNALED)?);
    }
    let error = refused("a list longer than the queue", a.sq.post(&mut requests))?;
    same("accepted", error.accepted, depth)?;
    same("left to the caller", requests.len(), 3)?;
    f.sent_well(&mut a, depth)?;
    let expected: Vec<_> = (0..depth).map(|i| vec![i as u8]).collect();
    same("data", f.received_well(&mut b, depth)?, expected)?;
    Ok(Outcome::Passed)
}

fn srq_has_the_room_asked_for(f: &Fixture<'_>) -> Check {
    if f.open()?.attr().max_srq == 0 {
        return Ok(Outcome::Skipped("the device has no shared receive queues".into()));
    }
    let setup = Setup {
        srq: Some(8),
        ..Setup::default()
    };
    let mut end = f.end(&setup)?;
    ensure(end.rq.free() >= 8, || format!("room for {} of 8", end.rq.free()))?;
    end.receive(8)?;
    let attr = end.device.attr();
    let too_many = SrqInit {
        max_wr: attr.max_srq_wr.saturating_add(1),
        max_sge: 1,
        cookie: 0,
    };
    refused("more receives than max_srq_wr", end.pd.create_srq(&too_many))?;
    Ok(Outcome::Passed)
}

fn locked_memory_limit_is_named(f: &Fixture<'_>) -> Check {
    const MOST: u64 = 1 << 30;
    let Some(limit) = getrlimit(Resource::Memlock).current.filter(|limit| *limit < MOST) else {
        return Ok(Outcome::Skipped(
            "locked memory is not limited here: run under `ulimit -l 64`".into(),
        ));
    };
    let pd = f.open()?.alloc_pd()?;
    match Region::new(&*pd, limit as usize + (1 << 20), Access::LOCAL_WRITE) {
        Ok(_) => Ok(Outcome::Skipped(
            "the limit does not bind: the user has CAP_IPC_LOCK, or the provider locks no memory".into(),
        )),
        Err(error) => {
            let text = error.to_string();
            let named = text.contains("locked-memory limit") && text.contains("ulimit -l");
            if named {
                Ok(Outcome::Passed)
            } else {
                Err(Failure::new(text))
            }
        }
    }
}
