//! Making connections: the TCP handshake, the queue pair, and the confirmation over the link itself.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::{self as proto, PeerLimits, Side};
use adverb_verbs::SendQueue;
use adverb_wire::{Agreement, Handshake, HandshakeError, Parameters, Refuse, RefuseReason};

use crate::connection::{Connection, Parts};
use crate::handshake::{Frames, deadline};
use crate::link::Link;
use crate::table::Place;
use crate::worker::{Owner, Shared};
use crate::{ConnectError, ConnectErrorKind, Endpoint, LinkEnd, LinkInfo, WaitError, WouldDeadlock};

/// The first pause before a listener that is busy is asked again. Each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause before a listener that is busy is asked again.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// Connects to the listener at `address`.
pub(crate) fn connect(owner: &Arc<Owner>, address: impl ToSocketAddrs) -> Result<Endpoint, ConnectError> {
    let device = owner.shared.context.device_name();
    let fail = |peer, kind| ConnectError {
        peer,
        device: device.into(),
        kind: Box::new(kind),
    };
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    if owner.is_driven_by_this_thread() {
        return Err(fail(unknown, WouldDeadlock.into()));
    }
    let deadline = deadline(owner.shared.config.connect_timeout);
    let addresses = address
        .to_socket_addrs()
        .map_err(|error| fail(unknown, error.into()))?;
    let mut last = fail(
        unknown,
        ConnectErrorKind::Io(std::io::ErrorKind::AddrNotAvailable.into()),
    );
    for peer in addresses {
        match connect_patiently(owner, peer, deadline) {
            Ok(endpoint) => return Ok(endpoint),
            Err(kind) => last = fail(peer, kind),
        }
    }
    Err(last)
}

/// Connects, and asks again for as long as the listener says that it is busy.
fn connect_patiently(
    owner: &Arc<Owner>,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<Endpoint, ConnectErrorKind> {
    let mut pause = FIRST_PAUSE;
    loop {
        let refused = match connect_to(owner, peer, deadline) {
            Err(
                kind @ ConnectErrorKind::Refused(Refuse {
                    reason: RefuseReason::Busy,
                    ..
                }),
            ) => kind,
            other => return other,
        };
        // Half of it by chance: those that were refused together must not come back together.
        let jittered = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        if deadline.saturating_duration_since(Instant::now()) <= jittered {
            return Err(refused);
        }
        match owner.wait_for(jittered, || false) {
            Err(WaitError::Timeout(_)) | Ok(()) => {}
            Err(error) => return Err(ConnectErrorKind::Wait(error)),
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

fn connect_to(owner: &Arc<Owner>, peer: SocketAddr, deadline: Instant) -> Result<Endpoint, ConnectErrorKind> {
    let timeout = owner.shared.config.connect_timeout;
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return Err(ConnectErrorKind::Timeout {
            stage: "the TCP connection",
            timeout,
        });
    }
    let stream = TcpStream::connect_timeout(&peer, remaining)?;
    let local = stream.local_addr()?.ip();
    let mut frames = Frames::new(stream, deadline, timeout)?;
    let nonce = fastrand::u64(..);
    let half = HalfOpen::prepare(&owner.shared, Some(local), nonce)?;
    frames.write(
        &Handshake::Hello(half.link.parameters.clone()),
        "sending the handshake",
    )?;
    let theirs = match frames.read("the peer's answer to the handshake")? {
        Handshake::Welcome(parameters) => parameters,
        Handshake::Refuse(refuse) => return Err(ConnectErrorKind::Refused(refuse)),
        other => return Err(HandshakeError::UnexpectedFrame(other.kind()).into()),
    };
    let agreement = half.link.parameters.agree(&theirs)?;
    let endpoint = half.open(owner, Side::Client, peer, &theirs, &agreement)?;
    await_open(owner, &endpoint, deadline).inspect_err(|_| endpoint.abort())?;
    Ok(endpoint)
}

/// Drives the worker until the link has carried a message each way.
fn await_open(owner: &Arc<Owner>, endpoint: &Endpoint, deadline: Instant) -> Result<(), ConnectErrorKind> {
    let mut opened = None;
    let waited = owner.wait_for(deadline.saturating_duration_since(Instant::now()), || {
        opened = endpoint.connection().opened();
        opened.is_some()
    });
    match (opened, waited) {
        (Some(Ok(())), _) => Ok(()),
        (Some(Err(error)), _) => Err(ConnectErrorKind::Endpoint(error)),
        (None, Err(WaitError::Timeout(_)) | Ok(())) => {
            let timeout = owner.shared.config.connect_timeout;
            Err(ConnectErrorKind::Timeout {
                stage: "the confirmation over the link",
                timeout,
            })
        }
        (None, Err(error)) => Err(ConnectErrorKind::Wait(error)),
    }
}

/// A connection that is being made: a place, a queue pair and its receives. Dropped before it is open, it leaves nothing behind.
pub(crate) struct HalfOpen<'a> {
    shared: &'a Shared,
    place: Place,
    pub(crate) link: Link,
    opened: bool,
}

impl<'a> HalfOpen<'a> {
    /// Takes a place and makes the queue pair, in INIT, with its receives posted. `local` is the handshake's own address.
    pub(crate) fn prepare(
        shared: &'a Shared,
        local: Option<std::net::IpAddr>,
        nonce: u64,
    ) -> Result<Self, ConnectErrorKind> {
        let place = shared.take_place()?;
        let prepared = shared
            .create_qp()
            .map_err(ConnectErrorKind::from)
            .and_then(|qp| Link::prepare(&shared.context, &shared.config, qp, local, nonce));
        let link = prepared.inspect_err(|_| {
            shared.table.write().free_place(place.index);
        })?;
        let admitted = shared
            .receives
            .lock()
            .admit(&**shared.context.pd(), place, &link.qp);
        admitted.inspect_err(|_| {
            shared.table.write().free_place(place.index);
        })?;
        Ok(Self {
            shared,
            place,
            link,
            opened: false,
        })
    }

    /// Connects the queue pair to the peer's and puts the connection to work. It is open when it was confirmed both ways.
    pub(crate) fn open(
        mut self,
        owner: &Arc<Owner>,
        side: Side,
        peer: SocketAddr,
        theirs: &Parameters,
        agreement: &Agreement,
    ) -> Result<Endpoint, ConnectErrorKind> {
        let Self {
            shared,
            place,
            ref link,
            ..
        } = self;
        let config = &shared.config;
        link.connect(config, theirs, agreement)?;
        let ours = &link.parameters;
        let info = LinkInfo {
            device: shared.context.device_name().into(),
            local: LinkEnd {
                gid: ours.gid,
                qpn: ours.qpn,
            },
            remote: LinkEnd {
                gid: theirs.gid,
                qpn: theirs.qpn,
            },
            peer,
            peer_device: theirs.device.to_string(),
        };
        let limits = PeerLimits {
            credits: theirs.credits,
            segment_size: theirs.segment_size,
            max_message: theirs.max_message,
        };
        let core_config = proto::Config {
            window: config.window,
            max_message: config.max_message,
            max_queued_bytes: config.max_queued_bytes,
            keepalive: config.keepalive,
            open_timeout: config.connect_timeout,
            close_timeout: config.close_timeout,
            epoch: shared.epoch,
        };
        let core = proto::Endpoint::new(Instant::now(), side, core_config, limits, ours.nonce);
        let queue =
            SendQueue::new(Arc::clone(&link.qp), place.index, place.generation).limited_to(config.send_depth);
        let connection = Arc::new(Connection::new(Parts {
            place,
            link: info,
            core,
            queue,
            send_pool: shared.send_pool.clone(),
            pd: Arc::clone(shared.context.pd()),
            limits: link.limits(&shared.context, agreement),
            signals: Arc::clone(&shared.signals),
            signal_every: config.signal_every,
        }));
        // Before a message can come: the handle that its handler gets must not be the last.
        let endpoint = Endpoint::first(&connection, owner);
        shared.table.write().insert(place, Arc::clone(&connection));
        self.opened = true;
        connection.transmit();
        shared.signals.timers_changed();
        Ok(endpoint)
    }
}

impl Drop for HalfOpen<'_> {
    fn drop(&mut self) {
        if !self.opened {
            self.shared.remove(self.place.index);
        }
    }
}
