//! One end of a connection: opening, traffic, keepalive and closing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use adverb_wire::{Confirm, Data, Goodbye, GoodbyeReason, Header, Kind};

use crate::link::Link;
use crate::receiver::Receiver;
use crate::sender::{Prefix, Sender};
use crate::{
    Config, FailReason, Outcome, Outgoing, PeerLimits, ProtocolError, Received, Segment, Segments, SendError,
    Side,
};

/// The index of the only link of a group today.
const LINK: u32 = 0;

/// Where in its life an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The link is not confirmed both ways.
    Opening,
    /// Messages pass.
    Open,
    /// This side or the peer said goodbye, or is about to.
    Closing,
    /// Both sides know that nothing more comes. What was sent may still be on its way to the peer's device.
    Closed,
    /// It ended otherwise.
    Failed,
}

/// Something that the endpoint's owner must hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The link is confirmed both ways.
    Opened,
    /// The peer said goodbye: it takes what is under way, and nothing new may be sent.
    PeerClosing(GoodbyeReason),
    /// The endpoint is closed in order: all that either side sent was handed out.
    Closed,
    /// The endpoint failed.
    Failed(FailReason),
}

/// One end of a connection.
///
/// After any call that may have made something to send ([`Endpoint::receive`], [`Endpoint::returned`],
/// [`Endpoint::handle_timeout`], [`Endpoint::close`], or room in the send queue), call [`Endpoint::transmit`]; then take
/// events with [`Endpoint::poll_event`].
#[derive(Debug)]
pub struct Endpoint {
    side: Side,
    config: Config,
    nonce: u64,
    phase: Phase,
    link: Link,
    sender: Sender,
    receiver: Receiver,
    events: VecDeque<Event>,
    confirm_sent: bool,
    confirm_received: bool,
    /// Why this side closes, once it does.
    closing: Option<GoodbyeReason>,
    goodbye_sent: bool,
    goodbye_answered: bool,
    /// Why the peer closes, once it said so.
    peer_goodbye: Option<GoodbyeReason>,
    answer_sent: bool,
    /// When opening or closing is given up.
    deadline: Option<Instant>,
    /// When the peer, or its device, last gave a sign of life.
    heard: Instant,
    probe_due: bool,
}

impl Endpoint {
    /// An endpoint whose link was made and has carried nothing yet. Both sides give the `nonce` of their handshake.
    pub fn new(now: Instant, side: Side, config: Config, peer: PeerLimits, nonce: u64) -> Self {
        Self {
            side,
            nonce,
            phase: Phase::Opening,
            link: Link::new(config.window, peer.credits),
            sender: Sender::new(
                config.max_queued_bytes,
                peer.segment_size,
                peer.max_message,
                peer.credits,
            ),
            receiver: Receiver::new(config.max_message),
            events: VecDeque::with_capacity(4),
            confirm_sent: false,
            confirm_received: false,
            closing: None,
            goodbye_sent: false,
            goodbye_answered: false,
            peer_goodbye: None,
            answer_sent: false,
            deadline: now.checked_add(config.open_timeout),
            heard: now,
            probe_due: false,
            config,
        }
    }

    /// Where in its life it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Takes a message and returns its number. What credits and room allow goes to `out` at once; the rest is copied and goes
    /// with later calls of [`Endpoint::transmit`].
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message was taken.
    pub fn send(
        &mut self,
        now: Instant,
        message: &Outgoing<'_>,
        out: &mut impl Segments,
    ) -> Result<u64, SendError> {
        if let Some(reason) = self.peer_goodbye {
            return Err(SendError::PeerClosed(reason));
        }
        if self.phase != Phase::Open {
            return Err(SendError::NotOpen);
        }
        let mut prefix = DataPrefix {
            link: &mut self.link,
            ack: self.receiver.delivered(),
        };
        self.sender.send(now, message, &mut prefix, out)
    }

    /// Writes whatever may be sent now to `out`: the confirmation, queued messages, grants that no message carried, the goodbye and its answer.
    pub fn transmit(&mut self, now: Instant, out: &mut impl Segments) {
        if matches!(self.phase, Phase::Closed | Phase::Failed) {
            return;
        }
        self.transmit_confirm(out);
        if self.phase != Phase::Opening {
            let mut prefix = DataPrefix {
                link: &mut self.link,
                ack: self.receiver.delivered(),
            };
            self.sender.flush(now, &mut prefix, out);
        }
        if self.link.grant_due() && self.link.has_control_credit() {
            self.control(Kind::Credit, out);
        }
        self.transmit_goodbye(out);
    }

    fn transmit_confirm(&mut self, out: &mut impl Segments) {
        // The server confirms in answer: its first message proves that the client's first came through.
        if self.confirm_sent || self.side == Side::Server && !self.confirm_received {
            return;
        }
        self.confirm_sent = self.control(
            Kind::Confirm(Confirm {
                nonce: self.nonce,
                link: LINK,
            }),
            out,
        );
        self.check_opened();
    }

    fn transmit_goodbye(&mut self, out: &mut impl Segments) {
        if !self.sender.is_idle() || self.phase == Phase::Opening {
            return;
        }
        if let Some(reason) = self.closing
            && !self.goodbye_sent
        {
            let goodbye = Goodbye {
                reason,
                final_seq: self.sender.next_seq(),
            };
            self.goodbye_sent = self.control(Kind::Goodbye(goodbye), out);
        }
        if self.peer_goodbye.is_some() && !self.answer_sent {
            self.answer_sent = self.control(Kind::GoodbyeAnswer, out);
            self.check_closed();
        }
    }

    /// Sends a control message, if there is room. The receiver must act on each of them soon, so all are solicited.
    fn control(&mut self, kind: Kind, out: &mut impl Segments) -> bool {
        let Some(room) = out
            .next(Header::MAX_LEN)
            .and_then(|buffer| buffer.first_chunk_mut())
        else {
            return false;
        };
        let (credit_limit, control_ack) = self.link.advertise();
        let header = Header {
            control_ack,
            credit_limit,
            ack: self.receiver.delivered(),
            kind,
        };
        let len = header.encode(room);
        self.link.control_sent();
        out.commit(Segment {
            len,
            solicited: true,
            completes: None,
        });
        true
    }

    /// Takes a received segment and says what it was. When the segment's receive is posted again, report it with
    /// [`Endpoint::returned`]: what the segment granted is used then, if it was a control message. An endpoint that has ended
    /// takes everything for [`Received::Control`], unread.
    ///
    /// # Errors
    /// [`ProtocolError`] if the peer broke the protocol: the endpoint has failed.
    pub fn receive(&mut self, now: Instant, bytes: &[u8]) -> Result<Received, ProtocolError> {
        if matches!(self.phase, Phase::Closed | Phase::Failed) {
            return Ok(Received::Control);
        }
        self.heard = now;
        let result = self.try_receive(now, bytes);
        if let Err(error) = &result {
            self.fail(FailReason::Protocol(error.clone()));
        }
        result
    }

    fn try_receive(&mut self, now: Instant, bytes: &[u8]) -> Result<Received, ProtocolError> {
        let (header, fragment) = Header::decode(bytes)?;
        let confirms = matches!(header.kind, Kind::Confirm(_));
        if confirms == self.confirm_received || !confirms && !self.confirm_sent {
            let (got, expected) = match (confirms, self.confirm_received) {
                (true, _) => ("a second confirmation", "a message"),
                (false, false) => ("a message", "the confirmation"),
                (false, true) => ("a message", "nothing before this side has confirmed"),
            };
            return Err(ProtocolError::Unexpected { got, expected });
        }
        self.link
            .header(header.credit_limit, header.control_ack, header.kind.is_control())?;
        if !self.sender.on_ack(header.ack) {
            let sent = self.sender.finished();
            return Err(ProtocolError::AckOfUnsent {
                what: "messages",
                acked: header.ack,
                sent,
            });
        }
        match header.kind {
            Kind::Data(data) => {
                if self.peer_goodbye.is_some() {
                    return Err(ProtocolError::Unexpected {
                        got: "a message",
                        expected: "nothing after the goodbye",
                    });
                }
                self.link.data_received()?;
                return self.receiver.data(&data, fragment);
            }
            Kind::Confirm(confirm) => self.on_confirm(confirm)?,
            Kind::Credit => {}
            Kind::Goodbye(goodbye) => self.on_goodbye(now, goodbye)?,
            Kind::GoodbyeAnswer => {
                if !self.goodbye_sent || self.goodbye_answered {
                    return Err(ProtocolError::Unexpected {
                        got: "an answer to a goodbye",
                        expected: "no answer",
                    });
                }
                if self.receiver.is_partial() {
                    return Err(ProtocolError::Unexpected {
                        got: "an answer to a goodbye",
                        expected: "the rest of a message",
                    });
                }
                self.goodbye_answered = true;
                self.check_closed();
            }
            // The codec knows no other kind in this version.
            _ => {
                return Err(ProtocolError::Unexpected {
                    got: "an unknown kind",
                    expected: "a known one",
                });
            }
        }
        Ok(Received::Control)
    }

    fn on_confirm(&mut self, confirm: Confirm) -> Result<(), ProtocolError> {
        if confirm.nonce != self.nonce {
            return Err(ProtocolError::WrongNonce {
                got: confirm.nonce,
                expected: self.nonce,
            });
        }
        if confirm.link != LINK {
            return Err(ProtocolError::Unexpected {
                got: "a confirmation of another link",
                expected: "that of link 0",
            });
        }
        self.confirm_received = true;
        self.check_opened();
        Ok(())
    }

    fn on_goodbye(&mut self, now: Instant, goodbye: Goodbye) -> Result<(), ProtocolError> {
        let received = self.receiver.delivered();
        if self.peer_goodbye.is_some() {
            return Err(ProtocolError::Unexpected {
                got: "a second goodbye",
                expected: "nothing",
            });
        }
        if goodbye.final_seq != received || self.receiver.is_partial() {
            return Err(ProtocolError::GoodbyeTooEarly {
                announced: goodbye.final_seq,
                received,
            });
        }
        self.peer_goodbye = Some(goodbye.reason);
        self.begin_closing(now);
        self.events.push_back(Event::PeerClosing(goodbye.reason));
        Ok(())
    }

    /// The receive of a segment is posted again: its credit can go back to the peer. `data` is what
    /// [`Received::is_data`] said of it.
    pub fn returned(&mut self, data: bool) {
        if data {
            self.link.data_returned()
        } else {
            self.link.control_returned()
        }
    }

    /// A send completed: the peer's device is alive.
    pub fn alive(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Closes in order: what was taken is sent, then the goodbye goes out and its answer is awaited. A second call does nothing.
    pub fn close(&mut self, now: Instant, reason: GoodbyeReason) {
        if matches!(self.phase, Phase::Closed | Phase::Failed) || self.closing.is_some() {
            return;
        }
        self.closing = Some(reason);
        if self.peer_goodbye.is_none() {
            self.begin_closing(now);
        }
        self.check_closed();
    }

    /// Ends the endpoint at once, without a word to the peer.
    pub fn abort(&mut self) {
        if !matches!(self.phase, Phase::Closed | Phase::Failed) {
            self.phase = Phase::Failed;
            self.end();
        }
    }

    fn begin_closing(&mut self, now: Instant) {
        // Closing while opening waits for the confirmation, under the deadline of whichever comes first.
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
        let deadline = now.checked_add(self.config.close_timeout);
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
    }

    fn check_opened(&mut self) {
        if self.phase == Phase::Opening && self.confirm_sent && self.confirm_received {
            self.phase = if self.closing.is_some() {
                Phase::Closing
            } else {
                Phase::Open
            };
            if self.closing.is_none() {
                self.deadline = None;
            }
            self.events.push_back(Event::Opened);
        }
    }

    fn check_closed(&mut self) {
        // The peer answers a goodbye only when it has nothing more to send, so either answer ends the connection. If both said
        // goodbye, both answers are due.
        let ours_done = !self.goodbye_sent || self.goodbye_answered;
        let theirs_done = self.peer_goodbye.is_none() || self.answer_sent;
        if (self.goodbye_answered || self.answer_sent)
            && ours_done
            && theirs_done
            && self.phase == Phase::Closing
        {
            self.phase = Phase::Closed;
            self.end();
            self.events.push_back(Event::Closed);
        }
    }

    fn fail(&mut self, reason: FailReason) {
        if !matches!(self.phase, Phase::Closed | Phase::Failed) {
            self.phase = Phase::Failed;
            self.end();
            self.events.push_back(Event::Failed(reason));
        }
    }

    fn end(&mut self) {
        self.deadline = None;
        self.probe_due = false;
        self.sender.abandon();
    }

    /// The next thing that its owner must hear of.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Endpoint::handle_timeout`] is to be called next. Earlier calls do no harm.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.deadline, self.probe_time()].into_iter().flatten().min()
    }

    /// Does what is due by `now`: gives up opening or closing, or asks for a probe.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            let reason = if self.phase == Phase::Opening {
                FailReason::OpenTimeout
            } else {
                FailReason::CloseTimeout
            };
            self.fail(reason);
        } else if self.probe_time().is_some_and(|time| now >= time) {
            self.probe_due = true;
            // The probe fails by itself if the peer is gone: until the next one is due nothing more is to be done.
            self.heard = now;
        }
    }

    /// Whether a keepalive probe, a zero-byte RDMA WRITE, is to be posted now. Asking takes the answer.
    pub fn take_probe(&mut self) -> bool {
        std::mem::take(&mut self.probe_due)
    }

    /// When the next probe is due: the first multiple of a quarter of the interval at which the peer has been silent for all of it.
    fn probe_time(&self) -> Option<Instant> {
        let interval = self.config.keepalive?;
        if self.probe_due || !matches!(self.phase, Phase::Open | Phase::Closing) {
            return None;
        }
        // An interval too long for the clock never probes.
        let due = self.heard.checked_add(interval)?;
        let tick = (interval / 4).max(Duration::from_millis(1));
        let ticks = due
            .saturating_duration_since(self.config.epoch)
            .as_nanos()
            .div_ceil(tick.as_nanos());
        // Beyond u32 ticks of at least a millisecond (seven weeks) the rounding is left out.
        let rounded = u32::try_from(ticks)
            .ok()
            .and_then(|ticks| self.config.epoch.checked_add(tick.checked_mul(ticks)?));
        rounded.or(Some(due))
    }

    /// Messages taken so far: the number of the next.
    pub fn messages(&self) -> u64 {
        self.sender.next_seq()
    }

    /// Messages of the peer that were handed out whole.
    pub fn received(&self) -> u64 {
        self.receiver.delivered()
    }

    /// The peer's program has every message below this.
    pub fn acked(&self) -> u64 {
        self.sender.acked()
    }

    /// What became of message `seq`, if nothing more is heard.
    pub fn outcome(&self, seq: u64) -> Outcome {
        self.sender.outcome(seq)
    }

    /// Bytes that wait for credits or room.
    pub fn queued_bytes(&self) -> usize {
        self.sender.queued_bytes()
    }

    /// Whether more messages may be sent, and half of what may wait for credits or room is free: after [`SendError::WouldBlock`], when to go on.
    pub fn has_room(&self) -> bool {
        self.phase == Phase::Open && self.sender.has_room()
    }

    /// Data fragments that could be sent now.
    pub fn credits(&self) -> u32 {
        self.link.credits()
    }
}

/// Lends the link to the sender while it writes fragments.
struct DataPrefix<'a> {
    link: &'a mut Link,
    ack: u64,
}

impl Prefix for DataPrefix<'_> {
    fn credits(&self) -> u32 {
        self.link.credits()
    }

    fn data(&mut self, data: Data) -> Header {
        self.link.take_credit();
        let (credit_limit, control_ack) = self.link.advertise();
        Header {
            control_ack,
            credit_limit,
            ack: self.ack,
            kind: Kind::Data(data),
        }
    }
}
