//! Tests of the providers, and of the conformance suite on them.

// So marked, helpers may unwrap as tests do (clippy.toml).
#[cfg(test)]
mod common;
#[cfg(test)]
mod fault;
#[cfg(test)]
mod loopback;
#[cfg(test)]
mod suite;
