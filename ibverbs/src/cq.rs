//! Completion channels and completion queues.
//!
//! Destroying a completion queue blocks in libibverbs until every event that was read from its channel is acknowledged. So reading
//! an event and counting it happen under one lock, which destroying takes, too: whoever destroys sees every event that was read, and
//! acknowledges it first.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adverb_verbs::{CompChannel, CompEvent, Cq, CqInit, ErrorKind, VerbsError, WorkCompletion};

use crate::device::{Context, leak};
use crate::{convert, sys};

/// Completions taken from libibverbs at once. Few, because the array is zeroed for every poll, most of which find nothing: providers do not
/// write all fields of a failed completion, so it may not be left uninitialised.
const BATCH: usize = 8;

/// A completion channel, as users and queues hold it.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    inner: Arc<ChannelInner>,
}

struct ChannelInner {
    raw: NonNull<sys::ibv_comp_channel>,
    fd: RawFd,
    /// Held while an event is read and counted, and while a queue is destroyed.
    reading: Mutex<()>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' channels may be used by all threads at once; the rest is not changed.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: `context` holds the context open.
        let created = unsafe { sys::create_comp_channel(context.raw()) };
        let (raw, fd) = created.map_err(|error| context.error("ibv_create_comp_channel", &error))?;
        let inner = ChannelInner {
            raw,
            fd,
            reading: Mutex::new(()),
            context: Arc::clone(context),
        };
        context.set_nonblocking(fd)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl ChannelInner {
    fn lock(&self) -> MutexGuard<'_, ()> {
        // It guards no data, so that a panic under it leaves nothing half done.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ChannelInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("context", &self.context)
            .field("fd", &self.fd)
            .finish()
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: queues hold their channel, so none is left that uses it.
        if let Err(error) = unsafe { sys::destroy_comp_channel(self.raw) } {
            leak("ibv_destroy_comp_channel", &error, Arc::clone(&self.context));
        }
    }
}

// SAFETY: no memory of the caller is kept.
unsafe impl CompChannel for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the channel, which `self` holds.
        unsafe { BorrowedFd::borrow_raw(self.inner.fd) }
    }

    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError> {
        let _reading = self.inner.lock();
        // SAFETY: `self.inner` holds the channel.
        let context = unsafe { sys::get_cq_event(self.inner.raw) };
        let context = context.map_err(|error| self.inner.context.error("ibv_get_cq_event", &error))?;
        Ok(context.map(|context| {
            // SAFETY: the context of a queue of this channel is its `Events`. The queue cannot be destroyed while an event of it is
            // unacknowledged, and whoever destroys it waits for the lock that is held here.
            let events = unsafe { &*context.cast::<Events>() };
            events.unacked.fetch_add(1, Ordering::Relaxed);
            CompEvent {
                cookie: events.cookie,
            }
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What libibverbs keeps for a queue as its context: lives until the queue is destroyed.
#[derive(Debug)]
struct Events {
    cookie: u64,
    unacked: AtomicU32,
}

/// The cookie of the queue with this context.
///
/// Only for a context that came with an event that is not acknowledged yet.
pub(crate) fn cookie_of(context: *mut c_void) -> u64 {
    if context.is_null() {
        return 0;
    }
    // SAFETY: every queue of this crate has its `Events` as context, and an unacknowledged event keeps the queue from being destroyed.
    unsafe { (*context.cast::<Events>()).cookie }
}

/// A completion queue.
pub(crate) struct IbCq {
    raw: NonNull<sys::ibv_cq>,
    capacity: u32,
    events: Box<Events>,
    /// Whether the last poll found something: then the next asks for a batch.
    is_busy: AtomicBool,
    channel: Option<Channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' queues lock themselves; the rest is atomic or not changed.
unsafe impl Send for IbCq {}
// SAFETY: as above.
unsafe impl Sync for IbCq {}

impl IbCq {
    pub(crate) fn new(context: &Arc<Context>, init: &CqInit<'_>) -> Result<Self, VerbsError> {
        const VERB: &str = "ibv_create_cq";
        let channel = match init
            .channel
            .map(|channel| channel.as_any().downcast_ref::<Channel>())
        {
            None => None,
            Some(Some(channel)) if Arc::ptr_eq(&channel.inner.context, context) => Some(channel.clone()),
            Some(_) => return Err(context.refuse(VERB, ErrorKind::WrongProvider)),
        };
        let events = Box::new(Events {
            cookie: init.cookie,
            unacked: AtomicU32::new(0),
        });
        let cqe = i32::try_from(init.cqe.max(1)).unwrap_or(i32::MAX);
        let vector = i32::try_from(init.comp_vector).unwrap_or(i32::MAX);
        let cq_context = (&raw const *events).cast_mut().cast();
        let raw_channel = channel.as_ref().map(|channel| channel.inner.raw);
        // SAFETY: the context and the channel are held; `events` outlives the queue, as `Drop` destroys the queue first.
        let created = unsafe { sys::create_cq(context.raw(), cqe, cq_context, raw_channel, vector) };
        let (raw, capacity) = created.map_err(|error| context.error(VERB, &error))?;
        Ok(Self {
            raw,
            capacity,
            events,
            is_busy: AtomicBool::new(false),
            channel,
            context: Arc::clone(context),
        })
    }

    /// Polls for as many completions as there are places, which are at most `N`.
    fn poll_batch<const N: usize>(&self, places: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut wcs = sys::empty_wcs::<N>();
        let room = places.len().min(N);
        // SAFETY: `self` holds the queue.
        let polled = unsafe { sys::poll_cq(self.raw, &mut wcs[..room]) };
        let found = polled.map_err(|error| self.context.error("ibv_poll_cq", &error))?;
        for (wc, place) in wcs[..found].iter().zip(places) {
            *place = convert::work_completion(wc);
        }
        Ok(found)
    }

    /// The queue, if `cq` is one of this context.
    pub(crate) fn raw_of(cq: &Arc<dyn Cq>, context: &Arc<Context>) -> Option<NonNull<sys::ibv_cq>> {
        let cq = (**cq).as_any().downcast_ref::<Self>()?;
        Arc::ptr_eq(&cq.context, context).then_some(cq.raw)
    }
}

impl fmt::Debug for IbCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("context", &self.context)
            .field("capacity", &self.capacity)
            .field("events", &self.events)
            .finish()
    }
}

// SAFETY: completions come from libibverbs, which reports a request when the device is done with it.
unsafe impl Cq for IbCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        if !self.is_busy.load(Ordering::Relaxed) {
            // Most polls find nothing, and for them an array of zeroed completions would cost more than the poll. A completion that comes alone is handed
            // over before another look.
            let found = self.poll_batch::<1>(out)?;
            self.is_busy.store(found > 0, Ordering::Relaxed);
            return Ok(found);
        }
        let mut taken = 0;
        for places in out.chunks_mut(BATCH) {
            let found = match self.poll_batch::<BATCH>(places) {
                Ok(found) => found,
                Err(error) if taken == 0 => return Err(error),
                // What was taken must not get lost: the queue stays in error, which the next call says.
                Err(_) => 0,
            };
            taken += found;
            if found < BATCH {
                break;
            }
        }
        self.is_busy.store(taken > 0, Ordering::Relaxed);
        Ok(taken)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // SAFETY: `self` holds the queue.
        let armed = unsafe { sys::req_notify_cq(self.raw, solicited_only) };
        armed.map_err(|error| self.context.error("ibv_req_notify_cq", &error))
    }

    fn unacked_events(&self) -> u32 {
        self.events.unacked.load(Ordering::Relaxed)
    }

    fn ack_events(&self) {
        let events = self.events.unacked.swap(0, Ordering::Relaxed);
        if events > 0 {
            // SAFETY: `self` holds the queue, and so many events were taken and not acknowledged.
            unsafe { sys::ack_cq_events(self.raw, events) };
        }
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for IbCq {
    fn drop(&mut self) {
        // Nobody reads events between here and the end of the queue.
        let reading = self.channel.as_ref().map(|channel| channel.inner.lock());
        self.ack_events();
        // SAFETY: queue pairs hold their queues, so none is left that uses it.
        let destroyed = unsafe { sys::destroy_cq(self.raw) };
        drop(reading);
        if let Err(error) = destroyed {
            // libibverbs may still hand out its context.
            let unused = Events {
                cookie: 0,
                unacked: AtomicU32::new(0),
            };
            let events = mem::replace(&mut self.events, Box::new(unused));
            leak(
                "ibv_destroy_cq",
                &error,
                (events, self.channel.clone(), Arc::clone(&self.context)),
            );
        }
    }
}
