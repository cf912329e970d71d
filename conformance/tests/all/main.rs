//! Tests of the fault provider, and of the conformance suite on it.

// So marked, helpers may unwrap as tests do (clippy.toml).
#[cfg(test)]
mod common;
#[cfg(test)]
mod fault;
#[cfg(test)]
mod suite;
