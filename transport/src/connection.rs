//! A connection as its worker keeps it: the protocol core, the send queue, and who waits for what.

mod one_sided;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use adverb_proto::{self as proto, Event, GoodbyeReason, Outcome, Outgoing, Phase, Received, Urgency};
use adverb_verbs::{
    Buffer, Pd, QpModify, RemoteAddr, Rkey, SendFlags, SendOp, SendQueue, SendRequest, SlotPool, WcStatus,
    WorkCompletion,
};
use parking_lot::Mutex;

use crate::awaited::{Answer, Awaited, Unanswered};
use crate::endpoint::Handle;
use crate::outbox::Outbox;
use crate::rma::{Ledger, Limits, Tag};
use crate::signals::Signals;
use crate::table::Place;
use crate::{EndpointError, EndpointErrorKind, EndpointStats, LinkInfo, SendError};

/// How long a connection that has ended waits for its sends to be flushed before its queue pair is destroyed all the same.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Names a request that completes no message.
const NO_MESSAGE: u64 = 0;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its place in the worker's table.
    pub(crate) place: Place,
    pub(crate) link: LinkInfo,
    /// Whether it has left its worker's table.
    left: AtomicBool,
    /// Whether messages can be sent, for who asks between turns.
    open: AtomicBool,
    state: Mutex<State>,
    send_pool: SlotPool,
    pd: Arc<dyn Pd>,
    /// What one-sided operations may do.
    limits: Limits,
    signals: Arc<Signals>,
    signal_every: u32,
    max_inline: usize,
    /// Requests that the send queue takes.
    depth: usize,
}

/// What a connection is made from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) place: Place,
    pub(crate) link: LinkInfo,
    pub(crate) core: proto::Endpoint,
    pub(crate) queue: SendQueue,
    pub(crate) send_pool: SlotPool,
    pub(crate) pd: Arc<dyn Pd>,
    pub(crate) limits: Limits,
    pub(crate) signals: Arc<Signals>,
    pub(crate) signal_every: u32,
}

/// What the lock of a connection guards. No other connection's send takes it.
#[derive(Debug)]
struct State {
    core: proto::Endpoint,
    /// What programs hold of it. When that goes, the connection closes.
    handle: Weak<Handle>,
    /// `None` once the connection has left its worker: its queue pair is destroyed.
    queue: Option<SendQueue>,
    /// When the clock was looked at for it last.
    looked: Instant,
    /// Requests on their way to the device; empty between calls, kept for its memory.
    requests: Vec<SendRequest>,
    /// Memory for a segment that goes inline; `None` while the device cannot do that, or a request has it.
    inline: Option<Box<[u8]>>,
    /// Requests since the last signaled one.
    unsignaled: u32,
    /// Messages posted whole.
    posted: u64,
    /// Messages for which a completion will come by itself.
    signaled: u64,
    /// Messages that the peer's device has.
    sent: u64,
    /// Whether something waits for a send slot, of which the worker had none.
    starved: bool,
    /// Whether it is counted as busy.
    busy: bool,
    /// Why the peer closes, once it said so.
    peer_reason: Option<GoodbyeReason>,
    /// Why it has ended.
    ended: Option<EndpointErrorKind>,
    /// When its queue pair is destroyed even if sends are still outstanding.
    drained_by: Option<Instant>,
    /// Whether its queue pair was moved to ERR.
    flushing: bool,
    /// Whether the request that is flushed last was posted.
    marked: bool,
    /// Requests that wait for their answers.
    awaited: Awaited,
    /// The one-sided operations.
    one_sided: Ledger,
    /// Memory for what atomics bring; `None` before the first.
    words: Option<SlotPool>,
    /// Whether what is posted next waits for the gets and atomics before it.
    fence: bool,
    /// Who waits for room in the send queue.
    slot_waiters: Vec<Waker>,
    /// Who waits for which message to be sent.
    send_waiters: BTreeMap<u64, Waker>,
    /// Who waits for room to send more.
    room_waiters: Vec<Waker>,
    /// Who waits for it to open or to end.
    waiters: Vec<Waker>,
}

/// What a received segment means for the worker.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// A message in the segment's slot, which is not free.
    InSlot(proto::Incoming, Option<Arc<Handle>>),
    /// A message with memory of its own; the slot is free.
    Assembled(proto::Assembled, Option<Arc<Handle>>),
    /// A fragment; the slot is free.
    Fragment,
    /// A control message, or nothing; the slot is free.
    Control,
}

impl Connection {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            place,
            link,
            core,
            queue,
            send_pool,
            pd,
            limits,
            signals,
            signal_every,
        } = parts;
        let depth = queue.free();
        let max_inline = queue.max_inline() as usize;
        let state = State {
            core,
            handle: Weak::new(),
            requests: Vec::with_capacity(depth),
            queue: Some(queue),
            looked: Instant::now(),
            // The core asks for room for any header.
            inline: (max_inline > adverb_wire::Header::MAX_LEN)
                .then(|| vec![0; max_inline].into_boxed_slice()),
            unsignaled: 0,
            posted: 0,
            signaled: 0,
            sent: 0,
            starved: false,
            busy: false,
            peer_reason: None,
            ended: None,
            drained_by: None,
            flushing: false,
            marked: false,
            awaited: Awaited::default(),
            one_sided: Ledger::default(),
            words: None,
            fence: false,
            slot_waiters: Vec::new(),
            send_waiters: BTreeMap::new(),
            room_waiters: Vec::new(),
            waiters: Vec::new(),
        };
        Self {
            place,
            link,
            left: AtomicBool::new(false),
            open: AtomicBool::new(false),
            state: Mutex::new(state),
            send_pool,
            pd,
            limits,
            signals,
            // One in half the queue at least, or a full queue would never be told that it has room.
            signal_every: signal_every.clamp(1, (depth as u32 / 2).max(1)),
            max_inline,
            depth,
        }
    }

    /// Says what programs hold of it.
    pub(crate) fn held_by(&self, handle: Weak<Handle>) {
        self.state.lock().handle = handle;
    }

    /// It is not in its worker's table any more.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Whether it is not in its worker's table any more.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Takes a message and returns its number.
    pub(crate) fn send(&self, message: &Outgoing<'_>) -> Result<u64, SendError> {
        let seq = self.send_locked(&mut self.state.lock(), message)?;
        self.signals.work_posted();
        Ok(seq)
    }

    /// Takes a request and returns its number. Its answer is kept until it is taken or the request cancelled.
    pub(crate) fn request(&self, message: &Outgoing<'_>) -> Result<u64, SendError> {
        let mut state = self.state.lock();
        let seq = self.send_locked(&mut state, message)?;
        // Before the lock is let go, under which the answer is taken in.
        state.awaited.insert(seq);
        drop(state);
        self.signals.work_posted();
        Ok(seq)
    }

    fn send_locked(&self, state: &mut State, message: &Outgoing<'_>) -> Result<u64, SendError> {
        if let Some(kind) = &state.ended {
            return Err(SendError::Ended {
                outcome: Outcome::NotSent,
                error: self.error(kind.clone()),
            });
        }
        // How long segments went unsolicited matters for bulk alone.
        let now = match message.urgency {
            Urgency::Latency => state.looked,
            Urgency::Bulk => Instant::now(),
        };
        self.with_outbox(state, |core, outbox| core.send(now, message, outbox))
            .map_err(|error| self.send_error(error))
    }

    /// Takes the peer's answer to a request.
    pub(crate) fn answered(&self, to: u32, answer: Answer) {
        let taken = self.state.lock().awaited.answer(to, answer);
        match taken {
            Ok(Some(waker)) => waker.wake(),
            Ok(None) => {}
            // Nobody waits for it any more. It goes without the lock, as its memory does not go alone.
            Err(unwanted) => drop(unwanted),
        }
    }

    /// Takes the answer to request `seq`, if it has come. Else says how the request stands, with `waker` woken when that changes, or why it can get none.
    pub(crate) fn take_answer(
        &self,
        seq: u64,
        waker: Option<&Waker>,
    ) -> Result<Answer, Result<Unanswered, SendError>> {
        let mut state = self.state.lock();
        let unanswered = match state.awaited.take(seq, waker) {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => unanswered,
        };
        match state.ended.clone() {
            Some(kind) if unanswered == Unanswered::Waiting => {
                state.awaited.cancel(seq);
                let outcome = state.core.outcome(seq);
                drop(state);
                Err(Err(SendError::Ended {
                    outcome,
                    error: self.error(kind),
                }))
            }
            _ => Err(Ok(unanswered)),
        }
    }

    /// Nobody waits for the answer to request `seq` any more.
    pub(crate) fn cancel_request(&self, seq: u64) {
        let answer = self.state.lock().awaited.cancel(seq);
        drop(answer);
    }

    /// Request `seq` waits until `deadline` at most.
    pub(crate) fn set_deadline(&self, seq: u64, deadline: Instant) {
        if self.state.lock().awaited.set_deadline(seq, deadline) {
            self.signals.timers_changed();
        }
    }

    fn send_error(&self, error: proto::SendError) -> SendError {
        let peer = self.link.peer;
        let ended = |kind| SendError::Ended {
            outcome: Outcome::NotSent,
            error: self.error(kind),
        };
        match error {
            proto::SendError::WouldBlock => SendError::WouldBlock { peer },
            proto::SendError::PeerClosed(reason) => ended(EndpointErrorKind::PeerClosed(reason)),
            proto::SendError::NotOpen => ended(EndpointErrorKind::Closed),
            reason => SendError::Invalid { peer, reason },
        }
    }

    /// Sends whatever may be sent now.
    pub(crate) fn transmit(&self) {
        self.transmit_locked(&mut self.state.lock(), Instant::now());
        self.signals.work_posted();
    }

    /// `now` may be the coarse clock's.
    fn transmit_locked(&self, state: &mut State, now: Instant) {
        if state.ended.is_some() {
            return;
        }
        let now = if state.core.queued_bytes() > 0 {
            Instant::now()
        } else {
            now
        };
        self.with_outbox(state, |core, outbox| core.transmit(now, outbox));
        if !state.room_waiters.is_empty() && state.core.has_room() {
            wake_all(&mut state.room_waiters);
        }
        self.take_events(state);
    }

    /// Whether there is room to send more, or why there never will be. If neither, `waker` is woken when that changes.
    pub(crate) fn ready(&self, waker: Option<&Waker>) -> Option<Result<(), SendError>> {
        let mut state = self.state.lock();
        if let Some(kind) = state.ended.clone() {
            let outcome = Outcome::NotSent;
            return Some(Err(SendError::Ended {
                outcome,
                error: self.error(kind),
            }));
        }
        if state.core.has_room() {
            return Some(Ok(()));
        }
        if let Some(reason) = state.peer_reason {
            return Some(Err(self.send_error(proto::SendError::PeerClosed(reason))));
        }
        if state.core.phase() != Phase::Open {
            return Some(Err(self.send_error(proto::SendError::NotOpen)));
        }
        if let Some(waker) = waker {
            add_waker(&mut state.room_waiters, waker);
        }
        None
    }

    /// Lends slots to the protocol core and posts what it writes into them, as one list.
    fn with_outbox<R>(
        &self,
        state: &mut State,
        write: impl FnOnce(&mut proto::Endpoint, &mut Outbox<'_>) -> R,
    ) -> R {
        let room = state.queue.as_ref().map_or(0, SendQueue::free);
        let mut outbox = Outbox {
            pool: &self.send_pool,
            requests: &mut state.requests,
            inline: &mut state.inline,
            lent: None,
            room,
            max_inline: self.max_inline,
            starved: false,
        };
        let result = write(&mut state.core, &mut outbox);
        outbox.give_back();
        state.starved = outbox.starved;
        if state.starved {
            self.signals.starved();
        }
        self.post(state);
        result
    }

    /// Chooses which of the collected requests are signaled, and posts them.
    fn post(&self, state: &mut State) {
        let (Some(last), Some(queue)) = (state.requests.len().checked_sub(1), &mut state.queue) else {
            return;
        };
        // The device begins requests in order: those behind the first wait with it.
        if std::mem::take(&mut state.fence) {
            state.requests[0].flags |= SendFlags::FENCE;
        }
        // Nobody else would tell a waiter, or a closing connection, that its last request is done.
        let wanted = !state.send_waiters.is_empty() || state.core.phase() == Phase::Closed;
        for (i, request) in state.requests.iter_mut().enumerate() {
            state.unsignaled += 1;
            if Tag::of(request.cookie).is_none() {
                state.posted = state.posted.max(request.cookie);
            }
            // A slot that no signaled request follows would not come back. Inline data needs none.
            let holds_slot = !request.flags.contains(SendFlags::INLINE) && !request.buffers.is_empty();
            if state.unsignaled >= self.signal_every || i == last && (wanted || holds_slot) {
                request.flags |= SendFlags::SIGNALED;
            }
            if request.flags.contains(SendFlags::SIGNALED) {
                state.unsignaled = 0;
                state.signaled = state.posted;
            }
        }
        if !state.busy {
            // Before the post, so that a worker about to sleep sees it.
            state.busy = true;
            self.signals.set_busy(true);
        }
        let inline = &mut state.inline;
        let posted = queue.post_with(&mut state.requests, |spent| *inline = spent.into_unregistered());
        if let Err(error) = posted {
            state.requests.clear();
            self.fail_locked(state, EndpointErrorKind::Post(error.source));
        }
    }

    /// Posts a zero-byte RDMA WRITE: as a keepalive probe, or signaled to learn that all before it arrived.
    fn post_probe(&self, state: &mut State, flags: SendFlags) {
        if state.queue.as_ref().is_none_or(|queue| queue.free() == 0) {
            // A full queue has signaled requests in it, and tells by itself whether the peer is there.
            return;
        }
        state.requests.push(probe(flags));
        self.post(state);
    }

    /// Takes a segment that the device received. With a message comes what programs hold of the connection, if they hold anything.
    pub(crate) fn receive(&self, now: Instant, bytes: &[u8]) -> Delivery {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return Delivery::Control;
        }
        state.looked = now;
        let received = state.core.receive(now, bytes);
        let acked = state.core.acked();
        advance(&mut state, acked);
        self.take_events(&mut state);
        match received {
            Ok(Received::Message(incoming)) => Delivery::InSlot(incoming, state.handle.upgrade()),
            Ok(Received::Assembled(assembled)) => Delivery::Assembled(assembled, state.handle.upgrade()),
            Ok(Received::Fragment) => Delivery::Fragment,
            // An error has become an event, which was taken above.
            Ok(_) | Err(_) => Delivery::Control,
        }
    }

    /// Receives were posted again: so many of data segments, and of control messages. Sends what became possible or due by it.
    pub(crate) fn returned(&self, now: Instant, data: u32, control: u32) {
        let mut state = self.state.lock();
        (0..data).for_each(|_| state.core.returned(true));
        (0..control).for_each(|_| state.core.returned(false));
        self.transmit_locked(&mut state, now);
    }

    /// Takes a completion of the send queue.
    pub(crate) fn sent(&self, now: Instant, wc: &WorkCompletion) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut sent = state.sent;
        let mut failed = None;
        let Some(queue) = &mut state.queue else { return };
        let one_sided = &mut state.one_sided;
        let retired = queue.complete(wc, |retired| {
            let succeeded = retired.status == WcStatus::Success;
            if !succeeded {
                failed = Some((retired.status, retired.cookie));
            }
            match Tag::of(retired.cookie) {
                Some(tag) => {
                    let word = retired.buffers.first().and_then(Buffer::word);
                    one_sided.settle(tag, succeeded, word);
                }
                None if succeeded => sent = sent.max(retired.cookie),
                None => {}
            }
        });
        if retired == 0 {
            return;
        }
        if queue.in_flight() == 0 && state.busy {
            state.busy = false;
            self.signals.set_busy(false);
            if state.ended.is_some() {
                self.signals.timers_changed();
                wake_all(&mut state.waiters);
            }
        }
        advance(state, sent);
        if state.ended.is_some() {
            self.mark_end(state);
            return;
        }
        match failed {
            Some((status, cookie)) => {
                let operation = match Tag::of(cookie) {
                    Some(tag) => tag.kind.operation(),
                    None if cookie == NO_MESSAGE => "reaching the peer",
                    None => "sending a message",
                };
                let vendor_err = wc.vendor_err;
                self.fail_locked(
                    state,
                    EndpointErrorKind::Completion {
                        operation,
                        status,
                        vendor_err,
                    },
                );
            }
            None => {
                state.core.alive(now);
                self.transmit_locked(state, now);
                if one_sided::has_slot(state) {
                    wake_all(&mut state.slot_waiters);
                }
            }
        }
    }

    /// What it has done so far.
    pub(crate) fn stats(&self) -> EndpointStats {
        let state = self.state.lock();
        let core = &state.core;
        EndpointStats {
            messages_sent: core.messages(),
            messages_at_peer: state.sent,
            messages_acked: core.acked(),
            messages_received: core.received(),
            one_sided_posted: state.one_sided.posted(),
            requests_waiting: state.awaited.len(),
            queued_bytes: core.queued_bytes(),
            credits: core.credits(),
            sends_outstanding: state.queue.as_ref().map_or(0, SendQueue::in_flight),
        }
    }

    /// A receive of this connection failed.
    pub(crate) fn receive_failed(&self, wc: &WorkCompletion) {
        let (status, vendor_err) = (wc.status, wc.vendor_err);
        self.fail(EndpointErrorKind::Completion {
            operation: "receiving a message",
            status,
            vendor_err,
        });
    }

    /// Tries again if there was no send slot last time.
    pub(crate) fn retry_if_starved(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let starved = state.starved;
        if starved {
            self.transmit_locked(&mut state, now);
        }
        starved && state.starved
    }

    fn take_events(&self, state: &mut State) {
        while let Some(event) = state.core.poll_event() {
            // Each begins or ends something that has a deadline.
            self.signals.timers_changed();
            match event {
                Event::Opened => wake_all(&mut state.waiters),
                Event::PeerClosing(reason) => {
                    state.peer_reason = Some(reason);
                    // Nothing more can be sent.
                    wake_all(&mut state.room_waiters);
                    wake_all(&mut state.slot_waiters);
                }
                Event::Closed => {
                    let kind = state
                        .peer_reason
                        .map_or(EndpointErrorKind::Closed, EndpointErrorKind::PeerClosed);
                    self.end(state, kind);
                    if state.peer_reason.is_none() {
                        // The peer's answer proves that it has everything. If the answer is ours, it must get there first.
                        self.flush(state);
                    }
                }
                Event::Failed(reason) => self.fail_locked(state, EndpointErrorKind::Protocol(reason)),
                // The core knows no other event in this version.
                _ => {}
            }
            self.note_open(state);
        }
    }

    fn note_open(&self, state: &State) {
        let open = state.ended.is_none() && state.core.phase() == Phase::Open;
        self.open.store(open, Ordering::Release);
    }

    /// Begins an orderly close.
    pub(crate) fn close(&self, reason: GoodbyeReason) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.core.close(now, reason);
        self.note_open(&state);
        wake_all(&mut state.room_waiters);
        wake_all(&mut state.slot_waiters);
        self.transmit_locked(&mut state, now);
        drop(state);
        // The close has a deadline.
        self.signals.timers_changed();
    }

    /// Ends the connection with an error, unless it has ended already.
    pub(crate) fn fail(&self, kind: EndpointErrorKind) {
        self.fail_locked(&mut self.state.lock(), kind);
    }

    fn fail_locked(&self, state: &mut State, kind: EndpointErrorKind) {
        if state.ended.is_some() {
            return;
        }
        match &kind {
            EndpointErrorKind::Aborted | EndpointErrorKind::WorkerShutDown => {}
            // Whoever holds the endpoint is told, and would tell it once more.
            kind if state.handle.strong_count() > 0 => {
                tracing::debug!(link = %self.link, error = %kind, "an endpoint failed");
            }
            kind => tracing::warn!(link = %self.link, error = %kind, "an endpoint failed"),
        }
        state.core.abort();
        self.end(state, kind);
        self.flush(state);
    }

    /// Nothing more is sent or handed out; what is left is to let the queue pair run dry.
    fn end(&self, state: &mut State, kind: EndpointErrorKind) {
        state.ended = Some(kind);
        state.drained_by = Some(Instant::now() + DRAIN_TIMEOUT);
        self.note_open(state);
        for (_, waker) in std::mem::take(&mut state.send_waiters) {
            waker.wake();
        }
        state.awaited.wake_all();
        wake_all(&mut state.room_waiters);
        wake_all(&mut state.slot_waiters);
        wake_all(&mut state.waiters);
        self.signals.timers_changed();
    }

    /// Moves the queue pair to ERR, which flushes what is outstanding.
    fn flush(&self, state: &mut State) {
        let Some(queue) = &state.queue else { return };
        if let Err(error) = queue.qp().modify(&QpModify::Err) {
            tracing::debug!(%error, link = %self.link, "a queue pair could not be moved to ERR");
        }
        state.flushing = true;
        self.mark_end(state);
    }

    /// Posts a last request behind all others, whose completion tells that the device is done with them. Unsignaled ones that
    /// had succeeded before the queue pair was moved to ERR tell nothing by themselves.
    fn mark_end(&self, state: &mut State) {
        let Some(queue) = &mut state.queue else { return };
        if !state.flushing || state.marked || queue.in_flight() == 0 || queue.free() == 0 {
            return;
        }
        state.marked = true;
        state.requests.push(probe(SendFlags::SIGNALED));
        if let Err(error) = queue.post(&mut state.requests) {
            // Some devices refuse posts in ERR. The drain's time limit stands.
            tracing::debug!(%error, link = %self.link, "the end of a send queue could not be marked");
            state.requests.clear();
        }
    }

    /// When [`Connection::on_timer`] is due.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        let state = self.state.lock();
        match &state.ended {
            None => [state.core.poll_timeout(), state.awaited.next_deadline()]
                .into_iter()
                .flatten()
                .min(),
            Some(_) if is_drained(&state) => state.drained_by.map(|time| time - DRAIN_TIMEOUT),
            Some(_) => state.drained_by,
        }
    }

    /// Does what is due by `now`. Returns whether the connection is over and its queue pair can be destroyed.
    pub(crate) fn on_timer(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return is_drained(&state) || state.drained_by.is_none_or(|time| now >= time);
        }
        state.awaited.expire(now);
        state.core.handle_timeout(now);
        if state.core.take_probe() {
            // Not signaled: that it arrived is no news, and if it does not, there will be an error all the same.
            self.post_probe(&mut state, SendFlags::empty());
        }
        self.take_events(&mut state);
        false
    }

    /// It leaves its worker: destroys the queue pair, unless somebody else holds it.
    pub(crate) fn retire(&self) {
        let mut state = self.state.lock();
        let queue = state.queue.take();
        if std::mem::take(&mut state.busy) {
            self.signals.set_busy(false);
        }
        drop(state);
        // Before who waits for the end of an operation hears of it: that the device is done with its memory.
        drop(queue);
        let mut state = self.state.lock();
        state.one_sided.settle_all();
        wake_all(&mut state.waiters);
    }

    /// Whether it has been confirmed both ways; an error if it ended first.
    pub(crate) fn opened(&self) -> Option<Result<(), EndpointError>> {
        let state = self.state.lock();
        match &state.ended {
            Some(kind) => Some(Err(self.error(kind.clone()))),
            None => (state.core.phase() != Phase::Opening).then_some(Ok(())),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Why it has ended, if it has. While the answer to the peer's goodbye is on its way it has not: whoever hears of the end may end the
    /// process, and the answer with it.
    pub(crate) fn ended(&self) -> Option<EndpointError> {
        let state = self.state.lock();
        let answering = !state.flushing && !is_drained(&state);
        let kind = state.ended.clone().filter(|_| !answering);
        drop(state);
        kind.map(|kind| self.error(kind))
    }

    /// Why it has ended, if it has; else `waker` is woken when it does.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> Option<EndpointError> {
        self.wake_when_changed(waker);
        self.ended()
    }

    /// Wakes `waker` when the connection opens or ends.
    pub(crate) fn wake_when_changed(&self, waker: &Waker) {
        add_waker(&mut self.state.lock().waiters, waker);
    }

    /// Whether message `seq` is at the peer, or never will be.
    pub(crate) fn sent_result(&self, seq: u64) -> Option<Result<(), SendError>> {
        self.sent_result_locked(&self.state.lock(), seq)
    }

    fn sent_result_locked(&self, state: &State, seq: u64) -> Option<Result<(), SendError>> {
        if seq < state.sent {
            return Some(Ok(()));
        }
        let kind = state.ended.clone()?;
        match state.core.outcome(seq) {
            Outcome::Delivered => Some(Ok(())),
            outcome => Some(Err(SendError::Ended {
                outcome,
                error: self.error(kind),
            })),
        }
    }

    /// Like [`Connection::sent_result`]; if there is no result yet, `waker` is woken when there is, and the device is asked to tell.
    pub(crate) fn poll_sent(&self, seq: u64, waker: &Waker) -> Option<Result<(), SendError>> {
        let mut state = self.state.lock();
        let result = self.sent_result_locked(&state, seq);
        if result.is_none() {
            state.send_waiters.insert(seq, waker.clone());
            self.ask_for_completion(&mut state, seq);
            drop(state);
            self.signals.work_posted();
        }
        result
    }

    /// Sees to it that a completion will tell when message `seq` is at the peer.
    fn ask_for_completion(&self, state: &mut State, seq: u64) {
        if seq < state.posted && seq >= state.signaled {
            self.post_probe(state, SendFlags::SIGNALED);
        }
    }

    pub(crate) fn error(&self, kind: EndpointErrorKind) -> EndpointError {
        EndpointError {
            link: Box::new(self.link.clone()),
            kind,
        }
    }
}

/// A zero-byte RDMA WRITE: reaches the peer's device and wakes nobody.
fn probe(flags: SendFlags) -> SendRequest {
    let nowhere = RemoteAddr {
        addr: 0,
        rkey: Rkey::new(0),
    };
    SendRequest::new(SendOp::Write(nowhere))
        .cookie(NO_MESSAGE)
        .flags(flags)
}

fn is_drained(state: &State) -> bool {
    state.queue.as_ref().is_none_or(|queue| queue.in_flight() == 0)
}

/// All messages below `sent` are at the peer: wakes who waits for them.
fn advance(state: &mut State, sent: u64) {
    state.sent = state.sent.max(sent);
    while let Some(entry) = state.send_waiters.first_entry()
        && *entry.key() < state.sent
    {
        entry.remove().wake();
    }
}

fn add_waker(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|other| other.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

fn wake_all(wakers: &mut Vec<Waker>) {
    wakers.drain(..).for_each(Waker::wake);
}
