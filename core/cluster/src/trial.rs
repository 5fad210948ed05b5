//! Trials: room that is taken and given up on probation, and is as it was before if nothing comes of it.
//!
//! The journal of a cluster has two stacks: the assumptions that trials made, and what trials lifted, each with the number of
//! assumptions before it. A place in both is a [`TrialMark`]. To take back means to pop both, the latest first.

use godel_base::ids::{HoldId, NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_domain::{allocation::Allocation, hold::Borrower};

use super::{Cluster, assumptions::Assumed, domains::OpenedNodes, movers, shapes::ShapeId};

/// What trials have changed and may take back, until what was tried is decided or dropped. It keeps its memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrialJournal {
    assumed: Vec<RunningUnitId>,
    /// Assumptions that others took the place of, with the number of assumptions before those. Few trials have any.
    replaced: Vec<(usize, Assumed)>,
    lifted: Vec<LiftedAt>,
    /// The holds of [`Lifted::Holds`], one after another.
    hold_ids: Vec<HoldId>,
}

/// What a trial takes no account of.
#[derive(Clone, Copy, Debug)]
enum Lifted {
    /// So many holds.
    Holds(usize),
    /// What a unit may enter of what others gather.
    Gathered,
    /// The target of a replica that moves.
    Target,
    /// A running unit on its node, for terms.
    Member(UnitId, NodeId),
}

#[derive(Clone, Copy, Debug)]
struct LiftedAt {
    n_assumed: usize,
    lifted: Lifted,
}

/// How much had been tried at some time. Marks that were made earlier are smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrialMark {
    n_assumed: usize,
    n_lifted: usize,
}

impl TrialJournal {
    /// What was assumed is decided, or taken back.
    #[inline]
    pub(super) fn forget_assumed(&mut self) {
        self.assumed.clear();
        self.replaced.clear();
    }
}

/// A trial on a cluster. What it assumes and lifts is taken back when it is dropped, the latest first.
#[derive(Debug)]
pub struct Trial<'a> {
    cluster: &'a mut Cluster,
    mark: TrialMark,
}

impl std::ops::Deref for Trial<'_> {
    type Target = Cluster;

    #[inline]
    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl std::ops::DerefMut for Trial<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Cluster {
        self.cluster
    }
}

impl Drop for Trial<'_> {
    #[inline]
    fn drop(&mut self) {
        self.roll_back();
    }
}

impl Trial<'_> {
    /// Takes room: see [`Cluster::try_out`].
    #[inline]
    pub fn assume(&mut self, id: RunningUnitId, shape: ShapeId, node: NodeId, allocation: Allocation) {
        self.cluster.try_out(id, shape, node, allocation);
    }

    /// Takes no account of some holds, as if they were not there: a unit looks for room beside what is held for it, or in place of what
    /// is held for others of lower rank. Slots stay.
    pub fn lift_holds(&mut self, ids: &[HoldId]) {
        let (holds, on) = self.cluster.holding();
        holds.lift(on, ids);
        self.cluster.journal.hold_ids.extend_from_slice(ids);
        self.push(Lifted::Holds(ids.len()));
    }

    /// Takes no account of what a unit may enter of what others gather, on one node or on all. False, and without effect, if there is
    /// nothing of the kind.
    pub fn lift_gathered(&mut self, borrower: &Borrower, only: Option<NodeId>) -> bool {
        let Cluster { free, catalogue, .. } = &mut *self.cluster;
        let is_lifted = free.lift_admitting(catalogue, borrower, only);
        if is_lifted {
            self.push(Lifted::Gathered);
        }
        is_lifted
    }

    /// Counts the target of a replica that moves no longer, for terms that keep units together or apart: a place is looked for that
    /// replica itself. False, and without effect, if it has none. What is held for it stays held. One target at a time is lifted.
    #[inline]
    pub fn lift_target(&mut self, id: RunningUnitId) -> bool {
        let Cluster { taken, holds, .. } = &mut *self.cluster;
        if taken.movers.is_empty() {
            return false;
        }
        let is_lifted = movers::lift(taken, holds, id.unit, id.replica.ordinal);
        self.cluster.touch_opened();
        if is_lifted {
            self.push(Lifted::Target);
        }
        is_lifted
    }

    /// Counts one running unit of a unit as not on its node, for terms that keep units together or apart. Its room stays taken.
    pub fn lift_member(&mut self, unit: UnitId, node: NodeId) {
        let domains = &mut self.cluster.taken.domains;
        if domains.is_active() {
            domains.shift(unit, node, -1);
            self.push(Lifted::Member(unit, node));
        }
    }

    fn push(&mut self, lifted: Lifted) {
        let journal = &mut self.cluster.journal;
        journal.lifted.push(LiftedAt { n_assumed: journal.assumed.len(), lifted });
    }

    /// Leaves the trial open, to be taken up by [`Cluster::resume`].
    #[inline]
    pub fn pause(self) -> TrialMark {
        let mark = self.mark;
        std::mem::forget(self);
        mark
    }

    /// Ends a part of a trial: what it lifted counts again, and what it assumed belongs to the trial around it.
    #[inline]
    pub fn join(mut self) {
        if self.cluster.journal.lifted.len() > self.mark.n_lifted {
            self.put_down();
        }
        std::mem::forget(self);
    }

    /// Takes back everything since the mark, the latest first; assumptions between two lifts in the order in which they were made.
    fn roll_back(&mut self) {
        loop {
            let lifted = &self.cluster.journal.lifted;
            let top = lifted.get(self.mark.n_lifted..).and_then(<[_]>::last).copied();
            self.forget_assumed(top.map_or(0, |top| top.n_assumed).max(self.mark.n_assumed));
            let Some(LiftedAt { lifted, .. }) = top else { break };
            self.cluster.journal.lifted.pop();
            self.put_down_one(lifted);
        }
        if self.cluster.journal.assumed.is_empty() && self.cluster.taken.domains.opened_by_trial.is_any() {
            self.cluster.taken.domains.opened_by_trial = OpenedNodes::default();
        }
    }

    /// Takes back the assumptions from a position on.
    fn forget_assumed(&mut self, from: usize) {
        let cluster = &mut *self.cluster;
        if cluster.journal.replaced.last().is_some_and(|(at, _)| *at >= from) {
            self.forget_one_by_one(from);
            return;
        }
        // In this order the columns of assumptions guess right.
        for at in from..cluster.journal.assumed.len() {
            cluster.undo(cluster.journal.assumed[at]);
        }
        cluster.journal.assumed.truncate(from);
    }

    /// Like [`Self::forget_assumed`], where assumptions took the place of others.
    #[cold]
    fn forget_one_by_one(&mut self, from: usize) {
        let cluster = &mut *self.cluster;
        while cluster.journal.assumed.len() > from
            && let Some(id) = cluster.journal.assumed.pop()
        {
            cluster.undo(id);
            let (at, RunningUnitId { unit, replica }) = (cluster.journal.assumed.len(), id);
            if let Some((_, replaced)) = cluster.journal.replaced.pop_if(|(known, _)| *known == at) {
                let Cluster { taken, catalogue, free, .. } = &mut *cluster;
                taken.assume(catalogue, free, unit, replica.ordinal, replaced, drop);
                cluster.settle_mover(unit, replica.ordinal);
                cluster.touch_opened();
            }
        }
    }

    /// What was lifted since the mark counts again.
    fn put_down(&mut self) {
        while self.cluster.journal.lifted.len() > self.mark.n_lifted
            && let Some(LiftedAt { lifted, .. }) = self.cluster.journal.lifted.pop()
        {
            self.put_down_one(lifted);
        }
    }

    fn put_down_one(&mut self, lifted: Lifted) {
        match lifted {
            Lifted::Holds(n) => {
                let mut ids = std::mem::take(&mut self.cluster.journal.hold_ids);
                let from = ids.len().saturating_sub(n);
                let (holds, on) = self.cluster.holding();
                // Those that gather take what is free now, the others all that they did.
                holds.settle_lifted(on, &ids[from..]);
                ids.truncate(from);
                self.cluster.journal.hold_ids = ids;
            }
            Lifted::Gathered => self.cluster.free.settle_lifted(&self.cluster.catalogue),
            Lifted::Target => {
                // Unless its replica has a place by now.
                movers::put_down(&mut self.cluster.taken, &self.cluster.holds);
                self.cluster.touch_opened();
            }
            Lifted::Member(unit, node) => self.cluster.taken.domains.shift(unit, node, 1),
        }
    }
}

/// Trials.
impl Cluster {
    /// Begins a trial, within those that are open.
    #[inline]
    pub fn trial(&mut self) -> Trial<'_> {
        let mark = self.trial_mark();
        self.resume(mark)
    }

    /// Takes up a trial again that was left open; those that were begun within it are part of it.
    #[inline]
    pub fn resume(&mut self, mark: TrialMark) -> Trial<'_> {
        Trial { cluster: self, mark }
    }

    /// Returns how much is tried at present.
    #[inline]
    pub fn trial_mark(&self) -> TrialMark {
        TrialMark { n_assumed: self.journal.assumed.len(), n_lifted: self.journal.lifted.len() }
    }

    /// Lifts the target of a replica that moves, as [`Trial::lift_target`] does, until the trial of this mark is joined; `None`: it has
    /// none.
    #[inline]
    pub fn lift_target(&mut self, id: RunningUnitId) -> Option<TrialMark> {
        if self.taken.movers.is_empty() {
            return None;
        }
        let mut trial = self.trial();
        let is_lifted = trial.lift_target(id);
        let mark = trial.pause();
        is_lifted.then_some(mark)
    }

    /// Takes back everything that was tried since a mark, the latest first.
    #[inline]
    pub fn take_back(&mut self, mark: TrialMark) {
        drop(self.resume(mark));
    }

    /// Takes room in the trials that are open. An assumption of the same running unit is replaced, and there again if this one is taken
    /// back. What others gain by it they gain at [`Self::keep_trial`], or not at all.
    pub fn try_out(&mut self, id: RunningUnitId, shape: ShapeId, node: NodeId, allocation: Allocation) {
        let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = id;
        let assumed = Assumed { incarnation, shape, node, allocation };
        let Self { taken, catalogue, free, journal, .. } = self;
        let note_replaced = |replaced| journal.replaced.push((journal.assumed.len(), replaced));
        taken.assume(catalogue, free, unit, ordinal, assumed, note_replaced);
        journal.assumed.push(id);
        self.settle_mover(unit, ordinal);
        if self.taken.domains.opened.is_any() {
            self.note_opened_by_trial();
        }
    }

    /// What a trial opened is gained when it is kept.
    #[cold]
    fn note_opened_by_trial(&mut self) {
        let domains = &mut self.taken.domains;
        domains.opened_by_trial.join(&domains.opened);
        self.touch_opened();
    }

    /// All that was tried out is decided. Nothing may be lifted any more.
    #[inline]
    pub fn keep_trial(&mut self) {
        debug_assert!(
            self.journal.lifted.is_empty(),
            "what was lifted counts again before anything is decided"
        );
        self.journal.forget_assumed();
        if self.taken.domains.opened_by_trial.is_any() {
            let opened = std::mem::take(&mut self.taken.domains.opened_by_trial);
            let opened = self.taken.domains.nodes_of_opened(opened, self.free.len());
            self.free.note_gains(&self.catalogue, opened);
        }
    }

    /// Takes back one assumption: nobody else was told of it, so nothing was gained.
    fn undo(&mut self, id: RunningUnitId) {
        if self.taken.undo(&mut self.catalogue, &mut self.free, id) {
            self.leave_slot(id.unit, id.replica.ordinal);
            self.settle_mover(id.unit, id.replica.ordinal);
            self.touch_opened();
        }
    }
}
