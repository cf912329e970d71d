//! The measuring side.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adverb::{Endpoint, SendError, Snapshot, Worker};
use adverb_measure::{CpuClock, IdleRow, Latencies, PingPongRow, Wakes};
use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::options::{Options, Test, with_port};
use crate::wire::{COST, COST_IS, Cost, PING, PONG, STREAM, STREAMED};

/// Longer than anything here takes: a peer that dies ends the endpoint, and with it the wait.
const FOR_EVER: Duration = Duration::MAX;

/// How long closing may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Connects to `server`, measures, prints, and closes.
pub(crate) fn play(worker: &Worker, server: &str, options: &Options) -> anyhow::Result<()> {
    let server = with_port(server);
    if options.test == Test::Idle {
        return idle(worker, &server, options);
    }
    let client = Client::connect(worker, &server)?;
    let bar = progress_bar(options);
    let row = match options.test {
        Test::Lat => client.latency(options, &bar)?,
        _ => client.stream(options, &bar)?,
    };
    bar.finish_and_clear();
    let (row, latencies) = row;
    if options.json {
        println!("{}", row.to_json());
    } else {
        println!("{row}");
        if std::io::stdout().is_terminal() {
            print!("{}", latencies.to_text());
        }
    }
    client.endpoint.close().wait(GOODBYE).context("closing")?;
    Ok(())
}

/// A connection, and how far the server has answered on it.
struct Client {
    worker: Worker,
    endpoint: Endpoint,
    /// Pongs that came, or messages of a stream that the server has counted.
    answered: Arc<AtomicU64>,
}

impl Client {
    fn connect(worker: &Worker, server: &str) -> anyhow::Result<Self> {
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
        let endpoint = worker.connect(server)?;
        Ok(Self {
            worker: worker.clone(),
            endpoint,
            answered,
        })
    }

    /// One message at a time.
    fn latency(&self, options: &Options, bar: &ProgressBar) -> anyhow::Result<(PingPongRow, Latencies)> {
        let payload = vec![0x5a; options.size()];
        let gap = Duration::from_micros(options.gap_us);
        let mut latencies = Latencies::new();
        for _ in 0..options.warmup {
            self.ping(&payload)?;
        }
        let meter = Meter::start(&self.worker);
        for i in 0..options.iters {
            if !gap.is_zero() {
                std::thread::sleep(gap);
            }
            let start = Instant::now();
            self.ping(&payload)?;
            latencies.record(start.elapsed() / 2);
            // Drawing costs more than a message.
            if i % 1024 == 0 {
                bar.set_position(i);
            }
        }
        Ok((meter.stop(options, &self.worker, &latencies), latencies))
    }

    fn ping(&self, payload: &[u8]) -> anyhow::Result<()> {
        let before = self.answered.load(Ordering::Relaxed);
        // The pong says more than the completion of the send would.
        drop(self.endpoint.send(PING, &[], payload)?);
        self.wait(|| self.answered.load(Ordering::Relaxed) != before)
    }

    /// As many messages as the window allows at a time, one way. The server answers every half window, and the last.
    fn stream(&self, options: &Options, bar: &ProgressBar) -> anyhow::Result<(PingPongRow, Latencies)> {
        let payload = vec![0x5a; options.size()];
        let window = options.window.max(1);
        self.stream_some(0, options.warmup, window, &payload, bar)?;
        let meter = Meter::start(&self.worker);
        self.stream_some(
            options.warmup,
            options.warmup + options.iters,
            window,
            &payload,
            bar,
        )?;
        let latencies = Latencies::new();
        Ok((meter.stop(options, &self.worker, &latencies), latencies))
    }

    /// Sends the messages `from..to` of the stream, and waits until the server has them all.
    fn stream_some(
        &self,
        from: u64,
        to: u64,
        window: u64,
        payload: &[u8],
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        for i in from..to {
            let count = i + 1;
            let ask = count == to || count.is_multiple_of((window / 2).max(1));
            let header: &[u8] = if ask { &count.to_le_bytes() } else { &[] };
            self.wait(|| i < self.answered.load(Ordering::Relaxed) + window)?;
            loop {
                match self.endpoint.send_bulk(STREAM, header, payload) {
                    Ok(completion) => break drop(completion),
                    // The window is larger than what the endpoint queues: let it drain first.
                    Err(SendError::WouldBlock { .. }) => self.wait_for_progress()?,
                    Err(error) => return Err(error.into()),
                }
            }
            if i % 1024 == 0 {
                bar.set_position(i);
            }
        }
        self.wait(|| self.answered.load(Ordering::Relaxed) >= to)
    }

    fn wait_for_progress(&self) -> anyhow::Result<()> {
        let before = self.answered.load(Ordering::Relaxed);
        let _ = self.worker.wait_until(Duration::from_millis(1), || {
            self.answered.load(Ordering::Relaxed) != before
        });
        self.check_open()
    }

    /// Drives the worker until `done`, or until the endpoint has ended.
    fn wait(&self, done: impl Fn() -> bool) -> anyhow::Result<()> {
        self.worker
            .wait_until(FOR_EVER, || done() || !self.endpoint.is_open())?;
        if done() { Ok(()) } else { self.check_open() }
    }

    fn check_open(&self) -> anyhow::Result<()> {
        match self.endpoint.error() {
            Some(error) => Err(error.into()),
            None if !self.endpoint.is_open() => bail!("the server is closing"),
            None => Ok(()),
        }
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
        let iters = options.iters.max(1) as f64;
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

/// Holds connections open, sends nothing, and asks the server what that cost it.
fn idle(worker: &Worker, server: &str, options: &Options) -> anyhow::Result<()> {
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    worker.on_message(COST_IS, move |_, message| {
        if let Ok(mut told) = tell.lock() {
            *told = Cost::from_bytes(message.payload());
        }
    });
    let first = Client::connect(worker, server)?;
    let others = (1..options.endpoints)
        .map(|_| worker.connect(server))
        .collect::<Result<Vec<_>, _>>()?;
    let cost = || -> anyhow::Result<Cost> {
        drop(first.endpoint.send(COST, &[], &[])?);
        let known = || told.lock().is_ok_and(|told| told.is_some());
        first.wait(known)?;
        let cost = told.lock().ok().and_then(|mut told| told.take());
        cost.context("the server's answer cannot be understood")
    };
    let all_open = || first.endpoint.is_open() && others.iter().all(Endpoint::is_open);
    let before = cost()?;
    let start = Instant::now();
    // Only the keepalive probes are sent meanwhile. That nothing else ends the wait is what is hoped for.
    let _ = worker.wait_until(Duration::from_secs(options.secs), || !all_open());
    first.check_open()?;
    for endpoint in &others {
        if let Some(error) = endpoint.error() {
            return Err(error.into());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = cost()?;
    let row = IdleRow {
        test: Test::Idle.name().into(),
        endpoints: others.len() + 1,
        secs: options.secs,
        wakeups_per_s: (after.wakeups - before.wakeups) as f64 / seconds,
        cpu_percent: (after.cpu_us - before.cpu_us) as f64 / 1e4 / seconds,
    };
    if options.json {
        println!("{}", row.to_json())
    } else {
        println!("{row}")
    }
    for endpoint in others.iter().chain([&first.endpoint]) {
        endpoint.close().wait(GOODBYE).context("closing")?;
    }
    Ok(())
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(options: &Options) -> ProgressBar {
    if options.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(options.iters);
    ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec}")
        .map_or(bar.clone(), |style| bar.with_style(style))
}
