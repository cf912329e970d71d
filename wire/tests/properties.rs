//! What must hold of all values, and of all bytes.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

mod checks;

use adverb_types::{Gid, GidType, Mtu, Psn, Qpn, Rkey};
use adverb_wire::{
    Confirm, CreditLimit, Data, FeatureOffer, Features, Frame, Goodbye, Handshake, Header, Kind,
    MIN_SEGMENT_SIZE, MissingFeatures, Parameters, Peek, Refuse, RefuseReason, RemoteRegion, Rights, Role,
    Text, VersionRange,
};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_region_comes_back_as_it_went(addr in any::<u64>(), rkey in any::<u32>(), len in any::<u64>(), rights in 0..8u8) {
        let rights = Rights::from_bits_truncate(rights);
        if let Ok(region) = RemoteRegion::new(addr, Rkey::new(rkey), len, rights) {
            prop_assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()), Ok(region));
            prop_assert_eq!((region.addr(), region.rkey().get(), region.len(), region.rights()), (addr, rkey, len, rights));
        }
    }

    #[test]
    fn no_bytes_upset_the_region_decoder(bytes in vec(any::<u8>(), 0..64)) {
        checks::region::check(&bytes);
    }

    /// Random bytes seldom get past the first checks.
    #[test]
    fn no_field_upsets_the_region_decoder(rights in any::<u8>(), fields in vec(any::<u8>(), 22)) {
        checks::region::check(&[&[1, rights], &fields[..]].concat());
    }

    #[test]
    fn a_header_comes_back_as_it_went(header in header()) {
        let send = encode_send(&header);
        let (decoded, fragment) = Header::decode(&send).unwrap();
        prop_assert_eq!(decoded, header);
        prop_assert_eq!(fragment, &send[header.encoded_len()..]);
    }

    /// RC delivers a SEND whole or not at all, so that a data header need not repeat the SEND's length. Cut short
    /// all the same, a middle fragment reads as a shorter one: the gap before the next fragment shows it.
    #[test]
    fn a_cut_send_is_an_error_or_a_shorter_middle_fragment(header in header(), cut in any::<prop::sample::Index>()) {
        let send = encode_send(&header);
        let cut = cut.index(send.len());
        match (Header::decode(&send[..cut]), header.kind) {
            (Ok((decoded, fragment)), Kind::Data(data)) => {
                prop_assert!(!data.is_last() && cut > Header::DATA_LEN);
                prop_assert_eq!(fragment.len(), cut - Header::DATA_LEN);
                let shorter = Data { fragment_len: fragment.len() as u32, ..data };
                prop_assert_eq!(decoded, Header { kind: Kind::Data(shorter), ..header });
            }
            (decoded, _) => prop_assert!(decoded.is_err()),
        }
    }

    #[test]
    fn a_handshake_comes_back_as_it_went(handshake in handshake()) {
        checks::handshake::check_round_trip(&handshake);
    }

    #[test]
    fn a_cut_frame_is_incomplete(handshake in handshake(), cut in any::<prop::sample::Index>()) {
        let mut out = [0; Frame::MAX_LEN];
        let len = handshake.encode(&mut out);
        let cut = cut.index(len);
        let Ok(Peek::Incomplete { missing }) = Frame::peek(&out[..cut]) else {
            return Err(TestCaseError::fail("not incomplete"));
        };
        prop_assert!(missing > 0 && cut + missing <= len);
    }

    #[test]
    fn a_cut_body_is_an_error(handshake in handshake(), cut in any::<prop::sample::Index>()) {
        let mut out = [0; Frame::MAX_LEN];
        let len = handshake.encode(&mut out);
        let Ok(Peek::Complete { frame, .. }) = Frame::peek(&out[..len]) else {
            return Err(TestCaseError::fail("no frame"));
        };
        let body = &frame.body[..cut.index(frame.body.len())];
        let decoded = Handshake::decode(&Frame { body, ..frame });
        prop_assert!(decoded.is_err(), "{:?}", decoded);
    }

    #[test]
    fn no_bytes_upset_the_header_decoder(bytes in vec(any::<u8>(), 0..128)) {
        checks::header::check(&bytes);
    }

    /// Random bytes seldom get past the first checks: these are messages with a few bytes changed.
    #[test]
    fn no_damage_upsets_the_header_decoder(header in header(), damage in damage()) {
        checks::header::check(&damaged(encode_send(&header), damage));
    }

    #[test]
    fn no_bytes_upset_the_handshake_decoder(bytes in vec(any::<u8>(), 0..512)) {
        checks::handshake::check(&bytes);
        checks::handshake::check(&[b"ADVB\x01\0\x01\0\0\x01\0\0", &bytes[..]].concat());
    }

    #[test]
    fn no_damage_upsets_the_handshake_decoder(handshake in handshake(), damage in damage()) {
        let mut out = [0; Frame::MAX_LEN];
        let len = handshake.encode(&mut out);
        checks::handshake::check(&damaged(out[..len].to_vec(), damage));
    }

    #[test]
    fn both_sides_agree_on_the_same(a in parameters(), b in parameters()) {
        let b = Parameters { nonce: a.nonce, ..b };
        match (a.agree(&b), b.agree(&a)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(
                    (ours.version, ours.features, ours.path_mtu),
                    (theirs.version, theirs.features, theirs.path_mtu)
                );
                prop_assert_eq!(ours.max_rd_atomic, theirs.max_dest_rd_atomic);
                prop_assert_eq!(ours.max_dest_rd_atomic, theirs.max_rd_atomic);
            }
            (ours, theirs) => prop_assert!(ours.is_err() && theirs.is_err()),
        }
    }

    #[test]
    fn as_many_fragments_are_allowed_as_are_available(limit: u32, ahead in 0u32..1 << 31) {
        let sent = limit.wrapping_sub(ahead);
        let limit = CreditLimit::new(limit);
        prop_assert_eq!(limit.available(sent), ahead);
        prop_assert_eq!(limit.allows(sent), ahead > 0);
        prop_assert_eq!(CreditLimit::new(sent).raised_by(ahead), limit);
        prop_assert_eq!(CreditLimit::new(sent).later(limit), limit);
        prop_assert_eq!(limit.later(CreditLimit::new(sent)), limit);
    }
}

/// Places and the bytes to put there.
type Damage = Vec<(prop::sample::Index, u8)>;

fn damage() -> impl Strategy<Value = Damage> {
    vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
}

fn damaged(mut bytes: Vec<u8>, damage: Damage) -> Vec<u8> {
    for (at, byte) in damage {
        let at = at.index(bytes.len());
        bytes[at] = byte;
    }
    bytes
}

fn encode_send(header: &Header) -> Vec<u8> {
    let mut out = [0; Header::MAX_LEN];
    let len = header.encode(&mut out);
    assert_eq!(len, header.encoded_len());
    let fragment_len = match header.kind {
        Kind::Data(data) => data.fragment_len,
        _ => 0,
    };
    let mut send = out[..len].to_vec();
    send.extend((0..fragment_len).map(|i| i as u8));
    send
}

fn header() -> impl Strategy<Value = Header> {
    (any::<u8>(), any::<u32>(), any::<u64>(), kind()).prop_map(|(control_ack, limit, ack, kind)| Header {
        control_ack,
        credit_limit: CreditLimit::new(limit),
        ack,
        kind,
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        data().prop_map(Kind::Data),
        any::<(u64, u32)>().prop_map(|(nonce, link)| Kind::Confirm(Confirm { nonce, link })),
        Just(Kind::Credit),
        any::<(u16, u64)>().prop_map(|(reason, final_seq)| Kind::Goodbye(Goodbye {
            reason: reason.into(),
            final_seq
        })),
        Just(Kind::GoodbyeAnswer),
    ]
}

/// Fragments short enough to make, of messages of any length.
fn data() -> impl Strategy<Value = Data> {
    let message_len = prop_oneof![Just(0), 1..100u32, any::<u32>()];
    (
        any::<u64>(),
        any::<u16>(),
        any::<u16>(),
        message_len,
        any::<u32>(),
        1..200u32,
        role(),
    )
        .prop_map(
            |(seq, am_id, header_len, message_len, place, fragment_len, role)| {
                // Near the end as often as anywhere, so that last fragments are not rare.
                let from_end = if place % 2 == 0 { place % 300 } else { place };
                let offset = if message_len == 0 {
                    0
                } else {
                    message_len - 1 - from_end % message_len
                };
                Data {
                    seq,
                    am_id,
                    header_len: header_len.min(u16::try_from(message_len).unwrap_or(u16::MAX)),
                    message_len,
                    offset,
                    role,
                    fragment_len: fragment_len.min(message_len - offset),
                }
            },
        )
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        Just(Role::Message),
        Just(Role::Request),
        any::<u32>().prop_map(Role::Reply),
        any::<u32>().prop_map(Role::Refusal),
    ]
}

fn handshake() -> impl Strategy<Value = Handshake> {
    prop_oneof![
        parameters().prop_map(Handshake::Hello),
        parameters().prop_map(Handshake::Welcome),
        (versions(), reason(), any::<String>()).prop_map(|(versions, reason, text)| {
            Handshake::Refuse(Refuse {
                versions,
                reason,
                text: Text::truncated(&text),
            })
        }),
    ]
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let identity = (
        any::<u64>(),
        0..1u32 << 24,
        any::<u32>(),
        any::<[u8; 16]>(),
        gid_type(),
        any::<Option<u16>>(),
        any::<Option<u16>>(),
    );
    let abilities = (
        1..u16::MAX,
        features(),
        features(),
        mtu(),
        any::<u8>(),
        any::<u8>(),
    );
    let sizes = (0..1u32 << 31, MIN_SEGMENT_SIZE..=u32::MAX, any::<u32>());
    (identity, abilities, sizes, any::<String>(), any::<String>()).prop_map(
        |(
            (nonce, qpn, psn, gid, gid_type, lid, udp_port),
            (max_version, offered, required, mtu, max_rd_atomic, max_dest_rd_atomic),
            (credits, segment_size, max_message),
            software,
            device,
        )| Parameters {
            versions: VersionRange::new(VersionRange::SUPPORTED.min(), max_version).unwrap(),
            features: FeatureOffer { offered, required },
            nonce,
            qpn: Qpn::new(qpn).unwrap(),
            psn: Psn::new(psn),
            gid: Gid::new(gid),
            gid_type,
            mtu,
            lid,
            udp_port,
            max_rd_atomic,
            max_dest_rd_atomic,
            credits,
            segment_size,
            max_message,
            software: Text::truncated(&software),
            device: Text::truncated(&device),
        },
    )
}

fn reason() -> impl Strategy<Value = RefuseReason> {
    prop_oneof![
        versions().prop_map(|refused| RefuseReason::VersionMismatch { refused }),
        (features(), features())
            .prop_map(|(here, at_peer)| RefuseReason::FeatureMissing(MissingFeatures { here, at_peer })),
        (gid_type(), gid_type())
            .prop_map(|(refuser, refused)| RefuseReason::GidTypeMismatch { refuser, refused }),
        any::<u16>().prop_map(RefuseReason::BadParameter),
        prop::sample::select(vec![
            RefuseReason::NoRoute,
            RefuseReason::WorkerFull,
            RefuseReason::Busy,
            RefuseReason::ShuttingDown,
            RefuseReason::Internal,
            RefuseReason::BadFrame,
        ]),
        (11..=u16::MAX).prop_map(RefuseReason::Unknown),
    ]
}

fn versions() -> impl Strategy<Value = VersionRange> {
    any::<(u16, u16)>().prop_map(|(a, b)| VersionRange::new(a.min(b).max(1), a.max(b).max(1)).unwrap())
}

/// Few and small sets, so that two of them often meet each other's demands.
fn features() -> impl Strategy<Value = Features> {
    prop_oneof![
        Just(Features::empty()),
        (0..4u64).prop_map(Features::from_bits_retain),
        bits()
    ]
}

fn bits() -> impl Strategy<Value = Features> {
    any::<u64>().prop_map(Features::from_bits_retain)
}

fn gid_type() -> impl Strategy<Value = GidType> {
    prop::sample::select(vec![GidType::Ib, GidType::RoceV1, GidType::RoceV2])
}

fn mtu() -> impl Strategy<Value = Mtu> {
    prop::sample::select(Mtu::ALL.to_vec())
}
