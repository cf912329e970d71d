//! Which vector a worker's queues use, and where a progress thread runs.

use adverb_progress::{Plan, confine_current_thread, read_topology};
use adverb_verbs::Device;

use crate::Context;

/// Plans for a device. `None` where the system does not even tell which CPUs this process may use.
pub(crate) fn plan(device: &dyn Device) -> Option<Plan> {
    let info = device.info();
    match read_topology(info.sysfs_path.as_deref(), device.num_comp_vectors()) {
        Ok(topology) => Some(Plan::new(&topology)),
        Err(error) => {
            tracing::debug!(device = info.name, %error, "workers are placed without knowing the machine");
            None
        }
    }
}

/// Confines this thread to the CPUs near the device.
pub(crate) fn confine_near(context: &Context) {
    if let Some(plan) = context.plan()
        && let Err(error) = confine_current_thread(&plan.cpus)
    {
        tracing::debug!(%error, "a progress thread runs wherever the system puts it");
    }
}
