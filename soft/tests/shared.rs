//! Shared memory between devices: between processes, and what happens when it ends or is not to be had.

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::IpAddr;
    use std::process::{Child, Command, Stdio};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use adverb_soft::{SoftConfig, SoftCounters, SoftProvider};
    use adverb_types::Qpn;
    use adverb_verbs::{Provider, QpModify, SendFlags, WcStatus};

    use crate::common::{DEPTH, End, Link, Place, pair, until};

    /// Of a child: whether it shares memory, and as which user it runs.
    const SHARED: &str = "ADVERB_SOFT_TEST_SHARED";
    const USER: &str = "ADVERB_SOFT_TEST_USER";

    /// A user that nobody is.
    const OTHER_USER: u32 = 48_621;

    /// Some tests look at this process' memory, and so does one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn provider(shared: bool) -> SoftProvider {
        SoftProvider::new(SoftConfig::default().loopback(true).shared_memory(shared))
    }

    fn end(shared: bool) -> End {
        End::new(provider(shared).open("soft0").unwrap())
    }

    /// Where an end is, as text for another process.
    fn place(end: &End) -> String {
        let soft = end.soft();
        format!("{} {} {}", soft.gid().ip(), soft.udp_port(), end.qp.qpn().get())
    }

    fn connect(end: &End, peer: &str) {
        let mut words = peer.split_whitespace();
        let mut next = || words.next().unwrap();
        let ip: IpAddr = next().parse().unwrap();
        let port = next().parse().unwrap();
        let qpn = Qpn::truncating(next().parse().unwrap());
        let peer = Place {
            gid: ip.into(),
            udp_port: Some(port),
            qpn,
        };
        let link = Link {
            retry_cnt: 3,
            ..Link::default()
        };
        end.connect_to(peer, link);
    }

    /// Another process that sends back what it gets, until its standard input ends.
    struct Echo(Child);

    impl Echo {
        /// Starts it, and connects it with `end`.
        fn start(end: &End, shared: bool, user: Option<u32>) -> Self {
            let mut command = Command::new(env::current_exe().unwrap());
            command
                .args(["--exact", "tests::echo", "--ignored", "--nocapture"])
                .env(SHARED, shared.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            if let Some(user) = user {
                command.env(USER, user.to_string());
            }
            let mut echo = Self(command.spawn().unwrap());
            writeln!(echo.0.stdin.as_ref().unwrap(), "{}", place(end)).unwrap();
            let peer = echo.line();
            connect(end, &peer);
            assert_eq!(echo.line(), "connected\n");
            echo
        }

        fn line(&mut self) -> String {
            let mut line = Vec::new();
            let mut byte = [0];
            let from = self.0.stderr.as_mut().unwrap();
            while line.last() != Some(&b'\n') && from.read(&mut byte).unwrap() == 1 {
                line.push(byte[0]);
            }
            String::from_utf8(line).unwrap()
        }

        /// Ends it, and says what packets it saw: sent and received through shared memory.
        fn finish(mut self) -> (u64, u64) {
            drop(self.0.stdin.take());
            let line = self.line();
            let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
            let seen = (words.next().unwrap(), words.next().unwrap());
            assert!(self.0.wait().unwrap().success());
            seen
        }
    }

    impl Drop for Echo {
        fn drop(&mut self) {
            // Fails only when it has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The other process of the tests below, which start it.
    #[test]
    #[ignore = "the other side of other tests"]
    fn echo() {
        let Ok(shared) = env::var(SHARED) else {
            return;
        };
        if let Ok(user) = env::var(USER) {
            // Of this thread, and of those that it starts.
            let user = rustix::process::Uid::from_raw(user.parse().unwrap());
            rustix::thread::set_thread_uid(user).unwrap();
        }
        let mut end = end(shared.parse().unwrap());
        let mut input = BufReader::new(io::stdin());
        let mut peer = String::new();
        eprintln!("{}", place(&end));
        input.read_line(&mut peer).unwrap();
        connect(&end, &peer);
        end.receive(DEPTH as usize);
        eprintln!("connected");
        let (ended, closed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            io::copy(&mut input, &mut io::sink()).unwrap();
            ended.send(()).unwrap();
        });
        while closed.try_recv().is_err() {
            for message in end.received() {
                end.receive(1);
                end.send(&message, SendFlags::SIGNALED);
            }
            end.sent();
        }
        let counters = end.soft().counters();
        eprintln!("{} {}", counters.sent_shared, counters.received_shared);
    }

    /// Sends a message and waits until it is back.
    fn round_trip(end: &mut End, message: &[u8]) {
        end.receive(1);
        end.send(message, SendFlags::SIGNALED);
        let back = until("the echo", || end.received().pop());
        assert_eq!(back, message);
        assert_eq!(until("its completion", || end.sent().pop()), WcStatus::Success);
    }

    fn round_trips(end: &mut End, count: u32) {
        (0..count).for_each(|i| round_trip(end, &vec![i as u8; 1 + i as usize * 37 % 5000]));
    }

    /// Until both directions of a connection with an echo go through shared memory.
    fn shared(end: &mut End) {
        // The device may have had other connections before.
        let before = end.soft().counters();
        until("shared memory both ways", || {
            round_trip(end, b"warm");
            let SoftCounters {
                sent_shared,
                received_shared,
                ..
            } = end.soft().counters();
            (sent_shared > before.sent_shared && received_shared > before.received_shared).then_some(())
        });
        // The last packets that took the network.
        round_trips(end, 10);
    }

    /// Mappings of rings in this process.
    fn mappings() -> usize {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter(|line| line.contains("memfd:adverb-soft"))
            .count()
    }

    #[test]
    fn between_processes_no_packet_takes_the_network() {
        let _alone = alone();
        let mut a = end(true);
        let echo = Echo::start(&a, true, None);
        shared(&mut a);
        let before = a.soft().counters();
        round_trips(&mut a, 2000);
        let after = a.soft().counters();
        let sent = after.sent - before.sent;
        assert!(sent >= 2000);
        assert_eq!(after.sent_shared - before.sent_shared, sent);
        assert_eq!(
            after.received_shared - before.received_shared,
            after.received - before.received
        );
        assert_eq!(after.ring_full, 0);
        let (theirs_sent, theirs_received) = echo.finish();
        assert!(theirs_sent >= 2000 && theirs_received >= 2000);
    }

    #[test]
    fn a_process_that_is_killed_leaves_nothing_behind() {
        let _alone = alone();
        let mut a = end(true);
        let mut echo = Echo::start(&a, true, None);
        shared(&mut a);
        assert_eq!(mappings(), 2, "a ring each way");
        echo.0.kill().unwrap();
        echo.0.wait().unwrap();
        until("the end of its ring", || {
            a.received();
            (mappings() == 1).then_some(())
        });
        // The end of the ring that it writes may be noticed only after the first packet.
        let by_network = |counters: SoftCounters| counters.sent - counters.sent_shared;
        let before = by_network(a.soft().counters());
        a.send(b"to nobody", SendFlags::SIGNALED);
        assert_eq!(until("the error", || a.sent().pop()), WcStatus::RetryExcErr);
        let after = by_network(a.soft().counters());
        assert!(after > before, "packets take the network again");
        a.qp.modify(&QpModify::Reset).unwrap();
        assert_eq!(mappings(), 0, "its own ring ends with the connection");
        // And the next process is reached through memory again.
        let mut b = End::new(std::sync::Arc::clone(&a.device));
        let echo = Echo::start(&b, true, None);
        shared(&mut b);
        assert!(echo.finish().0 > 0);
    }

    /// Messages pass, and none through memory.
    fn by_network_only(mut a: End, echo: Echo) {
        round_trips(&mut a, 300);
        let counters = a.soft().counters();
        assert_eq!((counters.sent_shared, counters.received_shared), (0, 0));
        assert!(counters.sent >= 300);
        assert_eq!(echo.finish(), (0, 0));
    }

    #[test]
    fn if_one_side_does_not_want_it_packets_take_the_network() {
        let _alone = alone();
        for (ours, theirs) in [(true, false), (false, true)] {
            let a = end(ours);
            let echo = Echo::start(&a, theirs, None);
            by_network_only(a, echo);
        }
    }

    #[test]
    fn with_another_users_process_no_memory_is_shared() {
        let _alone = alone();
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "SKIPPED with_another_users_process_no_memory_is_shared: only root can be another user"
            );
            return;
        }
        let a = end(true);
        let echo = Echo::start(&a, true, Some(OTHER_USER));
        by_network_only(a, echo);
    }

    #[test]
    fn nothing_is_lost_when_a_burst_meets_the_switch_from_network_to_memory() {
        let _alone = alone();
        for _ in 0..20 {
            let (mut a, mut b) = pair(&provider(true), Link::default());
            b.receive(DEPTH as usize);
            let expected: Vec<Vec<u8>> = (0..DEPTH)
                .map(|i| vec![i as u8; 100 + i as usize * 300])
                .collect();
            for message in &expected {
                a.send(message, SendFlags::SIGNALED);
            }
            let (mut got, mut sent) = (Vec::new(), 0);
            until("all of them", || {
                got.extend(b.received());
                sent += a
                    .sent()
                    .iter()
                    .filter(|status| **status == WcStatus::Success)
                    .count();
                (got.len() == expected.len() && sent == expected.len()).then_some(())
            });
            assert_eq!(got, expected);
        }
    }
}
