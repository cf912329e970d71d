//! Two queue pairs connected through the fault provider, on a simulated network that a test steps.

use std::sync::Arc;
use std::time::Duration;

use adverb_conformance::{FaultProvider, Faults};
use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
use adverb_types::{Mtu, Psn};
use adverb_verbs::{
    Access, AddressVector, Buffer, CompChannel, Cq, CqInit, Device, InitAttr, Provider, Qp, QpCaps, QpInit,
    QpModify, RecvQueue, RtrAttr, RtsAttr, SendFlags, SendOp, SendQueue, SendRequest, SlotPool,
    WorkCompletion,
};

/// Time enough for all that a test posts to arrive and to be acknowledged.
const SETTLED: Duration = Duration::from_millis(1);

/// Devices with faults, on a network of their own.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) network: SimNetwork,
    /// The provider without faults.
    pub(crate) soft: SoftProvider,
    pub(crate) provider: FaultProvider,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let network = SimNetwork::new(SimFaults::default());
        let soft = SoftProvider::simulated(SoftConfig::default(), &network);
        let provider = FaultProvider::new(Arc::new(soft.clone()));
        Self {
            network,
            soft,
            provider,
        }
    }

    pub(crate) fn faults(&self) -> Faults {
        self.provider.faults()
    }

    pub(crate) fn open(&self) -> Arc<dyn Device> {
        self.provider.open("soft0").unwrap()
    }

    /// Two ends, connected.
    pub(crate) fn pair(&self) -> (End, End) {
        let end = || End::new(self.open(), &self.network);
        let (a, b) = (end(), end());
        a.connect(&b);
        b.connect(&a);
        (a, b)
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    network: SimNetwork,
    pub(crate) device: Arc<dyn Device>,
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
    pub(crate) fn new(device: Arc<dyn Device>, network: &SimNetwork) -> Self {
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_comp_channel().unwrap();
        let cq = |cookie| {
            let init = CqInit::new(64).channel(&channel).cookie(cookie);
            device.create_cq(&init).unwrap()
        };
        let (send_cq, recv_cq) = (cq(SEND_COOKIE), cq(RECV_COOKIE));
        let qp = pd
            .create_qp(&QpInit {
                send_cq: &send_cq,
                recv_cq: &recv_cq,
                srq: None,
                caps: caps(),
                sq_sig_all: false,
            })
            .unwrap();
        Self {
            sq: SendQueue::new(Arc::clone(&qp), 0, 0),
            rq: RecvQueue::on_qp(Arc::clone(&qp), 0, 0),
            network: network.clone(),
            pool: SlotPool::new(&*pd, 256, 64, Access::LOCAL_WRITE).unwrap(),
            device,
            channel,
            send_cq,
            recv_cq,
            qp,
        }
    }

    pub(crate) fn connect(&self, peer: &End) {
        self.qp
            .modify(&QpModify::Init(InitAttr {
                port_num: 1,
                pkey_index: 0,
                access: Access::all(),
            }))
            .unwrap();
        self.qp
            .modify(&QpModify::Rtr(RtrAttr {
                ah: AddressVector::roce(1, 0, peer.device.gid_table(1).unwrap()[0].gid),
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
                rnr_retry: 6,
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

    pub(crate) fn request(&self, data: &[u8], flags: SendFlags) -> SendRequest {
        let mut slot = self.pool.take().unwrap();
        slot.as_mut_slice()[..data.len()].copy_from_slice(data);
        let mut request = SendRequest::new(SendOp::Send).flags(flags);
        request.push(Buffer::slot(slot, data.len())).unwrap();
        request
    }

    /// Sends, and lets the message arrive.
    pub(crate) fn send(&mut self, data: &[u8], flags: SendFlags) {
        let request = self.request(data, flags);
        self.sq.post(&mut vec![request]).unwrap();
        self.settle();
    }

    /// Lets everything arrive that was posted.
    pub(crate) fn settle(&self) {
        self.network.advance(SETTLED);
    }
}

/// All completions there are now.
pub(crate) fn poll(cq: &Arc<dyn Cq>) -> Vec<WorkCompletion> {
    let mut all = vec![WorkCompletion::EMPTY; 64];
    let n = cq.poll(&mut all).unwrap();
    all.truncate(n);
    all
}
