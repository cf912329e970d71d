//! What must hold of any bytes that are taken for a SEND.

use adverb_wire::Header;

/// Decodes, and if that succeeds, encodes and decodes again: nothing may panic, and nothing may change.
pub(crate) fn check(bytes: &[u8]) {
    match Header::decode(bytes) {
        Ok((header, fragment)) => {
            let mut out = [0; Header::MAX_LEN];
            let len = header.encode(&mut out);
            assert_eq!(len, header.encoded_len());
            let again = [&out[..len], fragment].concat();
            assert_eq!(Header::decode(&again), Ok((header, fragment)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
