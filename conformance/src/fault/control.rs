//! The handles that tests hold, and what is planned.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use adverb_types::Qpn;
use adverb_verbs::{AsyncEvent, ErrorKind, VerbsError};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::cq::CqState;
use super::device::DeviceState;
use super::qp::QpState;

/// What goes wrong on a [`super::FaultProvider`]. A clone controls the same provider.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub(super) plan: Arc<Plan>,
}

/// A verb that can be made to fail whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// `ibv_open_device`.
    OpenDevice,
    /// `ibv_alloc_pd`.
    AllocPd,
    /// `ibv_reg_mr`: with `ENOMEM` it is the locked-memory limit.
    RegMr,
    /// `ibv_create_comp_channel`.
    CreateCompChannel,
    /// `ibv_create_cq`.
    CreateCq,
    /// `ibv_create_srq`.
    CreateSrq,
    /// `ibv_create_qp`.
    CreateQp,
    /// `ibv_modify_qp`.
    ModifyQp,
    /// `ibv_req_notify_cq`.
    ReqNotifyCq,
}

impl Operation {
    const COUNT: usize = 9;

    fn name(self) -> &'static str {
        match self {
            Self::OpenDevice => "ibv_open_device",
            Self::AllocPd => "ibv_alloc_pd",
            Self::RegMr => "ibv_reg_mr",
            Self::CreateCompChannel => "ibv_create_comp_channel",
            Self::CreateCq => "ibv_create_cq",
            Self::CreateSrq => "ibv_create_srq",
            Self::CreateQp => "ibv_create_qp",
            Self::ModifyQp => "ibv_modify_qp",
            Self::ReqNotifyCq => "ibv_req_notify_cq",
        }
    }
}

impl Faults {
    /// Makes the next `times` calls of `operation` fail with `errno`.
    pub fn fail(&self, operation: Operation, errno: i32, times: u32) {
        *self.plan.operations[operation as usize].lock() = (errno, times);
    }

    /// Accepts `accepted` more sends, on whatever queue pair, then refuses one post once with `ENOMEM`.
    pub fn fail_send_after(&self, accepted: u32) {
        self.plan.sends.set(accepted);
    }

    /// Accepts `accepted` more receives, on whatever queue, then refuses one post once with `ENOMEM`.
    pub fn fail_recv_after(&self, accepted: u32) {
        self.plan.recvs.set(accepted);
    }

    /// Raises an asynchronous event on every opening of `device`. Says how many got it.
    pub fn inject(&self, device: &str, event: AsyncEvent) -> usize {
        let devices = live(&self.plan.devices);
        devices.iter().filter(|open| open.inject(device, event)).count()
    }

    /// Moves a queue pair to ERR behind its owner's back. Whether there is one of this number that can be moved.
    pub fn kill_qp(&self, qpn: Qpn) -> bool {
        live(&self.plan.qps).iter().any(|qp| qp.qpn() == qpn && qp.kill())
    }

    /// Moves all queue pairs to ERR. Says how many moved.
    pub fn kill_qps(&self) -> usize {
        live(&self.plan.qps).iter().filter(|qp| qp.kill()).count()
    }

    /// The completion queues there are, oldest first.
    pub fn cqs(&self) -> Vec<CqFaults> {
        let cqs = live(&self.plan.cqs);
        cqs.iter()
            .map(|cq| CqFaults {
                cookie: cq.cookie(),
                state: Arc::downgrade(cq),
            })
            .collect()
    }

    /// The oldest completion queue with this cookie.
    pub fn cq(&self, cookie: u64) -> Option<CqFaults> {
        self.cqs().into_iter().find(|cq| cq.cookie == cookie)
    }

    /// How often a fault was carried out: failed calls and polls, lost, duplicated and raised events, killed queue pairs,
    /// injected events.
    pub fn carried_out(&self) -> u64 {
        self.plan.carried_out.load(Ordering::Relaxed)
    }
}

/// What goes wrong on one completion queue. If the queue is gone, nothing does.
#[derive(Clone, Debug)]
pub struct CqFaults {
    cookie: u64,
    state: Weak<CqState>,
}

impl CqFaults {
    /// The cookie that the queue was created with.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The next `count` events vanish: the channel stays silent and has nothing to give. One that nobody took yet counts.
    pub fn lose_events(&self, count: u32) {
        self.with(|cq| cq.lose_events(count));
    }

    /// The next `count` events come twice.
    pub fn duplicate_events(&self, count: u32) {
        self.with(|cq| cq.duplicate_events(count));
    }

    /// Raises an event, armed or not, for nothing.
    pub fn raise_event(&self) {
        self.with(CqState::raise_event);
    }

    /// Shows no completion and raises no event until [`Self::release`].
    pub fn hold(&self) {
        self.with(CqState::hold);
    }

    /// Shows `count` of the completions held back, and later ones in their place.
    pub fn release(&self, count: usize) {
        self.with(|cq| cq.release(Some(count)));
    }

    /// Shows everything again. If the queue was armed meanwhile and completions waited, their event comes now.
    pub fn release_all(&self) {
        self.with(|cq| cq.release(None));
    }

    /// The next `times` polls fail with `EIO`; [`u32::MAX`] is for ever.
    pub fn fail_polls(&self, times: u32) {
        self.with(|cq| cq.fail_polls(times));
    }

    fn with(&self, act: impl FnOnce(&CqState)) {
        if let Some(cq) = self.state.upgrade() {
            act(&cq);
        }
    }
}

/// What is planned, and for whom.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By [`Operation`]: the `errno` and how often.
    operations: [Mutex<(i32, u32)>; Operation::COUNT],
    pub(super) sends: Countdown,
    pub(super) recvs: Countdown,
    carried_out: AtomicU64,
    devices: Mutex<Vec<Weak<DeviceState>>>,
    cqs: Mutex<Vec<Weak<CqState>>>,
    qps: Mutex<Vec<Weak<QpState>>>,
}

impl Plan {
    /// Fails if `operation` is to fail now.
    pub(super) fn check(&self, operation: Operation, device: &str) -> Result<(), VerbsError> {
        let (errno, times) = &mut *self.operations[operation as usize].lock();
        if *times == 0 {
            return Ok(());
        }
        *times -= 1;
        self.count();
        Err(VerbsError::new(operation.name(), device, ErrorKind::Os(*errno)))
    }

    pub(super) fn count(&self) {
        self.carried_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_device(&self, device: &Arc<DeviceState>) {
        add(&self.devices, device);
    }

    pub(super) fn add_cq(&self, cq: &Arc<CqState>) {
        add(&self.cqs, cq);
    }

    pub(super) fn add_qp(&self, qp: &Arc<QpState>) {
        add(&self.qps, qp);
    }
}

fn add<T>(list: &Mutex<Vec<Weak<T>>>, item: &Arc<T>) {
    let mut list = list.lock();
    list.retain(|item| item.strong_count() > 0);
    list.push(Arc::downgrade(item));
}

fn live<T>(list: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    list.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Counts accepted work requests down to a refusal.
#[derive(Debug)]
pub(super) struct Countdown(AtomicU32);

impl Default for Countdown {
    fn default() -> Self {
        Self(AtomicU32::new(Self::NEVER))
    }
}

impl Countdown {
    const NEVER: u32 = u32::MAX;

    fn set(&self, accepted: u32) {
        self.0.store(accepted.min(Self::NEVER - 1), Ordering::Release);
    }

    /// How many of `count` requests may pass; `None` if all.
    pub(super) fn pass(&self, count: usize) -> Option<usize> {
        let mut left = self.0.load(Ordering::Acquire);
        loop {
            if left == Self::NEVER {
                return None;
            }
            let refuses = (left as usize) < count;
            let next = if refuses { Self::NEVER } else { left - count as u32 };
            match self
                .0
                .compare_exchange(left, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return refuses.then_some(left as usize),
                Err(now) => left = now,
            }
        }
    }
}

/// The `errno` of a post that found its queue full.
pub(super) const FULL: ErrorKind = ErrorKind::Os(Errno::NOMEM.raw_os_error());
