//! One reliable connection: requester, responder and completer (IBTA volume 1, chapter 9), and the queue pair's states (section 10.3.1).

mod host;

use std::time::Instant;

use adverb_types::Qpn;
use adverb_verbs::{QpCaps, QpModify, QpState, SendFlags, SendOp};

use crate::Packet;
pub use host::{Completion, Denied, Host, MAX_SGE, Receive, SgeList};

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its sizes, none of them above the device's limits and [`MAX_SGE`].
    pub caps: QpCaps,
    /// Whether every send makes a completion.
    pub sq_sig_all: bool,
    /// Whether receives come from a shared receive queue.
    pub srq: bool,
}

/// A send to be posted. Inline data comes as bytes, since only the device can read what a work request points to.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Registered memory; empty with inline data.
    pub sges: &'a [adverb_verbs::Sge],
    /// The data itself, if [`SendFlags::INLINE`] is set.
    pub inline: &'a [u8],
}

/// A post that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostRefused {
    /// Not valid, or not in this state (`EINVAL`).
    Invalid,
    /// The queue is full (`ENOMEM`).
    Full,
}

/// A transition that does not exist, or an attribute out of range (`EINVAL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the transition or an attribute of it is not valid")]
pub struct ModifyError;

/// A queue pair.
#[derive(Debug)]
pub struct Rc {
    config: QpConfig,
    state: QpState,
}

impl Rc {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: QpState::Reset,
        }
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The peer's queue pair, from RTR on: the only one whose packets [`Rc::handle_packet`] may get, and only from the peer's address.
    pub fn peer(&self) -> Option<Qpn> {
        None
    }

    /// Changes its state. The device has checked port, P_Key and address, and resolved the peer.
    ///
    /// # Errors
    /// [`ModifyError`]; nothing has changed then.
    pub fn modify(&mut self, now: Instant, to: &QpModify, host: &mut impl Host) -> Result<(), ModifyError> {
        let _ = (now, to, host, self.config);
        Err(ModifyError)
    }

    /// Posts a send. In ERR it is flushed at once.
    ///
    /// # Errors
    /// [`PostRefused`]; it was not accepted then.
    pub fn post_send(&mut self, work: &Work<'_>, host: &mut impl Host) -> Result<(), PostRefused> {
        let _ = (work, host);
        Err(PostRefused::Invalid)
    }

    /// Posts a receive, if there is no shared receive queue. In ERR it is flushed at once.
    ///
    /// # Errors
    /// [`PostRefused`]; it was not accepted then.
    pub fn post_recv(&mut self, receive: Receive, host: &mut impl Host) -> Result<(), PostRefused> {
        let _ = (receive, host);
        Err(PostRefused::Invalid)
    }

    /// Takes a packet of the peer, whose invariant CRC was right.
    pub fn handle_packet(&mut self, now: Instant, packet: &Packet<'_>, host: &mut impl Host) {
        let _ = (now, packet, host);
    }

    /// Appends the next packet to be sent, without its invariant CRC, if there is one. Call until it says `false`, after each other call that may
    /// have given it something to send, or to complete.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>, host: &mut impl Host) -> bool {
        let _ = (now, out, host);
        false
    }

    /// When [`Rc::handle_timeout`] is due, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does what is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        let _ = (now, host);
    }
}
