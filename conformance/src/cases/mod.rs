//! The suite: what a device must do, as checks that run on any provider.
//!
//! Both ends of every connection are in this process, each on an opening of its own, as two processes would have it. All
//! waits are bounded by [`Options::deadline`]. Where devices are known to differ, a case accepts what they do and says
//! what it saw: [`Outcome::Quirk`].

mod arming;
mod device;
mod errors;
mod fixture;
mod handles;
mod limits;
mod messages;
mod report;
mod rights;
mod shared;
mod states;

use std::time::Duration;

use adverb_verbs::Provider;

use fixture::{Check, Fixture};
pub use report::{Outcome, Report};

/// One checkable piece of behaviour.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name, which no other case has.
    pub name: &'static str,
    /// What it checks, in one line.
    pub checks: &'static str,
    /// Where that is written down, or what it was measured on.
    pub source: &'static str,
    body: fn(&Fixture<'_>) -> Check,
}

impl Case {
    /// Runs it alone.
    pub fn run(&self, provider: &dyn Provider, options: &Options) -> Outcome {
        let fixture = Fixture::new(provider, options);
        (self.body)(&fixture).unwrap_or_else(|failure| Outcome::Failed(failure.to_string()))
    }
}

/// Makes a case of a function, under its name.
macro_rules! case {
    ($body:ident, $checks:literal, $source:literal) => {
        $crate::cases::Case {
            name: stringify!($body),
            checks: $checks,
            source: $source,
            body: $body,
        }
    };
}
use case;

/// What to run, and on what.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    device: String,
    second_device: Option<String>,
    filter: Option<String>,
    without: Vec<String>,
    deadline: Duration,
}

impl Options {
    /// Every case, with both ends on `device`, waiting up to 10 s for what must happen.
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            second_device: None,
            filter: None,
            without: Vec::new(),
            deadline: Duration::from_secs(10),
        }
    }

    /// Puts the second end on another device. SoftRoCE devices of one host do not reach each other before Linux 7.1.
    pub fn second_device(mut self, device: impl Into<String>) -> Self {
        self.second_device = Some(device.into());
        self
    }

    /// Runs only the cases whose name contains `part`.
    pub fn filter(mut self, part: impl Into<String>) -> Self {
        self.filter = Some(part.into());
        self
    }

    /// Leaves out the case of this name: for devices that cannot be set up for it.
    pub fn without(mut self, name: impl Into<String>) -> Self {
        self.without.push(name.into());
        self
    }

    /// Waits up to `limit` for each thing that must happen. Software emulation is slow: the default of 10 s is meant for it.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    fn wants(&self, case: &Case) -> bool {
        let wanted = self.filter.as_ref().is_none_or(|part| case.name.contains(part));
        wanted && !self.without.iter().any(|name| name == case.name)
    }
}

/// Every case, in the order in which they run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    let groups = [
        device::CASES,
        limits::CASES,
        handles::CASES,
        states::CASES,
        messages::CASES,
        shared::CASES,
        arming::CASES,
        rights::CASES,
        errors::CASES,
    ];
    groups.into_iter().flatten()
}

/// Runs the cases that `options` wants, and hands each result to `on_result` as it comes.
///
/// ```
/// use adverb_conformance::{Options, Outcome, run};
/// use adverb_soft::{SoftConfig, SoftProvider};
///
/// let provider = SoftProvider::new(SoftConfig::default().loopback(true));
/// let report = run(&provider, &Options::new("soft0").filter("port_"), |case, outcome| match outcome {
///     Outcome::Failed(text) => println!("FAIL {}: {text}", case.name),
///     other => println!("{} {}", other.label(), case.name),
/// });
/// assert!(report.is_ok(), "{report}");
/// ```
pub fn run(provider: &dyn Provider, options: &Options, mut on_result: impl FnMut(&Case, &Outcome)) -> Report {
    let mut report = Report::default();
    for case in cases().filter(|case| options.wants(case)) {
        let outcome = case.run(provider, options);
        on_result(case, &outcome);
        report.add(case.name, outcome);
    }
    report
}
