//! Plain values to C structures and back.

use adverb_verbs::{
    AddressVector, AlternatePath, AtomicSupport, DeviceAttr, Gid, GidEntry, GidType, LinkLayer, Mtu,
    PortAttr, PortState, QpCaps, QpModify, QpState, Qpn, RecvWr, SendOp, SendWr, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};

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

/// `None` if an MTU is none of `enum ibv_mtu`, though the port is up.
pub(crate) fn port_attr(attr: &sys::ibv_port_attr) -> Option<PortAttr> {
    let state = match attr.state {
        code::IBV_PORT_DOWN => PortState::Down,
        code::IBV_PORT_INIT => PortState::Init,
        code::IBV_PORT_ARMED => PortState::Armed,
        code::IBV_PORT_ACTIVE => PortState::Active,
        code::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
        _ => PortState::Nop,
    };
    // A port without a link may not know its MTU: mlx5 says 0 where the network interface is out of sight.
    let unknown = (state != PortState::Active).then_some(Mtu::Mtu256);
    let mtu = |code: u32| {
        let mtu = u8::try_from(code).ok().and_then(|code| Mtu::try_from(code).ok());
        mtu.or(unknown)
    };
    Some(PortAttr {
        state,
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
        udp_port: None,
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
        imm: sys::imm(wc),
        qp_num: Qpn::truncating(wc.qp_num),
    }
}

/// The opcode of a completion.
fn wc_opcode(code: u32) -> WcOpcode {
    match code {
        code::IBV_WC_SEND => WcOpcode::Send,
        code::IBV_WC_RDMA_WRITE => WcOpcode::RdmaWrite,
        code::IBV_WC_RDMA_READ => WcOpcode::RdmaRead,
        code::IBV_WC_COMP_SWAP => WcOpcode::CompSwap,
        code::IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
        code::IBV_WC_BIND_MW => WcOpcode::BindMw,
        code::IBV_WC_LOCAL_INV => WcOpcode::LocalInv,
        code::IBV_WC_RECV => WcOpcode::Recv,
        code::IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
        other => WcOpcode::Unknown(other),
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

pub(crate) fn sge(sge: &Sge) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey.get(),
    }
}

/// A receive, with its elements at `sges` and `next` behind it in the list.
pub(crate) fn recv_wr(
    wr: &RecvWr<'_>,
    sges: *mut sys::ibv_sge,
    next: *mut sys::ibv_recv_wr,
) -> sys::ibv_recv_wr {
    sys::ibv_recv_wr {
        wr_id: wr.wr_id,
        next,
        sg_list: sges,
        num_sge: count(wr.sges),
    }
}

/// A send, with its elements at `sges` and `next` behind it in the list.
pub(crate) fn send_wr(
    wr: &SendWr<'_>,
    sges: *mut sys::ibv_sge,
    next: *mut sys::ibv_send_wr,
) -> sys::ibv_send_wr {
    let mut raw = sys::zeroed::<sys::ibv_send_wr>();
    raw.wr_id = wr.wr_id;
    raw.next = next;
    raw.sg_list = sges;
    raw.num_sge = count(wr.sges);
    // The bits of `SendFlags` are the C ones.
    raw.send_flags = wr.flags.bits();
    match wr.op {
        SendOp::Send => raw.opcode = code::IBV_WR_SEND,
        SendOp::SendImm(imm) => {
            raw.opcode = code::IBV_WR_SEND_WITH_IMM;
            sys::set_imm(&mut raw, imm);
        }
        SendOp::Write(remote) => {
            raw.opcode = code::IBV_WR_RDMA_WRITE;
            sys::set_rdma(&mut raw, remote.addr, remote.rkey.get());
        }
        SendOp::WriteImm(remote, imm) => {
            raw.opcode = code::IBV_WR_RDMA_WRITE_WITH_IMM;
            sys::set_imm(&mut raw, imm);
            sys::set_rdma(&mut raw, remote.addr, remote.rkey.get());
        }
        SendOp::Read(remote) => {
            raw.opcode = code::IBV_WR_RDMA_READ;
            sys::set_rdma(&mut raw, remote.addr, remote.rkey.get());
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            raw.opcode = code::IBV_WR_ATOMIC_CMP_AND_SWP;
            sys::set_atomic(&mut raw, remote.addr, remote.rkey.get(), compare, swap);
        }
        SendOp::FetchAdd { remote, add } => {
            raw.opcode = code::IBV_WR_ATOMIC_FETCH_AND_ADD;
            sys::set_atomic(&mut raw, remote.addr, remote.rkey.get(), add, 0);
        }
    }
    raw
}

fn count(sges: &[Sge]) -> i32 {
    i32::try_from(sges.len()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use adverb_verbs::{Access, InitAttr, Lkey, Psn, RemoteAddr, Rkey, RtrAttr, RtsAttr, SendFlags};

    use super::*;

    const REMOTE: RemoteAddr = RemoteAddr {
        addr: 0x1122_3344_5566_7788,
        rkey: Rkey::new(0x99aa_bbcc),
    };

    /// As `ibv_poll_cq(3)` writes one: 48 bytes, which the bindings do not let one make by name.
    #[repr(C)]
    struct RawWc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        imm_data: [u8; 4],
        qp_num: u32,
        src_qp: u32,
        wc_flags: u32,
        tail: [u8; 8],
    }

    fn wc(status: u32, opcode: u32, wc_flags: u32) -> WorkCompletion {
        let raw = RawWc {
            wr_id: 7,
            status,
            opcode,
            vendor_err: 0x81,
            byte_len: 100,
            imm_data: [1, 2, 3, 4],
            qp_num: 0x12_3456,
            src_qp: 9,
            wc_flags,
            tail: [0; 8],
        };
        // SAFETY: both are C structures of 48 bytes with the same fields, all integers.
        work_completion(&unsafe { std::mem::transmute::<RawWc, sys::ibv_wc>(raw) })
    }

    #[test]
    fn a_completion_keeps_what_is_valid() {
        let received = WorkCompletion {
            wr_id: 7,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: 0,
            byte_len: 100,
            imm: None,
            qp_num: Qpn::truncating(0x12_3456),
        };
        assert_eq!(wc(0, 128, 0), received);
        // IBV_WC_WITH_IMM. The wire has the most significant byte first.
        let imm = Some(0x0102_0304);
        assert_eq!(wc(0, 128, 2), WorkCompletion { imm, ..received });
        let opcode = WcOpcode::RecvRdmaWithImm;
        assert_eq!(
            wc(0, 129, 2),
            WorkCompletion {
                imm,
                opcode,
                ..received
            }
        );
        // A failed one has a vendor's code, and no immediate data whatever its flags say.
        let failed = wc(12, 0, 2);
        assert_eq!(
            (failed.status, failed.vendor_err, failed.imm, failed.wr_id),
            (WcStatus::RetryExcErr, 0x81, None, 7)
        );
    }

    #[test]
    fn codes_that_are_not_known_are_kept() {
        assert_eq!(wc(99, 0, 0).status.code(), 99);
        assert_eq!(wc(0, 77, 0).opcode, WcOpcode::Unknown(77));
        assert_eq!(qp_state(77), None);
    }

    #[test]
    fn a_send_carries_its_operation() {
        let sges = [Sge {
            addr: 1,
            length: 2,
            lkey: Lkey::new(3),
        }];
        let raw = |op| {
            let flags = SendFlags::SIGNALED | SendFlags::FENCE;
            let wr = SendWr {
                wr_id: 5,
                op,
                sges: &sges,
                flags,
            };
            let raw = send_wr(&wr, ptr::null_mut(), ptr::null_mut());
            assert_eq!((raw.wr_id, raw.num_sge, raw.send_flags), (5, 1, 3));
            raw
        };
        // SAFETY: the whole union was set, by zero at first.
        let imm = |raw: &sys::ibv_send_wr| unsafe { raw.__bindgen_anon_1.imm_data }.to_ne_bytes();
        // SAFETY: as above.
        let rdma = |raw: &sys::ibv_send_wr| unsafe { raw.wr.rdma };
        // SAFETY: as above.
        let atomic = |raw: &sys::ibv_send_wr| unsafe { raw.wr.atomic };

        assert_eq!(raw(SendOp::Send).opcode, code::IBV_WR_SEND);
        let with_imm = raw(SendOp::SendImm(0x0102_0304));
        assert_eq!(
            (with_imm.opcode, imm(&with_imm)),
            (code::IBV_WR_SEND_WITH_IMM, [1, 2, 3, 4])
        );
        let write = raw(SendOp::Write(REMOTE));
        assert_eq!(write.opcode, code::IBV_WR_RDMA_WRITE);
        assert_eq!(
            (rdma(&write).remote_addr, rdma(&write).rkey),
            (REMOTE.addr, REMOTE.rkey.get())
        );
        let write = raw(SendOp::WriteImm(REMOTE, 0x0102_0304));
        assert_eq!(
            (write.opcode, imm(&write)),
            (code::IBV_WR_RDMA_WRITE_WITH_IMM, [1, 2, 3, 4])
        );
        assert_eq!(
            (rdma(&write).remote_addr, rdma(&write).rkey),
            (REMOTE.addr, REMOTE.rkey.get())
        );
        let read = raw(SendOp::Read(REMOTE));
        assert_eq!(read.opcode, code::IBV_WR_RDMA_READ);
        assert_eq!(
            (rdma(&read).remote_addr, rdma(&read).rkey),
            (REMOTE.addr, REMOTE.rkey.get())
        );
        let swap = raw(SendOp::CompareSwap {
            remote: REMOTE,
            compare: 10,
            swap: 11,
        });
        assert_eq!(swap.opcode, code::IBV_WR_ATOMIC_CMP_AND_SWP);
        assert_eq!(
            (atomic(&swap).remote_addr, atomic(&swap).rkey),
            (REMOTE.addr, REMOTE.rkey.get())
        );
        assert_eq!((atomic(&swap).compare_add, atomic(&swap).swap), (10, 11));
        let add = raw(SendOp::FetchAdd {
            remote: REMOTE,
            add: 12,
        });
        assert_eq!(add.opcode, code::IBV_WR_ATOMIC_FETCH_AND_ADD);
        assert_eq!(
            (atomic(&add).compare_add, atomic(&add).rkey),
            (12, REMOTE.rkey.get())
        );
    }

    #[test]
    fn flags_have_the_bits_of_c() {
        for (ours, c) in [
            (SendFlags::FENCE, sys::ibv_send_flags::IBV_SEND_FENCE),
            (SendFlags::SIGNALED, sys::ibv_send_flags::IBV_SEND_SIGNALED),
            (SendFlags::SOLICITED, sys::ibv_send_flags::IBV_SEND_SOLICITED),
            (SendFlags::INLINE, sys::ibv_send_flags::IBV_SEND_INLINE),
        ] {
            assert_eq!(ours.bits(), c.0);
        }
        for (ours, c) in [
            (Access::LOCAL_WRITE, sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
            (
                Access::REMOTE_WRITE,
                sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            ),
            (Access::REMOTE_READ, sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            (
                Access::REMOTE_ATOMIC,
                sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            ),
        ] {
            assert_eq!(ours.bits(), c.0);
        }
    }

    fn rtr() -> RtrAttr {
        RtrAttr {
            ah: AddressVector {
                port_num: 1,
                sgid_index: 2,
                dgid: Some(Gid::new([3; 16])),
                dlid: 4,
                sl: 5,
                src_path_bits: 6,
                static_rate: 7,
                flow_label: 8,
                hop_limit: 9,
                traffic_class: 10,
                udp_port: None,
            },
            path_mtu: Mtu::Mtu1024,
            dest_qpn: Qpn::truncating(11),
            rq_psn: Psn::new(12),
            max_dest_rd_atomic: 13,
            min_rnr_timer: 14,
            access: None,
            pkey_index: None,
            alternate: None,
        }
    }

    fn rts() -> RtsAttr {
        RtsAttr {
            sq_psn: Psn::new(1),
            timeout: 2,
            retry_cnt: 3,
            rnr_retry: 4,
            max_rd_atomic: 5,
            access: None,
            min_rnr_timer: None,
            alternate: None,
        }
    }

    /// The masks of `ibv_modify_qp(3)`'s table for RC.
    #[test]
    fn transitions_name_the_attributes_that_they_need() {
        let init = InitAttr {
            port_num: 1,
            pkey_index: 2,
            access: Access::REMOTE_READ,
        };
        for (to, state, set) in [
            (QpModify::Reset, code::IBV_QPS_RESET, 0x1),
            (QpModify::Init(init), code::IBV_QPS_INIT, 0x1 | 0x8 | 0x10 | 0x20),
            (
                QpModify::Rtr(rtr()),
                code::IBV_QPS_RTR,
                0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x2_0000 | 0x10_0000,
            ),
            (
                QpModify::Rts(rts()),
                code::IBV_QPS_RTS,
                0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x1_0000,
            ),
            (QpModify::Sqd { notify: true }, code::IBV_QPS_SQD, 0x1 | 0x4),
            (QpModify::Resume, code::IBV_QPS_RTS, 0x1),
            (QpModify::Err, code::IBV_QPS_ERR, 0x1),
        ] {
            let (attr, names) = qp_modify(&to);
            assert_eq!((attr.qp_state, names.0), (state, set), "{to:?}");
        }
    }

    #[test]
    fn optional_attributes_are_named_only_if_given() {
        let alternate = AlternatePath {
            ah: AddressVector {
                port_num: 2,
                ..rtr().ah
            },
            pkey_index: 3,
            timeout: 4,
        };
        let mut to = rtr();
        (to.access, to.pkey_index, to.alternate) = (Some(Access::REMOTE_WRITE), Some(1), Some(alternate));
        let (plain, with) = (qp_modify(&QpModify::Rtr(rtr())).1, qp_modify(&QpModify::Rtr(to)));
        assert_eq!(with.1.0 ^ plain.0, 0x8 | 0x10 | 0x4000);
        assert_eq!((with.0.qp_access_flags, with.0.pkey_index), (2, 1));
        assert_eq!(
            (
                with.0.alt_ah_attr.port_num,
                with.0.alt_port_num,
                with.0.alt_pkey_index,
                with.0.alt_timeout
            ),
            (2, 2, 3, 4)
        );
        let mut to = rts();
        to.min_rnr_timer = Some(12);
        let (plain, with) = (qp_modify(&QpModify::Rts(rts())).1, qp_modify(&QpModify::Rts(to)));
        assert_eq!((with.1.0 ^ plain.0, with.0.min_rnr_timer), (0x8000, 12));
    }

    #[test]
    fn an_address_vector_is_global_where_it_has_a_gid() {
        let attr = ah_attr(&rtr().ah);
        assert_eq!((attr.is_global, attr.port_num, attr.dlid, attr.sl), (1, 1, 4, 5));
        assert_eq!((attr.src_path_bits, attr.static_rate), (6, 7));
        let grh = attr.grh;
        assert_eq!(
            (grh.sgid_index, grh.flow_label, grh.hop_limit, grh.traffic_class),
            (2, 8, 9, 10)
        );
        let local = AddressVector {
            dgid: None,
            ..rtr().ah
        };
        assert_eq!(ah_attr(&local).is_global, 0);
    }

    #[test]
    fn a_port_without_a_link_may_not_know_its_mtu() {
        let mut attr = sys::zeroed::<sys::ibv_port_attr>();
        (attr.state, attr.max_mtu, attr.active_mtu) = (code::IBV_PORT_DOWN, 5, 0);
        let port = port_attr(&attr).unwrap();
        assert_eq!(
            (port.state, port.max_mtu, port.active_mtu),
            (PortState::Down, Mtu::Mtu4096, Mtu::Mtu256)
        );
        attr.state = code::IBV_PORT_ACTIVE;
        assert_eq!(port_attr(&attr), None);
        attr.active_mtu = 3;
        assert_eq!(port_attr(&attr).unwrap().active_mtu, Mtu::Mtu1024);
    }

    #[test]
    fn gids_that_are_not_used_are_left_out() {
        let mut entry = sys::zeroed::<sys::ibv_gid_entry>();
        assert_eq!(gid_entry(&entry), None);
        entry.gid.raw = [7; 16];
        (entry.gid_index, entry.gid_type) = (3, code::IBV_GID_TYPE_ROCE_V2);
        let expected = GidEntry {
            index: 3,
            gid: Gid::new([7; 16]),
            gid_type: GidType::RoceV2,
            netdev: None,
            udp_port: None,
        };
        assert_eq!(gid_entry(&entry), Some(expected));
        // No address vector can name it.
        entry.gid_index = 256;
        assert_eq!(gid_entry(&entry), None);
    }

    #[test]
    fn limits_of_nonsense_are_limits_of_nothing() {
        let mut attr = sys::zeroed::<sys::ibv_device_attr>();
        (attr.max_qp, attr.max_cqe, attr.max_qp_rd_atom) = (-1, 100, 1000);
        let attr = device_attr(&attr);
        assert_eq!((attr.max_qp, attr.max_cqe, attr.max_qp_rd_atom), (0, 100, 255));
        assert_eq!((attr.fw_ver.as_str(), attr.atomic), ("", AtomicSupport::None));
    }
}
