//! The command line.

use std::net::{SocketAddr, ToSocketAddrs};

use adverb::{Config, ConfigError, Mode};
use anyhow::anyhow;
use clap::{Parser, ValueEnum};

/// The TCP port of the handshake, if none is given: perftest's.
const PORT: u16 = 18515;

/// Ping-pong with active messages: latency, rate and bandwidth between two hosts.
#[derive(Clone, Debug, Parser)]
#[command(name = "am_pingpong", version)]
pub(crate) struct Options {
    /// Serve clients at this TCP address, until stopped. Default port: 18515.
    #[arg(long, value_name = "ADDR", conflicts_with = "server")]
    pub(crate) listen: Option<String>,
    /// The RDMA device: rxe0, soft0, soft:10.0.0.2. Default: ADVERB_DEVICE, else the first real one with an active port, else soft0.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// How to wait: poll, event or hybrid. Where both sides are played here, all three are.
    #[arg(long, default_value_t = Mode::Hybrid)]
    pub(crate) mode: Mode,
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Test::Lat)]
    pub(crate) test: Test,
    /// Bytes of a message, less than 16 MiB. Default: 8, for bw 65536.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    pub(crate) size: Option<u32>,
    /// Messages to measure.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = counts(1))]
    pub(crate) iters: u64,
    /// Messages before that, not measured.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = counts(0))]
    pub(crate) warmup: u64,
    /// Messages without an answer at most, for rate and bw.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = counts(1))]
    pub(crate) window: u64,
    /// Pause before each ping, in µs. Not part of the latency.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = counts(0))]
    pub(crate) gap_us: u64,
    /// End after one client, with all connections that it makes.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Connections to hold open, for idle.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) endpoints: u32,
    /// Seconds to hold them, for idle.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = counts(1))]
    pub(crate) secs: u64,
    /// The server to play with, at port 18515 if no other is given. Without it and without --listen, one is started here and all modes are played.
    pub(crate) server: Option<String>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// One-way latency: half the round trip, one message at a time.
    Lat,
    /// Messages a second, one way.
    Rate,
    /// Bytes a second, one way.
    Bw,
    /// What many connections cost the server while nothing is sent.
    Idle,
}

impl Test {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lat => "lat",
            Self::Rate => "rate",
            Self::Bw => "bw",
            Self::Idle => "idle",
        }
    }
}

impl Options {
    /// Bytes of a message.
    pub(crate) fn size(&self) -> usize {
        let default = if self.test == Test::Bw { 65536 } else { 8 };
        self.size.unwrap_or(default) as usize
    }

    /// The worker that both sides need: as the environment sets it, but for what the command line says.
    pub(crate) fn config(&self) -> Result<Config, ConfigError> {
        // Room for 100 idle endpoints, whatever the other side tests.
        let room = self.endpoints.max(128);
        Ok(Config::from_env()?.mode(self.mode).max_endpoints(room))
    }

    /// What a server needs to know of it.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--mode={}", self.mode),
            format!("--endpoints={}", self.endpoints),
        ];
        arguments.extend(self.device.iter().map(|name| format!("--device={name}")));
        arguments
    }
}

/// Numbers from `least` that can be added without thinking.
fn counts(least: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least..=1 << 40)
}

/// An address with a port: the default one if `address` has none.
fn with_port(address: &str) -> String {
    let has_port = match address.rsplit_once(':') {
        // IPv6 with a port is written [::1]:2000.
        Some((host, port)) => port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')),
        None => false,
    };
    if has_port {
        address.to_owned()
    } else if address.contains(':') && !address.starts_with('[') {
        format!("[{address}]:{PORT}")
    } else {
        format!("{address}:{PORT}")
    }
}

/// The addresses that a name stands for, with the default port if it has none.
pub(crate) fn resolve(address: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let found = with_port(address).to_socket_addrs();
    let found =
        found.map_err(|error| anyhow!("{address:?} is no address: {error}; give HOST or HOST:PORT"))?;
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_the_default_port_if_they_have_none() {
        for (given, full) in [
            ("host", "host:18515"),
            ("10.0.0.1", "10.0.0.1:18515"),
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("fe80::1", "[fe80::1]:18515"),
            ("[fe80::1]", "[fe80::1]:18515"),
            ("[fe80::1]:7", "[fe80::1]:7"),
        ] {
            assert_eq!(with_port(given), full);
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
