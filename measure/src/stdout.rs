//! Standard output, as the process was given it.

#![allow(
    unsafe_code,
    reason = "before `main` is the only time to see a closed descriptor, and what runs then is named by its section"
)]

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when the process started.
///
/// Rust's runtime opens `/dev/null` in place of a closed descriptor, where results would get lost without an error.
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

// SAFETY: what is in this section must be pointers to functions that may run before `main` (System V ABI, generic part, "Initialization and
// Termination Functions"). This one ignores the arguments that libc passes, cannot panic, and uses nothing that Rust's runtime would have to set
// up first: it makes one system call through libc, which is initialized before the programs that use it, and stores one value.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
    WAS_CLOSED.store(closed, Ordering::Relaxed);
}
