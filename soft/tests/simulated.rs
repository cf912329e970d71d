//! Devices on a network that loses, repeats, reorders and corrupts packets, stepped by one thread.

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use adverb_soft::{SimBottleneck, SimFaults, SimNetwork, SoftConfig, SoftProvider};
    use adverb_verbs::{AsyncEventKind, QpModify, SendFlags, SendOp, WcStatus};

    use crate::common::{DEPTH, End, Link, pair};

    const STEP: Duration = Duration::from_micros(20);

    fn network(faults: SimFaults) -> (SimNetwork, SoftProvider) {
        let network = SimNetwork::new(faults);
        let provider = SoftProvider::simulated(SoftConfig::default(), &network);
        (network, provider)
    }

    /// The `i`th message: between none and many packets long, and no two alike.
    fn message(i: u32) -> Vec<u8> {
        let len = [0, 1, 8, 1023, 1024, 1025, 5000][i as usize % 7];
        (0..len).map(|at| (i.wrapping_mul(31) ^ at) as u8).collect()
    }

    /// Sends `count` messages from each end to the other, and gives what each received and how long it took.
    fn exchange(network: &SimNetwork, a: &mut End, b: &mut End, count: u32) -> [Vec<Vec<u8>>; 2] {
        let mut ends = [a, b];
        let (mut posted, mut done) = ([0; 2], [0; 2]);
        let mut got = [Vec::new(), Vec::new()];
        let limit = network.elapsed() + Duration::from_secs(60);
        while done != [count; 2] || got.iter().any(|got| got.len() < count as usize) {
            assert!(
                network.elapsed() < limit,
                "sent {done:?} of {count}, received {}, {}",
                got[0].len(),
                got[1].len()
            );
            for (side, end) in ends.iter_mut().enumerate() {
                end.receive(end.rq.free());
                while posted[side] < count && end.sq.free() > 0 {
                    end.send(&message(posted[side]), SendFlags::SIGNALED);
                    posted[side] += 1;
                }
                for status in end.sent() {
                    assert_eq!(status, WcStatus::Success);
                    done[side] += 1;
                }
                got[side].extend(end.received());
            }
            network.advance(STEP);
        }
        got
    }

    #[test]
    fn every_message_arrives_once_and_in_order_whatever_the_network_does() {
        for seed in 0..20 {
            let faults = SimFaults::default()
                .seed(seed)
                .loss(0.03)
                .duplication(0.03)
                .reordering(0.05)
                .corruption(0.03);
            let (network, provider) = network(faults);
            let (mut a, mut b) = pair(&provider, Link::default());
            let expected: Vec<_> = (0..200).map(message).collect();
            for got in exchange(&network, &mut a, &mut b, 200) {
                assert!(got == expected, "seed {seed}");
            }
            let counters = b.soft().counters();
            assert!(counters.bad_icrc > 0, "seed {seed}: {counters:?}");
        }
    }

    #[test]
    fn writes_reads_and_atomics_hold_on_a_bad_network_too() {
        let faults = SimFaults::default()
            .seed(3)
            .loss(0.05)
            .reordering(0.05)
            .corruption(0.02);
        let (network, provider) = network(faults);
        let (mut a, b) = pair(&provider, Link::default());
        let (counter, board) = (b.region(8), b.region(5000));
        let finish = |a: &mut End, n: usize| {
            let mut statuses = Vec::new();
            for _ in 0..1_000_000 {
                network.advance(STEP);
                statuses.extend(a.sent());
                if statuses.len() == n {
                    break;
                }
            }
            assert_eq!(statuses, vec![WcStatus::Success; n]);
        };
        for i in 1..=200u64 {
            let add = SendOp::FetchAdd {
                remote: counter.remote_addr(0),
                add: i,
            };
            a.post(add, &[0; 8], SendFlags::SIGNALED);
            a.post(
                SendOp::Write(board.remote_addr(0)),
                &[i as u8; 5000],
                SendFlags::SIGNALED,
            );
            a.post(
                SendOp::Read(board.remote_addr(0)),
                &[0; 5000],
                SendFlags::SIGNALED,
            );
            finish(&mut a, 3);
            // Exactly once each, although requests and answers were lost.
            assert_eq!(counter.load_u64(0).unwrap(), i * (i + 1) / 2);
            let mut bytes = vec![0; 5000];
            board.read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == i as u8));
        }
    }

    #[test]
    fn a_network_that_loses_everything_is_noticed_in_virtual_time() {
        let (network, provider) = network(SimFaults::default().loss(1.0));
        let (mut a, _b) = pair(&provider, Link::default());
        a.send(b"into the void", SendFlags::empty());
        network.advance(Duration::from_millis(17 * 7 - 5));
        assert_eq!(a.sent(), [], "7 timeouts of 17 ms are not over");
        network.advance(Duration::from_millis(17 * 7 * 4));
        assert_eq!(a.sent(), [WcStatus::RetryExcErr]);
    }

    #[test]
    fn one_thread_and_one_seed_do_the_same_each_time() {
        let run = |seed| {
            let faults = SimFaults::default().seed(seed).loss(0.1).reordering(0.1);
            let (network, provider) = network(faults);
            let (mut a, mut b) = pair(&provider, Link::default());
            exchange(&network, &mut a, &mut b, 100);
            (network.elapsed(), a.soft().counters(), b.soft().counters())
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn armed_queues_are_rung_while_time_passes() {
        let (network, provider) = network(SimFaults::default());
        let (mut a, mut b) = pair(&provider, Link::default());
        b.receive(DEPTH as usize);
        b.recv_cq.req_notify(true).unwrap();
        a.send(b"quiet", SendFlags::empty());
        network.advance(Duration::from_millis(1));
        assert_eq!(b.channel.next_event().unwrap(), None);
        a.send(b"loud", SendFlags::SOLICITED);
        network.advance(Duration::from_millis(1));
        assert!(b.channel.next_event().unwrap().is_some());
        assert_eq!(b.received(), [b"quiet".to_vec(), b"loud".to_vec()]);
    }

    #[test]
    fn a_peer_that_goes_while_a_message_waits_for_its_receive_is_noticed() {
        let ways: [fn(End); 3] = [
            |end| drop(end),
            |end| end.qp.modify(&QpModify::Err).unwrap(),
            |end| end.qp.modify(&QpModify::Reset).unwrap(),
        ];
        for go in ways {
            let (network, provider) = network(SimFaults::default());
            let (mut a, b) = pair(&provider, Link::default());
            a.send(b"patience", SendFlags::empty());
            network.advance(Duration::from_millis(100));
            assert_eq!(a.sent(), [], "it waits for ever, as `rnr_retry` is 7");
            go(b);
            network.advance(Duration::from_secs(2));
            assert_eq!(a.sent(), [WcStatus::RetryExcErr]);
        }
    }

    #[test]
    fn providers_of_one_network_reach_each_other() {
        use adverb_verbs::Provider;
        let (network, one) = network(SimFaults::default());
        let another = SoftProvider::simulated(SoftConfig::default(), &network);
        let end = |provider: &SoftProvider| End::new(provider.open("soft0").unwrap());
        let (mut a, mut b) = (end(&one), end(&another));
        a.connect(&b, Link::default());
        b.connect(&a, Link::default());
        b.receive(1);
        a.send(b"hello", SendFlags::SIGNALED);
        network.advance(Duration::from_millis(1));
        assert_eq!(b.received(), [b"hello".to_vec()]);
        assert_eq!(a.sent(), [WcStatus::Success]);
    }

    #[test]
    fn the_peers_first_packet_is_told_while_the_queue_pair_only_receives() {
        let (network, provider) = network(SimFaults::default());
        let end = || {
            use adverb_verbs::Provider;
            End::new(provider.open("soft0").unwrap())
        };
        let (mut a, mut b) = (end(), end());
        b.to_rtr(a.place(), Link::default()).unwrap();
        b.receive(1);
        a.connect(&b, Link::default());
        a.send(b"hello", SendFlags::SIGNALED);
        network.advance(Duration::from_millis(1));
        let event = b.device.next_async_event().unwrap().unwrap();
        assert_eq!(event.kind, AsyncEventKind::CommEst);
        assert_eq!(b.received(), [b"hello".to_vec()]);
        assert_eq!(a.sent(), [WcStatus::Success]);
    }

    /// Packets, when all messages have come through a bottleneck.
    #[derive(Clone, Copy, Debug)]
    struct Toll {
        dropped: u64,
        sent: u64,
        marked: u64,
        notified: u64,
    }

    /// From two devices to one, through its port.
    fn incast(bottleneck: SimBottleneck) -> Toll {
        const MESSAGES: u32 = 1000;
        let (network, provider) = network(SimFaults::default().bottleneck(bottleneck));
        let mut pairs: Vec<_> = {
            use adverb_verbs::Provider;
            let sink = provider.open("soft0").unwrap();
            let pair = |_| {
                let (a, b) = (End::new(provider.open("soft0").unwrap()), End::new(sink.clone()));
                a.connect(&b, Link::default());
                b.connect(&a, Link::default());
                (a, b)
            };
            (0..2).map(pair).collect()
        };
        let data = vec![7; 8192];
        let mut counts = [(0, 0); 2];
        while counts.iter().any(|(_, arrived)| *arrived < MESSAGES) {
            assert!(network.elapsed() < Duration::from_secs(60), "{counts:?}");
            for ((a, b), (posted, arrived)) in pairs.iter_mut().zip(&mut counts) {
                b.receive(b.rq.free());
                while *posted < MESSAGES && a.sq.free() > 0 {
                    a.send(&data, SendFlags::SIGNALED);
                    *posted += 1;
                }
                assert!(a.sent().iter().all(|status| *status == WcStatus::Success));
                *arrived += b.received().len() as u32;
            }
            network.advance(STEP);
        }
        let senders: Vec<_> = pairs.iter().map(|(a, _)| a.soft().counters()).collect();
        Toll {
            dropped: network.dropped(),
            sent: senders.iter().map(|counters| counters.sent).sum(),
            notified: senders.iter().map(|counters| counters.notified).sum(),
            marked: pairs[0].1.soft().counters().marked,
        }
    }

    #[test]
    fn a_switch_that_marks_has_to_drop_less_and_less_is_sent_again() {
        // 1 Gbit/s, with 64 KiB to queue in.
        let port = SimBottleneck::new(125_000_000, 64 << 10);
        let (plain, marking) = (incast(port), incast(port.mark_above(16 << 10)));
        println!("{plain:?}\n{marking:?}");
        assert_eq!((plain.marked, plain.notified), (0, 0));
        assert!(marking.marked > 0 && marking.notified > 0, "{marking:?}");
        assert!(plain.dropped > 0, "it is a bottleneck: {plain:?}");
        assert!(marking.dropped * 4 < plain.dropped, "{marking:?} {plain:?}");
        assert!(marking.sent < plain.sent, "{marking:?} {plain:?}");
    }

    #[test]
    fn a_sender_whose_way_is_free_again_gets_as_fast_as_it_was() {
        let (network, provider) = network(SimFaults::default());
        let (mut a, mut b) = pair(&provider, Link::default());
        let mut run = |faults: SimFaults| {
            network.set_faults(faults);
            let start = network.elapsed();
            exchange(&network, &mut a, &mut b, 400);
            network.elapsed() - start
        };
        let before = run(SimFaults::default());
        run(SimFaults::default().bottleneck(SimBottleneck::new(125_000_000, 1 << 20).mark_above(2048)));
        let after = [run(SimFaults::default()), run(SimFaults::default())];
        assert!(after[1] <= before * 3 / 2, "{before:?} {after:?}");
        assert!(a.soft().counters().notified > 0);
    }
}
