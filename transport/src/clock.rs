//! The protocol's clock: the kernel's coarse one.
//!
//! Every batch of messages needs the time, but only for deadlines and keepalive, which are seconds long. The coarse clock is a few
//! milliseconds late at most and costs a read of memory, where the fine one may cost a system call in virtual machines
//! (`clock_gettime(2)`, `CLOCK_MONOTONIC_COARSE`).

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Coarse time as [`Instant`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    coarse_start: Duration,
    /// What the kernel said last, and what that is here: it says the same for milliseconds.
    last: (Timespec, Instant),
}

impl Clock {
    pub(crate) fn new() -> Self {
        let (start, coarse_start) = (Instant::now(), coarse());
        Self {
            start,
            coarse_start: since_boot(coarse_start),
            last: (coarse_start, start),
        }
    }

    /// Now, or a few milliseconds ago. Never runs backwards.
    pub(crate) fn now(&mut self) -> Instant {
        let coarse = coarse();
        if (coarse.tv_sec, coarse.tv_nsec) != (self.last.0.tv_sec, self.last.0.tv_nsec) {
            let passed = since_boot(coarse).saturating_sub(self.coarse_start);
            self.last = (coarse, self.start + passed);
        }
        self.last.1
    }
}

fn coarse() -> Timespec {
    clock_gettime(ClockId::MonotonicCoarse)
}

fn since_boot(time: Timespec) -> Duration {
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_and_does_not_run_ahead() {
        let mut clock = Clock::new();
        let first = clock.now();
        while clock.now() == first {
            std::hint::spin_loop();
        }
        assert!(clock.now() > first);
        // The coarse start was up to a tick before the fine one.
        assert!(clock.now() <= Instant::now() + Duration::from_millis(20));
    }
}
