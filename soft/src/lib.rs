//! The software device.
