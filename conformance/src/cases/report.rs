//! How cases ended.

use std::fmt;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device does what it must.
    Passed,
    /// The device does something else that devices are known to do, and that adverb can live with: this.
    Quirk(String),
    /// It could not be checked, for this reason.
    Skipped(String),
    /// The device does not do what it must.
    Failed(String),
}

impl Outcome {
    /// `PASS`, `QUIRK`, `SKIP` or `FAIL`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Passed => "PASS",
            Self::Quirk(_) => "QUIRK",
            Self::Skipped(_) => "SKIP",
            Self::Failed(_) => "FAIL",
        }
    }

    /// What there is to say about it; nothing if it passed.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Quirk(text) | Self::Skipped(text) | Self::Failed(text) => Some(text),
        }
    }
}

/// What a run of the suite found. It prints as one line of counts, and one line for each case that did not plainly pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Report {
    results: Vec<(&'static str, Outcome)>,
}

impl Report {
    pub(super) fn add(&mut self, name: &'static str, outcome: Outcome) {
        self.results.push((name, outcome));
    }

    /// Every case that ran, by name, in order.
    pub fn results(&self) -> &[(&'static str, Outcome)] {
        &self.results
    }

    /// Cases that passed, without those that found a quirk.
    pub fn passed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Passed))
    }

    /// Cases that found a quirk.
    pub fn quirks(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Quirk(_)))
    }

    /// Cases that could not be checked.
    pub fn skipped(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Skipped(_)))
    }

    /// Cases that failed.
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// Whether something was checked and nothing failed.
    pub fn is_ok(&self) -> bool {
        self.failed() == 0 && self.passed() + self.quirks() > 0
    }

    fn count(&self, of: impl Fn(&Outcome) -> bool) -> usize {
        self.results.iter().filter(|(_, outcome)| of(outcome)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} quirks, {} skipped, {} failed",
            self.passed(),
            self.quirks(),
            self.skipped(),
            self.failed()
        )?;
        for (name, outcome) in &self.results {
            if let Some(text) = outcome.text() {
                write!(f, "\n{} {name}: {text}", outcome.label())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_and_lists_what_did_not_plainly_pass() {
        let mut report = Report::default();
        assert!(!report.is_ok(), "nothing was checked");
        report.add("a", Outcome::Passed);
        report.add("b", Outcome::Quirk("differs".into()));
        assert!(report.is_ok());
        report.add("c", Outcome::Failed("broken".into()));
        assert!(!report.is_ok());
        assert_eq!(
            report.to_string(),
            "1 passed, 1 quirks, 0 skipped, 1 failed\nQUIRK b: differs\nFAIL c: broken"
        );
    }
}
