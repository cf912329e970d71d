//! Runs the conformance suite on a device of this machine, or between two.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use adverb_conformance::{Options, run};
use adverb_soft::SoftProvider;
use adverb_verbs::{Device, DeviceInfo, ErrorKind, Provider, VerbsError};
use clap::Parser;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Run the conformance suite on a device, or between two: so the kernel's SoftRoCE and adverb's software device can meet on one machine.
#[derive(Debug, Parser)]
struct Args {
    /// The device.
    device: String,
    /// The device of the second end, if it is another one.
    #[arg(long, value_name = "DEVICE")]
    with: Option<String>,
    /// The network namespace that adverb's own devices are opened in.
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    /// A case to leave out.
    #[arg(long, value_name = "CASE")]
    without: Vec<String>,
    /// Only cases with this in their names.
    filter: Option<String>,
}

fn main() -> ExitCode {
    let Args {
        device,
        with: second,
        netns,
        without,
        filter,
    } = Args::parse();
    let names = [Some(&device), second.as_ref()].into_iter().flatten();
    let named = names.filter(|name| name.starts_with("soft:")).cloned().collect();
    let mut options = Options::new(device);
    if let Some(second) = second {
        options = options.second_device(second);
    }
    options = without.into_iter().fold(options, Options::without);
    if let Some(filter) = filter {
        options = options.filter(filter);
    }
    let provider = Both {
        system: adverb_ibverbs::provider(),
        soft: SoftProvider::default(),
        named,
        netns,
    };
    let report = run(&provider, &options, |case, outcome| match outcome.text() {
        Some(text) => println!("{} {}: {text}", outcome.label(), case.name),
        None => println!("{} {}", outcome.label(), case.name),
    });
    println!("{report}");
    // Cases are skipped on devices that lack something; a suite that ran nothing did not pass.
    if report.is_ok() && report.passed() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The system's devices, and adverb's own.
#[derive(Debug)]
struct Both {
    system: Arc<dyn Provider>,
    soft: SoftProvider,
    /// Devices of adverb's that are named by their address, which no list has.
    named: Vec<String>,
    netns: Option<PathBuf>,
}

#[allow(
    unsafe_code,
    reason = "the trait is unsafe to implement, because of what its devices do"
)]
// SAFETY: the devices are those of the two providers, which keep the promises.
unsafe impl Provider for Both {
    fn name(&self) -> &'static str {
        "both"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let mut devices = self.system.devices()?;
        devices.extend(self.soft.devices()?);
        devices.extend(self.named.iter().map(|name| DeviceInfo {
            name: name.clone(),
            guid: 0,
            sysfs_path: None,
        }));
        Ok(devices)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        if !name.starts_with("soft") {
            return self.system.open(name).map_err(|mut error| {
                if let (ErrorKind::NoSuchDevice { available, .. }, Ok(devices)) =
                    (&mut error.kind, self.devices())
                {
                    *available = devices.into_iter().map(|info| info.name).collect();
                }
                error
            });
        }
        let Some(path) = &self.netns else {
            return self.soft.open(name);
        };
        // A socket stays in the namespace that it was made in; a thread of its own goes there for it.
        let opened = std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let namespace = File::open(path)?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                std::io::Result::Ok(self.soft.open(name))
            });
            there.join()
        });
        let failed = |errno| VerbsError::new("setns", name, ErrorKind::Os(errno));
        match opened {
            Ok(Ok(device)) => device,
            Ok(Err(error)) => Err(failed(error.raw_os_error().unwrap_or(0))),
            Err(_) => Err(failed(0)),
        }
    }
}
