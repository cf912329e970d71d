//! The header at the start of every SEND.

use thiserror::Error;

use crate::bytes::{Reader, Writer};
use crate::{CreditLimit, GoodbyeReason, Role};

/// What stands at the start of every SEND: grants and acknowledgements for the other direction, and the message's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many control messages the sender of this header has consumed on this link, modulo 256.
    /// It gives their credits back.
    pub control_ack: u8,
    /// How many data fragments the receiver of this header may send on this link in all.
    pub credit_limit: CreditLimit,
    /// Every message with a sequence below this has been handed to the program of this header's sender.
    /// It counts for the link group, not for the link.
    pub ack: u64,
    /// What the message is.
    pub kind: Kind,
}

/// The kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A fragment of an active message. The only kind that takes a data credit; all others are control messages.
    Data(Data),
    /// The first message on a link, each way: proves that the link reaches the peer that the handshake was made with.
    Confirm(Confirm),
    /// Carries what every header carries (a grant, acknowledgements) when no other message is there to carry it.
    Credit,
    /// The sender will send no more data.
    Goodbye(Goodbye),
    /// The sender has received the goodbye and everything before it.
    GoodbyeAnswer,
}

/// One fragment of an active message: the message is the user header followed by the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The message's number in its link group and direction; the first is 0.
    pub seq: u64,
    /// Which handler the message is for.
    pub am_id: u16,
    /// How many bytes at the start of the message are the user's header.
    pub header_len: u16,
    /// The length of the whole message, user header included, in bytes.
    pub message_len: u32,
    /// Where in the message this fragment starts, in bytes.
    pub offset: u32,
    /// What the message expects, or answers.
    pub role: Role,
    /// The length of this fragment in bytes. Not on the wire: it is what remains of the SEND after the header.
    pub fragment_len: u32,
}

/// The body of [`Kind::Confirm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// The connection's nonce, from the handshake.
    pub nonce: u64,
    /// The index of this link in its group; the first is 0.
    pub link: u32,
}

/// The body of [`Kind::Goodbye`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goodbye {
    /// Why the sender closes.
    pub reason: GoodbyeReason,
    /// How many messages the sender has sent in all, which is the sequence that the next would have had.
    /// Tells the receiver what it still has to wait for.
    pub final_seq: u64,
}

/// Why a SEND was not a message of adverb. Typically the peer's fault: close the endpoint with
/// [`GoodbyeReason::ProtocolError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Fewer bytes than the header of this kind has, or than any header has.
    #[error("decoding a message header: {got} bytes are fewer than its {needed}; close the endpoint")]
    Truncated {
        /// How many bytes the header needs.
        needed: usize,
        /// How many there were.
        got: usize,
    },
    /// A kind that this version does not know. The handshake allows none, so the peer is at fault.
    #[error("decoding a message header: unknown kind {0}; close the endpoint")]
    UnknownKind(u8),
    /// Flag bits that have no meaning for this kind.
    #[error("decoding a message header: unknown flags {flags:#04x} for kind {kind}; close the endpoint")]
    UnknownFlags {
        /// The kind.
        kind: u8,
        /// The unknown bits alone.
        flags: u8,
    },
    /// A message that is more than one of a request, a reply and a refusal.
    #[error("decoding a data header: flags {0:#04x} contradict each other; close the endpoint")]
    ContradictoryFlags(u8),
    /// The fragment reaches beyond its message.
    #[error(
        "decoding a data header: {fragment_len} bytes at offset {offset} exceed the message's {message_len}; \
         close the endpoint"
    )]
    FragmentOutOfRange {
        /// Where the fragment starts.
        offset: u32,
        /// How long it is.
        fragment_len: usize,
        /// How long the message is.
        message_len: u32,
    },
    /// The user header is longer than the message that it is a part of.
    #[error(
        "decoding a data header: a user header of {header_len} bytes exceeds the message's {message_len}; \
         close the endpoint"
    )]
    UserHeaderTooLong {
        /// The user header's length.
        header_len: u16,
        /// The message's length.
        message_len: u32,
    },
    /// A fragment without bytes of a message that has some.
    #[error(
        "decoding a data header: empty fragment at offset {offset} of a message of {message_len} bytes; \
         close the endpoint"
    )]
    EmptyFragment {
        /// Where the fragment starts.
        offset: u32,
        /// How long the message is.
        message_len: u32,
    },
    /// The LAST flag is set on a fragment that does not end the message, or missing on the one that does.
    #[error(
        "decoding a data header: flag LAST is {last} on the fragment that ends at {end} of {message_len} bytes; \
         close the endpoint"
    )]
    WrongLastFlag {
        /// Whether the flag was set.
        last: bool,
        /// Where the fragment ends.
        end: u64,
        /// How long the message is.
        message_len: u32,
    },
}

impl Header {
    /// The length of the part that all kinds share, in bytes. No header is shorter.
    pub const PREFIX_LEN: usize = 16;
    /// The length of a [`Kind::Data`] header, in bytes. A multiple of 8: the fragment is aligned if the buffer is.
    pub const DATA_LEN: usize = Self::PREFIX_LEN + 24;
    /// The length of the longest header, in bytes.
    pub const MAX_LEN: usize = Self::DATA_LEN;

    /// Reads the header at the start of a SEND, and returns with it the fragment that follows.
    ///
    /// Only [`Kind::Data`] has a fragment. What may follow the header of another kind is left to later versions:
    /// it is ignored, and the slice returned is empty.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no message, or if the fragment does not fit the message that it claims to be of.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let truncated = |needed| DecodeError::Truncated {
            needed,
            got: bytes.len(),
        };
        let mut reader = Reader::new(bytes);
        let prefix = Prefix::read(&mut reader).ok_or(truncated(Self::PREFIX_LEN))?;

        let unknown_flags =
            prefix.flags & !known_flags(prefix.kind).ok_or(DecodeError::UnknownKind(prefix.kind))?;
        if unknown_flags != 0 {
            return Err(DecodeError::UnknownFlags {
                kind: prefix.kind,
                flags: unknown_flags,
            });
        }

        let mut fragment: &[u8] = &[];
        let kind = match prefix.kind {
            code::DATA => {
                let mut data = Data::read(&mut reader).ok_or(truncated(Self::DATA_LEN))?;
                data.set_role(prefix.flags & !LAST)?;
                fragment = reader.rest();
                data.set_fragment_len(fragment.len())?;
                data.check(prefix.flags & LAST != 0)?;
                Kind::Data(data)
            }
            code::CONFIRM => Kind::Confirm(Confirm::read(&mut reader).ok_or(truncated(CONFIRM_LEN))?),
            code::CREDIT => Kind::Credit,
            code::GOODBYE => Kind::Goodbye(Goodbye::read(&mut reader).ok_or(truncated(GOODBYE_LEN))?),
            code::GOODBYE_ANSWER => Kind::GoodbyeAnswer,
            kind => return Err(DecodeError::UnknownKind(kind)),
        };
        let Prefix {
            control_ack,
            credit_limit,
            ack,
            ..
        } = prefix;
        Ok((
            Self {
                control_ack,
                credit_limit,
                ack,
                kind,
            },
            fragment,
        ))
    }

    /// Writes the header to the start of `out` and returns its length, which is [`Header::encoded_len`].
    /// The fragment, if there is one, belongs directly behind it. The rest of `out` is left as it is.
    ///
    /// Nothing is checked: a [`Data`] whose lengths contradict each other is refused by the peer.
    #[inline]
    pub fn encode(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        let mut writer = Writer::new(out);
        let flags = match &self.kind {
            Kind::Data(data) => data.flags(),
            _ => 0,
        };
        writer.u8(self.kind.code());
        writer.u8(flags);
        writer.u8(self.control_ack);
        writer.u8(0);
        writer.u32(self.credit_limit.get());
        writer.u64(self.ack);
        match &self.kind {
            Kind::Data(data) => data.write(&mut writer),
            Kind::Confirm(confirm) => confirm.write(&mut writer),
            Kind::Goodbye(goodbye) => goodbye.write(&mut writer),
            Kind::Credit | Kind::GoodbyeAnswer => {}
        }
        writer.len()
    }

    /// The length of this header in bytes, without the fragment.
    pub const fn encoded_len(&self) -> usize {
        match self.kind {
            Kind::Data(_) => Self::DATA_LEN,
            Kind::Confirm(_) => CONFIRM_LEN,
            Kind::Goodbye(_) => GOODBYE_LEN,
            Kind::Credit | Kind::GoodbyeAnswer => Self::PREFIX_LEN,
        }
    }
}

impl Kind {
    /// Whether this is a control message: one that takes a control credit and no data credit.
    pub const fn is_control(&self) -> bool {
        !matches!(self, Self::Data(_))
    }

    const fn code(&self) -> u8 {
        match self {
            Self::Data(_) => code::DATA,
            Self::Confirm(_) => code::CONFIRM,
            Self::Credit => code::CREDIT,
            Self::Goodbye(_) => code::GOODBYE,
            Self::GoodbyeAnswer => code::GOODBYE_ANSWER,
        }
    }
}

impl Data {
    /// Whether this fragment ends its message.
    pub const fn is_last(&self) -> bool {
        self.end() == self.message_len as u64
    }

    /// Where this fragment ends in its message. Wider than the fields, so that no sum of them can overflow.
    const fn end(&self) -> u64 {
        self.offset as u64 + self.fragment_len as u64
    }

    #[inline]
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let seq = reader.u64()?;
        let am_id = reader.u16()?;
        let header_len = reader.u16()?;
        let message_len = reader.u32()?;
        let offset = reader.u32()?;
        let reply_to = reader.u32()?;
        Some(Self {
            seq,
            am_id,
            header_len,
            message_len,
            offset,
            // The flags say whether that is right.
            role: Role::Reply(reply_to),
            fragment_len: 0,
        })
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u64(self.seq);
        writer.u16(self.am_id);
        writer.u16(self.header_len);
        writer.u32(self.message_len);
        writer.u32(self.offset);
        writer.u32(match self.role {
            Role::Message | Role::Request => 0,
            Role::Reply(to) | Role::Refusal(to) => to,
        });
    }

    const fn flags(&self) -> u8 {
        let role = match self.role {
            Role::Message => 0,
            Role::Request => REQUEST,
            Role::Reply(_) => REPLY,
            Role::Refusal(_) => REFUSAL,
        };
        role | if self.is_last() { LAST } else { 0 }
    }

    #[inline]
    fn set_role(&mut self, flags: u8) -> Result<(), DecodeError> {
        self.role = match (flags, self.role) {
            (0, _) => Role::Message,
            (REQUEST, _) => Role::Request,
            (REPLY, Role::Reply(_)) => return Ok(()),
            (REFUSAL, Role::Reply(to)) => Role::Refusal(to),
            _ => return Err(DecodeError::ContradictoryFlags(flags)),
        };
        Ok(())
    }

    #[inline]
    fn set_fragment_len(&mut self, len: usize) -> Result<(), DecodeError> {
        let out_of_range = DecodeError::FragmentOutOfRange {
            offset: self.offset,
            fragment_len: len,
            message_len: self.message_len,
        };
        self.fragment_len = u32::try_from(len).map_err(|_| out_of_range)?;
        if self.end() > u64::from(self.message_len) {
            Err(out_of_range)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn check(&self, last: bool) -> Result<(), DecodeError> {
        let &Self {
            header_len,
            message_len,
            offset,
            fragment_len,
            ..
        } = self;
        if u32::from(header_len) > message_len {
            return Err(DecodeError::UserHeaderTooLong {
                header_len,
                message_len,
            });
        }
        if fragment_len == 0 && message_len != 0 {
            return Err(DecodeError::EmptyFragment { offset, message_len });
        }
        if last != self.is_last() {
            return Err(DecodeError::WrongLastFlag {
                last,
                end: self.end(),
                message_len,
            });
        }
        Ok(())
    }
}

impl Confirm {
    #[inline]
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let nonce = reader.u64()?;
        let link = reader.u32()?;
        let _reserved = reader.u32()?;
        Some(Self { nonce, link })
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u64(self.nonce);
        writer.u32(self.link);
        writer.u32(0);
    }
}

impl Goodbye {
    #[inline]
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let reason = reader.u16()?.into();
        let _reserved: [u8; 6] = reader.array()?;
        let final_seq = reader.u64()?;
        Some(Self { reason, final_seq })
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u16(self.reason.code());
        writer.slice(&[0; 6]);
        writer.u64(self.final_seq);
    }
}

/// The bytes that all headers share, not yet interpreted.
struct Prefix {
    kind: u8,
    flags: u8,
    control_ack: u8,
    credit_limit: CreditLimit,
    ack: u64,
}

impl Prefix {
    #[inline]
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let [kind, flags, control_ack, _reserved] = reader.array()?;
        let credit_limit = CreditLimit::new(reader.u32()?);
        let ack = reader.u64()?;
        Some(Self {
            kind,
            flags,
            control_ack,
            credit_limit,
            ack,
        })
    }
}

/// The flags that have a meaning for a kind of message, or `None` if the kind is unknown.
const fn known_flags(kind: u8) -> Option<u8> {
    match kind {
        code::DATA => Some(LAST | REQUEST | REPLY | REFUSAL),
        code::CONFIRM | code::CREDIT | code::GOODBYE | code::GOODBYE_ANSWER => Some(0),
        _ => None,
    }
}

/// Flag of a data header: this fragment ends its message.
const LAST: u8 = 1 << 0;
/// Flag of a data header: the message is a [`Role::Request`].
const REQUEST: u8 = 1 << 1;
/// Flag of a data header: the message is a [`Role::Reply`].
const REPLY: u8 = 1 << 2;
/// Flag of a data header: the message is a [`Role::Refusal`].
const REFUSAL: u8 = 1 << 3;

const CONFIRM_LEN: usize = Header::PREFIX_LEN + 16;
const GOODBYE_LEN: usize = Header::PREFIX_LEN + 16;

/// The kinds' codes. 6 is reserved for a heartbeat.
mod code {
    pub(super) const DATA: u8 = 1;
    pub(super) const CONFIRM: u8 = 2;
    pub(super) const CREDIT: u8 = 3;
    pub(super) const GOODBYE: u8 = 4;
    pub(super) const GOODBYE_ANSWER: u8 = 5;
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data {
        seq: 9,
        am_id: 7,
        header_len: 3,
        message_len: 8,
        offset: 0,
        role: Role::Message,
        fragment_len: 8,
    };

    fn header(kind: Kind) -> Header {
        Header {
            control_ack: 3,
            credit_limit: CreditLimit::new(64),
            ack: 5,
            kind,
        }
    }

    /// The SEND of a fragment, made of zeros.
    fn send(data: Data) -> Vec<u8> {
        let mut bytes = [0; Header::MAX_LEN];
        let len = header(Kind::Data(data)).encode(&mut bytes);
        let mut send = bytes[..len].to_vec();
        send.resize(len + data.fragment_len as usize, 0);
        send
    }

    fn control(kind: Kind) -> Vec<u8> {
        let mut bytes = [0; Header::MAX_LEN];
        let len = header(kind).encode(&mut bytes);
        bytes[..len].to_vec()
    }

    fn every_send() -> Vec<Vec<u8>> {
        vec![
            send(DATA),
            control(Kind::Confirm(Confirm { nonce: 1, link: 0 })),
            control(Kind::Credit),
            control(Kind::Goodbye(Goodbye {
                reason: GoodbyeReason::Closed,
                final_seq: 10,
            })),
            control(Kind::GoodbyeAnswer),
        ]
    }

    #[test]
    fn a_header_is_as_long_as_it_says() {
        let lens = every_send()
            .iter()
            .map(|s| Header::decode(s).unwrap().0.encoded_len())
            .collect::<Vec<_>>();
        assert_eq!(lens, [40, 32, 16, 32, 16]);
        assert!(lens.iter().all(|len| len % 8 == 0 && *len <= Header::MAX_LEN));
    }

    #[test]
    fn a_shortened_header_is_an_error() {
        for send in every_send() {
            let needed = Header::decode(&send).unwrap().0.encoded_len();
            for got in 0..needed {
                let needed = if got < Header::PREFIX_LEN {
                    Header::PREFIX_LEN
                } else {
                    needed
                };
                assert_eq!(
                    Header::decode(&send[..got]),
                    Err(DecodeError::Truncated { needed, got })
                );
            }
        }
    }

    #[test]
    fn a_shortened_fragment_is_an_error() {
        let send = send(DATA);
        assert_eq!(
            Header::decode(&send[..Header::DATA_LEN]),
            Err(DecodeError::EmptyFragment {
                offset: 0,
                message_len: 8
            })
        );
        for len in Header::DATA_LEN + 1..send.len() {
            let end = (len - Header::DATA_LEN) as u64;
            assert_eq!(
                Header::decode(&send[..len]),
                Err(DecodeError::WrongLastFlag {
                    last: true,
                    end,
                    message_len: 8
                })
            );
        }
    }

    #[test]
    fn unknown_kinds_and_flags_are_named() {
        for kind in [0, 6, 7, 255] {
            let mut send = control(Kind::Credit);
            send[0] = kind;
            // The kind is the more telling of the two errors.
            send[1] = 0xff;
            assert_eq!(Header::decode(&send), Err(DecodeError::UnknownKind(kind)));
        }
        for mut send in every_send() {
            send[1] |= 0x90;
            assert_eq!(
                Header::decode(&send),
                Err(DecodeError::UnknownFlags {
                    kind: send[0],
                    flags: 0x90
                })
            );
        }
        let mut send = control(Kind::Credit);
        send[1] = LAST;
        assert_eq!(
            Header::decode(&send),
            Err(DecodeError::UnknownFlags { kind: 3, flags: LAST })
        );
    }

    #[test]
    fn only_the_fragment_that_ends_the_message_is_last() {
        let first = Data {
            fragment_len: 5,
            ..DATA
        };
        let second = Data {
            offset: 5,
            fragment_len: 3,
            ..DATA
        };
        assert!(!first.is_last() && second.is_last());
        for data in [first, second] {
            let mut send = send(data);
            assert_eq!(send[1], u8::from(data.is_last()));
            assert_eq!(Header::decode(&send).unwrap().0.kind, Kind::Data(data));
            send[1] ^= LAST;
            let end = u64::from(data.offset + data.fragment_len);
            assert_eq!(
                Header::decode(&send),
                Err(DecodeError::WrongLastFlag {
                    last: !data.is_last(),
                    end,
                    message_len: 8
                })
            );
        }
    }

    #[test]
    fn a_message_has_one_role() {
        for role in [
            Role::Message,
            Role::Request,
            Role::Reply(77),
            Role::Refusal(u32::MAX),
        ] {
            let data = Data { role, ..DATA };
            assert_eq!(Header::decode(&send(data)).unwrap().0.kind, Kind::Data(data));
        }
        for flags in [
            REQUEST | REPLY,
            REQUEST | REFUSAL,
            REPLY | REFUSAL,
            REQUEST | REPLY | REFUSAL,
        ] {
            let mut send = send(DATA);
            send[1] |= flags;
            assert_eq!(Header::decode(&send), Err(DecodeError::ContradictoryFlags(flags)));
        }
    }

    #[test]
    fn a_fragment_beyond_its_message_is_an_error() {
        for (offset, fragment_len) in [(1, 8), (0, 9), (8, 1), (u32::MAX, 8)] {
            assert_eq!(
                Header::decode(&send(Data {
                    offset,
                    fragment_len,
                    ..DATA
                })),
                Err(DecodeError::FragmentOutOfRange {
                    offset,
                    fragment_len: fragment_len as usize,
                    message_len: 8
                })
            );
        }
    }

    #[test]
    fn a_user_header_beyond_its_message_is_an_error() {
        assert!(
            Header::decode(&send(Data {
                header_len: 8,
                ..DATA
            }))
            .is_ok()
        );
        assert_eq!(
            Header::decode(&send(Data {
                header_len: 9,
                ..DATA
            })),
            Err(DecodeError::UserHeaderTooLong {
                header_len: 9,
                message_len: 8
            })
        );
    }

    #[test]
    fn only_an_empty_message_has_an_empty_fragment() {
        let empty = Data {
            header_len: 0,
            message_len: 0,
            fragment_len: 0,
            ..DATA
        };
        assert!(empty.is_last());
        assert_eq!(Header::decode(&send(empty)).unwrap().0.kind, Kind::Data(empty));
        for offset in [0, 4, 8] {
            assert_eq!(
                Header::decode(&send(Data {
                    offset,
                    fragment_len: 0,
                    ..DATA
                })),
                Err(DecodeError::EmptyFragment {
                    offset,
                    message_len: 8
                })
            );
        }
        assert_eq!(
            Header::decode(&send(Data { offset: 1, ..empty })),
            Err(DecodeError::FragmentOutOfRange {
                offset: 1,
                fragment_len: 0,
                message_len: 0
            })
        );
    }

    #[test]
    fn bytes_after_a_control_header_and_reserved_bytes_are_ignored() {
        for send in every_send().into_iter().skip(1) {
            let (header, _) = Header::decode(&send).unwrap();
            let mut longer = send.clone();
            longer[3] = 0xff;
            longer.extend([0xff; 9]);
            assert_eq!(Header::decode(&longer), Ok((header, &[][..])));
        }
        let mut send = send(DATA);
        send[3] = 0xff;
        send[36..40].fill(0xff);
        assert_eq!(Header::decode(&send).unwrap().0.kind, Kind::Data(DATA));
    }

    #[test]
    fn only_data_takes_a_data_credit() {
        let control = every_send()
            .iter()
            .map(|s| Header::decode(s).unwrap().0.kind.is_control())
            .collect::<Vec<_>>();
        assert_eq!(control, [false, true, true, true, true]);
    }
}
