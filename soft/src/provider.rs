//! The provider: device names, and what they open.

#![allow(
    unsafe_code,
    reason = "the verbs traits are unsafe to implement, because a device accesses memory by address"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Weak};

use adverb_roce::MAX_SGE;
use adverb_types::Mtu;
use adverb_verbs::{
    AsyncEvent, AtomicSupport, Device, DeviceAttr, DeviceInfo, ErrorKind, EventSource, Provider, VerbsError,
};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::config::SoftConfig;
use crate::core::{Core, CoreParts};
use crate::counters::{Counters, SoftCounters};
use crate::device::{Context, SoftDevice};
use crate::net;
use crate::wire::{Driven, SharedWire, SimNetwork, Wire};

/// The provider's name.
pub(crate) const PROVIDER: &str = "soft";

/// The device that is listed.
const DEFAULT_DEVICE: &str = "soft0";

/// The provider of software devices. A clone is another handle to the same provider.
///
/// These names open devices:
///
/// | name | address |
/// |---|---|
/// | `soft0` | [`SoftConfig::address`]; else the first one of an Ethernet interface that is up; else one in 127/8 of its own |
/// | `soft:10.0.0.2`, `soft:fd00::2` | that one, which must be one of this host's |
#[derive(Clone, Debug)]
pub struct SoftProvider {
    config: SoftConfig,
    network: Option<SimNetwork>,
    registry: Arc<Registry>,
}

impl Default for SoftProvider {
    fn default() -> Self {
        Self::new(SoftConfig::default())
    }
}

impl SoftProvider {
    /// Devices as `config` says, on this host's network.
    pub fn new(config: SoftConfig) -> Self {
        Self {
            config,
            network: None,
            registry: Arc::default(),
        }
    }

    /// Devices as `config` says, on a simulated network, which several providers may share: each opening of `soft0` has an address of its own
    /// there.
    pub fn simulated(config: SoftConfig, network: &SimNetwork) -> Self {
        Self {
            network: Some(network.clone()),
            ..Self::new(config)
        }
    }

    /// Raises an asynchronous event on every opening of `device`, or, if it is about a queue pair that exists, on the one that made it
    /// ([`SoftDevice::inject`]). Says how many got it.
    pub fn inject(&self, device: &str, event: AsyncEvent) -> usize {
        let mut openings = self.registry.openings(device);
        if let EventSource::Qp(qpn) = event.source
            && let Some(owner) = openings.iter().position(|core| core.qp(qpn).is_some())
        {
            openings = vec![openings.swap_remove(owner)];
        }
        openings.iter().for_each(|core| core.events.push(event));
        openings.len()
    }

    /// Takes the ports of all openings of `device` down or up again ([`SoftDevice::set_port_active`]). Whether that is a change for any.
    pub fn set_port_active(&self, device: &str, active: bool) -> bool {
        let openings = self.registry.openings(device);
        openings.iter().filter(|core| core.set_active(active)).count() > 0
    }

    /// What became of the packets of all its devices together, also of those that were closed.
    pub fn counters(&self) -> SoftCounters {
        let sum = Counters::default();
        let cores = self.registry.cores.lock();
        sum.absorb(&self.registry.closed);
        cores
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|core| sum.absorb(&core.counters));
        sum.get()
    }

    /// Makes the wire of a device of this name, and says which interface it is on.
    fn wire(&self, name: &str) -> Result<(Box<dyn Wire>, Option<String>), VerbsError> {
        let os = |errno: Errno| VerbsError::new("ibv_open_device", name, ErrorKind::Os(errno.raw_os_error()));
        let (ip, interface) = match name.strip_prefix("soft:").map(str::parse::<IpAddr>) {
            Some(Ok(ip)) if !ip.is_unspecified() => (Some(ip), net::interface_of(ip)),
            None if name == DEFAULT_DEVICE => self.default_address(),
            Some(_) => return Err(malformed_name(name)),
            None => return Err(self.no_such_device(name)),
        };
        let wire = match ip {
            Some(ip) => net::bind(ip, self.config.port).map_err(os)?,
            None => net::bind_loopback(self.config.port).map_err(os)?,
        };
        let wire: Box<dyn Wire> = if self.config.shared_memory {
            Box::new(SharedWire::over(wire).map_err(os)?)
        } else {
            Box::new(wire)
        };
        Ok((wire, interface))
    }

    /// The address and interface of `soft0`; no address is one of 127/8 of its own.
    fn default_address(&self) -> (Option<IpAddr>, Option<String>) {
        let own = (None, net::interface_of(Ipv4Addr::LOCALHOST.into()));
        match self.config.address {
            _ if self.config.loopback => own,
            Some(ip) => (Some(ip), net::interface_of(ip)),
            None => net::first_reachable().map_or(own, |local| (Some(local.ip), Some(local.interface))),
        }
    }

    fn no_such_device(&self, name: &str) -> VerbsError {
        let kind = ErrorKind::NoSuchDevice {
            name: name.into(),
            available: vec![DEFAULT_DEVICE.into()],
        };
        VerbsError::new("ibv_open_device", PROVIDER, kind)
    }

    /// Enters an opened device among the others.
    fn enter(&self, parts: CoreParts) -> Result<Arc<Core>, VerbsError> {
        let name = parts.info.name.clone();
        let core = Core::new(parts)
            .map_err(|errno| VerbsError::new("ibv_open_device", name, ErrorKind::Os(errno.raw_os_error())))?;
        let core = Arc::new(core);
        self.registry.add(&core);
        Ok(core)
    }

    fn open_simulated(&self, network: &SimNetwork, name: &str) -> Result<Arc<Core>, VerbsError> {
        if name != DEFAULT_DEVICE {
            return Err(self.no_such_device(name));
        }
        let wire = network.attach();
        let announce = wire.announcement();
        let core = self.enter(CoreParts {
            info: info(name, wire.local().ip()),
            config: self.config.clone(),
            active_mtu: Mtu::Mtu4096,
            netdev: None,
            closed: Arc::clone(&self.registry.closed),
            wire: Box::new(wire),
        })?;
        announce(Arc::downgrade(&core) as Weak<dyn Driven>);
        Ok(core)
    }
}

/// What the first part of the name promised does not follow.
fn malformed_name(name: &str) -> VerbsError {
    let kind = ErrorKind::MalformedName {
        name: name.into(),
        expected: "an IP address of this host must follow `soft:`, as in soft:10.0.0.2 or soft:fd00::2",
    };
    VerbsError::new("ibv_open_device", PROVIDER, kind)
}

// SAFETY: the devices keep the traits' promises, each object for the reason given at it.
unsafe impl Provider for SoftProvider {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let ip = self.default_address().0;
        Ok(vec![info(
            DEFAULT_DEVICE,
            ip.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        )])
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let core = match &self.network {
            Some(network) => self.open_simulated(network, name)?,
            None => {
                let (wire, netdev) = self.wire(name)?;
                self.enter(CoreParts {
                    info: info(name, wire.local().ip()),
                    config: self.config.clone(),
                    active_mtu: net::active_mtu(netdev.as_deref()),
                    netdev,
                    closed: Arc::clone(&self.registry.closed),
                    wire,
                })?
            }
        };
        Ok(Arc::new(SoftDevice(Arc::new(Context::new(core)))))
    }
}

fn info(name: &str, ip: IpAddr) -> DeviceInfo {
    DeviceInfo {
        name: name.into(),
        // There is no node behind it but the address. Locally administered, as that is what it is.
        guid: match ip {
            IpAddr::V4(v4) => 0x0200_0000_0000_0000 | u64::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits() as u64,
        },
        sysfs_path: None,
    }
}

impl SoftConfig {
    /// The limits of a device made with this.
    pub(crate) fn attr(&self) -> DeviceAttr {
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION").into(),
            vendor_id: 0,
            vendor_part_id: 0,
            phys_port_cnt: 1,
            max_qp: self.max_qp,
            max_qp_wr: self.max_qp_wr,
            max_sge: MAX_SGE as u32,
            max_cq: 1 << 20,
            max_cqe: self.max_cqe,
            max_mr: self.max_mr,
            max_mr_size: isize::MAX as u64,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            atomic: AtomicSupport::Global,
            max_srq: if self.srq { 1 << 20 } else { 0 },
            max_srq_wr: if self.srq { self.max_qp_wr } else { 0 },
            max_srq_sge: if self.srq { MAX_SGE as u32 } else { 0 },
        }
    }
}

/// The devices that a provider opened and that are still open.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    cores: Mutex<Vec<Weak<Core>>>,
    /// What the others counted.
    closed: Arc<Counters>,
}

impl Registry {
    fn add(&self, core: &Arc<Core>) {
        let mut cores = self.cores.lock();
        cores.retain(|core| core.strong_count() > 0);
        cores.push(Arc::downgrade(core));
    }

    fn all(&self) -> Vec<Arc<Core>> {
        self.cores.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn openings(&self, name: &str) -> Vec<Arc<Core>> {
        let mut all = self.all();
        all.retain(|core| core.info.name == name);
        all
    }
}
