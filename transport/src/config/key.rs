//! The one list of settings: names, what they take, and how they are read and written as text.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use adverb_progress::Mode;
use bytesize::ByteSize;
use strsim::damerau_levenshtein;
use toml::Value;

use super::Config;

/// What the names of variables begin with.
pub(super) const PREFIX: &str = "ADVERB_";

/// Variables that begin like ours but are none of [`Config`]'s: those of the guests and containers that adverb is tested in, and of its tests.
pub(super) const RESERVED: [&str; 13] = [
    "ADVERB_ADDR",
    "ADVERB_HOST",
    "ADVERB_MODE",
    "ADVERB_OUT",
    "ADVERB_PEER",
    "ADVERB_SEEDS",
    "ADVERB_SERVER",
    "ADVERB_SOFT_TEST_SHARED",
    "ADVERB_SOFT_TEST_USER",
    "ADVERB_TEST_DEVICE",
    "ADVERB_TEST_ENDPOINTS",
    "ADVERB_TEST_MESSAGES",
    "ADVERB_WRITE_CORPUS",
];

pub(super) const PORT: RangeInclusive<u8> = 1..=u8::MAX;
pub(super) const ENDPOINTS: RangeInclusive<u32> = 1..=u32::MAX;
pub(super) const WINDOW: RangeInclusive<u32> = 2..=4096;
pub(super) const SEGMENT_SIZE: RangeInclusive<u32> = 256..=1 << 20;
pub(super) const SEND_DEPTH: RangeInclusive<u32> = 8..=4096;
pub(super) const SIGNAL_EVERY: RangeInclusive<u32> = 1..=u32::MAX;
pub(super) const ACK_TIMEOUT: RangeInclusive<u8> = 1..=31;
pub(super) const RETRY_CNT: RangeInclusive<u8> = 0..=6;
/// The longest duration: a year.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

const ANY_U8: RangeInclusive<u8> = 0..=u8::MAX;
const ANY_U32: RangeInclusive<u32> = 0..=u32::MAX;
const ANY_USIZE: RangeInclusive<usize> = 0..=usize::MAX;

/// The word for what adverb finds out by itself.
pub(super) const AUTO: &str = "auto";
const OFF: &str = "off";

/// What TOML has for the values of a setting. Each may also be written as the string that a variable would hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Integer,
    Boolean,
    String,
}

/// A setting.
#[derive(Debug)]
pub(super) struct Key {
    /// The key in TOML: `window` in the table `worker` is `worker.window`.
    pub(super) name: &'static str,
    pub(super) ty: Type,
    /// What it is, in a line.
    pub(super) meaning: &'static str,
    pub(super) allowed: fn() -> String,
    /// Its value, as TOML writes it.
    pub(super) get: fn(&Config) -> Value,
    /// Takes a value from text, or says what is wrong with it.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
}

/// All settings, those without a table first, as TOML wants it.
pub(super) static KEYS: [Key; 21] = [
    Key {
        name: "device",
        ty: Type::String,
        meaning: "the device: `rxe0`, `soft0`, `soft:10.0.0.2`; `auto` is the first of the system's with an active port, else `soft0`",
        allowed: || format!("a name, or {AUTO}"),
        get: |config| string(config.device.as_deref().unwrap_or(AUTO)),
        set: |config, text| {
            if text.is_empty() {
                return Err("is empty".into());
            }
            config.device = unless(AUTO, text).map(str::to_owned);
            Ok(())
        },
    },
    Key {
        name: "port",
        ty: Type::Integer,
        meaning: "the port of the device; `auto` is 1 for a named device, else the first active one",
        allowed: || format!("{}, or {AUTO}", between(&PORT)),
        get: |config| config.port.map_or_else(|| string(AUTO), integer),
        set: |config, text| {
            config.port = unless(AUTO, text).map(|text| number(text, &PORT)).transpose()?;
            Ok(())
        },
    },
    Key {
        name: "source",
        ty: Type::String,
        meaning: "the address whose GID is preferred; `auto` is the one that the handshake's TCP connection uses",
        allowed: || format!("an IP address, or {AUTO}"),
        get: |config| config.source.map_or_else(|| string(AUTO), string),
        set: |config, text| {
            let address = |text: &str| {
                text.parse::<IpAddr>()
                    .map_err(|_| "is not an IP address".to_owned())
            };
            config.source = unless(AUTO, text).map(address).transpose()?;
            Ok(())
        },
    },
    Key {
        name: "shared_memory",
        ty: Type::Boolean,
        meaning: "whether the software device goes through shared memory between processes of one host; if not, its packets can be seen on the interface",
        allowed: flags,
        get: |config| Value::Boolean(config.shared_memory),
        set: |config, text| {
            config.shared_memory = flag(text)?;
            Ok(())
        },
    },
    Key {
        name: "worker.mode",
        ty: Type::String,
        meaning: "how waiting is done",
        allowed: || {
            [Mode::Poll, Mode::Event, Mode::Hybrid]
                .map(|mode| mode.to_string())
                .join(", ")
        },
        get: |config| string(config.mode),
        set: |config, text| {
            config.mode = text.parse().map_err(|_| "is none of the modes".to_owned())?;
            Ok(())
        },
    },
    Key {
        name: "worker.comp_vector",
        ty: Type::Integer,
        meaning: "the completion vector of the worker's queues; `auto`: the workers of a context take turns over all",
        allowed: || format!("less than the device's num_comp_vectors, or {AUTO}"),
        get: |config| config.comp_vector.map_or_else(|| string(AUTO), integer),
        set: |config, text| {
            config.comp_vector = unless(AUTO, text)
                .map(|text| number(text, &ANY_U32))
                .transpose()?;
            Ok(())
        },
    },
    Key {
        name: "worker.max_endpoints",
        ty: Type::Integer,
        meaning: "endpoints that a worker takes at most",
        allowed: || between(&ENDPOINTS),
        get: |config| integer(config.max_endpoints),
        set: |config, text| {
            config.max_endpoints = number(text, &ENDPOINTS)?;
            Ok(())
        },
    },
    Key {
        name: "worker.window",
        ty: Type::Integer,
        meaning: "data segments that a peer may have under way to an endpoint",
        allowed: || between(&WINDOW),
        get: |config| integer(config.window),
        set: |config, text| {
            config.window = number(text, &WINDOW)?;
            Ok(())
        },
    },
    Key {
        name: "worker.segment_size",
        ty: Type::Integer,
        meaning: "bytes of a segment, header included; rounded up to a multiple of 64",
        allowed: || sizes(&SEGMENT_SIZE),
        get: |config| integer(config.segment_size),
        set: |config, text| {
            config.segment_size = size(text, &SEGMENT_SIZE)?.next_multiple_of(64);
            Ok(())
        },
    },
    Key {
        name: "worker.send_depth",
        ty: Type::Integer,
        meaning: "sends that an endpoint can have outstanding at its device",
        allowed: || between(&SEND_DEPTH),
        get: |config| integer(config.send_depth),
        set: |config, text| {
            config.send_depth = number(text, &SEND_DEPTH)?;
            Ok(())
        },
    },
    Key {
        name: "worker.use_srq",
        ty: Type::Boolean,
        meaning: "whether endpoints share a receive queue where the device has one",
        allowed: flags,
        get: |config| Value::Boolean(config.use_srq),
        set: |config, text| {
            config.use_srq = flag(text)?;
            Ok(())
        },
    },
    Key {
        name: "connection.max_message",
        ty: Type::Integer,
        meaning: "the largest message that this side accepts, user header included",
        allowed: || sizes(&ANY_U32),
        get: |config| integer(config.max_message),
        set: |config, text| {
            config.max_message = size(text, &ANY_U32)?;
            Ok(())
        },
    },
    Key {
        name: "connection.max_queued_bytes",
        ty: Type::Integer,
        meaning: "bytes that may wait on an endpoint for credits or for room in the send queue",
        allowed: || "a number of bytes, also with a unit as in \"8KiB\"".into(),
        get: |config| {
            let bytes = config.max_queued_bytes;
            // TOML's integers end at i64::MAX.
            i64::try_from(bytes).map_or_else(|_| string(bytes), Value::Integer)
        },
        set: |config, text| {
            config.max_queued_bytes = size(text, &ANY_USIZE)?;
            Ok(())
        },
    },
    Key {
        name: "connection.signal_every",
        ty: Type::Integer,
        meaning: "one send in so many asks for a completion; at most half of `worker.send_depth` is used",
        allowed: || between(&SIGNAL_EVERY),
        get: |config| integer(config.signal_every),
        set: |config, text| {
            config.signal_every = number(text, &SIGNAL_EVERY)?;
            Ok(())
        },
    },
    Key {
        name: "connection.max_inline",
        ty: Type::Integer,
        meaning: "bytes of a segment up to which it is posted inline, if the device can; 0 never does",
        allowed: || sizes(&ANY_U32),
        get: |config| integer(config.max_inline),
        set: |config, text| {
            config.max_inline = size(text, &ANY_U32)?;
            Ok(())
        },
    },
    Key {
        name: "connection.keepalive",
        ty: Type::String,
        meaning: "how long a peer may be silent before it is probed",
        allowed: || format!("{}, or {OFF}", durations()),
        get: |config| string(config.keepalive.map_or_else(|| OFF.to_owned(), duration_text)),
        set: |config, text| {
            config.keepalive = unless(OFF, text).map(duration).transpose()?;
            Ok(())
        },
    },
    Key {
        name: "connection.connect_timeout",
        ty: Type::String,
        meaning: "how long a connection may take to open",
        allowed: durations,
        get: |config| string(duration_text(config.connect_timeout)),
        set: |config, text| {
            config.connect_timeout = duration(text)?;
            Ok(())
        },
    },
    Key {
        name: "connection.close_timeout",
        ty: Type::String,
        meaning: "how long an orderly close may take, flush included",
        allowed: durations,
        get: |config| string(duration_text(config.close_timeout)),
        set: |config, text| {
            config.close_timeout = duration(text)?;
            Ok(())
        },
    },
    Key {
        name: "connection.ack_timeout",
        ty: Type::Integer,
        meaning: "local ACK timeout code: 4.096 µs × 2^code; see `Config::ack_timeout`",
        allowed: || between(&ACK_TIMEOUT),
        get: |config| integer(config.ack_timeout),
        set: |config, text| {
            config.ack_timeout = number(text, &ACK_TIMEOUT)?;
            Ok(())
        },
    },
    Key {
        name: "connection.retry_cnt",
        ty: Type::Integer,
        meaning: "retries before a silent peer counts as gone",
        allowed: || between(&RETRY_CNT),
        get: |config| integer(config.retry_cnt),
        set: |config, text| {
            config.retry_cnt = number(text, &RETRY_CNT)?;
            Ok(())
        },
    },
    Key {
        name: "connection.traffic_class",
        ty: Type::Integer,
        meaning: "traffic class of the packets: DSCP in the upper 6 bits",
        allowed: || between(&ANY_U8),
        get: |config| integer(config.traffic_class),
        set: |config, text| {
            config.traffic_class = number(text, &ANY_U8)?;
            Ok(())
        },
    },
];

impl Key {
    /// The setting of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The setting that this environment variable sets.
    pub(super) fn of_variable(variable: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.variable() == variable)
    }

    /// The setting whose name is most like this, which may be a key or what follows the prefix of a variable. Not only typing errors are likely, but also
    /// the wrong table or none, so that
    /// the last part of the name counts by itself, and the table as well.
    pub(super) fn nearest(name: &str) -> &'static Self {
        let name = name.to_lowercase().replace('.', "_");
        let last = KEYS
            .iter()
            .filter_map(|key| name.strip_prefix(key.table()?)?.strip_prefix('_'))
            .next()
            .unwrap_or(&name);
        let distance = |key: &&Self| {
            let whole = damerau_levenshtein(&name, &key.name.replace('.', "_"));
            let last = damerau_levenshtein(last, key.last()) + 1;
            let table = key
                .table()
                .map_or(usize::MAX, |table| damerau_levenshtein(&name, table) + 1);
            whole.min(last).min(table)
        };
        KEYS.iter().min_by_key(distance).unwrap_or(&KEYS[0])
    }

    /// Whether settings are in a TOML table of this name.
    pub(super) fn is_table(name: &str) -> bool {
        KEYS.iter().any(|key| key.table() == Some(name))
    }

    /// The environment variable that sets it.
    pub(super) fn variable(&self) -> String {
        PREFIX.to_owned() + &self.name.replace('.', "_").to_uppercase()
    }

    /// The TOML table that it is in.
    pub(super) fn table(&self) -> Option<&'static str> {
        Some(self.name.split_once('.')?.0)
    }

    /// Its name within its table.
    pub(super) fn last(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, last)| last)
    }
}

fn string(value: impl ToString) -> Value {
    Value::String(value.to_string())
}

fn integer(value: impl Into<i64>) -> Value {
    Value::Integer(value.into())
}

/// `None` for the word that stands for none.
fn unless<'a>(word: &str, text: &'a str) -> Option<&'a str> {
    (text != word).then_some(text)
}

fn number<T: TryFrom<i128> + PartialOrd>(text: &str, range: &RangeInclusive<T>) -> Result<T, String> {
    let number = text
        .parse::<i128>()
        .map_err(|_| "is not a whole number".to_owned())?;
    within(number, range)
}

fn between<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("{} to {}", range.start(), range.end())
}

fn size<T: TryFrom<i128> + PartialOrd>(text: &str, range: &RangeInclusive<T>) -> Result<T, String> {
    let size = text.parse::<ByteSize>().map_err(|_| "is not a size".to_owned())?;
    within(size.as_u64().into(), range)
}

fn sizes<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("{} bytes, also with a unit as in \"8KiB\"", between(range))
}

fn within<T: TryFrom<i128> + PartialOrd>(number: i128, range: &RangeInclusive<T>) -> Result<T, String> {
    T::try_from(number)
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| "is out of range".to_owned())
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

fn flags() -> String {
    "true or false".into()
}

/// Units of durations in nanoseconds, the longest first.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A whole number and its unit. (`humantime` reads more than that, and panics at some of it that is beyond `u64::MAX` seconds.)
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("does not begin with a whole number".into());
    }
    let unit = unit.trim_start();
    if unit.is_empty() {
        return Err("has no unit".into());
    }
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, nanoseconds) = known.ok_or_else(|| "has an unknown unit".to_owned())?;
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*nanoseconds))
        .map(Duration::from_nanos)
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| "is out of range".into())
}

/// As [`duration`] reads it, in seconds or the longest shorter unit that says it in full.
fn duration_text(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let fits = |(_, unit): &&(&str, u64)| nanoseconds.is_multiple_of(u128::from(*unit));
    match UNITS[3..].iter().find(fits) {
        Some((name, unit)) => format!("{}{name}", nanoseconds / u128::from(*unit)),
        None => format!("{nanoseconds}ns"),
    }
}

fn durations() -> String {
    "0s to 365d, as a whole number of ns, us, ms, s, min, h or d".into()
}
