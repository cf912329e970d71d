//! Scripts for the checks that come far: a peer that keeps to the protocol, until somebody changes a byte.

use adverb_proto::GoodbyeReason;
use adverb_wire::{Confirm, CreditLimit, Data, Goodbye, Header, Kind, Role};

/// A script and its name.
pub(crate) type Sample = (&'static str, Vec<u8>);

// What the checks make of a byte.
const RECEIVE: u8 = 0;
const RECEIVE_AND_RETURN: u8 = 8;
const RETURN: u8 = 3;
const TRANSMIT: u8 = 4;
const SEND_SHORT: u8 = 5;
const SEND_LONG: u8 = 0xfd;
const TIME: u8 = 0xf6;
const CLOSE: u8 = 7;
const NO_ROOM: u8 = 0x87;
const ROOM: u8 = 0xff;

/// A peer's segment in a script.
fn segment(op: u8, ack: u64, control_ack: u8, kind: Kind) -> Vec<u8> {
    let mut bytes = [0; Header::MAX_LEN];
    let header = Header {
        control_ack,
        credit_limit: CreditLimit::new(6),
        ack,
        kind,
    };
    let len = header.encode(&mut bytes);
    let mut segment = bytes[..len].to_vec();
    if let Kind::Data(data) = kind {
        segment.resize(len + data.fragment_len as usize, 0xa5);
    }
    [&[op, segment.len() as u8][..], &segment].concat()
}

fn data(seq: u64, message_len: u32, offset: u32, fragment_len: u32) -> Kind {
    Kind::Data(Data {
        seq,
        am_id: 7,
        header_len: 3,
        message_len,
        offset,
        role: Role::Message,
        fragment_len,
    })
}

/// Scripts whose peer does nothing wrong.
pub(crate) fn scripts() -> Vec<Sample> {
    let confirm = segment(
        RECEIVE_AND_RETURN,
        0,
        0,
        Kind::Confirm(Confirm { nonce: 0, link: 0 }),
    );
    let goodbye = |final_seq| {
        let reason = GoodbyeReason::Closed;
        segment(
            RECEIVE_AND_RETURN,
            0,
            0,
            Kind::Goodbye(Goodbye { reason, final_seq }),
        )
    };
    let answer = segment(RECEIVE_AND_RETURN, 0, 0, Kind::GoodbyeAnswer);
    let (client, server) = ([0, TRANSMIT], [1]);
    let open_client = [&client[..], &confirm].concat();
    let open_server = [&server[..], &confirm, &[TRANSMIT]].concat();
    let short = segment(RECEIVE, 0, 1, data(0, 10, 0, 10));
    let whole = segment(RECEIVE_AND_RETURN, 0, 0, data(0, 3, 0, 3));
    let credit = |ack| segment(RECEIVE_AND_RETURN, ack, 1, Kind::Credit);
    vec![
        ("open-client", open_client.clone()),
        ("open-server", open_server.clone()),
        (
            "message",
            [&open_client[..], &short, &[RETURN, TRANSMIT]].concat(),
        ),
        (
            "fragments",
            [
                &open_server[..],
                &segment(RECEIVE_AND_RETURN, 0, 0, data(0, 300, 0, 150)),
                &segment(RECEIVE_AND_RETURN, 0, 0, data(0, 300, 150, 150)),
                &[TRANSMIT],
            ]
            .concat(),
        ),
        (
            "window-kept",
            [
                &open_client[..],
                &segment(RECEIVE, 0, 0, data(0, 3, 0, 3)),
                &segment(RECEIVE, 0, 0, data(1, 3, 0, 3)),
                &segment(RECEIVE, 0, 0, data(2, 3, 0, 3)),
                &segment(RECEIVE, 0, 0, data(3, 3, 0, 3)),
                &[RETURN, TRANSMIT],
            ]
            .concat(),
        ),
        (
            "acknowledged",
            [
                &open_client[..],
                &[SEND_SHORT, SEND_SHORT, SEND_LONG],
                &credit(2),
                &[TRANSMIT],
                &credit(3),
            ]
            .concat(),
        ),
        (
            "blocked",
            [
                &open_client[..],
                &[SEND_LONG; 5],
                &credit(0),
                &[TRANSMIT],
                &credit(1),
                &[TRANSMIT],
            ]
            .concat(),
        ),
        (
            "no-room",
            [
                &open_client[..],
                &[NO_ROOM, SEND_SHORT, SEND_SHORT, ROOM, TRANSMIT],
                &credit(2),
            ]
            .concat(),
        ),
        (
            "close",
            [&open_client[..], &whole, &[CLOSE, TRANSMIT], &answer].concat(),
        ),
        (
            "peer-closes",
            [&open_server[..], &whole, &goodbye(1), &[SEND_SHORT, TRANSMIT]].concat(),
        ),
        (
            "both-close",
            [
                &open_client[..],
                &[SEND_SHORT, CLOSE, TRANSMIT],
                &goodbye(0),
                &[TRANSMIT],
                &answer,
            ]
            .concat(),
        ),
        ("open-timeout", [&client[..], &[TIME, TIME, TIME]].concat()),
        (
            "close-timeout",
            [
                &open_client[..],
                &[TIME, SEND_SHORT, CLOSE, TRANSMIT, TIME, TIME, TIME],
            ]
            .concat(),
        ),
        (
            "close-while-opening",
            [&server[..], &[CLOSE], &confirm, &[TRANSMIT], &answer].concat(),
        ),
    ]
}
