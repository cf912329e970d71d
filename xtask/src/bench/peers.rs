//! `am_pingpong` beside the programs that RDMA engineers measure with.

use adverb_guest::Guests;
use anyhow::Result;

use super::row::Row;
use super::{RUNS, measure, ratio};
use crate::workspace;

/// Two guests, on a machine of two CPUs with one each: `ib_send_lat`, polling and with events. The fifth
/// column of what it prints is the median. With events it does not poll again after arming, and may hang: hence its time limit,
/// and more runs than are needed.
const IB_SEND_LAT: &str = r#"
pair() { # mode flag
  if [ $ADVERB_HOST = 1 ]; then
    timeout 15 ib_send_lat -d rxe0 -s 8 -n 500 $2 > /dev/null 2>&1
    $PINGPONG --listen 0.0.0.0 --device rxe0 --mode $1 --once > /dev/null || exit 1
  else
    sleep 1
    timeout 13 ib_send_lat -d rxe0 -s 8 -n 500 $2 $ADVERB_PEER 2> /dev/null |
      awk -v name=ib_send_lat_$1 '$1 == 8 && NF >= 9 { print "@" name, $5 }'
    am am_$1 --mode $1 --size 8 --iters 500 $ADVERB_PEER || exit 1
  fi
}
for run in $RUNS; do pair poll; pair event -e; done
for run in 1 2 3; do pair event -e; done
"#;

/// One guest: UCX's active messages over the same device. Of its results the second column is the median, the third the mean.
///
/// Where rxe's workers run is a matter of luck: all on the CPU of one spinning side, or spread. With a pool for each CPU both sides
/// get the same.
const UCX_AM_LAT: &str = r#"
echo cpu > /sys/module/workqueue/parameters/default_affinity_scope
for run in $RUNS; do
  ucx_perftest -f -t am_lat -d rxe0:1 -x rc_verbs -s 8 -n 2000 > /dev/null 2>&1 & server=$!
  sleep 1
  ucx_perftest -f -t am_lat -d rxe0:1 -x rc_verbs -s 8 -n 2000 127.0.0.1 2> /dev/null | awk '$1 == 2000 && NF >= 8 { print "@ucx_am_lat", $2; print "@ucx_am_lat_avg", $3 }'
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
        // Half the story where spinning sides share CPUs with the device's workers, so the means stand beside it.
        ratio(
            &within,
            BENCH,
            "lat_8B_vs_ucx_am_lat",
            1.0,
            [
                ("adverb_p50_us", "am_poll.p50_us"),
                ("ucx_am_lat_p50_us", "ucx_am_lat"),
            ],
        )?
        .beside("adverb_avg_us", within.median("am_poll.avg_us", RUNS)?)
        .beside("ucx_am_lat_avg_us", within.median("ucx_am_lat_avg", RUNS)?),
    ])
}
