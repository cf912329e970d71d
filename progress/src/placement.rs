//! Which completion vector a worker uses, and on which CPUs its progress thread runs. A pure function from what is
//! known about the machine ([`Topology`]) to a [`Plan`].
//!
//! - Vectors: round-robin over `0..num_comp_vectors`, so that workers share no interrupt until they must.
//! - CPUs: those local to the device, within what this process may use. If there is none of both, all it
//!   may use: a far CPU works, a forbidden one does not.
//! - A progress thread is *confined* to these CPUs rather than pinned to one: two processes that pick the same core would
//!   take turns on it while others idle.
//!
//! What this leaves out: which CPU a vector's interrupt lands on (`/proc/irq/*/effective_affinity`), and what other processes
//! chose.

use crate::cpu_list::CpuList;

/// What is known of the machine, read once ([`crate::read_topology`]) or made up in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// `ibv_context::num_comp_vectors`, at least 1.
    pub num_comp_vectors: u32,
    /// CPUs that are local to the device, where the kernel tells.
    pub device_local: Option<CpuList>,
    /// CPUs that this process may use (`sched_getaffinity(2)`).
    pub allowed: CpuList,
}

/// How a [`Plan`] came to its CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Locality {
    /// They are local to the device.
    DeviceLocal,
    /// The kernel does not tell which CPUs are local: all allowed ones.
    Unknown,
    /// None of the CPUs local to the device is allowed: all allowed ones.
    LocalNotAllowed,
}

/// Where workers go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The CPUs for progress threads.
    pub cpus: CpuList,
    /// How they were chosen.
    pub locality: Locality,
    num_comp_vectors: u32,
}

impl Plan {
    /// Works the plan out.
    pub fn new(topology: &Topology) -> Self {
        let (cpus, locality) = match &topology.device_local {
            None => (topology.allowed.clone(), Locality::Unknown),
            Some(local) => {
                let both = local.intersection(&topology.allowed);
                if both.is_empty() {
                    (topology.allowed.clone(), Locality::LocalNotAllowed)
                } else {
                    (both, Locality::DeviceLocal)
                }
            }
        };
        Self {
            cpus,
            locality,
            num_comp_vectors: topology.num_comp_vectors.max(1),
        }
    }

    /// The completion vector of the worker with this index; always less than `num_comp_vectors`.
    ///
    /// Processes that start counting from different indices (the process id will do) share fewer vectors.
    pub fn comp_vector(&self, worker: u32) -> u32 {
        worker % self.num_comp_vectors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(num_comp_vectors: u32, local: Option<&str>, allowed: &str) -> Topology {
        Topology {
            num_comp_vectors,
            device_local: local.map(|list| list.parse().unwrap()),
            allowed: allowed.parse().unwrap(),
        }
    }

    #[test]
    fn workers_go_round_the_vectors_and_never_past_the_last() {
        let plan = Plan::new(&topology(3, None, "0-1"));
        let vectors: Vec<_> = (0..7).map(|worker| plan.comp_vector(worker)).collect();
        assert_eq!(vectors, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_device_that_reports_no_vector_gets_vector_zero() {
        assert_eq!(Plan::new(&topology(0, None, "0")).comp_vector(5), 0);
    }

    #[test]
    fn cpus_are_local_to_the_device_and_allowed() {
        let plan = Plan::new(&topology(8, Some("0-15"), "8-31"));
        assert_eq!(
            (plan.cpus.to_string(), plan.locality),
            ("8-15".into(), Locality::DeviceLocal)
        );
    }

    #[test]
    fn without_a_local_cpu_that_is_allowed_any_allowed_one_serves_and_the_plan_says_so() {
        let plan = Plan::new(&topology(8, Some("0-15"), "16-31"));
        assert_eq!(
            (plan.cpus.to_string(), plan.locality),
            ("16-31".into(), Locality::LocalNotAllowed)
        );
        let plan = Plan::new(&topology(8, None, "2,4"));
        assert_eq!(
            (plan.cpus.to_string(), plan.locality),
            ("2,4".into(), Locality::Unknown)
        );
    }
}
