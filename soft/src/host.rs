//! The device as the RC protocol sees it.

use std::sync::atomic::Ordering;

use adverb_roce::{Completion, Denied, Host, Receive};
use adverb_verbs::{
    Access, AsyncEvent, AsyncEventKind, EventSource, RemoteAddr, Sge, WcOpcode, WcStatus, WorkCompletion,
};

use crate::core::Core;
use crate::qp::QpCore;

/// What one queue pair gets of its device.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) core: &'a Core,
    pub(crate) qp: &'a QpCore,
}

impl Host for View<'_> {
    fn gather(&mut self, sges: &[Sge], offset: u32, into: &mut [u8]) -> Result<(), Denied> {
        self.core.memory.gather(self.qp.pd, sges, offset, into)
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, from: &[u8]) -> Result<(), Denied> {
        self.core.memory.scatter(self.qp.pd, sges, offset, from)
    }

    fn check(&mut self, at: RemoteAddr, len: u32, access: Access) -> Result<(), Denied> {
        self.core.memory.check(self.qp.pd, at, len, access)
    }

    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), Denied> {
        self.core.memory.read(self.qp.pd, at, into)
    }

    fn write(&mut self, at: RemoteAddr, from: &[u8]) -> Result<(), Denied> {
        self.core.memory.write(self.qp.pd, at, from)
    }

    fn compare_swap(&mut self, at: RemoteAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        self.core.memory.atomic(self.qp.pd, at, |word| {
            word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found)
        })
    }

    fn fetch_add(&mut self, at: RemoteAddr, add: u64) -> Result<u64, Denied> {
        let change = |word: &std::sync::atomic::AtomicU64| word.fetch_add(add, Ordering::AcqRel);
        self.core.memory.atomic(self.qp.pd, at, change)
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.qp.srq.as_ref()?.take(&self.core.events)
    }

    fn untake_receive(&mut self, receive: Receive) {
        if let Some(srq) = &self.qp.srq {
            srq.untake(receive);
        }
    }

    fn complete(&mut self, completion: Completion) {
        let cq = if completion.recv {
            &self.qp.recv_cq
        } else {
            &self.qp.send_cq
        };
        let mut wc = WorkCompletion {
            wr_id: completion.wr_id,
            status: completion.status,
            opcode: completion.opcode,
            vendor_err: 0,
            byte_len: completion.byte_len,
            imm: completion.imm,
            qp_num: self.qp.qpn,
        };
        if completion.status != WcStatus::Success {
            // These are not valid then (ibv_poll_cq(3)): garbage, so that nobody gets used to reading them.
            (wc.opcode, wc.byte_len, wc.imm) = (WcOpcode::Unknown(u32::MAX), u32::MAX, None);
        }
        cq.push(wc, completion.solicited, &self.core.events);
    }

    fn raise(&mut self, kind: AsyncEventKind) {
        self.core.events.push(AsyncEvent {
            kind,
            source: EventSource::Qp(self.qp.qpn),
        });
    }
}
