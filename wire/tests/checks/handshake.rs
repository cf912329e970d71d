//! What must hold of any bytes that come first on a TCP connection.

use adverb_wire::{Frame, Handshake, HandshakeError, Peek, Refuse, Text, VersionRange};

/// Decodes, and if that succeeds, encodes and decodes again: nothing may panic, and nothing may change.
/// If it fails, the refusal that is due must be one that the other side can read.
pub(crate) fn check(bytes: &[u8]) {
    match Frame::peek(bytes) {
        Ok(Peek::Incomplete { missing }) => {
            assert!(missing > 0 && bytes.len() + missing <= Frame::MAX_LEN);
        }
        Ok(Peek::Complete { frame, rest }) => {
            assert_eq!(bytes.len(), Frame::HEADER_LEN + frame.body.len() + rest.len());
            match Handshake::decode(&frame) {
                Ok(handshake) => check_round_trip(&handshake),
                Err(error) => check_refusal(&error),
            }
        }
        Err(error) => check_refusal(&error),
    }
}

/// Encodes and decodes: nothing may change.
pub(crate) fn check_round_trip(handshake: &Handshake) {
    let mut out = [0; Frame::MAX_LEN];
    let len = handshake.encode(&mut out);
    match Frame::peek(&out[..len]) {
        Ok(Peek::Complete { frame, rest: [] }) => {
            assert_eq!(Handshake::decode(&frame).as_ref(), Ok(handshake));
        }
        other => panic!("the encoder made no single frame: {other:?}"),
    }
}

fn check_refusal(error: &HandshakeError) {
    let text = error.to_string();
    assert!(!text.is_empty());
    if let Some(reason) = error.refusal() {
        let versions = VersionRange::SUPPORTED;
        check_round_trip(&Handshake::Refuse(Refuse {
            versions,
            reason,
            text: Text::truncated(&text),
        }));
    }
}
