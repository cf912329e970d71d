//! Ctrl-C and the like during a run: the guests are ended and the run's folder goes, and then the process may end.
//!
//! A run asks [`Watch::interrupted`] several times a second. While no run is going on, and from the second signal on, signals do
//! what they do by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The process's handlers. Once installed they stay.
static HANDLERS: LazyLock<std::io::Result<Handlers>> = LazyLock::new(Handlers::install);

#[derive(Debug)]
struct Handlers {
    /// Whether a signal came while a run was going on.
    interrupted: Arc<AtomicBool>,
    /// Whether the next signal does what it does by default.
    pass: Arc<AtomicBool>,
    /// Runs going on. Changed together with `pass`.
    runs: Mutex<usize>,
}

impl Handlers {
    fn install() -> std::io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let pass = Arc::new(AtomicBool::new(true));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // They run in this order, so that the first signal only sets flags.
            flag::register_conditional_default(signal, Arc::clone(&pass))?;
            flag::register(signal, Arc::clone(&interrupted))?;
            flag::register(signal, Arc::clone(&pass))?;
        }
        let runs = Mutex::new(0);
        Ok(Self {
            interrupted,
            pass,
            runs,
        })
    }
}

/// A run that wants to know of signals.
#[derive(Debug)]
pub(crate) struct Watch(&'static Handlers);

impl Watch {
    /// Watches until it is dropped.
    pub(crate) fn start() -> Result<Self> {
        let handlers = HANDLERS
            .as_ref()
            .map_err(|error| anyhow!("watching for signals: {error}"))?;
        let mut runs = handlers.runs.lock();
        *runs += 1;
        handlers.pass.store(false, Ordering::SeqCst);
        drop(runs);
        Ok(Self(handlers))
    }

    /// Whether a signal came, during this run or an earlier one: the process is to end.
    pub(crate) fn interrupted(&self) -> bool {
        self.0.interrupted.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut runs = self.0.runs.lock();
        *runs -= 1;
        if *runs == 0 {
            self.0.pass.store(true, Ordering::SeqCst);
        }
    }
}
