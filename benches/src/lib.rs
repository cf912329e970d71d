//! What single pieces of adverb cost: `cargo bench -p adverb-benches`. Beside peers, on a real device, `cargo xtask bench` measures.
#![forbid(unsafe_code)]

mod ping_pong;

pub use ping_pong::PingPong;
