use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::key::{Key, RESERVED};
use super::*;

/// A value other than the default for each setting, as a variable has it and as it is printed.
const OTHERS: [(&str, &str, &str); 21] = [
    ("device", "soft:10.0.0.2", "\"soft:10.0.0.2\""),
    ("port", "2", "2"),
    ("source", "fe80::1", "\"fe80::1\""),
    ("shared_memory", "off", "false"),
    ("worker.mode", "event", "\"event\""),
    ("worker.comp_vector", "0", "0"),
    ("worker.max_endpoints", "7", "7"),
    ("worker.window", "64", "64"),
    ("worker.segment_size", "1000", "1024"),
    ("worker.send_depth", "4096", "4096"),
    ("worker.use_srq", "no", "false"),
    ("connection.max_message", "1GiB", "1073741824"),
    ("connection.max_queued_bytes", "1.5 MiB", "1572864"),
    ("connection.signal_every", "1", "1"),
    ("connection.max_inline", "0", "0"),
    ("connection.keepalive", "off", "\"off\""),
    ("connection.connect_timeout", "100us", "\"100us\""),
    ("connection.close_timeout", "90 min", "\"5400s\""),
    ("connection.ack_timeout", "31", "31"),
    ("connection.retry_cnt", "0", "0"),
    ("connection.traffic_class", "255", "255"),
];

fn env(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::new().with_variables(
        variables
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value))),
    )
}

fn message(result: Result<Config, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

fn origins(config: &Config) -> Vec<ConfigOrigin> {
    KEYS.iter()
        .map(|key| {
            config
                .origins
                .get(key.name)
                .cloned()
                .unwrap_or(ConfigOrigin::Default)
        })
        .collect()
}

#[test]
fn the_defaults_survive_toml() {
    let text = Config::new().to_string();
    assert_eq!(text.matches("# default\n").count(), KEYS.len());
    let again = Config::from_toml_str(&text).unwrap();
    assert_eq!(again, Config::new());
    assert!(!origins(&again).contains(&ConfigOrigin::Default));
    assert_eq!(Config::from_toml_str("").unwrap(), Config::new());
    let explained = format!("{:#}", Config::new());
    let window =
        "# data segments that a peer may have under way to an endpoint: 2 to 4096\nwindow = 32 # default\n";
    assert!(explained.contains(window), "{explained}");
    assert_eq!(Config::from_toml_str(&explained).unwrap(), Config::new());
}

#[test]
fn every_setting_can_be_set_by_its_variable() {
    assert_eq!(OTHERS.map(|(name, ..)| name), KEYS.each_ref().map(|key| key.name));
    for (name, text, shown) in OTHERS {
        let key = Key::find(name).unwrap();
        let variable = key.variable();
        let config = env(&[(&variable, text)]).unwrap();
        assert_ne!(config, Config::new(), "{name}");
        assert!(
            config
                .to_string()
                .contains(&format!("\n{} = {shown} # {variable}\n", key.last()))
                || config
                    .to_string()
                    .starts_with(&format!("{name} = {shown} # {variable}\n")),
            "{config}"
        );
        let changed = origins(&config)
            .iter()
            .filter(|origin| **origin != ConfigOrigin::Default)
            .count();
        assert_eq!(changed, 1, "{name}");
    }
}

#[test]
fn all_settings_survive_toml_and_serde() {
    let variables = OTHERS.map(|(name, text, _)| {
        (
            OsString::from(Key::find(name).unwrap().variable()),
            OsString::from(text),
        )
    });
    let config = Config::new().with_variables(variables.into_iter()).unwrap();
    for key in &KEYS {
        assert_ne!((key.get)(&config), (key.get)(&Config::new()), "{}", key.name);
    }
    assert_eq!(Config::from_toml_str(&config.to_string()).unwrap(), config);
    let by_serde: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
    assert_eq!(by_serde, config);
    assert_eq!(origins(&by_serde), vec![ConfigOrigin::Serde; KEYS.len()]);
}

#[test]
fn every_setting_has_a_setter_that_says_so() {
    let config = Config::new()
        .device("rxe0")
        .port(1)
        .source(IpAddr::from([10, 0, 0, 1]))
        .shared_memory(true)
        .mode(Mode::Poll)
        .comp_vector(None)
        .max_endpoints(0)
        .window(9999)
        .segment_size(1)
        .send_depth(0)
        .use_srq(true)
        .max_message(u32::MAX)
        .max_queued_bytes(usize::MAX)
        .signal_every(0)
        .max_inline(0)
        .keepalive(Some(Duration::MAX))
        .connect_timeout(Duration::MAX)
        .close_timeout(Duration::new(1, 1))
        .ack_timeout(0)
        .retry_cnt(7)
        .traffic_class(1);
    assert_eq!(origins(&config), vec![ConfigOrigin::Code; KEYS.len()]);
    // What setters let through, text may say too.
    assert_eq!(Config::from_toml_str(&config.to_string()).unwrap(), config);
    let auto = Config::new()
        .device("auto")
        .port(None)
        .source(None)
        .keepalive(None);
    assert_eq!(Config::from_toml_str(&auto.to_string()).unwrap(), auto);
}

#[test]
fn what_is_applied_later_wins() {
    let file = tempfile("precedence", "[worker]\nwindow = 20\nsend_depth = 20\n");
    let config = Config::new()
        .window(10)
        .send_depth(10)
        .max_endpoints(10)
        .with_file(&file)
        .unwrap()
        .with_variables([(OsString::from("ADVERB_WORKER_WINDOW"), OsString::from("30"))].into_iter())
        .unwrap();
    assert_eq!(
        (config.window, config.send_depth, config.max_endpoints),
        (30, 20, 10)
    );
    let of = |key: &str| config.origins[key].to_string();
    assert_eq!(of("worker.window"), "ADVERB_WORKER_WINDOW");
    assert_eq!(of("worker.send_depth"), format!("{}:3", file.display()));
    assert_eq!(of("worker.max_endpoints"), "code");
    assert_eq!(config.window(40).window, 40);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn an_unknown_name_is_refused_with_the_nearest() {
    for (text, name, nearest) in [
        ("[worker]\nwindo = 3", "worker.windo", "worker.window"),
        ("[worker]\nwindow_size = 3", "worker.window_size", "worker.window"),
        ("window = 3", "window", "worker.window"),
        ("[connection]\nwindow = 3", "connection.window", "worker.window"),
        (
            "[conection]\nkeepalive = '2s'",
            "conection.keepalive",
            "connection.keepalive",
        ),
        ("\"worker.window\" = 3", "\"worker.window\"", "worker.window"),
        ("worker.window.least = 3", "worker.window.least", "worker.window"),
        ("worker = 3", "worker", "worker.mode"),
        ("[wrker]", "wrker", "worker.mode"),
        ("Device = 'soft0'", "Device", "device"),
        ("\"\" = 3", "\"\"", "port"),
    ] {
        let error = Config::from_toml_str(text).unwrap_err();
        let kind = ConfigErrorKind::UnknownKey {
            key: name.into(),
            nearest: nearest.into(),
        };
        assert_eq!(*error.kind, kind, "{text}");
    }
    for (variable, nearest) in [
        ("ADVERB_WORKER_WINDO", "ADVERB_WORKER_WINDOW"),
        ("ADVERB_WINDOW", "ADVERB_WORKER_WINDOW"),
        ("ADVERB_DEVICES", "ADVERB_DEVICE"),
        ("ADVERB_CONNECTION_MODE", "ADVERB_WORKER_MODE"),
        ("ADVERB_RETRY_COUNT", "ADVERB_CONNECTION_RETRY_CNT"),
        ("ADVERB_", "ADVERB_PORT"),
    ] {
        assert_eq!(
            message(env(&[(variable, "1")])),
            format!("{variable}: there is no setting {variable}; the nearest is {nearest}")
        );
    }
}

#[test]
fn other_variables_are_left_alone() {
    let mut variables: Vec<_> = RESERVED.iter().map(|name| (*name, "1")).collect();
    variables.extend([
        ("PATH", "/bin"),
        ("MY_ADVERB_WINDOW", "1"),
        ("ADVERB_DEVICE", ""),
        ("ADVERB_TYPO", ""),
    ]);
    let config = env(&variables).unwrap();
    assert_eq!(origins(&config), origins(&Config::new()));
}

#[test]
fn bad_values_are_refused_with_what_is_allowed() {
    for (text, expected) in [
        (
            "worker.window = 1",
            "worker.window = 1 is out of range; allowed: 2 to 4096",
        ),
        (
            "worker.window = -1",
            "worker.window = -1 is out of range; allowed: 2 to 4096",
        ),
        (
            "worker.window = 0x1_0000",
            "worker.window = 0x1_0000 is out of range; allowed: 2 to 4096",
        ),
        (
            "worker.window = 99999999999999999999999999999999999999999999",
            "worker.window = 99999999999999999999999999999999999999999999 is not a whole number; allowed: 2 to 4096",
        ),
        (
            "worker.window = 3.5",
            "worker.window = 3.5 has the wrong type, float; allowed: 2 to 4096",
        ),
        (
            "worker.window = true",
            "worker.window = true has the wrong type, boolean; allowed: 2 to 4096",
        ),
        (
            "worker.window = 'many'",
            "worker.window = 'many' is not a whole number; allowed: 2 to 4096",
        ),
        (
            "worker.mode = 'spin'",
            "worker.mode = 'spin' is none of the modes; allowed: poll, event, hybrid",
        ),
        (
            "device = 3",
            "device = 3 has the wrong type, integer; allowed: a name, or auto",
        ),
        ("device = ''", "device = '' is empty; allowed: a name, or auto"),
        (
            "device = []",
            "device = [] has the wrong type, array; allowed: a name, or auto",
        ),
        (
            "source = 'here'",
            "source = 'here' is not an IP address; allowed: an IP address, or auto",
        ),
        ("port = 0", "port = 0 is out of range; allowed: 1 to 255, or auto"),
    ] {
        assert_eq!(
            message(Config::from_toml_str(text)),
            format!("line 1: {expected}")
        );
    }
    for (key, text, reason) in [
        ("worker.use_srq", "maybe", "is neither true nor false"),
        ("worker.segment_size", "8 bits", "is not a size"),
        ("worker.segment_size", "-1", "is not a size"),
        ("worker.segment_size", "255", "is out of range"),
        ("worker.segment_size", "2MiB", "is out of range"),
        ("connection.max_message", "9999999999GiB", "is out of range"),
        ("connection.keepalive", "2", "has no unit"),
        ("connection.keepalive", "2 fortnights", "has an unknown unit"),
        (
            "connection.keepalive",
            "never",
            "does not begin with a whole number",
        ),
        (
            "connection.keepalive",
            "-2s",
            "does not begin with a whole number",
        ),
        ("connection.keepalive", "1.5s", "has an unknown unit"),
        ("connection.keepalive", "366d", "is out of range"),
        ("connection.keepalive", "18446744073709551615s", "is out of range"),
        ("connection.retry_cnt", "7", "is out of range"),
    ] {
        let key = Key::find(key).unwrap();
        let (name, variable) = (key.name, key.variable());
        let expected = format!(
            "{variable}: {name} = {text:?} {reason}; allowed: {}",
            (key.allowed)()
        );
        assert_eq!(message(env(&[(&variable, text)])), expected);
    }
    let bytes = OsString::from_vec(vec![0xff]);
    let error = Config::new()
        .with_variables([("ADVERB_DEVICE".into(), bytes)].into_iter())
        .unwrap_err();
    assert!(error.to_string().contains("is not UTF-8"), "{error}");
}

#[test]
fn an_error_names_file_and_line() {
    let file = tempfile("lines", "# ours\n\n[worker]\nmode = 'poll'\nwindow = 1\n");
    let error = Config::from_file(&file).unwrap_err();
    let origin = ConfigOrigin::File {
        path: file.clone(),
        line: Some(5),
    };
    assert_eq!(error.origin, origin);
    std::fs::write(&file, "[worker]\nmode = \n").unwrap();
    let error = message(Config::from_file(&file));
    assert!(
        error.starts_with(&format!("{}:2: this is not TOML", file.display())),
        "{error}"
    );
    std::fs::remove_file(&file).unwrap();
    let error = message(Config::from_file(&file));
    assert!(
        error.starts_with(&format!("{}: this file cannot be read", file.display())),
        "{error}"
    );
    // The first in the file, not in the alphabet.
    assert!(message(Config::from_toml_str("x = 1\na = 1")).starts_with("line 1"));
}

#[test]
fn a_file_name_cannot_break_out_of_its_comment() {
    let mut config = Config::new();
    let origin = ConfigOrigin::File {
        path: "a\nport = 3".into(),
        line: Some(1),
    };
    config.origins.insert("device", origin);
    assert_eq!(Config::from_toml_str(&config.to_string()).unwrap(), Config::new());
}

#[test]
fn the_page_lists_every_setting() {
    let page = include_str!("../../CONFIG.md");
    let mut table =
        String::from("| key | variable | default | allowed | what it is |\n|---|---|---|---|---|\n");
    for key in &KEYS {
        let (name, variable, allowed, meaning) = (key.name, key.variable(), (key.allowed)(), key.meaning);
        let default = (key.get)(&Config::new());
        table += &format!("| `{name}` | `{variable}` | `{default}` | {allowed} | {meaning} |\n");
    }
    assert!(
        page.contains(&table),
        "CONFIG.md should have this table:\n{table}"
    );
    let reserved = RESERVED.map(|name| format!("`{name}`")).join(", ");
    assert!(
        page.contains(&reserved),
        "CONFIG.md should have these variables: {reserved}"
    );
}

/// A file of this test's own.
fn tempfile(name: &str, text: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("adverb-config-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}
