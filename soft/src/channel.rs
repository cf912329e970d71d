//! Completion channels: the queues whose events wait in them.

use std::sync::Weak;

use adverb_verbs::Bell;

use crate::cq::CqCore;

/// A completion channel. A queue that is gone takes its events with it.
pub(crate) type Channel = Bell<Weak<CqCore>>;

/// Takes the next event of a queue that is still there, counts it as unacknowledged there, and gives the queue's cookie.
pub(crate) fn next_event(channel: &Channel) -> Option<u64> {
    while let Some(cq) = channel.pop() {
        if let Some(cq) = cq.upgrade() {
            cq.event_taken();
            return Some(cq.cookie);
        }
    }
    None
}
