//! Two devices in memory, a network between them that loses, repeats, delays and reorders, and a clock that only it moves.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "shared by several tests, which have failed if they cannot go on"
)]

mod host;
mod network;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use adverb_roce::{QpConfig, Rc, Receive, SgeList, Work};
use adverb_types::{Lkey, Mtu, Psn, Qpn, Rkey};
use adverb_verbs::{
    Access, AddressVector, InitAttr, QpCaps, QpModify, RemoteAddr, RtrAttr, RtsAttr, SendFlags, SendOp, Sge,
};

pub(crate) use host::TestHost;
pub(crate) use network::{Faults, Network};

/// The key of all memory, for its own side and for the peer.
pub(crate) const KEY: u32 = 7;

/// How the two ends of a connection are set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) mtu: Mtu,
    pub(crate) srq: bool,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) access: Access,
    /// The first PSN of each direction: high ones wrap soon.
    pub(crate) psn: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            mtu: Mtu::Mtu256,
            srq: false,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            access: Access::all(),
            psn: 0xff_ff00,
        }
    }
}

/// A queue pair and the device under it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) rc: Rc,
    pub(crate) host: TestHost,
}

impl End {
    fn new(qpn: u32, setup: &Setup, memory: usize) -> Self {
        let config = QpConfig {
            qpn: Qpn::truncating(qpn),
            caps: QpCaps {
                max_send_wr: 1 << 14,
                max_recv_wr: 1 << 14,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 512,
            },
            sq_sig_all: false,
            srq: setup.srq,
        };
        Self {
            rc: Rc::new(config),
            host: TestHost::new(memory),
        }
    }

    pub(crate) fn modify(&mut self, to: &QpModify) {
        self.rc.modify(to, &mut self.host).unwrap();
    }

    fn connect(&mut self, peer: u32, setup: &Setup) {
        self.modify(&QpModify::Init(InitAttr {
            port_num: 1,
            pkey_index: 0,
            access: setup.access,
        }));
        self.modify(&QpModify::Rtr(RtrAttr {
            ah: AddressVector::roce(1, 0, Ipv4Addr::LOCALHOST.into()),
            path_mtu: setup.mtu,
            dest_qpn: Qpn::truncating(peer),
            rq_psn: Psn::new(setup.psn),
            max_dest_rd_atomic: setup.max_rd_atomic,
            min_rnr_timer: 5,
            access: None,
            pkey_index: None,
            alternate: None,
        }));
        self.modify(&QpModify::Rts(RtsAttr {
            sq_psn: Psn::new(setup.psn),
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            max_rd_atomic: setup.max_rd_atomic,
            access: None,
            min_rnr_timer: None,
            alternate: None,
        }));
    }

    /// Posts a send of the memory at `addr`, signaled.
    pub(crate) fn send(&mut self, wr_id: u64, op: SendOp, addr: u64, len: u32) {
        self.post(wr_id, op, &[sge(addr, len)], SendFlags::SIGNALED, &[]);
    }

    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags, inline: &[u8]) {
        let work = Work {
            wr_id,
            op,
            flags,
            sges,
            inline,
        };
        self.rc.post_send(&work, &mut self.host).unwrap();
    }

    /// Posts a receive into the memory at `addr`, to its own or to the shared queue.
    pub(crate) fn receive(&mut self, wr_id: u64, addr: u64, len: u32, srq: bool) {
        let receive = Receive {
            wr_id,
            sges: SgeList::from_iter([sge(addr, len)]),
        };
        if srq {
            self.host.srq.push_back(receive);
        } else {
            self.rc.post_recv(receive, &mut self.host).unwrap();
        }
    }
}

pub(crate) fn sge(addr: u64, length: u32) -> Sge {
    Sge {
        addr,
        length,
        lkey: Lkey::new(KEY),
    }
}

pub(crate) fn remote(addr: u64) -> RemoteAddr {
    RemoteAddr {
        addr,
        rkey: Rkey::new(KEY),
    }
}

/// Connected pairs of queue pairs, all on one network. The ends of pair `i` are `2 * i` and `2 * i + 1`.
pub(crate) struct World {
    pub(crate) ends: Vec<End>,
    pub(crate) network: Network,
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    /// The steps it may still take: a protocol that talks for ever ends here.
    steps: u64,
    buffer: Vec<u8>,
}

impl World {
    pub(crate) fn new(pairs: usize, setup: &Setup, memory: usize, seed: u64, faults: Faults) -> Self {
        let start = Instant::now();
        let mut ends: Vec<End> = (0..2 * pairs)
            .map(|i| End::new(i as u32 + 16, setup, memory))
            .collect();
        for (i, end) in ends.iter_mut().enumerate() {
            end.connect((i ^ 1) as u32 + 16, setup);
        }
        Self {
            ends,
            network: Network::new(seed, faults),
            now: start,
            start,
            steps: 20_000_000,
            buffer: Vec::new(),
        }
    }

    /// One pair without faults.
    pub(crate) fn pair(setup: &Setup) -> Self {
        Self::new(1, setup, 1 << 20, 0, Faults::default())
    }

    /// Sends what end `i` has to send.
    pub(crate) fn flush(&mut self, i: usize) {
        let end = &mut self.ends[i];
        loop {
            self.buffer.clear();
            if !end.rc.poll_transmit(self.now, &mut self.buffer, &mut end.host) {
                break;
            }
            self.network.send(self.now, i ^ 1, &self.buffer);
        }
        if let Some(at) = end.rc.poll_timeout() {
            self.network.alarm(at, i);
        }
    }

    /// Lets the next thing happen, if it happens by `until`. `false` if nothing does: then it is `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        assert!(self.steps > 0, "it never comes to rest");
        self.steps -= 1;
        let Some((at, i, packet)) = self.network.next(until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(at);
        let end = &mut self.ends[i];
        match packet {
            Some(bytes) => {
                let packet = adverb_roce::Packet::parse(&bytes).unwrap();
                assert_eq!(packet.dest_qpn.get(), i as u32 + 16);
                end.rc.handle_packet(self.now, &packet, &mut end.host);
            }
            None => {
                if end.rc.poll_timeout().is_some_and(|at| at <= self.now) {
                    end.rc.handle_timeout(self.now, &mut end.host);
                }
            }
        }
        self.flush(i);
        true
    }

    /// Sends what there is to send and runs until nothing is on its way or due within `limit`.
    pub(crate) fn settle(&mut self, limit: Duration) {
        for i in 0..self.ends.len() {
            self.flush(i);
        }
        let until = self.now + limit;
        while self.step(until) {}
    }
}
