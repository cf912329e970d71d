//! Work requests.

use adverb_types::{Lkey, Rkey};

bitflags::bitflags! {
    /// What a memory region or a queue pair permits (`ibv_reg_mr(3)`, `enum ibv_access_flags`). The bits are the C ones.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write locally: receives, READ results, atomics' old values.
        const LOCAL_WRITE = 1;
        /// Peers may RDMA WRITE. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

bitflags::bitflags! {
    /// How to carry out a send (`ibv_post_send(3)`, `enum ibv_send_flags`). The bits are the C ones.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Wait until this queue pair's earlier RDMA READs and atomics are done.
        const FENCE = 1;
        /// Make a completion also on success.
        const SIGNALED = 1 << 1;
        /// Wake a receiver that armed its queue solicited-only.
        const SOLICITED = 1 << 2;
        /// Copy the data at posting: its memory is free at once and needs no lkey.
        const INLINE = 1 << 3;
    }
}

/// A piece of local memory (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Its virtual address.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The key of the region that covers it.
    pub lkey: Lkey,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// The peer's virtual address.
    pub addr: u64,
    /// The key of the peer's region that covers it.
    pub rkey: Rkey,
}

/// What a send work request does (`enum ibv_wr_opcode`; IBTA volume 1, section 9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND: fills a receive of the peer.
    Send,
    /// SEND with 32 bits of immediate data (host byte order here, network byte order on the wire).
    SendImm(u32),
    /// RDMA WRITE: nobody at the peer notices.
    Write(RemoteAddr),
    /// RDMA WRITE with immediate data, which consumes a receive of the peer.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ into the local buffers.
    Read(RemoteAddr),
    /// Compare and swap 8 aligned bytes; the old value lands in the local buffer.
    CompareSwap {
        /// The 8 bytes, aligned to 8.
        remote: RemoteAddr,
        /// The value that must be there,
        compare: u64,
        /// for this one to be put there.
        swap: u64,
    },
    /// Fetch and add 8 aligned bytes; the old value lands in the local buffer.
    FetchAdd {
        /// The 8 bytes, aligned to 8.
        remote: RemoteAddr,
        /// The value to add, wrapping.
        add: u64,
    },
}

/// A send work request (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory, gathered or scattered in this order.
    pub sges: &'a [Sge],
    /// How.
    pub flags: SendFlags,
}

/// A receive work request (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Local memory, filled in this order.
    pub sges: &'a [Sge],
}
