//! The behaviour of the verbs as runnable checks, and a provider that goes wrong on demand.
//!
//! - [`run`] runs the suite on a device of any provider: `adverb selftest` on a user's own, tests on SoftRoCE and on adverb's software device.
//!   [`cases`] lists what it checks, and where that is written down.
//! - [`FaultProvider`]: a provider over another that goes wrong on demand.
//!
//! It is not a measurement: nothing here says how fast a device is.

mod cases;
mod fault;

pub use cases::{Case, Options, Outcome, Report, cases, run};
pub use fault::{CqFaults, FaultProvider, Faults, Operation};
