//! The one-sided operations of a connection: which are done, and who waits for which.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    FetchAdd,
    CompareSwap,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Put, Self::Get, Self::FetchAdd, Self::CompareSwap];

    /// As errors name it.
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::Put => "writing the peer's memory",
            Self::Get => "reading the peer's memory",
            Self::FetchAdd => "adding to the peer's memory",
            Self::CompareSwap => "swapping in the peer's memory",
        }
    }

    /// Whether it brings a word.
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

/// What names an operation in its connection's send queue, where messages have names, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: Kind,
    /// Its number among the connection's one-sided operations, from 0.
    pub(crate) number: u64,
}

impl Tag {
    /// Set in no name of a message.
    const ONE_SIDED: u64 = 1 << 63;
    const KIND_SHIFT: u32 = 60;
    const NUMBERS: u64 = (1 << Self::KIND_SHIFT) - 1;

    pub(crate) fn cookie(self) -> u64 {
        Self::ONE_SIDED | (self.kind as u64) << Self::KIND_SHIFT | self.number & Self::NUMBERS
    }

    /// `None` for what is no one-sided operation.
    pub(crate) fn of(cookie: u64) -> Option<Self> {
        let kind = (cookie & !Self::ONE_SIDED) >> Self::KIND_SHIFT;
        let kind = *Kind::ALL.get(usize::try_from(kind).ok()?)?;
        (cookie & Self::ONE_SIDED != 0).then_some(Self {
            kind,
            number: cookie & Self::NUMBERS,
        })
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It was carried out.
    Done,
    /// It may have been carried out or not; the connection knows why it ended.
    Unknown,
}

/// The operations of a connection. RC completes them in order, and none succeeds after one that did not, so that two counts say how each ended.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    posted: u64,
    /// So many were carried out.
    done: u64,
    /// So many have ended: the device has let go of their memory.
    settled: u64,
    /// The results of atomics that somebody may still ask for.
    words: HashMap<u64, Option<u64>>,
    /// Who waits for which, in order.
    waiters: VecDeque<(u64, Waker)>,
}

impl Ledger {
    /// Numbers one more operation.
    pub(crate) fn add(&mut self, kind: Kind) -> Tag {
        let number = self.posted;
        self.posted += 1;
        if kind.is_atomic() {
            self.words.insert(number, None);
        }
        Tag { kind, number }
    }

    /// The device did not take the operation that was added last.
    pub(crate) fn take_back(&mut self) {
        self.posted -= 1;
        self.words.remove(&self.posted);
    }

    /// How many there have been.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// The device is done with an operation: wakes who waits for it.
    pub(crate) fn settle(&mut self, tag: Tag, succeeded: bool, word: Option<u64>) {
        if succeeded {
            self.done = tag.number + 1;
            if let Some(kept) = self.words.get_mut(&tag.number) {
                *kept = word;
            }
        }
        self.settled = tag.number + 1;
        self.wake();
    }

    /// The queue pair is gone, and with it whatever was under way.
    pub(crate) fn settle_all(&mut self) {
        self.settled = self.posted;
        self.wake();
    }

    /// How operation `number` ended, if it has; else `waker` is woken when it does.
    pub(crate) fn look(&mut self, number: u64, waker: Option<&Waker>) -> Option<Settled> {
        if number < self.done {
            return Some(Settled::Done);
        }
        if number < self.settled {
            return Some(Settled::Unknown);
        }
        if let Some(waker) = waker {
            self.add_waiter(number, waker);
        }
        None
    }

    /// What an atomic operation that is done brought.
    pub(crate) fn word(&self, number: u64) -> Option<u64> {
        self.words.get(&number).copied().flatten()
    }

    /// Nobody asks for the result of an atomic operation any more.
    pub(crate) fn forget(&mut self, number: u64) {
        self.words.remove(&number);
    }

    fn add_waiter(&mut self, number: u64, waker: &Waker) {
        // Most often it waits for the last of them.
        let end = self.waiters.partition_point(|(other, _)| *other <= number);
        let same = self.waiters.range(..end).rev();
        let known = same
            .take_while(|(other, _)| *other == number)
            .any(|(_, known)| known.will_wake(waker));
        if !known {
            self.waiters.insert(end, (number, waker.clone()));
        }
    }

    fn wake(&mut self) {
        while let Some((_, waker)) = self.waiters.pop_front_if(|(number, _)| *number < self.settled) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_cookie_tells_one_sided_operations_from_messages() {
        for kind in Kind::ALL {
            for number in [0, 1, Tag::NUMBERS] {
                let tag = Tag { kind, number };
                assert_eq!(Tag::of(tag.cookie()), Some(tag));
            }
        }
        for message in [0, 1, u64::MAX >> 1] {
            assert_eq!(Tag::of(message), None);
        }
        assert_eq!(Tag::of(u64::MAX), None);
    }

    #[test]
    fn each_operation_ends_once_and_wakes_its_own() {
        let mut ledger = Ledger::default();
        let tags = [Kind::Put, Kind::FetchAdd, Kind::Get, Kind::FetchAdd].map(|kind| ledger.add(kind));
        let counts: [Arc<Count>; 4] = Default::default();
        // In an order of their own, and twice, as futures are polled.
        for i in [2, 0, 3, 1, 2, 0] {
            let waker = Waker::from(Arc::clone(&counts[i]));
            assert_eq!(ledger.look(i as u64, Some(&waker)), None);
        }
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        ledger.settle(tags[0], true, None);
        assert_eq!(woken(), [1, 0, 0, 0]);
        ledger.settle(tags[1], true, Some(7));
        ledger.settle(tags[2], false, None);
        assert_eq!(woken(), [1, 1, 1, 0]);
        ledger.settle_all();
        assert_eq!(woken(), [1, 1, 1, 1]);
        let ends = [0, 1, 2, 3].map(|number| ledger.look(number, None).unwrap());
        assert_eq!(
            ends,
            [Settled::Done, Settled::Done, Settled::Unknown, Settled::Unknown]
        );
        assert_eq!((ledger.word(1), ledger.word(3)), (Some(7), None));
        ledger.forget(1);
        ledger.forget(3);
        assert!(ledger.words.is_empty() && ledger.waiters.is_empty());
    }

    #[test]
    fn what_the_device_did_not_take_leaves_no_trace() {
        let mut ledger = Ledger::default();
        ledger.add(Kind::FetchAdd);
        ledger.take_back();
        assert_eq!((ledger.posted(), ledger.words.len()), (0, 0));
        assert_eq!(ledger.add(Kind::Put).number, 0);
    }
}
