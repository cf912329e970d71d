//! Accepting connections.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb_proto::Side;
use adverb_wire::{Handshake, HandshakeError, RefuseReason};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::connect::HalfOpen;
use crate::handshake::Frames;
use crate::worker::Owner;
use crate::{ConnectErrorKind, Endpoint, EndpointErrorKind, ListenError, WaitError, Worker};

/// Handshakes under way at once. A further one is told that the listener is busy.
const MAX_HANDSHAKES: usize = 64;

/// How long the accepting thread rests when the process has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections to a worker at a TCP address.
///
/// Handshakes run on threads of their own, each limited in size and time, so that a stranger or a port scanner costs nothing but
/// that. Dropping the listener stops them; endpoints that were accepted stay.
pub struct Listener {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    stop: OwnedFd,
    /// Connections that are not accepted yet. The handles in here keep them from closing.
    pending: Mutex<Vec<Endpoint>>,
    handshakes: AtomicUsize,
    /// Who awaits the next connection.
    acceptor: Mutex<Option<Waker>>,
}

impl Listener {
    pub(crate) fn bind(owner: &Arc<Owner>, address: impl ToSocketAddrs) -> Result<Self, ListenError> {
        let addresses: Vec<SocketAddr> = match address.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(reason) => {
                return Err(ListenError {
                    address: "the address given".into(),
                    reason,
                });
            }
        };
        let named = addresses
            .iter()
            .map(SocketAddr::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        Self::start(owner, &addresses).map_err(|reason| ListenError {
            address: named,
            reason,
        })
    }

    fn start(owner: &Arc<Owner>, addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            address: listener.local_addr()?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            pending: Mutex::new(Vec::new()),
            handshakes: AtomicUsize::new(0),
            acceptor: Mutex::new(None),
        });
        let (accepting, worker) = (Arc::clone(&shared), Arc::downgrade(owner));
        let thread = std::thread::Builder::new()
            .name("adverb-accept".into())
            .spawn(move || accept_until_stopped(&listener, &accepting, &worker))?;
        Ok(Self {
            shared,
            owner: Arc::clone(owner),
            thread: Some(thread),
        })
    }

    /// The address it listens at.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.address
    }

    /// Drives the worker until a connection is open, for `timeout` at most.
    ///
    /// # Errors
    /// [`WaitError`] if none came in time, or this is a handler's thread, or the worker's queues failed.
    pub fn accept(&self, timeout: Duration) -> Result<Endpoint, WaitError> {
        let mut accepted = None;
        let waited = self.owner.wait_for(timeout, || {
            accepted = self.try_accept();
            accepted.is_some()
        });
        match (accepted, waited) {
            (Some(endpoint), _) => Ok(endpoint),
            (None, Err(WaitError::Timeout(_)) | Ok(())) => Err(WaitError::Timeout(timeout)),
            (None, Err(error)) => Err(error),
        }
    }

    /// Takes a connection that is open, if there is one.
    pub fn try_accept(&self) -> Option<Endpoint> {
        let mut pending = self.shared.pending.lock();
        pending.retain(|endpoint| match endpoint.connection().opened() {
            Some(Err(error)) => {
                if !matches!(error.kind, EndpointErrorKind::PeerClosed(_)) {
                    // Nobody else hears of it.
                    tracing::warn!(%error, "a connection ended before it was accepted");
                }
                false
            }
            _ => true,
        });
        let place = pending
            .iter()
            .position(|endpoint| endpoint.connection().opened().is_some())?;
        Some(pending.remove(place))
    }

    /// Resolves when a connection is open. Somebody must drive the worker meanwhile. One task at a time may await it.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    pub async fn accepted(&self) -> Endpoint {
        poll_fn(|cx| self.poll_accept(cx.waker())).await
    }

    fn poll_accept(&self, waker: &Waker) -> Poll<Endpoint> {
        // Registered everywhere first, so that nothing that comes from now on is missed.
        *self.shared.acceptor.lock() = Some(waker.clone());
        for endpoint in &*self.shared.pending.lock() {
            endpoint.connection().wake_when_changed(waker);
        }
        self.try_accept().map_or(Poll::Pending, Poll::Ready)
    }

    /// The worker that it accepts for.
    pub fn worker(&self) -> Worker {
        Worker {
            owner: Arc::clone(&self.owner),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A counter that is full is readable, too.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the accepting thread panicked");
        }
        // Closes them.
        let pending = std::mem::take(&mut *self.shared.pending.lock());
        drop(pending);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.shared.address)
            .finish_non_exhaustive()
    }
}

fn accept_until_stopped(listener: &TcpListener, shared: &Arc<Shared>, worker: &Weak<Owner>) {
    let mut failing = false;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "a listener stopped");
                return;
            }
        }
        match listener.accept() {
            Ok((stream, peer)) => {
                failing = false;
                start_handshake(shared, worker, stream, peer);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // A connection that was reset meanwhile, or no descriptors left: others may fare better.
                if !failing {
                    let address = shared.address;
                    tracing::warn!(%error, %address, "connections cannot be accepted (for EMFILE raise `ulimit -n`); trying on");
                }
                failing = true;
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn start_handshake(shared: &Arc<Shared>, worker: &Weak<Owner>, stream: TcpStream, peer: SocketAddr) {
    let busy = shared.handshakes.fetch_add(1, Ordering::AcqRel) >= MAX_HANDSHAKES;
    let (handshaking, worker) = (Arc::clone(shared), Weak::clone(worker));
    let started = if busy {
        Err(io::Error::other("too many handshakes are under way"))
    } else {
        // The stream goes with the thread; a copy is left for a refusal.
        stream.try_clone().and_then(|stream| {
            std::thread::Builder::new()
                .name("adverb-handshake".into())
                .spawn(move || {
                    if let Some(owner) = worker.upgrade()
                        && let Err(kind) = handshake(&handshaking, &owner, stream, peer)
                    {
                        report(peer, &kind);
                    }
                    handshaking.handshakes.fetch_sub(1, Ordering::AcqRel);
                })
        })
    };
    if let Err(error) = started {
        shared.handshakes.fetch_sub(1, Ordering::AcqRel);
        let soon = Duration::from_millis(100);
        if let Ok(mut frames) = Frames::new(stream, Instant::now() + soon, soon) {
            frames.refuse(RefuseReason::Busy, &error.to_string());
        }
    }
}

/// Logs why a handshake failed. Strangers come and go; only a peer that speaks adverb is worth a warning.
fn report(peer: SocketAddr, kind: &ConnectErrorKind) {
    let stranger = matches!(
        kind,
        ConnectErrorKind::Hangup | ConnectErrorKind::Handshake(HandshakeError::NotAdverb)
    );
    if stranger {
        tracing::debug!(%peer, error = %kind, "a stranger on the handshake's port");
    } else {
        tracing::warn!(%peer, error = %kind, "a handshake failed");
    }
}

/// The listening side of a handshake.
fn handshake(
    shared: &Shared,
    owner: &Arc<Owner>,
    stream: TcpStream,
    peer: SocketAddr,
) -> Result<(), ConnectErrorKind> {
    let timeout = owner.shared.config.connect_timeout;
    let local = stream.local_addr()?.ip();
    let mut frames = Frames::new(stream, Instant::now() + timeout, timeout)?;
    let result = welcome(shared, owner, &mut frames, local, peer);
    if let Err(kind) = &result
        && let Some(reason) = refusal(kind)
    {
        frames.refuse(reason, &kind.to_string());
    }
    result
}

fn welcome(
    shared: &Shared,
    owner: &Arc<Owner>,
    frames: &mut Frames,
    local: std::net::IpAddr,
    peer: SocketAddr,
) -> Result<(), ConnectErrorKind> {
    let theirs = match frames.read("the peer's handshake")? {
        Handshake::Hello(parameters) => parameters,
        other => return Err(HandshakeError::UnexpectedFrame(other.kind()).into()),
    };
    let half = HalfOpen::prepare(&owner.shared, Some(local), theirs.nonce)?;
    let ours = half.link.parameters.clone();
    let agreement = ours.agree(&theirs)?;
    let endpoint = half.open(owner, Side::Server, peer, &theirs, &agreement)?;
    // Before the peer can know of it, so that it is there when the confirmation comes.
    shared.pending.lock().push(endpoint.clone());
    frames
        .write(&Handshake::Welcome(ours), "sending the answer to the handshake")
        .inspect_err(|_| endpoint.abort())?;
    if let Some(acceptor) = shared.acceptor.lock().take() {
        acceptor.wake();
    }
    owner.shared.signals.wake();
    owner.shared.notify_observers();
    Ok(())
}

/// What to tell the peer; `None` if it would not understand, or is not there.
fn refusal(kind: &ConnectErrorKind) -> Option<RefuseReason> {
    match kind {
        ConnectErrorKind::Handshake(error) => error.refusal(),
        ConnectErrorKind::Disagreement(disagreement) => Some(disagreement.refusal()),
        ConnectErrorKind::WorkerFull { .. } => Some(RefuseReason::WorkerFull),
        ConnectErrorKind::Io(_) | ConnectErrorKind::Hangup | ConnectErrorKind::Timeout { .. } => None,
        ConnectErrorKind::Verbs(error) if error.operation == "ibv_modify_qp" => Some(RefuseReason::NoRoute),
        _ => Some(RefuseReason::Internal),
    }
}
