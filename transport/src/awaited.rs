//! The requests of a connection that wait for their replies.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;
use std::time::Instant;

use adverb_proto::RefusalReason;

use crate::Message;

/// What the peer said to a request.
pub(crate) type Answer = Result<Message, RefusalReason>;

/// Requests that wait, by the low 32 bits of their messages' numbers, which is how the peer names them.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    entries: HashMap<u32, Entry, BuildHasherDefault<SpreadHasher>>,
    /// No deadline comes before this.
    next_deadline: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    seq: u64,
    answer: Option<Answer>,
    deadline: Option<Instant>,
    expired: bool,
    waker: Option<Waker>,
}

/// How a request stands that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// It waits.
    Waiting,
    /// Its deadline came first.
    Expired,
}

impl Awaited {
    /// Message `seq` is a request.
    pub(crate) fn insert(&mut self, seq: u64) {
        let entry = Entry {
            seq,
            answer: None,
            deadline: None,
            expired: false,
            waker: None,
        };
        self.entries.insert(key(seq), entry);
    }

    /// How many wait, those with an answer that was not taken included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes the peer's answer to the request with these low bits, and gives whom to wake. Gives the answer back if nobody waits for it.
    pub(crate) fn answer(&mut self, to: u32, answer: Answer) -> Result<Option<Waker>, Answer> {
        match self.entries.get_mut(&to) {
            // The first answer counts.
            Some(entry) if entry.answer.is_none() && !entry.expired => {
                entry.answer = Some(answer);
                Ok(entry.waker.take())
            }
            _ => Err(answer),
        }
    }

    /// Takes the answer of request `seq`, if there is one; else `waker` is who to wake.
    pub(crate) fn take(&mut self, seq: u64, waker: Option<&Waker>) -> Result<Answer, Unanswered> {
        let Some(entry) = self.entries.get_mut(&key(seq)).filter(|entry| entry.seq == seq) else {
            return Err(Unanswered::Expired);
        };
        if entry.answer.is_none() && !entry.expired {
            if let Some(waker) = waker {
                match &mut entry.waker {
                    Some(kept) => kept.clone_from(waker),
                    None => entry.waker = Some(waker.clone()),
                }
            }
            return Err(Unanswered::Waiting);
        }
        self.cancel(seq).ok_or(Unanswered::Expired)
    }

    /// Nobody waits for request `seq` any more. Gives its answer if one had come.
    pub(crate) fn cancel(&mut self, seq: u64) -> Option<Answer> {
        // Another may have its low bits by now.
        self.entries.get(&key(seq)).filter(|entry| entry.seq == seq)?;
        self.entries.remove(&key(seq))?.answer
    }

    /// Request `seq` waits until `deadline` at most. Whether that is earlier than all other deadlines.
    pub(crate) fn set_deadline(&mut self, seq: u64, deadline: Instant) -> bool {
        if let Some(entry) = self.entries.get_mut(&key(seq)).filter(|entry| entry.seq == seq) {
            entry.deadline = Some(deadline);
        }
        let earlier = self.next_deadline.is_none_or(|next| deadline < next);
        if earlier {
            self.next_deadline = Some(deadline);
        }
        earlier
    }

    /// When [`Self::expire`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Ends the wait of those whose deadline has come by `now`, and wakes them.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.next_deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let mut next: Option<Instant> = None;
        for entry in self.entries.values_mut() {
            let Some(deadline) = entry
                .deadline
                .filter(|_| entry.answer.is_none() && !entry.expired)
            else {
                continue;
            };
            if deadline > now {
                next = [next, Some(deadline)].into_iter().flatten().min();
                continue;
            }
            entry.expired = true;
            if let Some(waker) = entry.waker.take() {
                waker.wake();
            }
        }
        self.next_deadline = next;
    }

    /// Wakes all that wait: the connection has ended.
    pub(crate) fn wake_all(&mut self) {
        for waker in self.entries.values_mut().filter_map(|entry| entry.waker.take()) {
            waker.wake();
        }
    }
}

/// As the wire has it.
fn key(seq: u64) -> u32 {
    seq as u32
}

/// Spreads message numbers over a table. This side chooses them, so that no peer can make them collide.
#[derive(Debug, Default)]
struct SpreadHasher(u64);

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, key: u32) {
        // Fibonacci hashing: D. E. Knuth, The Art of Computer Programming, volume 3, section 6.4.
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((self.0 as u32).rotate_left(8) ^ u32::from(*byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refused() -> Answer {
        Err(RefusalReason::Dropped)
    }

    fn is_refused(answer: Result<Answer, Unanswered>) -> bool {
        matches!(answer, Ok(Err(RefusalReason::Dropped)))
    }

    #[test]
    fn each_answer_is_taken_once_by_who_waits_for_it() {
        let mut awaited = Awaited::default();
        (0..100).for_each(|seq| awaited.insert(seq));
        assert!(awaited.answer(70, refused()).is_ok());
        assert!(awaited.answer(70, refused()).is_err(), "a second answer");
        assert!(awaited.answer(100, refused()).is_err(), "of no request");
        assert_eq!(awaited.take(69, None).unwrap_err(), Unanswered::Waiting);
        assert!(is_refused(awaited.take(70, None)));
        assert!(awaited.answer(70, refused()).is_err(), "an answer after all");
        assert_eq!(awaited.len(), 99);
        (0..100).for_each(|seq| drop(awaited.cancel(seq)));
        assert_eq!(awaited.len(), 0);
    }

    #[test]
    fn numbers_with_the_same_low_bits_are_not_confused() {
        let mut awaited = Awaited::default();
        let old = 7;
        let new = old + (1 << 32);
        awaited.insert(new);
        assert!(awaited.cancel(old).is_none());
        assert_eq!(awaited.take(old, None).unwrap_err(), Unanswered::Expired);
        assert!(awaited.answer(7, refused()).is_ok());
        assert!(is_refused(awaited.take(new, None)));
    }

    #[test]
    fn deadlines_end_waits_and_no_answer_that_came_before() {
        let mut awaited = Awaited::default();
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        (0..4).for_each(|seq| awaited.insert(seq));
        assert!(awaited.set_deadline(0, after(20)));
        assert!(awaited.set_deadline(1, after(10)));
        assert!(!awaited.set_deadline(2, after(10)));
        assert!(awaited.answer(2, refused()).is_ok());
        assert_eq!(awaited.next_deadline(), Some(after(10)));
        awaited.expire(after(10));
        assert_eq!(awaited.next_deadline(), Some(after(20)));
        assert_eq!(awaited.take(0, None).unwrap_err(), Unanswered::Waiting);
        assert!(awaited.answer(1, refused()).is_err(), "too late");
        assert_eq!(awaited.take(1, None).unwrap_err(), Unanswered::Expired);
        assert!(is_refused(awaited.take(2, None)));
        awaited.expire(after(1000));
        assert_eq!(awaited.next_deadline(), None);
        assert_eq!(awaited.take(0, None).unwrap_err(), Unanswered::Expired);
        assert_eq!(awaited.take(3, None).unwrap_err(), Unanswered::Waiting);
    }
}
