//! Test suites that run inside a guest.

use adverb_guest::{Script, executables};

use crate::support::{conformance, guests, workspace};

#[test]
fn softroce_behaves_as_the_conformance_suite_says() {
    let script = Script::command([conformance().to_str().unwrap(), "rxe0"]);
    let outcome = guests().run(&script).unwrap();
    let output = &outcome.hosts[0].output;
    assert!(outcome.success(), "{output:#?}");
    let passed = output
        .iter()
        .filter(|line| line.starts_with("PASS ") || line.starts_with("QUIRK "))
        .count();
    // So many that a suite that is hardly run does not pass for one.
    assert!(passed >= 40, "only {passed} cases passed: {output:#?}");
}

#[test]
fn the_provider_gives_what_sysfs_says_and_keeps_what_it_was_lent() {
    let arguments = [
        "test",
        "-p",
        "adverb-ibverbs",
        "--features",
        "ibverbs",
        "--test",
        "rxe",
        "--no-run",
    ];
    let built = executables(&workspace(), &arguments, &["rxe"]).unwrap();
    let outcome = guests()
        .run(&Script::command([built[0].to_str().unwrap()]))
        .unwrap();
    let output = &outcome.hosts[0].output;
    assert!(outcome.success(), "{output:#?}");
    assert!(
        output
            .iter()
            .any(|line| line.starts_with("test result: ok. 6 passed")),
        "{output:#?}"
    );
}

#[test]
fn the_transports_tests_pass_on_softroce() {
    let targets = ["messages", "lifecycle", "driving", "one_sided"];
    let arguments = [
        "test",
        "-p",
        "adverb",
        "--features",
        "ibverbs",
        "--tests",
        "--no-run",
    ];
    let built = executables(&workspace(), &arguments, &targets).unwrap();
    let runs: String = built
        .iter()
        .map(|path| {
            format!(
                "{} --test-threads 1 || failed=1\n",
                Script::command([path.to_str().unwrap()]).text()
            )
        })
        .collect();
    let script = format!(
        "export ADVERB_TEST_DEVICE=rxe0\n{runs}\nrdma resource show qp | grep -v GSI\nexit ${{failed:-0}}"
    );
    let outcome = guests().run(&Script::shell(script)).unwrap();
    let output = &outcome.hosts[0].output;
    assert!(outcome.success(), "{output:#?}");
    let results: Vec<_> = output
        .iter()
        .filter(|line| line.starts_with("test result: ok."))
        .collect();
    assert_eq!(results.len(), targets.len(), "{output:#?}");
    assert!(
        !output.iter().any(|line| line.contains("lqpn")),
        "queue pairs are left: {output:#?}"
    );
    assert_eq!(outcome.complaints(), Vec::<&str>::new());
}
