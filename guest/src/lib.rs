//! SoftRoCE guests: boots one or two virtual machines with a kernel that has `rdma_rxe`, runs a command in each, and brings back what
//! it printed and how it ended.
//!
//! A guest is QEMU with Debian's kernel and a small initramfs of our own. Its root is the host's, read-only, under a layer in memory: the
//! checkout, the compiler's output and every installed tool are at the same paths, and nothing that a command does to them lasts.
//! What is to last goes to the folder that `ADVERB_OUT` names, which all hosts of a run share.
//!
//! One guest has `rxe0` on `dummy0` and `rxe1` on `dummy1`; two guests have `rxe0` on a network between them. Commands find
//! `ADVERB_HOST` (1 or 2), `ADVERB_ADDR` (their own address) and `ADVERB_PEER` (the other's).
//!
//! ```no_run
//! use adverb_guest::{Guests, Script};
//!
//! let outcome = Guests::new(".").hosts(2).run(&Script::shell("rdma link && ping -c 1 $ADVERB_PEER"))?;
//! assert!(outcome.success());
//! println!("{:?}", outcome.hosts[0].output);
//! # anyhow::Ok(())
//! ```
#![forbid(unsafe_code)]

mod artifacts;
mod cache;
mod container;
mod initramfs;
mod interrupt;
mod modules;
mod qemu;
mod run;
mod run_folder;
mod script;

pub use artifacts::{am_pingpong, cargo, executables};
pub use run::{Guests, HostOutcome, Outcome};
pub use script::Script;
