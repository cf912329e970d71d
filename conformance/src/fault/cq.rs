//! Completion queues and channels that lose, repeat and hold back.
//!
//! Each completion queue has an inner channel of its own, and the channel that the user sees is an epoll set of them and of
//! one more descriptor for events that are made up. So the events of one queue can be silenced: a waiter sleeps on, as it
//! would had the device raised none.

#![allow(
    unsafe_code,
    reason = "the verbs traits are unsafe to implement; the promises are the inner provider's"
)]

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use adverb_verbs::{Bell, CompChannel, CompEvent, Cq, ErrorKind, VerbsError, WorkCompletion};
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;

use super::control::{Operation, Plan};
use super::device::DeviceState;

/// What the user holds as a completion channel.
#[derive(Debug)]
pub(super) struct FaultChannel {
    pub(super) device: Arc<DeviceState>,
    pub(super) state: Arc<ChannelState>,
}

#[derive(Debug)]
pub(super) struct ChannelState {
    set: OwnedFd,
    /// Events that no inner channel raised.
    extra: Bell<Weak<CqState>>,
    members: Mutex<Vec<Weak<CqState>>>,
}

impl ChannelState {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let state = Self {
            set: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            extra: Bell::new()?,
            members: Mutex::default(),
        };
        listen(&state.set, state.extra.as_fd())?;
        Ok(Arc::new(state))
    }

    fn add(&self, cq: &Arc<CqState>) {
        let mut members = self.members.lock();
        members.retain(|cq| cq.strong_count() > 0);
        members.push(Arc::downgrade(cq));
    }

    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError> {
        while let Some(cq) = self.extra.pop() {
            if let Some(cq) = cq.upgrade() {
                cq.extra_unacked.fetch_add(1, Ordering::AcqRel);
                return Ok(Some(CompEvent { cookie: cq.cookie }));
            }
        }
        let mut members = self.members.lock();
        for i in 0..members.len() {
            if let Some(cq) = members[i].upgrade()
                && let Some((event, twice)) = cq.take_event()?
            {
                if twice {
                    cq.plan.count();
                    self.extra.push(Weak::clone(&members[i]));
                }
                // The next one in turn comes first next time.
                members.rotate_left(i + 1);
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

/// Makes `set` readable while `fd` is.
pub(super) fn listen(set: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

// SAFETY: it touches no memory of its caller.
unsafe impl CompChannel for FaultChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.state.set.as_fd()
    }

    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError> {
        self.state.next_event()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the user holds as a completion queue.
#[derive(Debug)]
pub(super) struct FaultCq {
    pub(super) device: Arc<DeviceState>,
    pub(super) state: Arc<CqState>,
    pub(super) _channel: Option<Arc<dyn CompChannel>>,
}

#[derive(Debug)]
pub(super) struct CqState {
    inner: Arc<dyn Cq>,
    cookie: u64,
    device: Arc<str>,
    plan: Arc<Plan>,
    /// The inner channel of this queue alone, and the set of the channel that the user sees.
    channel: Option<(Arc<dyn CompChannel>, Arc<ChannelState>)>,
    /// Whether polls must look at `faults`.
    polls_change: AtomicBool,
    extra_unacked: AtomicU32,
    faults: Mutex<CqPlan>,
}

#[derive(Debug, Default)]
struct CqPlan {
    lose: u32,
    duplicate: u32,
    fail_polls: u32,
    /// How many completions may be shown, while they are held back.
    visible: Option<usize>,
    /// How the queue was armed while nothing was visible.
    armed: Option<bool>,
    /// Completions taken from the inner queue and not shown yet.
    stash: VecDeque<WorkCompletion>,
    /// Whether the inner channel is out of the set.
    silent: bool,
}

impl CqState {
    pub(super) fn new(
        inner: Arc<dyn Cq>,
        cookie: u64,
        device: &DeviceState,
        channel: Option<(Arc<dyn CompChannel>, Arc<ChannelState>)>,
    ) -> Result<Arc<Self>, Errno> {
        if let Some((own, outer)) = &channel {
            listen(&outer.set, own.fd())?;
        }
        let state = Arc::new(Self {
            inner,
            cookie,
            device: device.name(),
            plan: Arc::clone(&device.plan),
            channel,
            polls_change: AtomicBool::new(false),
            extra_unacked: AtomicU32::new(0),
            faults: Mutex::default(),
        });
        if let Some((_, outer)) = &state.channel {
            outer.add(&state);
        }
        state.plan.add_cq(&state);
        Ok(state)
    }

    pub(super) fn inner(&self) -> &Arc<dyn Cq> {
        &self.inner
    }

    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(super) fn lose_events(&self, count: u32) {
        self.change(|faults| faults.lose = count);
    }

    pub(super) fn duplicate_events(&self, count: u32) {
        self.change(|faults| faults.duplicate = count);
    }

    pub(super) fn fail_polls(&self, times: u32) {
        self.change(|faults| faults.fail_polls = times);
    }

    pub(super) fn raise_event(&self) {
        self.plan.count();
        self.raise();
    }

    pub(super) fn hold(&self) {
        self.change(|faults| faults.visible = Some(0));
    }

    pub(super) fn release(&self, count: Option<usize>) {
        let mut raise = false;
        self.change(|faults| {
            faults.visible = count.map(|count| faults.visible.unwrap_or(0) + count);
            if faults.visible == Some(0) {
                return;
            }
            self.take_in(faults);
            if let Some(solicited_only) = faults.armed.take() {
                // What came while it was held comes now. Whether it was solicited is not known any more: at worst this
                // wakes somebody for nothing.
                raise = !faults.stash.is_empty();
                if !raise && let Err(error) = self.inner.req_notify(solicited_only) {
                    tracing::error!(%error, "a completion queue that was held back could not be armed");
                }
            }
        });
        if raise {
            self.raise();
        }
    }

    /// Raises an event on the channel that the user sees.
    fn raise(&self) {
        if let Some((_, outer)) = &self.channel {
            let members = outer.members.lock();
            let own = members.iter().find(|cq| std::ptr::eq(cq.as_ptr(), self));
            if let Some(own) = own.cloned() {
                drop(members);
                outer.extra.push(own);
            }
        }
    }

    fn take_in(&self, faults: &mut CqPlan) {
        let mut some = [WorkCompletion::EMPTY; 16];
        while let Ok(n @ 1..) = self.inner.poll(&mut some) {
            faults.stash.extend(&some[..n]);
        }
    }

    fn change(&self, change: impl FnOnce(&mut CqPlan)) {
        let mut faults = self.faults.lock();
        change(&mut faults);
        self.settle(&mut faults);
    }

    /// Takes events out that are to be lost, and makes the channel silent or audible as is now right.
    fn settle(&self, faults: &mut CqPlan) {
        if let Some((own, outer)) = &self.channel {
            while faults.lose > 0
                && let Ok(Some(_)) = own.next_event()
            {
                self.inner.ack_events();
                faults.lose -= 1;
                self.plan.count();
            }
            let silent = faults.lose > 0 || faults.visible == Some(0);
            if silent != faults.silent {
                let changed = if silent {
                    epoll::delete(&outer.set, own.fd())
                } else {
                    listen(&outer.set, own.fd())
                };
                match changed {
                    Ok(()) => faults.silent = silent,
                    Err(errno) => {
                        tracing::error!(%errno, silent, "a channel could not be silenced or heard again")
                    }
                }
            }
        }
        let change =
            faults.lose > 0 || faults.fail_polls > 0 || faults.visible.is_some() || !faults.stash.is_empty();
        self.polls_change.store(change, Ordering::Release);
    }

    /// An event of the inner channel, and whether it is to come again.
    fn take_event(&self) -> Result<Option<(CompEvent, bool)>, VerbsError> {
        let Some((own, _)) = &self.channel else {
            return Ok(None);
        };
        let mut faults = self.faults.lock();
        self.settle(&mut faults);
        if faults.silent {
            return Ok(None);
        }
        let event = own.next_event()?;
        let twice = event.is_some() && faults.duplicate > 0;
        if twice {
            faults.duplicate -= 1;
        }
        Ok(event.map(|event| (event, twice)))
    }

    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        if !self.polls_change.load(Ordering::Acquire) {
            return self.inner.poll(out);
        }
        let mut faults = self.faults.lock();
        let faults = &mut *faults;
        if faults.fail_polls > 0 {
            if faults.fail_polls != u32::MAX {
                faults.fail_polls -= 1;
            }
            self.plan.count();
            self.settle(faults);
            let kind = ErrorKind::Os(Errno::IO.raw_os_error());
            return Err(VerbsError::new("ibv_poll_cq", Arc::clone(&self.device), kind));
        }
        let limit = faults.visible.unwrap_or(usize::MAX).min(out.len());
        let mut n = limit.min(faults.stash.len());
        for (out, wc) in out.iter_mut().zip(faults.stash.drain(..n)) {
            *out = wc;
        }
        if n < limit {
            n += self.inner.poll(&mut out[n..limit])?;
        }
        if let Some(visible) = &mut faults.visible {
            *visible -= n;
        }
        self.settle(faults);
        Ok(n)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.plan.check(Operation::ReqNotifyCq, &self.device)?;
        let mut faults = self.faults.lock();
        self.settle(&mut faults);
        if faults.visible == Some(0) {
            // Any completion is not taken back by solicited only.
            faults.armed = Some(solicited_only && faults.armed.unwrap_or(true));
            return Ok(());
        }
        self.inner.req_notify(solicited_only)
    }
}

// SAFETY: a completion is shown only after the inner queue reported it.
unsafe impl Cq for FaultCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.state.poll(out)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.state.req_notify(solicited_only)
    }

    fn unacked_events(&self) -> u32 {
        self.state.inner.unacked_events() + self.state.extra_unacked.load(Ordering::Acquire)
    }

    fn ack_events(&self) {
        self.state.extra_unacked.store(0, Ordering::Release);
        self.state.inner.ack_events();
    }

    fn capacity(&self) -> u32 {
        self.state.inner.capacity()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
