//! Both sides of a connection on one thread, over a simulated network: what adverb itself costs, without the kernel's network.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use adverb::{Config, Context, Endpoint, Mode, RequestError, SendError, Worker};
use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};

const PING: u16 = 1;
const PONG: u16 = 2;

/// Time enough for a packet to arrive.
const STEP: Duration = Duration::from_micros(2);

/// Two workers that are connected, and the network between them.
#[derive(Debug)]
pub struct PingPong {
    network: SimNetwork,
    client: Worker,
    server: Worker,
    endpoint: Endpoint,
    _accepted: Endpoint,
    pongs: Arc<AtomicU64>,
}

impl PingPong {
    /// Connects them.
    ///
    /// # Errors
    /// What the workers, the listener or the connection say.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let network = SimNetwork::new(SimFaults::default());
        let worker = || -> Result<Worker, Box<dyn Error>> {
            let provider = SoftProvider::simulated(SoftConfig::default(), &network);
            let context = Context::builder().provider(Arc::new(provider)).open()?;
            Ok(context.worker(Config::new().mode(Mode::Poll))?)
        };
        let (client, server) = (worker()?, worker()?);
        // What does not arrive is noticed by who waits for it.
        server.on_message(PING, |endpoint, message| {
            drop(endpoint.send(PONG, &[], message.payload()));
        });
        server.on_request(PING, |_, request| drop(request.reply(&[], b"answered")));
        let pongs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&pongs);
        client.on_message(PONG, move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let listener = server.listen("127.0.0.1:0")?;
        let (endpoint, _accepted) = network.in_real_time(|| -> Result<_, Box<dyn Error>> {
            let _driving = server.progress_thread()?;
            let endpoint = client.connect(listener.local_addr())?;
            Ok((endpoint, listener.accept(Duration::from_secs(10))?))
        })?;
        Ok(Self {
            network,
            client,
            server,
            endpoint,
            _accepted,
            pongs,
        })
    }

    /// Sends a message and gets it back: two messages.
    ///
    /// # Errors
    /// If it could not be sent.
    pub fn message(&self, payload: &[u8]) -> Result<(), SendError> {
        let before = self.pongs.load(Ordering::Relaxed);
        drop(self.endpoint.send(PING, &[], payload)?);
        while self.pongs.load(Ordering::Relaxed) == before {
            self.carry();
            self.server.try_progress();
            self.client.try_progress();
        }
        Ok(())
    }

    /// Sends a request and gets the reply, which has 8 bytes: two messages.
    ///
    /// # Errors
    /// If there was no reply.
    pub fn request(&self, payload: &[u8]) -> Result<(), RequestError> {
        let mut pending = pin!(self.endpoint.request(PING, &[], payload));
        loop {
            self.carry();
            self.server.try_progress();
            if let Poll::Ready(reply) = pending.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
                return reply.map(drop);
            }
        }
    }

    /// Has the network carry what was sent. Under a name of its own, by which a profiler tells it.
    #[inline(never)]
    fn carry(&self) {
        self.network.advance(STEP);
    }
}
