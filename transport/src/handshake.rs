//! The handshake's frames over TCP, limited in size and time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use adverb_wire::{Frame, Handshake, Peek, Refuse, RefuseReason, Text, VersionRange};

use crate::ConnectErrorKind;

/// Longer than any handshake, and short enough for every clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a handshake that begins now must be done.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

/// A TCP connection that carries handshake frames until a deadline.
#[derive(Debug)]
pub(crate) struct Frames {
    stream: TcpStream,
    deadline: Instant,
    timeout: Duration,
}

impl Frames {
    /// Frames over `stream`, all of them within `timeout` from now on.
    pub(crate) fn new(stream: TcpStream, deadline: Instant, timeout: Duration) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            deadline,
            timeout,
        })
    }

    /// Sends one frame.
    pub(crate) fn write(
        &mut self,
        handshake: &Handshake,
        stage: &'static str,
    ) -> Result<(), ConnectErrorKind> {
        let mut frame = [0; Frame::MAX_LEN];
        let len = handshake.encode(&mut frame);
        self.stream.set_write_timeout(Some(self.remaining(stage)?))?;
        self.stream
            .write_all(&frame[..len])
            .map_err(|error| self.io_error(error, stage))
    }

    /// Receives one frame.
    pub(crate) fn read(&mut self, stage: &'static str) -> Result<Handshake, ConnectErrorKind> {
        let mut frame = PartialFrame::default();
        loop {
            self.stream.set_read_timeout(Some(self.remaining(stage)?))?;
            match frame.read_more(&mut self.stream) {
                Ok(Some(handshake)) => return Ok(handshake),
                Ok(None) => {}
                Err(ConnectErrorKind::Io(error)) => return Err(self.io_error(error, stage)),
                Err(kind) => return Err(kind),
            }
        }
    }

    /// Tells the peer no, as far as it listens.
    pub(crate) fn refuse(&mut self, reason: RefuseReason, text: &str) {
        let refuse = Refuse {
            versions: VersionRange::SUPPORTED,
            reason,
            text: Text::truncated(text),
        };
        if let Err(error) = self.write(&Handshake::Refuse(refuse), "the refusal") {
            tracing::debug!(%error, "a refusal could not be sent");
        }
        // Lets the refusal arrive: closing with unread input would reset the connection under it.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn remaining(&self, stage: &'static str) -> Result<Duration, ConnectErrorKind> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            Err(self.timed_out(stage))
        } else {
            Ok(remaining)
        }
    }

    fn io_error(&self, error: std::io::Error, stage: &'static str) -> ConnectErrorKind {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.timed_out(stage),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ConnectErrorKind::Hangup,
            _ => error.into(),
        }
    }

    fn timed_out(&self, stage: &'static str) -> ConnectErrorKind {
        ConnectErrorKind::Timeout {
            stage,
            timeout: self.timeout,
        }
    }
}

/// What has come of a frame.
#[derive(Debug, Default)]
pub(crate) struct PartialFrame {
    bytes: Vec<u8>,
}

impl PartialFrame {
    /// Reads once, and returns the frame when it is whole. Reads no byte beyond it, and no more than a frame may have.
    ///
    /// # Errors
    /// [`ConnectErrorKind::Io`] with what the stream said, [`ConnectErrorKind::Hangup`] if it ended, [`ConnectErrorKind::Handshake`] if this is no
    /// frame.
    pub(crate) fn read_more(
        &mut self,
        stream: &mut impl Read,
    ) -> Result<Option<Handshake>, ConnectErrorKind> {
        let len = self.bytes.len();
        let Peek::Incomplete { missing } = Frame::peek(&self.bytes)? else {
            return self.decode();
        };
        self.bytes.resize(len + missing, 0);
        let read = stream.read(&mut self.bytes[len..]);
        self.bytes.truncate(len + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(ConnectErrorKind::Hangup),
            Ok(_) => self.decode(),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn decode(&self) -> Result<Option<Handshake>, ConnectErrorKind> {
        match Frame::peek(&self.bytes)? {
            Peek::Complete { frame, .. } => Ok(Some(Handshake::decode(&frame)?)),
            Peek::Incomplete { .. } => Ok(None),
        }
    }
}
