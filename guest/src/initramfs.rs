//! The initramfs: busybox, the modules, and a script that puts the root together.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::modules::{NEEDED, load_order};

/// The first program of a guest. The root is the host's, shared read-only over 9p, under a layer in memory.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in /modules/*.ko; do $b insmod $module || echo "guest: insmod $module failed"; done
share=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $share,cache=loose,ro host /host || echo "guest: the host's root cannot be mounted"
$b mount -t tmpfs -o size=75% tmpfs /layer
$b mkdir -p /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /root || echo "guest: no root"
for dir in proc sys dev; do $b mount --move /$dir /root/$dir; done
$b mount -t tmpfs tmpfs /root/run
$b mkdir -p /root/dev/shm /root/dev/pts /root/sys/fs/cgroup /root/run/adverb
$b mount -t tmpfs tmpfs /root/dev/shm
$b mount -t devpts devpts /root/dev/pts
$b mount -t cgroup2 none /root/sys/fs/cgroup
$b mount -t 9p -o $share,cache=none out /root/run/adverb || echo "guest: the run's folder cannot be mounted"
for online in /root/sys/devices/system/cpu/cpu[1-9]*/online; do if [ -e $online ]; then echo 1 > $online; fi; done
exec $b switch_root /root /bin/sh /run/adverb/start
"#;

/// Builds the initramfs once for a kernel, and says where it is.
pub(crate) fn build(cache: &Cache) -> Result<std::path::PathBuf> {
    let image = cache
        .root
        .join(format!("initramfs-{}-{:08x}", cache.version, fingerprint()));
    if image.exists() {
        return Ok(image);
    }
    let dep = fs::read_to_string(cache.modules.join("modules.dep")).context("reading modules.dep")?;
    let mut archive = Archive::new();
    for dir in ["bin", "dev", "proc", "sys", "host", "layer", "root", "modules"] {
        archive.dir(dir);
    }
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file(
        "bin/busybox",
        0o755,
        &fs::read(&cache.busybox).context("reading busybox")?,
    );
    for (i, module) in load_order(&dep, &NEEDED).iter().enumerate() {
        let bytes = read_module(&cache.modules.join(module))?;
        archive.file(&format!("modules/{i:03}.ko"), 0o644, &bytes);
    }
    let mut temporary = tempfile::NamedTempFile::new_in(&cache.root).context("making the initramfs")?;
    temporary
        .write_all(&archive.finish())
        .context("writing the initramfs")?;
    temporary.persist(&image).context("keeping the initramfs")?;
    Ok(image)
}

/// Changes when what is written into the image does.
fn fingerprint() -> u32 {
    let text = INIT.bytes().chain(NEEDED.iter().flat_map(|name| name.bytes()));
    // FNV-1a.
    text.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let compressed = path.extension().is_some_and(|extension| extension == "xz");
    if !compressed {
        return fs::read(path).with_context(|| format!("reading {}", path.display()));
    }
    let output = Command::new("xz")
        .arg("-dc")
        .arg(path)
        .stderr(Stdio::inherit())
        .output()
        .context("running xz")?;
    ensure!(output.status.success(), "xz could not unpack {}", path.display());
    Ok(output.stdout)
}

/// A cpio archive in the format that the kernel reads (`newc`, Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn new() -> Self {
        Self::default()
    }

    fn dir(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entry(name, 0o100_000 | mode, contents);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.inode += 1;
        let links = 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            links,
            0,
            contents.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_header_of_110_bytes_and_aligned_parts() {
        let mut archive = Archive::new();
        archive.file("init", 0o755, b"hello");
        assert_eq!(&archive.bytes[..6], b"070701");
        // Magic and 13 fields of 8 digits, then the name with its zero, up to a multiple of 4.
        assert_eq!(&archive.bytes[110..115], b"init\0");
        assert_eq!(&archive.bytes[116..121], b"hello");
        assert_eq!(archive.bytes.len(), 124);
        assert_eq!(&archive.bytes[14..22], b"000081ed", "mode");
        assert_eq!(&archive.bytes[54..62], b"00000005", "size");
        assert!(archive.finish().windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
