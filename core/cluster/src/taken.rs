//! What units take: committed rows, and assumptions until they are committed or forgotten.
//!
//! A committed bind takes the place of its assumption. Rows may come before their nodes do.

use std::sync::Arc;

use godel_base::ids::{IdMap, NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    allocation::Allocation,
    demand::Pool,
    running_units::{Compaction, Phase, RunChange, RunningUnit, RunningUnits, UnitTerms},
    work_kind::WorkKind,
};
use godel_rules::budget::{Budgets, Identity};
use smallvec::SmallVec;

use super::{
    assumptions::{Assumed, Assumptions},
    best_effort::BestEffort,
    catalogue::Catalogue,
    daemons::{DaemonIdx, DaemonPlaces},
    domains::{AffinityTerms, Domains, KnownNodes, StandingTerms, UnitPlaces},
    free::FreeRoom,
    group_deltas::GroupDeltas,
    movers::Movers,
    occupants::Occupants,
    reserve::{self, Taking},
    shapes::ShapeId,
    spread::ReplicaCounts,
    work_kinds::WorkKinds,
};

/// Units with their rows, and what is assumed of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TakenRoom {
    pub(super) units: IdMap<UnitId, UnitTaken>,
    assumptions: Assumptions,
    ranks: Ranks,
    pub(super) counts: ReplicaCounts,
    pub(super) daemons: DaemonPlaces,
    pub(super) domains: Domains,
    pub(super) movers: Movers,
    pub(super) work: WorkKinds,
    pub(super) budgets: Budgets,
    /// Who is on which node; there from the first search for victims on.
    pub(super) occupants: Option<Box<Occupants>>,
}

/// Rows of a unit, and the shape of each of its groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitTaken {
    pub(super) rows: RunningUnits,
    pub(super) shapes: GroupShapes,
}

/// By task group; `None` for a group never bound.
pub(crate) type GroupShapes = SmallVec<[Option<ShapeId>; 2]>;

/// How many live running units may be preempted, by priority: there are few priorities.
#[derive(Clone, Debug, Default)]
struct Ranks(SmallVec<[(i32, i64); 4]>);

impl Ranks {
    fn shift(&mut self, rows: &RunningUnits, deltas: &GroupDeltas, sign: i64) {
        for (group, n) in deltas.iter() {
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

impl UnitTaken {
    /// Gives each group its shape, and lets equal demands of many units be one.
    fn intern_groups(&mut self, catalogue: &mut Catalogue) {
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

/// What is known of units.
impl TakenRoom {
    /// Returns what a new list of records begins with: budgets that count nobody yet.
    pub(crate) fn without_units(&mut self) -> Self {
        Self {
            budgets: std::mem::take(&mut self.budgets).reset(),
            daemons: std::mem::take(&mut self.daemons).reset(),
            domains: std::mem::take(&mut self.domains).reset(),
            work: std::mem::take(&mut self.work).reset(),
            ..Self::default()
        }
    }

    /// Returns the rows of a unit; `None` when none was ever bound.
    pub(crate) fn rows(&self, unit: UnitId) -> Option<&RunningUnits> {
        self.units.get(&unit).map(|taken| &taken.rows)
    }

    /// Returns the rows of every unit that was ever bound; in no order that may show.
    pub(crate) fn all_rows(&self) -> impl Iterator<Item = (UnitId, &RunningUnits)> {
        self.units.iter().map(|(unit, taken)| (*unit, &taken.rows))
    }

    /// Returns what a row of a unit takes.
    pub(crate) fn shape_of(&self, unit: UnitId, row: &RunningUnit) -> Option<ShapeId> {
        shape_of(&self.units.get(&unit)?.shapes, row)
    }

    /// Returns what a running unit of a task group takes, once one was bound.
    pub(crate) fn group_shape(&self, unit: UnitId, group: u16) -> Option<ShapeId> {
        self.units.get(&unit)?.shapes.get(usize::from(group)).copied().flatten()
    }

    /// Returns the row of a running unit that still takes room.
    pub(crate) fn remains(&self, member: &RunningUnitId) -> Option<&RunningUnit> {
        let row = self.units.get(&member.unit)?.rows.rows.get(member.replica.ordinal)?;
        (row.phase.is_live() && row.incarnation == member.replica.incarnation).then_some(row)
    }

    /// Returns what is assumed of a running unit.
    pub(crate) fn assumed(&self, unit: UnitId, ordinal: u32) -> Option<Assumed> {
        self.assumptions.get(unit, ordinal)
    }

    /// Whether something of a unit is assumed.
    pub(crate) fn has_assumed(&self, unit: UnitId) -> bool {
        self.assumptions.of(unit).next().is_some()
    }

    /// Whether some running unit of lower priority may be preempted, however it stands otherwise.
    pub(crate) fn has_below(&self, priority: i32) -> bool {
        self.ranks.0.iter().any(|(known, count)| *known < priority && *count > 0)
    }

    /// Whether some running unit may be preempted, whatever its priority.
    pub(crate) fn has_preemptible(&self) -> bool {
        self.ranks.0.iter().any(|(_, count)| *count > 0)
    }

    /// Running units of this unit are counted by node from now on. `O(running units of both)` if another one was.
    pub(crate) fn count_unit(&mut self, unit: UnitId, n_nodes: usize) {
        if self.counts.is_of(unit, n_nodes) {
            return;
        }
        self.counts.begin(unit, n_nodes, self.nodes_of(unit).into_iter());
    }

    /// Returns how many of the unit that is counted are on a node, assumed or there.
    #[inline]
    pub(crate) fn n_of_unit(&self, idx: usize) -> u32 {
        self.counts.of(idx)
    }

    /// A replica takes what it asks for on its node (`sign` 1), or gives it back (-1), whether or not anything is known of the node.
    #[inline]
    fn shift(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        shape: ShapeId,
        node: NodeId,
        allocation: Allocation,
        sign: i8,
    ) {
        if free.begin_shift(catalogue, shape, node) {
            let of = Taking { unit, node, shape, catalogue, allocation };
            reserve::shift(self, free, &of, sign);
            free.touch(catalogue, node.idx());
        }
    }

    /// A unit is of a kind of work. Returns the nodes on which that changes a count.
    pub(super) fn put_work(&mut self, unit: UnitId, kind: WorkKind) -> Vec<NodeId> {
        let mut work = std::mem::take(&mut self.work);
        let nodes = work.put(unit, kind, || self.nodes_of(unit));
        self.work = work;
        nodes
    }

    /// Follows where the replicas of a daemon are from now on. `O(its running units + nodes)` the first time.
    pub(super) fn put_daemon(&mut self, unit: UnitId, n_nodes: usize) -> DaemonIdx {
        let mut daemons = std::mem::take(&mut self.daemons);
        let idx = daemons.put(unit, || self.nodes_of(unit), n_nodes);
        self.daemons = daemons;
        idx
    }

    /// Takes what a unit says of where its replicas go in relation to running units.
    pub(super) fn put_terms(
        &mut self,
        unit: UnitId,
        identity: &Identity,
        terms: &AffinityTerms<'_>,
        standing: &[StandingTerms],
        known: KnownNodes<'_>,
    ) -> bool {
        let mut domains = std::mem::take(&mut self.domains);
        let asks_all = domains.put_terms(unit, identity, terms, standing, known, |unit| self.places_of(unit));
        self.domains = domains;
        asks_all
    }

    /// Returns the nodes of a unit's running units, assumed or there.
    pub(super) fn nodes_of(&self, unit: UnitId) -> Vec<NodeId> {
        let rows = self.units.get(&unit).into_iter().flat_map(|taken| taken.rows.live());
        let assumed = self.assumptions.of(unit).map(|assumed| assumed.node);
        rows.map(|(_, row)| row.node).chain(assumed).collect()
    }

    /// Returns where terms count the replicas of a unit, those that move included.
    pub(super) fn places_of(&self, unit: UnitId) -> UnitPlaces {
        let mut places = UnitPlaces { all: self.nodes_of(unit), leaving: Vec::new() };
        self.movers.add_places(unit, &mut places);
        places
    }

    /// Takes all that is taken of best-effort room, which has just begun to be kept.
    pub(crate) fn begin_best_effort(&self, catalogue: &Catalogue, n_nodes: usize, kept: &mut BestEffort) {
        for taken in self.units.values() {
            for (_, row) in taken.rows.live() {
                let shape = shape_of(&taken.shapes, row);
                let Some(shape) = shape.filter(|_| row.node.idx() < n_nodes) else { continue };
                let of = catalogue.shape(shape);
                kept.room.shift(row.node.idx(), &of.asks, 1);
                if of.pool == Pool::Guaranteed {
                    kept.count_row(shape, &of.measured(), row, 1);
                }
            }
        }
        for (_, _, assumed) in self.assumptions.iter().filter(|(.., assumed)| assumed.node.idx() < n_nodes) {
            kept.room.shift(assumed.node.idx(), &catalogue.shape(assumed.shape).asks, 1);
        }
    }
}

/// What takes room before it is committed.
impl TakenRoom {
    /// Takes out all assumptions, in order of unit and ordinal; their room stays taken.
    pub(crate) fn take_assumptions(&mut self) -> Assumptions {
        std::mem::take(&mut self.assumptions)
    }

    /// Takes room for a running unit; nothing happens when a row of this or a later incarnation was bound already. Returns the
    /// assumption of the same running unit that this one replaces.
    #[inline]
    pub(crate) fn assume(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        ordinal: u32,
        assumed: Assumed,
    ) -> Option<Assumed> {
        let row = self.units.get(&unit).map(|taken| taken.rows.row(ordinal)).unwrap_or_default();
        if is_past(&row, assumed.incarnation) {
            return None;
        }
        let old = self.assumptions.insert(unit, ordinal, assumed);
        self.shift(catalogue, free, unit, assumed.shape, assumed.node, assumed.allocation, 1);
        if let Some(old) = old {
            self.release(catalogue, free, unit, old.shape, old.node, old.allocation);
        }
        old
    }

    /// Gives assumed room back, for others to have. False, and without effect, when there is no such assumption.
    #[inline]
    pub(crate) fn forget(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        id: RunningUnitId,
    ) -> bool {
        let assumed = self.assumptions.take(id);
        if let Some(assumed) = assumed {
            let Assumed { shape, node, allocation, .. } = assumed;
            self.release(catalogue, free, id.unit, shape, node, allocation);
        }
        assumed.is_some()
    }

    /// Like [`Self::forget`] for a trial: nobody else was told of the assumption, so nothing was gained.
    #[inline]
    pub(crate) fn undo(&mut self, catalogue: &mut Catalogue, free: &mut FreeRoom, id: RunningUnitId) -> bool {
        let assumed = self.assumptions.take(id);
        if let Some(assumed) = assumed {
            let Assumed { shape, node, allocation, .. } = assumed;
            self.shift(catalogue, free, id.unit, shape, node, allocation, -1);
        }
        assumed.is_some()
    }

    /// A replica gives back what it has on its node, for others to have.
    #[inline]
    fn release(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        shape: ShapeId,
        node: NodeId,
        allocation: Allocation,
    ) {
        self.shift(catalogue, free, unit, shape, node, allocation, -1);
        if let Some(idx) = free.known(node) {
            free.note_gain(catalogue, idx);
        }
    }
}

/// Rows come, change and go.
impl TakenRoom {
    /// Takes out the rows of a unit to be changed, with the groups that the change binds, until [`Self::put_back`].
    #[inline]
    pub(crate) fn take_out(
        &mut self,
        catalogue: &mut Catalogue,
        unit: UnitId,
        change: &RunChange,
    ) -> UnitTaken {
        let mut taken = std::mem::take(self.units.entry(unit).or_default());
        if let RunChange::Bind(bind) = change {
            taken.rows.set_group(bind);
        }
        taken.intern_groups(catalogue);
        taken
    }

    /// Rows of a unit were changed as the deltas say.
    #[inline]
    pub(crate) fn put_back(&mut self, unit: UnitId, taken: UnitTaken, deltas: &GroupDeltas) {
        self.ranks.shift(&taken.rows, deltas, 1);
        *self.units.entry(unit).or_default() = taken;
        self.recount_budgets(unit);
    }

    /// What is bound of a unit stands by other terms. Who is on which node is learnt again by the next search for victims.
    pub(crate) fn change_terms(&mut self, unit: UnitId, terms: &UnitTerms) {
        let Some(taken) = self.units.get_mut(&unit) else { return };
        let live = GroupDeltas::of(&taken.rows);
        self.ranks.shift(&taken.rows, &live, -1);
        taken.rows.set_terms(terms);
        self.ranks.shift(&taken.rows, &live, 1);
        self.forget_occupants();
    }

    /// Rows of running units that have ended go, and what the task groups took of which none is left.
    pub(crate) fn compact(&mut self, unit: UnitId, compaction: &Compaction, revision: Revision) {
        let Some(taken) = self.units.get_mut(&unit) else { return };
        taken.rows.apply(&RunChange::Compact(compaction.clone()), revision, 0, |_, _, _| {});
        for group in &compaction.groups {
            if let Some(shape) = taken.shapes.get_mut(usize::from(*group)) {
                *shape = None;
            }
        }
        self.recount_budgets(unit);
    }

    /// Rows of a unit from a list take the place of those known, whose room is given back. They take theirs one by one, by
    /// [`Self::settle_row`], and are known from [`Self::put_loaded`] on.
    pub(crate) fn begin_load(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        rows: RunningUnits,
    ) -> UnitTaken {
        self.remove_rows(catalogue, free, unit);
        let mut taken = UnitTaken { rows, shapes: SmallVec::new() };
        taken.intern_groups(catalogue);
        self.ranks.shift(&taken.rows, &GroupDeltas::of(&taken.rows), 1);
        taken
    }

    /// Rows of a unit from a list have taken their room.
    pub(crate) fn put_loaded(&mut self, unit: UnitId, taken: UnitTaken) {
        self.units.insert(unit, taken);
        self.recount_budgets(unit);
        self.forget_occupants();
    }

    /// Rows and assumptions of a unit are gone.
    pub(crate) fn remove(&mut self, catalogue: &mut Catalogue, free: &mut FreeRoom, unit: UnitId) {
        self.budgets.forget(unit);
        if self.remove_rows(catalogue, free, unit) {
            self.forget_occupants();
        }
        for assumed in self.assumptions.remove(unit) {
            self.release(catalogue, free, unit, assumed.shape, assumed.node, assumed.allocation);
        }
        if self.domains.is_active() {
            self.domains.remove(unit);
        }
        self.work.remove(unit);
        self.daemons.remove(unit);
    }

    /// Returns whether some row took room.
    fn remove_rows(&mut self, catalogue: &mut Catalogue, free: &mut FreeRoom, unit: UnitId) -> bool {
        let Some(old) = self.units.remove(&unit) else { return false };
        self.ranks.shift(&old.rows, &GroupDeltas::of(&old.rows), -1);
        let mut had_live = false;
        for (_, row) in old.rows.live() {
            had_live = true;
            self.release_row(catalogue, free, unit, &old.shapes, row);
        }
        had_live
    }

    /// A row gives its room back if it is live.
    // Once for each row of each commit: a call costs a tenth of following it.
    #[inline(always)]
    pub(crate) fn release_row(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        shapes: &GroupShapes,
        row: &RunningUnit,
    ) {
        if let Some(shape) = live_shape(shapes, row) {
            free.follow_row(catalogue, shape, row, -1);
            self.release(catalogue, free, unit, shape, row.node, row.allocation);
        }
    }

    /// A row as it is now: it takes room if it is live, and ends the assumption it grew from. Returns whether an assumption
    /// ended whose room the row does not take.
    // Once for each row of each commit: a call costs a tenth of following it.
    #[inline(always)]
    pub(crate) fn settle_row(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        shapes: &GroupShapes,
        ordinal: u32,
        row: &RunningUnit,
    ) -> bool {
        let assumed = match row.phase {
            Phase::Pending => {
                let past = row.incarnation.checked_sub(1);
                past.and_then(|past| self.assumptions.take(RunningUnitId::new(unit, ordinal, past)))
            }
            _ => self.assumptions.take(RunningUnitId::new(unit, ordinal, row.incarnation)),
        };
        match (assumed, live_shape(shapes, row)) {
            (Some(assumed), Some(shape))
                if (assumed.shape, assumed.node, assumed.allocation) == (shape, row.node, row.allocation) =>
            {
                free.follow_row(catalogue, shape, row, 1);
                false
            }
            (assumed, shape) => {
                if let Some(shape) = shape {
                    if assumed.is_none() {
                        free.consume_foreign(catalogue, shape, row.node, row.allocation);
                    }
                    self.shift(catalogue, free, unit, shape, row.node, row.allocation, 1);
                    free.follow_row(catalogue, shape, row, 1);
                }
                if let Some(assumed) = assumed {
                    self.release(catalogue, free, unit, assumed.shape, assumed.node, assumed.allocation);
                }
                assumed.is_some()
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
pub(crate) fn is_past(row: &RunningUnit, incarnation: u32) -> bool {
    row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending)
}
