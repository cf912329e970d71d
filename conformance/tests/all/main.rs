//! Tests of the providers, and of the conformance suite on them.

mod common;
mod loopback;
