//! The conformance suite, on the software device.

use adverb_conformance::{Options, Outcome, Report, cases, run};
use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
use adverb_verbs::Provider;

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

/// Nothing here locks memory; all else must pass.
fn assert_clean(report: &Report) {
    println!("{report}");
    assert_eq!(report.results().len(), cases().count());
    for (name, outcome) in report.results() {
        let may_skip = *name == "locked_memory_limit_is_named" && matches!(outcome, Outcome::Skipped(_));
        assert!(may_skip || *outcome == Outcome::Passed, "{name}: {outcome:?}");
    }
}

#[test]
fn it_passes_over_udp_on_loopback() {
    let provider = SoftProvider::new(SoftConfig::default().loopback(true));
    assert_clean(&run_all(&provider, &Options::new("soft0")));
}

/// Both openings have one address: the second one another port.
#[test]
fn it_passes_over_udp_on_one_address() {
    let config = SoftConfig::default().address("127.0.0.1".parse().unwrap());
    assert_clean(&run_all(&SoftProvider::new(config), &Options::new("soft0")));
}

#[test]
fn it_passes_over_udp_with_ipv6() {
    let config = SoftConfig::default().address("::1".parse().unwrap());
    assert_clean(&run_all(&SoftProvider::new(config), &Options::new("soft0")));
}

#[test]
fn it_passes_on_this_hosts_own_network() {
    assert_clean(&run_all(&SoftProvider::default(), &Options::new("soft0")));
}

#[test]
fn with_rxes_quirk_the_suite_tells() {
    let config = SoftConfig::default().loopback(true).errors_wake_solicited(false);
    let options = Options::new("soft0").filter("solicited");
    let report = run_all(&SoftProvider::new(config), &options);
    assert_eq!((report.quirks(), report.failed()), (1, 0), "{report}");
    assert!(report.to_string().contains("QUIRK error_under_solicited_arm: "));
}

#[test]
fn without_shared_receive_queues_the_suite_skips_what_needs_them() {
    let config = SoftConfig::default().loopback(true).srq(false);
    let report = run_all(&SoftProvider::new(config), &Options::new("soft0"));
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.skipped() >= 7, "{report}");
}

#[test]
fn it_passes_over_the_simulated_wire() {
    let network = SimNetwork::new(SimFaults::default());
    let provider = SoftProvider::simulated(SoftConfig::default(), &network);
    let report = network.in_real_time(|| run_all(&provider, &Options::new("soft0")));
    assert_clean(&report);
}
