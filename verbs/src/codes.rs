//! Enumerations of libibverbs as Rust types: code, name and meaning in one table each.

/// Makes a C enumeration an enum that keeps codes it does not know, can be told from and to its code, and prints as
/// `NAME (code): meaning`.
macro_rules! codes {
    (
        $(#[$type_doc:meta])* $type:ident, $c_enum:literal:
        $($(#[$doc:meta])* $name:ident = $code:literal, $ibv:literal, $text:literal;)*
    ) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $type {
            $($(#[$doc])* $name,)*
            /// A code that this version does not know.
            Unknown(u32),
        }

        impl $type {
            /// Every known value, by rising code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            #[doc = concat!("The value with this code of `enum ", $c_enum, "`.")]
            pub const fn from_code(code: u32) -> Self {
                match code { $($code => Self::$name,)* other => Self::Unknown(other) }
            }

            #[doc = concat!("The code in `enum ", $c_enum, "`.")]
            pub const fn code(self) -> u32 {
                match self { $(Self::$name => $code,)* Self::Unknown(code) => code }
            }

            #[doc = concat!("The name in `enum ", $c_enum, "`, without its prefix.")]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $ibv,)* Self::Unknown(_) => "UNKNOWN" }
            }

            /// What it means and, where one can say, what usually causes it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $text,)* Self::Unknown(_) => "a code that this version does not know" }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} ({}): {}", self.name(), self.code(), self.meaning())
            }
        }
    };
}
pub(crate) use codes;

#[cfg(test)]
mod tests {
    use crate::{AsyncEventKind, WcStatus};

    #[test]
    fn wc_statuses_follow_the_c_enum_without_gaps() {
        for (code, status) in (0..).zip(WcStatus::ALL) {
            assert_eq!((status.code(), WcStatus::from_code(code)), (code, *status));
        }
        assert_eq!(WcStatus::ALL.len(), 24);
        assert_eq!(WcStatus::from_code(99).code(), 99);
    }

    #[test]
    fn async_event_kinds_follow_the_c_enum_without_gaps() {
        for (code, kind) in (0..).zip(AsyncEventKind::ALL) {
            assert_eq!((kind.code(), AsyncEventKind::from_code(code)), (code, *kind));
        }
        assert_eq!(AsyncEventKind::ALL.len(), 20);
        assert_eq!(AsyncEventKind::from_code(77).code(), 77);
    }

    #[test]
    fn codes_print_with_what_they_mean() {
        let text = WcStatus::RetryExcErr.to_string();
        assert!(
            text.starts_with("RETRY_EXC_ERR (12): the peer's queue pair did not answer"),
            "{text}"
        );
        assert!(
            AsyncEventKind::PortErr
                .to_string()
                .starts_with("PORT_ERR (10): the port went down")
        );
    }
}
