//! A queue behind an eventfd: what completion channels and asynchronous events are made of.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A queue whose file descriptor is readable while something is in it: what providers without a driver make completion channels and asynchronous
/// events of.
///
/// Each push rings, so that an edge-triggered poller that took only one item sees the next one too. Taking the last item
/// makes the descriptor unreadable again; looking into an empty queue makes no system call.
pub struct Bell<T> {
    fd: OwnedFd,
    /// A leaf in the lock order.
    items: Mutex<VecDeque<T>>,
}

impl<T> Bell<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// What the kernel says if there is no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            items: Mutex::new(VecDeque::with_capacity(16)),
        })
    }

    /// Adds an item, and rings.
    pub fn push(&self, item: T) {
        let mut items = self.items.lock();
        items.push_back(item);
        // Fails only when the count would pass 2^64 − 2; it is readable then anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes the oldest item.
    pub fn pop(&self) -> Option<T> {
        let mut items = self.items.lock();
        let item = items.pop_front()?;
        if items.is_empty() {
            self.silence();
        }
        Some(item)
    }

    /// Takes out what `keep` does not want.
    pub fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut items = self.items.lock();
        if items.is_empty() {
            return;
        }
        items.retain(keep);
        if items.is_empty() {
            self.silence();
        }
    }

    /// Under the lock, so that no ring of a later push is lost.
    fn silence(&self) {
        let mut count = [0; 8];
        // Fails only when it is silent already.
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl<T> AsFd for Bell<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T> Debug for Bell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell")
            .field("fd", &self.fd)
            .field("waiting", &self.items.lock().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable<T>(bell: &Bell<T>) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_while_something_is_in_it() {
        let bell = Bell::new().unwrap();
        assert!(!is_readable(&bell));
        (1..=3).for_each(|i| bell.push(i));
        assert_eq!(bell.pop(), Some(1));
        assert!(is_readable(&bell));
        bell.retain(|i| *i == 3);
        assert_eq!(bell.pop(), Some(3));
        assert!(!is_readable(&bell));
        bell.push(4);
        bell.retain(|_| false);
        assert!(!is_readable(&bell));
        assert_eq!(bell.pop(), None);
    }
}
