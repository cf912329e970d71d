//! An opened device: what workers are made on.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use adverb_progress::Plan;
use adverb_soft::{SoftConfig, SoftProvider};
use adverb_verbs::{
    Device, DeviceInfo, ErrorKind, GidEntry, LinkLayer, Pd, PortAttr, PortState, Provider, VerbsError,
};
use parking_lot::Mutex;

use crate::async_events::AsyncEventReader;
use crate::worker::Shared as WorkerShared;
use crate::{Config, OpenError, Worker, WorkerError, gid, placement};

/// An opened device with a protection domain and the one reader of its asynchronous events.
///
/// Cloning gives another handle. The device closes when the last handle, worker, endpoint and region is gone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    // Dropped first, so that no event is read while the device closes.
    _async_events: AsyncEventReader,
    workers: Arc<Workers>,
    pd: Arc<dyn Pd>,
    device: Arc<dyn Device>,
    port: u8,
    source: Option<IpAddr>,
    next_worker: AtomicU32,
    plan: Option<Plan>,
}

/// The workers of a context, for the reader of asynchronous events.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Vec<Weak<WorkerShared>>>);

impl Workers {
    pub(crate) fn each(&self, mut visit: impl FnMut(&WorkerShared)) {
        let workers: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for worker in workers {
            visit(&worker);
        }
    }

    fn add(&self, worker: Weak<WorkerShared>) {
        let mut workers = self.0.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(worker);
    }
}

/// What to open, and how.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ContextBuilder {
    providers: Vec<Arc<dyn Provider>>,
    config: Config,
}

impl ContextBuilder {
    /// Takes device, port, source and shared memory from `config`, in place of what was said before. The rest of it is for
    /// [`Context::worker`].
    pub fn config(mut self, config: &Config) -> Self {
        self.config = config.clone();
        self
    }

    /// Opens the device of this name: one of the system's (`rxe0`), adverb's own for this host (`soft0`), or adverb's own on the network
    /// interface with an address (`soft:10.0.0.2`). Default: the one that `ADVERB_DEVICE` names, else the first of the system's with an
    /// active port, else `soft0`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.config = self.config.device(name);
        self
    }

    /// Uses this port, counting from 1. Default: 1 for a named device, else the first active one.
    pub fn port(mut self, port: u8) -> Self {
        self.config = self.config.port(port);
        self
    }

    /// Prefers the GID of this address. Default: the address that the handshake's TCP connection uses, if a GID has it,
    /// then IPv4, then global IPv6, then link-local.
    pub fn source(mut self, address: IpAddr) -> Self {
        self.config = self.config.source(address);
        self
    }

    /// Takes devices of this provider instead of those that adverb was built with.
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.push(provider);
        self
    }

    /// Opens the device. What neither the program nor its configuration said is looked for in `ADVERB_DEVICE`, `ADVERB_PORT`, `ADVERB_SOURCE`
    /// and `ADVERB_SHARED_MEMORY`.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing.
    pub fn open(self) -> Result<Context, OpenError> {
        let config = self.config.or_device_from_env()?;
        let built_in = self.providers.is_empty();
        let providers = if built_in {
            built_in_providers(&config)
        } else {
            self.providers
        };
        let (device, port) = match config.device {
            Some(name) => {
                let device = open_named(&providers, &name).map_err(|error| match error.kind {
                    ErrorKind::NoSuchDevice { name, .. } if built_in && !cfg!(feature = "ibverbs") => {
                        OpenError::WithoutIbverbs { name }
                    }
                    _ => error.into(),
                })?;
                (device, config.port.unwrap_or(1))
            }
            None => open_first_active(&providers, config.port)?,
        };
        Context::on(device, port, config.source)
    }
}

/// The providers that this build has, the one preferred first.
fn built_in_providers(config: &Config) -> Vec<Arc<dyn Provider>> {
    let soft = SoftConfig::default().shared_memory(config.shared_memory);
    vec![
        #[cfg(feature = "ibverbs")]
        adverb_ibverbs::provider(),
        Arc::new(SoftProvider::new(soft)),
    ]
}

fn open_named(providers: &[Arc<dyn Provider>], name: &str) -> Result<Arc<dyn Device>, VerbsError> {
    let mut refused = None;
    let mut available = Vec::new();
    for provider in providers {
        match provider.open(name) {
            Ok(device) => return Ok(device),
            Err(error) => match error.kind {
                ErrorKind::NoSuchDevice { available: some, .. } => available.extend(some),
                // It knows the device and says what is wrong with it, or cannot look for it.
                _ => refused = refused.or(Some(error)),
            },
        }
    }
    let missing = || {
        let name = name.to_owned();
        VerbsError::new(
            "ibv_open_device",
            name.as_str(),
            ErrorKind::NoSuchDevice {
                name: name.clone(),
                available,
            },
        )
    };
    Err(refused.unwrap_or_else(missing))
}

fn open_first_active(
    providers: &[Arc<dyn Provider>],
    port: Option<u8>,
) -> Result<(Arc<dyn Device>, u8), OpenError> {
    let mut seen = Vec::new();
    for provider in providers {
        let devices = match provider.devices() {
            Ok(devices) => devices,
            Err(error) => {
                seen.push(error.to_string());
                continue;
            }
        };
        for DeviceInfo { name, .. } in devices {
            let device = match provider.open(&name) {
                Ok(device) => device,
                Err(error) => {
                    seen.push(error.to_string());
                    continue;
                }
            };
            let ports = port.map_or(1..=device.attr().phys_port_cnt, |port| port..=port);
            for port in ports {
                let state = device.port(port)?.state;
                if state == PortState::Active {
                    return Ok((device, port));
                }
                seen.push(format!("{name} port {port} is {state}"));
            }
        }
    }
    if seen.is_empty() {
        Err(OpenError::NoDevice)
    } else {
        Err(OpenError::NoActivePort { devices: seen })
    }
}

impl Context {
    /// Opens the device that `ADVERB_DEVICE` names, else the first of the system's with an active port, else adverb's own software device.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing.
    pub fn open() -> Result<Self, OpenError> {
        Self::builder().open()
    }

    /// Says what to open, and how.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    fn on(device: Arc<dyn Device>, port: u8, source: Option<IpAddr>) -> Result<Self, OpenError> {
        let pd = device.alloc_pd()?;
        let workers = Arc::new(Workers::default());
        let async_events =
            AsyncEventReader::start(Arc::clone(&device), Arc::clone(&workers)).map_err(|error| {
                OpenError::System {
                    device: device.info().name.clone(),
                    reason: error.to_string(),
                }
            })?;
        let next_worker = AtomicU32::new(0);
        let plan = placement::plan(&*device);
        let inner = Inner {
            _async_events: async_events,
            workers,
            pd,
            device,
            port,
            source,
            next_worker,
            plan,
        };
        let context = Self {
            inner: Arc::new(inner),
        };
        // Told here rather than at the first connection, which may be hours away.
        context.usable_port(None)?;
        Ok(context)
    }

    /// Makes a worker.
    ///
    /// # Errors
    /// [`WorkerError`] says which limit of the device or the system is too low.
    pub fn worker(&self, config: Config) -> Result<Worker, WorkerError> {
        let worker = Worker::on(self.clone(), config)?;
        self.inner.workers.add(worker.downgrade());
        Ok(worker)
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        &self.inner.device.info().name
    }

    /// The provider's name.
    pub fn provider(&self) -> &'static str {
        self.inner.device.provider()
    }

    /// The port in use, counting from 1.
    pub fn port(&self) -> u8 {
        self.inner.port
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    pub(crate) fn pd(&self) -> &Arc<dyn Pd> {
        &self.inner.pd
    }

    /// The vector for the next worker: each in turn.
    pub(crate) fn next_comp_vector(&self) -> u32 {
        let worker = self.inner.next_worker.fetch_add(1, Ordering::Relaxed);
        self.inner
            .plan
            .as_ref()
            .map_or(0, |plan| plan.comp_vector(worker))
    }

    /// Where workers go, where the system tells.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        self.inner.plan.as_ref()
    }

    /// The port as it is now, if it is active, and the GID for a connection from `local`.
    pub(crate) fn usable_port(&self, local: Option<IpAddr>) -> Result<(PortAttr, GidEntry), OpenError> {
        let Inner { device, port, .. } = &*self.inner;
        let attr = device.port(*port)?;
        if attr.state != PortState::Active {
            return Err(OpenError::PortDown {
                device: self.device_name().into(),
                port: *port,
                state: attr.state,
            });
        }
        let table = device.gid_table(*port)?;
        match gid::choose(&table, attr.link_layer, self.inner.source.or(local)) {
            Some(entry) => {
                let entry = entry.clone();
                Ok((attr, entry))
            }
            None if attr.link_layer == LinkLayer::Ethernet => Err(OpenError::NoRoceV2Gid {
                device: self.device_name().into(),
                port: *port,
                table,
            }),
            None => Err(OpenError::PortDown {
                device: self.device_name().into(),
                port: *port,
                state: PortState::Init,
            }),
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device_name())
            .field("port", &self.port())
            .finish()
    }
}
