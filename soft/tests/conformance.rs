//! The conformance suite, on the software device.

use std::net::{Ipv4Addr, Ipv6Addr};

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

/// A device's configuration, and what it is called.
fn configurations() -> [(&'static str, SoftConfig); 4] {
    let at = |ip| SoftConfig::default().address(ip);
    [
        (
            "an address for each opening",
            SoftConfig::default().loopback(true),
        ),
        (
            "one address, on which the second opening has another port",
            at(Ipv4Addr::LOCALHOST.into()),
        ),
        ("IPv6", at(Ipv6Addr::LOCALHOST.into())),
        ("this host's own network", SoftConfig::default()),
    ]
}

#[test]
fn it_passes_over_udp() {
    for (what, config) in configurations() {
        println!("{what}");
        let provider = SoftProvider::new(config.shared_memory(false));
        assert_clean(&run_all(&provider, &Options::new("soft0")));
        let counters = provider.counters();
        assert!(counters.received > 0, "{counters:?}");
        assert_eq!((counters.sent_shared, counters.received_shared), (0, 0));
    }
}

#[test]
fn it_passes_over_shared_memory() {
    for (what, config) in configurations() {
        println!("{what}");
        let provider = SoftProvider::new(config);
        assert_clean(&run_all(&provider, &Options::new("soft0")));
        let counters = provider.counters();
        println!("{counters:?}");
        // The first packets of a connection are sent before the peer has taken the ring, and most cases send few.
        assert!(counters.received_shared > counters.received / 2, "{counters:?}");
    }
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
