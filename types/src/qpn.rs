//! Queue pair numbers.

use std::fmt;

/// A 24-bit queue pair number (IBTA volume 1, section 9.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair number `value`.
    ///
    /// # Errors
    /// [`InvalidQpn`] if it does not fit 24 bits.
    pub const fn new(value: u32) -> Result<Self, InvalidQpn> {
        if value < 1 << 24 {
            Ok(Self(value))
        } else {
            Err(InvalidQpn(value))
        }
    }

    /// The number made of the low 24 bits of `value`: for values that a device gave.
    pub const fn truncating(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The value, less than 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue pair number that does not fit 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidQpn(pub u32);

impl fmt::Display for InvalidQpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair number {:#x} does not fit 24 bits", self.0)
    }
}

impl std::error::Error for InvalidQpn {}
