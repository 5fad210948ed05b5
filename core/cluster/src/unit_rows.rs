//! Committed rows of units, and the shapes of their task groups.

use std::sync::Arc;

use godel_base::ids::{IdMap, NodeId, RunningUnitId, UnitId};
use godel_domain::running_units::{RunningUnit, RunningUnits};
use smallvec::SmallVec;

use super::{catalogue::Catalogue, shapes::ShapeId};

/// The rows of every unit that was ever bound.
#[derive(Clone, Debug, Default)]
pub struct UnitRows {
    by_unit: IdMap<UnitId, UnitTaken>,
}

/// Rows of a unit, and the shape of each of its groups.
#[derive(Clone, Debug, Default)]
pub(super) struct UnitTaken {
    pub(super) rows: RunningUnits,
    pub(super) shapes: GroupShapes,
}

/// By task group; `None` for a group never bound.
pub(super) type GroupShapes = SmallVec<[Option<ShapeId>; 2]>;

impl UnitTaken {
    /// Gives each group its shape, and lets equal demands of many units be one.
    pub(super) fn intern_groups(&mut self, catalogue: &mut Catalogue) {
        for (idx, group) in self.rows.groups.iter_mut().enumerate() {
            if self.shapes.len() <= idx {
                self.shapes.resize(idx + 1, None);
            }
            if self.shapes[idx].is_none()
                && let Some(group) = group
            {
                let shape = catalogue.intern(&group.demand, group.pool);
                group.demand = Arc::clone(&catalogue.shape(shape).demand);
                self.shapes[idx] = Some(shape);
            }
        }
    }
}

impl UnitRows {
    /// Returns the rows of a unit; `None` when none was ever bound.
    #[inline]
    pub fn of(&self, unit: UnitId) -> Option<&RunningUnits> {
        self.by_unit.get(&unit).map(|taken| &taken.rows)
    }

    /// Returns the rows of every unit that was ever bound; in no order that may show.
    pub fn all(&self) -> impl Iterator<Item = (UnitId, &RunningUnits)> {
        self.by_unit.iter().map(|(unit, taken)| (*unit, &taken.rows))
    }

    /// Returns the live rows of a unit, with their ordinals.
    pub(super) fn live(&self, unit: UnitId) -> impl Iterator<Item = (u32, &RunningUnit)> {
        self.of(unit).into_iter().flat_map(RunningUnits::live)
    }

    /// Returns the rows of all units with the shapes of their groups; in no order that may show.
    pub(super) fn with_shapes(&self) -> impl Iterator<Item = &UnitTaken> {
        self.by_unit.values()
    }

    /// Returns the row of a replica, as it is before it is bound if there is none.
    #[inline]
    pub(super) fn row(&self, unit: UnitId, ordinal: u32) -> RunningUnit {
        self.of(unit).map(|rows| rows.row(ordinal)).unwrap_or_default()
    }

    /// Returns what a row of a unit takes.
    #[inline]
    pub(super) fn shape_of(&self, unit: UnitId, row: &RunningUnit) -> Option<ShapeId> {
        shape_of(&self.by_unit.get(&unit)?.shapes, row)
    }

    /// Returns what a running unit of a task group takes, once one was bound.
    #[inline]
    pub fn group_shape(&self, unit: UnitId, group: u16) -> Option<ShapeId> {
        self.by_unit.get(&unit)?.shapes.get(usize::from(group)).copied().flatten()
    }

    /// Returns the row of a running unit that still takes room.
    pub fn remains(&self, member: &RunningUnitId) -> Option<&RunningUnit> {
        let row = self.by_unit.get(&member.unit)?.rows.rows.get(member.replica.ordinal)?;
        (row.phase.is_live() && row.incarnation == member.replica.incarnation).then_some(row)
    }

    /// Returns the node on which a replica ran last or runs; `None`: it never had one.
    pub fn last_node(&self, unit: UnitId, ordinal: u32) -> Option<NodeId> {
        Some(self.of(unit)?.row(ordinal).node).filter(|node| *node != NodeId(0))
    }

    /// Returns what is known of a unit, to be changed.
    #[inline]
    pub(super) fn entry(&mut self, unit: UnitId) -> &mut UnitTaken {
        self.by_unit.entry(unit).or_default()
    }

    /// Returns what is known of a unit that was bound, to be changed.
    pub(super) fn known(&mut self, unit: UnitId) -> Option<&mut UnitTaken> {
        self.by_unit.get_mut(&unit)
    }

    /// Takes out the rows of a unit.
    pub(super) fn remove(&mut self, unit: UnitId) -> Option<UnitTaken> {
        self.by_unit.remove(&unit)
    }
}

/// Returns what a row of a unit takes, by the shapes of its groups.
pub(super) fn shape_of(shapes: &GroupShapes, row: &RunningUnit) -> Option<ShapeId> {
    shapes.get(usize::from(row.group)).copied().flatten()
}
