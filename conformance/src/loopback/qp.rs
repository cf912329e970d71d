//! RC queue pairs: states, work queues and what is left undone on them.
//!
//! # Lock order
//! 1. the send side of one queue pair ([`QpCore::tx`]),
//! 2. the receive side of one queue pair ([`QpCore::rx`]), its own or its peer's,
//! 3. one of the leaves: a shared receive queue, the memory table, a completion queue (and under that its channel), the
//!    table of queue pairs, an event queue.
//!
//! A thread holds one lock of each kind at most, and who holds a receive side takes no send side. So two connected queue
//! pairs that post to each other at once take different locks of the same kinds in the same order. What one queue pair must
//! do on the send side of another is put into [`Later`] and done when all locks are released.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use adverb_types::{Gid, Mtu, Psn, Qpn};
use adverb_verbs::{
    Access, AddressVector, AsyncEvent, AsyncEventKind, EventSource, QpCaps, QpModify, QpState, RtrAttr,
    RtsAttr, SendFlags, SendOp, WcOpcode, WcStatus, WorkCompletion,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::context::Context;
use super::cq::{Completion, CqCore};
use super::memory::{Held, Posted};
use super::srq::{Receive, SrqCore};
use super::transfer::Outcome;

/// A queue pair.
pub(super) struct QpCore {
    pub(super) qpn: Qpn,
    pub(super) pd: u32,
    pub(super) context: Arc<Context>,
    pub(super) caps: QpCaps,
    pub(super) recv_cq: Arc<CqCore>,
    pub(super) srq: Option<Arc<SrqCore>>,
    send_cq: Arc<CqCore>,
    sq_sig_all: bool,
    /// Written under `rx` only.
    state: AtomicU8,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
}

/// What a queue pair is made of.
pub(super) struct Parts {
    pub(super) qpn: Qpn,
    pub(super) pd: u32,
    pub(super) context: Arc<Context>,
    pub(super) caps: QpCaps,
    pub(super) send_cq: Arc<CqCore>,
    pub(super) recv_cq: Arc<CqCore>,
    pub(super) srq: Option<Arc<SrqCore>>,
    pub(super) sq_sig_all: bool,
}

/// The send side.
pub(super) struct Tx {
    /// Places taken in the send queue: until a completion that retires them was polled.
    outstanding: Arc<AtomicU32>,
    /// Requests done without a completion since the last one that made one.
    unretired: u32,
    /// Requests not carried out yet: the peer had no receive for the first, or the queue pair is in SQD.
    waiting: VecDeque<Work>,
    pub(super) requester: Option<Requester>,
}

/// The connection as this side sends on it.
pub(super) struct Requester {
    pub(super) peer: Weak<QpCore>,
    pub(super) path_mtu: Mtu,
    pub(super) sq_psn: Psn,
    rnr_retry: u8,
    pub(super) max_rd_atomic: u8,
}

/// The receive side.
pub(super) struct Rx {
    pub(super) receives: VecDeque<Receive>,
    /// A sender that found `receives` empty.
    pub(super) sender_waits: Option<Weak<QpCore>>,
    pub(super) responder: Option<Responder>,
    pub(super) access: Access,
}

/// The connection as this side receives on it.
#[derive(Clone, Debug)]
pub(super) struct Responder {
    peer: Weak<QpCore>,
    pub(super) peer_qpn: Qpn,
    pub(super) peer_device: usize,
    pub(super) path_mtu: Mtu,
    pub(super) rq_psn: Psn,
    pub(super) max_dest_rd_atomic: u8,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) data: Posted<'a>,
}

/// A send work request that could not be carried out at once.
#[derive(Debug)]
struct Work {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    held: Held,
}

impl Work {
    fn request(&self) -> Request<'_> {
        Request {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            data: self.held.posted(),
        }
    }
}

impl Request<'_> {
    fn hold(&self) -> Work {
        Work {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            held: self.data.hold(),
        }
    }
}

/// Queue pairs that moved to ERR, or away, and what is still to do for them, once no lock is held.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Later {
    failed: [Option<Arc<QpCore>>; 2],
    senders: [Option<Weak<QpCore>>; 2],
}

impl Later {
    /// `qp` moved to ERR, and its receive side is flushed: its send side is not.
    pub(super) fn failed(&mut self, qp: Arc<QpCore>) {
        if let Some(free) = self.failed.iter_mut().find(|failed| failed.is_none()) {
            *free = Some(qp);
        }
    }

    /// `peer` may wait for a receive of a queue pair that will not take it any more.
    fn sender(&mut self, peer: Weak<QpCore>) {
        if let Some(free) = self.senders.iter_mut().find(|sender| sender.is_none()) {
            *free = Some(peer);
        }
    }

    /// Does it. This ends: only a queue pair that moves to ERR brings more to do, and each does so once.
    pub(super) fn run(self) {
        for qp in self.failed.into_iter().flatten() {
            let mut later = Self::default();
            let mut tx = qp.tx.lock();
            // It may have been reset meanwhile.
            if qp.state() == QpState::Err {
                qp.flush_sends(&mut tx);
            }
            drop(tx);
            let peer = qp
                .rx
                .lock()
                .responder
                .as_ref()
                .map(|conn| Weak::clone(&conn.peer));
            if let Some(peer) = peer {
                later.sender(peer);
            }
            later.run();
        }
        for peer in self
            .senders
            .into_iter()
            .flatten()
            .filter_map(|peer| peer.upgrade())
        {
            peer.go_on();
        }
    }
}

impl QpCore {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            qpn,
            pd,
            context,
            caps,
            send_cq,
            recv_cq,
            srq,
            sq_sig_all,
        } = parts;
        Arc::new(Self {
            qpn,
            pd,
            context,
            caps,
            recv_cq,
            srq,
            send_cq,
            sq_sig_all,
            state: AtomicU8::new(code(QpState::Reset)),
            tx: Mutex::new(Tx {
                outstanding: Arc::default(),
                unretired: 0,
                waiting: VecDeque::new(),
                requester: None,
            }),
            rx: Mutex::new(Rx {
                receives: VecDeque::with_capacity(caps.max_recv_wr as usize),
                sender_waits: None,
                responder: None,
                access: Access::empty(),
            }),
        })
    }

    pub(super) fn state(&self) -> QpState {
        state(self.state.load(Ordering::Acquire))
    }

    pub(super) fn rx(&self) -> MutexGuard<'_, Rx> {
        self.rx.lock()
    }

    /// Posts sends until one is refused, and says how many were accepted and why the next was not.
    pub(super) fn post_send<'a>(
        self: &Arc<Self>,
        requests: impl Iterator<Item = Request<'a>>,
    ) -> Result<(), (usize, Errno)> {
        let mut later = Later::default();
        let mut result = Ok(());
        let mut tx = self.tx.lock();
        for (accepted, request) in requests.enumerate() {
            if let Err(errno) = self.admit(&tx, &request) {
                result = Err((accepted, errno));
                break;
            }
            tx.outstanding.fetch_add(1, Ordering::AcqRel);
            match self.state() {
                QpState::Err => self.complete(&mut tx, &request, Err(WcStatus::WrFlushErr)),
                QpState::Rts if tx.waiting.is_empty() => {
                    if !self.carry_out(&mut tx, &request, &mut later) {
                        tx.waiting.push_back(request.hold());
                    }
                }
                _ => tx.waiting.push_back(request.hold()),
            }
        }
        drop(tx);
        later.run();
        result
    }

    fn admit(&self, tx: &Tx, request: &Request<'_>) -> Result<(), Errno> {
        let inline = request.flags.contains(SendFlags::INLINE);
        let len = request.data.len();
        let (reads, atomic) = match request.op {
            SendOp::Read(_) => (true, false),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (true, true),
            _ => (false, false),
        };
        let valid = matches!(self.state(), QpState::Rts | QpState::Sqd | QpState::Err)
            && request.data.count() <= self.caps.max_send_sge as usize
            && !(inline && (reads || len > u64::from(self.caps.max_inline_data)))
            && !(atomic && len != 8);
        if !valid {
            Err(Errno::INVAL)
        } else if tx.outstanding.load(Ordering::Acquire) >= self.caps.max_send_wr {
            Err(Errno::NOMEM)
        } else {
            Ok(())
        }
    }

    /// Carries out a request and completes it. `false` if it must wait for a receive of the peer.
    fn carry_out(self: &Arc<Self>, tx: &mut Tx, request: &Request<'_>, later: &mut Later) -> bool {
        let status = match self.transfer(tx, request, later) {
            Outcome::Done(len) => {
                self.complete(tx, request, Ok(len));
                return true;
            }
            Outcome::NotReady => {
                let rnr_retry = tx.requester.as_ref().map_or(0, |conn| conn.rnr_retry);
                if !self.context.fabric.config.rnr_expires_at_once || rnr_retry == 7 {
                    return false;
                }
                WcStatus::RnrRetryExcErr
            }
            Outcome::Failed(status) => status,
        };
        self.fail_request(tx, request, status, later);
        true
    }

    /// Completes a request with an error, which moves the queue pair to ERR.
    fn fail_request(
        self: &Arc<Self>,
        tx: &mut Tx,
        request: &Request<'_>,
        status: WcStatus,
        later: &mut Later,
    ) {
        self.complete(tx, request, Err(status));
        let mut rx = self.rx.lock();
        self.fail(&mut rx, later);
        drop(rx);
        self.flush_sends(tx);
    }

    /// Carries out what waits, as far as it can be.
    pub(super) fn go_on(self: &Arc<Self>) {
        let mut later = Later::default();
        let mut tx = self.tx.lock();
        while self.state() == QpState::Rts
            && let Some(work) = tx.waiting.pop_front()
        {
            if !self.carry_out(&mut tx, &work.request(), &mut later) {
                tx.waiting.push_front(work);
                break;
            }
        }
        drop(tx);
        later.run();
    }

    /// Ends the first waiting request as if its RNR retries were used up, unless it retries for ever. Whether it did.
    pub(super) fn expire_rnr(self: &Arc<Self>) -> bool {
        let mut later = Later::default();
        let mut tx = self.tx.lock();
        let retries_end = tx.requester.as_ref().is_some_and(|conn| conn.rnr_retry < 7);
        if self.state() != QpState::Rts || !retries_end {
            return false;
        }
        let Some(work) = tx.waiting.pop_front() else {
            return false;
        };
        self.fail_request(&mut tx, &work.request(), WcStatus::RnrRetryExcErr, &mut later);
        drop(tx);
        later.run();
        true
    }

    /// Posts receives until one is refused, and says how many were accepted and why the next was not.
    pub(super) fn post_recv(
        &self,
        receives: impl Iterator<Item = (usize, Receive)>,
    ) -> Result<(), (usize, Errno)> {
        let mut result = Ok(());
        let mut rx = self.rx.lock();
        for (accepted, (sges, receive)) in receives.enumerate() {
            let state = self.state();
            let valid =
                state != QpState::Reset && self.srq.is_none() && sges <= self.caps.max_recv_sge as usize;
            if !valid {
                result = Err((accepted, Errno::INVAL));
                break;
            }
            if state == QpState::Err {
                self.complete_receive(receive.wr_id, WcStatus::WrFlushErr);
            } else if rx.receives.len() < self.caps.max_recv_wr as usize {
                rx.receives.push_back(receive);
            } else {
                result = Err((accepted, Errno::NOMEM));
                break;
            }
        }
        let sender = rx.sender_waits.take();
        drop(rx);
        if let Some(sender) = sender.and_then(|sender| sender.upgrade()) {
            sender.go_on();
        }
        result
    }

    pub(super) fn modify(self: &Arc<Self>, to: &QpModify) -> Result<(), Errno> {
        let mut later = Later::default();
        let mut tx = self.tx.lock();
        let mut rx = self.rx.lock();
        match (self.state(), to) {
            (QpState::Reset | QpState::Init, QpModify::Init(attr)) => {
                if attr.port_num != 1 || attr.pkey_index != 0 {
                    return Err(Errno::INVAL);
                }
                rx.access = attr.access;
            }
            (QpState::Init, QpModify::Rtr(attr)) => {
                rx.responder = Some(self.responder(attr)?);
                rx.access = attr.access.unwrap_or(rx.access);
            }
            (QpState::Rtr, QpModify::Rts(attr)) => {
                let Some(responder) = rx.responder.clone() else {
                    return Err(Errno::INVAL);
                };
                tx.requester = Some(self.requester(&responder, attr)?);
                rx.access = attr.access.unwrap_or(rx.access);
            }
            (QpState::Rts | QpState::Sqd, QpModify::Sqd { notify }) => {
                if *notify {
                    self.raise(AsyncEventKind::SqDrained);
                }
            }
            (QpState::Sqd, QpModify::Resume) => {}
            // As the kernel has it, the one state from which ERR cannot be reached is RESET.
            (QpState::Reset, QpModify::Err) => return Err(Errno::INVAL),
            (_, QpModify::Err) => {
                self.fail(&mut rx, &mut later);
                drop(rx);
                self.flush_sends(&mut tx);
                drop(tx);
                later.run();
                return Ok(());
            }
            (_, QpModify::Reset) => {
                self.forget(&mut tx, &mut rx, &mut later);
                drop(rx);
                drop(tx);
                later.run();
                return Ok(());
            }
            _ => return Err(Errno::INVAL),
        }
        self.state.store(code(to.state()), Ordering::Release);
        drop(rx);
        drop(tx);
        if *to == QpModify::Resume {
            self.go_on();
        }
        Ok(())
    }

    /// The queue pair is destroyed: when this returns, its memory is not touched any more.
    pub(super) fn destroy(self: &Arc<Self>) {
        self.context.fabric.remove_qp(self.qpn);
        let mut later = Later::default();
        let mut tx = self.tx.lock();
        let mut rx = self.rx.lock();
        self.forget(&mut tx, &mut rx, &mut later);
        drop(rx);
        drop(tx);
        later.run();
    }

    /// To RESET: everything outstanding vanishes.
    fn forget(&self, tx: &mut Tx, rx: &mut Rx, later: &mut Later) {
        self.state.store(code(QpState::Reset), Ordering::Release);
        // Completions that were not polled yet count in the old one.
        tx.outstanding = Arc::default();
        tx.unretired = 0;
        tx.waiting.clear();
        tx.requester = None;
        rx.receives.clear();
        rx.sender_waits = None;
        if let Some(responder) = rx.responder.take() {
            later.sender(responder.peer);
        }
    }

    fn responder(&self, attr: &RtrAttr) -> Result<Responder, Errno> {
        let config = &self.context.fabric.config;
        let valid = is_valid(&attr.ah)
            && attr.path_mtu <= config.active_mtu
            && attr.min_rnr_timer < 32
            && attr.pkey_index.unwrap_or(0) == 0
            && attr.alternate.is_none()
            && attr.max_dest_rd_atomic <= self.context.attr.max_qp_rd_atom;
        let dgid = attr.ah.dgid.filter(|_| valid).ok_or(Errno::INVAL)?;
        let owner = self.context.fabric.owner(dgid);
        let peer_device = owner
            .filter(|_| self.context.is_active())
            .ok_or(Errno::NETUNREACH)?;
        let peer = self.context.fabric.qp(attr.dest_qpn);
        Ok(Responder {
            peer: peer.as_ref().map(Arc::downgrade).unwrap_or_default(),
            peer_qpn: attr.dest_qpn,
            peer_device,
            path_mtu: attr.path_mtu,
            rq_psn: attr.rq_psn,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
        })
    }

    fn requester(&self, responder: &Responder, attr: &RtsAttr) -> Result<Requester, Errno> {
        let valid = attr.timeout < 32
            && attr.retry_cnt < 8
            && attr.rnr_retry < 8
            && attr.alternate.is_none()
            && attr.min_rnr_timer.unwrap_or(0) < 32
            && attr.max_rd_atomic <= self.context.attr.max_qp_init_rd_atom;
        if !valid {
            return Err(Errno::INVAL);
        }
        Ok(Requester {
            peer: Weak::clone(&responder.peer),
            path_mtu: responder.path_mtu,
            sq_psn: attr.sq_psn,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
        })
    }

    /// Moves to ERR and flushes the receive side; the send side is the caller's, or [`Later`]'s.
    pub(super) fn fail(self: &Arc<Self>, rx: &mut Rx, later: &mut Later) {
        if self.state() == QpState::Err {
            return;
        }
        self.state.store(code(QpState::Err), Ordering::Release);
        for receive in rx.receives.drain(..) {
            self.complete_receive(receive.wr_id, WcStatus::WrFlushErr);
        }
        if self.srq.is_some() {
            // No receive of the shared queue is ever half used here, so the last one was the last.
            self.raise(AsyncEventKind::QpLastWqeReached);
        }
        later.failed(Arc::clone(self));
    }

    fn flush_sends(&self, tx: &mut Tx) {
        while let Some(work) = tx.waiting.pop_front() {
            self.complete(tx, &work.request(), Err(WcStatus::WrFlushErr));
        }
    }

    /// Completes a send with its length or its error. Success makes a completion only where one was asked for.
    fn complete(&self, tx: &mut Tx, request: &Request<'_>, result: Result<u32, WcStatus>) {
        tx.unretired += 1;
        let signaled = self.sq_sig_all || request.flags.contains(SendFlags::SIGNALED);
        if result.is_ok() && !signaled {
            return;
        }
        let opcode = match request.op {
            SendOp::Send | SendOp::SendImm(_) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RdmaWrite,
            SendOp::Read(_) => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        };
        self.send_cq.push(Completion {
            wc: match result {
                Ok(byte_len) => WorkCompletion {
                    wr_id: request.wr_id,
                    opcode,
                    byte_len,
                    qp_num: self.qpn,
                    ..WorkCompletion::EMPTY
                },
                Err(status) => failure(request.wr_id, status, self.qpn),
            },
            solicited: false,
            retires: Some((Arc::clone(&tx.outstanding), std::mem::take(&mut tx.unretired))),
        });
    }

    /// Completes a receive with an error.
    pub(super) fn complete_receive(&self, wr_id: u64, status: WcStatus) {
        self.recv_cq.push(Completion {
            wc: failure(wr_id, status, self.qpn),
            solicited: false,
            retires: None,
        });
    }

    pub(super) fn raise(&self, kind: AsyncEventKind) {
        self.context.raise(AsyncEvent {
            kind,
            source: EventSource::Qp(self.qpn),
        });
    }

    /// Whether this queue pair, whose receive side is `rx`, answers requests of `sender` on `conn`.
    pub(super) fn answers(&self, rx: &Rx, sender: &Self, conn: &Requester) -> bool {
        let ready = matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        ready
            && self.context.is_active()
            && sender.context.is_active()
            && rx.responder.as_ref().is_some_and(|mine| {
                mine.peer_qpn == sender.qpn
                    && mine.peer_device == sender.context.index
                    // The numbers move on together from here, so it is enough that they began together.
                    && mine.rq_psn == conn.sq_psn
            })
    }
}

fn is_valid(ah: &AddressVector) -> bool {
    ah.port_num == 1 && ah.sgid_index < 2 && !ah.dgid.is_none_or(Gid::is_zero)
}

/// A completion of which only what the manual promises is valid.
fn failure(wr_id: u64, status: WcStatus, qp_num: Qpn) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::Unknown(u32::MAX),
        byte_len: u32::MAX,
        qp_num,
        ..WorkCompletion::EMPTY
    }
}

impl Debug for QpCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpCore")
            .field("qpn", &self.qpn)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

const STATES: [QpState; 5] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
];

/// A state as an atomic holds it. What is none of [`STATES`] is ERR: SQE does not occur on RC.
fn code(state: QpState) -> u8 {
    STATES
        .iter()
        .position(|known| *known == state)
        .unwrap_or(STATES.len()) as u8
}

fn state(code: u8) -> QpState {
    STATES.get(usize::from(code)).copied().unwrap_or(QpState::Err)
}
