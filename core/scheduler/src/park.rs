//! Units without a place, grouped by what they need, so that waiting costs nothing.
//!
//! A group is *settled* while no node fits its templates: that was seen by a full scan, and every event that could change
//! it is checked against the group. A unit of the same need that arrives meanwhile parks at once. When a node turns up that
//! fits, nobody is tried: the dispatcher hears how many places there are and says who gets them, since
//! it alone knows everybody who waits. Only a search for victims takes the first unit of a group by itself; the next one
//! follows if that one found its place, so a group that fails again costs one try, however many units it has.
//!
//! A group whose units are all gone is kept for a while: what is known of its need saves the next one a scan.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use godel_base::{
    ids::{NodeId, UnitId},
    time::Millis,
};
use godel_domain::refusals::Refusals;
use godel_placement::place::templates::Templates;
use godel_queueing::QueueIdx;

use super::assigned_unit::AssignedUnit;

mod wait_key;

pub(super) use self::wait_key::WaitKey;

/// Order of units in the ready queue and in groups: priority, then dispatch order.
pub(crate) type QueueKey = (Reverse<i32>, u64, UnitId);

/// Units of one need.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitGroup {
    /// The number under which the dispatcher knows it; never reused.
    id: u64,
    members: BTreeSet<QueueKey>,
    /// The one that was woken and has not come to an end yet.
    trying: Option<UnitId>,
    refusals: Refusals,
    explained_at: Millis,
    room: GroupRoom,
}

/// GroupRoom for a group, as of the last count.
#[derive(Clone, Copy, Debug, Default)]
struct GroupRoom {
    places: u32,
    /// The places that the dispatcher knows of, and the number of calls by then.
    stated: (u32, u64),
    /// Nodes that gained room by then had none for a unit of the group that was called.
    tried: u64,
    /// Any node may have room, not only those that gained some.
    may_be_anywhere: bool,
}

/// Refusals of a try.
#[derive(Clone, Debug)]
pub(crate) enum CountedRefusals {
    /// All nodes were just asked.
    Now(Refusals),
    /// Those of the group it joins.
    Before(Refusals),
}

impl CountedRefusals {
    pub(crate) fn refusals(&self) -> &Refusals {
        let (Self::Now(refusals) | Self::Before(refusals)) = self;
        refusals
    }

    pub(crate) fn refusals_mut(&mut self) -> &mut Refusals {
        let (Self::Now(refusals) | Self::Before(refusals)) = self;
        refusals
    }
}

/// Refusals of a group are counted again no sooner than this, milliseconds: a gang that is tried with every
/// release must not look at every node each time.
const EXPLAIN_EVERY_MS: u64 = 1_000;
/// Groups without units that are kept at most.
const N_IDLE_MAX: usize = 256;

/// All parked units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parked {
    groups: BTreeMap<WaitKey, WaitGroup>,
    n_units: usize,
    last_id: u64,
    /// Nodes that gained room which may fit some group, by the number of their last gain.
    offered: BTreeMap<NodeId, u64>,
    n_gains: u64,
    /// Called units that were taken.
    n_calls: u64,
    /// Some group may have room on any node.
    is_anywhere: bool,
    /// Something was offered, or what is known of the nodes has changed, since the last count.
    is_stale: bool,
}

impl Parked {
    pub(crate) fn len(&self) -> usize {
        self.n_units
    }

    /// There is neither a unit nor a need that is known to have no room.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Nobody waits, nor is one of a group being tried.
    pub(crate) fn is_idle(&self) -> bool {
        self.n_units == 0 && self.groups.values().all(|group| group.trying.is_none())
    }

    /// The refusals of a settled group: nothing fits now.
    pub(crate) fn settled(&self, need: &WaitKey) -> Option<&Refusals> {
        self.groups.get(need).filter(|group| group.trying.is_none()).map(|group| &group.refusals)
    }

    /// Whether it is known already that a unit finds no place, `together` of its running units at once: a settled group waits for
    /// the same. `queue`: as in a [`WaitKey`].
    pub(crate) fn settled_for(
        &self,
        assigned: &AssignedUnit,
        together: usize,
        templates: &Templates,
        queue: Option<QueueIdx>,
    ) -> Option<(WaitKey, CountedRefusals)> {
        if self.is_empty() || !assigned.awaiting_hold.is_empty() {
            return None;
        }
        if together > 1 {
            let need = WaitKey::together(templates, assigned, together, queue);
            let refusals = self.settled(&need)?.clone();
            return Some((need, CountedRefusals::Before(refusals)));
        }
        let mut none_fits = Vec::new();
        let mut refusals = None;
        for group in assigned.pending_groups() {
            refusals = Some(self.settled(&WaitKey::one(templates, group.template, queue))?);
            none_fits.push(group.template);
        }
        let need = WaitKey::any(templates, &none_fits, queue);
        Some((need, CountedRefusals::Before(refusals?.clone())))
    }

    /// Others that lack the same wait, and search for victims in the place of a unit.
    pub(crate) fn is_represented(
        &self,
        assigned: &AssignedUnit,
        need: &WaitKey,
        templates: &Templates,
    ) -> bool {
        let has_units = |template| self.has_units(&WaitKey::one(templates, template, need.queue));
        self.has_units(need)
            || (need.together == 0 && assigned.pending_groups().all(|group| has_units(group.template)))
    }

    /// Somebody waits in a group, and searches for victims when that might help.
    pub(crate) fn has_units(&self, need: &WaitKey) -> bool {
        self.groups.get(need).is_some_and(|group| !group.members.is_empty())
    }

    /// The refusals of a group, unless they are too old to be shown again.
    pub(crate) fn recent(&self, need: &WaitKey, now: Millis) -> Option<&Refusals> {
        let recent = |group: &&WaitGroup| now.since(group.explained_at) < EXPLAIN_EVERY_MS;
        self.groups.get(need).filter(recent).map(|group| &group.refusals)
    }

    /// A unit found no place; the group is settled. Returns its number, and whether it is new: then its templates are to be
    /// held until [`Self::take_dropped`] names it.
    pub(crate) fn park(
        &mut self,
        need: &WaitKey,
        position: QueueKey,
        refusals: CountedRefusals,
        now: Millis,
    ) -> (u64, bool) {
        let is_new = !self.groups.contains_key(need);
        let group = self.groups.entry(need.clone()).or_default();
        if is_new {
            self.last_id += 1;
            group.id = self.last_id;
        }
        match refusals {
            CountedRefusals::Now(refusals) => (group.refusals, group.explained_at) = (refusals, now),
            CountedRefusals::Before(refusals) if is_new => group.refusals = refusals,
            CountedRefusals::Before(_) => {}
        }
        group.trying = None;
        // The dispatcher may have had nobody to give its room to, and forgotten it.
        group.room.stated = (0, 0);
        self.is_stale |= group.room.places > 0;
        self.n_units += usize::from(group.members.insert(position));
        (group.id, is_new)
    }

    /// All nodes were asked for one of a group and had no room, whatever the dispatcher heard before.
    pub(crate) fn note_none(&mut self, need: &WaitKey) {
        if let Some(group) = self.groups.get_mut(need) {
            // The report that the unit is parked says so.
            group.room = GroupRoom { tried: self.n_gains, ..GroupRoom::default() };
        }
    }

    /// A parked unit is gone.
    pub(crate) fn remove(&mut self, need: &WaitKey, position: &QueueKey) {
        if let Some(group) = self.groups.get_mut(need) {
            self.n_units -= usize::from(group.members.remove(position));
        }
    }

    /// Settled needs with units for which there is no room as far as is known.
    pub(crate) fn without_room(&self) -> Vec<WaitKey> {
        let settled = self.groups.iter().filter(|(_, group)| group.is_waiting());
        settled.map(|(need, _)| need.clone()).collect()
    }

    /// Some group with units has room, as far as is known: nobody of it searches for victims meanwhile.
    pub(crate) fn has_open(&self) -> bool {
        self.groups.values().any(|group| group.room.places > 0 && !group.members.is_empty())
    }

    /// Those of them whose first unit has a higher priority.
    pub(crate) fn above(&self, priority: i32) -> Vec<WaitKey> {
        let settled = self.groups.iter().filter(|(_, group)| group.is_waiting());
        let is_above = |group: &WaitGroup| group.members.first().is_some_and(|first| first.0.0 > priority);
        settled.filter(|(_, group)| is_above(group)).map(|(need, _)| need.clone()).collect()
    }

    /// The first units of a group for a number of places.
    #[cfg(test)]
    pub(crate) fn first_of(&self, id: u64, places: u32) -> Vec<QueueKey> {
        let groups = self.groups.iter().filter(|(_, group)| group.id == id);
        let first = groups
            .flat_map(|(need, group)| group.members.iter().take((places / need.together.max(1)) as usize));
        first.copied().collect()
    }

    /// Takes the first unit of a group out, to be tried.
    pub(crate) fn wake(&mut self, need: &WaitKey) -> Option<QueueKey> {
        let group = self.groups.get_mut(need)?;
        let first = group.members.pop_first();
        group.trying = first.map(|position| position.2);
        self.n_units -= usize::from(first.is_some());
        first
    }

    /// The woken unit came to another end than parking here again: true if the next one is to be woken.
    pub(crate) fn finish(&mut self, need: &WaitKey, unit: UnitId) -> bool {
        let Some(group) = self.groups.get_mut(need).filter(|group| group.trying == Some(unit)) else {
            return false;
        };
        group.trying = None;
        !group.members.is_empty()
    }

    /// Nodes gained room.
    pub(crate) fn offer(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            self.n_gains += 1;
            self.offered.insert(*node, self.n_gains);
        }
        self.is_stale |= !nodes.is_empty();
    }

    /// Any node may have room for any group.
    pub(crate) fn ask_all(&mut self) {
        self.groups.values_mut().for_each(|group| group.room.may_be_anywhere = true);
        self.is_anywhere = !self.groups.is_empty();
        self.is_stale = self.is_anywhere;
    }

    /// Nobody has asked the nodes for a need that is new: any of them may have room for it.
    pub(crate) fn ask_for(&mut self, need: &WaitKey) {
        if let Some(group) = self.groups.get_mut(need) {
            group.room.may_be_anywhere = true;
            (self.is_anywhere, self.is_stale) = (true, true);
        }
    }

    /// Something is known of a need.
    pub(crate) fn knows(&self, need: &WaitKey) -> bool {
        self.groups.contains_key(need)
    }

    /// A unit that was called is taken: what was stated before does not count it.
    pub(crate) fn note_call(&mut self) {
        self.n_calls += 1;
        self.is_stale |= !self.groups.is_empty();
    }

    /// What is known of the nodes that were offered has changed.
    pub(crate) fn note_change(&mut self) {
        self.is_stale |= self.is_anywhere || !self.offered.is_empty();
    }

    /// There is something to count.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Counts the room of every settled group: `count` gets its need, and the nodes to be asked, all of them if `None`.
    pub(crate) fn count(&mut self, mut count: impl FnMut(&WaitKey, Option<&[NodeId]>) -> u32) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.is_anywhere = false;
        let all: Vec<NodeId> = self.offered.keys().copied().collect();
        for (need, group) in &mut self.groups {
            let room = &mut group.room;
            if group.trying.is_none() {
                let since = |(node, gain): (&NodeId, &u64)| (*gain > room.tried).then_some(*node);
                let fresh: Vec<NodeId>;
                let nodes = match (room.may_be_anywhere, room.tried) {
                    (true, _) => None,
                    (false, 0) => Some(&all[..]),
                    (false, _) => {
                        fresh = self.offered.iter().filter_map(since).collect();
                        Some(&fresh[..])
                    }
                };
                room.places = count(need, nodes);
                room.may_be_anywhere &= room.places > 0;
            }
            self.is_anywhere |= group.room.may_be_anywhere;
        }
    }

    /// Nodes that have room for nobody are offered no longer.
    pub(crate) fn retain_offered(&mut self, mut keep: impl FnMut(&NodeId) -> bool) {
        self.offered.retain(|node, _| keep(node));
    }

    pub(crate) fn n_offered(&self) -> usize {
        self.offered.len()
    }

    /// Groups of which the dispatcher knows something else: their numbers and places. With this it knows.
    pub(crate) fn take_news(&mut self) -> Vec<(u64, u32)> {
        let mut news = Vec::new();
        for group in self.groups.values_mut() {
            let GroupRoom { places, stated: (before, n_calls), .. } = group.room;
            if places != before || (places > 0 && n_calls != self.n_calls) {
                group.room.stated = (places, self.n_calls);
                news.push((group.id, places));
            }
        }
        news
    }

    /// A new dispatcher knows nothing of the room reported before, nor does the same one on a new stream.
    pub(crate) fn forget_stated(&mut self) {
        self.groups.values_mut().for_each(|group| group.room.stated = (0, 0));
        self.is_stale = !self.groups.is_empty();
    }

    /// Needs that are given up: those without units for which there is room, so that nothing is known of them, or of which
    /// there are too many. Their templates are kept no longer.
    pub(crate) fn take_dropped(&mut self) -> Vec<WaitKey> {
        let is_idle = |group: &WaitGroup| group.members.is_empty() && group.trying.is_none();
        let n_idle = self.groups.values().filter(|group| is_idle(group)).count();
        if n_idle == 0 {
            return Vec::new();
        }
        let goes = |group: &WaitGroup| is_idle(group) && (n_idle > N_IDLE_MAX || group.room.places > 0);
        self.groups.extract_if(.., |_, group| goes(group)).map(|(need, _)| need).collect()
    }
}

impl WaitGroup {
    fn is_waiting(&self) -> bool {
        self.trying.is_none() && !self.members.is_empty() && self.room.places == 0
    }
}
