//! Containers in a guest: what an OCI runtime needs to start one on a root made of the guest's own files.
//!
//! A container has mount, PID, IPC and UTS namespaces of its own and an unprivileged user, shares the guest's network (rxe devices in
//! network namespaces of their own need Linux 7.1), and gets `/dev/infiniband` passed in.

use std::path::Path;

use serde_json::{Value, json};

/// The user inside.
const UID: u32 = 1000;

/// The file that prepares the bundle's root.
pub(crate) const PREPARE: &str = "prepare";

/// Makes the root: empty folders to mount on, and Debian's links into `/usr`.
pub(crate) fn prepare(workspace: &Path) -> String {
    let workspace = crate::script::quote(&workspace.to_string_lossy());
    format!(
        "[ -d /run/bundle ] && exit 0\n\
         mkdir -p /run/bundle/rootfs && cd /run/bundle/rootfs\n\
         mkdir -p usr etc proc sys dev tmp run/adverb/out home .{workspace}\n\
         for link in bin sbin lib lib64; do ln -s usr/$link $link; done\n\
         chmod -R a+rwX /run/adverb/out\n"
    )
}

/// The `config.json` of container `host` (OCI runtime specification, version 1.0).
pub(crate) fn config(host: u8, workspace: &Path, command: &str) -> Value {
    let workspace = workspace.to_string_lossy();
    let bind = |path: &str, write: bool| {
        let mode = if write { "rw" } else { "ro" };
        json!({ "destination": path, "type": "bind", "source": path, "options": ["rbind", "nosuid", mode] })
    };
    let tmpfs = |path: &str| json!({ "destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"] });
    json!({
        "ociVersion": "1.0.2",
        "hostname": format!("container{host}"),
        "root": { "path": "rootfs", "readonly": false },
        "process": {
            "terminal": false,
            "user": { "uid": UID, "gid": UID },
            "cwd": workspace,
            "args": ["/bin/bash", "-c", command],
            "env": [
                "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME=/tmp",
                "LANG=C.UTF-8",
                "ADVERB_OUT=/run/adverb/out",
                format!("ADVERB_HOST={host}"),
                "ADVERB_ADDR=10.77.0.1",
                "ADVERB_PEER=10.77.0.1",
            ],
            "capabilities": {},
            "noNewPrivileges": true,
            "rlimits": [
                { "type": "RLIMIT_MEMLOCK", "soft": u64::MAX, "hard": u64::MAX },
                { "type": "RLIMIT_NOFILE", "soft": 4096, "hard": 4096 },
            ],
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            // Before the checkout, which may lie below it.
            tmpfs("/tmp"),
            tmpfs("/dev"),
            tmpfs("/dev/shm"),
            bind("/dev/infiniband", true),
            bind("/sys", false),
            bind("/usr", false),
            bind("/etc", false),
            bind(&workspace, false),
            bind("/run/adverb/out", true),
        ],
        "linux": {
            "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_apart_in_all_but_the_network_and_unprivileged() {
        let config = config(2, Path::new("/w"), "true");
        let namespaces: Vec<_> = config["linux"]["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n["type"].as_str().unwrap())
            .collect();
        assert_eq!(namespaces, ["mount", "pid", "ipc", "uts"]);
        assert_eq!(config["process"]["user"]["uid"], UID);
        assert_eq!(config["process"]["capabilities"], json!({}));
        assert_eq!(config["process"]["args"][2], "true");
    }
}
