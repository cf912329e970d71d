//! What is done with completions: the work of whoever holds the progress role.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use adverb_progress::{Handler, Queue};
use adverb_proto::Role;
use adverb_verbs::{Slot, WcStatus, WorkCompletion, WrId};
use arc_swap::{ArcSwap, Cache};
use arrayvec::ArrayVec;

use crate::clock::Clock;
use crate::connection::{Connection, Delivery};
use crate::endpoint::Handle;
use crate::handlers::Handlers;
use crate::table::{Place, Table};
use crate::worker::Owner;
use crate::{Config, Endpoint, EndpointErrorKind, Message, RefusalReason, Request};

/// Completions handled under one look at the receive queue.
const BATCH: usize = 32;

/// What the holder of the role keeps between passes.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// The handlers, as they were when a message came last.
    handlers: CachedHandlers,
    clock: Clock,
    /// Slots to post again.
    returning: Vec<Returning>,
    /// How many of them are posted at the latest, as one list. Fewer wait until there is nothing else to do: they are an eighth of what a peer may have
    /// under way at most, and nobody waits for them.
    post_at: usize,
    /// Slots to post again for one connection.
    slots: Vec<Slot>,
    /// Slots of messages that handlers dropped.
    dropped: Vec<(Slot, Place)>,
    /// The connection that something came for last: most often the next is for the same.
    recent: Option<Arc<Connection>>,
    /// When the earliest timer of a connection is due.
    next_timer: Option<Instant>,
}

/// A receive on its way back to the device.
#[derive(Debug)]
struct Returning {
    slot: Slot,
    /// Whose it was; `None` if that has left.
    place: Option<Place>,
    /// Whether it took a data credit; `None` if it took none at all.
    data: Option<bool>,
}

type CachedHandlers = Cache<Arc<ArcSwap<Handlers>>, Arc<Handlers>>;

impl Scratch {
    pub(crate) fn new(handlers: Arc<ArcSwap<Handlers>>, config: &Config) -> Self {
        Self {
            handlers: Cache::new(handlers),
            clock: Clock::new(),
            post_at: (config.window as usize / 8).max(1),
            returning: Vec::with_capacity(2 * BATCH),
            slots: Vec::with_capacity(2 * BATCH),
            dropped: Vec::with_capacity(2 * BATCH),
            recent: None,
            next_timer: None,
        }
    }
}

/// Handles completions for a worker.
pub(crate) struct Dispatch<'a> {
    pub(crate) owner: &'a Arc<Owner>,
    pub(crate) scratch: &'a mut Scratch,
}

impl Handler for Dispatch<'_> {
    fn handle(&mut self, queue: Queue, completions: &[WorkCompletion]) {
        let now = self.scratch.clock.now();
        match queue {
            Queue::Recv => self.received(now, completions),
            Queue::Send => self.sent(now, completions),
        }
        self.take_returned();
        let Scratch {
            returning, post_at, ..
        } = &*self.scratch;
        // With a control message's receive goes back what the peer needs to send another.
        if returning.len() >= *post_at || returning.iter().any(|returning| returning.data != Some(true)) {
            self.post_returning(now);
        }
        self.owner.shared.notify_observers();
    }

    fn on_timer(&mut self, now: Instant) {
        let shared = &self.owner.shared;
        self.take_returned();
        self.post_returning(now);
        // Taken first, so that what changes from here on is looked at again.
        let changed = shared.signals.take_timers_changed();
        if !changed && self.scratch.next_timer.is_none_or(|timer| timer > now) {
            return;
        }
        let connections: Vec<_> = shared.table.read().iter().cloned().collect();
        let mut next: Option<Instant> = None;
        for connection in connections {
            if connection.timeout().is_some_and(|time| time <= now) && connection.on_timer(now) {
                shared.remove(connection.place.index);
                continue;
            }
            next = [next, connection.timeout()].into_iter().flatten().min();
        }
        self.scratch.next_timer = next;
        shared.notify_observers();
    }

    fn outstanding_sends(&self) -> bool {
        self.owner.shared.signals.is_busy()
    }

    fn next_timer(&self) -> Option<Instant> {
        let shared = &self.owner.shared;
        // Something changed, or waits for this: due at once, which is what a moment in the past says.
        if shared.signals.timers_pending()
            || shared.returns.is_pending()
            || !self.scratch.returning.is_empty()
        {
            return Some(shared.epoch);
        }
        self.scratch.next_timer
    }
}

impl Dispatch<'_> {
    fn received(&mut self, now: Instant, completions: &[WorkCompletion]) {
        let mut dropped = mem::take(&mut self.scratch.dropped);
        let collecting = self.owner.shared.returns.collect(&mut dropped);
        for batch in completions.chunks(BATCH) {
            let mut received: ArrayVec<_, BATCH> = ArrayVec::new();
            {
                let mut receives = self.owner.shared.receives.lock();
                received.extend(batch.iter().filter_map(|wc| Some((wc, receives.complete(wc)?))));
            }
            for (wc, received) in received.drain(..) {
                let qpn = wc.qp_num;
                let connection = self.connection(
                    |connection| connection.link.local.qpn == qpn,
                    |table| table.by_qpn(qpn),
                );
                let Some(connection) = connection else {
                    // A late completion of a connection that has left.
                    self.give_back(None, received.slot, None);
                    continue;
                };
                if wc.status == WcStatus::Success {
                    self.deliver(now, &connection, received.slot, received.len);
                } else {
                    connection.receive_failed(wc);
                    self.give_back(Some(connection.place), received.slot, None);
                }
                self.scratch.recent = Some(connection);
            }
        }
        drop(collecting);
        self.scratch.dropped = dropped;
    }

    /// The connection that `is` is true of: the recent one, or what `find` finds. To be made the recent one again afterwards.
    fn connection(
        &mut self,
        is: impl FnOnce(&Connection) -> bool,
        find: impl FnOnce(&Table) -> Option<&Arc<Connection>>,
    ) -> Option<Arc<Connection>> {
        let recent = self.scratch.recent.take();
        recent
            .filter(|recent| !recent.has_left() && is(recent))
            .or_else(|| find(&self.owner.shared.table.read()).cloned())
    }

    /// The connection at a place.
    fn connection_at(&mut self, place: Place) -> Option<Arc<Connection>> {
        self.connection(|connection| connection.place == place, |table| table.get(place))
    }

    fn deliver(&mut self, now: Instant, connection: &Arc<Connection>, slot: Slot, len: usize) {
        let place = connection.place;
        let segment = slot.as_slice().get(..len).unwrap_or_default();
        match connection.receive(now, segment) {
            Delivery::InSlot(incoming, handle) => {
                let (role, seq) = (incoming.role, incoming.seq);
                let returns = Arc::clone(&self.owner.shared.returns);
                let message = Message::in_slot(incoming, slot, returns, place);
                self.hand_out(connection, handle, role, seq, message);
            }
            Delivery::Assembled(assembled, handle) => {
                let (role, seq) = (assembled.role, assembled.seq);
                self.give_back(Some(place), slot, Some(true));
                self.hand_out(connection, handle, role, seq, Message::assembled(assembled));
            }
            Delivery::Fragment => self.give_back(Some(place), slot, Some(true)),
            Delivery::Control => self.give_back(Some(place), slot, Some(false)),
        }
    }

    /// Hands message `seq` of the peer to whom it is for: a handler, or who waits for this reply.
    fn hand_out(
        &mut self,
        connection: &Arc<Connection>,
        handle: Option<Arc<Handle>>,
        role: Role,
        seq: u64,
        message: Message,
    ) {
        let id = message.id();
        let endpoint = || match handle {
            Some(handle) => Endpoint::another(handle),
            None => Endpoint::first(connection, self.owner),
        };
        let handlers = self.scratch.handlers.load();
        let ran = match role {
            Role::Reply(to) => return connection.answered(to, Ok(message)),
            Role::Refusal(to) => return connection.answered(to, Err(id.into())),
            Role::Message => {
                let Some(handler) = handlers.messages.get(id) else {
                    tracing::warn!(id, peer = %connection.link.peer, "a message was dropped: no handler is set for its id");
                    return;
                };
                let endpoint = endpoint();
                catch_unwind(AssertUnwindSafe(|| handler(&endpoint, message)))
            }
            Role::Request => {
                let endpoint = endpoint();
                // The low bits, as the wire has it.
                let request = Request::new(endpoint.clone(), message, seq as u32);
                let Some(handler) = handlers.requests.get(id) else {
                    tracing::warn!(id, peer = %connection.link.peer, "a request was refused: no handler is set for requests with its id");
                    return request.refuse(RefusalReason::NoHandler);
                };
                catch_unwind(AssertUnwindSafe(|| handler(&endpoint, request)))
            }
        };
        if ran.is_err() {
            connection.fail(EndpointErrorKind::HandlerPanicked(id));
        }
    }

    fn sent(&mut self, now: Instant, completions: &[WorkCompletion]) {
        for wc in completions {
            let place = WrId::from_raw(wc.wr_id).map(Place::of);
            // None: a late completion of a connection that has left.
            if let Some(connection) = place.and_then(|place| self.connection_at(place)) {
                connection.sent(now, wc);
                self.scratch.recent = Some(connection);
            }
        }
        let shared = &self.owner.shared;
        if shared.signals.take_starved() {
            let connections: Vec<_> = shared.table.read().iter().cloned().collect();
            for connection in connections {
                connection.retry_if_starved(now);
            }
        }
    }

    fn give_back(&mut self, place: Option<Place>, slot: Slot, data: Option<bool>) {
        self.scratch.returning.push(Returning { slot, place, data });
    }

    /// Takes the slots of messages that the program dropped.
    fn take_returned(&mut self) {
        let Scratch {
            returning, dropped, ..
        } = self.scratch;
        let message = |(slot, place)| Returning {
            slot,
            place: Some(place),
            data: Some(true),
        };
        for dropped in dropped.drain(..) {
            returning.push(message(dropped));
        }
        while let Some(dropped) = self.owner.shared.returns.take() {
            returning.push(message(dropped));
        }
    }

    /// Posts receives again, a list for each run of the same connection, and then tells the connection, which may grant credits.
    fn post_returning(&mut self, now: Instant) {
        let mut returned = mem::take(&mut self.scratch.returning);
        let mut returning = returned.drain(..).peekable();
        while let Some(first) = returning.next() {
            let place = first.place;
            let (mut data, mut control) = (0, 0);
            let mut next = Some(first);
            while let Some(Returning { slot, data: took, .. }) = next {
                self.scratch.slots.push(slot);
                data += u32::from(took == Some(true));
                control += u32::from(took == Some(false));
                next = returning.next_if(|other| other.place == place);
            }
            let connection = place.and_then(|place| self.connection_at(place));
            let index = connection.as_ref().map(|connection| connection.place.index);
            let posted = self
                .owner
                .shared
                .receives
                .lock()
                .put_back(index, self.scratch.slots.drain(..));
            let Some(connection) = connection else { continue };
            match posted {
                Ok(()) => connection.returned(now, data, control),
                Err(error) => connection.fail(EndpointErrorKind::Post(error.source)),
            }
            self.scratch.recent = Some(connection);
        }
        drop(returning);
        self.scratch.returning = returned;
    }
}
