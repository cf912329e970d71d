//! One of everything, by name: the examples of `FORMAT.md` and the seeds of the fuzz targets.

use std::net::Ipv4Addr;

use adverb_types::{GidType, Mtu, Psn, Qpn, Rkey};
use adverb_wire::{
    Confirm, CreditLimit, Data, FeatureOffer, Features, Frame, Goodbye, GoodbyeReason, Handshake, Header,
    Kind, MissingFeatures, Parameters, RefusalReason, Refuse, RefuseReason, RemoteRegion, Rights, Role, Text,
    VersionRange,
};

/// A name and the bytes.
pub(crate) type Sample = (&'static str, Vec<u8>);

/// Handles of regions.
pub(crate) fn regions() -> Vec<Sample> {
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let region = RemoteRegion::new(0x7f9a_bcde_f000, Rkey::new(0x1234_5678), 1 << 16, rights).unwrap();
    vec![("region", region.to_bytes().to_vec())]
}

/// Whole SENDs.
pub(crate) fn sends() -> Vec<Sample> {
    let whole = Data {
        seq: 41,
        am_id: 7,
        header_len: 2,
        message_len: 5,
        offset: 0,
        role: Role::Message,
        fragment_len: 5,
    };
    let confirm = Confirm {
        nonce: 0x1122_3344_5566_7788,
        link: 0,
    };
    let goodbye = Goodbye {
        reason: GoodbyeReason::Closed,
        final_seq: 42,
    };
    vec![
        ("data", send(Kind::Data(whole), b"hdabc")),
        (
            "data-first",
            send(
                Kind::Data(Data {
                    fragment_len: 3,
                    ..whole
                }),
                b"hda",
            ),
        ),
        (
            "data-last",
            send(
                Kind::Data(Data {
                    offset: 3,
                    fragment_len: 2,
                    ..whole
                }),
                b"bc",
            ),
        ),
        (
            "data-empty",
            send(
                Kind::Data(Data {
                    header_len: 0,
                    message_len: 0,
                    fragment_len: 0,
                    ..whole
                }),
                b"",
            ),
        ),
        (
            "data-request",
            send(
                Kind::Data(Data {
                    role: Role::Request,
                    ..whole
                }),
                b"hdabc",
            ),
        ),
        (
            "data-reply",
            send(
                Kind::Data(Data {
                    role: Role::Reply(41),
                    ..whole
                }),
                b"hdabc",
            ),
        ),
        (
            "data-refusal",
            send(
                Kind::Data(Data {
                    am_id: RefusalReason::NoHandler.code(),
                    role: Role::Refusal(41),
                    header_len: 0,
                    message_len: 0,
                    fragment_len: 0,
                    ..whole
                }),
                b"",
            ),
        ),
        ("confirm", send(Kind::Confirm(confirm), b"")),
        ("credit", send(Kind::Credit, b"")),
        ("goodbye", send(Kind::Goodbye(goodbye), b"")),
        ("goodbye-answer", send(Kind::GoodbyeAnswer, b"")),
    ]
}

fn send(kind: Kind, fragment: &[u8]) -> Vec<u8> {
    let header = Header {
        control_ack: 3,
        credit_limit: CreditLimit::new(0x120),
        ack: 40,
        kind,
    };
    let mut out = [0; Header::MAX_LEN];
    let len = header.encode(&mut out);
    [&out[..len], fragment].concat()
}

/// Whole handshake frames.
pub(crate) fn frames() -> Vec<Sample> {
    let parameters = Parameters {
        versions: VersionRange::SUPPORTED,
        features: FeatureOffer::default(),
        nonce: 0x1122_3344_5566_7788,
        qpn: Qpn::truncating(0x11),
        psn: Psn::new(0xab_cdef),
        gid: Ipv4Addr::new(10, 0, 0, 2).into(),
        gid_type: GidType::RoceV2,
        mtu: Mtu::Mtu1024,
        lid: None,
        udp_port: None,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 128,
        credits: 32,
        segment_size: 8192,
        max_message: 1 << 20,
        software: Text::truncated("adverb 0.1.0"),
        device: Text::truncated("rxe0"),
    };
    let missing = MissingFeatures {
        here: Features::empty(),
        at_peer: Features::from_bits_retain(1 << 3),
    };
    let welcome = Parameters {
        qpn: Qpn::truncating(0x12),
        mtu: Mtu::Mtu4096,
        ..parameters.clone()
    };
    let infiniband = Parameters {
        gid_type: GidType::Ib,
        lid: Some(9),
        ..parameters.clone()
    };
    let on_a_port = Parameters {
        udp_port: Some(49_152),
        ..parameters.clone()
    };
    let newer = VersionRange::new(2, 3).unwrap();
    let mut frames = vec![
        ("hello", frame(Handshake::Hello(parameters))),
        ("hello-infiniband", frame(Handshake::Hello(infiniband))),
        ("hello-udp-port", frame(Handshake::Hello(on_a_port))),
        ("welcome", frame(Handshake::Welcome(welcome))),
    ];
    frames.extend(
        [
            (
                "refuse-version",
                RefuseReason::VersionMismatch { refused: newer },
                "",
            ),
            ("refuse-features", RefuseReason::FeatureMissing(missing), ""),
            (
                "refuse-gid-type",
                RefuseReason::GidTypeMismatch {
                    refuser: GidType::RoceV2,
                    refused: GidType::Ib,
                },
                "",
            ),
            ("refuse-parameter", RefuseReason::BadParameter(14), ""),
            (
                "refuse-full",
                RefuseReason::WorkerFull,
                "64 of 64 endpoints in use",
            ),
        ]
        .map(|(name, reason, text)| {
            let (versions, text) = (VersionRange::SUPPORTED, Text::truncated(text));
            (
                name,
                frame(Handshake::Refuse(Refuse {
                    versions,
                    reason,
                    text,
                })),
            )
        }),
    );
    frames
}

fn frame(handshake: Handshake) -> Vec<u8> {
    let mut out = [0; Frame::MAX_LEN];
    let len = handshake.encode(&mut out);
    out[..len].to_vec()
}
