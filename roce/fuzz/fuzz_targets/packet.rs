//! Any bytes in a datagram to the device: see the checks, which the ordinary tests share.
#![no_main]

#[path = "../../tests/checks/packet_bytes.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
