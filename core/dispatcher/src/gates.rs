//! What keeps units from being assigned: pauses of administrators, and records that cannot be read
//! ([`godel_domain::unreadable`]).
//!
//! A unit that must not be placed is set aside, paused or not. What stands in [`Units`] of a unit whose record cannot be
//! read is shown, and nothing follows from it.

use std::sync::Arc;

use godel_base::{ids::UnitId, time::Millis};
use godel_domain::{
    change::Change,
    frozen::Frozen,
    pause::{Pause, Pauses, Scope},
    queue_spec::parent,
    records::{RecordKey, RecordKind},
    refusals::{RefusalCount, Refusals, WaitReason},
    sub_cluster,
    unit::UnitSpec,
    unreadable::Unreadable,
};
use godel_queueing::QueueTree;

use super::{
    assignments::Assignments,
    unit_entry::{UnitEntry, Whereabouts},
    units::Units,
};

/// Pauses in force, and what cannot be read.
#[derive(Debug, Default)]
pub(super) struct AssignmentGates {
    pub(super) pauses: Pauses,
    pub(super) frozen: Frozen,
}

impl AssignmentGates {
    /// Some unit may be kept from being assigned.
    pub(super) fn is_any(&self) -> bool {
        self.pauses.iter().next().is_some() || !self.frozen.is_empty()
    }

    /// Preemption is paused.
    pub(super) fn is_preemption_paused(&self) -> bool {
        self.pauses.iter().any(|pause| pause.scope == Scope::Preemption)
    }

    /// An administrator keeps a unit from being assigned.
    pub(super) fn is_paused(&self, spec: &UnitSpec) -> bool {
        self.pauses.keeping(&spec.queue, |key| sub_cluster::of(spec, key)).is_some()
    }

    /// Why nothing is admitted where a unit wants to go.
    pub(super) fn frozen_target(
        &self,
        spec: &UnitSpec,
        units: &Units,
        tree: &QueueTree,
    ) -> Option<&Unreadable> {
        if self.frozen.is_empty() {
            return None;
        }
        let class = self.frozen.class(&spec.priority_class);
        let is_in = |scope: &Scope| match scope {
            Scope::Queue(paused) => std::iter::successors(Some(spec.queue.as_str()), |path| parent(path))
                .any(|path| path == paused),
            Scope::All | Scope::Preemption | Scope::SubCluster(_) => false,
        };
        let queue_of = |unit: UnitId| units.get(unit).map(|entry| entry.account.queue);
        let queue = || match tree.find(&spec.queue) {
            Some(queue) => tree.frozen_by(&self.frozen, queue, queue_of),
            None => self.frozen.get(&RecordKey::Queue(spec.queue.clone())),
        };
        class.or_else(|| self.frozen.pause(is_in)).or_else(queue)
    }
}

impl Assignments {
    /// A pause's record: what is with schedulers of its scope comes back, and waits.
    pub(super) fn on_pause(&mut self, pause: Pause, now: Millis) {
        if self.gates.pauses.put(pause) {
            self.refresh_all(now);
        }
    }

    /// A pause's record is gone.
    pub(super) fn on_pause_deleted(&mut self, scope: &Scope, now: Millis) {
        if self.gates.pauses.remove(scope) {
            self.refresh_all(now);
        }
    }

    /// Why a unit is not placed further: what cannot be read.
    pub(super) fn frozen_for(&self, unit: UnitId) -> Option<&Unreadable> {
        if self.gates.frozen.is_empty() {
            return None;
        }
        let own = self.gates.frozen.unit(unit);
        own.or_else(|| self.frozen_target(&self.units.get(unit)?.record.spec))
    }

    /// Why nothing is admitted where a unit wants to go: what cannot be read.
    pub(super) fn frozen_target(&self, spec: &UnitSpec) -> Option<&Unreadable> {
        self.gates.frozen_target(spec, &self.units, self.queueing.quota().tree())
    }

    /// Why a unit that is set aside waits.
    pub(super) fn gate_refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        if entry.place != Whereabouts::Paused {
            return None;
        }
        let record = &entry.record;
        if let Some(why) = self.frozen_for(record.id) {
            let reasons = vec![RefusalCount::waits(WaitReason::Unreadable, why.to_string())];
            return Some(Arc::new(Refusals { reasons, ..Refusals::default() }));
        }
        let pause =
            self.gates.pauses.keeping(&record.spec.queue, |key| sub_cluster::of(&record.spec, key))?;
        let what = match &pause.scope {
            Scope::All | Scope::Preemption => "everything is paused by an administrator".to_owned(),
            Scope::Queue(path) => format!("queue {path} is paused by an administrator"),
            Scope::SubCluster(name) => format!("sub-cluster {name} is paused by an administrator"),
        };
        let reason = if pause.reason.is_empty() { what } else { format!("{what}: {}", pause.reason) };
        let reasons = vec![RefusalCount::waits(WaitReason::Pause, reason)];
        Some(Arc::new(Refusals { reasons, ..Refusals::default() }))
    }
}

/// The units that a gate is shut or opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    Unit(UnitId),
    /// Which of them is not known.
    All,
    None,
}

/// The units that may or may not be placed from now on, where a change cannot be read or takes the place of one that could
/// not.
pub(super) fn concerned(change: &Change) -> Concerned {
    match change {
        Change::Unreadable(unreadable) => concerned_by(&unreadable.key),
        // Whoever may be placed that might not before.
        Change::RowsLoaded(..) => Concerned::All,
        Change::Rows(..) => Concerned::None,
        // The unit itself, if anybody: what follows from its record follows next.
        Change::Put(record) if record.kind() == RecordKind::Unit => Concerned::None,
        Change::Put(record) => concerned_by(&record.key()),
        Change::Gone(key) if key.kind() == Some(RecordKind::Unit) => Concerned::All,
        Change::Gone(key) => concerned_by(key),
    }
}

/// Kinds of records without which nobody can tell which units may be placed.
const KEEPS_ALL: [RecordKind; 5] =
    [RecordKind::Rows, RecordKind::Queue, RecordKind::PriorityClass, RecordKind::Pause, RecordKind::Hold];

/// The units that are not placed while a record cannot be read.
fn concerned_by(key: &RecordKey) -> Concerned {
    if let RecordKey::Unit(unit) = key {
        return Concerned::Unit(*unit);
    }
    let keeps_all = key.kind().is_none_or(|kind| KEEPS_ALL.contains(&kind));
    if keeps_all { Concerned::All } else { Concerned::None }
}
