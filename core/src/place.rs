//! Picks nodes for replicas of interned templates: the scan, the candidate lists, the ranking.
//!
//! A candidate list holds nodes that fitted when they were looked at, best first. The best one is taken if its node has
//! not changed since; otherwise it is looked at again and sinks or leaves: nothing to invalidate. A list serves all
//! replicas of a unit and, where that packs no worse, some of the next units of the template. A scan starts a little
//! further on than the last one, stops at `replicas + surplus` nodes that fit, and skips blocks of nodes in which nothing
//! can fit, so that a nearly full cluster costs little more than an empty one. Only a scan over every node that found
//! none is a refusal.

use std::collections::BTreeMap;

use crate::{
    change::{Partition, PartitionMode, Scope},
    cluster::{Cluster, room::BLOCK},
    framework::{Place, Profile, Typical},
    ids::{NodeId, UnitId},
    unit::ScoringProfile,
};

mod candidates;
pub(crate) mod templates;

use candidates::Candidate;
use templates::{Entry, TemplateId, Templates};

/// The next scan starts this part of the way further on that the last one went. Going all the way lets the
/// windows of several schedulers sweep over each other within the time that a decision needs to be seen: on the
/// openb trace with 48 decisions unseen that cost seven times as many conflicts, and placed no better.
const CURSOR_DIVISOR: usize = 8;

/// A list of a template without devices serves this part of the surplus in replicas of later units before it is
/// made anew. With devices a fresh window packs better than a used one: on the openb trace lists used on for 6
/// replicas of such templates left 212 tasks over instead of 172, and had twice the conflicts.
const USES_DIVISOR: usize = 8;

/// Profile of each [`ScoringProfile`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiles {
    /// Spreads.
    pub least_allocated: Profile,
    /// Packs.
    pub most_allocated: Profile,
}

impl Default for Profiles {
    fn default() -> Self {
        Self {
            least_allocated: Profile::preset(ScoringProfile::LeastAllocated),
            most_allocated: Profile::preset(ScoringProfile::MostAllocated),
        }
    }
}

impl Profiles {
    pub(crate) fn get(&self, scoring: ScoringProfile) -> &Profile {
        match scoring {
            ScoringProfile::LeastAllocated => &self.least_allocated,
            ScoringProfile::MostAllocated => &self.most_allocated,
        }
    }
}

/// A node for a replica, and its devices there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) node: NodeId,
    pub(crate) mask: u64,
}

/// Which nodes are whose.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    mode: PartitionMode,
    /// Of the unit that is tried now.
    scope: Scope,
    /// `None`: not in the partition (yet), all nodes are alike.
    slot: Option<usize>,
    n_slots: usize,
    /// Own nodes of each block, a bit each.
    own: Vec<Nodes>,
}

/// Some nodes of a block, a bit each.
type Nodes = u64;
const _: () = assert!(BLOCK == Nodes::BITS as usize, "a bit is a node of a block");

impl View {
    pub(crate) fn new(partition: &Partition, name: &str) -> Self {
        let slot = partition.schedulers.iter().position(|scheduler| scheduler == name);
        let n_slots = partition.schedulers.len();
        let mut view = Self { mode: partition.mode, scope: Scope::default(), slot, n_slots, own: Vec::new() };
        let n_nodes = partition.slots.iter().map(|(node, _)| node.idx() + 1).max().unwrap_or(0);
        let mut own: Vec<Nodes> = (0..n_nodes.div_ceil(BLOCK)).map(|block| view.unlisted(block)).collect();
        for (node, owner) in &partition.slots {
            let (block, bit) = (node.idx() / BLOCK, 1 << (node.idx() % BLOCK));
            own[block] &= !bit;
            own[block] |= if Some(*owner as usize) == slot { bit } else { 0 };
        }
        view.own = own;
        view
    }

    /// Own nodes of a block of which none is listed.
    fn unlisted(&self, block: usize) -> Nodes {
        let Some(slot) = self.slot else { return Nodes::MAX };
        let is_own = |at: &usize| (block * BLOCK + at) % self.n_slots == slot;
        (0..BLOCK).filter(is_own).fold(0, |own, at| own | 1 << at)
    }

    /// Nodes of a block within a reach.
    fn within(&self, reach: Reach, block: usize) -> Nodes {
        let own = || self.own.get(block).copied().unwrap_or_else(|| self.unlisted(block));
        match reach {
            Reach::All => Nodes::MAX,
            Reach::Own => own(),
            Reach::Others => !own(),
        }
    }

    pub(crate) fn is_own(&self, idx: usize) -> bool {
        let is_shared = self.mode == PartitionMode::Global || self.slot.is_none();
        is_shared || self.within(Reach::Own, idx / BLOCK) >> (idx % BLOCK) & 1 == 1
    }

    /// Where the scans of this scheduler begin: those of a cluster's schedulers are as far apart as that goes, so
    /// that they rarely look at the same nodes at the same time.
    fn origin(&self, n_nodes: usize) -> usize {
        self.slot.map_or(0, |slot| n_nodes * slot / self.n_slots)
    }

    /// Which nodes to look at, one after the other.
    fn reaches(&self) -> &'static [Reach] {
        match (self.mode, self.slot) {
            (PartitionMode::Global, _) | (_, None) => &[Reach::All],
            (PartitionMode::Preferred, _) => &[Reach::Own, Reach::Others],
            (PartitionMode::Strict, _) => match self.scope {
                Scope::Partition => &[Reach::Own],
                Scope::Global => &[Reach::Own, Reach::Others],
            },
        }
    }

    /// Own nodes come before others.
    pub(crate) fn is_preferred(&self) -> bool {
        self.reaches().len() > 1
    }

    /// Others' nodes may not be used now.
    pub(crate) fn is_confined(&self) -> bool {
        self.is_strict() && self.scope == Scope::Partition
    }

    fn is_strict(&self) -> bool {
        self.mode == PartitionMode::Strict && self.slot.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    All,
    Own,
    Others,
}

/// Picks nodes.
#[derive(Clone, Debug)]
pub(crate) struct Placer {
    pub(crate) templates: Templates,
    pub(crate) typical: Typical,
    pub(crate) view: View,
    profiles: Profiles,
    seed: u64,
    surplus: usize,
    keeps: bool,
    limits: bool,
    /// Where the next scan begins, from the view's origin.
    cursor: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// How a [`Placer`] works.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) profiles: Profiles,
    pub(crate) seed: u64,
    pub(crate) surplus: u32,
    pub(crate) cache: bool,
    pub(crate) limit_scan: bool,
}

impl Placer {
    pub(crate) fn new(settings: Settings) -> Self {
        let Settings { profiles, seed, surplus, cache, limit_scan } = settings;
        Self {
            templates: Templates::default(),
            typical: Typical::default(),
            view: View::default(),
            profiles,
            seed,
            surplus: surplus as usize,
            keeps: cache,
            limits: limit_scan,
            // Until they have slots; the seed differs between schedulers.
            cursor: usize::try_from(mix(seed) >> 40).unwrap_or(0),
            hits: 0,
            misses: 0,
        }
    }

    /// Other nodes are its own now: lists of the old ones end. Whoever shares the nodes with others now begins anew,
    /// as they do.
    pub(crate) fn set_view(&mut self, view: View) {
        if (view.slot, view.n_slots) != (self.view.slot, self.view.n_slots) {
            self.cursor = 0;
        }
        self.view = view;
        self.templates.clear_candidates();
    }

    /// Whose nodes the next unit may use. Lists of candidates are of one scope: they end where that makes a difference.
    pub(crate) fn set_scope(&mut self, scope: Scope) {
        if scope != self.view.scope {
            self.view.scope = scope;
            if self.view.is_strict() {
                self.templates.clear_candidates();
            }
        }
    }

    /// Before `wanted` replicas of one unit: a kept list is used on, or dropped.
    pub(crate) fn begin(&mut self, cluster: &Cluster, template: TemplateId, unit: UnitId, wanted: usize) {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        entry.gates = self.profiles.get(entry.scoring).gates(cluster, &entry.ask);
        let candidates = &mut entry.candidates;
        if self.keeps && std::mem::replace(&mut candidates.unit, unit) == unit {
            return;
        }
        match candidates.uses_left.checked_sub(wanted) {
            Some(left) if self.keeps => candidates.uses_left = left,
            _ => candidates.clear(),
        }
        if cluster.demand(entry.ask.shape()).devices.is_some() {
            let profile = self.profiles.get(entry.scoring);
            let ties = mix_unit(self.seed, unit);
            Rater { cluster, profile, typical: &self.typical, ties }.rate_changed(entry, wanted);
        }
    }

    /// The best node known for one more replica of a template, `wanted` of which are still to be placed; `None`
    /// when no node that may be used holds it. The caller takes the room before it asks again.
    pub(crate) fn next(
        &mut self,
        cluster: &mut Cluster,
        template: TemplateId,
        unit: UnitId,
        wanted: usize,
    ) -> Option<Spot> {
        if !self.keeps {
            self.templates.get_mut(template).candidates.clear();
        }
        let ties = mix_unit(self.seed, unit);
        if let Some(spot) = self.best(cluster, template, ties) {
            self.hits += 1;
            return Some(spot);
        }
        for reach in self.view.reaches() {
            self.misses += 1;
            self.scan(cluster, template, ties, wanted, *reach);
            if let Some(spot) = self.best(cluster, template, ties) {
                return Some(spot);
            }
        }
        None
    }

    /// The best candidate that still fits. It stays in the list: once its node has changed it is rated anew.
    fn best(&mut self, cluster: &Cluster, template: TemplateId, ties: u64) -> Option<Spot> {
        let entry = self.templates.get_mut(template);
        let rater =
            Rater { cluster, profile: self.profiles.get(entry.scoring), typical: &self.typical, ties };
        while let Some(best) = entry.candidates.best() {
            let node = best.node();
            if best.generation() == cluster.node_generation(node)
                && let Some(mask) = cluster.pick_devices(entry.ask.shape(), node)
            {
                return Some(Spot { node, mask });
            }
            let room = cluster.room_for(entry.ask.shape(), node.idx());
            let fresh = room.and_then(|devices| rater.rate(entry, node.idx(), devices));
            entry.candidates.replace_best(fresh);
        }
        None
    }

    /// Fills an empty candidate list from the nodes within `reach`.
    fn scan(&mut self, cluster: &mut Cluster, template: TemplateId, ties: u64, wanted: usize, reach: Reach) {
        let n_nodes = cluster.n_slots();
        if n_nodes == 0 {
            return;
        }
        let entry = self.templates.get_mut(template);
        let profile = self.profiles.get(entry.scoring);
        let limit = if self.limits { wanted.saturating_add(self.surplus) } else { usize::MAX };
        let mut found = entry.candidates.take_all();
        let start = (self.view.origin(n_nodes) + self.cursor) % n_nodes;
        let mut looked = 0;
        let mut idx = start;
        // From the start to the end, then from the first node to the start: block by block.
        let mut left = n_nodes;
        while left > 0 && found.len() < limit {
            let block = idx / BLOCK;
            let first = block * BLOCK;
            let end = (first + BLOCK).min(n_nodes).min(idx + left);
            let nodes = self.view.within(reach, block) & between(idx - first, end - first);
            let mut past = end;
            looked += 1;
            if nodes != 0 && cluster.block_may_fit(block, entry.ask.shape()) {
                let rater = Rater { cluster, profile, typical: &self.typical, ties };
                let seen = rater.scan(entry, first, nodes, limit, &mut found);
                looked += seen.n_nodes - 1;
                past = seen.stopped_at.map_or(end, |at| first + at);
                if !seen.has_room {
                    cluster.tighten(block, entry.ask.shape());
                }
            }
            left -= past - idx;
            idx = if past == n_nodes { 0 } else { past };
        }
        self.cursor = (self.cursor + ((n_nodes - left) / CURSOR_DIVISOR).max(1)) % n_nodes;
        entry.candidates.fill(found, wanted);
        // A scan that had to look at many nodes for few serves some more units.
        let dear = looked / limit.saturating_mul(4).max(1) * wanted;
        let has_devices = cluster.demand(entry.ask.shape()).devices.is_some();
        entry.candidates.uses_left = if has_devices { dear } else { dear.max(self.surplus / USES_DIVISOR) };
    }

    /// Whether a node holds one more replica of a template now.
    pub(crate) fn fits(&mut self, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        node.idx() < cluster.n_slots()
            && cluster.room_for(entry.ask.shape(), node.idx()).is_some()
            && self.profiles.get(entry.scoring).gates(cluster, &entry.ask).admit(
                cluster,
                &entry.ask,
                node.idx(),
            )
    }

    /// Whether a node would take a replica of a template if it had room for it.
    pub(crate) fn admits(&mut self, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        let gates = self.profiles.get(entry.scoring).gates(cluster, &entry.ask);
        let idx = node.idx();
        idx < cluster.n_slots() && cluster.is_usable(idx) && gates.admit(cluster, &entry.ask, idx)
    }

    /// Nodes that would take a replica of a template if they had room for it, ascending; its `own` ones, or all that may
    /// be used.
    pub(crate) fn with_room_aside(
        &mut self,
        cluster: &Cluster,
        template: TemplateId,
        own: bool,
    ) -> Vec<usize> {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        let gates = self.profiles.get(entry.scoring).gates(cluster, &entry.ask);
        let own = own || self.view.is_confined();
        let may = |idx: &usize| {
            cluster.is_usable(*idx)
                && (!own || self.view.is_own(*idx))
                && gates.admit(cluster, &entry.ask, *idx)
        };
        (0..cluster.n_slots()).filter(may).collect()
    }

    /// What each node that may be used says of one more replica.
    pub(crate) fn explain(&mut self, cluster: &Cluster, template: TemplateId) -> crate::explain::Refusals {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        let profile = self.profiles.get(entry.scoring);
        let mut counts = BTreeMap::new();
        let mut nodes = 0;
        for node in cluster.nodes().filter(|node| !self.view.is_confined() || self.view.is_own(node.idx())) {
            nodes += 1;
            if let Err(refused) = profile.check(cluster, &entry.ask, node) {
                *counts.entry(refused).or_insert(0u32) += 1;
            }
        }
        crate::explain::summary(cluster, &entry.ask, counts, nodes)
    }

    /// Without effect on what comes after: for trials.
    pub(crate) fn set_cursor(&mut self, cursor: usize) {
        self.cursor = cursor;
    }

    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }
}

/// Looks at nodes.
struct Rater<'a> {
    cluster: &'a Cluster,
    profile: &'a Profile,
    typical: &'a Typical,
    /// Of seed and unit.
    ties: u64,
}

impl Rater<'_> {
    /// A node with room for a template, on whose `devices` it would be: a candidate if it passes all filters.
    fn rate(&self, entry: &Entry, idx: usize, devices: u64) -> Option<Candidate> {
        if !entry.gates.admit(self.cluster, &entry.ask, idx) {
            return None;
        }
        let node = u32::try_from(idx).ok()?;
        let place = Place { cluster: self.cluster, ask: &entry.ask, idx, devices, typical: self.typical };
        let rank = self.profile.rank(&place, tie(self.ties, idx));
        Some(Candidate::new(rank, node, self.cluster.node_generation(NodeId(node))))
    }

    /// Rates those nodes of a list anew that have changed: others' work may have made them better.
    fn rate_changed(&self, entry: &mut Entry, wanted: usize) {
        let mut kept = entry.candidates.take_all();
        kept.retain_mut(|candidate| {
            let node = candidate.node();
            if candidate.generation() == self.cluster.node_generation(node) {
                return true;
            }
            let room = self.cluster.room_for(entry.ask.shape(), node.idx());
            match room.and_then(|devices| self.rate(entry, node.idx(), devices)) {
                Some(fresh) => {
                    *candidate = fresh;
                    true
                }
                None => false,
            }
        });
        entry.candidates.fill(kept, wanted);
    }

    /// Finds candidates up to `limit` among some nodes of the block that begins at `first`.
    fn scan(
        &self,
        entry: &Entry,
        first: usize,
        nodes: Nodes,
        limit: usize,
        found: &mut Vec<Candidate>,
    ) -> Seen {
        let shape = entry.ask.shape();
        let mut seen = Seen { n_nodes: 0, has_room: false, stopped_at: None };
        let mut rest = nodes;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            if found.len() >= limit {
                seen.stopped_at = Some(at);
                break;
            }
            rest &= rest - 1;
            seen.n_nodes += 1;
            if let Some(devices) = self.cluster.room_for(shape, first + at) {
                seen.has_room = true;
                found.extend(self.rate(entry, first + at, devices));
            }
        }
        seen
    }
}

/// What a look at nodes of a block saw.
struct Seen {
    n_nodes: usize,
    has_room: bool,
    /// The node that was not looked at any more, by its place in the block.
    stopped_at: Option<usize>,
}

/// The nodes of a block from one place up to another.
fn between(from: usize, to: usize) -> Nodes {
    let below = |end: usize| if end >= BLOCK { Nodes::MAX } else { (1 << end) - 1 };
    below(to) & !below(from)
}

/// Of seed and unit, for [`tie`].
fn mix_unit(seed: u64, unit: UnitId) -> u64 {
    seed ^ unit.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Seeded hash of node and unit: breaks ties. In a kept list, the unit is the one for which the node was looked at.
fn tie(ties: u64, idx: usize) -> u32 {
    let hash = mix(ties ^ (idx as u64).rotate_left(32));
    u32::try_from(hash >> 32).unwrap_or(0)
}

/// The finaliser of splitmix64.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Blocks and bits say what the partition says of each node.
        #[test]
        fn a_view_is_its_partition(
            slots in prop::collection::btree_map(1..200u32, 0..4u32, 0..60),
            n_slots in 1..5u32,
            own in 0..6u32,
            is_strict in any::<bool>(),
            is_wide in any::<bool>(),
        ) {
            let mode = if is_strict { PartitionMode::Strict } else { PartitionMode::Preferred };
            let schedulers = (0..n_slots).map(|slot| format!("s{slot}")).collect();
            let listed = slots.iter().map(|(node, owner)| (NodeId(*node), *owner)).collect();
            let mut view = View::new(&Partition { mode, generation: 1, schedulers, slots: listed, ..Partition::default() }, &format!("s{own}"));
            view.scope = if is_wide { Scope::Global } else { Scope::Partition };
            let naive = |idx: u32| own >= n_slots || slots.get(&idx).map_or(idx % n_slots, |owner| *owner) == own;
            for idx in 0..300u32 {
                let at = idx as usize;
                prop_assert_eq!(view.is_own(at), naive(idx), "{}", idx);
                let reached: Vec<Reach> = view
                    .reaches()
                    .iter()
                    .copied()
                    .filter(|reach| view.within(*reach, at / BLOCK) >> (at % BLOCK) & 1 == 1)
                    .collect();
                let expected = match (own >= n_slots, naive(idx)) {
                    (true, _) => vec![Reach::All],
                    (false, true) => vec![Reach::Own],
                    (false, false) if is_strict && !is_wide => vec![],
                    (false, false) => vec![Reach::Others],
                };
                prop_assert_eq!(reached, expected, "{}: once, if at all", idx);
            }
        }

        /// The scans of all schedulers begin as far apart as that goes, and within the cluster.
        #[test]
        fn origins_are_apart(n_slots in 1..8usize, n_nodes in 1..500usize) {
            let schedulers: Vec<String> = (0..n_slots).map(|slot| format!("s{slot}")).collect();
            let partition = Partition { schedulers: schedulers.clone(), ..Partition::default() };
            let origins: Vec<usize> =
                schedulers.iter().map(|name| View::new(&partition, name).origin(n_nodes)).collect();
            prop_assert!(origins.iter().all(|origin| *origin < n_nodes));
            prop_assert!(origins.windows(2).all(|pair| pair[1] - pair[0] >= n_nodes / n_slots));
        }

        #[test]
        fn between_is_every_place_from_one_up_to_another(from in 0..=BLOCK, to in 0..=BLOCK) {
            let places = (0..BLOCK).filter(|at| between(from, to) >> at & 1 == 1);
            prop_assert!(places.eq(from..to.max(from)));
        }
    }
}
