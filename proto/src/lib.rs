//! The endpoint protocol of adverb as a sans-IO state machine.
//!
//! An [`Endpoint`] is one end of a connection that carries active messages both ways, in order, over one RC link today and
//! over a group of them tomorrow. It numbers, fragments and reassembles messages, keeps the credits that make receiver-not-ready
//! impossible, decides which segments are solicited, acknowledges, opens, closes and watches for silence.
//!
//! It does no I/O: segments to send are written into buffers that the caller's [`Segments`] lends, segments received are
//! handed to [`Endpoint::receive`], and time is an argument. That is what makes it testable on a virtual clock.
//!
//! ```
//! use std::time::Instant;
//! use adverb_proto::{Config, Endpoint, Event, Outgoing, PeerLimits, Received, Segment, Segments, Side};
//!
//! /// One buffer and what was written into it.
//! #[derive(Default)]
//! struct Wire(Vec<Vec<u8>>, Vec<u8>);
//! impl Segments for Wire {
//!     fn next(&mut self, _len: usize) -> Option<&mut [u8]> {
//!         self.1.resize(4096, 0);
//!         Some(&mut self.1)
//!     }
//!     fn commit(&mut self, segment: Segment) {
//!         self.0.push(self.1[..segment.len].to_vec());
//!     }
//! }
//!
//! let (now, limits) = (Instant::now(), PeerLimits { credits: 8, segment_size: 4096, max_message: 1 << 20 });
//! let config = Config { window: 8, ..Config::new(now) };
//! let mut client = Endpoint::new(now, Side::Client, config.clone(), limits, 42);
//! let mut server = Endpoint::new(now, Side::Server, config, limits, 42);
//!
//! // Each side confirms the link once. Its credits are used when the receive of the confirmation is posted again.
//! let (mut to_server, mut to_client) = (Wire::default(), Wire::default());
//! client.transmit(now, &mut to_server);
//! server.receive(now, &to_server.0.remove(0)).unwrap();
//! server.returned(false);
//! server.transmit(now, &mut to_client);
//! client.receive(now, &to_client.0.remove(0)).unwrap();
//! client.returned(false);
//! assert_eq!(client.poll_event(), Some(Event::Opened));
//!
//! let message = Outgoing::new(7, b"header", b"payload");
//! client.send(now, &message, &mut to_server).unwrap();
//! let Received::Message(incoming) = server.receive(now, &to_server.0[0]).unwrap() else { panic!() };
//! assert_eq!(incoming.am_id, 7);
//! assert_eq!(&to_server.0[0][incoming.payload], b"payload");
//! ```
#![forbid(unsafe_code)]

mod config;
mod endpoint;
mod error;
mod link;
mod receiver;
mod sender;

pub use adverb_wire::{GoodbyeReason, RefusalReason, Role};
pub use config::{Config, PeerLimits, Side};
pub use endpoint::{Endpoint, Event, Phase};
pub use error::{FailReason, ProtocolError, SendError};
pub use link::{CONTROL_CREDITS, CONTROL_RESERVE};
pub use receiver::{Assembled, Incoming, Received};
pub use sender::{Outcome, Outgoing, Segment, Segments, Urgency};
