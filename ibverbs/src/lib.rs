//! The libibverbs provider of adverb's verbs, and the only crate that links libibverbs.
//!
//! Without the feature `ibverbs` it is empty, so that the workspace builds on machines that have no RDMA package.
//!
//! Four layers, each in its place: `sys` is the foreign interface, one function a verb; `convert` turns plain values into C
//! structures, `wr_list` into linked lists of work requests; `device`, `cq`, `pd` and `qp` own the objects; `provider` lists and opens.
//!
//! `ibv_fork_init(3)` is not called: registered memory is not for children to write. A program that forks should exec.
#![cfg_attr(not(feature = "ibverbs"), forbid(unsafe_code))]
#![cfg_attr(
    feature = "ibverbs",
    allow(unsafe_code, reason = "it calls into C, and hands it memory by address")
)]

#[cfg(feature = "ibverbs")]
mod convert;
#[cfg(feature = "ibverbs")]
mod cq;
#[cfg(feature = "ibverbs")]
mod device;
#[cfg(feature = "ibverbs")]
mod pd;
#[cfg(feature = "ibverbs")]
mod provider;
#[cfg(feature = "ibverbs")]
mod qp;
#[cfg(feature = "ibverbs")]
mod sys;
#[cfg(feature = "ibverbs")]
mod wr_list;

#[cfg(feature = "ibverbs")]
pub use provider::provider;
