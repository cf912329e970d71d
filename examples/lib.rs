//! Small programs to copy: run them with `cargo run --release --example NAME`.
#![forbid(unsafe_code)]
