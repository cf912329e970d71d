//! What each operation does.

use std::sync::Arc;

use adverb_verbs::{
    Access, Buffer, RemoteAddr, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus, WorkCompletion, WrId,
    WrKind,
};

use super::fixture::{
    Check, End, Failure, Fixture, GENERATION, OWNER, Setup, bytes_of, ensure, pattern, push, same, whole,
};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        send_fills_a_receive,
        "SEND: the data arrives, and the receive's completion says how much",
        "ibv_post_send(3), ibv_poll_cq(3)"
    ),
    case!(
        immediate_data_arrives,
        "SEND with immediate: 32 bits arrive beside the data, in host order",
        "ibv_poll_cq(3), imm_data"
    ),
    case!(
        empty_send_arrives,
        "SEND of no bytes fills a receive",
        "IBTA volume 1, section 9.4.1"
    ),
    case!(
        write_lands_unnoticed,
        "RDMA WRITE: the data lands, and no receive is used",
        "IBTA volume 1, section 9.4.3"
    ),
    case!(
        write_imm_lands_and_tells,
        "RDMA WRITE with immediate: the data lands, and a receive completes with length and immediate",
        "IBTA volume 1, section 9.4.3"
    ),
    case!(
        empty_write_probes,
        "RDMA WRITE of no bytes completes, needs no valid rkey, and wakes nobody",
        "IBTA volume 1, section 9.4.3; the keepalive probe"
    ),
    case!(
        read_fetches,
        "RDMA READ brings the peer's data",
        "IBTA volume 1, section 9.4.4"
    ),
    case!(
        compare_swap_swaps_if_equal,
        "CAS: swaps on equality only, and brings the old value",
        "IBTA volume 1, section 9.4.5"
    ),
    case!(
        fetch_add_adds,
        "FAA: adds with wrap-around, and brings the old value",
        "IBTA volume 1, section 9.4.5"
    ),
    case!(
        pieces_are_gathered_in_order,
        "a SEND of two elements arrives as one message",
        "ibv_post_send(3), sg_list"
    ),
    case!(
        pieces_are_scattered_in_order,
        "a READ into two elements fills the first, then the second",
        "ibv_post_send(3), sg_list"
    ),
    case!(
        large_send,
        "SEND of 64 KiB arrives whole",
        "many packets at any MTU"
    ),
    case!(
        large_write_and_read,
        "WRITE and READ of 64 KiB arrive whole",
        "many packets at any MTU"
    ),
    case!(
        messages_keep_their_order,
        "200 messages arrive and complete in the order of posting",
        "IBTA volume 1, section 10.8.5"
    ),
    case!(
        fence_waits_for_reads,
        "a fenced WRITE sends what the READ before it brought",
        "IBTA volume 1, section 10.8.3.3"
    ),
    case!(
        unsignaled_sends_complete_silently,
        "one signaled completion retires the unsignaled requests before it",
        "ibv_create_qp(3), sq_sig_all"
    ),
    case!(
        sq_sig_all_signals_all,
        "with sq_sig_all every request makes a completion",
        "ibv_create_qp(3), sq_sig_all"
    ),
    case!(
        completions_name_their_request,
        "wr_id, operation and queue pair number come back with each completion",
        "ibv_poll_cq(3)"
    ),
];

fn send_fills_a_receive(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    a.post(SendOp::Send, b"hello", SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    let message = one(f.received(&mut b, 1)?)?;
    same("data", message.data.as_slice(), b"hello")?;
    let wc = message.wc;
    same("status", wc.status, WcStatus::Success)?;
    same("operation", wc.opcode, WcOpcode::Recv)?;
    same("byte_len", wc.byte_len, 5)?;
    same("immediate", wc.imm, None)?;
    Ok(Outcome::Passed)
}

fn immediate_data_arrives(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    a.post(SendOp::SendImm(0x0102_0304), b"hello", SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    let message = one(f.received(&mut b, 1)?)?;
    same("data", message.data.as_slice(), b"hello")?;
    same("immediate", message.wc.imm, Some(0x0102_0304))?;
    Ok(Outcome::Passed)
}

fn empty_send_arrives(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    a.post_request(SendRequest::new(SendOp::Send).flags(SendFlags::SIGNALED))?;
    f.sent_well(&mut a, 1)?;
    same("data", f.received_well(&mut b, 1)?, vec![vec![]])?;
    Ok(Outcome::Passed)
}

fn write_lands_unnoticed(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    let target = b.region(&[0xee; 64], Access::all())?;
    a.post(
        SendOp::Write(target.remote_addr(8)),
        &pattern(16),
        SendFlags::empty(),
    )?;
    f.sent_well(&mut a, 1)?;
    let mut expected = vec![0xee; 64];
    expected[8..24].copy_from_slice(&pattern(16));
    same("memory", bytes_of(&target)?, expected)?;
    no_receive(&b)?;
    Ok(Outcome::Passed)
}

fn write_imm_lands_and_tells(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    let target = b.region(&[0; 64], Access::all())?;
    let op = SendOp::WriteImm(target.remote_addr(0), 0xdead_beef);
    a.post(op, &pattern(64), SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    let message = one(f.received(&mut b, 1)?)?;
    same("memory", bytes_of(&target)?, pattern(64))?;
    same("status", message.wc.status, WcStatus::Success)?;
    same("operation", message.wc.opcode, WcOpcode::RecvRdmaWithImm)?;
    same("byte_len", message.wc.byte_len, 64)?;
    same("immediate", message.wc.imm, Some(0xdead_beef))?;
    Ok(Outcome::Passed)
}

fn empty_write_probes(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    b.recv_cq.req_notify(false)?;
    let nowhere = RemoteAddr {
        addr: 0,
        rkey: adverb_types::Rkey::new(0),
    };
    a.post_request(SendRequest::new(SendOp::Write(nowhere)).flags(SendFlags::SIGNALED))?;
    f.sent_well(&mut a, 1)?;
    no_receive(&b)?;
    f.no_event(&b.recv_channel)?;
    Ok(Outcome::Passed)
}

fn read_fetches(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let source = b.region(&pattern(100), Access::all())?;
    let into = a.region(&[0; 100], Access::LOCAL_WRITE)?;
    read(f, &mut a, source.remote_addr(0), whole(&into))?;
    same("data", bytes_of(&into)?, pattern(100))?;
    Ok(Outcome::Passed)
}

/// READs into `buffer` and waits for the end of it.
fn read(f: &Fixture<'_>, a: &mut End, from: RemoteAddr, buffer: Buffer) -> Result<WorkCompletion, Failure> {
    let mut request = SendRequest::new(SendOp::Read(from)).flags(SendFlags::SIGNALED);
    push(&mut request, buffer)?;
    a.post_request(request)?;
    one(f.sent_well(a, 1)?).map(|sent| sent.wc)
}

/// Carries out an atomic and brings the old value.
fn atomic(f: &Fixture<'_>, a: &mut End, op: SendOp) -> Result<u64, Failure> {
    let into = a.region(&[0xff; 8], Access::LOCAL_WRITE)?;
    let mut request = SendRequest::new(op).flags(SendFlags::SIGNALED);
    push(&mut request, whole(&into))?;
    a.post_request(request)?;
    f.sent_well(a, 1)?;
    Ok(into.load_u64(0)?)
}

fn compare_swap_swaps_if_equal(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    if b.device.attr().atomic == adverb_verbs::AtomicSupport::None {
        return Ok(Outcome::Skipped("the device has no atomics".into()));
    }
    let target = b.region(&[0; 16], Access::all())?;
    target.store_u64(8, 7)?;
    let cas = |compare, swap| SendOp::CompareSwap {
        remote: target.remote_addr(8),
        compare,
        swap,
    };
    same("old value of a swap", atomic(f, &mut a, cas(7, u64::MAX))?, 7)?;
    same("new value", target.load_u64(8)?, u64::MAX)?;
    same("old value of no swap", atomic(f, &mut a, cas(7, 1))?, u64::MAX)?;
    same("value", target.load_u64(8)?, u64::MAX)?;
    same("the word before it", target.load_u64(0)?, 0)?;
    Ok(Outcome::Passed)
}

fn fetch_add_adds(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    if b.device.attr().atomic == adverb_verbs::AtomicSupport::None {
        return Ok(Outcome::Skipped("the device has no atomics".into()));
    }
    let target = b.region(&[0; 16], Access::all())?;
    target.store_u64(8, u64::MAX - 1)?;
    let faa = |add| SendOp::FetchAdd {
        remote: target.remote_addr(8),
        add,
    };
    same("first old value", atomic(f, &mut a, faa(5))?, u64::MAX - 1)?;
    same("second old value", atomic(f, &mut a, faa(1))?, 3)?;
    same("value", target.load_u64(8)?, 4)?;
    same("the word before it", target.load_u64(0)?, 0)?;
    Ok(Outcome::Passed)
}

fn pieces_are_gathered_in_order(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    let mut request = a.request(SendOp::Send, &pattern(13), SendFlags::SIGNALED)?;
    a.add(&mut request, b"and the rest")?;
    a.post_request(request)?;
    f.sent_well(&mut a, 1)?;
    let expected = [&pattern(13)[..], b"and the rest"].concat();
    same("data", f.received_well(&mut b, 1)?, vec![expected])?;
    Ok(Outcome::Passed)
}

fn pieces_are_scattered_in_order(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let source = b.region(&pattern(50), Access::all())?;
    let into = a.region(&[0; 100], Access::LOCAL_WRITE)?;
    let mut request = SendRequest::new(SendOp::Read(source.remote_addr(0))).flags(SendFlags::SIGNALED);
    for (offset, len) in [(60, 17), (3, 33)] {
        let region = Arc::clone(&into);
        push(&mut request, Buffer::Region { region, offset, len })?;
    }
    a.post_request(request)?;
    f.sent_well(&mut a, 1)?;
    let got = bytes_of(&into)?;
    same("first element", &got[60..77], &pattern(50)[..17])?;
    same("second element", &got[3..36], &pattern(50)[17..])?;
    let untouched = got[..3].iter().chain(&got[36..60]).chain(&got[77..]);
    ensure(untouched.clone().all(|byte| *byte == 0), || {
        "bytes outside the elements were written".into()
    })?;
    Ok(Outcome::Passed)
}

const LARGE: usize = 64 << 10;

fn large_send(f: &Fixture<'_>) -> Check {
    let setup = Setup {
        slot_size: LARGE,
        ..Setup::default()
    };
    let (mut a, mut b) = f.pair_of(&setup, &setup)?;
    b.receive(1)?;
    a.post(SendOp::Send, &pattern(LARGE), SendFlags::empty())?;
    f.sent_well(&mut a, 1)?;
    let got = f.received_well(&mut b, 1)?;
    ensure(got == [pattern(LARGE)], || "the data differs".into())?;
    Ok(Outcome::Passed)
}

fn large_write_and_read(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let source = a.region(&pattern(LARGE), Access::LOCAL_WRITE)?;
    let target = b.region(&vec![0; LARGE], Access::all())?;
    let mut request = SendRequest::new(SendOp::Write(target.remote_addr(0))).flags(SendFlags::SIGNALED);
    push(&mut request, whole(&source))?;
    a.post_request(request)?;
    f.sent_well(&mut a, 1)?;
    ensure(bytes_of(&target)? == pattern(LARGE), || {
        "the data written differs".into()
    })?;

    let into = a.region(&vec![0; LARGE], Access::LOCAL_WRITE)?;
    let wc = read(f, &mut a, target.remote_addr(0), whole(&into))?;
    same("byte_len of the READ", wc.byte_len as usize, LARGE)?;
    ensure(bytes_of(&into)? == pattern(LARGE), || {
        "the data read differs".into()
    })?;
    Ok(Outcome::Passed)
}

fn messages_keep_their_order(f: &Fixture<'_>) -> Check {
    const ROUND: u32 = 20;
    let (mut a, mut b) = f.pair()?;
    for round in 0..10 {
        b.receive(ROUND as usize)?;
        let numbers = round * ROUND..(round + 1) * ROUND;
        for i in numbers.clone() {
            let request = a.request(SendOp::Send, &i.to_le_bytes(), SendFlags::SIGNALED)?;
            a.post_request(request.cookie(i.into()))?;
        }
        let sent = f.sent_well(&mut a, ROUND as usize)?;
        let cookies: Vec<_> = sent
            .iter()
            .flat_map(|sent| &sent.retired)
            .map(|r| r.cookie as u32)
            .collect();
        same("order of completions", cookies, numbers.clone().collect())?;
        let got = f.received_well(&mut b, ROUND as usize)?;
        let expected: Vec<_> = numbers.map(|i| i.to_le_bytes().to_vec()).collect();
        same("order of messages", got, expected)?;
    }
    Ok(Outcome::Passed)
}

fn fence_waits_for_reads(f: &Fixture<'_>) -> Check {
    let (mut a, b) = f.pair()?;
    let remote = b.region(&[pattern(4096), vec![0; 4096]].concat(), Access::all())?;
    let local = a.region(&vec![0; 4096], Access::LOCAL_WRITE)?;
    let mut read = SendRequest::new(SendOp::Read(remote.remote_addr(0)));
    push(&mut read, whole(&local))?;
    let write = SendOp::Write(remote.remote_addr(4096));
    let mut write = SendRequest::new(write).flags(SendFlags::SIGNALED | SendFlags::FENCE);
    push(&mut write, whole(&local))?;
    a.sq.post(&mut vec![read, write])?;
    let sent = f.sent_well(&mut a, 1)?;
    same("requests retired", one(sent)?.retired.len(), 2)?;
    ensure(bytes_of(&remote)?[4096..] == pattern(4096), || {
        "the WRITE overtook the READ".into()
    })?;
    Ok(Outcome::Passed)
}

fn unsignaled_sends_complete_silently(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(8)?;
    for _ in 0..7 {
        let request = a.request(SendOp::Send, b"quiet", SendFlags::empty())?;
        a.post_request(request)?;
    }
    a.post(SendOp::Send, b"loud", SendFlags::empty())?;
    f.received_well(&mut b, 8)?;
    let sent = one(f.sent_well(&mut a, 1)?)?;
    same("requests retired", sent.retired.len(), 8)?;
    drop(sent);
    same("slots free", a.pool.available(), a.pool.count())?;
    same(
        "further completions",
        a.send_cq.poll(&mut [WorkCompletion::EMPTY])?,
        0,
    )?;
    Ok(Outcome::Passed)
}

fn sq_sig_all_signals_all(f: &Fixture<'_>) -> Check {
    let setup = Setup {
        sq_sig_all: true,
        ..Setup::default()
    };
    let (mut a, mut b) = f.pair_of(&setup, &Setup::default())?;
    b.receive(3)?;
    for _ in 0..3 {
        let request = a.request(SendOp::Send, b"x", SendFlags::empty())?;
        a.post_request(request)?;
    }
    f.sent_well(&mut a, 3)?;
    Ok(Outcome::Passed)
}

fn completions_name_their_request(f: &Fixture<'_>) -> Check {
    let (mut a, mut b) = f.pair()?;
    b.receive(1)?;
    let target = b.region(&[0; 8], Access::all())?;
    let into = a.region(&[0; 8], Access::LOCAL_WRITE)?;
    a.post(SendOp::Send, b"x", SendFlags::empty())?;
    a.post(SendOp::Write(target.remote_addr(0)), b"x", SendFlags::empty())?;
    let mut request = SendRequest::new(SendOp::Read(target.remote_addr(0))).flags(SendFlags::SIGNALED);
    push(&mut request, whole(&into))?;
    a.post_request(request)?;
    let sent = f.sent_well(&mut a, 3)?;
    let opcodes = [WcOpcode::Send, WcOpcode::RdmaWrite, WcOpcode::RdmaRead];
    for (i, (sent, opcode)) in (0..).zip(sent.iter().zip(opcodes)) {
        let expected = WrId::new(WrKind::Send, OWNER, GENERATION, i);
        same("wr_id", WrId::from_raw(sent.wc.wr_id), Some(expected))?;
        same("operation", sent.wc.opcode, opcode)?;
        same("qp_num", sent.wc.qp_num, a.qp.qpn())?;
    }
    let message = one(f.received(&mut b, 1)?)?;
    let kind = WrId::from_raw(message.wc.wr_id).map(WrId::kind);
    same("kind of a receive's wr_id", kind, Some(WrKind::Recv))?;
    same("qp_num of a receive", message.wc.qp_num, b.qp.qpn())?;
    Ok(Outcome::Passed)
}

/// The one item of a list that was waited for.
fn one<T>(items: Vec<T>) -> Result<T, Failure> {
    let first = items.into_iter().next();
    first.ok_or_else(|| Failure::new("nothing where one was waited for"))
}

/// Fails if a receive of `end` completed.
fn no_receive(end: &End) -> Result<(), Failure> {
    let mut some = [WorkCompletion::EMPTY];
    let n = end.recv_cq.poll(&mut some)?;
    ensure(n == 0, || format!("a receive completed: {:?}", some[0]))
}
