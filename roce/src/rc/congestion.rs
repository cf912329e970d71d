//! Who receives packets that a switch has marked tells their sender (IBTA volume 1, annex A17, section A17.9.3).

use std::time::{Duration, Instant};

/// A queue pair notifies its peer this often at most: DCQCN's figure (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", section 5).
const LEAST: Duration = Duration::from_micros(50);

/// Says when a congestion notification is to be sent.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    due: bool,
    last: Option<Instant>,
}

impl Notifier {
    /// A packet came with a mark.
    pub(super) fn marked(&mut self, now: Instant) {
        if self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) >= LEAST)
        {
            self.due = true;
            self.last = Some(now);
        }
    }

    /// Whether one is to be sent now. It then counts as sent.
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_marks_is_told_once_each_50_microseconds() {
        let start = Instant::now();
        let mut notifier = Notifier::default();
        assert!(!notifier.take());
        let told: Vec<u64> = (0..120)
            .filter(|at| {
                notifier.marked(start + Duration::from_micros(*at));
                notifier.take()
            })
            .collect();
        assert_eq!(told, [0, 50, 100]);
    }

    #[test]
    fn marks_that_come_before_it_is_sent_are_one() {
        let mut notifier = Notifier::default();
        let start = Instant::now();
        notifier.marked(start);
        notifier.marked(start + LEAST);
        assert!(notifier.take());
        assert!(!notifier.take());
    }
}
