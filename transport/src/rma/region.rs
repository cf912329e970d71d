//! Registered memory of a program.

use std::fmt;
use std::sync::Arc;

use adverb_verbs::{Access, AtomicSupport, Pd, RegionError, Registration, VerbsError};
use adverb_wire::{RemoteRegion, Rights};
use parking_lot::Mutex;

use super::RegisterError;
use crate::Context;

impl Context {
    /// Registers `len` bytes of memory, at least one, all 0, which peers may use as `rights` say. Without any rights they are for this side's own
    /// [`put`](crate::Endpoint::put) and [`get`](crate::Endpoint::get) only.
    ///
    /// Registered memory stays in RAM, and counts towards the locked-memory limit (`ulimit -l`): once for this side and, with any rights, once for
    /// peers. Registering takes a system call and more; keep regions, and use them often.
    ///
    /// # Errors
    /// [`RegisterError`] if the device or the system refuses.
    pub fn register(&self, len: usize, rights: Rights) -> Result<Region, RegisterError> {
        if rights.contains(Rights::REMOTE_ATOMIC) && self.device().attr().atomic == AtomicSupport::None {
            let device = self.device_name().into();
            return Err(RegisterError::NoAtomics { device });
        }
        let pd: &dyn Pd = &**self.pd();
        let memory = Arc::new(adverb_verbs::Region::new(pd, len, Access::LOCAL_WRITE)?);
        // Of its own, so that it can end while this side's operations go on.
        let remote = if rights.is_empty() {
            None
        } else {
            Some(Registration::new(pd, &memory, access(rights))?)
        };
        Ok(Region {
            remote: Mutex::new(remote),
            memory,
            rights,
            context: self.clone(),
        })
    }
}

/// Registered memory, which one-sided operations read and write, this side's and, with [`Rights`], those of peers.
///
/// Peers may write it at any time while they have the right. That is why it is never lent out as a slice: read and write it by copy.
///
/// Dropping it [revokes](Region::revoke) it. Its memory is freed when the device is done with the last of this side's operations on it.
///
/// ```
/// use std::time::Duration;
/// use adverb::{Config, Context, RemoteRegion, Rights};
///
/// // One side registers memory, and sends its handle to whoever asks.
/// let server = Context::builder().device("soft0").open()?.worker(Config::new())?;
/// let board = server.context().register(4096, Rights::REMOTE_READ | Rights::REMOTE_WRITE)?;
/// let handle = board.remote().expect("it has rights").to_bytes();
/// server.on_request(1, move |_, request| drop(request.reply(b"", &handle)));
/// let listener = server.listen("127.0.0.1:0")?;
/// let _driving = server.progress_thread()?;
///
/// // The other side uses it without a word to the program there.
/// let client = Context::builder().device("soft0").open()?.worker(Config::new())?;
/// let endpoint = client.connect(listener.local_addr())?;
/// let reply = endpoint.request(1, b"", b"").wait(Duration::from_secs(10))?;
/// let board_there = RemoteRegion::from_bytes(reply.payload())?;
/// let local = client.context().register(5, Rights::empty())?;
/// local.write_at(0, b"hello")?;
/// endpoint.put(&local, .., &board_there, 100)?.wait(Duration::from_secs(10))?; // or `.await?`
///
/// let mut there = [0; 5];
/// board.read_at(100, &mut there)?;
/// assert_eq!(&there, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Region {
    /// The registration for peers. `None` if there are no rights, or it has ended.
    remote: Mutex<Option<Registration>>,
    memory: Arc<adverb_verbs::Region>,
    rights: Rights,
    context: Context,
}

impl Region {
    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// What peers may do with it, until it is revoked.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The handle to send to peers ([`RemoteRegion::to_bytes`]). `None` if peers have no rights, or it was revoked.
    ///
    /// The key in it is good on every connection of the context, not only on the one that the handle is sent over: who has the bytes can use the
    /// region.
    pub fn remote(&self) -> Option<RemoteRegion> {
        let remote = self.remote.lock();
        let rkey = remote.as_ref()?.rkey();
        RemoteRegion::new(self.memory.addr(), rkey, self.memory.len() as u64, self.rights).ok()
    }

    /// Takes the rights of peers back, for good: when this returns `Ok`, no peer reads or writes it any more, and all its handles are good for nothing.
    /// Who uses one all the same loses the connection (see [`Endpoint::put`](crate::Endpoint::put)), unless the device has given the key, which some
    /// soon use again, to other memory at the same address. This side's own operations go on. A second call does nothing.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses: peers may then still have their rights.
    pub fn revoke(&self) -> Result<(), VerbsError> {
        let mut remote = self.remote.lock();
        if let Some(registration) = &mut *remote {
            registration.end()?;
        }
        *remote = None;
        Ok(())
    }

    /// Copies out `into.len()` bytes from `offset` on. A copy may see a peer's write half done; only aligned 8-byte words are whole.
    ///
    /// # Errors
    /// [`RegionError`] if they do not lie within the region.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        self.memory.read_at(offset, into)
    }

    /// Copies `from` in, from `offset` on.
    ///
    /// # Errors
    /// [`RegionError`] if it does not fit there.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), RegionError> {
        self.memory.write_at(offset, from)
    }

    /// The aligned 8-byte word at `offset`, in native byte order.
    ///
    /// # Errors
    /// [`RegionError`] if it does not lie within the region or `offset` is no multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, RegionError> {
        self.memory.load_u64(offset)
    }

    /// Stores an aligned 8-byte word at `offset`, in native byte order. Towards atomics of peers this is atomic only if the device says so
    /// (`IBV_ATOMIC_GLOB`; the software device is).
    ///
    /// # Errors
    /// As for [`Region::load_u64`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), RegionError> {
        self.memory.store_u64(offset, value)
    }

    pub(crate) fn memory(&self) -> &Arc<adverb_verbs::Region> {
        &self.memory
    }

    pub(crate) fn pd(&self) -> &Arc<dyn Pd> {
        self.context.pd()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len())
            .field("rights", &self.rights)
            .field("remote", &self.remote())
            .finish_non_exhaustive()
    }
}

/// What a registration with these rights permits.
fn access(rights: Rights) -> Access {
    let mut access = Access::empty();
    for (right, needs) in [
        (Rights::REMOTE_READ, Access::REMOTE_READ),
        // Devices refuse to let peers write what they must not write themselves (ibv_reg_mr(3)).
        (Rights::REMOTE_WRITE, Access::REMOTE_WRITE | Access::LOCAL_WRITE),
        (Rights::REMOTE_ATOMIC, Access::REMOTE_ATOMIC | Access::LOCAL_WRITE),
    ] {
        if rights.contains(right) {
            access |= needs;
        }
    }
    access
}
