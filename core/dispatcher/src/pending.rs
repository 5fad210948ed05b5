//! What units wait for, and whether that is the control plane: in words for whoever looks, in numbers for the limits on callers.

use std::sync::Arc;

use godel_base::{ids::UnitId, time::Millis};
use godel_domain::{
    lifecycle::{self, UnitPhase},
    refusals::{RefusalCount, Refusals, WaitReason},
};
use godel_queueing::RoomIdx;

use super::{
    assignments::Assignments,
    gangs::Gangs,
    holds,
    nodes::Nodes,
    queues::Queueing,
    unit_entry::{UnitEntry, Whereabouts},
};

/// The parts that say what units wait for.
pub struct PendingUnits<'a> {
    pub(super) assignments: &'a Assignments,
    pub(super) gangs: &'a Gangs,
    pub(super) nodes: &'a Nodes,
    /// Time of the last step.
    pub(super) at: Millis,
}

impl PendingUnits<'_> {
    /// Whether the next step for a unit is the control plane's: to hand it out, or to find its place. Otherwise it waits for
    /// room, for a quota, for whoever has to leave first, for an administrator, or until there is any scheduler. One that is
    /// not known is on its way to the store.
    pub fn is_owed(&self, unit: UnitId) -> bool {
        let Assignments { units, queueing, schedulers, .. } = self.assignments;
        let Some(entry) = units.get(unit) else { return true };
        match &entry.place {
            Whereabouts::Queued(waiting)
                if waiting.room != RoomIdx::NONE && !queueing.queues.rooms().is_open(waiting.room) =>
            {
                // No unit of its room is served now.
                false
            }
            Whereabouts::Queued(_) => {
                schedulers.is_any_attached() && queueing.pending_reason(entry, self.at).is_none()
            }
            Whereabouts::Dispatched(held) => held.parked.is_none() && held.done_at.is_none(),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused => false,
        }
    }

    /// Units that wait although some of them could be handed out, if schedulers took more: what the control plane is behind
    /// with.
    pub fn count_backlog(&self) -> usize {
        let Assignments { queueing: Queueing { queues, .. }, schedulers, .. } = self.assignments;
        if queues.is_ready() && schedulers.is_any_attached() { queues.len() } else { 0 }
    }

    /// What a unit waits for, in words; empty: nothing in particular.
    pub(super) fn waits_for(&self, entry: &UnitEntry) -> String {
        let (unit, units) = (entry.record.id, &self.assignments.units);
        if entry.record.spec.is_daemon() && entry.record.spec.replicas() == 0 && entry.record.is_wanted() {
            return "waits for a node that its template may have".to_owned();
        }
        if entry.counts.pending > 0
            && let Some(ordinal) = lifecycle::awaited(&entry.record, &entry.rows)
        {
            return format!("waits for replica {ordinal} to run");
        }
        match (units.overtaken.get(&unit), entry.holds()) {
            (Some(by), []) => {
                let by = units.preemptors(&[*by]).pop().unwrap_or_default();
                format!("waits again, as {by} took over the room that was held for it")
            }
            (None, []) => self.gangs.waits_for(unit, self.at),
            (_, holds) => holds::waits_for(holds, units, self.nodes),
        }
    }

    /// Why a unit that waits is not placed: what its queue holds it up for, of the last failed try, or why no node could
    /// ever hold it.
    pub(super) fn refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        let found = self.assignments.gate_refusals(entry).or_else(|| self.found_refusals(entry));
        if !entry.is_overdue {
            return found;
        }
        let mut refusals = found.map_or_else(Refusals::default, |found| (*found).clone());
        let seconds = entry.record.spec.scheduling_timeout_ms().div_ceil(1_000);
        // What it lacks stays first: that it has waited for long says nothing of what would help.
        let reason = format!("no place within {seconds} s, and still tried");
        refusals.reasons.push(RefusalCount::waits(WaitReason::SchedulingTimeout, reason));
        Some(Arc::new(refusals))
    }

    fn found_refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        if let Some(pending_reason) = self.assignments.queueing.pending_reason(entry, self.at) {
            let reasons = vec![RefusalCount::waits(WaitReason::Queue, pending_reason.to_string())];
            return Some(Arc::new(Refusals { reasons, ..Refusals::default() }));
        }
        if entry.refusals.is_some() || !entry.infeasible || entry.phase != UnitPhase::Unschedulable {
            return entry.refusals.clone();
        }
        let nodes = u32::try_from(self.nodes.capacities.len()).unwrap_or(u32::MAX);
        let reason = self.nodes.capacities.infeasible(&entry.record.spec)?;
        Some(Arc::new(Refusals {
            reasons: vec![RefusalCount { nodes, ..RefusalCount::waits(WaitReason::Admission, reason) }],
            nodes,
            ..Refusals::default()
        }))
    }
}
