//! What an endpoint is set up with.

use std::time::{Duration, Instant};

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that connected: it confirms the link first.
    Client,
    /// The one that listened.
    Server,
}

/// This side's limits and intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data credits that the peer has at most: receives that this side keeps posted for it, beside
    /// [`CONTROL_RESERVE`](crate::CONTROL_RESERVE). At least 2.
    pub window: u32,
    /// The largest message that this side accepts, user header included, in bytes.
    pub max_message: u32,
    /// Bytes that may wait for credits or for room in the send queue, where each message counts 40 more for its header. One
    /// message is always let in, however large.
    pub max_queued_bytes: usize,
    /// How long the peer may be silent before it is probed. `None` never probes.
    pub keepalive: Option<Duration>,
    /// How long opening may take.
    pub open_timeout: Duration,
    /// How long an orderly close may take, from the call to the peer's answer.
    pub close_timeout: Duration,
    /// Keepalive probes fall on multiples of a quarter of `keepalive` after this moment: give all endpoints of a worker the
    /// same, so that a thousand idle ones cost a wake-up or two a second.
    pub epoch: Instant,
}

impl Config {
    /// A window of 32 fragments, messages of up to 16 MiB, 4 MiB of queue, keepalive after 2 s, 5 s to open and to close.
    pub fn new(epoch: Instant) -> Self {
        Self {
            window: 32,
            max_message: 16 << 20,
            max_queued_bytes: 4 << 20,
            keepalive: Some(Duration::from_secs(2)),
            open_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            epoch,
        }
    }
}

/// What the peer told of itself in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Data credits that it grants at the start.
    pub credits: u32,
    /// The largest segment that it can receive, header included, in bytes.
    pub segment_size: u32,
    /// The largest message that it accepts, user header included, in bytes.
    pub max_message: u32,
}
