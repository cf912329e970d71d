//! The main job: `am_pingpong` between two hosts, and between two containers.

use std::process::Command;

use serde_json::Value;

use crate::support::{guests, rows, run, workspace};

const ITERS: u64 = 2000;

/// Every mode and test of `am_pingpong`: host 1 serves, host 2 is the client and prints JSON.
const BOTH_SIDES: &str = r#"
if [ $ADVERB_HOST = 1 ]; then
  for mode in poll event hybrid; do $PINGPONG --listen $ADVERB_ADDR --device rxe0 --mode $mode --once & done_with=$!; wait $done_with || exit 1; done
  for test in rate bw; do $PINGPONG --listen $ADVERB_ADDR --device rxe0 --once || exit 1; done
else
  for mode in poll event hybrid; do
    await_listening && $PINGPONG --device rxe0 --mode $mode --size 8 --iters 2000 --warmup 100 --json $ADVERB_PEER || exit 1
  done
  for test in rate bw; do await_listening && $PINGPONG --device rxe0 --test $test --iters 2000 --json $ADVERB_PEER || exit 1; done
fi
"#;

/// A port that is open is a server that waits; `--once` counts connections of adverb only, so looking does no harm.
const AWAIT: &str = "await_listening() { sleep 0.5; await_server $ADVERB_PEER; }\n";

fn assert_complete(rows: &[Value]) {
    let field = |row: &Value, name: &str| row[name].clone();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| (field(row, "test"), field(row, "mode")))
        .collect();
    let expected = [
        ("lat", "poll"),
        ("lat", "event"),
        ("lat", "hybrid"),
        ("rate", "hybrid"),
        ("bw", "hybrid"),
    ];
    assert!(
        kinds
            .iter()
            .map(|(test, mode)| (test.as_str().unwrap(), mode.as_str().unwrap()))
            .eq(expected),
        "{kinds:?}"
    );
    for row in rows {
        assert_eq!(
            (&row["device"], &row["provider"]),
            (&"rxe0".into(), &"libibverbs".into()),
            "{row}"
        );
        assert_eq!(row["iters"], ITERS, "{row}");
        assert_eq!(row["missed_completions"], 0, "{row}");
        assert!(row["msgs_per_s"].as_f64().unwrap() > 0.0, "{row}");
        for latency in ["p50_us", "p99_us", "p999_us", "avg_us"] {
            let measured = row[latency].as_f64().is_some_and(|us| us > 0.0);
            assert_eq!(measured, row["test"] == "lat", "{row}");
            assert_eq!(row[latency].is_null(), row["test"] != "lat", "{row}");
        }
    }
    let wakes = |row: &Value, reason: &str| row["wakes"][reason].as_u64().unwrap();
    assert_eq!(
        wakes(&rows[0], "event"),
        0,
        "poll mode does not sleep: {}",
        rows[0]
    );
    assert!(wakes(&rows[1], "event") > 0, "event mode sleeps: {}", rows[1]);
}

#[test]
fn two_hosts_play_in_every_mode() {
    let outcome = run(&guests().hosts(2), &format!("{AWAIT}{BOTH_SIDES}"));
    assert_complete(&rows(&outcome.hosts[1]));
}

#[test]
fn two_containers_play_in_every_mode() {
    let outcome = run(&guests().containers(), &format!("{AWAIT}{BOTH_SIDES}"));
    assert_complete(&rows(&outcome.hosts[1]));
}

#[test]
fn a_hundred_idle_endpoints_cost_next_to_nothing() {
    let script = "
        $PINGPONG --listen 127.0.0.1 --device rxe0 --mode hybrid & server=$!
        await_server 127.0.0.1
        $PINGPONG --device rxe0 --mode hybrid --test idle --endpoints 100 --secs 20 --json 127.0.0.1 || exit 1
        kill $server; wait $server";
    let outcome = run(&guests(), script);
    let row = &rows(&outcome.hosts[0])[0];
    assert_eq!(row["endpoints"], 100, "{row}");
    assert!(row["wakeups_per_s"].as_f64().unwrap() < 20.0, "{row}");
}

/// Not in a guest: the software device needs none.
#[test]
fn two_processes_play_on_the_software_device_in_every_mode() {
    let program = adverb_guest::am_pingpong(&workspace()).unwrap();
    let output = Command::new(program)
        .env("ADVERB_DEVICE", "soft0")
        .args(["--json", "--iters", "2000"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let modes: Vec<_> = rows.iter().map(|row| row["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["poll", "event", "hybrid"]);
    for row in &rows {
        assert_eq!(
            (&row["provider"], &row["iters"], &row["missed_completions"]),
            (&"soft".into(), &2000.into(), &0.into())
        );
        assert!(row["p50_us"].as_f64().unwrap() > 0.0);
    }
}
