//! Flow control on one RC link: data credits and control credits, both ways.

use adverb_wire::CreditLimit;

use crate::ProtocolError;

/// Credit messages and confirmations that may be under way without being acknowledged, each way.
pub const CONTROL_CREDITS: u32 = 2;

/// Receives that an endpoint keeps posted beside its window: one for each control credit, one for the goodbye and one for its
/// answer, which are sent once each and need no credit. So a control message never waits for a data credit, and none meets an
/// empty receive queue.
pub const CONTROL_RESERVE: u32 = CONTROL_CREDITS + 2;

/// The counts of one link.
///
/// All are cumulative and wrap, so that a lost or repeated grant cannot make the two sides disagree for good.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// Data fragments sent.
    sent: u32,
    /// Data fragments that the peer allows in all, as far as they are used: see [`Link::use_grants`].
    limit: CreditLimit,
    /// What the peer's headers said of that.
    heard: CreditLimit,
    /// Data fragments received.
    received: u32,
    /// Data fragments received whose receive is posted again.
    returned: u32,
    /// Receives kept posted for the peer.
    window: u32,
    /// The limit that the peer was last told.
    advertised: CreditLimit,
    /// Control messages sent: what the peer's `control_ack` counts.
    control_sent: u8,
    /// The peer's `control_ack`.
    control_acked: u8,
    /// Control messages received.
    control_received: u8,
    /// Control messages received whose receive is posted again: our `control_ack`.
    control_returned: u8,
}

impl Link {
    pub(crate) fn new(window: u32, peer_credits: u32) -> Self {
        Self {
            sent: 0,
            limit: CreditLimit::new(0),
            heard: CreditLimit::new(peer_credits),
            received: 0,
            returned: 0,
            window,
            advertised: CreditLimit::new(window),
            control_sent: 0,
            control_acked: 0,
            control_received: 0,
            control_returned: 0,
        }
    }

    /// Data fragments that may be sent now.
    pub(crate) fn credits(&self) -> u32 {
        self.limit.available(self.sent)
    }

    /// Takes one data credit.
    pub(crate) fn take_credit(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Whether a control message that needs a credit may be sent now.
    pub(crate) fn has_control_credit(&self) -> bool {
        // Goodbye and its answer are the last messages of a side: counting them here can only make it more careful.
        u32::from(self.control_sent.wrapping_sub(self.control_acked)) < CONTROL_CREDITS
    }

    /// Counts a control message as sent.
    pub(crate) fn control_sent(&mut self) {
        self.control_sent = self.control_sent.wrapping_add(1);
    }

    /// What goes into the next header: the limit for the peer, which counts as told, and our `control_ack`.
    pub(crate) fn advertise(&mut self) -> (CreditLimit, u8) {
        self.advertised = self.grant();
        (self.advertised, self.control_returned)
    }

    /// Takes what a header of the peer says, which may be a control message's.
    pub(crate) fn header(
        &mut self,
        limit: CreditLimit,
        control_ack: u8,
        control: bool,
    ) -> Result<(), ProtocolError> {
        let in_flight = self.control_sent.wrapping_sub(self.control_acked);
        let newly = control_ack.wrapping_sub(self.control_acked);
        if newly > in_flight {
            return Err(ProtocolError::AckOfUnsent {
                what: "control messages (modulo 256)",
                acked: control_ack.into(),
                sent: self.control_sent.into(),
            });
        }
        self.control_acked = control_ack;
        self.heard = self.heard.later(limit);
        self.control_received = self.control_received.wrapping_add(control.into());
        self.use_grants();
        Ok(())
    }

    /// Uses what the peer granted, unless the receive of a control message is still to be posted again.
    ///
    /// So the first data that goes out by a grant acknowledges the message that brought it. Without that, all of a grant's
    /// credits could go out before the acknowledgement can: the peer, out of control credits, could grant no more, and this
    /// side, out of data credits, would have nothing to acknowledge with.
    fn use_grants(&mut self) {
        if self.control_received == self.control_returned {
            self.limit = self.heard;
        }
    }

    /// Counts a data fragment as received.
    pub(crate) fn data_received(&mut self) -> Result<(), ProtocolError> {
        if !self.advertised.allows(self.received) {
            return Err(ProtocolError::CreditOverrun {
                fragment: self.received,
                limit: self.advertised.get(),
            });
        }
        self.received = self.received.wrapping_add(1);
        Ok(())
    }

    /// The receive of a data fragment is posted again.
    pub(crate) fn data_returned(&mut self) {
        self.returned = self.returned.wrapping_add(1);
    }

    /// The receive of a control message is posted again.
    pub(crate) fn control_returned(&mut self) {
        self.control_returned = self.control_returned.wrapping_add(1);
        self.use_grants();
    }

    /// Whether the peer should be told of new credits even if no message goes its way: at a quarter of the window, or of any
    /// at all if it has used up those that it knows of. It may wait for just one, while the program keeps all other receives.
    pub(crate) fn grant_due(&self) -> bool {
        let untold = self.grant().since(self.advertised);
        untold >= (self.window / 4).max(1).cast_signed()
            || untold > 0 && !self.advertised.allows(self.received)
    }

    /// The limit for the peer now.
    fn grant(&self) -> CreditLimit {
        CreditLimit::new(self.window).raised_by(self.returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_window_is_worth_a_grant() {
        let mut link = Link::new(8, 8);
        for _ in 0..2 {
            assert!(!link.grant_due());
            link.data_received().unwrap();
            link.data_returned();
        }
        assert!(link.grant_due());
        assert_eq!(link.advertise(), (CreditLimit::new(10), 0));
        assert!(!link.grant_due());
    }

    #[test]
    fn a_peer_without_credits_is_told_of_a_single_one() {
        let mut link = Link::new(8, 8);
        (0..8).for_each(|_| link.data_received().unwrap());
        assert!(!link.grant_due());
        link.data_returned();
        assert!(link.grant_due());
    }

    #[test]
    fn a_grant_is_used_when_its_message_can_be_acknowledged() {
        let mut link = Link::new(2, 2);
        assert_eq!(link.credits(), 0, "the confirmation has not come");
        link.header(CreditLimit::new(2), 0, true).unwrap();
        assert_eq!(link.credits(), 0);
        link.control_returned();
        assert_eq!(link.credits(), 2);

        link.header(CreditLimit::new(3), 0, true).unwrap();
        link.header(CreditLimit::new(4), 0, false).unwrap();
        assert_eq!(link.credits(), 2);
        link.control_returned();
        assert_eq!(link.credits(), 4);
        link.header(CreditLimit::new(5), 0, false).unwrap();
        assert_eq!(link.credits(), 5);
    }

    #[test]
    fn the_smallest_window_grants_every_fragment() {
        let mut link = Link::new(2, 2);
        link.data_received().unwrap();
        link.data_returned();
        assert!(link.grant_due());
    }

    #[test]
    fn a_fragment_beyond_the_credits_is_the_peers_fault() {
        let mut link = Link::new(2, 2);
        link.data_received().unwrap();
        link.data_received().unwrap();
        // The receives are free again, but the peer does not know that yet.
        link.data_returned();
        assert_eq!(
            link.data_received(),
            Err(ProtocolError::CreditOverrun {
                fragment: 2,
                limit: 2
            })
        );
    }

    #[test]
    fn counts_wrap() {
        let mut link = Link::new(4, 4);
        for i in 0..1000_u32 {
            assert!(link.has_control_credit());
            link.control_sent();
            link.header(CreditLimit::new(4 + i), (i + 1) as u8, true).unwrap();
            link.control_returned();
        }
        assert_eq!(link.credits(), 4 + 999);
        assert!(matches!(
            link.header(CreditLimit::new(4), 1, false),
            Err(ProtocolError::AckOfUnsent { .. })
        ));
    }
}
