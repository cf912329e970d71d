//! The measuring side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb::{Context, Endpoint, EndpointErrorKind, SendError, Snapshot, Worker};
use adverb_measure::{CpuClock, Latencies, PingPongRow, Wakes};

use crate::options::{Options, Test, resolve};
use crate::report::Bar;
use crate::stop::Stop;
use crate::wire::{PING, PONG, STREAM, STREAMED};

/// Waits need no limit of their own: a peer that dies ends the endpoint, and with it the wait.
const FOR_EVER: Duration = Duration::MAX;

/// How often a long pause looks whether the program is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Connects to `server`, measures, and closes. Without latencies if the test has none.
pub(crate) fn measure(
    context: &Context,
    server: &str,
    options: &Options,
    stop: &Stop,
) -> anyhow::Result<(PingPongRow, Latencies)> {
    let worker = context.worker(options.config()?)?;
    let _wakes = stop.wakes(&worker);
    let client = Client::connect(&worker, server, stop)?;
    let mut latencies = Latencies::new();
    let row = match options.test {
        Test::Lat => client.latency(options, &mut latencies),
        _ => client.stream(options),
    };
    // Also if it was stopped.
    let closed = close(&[client]);
    let row = row?;
    closed?;
    Ok((row, latencies))
}

/// Closes all in order, which proves that the server has got everything.
pub(crate) fn close(clients: &[Client]) -> anyhow::Result<()> {
    let closing: Vec<_> = clients.iter().map(|client| client.endpoint.close()).collect();
    for closed in closing {
        let end = closed.wait(GOODBYE)?;
        if !matches!(
            end.kind,
            EndpointErrorKind::Closed | EndpointErrorKind::PeerClosed(_)
        ) {
            return Err(end.into());
        }
    }
    Ok(())
}

/// A connection, and how far the server has answered on it.
pub(crate) struct Client {
    worker: Worker,
    pub(crate) endpoint: Endpoint,
    /// Pongs that came, or messages of a stream that the server has counted.
    answered: Arc<AtomicU64>,
    stop: Stop,
}

impl Client {
    pub(crate) fn connect(worker: &Worker, server: &str, stop: &Stop) -> anyhow::Result<Self> {
        let answered = Arc::new(AtomicU64::new(0));
        let pongs = Arc::clone(&answered);
        worker.on_message(PONG, move |_, _| {
            pongs.fetch_add(1, Ordering::Relaxed);
        });
        let counted = Arc::clone(&answered);
        worker.on_message(STREAMED, move |_, message| {
            if let Ok(count) = message.header().try_into() {
                counted.store(u64::from_le_bytes(count), Ordering::Relaxed);
            }
        });
        Ok(Self {
            endpoint: worker.connect(&*resolve(server)?)?,
            worker: worker.clone(),
            answered,
            stop: stop.clone(),
        })
    }

    /// One message at a time.
    fn latency(&self, options: &Options, latencies: &mut Latencies) -> anyhow::Result<PingPongRow> {
        let payload = vec![0x5a; options.size()];
        let gap = Duration::from_micros(options.gap_us);
        let bar = Bar::new(options);
        for _ in 0..options.warmup {
            self.ping(&payload)?;
        }
        let meter = Meter::start(&self.worker);
        for i in 0..options.iters {
            self.pause(gap)?;
            let start = Instant::now();
            self.ping(&payload)?;
            // There and back takes twice as long as there.
            latencies.record(start.elapsed() / 2);
            bar.show(i);
        }
        Ok(meter.stop(options, &self.worker, latencies))
    }

    fn pause(&self, mut gap: Duration) -> anyhow::Result<()> {
        while !gap.is_zero() {
            let some = gap.min(LOOK);
            std::thread::sleep(some);
            gap -= some;
            self.stop.check()?;
        }
        Ok(())
    }

    fn ping(&self, payload: &[u8]) -> anyhow::Result<()> {
        let before = self.answered();
        // The pong says more than the completion of the send would.
        drop(self.endpoint.send(PING, &[], payload)?);
        self.wait(|| self.answered() != before)
    }

    /// One way, as many messages at a time as the window allows. The server answers every half window, and the last.
    fn stream(&self, options: &Options) -> anyhow::Result<PingPongRow> {
        let payload = vec![0x5a; options.size()];
        let bar = Bar::new(options);
        let all = options.warmup + options.iters;
        self.stream_some(0..options.warmup, options.window, &payload, &bar)?;
        let meter = Meter::start(&self.worker);
        self.stream_some(options.warmup..all, options.window, &payload, &bar)?;
        Ok(meter.stop(options, &self.worker, &Latencies::new()))
    }

    /// Sends these messages of the stream, and waits until the server has them all.
    fn stream_some(
        &self,
        messages: std::ops::Range<u64>,
        window: u64,
        payload: &[u8],
        bar: &Bar,
    ) -> anyhow::Result<()> {
        let first = messages.start;
        let last = messages.end;
        for i in messages {
            self.wait(|| i < self.answered() + window)?;
            let count = i + 1;
            if count == last || count.is_multiple_of((window / 2).max(1)) {
                self.send_one(&count.to_le_bytes(), payload)?;
            } else {
                self.send_one(&[], payload)?;
            }
            bar.show(i - first);
        }
        self.wait(|| self.answered() >= last)
    }

    /// Sends a message of the stream: one with a header asks for an answer.
    fn send_one(&self, header: &[u8], payload: &[u8]) -> anyhow::Result<()> {
        loop {
            let sent = if header.is_empty() {
                // A server that sleeps need not wake for this one: more comes.
                self.endpoint.send_bulk(STREAM, header, payload)
            } else {
                self.endpoint.send(STREAM, header, payload)
            };
            match sent {
                // That it arrived the answer will tell, so its completion is not needed.
                Ok(_) => return Ok(()),
                // The window is larger than what an endpoint queues: nothing was taken, so let some of it go out.
                Err(SendError::WouldBlock { .. }) => self.drive_for(Duration::from_micros(100))?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Drives the worker until `done`, or until the endpoint has ended or the program is to stop, which are errors.
    pub(crate) fn wait(&self, done: impl Fn() -> bool) -> anyhow::Result<()> {
        self.worker.wait_until(FOR_EVER, || {
            done() || self.stop.asked() || !self.endpoint.is_open()
        })?;
        if done() { Ok(()) } else { self.check() }
    }

    /// Drives the worker for so long.
    fn drive_for(&self, time: Duration) -> anyhow::Result<()> {
        // Its timeout is what is meant to happen.
        let _ = self.worker.wait_until(time, || !self.endpoint.is_open());
        self.check()
    }

    /// If the program is to stop or the endpoint has ended: why.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.stop.check()?;
        if self.endpoint.is_open() {
            return Ok(());
        }
        // If the server has just said goodbye, the reason is known when the goodbye is complete.
        Err(self.endpoint.closed().wait(GOODBYE)?.into())
    }
}

/// Measures time, CPU and wake-ups of the client.
struct Meter {
    start: Instant,
    cpu: CpuClock,
    before: Snapshot,
}

impl Meter {
    fn start(worker: &Worker) -> Self {
        Self {
            before: worker.stats().progress,
            cpu: CpuClock::new(),
            start: Instant::now(),
        }
    }

    fn stop(self, options: &Options, worker: &Worker, latencies: &Latencies) -> PingPongRow {
        let seconds = self.start.elapsed().as_secs_f64();
        let cpu = self.cpu.used();
        let after = worker.stats().progress;
        let iters = options.iters as f64;
        let msgs_per_s = iters / seconds;
        PingPongRow {
            test: options.test.name().into(),
            provider: worker.context().provider().into(),
            device: worker.context().device_name().into(),
            mode: worker.mode().to_string(),
            size: options.size(),
            iters: options.iters,
            gap_us: options.gap_us,
            p50_us: latencies.percentile_us(50.0),
            p99_us: latencies.percentile_us(99.0),
            p999_us: latencies.percentile_us(99.9),
            avg_us: latencies.mean_us(),
            msgs_per_s,
            mib_per_s: msgs_per_s * options.size() as f64 / f64::from(1 << 20),
            cpu_us_per_msg: cpu.as_secs_f64() * 1e6 / iters,
            wakes: Wakes {
                spin: after.wakes.spin - self.before.wakes.spin,
                event: after.wakes.event - self.before.wakes.event,
                safety: after.wakes.safety - self.before.wakes.safety,
            },
            spurious_wakes: after.spurious_wakes - self.before.spurious_wakes,
            missed_completions: after.missed_completions - self.before.missed_completions,
        }
    }
}
