//! What devices and ports say about themselves.

use std::fmt;
use std::path::PathBuf;

use adverb_types::{Gid, GidType, Mtu};

/// A device that a provider has, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name that opens it (`rxe0`, `mlx5_0`).
    pub name: String,
    /// The node GUID in host byte order; 0 where the provider has none.
    pub guid: u64,
    /// The device's folder in sysfs (`/sys/class/infiniband/rxe0`), where it has one.
    pub sysfs_path: Option<PathBuf>,
}

/// What atomic operations are atomic with respect to (`ibv_query_device(3)`, `atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicSupport {
    /// No atomics.
    None,
    /// Among this device's own atomic operations.
    Hca,
    /// Also with respect to the CPU and to other devices.
    Global,
}

/// A device's limits (`ibv_query_device(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Firmware version, as text.
    pub fw_ver: String,
    /// Vendor id.
    pub vendor_id: u32,
    /// Vendor's part id.
    pub vendor_part_id: u32,
    /// Ports, numbered from 1.
    pub phys_port_cnt: u8,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most outstanding work requests on one work queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather elements in one work request.
    pub max_sge: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of one completion queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Largest memory region, in bytes.
    pub max_mr_size: u64,
    /// Most RDMA READs and atomics that one queue pair can serve at once.
    pub max_qp_rd_atom: u8,
    /// Most RDMA READs and atomics that one queue pair can have under way.
    pub max_qp_init_rd_atom: u8,
    /// What atomics are atomic with.
    pub atomic: AtomicSupport,
    /// Most shared receive queues; 0 where the device has none.
    pub max_srq: u32,
    /// Most outstanding receives on one shared receive queue.
    pub max_srq_wr: u32,
    /// Most scatter/gather elements of one of its receives.
    pub max_srq_sge: u32,
}

/// A port's logical state (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// Not told.
    Nop,
    /// No link.
    Down,
    /// Link is up, not configured.
    Init,
    /// Configured, not yet carrying data.
    Armed,
    /// Carrying data.
    Active,
    /// Link is failing over.
    ActiveDefer,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "NOP",
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
        })
    }
}

/// What lies under a port (`ibv_query_port(3)`, `link_layer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// Not told.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// A port's attributes (`ibv_query_port(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Logical state.
    pub state: PortState,
    /// The largest MTU that the port can do.
    pub max_mtu: Mtu,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// Entries of its GID table.
    pub gid_tbl_len: u32,
    /// Largest message, in bytes.
    pub max_msg_sz: u32,
    /// Entries of its P_Key table.
    pub pkey_tbl_len: u16,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// What lies under it.
    pub link_layer: LinkLayer,
}

/// One used entry of a port's GID table (`ibv_query_gid_table(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table: what [`crate::AddressVector::sgid_index`] takes.
    pub index: u8,
    /// The identifier.
    pub gid: Gid,
    /// What its packets look like.
    pub gid_type: GidType,
    /// The network interface it comes from, where there is one.
    pub netdev: Option<String>,
    /// The UDP port that peers must send to if it is not RoCEv2's own, 4791: a software device that shares its address with another one.
    pub udp_port: Option<u16>,
}
