//! Both sides on one machine: a server in a second process, and a client for each mode.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use adverb::Mode;
use anyhow::Context as _;

use crate::options::Options;
use crate::{client, worker};

/// Plays against a server of the same mode, for each mode.
pub(crate) fn play_in_all_modes(options: &Options) -> anyhow::Result<()> {
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        let options = Options {
            mode,
            ..options.clone()
        };
        let server = Server::start(&options)?;
        client::play(&worker(&options)?, &server.address, &options)?;
    }
    Ok(())
}

/// A server in another process, which ends when this is dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(options: &Options) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0", "--mode", &options.mode.to_string()]);
        command.args(["--endpoints", &options.endpoints.to_string()]);
        if let Some(device) = &options.device {
            command.args(["--device", device]);
        }
        let process = command
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server")?;
        let mut server = Self {
            process,
            address: String::new(),
        };
        let output = server
            .process
            .stdout
            .take()
            .context("reading the server's address")?;
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .context("reading the server's address")?;
        // If it could not start it has said why.
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .context("the server did not start")?;
        server.address = address.to_owned();
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
