//! Listing and opening devices.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use adverb_verbs::{Device, DeviceInfo, ErrorKind, Provider, VerbsError};

use crate::device::IbDevice;
use crate::sys::DeviceList;

/// The provider's name.
pub(crate) const NAME: &str = "libibverbs";

/// The devices of libibverbs: NICs and SoftRoCE.
pub fn provider() -> Arc<dyn Provider> {
    Arc::new(LibIbverbs)
}

#[derive(Clone, Copy, Debug)]
struct LibIbverbs;

// SAFETY: the objects that it makes own what they hand to libibverbs, and let go in the order that it asks for.
unsafe impl Provider for LibIbverbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let list = match ibverbs::devices() {
            Ok(list) => list,
            Err(error) if no_rdma(&error) => return Ok(Vec::new()),
            Err(error) => return Err(VerbsError::os("ibv_get_device_list", NAME, &error)),
        };
        let infos = list.iter().filter_map(|device| {
            let name = device.name()?.to_string_lossy().into_owned();
            // The crate keeps the GUID as the library gives it, in network byte order.
            let guid = device.guid().map_or(0, |guid| u64::from_be(guid.into()));
            let sysfs_path =
                Some(Path::new("/sys/class/infiniband").join(&name)).filter(|path| path.exists());
            Some(DeviceInfo {
                name,
                guid,
                sysfs_path,
            })
        });
        Ok(infos.collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let available = self.devices()?;
        let opened = match DeviceList::get() {
            Ok(list) => list.open(name),
            Err(error) if no_rdma(&error) => None,
            Err(error) => return Err(VerbsError::os("ibv_get_device_list", NAME, &error)),
        };
        let info = available.iter().find(|info| info.name == name).cloned();
        let (Some(opened), Some(info)) = (opened, info) else {
            let available = available.into_iter().map(|info| info.name).collect();
            let kind = ErrorKind::NoSuchDevice {
                name: name.into(),
                available,
            };
            return Err(VerbsError::new("ibv_open_device", NAME, kind));
        };
        let context =
            opened.map_err(|error| VerbsError::os("ibv_open_device", name, &why_not(name, error)))?;
        Ok(Arc::new(IbDevice::new(context, info)?))
    }
}

/// Why a device could not be opened. libibverbs tries another way when its node may not be opened, and then reports that
/// as the reason (ENOENT): the node itself tells better.
fn why_not(name: &str, error: io::Error) -> io::Error {
    let nodes = fs::read_dir("/sys/class/infiniband_verbs")
        .into_iter()
        .flatten()
        .flatten();
    let node = nodes
        .map(|entry| entry.path())
        .find(|node| fs::read_to_string(node.join("ibdev")).is_ok_and(|device| device.trim() == name));
    let Some(file_name) = node.as_deref().and_then(Path::file_name) else {
        return error;
    };
    let opened = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new("/dev/infiniband").join(file_name));
    opened.err().unwrap_or(error)
}

/// Whether the list could not be had because the kernel has no RDMA at all: there are no devices then.
fn no_rdma(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_rdma_has_no_devices() {
        use rustix::io::Errno;
        assert!(no_rdma(&Errno::NOSYS.into()));
        assert!(no_rdma(&Errno::NOENT.into()));
        assert!(!no_rdma(&Errno::PERM.into()));
        assert!(!no_rdma(&Errno::NOMEM.into()));
    }

    #[test]
    fn the_list_has_no_device_that_the_kernel_has_not() {
        // On a machine without RDMA that is an empty list, and no error.
        let kernels: Vec<_> = std::fs::read_dir("/sys/class/infiniband")
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        for info in provider().devices().unwrap() {
            assert!(kernels.contains(&info.name), "{info:?} is none of {kernels:?}");
        }
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_those_that_are() {
        let available = provider()
            .devices()
            .unwrap()
            .into_iter()
            .map(|info| info.name)
            .collect();
        let error = provider().open("no-such-device").unwrap_err();
        let name = "no-such-device".into();
        assert_eq!(error.operation, "ibv_open_device");
        assert_eq!(error.kind, ErrorKind::NoSuchDevice { name, available });
    }
}
