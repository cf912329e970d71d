//! What the kernel tells about CPUs near a device, and confining a thread to them.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cpu_list::CpuList;
use crate::placement::Topology;

/// The kernel refused to tell or to set CPU affinity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AffinityError {
    /// `sched_getaffinity(2)` failed.
    #[error("sched_getaffinity: {0} (a machine with more than {max} CPUs?)", max = CpuSet::MAX_CPU)]
    Get(Errno),
    /// `sched_setaffinity(2)` failed.
    #[error("sched_setaffinity to CPUs {cpus}: {source} (choose among the CPUs in `taskset -p {pid}`)", pid = getpid().as_raw_nonzero())]
    Set {
        /// The CPUs asked for.
        cpus: CpuList,
        /// What the kernel said.
        source: Errno,
    },
}

/// Reads what placement goes by, for a device whose folder in sysfs is `device` (`/sys/class/infiniband/rxe0`), if it has one.
///
/// Local CPUs are those of the device itself (`device/local_cpulist`) or, as SoftRoCE devices have no `device` link, those of the
/// network interface below (`parent`). Where neither tells, they are unknown.
///
/// # Errors
/// [`AffinityError::Get`] if the allowed CPUs cannot be read. What sysfs lacks is no error.
pub fn read_topology(device: Option<&Path>, num_comp_vectors: u32) -> Result<Topology, AffinityError> {
    // The main thread's affinity, as this one may be confined already.
    let set = sched_getaffinity(Some(getpid())).map_err(AffinityError::Get)?;
    Ok(Topology {
        num_comp_vectors,
        device_local: device.and_then(device_local),
        allowed: (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
    })
}

/// Lets the calling thread run on these CPUs only.
///
/// # Errors
/// [`AffinityError::Set`] if there is none among them that the thread may use.
pub fn confine_current_thread(cpus: &CpuList) -> Result<(), AffinityError> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|source| AffinityError::Set {
        cpus: cpus.clone(),
        source,
    })
}

fn device_local(device: &Path) -> Option<CpuList> {
    read_cpus(&device.join("device/local_cpulist")).or_else(|| {
        let netdev = fs::read_to_string(device.join("parent")).ok()?;
        // …/class/infiniband/rxe0 → …/class/net/eth0. A name has no slash, so it leads nowhere else.
        let netdev = Path::new(netdev.trim()).file_name()?;
        let class = device.parent()?.parent()?;
        read_cpus(&class.join("net").join(netdev).join("device/local_cpulist"))
    })
}

fn read_cpus(file: &Path) -> Option<CpuList> {
    let cpus: CpuList = fs::read_to_string(file).ok()?.parse().ok()?;
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_device_with_a_bus_tells_its_cpus_itself() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("class/infiniband/mlx5_0");
        write(&device.join("device/local_cpulist"), "4-7\n");
        write(&device.join("parent"), "eth0\n");
        write(&sys.path().join("class/net/eth0/device/local_cpulist"), "0-3\n");
        assert_eq!(device_local(&device).unwrap().to_string(), "4-7");
    }

    #[test]
    fn a_softroce_device_takes_the_cpus_of_its_network_interface() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("class/infiniband/rxe0");
        write(&device.join("parent"), "eth0\n");
        write(&sys.path().join("class/net/eth0/device/local_cpulist"), "0-3\n");
        assert_eq!(device_local(&device).unwrap().to_string(), "0-3");
    }

    #[test]
    fn what_sysfs_lacks_or_garbles_is_unknown() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("class/infiniband/rxe0");
        assert_eq!(device_local(&device), None);
        write(&device.join("parent"), "dummy0\n");
        assert_eq!(device_local(&device), None);
        write(
            &sys.path().join("class/net/dummy0/device/local_cpulist"),
            "many\n",
        );
        assert_eq!(device_local(&device), None);
    }

    #[test]
    fn a_thread_is_confined_to_a_part_of_what_the_process_may_use() {
        let allowed = read_topology(None, 1).unwrap().allowed;
        let one: CpuList = allowed.iter().take(1).collect();
        std::thread::spawn(move || {
            confine_current_thread(&one).unwrap();
            let set = sched_getaffinity(None).unwrap();
            assert_eq!(set.count(), 1);
            // The process as a whole is not.
            assert_eq!(read_topology(None, 1).unwrap().allowed, allowed);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn being_confined_to_nothing_is_refused_with_the_list() {
        let error = confine_current_thread(&CpuList::default()).unwrap_err();
        assert!(matches!(
            error,
            AffinityError::Set {
                source: Errno::INVAL,
                ..
            }
        ));
    }
}
