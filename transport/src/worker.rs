//! Workers: the queues that endpoints share, and who drives them.

use std::fmt;
use std::net::ToSocketAddrs;
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use adverb_progress::{CqSource, Deadline, Engine, Mode, Role, Snapshot, Waiter};
#[cfg(feature = "tokio")]
use adverb_progress::{Prepared, ProgressError};
use adverb_verbs::{Access, Cq, CqInit, Qp, QpCaps, QpInit, Qpn, SlotPool, Srq, SrqInit};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};

use crate::dispatch::{Dispatch, Scratch};
use crate::handlers::Handlers;
use crate::receive::{Receives, Returns};
use crate::signals::Signals;
use crate::table::{Place, Table};
use crate::{
    Config, ConnectError, ConnectErrorKind, Context, Endpoint, EndpointErrorKind, ListenError, Listener,
    Message, Request, WaitError, WorkerError, connect,
};

/// Send slots of a worker. A message that finds none waits for one; short messages go inline and hold none.
const SEND_SLOTS: usize = 256;

/// A send queue, a receive queue and the endpoints on them, all served by whoever drives the worker.
///
/// A worker has no thread of its own. It makes progress while somebody waits on it: [`Worker::wait_until`], the `wait` of a
/// [`SendCompletion`](crate::SendCompletion) or [`Closed`](crate::Closed), [`Listener::accept`], a [`ProgressThread`], or
/// the driver of a runtime (`Worker::drive`). If several do, one of them drives for all.
///
/// Cloning gives another handle. When the last handle, endpoint and listener is gone, its connections are aborted.
#[derive(Clone)]
pub struct Worker {
    pub(crate) owner: Arc<Owner>,
}

/// What the handles of a worker hold together. Connections do not, so that dropping the handles ends the worker.
pub(crate) struct Owner {
    pub(crate) shared: Arc<Shared>,
}

/// A worker.
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) config: Config,
    pub(crate) table: RwLock<Table>,
    pub(crate) returns: Arc<Returns>,
    pub(crate) handlers: Arc<ArcSwap<Handlers>>,
    pub(crate) send_pool: SlotPool,
    pub(crate) signals: Arc<Signals>,
    /// The moment from which keepalive ticks count.
    pub(crate) epoch: Instant,
    send_cq: Arc<dyn Cq>,
    recv_cq: Arc<dyn Cq>,
    srq: Option<Arc<dyn Srq>>,
    /// After `srq`, as it must hold the last handle of that queue when it is dropped.
    pub(crate) receives: Mutex<Receives>,
    comp_vector: u32,
    counters: Arc<adverb_progress::Counters>,
    role: Role<Driver>,
    /// Readable when there is something to do while nobody drives.
    #[cfg(feature = "tokio")]
    readiness: OwnedFd,
    observers: Mutex<Vec<Waker>>,
    observed: AtomicUsize,
}

/// What only the holder of the progress role touches.
#[derive(Debug)]
struct Driver {
    engine: Engine,
    scratch: Scratch,
}

/// How a worker waited, and what it holds ([`Worker::stats`]).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkerStats {
    /// How it polled, armed, slept and woke.
    pub progress: Snapshot,
    /// Connections on it, those being made or ended included.
    pub endpoints: u32,
    /// How many it can hold.
    pub max_endpoints: u32,
}

impl Worker {
    /// Makes a worker on `context`.
    pub(crate) fn on(context: Context, config: Config) -> Result<Self, WorkerError> {
        let device = Arc::clone(context.device());
        let max_endpoints = fitting_endpoints(&context, &config)?;
        let share = config.receives_per_endpoint();
        let comp_vector = config.comp_vector.unwrap_or_else(|| context.next_comp_vector());
        let queue = |cqe, cookie| -> Result<CqSource, WorkerError> {
            let channel = device.create_comp_channel()?;
            let cq = device.create_cq(
                &CqInit::new(cqe)
                    .channel(&channel)
                    .comp_vector(comp_vector)
                    .cookie(cookie),
            )?;
            Ok(CqSource { cq, channel })
        };
        // Every receive and every send that can be outstanding has its entry, so that neither queue can overflow.
        let recv = queue(max_endpoints * share, 0)?;
        let send = queue(max_endpoints * config.send_depth, 1)?;
        let (recv_cq, send_cq) = (Arc::clone(&recv.cq), Arc::clone(&send.cq));
        let srq = if config.use_srq && device.attr().max_srq > 0 {
            Some(context.pd().create_srq(&SrqInit {
                max_wr: max_endpoints * share,
                max_sge: 1,
                cookie: 0,
            })?)
        } else {
            None
        };
        let send_pool = SlotPool::new(
            &**context.pd(),
            config.segment_size as usize,
            SEND_SLOTS,
            Access::empty(),
        )?;
        let engine = Engine::new(recv, send, config.mode).map_err(|error| WorkerError::System {
            device: context.device_name().into(),
            reason: error.to_string(),
        })?;
        #[cfg(feature = "tokio")]
        let readiness = engine.readiness_fd().map_err(|error| WorkerError::System {
            device: context.device_name().into(),
            reason: error.to_string(),
        })?;
        let notifier = engine.notifier().clone();
        let counters = Arc::clone(engine.counters());
        let receives = Receives::new(srq.clone(), share as usize, config.segment_size as usize);
        let epoch = Instant::now();
        let handlers = Arc::<ArcSwap<Handlers>>::default();
        let shared = Shared {
            table: RwLock::new(Table::new(max_endpoints)),
            receives: Mutex::new(receives),
            returns: Returns::new((max_endpoints * share) as usize, notifier.clone()),
            handlers: Arc::clone(&handlers),
            send_pool,
            signals: Arc::new(Signals::new(notifier)),
            epoch,
            send_cq,
            recv_cq,
            srq,
            comp_vector,
            counters,
            role: Role::new(Driver {
                engine,
                scratch: Scratch::new(handlers, &config),
            }),
            #[cfg(feature = "tokio")]
            readiness,
            observers: Mutex::new(Vec::new()),
            observed: AtomicUsize::new(0),
            context,
            config,
        };
        Ok(Self {
            owner: Arc::new(Owner {
                shared: Arc::new(shared),
            }),
        })
    }

    pub(crate) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.owner.shared)
    }

    /// Sets what is done with messages of this id, on every endpoint of the worker, from the next message on.
    ///
    /// The handler runs on the thread that drives the worker: it may send, keep or drop the message, and close endpoints, but not wait
    /// ([`WouldDeadlock`](crate::WouldDeadlock)). If it panics, the endpoint that the message came on fails, and no other. A message for whose id there is no
    /// handler is dropped with a warning.
    pub fn on_message(&self, id: u16, handler: impl Fn(&Endpoint, Message) + Send + Sync + 'static) {
        let handler = Arc::new(handler);
        self.owner.shared.handlers.rcu(|handlers| {
            let mut handlers = Handlers::clone(handlers);
            handlers.messages.set(id, handler.clone());
            handlers
        });
    }

    /// Sets what is done with requests of this id, on every endpoint of the worker, from the next on: see [`Endpoint::request`].
    ///
    /// The handler need not reply itself: it may hand the [`Request`] to another thread or task. All else is as for [`Worker::on_message`], but that a
    /// request for whose id there is no handler is refused, which its sender is told.
    pub fn on_request(&self, id: u16, handler: impl Fn(&Endpoint, Request) + Send + Sync + 'static) {
        let handler = Arc::new(handler);
        self.owner.shared.handlers.rcu(|handlers| {
            let mut handlers = Handlers::clone(handlers);
            handlers.requests.set(id, handler.clone());
            handlers
        });
    }

    /// Connects to the [`Listener`] at `address`, driving the worker meanwhile. The endpoint that it returns has carried a message each way.
    ///
    /// A listener that has too many handshakes under way is asked again after a pause, which grows and is partly left to chance.
    ///
    /// # Errors
    /// [`ConnectError`] after [`Config::connect_timeout`] at the latest. Nothing is left of the connection then.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Endpoint, ConnectError> {
        connect::connect(&self.owner, address)
    }

    /// Listens for connections at a TCP address. Port 0 lets the system choose.
    ///
    /// # Errors
    /// [`ListenError`] if the address is taken or not this host's.
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener, ListenError> {
        Listener::bind(&self.owner, address)
    }

    /// Drives the worker until `done` returns true, for `timeout` at most.
    ///
    /// `done` is asked after every bit of progress, whoever made it; a change that a handler makes is seen at once, one that
    /// another thread makes by itself after [`Worker::wake`].
    ///
    /// # Errors
    /// [`WaitError`]: it took longer, or this is a handler's thread, or the worker's queues failed.
    pub fn wait_until(&self, timeout: Duration, done: impl FnMut() -> bool) -> Result<(), WaitError> {
        self.owner.wait_for(timeout, done)
    }

    /// Makes whoever waits in [`Worker::wait_until`] ask `done` again.
    pub fn wake(&self) {
        self.owner.shared.signals.wake();
        self.owner.shared.notify_observers();
    }

    /// Polls once, without blocking, unless somebody else is driving. Returns whether it did.
    pub fn try_progress(&self) -> bool {
        self.owner.try_progress()
    }

    /// Starts a thread that drives the worker until the returned handle is dropped, confined to CPUs near the device.
    ///
    /// # Errors
    /// [`WorkerError::System`] if the thread cannot be started.
    pub fn progress_thread(&self) -> Result<ProgressThread, WorkerError> {
        ProgressThread::start(self)
    }

    /// How it waited, and what it holds.
    pub fn stats(&self) -> WorkerStats {
        let shared = &self.owner.shared;
        let table = shared.table.read();
        WorkerStats {
            progress: shared.counters.snapshot(),
            endpoints: table.taken(),
            max_endpoints: table.limit(),
        }
    }

    /// How it waits.
    pub fn mode(&self) -> Mode {
        self.owner.shared.config.mode
    }

    /// The completion vector of its queues.
    pub fn comp_vector(&self) -> u32 {
        self.owner.shared.comp_vector
    }

    /// The context it is on.
    pub fn context(&self) -> &Context {
        &self.owner.shared.context
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.owner.shared, f)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shared, f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("context", &self.context)
            .field("comp_vector", &self.comp_vector)
            .field("mode", &self.config.mode)
            .finish_non_exhaustive()
    }
}

/// Endpoints that fit the device's limits, at most as many as configured.
fn fitting_endpoints(context: &Context, config: &Config) -> Result<u32, WorkerError> {
    let attr = context.device().attr();
    let share = config.receives_per_endpoint();
    let srq = config.use_srq && attr.max_srq > 0;
    let limits = [
        ("max_cqe", attr.max_cqe, share),
        ("max_cqe", attr.max_cqe, config.send_depth),
        ("max_qp_wr", attr.max_qp_wr, config.send_depth),
        if srq {
            ("max_srq_wr", attr.max_srq_wr, share)
        } else {
            ("max_qp_wr", attr.max_qp_wr, share)
        },
        ("max_qp", attr.max_qp, 1),
    ];
    for (what, limit, needed) in limits {
        if limit < needed {
            let device = context.device_name().into();
            return Err(WorkerError::DeviceTooSmall {
                device,
                what,
                limit,
                needed,
            });
        }
    }
    let mut fitting = config.max_endpoints.min(attr.max_qp);
    fitting = fitting
        .min(attr.max_cqe / share)
        .min(attr.max_cqe / config.send_depth);
    if srq {
        fitting = fitting.min(attr.max_srq_wr / share);
    }
    Ok(fitting)
}

impl Owner {
    /// Drives the worker, or waits for whoever does, until `done` returns true, for `timeout` at most.
    pub(crate) fn wait_for(
        self: &Arc<Self>,
        timeout: Duration,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let deadline = Deadline::after(timeout);
        let waited = self.shared.role.wait(
            || Observer::register(&self.shared),
            &deadline,
            || done().then_some(()),
            |driver| self.with_engine(driver, |engine, dispatch| engine.step(dispatch, &deadline)),
        );
        waited.map_err(|error| match error {
            adverb_progress::WaitError::WouldDeadlock => crate::WouldDeadlock.into(),
            adverb_progress::WaitError::Progress(error) => WaitError::Worker(error),
            // Its other reason is the deadline.
            _ => WaitError::Timeout(timeout),
        })
    }

    /// Polls once if nobody else drives.
    pub(crate) fn try_progress(self: &Arc<Self>) -> bool {
        let Some(mut guard) = self.shared.role.try_acquire() else {
            return false;
        };
        let polled = self.with_engine(&mut guard, |engine, dispatch| engine.poll(dispatch));
        if let Err(error) = polled {
            tracing::error!(%error, "a worker cannot make progress");
        }
        true
    }

    /// For an event loop: polls, arms and falls asleep without blocking. `None` if somebody else drives; `driver` is woken when that ends.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare_sleep(self: &Arc<Self>, driver: &Waker) -> Option<Result<Prepared, ProgressError>> {
        // Before the try, so that a release between the two is not missed.
        self.shared.role.register_driver(driver);
        let mut guard = self.shared.role.try_acquire()?;
        let prepared = self.with_engine(&mut guard, |engine, dispatch| engine.prepare_sleep(dispatch));
        guard.release_as_driver();
        Some(prepared)
    }

    /// For an event loop: ends the sleep that [`Owner::prepare_sleep`] began, unless somebody else has taken over.
    #[cfg(feature = "tokio")]
    pub(crate) fn end_sleep(&self) -> Result<(), ProgressError> {
        match self.shared.role.try_acquire() {
            Some(mut guard) => {
                let ended = guard.engine.on_ready();
                guard.release_as_driver();
                ended
            }
            None => Ok(()),
        }
    }

    /// There is no event loop any more.
    #[cfg(feature = "tokio")]
    pub(crate) fn unregister_driver(&self) {
        self.shared.role.unregister_driver();
    }

    /// Readable when there is something to do while nobody drives.
    #[cfg(feature = "tokio")]
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.shared.readiness.as_fd()
    }

    /// Whether this thread runs a handler, and so must not wait.
    pub(crate) fn is_driven_by_this_thread(&self) -> bool {
        self.shared.role.held_by_current_thread()
    }

    fn with_engine<R>(
        self: &Arc<Self>,
        driver: &mut Driver,
        run: impl FnOnce(&mut Engine, &mut Dispatch<'_>) -> R,
    ) -> R {
        let Driver { engine, scratch } = driver;
        run(engine, &mut Dispatch { owner: self, scratch })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.shut_down();
    }
}

impl Shared {
    /// Takes a place for a connection.
    pub(crate) fn take_place(&self) -> Result<Place, ConnectErrorKind> {
        let mut table = self.table.write();
        table
            .take_place()
            .ok_or(ConnectErrorKind::WorkerFull { limit: table.limit() })
    }

    /// Makes a queue pair on the worker's queues.
    pub(crate) fn create_qp(&self) -> Result<Arc<dyn Qp>, adverb_verbs::VerbsError> {
        let config = &self.config;
        let caps = |max_inline_data| QpCaps {
            max_send_wr: config.send_depth,
            max_recv_wr: if self.srq.is_some() {
                0
            } else {
                config.receives_per_endpoint()
            },
            max_send_sge: 1,
            max_recv_sge: if self.srq.is_some() { 0 } else { 1 },
            max_inline_data,
        };
        let create = |max_inline| {
            self.context.pd().create_qp(&QpInit {
                send_cq: &self.send_cq,
                recv_cq: &self.recv_cq,
                srq: self.srq.as_ref(),
                caps: caps(max_inline),
                sq_sig_all: false,
            })
        };
        // Devices refuse what they cannot do inline instead of doing less, and no attribute tells how much they can.
        create(config.max_inline).or_else(|error| {
            if config.max_inline > 0 {
                create(0)
            } else {
                Err(error)
            }
        })
    }

    /// Makes whoever waits for it look at its own condition.
    pub(crate) fn notify_observers(&self) {
        if self.observed.load(Ordering::SeqCst) > 0 {
            for observer in &*self.observers.lock() {
                observer.wake_by_ref();
            }
        }
    }

    /// The connection on this queue pair has failed.
    pub(crate) fn fail_connection(&self, qpn: Qpn, kind: EndpointErrorKind) {
        let connection = self.table.read().by_qpn(qpn).cloned();
        if let Some(connection) = connection {
            connection.fail(kind);
            self.notify_observers();
        }
    }

    /// All connections have failed.
    pub(crate) fn fail_all(&self, kind: &EndpointErrorKind) {
        let connections: Vec<_> = self.table.read().iter().cloned().collect();
        for connection in connections {
            connection.fail(kind.clone());
        }
        self.notify_observers();
    }

    /// Destroys the connection at this place.
    pub(crate) fn remove(&self, index: u32) {
        let connection = self.table.write().free_place(index);
        // Before its share of the receives goes, so that none meets an empty queue.
        if let Some(connection) = connection {
            connection.retire();
        }
        self.receives.lock().leave(index);
    }

    fn shut_down(&self) {
        self.fail_all(&EndpointErrorKind::WorkerShutDown);
        let indices: Vec<u32> = self
            .table
            .read()
            .iter()
            .map(|connection| connection.place.index)
            .collect();
        for index in indices {
            self.remove(index);
        }
    }
}

/// A registration of a thread that waits while another drives among those that hear of every bit of progress.
struct Observer<'a> {
    shared: &'a Shared,
    parking: Parking,
}

/// What a thread parks on, kept for its next wait.
#[derive(Clone)]
struct Parking {
    waiter: Waiter,
    waker: Waker,
}

struct NotifyWaiter(Waiter);

impl Wake for NotifyWaiter {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify();
    }
}

impl Parking {
    fn of_this_thread() -> Self {
        thread_local! {
            static PARKING: Parking = {
                let waiter = Waiter::new();
                Parking { waker: Waker::from(Arc::new(NotifyWaiter(waiter.clone()))), waiter }
            };
        }
        PARKING.with(Self::clone)
    }
}

impl<'a> Observer<'a> {
    fn register(shared: &'a Shared) -> Self {
        let parking = Parking::of_this_thread();
        shared.observers.lock().push(parking.waker.clone());
        shared.observed.fetch_add(1, Ordering::SeqCst);
        Self { shared, parking }
    }
}

impl AsRef<Waiter> for Observer<'_> {
    fn as_ref(&self) -> &Waiter {
        &self.parking.waiter
    }
}

impl Drop for Observer<'_> {
    fn drop(&mut self) {
        self.shared.observed.fetch_sub(1, Ordering::SeqCst);
        let mut observers = self.shared.observers.lock();
        if let Some(place) = observers
            .iter()
            .position(|other| other.will_wake(&self.parking.waker))
        {
            observers.swap_remove(place);
        }
    }
}

/// A thread that drives a worker. Dropping it stops and joins the thread.
#[derive(Debug)]
pub struct ProgressThread {
    worker: Worker,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ProgressThread {
    fn start(worker: &Worker) -> Result<Self, WorkerError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, driven) = (Arc::clone(&stop), worker.clone());
        let thread = std::thread::Builder::new()
            .name("adverb-progress".into())
            .spawn(move || {
                crate::placement::confine_near(driven.context());
                while !stopped.load(Ordering::Acquire) {
                    let waited = driven
                        .owner
                        .wait_for(Duration::MAX, || stopped.load(Ordering::Acquire));
                    if let Err(error @ WaitError::Worker(_)) = waited {
                        tracing::error!(%error, "the progress thread ends");
                        return;
                    }
                }
            });
        match thread {
            Ok(thread) => Ok(Self {
                worker: worker.clone(),
                stop,
                thread: Some(thread),
            }),
            Err(error) => Err(WorkerError::System {
                device: worker.context().device_name().into(),
                reason: format!("the progress thread could not be started: {error}"),
            }),
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.worker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the progress thread panicked");
        }
    }
}
