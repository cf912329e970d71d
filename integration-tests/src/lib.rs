//! Tests on real SoftRoCE hosts.
