//! The suite, on the loopback device and through the fault provider.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use adverb_conformance::{
    FaultProvider, Loopback, LoopbackConfig, Operation, Options, Outcome, Report, cases, run,
};
use adverb_verbs::Provider;

fn config() -> LoopbackConfig {
    LoopbackConfig::default().rnr_expires_at_once(true)
}

fn run_all(provider: &dyn Provider, options: &Options) -> Report {
    run(provider, options, |case, outcome| {
        println!(
            "{} {} {}",
            outcome.label(),
            case.name,
            outcome.text().unwrap_or_default()
        );
    })
}

/// The locked-memory limit binds some users and not others; all else must pass.
fn assert_clean(report: &Report) {
    println!("{report}");
    assert_eq!(report.results().len(), cases().count());
    for (name, outcome) in report.results() {
        let may_skip = *name == "locked_memory_limit_is_named" && matches!(outcome, Outcome::Skipped(_));
        assert!(may_skip || *outcome == Outcome::Passed, "{name}: {outcome:?}");
    }
}

#[test]
fn the_loopback_device_passes_between_two_devices() {
    let options = Options::new("loop0").second_device("loop1");
    assert_clean(&run_all(&Loopback::new(config()), &options));
}

#[test]
fn the_loopback_device_passes_on_one_device() {
    assert_clean(&run_all(&Loopback::new(config()), &Options::new("loop1")));
}

#[test]
fn the_fault_provider_without_faults_passes() {
    let inner = Loopback::new(config());
    let provider = FaultProvider::new(Arc::new(inner));
    let options = Options::new("loop0").second_device("loop1");
    assert_clean(&run_all(&provider, &options));
    assert_eq!(provider.faults().carried_out(), 0);
}

#[test]
fn the_fault_provider_wraps_itself() {
    let inner = FaultProvider::new(Arc::new(Loopback::new(config())));
    let provider = FaultProvider::new(Arc::new(inner));
    assert_clean(&run_all(&provider, &Options::new("loop0")));
}

#[test]
fn a_device_like_rxe_is_told_by_its_quirk() {
    let provider = Loopback::new(config().errors_wake_solicited(false));
    let report = run_all(&provider, &Options::new("loop0").filter("solicited"));
    assert_eq!((report.quirks(), report.failed()), (1, 0), "{report}");
    assert!(report.to_string().contains("QUIRK error_under_solicited_arm: "));
}

#[test]
fn a_device_without_shared_receive_queues_skips_what_needs_them() {
    let provider = Loopback::new(config().srq(false));
    let report = run_all(&provider, &Options::new("loop0"));
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.skipped() >= 7, "{report}");
}

#[test]
fn a_device_that_fails_is_reported_case_by_case_and_in_bounded_time() {
    let provider = FaultProvider::new(Arc::new(Loopback::new(config())));
    provider.faults().fail(Operation::ReqNotifyCq, 5, u32::MAX);
    let options = Options::new("loop0")
        .filter("arm")
        .deadline(Duration::from_millis(50));
    let report = run_all(&provider, &options);
    assert!(!report.is_ok());
    let text = report.to_string();
    assert!(
        text.contains("FAIL any_arm_wakes_for_unsolicited: ibv_req_notify_cq on loop0"),
        "{text}"
    );
}

#[test]
fn a_wait_in_vain_ends_and_says_what_for() {
    // Without a clock a missing receive is waited for, which this case does not expect.
    let options = Options::new("loop0")
        .filter("a_missing_receive_is_noticed")
        .deadline(Duration::from_millis(50));
    let report = run_all(&Loopback::default(), &options);
    let text = report.to_string();
    assert!(
        text.contains("waited 50ms in vain for completions: 0 of 1 came"),
        "{text}"
    );
}

#[test]
fn names_are_unique_and_every_case_says_what_it_checks() {
    let names: HashSet<_> = cases().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().count());
    assert!(cases().all(|case| !case.checks.is_empty() && !case.source.is_empty()));
}
