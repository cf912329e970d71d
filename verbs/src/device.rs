//! Providers, devices and protection domains.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{
    Access, AsyncEvent, CompChannel, Cq, CqInit, DeviceAttr, DeviceInfo, GidEntry, Mr, PortAttr, Qp, QpInit,
    Srq, SrqInit, VerbsError,
};

/// A kind of devices: libibverbs, or one that tests bring.
///
/// # Safety
/// The devices it opens keep the promises of the other traits of this crate.
pub unsafe trait Provider: Debug + Send + Sync {
    /// The provider's name, for diagnostics (`libibverbs`).
    fn name(&self) -> &'static str;

    /// The devices there are, in the provider's order (`ibv_get_device_list(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if they cannot be listed.
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError>;

    /// Opens the device of this name (`ibv_open_device(3)`).
    ///
    /// # Errors
    /// [`crate::ErrorKind::NoSuchDevice`] names those there are; else what the system said.
    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError>;
}

/// An opened device (`struct ibv_context`).
///
/// Everything made from it holds it, so it closes when the last of them is dropped.
///
/// # Safety
/// Objects made from it touch only memory registered with it, within the access rights given.
pub unsafe trait Device: Any + Debug + Send + Sync {
    /// What it was found as.
    fn info(&self) -> &DeviceInfo;

    /// The provider's name.
    fn provider(&self) -> &'static str;

    /// Its limits (`ibv_query_device(3)`), read when it was opened.
    fn attr(&self) -> &DeviceAttr;

    /// Completion vectors: valid ones are less than this.
    fn num_comp_vectors(&self) -> u32;

    /// A port's attributes now, ports counting from 1 (`ibv_query_port(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port or the device does not answer.
    fn port(&self, port: u8) -> Result<PortAttr, VerbsError>;

    /// The used entries of a port's GID table now, by rising index (`ibv_query_gid_table(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if the table cannot be read.
    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError>;

    /// Makes a protection domain (`ibv_alloc_pd(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    fn alloc_pd(&self) -> Result<Arc<dyn Pd>, VerbsError>;

    /// Makes a completion channel (`ibv_create_comp_channel(3)`).
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses or file descriptors ran out.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>, VerbsError>;

    /// Makes a completion queue (`ibv_create_cq(3)`).
    ///
    /// # Errors
    /// [`crate::ErrorKind::OutOfRange`] for a `comp_vector` or `cqe` that the device does not have,
    /// [`crate::ErrorKind::WrongProvider`] for a foreign channel, else what the system said.
    fn create_cq(&self, init: &CqInit<'_>) -> Result<Arc<dyn Cq>, VerbsError>;

    /// Becomes readable when an asynchronous event waits. Non-blocking.
    fn async_fd(&self) -> BorrowedFd<'_>;

    /// Takes one asynchronous event, if there is one, and acknowledges it (`ibv_get_async_event(3)`).
    ///
    /// Each opened device gets its own copy of port events, and there must be one reader: call until `None`.
    ///
    /// # Errors
    /// [`VerbsError`] if the descriptor cannot be read.
    fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError>;

    /// The concrete device, so that its provider can find it again.
    fn as_any(&self) -> &dyn Any;
}

/// A protection domain (`ibv_alloc_pd(3)`): memory and queue pairs of the same one work together.
///
/// # Safety
/// As for [`Device`].
pub unsafe trait Pd: Any + Debug + Send + Sync {
    /// The device it belongs to.
    fn device(&self) -> Arc<dyn Device>;

    /// Registers memory (`ibv_reg_mr(3)`). Use [`crate::Region`], which owns what it registers.
    ///
    /// # Safety
    /// `addr..addr + len` is one live allocation, and stays so until [`Mr::deregister`] succeeded. While registered
    /// with a right to write, no Rust reference to a part that the device may write exists.
    ///
    /// # Errors
    /// [`VerbsError`] if the device or the locked-memory limit refuses.
    unsafe fn reg_mr(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Mr>, VerbsError>;

    /// Makes a shared receive queue (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] where the device has none, else what the system said.
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn Srq>, VerbsError>;

    /// Makes an RC queue pair, in RESET (`ibv_create_qp(3)`).
    ///
    /// # Errors
    /// [`crate::ErrorKind::WrongProvider`] for foreign handles, else what the system said.
    fn create_qp(&self, init: &QpInit<'_>) -> Result<Arc<dyn Qp>, VerbsError>;

    /// The concrete domain, so that its provider can find it again.
    fn as_any(&self) -> &dyn Any;
}
