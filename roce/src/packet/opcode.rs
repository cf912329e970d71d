//! What a packet does, and which headers that takes.

/// What a packet does.
///
/// The code's low 5 bits select the operation, its high 3 bits the transport, which for RC are 0 (IBTA volume 1, section 9.2.1,
/// table 38). 0x15 is reserved. The congestion notification is of no transport (annex A17, section A17.9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the specification's")]
#[repr(u8)]
pub enum Opcode {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    CongestionNotification = 0x81,
}

impl Opcode {
    /// The operation of this code, if it is one of RC or the congestion notification.
    pub fn from_code(code: u8) -> Option<Self> {
        use Opcode::*;
        if code == CongestionNotification as u8 {
            return Some(CongestionNotification);
        }
        const ALL: [Option<Opcode>; 0x18] = [
            Some(SendFirst),
            Some(SendMiddle),
            Some(SendLast),
            Some(SendLastImm),
            Some(SendOnly),
            Some(SendOnlyImm),
            Some(WriteFirst),
            Some(WriteMiddle),
            Some(WriteLast),
            Some(WriteLastImm),
            Some(WriteOnly),
            Some(WriteOnlyImm),
            Some(ReadRequest),
            Some(ReadResponseFirst),
            Some(ReadResponseMiddle),
            Some(ReadResponseLast),
            Some(ReadResponseOnly),
            Some(Acknowledge),
            Some(AtomicAcknowledge),
            Some(CompareSwap),
            Some(FetchAdd),
            None,
            Some(SendLastInvalidate),
            Some(SendOnlyInvalidate),
        ];
        ALL.get(usize::from(code)).copied().flatten()
    }

    /// Whether it goes from responder to requester.
    pub fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    // What follows the BTH: IBTA volume 1, table 38. An operation's headers stand in the order in which they are listed here.

    /// Whether an RDMA extended transport header (RETH) follows.
    pub fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm | Self::ReadRequest
        )
    }

    /// Whether an atomic extended transport header (AtomicETH) follows.
    pub fn has_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether an acknowledge extended transport header (AETH) follows.
    pub fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Whether the original value (AtomicAckETH) follows.
    pub fn has_original(self) -> bool {
        self == Self::AtomicAcknowledge
    }

    /// Whether immediate data (ImmDt) follows.
    pub fn has_imm(self) -> bool {
        matches!(
            self,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm
        )
    }

    /// Whether the key to invalidate (IETH) follows.
    pub fn has_invalidate(self) -> bool {
        matches!(self, Self::SendLastInvalidate | Self::SendOnlyInvalidate)
    }

    /// Whether 16 bytes follow that are reserved.
    pub fn has_reserved(self) -> bool {
        self == Self::CongestionNotification
    }

    /// Whether a payload may follow.
    pub fn has_payload(self) -> bool {
        !matches!(
            self,
            Self::ReadRequest
                | Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::CongestionNotification
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rc_and_the_congestion_notification() {
        let known: Vec<u8> = (0..=u8::MAX)
            .filter(|&code| Opcode::from_code(code).is_some())
            .collect();
        let expected: Vec<u8> = (0..=0x17).filter(|&code| code != 0x15).chain([0x81]).collect();
        assert_eq!(known, expected);
        for code in known {
            assert_eq!(Opcode::from_code(code).map(|opcode| opcode as u8), Some(code));
        }
    }

    /// Table 38, row by row.
    #[test]
    fn every_operation_has_its_headers() {
        let headers = |opcode: Opcode| {
            [
                (opcode.has_reth(), "RETH"),
                (opcode.has_atomic(), "AtomicETH"),
                (opcode.has_aeth(), "AETH"),
                (opcode.has_original(), "AtomicAckETH"),
                (opcode.has_imm(), "ImmDt"),
                (opcode.has_invalidate(), "IETH"),
                (opcode.has_payload(), "payload"),
            ]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect::<Vec<_>>()
            .join(" ")
        };
        let table = [
            "payload",            // SEND first
            "payload",            // SEND middle
            "payload",            // SEND last
            "ImmDt payload",      // SEND last with immediate
            "payload",            // SEND only
            "ImmDt payload",      // SEND only with immediate
            "RETH payload",       // WRITE first
            "payload",            // WRITE middle
            "payload",            // WRITE last
            "ImmDt payload",      // WRITE last with immediate
            "RETH payload",       // WRITE only
            "RETH ImmDt payload", // WRITE only with immediate
            "RETH",               // READ request
            "AETH payload",       // READ response first
            "payload",            // READ response middle
            "AETH payload",       // READ response last
            "AETH payload",       // READ response only
            "AETH",               // acknowledge
            "AETH AtomicAckETH",  // ATOMIC acknowledge
            "AtomicETH",          // compare and swap
            "AtomicETH",          // fetch and add
            "",                   // reserved
            "IETH payload",       // SEND last with invalidate
            "IETH payload",       // SEND only with invalidate
        ];
        for (code, expected) in table.iter().enumerate() {
            let actual = Opcode::from_code(code as u8).map(headers).unwrap_or_default();
            assert_eq!(actual, *expected, "{code:#04x}");
        }
    }

    #[test]
    fn responses_are_what_the_responder_sends() {
        let responses: Vec<u8> = (0..=0x17)
            .filter(|&code| Opcode::from_code(code).is_some_and(Opcode::is_response))
            .collect();
        assert_eq!(responses, [0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12]);
    }
}
