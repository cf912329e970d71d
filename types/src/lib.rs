//! Newtypes of the verbs and of RoCEv2, shared by everything that names a queue pair, an address or a key.
//!
//! The crate has no dependencies, does no I/O and never panics on a value that came from outside:
//! what can be wrong is parsed once, by `new` or `try_from`, and is right from then on.
//!
//! ```
//! use adverb_types::{Gid, Mtu, Psn};
//!
//! let gid: Gid = "10.0.0.2".parse::<std::net::Ipv4Addr>().unwrap().into();
//! assert_eq!(gid.to_string(), "::ffff:10.0.0.2");
//! assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
//! assert_eq!(Mtu::Mtu1024.min(Mtu::Mtu4096).bytes(), 1024);
//! ```
#![forbid(unsafe_code)]

mod gid;
mod key;
mod mtu;
mod psn;
mod qpn;

pub use gid::{Gid, GidType};
pub use key::{Lkey, Rkey};
pub use mtu::{InvalidMtu, Mtu};
pub use psn::Psn;
pub use qpn::{InvalidQpn, Qpn};
