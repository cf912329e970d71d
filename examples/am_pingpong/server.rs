//! The serving side: answers, until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adverb::{Endpoint, EndpointErrorKind, Listener, WaitError, Worker};
use adverb_measure::process_cpu_time;
use anyhow::{Context as _, bail};

use crate::options::{Options, with_port};
use crate::wire::{COST, COST_IS, Cost, PING, PONG, STREAM, STREAMED};

/// How often it looks whether it is to stop, while nothing happens.
const LOOK: Duration = Duration::from_secs(1);

/// Serves clients at `address`: one with `--once`, else all until SIGINT or SIGTERM.
pub(crate) fn serve(worker: &Worker, address: &str, options: &Options) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("watching for signals")?;
    }
    answer(worker);
    let listener = worker.listen(with_port(address))?;
    println!("listening on {}", listener.local_addr());
    if options.once {
        serve_one(&listener, &stop)
    } else {
        serve_all(&listener, &stop)
    }
}

/// Sets what is done with each message. The handlers run on the thread that drives the worker, below.
fn answer(worker: &Worker) {
    worker.on_message(PING, |endpoint, message| {
        reply(endpoint, PONG, message.header(), message.payload())
    });
    worker.on_message(STREAM, |endpoint, message| {
        // Only the messages that ask for it are answered.
        if !message.header().is_empty() {
            reply(endpoint, STREAMED, message.header(), &[]);
        }
    });
    let measured = worker.clone();
    worker.on_message(COST, move |endpoint, _| {
        let wakeups = measured.stats().progress.wakes.from_sleep();
        let cpu_us = process_cpu_time().as_micros() as u64;
        reply(endpoint, COST_IS, &[], &Cost { wakeups, cpu_us }.to_bytes());
    });
}

/// Sends an answer. If that fails the endpoint has ended, which whoever watches it reports.
fn reply(endpoint: &Endpoint, id: u16, header: &[u8], payload: &[u8]) {
    drop(endpoint.send(id, header, payload));
}

fn serve_one(listener: &Listener, stop: &AtomicBool) -> anyhow::Result<()> {
    let Some(client) = next_client(listener, stop)? else {
        return Ok(());
    };
    listener.worker().wait_until(Duration::MAX, || {
        !client.is_open() && client.error().is_some() || stop.load(Ordering::Relaxed)
    })?;
    match client.error() {
        Some(error) if !is_orderly(&error.kind) => bail!("a client failed: {error}"),
        // Lets the goodbye out before the worker goes.
        _ => drop(client.close().wait(LOOK)),
    }
    Ok(())
}

fn serve_all(listener: &Listener, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut clients: Vec<Endpoint> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept(LOOK) {
            Ok(client) => clients.push(client),
            Err(WaitError::Timeout(_)) => {}
            Err(error) => return Err(error.into()),
        }
        clients.retain(|client| {
            let error = client.error();
            if let Some(error) = error.as_ref().filter(|error| !is_orderly(&error.kind)) {
                eprintln!("am_pingpong: a client failed: {error}");
            }
            error.is_none()
        });
    }
    Ok(())
}

fn next_client(listener: &Listener, stop: &AtomicBool) -> anyhow::Result<Option<Endpoint>> {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept(LOOK) {
            Ok(client) => return Ok(Some(client)),
            Err(WaitError::Timeout(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Whether an endpoint ended as it should.
fn is_orderly(kind: &EndpointErrorKind) -> bool {
    matches!(kind, EndpointErrorKind::Closed | EndpointErrorKind::PeerClosed(_))
}
