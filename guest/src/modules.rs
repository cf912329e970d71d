//! Which kernel modules a guest needs, and in which order they go in.

use std::collections::HashMap;

/// What a guest needs, in the order in which it is asked for; what each depends on comes before it. A name that the kernel has
/// built in is left out by [`load_order`]. `crc32_generic` is there because without it `rdma link add` fails with ENOENT.
pub(crate) const NEEDED: [&str; 16] = [
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "9p",
    "9pnet_virtio",
    "overlay",
    "dummy",
    "veth",
    "ib_uverbs",
    "rdma_ucm",
    "crc32_generic",
    "crc32c_generic",
    "rdma_rxe",
    "sch_netem",
    "ip_tables",
    "iptable_filter",
];

/// The files of the modules `needed` and of all that they depend on, from the text of `modules.dep`, dependencies first.
pub(crate) fn load_order(modules_dep: &str, needed: &[&str]) -> Vec<String> {
    let mut depends: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut by_name: HashMap<String, &str> = HashMap::new();
    for line in modules_dep.lines() {
        if let Some((file, rest)) = line.split_once(':') {
            depends.insert(file, rest.split_whitespace().collect());
            by_name.insert(name(file), file);
        }
    }
    let mut order: Vec<String> = Vec::new();
    for wanted in needed {
        let Some(file) = by_name.get(&wanted.replace('-', "_")) else {
            continue;
        };
        // modules.dep lists all that a module needs, directly or not, with the innermost last.
        let inner = depends.get(file).into_iter().flatten().rev();
        for file in inner.chain([file]) {
            if !order.iter().any(|other| other == file) {
                order.push((*file).to_owned());
            }
        }
    }
    order
}

/// A module's name from its file: `kernel/drivers/net/virtio-net.ko.xz` is `virtio_net`.
fn name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/a/virtio-net.ko.xz: kernel/a/net_failover.ko.xz kernel/a/failover.ko.xz
kernel/a/net_failover.ko.xz: kernel/a/failover.ko.xz
kernel/a/failover.ko.xz:
kernel/b/rdma_rxe.ko: kernel/b/ib_core.ko
kernel/b/ib_core.ko:
";

    #[test]
    fn dependencies_come_first_and_once() {
        let order = load_order(DEP, &["virtio_net", "rdma_rxe", "net_failover"]);
        let expected = [
            "a/failover.ko.xz",
            "a/net_failover.ko.xz",
            "a/virtio-net.ko.xz",
            "b/ib_core.ko",
            "b/rdma_rxe.ko",
        ];
        assert!(
            order
                .iter()
                .map(|file| file.trim_start_matches("kernel/"))
                .eq(expected),
            "{order:?}"
        );
    }

    #[test]
    fn what_is_built_in_is_left_out() {
        assert_eq!(load_order(DEP, &["virtio_pci"]), Vec::<String>::new());
    }
}
