//! Any bytes that a peer gives as the handle of a region: see the checks, which the ordinary tests share.
#![no_main]

#[path = "../../tests/checks/region.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
