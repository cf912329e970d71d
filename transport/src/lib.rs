//! An RDMA messaging transport: active messages over RC queue pairs.
//!
//! A [`Context`] is an opened device. A [`Worker`] on it owns the completion queues and the shared receive queue of its endpoints, and makes
//! progress whenever somebody waits on it. A [`Listener`] accepts, [`Worker::connect`] connects, and an [`Endpoint`] sends messages: a 16-bit id,
//! a header and a payload of any size, in order, to the handler that the peer set with [`Worker::on_message`]. A [request](Endpoint::request) is a
//! message that a [`Reply`] comes back to, from the handler that the peer set with [`Worker::on_request`].
//!
//! ```no_run
//! use std::time::Duration;
//! use adverb::{Config, Context, Mode};
//!
//! let worker = Context::open()?.worker(Config::new().mode(Mode::Hybrid))?;
//! worker.on_message(2, |_, message| println!("answer: {:?}", message.payload()));
//! let endpoint = worker.connect("server:18515")?;
//! endpoint.send(1, b"", b"question")?.wait(Duration::from_secs(1))?;
//! println!("ended: {}", endpoint.close().wait(Duration::from_secs(5))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Memory that a [`Context`] [registers](Context::register) as a [`Region`] can be read, written and counted in by peers that have its handle,
//! a [`RemoteRegion`], without this side's program: [`Endpoint::put`], [`Endpoint::get`], [`Endpoint::fetch_add`].
//!
//! # Threads and progress
//!
//! A worker has no thread of its own: progress is a role that whoever waits takes. Blocking calls drive it themselves, a
//! [`ProgressThread`] drives it all the time, and `Worker::drive` does so in tokio. One of them drives, the others park and are told.
//! Handlers run on the thread that drives; they may send but not wait. Sending posts on the calling thread and shares no lock with other
//! endpoints.
//!
//! # Delivery
//!
//! What [`Endpoint::send`] took arrives once and in order, or the endpoint ends with an error. A completed [`SendCompletion`] says that
//! the peer's *device* has the message; that its program has it, only an answer or an orderly [`Endpoint::close`] proves. When an endpoint
//! ends, each message's [`Outcome`] is known: not sent, maybe delivered, or delivered.
#![forbid(unsafe_code)]

mod async_events;
mod awaited;
mod callers;
mod clock;
mod completion;
mod config;
mod connect;
mod connection;
mod context;
mod dispatch;
mod endpoint;
mod error;
mod gid;
mod handlers;
mod handshake;
mod link;
mod listener;
mod message;
mod outbox;
mod placement;
mod receive;
mod request;
mod rma;
mod signals;
mod table;
#[cfg(feature = "tokio")]
mod tokio;
mod worker;

pub use adverb_progress::{Mode, Snapshot, Wakes};
pub use adverb_proto::{FailReason, GoodbyeReason, Outcome, ProtocolError, RefusalReason};
pub use adverb_types::{Gid, Qpn};
pub use adverb_verbs::{Provider, RegionError, VerbsError, WcStatus};
pub use adverb_wire::{
    Disagreement, HandshakeError, Refuse, RefuseReason, RemoteRegion, RemoteRegionError, Rights,
};
pub use completion::{Closed, Ready, SendCompletion};
pub use config::{Config, ConfigError, ConfigErrorKind, ConfigOrigin};
pub use context::{Context, ContextBuilder};
pub use endpoint::{Endpoint, EndpointStats};
pub use error::{
    ConnectError, ConnectErrorKind, EndpointError, EndpointErrorKind, LinkEnd, LinkInfo, ListenError,
    OpenError, RequestError, SendError, UnsentReply, WaitError, WorkerError, WouldDeadlock,
};
pub use listener::Listener;
pub use message::Message;
pub use request::{PendingReply, Reply, Request};
pub use rma::{Fetch, Flushed, OneSidedReady, Region, RegisterError, RmaError, Transfer};
pub use worker::{ProgressThread, Worker, WorkerStats};
