//! What units take: committed rows, and assumptions until they are committed or forgotten.
//!
//! A committed bind takes the place of its assumption. Rows may come before their nodes do.

use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    allocation::Allocation,
    demand::Pool,
    hold::{Hold, MoverShare},
    running_units::{Compaction, Phase, RunChange, RunningUnit, RunningUnits, UnitTerms},
    work_kind::WorkKind,
};
use godel_rules::budget::{Budgets, UnitIdentity};
use smallvec::SmallVec;

use super::{
    assumptions::{Assumed, Assumptions},
    best_effort::BestEffort,
    catalogue::Catalogue,
    daemons::{DaemonIdx, DaemonPlaces},
    domains::{AffinityTerms, Domains, SegmentRule, StandingTerms, UnitPlaces},
    free::FreeRoom,
    free_view::FreeView,
    group_deltas::GroupDeltas,
    movers::{self, Movers},
    occupants::Occupants,
    reserve::{self, Taking},
    shapes::ShapeId,
    spread::ReplicaCounts,
    unfit::Unfit,
    unit_rows::{GroupShapes, UnitRows, UnitTaken, shape_of},
    work_kinds::WorkKinds,
};

/// Units with their rows, and what is assumed of them.
#[derive(Clone, Debug, Default)]
pub struct TakenRoom {
    /// Committed rows.
    pub rows: UnitRows,
    /// What is assumed beside them.
    pub assumptions: Assumptions,
    /// Priorities at which somebody may be preempted.
    pub ranks: Ranks,
    /// Replicas of one unit by node.
    pub counts: ReplicaCounts,
    /// Where replicas of daemons are.
    pub daemons: DaemonPlaces,
    /// Running units by domain.
    pub domains: Domains,
    pub(super) movers: Movers,
    /// Running units by kind of work.
    pub work: WorkKinds,
    pub(super) budgets: Budgets,
    /// Who is on which node; there from the first search for victims on.
    pub occupants: Occupants,
}

/// How many live running units may be preempted, by priority: there are few priorities.
#[derive(Clone, Debug, Default)]
pub struct Ranks(SmallVec<[(i32, i64); 4]>);

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

    /// Whether some running unit of lower priority may be preempted, however it stands otherwise.
    pub fn has_below(&self, priority: i32) -> bool {
        self.0.iter().any(|(known, count)| *known < priority && *count > 0)
    }

    /// Whether some running unit may be preempted, whatever its priority.
    pub fn has_preemptible(&self) -> bool {
        self.0.iter().any(|(_, count)| *count > 0)
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

    /// Keeps who is on which node from now on, if that is not kept yet. `O(running units)` the first time.
    pub fn keep_occupants(&mut self) {
        self.occupants.keep(&self.rows);
    }

    /// Running units of this unit are counted by node from now on. `O(running units of both)` if another one was.
    pub(crate) fn count_unit(&mut self, unit: UnitId, n_nodes: usize) {
        if self.counts.is_of(unit, n_nodes) {
            return;
        }
        self.counts.begin(unit, n_nodes, self.nodes_of(unit).into_iter());
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

    /// Follows where the replicas of a daemon are from now on, so that none is placed beside another one. `O(its running units + nodes)`
    /// the first time, then `O(1)`.
    pub fn put_daemon(&mut self, unit: UnitId) -> DaemonIdx {
        let mut daemons = std::mem::take(&mut self.daemons);
        let idx = daemons.put(unit, || self.nodes_of(unit));
        self.daemons = daemons;
        idx
    }

    /// Takes what a unit says of where its replicas go in relation to running units.
    pub(super) fn put_terms(
        &mut self,
        unit: UnitId,
        identity: &UnitIdentity,
        terms: &AffinityTerms<'_>,
        standing: &[StandingTerms],
        known: FreeView<'_>,
    ) -> bool {
        let mut domains = std::mem::take(&mut self.domains);
        let asks_all = domains.put_terms(unit, identity, terms, standing, known, |unit| self.places_of(unit));
        self.domains = domains;
        asks_all
    }

    /// Returns the nodes of a unit's running units, assumed or there.
    pub(super) fn nodes_of(&self, unit: UnitId) -> Vec<NodeId> {
        let assumed = self.assumptions.of(unit).map(|assumed| assumed.node);
        self.rows.live(unit).map(|(_, row)| row.node).chain(assumed).collect()
    }

    /// Returns where terms count the replicas of a unit, those that move included.
    pub(super) fn places_of(&self, unit: UnitId) -> UnitPlaces {
        let mut places = UnitPlaces { all: self.nodes_of(unit), leaving: Vec::new() };
        self.movers.add_places(unit, &mut places);
        places
    }

    /// Takes all that is taken of best-effort room, which has just begun to be kept.
    pub(crate) fn begin_best_effort(&self, catalogue: &Catalogue, n_nodes: usize, kept: &mut BestEffort) {
        for taken in self.rows.with_shapes() {
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

/// Where the replicas of units are.
impl TakenRoom {
    /// Returns the node of the first of some replicas that has one, assumed or there; of one that moves its target.
    pub fn node_of_any(&self, unit: UnitId, mut ordinals: impl Iterator<Item = u32>) -> Option<NodeId> {
        let rows = self.rows.of(unit);
        let movers = &self.movers;
        ordinals.find_map(|ordinal| {
            let mover = if movers.is_empty() { None } else { movers.get(unit, ordinal) };
            let stays = mover.is_none_or(|mover| !mover.leaves());
            let row = rows.map(|rows| rows.row(ordinal)).filter(|row| row.phase.is_live() && stays);
            let assumed = || Some(self.assumptions.get(unit, ordinal)?.node);
            row.map(|row| row.node).or_else(assumed).or_else(|| mover?.comes())
        })
    }

    /// Whether some replica of a unit runs and stays, or is about to run where it moves to.
    pub fn is_somewhere(&self, unit: UnitId) -> bool {
        let movers = &self.movers;
        if movers.is_empty() {
            return self.rows.live(unit).next().is_some();
        }
        let stays = |ordinal| movers.get(unit, ordinal).is_none_or(|mover| !mover.leaves());
        movers.targets(unit).next().is_some() || self.rows.live(unit).any(|(ordinal, _)| stays(ordinal))
    }

    /// Whether a replica of a unit may go to a node as its segment goes. A task group that has to be in one domain is a segment.
    ///
    /// # Errors
    /// The node is in no domain, or another replica of the segment is in another one.
    pub fn fits_segment(
        &self,
        unit: UnitId,
        rule: &SegmentRule,
        ordinal: u32,
        node: NodeId,
    ) -> Result<(), Unfit> {
        let domains = &self.domains;
        if !domains.is_one_segment(rule, node.idx(), node.idx()) {
            let reason = "in no domain that a segment of the unit may be in".to_owned();
            return Err(Unfit::UnitAffinity { reason });
        }
        let others = rule.ordinals(rule.of(ordinal)).filter(|other| *other != ordinal);
        match self.node_of_any(unit, others) {
            Some(other) if !domains.is_one_segment(rule, other.idx(), node.idx()) => {
                let reason = "another replica of the segment is in another domain".to_owned();
                Err(Unfit::UnitAffinity { reason })
            }
            _ => Ok(()),
        }
    }

    /// Returns what a movement's hold counts for in the queue of its unit, beside what runs of the unit and what is assumed of it.
    pub fn mover_share(&self, hold: &Hold) -> MoverShare {
        movers::share(self, hold)
    }
}

/// What takes room before it is committed.
impl TakenRoom {
    /// Takes room for a running unit; nothing happens when a row of this or a later incarnation was bound already. `note_replaced`
    /// hears of the assumption of the same running unit that this one replaces.
    #[inline]
    pub(crate) fn assume(
        &mut self,
        catalogue: &mut Catalogue,
        free: &mut FreeRoom,
        unit: UnitId,
        ordinal: u32,
        assumed: Assumed,
        note_replaced: impl FnOnce(Assumed),
    ) {
        let row = self.rows.of(unit).map(|rows| rows.row(ordinal)).unwrap_or_default();
        if is_past(&row, assumed.incarnation) {
            return;
        }
        let old = self.assumptions.insert(unit, ordinal, assumed);
        self.shift(catalogue, free, unit, assumed.shape, assumed.node, assumed.allocation, 1);
        if let Some(old) = old {
            self.release(catalogue, free, unit, old.shape, old.node, old.allocation);
            note_replaced(old);
        }
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
        let mut taken = std::mem::take(self.rows.entry(unit));
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
        *self.rows.entry(unit) = taken;
        self.recount_budgets(unit);
    }

    /// What is bound of a unit stands by other terms. Who is on which node is learnt again by the next search for victims.
    pub(crate) fn change_terms(&mut self, unit: UnitId, terms: &UnitTerms) {
        let Some(taken) = self.rows.known(unit) else { return };
        let live = GroupDeltas::of(&taken.rows);
        self.ranks.shift(&taken.rows, &live, -1);
        taken.rows.set_terms(terms);
        self.ranks.shift(&taken.rows, &live, 1);
        self.occupants.forget();
    }

    /// Rows of running units that have ended go, and what the task groups took of which none is left.
    pub(crate) fn compact(&mut self, unit: UnitId, compaction: &Compaction, revision: Revision) {
        let Some(taken) = self.rows.known(unit) else { return };
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
        *self.rows.entry(unit) = taken;
        self.recount_budgets(unit);
        self.occupants.forget();
    }

    /// Rows and assumptions of a unit are gone.
    pub(crate) fn remove(&mut self, catalogue: &mut Catalogue, free: &mut FreeRoom, unit: UnitId) {
        self.budgets.forget(unit);
        if self.remove_rows(catalogue, free, unit) {
            self.occupants.forget();
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
        let Some(old) = self.rows.remove(unit) else { return false };
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

/// The shape of a row that takes room.
fn live_shape(shapes: &GroupShapes, row: &RunningUnit) -> Option<ShapeId> {
    row.phase.is_live().then(|| shape_of(shapes, row)).flatten()
}

/// A running unit of this incarnation cannot become bound any more.
pub(crate) fn is_past(row: &RunningUnit, incarnation: u32) -> bool {
    row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending)
}
