//! Room that the binder holds for replicas of a unit that move, and what they count for in its queue meanwhile.
//!
//! From the end of its old incarnation until it is placed, or its hold goes, a replica that moves counts as if it ran (ADR 0087). All of it
//! follows from holds and rows, in whatever order they come.

use std::sync::Arc;

use godel_base::ids::{HoldId, ReplicaId};
use godel_domain::{
    hold::{BoundState, Hold},
    running_units::{Phase, RunningUnits},
    unit::UnitRecord,
};

/// Where replicas of a unit move to. Few units have any.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldTargets(Box<[Arc<Hold>]>);

/// Replicas of a task group that count because they move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountedMovers {
    /// They are wanted, and have no node.
    pub(super) n_pending: u32,
    /// They will be: the rows have yet to say that they come back, or the record that they replace others.
    pub(super) n_coming: u32,
}

impl HeldTargets {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Room is held for a replica.
    pub(super) fn put(&mut self, hold: Arc<Hold>) {
        let others = self.0.iter().filter(|other| other.id != hold.id).cloned();
        self.0 = others.chain([Arc::clone(&hold)]).collect();
    }

    /// Room is held no longer. False if it was not.
    pub(super) fn remove(&mut self, id: HoldId) -> bool {
        let is_there = self.0.iter().any(|target| target.id == id);
        if is_there {
            self.0 = self.0.iter().filter(|target| target.id != id).cloned().collect();
        }
        is_there
    }

    /// Those of a task group that count.
    pub(super) fn counted(&self, record: &UnitRecord, rows: &RunningUnits, group: usize) -> CountedMovers {
        let mut counted = CountedMovers::default();
        for target in self.0.iter().filter(|target| usize::from(target.group) == group) {
            let n = n_counted(target, rows);
            if is_pending(target, record, rows) {
                counted.n_pending += n;
            } else {
                counted.n_coming += n;
            }
        }
        counted
    }

    /// Whether one that counts is to be placed: no maximum keeps it waiting.
    pub(super) fn has_pending(&self, record: &UnitRecord, rows: &RunningUnits) -> bool {
        self.0.iter().any(|target| n_counted(target, rows) > 0 && is_pending(target, record, rows))
    }
}

fn n_counted(target: &Hold, rows: &RunningUnits) -> u32 {
    target.mover_share(|ordinal| BoundState::of(&rows.row(ordinal))).n_counted
}

/// Whether who moves there is wanted and has no node.
fn is_pending(target: &Hold, record: &UnitRecord, rows: &RunningUnits) -> bool {
    let is_pending = |replica: ReplicaId| {
        let row = rows.row(replica.ordinal);
        (row.incarnation, row.phase) == (replica.incarnation, Phase::Pending)
            && record.group_of(replica.ordinal) == Some(usize::from(target.group))
    };
    record.is_wanted() && target.replicas().all(is_pending)
}
