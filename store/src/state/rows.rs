//! Rows of units inside the state, with the counts derived from them.
//!
//! A change of rows is checked by the transaction that it is part of; here it is applied, and taken back.

use std::{
    collections::{
        BTreeMap,
        btree_map::{self, Entry},
    },
    ops::Bound,
};

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    run_end::RunEnd,
    running_units::{
        GroupDemand, Lineage, RowTable, RunChange, RunEnds, RunningUnit, RunningUnits, UnitTerms,
    },
};
use prost::Message as _;

use super::{behind, undo::Undo};
use crate::record::Record;

/// The rows of all units, and what is counted of them.
#[derive(Clone, Debug, Default)]
pub struct RowsByUnit {
    units: BTreeMap<UnitId, StoredRows>,
    pub(super) nodes: SlotsOfNode,
    n_rows: u64,
}

/// Rows of a unit with what is derived from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredRows {
    pub(super) rows: RunningUnits,
    /// Of the last change.
    pub(super) revision: Revision,
    /// Rows that hold room.
    pub(super) live: u32,
}

impl PartialEq for RowsByUnit {
    /// Rows that never changed count as absent.
    fn eq(&self, other: &Self) -> bool {
        self.nodes.trimmed() == other.nodes.trimmed() && self.comparable().eq(other.comparable())
    }
}

/// What is read.
impl RowsByUnit {
    /// Rows of a unit; `None` before its first binding.
    pub fn get(&self, unit: UnitId) -> Option<&RunningUnits> {
        self.units.get(&unit).map(|stored| &stored.rows)
    }

    /// Revision of the last change to the rows of a unit; 0 without rows.
    pub fn revision(&self, unit: UnitId) -> Revision {
        self.units.get(&unit).map_or(Revision(0), |stored| stored.revision)
    }

    /// Units with rows in order of id, from the first behind `after`, with the revision of their last change.
    pub fn iter(&self, after: Option<UnitId>) -> impl Iterator<Item = (UnitId, Revision, &RunningUnits)> {
        let range: btree_map::Range<'_, UnitId, StoredRows> =
            self.units.range((behind(after.as_ref()), Bound::Unbounded));
        range.map(|(unit, stored)| (*unit, stored.revision, &stored.rows))
    }

    /// The rows of a unit as a record whose value is an encoded `godel.v1.RunningUnits`.
    pub fn record(&self, unit: UnitId) -> Option<Record> {
        let stored = self.units.get(&unit)?;
        Some(Record {
            create_revision: Revision(0),
            revision: stored.revision,
            create_time_ms: 0,
            value: Bytes::from(godel_wire::ops::rows_to_proto(unit, &stored.rows).encode_to_vec()),
        })
    }

    /// Running units that hold room on a node.
    pub fn live_on_node(&self, node: NodeId) -> u32 {
        self.nodes.get(node).live
    }

    /// Units that have rows.
    pub fn n_units(&self) -> usize {
        self.units.len()
    }

    /// Rows of all units.
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Running units of a unit that hold room.
    pub(super) fn live_of_unit(&self, unit: UnitId) -> u32 {
        self.units.get(&unit).map_or(0, |stored| stored.live)
    }

    fn comparable(&self) -> impl Iterator<Item = impl PartialEq + '_> {
        self.units.iter().map(|(unit, stored)| (*unit, stored.revision, stored.live, stored.trimmed()))
    }
}

/// What changes.
impl RowsByUnit {
    pub(super) fn apply(
        &mut self,
        unit: UnitId,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
        mut undo: Option<&mut Undo>,
    ) {
        if let RunChange::Terms(terms) = change {
            return self.change_terms(unit, terms, undo);
        }
        if let RunChange::Compact(_) = change {
            return self.compact(unit, change, revision, undo);
        }
        let (stored, absent) = match self.units.entry(unit) {
            Entry::Occupied(known) => (known.into_mut(), false),
            Entry::Vacant(new) => (new.insert(StoredRows::default()), true),
        };
        let len = stored.rows.rows.len();
        if let Some(undo) = undo.as_deref_mut() {
            undo.before_rows(unit, absent, stored, change);
        }
        let StoredRows { rows, live, .. } = stored;
        let nodes = &mut self.nodes;
        rows.apply(change, revision, time_ms, |ordinal, before, after| {
            count(nodes, live, before, after);
            if let Some(undo) = undo.as_deref_mut() {
                undo.row(ordinal, *before);
            }
        });
        stored.revision = stored.revision.max(revision);
        self.n_rows += (stored.rows.rows.len() - len) as u64;
    }

    /// No row changes, so that the revision of the rows stays. A unit without rows stays without.
    fn change_terms(&mut self, unit: UnitId, terms: &UnitTerms, undo: Option<&mut Undo>) {
        let Some(stored) = self.units.get_mut(&unit) else { return };
        if let Some(undo) = undo {
            undo.before_terms(unit, &stored.rows.groups);
        }
        stored.rows.set_terms(terms);
    }

    /// Rows of running units that have ended go: nothing is counted of them but themselves.
    fn compact(&mut self, unit: UnitId, change: &RunChange, revision: Revision, undo: Option<&mut Undo>) {
        let Some(stored) = self.units.get_mut(&unit) else { return };
        if let Some(undo) = undo {
            undo.removed_rows(unit, stored.clone());
        }
        let n_before = stored.rows.rows.len() as u64;
        stored.rows.apply(change, revision, 0, |_, _, _| {});
        stored.revision = stored.revision.max(revision);
        self.n_rows = self.n_rows - n_before + stored.rows.rows.len() as u64;
    }

    /// Takes back what a change did to the terms of a unit.
    pub(super) fn revert_terms(&mut self, unit: UnitId, groups: Vec<Option<GroupDemand>>) {
        if let Some(stored) = self.units.get_mut(&unit) {
            stored.rows.groups = groups;
        }
    }

    pub(super) fn remove(&mut self, unit: UnitId, undo: Option<&mut Undo>) {
        let Some(stored) = self.units.remove(&unit) else { return };
        self.uncount(&stored);
        if let Some(undo) = undo {
            undo.removed_rows(unit, stored);
        }
    }

    /// Puts whole rows in place, as loaded from a snapshot or kept by an undo.
    pub(super) fn insert(&mut self, unit: UnitId, rows: RunningUnits, revision: Revision) {
        self.remove(unit, None);
        let mut stored = StoredRows { rows, revision, live: 0 };
        for row in stored.rows.rows.values() {
            count(&mut self.nodes, &mut stored.live, &RunningUnit::default(), row);
        }
        self.n_rows += stored.rows.rows.len() as u64;
        self.units.insert(unit, stored);
    }

    /// Takes back one row's change; `revert_row` of all its changes in reverse order restores it.
    pub(super) fn revert_row(&mut self, unit: UnitId, ordinal: u32, before: RunningUnit) {
        if let Some(stored) = self.units.get_mut(&unit)
            && let Some(row) = stored.rows.rows.get_mut(ordinal)
        {
            count(&mut self.nodes, &mut stored.live, row, &before);
            *row = before;
        }
    }

    /// Takes back what a change did beside single rows.
    pub(super) fn revert_shape(&mut self, unit: UnitId, shape: &RowShape) {
        if shape.absent {
            self.remove(unit, None);
        } else if let Some(stored) = self.units.get_mut(&unit) {
            let n_rows = stored.rows.rows.len();
            stored.rows.rows.shrink(shape.n_rows);
            self.n_rows -= (n_rows - stored.rows.rows.len()) as u64;
            stored.rows.groups.truncate(shape.n_groups);
            if let Some(group) = shape.new_group.and_then(|group| stored.rows.groups.get_mut(group)) {
                *group = None;
            }
            stored.rows.lineage.clone_from(&shape.lineage);
            shape.ends.iter().for_each(|(ordinal, end)| stored.rows.ends.set(*ordinal, *end));
            stored.revision = shape.revision;
        }
    }

    fn uncount(&mut self, stored: &StoredRows) {
        let mut live = stored.live;
        for (_, row) in stored.rows.live() {
            count(&mut self.nodes, &mut live, row, &RunningUnit::default());
        }
        self.n_rows -= stored.rows.rows.len() as u64;
    }
}

/// What rows were like before a change, beside the rows themselves.
#[derive(Debug)]
pub(super) struct RowShape {
    pub(super) absent: bool,
    pub(super) n_rows: usize,
    pub(super) n_groups: usize,
    /// Group whose demand the change sets.
    pub(super) new_group: Option<usize>,
    /// Who had some of it leave.
    pub(super) lineage: Option<Box<Lineage>>,
    /// What was known of the runs that the change is about.
    pub(super) ends: Vec<(u32, RunEnd)>,
    pub(super) revision: Revision,
}

impl RowShape {
    pub(super) fn of(stored: &StoredRows, absent: bool, change: &RunChange) -> Self {
        let new_group = match change {
            RunChange::Bind(bind) => Some(usize::from(bind.group))
                .filter(|group| stored.rows.groups.get(*group).is_none_or(Option::is_none)),
            RunChange::Evict(_)
            | RunChange::Statuses(_)
            | RunChange::Requeue(_)
            | RunChange::Terms(_)
            | RunChange::Compact(_) => None,
        };
        Self {
            absent,
            n_rows: stored.rows.rows.len(),
            n_groups: stored.rows.groups.len(),
            new_group,
            lineage: stored.rows.lineage.clone(),
            ends: ends_before(&stored.rows, change),
            revision: stored.revision,
        }
    }
}

/// What is known of the runs that a change says something new of.
fn ends_before(rows: &RunningUnits, change: &RunChange) -> Vec<(u32, RunEnd)> {
    let ordinals = match change {
        RunChange::Statuses(statuses) if !(rows.ends.is_empty() && statuses.ends.is_empty()) => {
            &statuses.ordinals[..]
        }
        RunChange::Requeue(requeue) if !rows.ends.is_empty() => &requeue.ordinals,
        RunChange::Bind(_)
        | RunChange::Evict(_)
        | RunChange::Statuses(_)
        | RunChange::Requeue(_)
        | RunChange::Terms(_)
        | RunChange::Compact(_) => &[],
    };
    ordinals.iter().map(|ordinal| (*ordinal, rows.end(*ordinal))).collect()
}

impl StoredRows {
    /// Groups, the rows that ever changed, and what is known of their runs.
    pub(super) fn trimmed(&self) -> (&[Option<GroupDemand>], &RowTable, &RunEnds<u32>) {
        (&self.rows.groups, &self.rows.rows, &self.rows.ends)
    }
}

/// Nodes by id: ids are dense.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotsOfNode(Vec<NodeSlot>);

/// What rows need to know of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSlot {
    /// Its NodeSpec is there.
    pub(super) registered: bool,
    /// Running units that hold room on it.
    pub(super) live: u32,
}

impl SlotsOfNode {
    pub(super) fn get(&self, node: NodeId) -> NodeSlot {
        self.0.get(node.idx()).copied().unwrap_or_default()
    }

    pub(super) fn slot(&mut self, node: NodeId) -> &mut NodeSlot {
        if self.0.len() <= node.idx() {
            self.0.resize(node.idx() + 1, NodeSlot::default());
        }
        &mut self.0[node.idx()]
    }

    pub(super) fn trimmed(&self) -> &[NodeSlot] {
        let len = self.0.iter().rposition(|slot| *slot != NodeSlot::default()).map_or(0, |last| last + 1);
        &self.0[..len]
    }
}

fn count(nodes: &mut SlotsOfNode, live: &mut u32, before: &RunningUnit, after: &RunningUnit) {
    let (was_live, is_live) = (before.phase.is_live(), after.phase.is_live());
    if was_live && !is_live {
        *live -= 1;
        nodes.slot(before.node).live -= 1;
    } else if is_live && !was_live {
        *live += 1;
        nodes.slot(after.node).live += 1;
    }
}
