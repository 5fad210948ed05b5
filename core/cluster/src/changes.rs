//! What a change of rows, assumptions, budgets or holds means for all parts of the cluster, in the order in which they
//! follow it.

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    allocation::Allocation,
    demand::{Demand, Pool},
    hold::Hold,
    node_load::MaxLoad,
    running_units::{EvictionReason, RunChange, RunningUnits},
    work_kind::WorkKind,
    zone::ZonePolicy,
};
use godel_rules::budget::{Identity, WantedOrdinals};

use super::{
    AffinityTerms, Cluster, StandingTerms,
    assumptions::Assumed,
    free_view::FreeView,
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

    /// Forgets a unit's rows and assumptions.
    pub fn remove_unit(&mut self, unit: UnitId) {
        movers::remove(&mut self.taken, unit);
        self.taken.remove(&mut self.catalogue, &mut self.free, unit);
        let (holds, on) = self.holding();
        holds.follow_victims(on, unit);
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
        self.taken.assume(&mut self.catalogue, &mut self.free, unit, ordinal, assumed);
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
            let opened = self.take_opened();
            self.free.note_gains(&self.catalogue, opened);
        }
    }

    /// What has opened is looked at again, though nothing was gained.
    #[inline]
    pub(super) fn touch_opened(&mut self) {
        if self.taken.domains.opened.is_any() {
            let opened = self.take_opened();
            self.free.touch_each(&self.catalogue, opened);
        }
    }

    #[cold]
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

/// Terms of units.
impl Cluster {
    /// Takes what a unit says of where its replicas go in relation to running units. Returns whether all units have to be
    /// offered; the unit itself has to be in any case.
    pub fn put_terms(&mut self, unit: UnitId, identity: &Identity, terms: &AffinityTerms<'_>) -> bool {
        let templates = if terms.affinity.spread.is_empty() { &[] } else { &terms.templates[..] };
        let mut standing: Vec<StandingTerms> = Vec::with_capacity(templates.len());
        for template in templates {
            let shape = self.shape_below(&template.demand, terms.pool, template.max_load);
            standing.push(StandingTerms::of(template, shape));
        }
        let Self { catalogue, records, free, taken, .. } = self;
        taken.put_terms(unit, identity, terms, &standing, FreeView { records, free, catalogue })
    }

    /// Counts running units of this unit by node from now on. `O(running units of both)` if another one was counted.
    pub fn count_unit(&mut self, unit: UnitId) {
        self.taken.count_unit(unit, self.free.len());
    }

    /// A unit is of a kind, wherever its running units are. Without effect where nobody counts kinds.
    pub fn put_work(&mut self, unit: UnitId, kind: WorkKind) {
        if self.taken.work.is_active() {
            for node in self.taken.put_work(unit, kind) {
                self.nodes_mut().note_moved(node, false);
            }
        }
    }
}

/// Disruption budgets.
impl Cluster {
    /// Follows a unit's record, for the budgets and the terms of others that select it.
    pub fn offer(&mut self, unit: UnitId, identity: &Identity, wanted: impl FnOnce() -> WantedOrdinals) {
        self.taken.offer(unit, identity, wanted);
        self.settle_opened();
    }
}

/// Holds and slots.
impl Cluster {
    /// What is held, and what that rests on.
    pub(super) fn holding(&mut self) -> (&mut NodeHolds, Basis<'_>) {
        let Self { catalogue, free, taken, holds, .. } = self;
        (holds, Basis { catalogue, taken, free })
    }

    /// Keeps room; a hold known by its id is replaced.
    pub fn put_hold(&mut self, hold: Arc<Hold>) {
        self.remove_hold(hold.id);
        if self.free.index(&self.catalogue, hold.node).is_none() {
            return;
        }
        let shape = self.shape(&hold.demand, hold.pool);
        self.free.resolve(&mut self.catalogue, shape);
        let (unit, moves) = (hold.unit, hold.movement.is_some());
        let (holds, on) = self.holding();
        holds.put(on, hold, shape);
        self.settle_targets(unit, moves);
    }

    /// A target of a replica of a unit is held, or no longer, if `moves`.
    fn settle_targets(&mut self, unit: UnitId, moves: bool) {
        if moves {
            movers::settle_unit(&mut self.taken, &self.holds, unit, &[]);
            self.settle_opened();
        }
    }

    /// Gives a hold's room back.
    pub fn remove_hold(&mut self, id: HoldId) -> Option<Arc<Hold>> {
        let (holds, on) = self.holding();
        let hold = holds.remove(on, id)?;
        self.settle_targets(hold.unit, hold.movement.is_some());
        Some(hold)
    }

    /// Lets somebody take a slot whose room is assumed.
    pub fn occupy(&mut self, id: HoldId, member: RunningUnitId) {
        let (holds, on) = self.holding();
        holds.occupy(on, id, member);
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
