//! Driving a worker in a tokio runtime.

use std::net::ToSocketAddrs;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::Notify;
use ::tokio::task::{spawn_blocking, yield_now};
use ::tokio::time::{Instant, sleep_until, timeout};
use adverb_progress::{Prepared, ProgressError};

use crate::worker::Owner;
use crate::{ConnectError, Endpoint, WaitError, Worker};

/// How long to rest after the runtime refused to watch a descriptor, before the worker is polled again all the same.
const UNWATCHED_REST: Duration = Duration::from_millis(1);

impl Worker {
    /// Drives the worker until the future is dropped: spawn it on a runtime with I/O and time enabled, and every
    /// [`SendCompletion`](crate::SendCompletion), [`Closed`](crate::Closed) and [`Listener::accepted`](crate::Listener::accepted)
    /// of the worker can be awaited, on this runtime or another.
    ///
    /// While there is nothing to do it is pending and costs nothing: it sleeps on the worker's descriptor. In hybrid mode it spins before that,
    /// giving way to other tasks in between; in poll mode it never sleeps.
    ///
    /// # Errors
    /// [`WaitError::Worker`] if the worker's queues fail. It does not return otherwise.
    ///
    /// # Cancel safety
    /// It may be dropped at any time, and called again.
    pub async fn drive(&self) -> Result<(), WaitError> {
        let owner = &*self.owner;
        #[allow(
            deprecated,
            reason = "the successor is unsafe. What it asks for holds: `Readiness` keeps the one descriptor open and gives no other"
        )]
        let watched = AsyncFd::with_interest(Readiness(Arc::clone(&self.owner)), Interest::READABLE);
        let watched = watched.map_err(|error| {
            let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::INVAL);
            WaitError::Worker(ProgressError::Os {
                operation: "epoll_ctl",
                source,
            })
        })?;
        let released = Arc::new(Notify::new());
        let waker = Waker::from(Arc::new(Released(Arc::clone(&released))));
        let _registration = Registration(owner);
        loop {
            match self.owner.prepare_sleep(&waker) {
                // Somebody else drives, and tells when that ends.
                None => released.notified().await,
                Some(Ok(Prepared::Ready)) => yield_now().await,
                Some(Ok(Prepared::Sleep { until })) => {
                    ::tokio::select! {
                        ready = watched.readable() => match ready {
                            Ok(mut ready) => ready.clear_ready(),
                            Err(error) => {
                                tracing::error!(%error, "a worker's descriptor cannot be watched");
                                let _ = timeout(UNWATCHED_REST, released.notified()).await;
                            }
                        },
                        () = sleep_until(Instant::from_std(until)) => {}
                        () = released.notified() => {}
                    }
                    owner.end_sleep()?;
                }
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }

    /// Like [`Worker::connect`], for tasks: the handshake runs on the runtime's pool for blocking work.
    ///
    /// # Errors
    /// As [`Worker::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is still made and closed at once.
    pub async fn connect_async(
        &self,
        address: impl ToSocketAddrs + Send + 'static,
    ) -> Result<Endpoint, ConnectError> {
        let worker = self.clone();
        match spawn_blocking(move || worker.connect(address)).await {
            Ok(connected) => connected,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down, and this future with it.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// The worker's descriptor, which lives as long as whoever watches it.
struct Readiness(Arc<Owner>);

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.0.readiness().as_raw_fd()
    }
}

/// Tells the driver that the role was released.
struct Released(Arc<Notify>);

impl Wake for Released {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// The driver's registration at the role.
struct Registration<'a>(&'a Owner);

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.0.unregister_driver();
    }
}
