//! The serving side: answers, until it is stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adverb::{Context, Endpoint, EndpointErrorKind, Listener, WaitError, Worker};
use adverb_measure::process_cpu_time;
use anyhow::anyhow;

use crate::options::{Options, resolve};
use crate::report::say;
use crate::stop::Stop;
use crate::wire::{COST, COST_IS, Cost, PING, PONG, STREAM, STREAMED};

/// How often it looks after its clients, while nothing happens.
const LOOK: Duration = Duration::from_secs(1);

/// Serves clients at `address`: one with `--once`, else all until the program is to stop.
pub(crate) fn run(context: &Context, address: &str, options: &Options, stop: &Stop) -> anyhow::Result<()> {
    let server = Server::listen(context, address, options)?;
    let line = format!("listening on {}", server.address());
    if options.json {
        eprintln!("{line}");
    } else {
        say(&mut std::io::stdout(), line)?;
    }
    server.serve(options.once, stop)
}

pub(crate) struct Server {
    worker: Arc<Worker>,
    listener: Listener,
}

impl Server {
    pub(crate) fn listen(context: &Context, address: &str, options: &Options) -> anyhow::Result<Self> {
        // One worker serves all clients.
        let worker = Arc::new(context.worker(options.config()?)?);
        // Before it listens, so that the first message finds its handler.
        answer(&worker);
        let listener = worker.listen(&*resolve(address)?)?;
        Ok(Self { worker, listener })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves one client, with all connections that it makes, or all clients until `stop`.
    pub(crate) fn serve(&self, once: bool, stop: &Stop) -> anyhow::Result<()> {
        let _wakes = stop.wakes(&self.worker);
        if once {
            self.serve_one(stop)
        } else {
            self.serve_all(stop)
        }
    }

    fn serve_one(&self, stop: &Stop) -> anyhow::Result<()> {
        let mut clients: Vec<Endpoint> = Vec::new();
        while clients.is_empty() && !stop.asked() {
            clients.extend(self.accept(stop)?);
        }
        let mut failed = Ok(());
        // `is_open` costs less than `error`, and this is asked for every message.
        let is_over = |client: &Endpoint| !client.is_open() && client.error().is_some();
        while !clients.is_empty() && !stop.asked() {
            let over = || clients.iter().any(is_over) || stop.asked();
            in_time(self.worker.wait_until(LOOK, over))?;
            clients.extend(std::iter::from_fn(|| self.listener.try_accept()));
            let ended;
            (ended, clients) = clients.into_iter().partition(is_over);
            for failure in ended.iter().filter_map(failure) {
                failed = Err(failure);
            }
            say_goodbye(&ended);
        }
        say_goodbye(&clients);
        failed
    }

    fn serve_all(&self, stop: &Stop) -> anyhow::Result<()> {
        let mut clients: Vec<Endpoint> = Vec::new();
        while !stop.asked() {
            // This drives the worker, and so runs the handlers for the clients that are there already.
            clients.extend(self.accept(stop)?);
            clients.retain(|client| {
                // One that fails does not disturb the others.
                if let Some(failure) = failure(client) {
                    eprintln!("am_pingpong: {failure}");
                }
                client.error().is_none()
            });
        }
        // Those that came last have not been accepted yet.
        clients.extend(std::iter::from_fn(|| self.listener.try_accept()));
        say_goodbye(&clients);
        Ok(())
    }

    /// The next client, if it comes soon and the program is not to stop.
    pub(crate) fn accept(&self, stop: &Stop) -> Result<Option<Endpoint>, WaitError> {
        let mut client = None;
        let waited = self.worker.wait_until(LOOK, || {
            client = self.listener.try_accept();
            client.is_some() || stop.asked()
        });
        in_time(waited)?;
        Ok(client)
    }
}

/// Sets what is done with each message. The handlers run on the thread that drives the worker.
fn answer(worker: &Arc<Worker>) {
    worker.on_message(PING, |endpoint, message| {
        reply(endpoint, PONG, message.header(), message.payload());
    });
    worker.on_message(STREAM, |endpoint, message| {
        // Only the messages that ask for it are answered.
        if !message.header().is_empty() {
            reply(endpoint, STREAMED, message.header(), &[]);
        }
    });
    // The worker holds its handlers: one that held the worker would keep it for ever.
    let measured = Arc::downgrade(worker);
    worker.on_message(COST, move |endpoint, _| {
        let Some(worker) = measured.upgrade() else { return };
        let cost = Cost {
            wakeups: worker.stats().progress.wakes.from_sleep(),
            cpu_us: process_cpu_time().as_micros() as u64,
        };
        reply(endpoint, COST_IS, &[], &cost.to_bytes());
    });
}

/// Sends an answer. If that fails the endpoint has ended, and whoever holds it is told why.
fn reply(endpoint: &Endpoint, id: u16, header: &[u8], payload: &[u8]) {
    drop(endpoint.send(id, header, payload));
}

/// Why this client ended, unless it is there or closed in order.
fn failure(client: &Endpoint) -> Option<anyhow::Error> {
    let error = client.error()?;
    match error.kind {
        EndpointErrorKind::Closed | EndpointErrorKind::PeerClosed(_) => None,
        _ => Some(anyhow!("a client failed: {error}")),
    }
}

/// Closes all, so that the clients learn that it was meant.
fn say_goodbye(clients: &[Endpoint]) {
    let closing: Vec<_> = clients.iter().map(Endpoint::close).collect();
    for closed in closing {
        // One that does not answer is aborted when the worker goes.
        drop(closed.wait(LOOK));
    }
}

/// That nothing came in time is no error here.
fn in_time(waited: Result<(), WaitError>) -> Result<(), WaitError> {
    match waited {
        Err(WaitError::Timeout(_)) => Ok(()),
        waited => waited,
    }
}
