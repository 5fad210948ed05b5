//! What a change of rows, assumptions, budgets or holds means for all parts of the cluster, in the order in which they
//! follow it.

use godel_base::ids::{NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    allocation::Allocation,
    demand::{Demand, Pool},
    node_load::MaxLoad,
    running_units::{EvictionReason, RunChange, RunningUnits},
    zone::ZonePolicy,
};

use super::{
    Cluster,
    assumptions::Assumed,
    group_deltas::GroupDeltas,
    holds::{Basis, NodeHolds},
    movers,
    shapes::ShapeId,
    unit_rows::UnitTaken,
};

/// Demands, and the pools that pay for them.
impl Cluster {
    /// Returns the shape of a demand; equal demands of one pool have the same shape.
    pub fn shape(&mut self, demand: &Demand, pool: Pool) -> ShapeId {
        self.keep_pool(pool);
        self.catalogue.intern(demand, pool)
    }

    /// Returns the shape of a demand of replicas that accept so much use of the zones that they are given. Those that are given none are
    /// judged by the node, and have the shape of the demand.
    pub fn shape_below(&mut self, demand: &Demand, pool: Pool, max_load: MaxLoad) -> ShapeId {
        let has_zones = demand.zones.is_some_and(|request| request.policy != ZonePolicy::BestEffort);
        let shape = self.shape(demand, pool);
        if has_zones && !max_load.is_any() { self.catalogue.intern_below(shape, max_load) } else { shape }
    }

    /// There may be demands of a pool from now on. `O(running units + nodes)` the first time for the best-effort one.
    pub(super) fn keep_pool(&mut self, pool: Pool) {
        if pool != Pool::BestEffort {
            return;
        }
        let Self { catalogue, records, free, taken, holds, .. } = self;
        let Some(mut kept) = free.empty_best_effort(catalogue) else { return };
        let n_nodes = free.len();
        for idx in 0..n_nodes {
            if let Some(usage) = records.usage(idx) {
                kept.begin_usage(idx, usage);
            }
        }
        taken.begin_best_effort(catalogue, n_nodes, &mut kept);
        let held = holds.best_effort_asks().chain(free.gathering.best_effort_asks());
        for (node, asks) in held.filter(|(node, _)| node.idx() < n_nodes) {
            kept.room.shift(node.idx(), asks, 1);
        }
        free.pools.begin_best_effort(kept);
    }
}

/// Rows.
impl Cluster {
    /// Follows a committed change to rows. Returns how many take room now that did not before, and how many are told to
    /// leave.
    pub fn apply_rows(
        &mut self,
        unit: UnitId,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
    ) -> GroupDeltas {
        match change {
            RunChange::Bind(bind) => self.keep_pool(bind.pool),
            RunChange::Terms(terms) => {
                self.taken.change_terms(unit, terms);
                return GroupDeltas::default();
            }
            RunChange::Compact(compaction) => {
                self.taken.compact(unit, compaction, revision);
                return GroupDeltas::default();
            }
            RunChange::Evict(_) | RunChange::Statuses(_) | RunChange::Requeue(_) => {}
        }
        let Self { catalogue, free, taken, holds, .. } = self;
        let mut of_unit = taken.take_out(catalogue, unit, change);
        let UnitTaken { rows, shapes } = &mut of_unit;
        let mut deltas = GroupDeltas::default();
        // Whoever turned live or no longer, where that matters.
        let is_watched = holds.is_any() || taken.occupants.is_kept();
        let mut turned: Vec<(u32, NodeId)> = Vec::new();
        rows.apply(change, revision, time_ms, |ordinal, before, after| {
            let (was_live, is_live) = (before.phase.is_live(), after.phase.is_live());
            deltas.note(before, after);
            if was_live && is_live {
                return;
            }
            let row = if is_live { after } else { before };
            if is_watched {
                turned.push((ordinal, row.node));
            }
            taken.release_row(catalogue, free, unit, shapes, before);
            if taken.settle_row(catalogue, free, unit, shapes, ordinal, after) && holds.slots.is_any() {
                holds.follow_slot(&mut Basis { catalogue, taken, free }, unit, ordinal);
            }
        });
        taken.put_back(unit, of_unit, &deltas);
        if !turned.is_empty() {
            taken.occupants.follow(&taken.rows, unit, &turned);
            for (ordinal, _) in &turned {
                holds.follow_victim(&mut Basis { catalogue, taken, free }, unit, *ordinal);
            }
        }
        let moved = moved_by(change);
        if !taken.movers.is_empty() || !moved.is_empty() {
            movers::settle_unit(taken, holds, unit, moved);
        }
        self.settle_opened();
        deltas
    }

    /// Takes the rows of a unit from a list; they replace what is known of the unit.
    pub fn load_rows(&mut self, unit: UnitId, rows: RunningUnits) {
        rows.groups.iter().flatten().for_each(|group| self.keep_pool(group.pool));
        let Self { catalogue, free, taken, holds, .. } = self;
        let of_unit = taken.begin_load(catalogue, free, unit, rows);
        for (ordinal, row) in &of_unit.rows.rows {
            let ended = taken.settle_row(catalogue, free, unit, &of_unit.shapes, ordinal, row);
            if ended && holds.slots.is_any() {
                holds.follow_slot(&mut Basis { catalogue, taken, free }, unit, ordinal);
            }
        }
        taken.put_loaded(unit, of_unit);
        holds.follow_victims(Basis { catalogue, taken, free }, unit);
        movers::settle_all(taken, holds, unit);
        self.settle_opened();
    }
}

/// Assumptions, and what others are believed to have taken.
impl Cluster {
    /// Takes room before it is committed; nothing happens when a row of this or a later incarnation was bound
    /// already. An assumption of the same running unit is replaced.
    pub fn assume(&mut self, id: RunningUnitId, shape: ShapeId, node: NodeId, allocation: Allocation) {
        let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = id;
        let assumed = Assumed { incarnation, shape, node, allocation };
        self.taken.assume(&mut self.catalogue, &mut self.free, unit, ordinal, assumed, drop);
        self.settle_mover(unit, ordinal);
        self.settle_opened();
    }

    /// Gives assumed room back; nothing happens when there is no such assumption.
    pub fn forget(&mut self, id: RunningUnitId) {
        if self.taken.forget(&mut self.catalogue, &mut self.free, id) {
            self.leave_slot(id.unit, id.replica.ordinal);
            self.settle_mover(id.unit, id.replica.ordinal);
            self.settle_opened();
        }
    }

    /// More may fit where running units came or left than before, for units with terms.
    #[inline]
    pub(super) fn settle_opened(&mut self) {
        if self.taken.domains.opened.is_any() {
            self.gain_opened();
        }
    }

    #[cold]
    fn gain_opened(&mut self) {
        let opened = self.take_opened();
        self.free.note_gains(&self.catalogue, opened);
    }

    /// What has opened is looked at again, though nothing was gained.
    #[inline]
    pub(super) fn touch_opened(&mut self) {
        if self.taken.domains.opened.is_any() {
            let opened = self.take_opened();
            self.free.touch_each(&self.catalogue, opened);
        }
    }

    fn take_opened(&mut self) -> Vec<usize> {
        let opened = std::mem::take(&mut self.taken.domains.opened);
        self.taken.domains.nodes_of_opened(opened, self.free.len())
    }

    /// A replica that moves has a place, or has none any more.
    #[inline]
    pub(super) fn settle_mover(&mut self, unit: UnitId, ordinal: u32) {
        // Of one that has a place at its target nothing more is counted: only its hold tells.
        if !self.taken.movers.is_empty() || self.holds.has_of(unit) {
            movers::settle(&mut self.taken, &self.holds, unit, ordinal);
        }
    }

    pub(super) fn leave_slot(&mut self, unit: UnitId, ordinal: u32) {
        if self.holds.slots.is_any() {
            let (holds, on) = self.holding();
            holds.leave_slot(on, unit, ordinal);
        }
    }
}

/// Holds and slots.
impl Cluster {
    /// What is held, and what that rests on.
    pub(super) fn holding(&mut self) -> (&mut NodeHolds, Basis<'_>) {
        let Self { catalogue, free, taken, holds, .. } = self;
        (holds, Basis { catalogue, taken, free })
    }
}

/// The replicas that a change has leave for a movement.
#[inline]
fn moved_by(change: &RunChange) -> &[u32] {
    match change {
        RunChange::Evict(evict) if evict.reason == EvictionReason::Rescheduled => &evict.ordinals,
        RunChange::Bind(_)
        | RunChange::Evict(_)
        | RunChange::Statuses(_)
        | RunChange::Requeue(_)
        | RunChange::Compact(_)
        | RunChange::Terms(_) => &[],
    }
}
