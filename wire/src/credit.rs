//! Data credits, as the cumulative count that travels in every header.

use std::fmt;

/// How many data fragments, counted from the start of the link and modulo 2^32, the receiver of a header may send.
///
/// Fragment number `n` (the first is 0) may be sent while `n` is less than the limit, compared as serial numbers
/// (RFC 1982), so that the count may wrap. The count is cumulative: a repeated or overtaken grant does no harm.
/// A grant may not lead what was sent by 2^31 or more: beyond that the comparison loses its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CreditLimit(u32);

impl CreditLimit {
    /// The limit `count`.
    pub const fn new(count: u32) -> Self {
        Self(count)
    }

    /// The count as it is on the wire.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The limit after granting `credits` more.
    #[must_use]
    pub const fn raised_by(self, credits: u32) -> Self {
        Self(self.0.wrapping_add(credits))
    }

    /// Whether data fragment number `n` may be sent.
    pub const fn allows(self, n: u32) -> bool {
        self.since(Self(n)) > 0
    }

    /// How many fragments may be sent by a sender that has sent `sent` so far; 0 if it has sent more than it was granted.
    pub const fn available(self, sent: u32) -> u32 {
        let left = self.since(Self(sent));
        if left > 0 { left.cast_unsigned() } else { 0 }
    }

    /// How many credits this limit grants beyond `other`: negative if it grants fewer.
    pub const fn since(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// The later of two limits: what a receiver of headers keeps.
    #[must_use]
    pub const fn later(self, other: Self) -> Self {
        if other.since(self) > 0 { other } else { self }
    }
}

impl fmt::Debug for CreditLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CreditLimit({})", self.0)
    }
}

impl fmt::Display for CreditLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_allows_the_fragments_before_it() {
        let limit = CreditLimit::new(2);
        assert!(limit.allows(0) && limit.allows(1));
        assert!(!limit.allows(2) && !limit.allows(3));
        assert_eq!([0, 1, 2, 3].map(|sent| limit.available(sent)), [2, 1, 0, 0]);
    }

    #[test]
    fn counting_goes_on_across_the_wrap() {
        let limit = CreditLimit::new(u32::MAX - 1).raised_by(4);
        assert_eq!(limit.get(), 2);
        assert!(limit.allows(u32::MAX) && limit.allows(0) && limit.allows(1));
        assert!(!limit.allows(2));
        assert_eq!(limit.available(u32::MAX), 3);
    }

    #[test]
    fn an_overtaken_grant_changes_nothing() {
        let (old, new) = (CreditLimit::new(u32::MAX), CreditLimit::new(5));
        assert_eq!(old.later(new), new);
        assert_eq!(new.later(old), new);
        assert_eq!(new.since(old), 6);
        assert_eq!(old.since(new), -6);
    }
}
