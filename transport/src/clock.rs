//! The protocol's clock: the kernel's coarse one.
//!
//! Every message needs the time, but only for deadlines and keepalive, which are seconds long. The coarse clock is a few
//! milliseconds late at most and costs a read of memory, where the fine one may cost a system call in virtual machines
//! (`clock_gettime(2)`, `CLOCK_MONOTONIC_COARSE`).

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Coarse time as [`Instant`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    coarse_start: Duration,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            coarse_start: coarse(),
        }
    }

    /// Now, or a few milliseconds ago. Never runs backwards.
    pub(crate) fn now(&self) -> Instant {
        self.start + coarse().saturating_sub(self.coarse_start)
    }
}

fn coarse() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
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
        let clock = Clock::new();
        let first = clock.now();
        while clock.now() == first {
            std::hint::spin_loop();
        }
        // The coarse start was up to a tick before the fine one.
        assert!(clock.now() <= Instant::now() + Duration::from_millis(20));
    }
}
