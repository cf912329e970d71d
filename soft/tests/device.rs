//! What the device does beyond the conformance suite: its controls, and what it takes from whom.

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use adverb_roce::{Opcode, Packet, icrc};
    use adverb_soft::{SoftConfig, SoftCounters, SoftProvider};
    use adverb_types::{Psn, Qpn};
    use adverb_verbs::{
        AsyncEvent, AsyncEventKind, ErrorKind, EventSource, Mtu, PortState, Provider, SendFlags, WcStatus,
    };

    use crate::common::{End, Link, pair, poll, until};

    /// On UDP alone: some of these tests send packets of their own, and count.
    fn provider() -> SoftProvider {
        SoftProvider::new(SoftConfig::default().loopback(true).shared_memory(false))
    }

    #[test]
    fn names_open_what_they_say() {
        let provider = SoftProvider::default();
        let device = provider.open("soft:127.0.0.1").unwrap();
        let gid = device.gid_table(1).unwrap()[0].gid;
        assert_eq!(gid.ip(), Ipv4Addr::LOCALHOST);
        assert_eq!(device.port(1).unwrap().active_mtu, Mtu::Mtu4096);
        for name in ["soft1", "lo", ""] {
            let error = provider.open(name).unwrap_err();
            assert!(
                matches!(error.kind, ErrorKind::NoSuchDevice { .. }),
                "{name}: {error}"
            );
        }
        for name in ["soft:", "soft:nonsense", "soft:10.0.0.2:4791", "soft:0.0.0.0"] {
            let text = provider.open(name).unwrap_err().to_string();
            let told = format!("{name:?} names no device: an IP address of this host must follow `soft:`");
            assert!(text.contains(&told), "{text}");
        }
        // An address of no interface (TEST-NET-1 has none, unless somebody tests with it).
        let error = provider.open("soft:203.0.113.77").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Os(99), "EADDRNOTAVAIL: {error}");
        assert!(error.to_string().contains("`ip address`"), "{error}");
    }

    #[test]
    fn on_one_address_the_second_opening_has_another_port_and_says_so() {
        // An address that no other run of this test has.
        let [.., high, low] = std::process::id().to_be_bytes();
        let name = format!("soft:127.0.{high}.{low}");
        // Providers of their own, as two processes would have.
        let open = || End::new(SoftProvider::default().open(&name).unwrap());
        let (mut a, mut b) = (open(), open());
        let told = |end: &End| end.device.gid_table(1).unwrap()[0].udp_port;
        assert_eq!((a.soft().udp_port(), told(&a)), (4791, None));
        assert_eq!(told(&b), Some(b.soft().udp_port()));
        a.connect(&b, Link::default());
        b.connect(&a, Link::default());
        b.receive(1);
        a.send(b"hello", SendFlags::SIGNALED);
        let got = until("the message", || Some(b.received()).filter(|got| !got.is_empty()));
        assert_eq!(got, [b"hello".to_vec()]);
        assert_eq!(until("the acknowledgement", || a.sent().pop()), WcStatus::Success);
    }

    /// A datagram to `end`'s socket, from another socket of `from`'s address.
    fn datagram(from: &End, to: SocketAddr, packet: &Packet<'_>, spoil: bool) {
        let socket = UdpSocket::bind((from.soft().gid().ip(), 0)).unwrap();
        rustix::net::sockopt::set_ip_mtu_discover(&socket, rustix::net::sockopt::Ipv4PathMtuDiscovery::DO)
            .unwrap();
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        let local = socket.local_addr().unwrap();
        let path = icrc::Path::new(local.ip(), to.ip()).unwrap();
        let crc = icrc::compute(&path, local.port(), to.port(), &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        if spoil {
            bytes[20] ^= 1;
        }
        socket.send_to(&bytes, to).unwrap();
    }

    #[test]
    fn packets_are_taken_from_the_connected_peers_address_only_and_whole() {
        let provider = provider();
        let (a, mut b) = pair(&provider, Link::default());
        let stranger = End::new(provider.open("soft0").unwrap());
        b.receive(4);
        let to = SocketAddr::new(b.soft().gid().ip(), b.soft().udp_port());
        let payload = [7; 16];
        let hello = |qpn: Qpn| Packet {
            payload: &payload,
            ..Packet::new(Opcode::SendOnly, qpn, Psn::new(7))
        };
        let nobody = Qpn::truncating(b.qp.qpn().get() ^ 0x80_0000);

        UdpSocket::bind((stranger.soft().gid().ip(), 0))
            .unwrap()
            .send_to(b"x", to)
            .unwrap();
        datagram(&stranger, to, &hello(b.qp.qpn()), false);
        datagram(&a, to, &hello(nobody), false);
        datagram(&a, to, &hello(b.qp.qpn()), true);
        let counters = until("the datagrams", || {
            poll(&b.recv_cq);
            Some(b.soft().counters()).filter(|counters| counters.received == 4)
        });
        let SoftCounters {
            malformed,
            bad_icrc,
            no_queue_pair,
            not_the_peer,
            sent,
            ..
        } = counters;
        assert_eq!((malformed, bad_icrc, no_queue_pair, not_the_peer), (1, 1, 1, 1));
        assert_eq!(sent, 0, "nothing of it was answered");

        // The same from the peer's address is taken: any UDP source port is the peer's to choose.
        datagram(&a, to, &hello(b.qp.qpn()), false);
        let got = until("the message", || Some(b.received()).filter(|got| !got.is_empty()));
        assert_eq!(got, [vec![7; 16]]);
    }

    #[test]
    fn a_queue_pair_that_is_not_connected_takes_nothing() {
        let provider = provider();
        let (a, b) = pair(&provider, Link::default());
        let idle = End::new(provider.open("soft0").unwrap());
        let to = SocketAddr::new(idle.soft().gid().ip(), idle.soft().udp_port());
        datagram(
            &a,
            to,
            &Packet::new(Opcode::SendOnly, idle.qp.qpn(), Psn::new(0)),
            false,
        );
        until("the packet", || {
            poll(&idle.recv_cq);
            (idle.soft().counters().not_the_peer == 1).then_some(())
        });
        b.qp.modify(&adverb_verbs::QpModify::Reset).unwrap();
        let to = SocketAddr::new(b.soft().gid().ip(), b.soft().udp_port());
        datagram(
            &a,
            to,
            &Packet::new(Opcode::SendOnly, b.qp.qpn(), Psn::new(7)),
            false,
        );
        until("the packet", || {
            poll(&b.recv_cq);
            (b.soft().counters().not_the_peer == 1).then_some(())
        });
    }

    #[test]
    fn a_port_that_is_down_loses_everything_and_says_so() {
        let provider = provider();
        let link = Link {
            timeout: 10,
            retry_cnt: 1,
            ..Link::default()
        };
        let (mut a, mut b) = pair(&provider, link);
        b.receive(1);
        assert!(b.soft().set_port_active(false));
        assert!(!b.soft().set_port_active(false), "it is down already");
        let event = |kind| AsyncEvent {
            kind,
            source: EventSource::Port(1),
        };
        assert_eq!(
            b.device.next_async_event(),
            Ok(Some(event(AsyncEventKind::PortErr)))
        );
        assert_eq!(b.device.port(1).unwrap().state, PortState::Down);
        a.send(b"x", SendFlags::empty());
        assert_eq!(until("the error", || a.sent().pop()), WcStatus::RetryExcErr);
        assert_eq!(b.received(), Vec::<Vec<u8>>::new());
        let end = End::new(provider.open("soft0").unwrap());
        end.soft().set_port_active(false);
        let error = end.to_rtr(b.place(), link).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Os(101), "ENETUNREACH: {error}");
        assert!(b.soft().set_port_active(true));
        assert_eq!(
            b.device.next_async_event(),
            Ok(Some(event(AsyncEventKind::PortActive)))
        );
    }

    #[test]
    fn events_are_injected_to_whom_they_concern() {
        let provider = provider();
        let (a, b) = pair(&provider, Link::default());
        let fatal = AsyncEvent {
            kind: AsyncEventKind::QpFatal,
            source: EventSource::Qp(a.qp.qpn()),
        };
        assert_eq!(provider.inject("soft0", fatal), 1);
        assert_eq!(a.device.next_async_event(), Ok(Some(fatal)));
        assert_eq!(b.device.next_async_event(), Ok(None));
        let change = AsyncEvent {
            kind: AsyncEventKind::GidChange,
            source: EventSource::Port(1),
        };
        assert_eq!(provider.inject("soft0", change), 2);
        assert_eq!(a.device.next_async_event(), Ok(Some(change)));
        assert_eq!(b.device.next_async_event(), Ok(Some(change)));
        assert!(provider.set_port_active("soft0", false));
        assert!(!provider.set_port_active("soft0", false));
        assert_eq!(provider.inject("soft9", change), 0);
    }

    #[test]
    fn keys_of_two_regions_have_nothing_in_common() {
        let end = End::new(provider().open("soft0").unwrap());
        let regions: Vec<_> = (0..64).map(|_| end.region(64)).collect();
        let mut keys: Vec<u32> = regions
            .iter()
            .flat_map(|region| [region.lkey().get(), region.rkey().get()])
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 128);
        // Of 128 random numbers some two neighbours are this close with a probability below 1 in 1000.
        let close = keys.windows(2).filter(|pair| pair[1] - pair[0] < 256).count();
        assert!(
            close < 3,
            "{close} of 128 keys are guessed from another: {keys:x?}"
        );
    }
}
