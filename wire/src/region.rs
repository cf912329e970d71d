//! Handles of registered memory, as programs send them to each other.

use std::fmt;

use adverb_types::Rkey;
use bitflags::bitflags;
use thiserror::Error;

use crate::bytes::{Reader, Writer};

bitflags! {
    /// What peers may do with a region. None of them includes another.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Rights: u8 {
        /// Peers may read it (RDMA READ).
        const REMOTE_READ = 1;
        /// Peers may write it (RDMA WRITE).
        const REMOTE_WRITE = 1 << 1;
        /// Peers may do atomic operations on its aligned 8-byte words.
        const REMOTE_ATOMIC = 1 << 2;
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        bitflags::parser::to_writer(self, f)
    }
}

/// The handle of a region: where it is, how long it is, its key, and what may be done with it.
///
/// It is a plain value. Whoever has it may send it on, and whoever has its bytes can use the region through any connection to the
/// process that registered it, until that revokes it. The handle tells of the rights, it does not give them: the device of the region's
/// process checks each access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    addr: u64,
    rkey: Rkey,
    len: u64,
    rights: Rights,
}

/// Why bytes are no handle of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoteRegionError {
    /// They are not as many as a handle has.
    #[error(
        "reading a region's handle: {len} bytes are not {}; see what the peer sent",
        RemoteRegion::ENCODED_LEN
    )]
    Length {
        /// How many there are.
        len: usize,
    },
    /// A layout that this version does not know.
    #[error(
        "reading a region's handle: its layout has version {version}, this side knows only {}; upgrade this side",
        RemoteRegion::VERSION
    )]
    Version {
        /// The version that it names.
        version: u8,
    },
    /// Rights that this version does not know.
    #[error("reading a region's handle: rights {rights:#x} are not all known; upgrade this side")]
    Rights {
        /// Their bits.
        rights: u8,
    },
    /// The region is empty, or goes past the end of the address space.
    #[error("reading a region's handle: {len} bytes at {addr:#x} are no region; see what the peer sent")]
    Extent {
        /// Where it starts.
        addr: u64,
        /// How long it is, in bytes.
        len: u64,
    },
}

impl RemoteRegion {
    /// Bytes of an encoded handle.
    pub const ENCODED_LEN: usize = 24;

    /// The version of the layout.
    const VERSION: u8 = 1;

    /// The handle of `len` bytes at `addr` with this key.
    ///
    /// # Errors
    /// [`RemoteRegionError::Extent`] if the region is empty, or goes past the end of the address space.
    pub const fn new(addr: u64, rkey: Rkey, len: u64, rights: Rights) -> Result<Self, RemoteRegionError> {
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(RemoteRegionError::Extent { addr, len });
        }
        Ok(Self {
            addr,
            rkey,
            len,
            rights,
        })
    }

    /// Where the region starts, in the address space of its process.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Its key.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// How long it is, in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// What may be done with it.
    pub const fn rights(&self) -> Rights {
        self.rights
    }

    /// Where `len` bytes from `offset` on are, in the address space of the region's process; `None` if they do not lie within the region.
    pub const fn addr_of(&self, offset: u64, len: u64) -> Option<u64> {
        match offset.checked_add(len) {
            // The end of the region is an address, as `new` saw to.
            Some(end) if end <= self.len => Some(self.addr + offset),
            _ => None,
        }
    }

    /// Its bytes, to be sent in a message.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        let mut writer = Writer::new(&mut out);
        writer.u8(Self::VERSION);
        writer.u8(self.rights.bits());
        writer.u16(0);
        writer.u32(self.rkey.get());
        writer.u64(self.addr);
        writer.u64(self.len);
        out
    }

    /// The handle that a peer sent.
    ///
    /// # Errors
    /// [`RemoteRegionError`] says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RemoteRegionError> {
        let wrong_length = RemoteRegionError::Length { len: bytes.len() };
        let mut reader = Reader::new(bytes);
        let [version, rights] = reader.array().ok_or(wrong_length)?;
        // Another version may have another length.
        if version != Self::VERSION {
            return Err(RemoteRegionError::Version { version });
        }
        if bytes.len() != Self::ENCODED_LEN {
            return Err(wrong_length);
        }
        let rights = Rights::from_bits(rights).ok_or(RemoteRegionError::Rights { rights })?;
        let _reserved = reader.u16().ok_or(wrong_length)?;
        let rkey = reader.u32().ok_or(wrong_length)?;
        let addr = reader.u64().ok_or(wrong_length)?;
        let len = reader.u64().ok_or(wrong_length)?;
        Self::new(addr, Rkey::new(rkey), len, rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_the_region_has_an_address() {
        let region = RemoteRegion::new(0x1000, Rkey::new(1), 16, Rights::REMOTE_READ).unwrap();
        assert_eq!(region.addr_of(0, 16), Some(0x1000));
        assert_eq!(region.addr_of(16, 0), Some(0x1010));
        assert_eq!(region.addr_of(9, 8), None);
        assert_eq!(region.addr_of(17, 0), None);
        assert_eq!(region.addr_of(u64::MAX, 1), None);
        assert_eq!(region.addr_of(1, u64::MAX), None);
    }

    #[test]
    fn a_region_that_cannot_be_is_refused() {
        let new = |addr, len| RemoteRegion::new(addr, Rkey::new(1), len, Rights::empty());
        assert!(new(0, 0).is_err());
        assert!(new(2, u64::MAX - 1).is_err());
        assert!(new(1, u64::MAX - 1).is_ok());
    }

    #[test]
    fn each_error_names_what_is_wrong() {
        let good = RemoteRegion::new(0x1000, Rkey::new(1), 16, Rights::all())
            .unwrap()
            .to_bytes();
        let with = |at: usize, byte| {
            let mut bytes = good;
            bytes[at] = byte;
            RemoteRegion::from_bytes(&bytes)
        };
        assert_eq!(with(0, 2), Err(RemoteRegionError::Version { version: 2 }));
        assert_eq!(with(1, 8), Err(RemoteRegionError::Rights { rights: 8 }));
        assert_eq!(
            with(16, 0),
            Err(RemoteRegionError::Extent { addr: 0x1000, len: 0 })
        );
        assert_eq!(
            with(3, 0xff),
            RemoteRegion::from_bytes(&good),
            "reserved is ignored"
        );
        for len in 0..good.len() {
            let cut = RemoteRegion::from_bytes(&good[..len]);
            assert_eq!(cut, Err(RemoteRegionError::Length { len }));
        }
        assert_eq!(
            Rights::all().to_string(),
            "REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC"
        );
        assert_eq!(Rights::empty().to_string(), "none");
    }
}
