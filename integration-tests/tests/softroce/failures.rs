//! Peers that die, and ports that go down.

use crate::support::{guests, run, value};

/// How long a dead peer may go unnoticed in the worst case, in ms: five times what is promised, as guests are slow.
const NOTICED_BUSY_MS: u64 = 5 * 2_000;
const NOTICED_IDLE_MS: u64 = 5 * 5_000;

#[test]
fn a_peer_killed_in_midst_of_it_ends_the_other_with_an_error() {
    let script = r#"
        $PINGPONG --listen 127.0.0.1 --device rxe0 --mode event & server=$!
        await_server 127.0.0.1
        $PINGPONG --device rxe0 --mode event --iters 100000000 127.0.0.1 2> $ADVERB_OUT/client & client=$!
        sleep 3; kill -9 $server; start=$(now)
        wait $client; echo client_status=$?; echo client_ms=$(($(now) - start)); cat $ADVERB_OUT/client

        $PINGPONG --listen 127.0.0.1 --device rxe0 --mode hybrid --once 2> $ADVERB_OUT/server & server=$!
        await_server 127.0.0.1
        $PINGPONG --device rxe0 --mode hybrid --iters 100000000 127.0.0.1 & client=$!
        sleep 3; kill -9 $client; start=$(now)
        wait $server; echo server_status=$?; echo server_ms=$(($(now) - start)); cat $ADVERB_OUT/server
        true"#;
    let outcome = run(&guests(), script);
    let host = &outcome.hosts[0];
    for side in ["client", "server"] {
        assert_ne!(value(host, &format!("{side}_status")), 0, "{side}");
        let ms = value(host, &format!("{side}_ms"));
        println!("{side}: noticed after {ms} ms");
        assert!(ms < NOTICED_BUSY_MS, "{side}: noticed after {ms} ms");
    }
    let told = host
        .output
        .iter()
        .filter(|line| line.contains("RETRY_EXC_ERR") && line.contains("rxe0"))
        .count();
    assert_eq!(
        told, 2,
        "each side says once what happened, and where: {:#?}",
        host.output
    );
}

#[test]
fn a_peer_killed_while_idle_is_found_by_keepalive() {
    let script = r#"
        $PINGPONG --listen 127.0.0.1 --device rxe0 --mode hybrid --once 2> $ADVERB_OUT/server & server=$!
        await_server 127.0.0.1
        $PINGPONG --device rxe0 --test idle --endpoints 1 --secs 1000 127.0.0.1 & client=$!
        sleep 5; kill -9 $client; start=$(now)
        wait $server; echo server_status=$?; echo server_ms=$(($(now) - start)); cat $ADVERB_OUT/server
        true"#;
    let outcome = run(&guests(), script);
    let host = &outcome.hosts[0];
    assert_ne!(value(host, "server_status"), 0);
    let ms = value(host, "server_ms");
    println!("noticed after {ms} ms");
    assert!(ms < NOTICED_IDLE_MS, "noticed after {ms} ms");
    assert!(
        host.output.iter().any(|line| line.contains("RETRY_EXC_ERR")),
        "{:#?}",
        host.output
    );
}

#[test]
fn a_port_that_goes_down_ends_its_endpoints_and_no_others() {
    let script = r#"
        $PINGPONG --listen 127.0.0.1 --device rxe0 --once 2> $ADVERB_OUT/server & server=$!
        await_server 127.0.0.1
        $PINGPONG --device rxe0 --iters 100000000 127.0.0.1 2> $ADVERB_OUT/client & client=$!
        ADVERB_DEVICE=rxe1 $PINGPONG --listen 127.0.0.1:2000 --once & other=$!
        sleep 2; ip link set dummy0 down
        wait $client; echo client_status=$?; wait $server; echo server_status=$?; cat $ADVERB_OUT/client $ADVERB_OUT/server
        ADVERB_DEVICE=rxe1 $PINGPONG --iters 100 127.0.0.1:2000; echo other_client_status=$?
        wait $other; echo other_status=$?"#;
    let outcome = run(&guests(), script);
    let host = &outcome.hosts[0];
    for (name, failed) in [
        ("client_status", true),
        ("server_status", true),
        ("other_client_status", false),
        ("other_status", false),
    ] {
        assert_eq!(value(host, name) != 0, failed, "{name}: {:#?}", host.output);
    }
    let told = |line: &&String| {
        line.contains("PORT_ERR") || line.contains("WR_FLUSH_ERR") || line.contains("RETRY_EXC_ERR")
    };
    assert!(host.output.iter().filter(told).count() >= 2, "{:#?}", host.output);
}
