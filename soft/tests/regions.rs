//! Memory that is deregistered while somebody still means to use it.

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    #![allow(
        unsafe_code,
        reason = "the safe queues hold on to memory that is posted: only the verbs can do wrong here"
    )]

    use std::time::Duration;

    use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
    use adverb_verbs::{
        Access, ErrorKind, Mr, Provider, QpInit, QpModify, QpState, RecvWr, RemoteAddr, SendFlags, SendOp,
        SendWr, Sge, SrqInit, VerbsError, WcStatus,
    };

    use crate::common::{End, Link, pair, poll};

    const LEN: usize = 4096;
    const WHILE: Duration = Duration::from_millis(5);

    /// Memory that is registered by hand, and never freed.
    struct Memory {
        mr: Box<dyn Mr>,
        addr: u64,
    }

    impl Memory {
        fn new(end: &End) -> Self {
            let addr = Box::leak(vec![0_u64; LEN / 8].into_boxed_slice()).as_mut_ptr();
            // SAFETY: it is leaked, and nobody else refers to it.
            let mr = unsafe { end.pd.reg_mr(addr.cast(), LEN, Access::all()) }.unwrap();
            Self {
                mr,
                addr: addr.expose_provenance() as u64,
            }
        }

        fn sge(&self, length: u32) -> Sge {
            Sge {
                addr: self.addr,
                length,
                lkey: self.mr.lkey(),
            }
        }

        fn remote(&self) -> RemoteAddr {
            RemoteAddr {
                addr: self.addr,
                rkey: self.mr.rkey(),
            }
        }

        fn send(&self, end: &End, op: SendOp, flags: SendFlags, length: u32) {
            let wr = SendWr {
                wr_id: 1,
                op,
                flags,
                sges: &[self.sge(length)],
            };
            // SAFETY: the memory is never freed, and nobody else refers to it.
            unsafe { end.qp.post_send(&[wr]) }.unwrap();
        }

        fn receive(&self, end: &End) {
            let wr = RecvWr {
                wr_id: 2,
                sges: &[self.sge(LEN as u32)],
            };
            // SAFETY: as in `send`.
            unsafe { end.qp.post_recv(&[wr]) }.unwrap();
        }

        /// Who is told to use it: sends, receives and shared receives.
        #[track_caller]
        fn refused(&mut self) -> (usize, usize, usize) {
            let VerbsError { operation, kind, .. } = self.mr.deregister().unwrap_err();
            assert_eq!(operation, "ibv_dereg_mr");
            match kind {
                ErrorKind::RegionInUse {
                    lkey,
                    addr,
                    len,
                    sends,
                    receives,
                    shared_receives,
                } => {
                    assert_eq!((lkey, addr, len), (self.mr.lkey().get(), self.addr, LEN as u64));
                    (sends, receives, shared_receives)
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn world() -> (SimNetwork, End, End) {
        let network = SimNetwork::new(SimFaults::default());
        let provider = SoftProvider::simulated(SoftConfig::default(), &network);
        let (a, b) = pair(&provider, Link::default());
        (network, a, b)
    }

    fn statuses(cq: &std::sync::Arc<dyn adverb_verbs::Cq>) -> Vec<WcStatus> {
        poll(cq).iter().map(|wc| wc.status).collect()
    }

    #[test]
    fn a_send_holds_its_memory_until_it_is_acknowledged() {
        let (network, a, b) = world();
        let (mut source, sink) = (Memory::new(&a), Memory::new(&b));
        sink.receive(&b);
        source.send(&a, SendOp::Send, SendFlags::SIGNALED, 8);
        assert_eq!(source.refused(), (1, 0, 0));
        network.advance(WHILE);
        assert_eq!(
            statuses(&a.send_cq),
            [WcStatus::Success],
            "the refusal changed nothing"
        );
        source.mr.deregister().unwrap();
        source.mr.deregister().unwrap();
        source.send(&a, SendOp::Send, SendFlags::SIGNALED, 8);
        network.advance(WHILE);
        assert_eq!(statuses(&a.send_cq), [WcStatus::LocProtErr], "now it is gone");
    }

    #[test]
    fn what_a_read_or_an_atomic_operation_fills_is_held() {
        let (network, a, b) = world();
        let (mut target, source) = (Memory::new(&a), Memory::new(&b));
        target.send(&a, SendOp::Read(source.remote()), SendFlags::SIGNALED, LEN as u32);
        let add = SendOp::FetchAdd {
            remote: source.remote(),
            add: 1,
        };
        target.send(&a, add, SendFlags::SIGNALED, 8);
        assert_eq!(target.refused(), (2, 0, 0));
        network.advance(WHILE);
        assert_eq!(statuses(&a.send_cq), [WcStatus::Success; 2]);
        target.mr.deregister().unwrap();
    }

    #[test]
    fn receives_hold_their_memory_until_they_are_filled_or_flushed() {
        let (network, a, b) = world();
        let (source, mut sink) = (Memory::new(&a), Memory::new(&b));
        (0..3).for_each(|_| sink.receive(&b));
        assert_eq!(sink.refused(), (0, 3, 0));
        source.send(&a, SendOp::Send, SendFlags::SIGNALED, LEN as u32);
        network.advance(WHILE);
        assert_eq!(statuses(&b.recv_cq), [WcStatus::Success]);
        assert_eq!(sink.refused(), (0, 2, 0));
        b.qp.modify(&QpModify::Err).unwrap();
        assert_eq!(statuses(&b.recv_cq), [WcStatus::WrFlushErr; 2]);
        sink.mr.deregister().unwrap();
    }

    #[test]
    fn a_message_that_is_lost_and_sent_again_finds_its_receive_held() {
        let (network, a, b) = world();
        let (source, mut sink) = (Memory::new(&a), Memory::new(&b));
        sink.receive(&b);
        source.send(&a, SendOp::Send, SendFlags::SIGNALED, 1024);
        network.advance(WHILE);
        assert_eq!(statuses(&b.recv_cq), [WcStatus::Success]);
        sink.receive(&b);
        b.soft().set_port_active(false);
        source.send(&a, SendOp::Send, SendFlags::SIGNALED, LEN as u32);
        network.advance(Duration::from_millis(1));
        assert_eq!(sink.refused(), (0, 1, 0));
        b.soft().set_port_active(true);
        network.advance(Duration::from_millis(200));
        assert_eq!(statuses(&b.recv_cq), [WcStatus::Success]);
        sink.mr.deregister().unwrap();
    }

    #[test]
    fn shared_receives_hold_their_memory_until_their_queue_is_destroyed() {
        let (_network, a, _b) = world();
        let mut memory = Memory::new(&a);
        let srq =
            a.pd.create_srq(&SrqInit {
                max_wr: 4,
                max_sge: 1,
                cookie: 0,
            })
            .unwrap();
        let sges = [memory.sge(8)];
        let wr = || RecvWr {
            wr_id: 3,
            sges: &sges,
        };
        // SAFETY: the memory is never freed, and nobody else refers to it.
        unsafe { srq.post_recv(&[wr(), wr()]) }.unwrap();
        memory.receive(&a);
        assert_eq!(memory.refused(), (0, 1, 2));
        drop(srq);
        assert_eq!(memory.refused(), (0, 1, 0));
        let End { qp, sq, rq, .. } = a;
        drop((qp, sq, rq));
        memory.mr.deregister().unwrap();
    }

    /// The device keeps the last queue pair that packets came for at hand, also when it is gone.
    #[test]
    fn a_shared_queue_holds_nothing_once_it_and_its_queue_pairs_are_gone() {
        let network = SimNetwork::new(SimFaults::default());
        let provider = SoftProvider::simulated(SoftConfig::default(), &network);
        let end = || End::new(provider.open("soft0").unwrap());
        let (mut a, mut b) = (end(), end());
        let mut memory = Memory::new(&b);
        let init = SrqInit {
            max_wr: 4,
            max_sge: 1,
            cookie: 0,
        };
        let srq = b.pd.create_srq(&init).unwrap();
        let qp = b.pd.create_qp(&QpInit {
            send_cq: &b.send_cq,
            recv_cq: &b.recv_cq,
            srq: Some(&srq),
            caps: b.qp.caps(),
            sq_sig_all: false,
        });
        b.qp = qp.unwrap();
        b.connect(&a, Link::default());
        a.connect(&b, Link::default());
        let sges = [memory.sge(8)];
        let wr = || RecvWr {
            wr_id: 3,
            sges: &sges,
        };
        // SAFETY: the memory is never freed, and nobody else refers to it.
        unsafe { srq.post_recv(&[wr(), wr()]) }.unwrap();
        a.send(b"hello", SendFlags::SIGNALED);
        network.advance(WHILE);
        assert_eq!(a.sent(), [WcStatus::Success]);
        assert_eq!(memory.refused(), (0, 0, 1));
        let End { qp, sq, rq, .. } = b;
        drop((qp, sq, rq, srq));
        memory.mr.deregister().unwrap();
    }

    #[test]
    fn inline_data_and_elements_without_bytes_hold_nothing() {
        let (_network, a, b) = world();
        let mut source = Memory::new(&a);
        Memory::new(&b).receive(&b);
        source.send(&a, SendOp::Send, SendFlags::SIGNALED | SendFlags::INLINE, 8);
        source.send(&a, SendOp::Send, SendFlags::SIGNALED, 0);
        source.mr.deregister().unwrap();
    }

    #[test]
    fn what_peers_do_with_it_holds_nothing_and_is_refused_from_then_on() {
        let (network, a, b) = world();
        let (source, mut target) = (Memory::new(&a), Memory::new(&b));
        // Their packets are on their way.
        source.send(
            &a,
            SendOp::Write(target.remote()),
            SendFlags::SIGNALED,
            LEN as u32,
        );
        target.mr.deregister().unwrap();
        network.advance(WHILE);
        assert_eq!(statuses(&a.send_cq), [WcStatus::RemAccessErr]);

        let (network, a, b) = world();
        let (sink, mut target) = (Memory::new(&a), Memory::new(&b));
        sink.send(&a, SendOp::Read(target.remote()), SendFlags::SIGNALED, LEN as u32);
        target.mr.deregister().unwrap();
        network.advance(WHILE);
        assert_eq!(statuses(&a.send_cq), [WcStatus::RemAccessErr]);
        assert_eq!(a.qp.state().unwrap(), QpState::Err);
    }

    #[test]
    fn each_queue_pair_is_asked_and_each_region_on_its_own() {
        let (_network, a, _b) = world();
        let (mut held, mut other) = (Memory::new(&a), Memory::new(&a));
        let mut more = Vec::new();
        for _ in 0..3 {
            let init = QpInit {
                send_cq: &a.send_cq,
                recv_cq: &a.recv_cq,
                srq: None,
                caps: a.qp.caps(),
                sq_sig_all: false,
            };
            let qp = a.pd.create_qp(&init).unwrap();
            qp.modify(&QpModify::Init(adverb_verbs::InitAttr {
                port_num: 1,
                pkey_index: 0,
                access: Access::empty(),
            }))
            .unwrap();
            let wr = RecvWr {
                wr_id: 4,
                sges: &[held.sge(8)],
            };
            // SAFETY: the memory is never freed, and nobody else refers to it.
            unsafe { qp.post_recv(&[wr]) }.unwrap();
            more.push(qp);
        }
        other.mr.deregister().unwrap();
        for left in (1..=3).rev() {
            assert_eq!(held.refused(), (0, left, 0));
            more.pop();
        }
        held.mr.deregister().unwrap();
    }
}
