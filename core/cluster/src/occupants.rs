//! Who is on which node. Needed only by the search for victims: kept from the first one on, so that a cluster in which
//! nobody is preempted pays nothing.

use godel_base::ids::{NodeId, UnitId};
use godel_domain::{
    demand::Pool,
    running_units::{End, RunningUnit, RunningUnits},
};

use super::{shapes::ShapeId, unit_rows::UnitRows};

/// A running unit on a node, with all that a first look at it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// The unit.
    pub unit: UnitId,
    /// Ordinal of the running unit.
    pub ordinal: u32,
    /// What it takes.
    pub shape: ShapeId,
    /// The pool that pays for it.
    pub pool: Pool,
    /// `None`: it is never preempted.
    pub priority: Option<i32>,
    /// Commit time of its binding, Unix milliseconds.
    pub since_ms: i64,
    /// It ends by itself, as far as anybody knows.
    pub ends: bool,
    /// It is the master of an application.
    pub is_master: bool,
}

/// Who is on which node, from the first search for victims on.
#[derive(Clone, Debug, Default)]
pub struct Occupants {
    /// By node; in no order that may show. `None`: it is not kept.
    by_node: Option<Vec<Vec<Occupant>>>,
}

impl Occupants {
    /// Whether it is kept who is on which node.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.by_node.is_some()
    }

    /// Returns who is on a node; nobody while that is not kept.
    #[inline]
    pub fn on(&self, node: NodeId) -> &[Occupant] {
        let on_node = self.by_node.as_ref().and_then(|by_node| by_node.get(node.idx()));
        on_node.map_or(&[], Vec::as_slice)
    }

    /// Keeps it no longer: nobody searches for victims now.
    pub fn forget(&mut self) {
        self.by_node = None;
    }

    /// Keeps it from now on, if it is not kept yet. `O(running units)` the first time.
    pub(super) fn keep(&mut self, units: &UnitRows) {
        if self.by_node.is_some() {
            return;
        }
        self.by_node = Some(Vec::new());
        for (unit, rows) in units.all() {
            rows.live().for_each(|(ordinal, row)| self.add(units, unit, ordinal, row, rows));
        }
    }

    /// Rows of a unit turned live, or did so no longer.
    pub(super) fn follow(&mut self, units: &UnitRows, unit: UnitId, turned: &[(u32, NodeId)]) {
        if self.by_node.is_none() {
            return;
        }
        for &(ordinal, node) in turned {
            self.remove(node, unit, ordinal);
            if let Some(rows) = units.of(unit) {
                let row = rows.row(ordinal);
                if row.phase.is_live() {
                    self.add(units, unit, ordinal, &row, rows);
                }
            }
        }
    }

    fn add(&mut self, units: &UnitRows, unit: UnitId, ordinal: u32, row: &RunningUnit, rows: &RunningUnits) {
        let Some(by_node) = &mut self.by_node else { return };
        let Some(occupant) = occupant(units, unit, ordinal, row, rows) else { return };
        if by_node.len() <= row.node.idx() {
            by_node.resize_with(row.node.idx() + 1, Vec::new);
        }
        by_node[row.node.idx()].push(occupant);
    }

    fn remove(&mut self, node: NodeId, unit: UnitId, ordinal: u32) {
        let Some(all) = self.by_node.as_mut().and_then(|by_node| by_node.get_mut(node.idx())) else { return };
        if let Some(at) = all.iter().position(|one| (one.unit, one.ordinal) == (unit, ordinal)) {
            all.swap_remove(at);
        }
    }
}

fn occupant(
    units: &UnitRows,
    unit: UnitId,
    ordinal: u32,
    row: &RunningUnit,
    rows: &RunningUnits,
) -> Option<Occupant> {
    let shape = units.shape_of(unit, row)?;
    let pool = rows.groups.get(usize::from(row.group))?.as_ref()?.pool;
    let standing = rows.standing(row.group);
    let ends = standing.is_none_or(|standing| standing.end != End::Never);
    let priority = standing.filter(|standing| standing.preemptible).map(|standing| standing.priority);
    let is_master = standing.is_some_and(|standing| standing.is_master(ordinal));
    Some(Occupant { unit, ordinal, shape, pool, priority, since_ms: row.bound_time_ms, ends, is_master })
}
