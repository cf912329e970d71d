//! When to poll, arm, sleep and wake; which completion vector and CPU.
//!
//! What it is: the part of adverb that waits. Spinning costs CPU, sleeping costs a wake-up, and a completion that
//! comes at the wrong moment must not be slept through. Three pieces:
//!
//! - [`Decider`]: the decision as a sans-IO state machine, and [`SpinBudget`], which learns how long spinning pays;
//! - [`Engine`]: carries it out on a worker's two completion queues, blocking ([`Engine::wait_until`]) or for an event loop
//!   ([`Engine::prepare_sleep`]); [`Notifier`] is how other threads reach it;
//! - [`Role`]: progress is a role, not a thread. Whoever waits takes it, the others park.
//!
//! Beside them, [`Plan`] says which completion vector and which CPUs a worker gets.
//!
//! What it is not: it knows no message and no queue pair. Those are the [`Handler`]'s.
//!
//! ```no_run
//! use adverb_progress::{CqSource, Deadline, Engine, Handler, Mode, ProgressError};
//!
//! fn run(recv: CqSource, send: CqSource, handler: &mut impl Handler) -> Result<(), ProgressError> {
//!     let mut engine = Engine::new(recv, send, Mode::Hybrid)?;
//!     let stop = engine.notifier().clone(); // stop.wake() from another thread, after making `done` true
//!     engine.wait_until(handler, &Deadline::never(), |_| false)?;
//!     println!("{:?}", engine.counters().snapshot());
//!     Ok(())
//! }
//! ```

#![forbid(unsafe_code)]

mod affinity;
mod counters;
mod cpu_list;
mod deadline;
mod decide;
mod drive;
mod placement;
mod role;
mod signal;
mod spin;
mod sync;

pub use affinity::{AffinityError, confine_current_thread, read_topology};
pub use counters::{Counters, Snapshot, WakeReason, Wakes};
pub use cpu_list::{BadCpuList, CpuList};
pub use deadline::Deadline;
pub use decide::{Action, Decider, Mode, Pass, Queue, SAFETY_FIRST, SAFETY_LONGEST, UnknownMode};
pub use drive::{CqSource, Engine, Handler, Prepared, ProgressError};
pub use placement::{Locality, Plan, Topology};
pub use role::{Role, RoleGuard, WaitError, Waiter};
pub use signal::{Notifier, SleepState};
pub use spin::SpinBudget;
