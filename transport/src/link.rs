//! Making the RC link of an endpoint: the queue pair and its way to the peer.

use std::net::IpAddr;
use std::sync::Arc;

use adverb_verbs::{
    Access, AddressVector, AtomicSupport, GidEntry, InitAttr, LinkLayer, PortAttr, Psn, Qp, QpModify,
    RtrAttr, RtsAttr, VerbsError,
};
use adverb_wire::{Agreement, FeatureOffer, Parameters, Text, VersionRange};

use crate::rma::Limits;
use crate::{Config, ConnectErrorKind, Context};

/// What asks the peer to try again after 0.64 ms when it meets no receive (IBTA volume 1, table 45). Credits keep that from happening.
const MIN_RNR_TIMER: u8 = 12;

/// Retries when the peer has no receive posted.
const RNR_RETRY: u8 = 6;

/// READs and atomics that a link has under way, and serves, at most: what rxe and common NICs can.
const MAX_RD_ATOMIC: u8 = 16;

/// A queue pair in INIT with what it tells the peer of itself.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) qp: Arc<dyn Qp>,
    pub(crate) parameters: Parameters,
    port: PortAttr,
    port_num: u8,
    gid: GidEntry,
}

impl Link {
    /// Moves a new queue pair to INIT and fills in the parameters. `local` is the address of the handshake's TCP connection.
    pub(crate) fn prepare(
        context: &Context,
        config: &Config,
        qp: Arc<dyn Qp>,
        local: Option<IpAddr>,
        nonce: u64,
    ) -> Result<Self, ConnectErrorKind> {
        let (port, gid) = context.usable_port(local).map_err(ConnectErrorKind::Port)?;
        let port_num = context.port();
        let attr = context.device().attr();
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // What peers may do with memory, its registration says.
        if attr.atomic != AtomicSupport::None {
            access |= Access::REMOTE_ATOMIC;
        }
        qp.modify(&QpModify::Init(InitAttr {
            port_num,
            pkey_index: 0,
            access,
        }))?;
        let parameters = Parameters {
            versions: VersionRange::SUPPORTED,
            features: FeatureOffer::default(),
            nonce,
            qpn: qp.qpn(),
            psn: Psn::new(fastrand::u32(..)),
            gid: gid.gid,
            gid_type: gid.gid_type,
            mtu: port.active_mtu,
            lid: (port.link_layer == LinkLayer::InfiniBand).then_some(port.lid),
            udp_port: gid.udp_port,
            max_rd_atomic: attr.max_qp_init_rd_atom.min(MAX_RD_ATOMIC),
            max_dest_rd_atomic: attr.max_qp_rd_atom.min(MAX_RD_ATOMIC),
            credits: config.window,
            segment_size: config.segment_size,
            max_message: config.max_message,
            software: Text::truncated(concat!("adverb ", env!("CARGO_PKG_VERSION"))),
            device: Text::truncated(context.device_name()),
        };
        Ok(Self {
            qp,
            parameters,
            port,
            port_num,
            gid,
        })
    }

    /// What it lets one-sided operations do.
    pub(crate) fn limits(&self, context: &Context, agreement: &Agreement) -> Limits {
        Limits {
            max_len: self.port.max_msg_sz,
            max_rd_atomic: agreement.max_rd_atomic,
            atomics: context.device().attr().atomic != AtomicSupport::None,
        }
    }

    /// Moves the queue pair to RTR and RTS, towards the peer.
    pub(crate) fn connect(
        &self,
        config: &Config,
        peer: &Parameters,
        agreement: &Agreement,
    ) -> Result<(), VerbsError> {
        let roce = self.port.link_layer == LinkLayer::Ethernet;
        let ah = AddressVector {
            dlid: if roce { 0 } else { peer.lid.unwrap_or(0) },
            flow_label: flow_label(self.parameters.qpn.get(), peer.qpn.get()),
            traffic_class: config.traffic_class,
            udp_port: peer.udp_port,
            ..AddressVector::roce(self.port_num, self.gid.index, peer.gid)
        };
        self.qp.modify(&QpModify::Rtr(RtrAttr {
            ah,
            path_mtu: agreement.path_mtu,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: agreement.max_dest_rd_atomic,
            min_rnr_timer: MIN_RNR_TIMER,
            access: None,
            pkey_index: None,
            alternate: None,
        }))?;
        self.qp.modify(&QpModify::Rts(RtsAttr {
            sq_psn: self.parameters.psn,
            timeout: config.ack_timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: RNR_RETRY,
            max_rd_atomic: agreement.max_rd_atomic,
            access: None,
            min_rnr_timer: None,
            alternate: None,
        }))
    }
}

/// Spreads the connections between two hosts over the paths between them: RoCEv2 makes its UDP source port from the flow label.
fn flow_label(local: u32, remote: u32) -> u32 {
    // Symmetric, so that both directions of a connection take the same path through symmetric hashing.
    let product = u64::from(local)
        .wrapping_mul(u64::from(remote))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 44) as u32 & 0xf_ffff
}
