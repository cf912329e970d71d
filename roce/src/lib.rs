//! RoCEv2's reliable connections (RC): the packets, and the protocol as a state machine without sockets, clock or memory.
//!
//! What it is: [`Packet`] parses and emits what lies between the UDP header and the invariant CRC, [`icrc`] computes that CRC, and
//! [`Rc`] is one queue pair: requester, responder and completer of the IBTA specification, volume 1, chapter 9. In
//! quinn-proto's manner it is fed ([`Rc::post_send`], [`Rc::handle_packet`], [`Rc::handle_timeout`]) and asked
//! ([`Rc::poll_transmit`], [`Rc::poll_timeout`]); whatever it needs of the device (memory, receives, completions) it asks of a
//! [`Host`].
//!
//! What it is not: a device. `adverb-soft` brings the sockets, the memory and the queues.
#![forbid(unsafe_code)]

pub mod icrc;
mod packet;
mod rc;

pub use packet::{Aeth, AtomicEth, Nak, Opcode, Packet, ParseError, Reth, Syndrome};
pub use rc::{
    Completion, Denied, Host, MAX_MESSAGE, MAX_SGE, ModifyError, PostRefused, QpConfig, Queue, Rc, Receive,
    SgeList, Stats, Work,
};
