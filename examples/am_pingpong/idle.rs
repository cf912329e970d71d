//! What many connections cost a server while nothing is sent.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adverb::{Context, Worker};
use adverb_measure::IdleRow;
use anyhow::anyhow;

use crate::client::{self, Client};
use crate::options::{Options, Test};
use crate::stop::Stop;
use crate::wire::{COST, COST_IS, Cost};

/// Holds connections open, sends nothing, and asks the server what that cost it.
pub(crate) fn measure(
    context: &Context,
    server: &str,
    options: &Options,
    stop: &Stop,
) -> anyhow::Result<IdleRow> {
    let worker = context.worker(options.config()?)?;
    let _wakes = stop.wakes(&worker);
    let mut clients = Vec::new();
    let row = hold(&worker, server, options, stop, &mut clients);
    // Also if it was stopped.
    let closed = client::close(&clients);
    let row = row?;
    closed?;
    Ok(row)
}

fn hold(
    worker: &Worker,
    server: &str,
    options: &Options,
    stop: &Stop,
    clients: &mut Vec<Client>,
) -> anyhow::Result<IdleRow> {
    let answers = Answers::to(worker);
    for _ in 0..options.endpoints {
        stop.check()?;
        clients.push(Client::connect(worker, server, stop)?);
    }
    let asking = clients.first().ok_or_else(|| anyhow!("no endpoints"))?;

    let before = answers.ask(asking)?;
    let start = Instant::now();
    // Only the keepalive probes are sent meanwhile. That the time is up is what should end the wait.
    let _ = worker.wait_until(Duration::from_secs(options.secs), || {
        stop.asked() || !clients.iter().all(|client| client.endpoint.is_open())
    });
    clients.iter().try_for_each(Client::check)?;
    let seconds = start.elapsed().as_secs_f64();
    let after = answers.ask(asking)?;

    Ok(IdleRow {
        test: Test::Idle.name().into(),
        endpoints: clients.len(),
        secs: options.secs,
        wakeups_per_s: after.wakeups.saturating_sub(before.wakeups) as f64 / seconds,
        cpu_percent: after.cpu_us.saturating_sub(before.cpu_us) as f64 / 1e4 / seconds,
    })
}

/// The server's answers to [`COST`]. Each lies here until it is taken; `Some(None)` is one that cannot be understood.
struct Answers(Arc<Mutex<Option<Option<Cost>>>>);

impl Answers {
    fn to(worker: &Worker) -> Self {
        let answers = Self(Arc::default());
        let told = Arc::clone(&answers.0);
        worker.on_message(COST_IS, move |_, message| {
            if let Ok(mut told) = told.lock() {
                *told = Some(Cost::from_bytes(message.payload()));
            }
        });
        answers
    }

    fn ask(&self, client: &Client) -> anyhow::Result<Cost> {
        drop(client.endpoint.send(COST, &[], &[])?);
        client.wait(|| self.0.lock().is_ok_and(|told| told.is_some()))?;
        let answer = self.0.lock().ok().and_then(|mut told| told.take());
        answer
            .flatten()
            .ok_or_else(|| anyhow!("{} did not tell what it used", client.endpoint.peer()))
    }
}
