//! Keys and rights: what memory refuses.

use adverb_verbs::{
    Access, Buffer, QpState, Registration, RemoteAddr, SendFlags, SendOp, SendRequest, SlotPool, WcStatus,
    WorkCompletion,
};

use super::fixture::{
    Check, End, Failure, Fixture, Setup, bytes_of, ensure, push, refused, same, statuses, whole,
};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        a_wrong_rkey_is_refused,
        "a WRITE with a wrong rkey ends with REM_ACCESS_ERR; both queue pairs go to ERR",
        "IBTA volume 1, section 9.7.5.2; rxe tells the responder's program nothing"
    ),
    case!(
        a_write_beyond_the_region_is_refused,
        "a WRITE that ends one byte outside is refused whole",
        "IBTA volume 1, section 10.6.3"
    ),
    case!(
        memory_without_the_right_refuses,
        "WRITE, READ and FAA each need their right on the region",
        "ibv_reg_mr(3)"
    ),
    case!(
        a_queue_pair_without_the_right_refuses,
        "WRITE and READ need their right on the responder's queue pair, too",
        "ibv_modify_qp(3), qp_access_flags"
    ),
    case!(
        deregistered_memory_refuses,
        "an rkey is good for nothing once its region is gone",
        "ibv_dereg_mr(3)"
    ),
    case!(
        each_registration_of_memory_has_rights_and_an_end_of_its_own,
        "memory that is registered twice goes on in one registration when the other has ended, and peers have the rights of the key they use",
        "IBTA volume 1, section 10.6.3"
    ),
    case!(
        memory_of_another_domain_refuses,
        "an rkey of another protection domain is refused",
        "IBTA volume 1, section 10.6.3"
    ),
    case!(
        local_memory_of_another_domain_refuses,
        "a send from memory of another protection domain ends with LOC_PROT_ERR and arrives nowhere",
        "IBTA volume 1, section 10.6.3; WR_FLUSH_ERR on rxe"
    ),
    case!(
        remote_rights_need_local_write,
        "registering for REMOTE_WRITE without LOCAL_WRITE is refused",
        "ibv_reg_mr(3)"
    ),
];

/// Carries out one request that must fail, and gives its status. Its queue pair must be in ERR then.
fn fails(f: &Fixture<'_>, a: &mut End, request: SendRequest) -> Result<WcStatus, Failure> {
    a.post_request(request)?;
    let sent = f.sent(a, 1)?;
    f.reaches(a, QpState::Err)?;
    Ok(sent[0].wc.status)
}

fn a_wrong_rkey_is_refused(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let target = b.region(&[7; 64], Access::all())?;
    let at = RemoteAddr {
        rkey: adverb_types::Rkey::new(target.rkey().get() ^ 0x55),
        ..target.remote_addr(0)
    };
    let request = a.request(SendOp::Write(at), &[1; 8], SendFlags::SIGNALED)?;
    same("status", fails(f, &mut a, request)?, WcStatus::RemAccessErr)?;
    same("memory", bytes_of(&target)?, vec![7; 64])?;
    match f.reaches(&b, QpState::Err) {
        Ok(()) => Ok(Outcome::Passed),
        Err(_) => Ok(Outcome::Quirk(format!(
            "the responder stays in {}, where the specification has it in ERR",
            b.qp.state()?
        ))),
    }
}

fn a_write_beyond_the_region_is_refused(f: &Fixture<'_>) -> Check {
    // As long as pages are, so that there is no room that registration rounds up to.
    const LEN: usize = 4096;
    let (mut a, b) = f.pair()?;
    let target = b.region(&[7; LEN], Access::all())?;
    let request = a.request(
        SendOp::Write(target.remote_addr(LEN - 7)),
        &[1; 8],
        SendFlags::SIGNALED,
    )?;
    same("status", fails(f, &mut a, request)?, WcStatus::RemAccessErr)?;
    same("memory", bytes_of(&target)?, vec![7; LEN])?;
    Ok(Outcome::Passed)
}

fn memory_without_the_right_refuses(f: &Fixture<'_>) -> Check {
    let all = Access::all();
    for (what, access) in [
        ("WRITE", all - Access::REMOTE_WRITE),
        ("READ", all - Access::REMOTE_READ),
        ("FAA", all - Access::REMOTE_ATOMIC),
    ] {
        let (mut a, b) = f.pair()?;
        if what == "FAA" && b.device.attr().atomic == adverb_verbs::AtomicSupport::None {
            continue;
        }
        let target = b.region(&[7; 8], access)?;
        let remote = target.remote_addr(0);
        let op = match what {
            "WRITE" => SendOp::Write(remote),
            "READ" => SendOp::Read(remote),
            _ => SendOp::FetchAdd { remote, add: 1 },
        };
        let request = a.request(op, &[1; 8], SendFlags::SIGNALED)?;
        same(what, fails(f, &mut a, request)?, WcStatus::RemAccessErr)?;
        same("memory", bytes_of(&target)?, vec![7; 8])?;
    }
    Ok(Outcome::Passed)
}

fn a_queue_pair_without_the_right_refuses(f: &Fixture<'_>) -> Check {
    for write in [true, false] {
        let setup = Setup {
            access: Access::LOCAL_WRITE,
            ..Setup::default()
        };
        let (mut a, b) = f.pair_of(&Setup::default(), &setup)?;
        let target = b.region(&[7; 8], Access::all())?;
        let remote = target.remote_addr(0);
        let op = if write {
            SendOp::Write(remote)
        } else {
            SendOp::Read(remote)
        };
        let request = a.request(op, &[1; 8], SendFlags::SIGNALED)?;
        let status = fails(f, &mut a, request)?;
        // The specification has an invalid request; some devices call it an access error.
        let known = [WcStatus::RemInvReqErr, WcStatus::RemAccessErr];
        ensure(known.contains(&status), || format!("another status: {status}"))?;
        same("memory", bytes_of(&target)?, vec![7; 8])?;
    }
    Ok(Outcome::Passed)
}

fn deregistered_memory_refuses(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let target = b.region(&[7; 64], Access::all())?;
    let at = target.remote_addr(0);
    a.post(SendOp::Write(at), &[1; 8], SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    drop(target);
    let request = a.request(SendOp::Write(at), &[1; 8], SendFlags::SIGNALED)?;
    same("status", fails(f, &mut a, request)?, WcStatus::RemAccessErr)?;
    Ok(Outcome::Passed)
}

fn each_registration_of_memory_has_rights_and_an_end_of_its_own(f: &Fixture<'_>) -> Check {
    for ended in [false, true] {
        let (mut a, mut b) = f.pair()?;
        let target = b.region(&[7; 64], Access::LOCAL_WRITE)?;
        let mut second = Registration::new(&*b.pd, &target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let by_second = RemoteAddr {
            rkey: second.rkey(),
            ..target.remote_addr(0)
        };
        a.post(SendOp::Write(by_second), &[1; 8], SendFlags::empty())?;
        f.sent_well(&mut a, 1)?;
        let expected = [[1; 8].as_slice(), &[7; 56]].concat();
        if ended {
            second.end()?;
            second.end()?;
        }
        // This side goes on by the first key.
        a.receive(1)?;
        let mut send = SendRequest::new(SendOp::Send).flags(SendFlags::SIGNALED);
        push(&mut send, whole(&target))?;
        b.post_request(send)?;
        f.sent_well(&mut b, 1)?;
        same("data", f.received_well(&mut a, 1)?, vec![expected.clone()])?;
        // A peer has no rights by the first key, and none by the second after its end.
        let refusing = if ended { by_second } else { target.remote_addr(0) };
        let request = a.request(SendOp::Write(refusing), &[2; 8], SendFlags::SIGNALED)?;
        same("status", fails(f, &mut a, request)?, WcStatus::RemAccessErr)?;
        same("memory", bytes_of(&target)?, expected)?;
    }
    Ok(Outcome::Passed)
}

fn memory_of_another_domain_refuses(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let stranger = b.device.alloc_pd()?;
    let target = adverb_verbs::Region::new(&*stranger, 64, Access::all())?;
    let request = a.request(SendOp::Write(target.remote_addr(0)), &[1; 8], SendFlags::SIGNALED)?;
    same("status", fails(f, &mut a, request)?, WcStatus::RemAccessErr)?;
    same("memory", bytes_of(&target)?, vec![0; 64])?;
    Ok(Outcome::Passed)
}

fn local_memory_of_another_domain_refuses(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    let pool = SlotPool::new(&*a.device.alloc_pd()?, 64, 1, Access::empty())?;
    let slot = pool.take().ok_or_else(|| Failure::new("no free slot"))?;
    let mut request = SendRequest::new(SendOp::Send).flags(SendFlags::SIGNALED);
    push(&mut request, Buffer::slot(slot, 8))?;
    let status = fails(f, &mut a, request)?;
    // Those behind it are flushed.
    a.post(SendOp::Send, b"behind", SendFlags::empty())?;
    same(
        "behind it",
        statuses(&f.sent(&mut a, 1)?),
        vec![WcStatus::WrFlushErr],
    )?;
    let arrived = b.recv_cq.poll(&mut [WorkCompletion::EMPTY])?;
    same("messages that arrived", arrived, 0)?;
    match status {
        WcStatus::LocProtErr => Ok(Outcome::Passed),
        WcStatus::Success => Err(Failure::new("it was sent")),
        other => Ok(Outcome::Quirk(format!(
            "it ends with {}, which does not say why",
            other.name()
        ))),
    }
}

fn remote_rights_need_local_write(f: &Fixture<'_>) -> Check {
    let end = f.end(&Setup::default())?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let region = adverb_verbs::Region::new(&*end.pd, 64, access);
        refused(&format!("{access:?} alone"), region)?;
    }
    let readable = end.region(&[1; 8], Access::REMOTE_READ)?;
    same("memory", bytes_of(&readable)?, vec![1; 8])?;
    Ok(Outcome::Passed)
}
