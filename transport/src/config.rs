//! How a worker and its endpoints behave.

use std::time::Duration;

use adverb_progress::Mode;

/// The settings of a [`Worker`](crate::Worker) and of every endpoint on it.
///
/// ```
/// use std::time::Duration;
/// use adverb::{Config, Mode};
///
/// let config = Config::new().mode(Mode::Event).window(64).keepalive(Some(Duration::from_secs(10)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Config {
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
}

impl Default for Config {
    fn default() -> Self {
        Self {
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
        }
    }
}

impl Config {
    /// The defaults, each of which its setter names.
    pub fn new() -> Self {
        Self::default()
    }

    /// How waiting is done: poll, event or hybrid. Default hybrid.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The completion vector of the worker's queues, less than the device's `num_comp_vectors`. Default `None`: workers of a
    /// context take turns over all vectors.
    pub fn comp_vector(mut self, comp_vector: impl Into<Option<u32>>) -> Self {
        self.comp_vector = comp_vector.into();
        self
    }

    /// Endpoints that the worker takes at most; its queues are made for so many. Default 128. A further one is refused with
    /// `WorkerFull`. What the device's queues hold may lower it.
    pub fn max_endpoints(mut self, max_endpoints: u32) -> Self {
        self.max_endpoints = max_endpoints.max(1);
        self
    }

    /// Data segments that a peer may have under way to this side, 2 to 4096. Default 32. An endpoint keeps this many receives
    /// posted, and 4 more for control messages.
    pub fn window(mut self, window: u32) -> Self {
        self.window = window.clamp(2, 4096);
        self
    }

    /// Bytes of a segment, header included: the size of each receive. 256 bytes to 1 MiB, rounded up to a multiple of 64.
    /// Default 8192. Larger messages travel as several segments.
    pub fn segment_size(mut self, bytes: u32) -> Self {
        self.segment_size = bytes.clamp(256, 1 << 20).next_multiple_of(64);
        self
    }

    /// The largest message that this side accepts, user header included, in bytes. Default 16 MiB.
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = bytes;
        self
    }

    /// Bytes that may wait on an endpoint for credits or for room in the send queue. Default 4 MiB; one message is always taken.
    pub fn max_queued_bytes(mut self, bytes: usize) -> Self {
        self.max_queued_bytes = bytes;
        self
    }

    /// Sends that an endpoint can have outstanding at its device, 8 to 4096. Default 64.
    pub fn send_depth(mut self, send_depth: u32) -> Self {
        self.send_depth = send_depth.clamp(8, 4096);
        self
    }

    /// One send in so many asks for a completion, at most half of the send queue. Default 16.
    pub fn signal_every(mut self, sends: u32) -> Self {
        self.signal_every = sends.max(1);
        self
    }

    /// Bytes of a segment up to which it is posted inline, if the device can. Default 220; 0 never does.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// How long a peer may be silent before it is probed with a zero-byte RDMA WRITE. Default 2 s; `None` never probes, and then
    /// a peer that dies while nothing is sent is not noticed.
    pub fn keepalive(mut self, interval: Option<Duration>) -> Self {
        self.keepalive = interval;
        self
    }

    /// How long a connection may take to open, handshake and confirmation included. Default 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an orderly close may take, flush included. Default 5 s.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Local ACK timeout code, 1 to 31: 4.096 µs × 2^code. Default 14, which is 67 ms.
    ///
    /// With [`Config::retry_cnt`] it says how long this side goes on asking a peer that does not answer before the endpoint fails: with the defaults
    /// about half a second where each timeout is as long as the first, 1.5 s over the software device, whose timeouts grow to four times that. A
    /// NIC, or the kernel's SoftRoCE, answers also for a process that is stopped; the software device is part of the process, and answers no more
    /// than it does. So if peers over it are stopped for longer (SIGSTOP, a debugger, a suspended container), raise this: 17 is 12 s, 20 is 99 s.
    /// It is the same time by which a dead peer is noticed later.
    pub fn ack_timeout(mut self, code: u8) -> Self {
        self.ack_timeout = code.clamp(1, 31);
        self
    }

    /// Retries before a silent peer counts as gone, 0 to 6. Default 6: with the default timeout about half a second. (7, which
    /// SoftRoCE takes as for ever, cannot be set.)
    pub fn retry_cnt(mut self, retries: u8) -> Self {
        self.retry_cnt = retries.min(6);
        self
    }

    /// Traffic class of the packets: DSCP in the upper 6 bits. Default 0.
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Whether endpoints share a receive queue where the device has one. Default true.
    pub fn use_srq(mut self, use_srq: bool) -> Self {
        self.use_srq = use_srq;
        self
    }

    /// Receives that each endpoint keeps posted.
    pub(crate) fn receives_per_endpoint(&self) -> u32 {
        self.window + adverb_proto::CONTROL_RESERVE
    }
}
