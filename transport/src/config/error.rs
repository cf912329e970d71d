//! Where settings come from, and what can be wrong with them.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// Where the value of a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigOrigin {
    /// Nobody set it.
    Default,
    /// The program, by a setter.
    Code,
    /// The program, by way of serde.
    Serde,
    /// A TOML text, at this line, counting from 1.
    Text {
        /// The line.
        line: usize,
    },
    /// A TOML file.
    File {
        /// Its path.
        path: PathBuf,
        /// The line, counting from 1. `None` if it is about the file as a whole.
        line: Option<usize>,
    },
    /// The environment variable of this name.
    Environment {
        /// The name.
        variable: String,
    },
}

impl fmt::Display for ConfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Code => f.write_str("code"),
            Self::Serde => f.write_str("serde"),
            Self::Text { line } => write!(f, "line {line}"),
            // Escaped, as it may stand in a comment, which a line break would end.
            Self::File { path, line } => {
                write!(f, "{}", path.to_string_lossy().escape_debug())?;
                line.map_or(Ok(()), |line| write!(f, ":{line}"))
            }
            Self::Environment { variable } => f.write_str(variable),
        }
    }
}

/// A configuration was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{origin}: {kind}")]
pub struct ConfigError {
    /// Where it stands.
    pub origin: ConfigOrigin,
    /// What is wrong.
    pub kind: Box<ConfigErrorKind>,
}

/// Why a configuration was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// There is no such setting.
    #[error("there is no setting {key}; the nearest is {nearest}")]
    UnknownKey {
        /// The key, or the variable, that was given.
        key: String,
        /// The one that is most like it.
        nearest: String,
    },
    /// The setting does not take this value.
    #[error("{key} = {value} {reason}; allowed: {allowed}")]
    InvalidValue {
        /// The key.
        key: &'static str,
        /// The value, as TOML writes it.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// What would be taken.
        allowed: String,
    },
    /// The text is not TOML.
    #[error("this is not TOML: {reason}")]
    NotToml {
        /// What the parser says.
        reason: String,
    },
    /// The file cannot be read.
    #[error("this file cannot be read: {reason}")]
    Unreadable {
        /// What the system says.
        reason: String,
    },
}
