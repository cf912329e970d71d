//! Until when somebody waits.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The end of a wait, for one thread.
///
/// One that lies [in the future](Deadline::after) begins to count at the first look at it: who finds at once what it waits for never looks at the clock,
/// which costs about as much as sending a message.
#[derive(Debug)]
pub struct Deadline(Cell<End>);

#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    After(Duration),
    At(Instant),
}

impl Deadline {
    /// Never.
    pub const fn never() -> Self {
        Self(Cell::new(End::Never))
    }

    /// At this moment.
    pub const fn at(moment: Instant) -> Self {
        Self(Cell::new(End::At(moment)))
    }

    /// So long after the first look. What is longer than the clock can tell never ends.
    pub const fn after(time: Duration) -> Self {
        Self(Cell::new(End::After(time)))
    }

    /// The moment. `now` is called if it is not known yet.
    pub fn moment(&self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        match self.0.get() {
            End::Never => None,
            End::At(moment) => Some(moment),
            End::After(time) => {
                let moment = now().checked_add(time);
                self.0.set(moment.map_or(End::Never, End::At));
                moment
            }
        }
    }

    /// Whether it has come.
    pub fn has_come(&self) -> bool {
        let moment = self.moment(Instant::now);
        moment.is_some_and(|moment| moment <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_first_look_on() {
        let deadline = Deadline::after(Duration::from_secs(1));
        let now = Instant::now();
        let moment = Some(now + Duration::from_secs(1));
        assert_eq!(deadline.moment(|| now), moment);
        assert_eq!(deadline.moment(|| now + Duration::from_secs(9)), moment);
        assert!(!deadline.has_come());
    }

    #[test]
    fn what_has_no_end_never_comes() {
        for deadline in [Deadline::never(), Deadline::after(Duration::MAX)] {
            assert!(!deadline.has_come());
            assert_eq!(deadline.moment(Instant::now), None);
        }
        assert!(Deadline::at(Instant::now()).has_come());
        assert!(Deadline::after(Duration::ZERO).has_come());
    }
}
