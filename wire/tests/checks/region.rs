//! What must hold of any bytes that are taken for the handle of a region.

use adverb_wire::RemoteRegion;

/// Decodes, and if that succeeds, encodes and decodes again: nothing may panic, and nothing may change.
pub(crate) fn check(bytes: &[u8]) {
    match RemoteRegion::from_bytes(bytes) {
        Ok(region) => {
            assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()), Ok(region));
            assert_eq!(region.addr_of(0, region.len()), Some(region.addr()));
            assert_eq!(region.addr_of(1, region.len()), None);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
