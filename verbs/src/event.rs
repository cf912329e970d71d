//! Asynchronous events.

use std::fmt;

use adverb_types::Qpn;

use crate::codes::codes;

codes! {
    /// What happened (`ibv_get_async_event(3)`, `enum ibv_event_type`; IBTA volume 1, section 11.6.3).
    AsyncEventKind, "ibv_event_type":

    /// The completion queue overflowed or could not be used.
    CqErr = 0, "CQ_ERR", "the completion queue is in error: it overflowed or its memory failed";
    /// The queue pair went to the error state and nobody will be told by a completion.
    QpFatal = 1, "QP_FATAL", "the queue pair failed and went to the error state";
    /// The responder received an invalid request.
    QpReqErr = 2, "QP_REQ_ERR", "the peer sent an invalid request; the queue pair went to the error state";
    /// The responder received a request that the memory does not permit.
    QpAccessErr = 3, "QP_ACCESS_ERR", "the peer tried an access that the memory does not permit; the queue pair went to the error state";
    /// The first packet arrived on a queue pair that is ready to receive.
    CommEst = 4, "COMM_EST", "the peer's first packet arrived";
    /// The send queue was drained as asked.
    SqDrained = 5, "SQ_DRAINED", "the send queue is drained";
    /// The connection moved to its alternate path.
    PathMig = 6, "PATH_MIG", "the connection moved to its alternate path";
    /// Moving to the alternate path failed.
    PathMigErr = 7, "PATH_MIG_ERR", "the connection could not move to its alternate path";
    /// The device failed.
    DeviceFatal = 8, "DEVICE_FATAL", "the device failed or was removed";
    /// The port became active.
    PortActive = 9, "PORT_ACTIVE", "the port became active";
    /// The port went down.
    PortErr = 10, "PORT_ERR", "the port went down";
    /// The port's LID changed.
    LidChange = 11, "LID_CHANGE", "the port's LID changed";
    /// The port's P_Key table changed.
    PkeyChange = 12, "PKEY_CHANGE", "the port's P_Key table changed";
    /// The subnet manager changed.
    SmChange = 13, "SM_CHANGE", "the subnet manager changed";
    /// The shared receive queue failed.
    SrqErr = 14, "SRQ_ERR", "the shared receive queue is in error";
    /// The shared receive queue fell below its limit.
    SrqLimitReached = 15, "SRQ_LIMIT_REACHED", "the shared receive queue fell below its limit";
    /// The queue pair will take no more receives from its shared receive queue.
    QpLastWqeReached = 16, "QP_LAST_WQE_REACHED", "the queue pair in error consumed its last receive";
    /// The subnet manager asks clients to register again.
    ClientReregister = 17, "CLIENT_REREGISTER", "the subnet manager asks clients to register again";
    /// The port's GID table changed.
    GidChange = 18, "GID_CHANGE", "the port's GID table changed";
    /// A work queue failed.
    WqFatal = 19, "WQ_FATAL", "the work queue failed";
}

/// The object that an event is about. Look it up again: it may be gone by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// The device itself.
    Device,
    /// A port, by its number from 1.
    Port(u8),
    /// A queue pair, by its number.
    Qp(Qpn),
    /// A completion queue, by the cookie it was created with.
    Cq(u64),
    /// A shared receive queue, by the cookie it was created with.
    Srq(u64),
    /// Something that adverb does not make (a work queue).
    Other,
}

/// An asynchronous event, already acknowledged: holding it blocks nobody's destruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// To whom.
    pub source: EventSource,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            EventSource::Device | EventSource::Other => fmt::Display::fmt(&self.kind, f),
            EventSource::Port(port) => write!(f, "port {port}: {}", self.kind),
            EventSource::Qp(qpn) => write!(f, "queue pair {qpn}: {}", self.kind),
            EventSource::Cq(cookie) => write!(f, "completion queue {cookie:#x}: {}", self.kind),
            EventSource::Srq(cookie) => write!(f, "shared receive queue {cookie:#x}: {}", self.kind),
        }
    }
}
