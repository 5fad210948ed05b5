//! A unit that the scheduler holds.

use std::sync::Arc;

use godel_domain::{
    change::Scope,
    demand::Pool,
    ids::{Revision, UnitId},
    lifecycle::GangTerms,
    refusals::Refusals,
    time::Millis,
};
use godel_placement::place::templates::TemplateId;
use godel_queueing::QueueIdx;
use smallvec::SmallVec;

use super::{
    flows::FlowIdx,
    park::{QueueKey, WaitKey},
};

/// A running unit to be placed: ordinal and incarnation.
pub(crate) type Wanted = (u32, u32);

/// Decisions without an outcome, ascending.
pub(crate) type DecisionIds = SmallVec<[u64; 2]>;

/// Where an assigned unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the ready queue.
    Ready,
    /// Waits after rejections.
    Backoff(Millis),
    /// In a group of parked units.
    Parked(WaitKey),
    /// Everything pending is decided, or a newer assignment is due.
    Waiting,
}

/// A unit that the scheduler holds.
#[derive(Clone, Debug)]
pub(crate) struct AssignedUnit {
    pub revision: Revision,
    pub turn: QueueKey,
    /// The priority class whose value may change that.
    pub class: Option<Box<str>>,
    pub terms: GangTerms,
    pub pool: Pool,
    pub(crate) flow: FlowIdx,
    pub queue: QueueIdx,
    pub scope: Scope,
    /// A queue of it is at a maximum: others there have to leave first.
    pub at_maximum: bool,
    /// Should it find no place its room is gathered.
    pub(crate) has_turn: bool,
    /// The dispatcher says that there is room for it: it is tried although others of its need wait.
    pub is_called: bool,
    /// It had its turn, and there were no nodes to gather room on.
    pub(crate) no_turn: bool,
    pub active_deadline_ms: u64,
    /// It may have to leave for others once it has run so long, milliseconds.
    pub leaves_after_ms: Option<u64>,
    /// Its labels, for reservations.
    pub marks: SmallVec<[u64; 2]>,
    /// Running units bound as far as is known, for the first binding.
    pub bound: u32,
    pub groups: SmallVec<[GroupWork; 1]>,
    pub state: State,
    /// Decisions without an outcome, ascending.
    pub decisions: DecisionIds,
    /// Running units in them.
    pub in_flight: u32,
    /// In decisions older than the assignment, with their task group now: wanted again should those fail.
    pub(crate) wanted_again: Vec<(u16, Wanted)>,
    /// Room is held for them: placed elsewhere as soon as they fit there, and wanted when that ends otherwise than in a
    /// binding.
    pub(crate) awaiting_hold: Vec<(u16, Wanted)>,
    /// The unit has changed: a newer assignment or a revocation is due.
    pub(crate) awaits: bool,
    /// Set while it is the woken one of a group of parked units.
    pub(crate) woken_from: Option<WaitKey>,
    pub attempts: u32,
    /// Rejected in a row.
    pub failures: u32,
    /// In backoff after so many of them that it holds no credits meanwhile.
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
    wanted: Vec<Wanted>,
    begin: usize,
}

impl GroupWork {
    pub(crate) fn new(template: TemplateId) -> Self {
        Self { template, wanted: Vec::new(), begin: 0 }
    }

    pub(crate) fn pending(&self) -> &[Wanted] {
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
    pub(crate) fn add(&mut self, more: &[Wanted]) {
        self.wanted.drain(..self.begin);
        self.begin = 0;
        let is_after = self.wanted.last().is_none_or(|last| more.first().is_none_or(|first| last < first));
        self.wanted.extend_from_slice(more);
        if !(is_after && more.is_sorted_by(|a, b| a.0 < b.0)) {
            self.wanted.sort_unstable();
            // Of one ordinal the later incarnation stands last.
            let mut kept: Vec<Wanted> = Vec::with_capacity(self.wanted.len());
            for wanted in &self.wanted {
                match kept.last_mut() {
                    Some(last) if last.0 == wanted.0 => *last = *wanted,
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
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Wanted) -> bool) -> bool {
        self.wanted.drain(..self.begin);
        self.begin = 0;
        let before = self.wanted.len();
        self.wanted.retain(keep);
        self.wanted.len() < before
    }
}

impl AssignedUnit {
    pub(crate) fn unit(&self) -> UnitId {
        self.turn.2
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
            State::Backoff(_) if self.rests || self.full.is_some() => 0,
            State::Ready | State::Backoff(_) => self.pending() as u64,
            State::Parked(_) | State::Waiting => 0,
        }
    }

    /// Running units that must be placed at once before any may be.
    pub(crate) fn together(&self) -> u32 {
        self.terms.min_member.saturating_sub(self.bound.saturating_add(self.in_flight))
    }
}
