//! Random programs over a bad network: everything arrives once and in order, or both sides are told.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::time::Duration;

use adverb_types::Mtu;
use adverb_verbs::{QpState, SendFlags, SendOp, WcStatus};

use common::{End, Faults, Setup, World, remote, sge};

/// The memory of an end: what it sends from, what it receives into, what the peer writes, and a counter.
const SOURCE: u64 = 0;
const INBOX: u64 = 1 << 17;
const WRITTEN: u64 = 1 << 18;
const READ: u64 = 3 << 17;
const COUNTER: u64 = (1 << 19) - 8;
const MEMORY: usize = 1 << 19;
/// Room for one message.
const PLACE: u64 = 2048;
const OPERATIONS: u64 = 24;

/// One operation of a program, and where it lies in all regions.
#[derive(Clone, Copy, Debug)]
struct Operation {
    kind: u8,
    len: u32,
    flags: SendFlags,
}

impl Operation {
    fn random(random: &mut fastrand::Rng) -> Self {
        let kind = random.u8(0..7);
        let len = if kind >= 5 { 8 } else { random.u32(0..PLACE as u32) };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, random.u8(0..4) > 0);
        flags.set(SendFlags::FENCE, random.u8(0..4) == 0);
        flags.set(SendFlags::SOLICITED, random.bool());
        flags.set(SendFlags::INLINE, kind < 4 && len <= 512 && random.bool());
        Self { kind, len, flags }
    }

    fn takes_receive(&self) -> bool {
        matches!(self.kind, 0 | 1 | 3)
    }
}

fn program(random: &mut fastrand::Rng) -> Vec<Operation> {
    (0..OPERATIONS).map(|_| Operation::random(random)).collect()
}

/// What message `n` of `end` says at byte `i`.
fn byte(end: usize, n: u64, i: usize) -> u8 {
    (end as u8).wrapping_mul(101) ^ (n as u8).wrapping_mul(31) ^ (i as u8).wrapping_mul(7) ^ (i >> 8) as u8
}

fn fill(memory: &mut [u8], at: u64, end: usize, n: u64) {
    for (i, place) in memory[at as usize..][..PLACE as usize].iter_mut().enumerate() {
        *place = byte(end, n, i);
    }
}

fn holds(memory: &[u8], at: u64, len: u32, end: usize, n: u64) -> bool {
    memory[at as usize..][..len as usize]
        .iter()
        .enumerate()
        .all(|(i, found)| *found == byte(end, n, i))
}

fn post(end: &mut End, n: u64, operation: &Operation, inline: &[u8]) {
    let at = n * PLACE;
    let (source, target) = (SOURCE + at, remote(WRITTEN + at));
    let op = match operation.kind {
        0 => SendOp::Send,
        1 => SendOp::SendImm(n as u32),
        2 => SendOp::Write(target),
        3 => SendOp::WriteImm(target, n as u32),
        4 => SendOp::Read(remote(SOURCE + at)),
        5 => SendOp::FetchAdd {
            remote: remote(COUNTER),
            add: 1,
        },
        _ => SendOp::CompareSwap {
            remote: remote(COUNTER),
            compare: u64::MAX,
            swap: 0,
        },
    };
    let local = if operation.kind >= 4 { READ + at } else { source };
    if operation.flags.contains(SendFlags::INLINE) {
        end.post(n, op, &[], operation.flags, &inline[..operation.len as usize]);
    } else {
        // In two pieces, so that packets cross their border.
        let cut = operation.len / 3;
        let sges = [sge(local, cut), sge(local + u64::from(cut), operation.len - cut)];
        end.post(n, op, &sges, operation.flags, &[]);
    }
}

/// Runs random programs of both ends of `pairs` connections under `faults`, and says how many request packets were sent again.
fn run(seed: u64, pairs: usize, setup: &Setup, faults: Faults) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(pairs, setup, MEMORY, seed, faults);
    let programs: Vec<_> = (0..2 * pairs).map(|_| program(&mut random)).collect();
    for (i, end) in world.ends.iter_mut().enumerate() {
        for n in 0..OPERATIONS {
            fill(&mut end.host.memory.bytes, SOURCE + n * PLACE, i, n);
        }
    }
    let mut posted = vec![(0_u64, 0_u64); 2 * pairs];
    loop {
        // Sends and receives are posted in dribs and drabs, so that receives are missing at times.
        let mut done = true;
        for i in 0..2 * pairs {
            let (sends, receives) = &mut posted[i];
            let incoming = programs[i ^ 1]
                .iter()
                .filter(|operation| operation.takes_receive())
                .count() as u64;
            if *receives < incoming && random.u8(0..3) > 0 {
                world.ends[i].receive(*receives, INBOX + *receives * PLACE, PLACE as u32, setup.srq);
                *receives += 1;
            }
            if *sends < OPERATIONS && random.bool() {
                let n = *sends;
                let inline: Vec<u8> = (0..PLACE as usize).map(|j| byte(i, n, j)).collect();
                post(&mut world.ends[i], n, &programs[i][n as usize], &inline);
                *sends += 1;
            }
            done &= *sends == OPERATIONS && *receives == incoming;
            world.flush(i);
        }
        if done {
            break;
        }
        let until = world.now + Duration::from_micros(random.u64(1..200));
        while world.step(until) {}
    }
    world.settle(Duration::from_secs(3600));
    for i in 0..2 * pairs {
        check(seed, &world, i, &programs[i], &programs[i ^ 1]);
    }
    world.ends.iter().map(|end| end.rc.stats().resent).sum()
}

/// Holds end `i` to what its program and its peer's did.
fn check(seed: u64, world: &World, i: usize, program: &[Operation], peers: &[Operation]) {
    let (end, peer) = (&world.ends[i], &world.ends[i ^ 1]);
    let sent: Vec<_> = end.host.sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected: Vec<_> = (0..OPERATIONS)
        .zip(program)
        .filter(|(_, operation)| operation.flags.contains(SendFlags::SIGNALED))
        .map(|(n, _)| (n, WcStatus::Success))
        .collect();
    assert_eq!(
        sent, expected,
        "seed {seed}: completions of end {i}, {:?}",
        end.rc
    );
    let incoming: Vec<_> = (0..OPERATIONS)
        .zip(peers)
        .filter(|(_, operation)| operation.takes_receive())
        .collect();
    assert_eq!(
        end.host.received.len(),
        incoming.len(),
        "seed {seed}: receives of end {i}"
    );
    let memory = &end.host.memory.bytes;
    for (wc, (n, operation)) in end.host.received.iter().zip(incoming) {
        let imm = (operation.kind != 0).then_some(n as u32);
        assert_eq!(
            (wc.status, wc.byte_len, wc.imm),
            (WcStatus::Success, operation.len, imm),
            "seed {seed}"
        );
        assert_eq!(
            wc.solicited,
            operation.flags.contains(SendFlags::SOLICITED),
            "seed {seed}"
        );
        if operation.kind < 2 {
            let at = INBOX + wc.wr_id * PLACE;
            assert!(
                holds(memory, at, operation.len, i ^ 1, n),
                "seed {seed}: message {n} to end {i}"
            );
        }
    }
    for (n, operation) in (0..OPERATIONS).zip(peers) {
        if matches!(operation.kind, 2 | 3) {
            let at = WRITTEN + n * PLACE;
            assert!(
                holds(memory, at, operation.len, i ^ 1, n),
                "seed {seed}: WRITE {n} to end {i}"
            );
        }
    }
    let mut found = Vec::new();
    for (n, operation) in (0..OPERATIONS).zip(program) {
        let at = READ + n * PLACE;
        if operation.kind == 4 {
            assert!(
                holds(memory, at, operation.len, i ^ 1, n),
                "seed {seed}: READ {n} of end {i}"
            );
        } else if operation.kind >= 5 {
            let word = memory[at as usize..][..8].try_into().unwrap();
            found.push(u64::from_ne_bytes(word));
        }
    }
    // Each was carried out once, in order, and its answer is what it found.
    assert_eq!(
        found, peer.host.atomics,
        "seed {seed}: atomic operations of end {i}"
    );
}

fn setup(random: &mut fastrand::Rng) -> Setup {
    Setup {
        mtu: [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024][random.usize(0..3)],
        srq: random.bool(),
        max_rd_atomic: random.u8(1..6),
        psn: [0xff_fff0, 0, 0x7f_ffe0][random.usize(0..3)],
        ..Setup::default()
    }
}

/// Many retries, since here a connection may lose every tenth packet for as long as it lives.
fn faults(random: &mut fastrand::Rng) -> Faults {
    Faults {
        loss: random.f64() * 0.08,
        duplication: random.f64() * 0.2,
        reordering: random.f64() * 0.3,
        partition: None,
    }
}

/// Seeds from 0 on: so many, or those that `ADVERB_SEEDS=from..to` names.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let named = std::env::var("ADVERB_SEEDS").ok().and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    named.unwrap_or(0..default)
}

#[test]
fn whatever_the_network_does_everything_arrives_once_and_in_order() {
    let mut resent = 0;
    for seed in seeds(600) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (setup, faults) = (setup(&mut random), faults(&mut random));
        resent += run(seed, 1, &setup, faults);
    }
    assert!(resent > 0, "the network was not bad enough to test anything");
}

#[test]
fn a_good_network_makes_nobody_send_anything_twice() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let setup = Setup {
            srq: false,
            ..setup(&mut random)
        };
        let mut world = World::new(1, &setup, MEMORY, seed, Faults::default());
        for n in 0..OPERATIONS {
            world.ends[1].receive(n, INBOX + n * PLACE, PLACE as u32, false);
        }
        for (n, operation) in (0..OPERATIONS).zip(program(&mut random)) {
            post(&mut world.ends[0], n, &operation, &[0; PLACE as usize]);
        }
        world.settle(Duration::from_secs(10));
        let sent = &world.ends[0].host.sent;
        assert!(sent.len() > 10 && sent.iter().all(|wc| wc.status == WcStatus::Success));
        for end in &world.ends {
            let stats = end.rc.stats();
            // The last packet may be sent again, to ask for it.
            assert_eq!(
                (stats.resent, stats.timeouts, stats.naks),
                (0, 0, 0),
                "seed {seed}"
            );
            assert!(
                stats.tails <= 1 && stats.duplicates <= 1,
                "seed {seed}: {stats:?}"
            );
        }
    }
}

#[test]
fn a_thousand_queue_pairs_share_a_bad_network() {
    let faults = Faults {
        loss: 0.02,
        duplication: 0.02,
        reordering: 0.1,
        partition: None,
    };
    assert!(run(1, 500, &Setup::default(), faults) > 0);
}

#[test]
fn a_partition_ends_every_send_on_both_sides_with_an_error() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let setup = Setup {
            retry_cnt: random.u8(0..8),
            ..setup(&mut random)
        };
        let mut world = World::new(1, &setup, MEMORY, seed, Faults::default());
        world.network.faults.partition = Some(world.now + Duration::from_micros(random.u64(0..80)));
        for i in 0..2 {
            for n in 0..OPERATIONS {
                world.ends[i].receive(n, INBOX + n * PLACE, PLACE as u32, setup.srq);
            }
            for (n, mut operation) in (0..OPERATIONS).zip(program(&mut random)) {
                operation.flags |= SendFlags::SIGNALED;
                post(&mut world.ends[i], n, &operation, &[0; PLACE as usize]);
            }
        }
        world.settle(Duration::from_secs(3600));
        for end in &world.ends {
            let statuses: Vec<_> = end.host.sent.iter().map(|wc| wc.status).collect();
            assert_eq!(
                statuses.len() as u64,
                OPERATIONS,
                "seed {seed}: exactly one outcome each"
            );
            let good = statuses
                .iter()
                .take_while(|status| **status == WcStatus::Success)
                .count();
            if good < statuses.len() {
                assert_eq!(statuses[good], WcStatus::RetryExcErr, "seed {seed}");
                assert!(
                    statuses[good + 1..]
                        .iter()
                        .all(|status| *status == WcStatus::WrFlushErr)
                );
                assert_eq!(end.rc.state(), QpState::Err);
            }
        }
        let failed = world
            .ends
            .iter()
            .filter(|end| end.rc.state() == QpState::Err)
            .count();
        assert!(failed > 0, "seed {seed}");
    }
}
