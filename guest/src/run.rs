//! A run: guests are booted, commands run in them, and all of it is gone afterwards.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Cache;
use crate::interrupt::Watch;
use crate::qemu::{Accel, Machine};
use crate::run_folder::RunFolder;
use crate::script::{self, Layout};
use crate::{Script, container, initramfs};

/// How long the other host may go on after one failed.
const GRACE: Duration = Duration::from_secs(20);

/// How long a kernel may take to boot with the CPU's help before that counts as not working.
const KVM_PROBE: Duration = Duration::from_secs(15);

/// How often emulated guests are started if the kernel of one crashes before any command began. QEMU can run code that another CPU has just patched, as a
/// kernel patches its own while it boots.
const BOOTS: u32 = 3;

/// How a run ends that a signal ended.
const INTERRUPTED: &str = "interrupted: the guests were ended";

/// Guests to be booted.
#[derive(Clone, Debug)]
#[must_use]
pub struct Guests {
    workspace: PathBuf,
    layout: Layout,
    memory_mib: u32,
    time_limit: Duration,
    echo: bool,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By host, the first one first.
    pub hosts: Vec<HostOutcome>,
    /// The guests' kernel logs.
    pub dmesg: String,
}

/// What came of one host.
#[derive(Clone, Debug, Default)]
pub struct HostOutcome {
    /// The command's exit status; `None` if it did not end.
    pub status: Option<i32>,
    /// The lines that it printed, on stdout and stderr alike.
    pub output: Vec<String>,
}

impl Outcome {
    /// Whether every command ended with status 0.
    pub fn success(&self) -> bool {
        self.hosts.iter().all(|host| host.status == Some(0))
    }

    /// The first status that is not 0. 255 if there is none and a command did not end: where one fails, the others are ended, and
    /// that is not what went wrong.
    pub fn status(&self) -> i32 {
        let failed = self
            .hosts
            .iter()
            .filter_map(|host| host.status)
            .find(|status| *status != 0);
        failed.unwrap_or(if self.success() { 0 } else { 255 })
    }

    /// What the guests' kernels said from the first sign of trouble on, if one of them crashed: then no command is to blame.
    pub fn crash(&self) -> Option<&str> {
        const FIRST_SIGNS: [&str; 3] = ["BUG:", "Oops", "Kernel panic"];
        self.dmesg.contains("Kernel panic").then(|| {
            let first = FIRST_SIGNS.iter().filter_map(|sign| self.dmesg.find(sign)).min();
            let line = first.and_then(|at| self.dmesg[..at].rfind('\n'));
            &self.dmesg[line.map_or(0, |newline| newline + 1)..]
        })
    }

    /// Lines of the kernel logs that tell of a bug, or of a packet that rxe did not like.
    pub fn complaints(&self) -> Vec<&str> {
        const SIGNS: [&str; 7] = [
            "Kernel panic",
            "Oops",
            "BUG:",
            "WARNING:",
            "Call Trace",
            "rdma_rxe: ",
            "hung_task",
        ];
        // What rxe says when it is loaded, and when it goes.
        let harmless = |line: &str| line.contains("rdma_rxe: loaded") || line.contains("rdma_rxe: unloaded");
        self.dmesg
            .lines()
            .filter(|line| SIGNS.iter().any(|sign| line.contains(sign)) && !harmless(line))
            .collect()
    }
}

impl Guests {
    /// One guest, for the workspace at this path.
    pub fn new(workspace: impl Into<PathBuf>) -> Self {
        Self {
            workspace: workspace.into(),
            layout: Layout::One,
            memory_mib: 2048,
            time_limit: Duration::from_secs(600),
            echo: true,
        }
    }

    /// One guest or two.
    pub fn hosts(mut self, hosts: u8) -> Self {
        self.layout = if hosts == 2 { Layout::Two } else { Layout::One };
        self
    }

    /// Two containers in one guest: the command runs in each.
    pub fn containers(mut self) -> Self {
        self.layout = Layout::Containers;
        self
    }

    /// Memory of each guest, in MiB. Default 2048.
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// How long the run may take, booting included. Default 10 minutes.
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Whether lines are printed as they come, with the host's number before them if there are two. Default true.
    pub fn echo(mut self, echo: bool) -> Self {
        self.echo = echo;
        self
    }

    /// Fetches what guests are made of, unless it is there. [`Guests::run`] does so too.
    ///
    /// # Errors
    /// A package that could not be fetched or unpacked.
    pub fn fetch(&self) -> Result<()> {
        let workspace = fs::canonicalize(&self.workspace).context("finding the workspace")?;
        initramfs::build(&Cache::open(&workspace)?)?;
        Ok(())
    }

    /// CPUs of each guest: 2, or as many as this machine has for each. With more than it has, a guest that spins on one of its CPUs waits for the
    /// other, and two hosts take milliseconds for a message that takes half of one.
    fn cpus_each(&self) -> u32 {
        let all = thread::available_parallelism().map_or(2, |n| n.get() as u32);
        (all / u32::from(self.layout.guests())).clamp(1, 2)
    }

    /// Boots, runs and collects.
    ///
    /// # Errors
    /// What is missing on this machine, or why a guest did not come up. A command that fails is no error: see [`Outcome::status`].
    pub fn run(&self, command: &Script) -> Result<Outcome> {
        let workspace = fs::canonicalize(&self.workspace).context("finding the workspace")?;
        let cache = Cache::open(&workspace)?;
        let image = initramfs::build(&cache)?;
        let watch = Watch::start()?;
        let accel = match Accel::remembered(&cache.root) {
            Some(accel) => accel,
            None => self.probe_kvm(&workspace, &cache, &image, &watch)?,
        };
        until_booted(accel, || {
            self.run_with(&workspace, &cache, &image, accel, command, &watch)
        })
    }

    /// Finds out whether a kernel boots with the CPU's help: `/dev/kvm` alone does not tell.
    fn probe_kvm(&self, workspace: &Path, cache: &Cache, image: &Path, watch: &Watch) -> Result<Accel> {
        let mut accel = Accel::Tcg;
        if fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok()
        {
            let probe = Self {
                layout: Layout::One,
                time_limit: KVM_PROBE,
                echo: false,
                ..self.clone()
            };
            let outcome = probe.run_with(
                workspace,
                cache,
                image,
                Accel::Kvm,
                &Script::command(["true"]),
                watch,
            );
            ensure!(!watch.interrupted(), INTERRUPTED);
            if matches!(outcome, Ok(Run::Ended(outcome)) if outcome.success()) {
                accel = Accel::Kvm;
            }
        }
        accel.remember(&cache.root)?;
        Ok(accel)
    }

    fn run_with(
        &self,
        workspace: &Path,
        cache: &Cache,
        image: &Path,
        accel: Accel,
        command: &Script,
        watch: &Watch,
    ) -> Result<Run> {
        let folder = RunFolder::create(cache)?;
        self.write_files(folder.path(), workspace, command)?;
        let (lines, received) = mpsc::channel();
        let mut machines = Machines(Vec::new());
        for guest in 1..=self.layout.guests() {
            let hosts = if self.layout == Layout::Containers {
                1..=2
            } else {
                guest..=guest
            };
            let ports = hosts
                .map(|host| listen(folder.path(), host, lines.clone()))
                .collect::<Result<_>>()?;
            let machine = Machine {
                kernel: &cache.kernel,
                initramfs: image,
                accel,
                cpus: self.cpus_each(),
                memory_mib: self.memory_mib,
                guest,
                networked: self.layout == Layout::Two,
                folder: folder.path(),
                ports,
            };
            machines.0.push(machine.start()?);
        }
        drop(lines);
        let run = self.collect(folder.path(), &mut machines, &received, watch)?;
        if let Run::Ended(outcome) = &run {
            if let Some(crash) = outcome.crash() {
                eprintln!("guest: a guest's kernel crashed, which ended its commands:\n{crash}");
            }
            folder.keep_results(cache)?;
        }
        Ok(run)
    }

    fn write_files(&self, folder: &Path, workspace: &Path, command: &Script) -> Result<()> {
        let write = |name: &str, text: &str| {
            fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))
        };
        write("command", command.text())?;
        // Guests start with the one of their number.
        let starts: String = (1..=self.layout.guests())
            .map(|guest| {
                let text = script::start(self.layout, guest, workspace);
                let mac = format!("52:54:00:ad:fe:{guest:02x}");
                match self.layout {
                    Layout::Two => format!("if grep -q {mac} /sys/class/net/eth0/address; then\n{text}fi\n"),
                    _ => text,
                }
            })
            .collect();
        write("start", &starts)?;
        if self.layout == Layout::Containers {
            write(container::PREPARE, &container::prepare(workspace))?;
            for host in 1..=2 {
                let config = container::config(host, workspace, command.text());
                write(&format!("config-{host}.json"), &config.to_string())?;
            }
        }
        Ok(())
    }

    /// Takes output and statuses until all guests are gone, one is gone that had not booted, or the time is up.
    fn collect(
        &self,
        folder: &Path,
        machines: &mut Machines,
        received: &Receiver<(u8, String)>,
        watch: &Watch,
    ) -> Result<Run> {
        let started = Instant::now();
        let mut hosts = vec![HostOutcome::default(); self.layout.hosts().into()];
        let mut deadline = started + self.time_limit;
        let mut failed = false;
        let take = |hosts: &mut Vec<HostOutcome>, (host, line): (u8, String)| {
            if self.echo && hosts.len() > 1 {
                println!("{host}| {line}");
            } else if self.echo {
                println!("{line}");
            }
            if let Some(outcome) = hosts.get_mut(usize::from(host) - 1) {
                outcome.output.push(line);
            }
        };
        loop {
            match received.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => take(&mut hosts, line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            for (i, host) in hosts.iter_mut().enumerate() {
                host.status = host.status.or_else(|| status_of(folder, i + 1));
            }
            if !failed
                && hosts
                    .iter()
                    .any(|host| host.status.is_some_and(|status| status != 0))
            {
                failed = true;
                deadline = deadline.min(Instant::now() + GRACE);
            }
            ensure!(!watch.interrupted(), INTERRUPTED);
            let ended = machines.ended()?;
            if ended
                .iter()
                .zip(1..)
                .any(|(ended, guest)| *ended && !is_ready(folder, guest))
            {
                // The other one waits for it.
                machines.end();
            }
            if ended.iter().all(|ended| *ended) {
                break;
            }
            if Instant::now() >= deadline {
                eprintln!(
                    "guest: ended after {:?}{}",
                    started.elapsed(),
                    if failed { ", as one host failed" } else { "" }
                );
                machines.end();
                break;
            }
        }
        while let Ok(line) = received.recv_timeout(Duration::from_millis(100)) {
            take(&mut hosts, line);
        }
        for (i, host) in hosts.iter_mut().enumerate() {
            host.status = host.status.or_else(|| status_of(folder, i + 1));
        }
        let dmesg = (1..=self.layout.guests())
            .map(|guest| kernel_log(folder, guest))
            .collect();
        let outcome = Outcome { hosts, dmesg };
        if (1..=self.layout.guests()).all(|guest| is_ready(folder, guest)) {
            return Ok(Run::Ended(outcome));
        }
        let crash = outcome.crash().map(str::to_owned);
        Ok(crash.map_or_else(|| Run::NeverBegan(tails(folder)), Run::CrashedBooting))
    }
}

/// How one start of the guests ended.
#[derive(Debug)]
enum Run {
    /// All booted, and the commands ran as far as they did.
    Ended(Outcome),
    /// A kernel crashed before the commands began: what it said.
    CrashedBooting(String),
    /// A guest did not come up, and no crash is why: what QEMU and the kernels said last.
    NeverBegan(String),
}

/// Starts guests until all of them booted, [`BOOTS`] times at most if they are emulated. No command has begun where one is started again.
fn until_booted(accel: Accel, mut start: impl FnMut() -> Result<Run>) -> Result<Outcome> {
    let boots = if accel == Accel::Tcg { BOOTS } else { 1 };
    let mut boot = 1;
    loop {
        match start()? {
            Run::Ended(outcome) => return Ok(outcome),
            Run::CrashedBooting(said) if boot < boots => {
                eprintln!(
                    "guest: a kernel crashed under emulation as it booted (start {boot} of {boots}), and no command has begun: starting again\n{said}"
                );
            }
            Run::CrashedBooting(said) => bail!("a guest's kernel crashed at each of {boot} starts:\n{said}"),
            Run::NeverBegan(said) => bail!("a guest did not come up:\n{said}"),
        }
        boot += 1;
    }
}

/// Whether guest number `guest` has booted. Commands begin when all have.
fn is_ready(folder: &Path, guest: u8) -> bool {
    folder.join(format!("ready-{guest}")).exists()
}

/// What a guest's kernel said: its log if the guest ended by itself, else what reached its console, an oops for one.
fn kernel_log(folder: &Path, guest: u8) -> String {
    let read = |name: String| fs::read(folder.join(name)).ok();
    let log = read(format!("dmesg-{guest}")).or_else(|| read(format!("console-{guest}")));
    String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
}

/// The end of what QEMU and the kernels said.
fn tails(folder: &Path) -> String {
    let names = ["qemu-1.log", "console-1", "qemu-2.log", "console-2"];
    let tail = |name: &str| {
        let text = fs::read(folder.join(name)).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let skip = text.lines().count().saturating_sub(15);
        Some(
            text.lines()
                .skip(skip)
                .map(|line| format!("{name}: {line}\n"))
                .collect::<String>(),
        )
    };
    names.into_iter().filter_map(tail).collect()
}

fn status_of(folder: &Path, host: usize) -> Option<i32> {
    fs::read_to_string(folder.join(format!("status-{host}")))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Listens for the port of one host, and sends its lines on.
fn listen(folder: &Path, host: u8, lines: Sender<(u8, String)>) -> Result<PathBuf> {
    let socket = folder.join(format!("port-{host}"));
    let listener = UnixListener::bind(&socket).context("listening for a guest's output")?;
    thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line)
                .trim_end_matches(['\n', '\r'])
                .to_owned();
            if lines.send((host, text)).is_err() {
                return;
            }
            line.clear();
        }
    });
    Ok(socket)
}

/// Running guests. Dropping them ends them.
#[derive(Debug)]
struct Machines(Vec<Child>);

impl Machines {
    /// By guest, the first one first.
    fn ended(&mut self) -> Result<Vec<bool>> {
        let ended = |child: &mut Child| Ok(child.try_wait().context("waiting for QEMU")?.is_some());
        self.0.iter_mut().map(ended).collect()
    }

    fn end(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(statuses: &[Option<i32>], dmesg: &str) -> Outcome {
        let host = |status: &Option<i32>| HostOutcome {
            status: *status,
            output: Vec::new(),
        };
        Outcome {
            hosts: statuses.iter().map(host).collect(),
            dmesg: dmesg.to_owned(),
        }
    }

    #[test]
    fn the_status_is_that_of_the_host_that_failed_and_not_of_one_that_was_ended_for_it() {
        for (statuses, expected) in [
            (&[Some(0), Some(0)][..], 0),
            (&[Some(0), Some(3)], 3),
            (&[None, Some(3)], 3),
            (&[Some(0), None], 255),
            (&[None], 255),
        ] {
            let outcome = outcome(statuses, "");
            assert_eq!(outcome.status(), expected, "{statuses:?}");
            assert_eq!(outcome.success(), expected == 0, "{statuses:?}");
        }
    }

    #[test]
    fn emulated_guests_are_started_again_after_a_crash_while_booting_and_after_nothing_else() {
        let started = |accel, ends: &dyn Fn(u32) -> Run| {
            let mut starts = 0;
            let result = until_booted(accel, || {
                starts += 1;
                Ok(ends(starts))
            });
            (starts, result.map_err(|error| error.to_string()))
        };
        let crash = |_| Run::CrashedBooting("oops".into());
        let ended = || Run::Ended(outcome(&[Some(7)], ""));

        let (starts, result) = started(Accel::Tcg, &|start| if start == 1 { crash(1) } else { ended() });
        assert_eq!((starts, result.map(|outcome| outcome.status())), (2, Ok(7)));
        let (starts, result) = started(Accel::Tcg, &|_| ended());
        assert_eq!((starts, result.map(|outcome| outcome.status())), (1, Ok(7)));
        for (accel, expected) in [(Accel::Tcg, BOOTS), (Accel::Kvm, 1)] {
            let (starts, result) = started(accel, &crash);
            assert_eq!(starts, expected);
            assert!(result.is_err_and(|error| error.contains("oops")), "{accel:?}");
        }
        let (starts, result) = started(Accel::Tcg, &|_| Run::NeverBegan("no network".into()));
        assert!(starts == 1 && result.is_err_and(|error| error.contains("no network")));
    }

    #[test]
    fn a_crash_is_told_from_its_first_sign_on() {
        let crashed = "[1] eth0: up\n[2] BUG: kernel NULL pointer dereference\n[3] Oops: 0000\n[4] RIP: 0010:f+0x1\n[5] Kernel panic - not syncing\n";
        let told = outcome(&[None], crashed);
        assert_eq!(told.crash(), crashed.split_once('\n').map(|(_, rest)| rest));
        assert_eq!(outcome(&[None], "[1] WARNING: CPU: 1\n").crash(), None);
    }

    #[test]
    fn complaints_of_the_kernel_are_told_from_its_small_talk() {
        let dmesg = "[1] rdma_rxe: loaded\n[2] eth0: up\n[3] rdma_rxe: rxe_rcv: bad packet\n[4] WARNING: CPU: 1\n\
                     [5] Kernel panic - not syncing\n";
        let outcome = outcome(&[Some(0)], dmesg);
        let lines: Vec<_> = outcome.complaints().iter().map(|line| &line[..3]).collect();
        assert_eq!(lines, ["[3]", "[4]", "[5]"]);
    }
}
