//! Units of full queues that are worth a try: running units of lower rank there may be made to leave for them.

use godel_domain::{
    change::{PartitionMode, Scope},
    pause,
    time::Millis,
};

use super::{Action, Dispatcher, policy::SchedulerCandidate, rooms::Way};

impl Dispatcher {
    /// Hands out units that wait under a maximum, where others there might have to leave for them.
    pub(super) fn dispatch_to_full(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.full_queues_due().is_none_or(|at| at > now) {
            return;
        }
        // Whoever has to leave may be anywhere.
        let scope = if self.mode == PartitionMode::Strict { Scope::Global } else { Scope::Partition };
        for waiting in self.queues.take_full(now) {
            let candidates: Vec<SchedulerCandidate> = self.schedulers.candidates().collect();
            if candidates.is_empty() || !self.units.contains_key(&waiting.unit) {
                self.queues.push(waiting);
                continue;
            }
            let picked = self.policy.pick(waiting.unit, &candidates).min(candidates.len() - 1);
            // One that found no place on any node is with a scheduler already.
            let parked_at = waiting.held_by.and_then(|idx| usize::try_from(idx).ok());
            let scheduler = parked_at.unwrap_or(candidates[picked].scheduler);
            if self.schedulers.all[scheduler].session.is_none() {
                self.queues.push(waiting);
                continue;
            }
            self.assign(&waiting, (scheduler, scope, true), Way::Any, now, actions);
        }
    }

    /// When that makes sense next; `None`: only after an event.
    pub(super) fn full_queues_due(&self) -> Option<Millis> {
        let at = self.queues.full_due()?;
        let is_paused = self.pauses.iter().any(|pause| pause.scope == pause::Scope::Preemption);
        (!is_paused && self.schedulers.candidates().next().is_some()).then_some(at)
    }
}
