//! Packet sequence numbers.

use std::fmt;

/// A 24-bit packet sequence number, compared as a serial number (IBTA volume 1, section 9.7.2; RFC 1982's arithmetic).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// The number made of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, less than 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that follows, which after 2^24 − 1 is 0.
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The number before, which of 0 is 2^24 − 1.
    pub const fn prev(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// The number `n` packets later.
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// How many packets `self` lies after `earlier`: negative if it lies before, from −2^23 to 2^23 − 1.
    pub const fn since(self, earlier: Self) -> i32 {
        // Shifted up so that the 24-bit difference gets its sign from bit 23.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(Psn::new(0x1ff_ffff).get(), 0xff_ffff);
        assert_eq!(Psn::new(0xff_ffff).next().get(), 0);
        assert_eq!(Psn::new(0).prev().get(), 0xff_ffff);
        assert_eq!(Psn::new(0xff_fffe).add(5).get(), 3);
    }

    #[test]
    fn distance_has_a_sign_across_the_wrap() {
        assert_eq!(Psn::new(2).since(Psn::new(0xff_ffff)), 3);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(2)), -3);
        assert_eq!(Psn::new(7).since(Psn::new(7)), 0);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
    }
}
