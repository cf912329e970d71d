//! Faults on demand: a provider over any other that goes wrong where a test says so.
//!
//! [`FaultProvider`] wraps every object that the inner provider makes, and does what the inner one does until a [`Faults`]
//! handle asks for something else. A test gives the code under test the provider and keeps the handle.
//!
//! | what real devices and drivers do | how to get it |
//! |---|---|
//! | a completion event is lost | [`CqFaults::lose_events`] |
//! | an event comes twice, or for nothing | [`CqFaults::duplicate_events`], [`CqFaults::raise_event`] |
//! | one queue's completions are seen later than another's | [`CqFaults::hold`], [`CqFaults::release`] |
//! | a queue fails | [`CqFaults::fail_polls`] |
//! | a port goes down, a device dies | [`Faults::inject`] |
//! | a post is accepted in part | [`Faults::fail_send_after`], [`Faults::fail_recv_after`] |
//! | a queue pair moves to ERR by itself | [`Faults::kill_qp`] |
//! | the locked-memory limit refuses, resources run out | [`Faults::fail`] |
//!
//! That error completions do not wake a queue armed solicited-only is the device's doing, so `SoftConfig::errors_wake_solicited` of `adverb-soft` has
//! it.

mod control;
mod cq;
mod device;
mod qp;

pub use control::{CqFaults, Faults, Operation};
pub use device::FaultProvider;
pub(crate) use device::wrap;
