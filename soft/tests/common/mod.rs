//! Two connected ends, for tests.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use adverb_soft::SoftDevice;
use adverb_types::{Gid, Psn, Qpn};
use adverb_verbs::{
    Access, AddressVector, Buffer, CompChannel, Cq, CqInit, Device, InitAttr, Mtu, Pd, Provider, Qp, QpCaps,
    QpInit, QpModify, RecvQueue, Region, RtrAttr, RtsAttr, SendFlags, SendOp, SendQueue, SendRequest,
    SlotPool, WcStatus, WorkCompletion,
};

pub(crate) const SEND_COOKIE: u64 = 1;
pub(crate) const RECV_COOKIE: u64 = 2;
pub(crate) const DEPTH: u32 = 16;
pub(crate) const SLOT: usize = 8192;

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) mtu: Mtu,
    /// Local ACK timeout code.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
}

impl Default for Link {
    /// Packets of 1024 bytes, 17 ms, 6 retries.
    fn default() -> Self {
        Self {
            mtu: Mtu::Mtu1024,
            timeout: 12,
            retry_cnt: 6,
        }
    }
}

/// What one needs to know of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) gid: Gid,
    pub(crate) udp_port: Option<u16>,
    pub(crate) qpn: Qpn,
}

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

impl End {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_comp_channel().unwrap();
        let cq = |cookie| {
            let init = CqInit::new(256).channel(&channel).cookie(cookie);
            device.create_cq(&init).unwrap()
        };
        let (send_cq, recv_cq) = (cq(SEND_COOKIE), cq(RECV_COOKIE));
        let qp = pd
            .create_qp(&QpInit {
                send_cq: &send_cq,
                recv_cq: &recv_cq,
                srq: None,
                caps: QpCaps {
                    max_send_wr: DEPTH,
                    max_recv_wr: DEPTH,
                    max_send_sge: 2,
                    max_recv_sge: 1,
                    max_inline_data: 64,
                },
                sq_sig_all: false,
            })
            .unwrap();
        Self {
            sq: SendQueue::new(Arc::clone(&qp), 0, 0),
            rq: RecvQueue::on_qp(Arc::clone(&qp), 0, 0),
            pool: SlotPool::new(&*pd, SLOT, 64, Access::LOCAL_WRITE).unwrap(),
            device,
            pd,
            channel,
            send_cq,
            recv_cq,
            qp,
        }
    }

    /// Its device, with the controls.
    pub(crate) fn soft(&self) -> &SoftDevice {
        self.device.as_any().downcast_ref().unwrap()
    }

    /// Where peers reach it.
    pub(crate) fn place(&self) -> Place {
        Place {
            gid: self.soft().gid(),
            udp_port: self.device.gid_table(1).unwrap()[0].udp_port,
            qpn: self.qp.qpn(),
        }
    }

    pub(crate) fn connect(&self, peer: &End, link: Link) {
        self.connect_to(peer.place(), link);
    }

    pub(crate) fn connect_to(&self, peer: Place, link: Link) {
        self.to_rtr(peer, link).unwrap();
        self.qp
            .modify(&QpModify::Rts(RtsAttr {
                sq_psn: Psn::new(7),
                timeout: link.timeout,
                retry_cnt: link.retry_cnt,
                rnr_retry: 7,
                max_rd_atomic: 4,
                access: None,
                min_rnr_timer: None,
                alternate: None,
            }))
            .unwrap();
    }

    pub(crate) fn to_rtr(&self, peer: Place, link: Link) -> Result<(), adverb_verbs::VerbsError> {
        self.qp.modify(&QpModify::Init(InitAttr {
            port_num: 1,
            pkey_index: 0,
            access: Access::all(),
        }))?;
        self.qp.modify(&QpModify::Rtr(RtrAttr {
            ah: AddressVector {
                udp_port: peer.udp_port,
                ..AddressVector::roce(1, 0, peer.gid)
            },
            path_mtu: link.mtu,
            dest_qpn: peer.qpn,
            rq_psn: Psn::new(7),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            access: None,
            pkey_index: None,
            alternate: None,
        }))
    }

    pub(crate) fn receive(&mut self, n: usize) {
        let mut slots = (0..n).map(|_| self.pool.take().unwrap()).collect();
        self.rq.post(&mut slots).unwrap();
    }

    pub(crate) fn post(&mut self, op: SendOp, data: &[u8], flags: SendFlags) {
        let mut slot = self.pool.take().unwrap();
        slot.as_mut_slice()[..data.len()].copy_from_slice(data);
        let mut request = SendRequest::new(op).flags(flags);
        request.push(Buffer::slot(slot, data.len())).unwrap();
        self.sq.post(&mut vec![request]).unwrap();
    }

    pub(crate) fn send(&mut self, data: &[u8], flags: SendFlags) {
        self.post(SendOp::Send, data, flags);
    }

    /// Polls what was sent, and says how it ended.
    pub(crate) fn sent(&mut self) -> Vec<WcStatus> {
        let completions = poll(&self.send_cq);
        for wc in &completions {
            self.sq.complete(wc, drop);
        }
        completions.iter().map(|wc| wc.status).collect()
    }

    /// Polls what was received.
    pub(crate) fn received(&mut self) -> Vec<Vec<u8>> {
        let data = |wc: &WorkCompletion| {
            assert_eq!(wc.status, WcStatus::Success);
            let received = self.rq.complete(wc).unwrap();
            received.slot.as_slice()[..received.len].to_vec()
        };
        poll(&self.recv_cq).iter().map(data).collect()
    }

    pub(crate) fn region(&self, len: usize) -> Arc<Region> {
        Arc::new(Region::new(&*self.pd, len, Access::all()).unwrap())
    }
}

/// Two ends on openings of their own of `soft0`, connected.
pub(crate) fn pair(provider: &dyn Provider, link: Link) -> (End, End) {
    let end = || End::new(provider.open("soft0").unwrap());
    let (a, b) = (end(), end());
    a.connect(&b, link);
    b.connect(&a, link);
    (a, b)
}

/// All completions there are now.
pub(crate) fn poll(cq: &Arc<dyn Cq>) -> Vec<WorkCompletion> {
    let mut all = vec![WorkCompletion::EMPTY; 64];
    let n = cq.poll(&mut all).unwrap();
    all.truncate(n);
    all
}

/// Waits until `attempt` has something, for 10 s at most.
pub(crate) fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if let Some(value) = attempt() {
            return value;
        }
        thread::sleep(Duration::from_micros(100));
    }
    panic!("waited in vain for {what}");
}
