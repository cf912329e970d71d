//! The behaviour of the verbs as runnable checks, and providers for tests.
