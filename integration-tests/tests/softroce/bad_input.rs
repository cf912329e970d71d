//! What users get wrong, each of which ends in an error that says what, who and what to do.

use crate::support::{guests, run};

/// Each case: a command that must fail, and what its error must say.
const CASES: [(&str, &[&str]); 6] = [
    (
        "$PINGPONG --device mlx5_9 127.0.0.1",
        &["mlx5_9", "there are: rxe0, rxe1"],
    ),
    (
        "$PINGPONG --device rxe0 127.0.0.1:9",
        &["127.0.0.1:9", "see whether the peer listens there"],
    ),
    (
        "ip link set dummy1 down; $PINGPONG --device rxe1 127.0.0.1; ip link set dummy1 up",
        &["port 1 of rxe1 is DOWN", "bring its link up"],
    ),
    (
        "setpriv --reuid 65534 --regid 65534 --clear-groups bash -c \"ulimit -l 64; $PINGPONG --device rxe0 127.0.0.1\"",
        &["ibv_", "rxe0", "ulimit -l unlimited"],
    ),
    (
        "chmod 600 /dev/infiniband/uverbs0; setpriv --reuid 65534 --regid 65534 --clear-groups $PINGPONG --device rxe0 127.0.0.1",
        &["rxe0", "may not open /dev/infiniband/uverbs"],
    ),
    (
        "rdma link delete rxe0; rdma link delete rxe1; $PINGPONG --device rxe0 127.0.0.1",
        &["there is no device \"rxe0\"; there are: soft0", "rdma link add"],
    ),
];

#[test]
fn every_mistake_is_named_with_what_to_do() {
    let cases: String = CASES
        .iter()
        .enumerate()
        .map(|(i, (command, _))| format!("echo case={i}; ({command}) 2>&1 > /dev/null; echo\n"))
        .collect();
    let outcome = run(&guests(), &format!("export PINGPONG\n{cases}true"));
    let output = outcome.hosts[0].output.join("\n");
    for (i, (command, expected)) in CASES.iter().enumerate() {
        let text = output
            .split(&format!("case={i}\n"))
            .nth(1)
            .and_then(|rest| rest.split("case=").next())
            .unwrap();
        for part in *expected {
            assert!(text.contains(part), "{command}: {part:?} is missing in: {text}");
        }
    }
}

#[test]
fn strangers_on_the_port_do_not_disturb_those_who_belong_there() {
    let script = r#"
        $PINGPONG --listen 127.0.0.1 --device rxe0 --once & server=$!
        await_server 127.0.0.1
        exec 3<> /dev/tcp/127.0.0.1/18515
        for i in $(seq 20); do (printf 'GET / HTTP/1.1\r\n\r\n' > /dev/tcp/127.0.0.1/18515) 2> /dev/null; done
        for i in $(seq 5); do (head -c 100000 /dev/urandom > /dev/tcp/127.0.0.1/18515) 2> /dev/null; done
        $PINGPONG --device rxe0 --iters 200 --json 127.0.0.1 || exit 1
        wait $server"#;
    let outcome = run(&guests(), script);
    assert!(outcome.hosts[0].output.iter().any(|line| line.starts_with('{')));
}
