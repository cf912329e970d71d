//! Both ends of `am_pingpong` on this machine, over the software device.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::row::Samples;

/// How long one run may take, in seconds.
const TIME_LIMIT: &str = "60";

/// How messages go.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Over the loopback interface: UDP, and TCP for UCX.
    Network,
    /// Through memory that both processes have.
    SharedMemory,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::SharedMemory => "shared",
        }
    }
}

/// Runs a server and a client of `am_pingpong`, which is `program`, and adds what the client measured.
pub(super) fn pingpong(
    program: &Path,
    samples: &mut Samples,
    way: Way,
    name: &str,
    arguments: &[&str],
) -> Result<()> {
    let mut server = Server(
        am_pingpong(&mut Command::new(program), way)
            .args(["--listen", "127.0.0.1:0", "--once"])
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let mut line = String::new();
    if let Some(output) = server.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let address = line
        .trim()
        .strip_prefix("listening on ")
        .context("the server did not start")?;
    let output = am_pingpong(&mut bounded(program), way)
        .args(arguments)
        .args(["--json", address])
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    samples.add_lines(text.lines().map(|line| format!("@{name} {line}")));
    Ok(())
}

/// `am_pingpong`, which `command` starts. It has the same address as the other sides, and with it the loopback interface's MTU.
fn am_pingpong(command: &mut Command, way: Way) -> &mut Command {
    if let Way::Network = way {
        command.env("ADVERB_SHARED_MEMORY", "off");
    }
    command.args(["--device", "soft:127.0.0.1", "--mode", "poll"])
}

/// Runs a program for [`TIME_LIMIT`] at most. Only for what is waited for: killed, it would leave the program behind.
pub(super) fn bounded(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg(TIME_LIMIT).arg(program);
    command
}

/// A process that ends with this.
pub(super) struct Server(pub(super) Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
