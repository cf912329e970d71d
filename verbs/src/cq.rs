//! Completion queues and the channels that wake who waits for them.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{VerbsError, WorkCompletion};

/// An event that a completion queue sent to its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompEvent {
    /// The cookie that the completion queue was created with. The queue may be gone by now.
    pub cookie: u64,
}

/// A completion channel: a file descriptor that becomes readable when an armed completion queue has news
/// (`ibv_create_comp_channel(3)`).
///
/// # Safety
/// An implementation must not touch memory of its caller after a call returned.
pub unsafe trait CompChannel: Any + Debug + Send + Sync {
    /// Becomes readable when an event waits. Never blocks: the provider sets it non-blocking.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes one event, if there is one, and counts it as unacknowledged at its completion queue
    /// (`ibv_get_cq_event(3)`). Call until it returns `None`: edge-triggered pollers rely on it.
    ///
    /// # Errors
    /// [`VerbsError`] if the channel cannot be read.
    fn next_event(&self) -> Result<Option<CompEvent>, VerbsError>;

    /// The concrete channel, so that its provider can find it again.
    fn as_any(&self) -> &dyn Any;
}

/// What a completion queue is created with (`ibv_create_cq(3)`).
#[derive(Clone, Debug)]
#[must_use]
pub struct CqInit<'a> {
    /// Entries that must fit at least.
    pub cqe: u32,
    /// The channel that gets its events, if somebody wants to sleep.
    pub channel: Option<&'a Arc<dyn CompChannel>>,
    /// The completion vector, less than [`crate::Device::num_comp_vectors`].
    pub comp_vector: u32,
    /// Names the queue in its events.
    pub cookie: u64,
}

impl<'a> CqInit<'a> {
    /// A queue of at least `cqe` entries, on vector 0, that wakes nobody.
    pub fn new(cqe: u32) -> Self {
        Self {
            cqe,
            channel: None,
            comp_vector: 0,
            cookie: 0,
        }
    }

    /// Sends the queue's events to `channel`.
    pub fn channel(mut self, channel: &'a Arc<dyn CompChannel>) -> Self {
        self.channel = Some(channel);
        self
    }

    /// Puts the queue's interrupts on `comp_vector`.
    pub fn comp_vector(mut self, comp_vector: u32) -> Self {
        self.comp_vector = comp_vector;
        self
    }

    /// Names the queue in its events.
    pub fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }
}

/// A completion queue.
///
/// Dropping the last handle acknowledges what is left to acknowledge and destroys the queue; it does not block on
/// events that were read.
///
/// # Safety
/// An implementation reports a work request as complete only when the device will not touch its memory again.
pub unsafe trait Cq: Any + Debug + Send + Sync {
    /// Takes up to `out.len()` completions, oldest first, and says how many (`ibv_poll_cq(3)`).
    ///
    /// Only none at all means that the queue was empty: an implementation may hand over the first ones before it looks for more.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue itself is in error; it then stays so.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError>;

    /// Asks for one event: at the next completion, or with `solicited_only` at the next one that is solicited or in error
    /// (`ibv_req_notify_cq(3)`). A completion that is in the queue already raises none: poll again after arming.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError>;

    /// Events taken from the channel and not acknowledged yet.
    fn unacked_events(&self) -> u32;

    /// Acknowledges all events taken so far in one go (`ibv_ack_cq_events(3)`: it takes a lock, so do it in batches).
    fn ack_events(&self);

    /// Entries that fit, which is at least what was asked for.
    fn capacity(&self) -> u32;

    /// The concrete queue, so that its provider can find it again.
    fn as_any(&self) -> &dyn Any;
}
