//! When to poll, arm, sleep and wake; which completion vector and CPU.
