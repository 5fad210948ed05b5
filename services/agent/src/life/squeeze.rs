//! Best-effort running units, which give way on a node that has no memory left.

use godel_domain::{allocation::DeviceSet, demand::Pool, run_end::RunEndReason};

use super::{Action, Key, NodeLife};

/// They had nothing but what was left over: they go at once, or nearly.
const GRACE_MS_MAX: u32 = 500;

impl NodeLife {
    /// The pool of a running unit that lives here, and its devices.
    pub fn given(&self, key: Key, incarnation: u32) -> Option<(Pool, DeviceSet)> {
        let run = self.runs.get(&key).filter(|run| run.incarnation == incarnation && run.phase.is_live())?;
        Some((run.orders.pool, run.orders.allocation.devices))
    }

    /// Best-effort running units that are not told to leave, and the bytes of memory that each asks for.
    pub fn best_effort(&self) -> impl Iterator<Item = (Key, u32, i64)> {
        let stays =
            |run: &super::Run| run.phase.is_live() && !run.stopping && run.orders.pool == Pool::BestEffort;
        let stay = self.runs.iter().filter(move |(_, run)| stays(run));
        stay.map(|(key, run)| (*key, run.incarnation, run.orders.weight.memory))
    }

    /// A best-effort running unit ends; it returns elsewhere as its next incarnation.
    pub fn squeeze(&mut self, key: Key, incarnation: u32, out: &mut Vec<Action>) {
        let Some(run) = self.runs.get(&key).filter(|run| run.incarnation == incarnation) else { return };
        let grace_ms = run.orders.stop_grace_ms.min(GRACE_MS_MAX);
        self.stop_live(key, grace_ms, RunEndReason::Squeezed, out);
    }
}
