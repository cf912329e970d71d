//! Accepting connections.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb_proto::Side;
use adverb_wire::{Handshake, HandshakeError, Parameters, RefuseReason};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::callers::{Callers, Heard};
use crate::connect::HalfOpen;
use crate::handshake::{Frames, deadline};
use crate::worker::Owner;
use crate::{ConnectErrorKind, Endpoint, EndpointErrorKind, ListenError, WaitError, Worker};

/// Handshakes under way at once, of those that have said hello. A further one is told that the listener is busy.
const MAX_HANDSHAKES: usize = 64;

/// Connections that wait to be accepted; the system's limit (net.core.somaxconn) may be lower. The standard library's 128 fill in a burst, and who
/// comes then waits a second for TCP to try again.
const BACKLOG: i32 = 4096;

/// How long the accepting thread rests when the process has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections to a worker at a TCP address.
///
/// Handshakes are limited in size and time. Who connects and says nothing, as a port scanner does, waits without a thread, and makes room for
/// others when too many do. Dropping the listener stops all; endpoints that were accepted stay.
pub struct Listener {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    /// How long a handshake may take.
    timeout: Duration,
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
        rustix::net::listen(&listener, BACKLOG)?;
        let shared = Arc::new(Shared {
            address: listener.local_addr()?,
            timeout: owner.shared.config.connect_timeout,
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
    let mut callers = Callers::default();
    let mut failing = false;
    loop {
        let watched = [shared.stop.as_fd(), listener.as_fd()];
        let mut fds: Vec<_> = watched
            .into_iter()
            .chain(callers.descriptors())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let left = callers
            .deadline()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A deadline is not so far away that a system call would not take it.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "a listener stopped");
                return;
            }
        }
        let readable: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let [stopped, connecting, callers_readable @ ..] = &*readable else {
            return;
        };
        if *stopped {
            return;
        }
        // First, so that nobody who has said hello makes room for the next.
        for heard in callers.listen(Instant::now(), callers_readable) {
            start_handshake(shared, worker, heard);
        }
        if !connecting {
            continue;
        }
        let accepted = listener
            .accept()
            .and_then(|(stream, peer)| callers.add(stream, peer, deadline(shared.timeout)));
        match accepted {
            Ok(()) => failing = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // A connection that was reset meanwhile, or no descriptors left: others may fare better.
                if !failing {
                    let address = shared.address;
                    tracing::warn!(%error, %address, "connections cannot be accepted (for EMFILE raise `ulimit -n`); trying on");
                }
                failing = true;
                let full = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
                if !(full && callers.send_one_away()) {
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

fn start_handshake(shared: &Arc<Shared>, worker: &Weak<Owner>, heard: Heard) {
    let Heard {
        stream,
        peer,
        deadline,
        hello,
    } = heard;
    let theirs = match hello {
        Ok(theirs) => theirs,
        Err(kind) => {
            report(peer, &kind);
            if let Some(reason) = refusal(&kind) {
                refuse(shared, stream, deadline, reason, &kind.to_string());
            }
            return;
        }
    };
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
                        && let Err(kind) = handshake(&handshaking, &owner, stream, peer, deadline, &theirs)
                    {
                        report(peer, &kind);
                    }
                    handshaking.handshakes.fetch_sub(1, Ordering::AcqRel);
                })
        })
    };
    if let Err(error) = started {
        shared.handshakes.fetch_sub(1, Ordering::AcqRel);
        refuse(shared, stream, deadline, RefuseReason::Busy, &error.to_string());
    }
}

/// Says no, without waiting: a refusal fits the buffer of a connection on which nothing was sent.
fn refuse(shared: &Shared, stream: TcpStream, deadline: Instant, reason: RefuseReason, text: &str) {
    if let Ok(mut frames) = Frames::new(stream, deadline, shared.timeout) {
        frames.refuse(reason, text);
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

/// The listening side of a handshake, once the peer has said hello.
fn handshake(
    shared: &Shared,
    owner: &Arc<Owner>,
    stream: TcpStream,
    peer: SocketAddr,
    deadline: Instant,
    theirs: &Parameters,
) -> Result<(), ConnectErrorKind> {
    stream.set_nonblocking(false)?;
    let local = stream.local_addr()?.ip();
    let mut frames = Frames::new(stream, deadline, shared.timeout)?;
    let result = welcome(shared, owner, &mut frames, local, peer, theirs);
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
    local: IpAddr,
    peer: SocketAddr,
    theirs: &Parameters,
) -> Result<(), ConnectErrorKind> {
    let half = HalfOpen::prepare(&owner.shared, Some(local), theirs.nonce)?;
    let ours = half.link.parameters.clone();
    let agreement = ours.agree(theirs)?;
    let endpoint = half.open(owner, Side::Server, peer, theirs, &agreement)?;
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
