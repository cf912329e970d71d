//! What must hold of any bytes whatever. Shared by the property tests, the corpus replay and the fuzz targets.

pub(crate) mod handshake;
pub(crate) mod header;
pub(crate) mod region;
