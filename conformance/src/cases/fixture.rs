//! What cases are made of: connected ends, bounded waits, and comparisons that say what they compared.

use std::fmt::{self, Debug};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use adverb_types::{GidType, Mtu, Psn, Qpn};
use adverb_verbs::{
    Access, AddressVector, AsyncEventKind, Buffer, CompChannel, CompEvent, Cq, CqInit, Device, EventSource,
    GidEntry, InitAttr, LinkLayer, Pd, PortAttr, PostError, Provider, Qp, QpCaps, QpInit, QpModify, QpState,
    RecvQueue, Region, RegionError, Retired, RtrAttr, RtsAttr, SendFlags, SendOp, SendQueue, SendRequest,
    SlotPool, Srq, SrqInit, VerbsError, WcStatus, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Options, Outcome};

/// What a case returns.
pub(super) type Check = Result<Outcome, Failure>;

/// Why a case failed.
#[derive(Debug)]
pub(super) struct Failure(String);

impl Failure {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        Self(error.to_string())
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self(error.to_string())
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        Self(error.to_string())
    }
}

/// Fails with both values unless they are equal.
pub(super) fn same<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Result<(), Failure> {
    if got == expected {
        Ok(())
    } else {
        Err(Failure(format!("{what}: got {got:?}, expected {expected:?}")))
    }
}

/// Fails with `text` unless `holds`.
pub(super) fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure(text())) }
}

/// Fails unless `result` is an error, and gives that.
pub(super) fn refused<T: Debug, E>(what: &str, result: Result<T, E>) -> Result<E, Failure> {
    match result {
        Ok(value) => Err(Failure(format!("{what} was accepted: {value:?}"))),
        Err(error) => Ok(error),
    }
}

/// How long nothing must happen to count as nothing. Where the completion is there already, its event would be, too.
const QUIET: Duration = Duration::from_millis(20);

pub(super) const SEND_COOKIE: u64 = 0x51;
pub(super) const RECV_COOKIE: u64 = 0x52;
pub(super) const SRQ_COOKIE: u64 = 0x53;
pub(super) const OWNER: u32 = 5;
pub(super) const GENERATION: u16 = 9;

/// How an end is set up.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) caps: QpCaps,
    pub(super) send_cqe: u32,
    pub(super) recv_cqe: u32,
    /// The size of its shared receive queue, if it is to have one.
    pub(super) srq: Option<u32>,
    pub(super) sq_sig_all: bool,
    pub(super) access: Access,
    pub(super) slot_size: usize,
    pub(super) rnr_retry: u8,
    /// Less than the port's where it is to differ from the peer's.
    pub(super) path_mtu: Option<Mtu>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            caps: QpCaps {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            send_cqe: 128,
            recv_cqe: 128,
            srq: None,
            sq_sig_all: false,
            access: Access::all(),
            slot_size: 256,
            rnr_retry: 7,
            path_mtu: None,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) device: Arc<dyn Device>,
    pub(super) pd: Arc<dyn Pd>,
    pub(super) send_channel: Arc<dyn CompChannel>,
    pub(super) recv_channel: Arc<dyn CompChannel>,
    pub(super) send_cq: Arc<dyn Cq>,
    pub(super) recv_cq: Arc<dyn Cq>,
    pub(super) srq: Option<Arc<dyn Srq>>,
    pub(super) qp: Arc<dyn Qp>,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
    pub(super) pool: SlotPool,
    pub(super) port: PortAttr,
    gid: Option<GidEntry>,
    setup: Setup,
}

/// A receive that completed.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) wc: WorkCompletion,
    pub(super) data: Vec<u8>,
}

/// A completion of a send queue, and what it retired.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) wc: WorkCompletion,
    pub(super) retired: Vec<Retired>,
}

/// The statuses of completions, in order.
pub(super) fn statuses(sent: &[Sent]) -> Vec<WcStatus> {
    sent.iter().map(|sent| sent.wc.status).collect()
}

/// The GID that two ends connect with: RoCEv2, routable before link-local, found by value.
pub(super) fn choose_gid(table: Vec<GidEntry>) -> Option<GidEntry> {
    let rank = |entry: &GidEntry| (entry.gid_type != GidType::RoceV2, entry.gid.is_link_local());
    table.into_iter().min_by_key(rank)
}

/// Where a case runs.
#[derive(Debug)]
pub(super) struct Fixture<'a> {
    pub(super) provider: &'a dyn Provider,
    options: &'a Options,
}

impl<'a> Fixture<'a> {
    pub(super) fn new(provider: &'a dyn Provider, options: &'a Options) -> Self {
        Self { provider, options }
    }

    pub(super) fn device_name(&self) -> &str {
        &self.options.device
    }

    pub(super) fn open(&self) -> Result<Arc<dyn Device>, Failure> {
        Ok(self.provider.open(&self.options.device)?)
    }

    /// Two connected ends, set up alike.
    pub(super) fn pair(&self) -> Result<(End, End), Failure> {
        self.pair_of(&Setup::default(), &Setup::default())
    }

    /// Two connected ends, the first on the first device.
    pub(super) fn pair_of(&self, first: &Setup, second: &Setup) -> Result<(End, End), Failure> {
        let (a, b) = (self.end(first)?, self.second_end(second)?);
        a.connect(&b)?;
        b.connect(&a)?;
        Ok((a, b))
    }

    /// An end that is not connected, on the first device.
    pub(super) fn end(&self, setup: &Setup) -> Result<End, Failure> {
        End::new(self.provider.open(&self.options.device)?, setup)
    }

    fn second_end(&self, setup: &Setup) -> Result<End, Failure> {
        let name = self
            .options
            .second_device
            .as_ref()
            .unwrap_or(&self.options.device);
        End::new(self.provider.open(name)?, setup)
    }

    /// Tries again until there is something, for as long as the deadline allows.
    pub(super) fn until<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        self.within(self.options.deadline, &mut attempt)?
            .ok_or_else(|| Failure(format!("waited {:?} in vain for {what}", self.options.deadline)))
    }

    /// Tries again until there is something or `limit` passed.
    pub(super) fn within<T>(
        &self,
        limit: Duration,
        mut attempt: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let end = Instant::now() + limit;
        loop {
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Waits for `n` completions of a queue.
    pub(super) fn completions(&self, cq: &Arc<dyn Cq>, n: usize) -> Result<Vec<WorkCompletion>, Failure> {
        let mut all = Vec::new();
        let waited = self.until("completions", || {
            let mut some = [WorkCompletion::EMPTY; 16];
            let room = some.len().min(n - all.len());
            let got = cq.poll(&mut some[..room])?;
            all.extend_from_slice(&some[..got]);
            Ok((all.len() == n).then_some(()))
        });
        waited.map_err(|failure| Failure(format!("{failure}: {} of {n} came: {all:?}", all.len())))?;
        Ok(all)
    }

    /// Waits for `n` completions of `end`'s send queue.
    pub(super) fn sent(&self, end: &mut End, n: usize) -> Result<Vec<Sent>, Failure> {
        let completions = self.completions(&end.send_cq, n)?;
        let retire = |wc| {
            let mut retired = Vec::new();
            end.sq.complete(&wc, |request| retired.push(request));
            Sent { wc, retired }
        };
        Ok(completions.into_iter().map(retire).collect())
    }

    /// Waits for `n` completions of `end`'s send queue, all of which must be successful.
    pub(super) fn sent_well(&self, end: &mut End, n: usize) -> Result<Vec<Sent>, Failure> {
        let sent = self.sent(end, n)?;
        same("send completions", statuses(&sent), vec![WcStatus::Success; n])?;
        Ok(sent)
    }

    /// Waits for `n` completions of `end`'s receives.
    pub(super) fn received(&self, end: &mut End, n: usize) -> Result<Vec<Message>, Failure> {
        let mut messages = Vec::new();
        for wc in self.completions(&end.recv_cq, n)? {
            let received = end.rq.complete(&wc);
            let received = received.ok_or_else(|| Failure(format!("a completion of no receive: {wc:?}")))?;
            let data = received.slot.as_slice()[..received.len].to_vec();
            messages.push(Message { wc, data });
        }
        Ok(messages)
    }

    /// Waits for `n` receives of `end`, all of which must be successful, and gives their data.
    pub(super) fn received_well(&self, end: &mut End, n: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let messages = self.received(end, n)?;
        let statuses: Vec<_> = messages.iter().map(|message| message.wc.status).collect();
        same("receive completions", statuses, vec![WcStatus::Success; n])?;
        Ok(messages.into_iter().map(|message| message.data).collect())
    }

    /// Waits for an event as a sleeper does: for the descriptor, then for the event.
    pub(super) fn event(&self, channel: &Arc<dyn CompChannel>) -> Result<CompEvent, Failure> {
        let event = sleep_on(channel, self.options.deadline)?;
        event.ok_or_else(|| Failure(format!("no completion event in {:?}", self.options.deadline)))
    }

    /// Fails if an event comes. Call when what might have raised it is known to have happened.
    pub(super) fn no_event(&self, channel: &Arc<dyn CompChannel>) -> Result<(), Failure> {
        match sleep_on(channel, QUIET)? {
            None => Ok(()),
            Some(event) => Err(Failure(format!("an event that nothing should raise: {event:?}"))),
        }
    }

    /// An event if one comes soon, where devices differ.
    pub(super) fn maybe_event(&self, channel: &Arc<dyn CompChannel>) -> Result<Option<CompEvent>, Failure> {
        sleep_on(channel, QUIET)
    }

    /// Waits up to `limit` for an asynchronous event of `kind` about `source`.
    pub(super) fn async_event(
        &self,
        device: &Arc<dyn Device>,
        kind: AsyncEventKind,
        source: EventSource,
        limit: Option<Duration>,
    ) -> Result<bool, Failure> {
        let found = self.within(limit.unwrap_or(self.options.deadline), || {
            while let Some(event) = device.next_async_event()? {
                if (event.kind, event.source) == (kind, source) {
                    return Ok(Some(()));
                }
            }
            Ok(None)
        })?;
        Ok(found.is_some())
    }

    /// Waits until `end`'s queue pair is in `state`.
    pub(super) fn reaches(&self, end: &End, state: QpState) -> Result<(), Failure> {
        self.until(&format!("state {state}"), || {
            Ok((end.qp.state()? == state).then_some(()))
        })
    }

    /// Does `work` on a thread of its own and fails if it does not end in time; it is left behind then.
    pub(super) fn ends<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (done, wait) = mpsc::channel();
        thread::spawn(move || done.send(work()));
        wait.recv_timeout(self.options.deadline)
            .map_err(|_| Failure(format!("{what} did not end in {:?}", self.options.deadline)))
    }
}

fn sleep_on(channel: &Arc<dyn CompChannel>, limit: Duration) -> Result<Option<CompEvent>, Failure> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let fd = channel.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => {
                if let Some(event) = channel.next_event()? {
                    return Ok(Some(event));
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Failure(format!("poll of a completion channel: {errno}"))),
        }
        if left.is_zero() {
            return Ok(None);
        }
    }
}

impl End {
    pub(super) fn new(device: Arc<dyn Device>, setup: &Setup) -> Result<Self, Failure> {
        let pd = device.alloc_pd()?;
        let send_channel = device.create_comp_channel()?;
        let recv_channel = device.create_comp_channel()?;
        let cq = |cqe, channel, cookie| device.create_cq(&CqInit::new(cqe).channel(channel).cookie(cookie));
        let send_cq = cq(setup.send_cqe, &send_channel, SEND_COOKIE)?;
        let recv_cq = cq(setup.recv_cqe, &recv_channel, RECV_COOKIE)?;
        let srq = match setup.srq {
            None => None,
            Some(max_wr) => Some(pd.create_srq(&SrqInit {
                max_wr,
                max_sge: 1,
                cookie: SRQ_COOKIE,
            })?),
        };
        let qp = pd.create_qp(&QpInit {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: srq.as_ref(),
            caps: setup.caps,
            sq_sig_all: setup.sq_sig_all,
        })?;
        let rq = match &srq {
            Some(srq) => RecvQueue::on_srq(Arc::clone(srq)),
            None => RecvQueue::on_qp(Arc::clone(&qp), OWNER, GENERATION),
        };
        Ok(Self {
            sq: SendQueue::new(Arc::clone(&qp), OWNER, GENERATION),
            rq,
            pool: SlotPool::new(&*pd, setup.slot_size, 64, Access::LOCAL_WRITE)?,
            port: device.port(1)?,
            gid: choose_gid(device.gid_table(1)?),
            device,
            pd,
            send_channel,
            recv_channel,
            send_cq,
            recv_cq,
            srq,
            qp,
            setup: setup.clone(),
        })
    }

    /// RESET to RTS, towards `peer`.
    pub(super) fn connect(&self, peer: &End) -> Result<(), Failure> {
        self.to_init(&self.qp)?;
        self.to_rtr(&self.qp, peer, peer.qp.qpn())?;
        self.to_rts(&self.qp)
    }

    pub(super) fn to_init(&self, qp: &Arc<dyn Qp>) -> Result<(), Failure> {
        Ok(qp.modify(&QpModify::Init(InitAttr {
            port_num: 1,
            pkey_index: 0,
            access: self.setup.access,
        }))?)
    }

    pub(super) fn to_rtr(&self, qp: &Arc<dyn Qp>, peer: &End, dest_qpn: Qpn) -> Result<(), Failure> {
        Ok(qp.modify(&QpModify::Rtr(self.rtr_attr(peer, dest_qpn)))?)
    }

    pub(super) fn rtr_attr(&self, peer: &End, dest_qpn: Qpn) -> RtrAttr {
        let routed = self.port.link_layer != LinkLayer::InfiniBand;
        let dgid = peer.gid.as_ref().map(|entry| entry.gid);
        let sgid_index = self.gid.as_ref().map_or(0, |entry| entry.index);
        RtrAttr {
            ah: AddressVector {
                dgid: dgid.filter(|_| routed),
                dlid: peer.port.lid,
                udp_port: peer.gid.as_ref().and_then(|entry| entry.udp_port),
                ..AddressVector::roce(1, sgid_index, dgid.unwrap_or_default())
            },
            path_mtu: self
                .setup
                .path_mtu
                .unwrap_or(self.port.active_mtu.min(peer.port.active_mtu)),
            dest_qpn,
            rq_psn: Psn::new(0x1234),
            max_dest_rd_atomic: 1,
            // 0.64 ms; 0 would be 655 ms.
            min_rnr_timer: 12,
            access: None,
            pkey_index: None,
            alternate: None,
        }
    }

    pub(super) fn to_rts(&self, qp: &Arc<dyn Qp>) -> Result<(), Failure> {
        Ok(qp.modify(&QpModify::Rts(RtsAttr {
            sq_psn: Psn::new(0x1234),
            // 67 ms, so that an emulated machine has time to answer; a peer that is gone is noticed in half a second.
            timeout: 14,
            // 7 is for ever on rxe.
            retry_cnt: 6,
            rnr_retry: self.setup.rnr_retry,
            max_rd_atomic: 1,
            access: None,
            min_rnr_timer: None,
            alternate: None,
        }))?)
    }

    /// Posts `n` receives.
    pub(super) fn receive(&mut self, n: usize) -> Result<(), Failure> {
        let mut slots = Vec::new();
        for _ in 0..n {
            slots.push(self.slot()?);
        }
        self.rq.post(&mut slots)?;
        same("receives that found no room", slots.len(), 0)
    }

    pub(super) fn slot(&self) -> Result<adverb_verbs::Slot, Failure> {
        self.pool.take().ok_or_else(|| Failure::new("no free slot"))
    }

    /// A request with `data` in a slot.
    pub(super) fn request(&self, op: SendOp, data: &[u8], flags: SendFlags) -> Result<SendRequest, Failure> {
        let mut request = SendRequest::new(op).flags(flags);
        self.add(&mut request, data)?;
        Ok(request)
    }

    /// Adds `data` in a slot of its own.
    pub(super) fn add(&self, request: &mut SendRequest, data: &[u8]) -> Result<(), Failure> {
        let mut slot = self.slot()?;
        let room = slot.as_mut_slice().get_mut(..data.len());
        room.ok_or_else(|| Failure::new("the data is longer than a slot"))?
            .copy_from_slice(data);
        push(request, Buffer::slot(slot, data.len()))
    }

    /// Posts `data` signaled, with more `flags`.
    pub(super) fn post(&mut self, op: SendOp, data: &[u8], flags: SendFlags) -> Result<(), Failure> {
        let request = self.request(op, data, flags | SendFlags::SIGNALED)?;
        self.post_request(request)
    }

    pub(super) fn post_request(&mut self, request: SendRequest) -> Result<(), Failure> {
        Ok(self.sq.post(&mut vec![request])?)
    }

    /// A region of this end that holds `data`, with all rights.
    pub(super) fn region(&self, data: &[u8], access: Access) -> Result<Arc<Region>, Failure> {
        let region = Region::new(&*self.pd, data.len(), access)?;
        region.write_at(0, data)?;
        Ok(Arc::new(region))
    }
}

/// Adds a buffer to a request.
pub(super) fn push(request: &mut SendRequest, buffer: Buffer) -> Result<(), Failure> {
    let full = |_| Failure::new("more buffers than a request takes");
    request.push(buffer).map_err(full)
}

/// The whole of `region`.
pub(super) fn whole(region: &Arc<Region>) -> Buffer {
    Buffer::Region {
        region: Arc::clone(region),
        offset: 0,
        len: region.len() as u32,
    }
}

/// The bytes of a region.
pub(super) fn bytes_of(region: &Region) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// `len` bytes that no two places share in a row.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}
