//! Two workers of one process, connected over software devices, or over the real device that `ADVERB_TEST_DEVICE` names.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adverb::{Config, Context, Endpoint, Listener, Mode, ProgressThread, Worker};
use adverb_soft::{SoftConfig, SoftProvider};

/// Long enough that only a hang exceeds it.
pub const LONG: Duration = Duration::from_secs(60);

/// The message ids of the tests.
pub const ECHO: u16 = 1;
pub const SINK: u16 = 2;
pub const REPLY: u16 = 3;

/// The two sides' workers. The server's is driven by a thread of its own.
pub struct Pair {
    /// The provider of the client's software device; `None` on a real device.
    soft: Option<SoftProvider>,
    pub client: Worker,
    pub server: Worker,
    pub listener: Listener,
    /// Bytes and messages that the server's SINK got.
    pub sunk: Arc<(AtomicU64, AtomicU64)>,
    driver: Option<ProgressThread>,
}

impl Pair {
    pub fn new(config: Config) -> Self {
        Self::with(config.clone(), config)
    }

    pub fn with(client: Config, server: Config) -> Self {
        let real = std::env::var("ADVERB_TEST_DEVICE").ok();
        let (near, far) = (soft(), soft());
        let open = |soft: &SoftProvider, config| {
            let builder = match &real {
                Some(name) => Context::builder().device(name),
                None => Context::builder().provider(Arc::new(soft.clone())),
            };
            builder.open().unwrap().worker(config).unwrap()
        };
        let (client, server) = (open(&near, client), open(&far, server));
        server.on_message(ECHO, |endpoint, message| {
            let _sent = endpoint.send(REPLY, message.header(), message.payload()).unwrap();
        });
        let sunk = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let counted = Arc::clone(&sunk);
        server.on_message(SINK, move |_, message| {
            counted
                .0
                .fetch_add(message.payload().len() as u64, Ordering::Relaxed);
            counted.1.fetch_add(1, Ordering::Relaxed);
        });
        let listener = server.listen("127.0.0.1:0").unwrap();
        let driver = Some(server.progress_thread().unwrap());
        Self {
            soft: real.is_none().then_some(near),
            client,
            server,
            listener,
            sunk,
            driver,
        }
    }

    /// Both ends of a new connection: the client's and the server's.
    pub fn connect(&self) -> (Endpoint, Endpoint) {
        let client = self.client.connect(self.listener.local_addr()).unwrap();
        let server = self.listener.accept(LONG).unwrap();
        (client, server)
    }

    /// The controls of the client's device. On a real device the test counts as skipped.
    pub fn controls(&self) -> Option<&SoftProvider> {
        if self.soft.is_none() {
            println!("SKIP: only a software device can be told to do this");
        }
        self.soft.as_ref()
    }

    /// Stops driving the server's worker.
    pub fn stop_server(&mut self) {
        self.driver = None;
    }

    pub fn start_server(&mut self) {
        self.driver = Some(self.server.progress_thread().unwrap());
    }

    /// What the server's REPLY messages bring, collected on the client's side.
    pub fn replies(&self) -> Replies {
        let replies = Replies::default();
        let collected = replies.clone();
        self.client.on_message(REPLY, move |_, message| {
            collected
                .0
                .lock()
                .unwrap()
                .push((message.header().to_vec(), message.payload().to_vec()));
        });
        replies
    }
}

/// Headers and payloads in the order of their arrival.
#[derive(Clone, Default)]
pub struct Replies(Arc<std::sync::Mutex<Vec<Reply>>>);

/// A header and a payload.
pub type Reply = (Vec<u8>, Vec<u8>);

impl Replies {
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn take(&self) -> Vec<Reply> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    pub fn wait(&self, worker: &Worker, count: usize) -> Vec<Reply> {
        worker.wait_until(LONG, || self.len() >= count).unwrap();
        self.take()
    }
}

/// Software devices that reach each other within this host.
pub fn soft() -> SoftProvider {
    SoftProvider::new(SoftConfig::default().loopback(true))
}

/// A configuration for tests of this mode.
pub fn config(mode: Mode) -> Config {
    Config::new().mode(mode).max_endpoints(16)
}

/// Bytes that tell their place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}
