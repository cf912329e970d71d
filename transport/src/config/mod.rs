//! How a device, the workers on it and their endpoints behave.

mod error;
mod key;
mod layers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use adverb_progress::Mode;

pub use error::{ConfigError, ConfigErrorKind, ConfigOrigin};
use key::KEYS;

// The page has a table that a test compares with the list of settings.
#[doc = include_str!("../../CONFIG.md")]
#[derive(Clone, Debug)]
#[must_use]
pub struct Config {
    pub(crate) device: Option<String>,
    pub(crate) port: Option<u8>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) shared_memory: bool,
    pub(crate) mode: Mode,
    pub(crate) comp_vector: Option<u32>,
    pub(crate) max_endpoints: u32,
    pub(crate) window: u32,
    pub(crate) segment_size: u32,
    pub(crate) max_message: u32,
    pub(crate) max_queued_bytes: usize,
    pub(crate) send_depth: u32,
    pub(crate) signal_every: u32,
    pub(crate) max_inline: u32,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) traffic_class: u8,
    pub(crate) use_srq: bool,
    /// By key; what nobody set is missing.
    origins: BTreeMap<&'static str, ConfigOrigin>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            source: None,
            shared_memory: true,
            mode: Mode::Hybrid,
            comp_vector: None,
            max_endpoints: 128,
            window: 32,
            segment_size: 8192,
            max_message: 16 << 20,
            max_queued_bytes: 4 << 20,
            send_depth: 64,
            signal_every: 16,
            max_inline: 220,
            keepalive: Some(Duration::from_secs(2)),
            connect_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            ack_timeout: 14,
            retry_cnt: 6,
            traffic_class: 0,
            use_srq: true,
            origins: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The defaults, each of which its setter names.
    pub fn new() -> Self {
        Self::default()
    }

    /// The device to open, by name: one of the system's (`rxe0`), adverb's own for this host (`soft0`), or adverb's own on the network interface with
    /// an address (`soft:10.0.0.2`). Default: the one that `ADVERB_DEVICE` names, else the first of the system's with an active port, else `soft0`.
    ///
    /// `auto` is the first of the system's or `soft0`, whatever the environment says. This and the next three are for
    /// [`ContextBuilder::config`](crate::ContextBuilder::config); a worker takes the others.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into()).filter(|name| name != key::AUTO);
        self.by_code("device")
    }

    /// The port of the device, counting from 1. Default: 1 for a named device, else the first active one.
    pub fn port(mut self, port: impl Into<Option<u8>>) -> Self {
        self.port = port.into();
        self.by_code("port")
    }

    /// The address whose GID is preferred. Default: the address that the handshake's TCP connection uses, if a GID has it, then IPv4, then
    /// global IPv6, then link-local.
    pub fn source(mut self, address: impl Into<Option<IpAddr>>) -> Self {
        self.source = address.into();
        self.by_code("source")
    }

    /// Whether the software device goes through shared memory between processes of one host. Default true; if not, its packets can be seen on
    /// the interface.
    pub fn shared_memory(mut self, shared_memory: bool) -> Self {
        self.shared_memory = shared_memory;
        self.by_code("shared_memory")
    }

    /// How waiting is done: poll, event or hybrid. Default hybrid.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self.by_code("worker.mode")
    }

    /// The completion vector of the worker's queues, less than the device's `num_comp_vectors`. Default `None`: workers of a
    /// context take turns over all vectors.
    pub fn comp_vector(mut self, comp_vector: impl Into<Option<u32>>) -> Self {
        self.comp_vector = comp_vector.into();
        self.by_code("worker.comp_vector")
    }

    /// Endpoints that the worker takes at most; its queues are made for so many. Default 128. A further one is refused with
    /// `WorkerFull`. What the device's queues hold may lower it.
    pub fn max_endpoints(mut self, max_endpoints: u32) -> Self {
        self.max_endpoints = clamp(max_endpoints, &key::ENDPOINTS);
        self.by_code("worker.max_endpoints")
    }

    /// Data segments that a peer may have under way to this side, 2 to 4096. Default 32. An endpoint keeps this many receives
    /// posted, and 4 more for control messages.
    pub fn window(mut self, window: u32) -> Self {
        self.window = clamp(window, &key::WINDOW);
        self.by_code("worker.window")
    }

    /// Bytes of a segment, header included: the size of each receive. 256 bytes to 1 MiB, rounded up to a multiple of 64.
    /// Default 8192. Larger messages travel as several segments.
    pub fn segment_size(mut self, bytes: u32) -> Self {
        self.segment_size = clamp(bytes, &key::SEGMENT_SIZE).next_multiple_of(64);
        self.by_code("worker.segment_size")
    }

    /// The largest message that this side accepts, user header included, in bytes. Default 16 MiB.
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = bytes;
        self.by_code("connection.max_message")
    }

    /// Bytes that may wait on an endpoint for credits or for room in the send queue. Default 4 MiB; one message is always taken.
    pub fn max_queued_bytes(mut self, bytes: usize) -> Self {
        self.max_queued_bytes = bytes;
        self.by_code("connection.max_queued_bytes")
    }

    /// Sends that an endpoint can have outstanding at its device, 8 to 4096. Default 64.
    pub fn send_depth(mut self, send_depth: u32) -> Self {
        self.send_depth = clamp(send_depth, &key::SEND_DEPTH);
        self.by_code("worker.send_depth")
    }

    /// One send in so many asks for a completion, at most half of the send queue. Default 16.
    pub fn signal_every(mut self, sends: u32) -> Self {
        self.signal_every = clamp(sends, &key::SIGNAL_EVERY);
        self.by_code("connection.signal_every")
    }

    /// Bytes of a segment up to which it is posted inline, if the device can. Default 220; 0 never does.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self.by_code("connection.max_inline")
    }

    /// How long a peer may be silent before it is probed with a zero-byte RDMA WRITE. Default 2 s, at most a year; `None` never probes, and then
    /// a peer that dies while nothing is sent is not noticed.
    pub fn keepalive(mut self, interval: Option<Duration>) -> Self {
        self.keepalive = interval.map(|interval| interval.min(key::LONGEST));
        self.by_code("connection.keepalive")
    }

    /// How long a connection may take to open, handshake and confirmation included. Default 5 s, at most a year.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.min(key::LONGEST);
        self.by_code("connection.connect_timeout")
    }

    /// How long an orderly close may take, flush included. Default 5 s, at most a year.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout.min(key::LONGEST);
        self.by_code("connection.close_timeout")
    }

    /// Local ACK timeout code, 1 to 31: 4.096 µs × 2^code. Default 14, which is 67 ms.
    ///
    /// With [`Config::retry_cnt`] it says how long this side goes on asking a peer that does not answer before the endpoint fails: with the defaults
    /// about half a second where each timeout is as long as the first, 1.5 s over the software device, whose timeouts grow to four times that. A
    /// NIC, or the kernel's SoftRoCE, answers also for a process that is stopped; the software device is part of the process, and answers no more
    /// than it does. So if peers over it are stopped for longer (SIGSTOP, a debugger, a suspended container), raise this: 17 is 12 s, 20 is 99 s.
    /// It is the same time by which a dead peer is noticed later.
    pub fn ack_timeout(mut self, code: u8) -> Self {
        self.ack_timeout = clamp(code, &key::ACK_TIMEOUT);
        self.by_code("connection.ack_timeout")
    }

    /// Retries before a silent peer counts as gone, 0 to 6. Default 6: with the default timeout about half a second. (7, which
    /// SoftRoCE takes as for ever, cannot be set.)
    pub fn retry_cnt(mut self, retries: u8) -> Self {
        self.retry_cnt = clamp(retries, &key::RETRY_CNT);
        self.by_code("connection.retry_cnt")
    }

    /// Traffic class of the packets: DSCP in the upper 6 bits. Default 0.
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self.by_code("connection.traffic_class")
    }

    /// Whether endpoints share a receive queue where the device has one. Default true.
    pub fn use_srq(mut self, use_srq: bool) -> Self {
        self.use_srq = use_srq;
        self.by_code("worker.use_srq")
    }

    fn by_code(mut self, key: &'static str) -> Self {
        self.origins.insert(key, ConfigOrigin::Code);
        self
    }

    /// Receives that each endpoint keeps posted.
    pub(crate) fn receives_per_endpoint(&self) -> u32 {
        self.window + adverb_proto::CONTROL_RESERVE
    }
}

/// Every setting with where it comes from, as TOML that [`Config::from_toml_str`] takes. `{:#}` also says what each is and what it may be.
///
/// ```
/// # use adverb::Config;
/// let config = Config::from_toml_str("worker.window = 64")?;
/// assert!(config.to_string().contains("[worker]\nmode = \"hybrid\" # default\n"));
/// assert!(config.to_string().contains("window = 64 # line 1\n"));
/// assert_eq!(Config::from_toml_str(&config.to_string())?, config);
/// # Ok::<(), adverb::ConfigError>(())
/// ```
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = None;
        for key in &KEYS {
            if key.table() != table {
                table = key.table();
                writeln!(f, "\n[{}]", table.unwrap_or_default())?;
            }
            if f.alternate() {
                writeln!(f, "# {}: {}", key.meaning, (key.allowed)())?;
            }
            let origin = self.origins.get(key.name).unwrap_or(&ConfigOrigin::Default);
            writeln!(f, "{} = {} # {origin}", key.last(), (key.get)(self))?;
        }
        Ok(())
    }
}

/// Two are equal if their settings are, wherever these come from.
impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        KEYS.iter().all(|key| (key.get)(self) == (key.get)(other))
    }
}

impl Eq for Config {}

fn clamp<T: Ord + Copy>(value: T, range: &RangeInclusive<T>) -> T {
    value.clamp(*range.start(), *range.end())
}
