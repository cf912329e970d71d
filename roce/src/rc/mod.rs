//! One reliable connection: requester, responder and completer (IBTA volume 1, chapter 9), and the queue pair's states (section 10.3.1).

mod congestion;
mod host;
mod requester;
mod responder;
mod timing;
mod window;

use std::time::Instant;

use adverb_types::{Psn, Qpn};
use adverb_verbs::{AsyncEventKind, QpCaps, QpModify, QpState, SendFlags, SendOp, WcStatus};

use crate::{Opcode, Packet};
use congestion::Notifier;
use requester::{Failed, Requester};
use responder::Responder;

pub use host::{Completion, Denied, Host, MAX_SGE, Receive, SgeList};

/// The longest message, in bytes: 2 GiB (IBTA volume 1, section 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its sizes, none of them above the device's limits and [`MAX_SGE`].
    pub caps: QpCaps,
    /// Whether every send makes a completion.
    pub sq_sig_all: bool,
    /// Whether receives come from a shared receive queue.
    pub srq: bool,
}

/// A send to be posted. Inline data comes as bytes, since only the device can read what a work request points to.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Registered memory; empty with inline data.
    pub sges: &'a [adverb_verbs::Sge],
    /// The data itself, if [`SendFlags::INLINE`] is set.
    pub inline: &'a [u8],
}

/// A post that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostRefused {
    /// Not valid, or not in this state (`EINVAL`).
    Invalid,
    /// The queue is full (`ENOMEM`).
    Full,
}

/// Which queue a work request was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// A transition that does not exist, or an attribute out of range (`EINVAL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the transition or an attribute of it is not valid")]
pub struct ModifyError;

/// What a queue pair had to do because packets were lost, repeated or came too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Request packets sent again.
    pub resent: u64,
    /// Local ACK timeouts.
    pub timeouts: u64,
    /// Last packets of a burst sent again, because nobody had asked whether it arrived.
    pub tails: u64,
    /// NAKs for a sequence error that came.
    pub naks: u64,
    /// NAKs for a missing receive that came.
    pub rnr_naks: u64,
    /// Requests that came before one that was expected first.
    pub out_of_order: u64,
    /// Requests that had been carried out already.
    pub duplicates: u64,
    /// Congestion notifications sent, because packets came with the mark "congestion experienced".
    pub cnps_sent: u64,
    /// Congestion notifications that came.
    pub cnps: u64,
}

/// A queue pair.
#[derive(Debug)]
pub struct Rc {
    config: QpConfig,
    state: QpState,
    peer: Option<Qpn>,
    mtu: u32,
    /// Whether the peer's first packet came.
    established: bool,
    /// Whether the end of draining is to be told.
    tell_drained: bool,
    requester: Requester,
    responder: Responder,
    notifier: Notifier,
    stats: Stats,
}

impl Rc {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: QpState::Reset,
            peer: None,
            mtu: 0,
            established: false,
            tell_drained: false,
            requester: Requester::new(),
            responder: Responder::new(),
            notifier: Notifier::default(),
            stats: Stats::default(),
        }
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The peer's queue pair, from RTR on: the only one whose packets [`Rc::handle_packet`] may get, and only from the peer's address.
    pub fn peer(&self) -> Option<Qpn> {
        self.peer
    }

    /// What losses cost so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The scatter/gather elements of each work request that is posted and not complete: of sends, which are READs' destinations and atomic
    /// operations' results, too, and of receives of its own queue, or taken from a shared one.
    pub fn outstanding(&self) -> impl Iterator<Item = (Queue, &[adverb_verbs::Sge])> {
        let sends = self.requester.outstanding().map(|sges| (Queue::Send, sges));
        let receives = self.responder.outstanding().map(|sges| (Queue::Recv, sges));
        sends.chain(receives)
    }

    /// Changes its state. The device has checked port, P_Key and address, and resolved the peer.
    ///
    /// # Errors
    /// [`ModifyError`]; nothing has changed then.
    pub fn modify(&mut self, to: &QpModify, host: &mut impl Host) -> Result<(), ModifyError> {
        match (self.state, to) {
            (QpState::Reset | QpState::Init, QpModify::Init(attr)) => self.responder.access = attr.access,
            (QpState::Init, QpModify::Rtr(attr)) => {
                if attr.min_rnr_timer > 31 {
                    return Err(ModifyError);
                }
                self.responder.access = attr.access.unwrap_or(self.responder.access);
                self.responder.connect(attr);
                self.peer = Some(attr.dest_qpn);
                self.mtu = attr.path_mtu.bytes() as u32;
            }
            (QpState::Rtr, QpModify::Rts(attr)) => {
                if attr.timeout > 31 || attr.retry_cnt > 7 || attr.rnr_retry > 7 {
                    return Err(ModifyError);
                }
                self.responder.access = attr.access.unwrap_or(self.responder.access);
                self.responder.rnr_timer = attr.min_rnr_timer.unwrap_or(self.responder.rnr_timer) & 31;
                self.requester.connect(attr, self.mtu);
            }
            (QpState::Rts | QpState::Sqd, QpModify::Sqd { notify }) => self.tell_drained = *notify,
            (QpState::Sqd, QpModify::Resume) => self.tell_drained = false,
            // As the kernel has it, the one state from which ERR cannot be reached is RESET.
            (QpState::Reset, QpModify::Err) => return Err(ModifyError),
            (_, QpModify::Err) => {
                self.responder.fall_silent();
                self.fail(None, host);
                return Ok(());
            }
            (_, QpModify::Reset) => {
                self.requester.forget();
                self.responder = Responder::new();
                self.notifier = Notifier::default();
                (self.peer, self.established, self.tell_drained) = (None, false, false);
            }
            _ => return Err(ModifyError),
        }
        self.state = to.state();
        self.look_drained(host);
        Ok(())
    }

    /// Posts a send. In ERR it is flushed at once.
    ///
    /// # Errors
    /// [`PostRefused`]; it was not accepted then.
    pub fn post_send(&mut self, work: &Work<'_>, host: &mut impl Host) -> Result<(), PostRefused> {
        let (reads, atomic) = match work.op {
            SendOp::Read(_) => (true, false),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (true, true),
            _ => (false, false),
        };
        let inline = work.flags.contains(SendFlags::INLINE);
        let caps = &self.config.caps;
        let len: u64 = work.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let valid = matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Err)
            && work.sges.len() <= (caps.max_send_sge as usize).min(MAX_SGE)
            && !(inline && (reads || work.inline.len() > caps.max_inline_data as usize))
            && !(atomic && len != 8);
        if !valid {
            return Err(PostRefused::Invalid);
        }
        if self.requester.len() >= caps.max_send_wr as usize {
            return Err(PostRefused::Full);
        }
        let signaled = self.config.sq_sig_all || work.flags.contains(SendFlags::SIGNALED);
        self.requester.post(work, signaled);
        if self.state == QpState::Err {
            self.requester.flush(None, host);
        }
        Ok(())
    }

    /// Posts a receive, if there is no shared receive queue. In ERR it is flushed at once.
    ///
    /// # Errors
    /// [`PostRefused`]; it was not accepted then.
    pub fn post_recv(&mut self, receive: Receive, host: &mut impl Host) -> Result<(), PostRefused> {
        let caps = &self.config.caps;
        if self.config.srq
            || self.state == QpState::Reset
            || receive.sges.len() > (caps.max_recv_sge as usize).min(MAX_SGE)
        {
            return Err(PostRefused::Invalid);
        }
        if self.state == QpState::Err {
            host.complete(responder::completion(&receive, WcStatus::WrFlushErr));
            return Ok(());
        }
        if self.responder.receives.len() >= caps.max_recv_wr as usize {
            return Err(PostRefused::Full);
        }
        self.responder.receives.push_back(receive);
        Ok(())
    }

    /// Takes a packet of the peer, whose invariant CRC was right.
    pub fn handle_packet(&mut self, now: Instant, packet: &Packet<'_>, host: &mut impl Host) {
        if !self.is_connected() {
            return;
        }
        if packet.opcode == Opcode::CongestionNotification {
            self.stats.cnps += 1;
            self.requester.congested(now);
            return;
        }
        if packet.opcode.is_response() {
            if self.state == QpState::Rtr {
                return;
            }
            let taken = match (packet.opcode, &packet.aeth) {
                (Opcode::Acknowledge, Some(aeth)) => {
                    self.requester
                        .acknowledged(now, packet.psn, aeth, host, &mut self.stats)
                }
                (Opcode::Acknowledge, None) => Ok(()),
                _ => self.requester.response(now, packet, host, &mut self.stats),
            };
            match taken {
                Ok(()) => self.look_drained(host),
                Err(failed) => self.requester_failed(failed, host),
            }
            return;
        }
        if !self.established {
            self.established = true;
            if self.state == QpState::Rtr {
                host.raise(AsyncEventKind::CommEst);
            }
        }
        let taken = self
            .responder
            .request(packet, self.config.srq, host, &mut self.stats);
        if let Err(failed) = taken {
            self.responder_failed(failed, host);
        }
    }

    /// The packet that was handled last had the mark "congestion experienced" in its IP header (ECN, RFC 3168). The peer gets a congestion
    /// notification, one each 50 µs at most.
    pub fn handle_congestion(&mut self, now: Instant) {
        if self.is_connected() {
            self.notifier.marked(now);
        }
    }

    /// Appends the next packet to be sent, without its invariant CRC, if there is one. Call until it says `false`, after each other call that may
    /// have given it something to send, or to complete.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>, host: &mut impl Host) -> bool {
        let Some(peer) = self.peer else { return false };
        if self.notifier.take() {
            self.stats.cnps_sent += 1;
            Packet::new(Opcode::CongestionNotification, peer, Psn::new(0)).emit(out);
            return true;
        }
        // Also in ERR: the NAK that says why is still to go.
        match self.responder.transmit(peer, out, host) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(failed) => {
                self.responder_failed(failed, host);
                return self.poll_transmit(now, out, host);
            }
        }
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        match self.requester.transmit(now, peer, self.state, out, host) {
            Ok(sent) => sent,
            Err(failed) => {
                self.requester_failed(failed, host);
                false
            }
        }
    }

    /// When [`Rc::handle_timeout`] is due, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.requester.poll_timeout()
    }

    /// Does what is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        if let Err(failed) = self.requester.handle_timeout(now, &mut self.stats) {
            self.requester_failed(failed, host);
        }
    }

    fn is_connected(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    fn look_drained(&mut self, host: &mut impl Host) {
        if self.state == QpState::Sqd && self.tell_drained && self.requester.is_drained() {
            self.tell_drained = false;
            host.raise(AsyncEventKind::SqDrained);
        }
    }

    fn requester_failed(&mut self, Failed(status): Failed, host: &mut impl Host) {
        self.responder.fall_silent();
        self.fail(Some(status), host);
    }

    /// What it answered, the NAK last of all, still goes out.
    fn responder_failed(&mut self, responder::Failed(event): responder::Failed, host: &mut impl Host) {
        if let Some(event) = event {
            host.raise(event);
        }
        self.fail(None, host);
    }

    /// Moves to ERR: the oldest send ends with `status`, if it is to blame, and everything else is flushed.
    fn fail(&mut self, status: Option<WcStatus>, host: &mut impl Host) {
        let was = self.state;
        self.state = QpState::Err;
        self.requester.flush(status, host);
        self.responder.flush(host);
        if self.config.srq && was != QpState::Err {
            host.raise(AsyncEventKind::QpLastWqeReached);
        }
    }
}
