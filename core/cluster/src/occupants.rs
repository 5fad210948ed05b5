//! Who is on which node. Needed only by the search for victims: kept from the first one on, so that a cluster in which
//! nobody is preempted pays nothing.

use godel_base::ids::{NodeId, UnitId};
use godel_domain::{
    demand::Pool,
    running_units::{End, RunningUnit, RunningUnits},
};

use super::{shapes::ShapeId, taken::TakenRoom};

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

/// By node; in no order that may show.
#[derive(Clone, Debug, Default)]
pub struct Occupants(Vec<Vec<Occupant>>);

impl Occupants {
    /// Returns who is on a node.
    pub fn on(&self, node: NodeId) -> &[Occupant] {
        self.0.get(node.idx()).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, node: NodeId, occupant: Occupant) {
        if self.0.len() <= node.idx() {
            self.0.resize_with(node.idx() + 1, Vec::new);
        }
        self.0[node.idx()].push(occupant);
    }

    fn remove(&mut self, node: NodeId, unit: UnitId, ordinal: u32) {
        let Some(all) = self.0.get_mut(node.idx()) else { return };
        if let Some(at) = all.iter().position(|one| (one.unit, one.ordinal) == (unit, ordinal)) {
            all.swap_remove(at);
        }
    }
}

impl TakenRoom {
    /// Keeps who is on which node from now on, if that is not kept yet. `O(running units)` the first time.
    pub(crate) fn keep_occupants(&mut self) {
        if self.occupants.is_some() {
            return;
        }
        let mut occupants = Box::<Occupants>::default();
        for (unit, taken) in &self.units {
            for (ordinal, row) in taken.rows.live() {
                if let Some(occupant) = self.occupant(*unit, ordinal, row, &taken.rows) {
                    occupants.add(row.node, occupant);
                }
            }
        }
        self.occupants = Some(occupants);
    }

    /// Whether it is kept who is on which node.
    pub(crate) fn has_occupants(&self) -> bool {
        self.occupants.is_some()
    }

    /// Keeps no longer who is on which node: nobody searches for victims now.
    pub(crate) fn forget_occupants(&mut self) {
        self.occupants = None;
    }

    /// Returns who is on a node; nobody while that is not kept.
    pub(crate) fn occupants(&self, node: NodeId) -> &[Occupant] {
        self.occupants.as_ref().map_or(&[], |occupants| occupants.on(node))
    }

    /// Rows of a unit turned live, or did so no longer.
    pub(super) fn follow_occupants(&mut self, unit: UnitId, turned: &[(u32, NodeId)]) {
        let Some(mut occupants) = self.occupants.take() else { return };
        for &(ordinal, node) in turned {
            occupants.remove(node, unit, ordinal);
            let Some(rows) = self.rows(unit) else { continue };
            let row = rows.row(ordinal);
            if row.phase.is_live()
                && let Some(occupant) = self.occupant(unit, ordinal, &row, rows)
            {
                occupants.add(row.node, occupant);
            }
        }
        self.occupants = Some(occupants);
    }

    fn occupant(
        &self,
        unit: UnitId,
        ordinal: u32,
        row: &RunningUnit,
        rows: &RunningUnits,
    ) -> Option<Occupant> {
        let shape = self.shape_of(unit, row)?;
        let pool = rows.groups.get(usize::from(row.group))?.as_ref()?.pool;
        let standing = rows.standing(row.group);
        let ends = standing.is_none_or(|standing| standing.end != End::Never);
        let priority = standing.filter(|standing| standing.preemptible).map(|standing| standing.priority);
        let is_master = standing.is_some_and(|standing| standing.is_master(ordinal));
        Some(Occupant { unit, ordinal, shape, pool, priority, since_ms: row.bound_time_ms, ends, is_master })
    }
}
