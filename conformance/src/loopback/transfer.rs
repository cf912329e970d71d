//! One message, from the requester's memory to the responder's or back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use adverb_types::Qpn;
use adverb_verbs::{
    Access, AsyncEventKind, RemoteAddr, SendFlags, SendOp, WcOpcode, WcStatus, WorkCompletion,
};

use super::context::MAX_MESSAGE;
use super::cq::Completion;
use super::memory::{Posted, Side, Span, remote_sge};
use super::qp::{Later, QpCore, Request, Rx, Tx};
use super::srq::Receive;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Well, with so many bytes read.
    Done(u32),
    /// The peer has no receive for it: it is to be tried again when there is one.
    NotReady,
    /// Badly. The peer, where it is to blame, is in ERR already.
    Failed(WcStatus),
}

/// What went wrong at the responder.
enum Fault {
    /// It is not to blame.
    Requester(WcStatus),
    /// It found no receive.
    NotReady,
    /// It fails too: the requester's status, and the event that tells the responder's program.
    Responder(WcStatus, Option<AsyncEventKind>),
}

const INVALID_REQUEST: Fault = Fault::Responder(WcStatus::RemInvReqErr, Some(AsyncEventKind::QpReqErr));
const ACCESS: Fault = Fault::Responder(WcStatus::RemAccessErr, Some(AsyncEventKind::QpAccessErr));
const LOCAL: Fault = Fault::Requester(WcStatus::LocProtErr);

impl QpCore {
    /// Carries out `request` between this queue pair, whose send side is `tx`, and its peer.
    pub(super) fn transfer(self: &Arc<Self>, tx: &Tx, request: &Request<'_>, later: &mut Later) -> Outcome {
        let gone = Outcome::Failed(WcStatus::RetryExcErr);
        let Some(conn) = &tx.requester else {
            return gone;
        };
        let Some(len) = u32::try_from(request.data.len())
            .ok()
            .filter(|len| *len <= MAX_MESSAGE)
        else {
            return Outcome::Failed(WcStatus::LocLenErr);
        };
        let Some(peer) = conn.peer.upgrade() else {
            return gone;
        };
        let mut rx = peer.rx();
        if !peer.answers(&rx, self, conn) {
            return gone;
        }
        // Packets as large as the one side's MTU are not what the other expects, middle or last.
        let mtu = rx.responder.as_ref().map_or(conn.path_mtu, |mine| mine.path_mtu);
        let result = if mtu != conn.path_mtu && len as usize > mtu.min(conn.path_mtu).bytes() {
            Err(INVALID_REQUEST)
        } else {
            Exchange {
                requester: self,
                responder: &peer,
                rx: &mut rx,
                max_rd_atomic: conn.max_rd_atomic,
                len,
            }
            .run(request)
        };
        match result {
            Ok(len) => Outcome::Done(len),
            Err(Fault::NotReady) => Outcome::NotReady,
            Err(Fault::Requester(status)) => Outcome::Failed(status),
            Err(Fault::Responder(status, event)) => {
                if let Some(event) = event {
                    peer.raise(event);
                }
                peer.fail(&mut rx, later);
                Outcome::Failed(status)
            }
        }
    }
}

/// Two queue pairs at work, the responder's receive side locked.
struct Exchange<'a> {
    requester: &'a Arc<QpCore>,
    responder: &'a Arc<QpCore>,
    rx: &'a mut Rx,
    max_rd_atomic: u8,
    len: u32,
}

impl Exchange<'_> {
    fn run(&mut self, request: &Request<'_>) -> Result<u32, Fault> {
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        match request.op {
            SendOp::Send => self.send(request.data, None, solicited),
            SendOp::SendImm(imm) => self.send(request.data, Some(imm), solicited),
            SendOp::Write(at) => self.write(request.data, at).map(|()| 0),
            SendOp::WriteImm(at, imm) => self.write_imm(request.data, at, imm, solicited),
            SendOp::Read(at) => self.read(request.data, at),
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => self.atomic(request.data, remote, |word| {
                word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                    .unwrap_or_else(|old| old)
            }),
            SendOp::FetchAdd { remote, add } => {
                self.atomic(request.data, remote, |word| word.fetch_add(add, Ordering::AcqRel))
            }
        }
    }

    fn send(&mut self, data: Posted<'_>, imm: Option<u32>, solicited: bool) -> Result<u32, Fault> {
        let receive = self.take_receive()?;
        if receive.held.posted().len() < u64::from(self.len) {
            self.responder
                .complete_receive(receive.wr_id, WcStatus::LocLenErr);
            return Err(Fault::Responder(WcStatus::RemInvReqErr, None));
        }
        let to = Span::scatter(self.responder.pd, &receive.held);
        match self.memory().gather(self.requester.pd, data, to) {
            Ok(()) => {
                self.complete_receive(&receive, WcOpcode::Recv, imm, solicited);
                Ok(0)
            }
            Err(Side::From) => {
                self.untake_receive(receive);
                Err(LOCAL)
            }
            Err(Side::To) => {
                self.responder
                    .complete_receive(receive.wr_id, WcStatus::LocProtErr);
                Err(Fault::Responder(WcStatus::RemOpErr, None))
            }
        }
    }

    fn write(&mut self, data: Posted<'_>, at: RemoteAddr) -> Result<(), Fault> {
        if !self.rx.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID_REQUEST);
        }
        let sge = remote_sge(at, self.len);
        let to = Span::remote(self.responder.pd, &sge, Access::REMOTE_WRITE);
        self.memory()
            .gather(self.requester.pd, data, to)
            .map_err(|side| match side {
                Side::From => LOCAL,
                Side::To => ACCESS,
            })
    }

    fn write_imm(
        &mut self,
        data: Posted<'_>,
        at: RemoteAddr,
        imm: u32,
        solicited: bool,
    ) -> Result<u32, Fault> {
        let receive = self.take_receive()?;
        match self.write(data, at) {
            Ok(()) => {
                self.complete_receive(&receive, WcOpcode::RecvRdmaWithImm, Some(imm), solicited);
                Ok(0)
            }
            Err(fault) => {
                self.untake_receive(receive);
                Err(fault)
            }
        }
    }

    fn read(&mut self, data: Posted<'_>, at: RemoteAddr) -> Result<u32, Fault> {
        self.check_reads(Access::REMOTE_READ)?;
        let sge = remote_sge(at, self.len);
        let from = Span::remote(self.responder.pd, &sge, Access::REMOTE_READ);
        self.memory()
            .scatter(from, self.requester.pd, data)
            .map_err(|side| match side {
                Side::From => ACCESS,
                Side::To => LOCAL,
            })?;
        Ok(self.len)
    }

    fn atomic(
        &mut self,
        data: Posted<'_>,
        at: RemoteAddr,
        change: impl Fn(&std::sync::atomic::AtomicU64) -> u64,
    ) -> Result<u32, Fault> {
        self.check_reads(Access::REMOTE_ATOMIC)?;
        if !at.addr.is_multiple_of(8) {
            return Err(INVALID_REQUEST);
        }
        let sge = remote_sge(at, 8);
        let word = Span::remote(self.responder.pd, &sge, Access::REMOTE_ATOMIC);
        self.memory()
            .fetch_and(word, change, self.requester.pd, data)
            .map_err(|side| match side {
                Side::From => ACCESS,
                Side::To => LOCAL,
            })?;
        Ok(8)
    }

    /// Whether READs and atomics were asked for, on both sides.
    fn check_reads(&self, access: Access) -> Result<(), Fault> {
        if self.max_rd_atomic == 0 {
            return Err(Fault::Requester(WcStatus::LocQpOpErr));
        }
        let resources = self
            .rx
            .responder
            .as_ref()
            .map_or(0, |mine| mine.max_dest_rd_atomic);
        if resources == 0 || !self.rx.access.contains(access) {
            return Err(INVALID_REQUEST);
        }
        Ok(())
    }

    fn take_receive(&mut self) -> Result<Receive, Fault> {
        let receive = match &self.responder.srq {
            Some(srq) => srq.take(self.requester),
            None => {
                let receive = self.rx.receives.pop_front();
                if receive.is_none() {
                    self.rx.sender_waits = Some(Arc::downgrade(self.requester));
                }
                receive
            }
        };
        receive.ok_or(Fault::NotReady)
    }

    fn untake_receive(&mut self, receive: Receive) {
        match &self.responder.srq {
            Some(srq) => srq.untake(receive),
            None => self.rx.receives.push_front(receive),
        }
    }

    fn complete_receive(&self, receive: &Receive, opcode: WcOpcode, imm: Option<u32>, solicited: bool) {
        let qp_num: Qpn = self.responder.qpn;
        self.responder.recv_cq.push(Completion {
            wc: WorkCompletion {
                wr_id: receive.wr_id,
                opcode,
                byte_len: self.len,
                imm,
                qp_num,
                ..WorkCompletion::EMPTY
            },
            solicited,
            retires: None,
        });
    }

    fn memory(&self) -> &super::memory::Memory {
        &self.requester.context.fabric.memory
    }
}
