//! SoftRoCE guests under QEMU: boot, run, collect.
