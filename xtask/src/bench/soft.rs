//! The software device beside bare UDP sockets and UCX over TCP and over shared memory, on this machine: two processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::local::{Server, Way, bounded, pingpong};
use super::row::{Better, Row, Samples};
use super::{RUNS, ratio};
use crate::workspace;

/// The wheel on PyPI that brings `ucx_perftest`.
const UCX: &str = "libucx-cu12==1.22.0";

pub(super) fn run() -> Result<Vec<Row>> {
    const BENCH: &str = "soft";
    let root = workspace::root();
    let sides = Sides {
        pingpong: adverb_guest::am_pingpong(&root)?,
        udp: udp_pingpong(&root)?,
        ucx: ucx(&root)?,
    };
    let mut samples = Samples::default();
    for _ in 0..RUNS {
        samples.add("raw_udp.p50_us", Some(sides.udp(8, 50_000)?));
        for way in [Way::Network, Way::SharedMemory] {
            let name = way.name();
            let lat = ["--test", "lat", "--size", "8", "--iters", "50000"];
            pingpong(&sides.pingpong, &mut samples, way, &format!("{name}_lat"), &lat)?;
            let lat = ["-t", "ucp_am_lat", "-s", "8", "-n", "50000"];
            sides.ucx(&mut samples, way, &format!("ucx_{name}_lat"), &lat)?;
        }
        let way = Way::Network;
        let rate = ["--test", "rate", "--size", "8", "--iters", "500000"];
        pingpong(&sides.pingpong, &mut samples, way, "rate", &rate)?;
        let rate = ["-t", "ucp_am_bw", "-s", "8", "-n", "500000"];
        sides.ucx(&mut samples, way, "ucx_rate", &rate)?;
        let bw = ["--test", "bw", "--size", "65536", "--iters", "20000"];
        pingpong(&sides.pingpong, &mut samples, way, "bw", &bw)?;
        let bw = ["-t", "ucp_am_bw", "-s", "65536", "-n", "20000"];
        sides.ucx(&mut samples, way, "ucx_bw", &bw)?;
    }
    let row = |name, goal, sides| ratio(&samples, BENCH, name, goal, sides);
    Ok(vec![
        row(
            "udp_lat_vs_raw_udp",
            1.3,
            [
                ("adverb_p50_us", "network_lat.p50_us"),
                ("raw_udp_p50_us", "raw_udp.p50_us"),
            ],
        )?,
        row(
            "udp_lat_vs_ucx_tcp",
            1.0,
            [
                ("adverb_p50_us", "network_lat.p50_us"),
                ("ucx_tcp_p50_us", "ucx_network_lat.p50_us"),
            ],
        )?,
        row(
            "shm_lat_vs_ucx_shm",
            1.0,
            [
                ("adverb_p50_us", "shared_lat.p50_us"),
                ("ucx_shm_p50_us", "ucx_shared_lat.p50_us"),
            ],
        )?,
        row(
            "udp_rate_8B_vs_ucx_tcp",
            1.0,
            [
                ("adverb_msgs_per_s", "rate.msgs_per_s"),
                ("ucx_tcp_msgs_per_s", "ucx_rate.msgs_per_s"),
            ],
        )?
        .better(Better::Higher),
        row(
            "udp_bw_64K_vs_ucx_tcp",
            1.0,
            [
                ("adverb_mib_per_s", "bw.mib_per_s"),
                ("ucx_tcp_mib_per_s", "ucx_bw.mib_per_s"),
            ],
        )?
        .better(Better::Higher),
    ])
}

/// The programs that are measured.
struct Sides {
    pingpong: PathBuf,
    udp: PathBuf,
    /// Where the wheel was unpacked.
    ucx: PathBuf,
}

impl Sides {
    fn udp(&self, bytes: u32, iterations: u32) -> Result<f64> {
        let output = Command::new(&self.udp)
            .args([bytes.to_string(), iterations.to_string()])
            .output()
            .context("running udp_pingpong")?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim()
            .parse()
            .with_context(|| format!("udp_pingpong printed {text:?}"))
    }

    /// Runs a server and a client of `ucx_perftest`. Its last line of results has the count of iterations, latencies (median,
    /// mean, overall), bandwidths in MB/s and message rates (mean, overall).
    fn ucx(&self, samples: &mut Samples, way: Way, name: &str, arguments: &[&str]) -> Result<()> {
        let program = self.ucx.join("bin/ucx_perftest");
        let _server = Server(
            self.ucx_perftest(&mut Command::new(&program), way)
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(100));
            let output = self
                .ucx_perftest(&mut bounded(&program), way)
                .arg("-f")
                .args(arguments)
                .arg("127.0.0.1")
                .output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let last = text.lines().rev().map(numbers).find(|numbers| numbers.len() == 8);
            if let Some(numbers) = last.filter(|_| output.status.success()) {
                samples.add(&format!("{name}.p50_us"), Some(numbers[1]));
                // It counts 2^20 bytes as an MB.
                samples.add(&format!("{name}.mib_per_s"), Some(numbers[5]));
                samples.add(&format!("{name}.msgs_per_s"), Some(numbers[7]));
                return Ok(());
            }
        }
        anyhow::bail!("ucx_perftest {} gave no result", arguments.join(" "))
    }

    /// `ucx_perftest`, which `command` starts.
    fn ucx_perftest<'a>(&self, command: &'a mut Command, way: Way) -> &'a mut Command {
        // Debian's UCX may be installed, too, and is older.
        command.env("LD_LIBRARY_PATH", self.ucx.join("lib")).env(
            "UCX_TLS",
            match way {
                Way::Network => "tcp",
                Way::SharedMemory => "sm",
            },
        )
    }
}

fn numbers(line: &str) -> Vec<f64> {
    let words: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    words.unwrap_or_default()
}

/// Builds the measure of bare sockets.
fn udp_pingpong(root: &Path) -> Result<PathBuf> {
    let arguments = [
        "build",
        "--release",
        "-p",
        "adverb-benches",
        "--bin",
        "udp_pingpong",
    ];
    let mut built = adverb_guest::executables(root, &arguments, &["udp_pingpong"])?;
    built.pop().context("cargo built no udp_pingpong")
}

/// Unpacks the wheel under `target/`, unless it is there.
fn ucx(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/ucx");
    let unpacked = folder.join("libucx");
    if !unpacked.join("bin/ucx_perftest").exists() {
        let status = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--root-user-action=ignore",
                "--target",
            ])
            .arg(&folder)
            .arg(UCX)
            .status()
            .context("running pip")?;
        ensure!(status.success(), "pip could not install {UCX}");
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_from_headings() {
        let line = "  20000   4.612   5.112   5.112   1.49   1.49   195607   195607";
        assert_eq!(numbers(line)[1], 4.612);
        assert!(numbers("| Test | # iterations |").is_empty());
    }
}
