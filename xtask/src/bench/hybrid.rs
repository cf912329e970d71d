//! Hybrid mode beside the mode that is right for each kind of traffic.

use adverb_guest::Guests;
use anyhow::Result;

use super::row::Row;
use super::{measure, ratio};
use crate::workspace;

/// One guest: messages with long pauses, and without any.
const SCRIPT: &str = r#"
pair() { # name mode gap iters
  $PINGPONG --listen 127.0.0.1 --device rxe0 --mode $2 --once > /dev/null & server=$!
  am $1 --mode $2 --gap-us $3 --iters $4 --warmup 20 127.0.0.1 || exit 1
  wait $server
}
for run in $RUNS; do
  pair event_rare event 50000 100
  pair hybrid_rare hybrid 50000 100
  pair poll_dense poll 0 3000
  pair hybrid_dense hybrid 0 3000
done
"#;

pub(super) fn run() -> Result<Vec<Row>> {
    const BENCH: &str = "hybrid";
    let samples = measure(Guests::new(workspace::root()), SCRIPT)?;
    let row = |name, goal, sides| ratio(&samples, BENCH, name, goal, sides);
    Ok(vec![
        row(
            "p50_vs_event_gap_50ms",
            1.2,
            [
                ("hybrid_p50_us", "hybrid_rare.p50_us"),
                ("event_p50_us", "event_rare.p50_us"),
            ],
        )?,
        row(
            "cpu_vs_event_gap_50ms",
            1.2,
            [
                ("hybrid_cpu_us_per_msg", "hybrid_rare.cpu_us_per_msg"),
                ("event_cpu_us_per_msg", "event_rare.cpu_us_per_msg"),
            ],
        )?,
        row(
            "p50_vs_poll_gap_0",
            1.1,
            [
                ("hybrid_p50_us", "hybrid_dense.p50_us"),
                ("poll_p50_us", "poll_dense.p50_us"),
            ],
        )?,
    ])
}
