//! What units take: committed rows, assumptions until they are committed or forgotten, and what others have taken unseen.

use std::sync::Arc;

use godel_domain::{
    demand::Pool,
    ids::{NodeId, Revision, UnitId},
    resources::Resources,
    running_units::{Phase, RunChange, RunningUnit, RunningUnits},
};
use smallvec::SmallVec;

use super::{Cluster, assumptions::Assumed, shapes::ShapeId};

/// Rows of a unit, and the shape of each of its groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitTaken {
    pub(super) rows: RunningUnits,
    pub(super) shapes: GroupShapes,
}

/// By task group; `None` for a group never bound.
type GroupShapes = SmallVec<[Option<ShapeId>; 2]>;

/// How many running units more (or fewer) of each task group take room, and how many of these are told to leave.
#[derive(Debug, Default)]
pub struct GroupDeltas {
    live: ByGroup,
    leaving: ByGroup,
}

#[derive(Debug, Default)]
struct ByGroup {
    /// The group that turned last: mostly the only one.
    last: (u16, i64),
    others: SmallVec<[(u16, i64); 2]>,
}

impl ByGroup {
    fn add(&mut self, group: u16, n: i64) {
        if self.last.0 != group {
            self.switch(group);
        }
        self.last.1 += n;
    }

    #[cold]
    fn switch(&mut self, group: u16) {
        let known = self.others.iter().position(|(known, _)| *known == group);
        let next = known.map_or((group, 0), |at| self.others.swap_remove(at));
        self.others.push(std::mem::replace(&mut self.last, next));
    }

    fn iter(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        self.others.iter().copied().chain([self.last]).filter(|(_, n)| *n != 0)
    }
}

impl GroupDeltas {
    /// All that a unit's rows take.
    pub fn of(rows: &RunningUnits) -> Self {
        let mut turns = Self::default();
        for (_, row) in rows.live() {
            turns.live.add(row.group, 1);
            if row.eviction.is_some() {
                turns.leaving.add(row.group, 1);
            }
        }
        turns
    }

    /// By task group.
    pub fn iter(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        self.live.iter()
    }

    /// By task group, those told to leave.
    pub fn leaving(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        self.leaving.iter()
    }

    fn note(&mut self, before: &RunningUnit, after: &RunningUnit) {
        match (before.phase.is_live(), after.phase.is_live()) {
            (false, true) => self.live.add(after.group, 1),
            (true, false) => self.live.add(before.group, -1),
            (true, true) | (false, false) => {}
        }
        match (is_leaving(before), is_leaving(after)) {
            (false, true) => self.leaving.add(after.group, 1),
            (true, false) => self.leaving.add(before.group, -1),
            (true, true) | (false, false) => {}
        }
    }
}

/// It takes room and is told to leave.
fn is_leaving(row: &RunningUnit) -> bool {
    row.phase.is_live() && row.eviction.is_some()
}

/// How many live running units may be preempted, by priority: there are few priorities.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranks(SmallVec<[(i32, i64); 4]>);

impl Ranks {
    fn turn(&mut self, rows: &RunningUnits, turns: &GroupDeltas, sign: i64) {
        for (group, n) in turns.iter() {
            let Some(standing) = rows.standing(group).filter(|standing| standing.preemptible) else {
                continue;
            };
            match self.0.iter_mut().find(|(known, _)| *known == standing.priority) {
                Some((_, count)) => *count += n * sign,
                None => self.0.push((standing.priority, n * sign)),
            }
        }
    }
}

impl Cluster {
    /// A committed change to rows; says how many take room now that did not before, and
    /// how many are told to leave.
    pub fn apply_rows(
        &mut self,
        unit: UnitId,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
    ) -> GroupDeltas {
        if let RunChange::Bind(bind) = change {
            self.keep_pool(bind.pool);
        }
        let mut taken = std::mem::take(self.units.entry(unit).or_default());
        if let RunChange::Bind(bind) = change {
            taken.rows.set_group(bind);
        }
        self.intern_groups(&mut taken);
        let UnitTaken { rows, shapes } = &mut taken;
        let mut turns = GroupDeltas::default();
        // Whoever turned live or no longer, where that matters.
        let is_watched = self.is_watched();
        let mut turned: Vec<(u32, NodeId)> = Vec::new();
        rows.apply(change, revision, time_ms, |ordinal, before, after| {
            let (was_live, is_live) = (before.phase.is_live(), after.phase.is_live());
            turns.note(before, after);
            if was_live && is_live {
                return;
            }
            let row = if is_live { after } else { before };
            if is_watched {
                turned.push((ordinal, row.node));
            }
            self.release_row(unit, shapes, before);
            self.settle_row(unit, shapes, ordinal, after);
        });
        self.ranks.turn(rows, &turns, 1);
        *self.units.entry(unit).or_default() = taken;
        self.recount_budgets(unit);
        if !turned.is_empty() {
            self.follow_turned(unit, &turned);
        }
        turns
    }

    /// Somebody must hear of rows that turn live, or no longer.
    fn is_watched(&self) -> bool {
        !self.holds.is_empty() || self.occupants.is_some()
    }

    fn follow_turned(&mut self, unit: UnitId, turned: &[(u32, NodeId)]) {
        self.follow_occupants(unit, turned);
        for (ordinal, _) in turned {
            self.follow_victim(unit, *ordinal);
        }
    }

    /// Rows from a list: they replace what is known of the unit.
    pub fn load_rows(&mut self, unit: UnitId, rows: RunningUnits) {
        rows.groups.iter().flatten().for_each(|group| self.keep_pool(group.pool));
        if let Some(old) = self.units.remove(&unit) {
            self.ranks.turn(&old.rows, &GroupDeltas::of(&old.rows), -1);
            for (_, row) in old.rows.live() {
                self.release_row(unit, &old.shapes, row);
            }
        }
        let mut taken = UnitTaken { rows, shapes: SmallVec::new() };
        self.intern_groups(&mut taken);
        self.ranks.turn(&taken.rows, &GroupDeltas::of(&taken.rows), 1);
        for (ordinal, row) in (0u32..).zip(&taken.rows.rows) {
            self.settle_row(unit, &taken.shapes, ordinal, row);
        }
        self.units.insert(unit, taken);
        self.recount_budgets(unit);
        self.forget_occupants();
        self.follow_victims(unit);
    }

    /// A unit's rows and assumptions are gone.
    pub fn remove_unit(&mut self, unit: UnitId) {
        self.budgets.forget(unit);
        if let Some(old) = self.units.remove(&unit) {
            self.ranks.turn(&old.rows, &GroupDeltas::of(&old.rows), -1);
            for (_, row) in old.rows.live() {
                self.release_row(unit, &old.shapes, row);
                self.forget_occupants();
            }
        }
        for assumed in self.assumptions.remove(unit) {
            self.tally.shift(unit, assumed.node, -1);
            self.release(assumed.shape, assumed.node, assumed.mask);
        }
        self.follow_victims(unit);
    }

    /// Whether some running unit of lower priority may be preempted, however it stands otherwise.
    pub fn has_below(&self, priority: i32) -> bool {
        self.ranks.0.iter().any(|(known, count)| *known < priority && *count > 0)
    }

    /// Whether some running unit may be preempted, whatever its priority.
    pub fn has_preemptible(&self) -> bool {
        self.ranks.0.iter().any(|(_, count)| *count > 0)
    }

    /// Rows of every unit that was ever bound; in no order that may show.
    pub fn all_rows(&self) -> impl Iterator<Item = (UnitId, &RunningUnits)> {
        self.units.iter().map(|(unit, taken)| (*unit, &taken.rows))
    }

    /// What a live row takes.
    pub(crate) fn taken_shape(&self, unit: UnitId, row: &RunningUnit) -> Option<ShapeId> {
        shape_of(&self.units.get(&unit)?.shapes, row)
    }

    /// What a running unit of a task group takes, once one was bound.
    pub fn group_shape(&self, unit: UnitId, group: u16) -> Option<ShapeId> {
        self.units.get(&unit)?.shapes.get(usize::from(group)).copied().flatten()
    }

    /// Rows of a unit; `None` when none was ever bound.
    pub fn rows(&self, unit: UnitId) -> Option<&RunningUnits> {
        self.units.get(&unit).map(|taken| &taken.rows)
    }

    /// Takes room before it is committed; nothing happens when a row of this or a later incarnation was bound
    /// already. An assumption of the same running unit is replaced.
    pub fn assume(
        &mut self,
        unit: UnitId,
        ordinal: u32,
        incarnation: u32,
        shape: ShapeId,
        node: NodeId,
        device_mask: u64,
    ) {
        let row = self.units.get(&unit).map(|taken| taken.rows.row(ordinal)).unwrap_or_default();
        if is_past(&row, incarnation) {
            return;
        }
        let assumed = Assumed { incarnation, shape, node, mask: device_mask };
        let old = self.assumptions.insert(unit, ordinal, assumed);
        self.tally.shift(unit, node, 1);
        self.shift(shape, node, device_mask, 1);
        if let Some(old) = old {
            self.tally.shift(unit, old.node, -1);
            self.release(old.shape, old.node, old.mask);
        }
    }

    /// Gives assumed room back; nothing happens when there is no such assumption.
    pub fn forget(&mut self, unit: UnitId, ordinal: u32, incarnation: u32) {
        if let Some(assumed) = self.assumptions.take(unit, ordinal, incarnation) {
            self.tally.shift(unit, assumed.node, -1);
            self.release(assumed.shape, assumed.node, assumed.mask);
            if self.has_slots() {
                self.leave_slot(unit, ordinal);
            }
        }
    }

    /// As [`Self::forget`], for a trial: nobody else was told of the assumption, so nothing was gained.
    pub fn undo(&mut self, unit: UnitId, ordinal: u32, incarnation: u32) {
        if let Some(assumed) = self.assumptions.take(unit, ordinal, incarnation) {
            self.tally.shift(unit, assumed.node, -1);
            self.shift(assumed.shape, assumed.node, assumed.mask, -1);
            if self.has_slots() {
                self.leave_slot(unit, ordinal);
            }
        }
    }

    /// The devices and node that an assumption holds.
    pub fn assumed(&self, unit: UnitId, ordinal: u32) -> Option<(NodeId, u64)> {
        self.assumptions.get(unit, ordinal).map(|assumed| (assumed.node, assumed.mask))
    }

    /// Fresh state of a node from a rejection: what others have taken of a pool there and we have not seen is kept
    /// from new placements until their binds arrive, or until [`Self::clear_foreign`].
    pub fn note_foreign(
        &mut self,
        node: NodeId,
        pool: Pool,
        allocated: &Resources,
        device_free_milli: &[u32],
    ) {
        let Some(idx) = self.known(node) else { return };
        let amounts = self.amounts(allocated);
        if let Some(room) = self.room_mut(pool) {
            room.set_foreign(idx, &amounts);
        }
        self.nodes[idx].devices.set_foreign(device_free_milli);
        self.settle_devices(idx);
        // It may say less than the note before.
        self.note_gain(idx);
    }

    /// Ends a foreign note.
    pub fn clear_foreign(&mut self, node: NodeId) {
        let Some(idx) = self.known(node) else { return };
        if self.has_foreign(idx) {
            self.room.set_foreign(idx, &[]);
            if let Some(room) = self.room_mut(Pool::BestEffort) {
                room.set_foreign(idx, &[]);
            }
            self.nodes[idx].devices.set_foreign(&[]);
            self.settle_devices(idx);
            self.note_gain(idx);
        }
    }

    /// A row as it is now: it takes room if it is live, and ends the assumption it grew from.
    fn settle_row(&mut self, unit: UnitId, shapes: &GroupShapes, ordinal: u32, row: &RunningUnit) {
        let assumed = match row.phase {
            Phase::Pending => {
                row.incarnation.checked_sub(1).and_then(|past| self.assumptions.take(unit, ordinal, past))
            }
            _ => self.assumptions.take(unit, ordinal, row.incarnation),
        };
        match (assumed, live_shape(shapes, row)) {
            (Some(assumed), Some(shape))
                if (assumed.shape, assumed.node, assumed.mask) == (shape, row.node, row.device_mask) =>
            {
                self.follow_row(shape, row, 1);
            }
            (assumed, shape) => {
                if let Some(shape) = shape {
                    if assumed.is_none() {
                        self.consume_foreign(shape, row.node, row.device_mask);
                    }
                    self.tally.shift(unit, row.node, 1);
                    self.shift(shape, row.node, row.device_mask, 1);
                    self.follow_row(shape, row, 1);
                }
                if let Some(assumed) = assumed {
                    self.tally.shift(unit, assumed.node, -1);
                    self.release(assumed.shape, assumed.node, assumed.mask);
                    if self.has_slots() {
                        self.follow_slot(unit, ordinal);
                    }
                }
            }
        }
    }

    fn release_row(&mut self, unit: UnitId, shapes: &GroupShapes, row: &RunningUnit) {
        if let Some(shape) = live_shape(shapes, row) {
            self.tally.shift(unit, row.node, -1);
            self.follow_row(shape, row, -1);
            self.release(shape, row.node, row.device_mask);
        }
    }

    fn release(&mut self, shape: ShapeId, node: NodeId, mask: u64) {
        self.shift(shape, node, mask, -1);
        if let Some(idx) = self.known(node) {
            self.note_gain(idx);
        }
    }

    /// Takes (`sign` 1) or gives back (-1).
    fn shift(&mut self, shape: ShapeId, node: NodeId, mask: u64, sign: i8) {
        let Some(idx) = self.node_index(node) else { return };
        if self.shapes.get(shape).unknown.is_some() {
            let demand = Arc::clone(&self.shapes.get(shape).demand);
            self.amounts(&demand.requests);
        }
        let resolved = self.shapes.get(shape);
        let nominal = resolved.nominal;
        if resolved.pool == Pool::Guaranteed {
            self.room.shift(idx, &resolved.asks, i64::from(sign));
        }
        if let Some(best_effort) = &mut self.best_effort {
            best_effort.room.shift(idx, &resolved.asks, i64::from(sign));
        }
        if mask != 0 {
            self.nodes[idx].devices.shift(mask, resolved.device_milli(), i32::from(sign));
            self.shift_holders(idx, shape, mask, i32::from(sign));
            self.settle_devices(idx);
        }
        if nominal != [0; 2] {
            self.nominal.shift(idx, nominal, sign);
        }
        self.touch(idx);
    }

    fn consume_foreign(&mut self, shape: ShapeId, node: NodeId, mask: u64) {
        let Some(idx) = self.known(node) else { return };
        if self.has_foreign(idx) {
            let resolved = self.shapes.get(shape);
            if resolved.pool == Pool::Guaranteed {
                self.room.consume_foreign(idx, &resolved.asks);
            }
            if let Some(best_effort) = &mut self.best_effort {
                best_effort.room.consume_foreign(idx, &resolved.asks);
            }
            self.nodes[idx].devices.consume_foreign(mask, resolved.device_milli());
        }
    }

    /// Gives each group its shape, and lets equal demands of many units be one.
    fn intern_groups(&mut self, taken: &mut UnitTaken) {
        for (idx, group) in taken.rows.groups.iter_mut().enumerate() {
            if taken.shapes.len() <= idx {
                taken.shapes.resize(idx + 1, None);
            }
            if taken.shapes[idx].is_none()
                && let Some(group) = group
            {
                let shape = self.shapes.intern(&group.demand, group.pool, &self.names, &self.classes);
                group.demand = Arc::clone(&self.shapes.get(shape).demand);
                taken.shapes[idx] = Some(shape);
            }
        }
    }
}

fn shape_of(shapes: &GroupShapes, row: &RunningUnit) -> Option<ShapeId> {
    shapes.get(usize::from(row.group)).copied().flatten()
}

/// The shape of a row that takes room.
fn live_shape(shapes: &GroupShapes, row: &RunningUnit) -> Option<ShapeId> {
    row.phase.is_live().then(|| shape_of(shapes, row)).flatten()
}

/// A running unit of this incarnation cannot become bound any more.
fn is_past(row: &RunningUnit, incarnation: u32) -> bool {
    row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending)
}
