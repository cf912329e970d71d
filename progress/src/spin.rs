//! How long to spin before sleeping.
//!
//! A sleep costs a wake-up: system calls, an interrupt, the scheduler. Spinning costs the CPU it burns. In hindsight the
//! best limit for a wait that lasted `gap` is clear: spinning for `limit` would have cost `gap` if `gap ≤ limit`, else
//! `limit` in vain plus the wake-up. [`SpinBudget`] keeps the last gaps and takes the limit that would have been
//! cheapest for them. So regular traffic is spun for just long enough, rare traffic not at all, a single long pause in
//! a busy stream changes little, and two short gaps after a long quiet are enough to spin again.
//!
//! A gap runs from one completion to the next, the caller's own pauses and sleep included: a client that sends
//! every 50 ms has gaps of 50 ms, however soon its answers come.
//!
//! A wake-up is weighed [`PATIENCE`] times its measured cost, since who chose this mode minds the latency more than the CPU.
//! Its cost cannot be measured where it matters, as nobody knows when the interrupt came. Where it can be known
//! is a sleep that ended by its own time limit: how much later than asked did the thread run? That has the
//! same path through interrupt and scheduler, plus up to 50 µs of timer slack (`PR_SET_TIMERSLACK` in `prctl(2)`),
//! so it errs on the dear side. The safety re-poll yields such samples all the time. The time for arming is added.

use std::time::Duration;

/// How much dearer a wake-up counts than the time it takes.
const PATIENCE: u32 = 10;
/// Gaps remembered.
const HISTORY: usize = 8;
/// The limit before anything is known.
const FIRST_BUDGET: Duration = Duration::from_micros(20);
/// A wake-up's cost before one was seen: a blocking ping-pong over loopback shows about that.
const FIRST_WAKE_COST: Duration = Duration::from_micros(50);
const MIN_WAKE_COST: Duration = Duration::from_micros(5);
const MAX_WAKE_COST: Duration = Duration::from_millis(1);

/// Learns how long to spin from the gaps between completions and from the cost of waking up.
#[derive(Clone, Debug)]
pub struct SpinBudget {
    budget: Duration,
    /// A ring, in nanoseconds: the oldest is overwritten at `next`.
    gaps: [u64; HISTORY],
    known: usize,
    next: usize,
    /// Gaps since the budget was last worked out.
    unweighed: usize,
    wake: Duration,
    arm: Duration,
}

impl SpinBudget {
    /// Knows nothing yet: 20 µs.
    pub fn new() -> Self {
        Self {
            budget: FIRST_BUDGET,
            gaps: [0; HISTORY],
            known: 0,
            next: 0,
            unweighed: 0,
            wake: FIRST_WAKE_COST,
            arm: Duration::ZERO,
        }
    }

    /// How long to poll in vain before sleeping; zero means to sleep at once.
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// What a sleep is thought to cost: arming and waking up, from 5 µs to 1 ms.
    pub fn wake_cost(&self) -> Duration {
        (self.wake + self.arm).clamp(MIN_WAKE_COST, MAX_WAKE_COST)
    }

    /// A completion was found, `gap` after the one before, with nothing to do in between.
    pub fn observe_gap(&mut self, gap: Duration) {
        self.gaps[self.next] = nanos(gap);
        self.next = (self.next + 1) % HISTORY;
        self.known = (self.known + 1).min(HISTORY);
        self.unweighed += 1;
        // While spinning serves, once a round is enough: this is the hot path.
        if self.known < HISTORY || gap > self.budget || self.unweighed >= HISTORY {
            self.weigh();
        }
    }

    /// A sleep that nothing else ended ran this much over its time limit.
    pub fn observe_overrun(&mut self, overrun: Duration) {
        self.wake = blend(self.wake, overrun.min(MAX_WAKE_COST));
    }

    /// Arming took this long.
    pub fn observe_arm(&mut self, time: Duration) {
        self.arm = blend(self.arm, time.min(MAX_WAKE_COST));
    }

    fn weigh(&mut self) {
        self.unweighed = 0;
        let gaps = &self.gaps[..self.known];
        let wake = nanos(self.wake_cost() * PATIENCE);
        // Gaps beyond the limit do not count with their length, and a limit is milliseconds at most: the sum does not overflow.
        let cost = |limit: u64| -> u64 {
            gaps.iter()
                .map(|&gap| if gap <= limit { gap } else { limit + wake })
                .sum()
        };
        let mut best = (cost(0), 0);
        for &gap in gaps.iter().filter(|&&gap| gap <= wake) {
            // A quarter more, so that the next one like it is caught although it comes a little later.
            let limit = gap + gap / 4 + 1_000;
            let cost = cost(limit);
            if cost < best.0 {
                best = (cost, limit);
            }
        }
        self.budget = Duration::from_nanos(best.1);
    }
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// Nanoseconds, up to five centuries of them.
fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// An exponentially weighted mean; the newest sample counts an eighth.
fn blend(mean: Duration, sample: Duration) -> Duration {
    (mean * 7 + sample) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(50);
    const SHORT: Duration = Duration::from_micros(30);

    fn after(gaps: impl IntoIterator<Item = Duration>) -> SpinBudget {
        let mut spin = SpinBudget::new();
        for gap in gaps {
            spin.observe_gap(gap);
        }
        spin
    }

    #[test]
    fn rare_messages_are_not_spun_for() {
        assert_eq!(after([LONG; 2]).budget(), Duration::ZERO);
        assert_eq!(after([LONG; 100]).budget(), Duration::ZERO);
    }

    #[test]
    fn regular_messages_are_spun_for_just_long_enough() {
        let budget = after([SHORT; 20]).budget();
        assert!(budget >= SHORT && budget <= SHORT * 2, "{budget:?}");
    }

    #[test]
    fn one_long_pause_in_a_busy_stream_is_not_taken_to_heart() {
        let mut spin = after([SHORT; 20]);
        spin.observe_gap(LONG);
        assert!(spin.budget() >= SHORT);
    }

    #[test]
    fn a_single_short_gap_does_not_start_spinning_for_long_and_two_do_start_it() {
        let mut spin = after([LONG; 20]);
        assert_eq!(spin.budget(), Duration::ZERO);
        spin.observe_gap(SHORT);
        spin.observe_gap(SHORT);
        assert!(spin.budget() >= SHORT);
    }

    #[test]
    fn gaps_far_above_a_wake_up_are_slept_through_and_a_dearer_wake_up_makes_it_spin() {
        let gap = Duration::from_millis(1);
        let mut spin = after([gap; 10]);
        assert_eq!(spin.budget(), Duration::ZERO);
        for _ in 0..50 {
            spin.observe_overrun(Duration::from_micros(300));
        }
        spin.observe_gap(gap);
        assert!(spin.budget() >= gap);
    }

    #[test]
    fn the_cost_of_a_wake_up_stays_within_its_bounds() {
        let mut spin = SpinBudget::new();
        for _ in 0..200 {
            spin.observe_overrun(Duration::from_secs(5));
            spin.observe_arm(Duration::from_secs(5));
        }
        assert_eq!(spin.wake_cost(), MAX_WAKE_COST);
        for _ in 0..200 {
            spin.observe_overrun(Duration::ZERO);
            spin.observe_arm(Duration::ZERO);
        }
        assert_eq!(spin.wake_cost(), MIN_WAKE_COST);
    }
}
