//! A peer that sends whatever it likes: nothing panics, nothing is answered without end, and every work request still ends exactly once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use adverb_roce::{Aeth, AtomicEth, Completion, Nak, Opcode, Packet, Reth, Syndrome};
use adverb_types::{Psn, Qpn, Rkey};
use adverb_verbs::{QpModify, SendFlags, SendOp};
use proptest::prelude::*;

use common::{KEY, Setup, World, remote, sge};

/// What happens to a queue pair.
#[derive(Clone, Debug)]
enum Happening {
    Send { kind: u8, len: u32, flags: u8 },
    Receive { len: u32 },
    Packet(Wild),
    Time { micros: u64 },
    Drain,
    Resume,
}

/// A packet, most of the time one that could be meant for the queue pair.
#[derive(Clone, Debug)]
struct Wild {
    code: u8,
    /// From the first PSN on, forwards or backwards.
    ahead: i16,
    far: bool,
    payload: usize,
    syndrome: u8,
    addr: u64,
    length: u32,
    key: u8,
    bits: (bool, bool),
}

fn wild() -> impl Strategy<Value = Wild> {
    (
        0_u8..0x18,
        prop_oneof![4 => -2_i16..20, 1 => any::<i16>()],
        prop::bool::weighted(0.02),
        prop_oneof![2 => Just(256_usize), 1 => 0_usize..256, 1 => 257_usize..600],
        0_u8..40,
        prop_oneof![3 => 0_u64..1 << 20, 1 => any::<u64>()],
        prop_oneof![3 => 0_u32..3000, 1 => any::<u32>()],
        prop_oneof![4 => Just(KEY as u8), 1 => any::<u8>()],
        any::<(bool, bool)>(),
    )
        .prop_map(
            |(code, ahead, far, payload, syndrome, addr, length, key, bits)| Wild {
                code,
                ahead,
                far,
                payload,
                syndrome,
                addr,
                length,
                key,
                bits,
            },
        )
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (0_u8..7, 0_u32..2000, any::<u8>()).prop_map(|(kind, len, flags)| Happening::Send { kind, len, flags }),
        3 => (0_u32..2000).prop_map(|len| Happening::Receive { len }),
        12 => wild().prop_map(Happening::Packet),
        2 => (0_u64..5000).prop_map(|micros| Happening::Time { micros }),
        1 => Just(Happening::Drain),
        1 => Just(Happening::Resume),
    ]
}

fn packet<'a>(wild: &Wild, first: u32, payload: &'a [u8]) -> Option<Packet<'a>> {
    let opcode = Opcode::from_code(wild.code)?;
    let ahead = if wild.far { 0x40_0000 } else { 0 };
    let psn = Psn::new(first.wrapping_add(ahead).wrapping_add_signed(wild.ahead.into()));
    let mut packet = Packet::new(opcode, Qpn::truncating(16), psn);
    (packet.solicited, packet.ack_req) = wild.bits;
    let rkey = Rkey::new(wild.key.into());
    packet.reth = Some(Reth {
        addr: wild.addr,
        rkey,
        length: wild.length,
    });
    packet.atomic = Some(AtomicEth {
        addr: wild.addr,
        rkey,
        swap_or_add: 1,
        compare: 0,
    });
    let syndrome = match wild.syndrome {
        0..=20 => Syndrome::Ack(31),
        21..=30 => Syndrome::RnrNak(wild.syndrome - 20),
        31..=34 => Syndrome::Nak(Nak::SequenceError),
        35 => Syndrome::Nak(Nak::InvalidRequest),
        36 => Syndrome::Nak(Nak::RemoteAccess),
        _ => Syndrome::Nak(Nak::RemoteOperational),
    };
    packet.aeth = Some(Aeth { syndrome, msn: 0 });
    packet.original = Some(5);
    packet.imm = Some(9);
    packet.payload = payload.get(..wild.payload)?;
    // As it would come from the network.
    let mut bytes = Vec::new();
    if !opcode.has_payload() {
        packet.payload = &[];
    }
    keep_headers_of(&mut packet);
    packet.emit(&mut bytes);
    assert_eq!(Packet::parse(&bytes).unwrap().opcode, opcode);
    Some(packet)
}

/// Leaves out the headers that the operation does not have, as parsing does.
fn keep_headers_of(packet: &mut Packet<'_>) {
    let opcode = packet.opcode;
    packet.reth = packet.reth.filter(|_| opcode.has_reth());
    packet.atomic = packet.atomic.filter(|_| opcode.has_atomic());
    packet.aeth = packet.aeth.filter(|_| opcode.has_aeth());
    packet.original = packet.original.filter(|_| opcode.has_original());
    packet.imm = packet.imm.filter(|_| opcode.has_imm());
    packet.invalidate = opcode.has_invalidate().then_some(Rkey::new(1));
}

/// How often each work request ended.
fn endings(completions: &[Completion]) -> BTreeMap<u64, u32> {
    let mut count = BTreeMap::new();
    for completion in completions {
        *count.entry(completion.wr_id).or_insert(0) += 1;
    }
    count
}

fn post(world: &mut World, wr_id: u64, kind: u8, len: u32, flags: u8) {
    let len = if kind >= 5 { 8 } else { len };
    let op = match kind {
        0 => SendOp::Send,
        1 => SendOp::SendImm(1),
        2 => SendOp::Write(remote(0)),
        3 => SendOp::WriteImm(remote(0), 1),
        4 => SendOp::Read(remote(0)),
        5 => SendOp::FetchAdd {
            remote: remote(0),
            add: 1,
        },
        _ => SendOp::CompareSwap {
            remote: remote(0),
            compare: 0,
            swap: 1,
        },
    };
    // Now and then memory that is not there.
    let addr = if flags & 0x30 == 0x30 { 1 << 30 } else { 1 << 16 };
    let flags = SendFlags::SIGNALED
        | if flags & 1 == 1 {
            SendFlags::FENCE
        } else {
            SendFlags::empty()
        };
    world.ends[0].post(wr_id, op, &[sge(addr, len)], flags, &[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_the_peer_sends(
        happenings in prop::collection::vec(happening(), 1..120),
        srq in any::<bool>(),
        reads in 0_u8..4,
    ) {
        let setup = Setup { srq, max_rd_atomic: reads, ..Setup::default() };
        let mut world = World::pair(&setup);
        let payload = [0x77; 600];
        let (mut sends, mut receives) = (0, 0);
        for happening in &happenings {
            match happening {
                Happening::Send { kind, len, flags } => {
                    post(&mut world, sends, *kind, *len, *flags);
                    sends += 1;
                }
                Happening::Receive { len } => {
                    world.ends[0].receive(receives, 1 << 17, *len, srq);
                    receives += 1;
                }
                Happening::Packet(wild) => {
                    if let Some(packet) = packet(wild, setup.psn, &payload) {
                        let now = world.now;
                        let end = &mut world.ends[0];
                        end.rc.handle_packet(now, &packet, &mut end.host);
                    }
                }
                Happening::Time { micros } => {
                    world.now += Duration::from_micros(*micros);
                    let now = world.now;
                    let end = &mut world.ends[0];
                    end.rc.handle_timeout(now, &mut end.host);
                }
                Happening::Drain => {
                    let end = &mut world.ends[0];
                    let _ = end.rc.modify(&QpModify::Sqd { notify: true }, &mut end.host);
                }
                Happening::Resume => {
                    let end = &mut world.ends[0];
                    let _ = end.rc.modify(&QpModify::Resume, &mut end.host);
                }
            }
            // The other end never sees anything of it.
            let before = world.network.sent;
            world.flush(0);
            // A READ that the peer asks for may be as long as the memory.
            prop_assert!(world.network.sent - before < 20_000, "it talks without end");
        }
        let end = &mut world.ends[0];
        end.rc.modify(&QpModify::Err, &mut end.host).unwrap();
        let sent = endings(&end.host.sent);
        prop_assert_eq!(sent.len() as u64, sends, "each send ended");
        prop_assert!(sent.values().all(|count| *count == 1), "no send ended twice");
        let mut received = endings(&end.host.received);
        for left in &end.host.srq {
            *received.entry(left.wr_id).or_insert(0) += 1;
        }
        prop_assert_eq!(received.len() as u64, receives, "each receive ended, or is still there");
        prop_assert!(received.values().all(|count| *count == 1), "no receive ended twice");
    }
}
