//! Versions of the format, and the choice of the one to speak.

use std::fmt;

use thiserror::Error;

/// The versions of the format that one side speaks: all from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    min: u16,
    max: u16,
}

impl VersionRange {
    /// What this crate speaks.
    pub const SUPPORTED: Self = Self { min: 1, max: 1 };

    /// All versions from `min` to `max`, both included.
    ///
    /// # Errors
    /// [`InvalidVersionRange`] if `min` is 0, which is no version, or greater than `max`.
    pub const fn new(min: u16, max: u16) -> Result<Self, InvalidVersionRange> {
        if min >= 1 && min <= max {
            Ok(Self { min, max })
        } else {
            Err(InvalidVersionRange { min, max })
        }
    }

    /// The lowest version.
    pub const fn min(self) -> u16 {
        self.min
    }

    /// The highest version.
    pub const fn max(self) -> u16 {
        self.max
    }

    /// The highest version that both sides speak. Both come to the same answer.
    ///
    /// # Errors
    /// [`NoCommonVersion`] if the ranges do not overlap.
    pub fn negotiate(self, peer: Self) -> Result<u16, NoCommonVersion> {
        let version = self.max.min(peer.max);
        if version >= self.min && version >= peer.min {
            Ok(version)
        } else {
            Err(NoCommonVersion {
                ours: self,
                theirs: peer,
            })
        }
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "version {}", self.max)
        } else {
            write!(f, "versions {} to {}", self.min, self.max)
        }
    }
}

/// Two numbers that bound no range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("lowest version {min} and highest version {max} make no range of versions (1 or more, ascending)")]
pub struct InvalidVersionRange {
    /// The lowest version.
    pub min: u16,
    /// The highest version.
    pub max: u16,
}

/// The two sides have no version in common: one of them must be upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no common wire version: this side speaks {ours}, the peer {theirs}; upgrade the older")]
pub struct NoCommonVersion {
    /// What this side speaks.
    pub ours: VersionRange,
    /// What the peer speaks.
    pub theirs: VersionRange,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u16, max: u16) -> VersionRange {
        VersionRange::new(min, max).unwrap()
    }

    #[test]
    fn both_sides_choose_the_highest_common_version() {
        for (a, b, version) in [
            (range(1, 1), range(1, 1), 1),
            (range(1, 3), range(2, 5), 3),
            (range(1, 9), range(4, 4), 4),
            (range(2, u16::MAX), range(1, u16::MAX), u16::MAX),
        ] {
            assert_eq!(a.negotiate(b), Ok(version));
            assert_eq!(b.negotiate(a), Ok(version));
        }
    }

    #[test]
    fn no_overlap_is_an_error_that_names_both_ranges() {
        let (ours, theirs) = (range(1, 1), range(2, 3));
        let error = ours.negotiate(theirs).unwrap_err();
        assert_eq!(error, NoCommonVersion { ours, theirs });
        assert_eq!(
            theirs.negotiate(ours),
            Err(NoCommonVersion {
                ours: theirs,
                theirs: ours
            })
        );
        assert_eq!(
            error.to_string(),
            "no common wire version: this side speaks version 1, the peer versions 2 to 3; upgrade the older"
        );
    }

    #[test]
    fn a_range_is_never_empty_and_never_holds_0() {
        assert_eq!(
            VersionRange::new(0, 1),
            Err(InvalidVersionRange { min: 0, max: 1 })
        );
        assert_eq!(
            VersionRange::new(2, 1),
            Err(InvalidVersionRange { min: 2, max: 1 })
        );
    }
}
