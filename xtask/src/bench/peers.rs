//! `am_pingpong` beside the programs that RDMA engineers measure with.

use adverb_guest::Guests;
use anyhow::Result;

use super::row::Row;
use super::{measure, ratio};
use crate::workspace;

/// Two guests: `ib_send_lat`, polling and with events. Its fifth column is the median.
const IB_SEND_LAT: &str = r#"
ib() { awk -v name=$1 '$1 == 8 && NF >= 9 { print "@" name, $5 }'; }
for run in $RUNS; do
  for mode in poll event; do
    [ $mode = event ] && flag=-e || flag=
    if [ $ADVERB_HOST = 1 ]; then
      ib_send_lat -d rxe0 -s 8 -n 1000 $flag > /dev/null || exit 1
      $PINGPONG --listen 0.0.0.0 --device rxe0 --mode $mode --once > /dev/null || exit 1
    else
      retry ib_send_lat -d rxe0 -s 8 -n 1000 $flag $ADVERB_PEER > $ADVERB_OUT/ib || exit 1
      ib ib_send_lat_$mode < $ADVERB_OUT/ib
      am am_$mode --mode $mode --size 8 --iters 1000 $ADVERB_PEER || exit 1
    fi
  done
done
"#;

/// One guest: UCX's active messages over the same device. The third column of its last line is the median.
const UCX_AM_LAT: &str = r#"
for run in $RUNS; do
  ucx_perftest -f -t am_lat -d rxe0:1 -x rc_verbs -s 8 -n 2000 > /dev/null 2>&1 & server=$!
  sleep 1
  ucx_perftest -f -t am_lat -d rxe0:1 -x rc_verbs -s 8 -n 2000 127.0.0.1 2> /dev/null | awk '/^Final/ { print "@ucx_am_lat", $3 }'
  wait $server
  $PINGPONG --listen 127.0.0.1 --device rxe0 --mode poll --once > /dev/null & server=$!
  am am_poll --mode poll --size 8 --iters 2000 127.0.0.1 || exit 1
  wait $server
done
"#;

pub(super) fn run() -> Result<Vec<Row>> {
    const BENCH: &str = "peers";
    let between = measure(Guests::new(workspace::root()).hosts(2), IB_SEND_LAT)?;
    let within = measure(Guests::new(workspace::root()), UCX_AM_LAT)?;
    let ib = |name, goal, ours, theirs| {
        ratio(
            &between,
            BENCH,
            name,
            goal,
            [("adverb_p50_us", ours), ("ib_send_lat_p50_us", theirs)],
        )
    };
    Ok(vec![
        ib(
            "lat_8B_vs_ib_send_lat",
            1.15,
            "am_poll.p50_us",
            "ib_send_lat_poll",
        )?,
        ib(
            "event_lat_8B_vs_ib_send_lat_e",
            1.15,
            "am_event.p50_us",
            "ib_send_lat_event",
        )?,
        ratio(
            &within,
            BENCH,
            "lat_8B_vs_ucx_am_lat",
            1.0,
            [
                ("adverb_p50_us", "am_poll.p50_us"),
                ("ucx_am_lat_p50_us", "ucx_am_lat"),
            ],
        )?,
    ])
}
