//! What the tests of several crates share, and nothing else uses: an allocator that counts, and the replay of fuzz corpora.

mod allocations;
mod corpus;

pub use allocations::{CountingAllocator, allocations};
pub use corpus::Corpus;
