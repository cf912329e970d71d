//! Feature bits, and what two sides make of each other's.

use std::fmt;

use bitflags::bitflags;
use thiserror::Error;

bitflags! {
    /// Abilities beyond what the version of the format implies, one bit each.
    ///
    /// No bit has a meaning yet. Bits that this version does not know are kept: an offer of them is harmless,
    /// and a demand for them is refused with the bits named.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Features: u64 {
        const _ = !0;
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.bits())
    }
}

/// What one side can do and what it cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FeatureOffer {
    /// Features that this side will use if the other has them too.
    pub offered: Features,
    /// Features without which this side does not connect. They count as offered.
    pub required: Features,
}

impl FeatureOffer {
    /// The features to use: those that both sides offer. Both come to the same answer.
    ///
    /// # Errors
    /// [`MissingFeatures`] if either side requires what the other does not offer.
    pub fn negotiate(self, peer: Self) -> Result<Features, MissingFeatures> {
        let (ours, theirs) = (self.offered | self.required, peer.offered | peer.required);
        let missing = MissingFeatures {
            here: peer.required.difference(ours),
            at_peer: self.required.difference(theirs),
        };
        if missing == MissingFeatures::default() {
            Ok(ours & theirs)
        } else {
            Err(missing)
        }
    }
}

/// One side requires features that the other does not offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Error)]
#[error(
    "features missing: this side lacks {here} of those the peer requires, the peer lacks {at_peer} of those this side \
     requires; upgrade that side or require less"
)]
pub struct MissingFeatures {
    /// What the peer requires and this side lacks.
    pub here: Features,
    /// What this side requires and the peer lacks.
    pub at_peer: Features,
}

impl MissingFeatures {
    /// The same, as the peer sees it.
    #[must_use]
    pub const fn swapped(self) -> Self {
        Self {
            here: self.at_peer,
            at_peer: self.here,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(offered: u64, required: u64) -> FeatureOffer {
        FeatureOffer {
            offered: Features::from_bits_retain(offered),
            required: Features::from_bits_retain(required),
        }
    }

    #[test]
    fn what_both_sides_offer_is_used() {
        let (a, b) = (offer(0b0111, 0b0001), offer(0b1001, 0b0010));
        assert_eq!(a.negotiate(b), Ok(Features::from_bits_retain(0b0011)));
        assert_eq!(b.negotiate(a), a.negotiate(b));
    }

    #[test]
    fn what_either_side_lacks_is_named() {
        let (a, b) = (offer(0, 0b0001), offer(0, 1 << 63));
        let missing = MissingFeatures {
            here: Features::from_bits_retain(1 << 63),
            at_peer: Features::from_bits_retain(1),
        };
        assert_eq!(a.negotiate(b), Err(missing));
        assert_eq!(b.negotiate(a), Err(missing.swapped()));
    }
}
