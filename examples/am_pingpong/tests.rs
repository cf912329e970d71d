//! Client and server in one process, on software devices. Where processes are what matters, each has its own.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use adverb::{Context, EndpointErrorKind};
use adverb_soft::{SoftConfig, SoftProvider};
use clap::Parser;
use signal_hook::consts::SIGTERM;

use crate::client::{self, Client};
use crate::idle;
use crate::options::Options;
use crate::server::Server;
use crate::stop::Stop;

/// Long enough that only a hang exceeds it.
const LONG: Duration = Duration::from_secs(60);

/// The contexts of a client and of a server, connected.
fn contexts() -> (Context, Context) {
    let provider = Arc::new(SoftProvider::new(SoftConfig::default().loopback(true)));
    let open = || Context::builder().provider(provider.clone()).open().unwrap();
    (open(), open())
}

fn options(line: &str) -> Options {
    Options::try_parse_from(std::iter::once("am_pingpong").chain(line.split_whitespace())).unwrap()
}

/// Runs `client` against a server of the same options, and tells how the server ended.
fn beside_server<R>(
    line: &str,
    client: impl FnOnce(&Context, &str, &Options, &Stop) -> R,
) -> (R, anyhow::Result<()>) {
    let options = options(line);
    let (near, far) = contexts();
    let server = Server::listen(&far, "127.0.0.1:0", &options).unwrap();
    let address = server.address().to_string();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(options.once, &stop));
        let result = client(&near, &address, &options, &Stop::default());
        if !options.once {
            stop.ask(SIGTERM);
        }
        (result, serving.join().unwrap())
    })
}

fn measures_all(line: &str) {
    let (measured, served) = beside_server(line, client::measure);
    served.unwrap();
    let (row, latencies) = measured.unwrap();
    let options = options(line);
    assert_eq!(row.test, options.test.name());
    assert_eq!(row.mode, options.mode.to_string());
    assert_eq!((row.provider.as_str(), row.device.as_str()), ("soft", "soft0"));
    assert_eq!((row.iters, row.size), (options.iters, options.size()));
    assert!(row.msgs_per_s > 0.0);
    assert_eq!(row.missed_completions, 0, "{row}");
    let (measured_latencies, has_latency) = match row.test.as_str() {
        "lat" => (options.iters, true),
        _ => (0, false),
    };
    assert_eq!(latencies.count(), measured_latencies);
    for figure in [row.p50_us, row.p99_us, row.p999_us, row.avg_us] {
        assert_eq!(figure.is_some_and(|us| us > 0.0), has_latency, "{row}");
        assert_eq!(figure.is_none(), !has_latency, "{row}");
    }
    if row.mode == "poll" {
        assert_eq!(
            row.wakes.event + row.wakes.safety,
            0,
            "poll mode does not sleep: {row}"
        );
    }
}

#[test]
fn latency_is_measured_in_every_mode() {
    for mode in ["poll", "event", "hybrid"] {
        for size in [0, 8, 100_000] {
            measures_all(&format!(
                "--once --mode {mode} --iters 200 --warmup 10 --size {size}"
            ));
        }
    }
}

#[test]
fn rate_is_measured_in_every_mode() {
    for mode in ["poll", "event", "hybrid"] {
        measures_all(&format!("--once --test rate --mode {mode} --iters 5000"));
    }
}

#[test]
fn bandwidth_is_measured_in_every_mode() {
    for mode in ["poll", "event", "hybrid"] {
        measures_all(&format!("--once --test bw --mode {mode} --iters 500"));
    }
}

#[test]
fn any_window_ends() {
    // One at a time, an odd one, one that is never filled, and one that is more than an endpoint queues.
    for (window, size) in [(1, 8), (3, 8), (100_000, 8), (64, 200_000)] {
        measures_all(&format!(
            "--once --test rate --window {window} --size {size} --iters 200 --warmup 0"
        ));
    }
}

#[test]
fn several_clients_play_at_once() {
    let (rows, served) = beside_server("--iters 300", |context, address, options, stop| {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| client::measure(context, address, options, stop)))
                .collect();
            clients
                .into_iter()
                .map(|client| client.join().unwrap().unwrap().0.iters)
                .collect::<Vec<_>>()
        })
    });
    served.unwrap();
    assert_eq!(rows, [300; 4]);
}

#[test]
fn an_idle_server_tells_what_it_used() {
    // A client is all its connections: the server must not end after the first.
    for once in ["", "--once"] {
        let line = format!("--test idle --endpoints 8 --secs 1 {once}");
        let (row, served) = beside_server(&line, idle::measure);
        served.unwrap();
        let row = row.unwrap();
        assert_eq!((row.endpoints, row.secs), (8, 1));
        assert!(row.wakeups_per_s >= 0.0 && row.cpu_percent >= 0.0, "{row}");
    }
}

#[test]
fn a_client_that_vanishes_is_reported() {
    let ((), served) = beside_server("--once", |context, address, options, _| {
        let worker = context.worker(options.config().unwrap()).unwrap();
        // Without a goodbye.
        worker.connect(address).unwrap().abort();
    });
    let error = served.unwrap_err().to_string();
    assert!(error.starts_with("a client failed: "), "{error}");
}

#[test]
fn a_server_that_stops_says_goodbye() {
    let options = options("");
    let (near, far) = contexts();
    let server = Server::listen(&far, "127.0.0.1:0", &options).unwrap();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(false, &stop));
        let worker = near.worker(options.config().unwrap()).unwrap();
        let client = Client::connect(&worker, &server.address().to_string(), &Stop::default()).unwrap();
        stop.ask(SIGTERM);
        let error = client.wait(|| false).unwrap_err().to_string();
        assert!(error.contains("closed by the peer"), "{error}");
        serving.join().unwrap().unwrap();
    });
}

#[test]
fn a_name_that_stands_for_nothing_is_told() {
    let (near, far) = contexts();
    // A port is less than 65536, and no host has an empty name.
    for name in ["127.0.0.1:99999", ""] {
        let client = client::measure(&near, name, &options(""), &Stop::default()).unwrap_err();
        let server = Server::listen(&far, name, &options("")).map(drop).unwrap_err();
        for error in [client, server] {
            let error = error.to_string();
            assert!(error.contains(&format!("{name:?} is no address")), "{error}");
        }
    }
}

#[test]
fn a_client_without_a_server_says_so_once() {
    let (near, _far) = contexts();
    // Nobody listens on the TCP port multiplexer's port.
    let error = client::measure(&near, "127.0.0.1:1", &options(""), &Stop::default())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error.matches("see whether the peer listens there").count(),
        1,
        "{error}"
    );
}

/// Has the command line of a process that [`process`] makes.
const COMMAND_LINE: &str = "AM_PINGPONG_COMMAND_LINE";

/// The program in a process of its own: this one again, as cargo builds no other for a test.
fn process(line: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "tests::the_program", "--nocapture"])
        .env_remove("RUST_LOG")
        .env(COMMAND_LINE, format!("--device soft:127.0.0.1 {line}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// No test, but what [`process`] starts.
#[test]
fn the_program() -> ExitCode {
    std::env::var(COMMAND_LINE).map_or(ExitCode::SUCCESS, |line| crate::execute(&options(&line)))
}

/// A server in a process of its own, and where it listens.
fn server_process(line: &str) -> (Child, String) {
    let mut server = process(&format!("--listen 127.0.0.1:0 {line}")).spawn().unwrap();
    let address = BufReader::new(server.stdout.as_mut().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().split_once("listening on ")?.1.to_owned()));
    (server, address.unwrap())
}

/// What a process that has ended said on standard error.
fn complaint(process: Child) -> String {
    let output = process.wait_with_output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_peer_that_vanishes_is_told_once() {
    let (near, _) = contexts();
    let worker = near.worker(options("").config().unwrap()).unwrap();

    let (server, address) = server_process("--once");
    worker.connect(&*address).unwrap().abort();
    let servers = complaint(server);

    let listener = worker.listen("127.0.0.1:0").unwrap();
    let client = process(&listener.local_addr().to_string()).spawn().unwrap();
    listener.accept(LONG).unwrap().abort();
    let clients = complaint(client);

    for text in [servers, clients] {
        assert_eq!(text.matches("RETRY_EXC_ERR").count(), 1, "{text}");
        assert!(text.contains("the peer's process ended"), "{text}");
    }
}

/// Sends a signal to a process.
fn signal(process: &Child, signal: &str) {
    let status = Command::new("kill")
        .args(["-s", signal, &process.id().to_string()])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_client_that_is_stopped_says_goodbye() {
    let (near, _) = contexts();
    for line in [
        "--mode poll --iters 1000000000",
        "--mode event --iters 1000000000",
        "--gap-us 1000000000000",
        "--test rate --iters 1000000000",
        "--test idle --endpoints 3 --secs 1000",
    ] {
        let server = Server::listen(&near, "127.0.0.1:0", &options("--mode event")).unwrap();
        let client = process(&format!("{line} {}", server.address())).spawn().unwrap();
        let stop = Stop::default();
        let connected = std::iter::repeat_with(|| server.accept(&stop).unwrap());
        let endpoint = connected.flatten().next().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| server.serve(false, &stop));
            signal(&client, "TERM");
            let output = client.wait_with_output().unwrap();
            let end = endpoint.closed().wait(LONG);
            stop.ask(SIGTERM);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(text, "am_pingpong: stopped by SIGTERM\n", "{line}");
            assert_eq!(output.status.signal(), Some(SIGTERM), "{line}");
            let end = end.unwrap();
            assert!(
                matches!(end.kind, EndpointErrorKind::PeerClosed(_)),
                "{line}: {end}"
            );
        });
    }
}

#[test]
fn a_server_that_is_stopped_says_goodbye() {
    let (near, _) = contexts();
    for line in ["", "--once"] {
        let (server, address) = server_process(line);
        let worker = near.worker(options("").config().unwrap()).unwrap();
        let endpoint = worker.connect(&*address).unwrap();
        signal(&server, "INT");
        let end = endpoint.closed().wait(LONG).unwrap();
        assert!(matches!(end.kind, EndpointErrorKind::PeerClosed(_)), "{end}");
        let output = server.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    let (near, _) = contexts();
    let worker = near.worker(options("").config().unwrap()).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let client = process(&listener.local_addr().to_string()).spawn().unwrap();
    let _endpoint = listener.accept(LONG).unwrap();
    // Nobody drives the worker any more: the client's goodbye is not answered.
    signal(&client, "INT");
    signal(&client, "TERM");
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_result_that_cannot_be_printed_is_an_error() {
    let client = process("--json 127.0.0.1:1");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", r#"exec "$0" "$@" >&-"#])
        .arg(client.get_program())
        .args(client.get_args())
        .envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stderr(Stdio::piped());
    let text = complaint(shell.spawn().unwrap());
    assert!(text.contains("am_pingpong: standard output is closed"), "{text}");
}
