//! How much CPU time this process has used.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that all threads of this process have used so far (`clock_gettime(2)`, `CLOCK_PROCESS_CPUTIME_ID`).
pub fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Measures CPU time from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock {
    started: Duration,
}

impl CpuClock {
    /// Starts now.
    #[expect(
        clippy::new_without_default,
        reason = "a default would hide that it starts a measurement"
    )]
    pub fn new() -> Self {
        Self {
            started: process_cpu_time(),
        }
    }

    /// CPU time used since.
    pub fn used(&self) -> Duration {
        process_cpu_time().saturating_sub(self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_uses_time() {
        let clock = CpuClock::new();
        let before = clock.used();
        while clock.used() == before {
            std::hint::black_box(before);
        }
        assert!(clock.used() > before);
    }
}
