//! Plain values to C structures and back.

use adverb_verbs::{
    AddressVector, AlternatePath, AtomicSupport, DeviceAttr, Gid, GidEntry, GidType, LinkLayer, Mtu,
    PortAttr, PortState, QpCaps, QpModify, QpState, Qpn, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

use crate::cq::wc_opcode;
use crate::sys::{self, code, ibv_qp_attr_mask as mask};

/// A device that can do nothing: what stands until it was asked.
pub(crate) fn no_device_attr() -> DeviceAttr {
    device_attr(&sys::zeroed())
}

pub(crate) fn device_attr(attr: &sys::ibv_device_attr) -> DeviceAttr {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let small = |n: i32| u8::try_from(n.clamp(0, u8::MAX.into())).unwrap_or(0);
    DeviceAttr {
        fw_ver: attr
            .fw_ver
            .iter()
            .take_while(|c| **c != 0)
            .map(|c| char::from(c.cast_unsigned()))
            .collect(),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        phys_port_cnt: attr.phys_port_cnt,
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        max_sge: count(attr.max_sge),
        max_cq: count(attr.max_cq),
        max_cqe: count(attr.max_cqe),
        max_mr: count(attr.max_mr),
        max_mr_size: attr.max_mr_size,
        max_qp_rd_atom: small(attr.max_qp_rd_atom),
        max_qp_init_rd_atom: small(attr.max_qp_init_rd_atom),
        atomic: match attr.atomic_cap {
            code::IBV_ATOMIC_HCA => AtomicSupport::Hca,
            code::IBV_ATOMIC_GLOB => AtomicSupport::Global,
            _ => AtomicSupport::None,
        },
        max_srq: count(attr.max_srq),
        max_srq_wr: count(attr.max_srq_wr),
        max_srq_sge: count(attr.max_srq_sge),
    }
}

/// `None` if an MTU is none of `enum ibv_mtu`.
pub(crate) fn port_attr(attr: &sys::ibv_port_attr) -> Option<PortAttr> {
    let mtu = |code: u32| u8::try_from(code).ok().and_then(|code| Mtu::try_from(code).ok());
    Some(PortAttr {
        state: match attr.state {
            1 => PortState::Down,
            2 => PortState::Init,
            3 => PortState::Armed,
            4 => PortState::Active,
            5 => PortState::ActiveDefer,
            _ => PortState::Nop,
        },
        max_mtu: mtu(attr.max_mtu)?,
        active_mtu: mtu(attr.active_mtu)?,
        gid_tbl_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
        max_msg_sz: attr.max_msg_sz,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        link_layer: match u32::from(attr.link_layer) {
            code::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            code::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        },
    })
}

/// `None` for an entry that is not in use, or whose index no address vector can name.
pub(crate) fn gid_entry(entry: &sys::ibv_gid_entry) -> Option<GidEntry> {
    let gid = Gid::new(sys::gid_bytes(entry));
    let index = u8::try_from(entry.gid_index).ok()?;
    let gid_type = match entry.gid_type {
        code::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
        code::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
        _ => GidType::Ib,
    };
    (!gid.is_zero()).then(|| GidEntry {
        index,
        gid,
        gid_type,
        netdev: netdev(entry.ndev_ifindex),
    })
}

/// The name of a network interface, by sysfs.
fn netdev(ifindex: u32) -> Option<String> {
    if ifindex == 0 {
        return None;
    }
    let interfaces = std::fs::read_dir("/sys/class/net").ok()?;
    interfaces.flatten().find_map(|interface| {
        let index = std::fs::read_to_string(interface.path().join("ifindex")).ok()?;
        (index.trim().parse() == Ok(ifindex)).then(|| interface.file_name().to_string_lossy().into_owned())
    })
}

pub(crate) fn work_completion(wc: &sys::ibv_wc) -> WorkCompletion {
    let (status, vendor_err) = match wc.error() {
        None => (WcStatus::Success, 0),
        Some((status, vendor_err)) => (WcStatus::from_code(status), vendor_err),
    };
    WorkCompletion {
        wr_id: wc.wr_id(),
        status,
        opcode: wc_opcode(wc.opcode()),
        vendor_err,
        byte_len: u32::try_from(wc.len()).unwrap_or(u32::MAX),
        imm: wc.imm_data().map(u32::from_be),
        qp_num: Qpn::truncating(wc.qp_num),
    }
}

pub(crate) fn qp_cap(caps: &QpCaps) -> sys::ibv_qp_cap {
    let QpCaps {
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
    } = *caps;
    sys::ibv_qp_cap {
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
    }
}

pub(crate) fn qp_caps(cap: &sys::ibv_qp_cap) -> QpCaps {
    let sys::ibv_qp_cap {
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
    } = *cap;
    QpCaps {
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
    }
}

pub(crate) fn qp_state(state: u32) -> Option<QpState> {
    Some(match state {
        code::IBV_QPS_RESET => QpState::Reset,
        code::IBV_QPS_INIT => QpState::Init,
        code::IBV_QPS_RTR => QpState::Rtr,
        code::IBV_QPS_RTS => QpState::Rts,
        code::IBV_QPS_SQD => QpState::Sqd,
        code::IBV_QPS_SQE => QpState::Sqe,
        code::IBV_QPS_ERR => QpState::Err,
        _ => return None,
    })
}

/// The attributes of a transition, and which of them count.
pub(crate) fn qp_modify(to: &QpModify) -> (sys::ibv_qp_attr, mask) {
    let mut attr = sys::zeroed::<sys::ibv_qp_attr>();
    let mut set = mask::IBV_QP_STATE;
    attr.qp_state = match to {
        QpModify::Reset => code::IBV_QPS_RESET,
        QpModify::Init(_) => code::IBV_QPS_INIT,
        QpModify::Rtr(_) => code::IBV_QPS_RTR,
        QpModify::Rts(_) | QpModify::Resume => code::IBV_QPS_RTS,
        QpModify::Sqd { .. } => code::IBV_QPS_SQD,
        QpModify::Err => code::IBV_QPS_ERR,
    };
    match to {
        QpModify::Reset | QpModify::Err | QpModify::Resume => {}
        QpModify::Init(init) => {
            attr.port_num = init.port_num;
            attr.pkey_index = init.pkey_index;
            attr.qp_access_flags = init.access.bits();
            set = set | mask::IBV_QP_PORT | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_ACCESS_FLAGS;
        }
        QpModify::Rtr(rtr) => {
            attr.ah_attr = ah_attr(&rtr.ah);
            attr.path_mtu = rtr.path_mtu.code().into();
            attr.dest_qp_num = rtr.dest_qpn.get();
            attr.rq_psn = rtr.rq_psn.get();
            attr.max_dest_rd_atomic = rtr.max_dest_rd_atomic;
            attr.min_rnr_timer = rtr.min_rnr_timer;
            set = set | mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN;
            set = set | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
            if let Some(pkey_index) = rtr.pkey_index {
                attr.pkey_index = pkey_index;
                set |= mask::IBV_QP_PKEY_INDEX;
            }
            set = optional(&mut attr, set, rtr.access, rtr.alternate.as_ref());
        }
        QpModify::Rts(rts) => {
            attr.sq_psn = rts.sq_psn.get();
            attr.timeout = rts.timeout;
            attr.retry_cnt = rts.retry_cnt;
            attr.rnr_retry = rts.rnr_retry;
            attr.max_rd_atomic = rts.max_rd_atomic;
            set = set
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY;
            set |= mask::IBV_QP_MAX_QP_RD_ATOMIC;
            if let Some(min_rnr_timer) = rts.min_rnr_timer {
                attr.min_rnr_timer = min_rnr_timer;
                set |= mask::IBV_QP_MIN_RNR_TIMER;
            }
            set = optional(&mut attr, set, rts.access, rts.alternate.as_ref());
        }
        QpModify::Sqd { notify } => {
            attr.en_sqd_async_notify = (*notify).into();
            set |= mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
        }
    }
    (attr, set)
}

/// What RTR and RTS may both carry.
fn optional(
    attr: &mut sys::ibv_qp_attr,
    mut set: mask,
    access: Option<adverb_verbs::Access>,
    alternate: Option<&AlternatePath>,
) -> mask {
    if let Some(access) = access {
        attr.qp_access_flags = access.bits();
        set |= mask::IBV_QP_ACCESS_FLAGS;
    }
    if let Some(path) = alternate {
        attr.alt_ah_attr = ah_attr(&path.ah);
        attr.alt_port_num = path.ah.port_num;
        attr.alt_pkey_index = path.pkey_index;
        attr.alt_timeout = path.timeout;
        set |= mask::IBV_QP_ALT_PATH;
    }
    set
}

fn ah_attr(ah: &AddressVector) -> sys::ibv_ah_attr {
    let mut attr = sys::zeroed::<sys::ibv_ah_attr>();
    attr.port_num = ah.port_num;
    attr.dlid = ah.dlid;
    attr.sl = ah.sl;
    attr.src_path_bits = ah.src_path_bits;
    attr.static_rate = ah.static_rate;
    if let Some(dgid) = ah.dgid {
        sys::route(
            &mut attr,
            dgid.bytes(),
            ah.sgid_index,
            ah.flow_label,
            ah.hop_limit,
            ah.traffic_class,
        );
    }
    attr
}

/// Fills `into`, which has the same length.
pub(crate) fn sges(sges: &[Sge], into: &mut [sys::ibv_sge]) {
    for (sge, raw) in sges.iter().zip(into) {
        *raw = sys::ibv_sge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey.get(),
        };
    }
}

/// Fills a request, but for its link to the next one.
pub(crate) fn send_wr(wr: &SendWr<'_>, sges: &mut [sys::ibv_sge], raw: &mut sys::ibv_send_wr) {
    raw.wr_id = wr.wr_id;
    raw.sg_list = sges.as_mut_ptr();
    raw.num_sge = sges.len() as i32;
    // The bits of `SendFlags` are the C ones.
    raw.send_flags = wr.flags.bits();
    match wr.op {
        SendOp::Send => raw.opcode = code::IBV_WR_SEND,
        SendOp::SendImm(imm) => {
            raw.opcode = code::IBV_WR_SEND_WITH_IMM;
            raw.__bindgen_anon_1.imm_data = imm.to_be();
        }
        SendOp::Write(remote) => {
            raw.opcode = code::IBV_WR_RDMA_WRITE;
            sys::set_rdma(raw, remote.addr, remote.rkey.get());
        }
        SendOp::WriteImm(remote, imm) => {
            raw.opcode = code::IBV_WR_RDMA_WRITE_WITH_IMM;
            raw.__bindgen_anon_1.imm_data = imm.to_be();
            sys::set_rdma(raw, remote.addr, remote.rkey.get());
        }
        SendOp::Read(remote) => {
            raw.opcode = code::IBV_WR_RDMA_READ;
            sys::set_rdma(raw, remote.addr, remote.rkey.get());
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            raw.opcode = code::IBV_WR_ATOMIC_CMP_AND_SWP;
            sys::set_atomic(raw, remote.addr, remote.rkey.get(), compare, swap);
        }
        SendOp::FetchAdd { remote, add } => {
            raw.opcode = code::IBV_WR_ATOMIC_FETCH_AND_ADD;
            sys::set_atomic(raw, remote.addr, remote.rkey.get(), add, 0);
        }
    }
}
