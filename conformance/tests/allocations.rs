//! The loopback device's promise: once warm, posting, polling and arming allocate nothing.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use adverb_conformance::Loopback;
use adverb_verbs::{
    Access, AddressVector, Buffer, CqInit, InitAttr, Mtu, Provider, Psn, Qp, QpCaps, QpInit, QpModify,
    RecvQueue, RtrAttr, RtsAttr, SendFlags, SendOp, SendQueue, SendRequest, SlotPool, WcStatus,
    WorkCompletion,
};
use std::sync::Arc;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: it hands everything to the system's allocator, which keeps the promises; the count is on the side.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // At the end of a thread there may be no counter any more.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_message_allocates_nothing() {
    let provider = Loopback::default();
    let device = provider.open("loop0").unwrap();
    let pd = device.alloc_pd().unwrap();
    let channel = device.create_comp_channel().unwrap();
    let cq = device.create_cq(&CqInit::new(64).channel(&channel)).unwrap();
    // A queue pair that is connected to itself: both sides of the path on one thread.
    let qp = pd
        .create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sq_sig_all: false,
        })
        .unwrap();
    connect_to_itself(&qp, device.gid_table(1).unwrap()[1].gid);
    let pool = SlotPool::new(&*pd, 4096, 8, Access::LOCAL_WRITE).unwrap();
    let mut sq = SendQueue::new(Arc::clone(&qp), 0, 0);
    let mut rq = RecvQueue::on_qp(Arc::clone(&qp), 0, 0);
    let (mut slots, mut requests) = (Vec::with_capacity(4), Vec::with_capacity(4));

    let mut round = |flags: SendFlags, len: usize| {
        slots.push(pool.take().unwrap());
        rq.post(&mut slots).unwrap();
        cq.req_notify(true).unwrap();
        let mut request = SendRequest::new(SendOp::Send).flags(flags | SendFlags::SIGNALED);
        request.push(Buffer::slot(pool.take().unwrap(), len)).unwrap();
        requests.push(request);
        sq.post(&mut requests).unwrap();
        let mut completions = [WorkCompletion::EMPTY; 4];
        let n = cq.poll(&mut completions).unwrap();
        assert_eq!(n, 2);
        for wc in &completions[..n] {
            assert_eq!(wc.status, WcStatus::Success);
            if sq.complete(wc, drop) == 0 {
                assert_eq!(rq.complete(wc).unwrap().len, len);
            }
        }
        let event = channel.next_event().unwrap();
        assert_eq!(event.is_some(), flags.contains(SendFlags::SOLICITED));
        cq.ack_events();
    };
    let kinds = [
        (SendFlags::empty(), 4096),
        (SendFlags::SOLICITED, 100),
        (SendFlags::INLINE, 64),
    ];
    kinds.iter().for_each(|(flags, len)| round(*flags, *len));
    let before = COUNT.get();
    for _ in 0..1000 {
        kinds.iter().for_each(|(flags, len)| round(*flags, *len));
    }
    assert_eq!(COUNT.get() - before, 0);
}

#[cfg(test)]
fn connect_to_itself(qp: &Arc<dyn Qp>, gid: adverb_verbs::Gid) {
    let init = InitAttr {
        port_num: 1,
        pkey_index: 0,
        access: Access::empty(),
    };
    qp.modify(&QpModify::Init(init)).unwrap();
    let rtr = RtrAttr {
        ah: AddressVector {
            port_num: 1,
            sgid_index: 1,
            dgid: Some(gid),
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            udp_port: None,
        },
        path_mtu: Mtu::Mtu4096,
        dest_qpn: qp.qpn(),
        rq_psn: Psn::new(0),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        access: None,
        pkey_index: None,
        alternate: None,
    };
    qp.modify(&QpModify::Rtr(rtr)).unwrap();
    let rts = RtsAttr {
        sq_psn: Psn::new(0),
        timeout: 14,
        retry_cnt: 6,
        rnr_retry: 7,
        max_rd_atomic: 1,
        access: None,
        min_rnr_timer: None,
        alternate: None,
    };
    qp.modify(&QpModify::Rts(rts)).unwrap();
}
