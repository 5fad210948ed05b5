//! What a change of rows, assumptions, budgets or holds means for all parts of the cluster, in the order in which they
//! follow it.

use std::sync::Arc;

use godel_base::{
    ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId},
    resources::Resources,
};
use godel_domain::{
    allocation::Allocation,
    budget_spec::BudgetSpec,
    demand::{Demand, Pool},
    hold::{Borrower, Hold},
    reservation_spec::ReservationSpec,
    running_units::{EvictionReason, RunChange, RunningUnits},
};
use godel_rules::budget::{Identity, WantedOrdinals};

use super::{
    AffinityTerms, Cluster, DaemonIdx, NodeGroups, StandingTerms, TopologyLevel,
    assumptions::Assumed,
    domains::KnownNodes,
    group_deltas::GroupDeltas,
    holds::{Basis, NodeHolds},
    movers,
    shapes::ShapeId,
    taken::UnitTaken,
};

/// Demands, and the pools that pay for them.
impl Cluster {
    /// Returns the shape of a demand; equal demands of one pool have the same shape.
    pub fn shape(&mut self, demand: &Demand, pool: Pool) -> ShapeId {
        self.keep_pool(pool);
        self.catalogue.intern(demand, pool)
    }

    /// There may be demands of this pool from now on.
    fn keep_pool(&mut self, pool: Pool) {
        if pool == Pool::BestEffort {
            self.keep_best_effort();
        }
    }

    /// Begins to keep best-effort room, if it is not kept yet. `O(running units + nodes)` the first time.
    pub(super) fn keep_best_effort(&mut self) {
        let Self { catalogue, records, free, taken, holds, .. } = self;
        let Some(mut kept) = free.empty_best_effort(catalogue) else { return };
        let n_nodes = free.len();
        for idx in 0..n_nodes {
            if let Some(usage) = records.usage(idx) {
                kept.begin_usage(idx, usage);
            }
        }
        taken.begin_best_effort(catalogue, n_nodes, &mut kept);
        let held = holds.best_effort_asks().chain(free.gathering().best_effort_asks());
        for (node, asks) in held.filter(|(node, _)| node.idx() < n_nodes) {
            kept.room.shift(node.idx(), asks, 1);
        }
        free.begin_best_effort(kept);
    }

    /// Usage of a node is known no longer, or of an earlier time: what was left out counts again.
    pub(super) fn forget_usage(&mut self) {
        if self.free.end_best_effort() {
            self.keep_best_effort();
            self.free.touch_all(&self.catalogue);
        }
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
        let is_watched = !holds.is_empty() || taken.has_occupants();
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
            if taken.settle_row(catalogue, free, unit, shapes, ordinal, after) && holds.slots().is_any() {
                holds.follow_slot(&mut Basis { catalogue, taken, free }, unit, ordinal);
            }
        });
        taken.put_back(unit, of_unit, &deltas);
        if !turned.is_empty() {
            taken.follow_occupants(unit, &turned);
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
            if ended && holds.slots().is_any() {
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

    /// Keeps who is on which node from now on, if that is not kept yet. `O(running units)` the first time.
    pub fn keep_occupants(&mut self) {
        self.taken.keep_occupants();
    }

    /// Keeps no longer who is on which node: nobody searches for victims now.
    pub fn forget_occupants(&mut self) {
        self.taken.forget_occupants();
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

    /// What was tried out is decided.
    #[inline]
    pub fn keep_trial(&mut self) {
        self.journal.forget_assumed();
        if self.taken.domains.has_opened_by_trial() {
            let opened = self.taken.domains.take_opened_by_trial(self.free.len());
            self.gain(opened);
        }
    }

    /// Nothing that was tried out is left.
    #[inline]
    pub fn drop_trial(&mut self) {
        self.journal.forget_assumed();
        if self.taken.domains.has_opened_by_trial() {
            self.taken.domains.take_opened_by_trial(0);
        }
    }

    /// Gives assumed room back; nothing happens when there is no such assumption.
    pub fn forget(&mut self, id: RunningUnitId) {
        if self.taken.forget(&mut self.catalogue, &mut self.free, id) {
            self.leave_slot(id.unit, id.replica.ordinal);
            self.settle_mover(id.unit, id.replica.ordinal);
            self.settle_opened();
        }
    }

    /// Like [`Self::forget`], for a trial: nobody else was told of the assumption, so nothing was gained.
    pub fn undo(&mut self, id: RunningUnitId) {
        if self.taken.undo(&mut self.catalogue, &mut self.free, id) {
            self.leave_slot(id.unit, id.replica.ordinal);
            self.settle_mover(id.unit, id.replica.ordinal);
            self.touch_settled();
        }
    }

    /// Whether something of a unit is assumed.
    pub fn has_assumed(&self, unit: UnitId) -> bool {
        self.taken.has_assumed(unit)
    }

    /// Whether this incarnation of a replica is assumed somewhere.
    pub fn is_assumed(&self, id: RunningUnitId) -> bool {
        let assumed = self.taken.assumed(id.unit, id.replica.ordinal);
        assumed.is_some_and(|assumed| assumed.incarnation == id.replica.incarnation)
    }

    /// A replica that moves has a place, or has none any more.
    #[inline]
    pub(super) fn settle_mover(&mut self, unit: UnitId, ordinal: u32) {
        // Of one that has a place at its target nothing more is counted: only its hold tells.
        if !self.taken.movers.is_empty() || self.holds.has_of(unit) {
            movers::settle(&mut self.taken, &self.holds, unit, ordinal);
        }
    }

    /// What has opened since is looked at again, though nothing was gained.
    pub(super) fn touch_settled(&mut self) {
        if self.taken.domains.has_opened() {
            let opened = self.taken.domains.take_opened(self.free.len());
            self.touch_opened(opened);
        }
    }

    fn leave_slot(&mut self, unit: UnitId, ordinal: u32) {
        if self.has_slots() {
            let (holds, on) = self.holding();
            holds.leave_slot(on, unit, ordinal);
        }
    }

    /// Takes the fresh state of a node from a rejection: what others have taken of a pool there and we have not seen is kept
    /// from new placements until their binds arrive, or until [`Self::clear_foreign`].
    pub fn note_foreign(
        &mut self,
        node: NodeId,
        pool: Pool,
        allocated: &Resources,
        device_free_milli: &[u32],
    ) {
        self.free.note_foreign(&mut self.catalogue, node, pool, allocated, device_free_milli);
    }

    /// Ends a foreign note.
    pub fn clear_foreign(&mut self, node: NodeId) {
        self.free.clear_foreign(&self.catalogue, node);
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
        taken.put_terms(unit, identity, terms, &standing, KnownNodes { records, free, catalogue })
    }

    /// Follows where the replicas of a daemon are from now on, so that none is placed beside another one. `O(1)` for one that is
    /// known.
    pub fn put_daemon(&mut self, unit: UnitId) -> DaemonIdx {
        self.taken.put_daemon(unit, self.free.len())
    }

    /// Ends that, for a unit that was only planned.
    pub fn forget_daemon(&mut self, unit: UnitId) {
        self.taken.daemons.remove(unit);
    }

    /// Returns the groups of a level, and the number by which [`GroupRef`](crate::GroupRef) names the level. `O(1)` while no node moves.
    pub fn groups(&mut self, level: &TopologyLevel) -> (usize, Arc<NodeGroups>) {
        self.taken.domains.groups(level)
    }

    /// Takes groups of nodes that are not alike in labels: each as indices of nodes, ascending. Returns them as [`Self::groups`] does; they
    /// are known until others are taken.
    pub fn take_groups(&mut self, groups: &[Vec<u32>]) -> (usize, Arc<NodeGroups>) {
        self.taken.domains.take_groups(groups)
    }

    /// The records of the node at an index changed: it may be of another domain.
    pub(super) fn follow_domain(&mut self, idx: usize) {
        if !self.taken.domains.is_active() {
            return;
        }
        let Self { catalogue, records, free, taken, .. } = self;
        taken.domains.set_node(idx, KnownNodes { records, free, catalogue });
        self.settle_opened();
    }

    /// More may fit where running units came or left than before, for units with terms.
    #[inline]
    fn settle_opened(&mut self) {
        if self.taken.domains.has_opened() {
            self.gain_opened();
        }
    }

    #[cold]
    fn gain_opened(&mut self) {
        let opened = self.taken.domains.take_opened(self.free.len());
        self.gain(opened);
    }

    #[cold]
    fn gain(&mut self, opened: Vec<usize>) {
        let n_nodes = self.free.len();
        for idx in opened.into_iter().filter(|idx| *idx < n_nodes) {
            self.free.note_gain(&self.catalogue, idx);
        }
    }

    /// What is known of nodes is looked at again, though nothing was gained.
    #[cold]
    pub(super) fn touch_opened(&mut self, opened: Vec<usize>) {
        let n_nodes = self.free.len();
        for idx in opened.into_iter().filter(|idx| *idx < n_nodes) {
            self.free.touch(&self.catalogue, idx);
        }
    }
}

/// Disruption budgets.
impl Cluster {
    /// Follows a budget's record. True if all units have to be offered.
    pub fn put_budget(&mut self, spec: Arc<BudgetSpec>, revision: Revision) -> bool {
        self.taken.put_budget(spec, revision)
    }

    /// Forgets a budget's record.
    pub fn remove_budget(&mut self, name: &str) {
        self.taken.remove_budget(name);
    }

    /// Follows a unit's record, for the budgets and the terms of others that select it.
    pub fn offer(&mut self, unit: UnitId, identity: &Identity, wanted: impl FnOnce() -> WantedOrdinals) {
        self.taken.offer(unit, identity, wanted);
        self.settle_opened();
    }

    /// Asks something as if one running unit of a unit were not on its node, for terms that keep units together or apart. Its
    /// room stays taken.
    pub fn without_one<T>(&mut self, unit: UnitId, node: NodeId, ask: impl FnOnce(&mut Self) -> T) -> T {
        let is_active = self.taken.domains.is_active();
        if is_active {
            self.taken.domains.shift(unit, node, -1);
        }
        let answer = ask(self);
        if is_active {
            self.taken.domains.shift(unit, node, 1);
        }
        answer
    }

    /// Counts the target of a replica that moves no longer, for terms that keep units together or apart, until
    /// [`Self::put_down_target`]: a place is looked for that replica itself. False, and without effect, if it has none. What is held
    /// for it stays held, see [`Self::lift_holds`].
    #[inline]
    pub fn lift_target(&mut self, id: RunningUnitId) -> bool {
        if self.taken.movers.is_empty() {
            return false;
        }
        let is_lifted = movers::lift(&mut self.taken, &self.holds, id.unit, id.replica.ordinal);
        self.touch_settled();
        is_lifted
    }

    /// Counts a target that was lifted again, unless its replica has a place by now.
    pub fn put_down_target(&mut self) {
        movers::put_down(&mut self.taken, &self.holds);
        self.touch_settled();
    }

    /// Counts a running unit of a unit on another node than it is on, for terms that keep units together or apart. Its room stays
    /// where it was.
    pub fn move_in_terms(&mut self, unit: UnitId, from: NodeId, to: NodeId) {
        if self.taken.domains.is_active() {
            self.taken.domains.shift(unit, from, -1);
            self.taken.domains.shift(unit, to, 1);
        }
    }

    /// Counts running units as told to leave, which their rows do not show yet.
    pub fn depart(&mut self, members: impl IntoIterator<Item = (UnitId, u32)>) {
        self.taken.depart(members);
    }

    /// Counts such running units by their rows again: these show it, or they stay.
    pub fn arrive(&mut self, members: impl IntoIterator<Item = (UnitId, u32)>) {
        self.taken.arrive(members);
    }
}

/// Holds and slots.
impl Cluster {
    /// What is held, and what that rests on.
    fn holding(&mut self) -> (&mut NodeHolds, Basis<'_>) {
        let Self { catalogue, free, taken, holds, .. } = self;
        (holds, Basis { catalogue, taken, free })
    }

    /// A node has other devices than before.
    pub(super) fn follow_devices(&mut self, node: NodeId) {
        if !self.holds.is_empty() {
            let (holds, on) = self.holding();
            holds.follow_devices(on, node);
        }
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

    /// Takes no account of some holds until [`Self::settle_holds`] of the same ones, as if they were not there: a unit looks
    /// for room beside what is held for it, or in place of what is held for others of lower rank. Slots stay.
    pub fn lift_holds(&mut self, ids: &[HoldId]) {
        let (holds, on) = self.holding();
        holds.lift(on, ids);
    }

    /// Counts holds again that were lifted: those that gather take what is free then, the others all that they did.
    pub fn settle_holds(&mut self, ids: &[HoldId]) {
        let (holds, on) = self.holding();
        holds.settle_lifted(on, ids);
    }

    /// Returns [`Self::is_gathered`], which is false from then on.
    pub fn take_gathered(&mut self) -> bool {
        self.free.gathering_mut().take_met()
    }

    /// Takes no account of what a unit may enter, on one node or on all, until [`Self::settle_lifted`]. False, and without
    /// effect, if there is nothing of the kind.
    pub fn lift_gathered(&mut self, borrower: &Borrower, only: Option<NodeId>) -> bool {
        self.free.lift_admitting(&self.catalogue, borrower, only)
    }

    /// Lets holds that were lifted take again what is free.
    pub fn settle_lifted(&mut self) {
        self.free.settle_lifted(&self.catalogue);
    }

    /// Follows a reservation's record.
    pub fn put_reservation(&mut self, spec: Arc<ReservationSpec>) {
        self.holds.put_reservation(spec);
    }

    /// Forgets a reservation's record.
    pub fn remove_reservation(&mut self, name: &str) {
        self.holds.remove_reservation(name);
    }

    /// Lets somebody take a slot whose room is assumed.
    pub fn occupy(&mut self, id: HoldId, member: RunningUnitId) {
        let (holds, on) = self.holding();
        holds.occupy(on, id, member);
    }

    /// Lets nobody take a slot from now on, or lets somebody.
    pub fn close_slot(&mut self, id: HoldId, is_closed: bool) {
        self.holds.close_slot(id, is_closed);
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
