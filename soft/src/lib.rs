//! An RDMA device in software: RoCEv2 over ordinary UDP sockets, in the process that uses it.
//!
//! What it is: a provider of the [`adverb_verbs`] traits that needs no RDMA hardware, no kernel module and no privileges, and speaks
//! what RoCEv2 NICs and the kernel's SoftRoCE (rxe) speak. [`SoftProvider`] opens devices, [`SoftConfig`] says how they are, [`SoftDevice`] has
//! the controls that no other device has. [`SimNetwork`] takes the place of the network in tests.
//!
//! What it is not: the protocol. Packets and connections are `adverb-roce`'s; here are the sockets, the memory, the queues and the thread.
//!
//! ```
//! use adverb_soft::{SoftConfig, SoftProvider};
//! use adverb_verbs::{CqInit, Provider};
//!
//! let provider = SoftProvider::new(SoftConfig::default().loopback(true));
//! let device = provider.open("soft0")?;
//! let channel = device.create_comp_channel()?;
//! let cq = device.create_cq(&CqInit::new(256).channel(&channel))?;
//! cq.req_notify(true)?;
//! # Ok::<(), adverb_verbs::VerbsError>(())
//! ```
//!
//! # How it is driven
//! A post sends its packets itself, and a poll that finds its completion queue empty takes in what arrived. For sleepers on completion
//! channels, and for programs that do something else, a thread per opened device takes over; `attention.rs` says when. It starts with the first
//! queue pair that is connected. Without traffic, nothing uses any CPU.

mod attention;
mod channel;
mod checksum;
mod config;
mod core;
mod counters;
mod cq;
mod device;
mod handles;
mod host;
mod keys;
mod memory;
mod net;
mod provider;
mod qp;
mod srq;
mod sys;
mod timers;
mod wire;

pub use config::SoftConfig;
pub use counters::SoftCounters;
pub use device::SoftDevice;
pub use provider::SoftProvider;
pub use wire::{SimBottleneck, SimFaults, SimNetwork, SimVerdict};
