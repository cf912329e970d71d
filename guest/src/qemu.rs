//! Starting QEMU, with hardware's help where that works.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// How a guest's instructions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    /// By the CPU.
    Kvm,
    /// By emulation.
    Tcg,
}

impl Accel {
    /// What was found out earlier, if anything.
    pub(crate) fn remembered(cache: &Path) -> Option<Self> {
        match fs::read_to_string(cache.join("accel")).ok()?.trim() {
            "kvm" => Some(Self::Kvm),
            "tcg" => Some(Self::Tcg),
            _ => None,
        }
    }

    /// Keeps what was found out.
    pub(crate) fn remember(self, cache: &Path) -> Result<()> {
        let text = if self == Self::Kvm { "kvm" } else { "tcg" };
        fs::write(cache.join("accel"), text).context("keeping what accelerates guests")
    }
}

/// What one guest is started with.
#[derive(Clone, Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) accel: Accel,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// Its number, from 1.
    pub(crate) guest: u8,
    /// Whether another guest is on its network.
    pub(crate) networked: bool,
    /// The run's folder: shared with the guest, and where the sockets are.
    pub(crate) folder: &'a Path,
    /// Commands that report through ports of their own.
    pub(crate) ports: Vec<PathBuf>,
}

/// What an emulated CPU has: all that QEMU knows, but for
/// - `cx16`: QEMU before 8.0 computes the flags of CMPXCHG16B from a stale state. Where an interrupt then comes, the kernel goes on with wrong flags, and
///   crashes, once in some hundred busy runs. Without that instruction it takes another way.
/// - `la57`, `smap`, `smep`, `pku`: a fifth level of page tables, and protections that no test here is about, make each miss of the emulated TLB and each
///   copy between kernel and program dearer.
const EMULATED_CPU: &str = "max,-cx16,-la57,-smap,-smep,-pku";

/// How the kernel starts: with one CPU, as it patches its own code while it boots, and QEMU lets other CPUs run half of a patch at times. The initramfs
/// takes the others in.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off maxcpus=1 noreplace-smp";

impl Machine<'_> {
    /// Starts QEMU. It dies with this process, whatever ends that.
    pub(crate) fn start(&self) -> Result<Child> {
        let log = fs::File::create(self.folder.join(format!("qemu-{}.log", self.guest)))
            .context("making QEMU's log")?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(self.arguments());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
            .spawn()
            .context("starting qemu-system-x86_64 (`cargo xtask setup` installs it)")
    }

    fn arguments(&self) -> Vec<String> {
        let console = self.folder.join(format!("console-{}", self.guest));
        let (accel, cpu) = match self.accel {
            Accel::Kvm => ("kvm", "host"),
            Accel::Tcg => ("tcg,thread=multi", EMULATED_CPU),
        };
        let mut arguments: Vec<String> = [
            "-machine",
            "q35",
            "-accel",
            accel,
            "-cpu",
            cpu,
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &format!("{}M", self.memory_mib),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-kernel",
            &path(self.kernel),
            "-initrd",
            &path(self.initramfs),
            "-append",
            KERNEL_ARGUMENTS,
            "-serial",
            &format!("file:{}", path(&console)),
            "-fsdev",
            "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device",
            "virtio-9p-pci,fsdev=host,mount_tag=host",
            "-fsdev",
            &format!("local,id=out,path={},security_model=none", path(self.folder)),
            "-device",
            "virtio-9p-pci,fsdev=out,mount_tag=out",
            "-device",
            "virtio-rng-pci",
            "-device",
            "virtio-serial-pci",
        ]
        .map(String::from)
        .to_vec();
        for (i, socket) in self.ports.iter().enumerate() {
            let n = i + 1;
            arguments.extend([
                "-chardev".into(),
                format!("socket,id=port{n},path={}", path(socket)),
                "-device".into(),
                format!("virtserialport,chardev=port{n},nr={n}"),
            ]);
        }
        if self.networked {
            let end = |guest: u8| path(&self.folder.join(format!("net-{guest}")));
            let (own, other) = (end(self.guest), end(3 - self.guest));
            let network =
                format!("dgram,id=net,local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
            let card = format!("virtio-net-pci,netdev=net,mac=52:54:00:ad:fe:{:02x}", self.guest);
            arguments.extend(["-netdev".into(), network, "-device".into(), card]);
        }
        arguments
    }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
