//! The frames that the handshake travels in, found in a stream of bytes.

use std::fmt;

use crate::HandshakeError;
use crate::bytes::{Reader, Writer};

/// The longest body that a handshake frame may have, in bytes.
pub const MAX_HANDSHAKE: usize = 4096;

/// One frame of the handshake, its body not yet interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The highest version that the sender speaks.
    pub version: u16,
    /// What the frame is.
    pub kind: FrameKind,
    /// The parameters.
    pub body: &'a [u8],
}

/// The kinds of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// From the side that connects: what it is and can.
    Hello = 1,
    /// From the side that listens: the same, in answer.
    Welcome = 2,
    /// From either side: why it does not connect. Nothing follows.
    Refuse = 3,
}

/// What the start of a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek<'a> {
    /// A part of a frame.
    Incomplete {
        /// At least so many bytes are missing. They all belong to this frame, so that who reads no more
        /// never takes from the stream what follows.
        missing: usize,
    },
    /// A whole frame.
    Complete {
        /// The frame.
        frame: Frame<'a>,
        /// What follows it in the stream.
        rest: &'a [u8],
    },
}

impl<'a> Frame<'a> {
    /// The length of what stands before the body, in bytes.
    pub const HEADER_LEN: usize = 12;
    /// The length of the longest frame, in bytes.
    pub const MAX_LEN: usize = Self::HEADER_LEN + MAX_HANDSHAKE;

    /// Looks for a frame at the start of `bytes`, which is what has been read of the stream so far.
    ///
    /// A stranger is told from the first byte that is wrong: no more than that needs to be read.
    ///
    /// # Errors
    /// [`HandshakeError`] if no bytes that may follow can make a frame of this start:
    /// [`NotAdverb`](HandshakeError::NotAdverb), [`UnknownFrameKind`](HandshakeError::UnknownFrameKind) or
    /// [`BodyTooLong`](HandshakeError::BodyTooLong).
    pub fn peek(bytes: &'a [u8]) -> Result<Peek<'a>, HandshakeError> {
        if bytes.iter().zip(&MAGIC).any(|(got, wanted)| got != wanted) {
            return Err(HandshakeError::NotAdverb);
        }
        let mut reader = Reader::new(bytes);
        let Some((version, kind, len)) = Self::read_header(&mut reader) else {
            return Ok(Peek::Incomplete {
                missing: Self::HEADER_LEN - bytes.len(),
            });
        };
        let kind = FrameKind::from_code(kind).ok_or(HandshakeError::UnknownFrameKind(kind))?;
        let body_len = len as usize;
        if body_len > MAX_HANDSHAKE {
            return Err(HandshakeError::BodyTooLong { len });
        }
        Ok(match reader.slice(body_len) {
            Some(body) => Peek::Complete {
                frame: Self { version, kind, body },
                rest: reader.rest(),
            },
            None => Peek::Incomplete {
                missing: body_len - reader.rest().len(),
            },
        })
    }

    fn read_header(reader: &mut Reader<'_>) -> Option<(u16, u8, u32)> {
        let _magic: [u8; 4] = reader.array()?;
        let version = reader.u16()?;
        let [kind, _reserved] = reader.array()?;
        let body_len = reader.u32()?;
        Some((version, kind, body_len))
    }

    /// Writes a frame whose body `write_body` makes, and returns its length.
    pub(crate) fn encode(
        out: &mut [u8; Frame::MAX_LEN],
        version: u16,
        kind: FrameKind,
        write_body: impl FnOnce(&mut Writer<'_>),
    ) -> usize {
        let (header, body) = out.split_at_mut(Self::HEADER_LEN);
        let mut body = Writer::new(body);
        write_body(&mut body);
        let mut header = Writer::new(header);
        header.slice(&MAGIC);
        header.u16(version);
        header.u8(kind as u8);
        header.u8(0);
        header.u32(body.len() as u32);
        header.len() + body.len()
    }
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Hello, Self::Welcome, Self::Refuse]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "Hello",
            Self::Welcome => "Welcome",
            Self::Refuse => "Refuse",
        })
    }
}

/// What every frame starts with.
const MAGIC: [u8; 4] = *b"ADVB";

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: &[u8] = b"ADVB\x02\x01\x03\0\x02\0\0\0hi";

    fn changed(at: usize, byte: u8) -> Vec<u8> {
        let mut bytes = FRAME.to_vec();
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn a_frame_is_found_and_what_follows_is_left() {
        let frame = Frame {
            version: 0x0102,
            kind: FrameKind::Refuse,
            body: b"hi",
        };
        assert_eq!(Frame::peek(FRAME), Ok(Peek::Complete { frame, rest: b"" }));
        let longer = [FRAME, b"ADVB"].concat();
        assert_eq!(Frame::peek(&longer), Ok(Peek::Complete { frame, rest: b"ADVB" }));
        assert_eq!(
            Frame::peek(&changed(7, 0xff)),
            Ok(Peek::Complete { frame, rest: b"" })
        );
    }

    #[test]
    fn reading_what_is_missing_never_reads_past_the_frame() {
        let (mut read, mut reads) = (0, 0);
        while let Peek::Incomplete { missing } = Frame::peek(&FRAME[..read]).unwrap() {
            assert!(missing > 0);
            (read, reads) = (read + missing, reads + 1);
        }
        assert_eq!((read, reads), (FRAME.len(), 2));
        for read in 0..FRAME.len() {
            let end = if read < Frame::HEADER_LEN {
                Frame::HEADER_LEN
            } else {
                FRAME.len()
            };
            assert_eq!(
                Frame::peek(&FRAME[..read]),
                Ok(Peek::Incomplete { missing: end - read })
            );
        }
    }

    #[test]
    fn a_stranger_is_told_from_the_first_wrong_byte() {
        assert_eq!(Frame::peek(b"GET / HTTP/1.1\r\n"), Err(HandshakeError::NotAdverb));
        assert_eq!(Frame::peek(b"G"), Err(HandshakeError::NotAdverb));
        for at in 0..4 {
            assert_eq!(
                Frame::peek(&changed(at, 0)[..=at]),
                Err(HandshakeError::NotAdverb)
            );
        }
    }

    #[test]
    fn unknown_kinds_and_long_bodies_are_refused_before_the_body_is_read() {
        for kind in [0, 4, 255] {
            assert_eq!(
                Frame::peek(&changed(6, kind)[..12]),
                Err(HandshakeError::UnknownFrameKind(kind))
            );
        }
        let with_len = |len: u32| [&FRAME[..8], &len.to_le_bytes()].concat();
        assert_eq!(
            Frame::peek(&with_len(4096)),
            Ok(Peek::Incomplete { missing: 4096 })
        );
        for len in [4097, u32::MAX] {
            assert_eq!(
                Frame::peek(&with_len(len)),
                Err(HandshakeError::BodyTooLong { len })
            );
        }
    }
}
