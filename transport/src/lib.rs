//! An RDMA messaging transport: active messages over RC queue pairs.
#![forbid(unsafe_code)]

mod async_events;
mod completion;
mod config;
mod connect;
mod connection;
mod context;
mod dispatch;
mod endpoint;
mod error;
mod gid;
mod handshake;
mod link;
mod listener;
mod message;
mod outbox;
mod placement;
mod receive;
mod signals;
mod table;
#[cfg(feature = "tokio")]
mod tokio;
mod worker;

pub use adverb_progress::{Mode, Snapshot, Wakes};
pub use adverb_proto::{GoodbyeReason, Outcome};
pub use completion::{Closed, SendCompletion};
pub use config::Config;
pub use context::{Context, ContextBuilder};
pub use endpoint::Endpoint;
pub use error::{
    ConnectError, ConnectErrorKind, EndpointError, EndpointErrorKind, LinkEnd, LinkInfo, ListenError,
    OpenError, SendError, WaitError, WorkerError, WouldDeadlock,
};
pub use listener::Listener;
pub use message::Message;
pub use worker::{ProgressThread, Worker, WorkerStats};
