//! The invariant CRC of a packet between two sockets.

use std::net::SocketAddr;

use adverb_roce::icrc::{self, Path};

/// The ICRC of a packet with this IP identification, as it stands behind it. `None` between addresses of different families, where no packet goes.
pub(crate) fn compute(
    from: SocketAddr,
    to: SocketAddr,
    packet: &[u8],
    identification: u16,
) -> Option<[u8; 4]> {
    let icrc = icrc::compute_with(&path(from, to)?, from.port(), to.port(), packet, identification);
    Some(icrc.to_le_bytes())
}

/// Whether this is the ICRC of a packet.
pub(crate) fn check(from: SocketAddr, to: SocketAddr, packet: &[u8], icrc: [u8; 4]) -> bool {
    path(from, to)
        .is_some_and(|path| icrc::check(&path, from.port(), to.port(), packet, u32::from_le_bytes(icrc)))
}

fn path(from: SocketAddr, to: SocketAddr) -> Option<Path> {
    Path::new(from.ip(), to.ip())
}
