//! Any bytes at the start of a SEND: see the checks, which the ordinary tests share.
#![no_main]

#[path = "../../tests/checks/header.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
