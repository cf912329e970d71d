//! What can go wrong in a verb, and what to do about it.

use std::fmt;
use std::io;
use std::sync::Arc;

/// A verb failed: which one, on which device, why, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsError {
    /// The verb, by its name in libibverbs (`ibv_reg_mr`), or what the provider was doing.
    pub operation: &'static str,
    /// The device, by its name (`rxe0`), or the provider's where no device is involved yet.
    pub device: Arc<str>,
    /// Why.
    pub kind: ErrorKind,
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system said no, with this `errno`.
    Os(i32),
    /// A handle of another provider, or of another device, was passed in.
    WrongProvider,
    /// The provider or the device cannot do this.
    Unsupported(&'static str),
    /// A value lies outside what the device takes.
    OutOfRange {
        /// What the value is, in the verbs' words (`comp_vector`).
        what: &'static str,
        /// The value asked for.
        value: u64,
        /// The smallest value not accepted any more: valid values are less than this.
        limit: u64,
    },
    /// There is no device of this name; these are there.
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names of the devices that the provider has.
        available: Vec<String>,
    },
    /// The provider can have no device of this name.
    MalformedName {
        /// The name asked for.
        name: String,
        /// What its names look like.
        expected: &'static str,
    },
    /// A memory region cannot be deregistered, since work requests that are posted and not complete name it (like `EBUSY`).
    RegionInUse {
        /// Its local key.
        lkey: u32,
        /// Its virtual address.
        addr: u64,
        /// Its length in bytes.
        len: u64,
        /// Requests on send queues that name it: sends, writes, and what READs and atomic operations fill.
        sends: usize,
        /// Receives that name it, on queue pairs.
        receives: usize,
        /// Receives that name it, on shared receive queues.
        shared_receives: usize,
    },
    /// The device is gone or had a fatal error.
    DeviceFatal,
}

impl VerbsError {
    /// An error of `operation` on `device`.
    pub fn new(operation: &'static str, device: impl Into<Arc<str>>, kind: ErrorKind) -> Self {
        Self {
            operation,
            device: device.into(),
            kind,
        }
    }

    /// An error that the system reported.
    pub fn os(operation: &'static str, device: impl Into<Arc<str>>, error: &io::Error) -> Self {
        Self::new(
            operation,
            device,
            ErrorKind::Os(error.raw_os_error().unwrap_or(0)),
        )
    }

    /// What to do next, where that can be said.
    pub fn advice(&self) -> Option<&'static str> {
        // The numbers are Linux's on every architecture that has RDMA devices (errno-base.h).
        const EPERM: i32 = 1;
        const ENOENT: i32 = 2;
        const EAGAIN: i32 = 11;
        const ENOMEM: i32 = 12;
        const EACCES: i32 = 13;
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        const EADDRNOTAVAIL: i32 = 99;
        const ENETUNREACH: i32 = 101;
        const ETIMEDOUT: i32 = 110;
        match (&self.kind, self.operation) {
            (
                ErrorKind::Os(ENOMEM | EAGAIN | EPERM),
                "ibv_reg_mr" | "ibv_create_cq" | "ibv_create_srq" | "ibv_create_qp",
            ) => Some(
                "raise the locked-memory limit: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or memlock in a container's ulimits; or register less",
            ),
            (ErrorKind::Os(EACCES | EPERM), "ibv_open_device") => Some(
                "this user may not open /dev/infiniband/uverbs*: join the device's group, or pass the device into the container",
            ),
            (ErrorKind::Os(ENOENT), "ibv_open_device" | "ibv_get_device_list") => {
                Some("load the kernel module ib_uverbs and see that /dev/infiniband/uverbs* exist")
            }
            (ErrorKind::Os(EADDRNOTAVAIL), "ibv_open_device") => {
                Some("the address must be one of this host's: see `ip address`")
            }
            (ErrorKind::Os(EINVAL), "ibv_create_qp") => Some(
                "ask for less: queue depths, SGEs or inline bytes are above what the device takes (`ibv_devinfo -v`)",
            ),
            (ErrorKind::Os(ENETUNREACH | ETIMEDOUT), "ibv_modify_qp") => Some(
                "the link is down or the peer's address cannot be resolved: check `rdma link` and `ip neigh`",
            ),
            (ErrorKind::Os(EINVAL), "ibv_modify_qp") => Some(
                "an attribute does not fit the port: check the GID index, the path MTU and the port's state",
            ),
            (
                ErrorKind::OutOfRange {
                    what: "comp_vector", ..
                },
                _,
            ) => Some("comp_vector counts from 0 to num_comp_vectors − 1"),
            (ErrorKind::NoSuchDevice { .. }, _) => Some(
                "name one of the devices that are there (`rdma link`, `ibv_devices`), or make one: `rdma link add rxe0 type rxe netdev eth0`",
            ),
            (ErrorKind::RegionInUse { .. }, _) => Some(
                "wait until these have completed, or end them: move their queue pairs to ERR or destroy them, and destroy the shared receive queues; then deregister again",
            ),
            (ErrorKind::Os(EBUSY), "ibv_dereg_mr") => {
                Some("memory windows are still bound to the region: deallocate them first")
            }
            (ErrorKind::WrongProvider, _) => Some("use handles of one device together only"),
            (ErrorKind::DeviceFatal, _) => Some("drop everything on the device and open it again"),
            _ => None,
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.operation, self.device, self.kind)?;
        if let Some(advice) = self.advice() {
            write!(f, " ({advice})")?;
        }
        Ok(())
    }
}

impl std::error::Error for VerbsError {}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(errno) => fmt::Display::fmt(&io::Error::from_raw_os_error(*errno), f),
            Self::WrongProvider => f.write_str("a handle belongs to another provider or device"),
            Self::Unsupported(what) => write!(f, "{what} is not supported here"),
            Self::OutOfRange { what, value, limit } => {
                write!(f, "{what} {value} is out of range, must be less than {limit}")
            }
            Self::NoSuchDevice { name, available } if available.is_empty() => {
                write!(f, "there is no device {name:?}, and no other either")
            }
            Self::NoSuchDevice { name, available } => {
                write!(
                    f,
                    "there is no device {name:?}; there are: {}",
                    available.join(", ")
                )
            }
            Self::MalformedName { name, expected } => write!(f, "{name:?} names no device: {expected}"),
            Self::RegionInUse {
                lkey,
                addr,
                len,
                sends,
                receives,
                shared_receives,
            } => write!(
                f,
                "the region with lkey {lkey:#010x} ({len} bytes at {addr:#x}) is in use by {} work requests: {sends} sends, {receives} receives, {shared_receives} shared receives",
                sends + receives + shared_receives
            ),
            Self::DeviceFatal => f.write_str("the device had a fatal error or was removed"),
        }
    }
}

/// A list of work requests was not taken whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source} after {accepted} work requests were accepted")]
pub struct PostError {
    /// How many requests at the head of the list were taken, and will complete.
    pub accepted: usize,
    /// Why the next one was not.
    pub source: VerbsError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_registration_names_the_limit_that_refused_it() {
        let error = VerbsError::new("ibv_reg_mr", "rxe0", ErrorKind::Os(12));
        let text = error.to_string();
        assert!(
            text.starts_with("ibv_reg_mr on rxe0: Cannot allocate memory"),
            "{text}"
        );
        assert!(text.contains("ulimit -l unlimited"), "{text}");
    }

    #[test]
    fn a_region_in_use_is_named_with_who_holds_it_and_what_to_do() {
        let kind = ErrorKind::RegionInUse {
            lkey: 0x1234,
            addr: 0x7000,
            len: 64,
            sends: 1,
            receives: 2,
            shared_receives: 3,
        };
        let text = VerbsError::new("ibv_dereg_mr", "soft0", kind).to_string();
        let told = "ibv_dereg_mr on soft0: the region with lkey 0x00001234 (64 bytes at 0x7000) is in use by 6 work requests: \
                    1 sends, 2 receives, 3 shared receives (wait until these have completed";
        assert!(text.starts_with(told), "{text}");
    }

    #[test]
    fn a_wrong_device_name_lists_those_there_are() {
        let kind = ErrorKind::NoSuchDevice {
            name: "mlx5_9".into(),
            available: vec!["rxe0".into(), "rxe1".into()],
        };
        let text = VerbsError::new("ibv_open_device", "libibverbs", kind).to_string();
        assert!(text.contains("\"mlx5_9\"; there are: rxe0, rxe1"), "{text}");
    }
}
