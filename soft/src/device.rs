//! An opened device, and its controls.

use std::ops::Deref;
use std::sync::Arc;

use adverb_types::Gid;
use adverb_verbs::AsyncEvent;

use crate::attention::Keeper;
use crate::core::Core;
use crate::counters::SoftCounters;

/// An opened device, as handles hold it: when the last of them is dropped, its thread ends.
#[derive(Debug)]
pub(crate) struct Context {
    core: Arc<Core>,
    keeper: Keeper,
}

impl Context {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            keeper: Keeper::default(),
        }
    }

    /// Sees to it that packets are taken in also when nobody polls.
    ///
    /// # Errors
    /// What the system says if there can be no more threads.
    pub(crate) fn keep(&self) -> std::io::Result<()> {
        self.keeper.start(&self.core)
    }
}

impl Deref for Context {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.keeper.stop(&self.core.attention);
    }
}

/// A device of a [`crate::SoftProvider`], with what no other device has. Find it again behind a handle with
/// [`adverb_verbs::Device::as_any`]:
///
/// ```
/// use adverb_soft::{SoftConfig, SoftDevice, SoftProvider};
/// use adverb_verbs::Provider;
///
/// let device = SoftProvider::new(SoftConfig::default().loopback(true)).open("soft0")?;
/// let soft = device.as_any().downcast_ref::<SoftDevice>().expect("it is one");
/// assert_eq!(soft.udp_port(), 4791);
/// # Ok::<(), adverb_verbs::VerbsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SoftDevice(pub(crate) Arc<Context>);

impl SoftDevice {
    /// Its address.
    pub fn gid(&self) -> Gid {
        self.0.gid()
    }

    /// The UDP port that packets to it must go to. Where it is not 4791, its [`adverb_verbs::GidEntry`] says so, and peers need it in their
    /// [`adverb_verbs::AddressVector`].
    pub fn udp_port(&self) -> u16 {
        self.0.wire.local().port()
    }

    /// Takes its port down or up again, with the event that goes with it. While it is down, packets are lost both ways, so that what is sent
    /// ends with `RETRY_EXC_ERR`. Whether that is a change.
    pub fn set_port_active(&self, active: bool) -> bool {
        self.0.set_active(active)
    }

    /// Raises an asynchronous event. Nothing else happens: an injected `DEVICE_FATAL` leaves the device working.
    pub fn inject(&self, event: AsyncEvent) {
        self.0.events.push(event);
    }

    /// What became of packets.
    pub fn counters(&self) -> SoftCounters {
        self.0.counters.get()
    }
}
