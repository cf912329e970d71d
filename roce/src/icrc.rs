//! The invariant CRC.
