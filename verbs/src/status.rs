//! Work completions and their codes.

use adverb_types::Qpn;

use crate::codes::codes;

codes! {
    /// How a work request ended (`ibv_poll_cq(3)`, `enum ibv_wc_status`; IBTA volume 1, section 11.6.2).
    WcStatus, "ibv_wc_status":

    /// Done.
    Success = 0, "SUCCESS", "done";
    /// The message does not fit the buffers of the receive, or the send is longer than the port allows.
    LocLenErr = 1, "LOC_LEN_ERR", "the message does not fit the local buffers";
    /// An internal inconsistency of the queue pair.
    LocQpOpErr = 2, "LOC_QP_OP_ERR", "the queue pair could not carry out the work request";
    /// An internal inconsistency of the EE context (never on RC).
    LocEecOpErr = 3, "LOC_EEC_OP_ERR", "the EE context could not carry out the work request";
    /// A local buffer is not covered by its lkey.
    LocProtErr = 4, "LOC_PROT_ERR", "a local buffer is not covered by its lkey, or lacks the access right";
    /// The queue pair went to the error state before this request was carried out.
    WrFlushErr = 5, "WR_FLUSH_ERR", "the queue pair went to the error state first; an earlier completion may say why";
    /// Binding a memory window failed.
    MwBindErr = 6, "MW_BIND_ERR", "binding the memory window failed";
    /// The responder sent something that does not belong here.
    BadRespErr = 7, "BAD_RESP_ERR", "the peer's answer does not belong to the request";
    /// A write into local memory was not permitted.
    LocAccessErr = 8, "LOC_ACCESS_ERR", "local memory does not permit the write";
    /// The responder found the request invalid.
    RemInvReqErr = 9, "REM_INV_REQ_ERR", "the peer found the request invalid: its receive is too short, its MTU differs, or it does not allow the operation";
    /// The responder's memory does not permit the access.
    RemAccessErr = 10, "REM_ACCESS_ERR", "the peer's memory does not permit the access: wrong rkey, address, length or access right";
    /// The responder could not carry out the request.
    RemOpErr = 11, "REM_OP_ERR", "the peer's device could not carry out the request";
    /// No acknowledgement came within `timeout` × (`retry_cnt` + 1).
    RetryExcErr = 12, "RETRY_EXC_ERR", "the peer's queue pair did not answer, however often it was asked";
    /// The responder had no receive posted, for too long.
    RnrRetryExcErr = 13, "RNR_RETRY_EXC_ERR", "the peer had no receive posted, for too long";
    /// Reliable datagram domain mismatch (never on RC).
    LocRddViolErr = 14, "LOC_RDD_VIOL_ERR", "the reliable datagram domains differ";
    /// Invalid reliable datagram request (never on RC).
    RemInvRdReqErr = 15, "REM_INV_RD_REQ_ERR", "the peer found the reliable datagram request invalid";
    /// The responder aborted the operation.
    RemAbortErr = 16, "REM_ABORT_ERR", "the peer aborted the operation";
    /// Invalid EE context number (never on RC).
    InvEecnErr = 17, "INV_EECN_ERR", "the EE context number is invalid";
    /// Invalid EE context state (never on RC).
    InvEecStateErr = 18, "INV_EEC_STATE_ERR", "the EE context is in the wrong state";
    /// A fatal error of the transport.
    FatalErr = 19, "FATAL_ERR", "the device had a fatal error";
    /// The responder did not answer in time.
    RespTimeoutErr = 20, "RESP_TIMEOUT_ERR", "the peer's answer did not come in time";
    /// Anything else.
    GeneralErr = 21, "GENERAL_ERR", "the device reported an error of no other kind";
    /// Tag matching failed (never on plain receives).
    TmErr = 22, "TM_ERR", "tag matching failed";
    /// A tag-matching rendezvous was left to software (never on plain receives).
    TmRndvIncomplete = 23, "TM_RNDV_INCOMPLETE", "the tag-matching rendezvous was left to software";
}

/// Which kind of work request completed (`enum ibv_wc_opcode`). Valid only when the status is `Success`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A SEND, with or without immediate.
    Send,
    /// An RDMA WRITE, with or without immediate.
    RdmaWrite,
    /// An RDMA READ.
    RdmaRead,
    /// A compare and swap.
    CompSwap,
    /// A fetch and add.
    FetchAdd,
    /// A memory window bind.
    BindMw,
    /// A local invalidate.
    LocalInv,
    /// A receive that a SEND filled.
    Recv,
    /// A receive that an RDMA WRITE with immediate consumed.
    RecvRdmaWithImm,
    /// A code that this version does not know, or none because the work failed.
    Unknown(u32),
}

/// One entry of a completion queue (`ibv_poll_cq(3)`).
///
/// When `status` is not `Success`, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The id that the work request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The vendor's own code, 0 where there is none.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// The immediate data in host byte order, if the message carried some.
    pub imm: Option<u32>,
    /// The local queue pair.
    pub qp_num: Qpn,
}

impl WorkCompletion {
    /// A successful completion of nothing: what to fill an array with before polling into it.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::Success,
        opcode: WcOpcode::Unknown(0),
        vendor_err: 0,
        byte_len: 0,
        imm: None,
        qp_num: Qpn::truncating(0),
    };
}
