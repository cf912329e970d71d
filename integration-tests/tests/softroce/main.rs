//! adverb on the kernel's SoftRoCE: each test boots guests, runs programs of this workspace in them and looks at what they said.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod failures;
mod interop;
mod pingpong;
mod suites;
mod support;
