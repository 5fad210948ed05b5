//! Units without a place, grouped by what they need, so that waking is cheap.
//!
//! A group is *settled* while no node fits its templates: that was seen by a full scan, and every event that
//! could change it is checked against the group. A unit of the same need that arrives meanwhile parks at once. When
//! a node turns up that fits, the first unit of the group is tried; the next one follows only if that one
//! found its place, so a group that fails again costs one try, however many units it has.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use smallvec::SmallVec;

use crate::{explain::Refusals, ids::UnitId, place::templates::TemplateId, queue::QueueIdx, time::Millis};

/// What parked units lack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Need {
    /// Running units that must be placed together; 0 when any one would do.
    pub(crate) together: u32,
    /// Templates, ascending, with the running units pending of each; 0 where any one would do.
    pub(crate) templates: SmallVec<[(TemplateId, u32); 1]>,
    /// The queue, where those of one may have to leave for those of another.
    pub(crate) queue: Option<QueueIdx>,
}

impl Need {
    /// Any one replica of a template.
    pub(crate) fn one(template: TemplateId, queue: Option<QueueIdx>) -> Self {
        Self { together: 0, templates: smallvec::smallvec![(template, 0)], queue }
    }
}

/// Order of units in the ready queue and in groups: priority, then dispatch order.
pub(crate) type Turn = (Reverse<i32>, u64, UnitId);

/// Units of one need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    members: BTreeSet<Turn>,
    /// The one that was woken and has not come to an end yet.
    trying: Option<UnitId>,
    refusals: Refusals,
    explained_at: Millis,
}

/// Refusals of a try.
#[derive(Clone, Debug)]
pub(crate) enum Counted {
    /// All nodes were just asked.
    Now(Refusals),
    /// Those of the group it joins.
    Before(Refusals),
}

/// Refusals are counted anew at most so often per group, milliseconds: a gang that is tried with every
/// release must not look at every node each time.
const EXPLAIN_EVERY_MS: u64 = 1_000;

/// All parked units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parked {
    groups: BTreeMap<Need, Group>,
    n_units: usize,
}

impl Parked {
    pub(crate) fn len(&self) -> usize {
        self.n_units
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The refusals of a settled group: nothing fits now.
    pub(crate) fn settled(&self, need: &Need) -> Option<&Refusals> {
        self.groups.get(need).filter(|group| group.trying.is_none()).map(|group| &group.refusals)
    }

    /// The refusals of a group, unless they are too old to be shown again.
    pub(crate) fn recent(&self, need: &Need, now: Millis) -> Option<&Refusals> {
        let recent = |group: &&Group| now.since(group.explained_at) < EXPLAIN_EVERY_MS;
        self.groups.get(need).filter(recent).map(|group| &group.refusals)
    }

    /// A unit found no place; the group is settled.
    pub(crate) fn park(&mut self, need: &Need, turn: Turn, refusals: Counted, now: Millis) {
        let is_new = !self.groups.contains_key(need);
        let group = self.groups.entry(need.clone()).or_default();
        match refusals {
            Counted::Now(refusals) => (group.refusals, group.explained_at) = (refusals, now),
            Counted::Before(refusals) if is_new => group.refusals = refusals,
            Counted::Before(_) => {}
        }
        group.trying = None;
        self.n_units += usize::from(group.members.insert(turn));
    }

    /// A parked unit is gone.
    pub(crate) fn remove(&mut self, need: &Need, turn: &Turn) {
        if let Some(group) = self.groups.get_mut(need) {
            self.n_units -= usize::from(group.members.remove(turn));
            self.drop_if_empty(need);
        }
    }

    /// Needs that an event may meet: settled ones for which `fits` says so of one of the templates.
    pub(crate) fn met(&self, mut fits: impl FnMut(TemplateId) -> bool) -> Vec<Need> {
        let settled = self.groups.iter().filter(|(_, group)| group.trying.is_none());
        let mut met = |need: &Need| need.templates.iter().any(|(template, _)| fits(*template));
        settled.map(|(need, _)| need).filter(|need| met(need)).cloned().collect()
    }

    /// Settled needs whose first unit has a higher priority.
    pub(crate) fn above(&self, priority: i32) -> Vec<Need> {
        let settled = self.groups.iter().filter(|(_, group)| group.trying.is_none());
        let is_above = |group: &Group| group.members.first().is_some_and(|turn| turn.0.0 > priority);
        settled.filter(|(_, group)| is_above(group)).map(|(need, _)| need.clone()).collect()
    }

    /// Takes the first unit of a group out, to be tried.
    pub(crate) fn wake(&mut self, need: &Need) -> Option<Turn> {
        let group = self.groups.get_mut(need)?;
        let first = group.members.pop_first();
        group.trying = first.map(|turn| turn.2);
        self.n_units -= usize::from(first.is_some());
        self.drop_if_empty(need);
        first
    }

    /// The woken unit came to another end than parking here again: true if the next one is to be woken.
    pub(crate) fn finish(&mut self, need: &Need, unit: UnitId) -> bool {
        let Some(group) = self.groups.get_mut(need).filter(|group| group.trying == Some(unit)) else {
            return false;
        };
        group.trying = None;
        let more = !group.members.is_empty();
        self.drop_if_empty(need);
        more
    }

    fn drop_if_empty(&mut self, need: &Need) {
        if self.groups.get(need).is_some_and(|group| group.members.is_empty() && group.trying.is_none()) {
            self.groups.remove(need);
        }
    }
}
