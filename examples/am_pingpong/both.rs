//! Both sides on one machine: a server in a second process, and a client for each mode.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use adverb::Mode;
use anyhow::anyhow;

use crate::options::Options;
use crate::stop::Stop;

/// Plays against a server of the same mode, for each mode.
pub(crate) fn play_in_all_modes(options: &Options, stop: &Stop) -> anyhow::Result<()> {
    let context = crate::open(options)?;
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        let options = Options {
            mode,
            ..options.clone()
        };
        let server = Server::start(&options)?;
        crate::play(&context, &server.address, &options, stop)?;
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
        let failed = |error| anyhow!("starting the server: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // With --once it ends by itself, should this process be killed.
        command.args(["--listen", "127.0.0.1:0", "--once"]);
        command.args(options.to_arguments());
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // From here on it is killed however this ends.
        let mut server = Self {
            process,
            address: String::new(),
        };
        let mut line = String::new();
        if let Some(output) = server.process.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        server.address = line
            .trim()
            .strip_prefix("listening on ")
            // It has said why itself.
            .ok_or_else(|| anyhow!("the server did not start"))?
            .to_owned();
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
