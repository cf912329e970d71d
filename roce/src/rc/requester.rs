//! The requester and completer: what is sent, what is acknowledged, what is sent again (IBTA volume 1, sections 9.7.3 to 9.7.6).
//!
//! # Go-back-N
//! Jobs stand in the order in which they were posted, and each gets its PSNs when its first packet is sent. A cursor says which packet is next.
//! Whatever is missing, by a NAK, by a response that was skipped or by silence, puts the cursor back to the oldest
//! packet that is not acknowledged, and everything from there on goes out again.
//!
//! A READ spans as many PSNs as it has response packets. Its responses acknowledge all before them; an acknowledgement
//! of what lies behind a response that never came means that the response was lost, and the READ is asked for again from there.
//!
//! # When to ask for an acknowledgement
//! At a signaled request's last packet, each 16 packets, when the window is full, and whenever something is sent again: then the answer says how
//! far it got. What nobody waits for is not asked about at once: in a dialogue that would double the packets. If nothing follows within
//! [`TAIL`], the last packet is sent again, and asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use adverb_types::{Psn, Qpn};
use adverb_verbs::{QpState, RemoteAddr, RtsAttr, SendFlags, SendOp, Sge, WcOpcode, WcStatus};

use super::host::{Completion, Host, SgeList};
use super::timing::{ack_timeout, rnr_delay};
use super::window::Window;
use super::{MAX_MESSAGE, Stats, Work};
use crate::{Aeth, AtomicEth, Nak, Opcode, Packet, Reth, Syndrome};

/// The most PSNs in use at once.
const MAX_PSNS: u32 = (1 << 23) - 1;
/// Packets after which an acknowledgement is asked for at the latest.
const ASK_EVERY: u32 = 16;
/// How long the last packet may stay without a question. Short beside any timeout, long beside a round trip.
const TAIL: Duration = Duration::from_micros(500);
/// A timeout that repeats waits up to 2^2 times as long: the specification allows a timeout to be up to four times what was asked for, and so a
/// dead peer is still noticed in time.
const MAX_BACKOFF: u32 = 2;

/// The job that cannot go on, which is the oldest one, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct Failed(pub(super) WcStatus);

/// A send that was posted and is not complete.
#[derive(Debug)]
struct Job {
    wr_id: u64,
    op: SendOp,
    signaled: bool,
    flags: SendFlags,
    sges: SgeList,
    /// The data, if it came inline.
    inline: Vec<u8>,
    len: u64,
    /// Whether `first` and `psns` are set.
    begun: bool,
    first: Psn,
    psns: u32,
    /// Responses that came, of a READ or an atomic operation.
    responses: u32,
    /// It cannot be carried out, which is said when it is its turn.
    failed: Option<WcStatus>,
}

impl Job {
    /// Whether it completes by responses with data, not by an acknowledgement.
    fn is_read(&self) -> bool {
        matches!(
            self.op,
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        )
    }

    fn end(&self) -> Psn {
        self.first.add(self.psns)
    }

    /// The first PSN whose response has not come.
    fn missing(&self) -> Psn {
        self.first.add(self.responses)
    }

    fn is_done(&self, una: Psn) -> bool {
        if self.is_read() {
            self.responses == self.psns
        } else {
            una.since(self.end()) >= 0
        }
    }

    fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RdmaWrite,
            SendOp::Read(_) => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }

    fn completion(&self, status: WcStatus) -> Completion {
        Completion {
            recv: false,
            wr_id: self.wr_id,
            status,
            opcode: self.opcode(),
            byte_len: if self.is_read() { self.len as u32 } else { 0 },
            imm: None,
            solicited: false,
        }
    }
}

/// The sending side of a connection.
#[derive(Debug)]
pub(super) struct Requester {
    jobs: VecDeque<Job>,
    /// The job whose packet is next, and how many PSNs of it lie before that packet.
    cursor: usize,
    offset: u32,
    /// The PSN of the next job to begin.
    next: Psn,
    /// The oldest PSN that is not acknowledged.
    una: Psn,
    /// One past the highest PSN that was sent.
    highest: Psn,
    /// READs and atomic operations that began and are not done.
    reads: u32,
    /// PSNs between `una` and the cursor that are responses to come, not packets under way.
    awaited: u32,
    window: Window,
    /// The window shrank because of congestion, and this is the first PSN sent since: notifications until then speak of what it shrank for.
    shrunk_at: Option<Psn>,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    /// Everything asks for an acknowledgement, until there is progress.
    ask: bool,
    /// Gone back to this PSN, and nothing has come of it yet.
    gone_back: Option<Psn>,
    retries: u8,
    rnr_retries: u8,
    backoff: u32,
    timer: Option<Instant>,
    /// When the last packet is to be sent again with a question.
    tail: Option<Instant>,
    rnr_until: Option<Instant>,
    mtu: u32,
    timeout: Option<Duration>,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u32,
    /// Buffers of inline data, to be used again.
    spare: Vec<Vec<u8>>,
}

impl Requester {
    pub(super) fn new() -> Self {
        Self {
            jobs: VecDeque::new(),
            cursor: 0,
            offset: 0,
            next: Psn::new(0),
            una: Psn::new(0),
            highest: Psn::new(0),
            reads: 0,
            awaited: 0,
            window: Window::new(),
            shrunk_at: None,
            unasked: 0,
            ask: false,
            gone_back: None,
            retries: 0,
            rnr_retries: 0,
            backoff: 0,
            timer: None,
            tail: None,
            rnr_until: None,
            mtu: 256,
            timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            spare: Vec::new(),
        }
    }

    /// The connection is ready to send.
    pub(super) fn connect(&mut self, attr: &RtsAttr, mtu: u32) {
        self.next = attr.sq_psn;
        self.una = attr.sq_psn;
        self.highest = attr.sq_psn;
        self.mtu = mtu;
        self.timeout = ack_timeout(attr.timeout);
        self.retry_cnt = attr.retry_cnt;
        self.retries = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.rnr_retries = attr.rnr_retry;
        self.max_rd_atomic = attr.max_rd_atomic.into();
    }

    /// Requests posted and not complete.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The elements of each request that is posted and not complete. Inline data has none.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &[Sge]> {
        self.jobs.iter().map(|job| &*job.sges)
    }

    /// Whether all that began is done.
    pub(super) fn is_drained(&self) -> bool {
        self.jobs.front().is_none_or(|job| !job.begun)
    }

    pub(super) fn post(&mut self, work: &Work<'_>, signaled: bool) {
        let mut inline = self.spare.pop().unwrap_or_default();
        inline.extend_from_slice(work.inline);
        let sges: u64 = work.sges.iter().map(|sge| u64::from(sge.length)).sum();
        self.jobs.push_back(Job {
            wr_id: work.wr_id,
            op: work.op,
            signaled,
            flags: work.flags,
            sges: work.sges.iter().copied().collect(),
            len: sges + inline.len() as u64,
            inline,
            begun: false,
            first: Psn::new(0),
            psns: 0,
            responses: 0,
            failed: None,
        });
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.timer, self.tail, self.rnr_until]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, stats: &mut Stats) -> Result<(), Failed> {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        }
        if self.tail.is_some_and(|tail| tail <= now) {
            self.tail = None;
            stats.tails += u64::from(self.una != self.highest);
            self.ask_again(self.highest.prev());
        }
        if self.timer.is_none_or(|timer| timer > now) {
            return Ok(());
        }
        self.timer = None;
        if self.una == self.highest {
            return Ok(());
        }
        if self.retries == 0 {
            return Err(Failed(WcStatus::RetryExcErr));
        }
        self.retries -= 1;
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        stats.timeouts += 1;
        self.window.on_timeout();
        self.go_back(stats);
        self.start_timer(now);
        Ok(())
    }

    /// Appends the next request packet, if one may be sent.
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        peer: Qpn,
        state: QpState,
        out: &mut Vec<u8>,
        host: &mut impl Host,
    ) -> Result<bool, Failed> {
        if self.rnr_until.is_some() || !self.may_send(state) {
            return Ok(false);
        }
        let start = out.len();
        let sent = self.emit(peer, out, host);
        if let Err(status) = sent {
            out.truncate(start);
            return self.cannot_go_on(status).map(|()| false);
        }
        if self.timer.is_none() {
            self.start_timer(now);
        }
        self.tail = (self.unasked > 0).then(|| now + TAIL);
        Ok(true)
    }

    /// Whether the packet at the cursor may go out now; gives its job its PSNs if it is the first one.
    fn may_send(&mut self, state: QpState) -> bool {
        let Some(job) = self.jobs.get_mut(self.cursor) else {
            return false;
        };
        if job.failed.is_some() {
            return false;
        }
        if !job.begun {
            let read = job.is_read();
            let waits_for_reads = job.flags.contains(SendFlags::FENCE) && self.reads > 0
                || read && self.reads >= self.max_rd_atomic.max(1);
            if state != QpState::Rts || waits_for_reads {
                return false;
            }
            job.psns = u32::try_from(job.len.div_ceil(self.mtu.into()))
                .unwrap_or(u32::MAX)
                .max(1);
        }
        let psn = if job.begun {
            job.first.add(self.offset)
        } else {
            self.next
        };
        let distance = psn.since(self.una).cast_unsigned();
        // PSNs are compared as serial numbers: less than half of them may be in use at once.
        if !job.begun && distance > 0 && distance.saturating_add(job.psns) > MAX_PSNS {
            return false;
        }
        if distance.saturating_sub(self.awaited) >= self.window.size() {
            return false;
        }
        if !job.begun {
            job.begun = true;
            job.first = self.next;
            self.next = self.next.add(job.psns);
            self.reads += u32::from(job.is_read());
        }
        true
    }

    fn emit(&mut self, peer: Qpn, out: &mut Vec<u8>, host: &mut impl Host) -> Result<(), WcStatus> {
        let job = &self.jobs[self.cursor];
        if job.len > u64::from(MAX_MESSAGE) || job.psns > MAX_PSNS {
            return Err(WcStatus::LocLenErr);
        }
        if job.is_read() && self.max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOpErr);
        }
        let len = job.len as u32;
        let psn = job.first.add(self.offset);
        let last = job.is_read() || self.offset + 1 == job.psns;
        let in_flight = (psn.since(self.una).cast_unsigned()).saturating_sub(self.awaited);
        let ask = self.ask
            || last && job.signaled
            || self.unasked + 1 >= ASK_EVERY
            || in_flight + 1 >= self.window.size();
        let at = self.offset * self.mtu;
        let mut packet = Packet::new(opcode(&job.op, self.offset == 0, last), peer, psn);
        packet.ack_req = ask || job.is_read();
        let mut payload = 0;
        match job.op {
            SendOp::Read(remote) => packet.reth = Some(reth(remote, at, len - at)),
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => packet.atomic = Some(atomic(remote, swap, compare)),
            SendOp::FetchAdd { remote, add } => packet.atomic = Some(atomic(remote, add, 0)),
            SendOp::Send | SendOp::SendImm(_) | SendOp::Write(_) | SendOp::WriteImm(..) => {
                payload = (len - at).min(self.mtu);
                packet.solicited = last && job.flags.contains(SendFlags::SOLICITED);
            }
        }
        match job.op {
            SendOp::SendImm(imm) if last => packet.imm = Some(imm),
            SendOp::Write(remote) if self.offset == 0 => packet.reth = Some(reth(remote, 0, len)),
            SendOp::WriteImm(remote, imm) => {
                packet.reth = (self.offset == 0).then(|| reth(remote, 0, len));
                packet.imm = last.then_some(imm);
            }
            _ => {}
        }
        packet.emit_headers(payload as usize, out);
        if job.inline.is_empty() {
            let start = out.len();
            out.resize(start + payload as usize, 0);
            if payload > 0 {
                host.gather(&job.sges, at, &mut out[start..])
                    .map_err(|_| WcStatus::LocProtErr)?;
            }
        } else {
            out.extend_from_slice(&job.inline[at as usize..(at + payload) as usize]);
        }
        out.resize(out.len() + Packet::pad(payload as usize), 0);

        let sent = if job.is_read() {
            // The rest of its PSNs are the responses'.
            self.awaited += job.psns - self.offset;
            job.psns - self.offset
        } else {
            1
        };
        self.unasked = if packet.ack_req { 0 } else { self.unasked + 1 };
        let after = psn.add(sent);
        if after.since(self.highest) > 0 {
            self.highest = after;
        }
        self.offset += sent;
        if self.offset == job.psns {
            self.cursor += 1;
            self.offset = 0;
        }
        Ok(())
    }

    /// The job at the cursor cannot be carried out. What was sent before it ends first.
    fn cannot_go_on(&mut self, status: WcStatus) -> Result<(), Failed> {
        let job = &mut self.jobs[self.cursor];
        job.failed = Some(status);
        // As if it had not begun, so that nobody waits for an answer to it.
        self.reads -= u32::from(job.is_read());
        if self.cursor == 0 {
            return Err(Failed(status));
        }
        // What was sent last may not have asked for an acknowledgement, and nothing comes after it now.
        let first = self.jobs[self.cursor].first;
        self.ask_again(first.prev());
        Ok(())
    }

    /// Sends packet `last` again, with a question, if it is not acknowledged and nothing else is being sent again. It is one of a SEND or a WRITE:
    /// others always ask.
    fn ask_again(&mut self, last: Psn) {
        if self.cursor_psn() == self.highest && last.since(self.una) >= 0 {
            self.ask = true;
            self.seek(last);
        }
    }

    /// The peer says that packets passed a congested switch.
    pub(super) fn congested(&mut self, now: Instant) {
        self.window.on_notification(now);
        if self.shrunk_at.is_none() {
            self.window.on_congestion();
            self.shrunk_at = Some(self.highest);
        }
    }

    /// Takes an acknowledgement.
    pub(super) fn acknowledged(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: &Aeth,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Result<(), Failed> {
        if psn.since(self.una) < 0 || psn.since(self.highest) >= 0 {
            // It says what is known, or speaks of what was never sent.
            return Ok(());
        }
        match aeth.syndrome {
            Syndrome::Ack(_) => self.advance(now, psn.next(), host, stats),
            Syndrome::RnrNak(code) => {
                self.advance(now, psn, host, stats)?;
                if self.una == psn && self.rnr_until.is_none() {
                    stats.rnr_naks += 1;
                    self.not_ready(now, code, stats)?;
                }
                Ok(())
            }
            Syndrome::Nak(Nak::SequenceError) => {
                self.advance(now, psn, host, stats)?;
                if self.una == psn {
                    stats.naks += 1;
                    self.lost(now, stats)?;
                }
                Ok(())
            }
            Syndrome::Nak(nak) => {
                self.advance(now, psn, host, stats)?;
                Err(Failed(match nak {
                    Nak::RemoteAccess => WcStatus::RemAccessErr,
                    Nak::RemoteOperational => WcStatus::RemOpErr,
                    Nak::InvalidRequest | Nak::SequenceError => WcStatus::RemInvReqErr,
                }))
            }
        }
    }

    /// Takes a packet of a READ's response, or an atomic operation's answer.
    pub(super) fn response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Result<(), Failed> {
        let psn = packet.psn;
        if psn.since(self.una) < 0 || psn.since(self.highest) >= 0 {
            return Ok(());
        }
        let Some(index) = self.oldest_read() else {
            return Ok(());
        };
        let missing = self.jobs[index].missing();
        if psn.since(missing) > 0 {
            // Responses before it were lost; what lies before them arrived.
            self.advance(now, missing, host, stats)?;
            return self.lost(now, stats);
        }
        if psn != missing {
            return Ok(());
        }
        self.advance(now, psn, host, stats)?;
        // All before it are done and gone.
        let Some(job) = self
            .jobs
            .front_mut()
            .filter(|job| job.is_read() && job.missing() == psn)
        else {
            return Ok(());
        };
        let at = job.responses * self.mtu;
        let last = job.responses + 1 == job.psns;
        let original = packet.original.map(u64::to_ne_bytes);
        let data = match (&job.op, &original) {
            (SendOp::Read(_), None) if is_last(packet.opcode) == last => packet.payload,
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, Some(original)) => original,
            _ => return Err(Failed(WcStatus::BadRespErr)),
        };
        if data.len() != (job.len as u32 - at).min(self.mtu) as usize {
            return Err(Failed(WcStatus::BadRespErr));
        }
        if !data.is_empty() && host.scatter(&job.sges, at, data).is_err() {
            return Err(Failed(WcStatus::LocProtErr));
        }
        job.responses += 1;
        self.awaited = self.awaited.saturating_sub(1);
        self.reads -= u32::from(last);
        self.advance(now, psn.next(), host, stats)
    }

    /// Everything before `to` arrived, except for responses that did not come.
    fn advance(
        &mut self,
        now: Instant,
        to: Psn,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Result<(), Failed> {
        let mut to = to;
        let mut skipped = false;
        if let Some(missing) = self.oldest_read().map(|index| self.jobs[index].missing())
            && to.since(missing) > 0
        {
            (to, skipped) = (missing, true);
        }
        let packets = to.since(self.una);
        if packets > 0 {
            self.una = to;
            self.window.on_ack(packets.cast_unsigned());
            if self.shrunk_at.is_some_and(|psn| self.una.since(psn) > 0) {
                self.shrunk_at = None;
            }
            self.retries = self.retry_cnt;
            self.rnr_retries = self.rnr_retry;
            self.backoff = 0;
            self.gone_back = None;
            self.ask = false;
            self.rnr_until = None;
            self.timer = None;
            if self.una == self.highest {
                self.tail = None;
            } else {
                self.start_timer(now);
            }
        }
        while let Some(job) = self.jobs.front()
            && job.begun
            && job.failed.is_none()
            && job.is_done(self.una)
        {
            if job.signaled {
                host.complete(job.completion(WcStatus::Success));
            }
            self.retire();
        }
        if let Some(status) = self.jobs.front().and_then(|job| job.failed) {
            return Err(Failed(status));
        }
        if self.cursor_psn().since(self.una) < 0 {
            // What was to be sent again had arrived after all.
            self.seek(self.una);
        }
        if skipped {
            self.lost(now, stats)?;
        }
        Ok(())
    }

    fn retire(&mut self) {
        if let Some(mut job) = self.jobs.pop_front() {
            if self.cursor > 0 {
                self.cursor -= 1;
            } else {
                self.offset = 0;
            }
            if job.inline.capacity() > 0 {
                job.inline.clear();
                self.spare.push(job.inline);
            }
        }
    }

    /// What is at `una` was lost, and what came after it arrived.
    fn lost(&mut self, now: Instant, stats: &mut Stats) -> Result<(), Failed> {
        if self.gone_back == Some(self.una) {
            // It is on its way again. Should that be lost too, the timer tells.
            return Ok(());
        }
        self.window.on_loss();
        self.go_back(stats);
        self.start_timer(now);
        Ok(())
    }

    fn not_ready(&mut self, now: Instant, code: u8, stats: &mut Stats) -> Result<(), Failed> {
        if self.rnr_retry != 7 {
            if self.rnr_retries == 0 {
                return Err(Failed(WcStatus::RnrRetryExcErr));
            }
            self.rnr_retries -= 1;
        }
        self.go_back(stats);
        // The next answer may be another NAK for the same packet.
        self.gone_back = None;
        self.timer = None;
        self.rnr_until = Some(now + rnr_delay(code));
        Ok(())
    }

    fn go_back(&mut self, stats: &mut Stats) {
        stats.resent += u64::from(self.cursor_psn().since(self.una).max(0).cast_unsigned());
        self.gone_back = Some(self.una);
        self.ask = true;
        self.seek(self.una);
    }

    /// Puts the cursor to `psn`, which lies from `una` on and before what has not begun.
    fn seek(&mut self, psn: Psn) {
        self.awaited = 0;
        for (index, job) in self.jobs.iter().enumerate() {
            if !job.begun || psn.since(job.end()) < 0 {
                self.cursor = index;
                self.offset = if job.begun {
                    psn.since(job.first).max(0).cast_unsigned()
                } else {
                    0
                };
                return;
            }
            if job.is_read() {
                self.awaited += job.psns - job.responses;
            }
        }
        self.cursor = self.jobs.len();
        self.offset = 0;
    }

    fn cursor_psn(&self) -> Psn {
        match self.jobs.get(self.cursor) {
            Some(job) if job.begun => job.first.add(self.offset),
            _ => self.next,
        }
    }

    /// The oldest job that waits for responses.
    fn oldest_read(&self) -> Option<usize> {
        if self.reads == 0 {
            return None;
        }
        self.jobs
            .iter()
            .position(|job| job.begun && job.is_read() && job.failed.is_none() && job.responses < job.psns)
    }

    fn start_timer(&mut self, now: Instant) {
        self.timer = self.timeout.map(|timeout| now + timeout * (1 << self.backoff));
    }

    /// Ends all jobs: the oldest with `status`, if there is one, the others flushed.
    pub(super) fn flush(&mut self, status: Option<WcStatus>, host: &mut impl Host) {
        let mut status = status;
        for job in &self.jobs {
            let status = status.take().unwrap_or(WcStatus::WrFlushErr);
            host.complete(job.completion(status));
        }
        self.forget();
    }

    /// Ends all jobs without a completion.
    pub(super) fn forget(&mut self) {
        while !self.jobs.is_empty() {
            self.retire();
        }
        let spare = std::mem::take(&mut self.spare);
        *self = Self { spare, ..Self::new() };
    }
}

fn opcode(op: &SendOp, first: bool, last: bool) -> Opcode {
    match (op, first, last) {
        (SendOp::Send | SendOp::SendImm(_), true, false) => Opcode::SendFirst,
        (SendOp::Send | SendOp::SendImm(_), false, false) => Opcode::SendMiddle,
        (SendOp::Send, false, true) => Opcode::SendLast,
        (SendOp::Send, true, true) => Opcode::SendOnly,
        (SendOp::SendImm(_), false, true) => Opcode::SendLastImm,
        (SendOp::SendImm(_), true, true) => Opcode::SendOnlyImm,
        (SendOp::Write(_) | SendOp::WriteImm(..), true, false) => Opcode::WriteFirst,
        (SendOp::Write(_) | SendOp::WriteImm(..), false, false) => Opcode::WriteMiddle,
        (SendOp::Write(_), false, true) => Opcode::WriteLast,
        (SendOp::Write(_), true, true) => Opcode::WriteOnly,
        (SendOp::WriteImm(..), false, true) => Opcode::WriteLastImm,
        (SendOp::WriteImm(..), true, true) => Opcode::WriteOnlyImm,
        (SendOp::Read(_), ..) => Opcode::ReadRequest,
        (SendOp::CompareSwap { .. }, ..) => Opcode::CompareSwap,
        (SendOp::FetchAdd { .. }, ..) => Opcode::FetchAdd,
    }
}

fn is_last(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::ReadResponseLast | Opcode::ReadResponseOnly)
}

fn reth(remote: RemoteAddr, at: u32, length: u32) -> Reth {
    Reth {
        addr: remote.addr.wrapping_add(at.into()),
        rkey: remote.rkey,
        length,
    }
}

fn atomic(remote: RemoteAddr, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        addr: remote.addr,
        rkey: remote.rkey,
        swap_or_add,
        compare,
    }
}
