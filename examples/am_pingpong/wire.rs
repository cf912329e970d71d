//! The messages that the two sides exchange.

/// Echo: comes back with the same payload as [`PONG`].
pub(crate) const PING: u16 = 1;
/// The answer to [`PING`].
pub(crate) const PONG: u16 = 2;
/// One of a stream. The header says how many there were, if an answer is wanted.
pub(crate) const STREAM: u16 = 3;
/// The answer to [`STREAM`]: its header.
pub(crate) const STREAMED: u16 = 4;
/// What has the server's worker cost so far?
pub(crate) const COST: u16 = 5;
/// The answer to [`COST`]: a [`Cost`].
pub(crate) const COST_IS: u16 = 6;

/// What a server's process has used so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Wake-ups of its worker.
    pub(crate) wakeups: u64,
    /// CPU time of its process, in µs.
    pub(crate) cpu_us: u64,
}

impl Cost {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.wakeups.to_le_bytes());
        bytes[8..].copy_from_slice(&self.cpu_us.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (wakeups, rest) = bytes.split_first_chunk()?;
        let (cpu_us, _) = rest.split_first_chunk()?;
        Some(Self {
            wakeups: u64::from_le_bytes(*wakeups),
            cpu_us: u64::from_le_bytes(*cpu_us),
        })
    }
}
