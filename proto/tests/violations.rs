//! What an endpoint makes of a peer that breaks the protocol: one test for each error.
#![allow(
    clippy::unwrap_used,
    reason = "clippy takes helpers outside of test functions for ordinary code"
)]

use std::time::Instant;

use adverb_proto::{
    Config, Endpoint, Event, FailReason, GoodbyeReason, Outgoing, PeerLimits, Phase, ProtocolError, Received,
    Segment, Segments, Side,
};
use adverb_wire::{Confirm, CreditLimit, Data, DecodeError, Goodbye, Header, Kind, Role};

const NONCE: u64 = 9;
const WINDOW: u32 = 2;
const MAX_MESSAGE: u32 = 1000;

/// Has room, and forgets.
struct Sink(usize, [u8; 64]);

impl Segments for Sink {
    fn next(&mut self, _len: usize) -> Option<&mut [u8]> {
        (self.0 > 0).then_some(&mut self.1)
    }

    fn commit(&mut self, _: Segment) {
        self.0 -= 1;
    }
}

/// One endpoint, whose peer is the test.
struct Victim {
    endpoint: Endpoint,
    now: Instant,
}

impl Victim {
    fn new(side: Side) -> Self {
        let now = Instant::now();
        let config = Config {
            window: WINDOW,
            max_message: MAX_MESSAGE,
            ..Config::new(now)
        };
        let peer = PeerLimits {
            credits: 8,
            segment_size: 64,
            max_message: MAX_MESSAGE,
        };
        Self {
            endpoint: Endpoint::new(now, side, config, peer, NONCE),
            now,
        }
    }

    /// A client that is open.
    fn open() -> Self {
        let mut victim = Self::new(Side::Client);
        victim.transmit(1);
        victim.gets(confirm()).unwrap();
        victim.endpoint.returned(false);
        assert_eq!(victim.endpoint.poll_event(), Some(Event::Opened));
        victim
    }

    fn transmit(&mut self, room: usize) {
        self.endpoint.transmit(self.now, &mut Sink(room, [0; 64]));
    }

    fn send(&mut self, len: usize, room: usize) {
        let payload = vec![0; len];
        let message = Outgoing::new(0, &[], &payload);
        self.endpoint
            .send(self.now, &message, &mut Sink(room, [0; 64]))
            .unwrap();
    }

    fn gets(&mut self, kind: Kind) -> Result<Received, ProtocolError> {
        self.gets_header(header(kind))
    }

    fn gets_header(&mut self, header: Header) -> Result<Received, ProtocolError> {
        let mut bytes = [0; Header::MAX_LEN];
        let len = header.encode(&mut bytes);
        let mut bytes = bytes[..len].to_vec();
        if let Kind::Data(data) = header.kind {
            bytes.resize(len + data.fragment_len as usize, 0);
        }
        self.endpoint.receive(self.now, &bytes)
    }

    /// The last thing it got was this error, and it ended the endpoint.
    fn fell_to(mut self, got: Result<Received, ProtocolError>, error: ProtocolError) {
        assert_eq!(got, Err(error.clone()));
        assert!(!error.to_string().is_empty());
        assert_eq!(self.endpoint.phase(), Phase::Failed);
        let mut last = None;
        while let Some(event) = self.endpoint.poll_event() {
            last = Some(event);
        }
        assert_eq!(last, Some(Event::Failed(FailReason::Protocol(error))));
        assert_eq!(self.endpoint.poll_timeout(), None);
        // What comes now is not looked at.
        assert_eq!(self.gets(Kind::Data(data(0, 1, 0, 1))), Ok(Received::Control));
        assert_eq!(self.endpoint.receive(self.now, &[]), Ok(Received::Control));
        assert_eq!(self.endpoint.poll_event(), None);
    }
}

fn header(kind: Kind) -> Header {
    Header {
        control_ack: 0,
        credit_limit: CreditLimit::new(8),
        ack: 0,
        kind,
    }
}

fn confirm() -> Kind {
    Kind::Confirm(Confirm {
        nonce: NONCE,
        link: 0,
    })
}

fn goodbye(final_seq: u64) -> Kind {
    let reason = GoodbyeReason::Closed;
    Kind::Goodbye(Goodbye { reason, final_seq })
}

fn data(seq: u64, message_len: u32, offset: u32, fragment_len: u32) -> Data {
    Data {
        seq,
        am_id: 0,
        header_len: 0,
        message_len,
        offset,
        role: Role::Message,
        fragment_len,
    }
}

fn unexpected(got: &'static str, expected: &'static str) -> ProtocolError {
    ProtocolError::Unexpected { got, expected }
}

#[test]
fn what_cannot_be_decoded() {
    let mut victim = Victim::open();
    let got = victim.endpoint.receive(victim.now, &[1, 2, 3]);
    victim.fell_to(got, DecodeError::Truncated { needed: 16, got: 3 }.into());
}

#[test]
fn a_message_before_the_confirmation() {
    for side in [Side::Client, Side::Server] {
        for kind in [
            Kind::Credit,
            Kind::Data(data(0, 1, 0, 1)),
            goodbye(0),
            Kind::GoodbyeAnswer,
        ] {
            let mut victim = Victim::new(side);
            let got = victim.gets(kind);
            victim.fell_to(got, unexpected("a message", "the confirmation"));
        }
    }
}

#[test]
fn a_message_before_this_side_has_confirmed() {
    for side in [Side::Client, Side::Server] {
        for kind in [
            Kind::Credit,
            Kind::Data(data(0, 1, 0, 1)),
            goodbye(0),
            Kind::GoodbyeAnswer,
        ] {
            let mut victim = Victim::new(side);
            victim.gets(confirm()).unwrap();
            let got = victim.gets(kind);
            victim.fell_to(
                got,
                unexpected("a message", "nothing before this side has confirmed"),
            );
        }
    }
}

#[test]
fn a_second_confirmation() {
    let mut victim = Victim::open();
    let got = victim.gets(confirm());
    victim.fell_to(got, unexpected("a second confirmation", "a message"));
}

#[test]
fn a_confirmation_of_another_link() {
    let mut victim = Victim::new(Side::Server);
    let got = victim.gets(Kind::Confirm(Confirm {
        nonce: NONCE,
        link: 1,
    }));
    victim.fell_to(
        got,
        unexpected("a confirmation of another link", "that of link 0"),
    );
}

#[test]
fn a_confirmation_of_another_connection() {
    let mut victim = Victim::new(Side::Server);
    let got = victim.gets(Kind::Confirm(Confirm { nonce: 8, link: 0 }));
    let (got_nonce, expected) = (8, NONCE);
    victim.fell_to(
        got,
        ProtocolError::WrongNonce {
            got: got_nonce,
            expected,
        },
    );
}

#[test]
fn data_without_a_credit() {
    let mut victim = Victim::open();
    for seq in 0..2 {
        assert!(victim.gets(Kind::Data(data(seq, 1, 0, 1))).unwrap().is_data());
        // The credits are free again, but the peer was not told.
        victim.endpoint.returned(true);
    }
    let got = victim.gets(Kind::Data(data(2, 1, 0, 1)));
    let (fragment, limit) = (2, WINDOW);
    victim.fell_to(got, ProtocolError::CreditOverrun { fragment, limit });
}

#[test]
fn data_out_of_order() {
    for (wrong, due_offset) in [
        (data(1, 1, 0, 1), 0),
        (data(0, 10, 5, 5), 0),
        (data(0, 10, 0, 5), 5),
        (data(0, 10, 6, 4), 5),
        (data(1, 10, 5, 5), 5),
    ] {
        let mut victim = Victim::open();
        if due_offset > 0 {
            assert_eq!(victim.gets(Kind::Data(data(0, 10, 0, 5))), Ok(Received::Fragment));
        }
        let got = victim.gets(Kind::Data(wrong));
        let error = ProtocolError::OutOfOrder {
            seq: 0,
            offset: due_offset,
            got_seq: wrong.seq,
            got_offset: wrong.offset,
        };
        victim.fell_to(got, error);
    }
}

#[test]
fn fragments_that_contradict_each_other() {
    let second = data(0, 10, 5, 5);
    for wrong in [
        Data { am_id: 1, ..second },
        Data {
            header_len: 1,
            ..second
        },
        Data {
            message_len: 11,
            ..second
        },
        Data {
            role: Role::Request,
            ..second
        },
    ] {
        let mut victim = Victim::open();
        victim.gets(Kind::Data(data(0, 10, 0, 5))).unwrap();
        let got = victim.gets(Kind::Data(wrong));
        victim.fell_to(got, ProtocolError::Inconsistent { seq: 0 });
    }
}

#[test]
fn a_message_longer_than_this_side_accepts() {
    let (len, max) = (MAX_MESSAGE + 1, MAX_MESSAGE);
    let mut victim = Victim::open();
    assert_eq!(
        victim.gets(Kind::Data(data(0, max, 0, 1))),
        Ok(Received::Fragment)
    );
    let mut victim = Victim::open();
    let got = victim.gets(Kind::Data(data(0, len, 0, 1)));
    victim.fell_to(got, ProtocolError::TooLarge { len, max });
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_whole() {
    // One message was sent whole, of another only the first fragment.
    let mut victim = Victim::open();
    victim.send(1, 1);
    victim.send(30, 1);
    let acks = |ack| Header {
        ack,
        ..header(Kind::Credit)
    };
    assert_eq!(victim.gets_header(acks(1)), Ok(Received::Control));
    assert_eq!(victim.endpoint.acked(), 1);
    assert_eq!(victim.gets_header(acks(0)), Ok(Received::Control));
    assert_eq!(
        victim.endpoint.acked(),
        1,
        "an older acknowledgement takes nothing back"
    );
    let got = victim.gets_header(acks(2));
    let error = ProtocolError::AckOfUnsent {
        what: "messages",
        acked: 2,
        sent: 1,
    };
    victim.fell_to(got, error);
}

#[test]
fn an_acknowledgement_of_control_messages_that_were_not_sent() {
    for wrong in [2, 255] {
        let mut victim = Victim::open();
        let acks = |control_ack| Header {
            control_ack,
            ..header(Kind::Credit)
        };
        assert_eq!(victim.gets_header(acks(1)), Ok(Received::Control));
        let got = victim.gets_header(acks(wrong));
        let error = ProtocolError::AckOfUnsent {
            what: "control messages (modulo 256)",
            acked: wrong.into(),
            sent: 1,
        };
        victim.fell_to(got, error);
    }
}

#[test]
fn a_goodbye_that_counts_other_messages_than_came() {
    for announced in [0, 2] {
        let mut victim = Victim::open();
        victim.gets(Kind::Data(data(0, 1, 0, 1))).unwrap();
        let got = victim.gets(goodbye(announced));
        let received = 1;
        victim.fell_to(got, ProtocolError::GoodbyeTooEarly { announced, received });
    }
}

#[test]
fn a_goodbye_in_the_middle_of_a_message() {
    let mut victim = Victim::open();
    victim.gets(Kind::Data(data(0, 2, 0, 1))).unwrap();
    let got = victim.gets(goodbye(0));
    let (announced, received) = (0, 0);
    victim.fell_to(got, ProtocolError::GoodbyeTooEarly { announced, received });
}

#[test]
fn data_or_a_goodbye_after_the_goodbye() {
    let mut victim = Victim::open();
    victim.gets(goodbye(0)).unwrap();
    let got = victim.gets(Kind::Data(data(0, 1, 0, 1)));
    victim.fell_to(got, unexpected("a message", "nothing after the goodbye"));

    let mut victim = Victim::open();
    victim.gets(goodbye(0)).unwrap();
    let got = victim.gets(goodbye(0));
    victim.fell_to(got, unexpected("a second goodbye", "nothing"));
}

#[test]
fn an_answer_that_answers_nothing() {
    let mut victim = Victim::open();
    let got = victim.gets(Kind::GoodbyeAnswer);
    victim.fell_to(got, unexpected("an answer to a goodbye", "no answer"));

    let mut victim = Victim::open();
    victim.endpoint.close(victim.now, GoodbyeReason::Closed);
    let got = victim.gets(Kind::GoodbyeAnswer);
    victim.fell_to(got, unexpected("an answer to a goodbye", "no answer"));

    let mut victim = Victim::open();
    victim.endpoint.close(victim.now, GoodbyeReason::Closed);
    victim.transmit(1);
    victim.gets(goodbye(0)).unwrap();
    victim.gets(Kind::GoodbyeAnswer).unwrap();
    let got = victim.gets(Kind::GoodbyeAnswer);
    victim.fell_to(got, unexpected("an answer to a goodbye", "no answer"));
}

#[test]
fn what_comes_after_an_orderly_end_is_not_read() {
    for kind in [
        goodbye(0),
        Kind::GoodbyeAnswer,
        Kind::Data(data(0, 1, 0, 1)),
        confirm(),
    ] {
        let mut victim = Victim::open();
        victim.endpoint.close(victim.now, GoodbyeReason::Closed);
        victim.transmit(1);
        victim.gets(Kind::GoodbyeAnswer).unwrap();
        assert_eq!(victim.endpoint.poll_event(), Some(Event::Closed));
        assert_eq!(victim.gets(kind), Ok(Received::Control));
        assert_eq!(victim.endpoint.phase(), Phase::Closed);
        assert_eq!(victim.endpoint.poll_event(), None);
        assert_eq!(victim.endpoint.poll_timeout(), None);
    }
}

#[test]
fn an_answer_in_the_middle_of_a_message() {
    let mut victim = Victim::open();
    victim.endpoint.close(victim.now, GoodbyeReason::Closed);
    victim.transmit(1);
    victim.gets(Kind::Data(data(0, 2, 0, 1))).unwrap();
    let got = victim.gets(Kind::GoodbyeAnswer);
    victim.fell_to(got, unexpected("an answer to a goodbye", "the rest of a message"));
}
