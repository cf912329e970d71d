//! What the environment says of a configuration and of the device to open.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;

use adverb::{Config, ConfigOrigin, Context, OpenError};

/// Tells a test that it is the process with the environment in question, which it may not change in its own.
const CHILD: &str = "ENVIRONMENT_TEST_CHILD";

/// Runs the test `name` again, in a process with these variables and no others of adverb's.
fn again(name: &str, variables: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("ADVERB_") {
            child.env_remove(variable);
        }
    }
    let output = child.envs(variables.iter().copied()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn the_device_is_named_by_the_environment_if_not_by_the_program() {
    if !is_child() {
        let variables = [
            ("ADVERB_DEVICE", "soft:127.0.0.1"),
            ("ADVERB_SHARED_MEMORY", "off"),
            ("ADVERB_UNKNOWN", "ignored by who only opens a device"),
        ];
        return again(
            "the_device_is_named_by_the_environment_if_not_by_the_program",
            &variables,
        );
    }
    let name = |context: Context| context.device_name().to_owned();
    assert_eq!(name(Context::open().unwrap()), "soft:127.0.0.1");
    let program = Config::new().device("soft:127.0.0.2");
    let builder = Context::builder().config(&program);
    assert_eq!(name(builder.clone().open().unwrap()), "soft:127.0.0.2");
    assert_eq!(
        name(builder.device("soft:127.0.0.3").open().unwrap()),
        "soft:127.0.0.3"
    );
}

#[test]
fn a_configuration_takes_the_environment_over_the_program() {
    if !is_child() {
        let variables = [
            ("ADVERB_DEVICE", "soft:127.0.0.1"),
            ("ADVERB_WORKER_MAX_ENDPOINTS", "3"),
            ("ADVERB_HOST", "1"),
        ];
        return again(
            "a_configuration_takes_the_environment_over_the_program",
            &variables,
        );
    }
    let config = Config::new()
        .device("soft:127.0.0.2")
        .max_endpoints(4)
        .with_env()
        .unwrap();
    let context = Context::builder().config(&config).open().unwrap();
    assert_eq!(context.device_name(), "soft:127.0.0.1");
    assert_eq!(context.worker(config).unwrap().stats().max_endpoints, 3);
}

#[test]
fn a_device_is_not_opened_by_a_variable_that_is_not_understood() {
    if !is_child() {
        let variables = [
            ("ADVERB_DEVICE", "soft:127.0.0.1"),
            ("ADVERB_SHARED_MEMORY", "of"),
        ];
        return again(
            "a_device_is_not_opened_by_a_variable_that_is_not_understood",
            &variables,
        );
    }
    let error = Context::open().unwrap_err();
    assert_eq!(
        error.to_string(),
        "ADVERB_SHARED_MEMORY: shared_memory = \"of\" is neither true nor false; allowed: true or false"
    );
    let OpenError::Config(error) = error else {
        panic!("{error:?}");
    };
    let variable = "ADVERB_SHARED_MEMORY".to_owned();
    assert_eq!(error.origin, ConfigOrigin::Environment { variable });
}
