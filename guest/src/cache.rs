//! What guests are made of, fetched once and kept under `target/guest/`: a kernel with its modules, and busybox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The kernels that have `rdma_rxe`. The cloud and real-time flavours do not count.
const KERNELS: (&str, &str) = ("linux-image-6.12.", "+deb12-amd64");

/// The unpacked packages.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) root: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) modules: PathBuf,
    pub(crate) busybox: PathBuf,
    pub(crate) version: String,
}

impl Cache {
    /// Fetches what is missing.
    pub(crate) fn open(workspace: &Path) -> Result<Self> {
        let root = workspace.join("target/guest");
        fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
        let _one_at_a_time = lock(&root)?;
        let (kernel_dir, busybox_dir) = (root.join("kernel"), root.join("busybox"));
        if !kernel_dir.exists() {
            with_fresh_lists(|| unpack(&newest_kernel(&apt_cache_names()?)?, &kernel_dir))?;
        }
        if !busybox_dir.exists() {
            with_fresh_lists(|| unpack("busybox-static", &busybox_dir))?;
        }
        let kernel = find(&kernel_dir.join("boot"), "vmlinuz-")?;
        let version = file_name(&kernel).trim_start_matches("vmlinuz-").to_owned();
        let modules = [kernel_dir.join("lib/modules"), kernel_dir.join("usr/lib/modules")]
            .map(|modules| modules.join(&version))
            .into_iter()
            .find(|modules| modules.exists())
            .context("the kernel's package has no modules")?;
        if !modules.join("modules.dep").exists() {
            // The package leaves it to its installation.
            let base = modules.ancestors().nth(3).context("the modules lie nowhere")?;
            run(Command::new("depmod").arg("-b").arg(base).arg(&version))?;
        }
        let busybox = [
            busybox_dir.join("bin/busybox"),
            busybox_dir.join("usr/bin/busybox"),
        ]
        .into_iter()
        .find(|busybox| busybox.exists())
        .context("busybox-static has no busybox")?;
        Ok(Self {
            root,
            kernel,
            modules,
            busybox,
            version,
        })
    }

    /// One that has nothing in it, at this path.
    #[cfg(test)]
    pub(crate) fn empty(root: &Path) -> Self {
        let nowhere = PathBuf::new();
        Self {
            root: root.to_owned(),
            kernel: nowhere.clone(),
            modules: nowhere.clone(),
            busybox: nowhere,
            version: String::new(),
        }
    }

    /// Keeps other processes from changing what is in the cache, until it is dropped.
    pub(crate) fn lock(&self) -> Result<fs::File> {
        lock(&self.root)
    }
}

fn lock(root: &Path) -> Result<fs::File> {
    let path = root.join("lock");
    let file = fs::File::create(&path).with_context(|| format!("making {}", path.display()))?;
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// The newest of the packages that are kernels with `rdma_rxe`.
fn newest_kernel(names: &str) -> Result<String> {
    let (prefix, suffix) = KERNELS;
    let patch = |name: &str| -> Option<u32> { name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok() };
    let newest = names.lines().filter_map(|name| Some((patch(name)?, name))).max();
    newest.map(|(_, name)| name.to_owned()).context(
        "no package linux-image-6.12.*+deb12-amd64 is known: run `apt-get update`, on Debian 12 with its security updates",
    )
}

/// Tries it, and if that fails once more with apt's lists brought up to date: there may be none yet, or what they name may be gone.
fn with_fresh_lists(attempt: impl Fn() -> Result<()>) -> Result<()> {
    let Err(error) = attempt() else { return Ok(()) };
    eprintln!("guest: {error:#}; bringing apt's lists up to date");
    run(Command::new("apt-get").args(["-q", "-o", "DPkg::Lock::Timeout=300", "update"]))
        .context("apt's lists are out of date")?;
    attempt()
}

fn apt_cache_names() -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["pkgnames", KERNELS.0])
        .output()
        .context("running apt-cache")?;
    ensure!(
        output.status.success(),
        "apt-cache failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Downloads a package and unpacks it, without installing it. What is there afterwards is whole.
fn unpack(package: &str, into: &Path) -> Result<()> {
    eprintln!("guest: fetching {package}");
    let parent = into.parent().context("no folder to unpack into")?;
    let work = tempfile::tempdir_in(parent).context("making a folder for the download")?;
    run(Command::new("apt-get")
        .args(["download", "-q", package])
        .current_dir(work.path()))?;
    let deb = find(work.path(), package)?;
    let unpacked = work.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&unpacked))?;
    fs::rename(&unpacked, into).with_context(|| format!("moving {package} to {}", into.display()))
}

fn find(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let found = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| file_name(path).starts_with(prefix));
    found.with_context(|| format!("there is no {prefix}* in {}", folder.display()))
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("running {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_counts_by_number_and_flavours_do_not() {
        let names = "linux-image-6.12.9+deb12-amd64\nlinux-image-6.12.117+deb12-amd64\nlinux-image-6.12.200+deb12-cloud-amd64\n\
                     linux-image-6.12.300+deb12-amd64-dbg\nlinux-image-6.12.40+deb12-amd64\nlinux-image-6.12-amd64-dbg\n";
        assert_eq!(newest_kernel(names).unwrap(), "linux-image-6.12.117+deb12-amd64");
        assert!(newest_kernel("linux-image-6.1.0-9-amd64").is_err());
    }
}
