//! Picks nodes for replicas of interned templates: the scan, the candidate lists, the ranking.
//!
//! A candidate list is a heap of nodes that fitted when they were looked at, best first. The best one is taken
//! if its node has not changed since; otherwise it is looked at again and sinks or leaves: amortised
//! `O(log candidates)` per replica and nothing to invalidate. A scan starts a little further on than the last one, stops
//! at `replicas + surplus` nodes that fit, and skips blocks of nodes in which nothing can fit, so that a nearly full
//! cluster costs little more than an empty one. Only a scan over every node that found none is a refusal.

use std::collections::{BTreeMap, BinaryHeap};

use crate::{
    change::{Partition, PartitionMode},
    cluster::{Cluster, room::BLOCK},
    framework::{Ask, Place, Profile, Rank, Typical},
    ids::{NodeId, UnitId},
    unit::ScoringProfile,
};

pub(crate) mod templates;

use templates::{TemplateId, Templates};

/// The next scan starts this part of the way further on that the last one went. Going all the way lets the
/// windows of several schedulers sweep over each other within the time that a decision needs to be seen: on the
/// openb trace with 48 decisions unseen that cost seven times as many conflicts, and placed no better.
const CURSOR_DIVISOR: usize = 8;

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

/// A node that fitted when it was looked at. The order is the rank, then the lower index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    rank: Rank,
    node: std::cmp::Reverse<u32>,
    generation: u64,
}

/// Candidates of one template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    heap: BinaryHeap<Candidate>,
    /// The unit that used the list last.
    unit: UnitId,
    /// Units after the one that scanned that may go on with the list.
    uses_left: usize,
}

/// Which nodes are whose.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    mode: PartitionMode,
    /// `None`: not in the partition (yet), all nodes are alike.
    slot: Option<u32>,
    n_slots: u32,
    /// Slot by node index; `u32::MAX` for nodes not listed.
    listed: Vec<u32>,
}

impl View {
    pub(crate) fn new(partition: &Partition, name: &str) -> Self {
        let slot = partition.schedulers.iter().position(|scheduler| scheduler == name);
        let mut listed = Vec::new();
        let nodes = partition.slots.iter().map(|(node, _)| node.idx() + 1).max().unwrap_or(0);
        listed.resize(nodes, u32::MAX);
        for (node, slot) in &partition.slots {
            listed[node.idx()] = *slot;
        }
        Self {
            mode: partition.mode,
            slot: slot.and_then(|slot| u32::try_from(slot).ok()),
            n_slots: u32::try_from(partition.schedulers.len()).unwrap_or(u32::MAX),
            listed,
        }
    }

    pub(crate) fn is_own(&self, idx: usize) -> bool {
        let Some(own) = self.slot else { return true };
        match (self.mode, self.listed.get(idx)) {
            (PartitionMode::Global, _) => true,
            (_, Some(slot)) if *slot != u32::MAX => *slot == own,
            (_, _) => idx % self.n_slots.max(1) as usize == own as usize,
        }
    }

    /// Which nodes to look at, one after the other.
    fn reaches(&self) -> &'static [Reach] {
        match (self.mode, self.slot) {
            (PartitionMode::Global, _) | (_, None) => &[Reach::All],
            (PartitionMode::Preferred, _) => &[Reach::Own, Reach::Others],
            (PartitionMode::Strict, _) => &[Reach::Own],
        }
    }

    pub(crate) fn is_strict(&self) -> bool {
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
            // Schedulers start apart; the seed differs between them.
            cursor: usize::try_from(mix(seed) >> 40).unwrap_or(0),
            hits: 0,
            misses: 0,
        }
    }

    /// Before the replicas of one unit: a kept list is brought up to date or dropped.
    pub(crate) fn begin(&mut self, cluster: &Cluster, template: TemplateId, unit: UnitId) {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        if self.keeps && std::mem::replace(&mut entry.candidates.unit, unit) == unit {
            return;
        }
        if !self.keeps || entry.candidates.uses_left == 0 {
            entry.candidates.heap.clear();
            return;
        }
        entry.candidates.uses_left -= 1;
        let profile = self.profiles.get(entry.scoring);
        let mut kept = std::mem::take(&mut entry.candidates.heap).into_vec();
        kept.retain_mut(|candidate| {
            let idx = candidate.node.0 as usize;
            if candidate.generation == cluster.node_generation(NodeId(candidate.node.0)) {
                return true;
            }
            match rate(cluster, profile, &entry.ask, &self.typical, idx, tie(self.seed, idx, unit)) {
                Some(fresh) => {
                    *candidate = fresh;
                    true
                }
                None => false,
            }
        });
        entry.candidates.heap = kept.into();
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
            self.templates.get_mut(template).candidates.heap.clear();
        }
        if let Some(spot) = self.best(cluster, template, unit) {
            self.hits += 1;
            return Some(spot);
        }
        for reach in self.view.reaches() {
            self.misses += 1;
            self.scan(cluster, template, unit, wanted, *reach);
            if let Some(spot) = self.best(cluster, template, unit) {
                return Some(spot);
            }
        }
        None
    }

    /// The best candidate that still fits. It stays in the list: once its node has changed it is rated anew.
    fn best(&mut self, cluster: &Cluster, template: TemplateId, unit: UnitId) -> Option<Spot> {
        let entry = self.templates.get_mut(template);
        let profile = self.profiles.get(entry.scoring);
        let heap = &mut entry.candidates.heap;
        while let Some(mut top) = heap.peek_mut() {
            let node = NodeId(top.node.0);
            if top.generation == cluster.node_generation(node)
                && let Some(mask) = cluster.pick_devices(entry.ask.shape(), node)
            {
                return Some(Spot { node, mask });
            }
            let idx = node.idx();
            match rate(cluster, profile, &entry.ask, &self.typical, idx, tie(self.seed, idx, unit)) {
                Some(fresh) => *top = fresh,
                None => {
                    std::collections::binary_heap::PeekMut::pop(top);
                }
            }
        }
        None
    }

    /// Fills an empty candidate list from the nodes within `reach`.
    fn scan(
        &mut self,
        cluster: &mut Cluster,
        template: TemplateId,
        unit: UnitId,
        wanted: usize,
        reach: Reach,
    ) {
        let n_nodes = cluster.n_slots();
        if n_nodes == 0 {
            return;
        }
        let entry = self.templates.get_mut(template);
        let profile = self.profiles.get(entry.scoring);
        let limit = if self.limits { wanted.saturating_add(self.surplus) } else { usize::MAX };
        let mut found = std::mem::take(&mut entry.candidates.heap).into_vec();
        let start = self.cursor % n_nodes;
        let mut looked = 0;
        let mut idx = start;
        // From the start to the end, then from the first node to the start: block by block.
        let mut left = n_nodes;
        while left > 0 && found.len() < limit {
            let block = idx / BLOCK;
            let end = ((block + 1) * BLOCK).min(n_nodes).min(idx + left);
            if cluster.block_may_fit(block, entry.ask.shape()) {
                let is_whole = idx == block * BLOCK && end == ((block + 1) * BLOCK).min(n_nodes);
                let mut has_room = false;
                while idx < end && found.len() < limit {
                    let shape = entry.ask.shape();
                    if cluster.has_resources(shape, idx) && cluster.has_devices(shape, idx) {
                        has_room = true;
                        if self.view.reaches_node(reach, idx) {
                            let tie = tie(self.seed, idx, unit);
                            found.extend(rate(cluster, profile, &entry.ask, &self.typical, idx, tie));
                        }
                    }
                    idx += 1;
                    left -= 1;
                    looked += 1;
                }
                if is_whole && !has_room {
                    cluster.tighten(block);
                }
            } else {
                left -= end - idx;
                idx = end;
                looked += 1;
            }
            idx = if idx == n_nodes { 0 } else { idx };
        }
        self.cursor = (start + ((n_nodes - left) / CURSOR_DIVISOR).max(1)) % n_nodes;
        entry.candidates.heap = found.into();
        // A scan that had to look at many nodes for few serves some more units; a cheap one is made anew, for
        // a fresh window packs better than a used-up one.
        entry.candidates.uses_left = looked / limit.saturating_mul(4).max(1);
    }

    /// Whether a node holds one more replica of a template now.
    pub(crate) fn fits(&mut self, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        node.idx() < cluster.n_slots()
            && self.profiles.get(entry.scoring).passes(cluster, &entry.ask, node.idx())
    }

    /// What each node that may be used says of one more replica.
    pub(crate) fn explain(&mut self, cluster: &Cluster, template: TemplateId) -> crate::explain::Refusals {
        let entry = self.templates.get_mut(template);
        entry.ask.prepare(cluster);
        let profile = self.profiles.get(entry.scoring);
        let mut counts = BTreeMap::new();
        let mut nodes = 0;
        for node in cluster.nodes().filter(|node| !self.view.is_strict() || self.view.is_own(node.idx())) {
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

impl View {
    fn reaches_node(&self, reach: Reach, idx: usize) -> bool {
        match reach {
            Reach::All => true,
            Reach::Own => self.is_own(idx),
            Reach::Others => !self.is_own(idx),
        }
    }
}

/// Looks at a node: its rank if it passes all filters.
fn rate(
    cluster: &Cluster,
    profile: &Profile,
    ask: &Ask,
    typical: &Typical,
    idx: usize,
    tie: u32,
) -> Option<Candidate> {
    if !profile.passes(cluster, ask, idx) {
        return None;
    }
    let node = NodeId(u32::try_from(idx).ok()?);
    let devices = cluster.pick_devices(ask.shape(), node)?;
    let rank = profile.rank(&Place { cluster, ask, idx, devices, typical }, tie);
    Some(Candidate { rank, node: std::cmp::Reverse(node.0), generation: cluster.node_generation(node) })
}

/// Seeded hash of node and unit: breaks ties.
fn tie(seed: u64, idx: usize, unit: UnitId) -> u32 {
    let hash = mix(seed ^ unit.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (idx as u64).rotate_left(32));
    u32::try_from(hash >> 32).unwrap_or(0)
}

/// The finaliser of splitmix64.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
