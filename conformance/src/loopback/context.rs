//! What all devices of a provider share, and what one opened device has of its own.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use adverb_types::{Gid, GidType, Qpn};
use adverb_verbs::{
    AsyncEvent, AtomicSupport, DeviceAttr, DeviceInfo, ErrorKind, EventSource, GidEntry, LinkLayer, PortAttr,
    PortState, VerbsError,
};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use super::LoopbackConfig;
use super::memory::{MAX_SGE, Memory};
use super::qp::QpCore;
use adverb_verbs::Bell;

/// The largest message: 1 GiB.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;

/// The first queue pair number; lower ones are special on InfiniBand.
const FIRST_QPN: u32 = 17;

/// The wire between all devices of one provider.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) config: LoopbackConfig,
    pub(super) memory: Memory,
    devices: Vec<Slot>,
    /// By number. A leaf in the lock order.
    qps: RwLock<HashMap<u32, Weak<QpCore>>>,
    next_qpn: AtomicU32,
    next_pd: AtomicU32,
}

/// A device, opened any number of times.
#[derive(Debug)]
struct Slot {
    info: DeviceInfo,
    gids: [Gid; 2],
    active: AtomicBool,
    contexts: Mutex<Vec<Weak<Context>>>,
}

impl Fabric {
    pub(super) fn new(config: LoopbackConfig) -> Self {
        let devices = (0..config.devices)
            .map(|i| Slot {
                info: DeviceInfo {
                    name: format!("loop{i}"),
                    guid: 0x0200_0000_0000_0000 | u64::from(i),
                    sysfs_path: None,
                },
                gids: [
                    Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(i) + 1)),
                    // A device a 127/8 address, as 127.0.0.1 is the first one's.
                    Gid::from(Ipv4Addr::new(127, 0, i, 1)),
                ],
                active: AtomicBool::new(true),
                contexts: Mutex::default(),
            })
            .collect();
        Self {
            config,
            memory: Memory::default(),
            devices,
            qps: RwLock::default(),
            next_qpn: AtomicU32::new(FIRST_QPN),
            next_pd: AtomicU32::new(1),
        }
    }

    pub(super) fn infos(&self) -> Vec<DeviceInfo> {
        self.devices.iter().map(|device| device.info.clone()).collect()
    }

    pub(super) fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Context>, VerbsError> {
        const OPERATION: &str = "ibv_open_device";
        let index = self.index(name).ok_or_else(|| {
            let kind = ErrorKind::NoSuchDevice {
                name: name.into(),
                available: self.infos().into_iter().map(|info| info.name).collect(),
            };
            VerbsError::new(OPERATION, "loopback", kind)
        })?;
        let context = Arc::new(Context {
            fabric: Arc::clone(self),
            index,
            info: self.devices[index].info.clone(),
            attr: self.attr(),
            events: Bell::new().map_err(|errno| os(OPERATION, name, errno))?,
        });
        let mut contexts = self.devices[index].contexts.lock();
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|device| device.info.name == name)
    }

    fn attr(&self) -> DeviceAttr {
        let srq = self.config.srq;
        DeviceAttr {
            fw_ver: "loopback".into(),
            vendor_id: 0,
            vendor_part_id: 0,
            phys_port_cnt: 1,
            max_qp: 1 << 20,
            max_qp_wr: self.config.max_qp_wr,
            max_sge: MAX_SGE as u32,
            max_cq: 1 << 20,
            max_cqe: self.config.max_cqe,
            max_mr: 1 << 20,
            max_mr_size: isize::MAX as u64,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            atomic: AtomicSupport::Hca,
            max_srq: if srq { 1 << 20 } else { 0 },
            max_srq_wr: if srq { self.config.max_qp_wr } else { 0 },
            max_srq_sge: if srq { MAX_SGE as u32 } else { 0 },
        }
    }

    /// A number that no other protection domain has.
    pub(super) fn new_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters the queue pair that `make` makes under a number that no other has; `None` if there is none left.
    pub(super) fn add_qp(&self, make: impl FnOnce(Qpn) -> Arc<QpCore>) -> Option<Arc<QpCore>> {
        let mut qps = self.qps.write();
        for _ in 0..=Qpn::truncating(u32::MAX).get() {
            let qpn = Qpn::truncating(self.next_qpn.fetch_add(1, Ordering::Relaxed));
            if qpn.get() >= FIRST_QPN && !qps.contains_key(&qpn.get()) {
                let qp = make(qpn);
                qps.insert(qpn.get(), Arc::downgrade(&qp));
                return Some(qp);
            }
        }
        None
    }

    pub(super) fn remove_qp(&self, qpn: Qpn) {
        self.qps.write().remove(&qpn.get());
    }

    pub(super) fn qp(&self, qpn: Qpn) -> Option<Arc<QpCore>> {
        self.qps.read().get(&qpn.get()).and_then(Weak::upgrade)
    }

    /// Every queue pair.
    pub(super) fn qps(&self) -> Vec<Arc<QpCore>> {
        self.qps.read().values().filter_map(Weak::upgrade).collect()
    }

    /// Which device has this GID.
    pub(super) fn owner(&self, gid: Gid) -> Option<usize> {
        self.devices.iter().position(|device| device.gids.contains(&gid))
    }

    pub(super) fn is_active(&self, device: usize) -> bool {
        self.devices[device].active.load(Ordering::Acquire)
    }

    /// Sets whether a device's port is up; whether that is a change.
    pub(super) fn set_active(&self, name: &str, active: bool) -> Option<bool> {
        let device = &self.devices[self.index(name)?];
        Some(device.active.swap(active, Ordering::AcqRel) != active)
    }

    /// Sends an event to whom it concerns: to the context that made the queue pair, else to all of the device. Says how many
    /// got it; `None` if there is no such device.
    pub(super) fn inject(&self, name: &str, event: AsyncEvent) -> Option<usize> {
        let device = &self.devices[self.index(name)?];
        if let EventSource::Qp(qpn) = event.source
            && let Some(qp) = self.qp(qpn)
        {
            qp.context.raise(event);
            return Some(1);
        }
        let contexts: Vec<_> = device.contexts.lock().iter().filter_map(Weak::upgrade).collect();
        contexts.iter().for_each(|context| context.raise(event));
        Some(contexts.len())
    }
}

/// An opened device.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) fabric: Arc<Fabric>,
    pub(super) index: usize,
    pub(super) info: DeviceInfo,
    pub(super) attr: DeviceAttr,
    pub(super) events: Bell<AsyncEvent>,
}

impl Context {
    pub(super) fn raise(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    pub(super) fn gids(&self) -> [Gid; 2] {
        self.fabric.devices[self.index].gids
    }

    pub(super) fn is_active(&self) -> bool {
        self.fabric.is_active(self.index)
    }

    pub(super) fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.check_port("ibv_query_port", port)?;
        let state = if self.is_active() {
            PortState::Active
        } else {
            PortState::Down
        };
        Ok(PortAttr {
            state,
            max_mtu: adverb_types::Mtu::Mtu4096,
            active_mtu: self.fabric.config.active_mtu,
            gid_tbl_len: 16,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
        })
    }

    pub(super) fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.check_port("ibv_query_gid_table", port)?;
        let entry = |(index, gid)| GidEntry {
            index,
            gid,
            gid_type: GidType::RoceV2,
            netdev: Some("lo".into()),
            udp_port: None,
        };
        Ok((0..).zip(self.gids()).map(entry).collect())
    }

    fn check_port(&self, operation: &'static str, port: u8) -> Result<(), VerbsError> {
        if port == 1 {
            Ok(())
        } else {
            Err(self.os(operation, Errno::INVAL))
        }
    }

    pub(super) fn error(&self, operation: &'static str, kind: ErrorKind) -> VerbsError {
        VerbsError::new(operation, self.info.name.as_str(), kind)
    }

    pub(super) fn os(&self, operation: &'static str, errno: Errno) -> VerbsError {
        os(operation, &self.info.name, errno)
    }
}

fn os(operation: &'static str, device: &str, errno: Errno) -> VerbsError {
    VerbsError::new(operation, device, ErrorKind::Os(errno.raw_os_error()))
}
