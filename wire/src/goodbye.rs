//! Why an endpoint says goodbye.

use std::fmt;

/// The reason in a goodbye message. It is for logs and for the error that the peer's user sees; every reason
/// closes the endpoint in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GoodbyeReason {
    /// The program closed or dropped the endpoint.
    Closed,
    /// The whole worker or process is shutting down.
    ShuttingDown,
    /// The peer broke the protocol: its message could not be decoded, or came where none may come.
    ProtocolError,
    /// The worker failed for a reason that is not the peer's.
    WorkerError,
    /// The device or its port failed.
    DeviceError,
    /// A message handler of the program panicked.
    HandlerPanicked,
    /// A code that this version does not know. [`GoodbyeReason::from`] makes it only of codes that have no variant.
    Unknown(u16),
}

impl GoodbyeReason {
    /// The code on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Closed => 1,
            Self::ShuttingDown => 2,
            Self::ProtocolError => 3,
            Self::WorkerError => 4,
            Self::DeviceError => 5,
            Self::HandlerPanicked => 6,
            Self::Unknown(code) => code,
        }
    }
}

impl From<u16> for GoodbyeReason {
    fn from(code: u16) -> Self {
        match code {
            1 => Self::Closed,
            2 => Self::ShuttingDown,
            3 => Self::ProtocolError,
            4 => Self::WorkerError,
            5 => Self::DeviceError,
            6 => Self::HandlerPanicked,
            code => Self::Unknown(code),
        }
    }
}

impl fmt::Display for GoodbyeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer's program closed the endpoint"),
            Self::ShuttingDown => f.write_str("the peer is shutting down"),
            Self::ProtocolError => f.write_str("the peer could not accept what this side sent"),
            Self::WorkerError => f.write_str("the peer's worker failed"),
            Self::DeviceError => f.write_str("the peer's device or port failed"),
            Self::HandlerPanicked => f.write_str("a message handler of the peer's program panicked"),
            Self::Unknown(code) => write!(f, "the peer gave reason {code}, which this version does not know"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in 0..=u16::MAX {
            assert_eq!(GoodbyeReason::from(code).code(), code);
        }
        assert_eq!(GoodbyeReason::from(0), GoodbyeReason::Unknown(0));
        assert_eq!(GoodbyeReason::from(7), GoodbyeReason::Unknown(7));
    }
}
