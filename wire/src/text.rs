//! Short texts for diagnostics.

use std::fmt::{self, Write as _};

use thiserror::Error;

/// A text of at most `MAX` bytes of UTF-8.
///
/// It comes from the peer, for people to read. [`Display`](fmt::Display) escapes control characters,
/// so that a peer cannot drive the terminal or forge lines of the log that it ends up in.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// The text, cut before the first character that does not fit.
    pub fn truncated(text: &str) -> Self {
        Self(text[..text.floor_char_boundary(MAX)].to_owned())
    }

    /// The text as it came.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> TryFrom<&str> for Text<MAX> {
    type Error = TextTooLong;

    fn try_from(text: &str) -> Result<Self, TextTooLong> {
        if text.len() <= MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(TextTooLong {
                len: text.len(),
                max: MAX,
            })
        }
    }
}

impl<const MAX: usize> fmt::Debug for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            if c.is_control() {
                write!(f, "{}", c.escape_default())
            } else {
                f.write_char(c)
            }
        })
    }
}

/// A text that exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a text of {len} bytes exceeds the {max} that fit the handshake; shorten it")]
pub struct TextTooLong {
    /// The text's length in bytes.
    pub len: usize,
    /// The most bytes it may have.
    pub max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(Text::<4>::truncated("abé").as_str(), "abé");
        assert_eq!(Text::<4>::truncated("abcé").as_str(), "abc");
        assert_eq!(Text::<4>::try_from("abcé"), Err(TextTooLong { len: 5, max: 4 }));
        assert_eq!(Text::<4>::try_from("abé").unwrap().as_str(), "abé");
    }

    #[test]
    fn a_text_cannot_forge_lines_of_a_log() {
        let text = Text::<64>::truncated("rxe0\n\x1b[2Jé");
        assert_eq!(text.to_string(), "rxe0\\n\\u{1b}[2Jé");
        assert_eq!(text.as_str(), "rxe0\n\x1b[2Jé");
    }
}
