//! A reference device in memory: the verbs without a network, a driver or a clock.
//!
//! Queue pairs of one [`Loopback`] connect to each other by GID and queue pair number, across its devices and across
//! openings of a device. A post carries its requests out at once, on the thread that posts. Once warm, posting, polling and
//! arming allocate nothing; the one system call is the ring of a completion channel, when a queue was armed.
//!
//! Where drivers differ, it does what is hardest on its user and still within the specification:
//! - a place in a send queue is free when the completion that retires it was polled, not earlier;
//! - a completion in error carries garbage in the fields that are not valid;
//! - an rkey never equals an lkey; sizes come back as asked for, not rounded up;
//! - error completions wake a queue armed solicited-only, as the specification says, or do not, as on rxe
//!   ([`LoopbackConfig::errors_wake_solicited`]).
//!
//! There is no clock: a peer that is gone is noticed at once (`RETRY_EXC_ERR`), and a message without a receive waits
//! until there is one or [`Loopback::expire_rnr`] is called.

mod context;
mod cq;
mod handles;
mod memory;
mod qp;
mod srq;
mod transfer;

use std::sync::Arc;

use adverb_types::Mtu;
use adverb_verbs::{AsyncEvent, AsyncEventKind, EventSource};

use context::Fabric;

/// The provider's name.
const PROVIDER: &str = "loopback";

/// What a [`Loopback`] is made with.
#[derive(Clone, Debug)]
#[must_use]
pub struct LoopbackConfig {
    devices: u8,
    num_comp_vectors: u32,
    max_inline: u32,
    max_cqe: u32,
    max_qp_wr: u32,
    active_mtu: Mtu,
    srq: bool,
    rnr_expires_at_once: bool,
    errors_wake_solicited: bool,
}

impl Default for LoopbackConfig {
    /// Two devices, 4 completion vectors, 512 bytes inline, 32767 completions a queue, 16384 work requests a queue, MTU 4096,
    /// with shared receive queues.
    fn default() -> Self {
        Self {
            devices: 2,
            num_comp_vectors: 4,
            max_inline: 512,
            max_cqe: 32767,
            max_qp_wr: 16384,
            active_mtu: Mtu::Mtu4096,
            srq: true,
            rnr_expires_at_once: false,
            errors_wake_solicited: true,
        }
    }
}

impl LoopbackConfig {
    /// How many devices there are: `loop0`, `loop1` …
    pub fn devices(mut self, count: u8) -> Self {
        self.devices = count;
        self
    }

    /// How many completion vectors a device has.
    pub fn num_comp_vectors(mut self, count: u32) -> Self {
        self.num_comp_vectors = count;
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

    /// Work requests that a queue may hold at most.
    pub fn max_qp_wr(mut self, count: u32) -> Self {
        self.max_qp_wr = count;
        self
    }

    /// The MTU of every port.
    pub fn active_mtu(mut self, mtu: Mtu) -> Self {
        self.active_mtu = mtu;
        self
    }

    /// Whether there are shared receive queues.
    pub fn srq(mut self, there_are: bool) -> Self {
        self.srq = there_are;
        self
    }

    /// Whether a message without a receive fails at once (`RNR_RETRY_EXC_ERR`) unless `rnr_retry` is 7, instead of waiting
    /// for [`Loopback::expire_rnr`].
    pub fn rnr_expires_at_once(mut self, at_once: bool) -> Self {
        self.rnr_expires_at_once = at_once;
        self
    }

    /// Whether a completion in error wakes a queue armed solicited-only, as the specification says. On rxe it does not.
    pub fn errors_wake_solicited(mut self, wake: bool) -> Self {
        self.errors_wake_solicited = wake;
        self
    }
}

/// The provider of the reference devices, and their controls. A clone is another handle to the same devices.
///
/// ```
/// use adverb_conformance::Loopback;
/// use adverb_verbs::Provider;
///
/// let provider = Loopback::default();
/// let device = provider.open("loop0")?;
/// assert_eq!(device.num_comp_vectors(), 4);
/// # Ok::<(), adverb_verbs::VerbsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Loopback {
    fabric: Arc<Fabric>,
}

impl Default for Loopback {
    fn default() -> Self {
        Self::new(LoopbackConfig::default())
    }
}

impl Loopback {
    /// Devices as `config` says.
    pub fn new(config: LoopbackConfig) -> Self {
        Self {
            fabric: Arc::new(Fabric::new(config)),
        }
    }

    /// Raises an asynchronous event on every opening of `device`, or, if it is about a queue pair that exists, on the one
    /// that made it. Nothing else happens: an injected `DEVICE_FATAL` leaves the device working. Says how many got it; 0
    /// if there is no such device.
    pub fn inject(&self, device: &str, event: AsyncEvent) -> usize {
        self.fabric.inject(device, event).unwrap_or(0)
    }

    /// Takes `device`'s port down or up again, with the event that goes with it. While it is down, what is sent from or to it
    /// ends with `RETRY_EXC_ERR`. Whether that is a change.
    pub fn set_port_active(&self, device: &str, active: bool) -> bool {
        if self.fabric.set_active(device, active) != Some(true) {
            return false;
        }
        let kind = if active {
            AsyncEventKind::PortActive
        } else {
            AsyncEventKind::PortErr
        };
        let source = EventSource::Port(1);
        self.inject(device, AsyncEvent { kind, source });
        true
    }

    /// Ends every message that waits for a receive with `RNR_RETRY_EXC_ERR`, unless its queue pair's `rnr_retry` is 7. Says
    /// how many queue pairs that failed.
    pub fn expire_rnr(&self) -> usize {
        let qps = self.fabric.qps();
        qps.iter().filter(|qp| qp.expire_rnr()).count()
    }

    fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }
}
