//! Takes back the operations of a transaction whose later operation was refused.

use godel_base::ids::{NodeId, UnitId};
use godel_domain::running_units::{GroupDemand, RunChange, RunningUnit};

use super::{
    State,
    rows::{RowShape, StoredRows},
};
use crate::record::{Key, Record};

/// What was there before, in the order of the changes.
#[derive(Debug)]
pub(super) struct Undo {
    steps: Vec<Step>,
    last_unit_id: UnitId,
    next_node_id: NodeId,
}

#[derive(Debug)]
enum Step {
    Record {
        idx: usize,
        key: Key,
        before: Option<Record>,
    },
    /// The rows of a unit before a change; the changed rows follow.
    Rows {
        unit: UnitId,
        shape: RowShape,
    },
    RunningUnit {
        ordinal: u32,
        before: RunningUnit,
    },
    /// What groups of a unit took, and how they stood, before their terms changed.
    Terms {
        unit: UnitId,
        groups: Vec<Option<GroupDemand>>,
    },
    RemovedRows {
        unit: UnitId,
        stored: StoredRows,
    },
}

impl Undo {
    pub(super) fn new(state: &State) -> Self {
        Self { steps: Vec::new(), last_unit_id: state.last_unit_id, next_node_id: state.next_node_id }
    }

    pub(super) fn record(&mut self, idx: usize, key: Key, before: Option<Record>) {
        self.steps.push(Step::Record { idx, key, before });
    }

    pub(super) fn before_rows(
        &mut self,
        unit: UnitId,
        absent: bool,
        stored: &StoredRows,
        change: &RunChange,
    ) {
        self.steps.push(Step::Rows { unit, shape: RowShape::of(stored, absent, change) });
    }

    pub(super) fn before_terms(&mut self, unit: UnitId, groups: &[Option<GroupDemand>]) {
        self.steps.push(Step::Terms { unit, groups: groups.to_vec() });
    }

    pub(super) fn row(&mut self, ordinal: u32, before: RunningUnit) {
        self.steps.push(Step::RunningUnit { ordinal, before });
    }

    pub(super) fn removed_rows(&mut self, unit: UnitId, stored: StoredRows) {
        self.steps.push(Step::RemovedRows { unit, stored });
    }

    /// Restores `state` to what it was when this began.
    pub(super) fn revert(self, state: &mut State) {
        let mut rows: Vec<(u32, RunningUnit)> = Vec::new();
        for step in self.steps.into_iter().rev() {
            match step {
                Step::Record { idx, key, before } => state.set_record(idx, &key, before, None),
                Step::RunningUnit { ordinal, before } => rows.push((ordinal, before)),
                Step::Rows { unit, shape } => {
                    for (ordinal, before) in rows.drain(..) {
                        state.rows.revert_row(unit, ordinal, before);
                    }
                    state.rows.revert_shape(unit, &shape);
                }
                Step::Terms { unit, groups } => state.rows.revert_terms(unit, groups),
                Step::RemovedRows { unit, stored } => state.rows.insert(unit, stored.rows, stored.revision),
            }
        }
        state.last_unit_id = self.last_unit_id;
        state.next_node_id = self.next_node_id;
    }
}
