//! One story each, packet by packet where it matters.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::time::Duration;

use adverb_roce::{Aeth, Opcode, Packet, PostRefused, Syndrome, Work};
use adverb_types::{Psn, Qpn, Rkey};
use adverb_verbs::{
    Access, AsyncEventKind, QpModify, QpState, RemoteAddr, SendFlags, SendOp, WcOpcode, WcStatus,
};

use common::{Setup, World, remote, sge};

const LIMIT: Duration = Duration::from_secs(60);
const INBOX: u64 = 1 << 18;

fn statuses(world: &World, i: usize) -> Vec<WcStatus> {
    world.ends[i].host.sent.iter().map(|wc| wc.status).collect()
}

fn received(world: &World, i: usize) -> Vec<WcStatus> {
    world.ends[i].host.received.iter().map(|wc| wc.status).collect()
}

/// Loses the packets with these numbers, counted from 0 over those that `of` names.
fn lose(world: &mut World, of: fn(Opcode) -> bool, numbers: &'static [usize]) {
    let mut count = 0;
    world.network.loses = Some(Box::new(move |packet| {
        if !of(packet.opcode) {
            return false;
        }
        count += 1;
        numbers.contains(&(count - 1))
    }));
}

#[test]
fn a_message_of_many_packets_arrives_whole_and_completes_on_both_sides() {
    let mut world = World::pair(&Setup::default());
    world.ends[0].host.memory.bytes[..5000].fill(0xa5);
    world.ends[1].receive(9, INBOX, 5000, false);
    world.ends[0].send(1, SendOp::SendImm(77), 0, 5000);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    let wc = world.ends[1].host.received[0];
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.byte_len, wc.imm),
        (9, WcOpcode::Recv, 5000, Some(77))
    );
    assert!(
        world.ends[1].host.memory.bytes[INBOX as usize..][..5000]
            .iter()
            .all(|byte| *byte == 0xa5)
    );
}

#[test]
fn a_lost_packet_is_asked_for_and_nobody_waits_for_the_timer() {
    let mut world = World::pair(&Setup::default());
    lose(&mut world, |opcode| !opcode.is_response(), &[5]);
    world.ends[1].receive(0, INBOX, 5000, false);
    world.ends[0].send(1, SendOp::Send, 0, 5000);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    let stats = world.ends[0].rc.stats();
    assert_eq!((stats.naks, stats.timeouts), (1, 0));
    assert!(world.ends[1].rc.stats().out_of_order > 0);
}

#[test]
fn a_lost_response_is_noticed_by_the_next_and_only_the_rest_is_read_again() {
    let mut world = World::pair(&Setup::default());
    world.ends[1].host.memory.bytes[..5000].fill(0x5a);
    lose(&mut world, Opcode::is_response, &[7]);
    world.ends[0].send(1, SendOp::Read(remote(0)), INBOX, 5000);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    assert!(
        world.ends[0].host.memory.bytes[INBOX as usize..][..5000]
            .iter()
            .all(|byte| *byte == 0x5a)
    );
    assert_eq!(world.ends[0].rc.stats().timeouts, 0);
    assert_eq!(world.ends[1].rc.stats().duplicates, 1);
}

#[test]
fn an_acknowledgement_behind_a_lost_response_says_that_it_was_lost() {
    let mut world = World::pair(&Setup::default());
    lose(&mut world, |opcode| opcode == Opcode::ReadResponseOnly, &[0]);
    world.ends[0].send(1, SendOp::Read(remote(0)), INBOX, 8);
    world.ends[0].send(2, SendOp::Write(remote(64)), 0, 8);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success; 2]);
    assert_eq!(world.ends[0].rc.stats().timeouts, 0);
}

#[test]
fn a_lost_last_packet_is_sent_again_after_the_timeout() {
    let mut world = World::pair(&Setup::default());
    lose(&mut world, |opcode| !opcode.is_response(), &[0]);
    world.ends[1].receive(0, INBOX, 8, false);
    world.ends[0].send(1, SendOp::Send, 0, 8);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    assert_eq!(world.ends[0].rc.stats().timeouts, 1);
}

#[test]
fn a_peer_that_is_gone_is_given_up_after_the_retries_with_longer_and_longer_waits() {
    for retry_cnt in [0, 1, 3, 7] {
        let mut world = World::pair(&Setup {
            retry_cnt,
            ..Setup::default()
        });
        world.network.faults.partition = Some(world.now);
        world.ends[0].send(1, SendOp::Send, 0, 8);
        world.ends[0].send(2, SendOp::Send, 0, 8);
        world.flush(0);
        let mut end = world.now;
        while world.step(world.start + LIMIT) {
            if world.ends[0].rc.state() == QpState::Rts {
                continue;
            }
            end = world.now;
            break;
        }
        assert_eq!(statuses(&world, 0), [WcStatus::RetryExcErr, WcStatus::WrFlushErr]);
        assert_eq!(world.ends[0].rc.stats().timeouts, u64::from(retry_cnt));
        // 4.096 µs × 2^8, then twice and four times as long.
        let waits: u32 = (0..=u32::from(retry_cnt)).map(|n| 1 << n.min(2)).sum();
        assert_eq!(end - world.start, Duration::from_nanos(4096 << 8) * waits);
    }
}

#[test]
fn progress_gives_all_retries_back() {
    let mut world = World::pair(&Setup {
        retry_cnt: 1,
        ..Setup::default()
    });
    // Every second request is lost, so that each takes a retry.
    let mut count = 0;
    world.network.loses = Some(Box::new(move |packet| {
        count += u32::from(!packet.opcode.is_response());
        !packet.opcode.is_response() && count % 2 == 1
    }));
    for n in 0..20 {
        world.ends[1].receive(n, INBOX, 8, false);
        world.ends[0].send(n, SendOp::Send, 0, 8);
        world.settle(LIMIT);
    }
    assert_eq!(statuses(&world, 0), [WcStatus::Success; 20]);
}

#[test]
fn a_missing_receive_is_waited_for_and_given_up_as_asked() {
    for rnr_retry in [0, 2, 6] {
        let mut world = World::pair(&Setup {
            rnr_retry,
            ..Setup::default()
        });
        world.ends[0].send(1, SendOp::Send, 0, 8);
        world.settle(LIMIT);
        assert_eq!(statuses(&world, 0), [WcStatus::RnrRetryExcErr]);
        assert_eq!(world.ends[0].rc.stats().rnr_naks, u64::from(rnr_retry) + 1);
        assert_eq!(world.ends[1].rc.state(), QpState::Rts);
    }
    let mut world = World::pair(&Setup::default());
    world.ends[0].send(1, SendOp::Send, 0, 8);
    world.settle(Duration::from_millis(10));
    assert!(world.ends[0].rc.stats().rnr_naks > 20, "7 is for ever");
    world.ends[1].receive(0, INBOX, 8, false);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    assert_eq!(world.ends[0].rc.stats().timeouts, 0);
}

#[test]
fn a_receive_that_is_too_short_ends_the_connection_on_both_sides() {
    let mut world = World::pair(&Setup::default());
    world.ends[1].receive(5, INBOX, 700, false);
    world.ends[1].receive(6, INBOX, 700, false);
    world.ends[0].send(1, SendOp::Send, 0, 701);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::RemInvReqErr]);
    assert_eq!(received(&world, 1), [WcStatus::LocLenErr, WcStatus::WrFlushErr]);
    assert_eq!(world.ends[1].rc.state(), QpState::Err);
}

#[test]
fn memory_that_a_key_does_not_cover_is_neither_read_nor_written() {
    let wrong_key = RemoteAddr {
        addr: 0,
        rkey: Rkey::new(99),
    };
    let beyond = remote((1 << 20) - 4);
    for op in [
        SendOp::Write(wrong_key),
        SendOp::WriteImm(beyond, 1),
        SendOp::Read(wrong_key),
        SendOp::Read(beyond),
        SendOp::FetchAdd {
            remote: wrong_key,
            add: 1,
        },
    ] {
        let mut world = World::pair(&Setup::default());
        world.ends[1].receive(0, INBOX, 8, false);
        world.ends[0].send(1, op, 0, 8);
        world.settle(LIMIT);
        assert_eq!(statuses(&world, 0), [WcStatus::RemAccessErr], "{op:?}");
        assert_eq!(world.ends[1].host.events, [AsyncEventKind::QpAccessErr]);
        assert_eq!(
            received(&world, 1),
            [WcStatus::WrFlushErr],
            "the receive was not used up"
        );
        assert!(world.ends[1].host.memory.bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_the_queue_pair_does_not_permit_is_an_invalid_request() {
    let ops = [
        (Access::REMOTE_WRITE, SendOp::Write(remote(0))),
        (Access::REMOTE_READ, SendOp::Read(remote(0))),
        (
            Access::REMOTE_ATOMIC,
            SendOp::FetchAdd {
                remote: remote(0),
                add: 1,
            },
        ),
    ];
    for (right, op) in ops {
        let mut world = World::pair(&Setup {
            access: Access::all() - right,
            ..Setup::default()
        });
        world.ends[0].send(1, op, 0, 8);
        world.settle(LIMIT);
        assert_eq!(statuses(&world, 0), [WcStatus::RemInvReqErr], "{op:?}");
        assert_eq!(world.ends[1].host.events, [AsyncEventKind::QpReqErr]);
    }
    // An atomic operation on a word that is not aligned.
    let mut world = World::pair(&Setup::default());
    let op = SendOp::FetchAdd {
        remote: remote(4),
        add: 1,
    };
    world.ends[0].send(1, op, 0, 8);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::RemInvReqErr]);
}

#[test]
fn local_memory_that_is_not_registered_fails_after_what_was_sent_before() {
    let mut world = World::pair(&Setup::default());
    for n in 0..3 {
        world.ends[1].receive(n, INBOX, 1000, false);
    }
    world.ends[0].send(1, SendOp::Send, 0, 1000);
    let outside = 1 << 20;
    world.ends[0].send(2, SendOp::Send, outside, 1000);
    world.ends[0].send(3, SendOp::Send, 0, 1000);
    world.settle(LIMIT);
    assert_eq!(
        statuses(&world, 0),
        [WcStatus::Success, WcStatus::LocProtErr, WcStatus::WrFlushErr]
    );
    assert_eq!(world.ends[0].rc.stats().timeouts, 0);

    let mut world = World::pair(&Setup::default());
    world.ends[0].send(1, SendOp::Read(remote(0)), outside, 8);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::LocProtErr]);
}

#[test]
fn a_region_that_goes_away_while_it_is_read_ends_the_read() {
    let mut world = World::pair(&Setup::default());
    world.ends[0].send(1, SendOp::Read(remote(0)), INBOX, 20_000);
    world.flush(0);
    // The request arrives, and nothing more.
    world.step(world.now + Duration::from_micros(10));
    world.ends[1].host.memory.registered = false;
    world.ends[0].send(2, SendOp::Read(remote(0)), INBOX, 20_000);
    world.settle(LIMIT);
    assert_eq!(
        statuses(&world, 0)[..],
        [WcStatus::Success, WcStatus::RemAccessErr]
    );
}

#[test]
fn reads_under_way_are_never_more_than_agreed() {
    let mut world = World::pair(&Setup {
        max_rd_atomic: 2,
        ..Setup::default()
    });
    for n in 0..5 {
        world.ends[0].send(n, SendOp::Read(remote(0)), INBOX, 8);
    }
    world.flush(0);
    assert_eq!(world.network.sent, 2);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success; 5]);

    let mut world = World::pair(&Setup {
        max_rd_atomic: 0,
        ..Setup::default()
    });
    world.ends[0].send(1, SendOp::Read(remote(0)), INBOX, 8);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::LocQpOpErr]);
}

#[test]
fn a_fenced_request_waits_for_the_reads_before_it() {
    let mut world = World::pair(&Setup::default());
    world.ends[0].send(1, SendOp::Read(remote(0)), INBOX, 8);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    world.ends[0].post(2, SendOp::Write(remote(0)), &[sge(64, 8)], flags, &[]);
    world.flush(0);
    assert_eq!(world.network.sent, 1);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success; 2]);
}

#[test]
fn a_burst_of_unsignaled_messages_costs_an_acknowledgement_in_sixteen() {
    let mut world = World::pair(&Setup::default());
    for n in 0..64 {
        world.ends[1].receive(n, INBOX, 8, false);
        let flags = if n == 63 {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        world.ends[0].post(n, SendOp::Send, &[], flags | SendFlags::INLINE, b"8 bytes!");
    }
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    assert_eq!(received(&world, 1).len(), 64);
    // 64 requests; one answer each 16, and one when the window was full.
    assert!(world.network.sent <= 64 + 6, "{} packets", world.network.sent);
}

#[test]
fn a_dialogue_costs_one_packet_a_message_and_asks_when_it_pauses() {
    let mut world = World::pair(&Setup::default());
    for n in 0..10 {
        for i in [0, 1] {
            world.ends[i ^ 1].receive(n, INBOX, 8, false);
            world.ends[i].post(n, SendOp::Send, &[], SendFlags::INLINE, b"8 bytes!");
            world.flush(i);
            // The packet arrives.
            assert!(world.step(world.now + Duration::from_micros(10)));
        }
    }
    assert_eq!(world.network.sent, 20);
    assert_eq!((received(&world, 0).len(), received(&world, 1).len()), (10, 10));
    // Then each side sends its last one again, and is answered.
    world.settle(LIMIT);
    assert_eq!(world.network.sent, 24);
    for end in &world.ends {
        assert_eq!((end.rc.stats().tails, end.rc.stats().timeouts), (1, 0));
    }
}

#[test]
fn the_last_packet_of_a_burst_that_is_lost_is_sent_again_soon_and_takes_no_retry() {
    let mut world = World::pair(&Setup {
        retry_cnt: 0,
        ..Setup::default()
    });
    lose(&mut world, |opcode| !opcode.is_response(), &[0]);
    world.ends[1].receive(0, INBOX, 8, false);
    world.ends[0].post(1, SendOp::Send, &[], SendFlags::INLINE, b"8 bytes!");
    world.settle(LIMIT);
    assert_eq!(received(&world, 1), [WcStatus::Success]);
    assert_eq!(world.ends[0].rc.stats().timeouts, 0);
}

#[test]
fn a_drained_send_queue_says_so_keeps_new_work_and_goes_on() {
    let mut world = World::pair(&Setup::default());
    world.ends[1].receive(0, INBOX, 8, false);
    world.ends[1].receive(1, INBOX, 8, false);
    world.ends[0].send(1, SendOp::Send, 0, 8);
    world.flush(0);
    world.ends[0].modify(&QpModify::Sqd { notify: true });
    world.ends[0].send(2, SendOp::Send, 0, 8);
    assert!(
        world.ends[0].host.events.is_empty(),
        "the first is still under way"
    );
    world.settle(LIMIT);
    assert_eq!(world.ends[0].host.events, [AsyncEventKind::SqDrained]);
    assert_eq!(statuses(&world, 0), [WcStatus::Success]);
    world.ends[0].modify(&QpModify::Resume);
    world.settle(LIMIT);
    assert_eq!(statuses(&world, 0), [WcStatus::Success; 2]);
}

#[test]
fn an_error_flushes_everything_in_order_and_what_is_posted_later_at_once() {
    let mut world = World::pair(&Setup::default());
    world.ends[0].receive(10, INBOX, 8, false);
    world.ends[0].receive(11, INBOX, 8, false);
    world.ends[0].send(1, SendOp::Send, 0, 8);
    world.ends[0].post(2, SendOp::Send, &[sge(0, 8)], SendFlags::empty(), &[]);
    world.ends[0].modify(&QpModify::Err);
    let end = &mut world.ends[0];
    let ids: Vec<u64> = end.host.sent.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2], "unsignaled ones are flushed with a completion, too");
    let ids: Vec<u64> = end.host.received.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [10, 11]);
    end.send(3, SendOp::Send, 0, 8);
    end.receive(12, INBOX, 8, false);
    assert_eq!((end.host.sent.len(), end.host.received.len()), (3, 3));
    assert!(
        statuses(&world, 0)
            .iter()
            .all(|status| *status == WcStatus::WrFlushErr)
    );
    world.settle(LIMIT);
    assert_eq!(world.network.sent, 0);
}

#[test]
fn a_reset_forgets_everything_and_the_queue_pair_can_be_used_again() {
    let setup = Setup::default();
    let mut world = World::pair(&setup);
    world.ends[0].send(1, SendOp::Send, 0, 8);
    world.ends[0].receive(2, INBOX, 8, false);
    world.ends[0].modify(&QpModify::Reset);
    assert_eq!(world.ends[0].rc.state(), QpState::Reset);
    assert!(world.ends[0].host.sent.is_empty() && world.ends[0].host.received.is_empty());
    assert_eq!(
        (world.ends[0].rc.peer(), world.ends[0].rc.poll_timeout()),
        (None, None)
    );
}

#[test]
fn the_last_receive_of_a_shared_queue_is_announced_once() {
    let mut world = World::pair(&Setup {
        srq: true,
        ..Setup::default()
    });
    world.ends[0].modify(&QpModify::Err);
    world.ends[0].modify(&QpModify::Err);
    assert_eq!(world.ends[0].host.events, [AsyncEventKind::QpLastWqeReached]);
}

#[test]
fn answers_to_what_was_never_sent_are_ignored() {
    let mut world = World::pair(&Setup::default());
    world.ends[0].send(1, SendOp::Send, 0, 8);
    world.flush(0);
    let end = &mut world.ends[0];
    for (ahead, syndrome) in [
        (1, Syndrome::Ack(0)),
        (0x7f_0000, Syndrome::Ack(0)),
        (0xff_ffff, Syndrome::RnrNak(1)),
        (2, Syndrome::Nak(adverb_roce::Nak::RemoteAccess)),
    ] {
        let psn = Psn::new(Setup::default().psn).add(ahead);
        let mut packet = Packet::new(Opcode::Acknowledge, Qpn::truncating(16), psn);
        packet.aeth = Some(Aeth { syndrome, msn: 0 });
        end.rc.handle_packet(world.now, &packet, &mut end.host);
    }
    let mut response = Packet::new(
        Opcode::ReadResponseOnly,
        Qpn::truncating(16),
        Psn::new(Setup::default().psn),
    );
    response.payload = &[1; 8];
    end.rc.handle_packet(world.now, &response, &mut end.host);
    assert!(end.host.sent.is_empty());
    assert_eq!(end.rc.state(), QpState::Rts);
}

#[test]
fn a_response_of_the_wrong_length_is_a_bad_response() {
    let mut world = World::pair(&Setup::default());
    world.ends[0].send(1, SendOp::Read(remote(0)), INBOX, 8);
    world.flush(0);
    let end = &mut world.ends[0];
    let mut packet = Packet::new(
        Opcode::ReadResponseOnly,
        Qpn::truncating(16),
        Psn::new(Setup::default().psn),
    );
    packet.payload = &[1; 12];
    end.rc.handle_packet(world.now, &packet, &mut end.host);
    assert_eq!(statuses(&world, 0), [WcStatus::BadRespErr]);
}

#[test]
fn a_post_that_is_not_valid_is_refused() {
    let mut world = World::pair(&Setup::default());
    let end = &mut world.ends[0];
    let mut post = |op, flags, sges: &[adverb_verbs::Sge], inline: &[u8]| {
        let work = Work {
            wr_id: 0,
            op,
            flags,
            sges,
            inline,
        };
        end.rc.post_send(&work, &mut end.host)
    };
    let invalid = Err(PostRefused::Invalid);
    assert_eq!(
        post(SendOp::Send, SendFlags::empty(), &[sge(0, 1); 5], &[]),
        invalid
    );
    assert_eq!(post(SendOp::Send, SendFlags::INLINE, &[], &[0; 513]), invalid);
    assert_eq!(
        post(SendOp::Read(remote(0)), SendFlags::INLINE, &[], &[]),
        invalid
    );
    let add = SendOp::FetchAdd {
        remote: remote(0),
        add: 1,
    };
    assert_eq!(post(add, SendFlags::empty(), &[sge(0, 4)], &[]), invalid);
    for _ in 0..1 << 14 {
        post(SendOp::Send, SendFlags::empty(), &[], &[]).unwrap();
    }
    assert_eq!(
        post(SendOp::Send, SendFlags::empty(), &[], &[]),
        Err(PostRefused::Full)
    );
    end.modify(&QpModify::Reset);
    let work = Work {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        sges: &[],
        inline: &[],
    };
    assert_eq!(end.rc.post_send(&work, &mut end.host), invalid);
}

#[test]
fn marked_packets_are_told_to_their_sender_who_goes_on_slower() {
    const MESSAGE: u32 = 200_000;
    let times = [false, true].map(|marked| {
        let mut world = World::pair(&Setup::default());
        world.ends[1].receive(0, INBOX, MESSAGE, false);
        world.ends[0].send(1, SendOp::Send, 0, MESSAGE);
        let until = world.now + LIMIT;
        for i in 0..2 {
            world.flush(i);
        }
        while statuses(&world, 0).is_empty() && world.step(until) {
            if marked {
                world.ends[1].rc.handle_congestion(world.now);
                world.flush(1);
            }
        }
        assert_eq!(statuses(&world, 0), [WcStatus::Success]);
        let (sender, receiver) = (world.ends[0].rc.stats(), world.ends[1].rc.stats());
        assert_eq!((sender.resent, receiver.out_of_order), (0, 0));
        assert_eq!(receiver.cnps_sent, sender.cnps);
        assert_eq!((receiver.cnps, sender.cnps_sent), (0, 0));
        assert_eq!(sender.cnps > 0, marked);
        let took = world.now - world.start;
        // The one at the start, and one each 50 µs.
        assert!(
            u128::from(sender.cnps) <= took.as_micros() / 50 + 1,
            "{sender:?} in {took:?}"
        );
        took
    });
    assert!(times[1] > times[0] * 2, "{times:?}");
}

#[test]
fn a_congestion_notification_is_no_request_and_no_answer() {
    let mut world = World::pair(&Setup::default());
    let (now, end) = (world.now, &mut world.ends[1]);
    let packet = Packet::new(Opcode::CongestionNotification, Qpn::truncating(17), Psn::new(0));
    end.rc.handle_packet(now, &packet, &mut end.host);
    assert!(!end.rc.poll_transmit(now, &mut Vec::new(), &mut end.host));
    assert_eq!((end.rc.stats().cnps, end.rc.state()), (1, QpState::Rts));
    // And a queue pair that is not connected any more tells nobody.
    end.modify(&QpModify::Err);
    end.rc.handle_congestion(now);
    assert!(!end.rc.poll_transmit(now, &mut Vec::new(), &mut end.host));
}
