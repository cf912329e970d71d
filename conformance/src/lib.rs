//! The behaviour of the verbs as runnable checks, and providers for tests.
//!
//! - [`Loopback`]: a reference device in memory, for tests of what is built on the verbs.

mod loopback;

pub use loopback::{Loopback, LoopbackConfig};
