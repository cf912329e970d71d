//! The verbs in Rust: object-safe traits, typed codes, registered memory.
