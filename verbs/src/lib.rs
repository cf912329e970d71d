//! The verbs in Rust: object-safe traits, typed codes and registered memory.
//!
//! What it is: the contract between adverb and a device. A [`Provider`] lists and opens devices; a [`Device`] makes
//! protection domains ([`Pd`]), completion channels ([`CompChannel`]) and completion queues ([`Cq`]); a [`Pd`] makes
//! memory regions ([`Mr`]), shared receive queues ([`Srq`]) and RC queue pairs ([`Qp`]). The names, codes and rules are
//! those of libibverbs' manual pages and of the IBTA specification, volume 1. Nothing above this crate knows which
//! provider runs.
//!
//! What it is not: a provider. `adverb-ibverbs` wraps libibverbs; tests bring providers of their own.
//!
//! Two layers:
//! - the **traits**, `unsafe` to implement and with `unsafe` raw posts, because a device reads and writes memory by address;
//! - the **owners** above them, safe to use: a [`Region`] owns memory and its registration, a [`Slot`] is an exclusive
//!   piece of a [`SlotPool`], and [`SendQueue`] and [`RecvQueue`] take slots when they post and give them back when the
//!   device is done. A buffer that the device may touch is never reachable from safe code.
//!
//! Beside them, [`Bell`] is what providers in software make channels of.
//!
//! ```no_run
//! use adverb_verbs::{Access, CqInit, Provider, SlotPool, VerbsError};
//!
//! fn open(provider: &dyn Provider) -> Result<(), VerbsError> {
//!     let device = provider.open("rxe0")?;
//!     let pd = device.alloc_pd()?;
//!     let channel = device.create_comp_channel()?;
//!     let cq = device.create_cq(&CqInit::new(256).channel(&channel).comp_vector(0))?;
//!     cq.req_notify(true)?;
//!     let pool = SlotPool::new(&*pd, 4096, 64, Access::LOCAL_WRITE)?;
//!     let mut slot = pool.take().expect("a new pool has free slots");
//!     slot.as_mut_slice()[..5].copy_from_slice(b"hello");
//!     Ok(())
//! }
//! ```

#![allow(
    unsafe_code,
    reason = "the device reads and writes memory by address: this is the crate that owns that memory"
)]

mod attr;
mod bell;
mod codes;
mod cq;
mod device;
mod error;
mod event;
mod free_list;
mod memory;
mod pool;
mod qp;
mod recv_queue;
mod send_queue;
mod status;
mod wr;
mod wr_id;

/// The primitives of `free_list.rs`.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

pub use adverb_types::{Gid, GidType, Lkey, Mtu, Psn, Qpn, Rkey};
pub use attr::{AtomicSupport, DeviceAttr, DeviceInfo, GidEntry, LinkLayer, PortAttr, PortState};
pub use bell::Bell;
pub use cq::{CompChannel, CompEvent, Cq, CqInit};
pub use device::{Device, Pd, Provider};
pub use error::{ErrorKind, PostError, VerbsError};
pub use event::{AsyncEvent, AsyncEventKind, EventSource};
pub use memory::{Mr, Region, RegionError, Registration};
pub use pool::{Slot, SlotPool};
pub use qp::{
    AddressVector, AlternatePath, InitAttr, Qp, QpCaps, QpInit, QpModify, QpState, RtrAttr, RtsAttr, Srq,
    SrqInit,
};
pub use recv_queue::{Received, RecvQueue};
pub use send_queue::{Buffer, Buffers, MAX_SGE, Retired, SendQueue, SendRequest};
pub use status::{WcOpcode, WcStatus, WorkCompletion};
pub use wr::{Access, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
pub use wr_id::{WrId, WrKind};
