//! What devices are made with.

use std::net::IpAddr;

/// RoCEv2's UDP port (IBTA volume 1, annex A17).
pub(crate) const ROCE_PORT: u16 = 4791;

/// What the devices of a [`crate::SoftProvider`] are made with.
///
/// ```
/// use adverb_soft::{SoftConfig, SoftProvider};
/// use adverb_verbs::Provider;
///
/// let provider = SoftProvider::new(SoftConfig::default().loopback(true));
/// let device = provider.open("soft0")?;
/// assert!(device.gid_table(1)?[0].gid.ip().is_loopback());
/// # Ok::<(), adverb_verbs::VerbsError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SoftConfig {
    pub(crate) address: Option<IpAddr>,
    pub(crate) loopback: bool,
    pub(crate) port: u16,
    pub(crate) errors_wake_solicited: bool,
    pub(crate) num_comp_vectors: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_mr: u32,
    pub(crate) srq: bool,
    pub(crate) shared_memory: bool,
}

impl Default for SoftConfig {
    /// `soft0` on the first address that other hosts can reach, UDP port 4791, a completion vector for each CPU, 512 bytes inline,
    /// 32767 completions and 16384 work requests a queue, 2^16 queue pairs, 2^20 memory regions, with shared receive queues and shared memory.
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        Self {
            address: None,
            loopback: false,
            port: ROCE_PORT,
            errors_wake_solicited: true,
            num_comp_vectors: u32::try_from(cpus).unwrap_or(1),
            max_inline: 512,
            max_cqe: 32767,
            max_qp: 1 << 16,
            max_qp_wr: 16384,
            max_mr: 1 << 20,
            srq: true,
            shared_memory: true,
        }
    }
}

impl SoftConfig {
    /// The address that `soft0` has, which must be one of this host's.
    pub fn address(mut self, ip: IpAddr) -> Self {
        self.address = Some(ip);
        self
    }

    /// Whether `soft0` reaches only this host: each opening then has an address in 127/8 of its own, as it has by default on a host without a
    /// network.
    pub fn loopback(mut self, only: bool) -> Self {
        self.loopback = only;
        self
    }

    /// The UDP port that a device takes if it is free. Devices that are not adverb's know no other than 4791.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Whether a completion in error wakes a queue armed solicited-only, as the specification says. On rxe it does not.
    pub fn errors_wake_solicited(mut self, wake: bool) -> Self {
        self.errors_wake_solicited = wake;
        self
    }

    /// How many completion vectors a device has. They lead to no interrupts, so that the number only spreads workers.
    pub fn num_comp_vectors(mut self, count: u32) -> Self {
        self.num_comp_vectors = count.max(1);
        self
    }

    /// Bytes that a send may carry inline at most.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// Completions that a queue may hold at most, less than 2^32 − 1.
    pub fn max_cqe(mut self, count: u32) -> Self {
        self.max_cqe = count.min(u32::MAX - 1);
        self
    }

    /// Queue pairs of a device at most. There are fewer than 2^24 numbers for them.
    pub fn max_qp(mut self, count: u32) -> Self {
        self.max_qp = count.min(1 << 23);
        self
    }

    /// Work requests that a queue may hold at most.
    pub fn max_qp_wr(mut self, count: u32) -> Self {
        self.max_qp_wr = count;
        self
    }

    /// Memory regions of a device at most.
    pub fn max_mr(mut self, count: u32) -> Self {
        self.max_mr = count;
        self
    }

    /// Whether there are shared receive queues.
    pub fn srq(mut self, there_are: bool) -> Self {
        self.srq = there_are;
        self
    }

    /// Whether packets to and from devices of this host, if they are of the same user and want it, too, pass through shared memory instead of UDP.
    /// A tap on the network does not see these.
    pub fn shared_memory(mut self, there_is: bool) -> Self {
        self.shared_memory = there_is;
        self
    }
}
