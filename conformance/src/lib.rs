//! The behaviour of the verbs as runnable checks, and providers for tests.
//!
//! - [`Loopback`]: a reference device in memory, for tests of what is built on the verbs.
//! - [`FaultProvider`]: a provider over another that goes wrong on demand.

mod bell;
mod fault;
mod loopback;

pub use fault::{CqFaults, FaultProvider, Faults, Operation};
pub use loopback::{Loopback, LoopbackConfig};
