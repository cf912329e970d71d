//! One-sided operations: memory that peers reach without this side's program.

mod error;
mod ledger;
mod operation;
mod region;

pub use error::{RegisterError, RmaError};
pub(crate) use ledger::{Kind, Ledger, Settled, Tag};
pub use operation::{Fetch, Flushed, OneSidedReady, Transfer};
pub use region::Region;

/// What a link lets one-sided operations do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of one operation.
    pub(crate) max_len: u32,
    /// RDMA READs and atomics under way at once, as the two sides agreed. The device queues what is more.
    pub(crate) max_rd_atomic: u8,
    /// Whether the local device does atomics.
    pub(crate) atomics: bool,
}
