//! Path MTUs.

use std::fmt;

/// The largest payload of one packet, in bytes (IBTA volume 1, section 9.4; `enum ibv_mtu`).
///
/// Both ends of a connection must use the same: take the smaller of their ports' active MTUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes: what an Ethernet MTU of 1500 allows.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes: what an Ethernet MTU of 4200 or more allows.
    Mtu4096 = 5,
}

impl Mtu {
    /// Every MTU, smallest first.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The code of `enum ibv_mtu`, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl TryFrom<u8> for Mtu {
    type Error = InvalidMtu;

    /// The MTU with this code of `enum ibv_mtu`.
    fn try_from(code: u8) -> Result<Self, InvalidMtu> {
        Self::ALL
            .into_iter()
            .find(|mtu| mtu.code() == code)
            .ok_or(InvalidMtu(code))
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// A code that is none of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMtu(pub u8);

impl fmt::Display for InvalidMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is no MTU code (1 to 5 stand for 256 to 4096 bytes)",
            self.0
        )
    }
}

impl std::error::Error for InvalidMtu {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_sizes_agree_with_ibv_mtu() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::try_from(mtu.code()), Ok(mtu));
        }
        assert_eq!(Mtu::try_from(0), Err(InvalidMtu(0)));
        assert_eq!(Mtu::try_from(6), Err(InvalidMtu(6)));
    }
}
