//! Settings from TOML, from the environment and through serde, laid over those that are there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::key::{KEYS, Key, PREFIX, RESERVED, Type};
use super::{Config, ConfigError, ConfigErrorKind, ConfigOrigin};

impl Config {
    /// The defaults with a TOML text over them.
    ///
    /// ```
    /// # use adverb::{Config, Mode};
    /// let config = Config::from_toml_str(
    ///     r#"
    ///         device = "soft0"
    ///         [worker]
    ///         mode = "event"
    ///         segment_size = "16KiB"
    ///         [connection]
    ///         keepalive = "10s"
    ///     "#,
    /// )?;
    /// let wrong = Config::from_toml_str("[worker]\nwindo = 64").unwrap_err();
    /// assert_eq!(wrong.to_string(), "line 2: there is no setting worker.windo; the nearest is worker.window");
    /// # Ok::<(), adverb::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] names the line, and what would be right.
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigError> {
        Self::new().with_toml_str(text)
    }

    /// The defaults with a TOML file over them.
    ///
    /// # Errors
    /// [`ConfigError`] names the file and line, and what would be right.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::new().with_file(path)
    }

    /// The defaults with the environment over them: see [`Config::with_env`].
    ///
    /// # Errors
    /// [`ConfigError`] names the variable, and what would be right.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::new().with_env()
    }

    /// Takes what a TOML text sets, over what was set before.
    ///
    /// # Errors
    /// As for [`Config::from_toml_str`].
    pub fn with_toml_str(self, text: &str) -> Result<Self, ConfigError> {
        self.with_toml(text, |line| ConfigOrigin::Text {
            line: line.unwrap_or(1),
        })
    }

    /// Takes what a TOML file sets, over what was set before.
    ///
    /// # Errors
    /// As for [`Config::from_file`].
    pub fn with_file(self, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let origin = |line| ConfigOrigin::File {
            path: path.to_owned(),
            line,
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let reason = error.to_string();
            failed(origin(None), ConfigErrorKind::Unreadable { reason })
        })?;
        self.with_toml(&text, origin)
    }

    /// Takes what the environment sets, over what was set before: `ADVERB_WORKER_WINDOW` sets `worker.window`. An empty variable counts
    /// as none. The environment is read now, once.
    ///
    /// # Errors
    /// [`ConfigError`] names the variable, and what would be right. Other variables that begin with `ADVERB_` are refused too, but for the few
    /// that adverb's own tests and guests use.
    pub fn with_env(self) -> Result<Self, ConfigError> {
        self.with_variables(std::env::vars_os())
    }

    /// Takes from the environment what says which device to open, where nobody has said it yet.
    pub(crate) fn or_device_from_env(mut self) -> Result<Self, ConfigError> {
        let keys = KEYS.iter().filter(|key| key.table().is_none());
        for key in keys {
            let variable = key.variable();
            if !self.origins.contains_key(key.name)
                && let Some(value) = std::env::var_os(&variable).filter(|value| !value.is_empty())
            {
                self.set_by_variable(key, variable, value)?;
            }
        }
        Ok(self)
    }

    pub(super) fn with_variables(
        mut self,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        // Sorted, so that of several errors always the same is told.
        let ours: BTreeMap<_, _> = variables
            .filter(|(_, value)| !value.is_empty())
            .map(|(variable, value)| (variable.to_string_lossy().into_owned(), value))
            .filter(|(variable, _)| variable.starts_with(PREFIX) && !RESERVED.contains(&&**variable))
            .collect();
        for (variable, value) in ours {
            match Key::of_variable(&variable) {
                Some(key) => self.set_by_variable(key, variable, value)?,
                None => {
                    let kind = ConfigErrorKind::UnknownKey {
                        nearest: Key::nearest(&variable[PREFIX.len()..]).variable(),
                        key: variable.clone(),
                    };
                    return Err(failed(ConfigOrigin::Environment { variable }, kind));
                }
            }
        }
        Ok(self)
    }

    fn set_by_variable(
        &mut self,
        key: &'static Key,
        variable: String,
        value: OsString,
    ) -> Result<(), ConfigError> {
        let origin = ConfigOrigin::Environment { variable };
        match value.into_string() {
            Ok(text) => self.set(key, &text, &Value::String(text.clone()).to_string(), origin),
            Err(value) => {
                let shown = Value::String(value.to_string_lossy().into_owned()).to_string();
                Err(refused(key, &shown, "is not UTF-8".into(), origin))
            }
        }
    }

    fn with_toml(
        mut self,
        text: &str,
        origin: impl Fn(Option<usize>) -> ConfigOrigin,
    ) -> Result<Self, ConfigError> {
        let line_of = |position: usize| {
            let before = text.bytes().take(position);
            1 + before.filter(|byte| *byte == b'\n').count()
        };
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| line_of(span.start));
            let reason = error.message().to_owned();
            failed(origin(line), ConfigErrorKind::NotToml { reason })
        })?;
        let mut given = Vec::new();
        flatten(document.get_ref(), "", &mut given);
        given.sort_by_key(|given| given.position);
        for Given {
            name,
            value,
            position,
        } in given
        {
            let origin = origin(Some(line_of(position)));
            let Some(key) = Key::find(&name) else {
                let kind = ConfigErrorKind::UnknownKey {
                    nearest: Key::nearest(&name).name.to_owned(),
                    key: name,
                };
                return Err(failed(origin, kind));
            };
            let shown = text.get(value.span()).unwrap_or_default();
            match scalar(value.get_ref()) {
                Some((ty, text)) if ty == key.ty || ty == Type::String => {
                    self.set(key, &text, shown, origin)?
                }
                _ => {
                    let reason = format!("has the wrong type, {}", value.get_ref().type_str());
                    return Err(refused(key, shown, reason, origin));
                }
            }
        }
        Ok(self)
    }

    fn set(
        &mut self,
        key: &'static Key,
        text: &str,
        shown: &str,
        origin: ConfigOrigin,
    ) -> Result<(), ConfigError> {
        match (key.set)(self, text) {
            Ok(()) => {
                self.origins.insert(key.name, origin);
                Ok(())
            }
            Err(reason) => Err(refused(key, shown, reason, origin)),
        }
    }
}

/// All settings as a map, with a map for each table.
impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = Table::new();
        for key in &KEYS {
            let value = (key.get)(self);
            match key.table() {
                None => {
                    all.insert(key.last().to_owned(), value);
                }
                Some(name) => {
                    let table = all.entry(name).or_insert_with(|| Table::new().into());
                    if let Value::Table(table) = table {
                        table.insert(key.last().to_owned(), value);
                    }
                }
            }
        }
        all.serialize(serializer)
    }
}

/// From a map like that of a TOML file, as a part of a program's own configuration. What is missing has its default.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = Table::deserialize(deserializer)?;
        let text = toml::to_string(&table).map_err(D::Error::custom)?;
        Self::new()
            .with_toml(&text, |_| ConfigOrigin::Serde)
            .map_err(|error| D::Error::custom(error.kind))
    }
}

/// A value that TOML gives for a key.
struct Given<'a, 'text> {
    name: String,
    value: &'a Spanned<DeValue<'text>>,
    /// Where the key stands in the text.
    position: usize,
}

/// Lists what is in a table, and in those within it, by full names.
fn flatten<'a, 'text>(table: &'a DeTable<'text>, prefix: &str, given: &mut Vec<Given<'a, 'text>>) {
    for (key, value) in table {
        let part = key.get_ref();
        let bare = part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        // Quoted, so that a dot within a key is none between two.
        let name = if bare && !part.is_empty() {
            format!("{prefix}{part}")
        } else {
            format!("{prefix}{part:?}")
        };
        match value.get_ref() {
            DeValue::Table(table) if !table.is_empty() || Key::is_table(&name) => {
                flatten(table, &format!("{name}."), given);
            }
            _ => given.push(Given {
                name,
                value,
                position: key.span().start,
            }),
        }
    }
}

/// The text of a value that a setting may have.
fn scalar(value: &DeValue<'_>) -> Option<(Type, String)> {
    match value {
        DeValue::String(text) => Some((Type::String, text.to_string())),
        DeValue::Boolean(flag) => Some((Type::Boolean, flag.to_string())),
        DeValue::Integer(integer) => {
            let number = i128::from_str_radix(integer.as_str(), integer.radix());
            let text = number.map_or_else(|_| integer.as_str().to_owned(), |number| number.to_string());
            Some((Type::Integer, text))
        }
        _ => None,
    }
}

fn refused(key: &Key, value: &str, reason: String, origin: ConfigOrigin) -> ConfigError {
    let kind = ConfigErrorKind::InvalidValue {
        key: key.name,
        value: value.to_owned(),
        reason,
        allowed: (key.allowed)(),
    };
    failed(origin, kind)
}

fn failed(origin: ConfigOrigin, kind: ConfigErrorKind) -> ConfigError {
    ConfigError {
        origin,
        kind: Box::new(kind),
    }
}
