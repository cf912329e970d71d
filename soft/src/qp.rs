//! Queue pairs: the RC protocol's state machine, and what the device keeps beside it.
//!
//! # Lock order
//! 1. the device's receive side ([`crate::core::Core`]), and under that the connections and rings of its wire, which are held alone,
//! 2. one queue pair,
//! 3. one of the leaves: the memory table, a shared receive queue, a completion queue (and under that its channel), the events, the timers, the ring
//!    to a peer.
//!
//! Packets of a queue pair are handed to the wire before its lock is released: else those of one thread could overtake those of another, which
//! the peer would take for a loss.

use std::fmt::{self, Debug};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use adverb_roce::{Packet, PostRefused, QpConfig, Queue, Rc, Receive};
use adverb_types::{Gid, Lkey, Qpn};
use adverb_verbs::{AddressVector, QpCaps, QpModify, QpState, RecvWr, RtrAttr, SendFlags, SendWr, Sge};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::config::ROCE_PORT;
use crate::core::Core;
use crate::cq::CqCore;
use crate::host::View;
use crate::srq::SrqCore;
use crate::wire::{Outbox, Route, TrafficClass};

/// A queue pair.
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) caps: QpCaps,
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) recv_cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
    inner: Mutex<Inner>,
}

/// What a queue pair is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) pd: u32,
    pub(crate) caps: QpCaps,
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) recv_cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
    pub(crate) sq_sig_all: bool,
}

/// What its lock guards.
#[derive(Debug)]
pub(crate) struct Inner {
    rc: Rc,
    /// Where its packets go, and the only place that packets for it may come from.
    route: Option<Route>,
    /// The earliest of its entries in [`crate::timers::Timers`].
    timer: Option<Instant>,
    /// Whether it counts among those that the device's thread must attend to.
    live: bool,
    /// Inline data on its way from the poster's memory into the protocol's.
    inline: Vec<u8>,
}

impl QpCore {
    pub(crate) fn new(qpn: Qpn, parts: Parts) -> Arc<Self> {
        let config = QpConfig {
            qpn,
            caps: parts.caps,
            sq_sig_all: parts.sq_sig_all,
            srq: parts.srq.is_some(),
        };
        Arc::new(Self {
            qpn,
            pd: parts.pd,
            caps: parts.caps,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            inner: Mutex::new(Inner {
                rc: Rc::new(config),
                route: None,
                timer: None,
                live: false,
                inline: Vec::new(),
            }),
        })
    }

    pub(crate) fn state(&self) -> QpState {
        self.inner.lock().rc.state()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// How many of its sends and of its receives are not complete and name memory by this key.
    pub(crate) fn naming(&self, lkey: Lkey) -> (usize, usize) {
        let (mut sends, mut receives) = (0, 0);
        for (queue, sges) in self.inner.lock().rc.outstanding() {
            let count = match queue {
                Queue::Send => &mut sends,
                Queue::Recv => &mut receives,
            };
            *count += usize::from(names(sges, lkey));
        }
        (sends, receives)
    }

    /// Changes its state.
    ///
    /// # Errors
    /// `EINVAL` for what the port or the device does not have, or for a transition that does not exist; `ENETUNREACH` if the peer cannot be reached.
    pub(crate) fn modify(&self, core: &Core, to: &QpModify) -> Result<(), Errno> {
        let route = match to {
            QpModify::Rtr(attr) => {
                let class = TrafficClass::of(attr.ah.traffic_class);
                Some(core.wire.route(peer_address(core, attr)?).with_class(class))
            }
            other => {
                check_attributes(core, other)?;
                None
            }
        };
        let mut inner = self.inner.lock();
        let mut view = View { core, qp: self };
        inner.rc.modify(to, &mut view).map_err(|_| Errno::INVAL)?;
        if let Some(route) = route {
            inner.route = Some(route);
        }
        Core::with_outbox(|outbox| self.settle(core, &mut inner, outbox, core.now()));
        if *to == QpModify::Reset {
            inner.route = None;
        }
        Ok(())
    }

    /// It is destroyed: when this returns, its memory is not touched any more.
    pub(crate) fn destroy(&self, core: &Core) {
        core.remove_qp(self.qpn);
        // Every state can be reset.
        let _ = self.modify(core, &QpModify::Reset);
    }

    /// Posts sends until one is refused, and says how many were accepted and why the next was not. `inline` appends the data of a request that is
    /// posted inline.
    pub(crate) fn post_send(
        &self,
        core: &Core,
        wrs: &[SendWr<'_>],
        inline: impl Fn(&SendWr<'_>, &mut Vec<u8>),
    ) -> Result<(), (usize, Errno)> {
        let mut inner = self.inner.lock();
        let result = wrs.iter().enumerate().try_for_each(|(accepted, wr)| {
            self.post_one(core, &mut inner, wr, &inline)
                .map_err(|errno| (accepted, errno))
        });
        Core::with_outbox(|outbox| self.settle(core, &mut inner, outbox, core.now()));
        result
    }

    fn post_one(
        &self,
        core: &Core,
        inner: &mut Inner,
        wr: &SendWr<'_>,
        inline: &impl Fn(&SendWr<'_>, &mut Vec<u8>),
    ) -> Result<(), Errno> {
        let mut work = adverb_roce::Work {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            sges: wr.sges,
            inline: &[],
        };
        inner.inline.clear();
        if wr.flags.contains(SendFlags::INLINE) {
            let len: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
            if len > self.caps.max_inline_data.into() || wr.sges.len() > self.caps.max_send_sge as usize {
                return Err(Errno::INVAL);
            }
            inline(wr, &mut inner.inline);
            work.sges = &[];
            work.inline = &inner.inline;
        }
        let mut view = View { core, qp: self };
        inner.rc.post_send(&work, &mut view).map_err(refused)
    }

    /// Posts receives until one is refused, and says how many were accepted and why the next was not.
    pub(crate) fn post_recv(&self, core: &Core, wrs: &[RecvWr<'_>]) -> Result<(), (usize, Errno)> {
        let mut inner = self.inner.lock();
        let mut view = View { core, qp: self };
        wrs.iter().enumerate().try_for_each(|(accepted, wr)| {
            let receive = receive(wr, self.caps.max_recv_sge).ok_or((accepted, Errno::INVAL))?;
            let posted = inner.rc.post_recv(receive, &mut view);
            posted.map_err(|refusal| (accepted, refused(refusal)))
        })
    }

    /// Hands it a packet, which a switch on the way may have marked, if it comes from its peer. Whether it does.
    pub(crate) fn take(
        &self,
        core: &Core,
        inner: &mut Inner,
        now: Instant,
        from: SocketAddr,
        packet: &Packet<'_>,
        marked: bool,
    ) -> bool {
        // The source port is the sender's to choose (annex A17); who may send is told by the address.
        if inner
            .route
            .as_ref()
            .is_none_or(|route| route.peer().ip() != from.ip())
        {
            return false;
        }
        inner.rc.handle_packet(now, packet, &mut View { core, qp: self });
        // Only what carries data can be sent slower. An answer to a notification would be one to an answer.
        if marked && !packet.payload.is_empty() {
            inner.rc.handle_congestion(now);
        }
        true
    }

    /// Its entry in the timers for `at` has come up.
    pub(crate) fn due(&self, core: &Core, inner: &mut Inner, now: Instant, at: Instant) {
        // An older entry, which an earlier one took the place of, means nothing.
        if inner.timer == Some(at) {
            inner.timer = None;
            if inner.rc.poll_timeout().is_some_and(|due| due <= now) {
                inner.rc.handle_timeout(now, &mut View { core, qp: self });
            }
        }
    }

    /// Does what follows from any change: sends what is to be sent, and says when to look again. `outbox` is empty, and is so again.
    pub(crate) fn settle(&self, core: &Core, inner: &mut Inner, outbox: &mut Outbox, now: Instant) {
        let mut view = View { core, qp: self };
        while let Some(route) = &inner.route {
            let (peer, link) = (route.peer(), route.link());
            outbox.set_class(route.class());
            let mut emit = |out: &mut Vec<u8>| inner.rc.poll_transmit(now, out, &mut view);
            let longest = if link.is_some() {
                1
            } else {
                core.wire.longest_run()
            };
            let seal = |packet: &[u8], place| match link {
                Some(_) => None,
                None => core.icrc_to(peer, packet, place),
            };
            while outbox.add(longest, &mut emit, seal) {}
            let more = outbox.is_full();
            core.send(peer, link, outbox);
            outbox.clear();
            if !more {
                break;
            }
        }
        if let Some(due) = inner.rc.poll_timeout()
            && inner.timer.is_none_or(|timer| due < timer)
        {
            inner.timer = Some(due);
            core.wake_at(due, self.qpn);
        }
        let live = matches!(inner.rc.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        if live != inner.live {
            inner.live = live;
            core.attention.count_live(live);
        }
    }
}

impl Debug for QpCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpCore")
            .field("qpn", &self.qpn)
            .field("pd", &self.pd)
            .finish_non_exhaustive()
    }
}

/// Whether elements name memory by this key. Of an element without bytes the key means nothing.
pub(crate) fn names(sges: &[Sge], lkey: Lkey) -> bool {
    sges.iter().any(|sge| sge.lkey == lkey && sge.length > 0)
}

/// A receive as it is kept; `None` if it has more elements than it may.
pub(crate) fn receive(wr: &RecvWr<'_>, max_sge: u32) -> Option<Receive> {
    (wr.sges.len() <= max_sge as usize)
        .then(|| wr.sges.try_into().ok())
        .flatten()
        .map(|sges| Receive {
            wr_id: wr.wr_id,
            sges,
        })
}

fn refused(refusal: PostRefused) -> Errno {
    match refusal {
        PostRefused::Invalid => Errno::INVAL,
        PostRefused::Full => Errno::NOMEM,
    }
}

/// Checks a transition to RTR, and gives the peer's address.
fn peer_address(core: &Core, attr: &RtrAttr) -> Result<SocketAddr, Errno> {
    let valid = is_valid(&attr.ah)
        && attr.path_mtu <= core.active_mtu
        && attr.pkey_index.unwrap_or(0) == 0
        && attr.alternate.is_none()
        && attr.max_dest_rd_atomic <= core.attr.max_qp_rd_atom;
    let dgid = attr.ah.dgid.filter(|_| valid).ok_or(Errno::INVAL)?;
    if !core.is_active() || dgid.ip().is_ipv4() != core.address().is_ipv4() {
        return Err(Errno::NETUNREACH);
    }
    let port = attr.ah.udp_port.unwrap_or(ROCE_PORT);
    Ok(SocketAddr::new(dgid.ip(), port))
}

/// Checks the other transitions.
fn check_attributes(core: &Core, to: &QpModify) -> Result<(), Errno> {
    let valid = match to {
        QpModify::Init(attr) => attr.port_num == 1 && attr.pkey_index == 0,
        QpModify::Rts(attr) => {
            attr.alternate.is_none() && attr.max_rd_atomic <= core.attr.max_qp_init_rd_atom
        }
        _ => true,
    };
    if valid { Ok(()) } else { Err(Errno::INVAL) }
}

fn is_valid(ah: &AddressVector) -> bool {
    ah.port_num == 1 && ah.sgid_index == 0 && !ah.dgid.is_none_or(Gid::is_zero)
}
