//! A ring to another device, from the side that writes it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::hello::{self, Hello};
use super::ring::{Broken, SIZE, Writer, Written};
use crate::wire::Outbox;

/// Packets to another device of this host, through memory. The queue pairs that it connects hold it, and it ends with the last of them.
#[derive(Debug)]
pub(crate) struct Link {
    peer: SocketAddr,
    state: AtomicU8,
    /// A leaf in the lock order.
    writer: Mutex<Writer>,
    /// Wakes the reader.
    doorbell: OwnedFd,
    /// Its end is the link's end, from either side.
    connection: OwnedFd,
}

/// The states of a link, in order.
const OFFERED: u8 = 0;
const UP: u8 = 1;
const DOWN: u8 = 2;

impl Link {
    /// Offers the device with this address a ring. Until it [is up](Self::is_up) nobody reads it.
    ///
    /// # Errors
    /// `ECONNREFUSED` if there is no such device on this host, or none that wants a ring; `EPERM` if it is another user's; what the kernel says
    /// otherwise.
    pub(crate) fn offer(local: SocketAddr, peer: SocketAddr) -> Result<Self, Errno> {
        let connection = hello::connect(peer)?;
        let (writer, memory) = Writer::new(SIZE)?;
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let hello = Hello {
            from: local,
            ring: SIZE,
        };
        hello::send_hello(&connection, hello, &memory, &doorbell)?;
        Ok(Self {
            peer,
            state: AtomicU8::new(OFFERED),
            writer: Mutex::new(writer),
            doorbell,
            connection,
        })
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == UP
    }

    pub(crate) fn is_down(&self) -> bool {
        self.state.load(Ordering::Acquire) == DOWN
    }

    /// Writes packets to the ring, and says how many found no room there. They are as lost as on a network.
    pub(crate) fn send(&self, outbox: &Outbox) -> usize {
        let written = self.writer.lock().write(outbox.packets());
        match written {
            Ok(Written { lost, wake }) => {
                if wake {
                    // Fails only when the count would pass 2^64 − 2; it is readable then anyway.
                    let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
                }
                lost
            }
            Err(Broken) => {
                tracing::warn!(peer = %self.peer, "the reader of a ring broke its rules");
                self.end();
                outbox.len()
            }
        }
    }

    /// Looks what came over the connection, which is readable. Whether the link goes on.
    pub(crate) fn look(&self) -> bool {
        let goes_on = match hello::receive_welcome(&self.connection) {
            Ok(()) => {
                // A second answer is one too many.
                let up = self
                    .state
                    .compare_exchange(OFFERED, UP, Ordering::AcqRel, Ordering::Acquire);
                tracing::debug!(peer = %self.peer, "packets pass through shared memory");
                up.is_ok()
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(errno) => {
                tracing::debug!(%errno, peer = %self.peer, "packets pass through shared memory no more");
                false
            }
        };
        if !goes_on {
            self.end();
        }
        goes_on
    }

    /// Ends it: packets go over the network from now on. The reader drains the ring.
    fn end(&self) {
        self.state.store(DOWN, Ordering::Release);
        // Fails only if the other side is gone already.
        let _ = rustix::net::shutdown(&self.connection, Shutdown::Both);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
