//! A unit that the scheduler was assigned: what it is, and what is left to place of it.

use std::{cmp::Reverse, sync::Arc};

use godel_base::{
    ids::{ReplicaId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    assignment::Permit,
    decision::GroupPlacement,
    demand::Pool,
    lifecycle::{GangCount, GangTerms},
    priority_classes::PriorityClasses,
    refusals::Refusals,
    reservation_spec::marks,
    unit::{UnitRecord, WorkloadClass},
};
use godel_placement::place::templates::TemplateId;
use godel_queueing::QueueIdx;
use smallvec::SmallVec;

use super::{
    flows::FlowIdx,
    park::{QueueKey, WaitKey},
    picture::Picture,
};

/// The replicas of a unit that wait for a node, by task group.
pub(crate) type UnitWork = SmallVec<[GroupWork; 1]>;

/// Ids of decisions that the binder has not answered, ascending.
pub(crate) type DecisionIds = SmallVec<[u64; 2]>;

/// Where an assigned unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnitState {
    /// The unit is in the ready queue and will be tried.
    Ready,
    /// The binder rejected the unit; it is tried again at this time.
    Backoff(Millis),
    /// The unit found no room, and waits in the group of parked units with this key.
    Parked(WaitKey),
    /// Every replica is decided, or a newer assignment is expected from the dispatcher.
    Waiting,
}

/// A unit that the scheduler was assigned.
#[derive(Clone, Debug)]
pub(crate) struct AssignedUnit {
    /// Revision of the unit's record on which decisions rest.
    pub revision: Revision,
    /// Position of the unit in the ready queue and among parked units.
    pub queue_key: QueueKey,
    /// The priority class whose value may change its position.
    pub class: Option<Box<str>>,
    /// The unit's minimum size and what happens below it.
    pub terms: GangTerms,
    /// The pool that pays.
    pub pool: Pool,
    /// The workflow (sub-cluster and pool) in which the unit is tried.
    pub(crate) flow: FlowIdx,
    /// The queue that pays.
    pub queue: QueueIdx,
    /// How the unit may be placed, less what its tries have used of that.
    pub(crate) permit: Permit,
    /// The gang had its turn, and there were no nodes on which to gather room.
    pub(crate) no_turn: bool,
    /// Active time after which the unit fails, milliseconds; 0: never.
    pub active_deadline_ms: u64,
    /// A replica goes back to the node on which it ran last, if that still holds it.
    pub(crate) returns: bool,
    /// A replica goes back to the node that keeps its volumes, and waits for that.
    pub(crate) has_volumes: bool,
    /// Run time after which its running units may be preempted, milliseconds; `None`: never.
    pub leaves_after_ms: Option<u64>,
    /// Hashes of the unit's labels, which reservations select.
    pub marks: SmallVec<[u64; 2]>,
    /// Known number of bound running units, for the minimum of the first binding.
    pub bound: u32,
    /// The same for each task group with a minimum of its own, in the order of [`GangTerms::groups`].
    pub(crate) of_groups: Vec<GroupProgress>,
    /// The replicas to be placed: one for each task group of the unit, and after these one for each node that keeps volumes.
    pub groups: UnitWork,
    /// Where the unit is now.
    pub state: UnitState,
    /// Decisions that the binder has not answered, ascending.
    pub decisions: DecisionIds,
    /// Number of running units in these decisions.
    pub in_flight: u32,
    /// Replicas in decisions older than the assignment, with their present task group: wanted again if those fail.
    pub(crate) wanted_again: Vec<(u16, ReplicaId)>,
    /// Replicas for which room is held: they are placed elsewhere as soon as they fit, and wanted again if the hold ends
    /// without a binding.
    pub(crate) awaiting_hold: Vec<(u16, ReplicaId)>,
    /// What no room is held for is not assigned, or was let go, until the first binding is made: the dispatcher assigns it then,
    /// or when the hold ends.
    pub(crate) is_partial: bool,
    /// The unit has changed: a newer assignment or a revocation is due.
    pub(crate) awaits: bool,
    /// The group of parked units from which the unit was woken to be tried for all of them.
    pub(crate) woken_from: Option<WaitKey>,
    /// Number of tries.
    pub attempts: u32,
    /// Number of rejections in a row. What is refused of decisions that were under way together is one.
    pub failures: u32,
    /// The last decision that was made before the last rejection.
    pub(crate) failed_up_to: u64,
    /// The unit is in a long backoff after many failures, and holds no credits in the meantime.
    pub rests: bool,
    /// The unit preempts for one running unit at a time.
    pub one_by_one: bool,
    /// A queue of the unit was full for some of its task groups: with these refusals it returns to the dispatcher once the others
    /// have been tried.
    pub full: Option<Arc<Refusals>>,
}

/// How far the first binding of a task group with a minimum of its own is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupProgress {
    /// Known number of bound running units.
    pub(crate) bound: usize,
    /// Number of running units in decisions that the binder has not answered.
    pub(crate) in_flight: usize,
}

/// The replicas of one task group that wait for a node, but for those whose volumes a node keeps: the replicas of one group and one such
/// node stand by themselves.
#[derive(Clone, Debug)]
pub(crate) struct GroupWork {
    /// Index of the task group.
    pub group: u16,
    pub template: TemplateId,
    /// Ascending from index `begin`; those before it have been decided.
    wanted: Vec<ReplicaId>,
    begin: usize,
}

impl GroupWork {
    pub(crate) fn new(group: u16, template: TemplateId) -> Self {
        Self { group, template, wanted: Vec::new(), begin: 0 }
    }

    pub(crate) fn pending(&self) -> &[ReplicaId] {
        &self.wanted[self.begin..]
    }

    /// Takes out the first `n` replicas.
    pub(crate) fn advance(&mut self, n: usize) {
        self.begin += n;
        if self.begin == self.wanted.len() {
            self.wanted.clear();
            self.begin = 0;
        }
    }

    /// Adds replicas in any order. Of an ordinal that is there already, the later incarnation stays.
    pub(crate) fn add(&mut self, more: &[ReplicaId]) {
        self.wanted.drain(..self.begin);
        self.begin = 0;
        let is_after = self.wanted.last().is_none_or(|last| more.first().is_none_or(|first| last < first));
        self.wanted.extend_from_slice(more);
        if !(is_after && more.is_sorted_by(|a, b| a.ordinal < b.ordinal)) {
            self.wanted.sort_unstable();
            // Of one ordinal the later incarnation stands last.
            let mut kept: Vec<ReplicaId> = Vec::with_capacity(self.wanted.len());
            for wanted in &self.wanted {
                match kept.last_mut() {
                    Some(last) if last.ordinal == wanted.ordinal => *last = *wanted,
                    _ => kept.push(*wanted),
                }
            }
            self.wanted = kept;
        }
    }

    /// Takes out every replica.
    pub(crate) fn clear(&mut self) {
        self.wanted.clear();
        self.begin = 0;
    }

    /// Keeps the replicas that satisfy `keep`. Returns whether some were removed.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&ReplicaId) -> bool) -> bool {
        self.wanted.drain(..self.begin);
        self.begin = 0;
        let before = self.wanted.len();
        self.wanted.retain(keep);
        self.wanted.len() < before
    }
}

impl AssignedUnit {
    /// Returns a unit of a record with `groups` to be placed and no decision yet. Of units of equal priority the one with the
    /// lower `dispatch_order` is tried first.
    pub(crate) fn new(
        picture: &mut Picture,
        record: &UnitRecord,
        revision: Revision,
        dispatch_order: u64,
        groups: UnitWork,
    ) -> Self {
        let class =
            PriorityClasses::deciding(&record.spec).filter(|class| !PriorityClasses::is_built_in(class));
        let terms = GangTerms::of(record);
        Self {
            revision,
            queue_key: (Reverse(picture.classes.priority(&record.spec)), dispatch_order, record.id),
            class: class.map(Box::from),
            of_groups: vec![GroupProgress::default(); terms.groups().len()],
            terms,
            pool: record.spec.pool,
            flow: picture.flow_of(&groups, record.spec.pool),
            queue: picture.shares.queue(&record.spec.queue),
            permit: Permit::default(),
            no_turn: false,
            active_deadline_ms: record.spec.active_deadline_ms,
            returns: record.spec.class == WorkloadClass::Stateful,
            has_volumes: record.spec.has_volumes(),
            leaves_after_ms: picture.leaves_after(record),
            marks: marks(&record.spec.namespace, &record.spec.labels).collect(),
            bound: 0,
            groups,
            state: UnitState::Waiting,
            decisions: DecisionIds::new(),
            in_flight: 0,
            wanted_again: Vec::new(),
            awaiting_hold: Vec::new(),
            is_partial: false,
            awaits: false,
            woken_from: None,
            attempts: 0,
            failures: 0,
            failed_up_to: 0,
            rests: false,
            one_by_one: false,
            full: None,
        }
    }

    pub(crate) fn unit(&self) -> UnitId {
        self.queue_key.2
    }

    /// Returns the priority; a higher one is tried first.
    pub(crate) fn priority(&self) -> i32 {
        self.queue_key.0.0
    }

    pub(crate) fn pending(&self) -> usize {
        self.groups.iter().map(|group| group.pending().len()).sum()
    }

    /// Whether every replica that the dispatcher handed out is bound.
    pub(crate) fn is_done(&self) -> bool {
        self.decisions.is_empty() && !self.awaits && self.pending() == 0 && self.awaiting_hold.is_empty()
    }

    /// Whether a replica is to be placed, or to be placed elsewhere than on the room that is held for it.
    pub(crate) fn has_work(&self) -> bool {
        self.pending() > 0 || !self.awaiting_hold.is_empty()
    }

    /// Returns the number of replicas that hold credits, those in decisions aside. A unit that is rejected again and again,
    /// holds none during its backoff; otherwise it would keep others from being tried.
    pub(crate) fn weight(&self) -> u64 {
        match self.state {
            UnitState::Backoff(_) if self.rests => 0,
            UnitState::Ready | UnitState::Backoff(_) => self.pending() as u64,
            UnitState::Parked(_) | UnitState::Waiting => 0,
        }
    }

    /// Returns the number of replicas that must be placed together before any of them is bound.
    pub(crate) fn together(&self) -> u32 {
        let n = self.terms.min_member.saturating_sub(self.bound.saturating_add(self.in_flight));
        if self.of_groups.is_empty() {
            return n;
        }
        let of_groups: usize = self.group_lacks().map(|(_, n)| n).sum();
        n.max(u32::try_from(of_groups).unwrap_or(u32::MAX))
    }

    /// Returns the task groups that lack something of a minimum of their own, and how many replicas each of them lacks.
    pub(crate) fn group_lacks(&self) -> impl Iterator<Item = (u16, usize)> {
        self.terms.groups().iter().zip(&self.of_groups).filter_map(|(minimum, progress)| {
            let n = (minimum.min_member as usize).saturating_sub(progress.bound + progress.in_flight);
            (n > 0).then_some((minimum.group, n))
        })
    }

    /// Notes what counts towards the minima, as the binder counts it.
    pub(crate) fn note_counted(&mut self, counted: &GangCount) {
        self.bound = self.bound.max(u32::try_from(counted.total).unwrap_or(u32::MAX));
        for (progress, n) in self.of_groups.iter_mut().zip(counted.of_groups()) {
            progress.bound = progress.bound.max(n);
        }
    }

    /// The same of a gang of which nobody is left, whatever counted before.
    pub(crate) fn set_counted(&mut self, counted: &GangCount) {
        self.bound = 0;
        self.of_groups.iter_mut().for_each(|progress| progress.bound = 0);
        self.note_counted(counted);
    }

    /// Changes how far a task group is, if it has a minimum of its own.
    pub(crate) fn change_progress(&mut self, group: u16, change: impl FnOnce(&mut GroupProgress)) {
        if let Some(at) = self.terms.groups().iter().position(|minimum| minimum.group == group)
            && let Some(progress) = self.of_groups.get_mut(at)
        {
            change(progress);
        }
    }

    /// Returns the replicas that are placed first, for the minima of their task groups: of each of [`Self::works`] that has some how
    /// many.
    pub(crate) fn minima(&self) -> SmallVec<[(&GroupWork, usize); 2]> {
        if self.of_groups.is_empty() {
            return SmallVec::new();
        }
        let mut lacks: SmallVec<[(u16, usize); 4]> = self.group_lacks().collect();
        let least = self.works().filter_map(|work| {
            let (_, left) = lacks.iter_mut().find(|(group, _)| *group == work.group)?;
            let n = work.pending().len().min(*left);
            *left -= n;
            (n > 0).then_some((work, n))
        });
        least.collect()
    }

    /// Returns the next `n` replicas, of each of [`Self::works`] how many: what task groups lack of their own minima, then others in their
    /// order.
    pub(crate) fn first(&self, n: usize) -> SmallVec<[(&GroupWork, usize); 2]> {
        let minima = self.minima();
        let mut left = n.saturating_sub(minima.iter().map(|(_, least)| least).sum());
        let shares = self.works().map(|work| {
            let least = minima.iter().find(|(known, _)| std::ptr::eq(*known, work)).map_or(0, |(_, n)| *n);
            let more = (work.pending().len() - least).min(left);
            left -= more;
            (work, least + more)
        });
        shares.collect()
    }

    /// Returns the task groups that have replicas to place.
    pub(crate) fn pending_groups(&self) -> impl Iterator<Item = &GroupWork> {
        self.groups.iter().filter(|group| !group.pending().is_empty())
    }

    /// Returns the replicas to be placed in the order in which they are: first those that can have one node only.
    pub(crate) fn works(&self) -> impl Iterator<Item = &GroupWork> {
        let of_nodes = (0..).zip(&self.groups).position(|(idx, work)| usize::from(work.group) != idx);
        let (groups, of_nodes) = self.groups.split_at(of_nodes.unwrap_or(self.groups.len()));
        of_nodes.iter().chain(groups)
    }

    /// Takes out replicas that have been placed.
    pub(crate) fn advance(&mut self, placement: &GroupPlacement) {
        let n = placement.ordinals.len();
        let is_first = |work: &GroupWork| {
            let pending = work.pending().get(..n);
            work.group == placement.group
                && pending.is_some_and(|first| first.iter().copied().eq(placement.replicas()))
        };
        if let Some(work) = self.groups.iter_mut().find(|work| is_first(work)) {
            work.advance(n);
        }
    }

    /// Returns the templates of the replicas for which room is held.
    pub(crate) fn held_templates(&self) -> Vec<TemplateId> {
        let of = |group: &u16| self.groups.get(usize::from(*group)).map(|work| work.template);
        self.awaiting_hold.iter().filter_map(|(group, _)| of(group)).collect()
    }
}
