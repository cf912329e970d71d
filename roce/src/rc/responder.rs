//! The responder: requests in order, once each, and their answers (IBTA volume 1, sections 9.7.4 and 9.7.5).
//!
//! Only the packet with the expected PSN is carried out. One after it means a loss: a NAK says so, once, until the expected
//! one came. One before it was carried out already: its answer went astray, and is given again. READs are read again, atomic operations
//! answered from memory.
//!
//! Answers leave in the order of their requests. Acknowledgements that nothing separates become one.

use std::collections::VecDeque;

use adverb_types::{Psn, Qpn};
use adverb_verbs::{Access, AsyncEventKind, RemoteAddr, RtrAttr, Sge, WcOpcode, WcStatus};

use super::host::{Completion, Host, Receive};
use super::{MAX_MESSAGE, Stats};
use crate::{Aeth, Nak, Opcode, Packet, Reth, Syndrome};

/// The credit count that tells nothing: receives are not counted for the peer.
const NO_CREDITS: u8 = 31;

/// The connection failed at the responder. The NAK that says so is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct Failed(pub(super) Option<AsyncEventKind>);

/// A request that is not carried out.
enum Reject {
    /// There is no receive for it: try again.
    NotReady,
    /// It ends the connection.
    Fatal(Nak, Option<AsyncEventKind>),
}

const INVALID: Reject = Reject::Fatal(Nak::InvalidRequest, Some(AsyncEventKind::QpReqErr));
const ACCESS: Reject = Reject::Fatal(Nak::RemoteAccess, Some(AsyncEventKind::QpAccessErr));

/// A message whose last packet has not come.
#[derive(Debug)]
enum Incoming {
    Send { receive: Receive, at: u32 },
    Write { to: RemoteAddr, left: u32, len: u32 },
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
    },
    Read {
        psn: Psn,
        from: RemoteAddr,
        left: u32,
        first: bool,
    },
    Atomic {
        psn: Psn,
        original: u64,
    },
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) struct Responder {
    /// Receives of its own; unused with a shared receive queue.
    pub(super) receives: VecDeque<Receive>,
    pub(super) access: Access,
    pub(super) rnr_timer: u8,
    expected: Psn,
    msn: u32,
    incoming: Option<Incoming>,
    answers: VecDeque<Answer>,
    /// A NAK asks for the expected packet: until it comes, others are ignored.
    awaited: bool,
    /// What the last atomic operations found.
    found: VecDeque<(Psn, u64)>,
    mtu: u32,
    max_rd_atomic: usize,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            receives: VecDeque::new(),
            access: Access::empty(),
            rnr_timer: 0,
            expected: Psn::new(0),
            msn: 0,
            incoming: None,
            answers: VecDeque::new(),
            awaited: false,
            found: VecDeque::new(),
            mtu: 256,
            max_rd_atomic: 0,
        }
    }

    /// The connection is ready to receive.
    pub(super) fn connect(&mut self, attr: &RtrAttr) {
        self.expected = attr.rq_psn;
        self.mtu = attr.path_mtu.bytes() as u32;
        self.max_rd_atomic = attr.max_dest_rd_atomic.into();
        self.rnr_timer = attr.min_rnr_timer;
    }

    /// The elements of each receive that is not complete.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &[Sge]> {
        let incoming = match &self.incoming {
            Some(Incoming::Send { receive, .. }) => Some(receive),
            _ => None,
        };
        let all = incoming.into_iter().chain(&self.receives);
        all.map(|receive| &*receive.sges)
    }

    /// Takes a request.
    pub(super) fn request(
        &mut self,
        packet: &Packet<'_>,
        srq: bool,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Result<(), Failed> {
        let ahead = packet.psn.since(self.expected);
        if ahead > 0 {
            stats.out_of_order += 1;
            if !self.awaited {
                self.awaited = true;
                self.acknowledge(self.expected, Syndrome::Nak(Nak::SequenceError));
            }
            return Ok(());
        }
        if ahead < 0 {
            stats.duplicates += 1;
            self.duplicate(packet, host);
            return Ok(());
        }
        self.awaited = false;
        match self.carry_out(packet, srq, host) {
            Ok(psns) => {
                self.expected = self.expected.add(psns);
                if packet.ack_req && !answers_itself(packet.opcode) {
                    self.acknowledge(packet.psn, Syndrome::Ack(NO_CREDITS));
                }
                Ok(())
            }
            Err(Reject::NotReady) => {
                self.awaited = true;
                self.acknowledge(self.expected, Syndrome::RnrNak(self.rnr_timer));
                Ok(())
            }
            Err(Reject::Fatal(nak, event)) => {
                self.acknowledge(self.expected, Syndrome::Nak(nak));
                Err(Failed(event))
            }
        }
    }

    /// Carries out the expected packet, and says how many PSNs it spans.
    fn carry_out(&mut self, packet: &Packet<'_>, srq: bool, host: &mut impl Host) -> Result<u32, Reject> {
        use Opcode::*;
        match packet.opcode {
            SendFirst | SendMiddle | SendLast | SendLastImm | SendOnly | SendOnlyImm => {
                self.send(packet, srq, host)?;
                Ok(1)
            }
            WriteFirst | WriteMiddle | WriteLast | WriteLastImm | WriteOnly | WriteOnlyImm => {
                self.write(packet, srq, host)?;
                Ok(1)
            }
            ReadRequest => self.read(packet, host),
            CompareSwap | FetchAdd => {
                self.atomic(packet, host)?;
                Ok(1)
            }
            // No memory windows here, so nobody has a key to invalidate.
            _ => Err(INVALID),
        }
    }

    fn send(&mut self, packet: &Packet<'_>, srq: bool, host: &mut impl Host) -> Result<(), Reject> {
        let (first, last) = place(packet.opcode);
        self.check_length(packet, first, last)?;
        let (receive, at) = match self.incoming.take() {
            None if first => (self.take_receive(srq, host).ok_or(Reject::NotReady)?, 0),
            Some(Incoming::Send { receive, at }) if !first => (receive, at),
            other => {
                self.incoming = other;
                return Err(INVALID);
            }
        };
        let room: u64 = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let end = u64::from(at) + packet.payload.len() as u64;
        if end > u64::from(MAX_MESSAGE) {
            self.incoming = Some(Incoming::Send { receive, at });
            return Err(INVALID);
        }
        if end > room {
            host.complete(completion(&receive, WcStatus::LocLenErr));
            return Err(Reject::Fatal(Nak::InvalidRequest, None));
        }
        let lands = packet.payload.is_empty() || host.scatter(&receive.sges, at, packet.payload).is_ok();
        if !lands {
            host.complete(completion(&receive, WcStatus::LocProtErr));
            return Err(Reject::Fatal(Nak::RemoteOperational, None));
        }
        let at = end as u32;
        if !last {
            self.incoming = Some(Incoming::Send { receive, at });
            return Ok(());
        }
        host.complete(Completion {
            opcode: WcOpcode::Recv,
            byte_len: at,
            imm: packet.imm,
            solicited: packet.solicited,
            ..completion(&receive, WcStatus::Success)
        });
        self.done();
        Ok(())
    }

    fn write(&mut self, packet: &Packet<'_>, srq: bool, host: &mut impl Host) -> Result<(), Reject> {
        let (first, last) = place(packet.opcode);
        self.check_length(packet, first, last)?;
        let (to, left, len) = match (&self.incoming, packet.reth) {
            (None, Some(Reth { addr, rkey, length })) if first => {
                let to = RemoteAddr { addr, rkey };
                if !self.access.contains(Access::REMOTE_WRITE) {
                    return Err(INVALID);
                }
                host.check(to, length, Access::REMOTE_WRITE).map_err(|_| ACCESS)?;
                (to, length, length)
            }
            (Some(Incoming::Write { to, left, len }), _) if !first => (*to, *left, *len),
            _ => return Err(INVALID),
        };
        let n = packet.payload.len() as u32;
        if n > left || last != (n == left) {
            return Err(INVALID);
        }
        // Before the data is in place: a peer that is told to try again sends the packet again.
        let receive = match packet.imm {
            Some(_) => Some(self.take_receive(srq, host).ok_or(Reject::NotReady)?),
            None => None,
        };
        if n > 0 && host.write(to, packet.payload).is_err() {
            if let Some(receive) = receive {
                self.untake_receive(receive, srq, host);
            }
            return Err(ACCESS);
        }
        if !last {
            let to = RemoteAddr {
                addr: to.addr.wrapping_add(n.into()),
                ..to
            };
            self.incoming = Some(Incoming::Write {
                to,
                left: left - n,
                len,
            });
            return Ok(());
        }
        self.incoming = None;
        if let Some(receive) = receive {
            host.complete(Completion {
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: len,
                imm: packet.imm,
                solicited: packet.solicited,
                ..completion(&receive, WcStatus::Success)
            });
        }
        self.done();
        Ok(())
    }

    fn read(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<u32, Reject> {
        let Some(reth) = packet.reth.filter(|_| self.incoming.is_none()) else {
            return Err(INVALID);
        };
        if !self.access.contains(Access::REMOTE_READ) || self.reads() >= self.max_rd_atomic {
            return Err(INVALID);
        }
        let psns = self.start_read(packet.psn, reth, host).ok_or(ACCESS)?;
        self.done();
        Ok(psns)
    }

    /// Queues the answer to a READ, and says how many PSNs it spans. `None` if it is not allowed.
    fn start_read(&mut self, psn: Psn, reth: Reth, host: &mut impl Host) -> Option<u32> {
        let from = RemoteAddr {
            addr: reth.addr,
            rkey: reth.rkey,
        };
        host.check(from, reth.length, Access::REMOTE_READ).ok()?;
        self.answers.push_back(Answer::Read {
            psn,
            from,
            left: reth.length,
            first: true,
        });
        Some(reth.length.div_ceil(self.mtu).max(1))
    }

    fn atomic(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Reject> {
        let Some(eth) = packet.atomic.filter(|_| self.incoming.is_none()) else {
            return Err(INVALID);
        };
        let allowed = self.access.contains(Access::REMOTE_ATOMIC) && self.max_rd_atomic > 0;
        if !allowed || !eth.addr.is_multiple_of(8) {
            return Err(INVALID);
        }
        let at = RemoteAddr {
            addr: eth.addr,
            rkey: eth.rkey,
        };
        let original = if packet.opcode == Opcode::CompareSwap {
            host.compare_swap(at, eth.compare, eth.swap_or_add)
        } else {
            host.fetch_add(at, eth.swap_or_add)
        };
        let original = original.map_err(|_| ACCESS)?;
        if self.found.len() >= self.max_rd_atomic {
            self.found.pop_front();
        }
        self.found.push_back((packet.psn, original));
        self.answers.push_back(Answer::Atomic {
            psn: packet.psn,
            original,
        });
        self.done();
        Ok(())
    }

    /// Answers again what was carried out already.
    fn duplicate(&mut self, packet: &Packet<'_>, host: &mut impl Host) {
        match packet.opcode {
            Opcode::ReadRequest => {
                let Some(reth) = packet.reth.filter(|_| self.access.contains(Access::REMOTE_READ)) else {
                    return;
                };
                let psns = reth.length.div_ceil(self.mtu).max(1);
                if packet.psn.add(psns).since(self.expected) > 0 {
                    // It asks for more than it did the first time.
                    return;
                }
                // The requester has gone back to this packet: it asks again for all that lies behind it.
                self.forget_answers_from(packet.psn);
                if self.reads() >= self.max_rd_atomic {
                    return;
                }
                // If the memory is gone meanwhile, the first answer's NAK said so, or silence will.
                let _ = self.start_read(packet.psn, reth, host);
            }
            Opcode::CompareSwap | Opcode::FetchAdd => {
                let found = self.found.iter().find(|(psn, _)| *psn == packet.psn);
                if let Some(&(psn, original)) = found {
                    self.forget_answers_from(psn);
                    self.answers.push_back(Answer::Atomic { psn, original });
                }
            }
            _ => self.acknowledge(self.expected.prev(), Syndrome::Ack(NO_CREDITS)),
        }
    }

    /// READs and atomic operations that are still to be answered.
    fn reads(&self) -> usize {
        self.answers
            .iter()
            .filter(|answer| !matches!(answer, Answer::Acknowledge { .. }))
            .count()
    }

    fn forget_answers_from(&mut self, psn: Psn) {
        self.answers.retain(|answer| {
            let of = match answer {
                Answer::Acknowledge {
                    syndrome: Syndrome::Ack(_),
                    psn,
                } => *psn,
                Answer::Acknowledge { .. } => return true,
                Answer::Read { psn, .. } | Answer::Atomic { psn, .. } => *psn,
            };
            of.since(psn) < 0
        });
    }

    /// The lengths that the packet's place in its message permits (IBTA volume 1, section 9.7.5.1.5 ff.).
    fn check_length(&self, packet: &Packet<'_>, first: bool, last: bool) -> Result<(), Reject> {
        let n = packet.payload.len();
        let mtu = self.mtu as usize;
        let right = if !last {
            n == mtu
        } else {
            n <= mtu && (first || n > 0)
        };
        if right { Ok(()) } else { Err(INVALID) }
    }

    fn take_receive(&mut self, srq: bool, host: &mut impl Host) -> Option<Receive> {
        if srq {
            host.take_receive()
        } else {
            self.receives.pop_front()
        }
    }

    fn untake_receive(&mut self, receive: Receive, srq: bool, host: &mut impl Host) {
        if srq {
            host.untake_receive(receive);
        } else {
            self.receives.push_front(receive);
        }
    }

    fn done(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        let answer = Answer::Acknowledge { psn, syndrome };
        match (self.answers.back_mut(), syndrome) {
            (
                Some(Answer::Acknowledge {
                    psn: before,
                    syndrome: Syndrome::Ack(_),
                }),
                Syndrome::Ack(_),
            ) => *before = psn,
            _ => self.answers.push_back(answer),
        }
    }

    /// Appends the next answer's packet, if there is one.
    pub(super) fn transmit(
        &mut self,
        peer: Qpn,
        out: &mut Vec<u8>,
        host: &mut impl Host,
    ) -> Result<bool, Failed> {
        let msn = self.msn;
        let aeth = |syndrome| Some(Aeth { syndrome, msn });
        let Some(answer) = self.answers.front_mut() else {
            return Ok(false);
        };
        match *answer {
            Answer::Acknowledge { psn, syndrome } => {
                let mut packet = Packet::new(Opcode::Acknowledge, peer, psn);
                packet.aeth = aeth(syndrome);
                packet.emit(out);
                self.answers.pop_front();
            }
            Answer::Atomic { psn, original } => {
                let mut packet = Packet::new(Opcode::AtomicAcknowledge, peer, psn);
                packet.aeth = aeth(Syndrome::Ack(NO_CREDITS));
                packet.original = Some(original);
                packet.emit(out);
                self.answers.pop_front();
            }
            Answer::Read {
                psn,
                from,
                left,
                first,
            } => {
                let n = left.min(self.mtu);
                let opcode = match (first, n == left) {
                    (true, true) => Opcode::ReadResponseOnly,
                    (true, false) => Opcode::ReadResponseFirst,
                    (false, false) => Opcode::ReadResponseMiddle,
                    (false, true) => Opcode::ReadResponseLast,
                };
                let mut packet = Packet::new(opcode, peer, psn);
                if opcode != Opcode::ReadResponseMiddle {
                    packet.aeth = aeth(Syndrome::Ack(NO_CREDITS));
                }
                let start = out.len();
                packet.emit_headers(n as usize, out);
                let data = out.len();
                out.resize(data + n as usize, 0);
                if n > 0 && host.read(from, &mut out[data..]).is_err() {
                    // Deregistered while it was being read.
                    out.truncate(start);
                    self.answers.clear();
                    self.acknowledge(psn, Syndrome::Nak(Nak::RemoteAccess));
                    return Err(Failed(Some(AsyncEventKind::QpAccessErr)));
                }
                out.resize(out.len() + Packet::pad(n as usize), 0);
                if n == left {
                    self.answers.pop_front();
                } else {
                    *answer = Answer::Read {
                        psn: psn.next(),
                        from: RemoteAddr {
                            addr: from.addr.wrapping_add(n.into()),
                            ..from
                        },
                        left: left - n,
                        first: false,
                    };
                }
            }
        }
        Ok(true)
    }

    /// Ends all receives: flushed.
    pub(super) fn flush(&mut self, host: &mut impl Host) {
        if let Some(Incoming::Send { receive, .. }) = self.incoming.take() {
            host.complete(completion(&receive, WcStatus::WrFlushErr));
        }
        for receive in self.receives.drain(..) {
            host.complete(completion(&receive, WcStatus::WrFlushErr));
        }
    }

    /// Nothing is answered any more.
    pub(super) fn fall_silent(&mut self) {
        self.answers.clear();
    }
}

pub(super) fn completion(receive: &Receive, status: WcStatus) -> Completion {
    Completion {
        recv: true,
        wr_id: receive.wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm: None,
        solicited: false,
    }
}

/// Whether a packet is the first and whether it is the last of its message.
fn place(opcode: Opcode) -> (bool, bool) {
    use Opcode::*;
    match opcode {
        SendFirst | WriteFirst => (true, false),
        SendMiddle | WriteMiddle => (false, false),
        SendLast | SendLastImm | WriteLast | WriteLastImm => (false, true),
        _ => (true, true),
    }
}

/// Whether the answer is more than an acknowledgement.
fn answers_itself(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::ReadRequest | Opcode::CompareSwap | Opcode::FetchAdd
    )
}
