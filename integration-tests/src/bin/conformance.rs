//! Runs the conformance suite on a device of libibverbs: `conformance DEVICE [FILTER]`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use adverb_conformance::{Options, run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(device) = arguments.next() else {
        eprintln!("usage: conformance DEVICE [FILTER]");
        return ExitCode::FAILURE;
    };
    let mut options = Options::new(device);
    if let Some(filter) = arguments.next() {
        options = options.filter(filter);
    }
    let provider = adverb_ibverbs::provider();
    let report = run(&*provider, &options, |case, outcome| match outcome.text() {
        Some(text) => println!("{} {}: {text}", outcome.label(), case.name),
        None => println!("{} {}", outcome.label(), case.name),
    });
    println!("{report}");
    // Cases are skipped on devices that lack something; a suite that ran nothing did not pass.
    if report.is_ok() && report.passed() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
