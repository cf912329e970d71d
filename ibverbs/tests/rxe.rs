//! A smoke test on whatever devices libibverbs has: `rxe0` in a guest, or a NIC.
//!
//! The behaviour of the verbs is the conformance suite's matter. Here is what only this crate can get wrong: what it reads from C
//! structures, and what it must keep from C. Without a device the tests count as ignored.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::{
    Access, AddressVector, Buffer, CompChannel, CompEvent, Cq, CqInit, Device, GidEntry, GidType, InitAttr,
    LinkLayer, Pd, PortAttr, PortState, Psn, Qp, QpCaps, QpInit, QpModify, QpState, RecvQueue, RtrAttr,
    RtsAttr, SendFlags, SendOp, SendQueue, SendRequest, Slot, SlotPool, SrqInit, WcOpcode, WcStatus,
    WorkCompletion,
};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Only a hang takes so long.
const LONG: Duration = Duration::from_secs(10);

fn main() {
    let devices = adverb_ibverbs::provider().devices();
    let none = devices.as_ref().is_ok_and(|devices| devices.is_empty());
    if none {
        eprintln!("SKIP: no RDMA device here: run in a guest");
    }
    let test = |name, test: fn() -> Result<(), Failed>| Trial::test(name, test).with_ignored_flag(none);
    let tests = vec![
        test(
            "devices_tell_what_the_kernel_says_of_them",
            devices_tell_what_the_kernel_says_of_them,
        ),
        test("a_send_wakes_its_receiver", a_send_wakes_its_receiver),
        test(
            "a_list_is_sent_in_order_with_its_immediate_data",
            a_list_is_sent_in_order_with_its_immediate_data,
        ),
        test(
            "what_was_refused_before_rts_is_never_sent",
            what_was_refused_before_rts_is_never_sent,
        ),
        test(
            "a_receive_beside_a_shared_queue_is_refused",
            a_receive_beside_a_shared_queue_is_refused,
        ),
        test(
            "queues_go_though_events_are_not_acknowledged",
            queues_go_though_events_are_not_acknowledged,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

fn devices_tell_what_the_kernel_says_of_them() -> Result<(), Failed> {
    let provider = adverb_ibverbs::provider();
    for info in provider.devices()? {
        let device = provider.open(&info.name)?;
        assert_eq!(device.info(), &info);
        let sysfs = info.sysfs_path.as_ref().ok_or("no folder in sysfs")?;
        let guid = fs::read_to_string(sysfs.join("node_guid"))?;
        assert_eq!(format!("{:016x}", info.guid), guid.trim().replace(':', ""));
        println!(
            "{}: {:?}, {} vectors",
            info.name,
            device.attr(),
            device.num_comp_vectors()
        );
        for number in 1..=device.attr().phys_port_cnt {
            let port = device.port(number)?;
            println!("  port {number}: {port:?}");
            let state = fs::read_to_string(sysfs.join(format!("ports/{number}/state")))?;
            assert_eq!(state.trim().rsplit(' ').next(), Some(&*port.state.to_string()));
            for entry in device.gid_table(number)? {
                println!("    {entry:?}");
                let attrs = sysfs.join(format!("ports/{number}/gid_attrs"));
                let netdev = fs::read_to_string(attrs.join(format!("ndevs/{}", entry.index)))?;
                assert_eq!(entry.netdev.as_deref(), Some(netdev.trim()));
                let kind = fs::read_to_string(attrs.join(format!("types/{}", entry.index)))?;
                let v2 = kind.trim() == "RoCE v2";
                assert_eq!(entry.gid_type == GidType::RoceV2, v2, "{kind}");
            }
        }
        assert!(device.gid_table(0).is_err());
    }
    Ok(())
}

fn a_send_wakes_its_receiver() -> Result<(), Failed> {
    let (mut a, mut b) = pair()?;
    b.receive(1)?;
    b.recv_cq.req_notify(true)?;
    let text = b"a message";
    a.send(SendOp::Send, text, SendFlags::SIGNALED | SendFlags::SOLICITED)?;
    assert_eq!(b.wait_for_event()?, CompEvent { cookie: RECV_COOKIE });
    assert_eq!(b.channel.next_event()?, None);
    assert_eq!(b.recv_cq.unacked_events(), 1);
    b.recv_cq.ack_events();
    assert_eq!(b.recv_cq.unacked_events(), 0);
    let received = b.received(1)?;
    assert_eq!(received, [(text.to_vec(), None)]);
    a.sent(1)
}

fn a_list_is_sent_in_order_with_its_immediate_data() -> Result<(), Failed> {
    // More than one list of C's.
    const MESSAGES: usize = 40;
    let (mut a, mut b) = pair()?;
    b.receive(MESSAGES)?;
    let mut requests = Vec::new();
    for i in 0..MESSAGES {
        // The last one is signaled, and retires them all.
        let flags = if i + 1 == MESSAGES {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let op = SendOp::SendImm(0x0102_0300 | i as u32);
        requests.push(a.request(op, &[i as u8; 100], flags)?);
    }
    a.sends.post(&mut requests)?;
    let expected: Vec<_> = (0..MESSAGES)
        .map(|i| (vec![i as u8; 100], Some(0x0102_0300 | i as u32)))
        .collect();
    assert_eq!(b.received(MESSAGES)?, expected);
    a.sent(MESSAGES)
}

/// rxe's library queues a request and only then asks the kernel, which refuses it before RTS: it would be sent after all, when the
/// queue pair gets there.
fn what_was_refused_before_rts_is_never_sent() -> Result<(), Failed> {
    let (mut a, mut b) = (End::new(false)?, End::new(false)?);
    let refused = |a: &mut End| -> Result<(), Failed> {
        let request = a.request(SendOp::Send, b"refused", SendFlags::SIGNALED)?;
        let error = a.sends.post(&mut vec![request]).err();
        let error = error.ok_or("a send was accepted before RTS")?;
        assert_eq!(error.accepted, 0, "{error}");
        Ok(())
    };
    refused(&mut a)?;
    a.to_init()?;
    refused(&mut a)?;
    a.to_rtr(&b)?;
    refused(&mut a)?;
    a.to_rts()?;
    b.connect(&a)?;
    b.receive(4)?;
    for text in [b"first", b"later"] {
        a.send(SendOp::Send, text, SendFlags::SIGNALED)?;
    }
    let received = b.received(2)?;
    assert_eq!(received, [(b"first".to_vec(), None), (b"later".to_vec(), None)]);
    a.sent(2)
}

fn a_receive_beside_a_shared_queue_is_refused() -> Result<(), Failed> {
    if open()?.attr().max_srq == 0 {
        println!("SKIP: the device has no shared receive queues");
        return Ok(());
    }
    let mut a = End::new(true)?;
    let mut beside = RecvQueue::on_qp(Arc::clone(&a.qp), 3, 0);
    a.to_init()?;
    let mut slots: Vec<Slot> = a.pool.take().into_iter().collect();
    // Devices differ in whether they say that it has room.
    if beside.free() > 0 {
        let error = beside.post(&mut slots).err().ok_or("the receive was accepted")?;
        assert_eq!(error.accepted, 0, "{error}");
    }
    assert_eq!(slots.len(), 1);
    a.receive(1)
}

fn queues_go_though_events_are_not_acknowledged() -> Result<(), Failed> {
    let (mut a, mut b) = pair()?;
    b.receive(1)?;
    b.recv_cq.req_notify(false)?;
    a.send(SendOp::Send, b"x", SendFlags::SIGNALED)?;
    b.wait_for_event()?;
    b.received(1)?;
    a.sent(1)?;
    let cq = Arc::downgrade(&b.recv_cq);
    let channel = Arc::clone(&b.channel);
    drop(b);
    assert!(cq.upgrade().is_none());
    assert_eq!(channel.next_event()?, None);
    Ok(())
}

const RECV_COOKIE: u64 = 0xfeed_0000_0000_0001;

const SLOT: usize = 4096;

/// Data and immediate data.
type Message = (Vec<u8>, Option<u32>);

/// A queue pair with all that it needs.
struct End {
    device: Arc<dyn Device>,
    port: PortAttr,
    gid: Option<GidEntry>,
    pool: SlotPool,
    channel: Arc<dyn CompChannel>,
    send_cq: Arc<dyn Cq>,
    recv_cq: Arc<dyn Cq>,
    qp: Arc<dyn Qp>,
    sends: SendQueue,
    receives: RecvQueue,
    _pd: Arc<dyn Pd>,
}

/// The first device with a port 1 that is up.
fn open() -> Result<Arc<dyn Device>, Failed> {
    let provider = adverb_ibverbs::provider();
    for info in provider.devices()? {
        let device = provider.open(&info.name)?;
        if device.port(1)?.state == PortState::Active {
            return Ok(device);
        }
    }
    Err("no device has an active port 1".into())
}

/// Two queue pairs that can send to each other.
fn pair() -> Result<(End, End), Failed> {
    let (a, b) = (End::new(false)?, End::new(false)?);
    a.connect(&b)?;
    b.connect(&a)?;
    Ok((a, b))
}

impl End {
    fn new(shared: bool) -> Result<Self, Failed> {
        let device = open()?;
        let pd = device.alloc_pd()?;
        let channel = device.create_comp_channel()?;
        let send_cq = device.create_cq(&CqInit::new(64))?;
        let recv_cq = device.create_cq(&CqInit::new(64).channel(&channel).cookie(RECV_COOKIE))?;
        let srq_init = SrqInit {
            max_wr: 64,
            max_sge: 1,
            cookie: 0,
        };
        let srq = shared.then(|| pd.create_srq(&srq_init)).transpose()?;
        let qp = pd.create_qp(&QpInit {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: srq.as_ref(),
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
        })?;
        assert_eq!(qp.state()?, QpState::Reset);
        Ok(Self {
            port: device.port(1)?,
            gid: device
                .gid_table(1)?
                .into_iter()
                .max_by_key(|entry| (entry.gid_type == GidType::RoceV2, !entry.gid.is_link_local())),
            pool: SlotPool::new(&*pd, SLOT, 128, Access::LOCAL_WRITE)?,
            sends: SendQueue::new(Arc::clone(&qp), 1, 1),
            receives: match srq {
                Some(srq) => RecvQueue::on_srq(srq),
                None => RecvQueue::on_qp(Arc::clone(&qp), 2, 1),
            },
            device,
            channel,
            send_cq,
            recv_cq,
            qp,
            _pd: pd,
        })
    }

    fn connect(&self, peer: &Self) -> Result<(), Failed> {
        self.to_init()?;
        self.to_rtr(peer)?;
        self.to_rts()
    }

    fn to_init(&self) -> Result<(), Failed> {
        let access = Access::empty();
        self.qp.modify(&QpModify::Init(InitAttr {
            port_num: 1,
            pkey_index: 0,
            access,
        }))?;
        assert_eq!(self.qp.state()?, QpState::Init);
        Ok(())
    }

    fn to_rtr(&self, peer: &Self) -> Result<(), Failed> {
        let routed = self.port.link_layer != LinkLayer::InfiniBand;
        let dgid = peer.gid.as_ref().map(|entry| entry.gid);
        let sgid_index = self.gid.as_ref().map_or(0, |entry| entry.index);
        self.qp.modify(&QpModify::Rtr(RtrAttr {
            ah: AddressVector {
                dgid: dgid.filter(|_| routed),
                dlid: peer.port.lid,
                ..AddressVector::roce(1, sgid_index, dgid.unwrap_or_default())
            },
            path_mtu: self.port.active_mtu,
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(7),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            access: None,
            pkey_index: None,
            alternate: None,
        }))?;
        assert_eq!(self.qp.state()?, QpState::Rtr);
        Ok(())
    }

    fn to_rts(&self) -> Result<(), Failed> {
        self.qp.modify(&QpModify::Rts(RtsAttr {
            sq_psn: Psn::new(7),
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            max_rd_atomic: 1,
            access: None,
            min_rnr_timer: None,
            alternate: None,
        }))?;
        assert_eq!(self.qp.state()?, QpState::Rts);
        Ok(())
    }

    fn request(&self, op: SendOp, data: &[u8], flags: SendFlags) -> Result<SendRequest, Failed> {
        let mut slot = self.pool.take().ok_or("no slot is free")?;
        slot.as_mut_slice()[..data.len()].copy_from_slice(data);
        let mut request = SendRequest::new(op).flags(flags);
        let pushed = request.push(Buffer::slot(slot, data.len()));
        assert!(pushed.is_ok());
        Ok(request)
    }

    fn send(&mut self, op: SendOp, data: &[u8], flags: SendFlags) -> Result<(), Failed> {
        let request = self.request(op, data, flags)?;
        Ok(self.sends.post(&mut vec![request])?)
    }

    fn receive(&mut self, n: usize) -> Result<(), Failed> {
        let mut slots: Vec<Slot> = (0..n).map_while(|_| self.pool.take()).collect();
        assert_eq!(slots.len(), n);
        self.receives.post(&mut slots)?;
        assert!(slots.is_empty());
        Ok(())
    }

    /// Sleeps on the completion channel.
    fn wait_for_event(&self) -> Result<CompEvent, Failed> {
        let timeout = Timespec {
            tv_sec: LONG.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let fd = self.channel.fd();
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err("no event came".into());
        }
        Ok(self.channel.next_event()?.ok_or("readable without an event")?)
    }

    /// The next `n` messages, with their immediate data.
    fn received(&mut self, n: usize) -> Result<Vec<Message>, Failed> {
        let completions = collect(&*self.recv_cq, n)?;
        let mut messages = Vec::new();
        for wc in completions {
            assert_eq!(
                (wc.status, wc.opcode, wc.qp_num),
                (WcStatus::Success, WcOpcode::Recv, self.qp.qpn())
            );
            let received = self.receives.complete(&wc).ok_or("it is none of ours")?;
            messages.push((received.slot.as_slice()[..received.len].to_vec(), wc.imm));
        }
        Ok(messages)
    }

    /// Waits until `n` sends are done.
    fn sent(&mut self, n: usize) -> Result<(), Failed> {
        let mut done = 0;
        while done < n {
            for wc in collect(&*self.send_cq, 1)? {
                assert_eq!(
                    (wc.status, wc.opcode, wc.qp_num),
                    (WcStatus::Success, WcOpcode::Send, self.qp.qpn())
                );
                done += self.sends.complete(&wc, drop);
            }
        }
        assert_eq!((done, self.sends.in_flight()), (n, 0));
        assert_eq!(self.device.next_async_event()?, None);
        Ok(())
    }
}

/// Polls until `n` completions have come.
fn collect(cq: &dyn Cq, n: usize) -> Result<Vec<WorkCompletion>, Failed> {
    let deadline = Instant::now() + LONG;
    let mut completions = Vec::new();
    while completions.len() < n {
        let mut batch = [WorkCompletion::EMPTY; 4];
        let room = (n - completions.len()).min(batch.len());
        let polled = cq.poll(&mut batch[..room])?;
        completions.extend_from_slice(&batch[..polled]);
        if polled == 0 && Instant::now() > deadline {
            return Err(format!("{} of {n} completions came", completions.len()).into());
        }
        std::thread::yield_now();
    }
    Ok(completions)
}
