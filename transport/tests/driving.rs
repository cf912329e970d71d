//! The ways to drive a worker: callers, threads, tokio, and all of them together.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use adverb::{EndpointErrorKind, Mode};
use common::{ECHO, LONG, Pair, SINK, config};

#[test]
fn many_threads_may_wait_on_one_worker() {
    let pair = Pair::new(config(Mode::Event));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let client = pair.client.connect(pair.listener.local_addr()).unwrap();
                for _ in 0..200 {
                    client.send(SINK, &[], &[1; 64]).unwrap().wait(LONG).unwrap();
                }
                assert_eq!(client.close().wait(LONG).unwrap().kind, EndpointErrorKind::Closed);
            });
        }
        for _ in 0..8 {
            // Held until its peer has closed, or it would close first.
            let server = pair.listener.accept(LONG).unwrap();
            scope.spawn(move || server.closed().wait(LONG).unwrap());
        }
    });
    assert_eq!(pair.sunk.1.load(Ordering::Relaxed), 1600);
}

#[test]
fn one_endpoint_may_be_used_by_many_threads() {
    let pair = Pair::new(config(Mode::Hybrid));
    let (client, _server) = pair.connect();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..300 {
                    client.send(SINK, &[], &[1; 300]).unwrap().wait(LONG).unwrap();
                }
            });
        }
    });
    assert_eq!(client.close().wait(LONG).unwrap().kind, EndpointErrorKind::Closed);
    assert_eq!(pair.sunk.1.load(Ordering::Relaxed), 1800);
}

#[test]
fn an_idle_worker_hardly_wakes() {
    let pair = Pair::new(config(Mode::Hybrid));
    let connections: Vec<_> = (0..10).map(|_| pair.connect()).collect();
    std::thread::sleep(Duration::from_millis(500));
    let before = pair.server.stats().progress;
    std::thread::sleep(Duration::from_secs(2));
    let after = pair.server.stats().progress;
    let wakes = after.wakes.from_sleep() - before.wakes.from_sleep();
    assert!(wakes <= 40, "{wakes} wakes in two seconds of nothing");
    assert_eq!(after.missed_completions, 0);
    drop(connections);
}

/// Sends and echoes in tasks that nothing but `Worker::drive` drives.
async fn echo_in_tasks(mode: Mode) {
    let mut pair = Pair::new(config(mode));
    pair.stop_server();
    let (client_worker, server_worker) = (pair.client.clone(), pair.server.clone());
    let drivers = [
        tokio::spawn(async move { client_worker.drive().await }),
        tokio::spawn(async move { server_worker.drive().await }),
    ];
    let replies = pair.replies();
    let (client, server) = tokio::join!(
        pair.client.connect_async(pair.listener.local_addr()),
        pair.listener.accepted()
    );
    let client = client.unwrap();
    for i in 0..200_u32 {
        client
            .send(ECHO, &i.to_le_bytes(), &[5; 400])
            .unwrap()
            .await
            .unwrap();
    }
    while replies.len() < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let order: Vec<_> = replies.take().into_iter().map(|(header, _)| header).collect();
    assert!(
        order
            .into_iter()
            .eq((0..200_u32).map(|i| i.to_le_bytes().to_vec()))
    );
    assert_eq!(client.close().await.kind, EndpointErrorKind::Closed);
    assert!(matches!(
        server.closed().await.kind,
        EndpointErrorKind::PeerClosed(_)
    ));
    for driver in drivers {
        assert!(!driver.is_finished());
        driver.abort();
    }
}

#[tokio::test]
async fn a_current_thread_runtime_drives_in_event_mode() {
    tokio::time::timeout(LONG, echo_in_tasks(Mode::Event))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_current_thread_runtime_drives_in_hybrid_mode() {
    tokio::time::timeout(LONG, echo_in_tasks(Mode::Hybrid))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_thread_runtime_drives_in_every_mode() {
    for mode in [Mode::Event, Mode::Hybrid, Mode::Poll] {
        tokio::time::timeout(LONG, echo_in_tasks(mode)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_blocking_threads_may_share_a_worker() {
    let pair = Pair::new(config(Mode::Event));
    let worker = pair.client.clone();
    let driver = tokio::spawn(async move { worker.drive().await });
    let address = pair.listener.local_addr();
    let client = pair.client.connect_async(address).await.unwrap();
    let _server = pair.listener.accepted().await;
    let blocking = client.clone();
    let thread = std::thread::spawn(move || {
        for _ in 0..300 {
            blocking.send(SINK, &[], &[1; 50]).unwrap().wait(LONG).unwrap();
        }
    });
    for _ in 0..300 {
        tokio::time::timeout(LONG, client.send(SINK, &[], &[1; 50]).unwrap())
            .await
            .unwrap()
            .unwrap();
    }
    tokio::task::spawn_blocking(move || thread.join().unwrap())
        .await
        .unwrap();
    assert_eq!(client.close().await.kind, EndpointErrorKind::Closed);
    assert_eq!(pair.sunk.1.load(Ordering::Relaxed), 600);
    driver.abort();
}
