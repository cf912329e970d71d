//! Who takes packets in: pollers, or the device's thread. These tests look at the threads of this process, so one runs at a time.

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread;
    use std::time::Duration;

    use adverb_soft::{SoftConfig, SoftProvider};
    use adverb_verbs::{SendFlags, WcStatus};
    use rustix::event::{PollFd, PollFlags, Timespec};

    use crate::common::{DEPTH, End, Link, pair, until};

    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a test on UDP alone, and with shared memory, which is used once both ends have taken their rings.
    fn on_both_wires(test: impl Fn(End, End)) {
        let _alone = alone();
        for shared in [false, true] {
            println!("shared memory: {shared}");
            let config = SoftConfig::default().loopback(true).shared_memory(shared);
            let (mut a, mut b) = pair(&SoftProvider::new(config), Link::default());
            if shared {
                until("shared memory both ways", || {
                    b.receive(1);
                    a.send(b"warm", SendFlags::SIGNALED);
                    until("the message", || b.received().pop());
                    until("its completion", || a.sent().pop());
                    let shared = |end: &End| end.soft().counters().sent_shared > 0;
                    (shared(&a) && shared(&b)).then_some(())
                });
            }
            test(a, b);
        }
    }

    /// How often each of the devices' threads went to sleep so far.
    fn sleeps() -> Vec<u64> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let sleeps = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim().to_owned())
            };
            let ours = field("Name:")? == "adverb-soft";
            ours.then(|| field("voluntary_ctxt_switches:")?.parse().ok())?
        };
        tasks.filter_map(|task| sleeps(task.unwrap())).collect()
    }

    /// Sleeps until the channel has an event, as a program does that has nothing else to do.
    fn sleep(end: &End) {
        loop {
            let limit = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let fd = end.channel.fd();
            let woken = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
            assert_ne!(woken, Ok(0), "no event in 10 s");
            if end.channel.next_event().unwrap().is_some() {
                return;
            }
        }
    }

    #[test]
    fn a_device_has_a_thread_while_it_is_open_and_was_connected() {
        let _alone = alone();
        let provider = SoftProvider::new(SoftConfig::default().loopback(true));
        let idle = End::new(adverb_verbs::Provider::open(&provider, "soft0").unwrap());
        idle.recv_cq.req_notify(false).unwrap();
        assert_eq!(sleeps().len(), 0, "nothing can arrive");
        let (a, b) = pair(&provider, Link::default());
        // A thread takes its name once it runs.
        until("two threads", || (sleeps().len() == 2).then_some(()));
        drop(a);
        assert_eq!(sleeps().len(), 1);
        drop((b, idle));
        assert_eq!(sleeps().len(), 0);
    }

    #[test]
    fn armed_and_idle_nothing_runs() {
        on_both_wires(|mut a, mut b| {
            b.receive(2);
            a.send(b"warm", SendFlags::SIGNALED);
            until("the message", || b.received().pop());
            until("its completion", || a.sent().pop());
            for end in [&a, &b] {
                end.recv_cq.req_notify(true).unwrap();
                end.send_cq.req_notify(false).unwrap();
            }
            // The last timer runs out, and pollers are forgotten.
            thread::sleep(Duration::from_millis(200));
            let before = sleeps();
            thread::sleep(Duration::from_millis(200));
            assert_eq!(sleeps(), before, "each time that a thread woke up");
        });
    }

    #[test]
    fn what_was_posted_is_sent_again_and_acknowledged_while_nobody_polls() {
        on_both_wires(|mut a, mut b| {
            // No receive yet: the peer's thread says so, and this side's tries again and again.
            a.send(b"patience", SendFlags::SIGNALED);
            let answers = || a.soft().counters().received;
            until("answers to several tries", || (answers() > 3).then_some(()));
            b.receive(1);
            until("what follows the receive", || {
                let seen = answers();
                thread::sleep(Duration::from_millis(20));
                (answers() == seen).then_some(())
            });
            // All is done; one poll each finds it.
            assert_eq!(b.received(), [b"patience".to_vec()]);
            assert_eq!(a.sent(), [WcStatus::Success]);
        });
    }

    #[test]
    fn sleepers_wake_each_other_without_polling() {
        on_both_wires(|a, b| {
            const ROUNDS: usize = 2_000;
            let run = |mut end: End, begins: bool| {
                move || {
                    end.receive(DEPTH as usize);
                    if begins {
                        end.send(b"ball", SendFlags::SIGNALED | SendFlags::SOLICITED);
                    }
                    let (mut caught, mut armed) = (0, false);
                    while caught < ROUNDS {
                        if !armed {
                            end.recv_cq.req_notify(true).unwrap();
                            armed = true;
                        }
                        // What came before the arm raises no event.
                        let got = end.received().len();
                        assert!(end.sent().iter().all(|status| *status == WcStatus::Success));
                        end.receive(got);
                        if got == 0 {
                            sleep(&end);
                            armed = false;
                            continue;
                        }
                        caught += got;
                        if !begins || caught < ROUNDS {
                            end.send(b"ball", SendFlags::SIGNALED | SendFlags::SOLICITED);
                        }
                    }
                    // The last acknowledgement.
                    until("the last send", || {
                        (end.sent().pop().is_some() || end.sq.in_flight() == 0).then_some(())
                    });
                    end
                }
            };
            let (a, b) = (thread::spawn(run(a, true)), thread::spawn(run(b, false)));
            let (_a, _b) = (a.join().unwrap(), b.join().unwrap());
        });
    }

    #[test]
    fn the_thread_stays_away_from_pollers() {
        on_both_wires(|mut a, mut b| {
            const MESSAGES: usize = 20_000;
            let before: u64 = sleeps().iter().sum();
            for _ in 0..MESSAGES {
                b.receive(1);
                a.send(b"ball", SendFlags::SIGNALED);
                while b.received().is_empty() {}
                while a.sent().is_empty() {}
            }
            let woken = sleeps().iter().sum::<u64>() - before;
            // Two packets each way would have woken two threads each time.
            assert!(
                woken < MESSAGES as u64 / 4,
                "{woken} times for {MESSAGES} messages"
            );
        });
    }

    #[test]
    fn two_ends_that_post_to_each_other_at_once_do_not_deadlock_and_lose_nothing() {
        on_both_wires(|a, b| {
            const MESSAGES: usize = 5_000;
            let run = |mut end: End| {
                move || {
                    let (mut posted, mut sent, mut received) = (0, 0, 0);
                    while sent < MESSAGES || received < MESSAGES {
                        end.receive(end.rq.free());
                        if posted < MESSAGES && end.sq.free() > 0 {
                            end.send(&(posted as u64).to_le_bytes(), SendFlags::SIGNALED);
                            posted += 1;
                        }
                        // Gives the other one the processor, where there is only one.
                        thread::yield_now();
                        for status in end.sent() {
                            assert_eq!(status, WcStatus::Success);
                            sent += 1;
                        }
                        for message in end.received() {
                            assert_eq!(message, (received as u64).to_le_bytes());
                            received += 1;
                        }
                    }
                    end
                }
            };
            let (a, b) = (thread::spawn(run(a)), thread::spawn(run(b)));
            let (_a, _b) = (a.join().unwrap(), b.join().unwrap());
        });
    }

    #[test]
    fn a_message_of_many_windows_arrives_whole() {
        on_both_wires(|mut a, b| {
            const LEN: usize = 8 << 20;
            let (from, to) = (a.region(LEN), b.region(LEN));
            let bytes: Vec<u8> = (0..LEN as u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect();
            from.write_at(0, &bytes).unwrap();
            let mut request = adverb_verbs::SendRequest::new(adverb_verbs::SendOp::Write(to.remote_addr(0)))
                .flags(SendFlags::SIGNALED);
            request
                .push(adverb_verbs::Buffer::Region {
                    region: from,
                    offset: 0,
                    len: LEN as u32,
                })
                .unwrap();
            a.sq.post(&mut vec![request]).unwrap();
            assert_eq!(until("the write", || a.sent().pop()), WcStatus::Success);
            let mut got = vec![0; LEN];
            to.read_at(0, &mut got).unwrap();
            assert!(got == bytes);
        });
    }
}
