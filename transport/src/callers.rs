//! TCP connections that have not said hello yet. They wait without a thread, and cannot keep others from being heard.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use adverb_wire::{Handshake, HandshakeError, Parameters};

use crate::ConnectErrorKind;
use crate::handshake::PartialFrame;

/// So many wait at most. A peer says hello as soon as it is connected: who is silent for longer than so many others take to connect is none.
const MAX_CALLERS: usize = 256;

/// The connections, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Callers(Vec<Caller>);

#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    deadline: Instant,
    hello: PartialFrame,
}

/// A caller that was heard.
#[derive(Debug)]
pub(crate) struct Heard {
    /// The connection, which does not block.
    pub(crate) stream: TcpStream,
    /// Who it is.
    pub(crate) peer: SocketAddr,
    /// When its handshake must be done.
    pub(crate) deadline: Instant,
    /// What it said; an error if that was no hello.
    pub(crate) hello: Result<Parameters, ConnectErrorKind>,
}

impl Callers {
    /// Takes one more. If there are too many, one that is silent makes room.
    pub(crate) fn add(&mut self, stream: TcpStream, peer: SocketAddr, deadline: Instant) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        if self.0.len() >= MAX_CALLERS {
            self.send_one_away();
        }
        let hello = PartialFrame::default();
        self.0.push(Caller {
            stream,
            peer,
            deadline,
            hello,
        });
        Ok(())
    }

    /// Closes the connection that waits longest of those from where most are. Returns whether there was one.
    pub(crate) fn send_one_away(&mut self) -> bool {
        let Some(place) = first_of_the_many(self.0.iter().map(|caller| caller.peer.ip())) else {
            return false;
        };
        let Caller { peer, .. } = self.0.remove(place);
        tracing::debug!(%peer, "a silent stranger on the handshake's port made room for another");
        true
    }

    /// What to watch for input.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|caller| caller.stream.as_fd())
    }

    /// When the next one has had its time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|caller| caller.deadline).min()
    }

    /// Listens to those that have said something, in the order of [`Callers::descriptors`]. Returns those that are done, and closes those that
    /// have had their time.
    pub(crate) fn listen(&mut self, now: Instant, readable: &[bool]) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut readable = readable.iter();
        let callers = std::mem::take(&mut self.0);
        for mut caller in callers {
            let said = readable.next().is_some_and(|readable| *readable);
            match said.then(|| caller.listen()).flatten() {
                Some(hello) => heard.push(caller.heard(hello)),
                None if now >= caller.deadline => {
                    tracing::debug!(peer = %caller.peer, "a silent stranger on the handshake's port");
                }
                None => self.0.push(caller),
            }
        }
        heard
    }
}

impl Caller {
    /// Takes in what has come; `None` if it may still become a hello.
    fn listen(&mut self) -> Option<Result<Parameters, ConnectErrorKind>> {
        loop {
            match self.hello.read_more(&mut self.stream) {
                Ok(Some(Handshake::Hello(parameters))) => return Some(Ok(parameters)),
                Ok(Some(other)) => return Some(Err(HandshakeError::UnexpectedFrame(other.kind()).into())),
                Ok(None) => {}
                Err(ConnectErrorKind::Io(error)) => match error.kind() {
                    ErrorKind::WouldBlock => return None,
                    ErrorKind::ConnectionReset => return Some(Err(ConnectErrorKind::Hangup)),
                    _ => return Some(Err(error.into())),
                },
                Err(kind) => return Some(Err(kind)),
            }
        }
    }

    fn heard(self, hello: Result<Parameters, ConnectErrorKind>) -> Heard {
        let Self {
            stream,
            peer,
            deadline,
            ..
        } = self;
        Heard {
            stream,
            peer,
            deadline,
            hello,
        }
    }
}

/// The first that comes from where most come from, so that nobody but its own suffers from a crowd.
fn first_of_the_many(peers: impl Iterator<Item = IpAddr> + Clone) -> Option<usize> {
    let mut crowds = BTreeMap::<IpAddr, usize>::new();
    for peer in peers.clone() {
        *crowds.entry(origin(peer)).or_default() += 1;
    }
    let most = crowds.values().copied().max()?;
    peers
        .map(origin)
        .position(|origin| crowds.get(&origin) == Some(&most))
}

/// Whom an address belongs to: of IPv6, where a host chooses the rest, the first 64 bits (RFC 4291, section 2.5.1).
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_silent_of_the_largest_crowd_goes() {
        for (peers, gone) in [
            ("", None),
            ("10.0.0.1", Some(0)),
            ("10.0.0.1 10.0.0.2", Some(0)),
            ("10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.2", Some(1)),
            ("10.0.0.1 ::ffff:10.0.0.2 10.0.0.2", Some(1)),
            ("fd00::1 fd00:0:0:1::1 fd00:0:0:1::2", Some(1)),
        ] {
            let peers = peers.split_whitespace().map(|peer| peer.parse().unwrap());
            assert_eq!(first_of_the_many(peers), gone);
        }
    }
}
