//! A unit that the scheduler was assigned: what it is, and what is left to place of it.

use std::{cmp::Reverse, sync::Arc};

use godel_base::{
    ids::{ReplicaId, Revision, RunningUnitId, UnitId},
    time::Millis,
};
use godel_cluster::Cluster;
use godel_domain::{
    assignment::Permit,
    decision::GroupPlacement,
    demand::Pool,
    lifecycle::GangTerms,
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
    gang_progress::GangProgress,
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
    /// The binder rejected the unit.
    Backoff {
        /// When the unit is tried again.
        end: Millis,
        /// It was rejected many times in a row, and holds no credits: otherwise it would keep others from being tried.
        rests: bool,
    },
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
    /// The queue that pays.
    pub queue: QueueIdx,
    /// How the unit may be placed, less what its tries have used of that.
    pub(crate) permit: Permit,
    /// What else of the unit's record decides how it is placed.
    pub facts: PlacementFacts,
    /// How far its first binding is.
    pub gang: GangProgress,
    /// The replicas to be placed: one for each task group of the unit, and after these one for each node that keeps volumes.
    pub groups: UnitWork,
    /// Where the unit is now.
    pub state: UnitState,
    /// Decisions that the binder has not answered, ascending.
    pub decisions: DecisionIds,
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
    pub(crate) tries: Tries,
    /// A queue of the unit was full for some of its task groups: with these refusals it returns to the dispatcher once the others
    /// have been tried.
    pub full: Option<Arc<Refusals>>,
}

/// What a unit's record says of how it is placed; the same for as long as the unit is assigned.
#[derive(Clone, Debug)]
pub(crate) struct PlacementFacts {
    /// The priority class whose value may change the unit's position in its queue.
    pub class: Option<Box<str>>,
    /// The pool that pays.
    pub pool: Pool,
    /// The workflow (sub-cluster and pool) in which the unit is tried.
    pub(crate) flow: FlowIdx,
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
}

/// What the tries of a unit came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    /// Number of tries.
    pub attempts: u32,
    /// Number of rejections in a row. What is refused of decisions that were under way together is one.
    pub failures: u32,
    /// The last decision that was made before the last rejection.
    failed_up_to: u64,
    /// The unit had its turn, and there were no nodes on which to gather room.
    pub(crate) no_turn: bool,
    /// The unit preempts for one running unit at a time.
    pub one_by_one: bool,
}

impl Tries {
    /// Returns what still counts of them once the unit is assigned again.
    pub(crate) fn carry_over(self, has_same_record: bool) -> Self {
        Self { attempts: self.attempts, no_turn: self.no_turn && has_same_record, ..Self::default() }
    }

    /// Counts a rejection of a decision; `last_id` is the id of the last decision that was made.
    pub(crate) fn note_rejection(&mut self, decision_id: u64, last_id: u64) {
        if decision_id > self.failed_up_to {
            self.failures += 1;
            self.failed_up_to = last_id;
        }
    }
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
        let spec = &record.spec;
        let class = PriorityClasses::deciding(spec).filter(|class| !PriorityClasses::is_built_in(class));
        let facts = PlacementFacts {
            class: class.map(Box::from),
            pool: spec.pool,
            flow: FlowIdx::of_groups(&groups, spec.pool, &picture.placer.templates),
            active_deadline_ms: spec.active_deadline_ms,
            returns: spec.class == WorkloadClass::Stateful,
            has_volumes: spec.has_volumes(),
            leaves_after_ms: picture.leaves_after(record),
            marks: marks(&spec.namespace, &spec.labels).collect(),
        };
        Self {
            revision,
            queue_key: (Reverse(picture.classes.priority(spec)), dispatch_order, record.id),
            queue: picture.shares.queue(&spec.queue),
            permit: Permit::default(),
            facts,
            gang: GangProgress::new(GangTerms::of(record)),
            groups,
            state: UnitState::Waiting,
            decisions: DecisionIds::new(),
            wanted_again: Vec::new(),
            awaiting_hold: Vec::new(),
            is_partial: false,
            awaits: false,
            woken_from: None,
            tries: Tries::default(),
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

    /// Returns the number of replicas that hold credits, those in decisions aside.
    pub(crate) fn weight(&self) -> u64 {
        match self.state {
            UnitState::Ready | UnitState::Backoff { rests: false, .. } => self.pending() as u64,
            UnitState::Backoff { rests: true, .. } | UnitState::Parked(_) | UnitState::Waiting => 0,
        }
    }

    /// Whether the unit's first binding is still to be made, as rows are known.
    pub(crate) fn is_first(&mut self, cluster: &Cluster) -> bool {
        if let Some(rows) = cluster.rows().of(self.unit()) {
            self.gang.count_rows(rows);
        }
        self.gang.lacking() > 0
    }

    /// Returns the number of replicas that must be placed at once for the unit's first binding.
    pub(crate) fn together(&mut self, cluster: &Cluster) -> usize {
        self.is_first(cluster);
        // Should too few be pending the binder has the last word.
        (self.gang.lacking() as usize).min(self.pending())
    }

    /// Returns the replicas that are placed first, for the minima of their task groups: of each of [`Self::works`] that has some how
    /// many.
    pub(crate) fn minima(&self) -> SmallVec<[(&GroupWork, usize); 2]> {
        if !self.gang.has_group_minima() {
            return SmallVec::new();
        }
        let mut lacks: SmallVec<[(u16, usize); 4]> = self.gang.group_lacks().collect();
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

    /// Takes out of a new assignment what the binder has bound and neither the dispatcher nor this scheduler has read yet.
    pub(crate) fn remove_placed(&mut self, cluster: &Cluster) {
        let unit = self.unit();
        if !cluster.taken().assumptions.has_of(unit) {
            return;
        }
        for work in &mut self.groups {
            work.retain(|replica| {
                !cluster.taken().assumptions.has(RunningUnitId { unit, replica: *replica })
            });
        }
    }

    /// Returns the templates of the replicas for which room is held.
    pub(crate) fn held_templates(&self) -> Vec<TemplateId> {
        let of = |group: &u16| self.groups.get(usize::from(*group)).map(|work| work.template);
        self.awaiting_hold.iter().filter_map(|(group, _)| of(group)).collect()
    }
}
