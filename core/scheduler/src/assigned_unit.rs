//! A unit that the scheduler was assigned: what it is, and what is left to place of it.

use std::{cmp::Reverse, sync::Arc};

use godel_domain::{
    change::NodeScope,
    demand::Pool,
    ids::{ReplicaId, Revision, UnitId},
    lifecycle::GangTerms,
    priority_classes::PriorityClasses,
    refusals::Refusals,
    reservation_spec::marks,
    time::Millis,
    unit::UnitRecord,
};
use godel_placement::place::templates::TemplateId;
use godel_queueing::QueueIdx;
use smallvec::SmallVec;

use super::{
    flows::FlowIdx,
    park::{QueueKey, WaitKey},
    picture::Picture,
};

/// What is to be placed of a unit, by task group.
pub(crate) type UnitWork = SmallVec<[GroupWork; 1]>;

/// Decisions without an outcome, ascending.
pub(crate) type DecisionIds = SmallVec<[u64; 2]>;

/// Where an assigned unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnitState {
    /// In the ready queue.
    Ready,
    /// Waits after rejections.
    Backoff(Millis),
    /// In a group of parked units.
    Parked(WaitKey),
    /// Everything pending is decided, or a newer assignment is due.
    Waiting,
}

/// A unit that the scheduler was assigned.
#[derive(Clone, Debug)]
pub(crate) struct AssignedUnit {
    pub revision: Revision,
    /// Its position in the ready queue and among parked units.
    pub queue_key: QueueKey,
    /// The priority class whose value may change its position.
    pub class: Option<Box<str>>,
    pub terms: GangTerms,
    pub pool: Pool,
    pub(crate) flow: FlowIdx,
    pub queue: QueueIdx,
    pub scope: NodeScope,
    /// A queue of it is at a maximum: others there leave first.
    pub at_maximum: bool,
    /// Should it find no place its room is gathered.
    pub(crate) has_turn: bool,
    /// The dispatcher says that there is room for it: it is tried although others of its need wait.
    pub is_called: bool,
    /// It had its turn, and there were no nodes to gather room on.
    pub(crate) no_turn: bool,
    pub active_deadline_ms: u64,
    /// It may be preempted once it has run this long, milliseconds.
    pub leaves_after_ms: Option<u64>,
    /// Its labels, for reservations.
    pub marks: SmallVec<[u64; 2]>,
    /// Running units bound as far as is known, for the first binding.
    pub bound: u32,
    pub groups: UnitWork,
    pub state: UnitState,
    /// Decisions without an outcome, ascending.
    pub decisions: DecisionIds,
    /// Running units in them.
    pub in_flight: u32,
    /// In decisions older than the assignment, with their task group now: wanted again should those fail.
    pub(crate) wanted_again: Vec<(u16, ReplicaId)>,
    /// Room is held for them: placed elsewhere as soon as they fit there, and wanted when that ends otherwise than in a
    /// binding.
    pub(crate) awaiting_hold: Vec<(u16, ReplicaId)>,
    /// The unit has changed: a newer assignment or a revocation is due.
    pub(crate) awaits: bool,
    /// Set while it is the woken one of a group of parked units.
    pub(crate) woken_from: Option<WaitKey>,
    pub attempts: u32,
    /// Rejected in a row.
    pub failures: u32,
    /// In backoff after many failures: it holds no credits meanwhile.
    pub rests: bool,
    /// It has others leave for one of its running units at a time.
    pub one_by_one: bool,
    /// A queue of it is full: it goes back at the end of its backoff.
    pub full: Option<Arc<Refusals>>,
}

/// What is to be placed of one task group.
#[derive(Clone, Debug)]
pub(crate) struct GroupWork {
    pub template: TemplateId,
    /// Ascending from `begin`; before that, taken.
    wanted: Vec<ReplicaId>,
    begin: usize,
}

impl GroupWork {
    pub(crate) fn new(template: TemplateId) -> Self {
        Self { template, wanted: Vec::new(), begin: 0 }
    }

    pub(crate) fn pending(&self) -> &[ReplicaId] {
        &self.wanted[self.begin..]
    }

    /// Takes the first `n` out.
    pub(crate) fn advance(&mut self, n: usize) {
        self.begin += n;
        if self.begin == self.wanted.len() {
            self.wanted.clear();
            self.begin = 0;
        }
    }

    /// Adds running units, in any order; those there already stay once, with the later incarnation.
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

    /// Takes out everything.
    pub(crate) fn clear(&mut self) {
        self.wanted.clear();
        self.begin = 0;
    }

    /// Takes out whatever does not satisfy `keep`; true if something went.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&ReplicaId) -> bool) -> bool {
        self.wanted.drain(..self.begin);
        self.begin = 0;
        let before = self.wanted.len();
        self.wanted.retain(keep);
        self.wanted.len() < before
    }
}

impl AssignedUnit {
    /// Returns a unit as its record says, with `groups` to be placed and nothing decided yet. Of units of equal priority the
    /// one with the lower `dispatch_order` is tried first.
    pub(crate) fn new(
        picture: &mut Picture,
        record: &UnitRecord,
        revision: Revision,
        dispatch_order: u64,
        groups: UnitWork,
    ) -> Self {
        let class =
            PriorityClasses::deciding(&record.spec).filter(|class| !PriorityClasses::is_built_in(class));
        Self {
            revision,
            queue_key: (Reverse(picture.classes.priority(&record.spec)), dispatch_order, record.id),
            class: class.map(Box::from),
            terms: GangTerms::of(record),
            pool: record.spec.pool,
            flow: picture.flow_of(&groups, record.spec.pool),
            queue: picture.shares.queue(&record.spec.queue),
            scope: NodeScope::default(),
            at_maximum: false,
            has_turn: false,
            is_called: false,
            no_turn: false,
            active_deadline_ms: record.spec.active_deadline_ms,
            leaves_after_ms: picture.leaves_after(record),
            marks: marks(&record.spec.namespace, &record.spec.labels).collect(),
            bound: 0,
            groups,
            state: UnitState::Waiting,
            decisions: DecisionIds::new(),
            in_flight: 0,
            wanted_again: Vec::new(),
            awaiting_hold: Vec::new(),
            awaits: false,
            woken_from: None,
            attempts: 0,
            failures: 0,
            rests: false,
            one_by_one: false,
            full: None,
        }
    }

    pub(crate) fn unit(&self) -> UnitId {
        self.queue_key.2
    }

    /// Higher wins.
    pub(crate) fn priority(&self) -> i32 {
        self.queue_key.0.0
    }

    pub(crate) fn pending(&self) -> usize {
        self.groups.iter().map(|group| group.pending().len()).sum()
    }

    /// Every running unit handed out is bound.
    pub(crate) fn is_done(&self) -> bool {
        self.decisions.is_empty() && !self.awaits && self.pending() == 0 && self.awaiting_hold.is_empty()
    }

    /// Something is to be placed, or placed elsewhere than where room is held for it.
    pub(crate) fn has_work(&self) -> bool {
        self.pending() > 0 || !self.awaiting_hold.is_empty()
    }

    /// Running units for which it holds credits, decisions in flight apart. One that is rejected again and again, or goes
    /// back as its queue is full, holds none while it backs off, or it would keep others from being tried.
    pub(crate) fn weight(&self) -> u64 {
        match self.state {
            UnitState::Backoff(_) if self.rests || self.full.is_some() => 0,
            UnitState::Ready | UnitState::Backoff(_) => self.pending() as u64,
            UnitState::Parked(_) | UnitState::Waiting => 0,
        }
    }

    /// Running units that must be placed at once before any may be.
    pub(crate) fn together(&self) -> u32 {
        self.terms.min_member.saturating_sub(self.bound.saturating_add(self.in_flight))
    }

    /// Task groups of which something is pending.
    pub(crate) fn pending_groups(&self) -> impl Iterator<Item = &GroupWork> {
        self.groups.iter().filter(|group| !group.pending().is_empty())
    }

    /// Templates of what room is held for.
    pub(crate) fn held_templates(&self) -> Vec<TemplateId> {
        let of = |group: &u16| self.groups.get(usize::from(*group)).map(|work| work.template);
        self.awaiting_hold.iter().filter_map(|(group, _)| of(group)).collect()
    }
}
