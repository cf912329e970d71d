//! What adverb packs into a work request's 64-bit id.

use std::fmt;

/// Which queue a work request was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WrKind {
    /// A send queue.
    Send = 1,
    /// A receive queue, shared or not.
    Recv = 2,
}

/// A work request's id: kind, owner with its generation, and a ticket within the owner.
///
/// From the top: 4 bits kind, 16 bits generation, 20 bits owner, 24 bits ticket. The generation tells a late completion of
/// an owner that is gone from one of the owner that took its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WrId(u64);

impl WrId {
    /// Owners are less than this.
    pub const OWNERS: u32 = 1 << 20;
    /// Tickets count modulo this.
    pub const TICKETS: u32 = 1 << 24;

    /// Packs an id. Bits of `owner` and `ticket` beyond their fields are cut off.
    pub const fn new(kind: WrKind, owner: u32, generation: u16, ticket: u32) -> Self {
        let owner = (owner % Self::OWNERS) as u64;
        let ticket = (ticket % Self::TICKETS) as u64;
        Self((kind as u64) << 60 | (generation as u64) << 44 | owner << 24 | ticket)
    }

    /// Unpacks an id that a completion brought. `None` if its kind is none of ours.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        match raw >> 60 {
            1 | 2 => Some(Self(raw)),
            _ => None,
        }
    }

    /// The id as a work request carries it.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Which queue.
    pub const fn kind(self) -> WrKind {
        if self.0 >> 60 == WrKind::Send as u64 {
            WrKind::Send
        } else {
            WrKind::Recv
        }
    }

    /// The owner's index.
    pub const fn owner(self) -> u32 {
        (self.0 >> 24) as u32 % Self::OWNERS
    }

    /// The owner's generation.
    pub const fn generation(self) -> u16 {
        (self.0 >> 44) as u16
    }

    /// The ticket, less than [`Self::TICKETS`].
    pub const fn ticket(self) -> u32 {
        self.0 as u32 % Self::TICKETS
    }
}

impl fmt::Debug for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrId")
            .field("kind", &self.kind())
            .field("owner", &self.owner())
            .field("generation", &self.generation())
            .field("ticket", &self.ticket())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_into_each_other() {
        for kind in [WrKind::Send, WrKind::Recv] {
            for owner in [0, 1, 0x8_0000, WrId::OWNERS - 1] {
                for generation in [0, 1, 0x8000, u16::MAX] {
                    for ticket in [0, 1, 0x80_0000, WrId::TICKETS - 1] {
                        let id = WrId::from_raw(WrId::new(kind, owner, generation, ticket).raw()).unwrap();
                        assert_eq!(
                            (id.kind(), id.owner(), id.generation(), id.ticket()),
                            (kind, owner, generation, ticket)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn an_id_of_somebody_else_is_not_ours() {
        assert_eq!(WrId::from_raw(0), None);
        assert_eq!(WrId::from_raw(u64::MAX), None);
    }
}
