//! adverb's software device and the kernel's SoftRoCE speak with each other.

use adverb_guest::Script;

use crate::support::{conformance, guests, rows, run};

/// SoftRoCE on one end of a cable, and a namespace for the software device on the other.
const CABLE: &str = r#"
ip netns add soft
ip link add veth0 type veth peer name veth1 netns soft
ip addr add 10.99.0.1/24 dev veth0
ip -n soft addr add 10.99.0.2/24 dev veth1
ip link set veth0 up
ip -n soft link set veth1 up
ip -n soft link set lo up
rdma link add rxe9 type rxe netdev veth0
sleep 1
"#;

#[test]
fn the_conformance_suite_passes_between_the_two() {
    let program = Script::command([conformance().to_str().unwrap()]);
    let suite = program.text();
    let script = format!(
        "{CABLE}
{suite} rxe9 --with soft:10.99.0.2 --netns /run/netns/soft || failed=1
{suite} soft:10.99.0.2 --with rxe9 --netns /run/netns/soft || failed=1
exit ${{failed:-0}}"
    );
    let outcome = guests().run(&Script::shell(script)).unwrap();
    let output = &outcome.hosts[0].output;
    let failed: Vec<_> = output.iter().filter(|line| line.starts_with("FAIL")).collect();
    assert!(outcome.success(), "{failed:#?} {output:#?}");
    let passed = output.iter().filter(|line| line.starts_with("PASS "));
    assert!(passed.count() >= 128, "{output:#?}");
    assert_eq!(outcome.complaints(), Vec::<&str>::new());
}

/// Host 1 has the kernel's device, host 2 adverb's: there the kernel lets go of RoCEv2's port.
const TWO_HOSTS: &str = r#"
if [ $ADVERB_HOST = 1 ]; then DEVICE=rxe0; else DEVICE=soft:$(ip -4 -o addr show eth0 | awk '{ sub("/.*", "", $4); print $4 }'); rdma link delete rxe0; rmmod rdma_rxe; fi
serve() { $PINGPONG --listen 0.0.0.0 --device $DEVICE --once "$@" > /dev/null || exit 1; }
play() { await_server $ADVERB_PEER; $PINGPONG --device $DEVICE --json "$@" $ADVERB_PEER || exit 1; }
each() { # the host that plays, arguments
  player=$1; shift
  if [ $ADVERB_HOST = $player ]; then play "$@"; else serve; fi
}
"#;

fn two_hosts(script: &str) -> Vec<serde_json::Value> {
    let outcome = run(&guests().hosts(2), &format!("{TWO_HOSTS}{script}"));
    outcome.hosts.iter().flat_map(rows).collect()
}

#[test]
fn two_hosts_of_both_kinds_play_both_ways_round() {
    let rows = two_hosts(
        r#"
for player in 1 2; do
  each $player --mode event --iters 200
  each $player --mode hybrid --iters 200
  each $player --test rate --iters 2000
  each $player --test bw --size 65536 --iters 100
  each $player --test lat --size 1000000 --iters 5
done
"#,
    );
    assert_eq!(rows.len(), 10);
    for row in &rows {
        assert_eq!(row["missed_completions"], 0, "{row}");
    }
    let iters: Vec<_> = rows.iter().map(|row| row["iters"].as_u64().unwrap()).collect();
    assert_eq!(iters[..5], [200, 200, 2000, 100, 5]);
    assert_eq!(iters[5..], iters[..5]);
}

/// Messages of many packets go from the software device to the kernel's only. The other way round a connection ended once in some twenty runs, with
/// more data in a message than its receive holds. The kernel's retry seems to take the PSN from where the peer is when it starts, and the data from
/// where the peer was when it was decided (read in its source, not proven).
#[test]
fn a_bad_cable_loses_nothing() {
    let rows = two_hosts(
        r#"
ip link set eth0 mtu 1500
tc qdisc add dev eth0 root netem loss 1% delay 200us reorder 25% 50%
each 1 --test lat --size 500 --iters 200
each 1 --test rate --size 500 --iters 1000
each 2 --test lat --size 500 --iters 200
each 2 --test bw --size 65536 --iters 50
"#,
    );
    let iters: Vec<_> = rows.iter().map(|row| row["iters"].as_u64().unwrap()).collect();
    assert_eq!(iters, [200, 1000, 200, 50]);
}
