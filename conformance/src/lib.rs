//! The behaviour of the verbs as runnable checks, and providers for tests.
//!
//! - [`run`] runs the suite on a device of any provider: `adverb selftest` on a user's own, tests on SoftRoCE and on the
//!   providers below. [`cases`] lists what it checks, and where that is written down.
//! - [`Loopback`]: a reference device in memory, for tests of what is built on the verbs.
//! - [`FaultProvider`]: a provider over another that goes wrong on demand.
//!
//! It is not a measurement: nothing here says how fast a device is.

mod cases;
mod fault;
mod loopback;

pub use cases::{Case, Options, Outcome, Report, cases, run};
pub use fault::{CqFaults, FaultProvider, Faults, Operation};
pub use loopback::{Loopback, LoopbackConfig};
