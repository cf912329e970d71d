//! The one reader of a device's asynchronous events, which hands each to its owner.
//!
//! Events are a bonus, not the detector of failures: SoftRoCE raises hardly any. What they would tell shows by failed
//! completions and keepalive probes, too.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use adverb_verbs::{AsyncEvent, AsyncEventKind, Device, EventSource};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::EndpointErrorKind;
use crate::context::Workers;

/// A thread that sleeps on the device's descriptor. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(crate) struct AsyncEventReader {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AsyncEventReader {
    pub(crate) fn start(device: Arc<dyn Device>, workers: Arc<Workers>) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("adverb-async".into())
            .spawn(move || read_until_stopped(&*device, &workers, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for AsyncEventReader {
    fn drop(&mut self) {
        // A counter that is full is readable, too.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        let Some(thread) = self.thread.take() else { return };
        // The reader itself may drop the last handle, when it fails the connections of a worker.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the reader of asynchronous events panicked");
        }
    }
}

fn read_until_stopped(device: &dyn Device, workers: &Workers, stop: &OwnedFd) {
    loop {
        // To the end: whoever watches the descriptor for edges relies on it.
        loop {
            match device.next_async_event() {
                Ok(Some(event)) => deliver(device, workers, event),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "asynchronous events of a device are not read any more");
                    return;
                }
            }
        }
        let mut fds = [
            PollFd::from_borrowed_fd(device.async_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_)
                if fds[0]
                    .revents()
                    .intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) =>
            {
                let event = AsyncEvent {
                    kind: AsyncEventKind::DeviceFatal,
                    source: EventSource::Device,
                };
                deliver(device, workers, event);
                return;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "asynchronous events of a device cannot be waited for");
                return;
            }
        }
    }
}

/// Hands an event to whoever owns its object.
fn deliver(device: &dyn Device, workers: &Workers, event: AsyncEvent) {
    use AsyncEventKind as Kind;
    let name = &device.info().name;
    let kind = EndpointErrorKind::Device(event);
    match (event.kind, event.source) {
        (Kind::QpFatal | Kind::QpReqErr | Kind::QpAccessErr, EventSource::Qp(qpn)) => {
            tracing::warn!(device = name, %event, "asynchronous event");
            workers.each(|worker| worker.fail_connection(qpn, kind.clone()));
        }
        (Kind::PortErr, EventSource::Port(port)) => {
            tracing::warn!(device = name, %event, "asynchronous event");
            workers.each(|worker| {
                if worker.context.port() == port {
                    worker.fail_all(&kind);
                }
            });
        }
        (Kind::DeviceFatal | Kind::CqErr | Kind::SrqErr, _) => {
            tracing::error!(device = name, %event, "asynchronous event");
            workers.each(|worker| worker.fail_all(&kind));
        }
        // A connection that ends is drained by its completions; the others change nothing for connections that exist.
        _ => tracing::debug!(device = name, %event, "asynchronous event"),
    }
}
