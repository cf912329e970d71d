//! libibverbs, one function a verb: raw pointers in, typed results out. A new release of the bindings touches this file only.
//!
//! The functions that C has as `static inline` are not in the bindings. They call through the context's table of operations,
//! as the C ones do.
//!
//! # Safety
//! All functions here are `unsafe` for the same reasons: the pointers must come from this library, be of the kind that their types say, not
//! be destroyed yet, and stay so during the call. The objects above see to it by owning them.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::ptr::{self, NonNull};

use ibverbs_sys as ffi;
use rustix::io::Errno;

pub(crate) use ffi::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_wc,
};

#[cfg(test)]
pub(crate) use ffi::{ibv_access_flags, ibv_send_flags};

/// Numbers of C enumerations that no other file needs to know the bindings for.
pub(crate) mod code {
    use super::ffi;

    pub(crate) use ffi::ibv_port_state::{
        IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER, IBV_PORT_ARMED, IBV_PORT_DOWN, IBV_PORT_INIT,
    };
    pub(crate) use ffi::ibv_qp_state::{
        IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
    };
    pub(crate) use ffi::ibv_wc_opcode::{
        IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_LOCAL_INV, IBV_WC_RDMA_READ,
        IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND,
    };
    pub(crate) use ffi::ibv_wr_opcode::{
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    };
    pub(crate) use ffi::{
        IBV_ATOMIC_GLOB, IBV_ATOMIC_HCA, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET,
        IBV_LINK_LAYER_INFINIBAND,
    };
}

/// The device list, freed when dropped.
#[derive(Debug)]
pub(crate) struct DeviceList {
    list: NonNull<*mut ffi::ibv_device>,
    len: usize,
}

impl DeviceList {
    /// `ibv_get_device_list(3)`.
    pub(crate) fn get() -> io::Result<Self> {
        let mut len = 0;
        // SAFETY: `len` is a valid place for the count.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut len) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            list,
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    /// `ibv_open_device(3)` of the device of this name; `None` if there is none.
    pub(crate) fn open(&self, name: &str) -> Option<io::Result<NonNull<ibv_context>>> {
        let device = self.devices().find(|device| {
            // SAFETY: the pointer is an element of a list that is not freed yet.
            let found = unsafe { ffi::ibv_get_device_name(*device) };
            // SAFETY: the name, if there is one, is a C string within the device's structure.
            !found.is_null() && unsafe { CStr::from_ptr(found) }.to_bytes() == name.as_bytes()
        })?;
        // SAFETY: the pointer is an element of a list that is not freed yet.
        Some(non_null(unsafe { ffi::ibv_open_device(device) }))
    }

    fn devices(&self) -> impl Iterator<Item = *mut ffi::ibv_device> {
        (0..self.len).map(|i| {
            // SAFETY: the list has `len` elements.
            let place = unsafe { self.list.add(i) };
            // SAFETY: as above; the library filled it.
            unsafe { place.read() }
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list was given by `ibv_get_device_list` and is freed once.
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// `ibv_close_device(3)`.
pub(crate) unsafe fn close_device(context: NonNull<ibv_context>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_close_device(context.as_ptr()) })
}

/// `ibv_query_device(3)`.
pub(crate) unsafe fn query_device(context: NonNull<ibv_context>) -> io::Result<ibv_device_attr> {
    let mut attr = zeroed::<ibv_device_attr>();
    // SAFETY: see the module's page; `attr` is a valid place for the answer.
    value_is_errno(unsafe { ffi::ibv_query_device(context.as_ptr(), &raw mut attr) })?;
    Ok(attr)
}

/// `ibv_query_port(3)`. What the old entry point does not fill stays zero.
pub(crate) unsafe fn query_port(context: NonNull<ibv_context>, port: u8) -> io::Result<ibv_port_attr> {
    let mut attr = zeroed::<ibv_port_attr>();
    // SAFETY: see the module's page. The exported function fills the head of the structure, which has not changed.
    value_is_errno(unsafe { ffi::ibv_query_port(context.as_ptr(), port, (&raw mut attr).cast()) })?;
    Ok(attr)
}

/// `ibv_query_gid_table(3)`: the used entries of all ports, `max` at most.
pub(crate) unsafe fn query_gid_table(
    context: NonNull<ibv_context>,
    max: usize,
) -> io::Result<Vec<ibv_gid_entry>> {
    let mut entries = vec![zeroed::<ibv_gid_entry>(); max];
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: see the module's page; `entries` has room for `max` entries of that size.
    let n = unsafe { ffi::_ibv_query_gid_table(context.as_ptr(), entries.as_mut_ptr(), max, 0, size) };
    // A negative number is an errno.
    let n = usize::try_from(n)
        .map_err(|_| io::Error::from_raw_os_error(n.unsigned_abs().try_into().unwrap_or(0)))?;
    entries.truncate(n);
    Ok(entries)
}

/// The GID of an entry, most significant byte first.
pub(crate) fn gid_bytes(entry: &ibv_gid_entry) -> [u8; 16] {
    // SAFETY: all 16 bytes of the union are initialised, and any bytes are valid.
    unsafe { entry.gid.raw }
}

/// An address vector's route, filled in.
pub(crate) fn route(
    attr: &mut ibv_ah_attr,
    dgid: [u8; 16],
    sgid_index: u8,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
) {
    attr.is_global = 1;
    attr.grh.dgid = ffi::ibv_gid { raw: dgid };
    attr.grh.sgid_index = sgid_index;
    attr.grh.flow_label = flow_label;
    attr.grh.hop_limit = hop_limit;
    attr.grh.traffic_class = traffic_class;
}

/// `num_comp_vectors` of the context.
pub(crate) unsafe fn num_comp_vectors(context: NonNull<ibv_context>) -> u32 {
    // SAFETY: see the module's page.
    let vectors = unsafe { (*context.as_ptr()).num_comp_vectors };
    u32::try_from(vectors).unwrap_or(0)
}

/// The descriptor of asynchronous events.
pub(crate) unsafe fn async_fd(context: NonNull<ibv_context>) -> i32 {
    // SAFETY: see the module's page.
    unsafe { (*context.as_ptr()).async_fd }
}

/// An asynchronous event that was copied and acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawAsyncEvent {
    pub(crate) kind: u32,
    pub(crate) element: RawElement,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawElement {
    Qp(u32),
    /// The `cq_context`.
    Cq(*mut std::ffi::c_void),
    /// The `srq_context`.
    Srq(*mut std::ffi::c_void),
    Port(i32),
    Device,
    Other,
}

/// `ibv_get_async_event(3)` and `ibv_ack_async_event(3)`. `Ok(None)`: there is none now. `copy` is called before the event is
/// acknowledged, while the object that it is about cannot be destroyed.
pub(crate) unsafe fn take_async_event<R>(
    context: NonNull<ibv_context>,
    copy: impl FnOnce(RawAsyncEvent) -> R,
) -> io::Result<Option<R>> {
    let mut event = zeroed::<ffi::ibv_async_event>();
    // SAFETY: see the module's page; `event` is a valid place for the event.
    if unsafe { ffi::ibv_get_async_event(context.as_ptr(), &raw mut event) } != 0 {
        return would_block_is_none();
    }
    let element = match event.event_type {
        0 => {
            // SAFETY: for this event the union holds a queue.
            let cq = unsafe { event.element.cq };
            // SAFETY: the queue exists until the event is acknowledged.
            RawElement::Cq(unsafe { (*cq).cq_context })
        }
        1..=7 | 16 => {
            // SAFETY: for these events the union holds a queue pair.
            let qp = unsafe { event.element.qp };
            // SAFETY: the queue pair exists until the event is acknowledged.
            RawElement::Qp(unsafe { (*qp).qp_num })
        }
        14 | 15 => {
            // SAFETY: for these events the union holds a shared receive queue.
            let srq = unsafe { event.element.srq };
            // SAFETY: the queue exists until the event is acknowledged.
            RawElement::Srq(unsafe { (*srq).srq_context })
        }
        9..=13 | 17 | 18 => {
            // SAFETY: for these events the union holds a port number.
            RawElement::Port(unsafe { event.element.port_num })
        }
        8 => RawElement::Device,
        _ => RawElement::Other,
    };
    let copied = copy(RawAsyncEvent {
        kind: event.event_type,
        element,
    });
    // SAFETY: the event was taken above and is acknowledged once.
    unsafe { ffi::ibv_ack_async_event(&raw mut event) };
    Ok(Some(copied))
}

/// `ibv_alloc_pd(3)`.
pub(crate) unsafe fn alloc_pd(context: NonNull<ibv_context>) -> io::Result<NonNull<ibv_pd>> {
    // SAFETY: see the module's page.
    non_null(unsafe { ffi::ibv_alloc_pd(context.as_ptr()) })
}

/// `ibv_dealloc_pd(3)`.
pub(crate) unsafe fn dealloc_pd(pd: NonNull<ibv_pd>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_dealloc_pd(pd.as_ptr()) })
}

/// `ibv_reg_mr(3)`. Also: the memory is the caller's, and stays until `ibv_dereg_mr` succeeded.
pub(crate) unsafe fn reg_mr(
    pd: NonNull<ibv_pd>,
    addr: *mut u8,
    len: usize,
    access: u32,
) -> io::Result<NonNull<ibv_mr>> {
    // The flags of `Access` are small; the parameter is an int in C.
    let access = access.cast_signed();
    // SAFETY: see the module's page and above.
    non_null(unsafe { ffi::ibv_reg_mr(pd.as_ptr(), addr.cast(), len, access) })
}

/// The lkey and rkey of a region.
pub(crate) unsafe fn mr_keys(mr: NonNull<ibv_mr>) -> (u32, u32) {
    // SAFETY: see the module's page.
    let mr = unsafe { mr.as_ref() };
    (mr.lkey, mr.rkey)
}

/// `ibv_dereg_mr(3)`.
pub(crate) unsafe fn dereg_mr(mr: NonNull<ibv_mr>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_dereg_mr(mr.as_ptr()) })
}

/// `ibv_create_comp_channel(3)`, and its descriptor.
pub(crate) unsafe fn create_comp_channel(
    context: NonNull<ibv_context>,
) -> io::Result<(NonNull<ibv_comp_channel>, i32)> {
    // SAFETY: see the module's page.
    let channel = non_null(unsafe { ffi::ibv_create_comp_channel(context.as_ptr()) })?;
    // SAFETY: the channel was made just now.
    let fd = unsafe { channel.as_ref().fd };
    Ok((channel, fd))
}

/// `ibv_destroy_comp_channel(3)`.
pub(crate) unsafe fn destroy_comp_channel(channel: NonNull<ibv_comp_channel>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_destroy_comp_channel(channel.as_ptr()) })
}

/// `ibv_get_cq_event(3)`: the `cq_context` of the queue that sent an event; `Ok(None)` if there is none now.
pub(crate) unsafe fn get_cq_event(
    channel: NonNull<ibv_comp_channel>,
) -> io::Result<Option<*mut std::ffi::c_void>> {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: see the module's page; both are valid places for the answer.
    if unsafe { ffi::ibv_get_cq_event(channel.as_ptr(), &raw mut cq, &raw mut context) } != 0 {
        return would_block_is_none();
    }
    Ok(Some(context))
}

/// `ibv_ack_cq_events(3)`.
pub(crate) unsafe fn ack_cq_events(cq: NonNull<ibv_cq>, events: u32) {
    // SAFETY: see the module's page.
    unsafe { ffi::ibv_ack_cq_events(cq.as_ptr(), events) };
}

/// `ibv_create_cq(3)`, and the entries that it has.
pub(crate) unsafe fn create_cq(
    context: NonNull<ibv_context>,
    cqe: i32,
    cq_context: *mut std::ffi::c_void,
    channel: Option<NonNull<ibv_comp_channel>>,
    comp_vector: i32,
) -> io::Result<(NonNull<ibv_cq>, u32)> {
    let channel = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
    // SAFETY: see the module's page.
    let cq =
        non_null(unsafe { ffi::ibv_create_cq(context.as_ptr(), cqe, cq_context, channel, comp_vector) })?;
    // SAFETY: the queue was made just now.
    let entries = unsafe { cq.as_ref().cqe };
    Ok((cq, u32::try_from(entries).unwrap_or(0)))
}

/// `ibv_destroy_cq(3)`.
pub(crate) unsafe fn destroy_cq(cq: NonNull<ibv_cq>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_destroy_cq(cq.as_ptr()) })
}

/// `ibv_poll_cq(3)`: how many completions were written to the front of `out`.
pub(crate) unsafe fn poll_cq(cq: NonNull<ibv_cq>, out: &mut [ibv_wc]) -> io::Result<usize> {
    // SAFETY: see the module's page.
    let context = unsafe { cq.as_ref().context };
    // SAFETY: an object's context lives as long as the object.
    let poll = unsafe { (*context).ops.poll_cq };
    let poll = poll.ok_or_else(unsupported)?;
    let max = i32::try_from(out.len()).unwrap_or(i32::MAX);
    // SAFETY: see the module's page; `out` has room for `max` completions.
    let n = unsafe { poll(cq.as_ptr(), max, out.as_mut_ptr()) };
    // All that a negative number says is that the queue is in error.
    usize::try_from(n).map_err(|_| Errno::IO.into())
}

/// An array to poll into.
pub(crate) fn empty_wcs<const N: usize>() -> [ibv_wc; N] {
    [zeroed::<ibv_wc>(); N]
}

/// `ibv_req_notify_cq(3)`.
pub(crate) unsafe fn req_notify_cq(cq: NonNull<ibv_cq>, solicited_only: bool) -> io::Result<()> {
    // SAFETY: see the module's page.
    let context = unsafe { cq.as_ref().context };
    // SAFETY: an object's context lives as long as the object.
    let req_notify = unsafe { (*context).ops.req_notify_cq };
    let req_notify = req_notify.ok_or_else(unsupported)?;
    // SAFETY: see the module's page.
    value_is_errno(unsafe { req_notify(cq.as_ptr(), solicited_only.into()) })
}

/// `ibv_create_srq(3)`, and the receives that it holds.
pub(crate) unsafe fn create_srq(
    pd: NonNull<ibv_pd>,
    max_wr: u32,
    max_sge: u32,
    srq_context: *mut std::ffi::c_void,
) -> io::Result<(NonNull<ibv_srq>, u32)> {
    let mut init = zeroed::<ffi::ibv_srq_init_attr>();
    init.srq_context = srq_context;
    (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
    // SAFETY: see the module's page; `init` is valid for reading and writing.
    let srq = non_null(unsafe { ffi::ibv_create_srq(pd.as_ptr(), &raw mut init) })?;
    Ok((srq, init.attr.max_wr))
}

/// `ibv_modify_srq(3)` with `IBV_SRQ_LIMIT`.
pub(crate) unsafe fn set_srq_limit(srq: NonNull<ibv_srq>, limit: u32) -> io::Result<()> {
    let mut attr = zeroed::<ffi::ibv_srq_attr>();
    attr.srq_limit = limit;
    // SAFETY: see the module's page; `attr` is valid for reading and writing.
    value_is_errno(unsafe {
        ffi::ibv_modify_srq(srq.as_ptr(), &raw mut attr, ffi::IBV_SRQ_LIMIT.cast_signed())
    })
}

/// `ibv_destroy_srq(3)`.
pub(crate) unsafe fn destroy_srq(srq: NonNull<ibv_srq>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_destroy_srq(srq.as_ptr()) })
}

/// What a queue pair is created with: all of it but the sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpQueues {
    pub(crate) send_cq: NonNull<ibv_cq>,
    pub(crate) recv_cq: NonNull<ibv_cq>,
    pub(crate) srq: Option<NonNull<ibv_srq>>,
    pub(crate) sq_sig_all: bool,
}

/// `ibv_create_qp(3)` of type RC. `cap` is what is asked for, and then what it got.
pub(crate) unsafe fn create_qp(
    pd: NonNull<ibv_pd>,
    queues: QpQueues,
    cap: &mut ibv_qp_cap,
) -> io::Result<(NonNull<ibv_qp>, u32)> {
    let mut init = zeroed::<ibv_qp_init_attr>();
    init.send_cq = queues.send_cq.as_ptr();
    init.recv_cq = queues.recv_cq.as_ptr();
    init.srq = queues.srq.map_or(ptr::null_mut(), NonNull::as_ptr);
    init.sq_sig_all = queues.sq_sig_all.into();
    init.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
    init.cap = *cap;
    // SAFETY: see the module's page; `init` is valid for reading and writing.
    let qp = non_null(unsafe { ffi::ibv_create_qp(pd.as_ptr(), &raw mut init) })?;
    *cap = init.cap;
    // SAFETY: the queue pair was made just now.
    let number = unsafe { qp.as_ref().qp_num };
    Ok((qp, number))
}

/// `ibv_modify_qp(3)`.
pub(crate) unsafe fn modify_qp(
    qp: NonNull<ibv_qp>,
    attr: &mut ibv_qp_attr,
    mask: ibv_qp_attr_mask,
) -> io::Result<()> {
    // SAFETY: see the module's page; `attr` is valid for reading.
    value_is_errno(unsafe { ffi::ibv_modify_qp(qp.as_ptr(), attr, mask.0.cast_signed()) })
}

/// `ibv_query_qp(3)`: the state.
pub(crate) unsafe fn query_qp_state(qp: NonNull<ibv_qp>) -> io::Result<u32> {
    let mut attr = zeroed::<ibv_qp_attr>();
    let mut init = zeroed::<ibv_qp_init_attr>();
    let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
    // SAFETY: see the module's page; both are valid places for the answer.
    value_is_errno(unsafe { ffi::ibv_query_qp(qp.as_ptr(), &raw mut attr, mask, &raw mut init) })?;
    Ok(attr.qp_state)
}

/// `ibv_destroy_qp(3)`.
pub(crate) unsafe fn destroy_qp(qp: NonNull<ibv_qp>) -> io::Result<()> {
    // SAFETY: see the module's page.
    value_is_errno(unsafe { ffi::ibv_destroy_qp(qp.as_ptr()) })
}

/// `ibv_post_send(3)`. On failure, the request that was not accepted. Also: the requests' memory is valid until they complete.
pub(crate) unsafe fn post_send(
    qp: NonNull<ibv_qp>,
    first: *mut ibv_send_wr,
) -> Result<(), (io::Error, *mut ibv_send_wr)> {
    // SAFETY: see the module's page.
    let context = unsafe { qp.as_ref().context };
    // SAFETY: an object's context lives as long as the object.
    let post = unsafe { (*context).ops.post_send };
    let post = post.ok_or_else(|| (unsupported(), first))?;
    let mut bad = ptr::null_mut();
    // SAFETY: see the module's page and above; the list is linked and ends with null.
    value_is_errno(unsafe { post(qp.as_ptr(), first, &raw mut bad) }).map_err(|error| (error, bad))
}

/// `ibv_post_recv(3)`, as [`post_send`].
pub(crate) unsafe fn post_recv(
    qp: NonNull<ibv_qp>,
    first: *mut ibv_recv_wr,
) -> Result<(), (io::Error, *mut ibv_recv_wr)> {
    // SAFETY: see the module's page.
    let context = unsafe { qp.as_ref().context };
    // SAFETY: an object's context lives as long as the object.
    let post = unsafe { (*context).ops.post_recv };
    let post = post.ok_or_else(|| (unsupported(), first))?;
    let mut bad = ptr::null_mut();
    // SAFETY: see the module's page and above; the list is linked and ends with null.
    value_is_errno(unsafe { post(qp.as_ptr(), first, &raw mut bad) }).map_err(|error| (error, bad))
}

/// `ibv_post_srq_recv(3)`, as [`post_send`].
pub(crate) unsafe fn post_srq_recv(
    srq: NonNull<ibv_srq>,
    first: *mut ibv_recv_wr,
) -> Result<(), (io::Error, *mut ibv_recv_wr)> {
    // SAFETY: see the module's page.
    let context = unsafe { srq.as_ref().context };
    // SAFETY: an object's context lives as long as the object.
    let post = unsafe { (*context).ops.post_srq_recv };
    let post = post.ok_or_else(|| (unsupported(), first))?;
    let mut bad = ptr::null_mut();
    // SAFETY: see the module's page and above; the list is linked and ends with null.
    value_is_errno(unsafe { post(srq.as_ptr(), first, &raw mut bad) }).map_err(|error| (error, bad))
}

/// Structures that are valid when all their bytes are zero, as C callers clear them.
pub(crate) trait Zeroable: Copy {}
impl Zeroable for ffi::ibv_async_event {}
impl Zeroable for ffi::ibv_srq_attr {}
impl Zeroable for ffi::ibv_srq_init_attr {}
impl Zeroable for ibv_ah_attr {}
impl Zeroable for ibv_device_attr {}
impl Zeroable for ibv_gid_entry {}
impl Zeroable for ibv_port_attr {}
impl Zeroable for ibv_qp_attr {}
impl Zeroable for ibv_qp_init_attr {}
impl Zeroable for ibv_send_wr {}
impl Zeroable for ibv_wc {}

pub(crate) fn zeroed<T: Zeroable>() -> T {
    // SAFETY: the types are C structures of integers and nullable pointers, with C enumerations as plain integers.
    unsafe { mem::zeroed() }
}

fn non_null<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// For verbs that return an errno. Some providers return −1 and set `errno`.
fn value_is_errno(value: i32) -> io::Result<()> {
    match value {
        0 => Ok(()),
        errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn would_block_is_none<T>() -> io::Result<Option<T>> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        Ok(None)
    } else {
        Err(error)
    }
}

fn unsupported() -> io::Error {
    Errno::OPNOTSUPP.into()
}

/// Immediate data of a send, which C takes in network byte order.
pub(crate) fn set_imm(wr: &mut ibv_send_wr, imm: u32) {
    wr.__bindgen_anon_1.imm_data = imm.to_be();
}

/// Immediate data of a completion, in host byte order.
pub(crate) fn imm(wc: &ibv_wc) -> Option<u32> {
    wc.imm_data().map(u32::from_be)
}

/// The remote side of a WRITE or READ.
pub(crate) fn set_rdma(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32) {
    wr.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
}

/// The remote side of an atomic.
pub(crate) fn set_atomic(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32, compare_add: u64, swap: u64) {
    wr.wr.atomic = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
        remote_addr,
        compare_add,
        swap,
        rkey,
    };
}
