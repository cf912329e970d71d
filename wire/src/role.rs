//! Requests and what answers them.

use std::fmt;

/// What a message expects, or answers. All its fragments say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing: it is for the handler of its id.
    #[default]
    Message,
    /// A request: one reply or refusal will answer it.
    Request,
    /// The reply to the request whose `seq` has these low 32 bits. So many messages may lie between the two at most.
    Reply(u32),
    /// The same request gets no reply; `am_id` is a [`RefusalReason`]'s code.
    Refusal(u32),
}

/// Why a request got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The peer's program has no handler for requests with this id.
    NoHandler,
    /// The peer's program dropped the request.
    Dropped,
    /// One that this version does not know, by its code.
    Unknown(u16),
}

impl RefusalReason {
    /// As it goes over the wire, in `am_id`.
    pub const fn code(self) -> u16 {
        match self {
            Self::NoHandler => 1,
            Self::Dropped => 2,
            Self::Unknown(code) => code,
        }
    }
}

impl From<u16> for RefusalReason {
    fn from(code: u16) -> Self {
        match code {
            1 => Self::NoHandler,
            2 => Self::Dropped,
            code => Self::Unknown(code),
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHandler => f.write_str("it has no handler for requests with this id"),
            Self::Dropped => f.write_str("it dropped the request"),
            Self::Unknown(code) => write!(f, "for reason {code}, which this version does not know"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_refusals_keep_their_codes() {
        for code in 0..5 {
            assert_eq!(RefusalReason::from(code).code(), code);
        }
    }
}
