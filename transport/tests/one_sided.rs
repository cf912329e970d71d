//! One-sided operations: memory of one side that the other reads, writes and counts in.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;
use std::future::Future;
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread;
use std::time::Duration;

use adverb::{
    Endpoint, EndpointErrorKind, Mode, Outcome, Region, RemoteRegion, Rights, RmaError, Transfer, Worker,
};
use adverb_verbs::WcStatus;
use common::{ECHO, LONG, Pair, config, pattern};

const LOCAL: Rights = Rights::empty();

fn region(worker: &Worker, len: usize, rights: Rights) -> Region {
    worker.context().register(len, rights).unwrap()
}

/// A region that holds `bytes`.
fn filled(worker: &Worker, bytes: &[u8], rights: Rights) -> Region {
    let region = region(worker, bytes.len(), rights);
    region.write_at(0, bytes).unwrap();
    region
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The handle as a peer gets it.
fn handle(region: &Region) -> RemoteRegion {
    RemoteRegion::from_bytes(&region.remote().unwrap().to_bytes()).unwrap()
}

/// Puts until one goes out, waiting for room.
fn put(endpoint: &Endpoint, from: &Region, to: &RemoteRegion) -> Transfer {
    loop {
        match endpoint.put(from, .., to, 0) {
            Ok(transfer) => return transfer,
            Err(RmaError::WouldBlock { .. }) => endpoint.one_sided_ready().wait(LONG).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_put_can_be_got_whatever_its_size() {
    for mode in [Mode::Poll, Mode::Event, Mode::Hybrid] {
        let pair = Pair::new(config(mode));
        let (endpoint, _server) = pair.connect();
        const LEN: usize = 1 << 20;
        let there = region(&pair.server, LEN + 16, Rights::REMOTE_READ | Rights::REMOTE_WRITE);
        let to = handle(&there);
        assert_eq!((to.len(), to.rights()), (LEN as u64 + 16, there.rights()));
        let back = region(&pair.client, LEN, LOCAL);
        // Around an MTU, around a segment, and of many packets.
        for len in [0, 1, 7, 8, 1023, 1024, 1025, 4096, 8192, 65_537, LEN] {
            let bytes = pattern(len, len as u64);
            let from = region(&pair.client, LEN, LOCAL);
            from.write_at(LEN - len, &bytes).unwrap();
            endpoint
                .put(&from, LEN - len.., &to, 3)
                .unwrap()
                .wait(LONG)
                .unwrap();
            let mut seen = vec![0; len];
            there.read_at(3, &mut seen).unwrap();
            assert!(seen == bytes, "{len} bytes arrived");
            endpoint.get(&back, ..len, &to, 3).unwrap().wait(LONG).unwrap();
            back.read_at(0, &mut seen).unwrap();
            assert!(seen == bytes, "{len} bytes came back");
        }
        let mut around = [1; 3];
        there.read_at(0, &mut around).unwrap();
        assert_eq!(around, [0; 3], "and no byte before them was touched");
        there.read_at(LEN + 3, &mut around).unwrap();
        assert_eq!(around, [0; 3], "nor one behind");
        drop(endpoint);
    }
}

#[test]
fn a_message_arrives_after_the_puts_before_it() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    let there = std::sync::Arc::new(region(&pair.server, 1 << 16, Rights::REMOTE_WRITE));
    let to = handle(&there);
    pair.server.on_request(1, move |_, request| {
        drop(request.reply(b"", &bytes_of(&there)));
    });
    for round in 0..50 {
        let bytes = pattern(1 << 16, round);
        let from = filled(&pair.client, &bytes, LOCAL);
        drop(endpoint.put(&from, .., &to, 0).unwrap());
        let reply = endpoint.request(1, b"", b"").wait(LONG).unwrap();
        assert!(reply.payload() == bytes, "round {round}");
    }
}

#[test]
fn what_does_not_fit_is_refused_here_and_harms_nothing() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    let all = region(&pair.server, 64, Rights::all());
    let (all, no_reads) = (handle(&all), region(&pair.server, 64, Rights::REMOTE_WRITE));
    let no_reads = handle(&no_reads);
    let local = region(&pair.client, 64, LOCAL);
    assert!(local.remote().is_none(), "it is nothing for peers");
    for (range, offset) in [(0..64, 1), (1..2, 64), (0..0, 65), (0..8, u64::MAX)] {
        let refused = endpoint.put(&local, range.clone(), &all, offset);
        assert!(
            matches!(refused, Err(RmaError::RemoteRange { .. })),
            "{refused:?}"
        );
        let refused = endpoint.get(&local, range, &all, offset);
        assert!(
            matches!(refused, Err(RmaError::RemoteRange { .. })),
            "{refused:?}"
        );
    }
    #[allow(clippy::reversed_empty_ranges, reason = "it is what is refused")]
    for range in [0..65, 64..65, 65..65, 2..1, usize::MAX..usize::MAX] {
        let refused = endpoint.put(&local, range, &all, 0);
        assert!(matches!(refused, Err(RmaError::LocalRange { .. })), "{refused:?}");
    }
    let refused = endpoint.get(&local, .., &no_reads, 0);
    let needed = Rights::REMOTE_READ;
    assert!(
        matches!(refused, Err(RmaError::MissingRight { needed: n, .. }) if n == needed),
        "{refused:?}"
    );
    let refused = endpoint.fetch_add(&no_reads, 0, 1);
    assert!(
        matches!(refused, Err(RmaError::MissingRight { .. })),
        "{refused:?}"
    );
    for offset in [1, 4, 55] {
        let refused = endpoint.fetch_add(&all, offset, 1);
        assert!(matches!(refused, Err(RmaError::Misaligned { .. })), "{refused:?}");
    }
    let refused = endpoint.compare_swap(&all, 57, 0, 1);
    assert!(
        matches!(refused, Err(RmaError::RemoteRange { .. })),
        "{refused:?}"
    );
    let foreign = region(&pair.server, 64, LOCAL);
    let refused = endpoint.put(&foreign, .., &all, 0);
    assert!(
        matches!(refused, Err(RmaError::WrongContext { .. })),
        "{refused:?}"
    );
    endpoint.flush().wait(LONG).unwrap();
    endpoint.put(&local, .., &all, 0).unwrap().wait(LONG).unwrap();
}

#[test]
fn atomics_of_several_threads_give_every_value_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let pair = Pair::new(config(Mode::Hybrid));
    let counter = region(&pair.server, 16, Rights::REMOTE_ATOMIC);
    let at = handle(&counter);
    // Two of them share an endpoint each.
    let endpoints = [pair.connect(), pair.connect()];
    let values: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let endpoint = &endpoints[i as usize % 2].0;
                scope.spawn(move || {
                    let one = |_| endpoint.fetch_add(&at, 8, 1).unwrap().wait(LONG).unwrap();
                    (0..EACH).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(values.len() as u64, THREADS * EACH);
    let values: BTreeSet<u64> = values.into_iter().collect();
    assert!(values.into_iter().eq(0..THREADS * EACH));
    assert_eq!(counter.load_u64(8).unwrap(), THREADS * EACH);
    assert_eq!(counter.load_u64(0).unwrap(), 0);
}

#[test]
fn compare_swap_swaps_only_what_it_expects() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    let word = region(&pair.server, 8, Rights::REMOTE_ATOMIC);
    word.store_u64(0, u64::MAX).unwrap();
    let at = handle(&word);
    let swap = |compare, swap| {
        endpoint
            .compare_swap(&at, 0, compare, swap)
            .unwrap()
            .wait(LONG)
            .unwrap()
    };
    assert_eq!(swap(1, 2), u64::MAX);
    assert_eq!(word.load_u64(0).unwrap(), u64::MAX);
    assert_eq!(swap(u64::MAX, 0x0102_0304_0506_0708), u64::MAX);
    assert_eq!(word.load_u64(0).unwrap(), 0x0102_0304_0506_0708);
}

#[test]
fn many_operations_at_once_wait_for_room_and_all_are_carried_out() {
    let pair = Pair::new(config(Mode::Hybrid).send_depth(16));
    let (endpoint, _server) = pair.connect();
    let counter = region(&pair.server, 8, Rights::REMOTE_ATOMIC);
    let at = handle(&counter);
    let mut blocked = 0;
    let mut fetches = Vec::new();
    while fetches.len() < 300 {
        match endpoint.fetch_add(&at, 0, 1) {
            Ok(fetch) => fetches.push(fetch),
            Err(RmaError::WouldBlock { .. }) => {
                blocked += 1;
                endpoint.one_sided_ready().wait(LONG).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(blocked > 0);
    // Messages pass all the while.
    let replies = pair.replies();
    let _sent = endpoint.send(ECHO, b"", b"echo").unwrap();
    replies.wait(&pair.client, 1);
    endpoint.flush().wait(LONG).unwrap();
    for (i, fetch) in fetches.iter().enumerate() {
        assert_eq!(fetch.wait(LONG).unwrap(), i as u64, "in order");
        assert_eq!(fetch.wait(LONG).unwrap(), i as u64, "as often as it is asked");
    }
}

#[test]
fn a_fenced_put_sends_what_the_get_before_it_brought() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    const LEN: usize = 1 << 17;
    let (source, target) = (pattern(LEN, 1), region(&pair.server, LEN, Rights::REMOTE_WRITE));
    let source = filled(&pair.server, &source, Rights::REMOTE_READ);
    let through = region(&pair.client, LEN, LOCAL);
    drop(endpoint.get(&through, .., &handle(&source), 0).unwrap());
    endpoint.fence();
    endpoint
        .put(&through, .., &handle(&target), 0)
        .unwrap()
        .wait(LONG)
        .unwrap();
    assert!(bytes_of(&target) == bytes_of(&source));
}

#[test]
fn a_revoked_handle_ends_its_endpoint_and_no_other() {
    let pair = Pair::new(config(Mode::Hybrid));
    let ((user, _user), (other, _other)) = (pair.connect(), pair.connect());
    let there = filled(
        &pair.server,
        &pattern(4096, 1),
        Rights::REMOTE_READ | Rights::REMOTE_WRITE,
    );
    let kept = region(&pair.server, 4096, Rights::REMOTE_WRITE);
    let stale = handle(&there);
    let from = filled(&pair.client, &pattern(4096, 2), LOCAL);
    there.revoke().unwrap();
    there.revoke().unwrap();
    assert!(there.remote().is_none());

    let refused = user.put(&from, .., &stale, 0).unwrap();
    let behind = user.put(&from, .., &handle(&kept), 0).unwrap();
    let error = refused.wait(LONG).unwrap_err();
    let RmaError::Ended { outcome, error } = error else {
        panic!("{error}")
    };
    assert_eq!(outcome, Outcome::MaybeDelivered);
    let EndpointErrorKind::Completion {
        operation, status, ..
    } = error.kind.clone()
    else {
        panic!("{error}")
    };
    assert_eq!(
        (operation, status),
        ("writing the peer's memory", WcStatus::RemAccessErr)
    );
    assert!(matches!(behind.wait(LONG), Err(RmaError::Ended { .. })));
    assert_eq!(user.closed().wait(LONG).unwrap(), error);
    let after = user.put(&from, .., &handle(&kept), 0);
    assert!(
        matches!(
            after,
            Err(RmaError::Ended {
                outcome: Outcome::NotSent,
                ..
            })
        ),
        "{after:?}"
    );

    assert!(bytes_of(&there) == pattern(4096, 1), "its owner has it as it was");
    other
        .put(&from, .., &handle(&kept), 0)
        .unwrap()
        .wait(LONG)
        .unwrap();
    assert!(bytes_of(&kept) == pattern(4096, 2));
}

#[test]
fn a_dropped_region_is_revoked() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    let there = region(&pair.server, 64, Rights::REMOTE_READ);
    let stale = handle(&there);
    drop(there);
    let into = region(&pair.client, 64, LOCAL);
    let error = endpoint
        .get(&into, .., &stale, 0)
        .unwrap()
        .wait(LONG)
        .unwrap_err();
    assert!(error.to_string().contains("revoked"), "{error}");
}

/// Revoking takes the rights of peers only: this side goes on using the region.
#[test]
fn a_revoked_region_is_still_good_for_its_own_side() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    let there = region(&pair.server, 64, Rights::REMOTE_WRITE);
    let from = filled(&pair.client, &pattern(64, 1), Rights::all());
    from.revoke().unwrap();
    endpoint
        .put(&from, .., &handle(&there), 0)
        .unwrap()
        .wait(LONG)
        .unwrap();
    assert!(bytes_of(&there) == pattern(64, 1));
}

#[test]
fn what_is_dropped_early_stays_until_the_device_is_done() {
    let mut pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    const LEN: usize = 1 << 18;
    let there = region(&pair.server, LEN, Rights::REMOTE_READ | Rights::REMOTE_WRITE);
    let to = handle(&there);
    pair.stop_server();
    for round in 0..10 {
        let bytes = pattern(LEN, round);
        // Neither the future nor the region outlives the post.
        let from = filled(&pair.client, &bytes, LOCAL);
        drop(endpoint.put(&from, .., &to, 0).unwrap());
        drop(from);
        let into = region(&pair.client, LEN, LOCAL);
        let mut got = Box::pin(endpoint.get(&into, .., &to, 0).unwrap());
        let polled = got.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
        assert!(
            matches!(polled, Poll::Pending | Poll::Ready(Ok(()))),
            "{polled:?}"
        );
        drop((got, into));
        // What now maps memory gets that of the regions, had it been freed.
        let others: Vec<_> = (0..4)
            .map(|_| filled(&pair.client, &[0xee; LEN], LOCAL))
            .collect();
        endpoint.flush().wait(LONG).unwrap();
        assert!(bytes_of(&there) == bytes, "round {round}");
        for other in others {
            assert!(bytes_of(&other).iter().all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn each_operation_under_way_when_the_endpoint_ends_ends_once() {
    for close in [
        (|endpoint| drop(endpoint.close())) as fn(&Endpoint),
        Endpoint::abort,
        |_| {},
    ] {
        let pair = Pair::new(config(Mode::Hybrid));
        let (endpoint, server) = pair.connect();
        let there = region(&pair.server, 1 << 18, Rights::all());
        let to = handle(&there);
        let local = region(&pair.client, 1 << 18, LOCAL);
        let mut outcomes = Vec::new();
        let (mut transfers, mut fetches) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            transfers.push(put(&endpoint, &local, &to));
            transfers.push(endpoint.get(&local, .., &to, 0).unwrap());
            fetches.push(endpoint.fetch_add(&to, 8, 1).unwrap());
        }
        let flushed = endpoint.flush();
        close(&endpoint);
        if endpoint.is_open() {
            server.abort();
        }
        for transfer in &transfers {
            outcomes.push(transfer.wait(LONG));
        }
        outcomes.extend(fetches.iter().map(|fetch| fetch.wait(LONG).map(drop)));
        for outcome in &outcomes {
            let known = matches!(
                outcome,
                Ok(())
                    | Err(RmaError::Ended {
                        outcome: Outcome::MaybeDelivered,
                        ..
                    })
            );
            assert!(known, "{outcome:?}");
        }
        assert_eq!(flushed.wait(LONG).is_ok(), outcomes.iter().all(Result::is_ok));
        // It stays as it was told.
        let again = transfers.iter().map(|transfer| transfer.wait(LONG));
        let again: Vec<_> = again
            .chain(fetches.iter().map(|fetch| fetch.wait(LONG).map(drop)))
            .collect();
        assert_eq!(again, outcomes);
        let added = fetches.iter().filter(|fetch| fetch.wait(LONG).is_ok()).count() as u64;
        assert!(there.load_u64(8).is_ok() && added <= 8);
        let late = endpoint.put(&local, .., &to, 0);
        assert!(
            matches!(
                late,
                Err(RmaError::Ended {
                    outcome: Outcome::NotSent,
                    ..
                })
            ),
            "{late:?}"
        );
    }
}

#[tokio::test]
async fn operations_can_be_awaited() {
    let pair = Pair::new(config(Mode::Event).send_depth(8));
    let (endpoint, _server) = pair.connect();
    let driver = pair.client.clone();
    let driving = tokio::spawn(async move { driver.drive().await });
    let there = region(&pair.server, 1 << 16, Rights::all());
    let to = handle(&there);
    let local = filled(&pair.client, &pattern(1 << 16, 9), LOCAL);
    for _ in 0..100 {
        match endpoint.put(&local, .., &to, 0) {
            Ok(transfer) => drop(transfer),
            Err(RmaError::WouldBlock { .. }) => endpoint.one_sided_ready().await.unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
    // Two that wait for the same operation are both told.
    let (first, second) = (endpoint.flush(), endpoint.flush());
    let (first, second) = tokio::join!(first, second);
    first.and(second).unwrap();
    endpoint.get(&local, ..8, &to, 0).unwrap().await.unwrap();
    let before = endpoint.fetch_add(&to, 0, 5).unwrap().await.unwrap();
    assert_eq!(there.load_u64(0).unwrap(), before.wrapping_add(5));
    driving.abort();
}

#[test]
fn a_wait_that_takes_too_long_says_so_and_the_operation_goes_on() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (endpoint, _server) = pair.connect();
    let there = region(&pair.server, 1 << 20, Rights::REMOTE_WRITE);
    let local = filled(&pair.client, &pattern(1 << 20, 3), LOCAL);
    let transfer = endpoint.put(&local, .., &handle(&there), 0).unwrap();
    match transfer.wait(Duration::ZERO) {
        Ok(()) | Err(RmaError::Timeout { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    transfer.wait(LONG).unwrap();
    assert!(bytes_of(&there) == pattern(1 << 20, 3));
}
