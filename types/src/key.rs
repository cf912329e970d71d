//! Memory keys.

use std::fmt;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(u32);

        impl $name {
            /// The key with this value, as the device gave it.
            pub const fn new(value: u32) -> Self {
                Self(value)
            }

            /// The value, as work requests and packets carry it.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    };
}

key! {
    /// A local key: lets this process's own work requests use a memory region (`ibv_reg_mr(3)`).
    Lkey
}
key! {
    /// A remote key: whoever knows it can use the region through any queue pair of its protection domain,
    /// within the region's access rights (IBTA volume 1, section 10.6.3).
    Rkey
}
