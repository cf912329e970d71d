//! Histograms, CPU time and result rows, shared by `am_pingpong` and the benches.
//!
//! Everything here is measured by the caller and only counted, summed up and printed here.

mod cpu;
mod histogram;
mod row;
mod stdout;

pub use cpu::{CpuClock, process_cpu_time};
pub use histogram::Latencies;
pub use row::{IdleRow, PingPongRow, Wakes};
pub use stdout::stdout_was_closed;
