//! RC queue pairs and shared receive queues.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use adverb_types::{Gid, Mtu, Psn, Qpn};

use crate::{Access, Cq, PostError, RecvWr, SendWr, VerbsError};

/// What a shared receive queue is created with (`ibv_create_srq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives that must fit at least.
    pub max_wr: u32,
    /// Scatter elements of each at least.
    pub max_sge: u32,
    /// Names the queue in its asynchronous events.
    pub cookie: u64,
}

/// A shared receive queue.
///
/// # Safety
/// The device writes only into the memory of receives posted and not completed, while the queue exists.
pub unsafe trait Srq: Any + Debug + Send + Sync {
    /// Posts receives in order (`ibv_post_srq_recv(3)`). Use [`crate::RecvQueue`], which owns what it posts.
    ///
    /// # Safety
    /// Each element's memory is registered and nobody else touches it until the receive completed or the queue is destroyed.
    ///
    /// # Errors
    /// [`PostError`] says how many were accepted.
    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Asks for one `SRQ_LIMIT_REACHED` event when fewer than `limit` receives are left (`ibv_modify_srq(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    fn set_limit(&self, limit: u32) -> Result<(), VerbsError>;

    /// Receives that fit.
    fn capacity(&self) -> u32;

    /// The concrete queue, so that its provider can find it again.
    fn as_any(&self) -> &dyn Any;
}

/// A queue pair's sizes (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Outstanding send work requests.
    pub max_send_wr: u32,
    /// Outstanding receives; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send may carry inline.
    pub max_inline_data: u32,
}

/// What a queue pair is created with (`ibv_create_qp(3)`). It is always of type RC.
///
/// The queue pair keeps clones of these very `Arc`s until it is destroyed: that is how an owner of posted memory can tell
/// that no queue pair uses its queue any more.
#[derive(Clone, Debug)]
pub struct QpInit<'a> {
    /// Gets the completions of sends.
    pub send_cq: &'a Arc<dyn Cq>,
    /// Gets the completions of receives.
    pub recv_cq: &'a Arc<dyn Cq>,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<&'a Arc<dyn Srq>>,
    /// The sizes asked for.
    pub caps: QpCaps,
    /// Whether every send makes a completion, as if `SIGNALED` were set.
    pub sq_sig_all: bool,
}

/// A queue pair's state (`enum ibv_qp_state`; IBTA volume 1, section 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpState {
    /// New, or reset: no work may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive: requests of the peer are served.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Send queue in error (never on RC).
    Sqe,
    /// In error: all work is flushed.
    Err,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// The way to a peer's port (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The local port, from 1.
    pub port_num: u8,
    /// The local GID, by its index in the port's table.
    pub sgid_index: u8,
    /// The peer's GID. `None` only on InfiniBand within a subnet.
    pub dgid: Option<Gid>,
    /// The peer's LID; 0 on RoCE.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the local LID; 0 on RoCE.
    pub src_path_bits: u8,
    /// Rate limit (`enum ibv_rate`); 0 is none.
    pub static_rate: u8,
    /// IPv6 flow label, 20 bits: RoCEv2 makes its UDP source port from it.
    pub flow_label: u32,
    /// Routers that packets may pass.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// The peer's UDP port if it is not RoCEv2's own ([`crate::GidEntry::udp_port`]). Only software can send there.
    pub udp_port: Option<u16>,
}

impl AddressVector {
    /// The way to `dgid` on RoCE, as far as most need to say: past 64 routers at most, with traffic class and flow label 0, to RoCEv2's own UDP port.
    /// What differs, such as the LID on InfiniBand, goes into a struct expression on top of it.
    ///
    /// ```
    /// use adverb_verbs::AddressVector;
    ///
    /// let peer = std::net::Ipv4Addr::new(10, 0, 0, 2).into();
    /// let way = AddressVector {
    ///     traffic_class: 96,
    ///     ..AddressVector::roce(1, 3, peer)
    /// };
    /// assert_eq!((way.dgid, way.hop_limit), (Some(peer), 64));
    /// ```
    pub const fn roce(port_num: u8, sgid_index: u8, dgid: Gid) -> Self {
        Self {
            port_num,
            sgid_index,
            dgid: Some(dgid),
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            udp_port: None,
        }
    }
}

/// The alternate path of automatic path migration. RoCE devices do not take one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The way.
    pub ah: AddressVector,
    /// P_Key index on that way.
    pub pkey_index: u16,
    /// Local ACK timeout code on that way.
    pub timeout: u8,
}

/// RESET → INIT (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// The local port, from 1.
    pub port_num: u8,
    /// Index into its P_Key table.
    pub pkey_index: u16,
    /// What the peer may do.
    pub access: Access,
}

/// INIT → RTR (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The way to the peer.
    pub ah: AddressVector,
    /// Largest payload of a packet: both ends must give the same.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The peer's first packet sequence number.
    pub rq_psn: Psn,
    /// READs and atomics of the peer served at once.
    pub max_dest_rd_atomic: u8,
    /// The delay asked for in an RNR NAK, as a code of 5 bits: 12 is 0.64 ms, 0 is 655.36 ms (IBTA volume 1, table 45).
    pub min_rnr_timer: u8,
    /// Other access rights than in INIT.
    pub access: Option<Access>,
    /// Another P_Key index than in INIT.
    pub pkey_index: Option<u16>,
    /// An alternate path.
    pub alternate: Option<AlternatePath>,
}

/// RTR → RTS (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// This side's first packet sequence number.
    pub sq_psn: Psn,
    /// Local ACK timeout: 4.096 µs × 2^`timeout`; 0 waits for ever (IBTA volume 1, section 9.7.6.1.3).
    pub timeout: u8,
    /// Retries when the peer does not answer, 0 to 7. On rxe 7 means for ever.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted, 0 to 6; 7 means for ever.
    pub rnr_retry: u8,
    /// READs and atomics under way at once.
    pub max_rd_atomic: u8,
    /// Other access rights.
    pub access: Option<Access>,
    /// Another RNR delay than in RTR.
    pub min_rnr_timer: Option<u8>,
    /// An alternate path.
    pub alternate: Option<AlternatePath>,
}

/// A transition of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpModify {
    /// To INIT.
    Init(InitAttr),
    /// To RTR.
    Rtr(RtrAttr),
    /// To RTS.
    Rts(RtsAttr),
    /// To SQD, with or without an `SQ_DRAINED` event.
    Sqd {
        /// Whether the event is wanted.
        notify: bool,
    },
    /// From SQD back to RTS.
    Resume,
    /// To ERR: everything outstanding is flushed.
    Err,
    /// To RESET: everything outstanding vanishes without a completion.
    Reset,
}

impl QpModify {
    /// The state that it leads to.
    pub fn state(&self) -> QpState {
        match self {
            Self::Init(_) => QpState::Init,
            Self::Rtr(_) => QpState::Rtr,
            Self::Rts(_) | Self::Resume => QpState::Rts,
            Self::Sqd { .. } => QpState::Sqd,
            Self::Err => QpState::Err,
            Self::Reset => QpState::Reset,
        }
    }
}

/// An RC queue pair.
///
/// Dropping the last handle destroys it; it holds its protection domain, completion queues and shared receive queue.
///
/// # Safety
/// The device touches only the memory of work requests posted and not completed, while the queue pair exists and has not
/// been moved to RESET.
pub unsafe trait Qp: Any + Debug + Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Its true sizes, which may be above those asked for.
    fn caps(&self) -> QpCaps;

    /// Moves it to another state (`ibv_modify_qp(3)`). When a move to RESET returned, the device is done with its memory.
    ///
    /// # Errors
    /// [`VerbsError`] if the transition or an attribute is not valid, or the peer's address cannot be resolved.
    fn modify(&self, to: &QpModify) -> Result<(), VerbsError>;

    /// Its state now (`ibv_query_qp(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if the device does not answer.
    fn state(&self) -> Result<QpState, VerbsError>;

    /// Posts sends in order, ringing the doorbell once (`ibv_post_send(3)`). Use [`crate::SendQueue`], which owns what it posts.
    ///
    /// # Safety
    /// Each element's memory is registered and, unless posted inline, nobody writes it (nor reads it, for READs and
    /// atomics) until the request completed, or the queue pair was reset or destroyed.
    ///
    /// # Errors
    /// [`PostError`] says how many were accepted.
    unsafe fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts receives in order (`ibv_post_recv(3)`), if it has no shared receive queue.
    ///
    /// # Safety
    /// As for [`Srq::post_recv`].
    ///
    /// # Errors
    /// [`PostError`] says how many were accepted.
    unsafe fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// The concrete queue pair, so that its provider can find it again.
    fn as_any(&self) -> &dyn Any;
}
