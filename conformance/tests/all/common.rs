//! Two connected queue pairs, for tests.

use std::sync::Arc;

use adverb_types::{Mtu, Psn};
use adverb_verbs::{
    Access, AddressVector, Buffer, CompChannel, Cq, CqInit, Device, InitAttr, Pd, Provider, Qp, QpCaps,
    QpInit, QpModify, RecvQueue, RtrAttr, RtsAttr, SendFlags, SendOp, SendQueue, SendRequest, SlotPool, Srq,
    WorkCompletion,
};

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pd: Arc<dyn Pd>,
    pub(crate) channel: Arc<dyn CompChannel>,
    pub(crate) send_cq: Arc<dyn Cq>,
    pub(crate) recv_cq: Arc<dyn Cq>,
    pub(crate) qp: Arc<dyn Qp>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) pool: SlotPool,
}

pub(crate) const SEND_COOKIE: u64 = 1;
pub(crate) const RECV_COOKIE: u64 = 2;

pub(crate) fn caps() -> QpCaps {
    QpCaps {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 64,
    }
}

impl End {
    pub(crate) fn new(provider: &dyn Provider, device: &str) -> Self {
        Self::build(provider, device, 64, |_| None)
    }

    pub(crate) fn with_srq(
        provider: &dyn Provider,
        device: &str,
        srq: impl FnOnce(&dyn Pd) -> Option<Arc<dyn Srq>>,
    ) -> Self {
        Self::build(provider, device, 64, srq)
    }

    /// A connected pair whose completion queues hold `cqe` completions.
    pub(crate) fn pair_with_cqe(provider: &dyn Provider, cqe: u32) -> (Self, Self) {
        let end = |device| Self::build(provider, device, cqe, |_| None);
        let (a, b) = (end("loop0"), end("loop1"));
        a.connect(&b, 6);
        b.connect(&a, 6);
        (a, b)
    }

    fn build(
        provider: &dyn Provider,
        device: &str,
        cqe: u32,
        srq: impl FnOnce(&dyn Pd) -> Option<Arc<dyn Srq>>,
    ) -> Self {
        let device = provider.open(device).unwrap();
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_comp_channel().unwrap();
        let cq = |cookie| {
            let init = CqInit::new(cqe).channel(&channel).cookie(cookie);
            device.create_cq(&init).unwrap()
        };
        let (send_cq, recv_cq) = (cq(SEND_COOKIE), cq(RECV_COOKIE));
        let srq = srq(&*pd);
        let qp = pd
            .create_qp(&QpInit {
                send_cq: &send_cq,
                recv_cq: &recv_cq,
                srq: srq.as_ref(),
                caps: caps(),
                sq_sig_all: false,
            })
            .unwrap();
        let rq = match srq {
            Some(srq) => RecvQueue::on_srq(srq),
            None => RecvQueue::on_qp(Arc::clone(&qp), 0, 0),
        };
        Self {
            sq: SendQueue::new(Arc::clone(&qp), 0, 0),
            rq,
            pool: SlotPool::new(&*pd, 256, 64, Access::LOCAL_WRITE).unwrap(),
            device,
            pd,
            channel,
            send_cq,
            recv_cq,
            qp,
        }
    }

    pub(crate) fn connect(&self, peer: &End, rnr_retry: u8) {
        self.qp
            .modify(&QpModify::Init(InitAttr {
                port_num: 1,
                pkey_index: 0,
                access: Access::all(),
            }))
            .unwrap();
        self.qp
            .modify(&QpModify::Rtr(RtrAttr {
                ah: AddressVector {
                    port_num: 1,
                    sgid_index: 1,
                    dgid: Some(peer.device.gid_table(1).unwrap()[1].gid),
                    dlid: 0,
                    sl: 0,
                    src_path_bits: 0,
                    static_rate: 0,
                    flow_label: 0,
                    hop_limit: 64,
                    traffic_class: 0,
                    udp_port: None,
                },
                path_mtu: Mtu::Mtu1024,
                dest_qpn: peer.qp.qpn(),
                rq_psn: Psn::new(7),
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                access: None,
                pkey_index: None,
                alternate: None,
            }))
            .unwrap();
        self.qp
            .modify(&QpModify::Rts(RtsAttr {
                sq_psn: Psn::new(7),
                timeout: 10,
                retry_cnt: 6,
                rnr_retry,
                max_rd_atomic: 1,
                access: None,
                min_rnr_timer: None,
                alternate: None,
            }))
            .unwrap();
    }

    pub(crate) fn receive(&mut self, n: usize) {
        let mut slots = (0..n).map(|_| self.pool.take().unwrap()).collect();
        self.rq.post(&mut slots).unwrap();
    }

    pub(crate) fn request(&self, op: SendOp, data: &[u8], flags: SendFlags) -> SendRequest {
        let mut slot = self.pool.take().unwrap();
        slot.as_mut_slice()[..data.len()].copy_from_slice(data);
        let mut request = SendRequest::new(op).flags(flags);
        request.push(Buffer::slot(slot, data.len())).unwrap();
        request
    }

    pub(crate) fn send(&mut self, data: &[u8], flags: SendFlags) {
        let request = self.request(SendOp::Send, data, flags);
        self.sq.post(&mut vec![request]).unwrap();
    }
}

/// Two ends on two devices, connected.
pub(crate) fn pair(provider: &dyn Provider) -> (End, End) {
    End::pair_with_cqe(provider, 64)
}

/// All completions there are now.
pub(crate) fn poll(cq: &Arc<dyn Cq>) -> Vec<WorkCompletion> {
    let mut all = vec![WorkCompletion::EMPTY; 64];
    let n = cq.poll(&mut all).unwrap();
    all.truncate(n);
    all
}
