//! The handshake's frames over TCP, limited in size and time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use adverb_wire::{Frame, Handshake, Peek, Refuse, RefuseReason, Text, VersionRange};

use crate::ConnectErrorKind;

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

    /// Receives one frame. Reads no byte beyond it, and no more than a frame may have.
    pub(crate) fn read(&mut self, stage: &'static str) -> Result<Handshake, ConnectErrorKind> {
        let mut buffer = [0; Frame::MAX_LEN];
        let mut len = 0;
        loop {
            match Frame::peek(&buffer[..len])? {
                Peek::Complete { frame, .. } => return Ok(Handshake::decode(&frame)?),
                Peek::Incomplete { missing } => {
                    let end = (len + missing).min(buffer.len());
                    self.stream.set_read_timeout(Some(self.remaining(stage)?))?;
                    match self.stream.read(&mut buffer[len..end]) {
                        Ok(0) => return Err(ConnectErrorKind::Hangup),
                        Ok(n) => len += n,
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(self.io_error(error, stage)),
                    }
                }
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
