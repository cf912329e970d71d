//! What a queue pair asks of its device.

use adverb_verbs::{Access, AsyncEventKind, RemoteAddr, Sge, WcOpcode, WcStatus};
use arrayvec::ArrayVec;

/// Scatter/gather elements of a work request at most.
pub const MAX_SGE: usize = 4;

/// Scatter/gather elements of a work request.
pub type SgeList = ArrayVec<Sge, MAX_SGE>;

/// A receive that was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Local memory, filled in this order.
    pub sges: SgeList,
}

/// How a work request ended. The queue pair is the one that the device asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whether it is for the recv completion queue.
    pub recv: bool,
    /// The work request's id.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it did. Means nothing unless the status is `Success`.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, in host byte order.
    pub imm: Option<u32>,
    /// Whether the sender asked to wake a receiver that armed its queue solicited-only.
    pub solicited: bool,
}

/// Memory that is not registered, or not with the rights needed, or not in the queue pair's protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// The device, as a queue pair sees it. All of it happens within a call on [`crate::Rc`], on the caller's thread.
///
/// Whether a key covers memory is checked at each access, as a region may be deregistered at any time.
pub trait Host {
    /// Copies bytes of local memory from `offset` on, counted over all elements, to `into`.
    ///
    /// # Errors
    /// [`Denied`] if an element that is touched is not covered by its lkey.
    fn gather(&mut self, sges: &[Sge], offset: u32, into: &mut [u8]) -> Result<(), Denied>;

    /// Copies `from` to local memory from `offset` on, which needs the right to write locally.
    ///
    /// # Errors
    /// As for [`Host::gather`].
    fn scatter(&mut self, sges: &[Sge], offset: u32, from: &[u8]) -> Result<(), Denied>;

    /// Whether a peer may do `access` with these bytes. Of no bytes, the key is not looked at (IBTA volume 1, section 9.7.5.2.1).
    ///
    /// # Errors
    /// [`Denied`] if not.
    fn check(&mut self, at: RemoteAddr, len: u32, access: Access) -> Result<(), Denied>;

    /// Copies a peer's READ out of this device's memory.
    ///
    /// # Errors
    /// [`Denied`] if the key does not permit it.
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), Denied>;

    /// Copies a peer's WRITE into this device's memory.
    ///
    /// # Errors
    /// [`Denied`] if the key does not permit it.
    fn write(&mut self, at: RemoteAddr, from: &[u8]) -> Result<(), Denied>;

    /// Swaps 8 aligned bytes if they are `compare`, in one atomic step, and says what was there.
    ///
    /// # Errors
    /// [`Denied`] if the key does not permit it.
    fn compare_swap(&mut self, at: RemoteAddr, compare: u64, swap: u64) -> Result<u64, Denied>;

    /// Adds to 8 aligned bytes in one atomic step, and says what was there.
    ///
    /// # Errors
    /// [`Denied`] if the key does not permit it.
    fn fetch_add(&mut self, at: RemoteAddr, add: u64) -> Result<u64, Denied>;

    /// Takes the next receive of the shared receive queue. Asked only of queue pairs that have one.
    fn take_receive(&mut self) -> Option<Receive>;

    /// Puts back the receive that was taken last: what it was for turned out not to be allowed.
    fn untake_receive(&mut self, receive: Receive);

    /// Puts a completion into the queue that it is for.
    fn complete(&mut self, completion: Completion);

    /// Raises an asynchronous event of this queue pair.
    fn raise(&mut self, event: AsyncEventKind);
}
