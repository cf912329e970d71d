//! Which device is opened, and what is said when none can be.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "the verbs traits are unsafe to implement")]

use std::sync::Arc;

use adverb::{Config, Context, OpenError};
use adverb_soft::{SoftConfig, SoftDevice, SoftProvider};
use adverb_verbs::{Device, DeviceInfo, ErrorKind, Provider, VerbsError};

/// Software devices of this host by their names, and whether their port is up.
#[derive(Debug)]
struct Devices(Vec<(&'static str, bool)>);

const FIRST: &str = "soft:127.0.0.1";
const SECOND: &str = "soft:127.0.0.2";

// SAFETY: the devices are the software provider's, which keeps the promises.
unsafe impl Provider for Devices {
    fn name(&self) -> &'static str {
        "devices"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let info = |(name, _): &(&str, bool)| DeviceInfo {
            name: (*name).into(),
            guid: 0,
            sysfs_path: None,
        };
        Ok(self.0.iter().map(info).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let Some((_, up)) = self.0.iter().find(|(known, _)| *known == name) else {
            let kind = ErrorKind::NoSuchDevice {
                name: name.into(),
                available: self.0.iter().map(|(name, _)| (*name).into()).collect(),
            };
            return Err(VerbsError::new("ibv_open_device", name, kind));
        };
        let device = SoftProvider::default().open(name)?;
        let soft: &SoftDevice = device.as_any().downcast_ref().unwrap();
        soft.set_port_active(*up);
        Ok(device)
    }
}

fn open(devices: &[(&'static str, bool)], name: Option<&str>) -> Result<Context, OpenError> {
    let builder = Context::builder().provider(Arc::new(Devices(devices.into())));
    match name {
        Some(name) => builder.device(name).open(),
        None => builder.open(),
    }
}

#[test]
fn the_first_device_with_an_active_port_is_opened() {
    for (first, found) in [(true, FIRST), (false, SECOND)] {
        let context = open(&[(FIRST, first), (SECOND, true)], None).unwrap();
        assert_eq!(context.device_name(), found);
    }
}

#[test]
fn a_device_that_does_not_exist_is_named_with_those_that_do() {
    let error = open(&[(FIRST, true), (SECOND, true)], Some("mlx5_0")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("mlx5_0") && text.contains(&format!("{FIRST}, {SECOND}")),
        "{text}"
    );
}

#[test]
fn a_device_of_the_system_needs_libibverbs_and_a_build_without_it_says_so() {
    let error = Context::builder().device("rxe77").open().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("\"rxe77\""), "{text}");
    assert_eq!(
        text.contains("`--features ibverbs`"),
        cfg!(not(feature = "ibverbs")),
        "{text}"
    );
}

#[test]
fn an_address_that_is_none_is_told() {
    let error = Context::builder().device("soft:xyz").open().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("\"soft:xyz\" names no device: an IP address"),
        "{text}"
    );
}

#[test]
fn a_port_that_is_down_is_told() {
    let devices = [(FIRST, false), (SECOND, false)];
    let error = open(&devices, Some(FIRST)).unwrap_err();
    assert!(matches!(error, OpenError::PortDown { port: 1, .. }), "{error}");
    let text = open(&devices, None).unwrap_err().to_string();
    for name in [FIRST, SECOND] {
        assert!(text.contains(&format!("{name} port 1 is DOWN")), "{text}");
    }
}

#[test]
fn a_host_without_devices_says_so() {
    assert_eq!(open(&[], None).unwrap_err(), OpenError::NoDevice);
}

#[test]
fn a_comp_vector_out_of_range_names_the_limit() {
    let provider = SoftProvider::new(SoftConfig::default().loopback(true).num_comp_vectors(4));
    let context = Context::builder().provider(Arc::new(provider)).open().unwrap();
    let error = context
        .worker(Config::new().comp_vector(4))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("comp_vector 4 is out of range, must be less than 4"),
        "{error}"
    );
    let vectors: Vec<_> = (0..6)
        .map(|_| context.worker(Config::new()).unwrap().comp_vector())
        .collect();
    assert_eq!(vectors, [0, 1, 2, 3, 0, 1], "workers take turns over the vectors");
}
