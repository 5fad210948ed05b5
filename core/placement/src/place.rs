//! Picks nodes for replicas of interned templates: the scan, the candidate lists, the ranking.
//!
//! A candidate list holds nodes that fitted when they were looked at, best first. The best one is taken if its node has
//! not changed since; otherwise it is looked at again and sinks or leaves: nothing to invalidate. A list serves all
//! replicas of a unit and, where that packs no worse, some of the next units of the template. A scan starts a little
//! further on than the last one, stops at `replicas + surplus` nodes that fit, and skips blocks of nodes in which nothing
//! can fit, so that a nearly full cluster costs little more than an empty one. Only a scan over every node that found
//! none is a refusal.

use std::collections::BTreeMap;

use godel_base::{
    ids::{NodeId, UnitId},
    seed::mix,
};
use godel_cluster::{
    Cluster, GroupRef, SubClusterId, Unfit,
    room::{BLOCK, BlockMask},
};
use godel_domain::{
    allocation::Allocation,
    change::{NodeScope, Partition},
    refusals::{Refusals, WaitReason},
    unit::{Template, UnitSpec},
    work_kind::WorkKind,
};
use godel_framework::{Typical, profile::Groupers};

use crate::{
    preempt::Preference,
    profiles::{ProfileChoice, Profiles},
};

mod candidates;
mod rater;
pub mod templates;
#[cfg(test)]
mod tests;
mod view;

use rater::Rater;
use templates::{TemplateId, Templates};
pub use view::{Moved, View};
use view::{NodeReach, between};

/// The next scan starts this part of the way further on that the last one went. Going all the way lets the
/// windows of several schedulers sweep over each other within the time that a decision needs to be seen: on the
/// openb trace with 48 decisions unseen that cost seven times as many conflicts, and placed no better.
const CURSOR_DIVISOR: usize = 8;

/// A list of a template without devices serves this part of the surplus in replicas of later units before it is
/// made again. With devices a fresh window packs better than a used one: on the openb trace lists used on for 6
/// replicas of such templates left 212 tasks over instead of 172, and had twice the conflicts.
const USES_DIVISOR: usize = 8;

/// A node for a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementChoice {
    /// The node.
    pub node: NodeId,
    /// What the replica is given there.
    pub allocation: Allocation,
}

/// Picks nodes.
#[derive(Clone, Debug)]
pub struct Placer {
    /// What units ask for, each kind once.
    pub templates: Templates,
    /// The device work seen most.
    pub typical: Typical,
    /// The nodes that this scheduler may use.
    pub view: View,
    profiles: Profiles,
    groups_all: bool,
    seed: u64,
    surplus: usize,
    keeps: bool,
    limits: bool,
    /// Searches for victims only find out what domains cost.
    compares: bool,
    cursors: Cursors,
    /// Lists of candidates that served a placement without a scan.
    pub hits: u64,
    /// Placements that needed a scan.
    pub misses: u64,
    /// Blocks and nodes that scans looked at.
    pub n_looked: usize,
}

/// Where the next scans begin, from the view's origin: of all nodes, and of those of each sub-cluster.
#[derive(Clone, Debug)]
pub struct Cursors {
    first: usize,
    all: usize,
    of_sub_clusters: Vec<usize>,
}

impl Cursors {
    fn new(first: usize) -> Self {
        Self { first, all: first, of_sub_clusters: Vec::new() }
    }

    fn of(&mut self, sub_cluster: Option<SubClusterId>) -> &mut usize {
        let Some(id) = sub_cluster else { return &mut self.all };
        if self.of_sub_clusters.len() <= id.idx() {
            self.of_sub_clusters.resize(id.idx() + 1, self.first);
        }
        &mut self.of_sub_clusters[id.idx()]
    }
}

/// How a [`Placer`] works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Profiles by name.
    pub profiles: Profiles,
    /// Breaks ties.
    pub seed: u64,
    /// Candidates kept beyond those that a scan was for.
    pub surplus: u32,
    /// Whether candidates are kept from one placement to the next.
    pub cache: bool,
    /// Whether a scan stops once it has found enough.
    pub limit_scan: bool,
}

impl Placer {
    /// Returns a placer that knows no template yet.
    pub fn new(settings: Settings) -> Self {
        let Settings { profiles, seed, surplus, cache, limit_scan } = settings;
        Self {
            templates: Templates::default(),
            typical: Typical::default(),
            view: View::default(),
            groups_all: profiles.group_all(),
            profiles,
            seed,
            surplus: surplus as usize,
            keeps: cache,
            limits: limit_scan,
            compares: false,
            // Until they have slots; the seed differs between schedulers.
            cursors: Cursors::new(usize::try_from(mix(seed) >> 40).unwrap_or(0)),
            hits: 0,
            misses: 0,
            n_looked: 0,
        }
    }

    /// The mode or the schedulers changed: the nodes that moved. Lists of candidates end where nodes are reached in
    /// another way from here on; else they stay, but for what moved
    /// (see [`note_moved`](godel_cluster::NodeUpdates::note_moved)). A scheduler that shares the nodes with others now starts its
    /// scans from its origin, as they do.
    pub fn set_partition(&mut self, partition: &Partition, name: &str, n_nodes: usize) -> Vec<Moved> {
        let before = (self.view.way(), self.view.slot, self.view.n_slots);
        let moved = self.view.set(partition, name, n_nodes);
        if (self.view.slot, self.view.n_slots) != (before.1, before.2) {
            self.cursors = Cursors::new(0);
        }
        if self.view.way() != before.0 {
            self.templates.clear_candidates();
        }
        moved
    }

    /// These nodes are its own from here on: they come before others', so that lists of others' nodes end where one of them
    /// would do. `O(templates + lists of others' nodes · nodes gained)`.
    pub fn note_gained(&mut self, cluster: &Cluster, gained: &[NodeId]) {
        if gained.is_empty() {
            return;
        }
        for template in self.templates.listing(NodeReach::Others) {
            if gained.iter().any(|node| self.fits(cluster, template, *node)) {
                self.templates.get_mut(template).candidates.clear();
            }
        }
    }

    /// Whose nodes the next unit may use. Lists of candidates are of one scope: they end where that makes a difference.
    pub fn set_scope(&mut self, scope: NodeScope) {
        if scope != self.view.scope {
            self.view.scope = scope;
            if self.view.is_strict() {
                self.templates.clear_candidates();
            }
        }
    }

    /// The integer of a template of a unit, with the profile that the unit is placed by; counts as one use, to be given back by
    /// [`Templates::release`]. `spreads`: its replicas are to be on different nodes where that costs little.
    pub fn intern(
        &mut self,
        cluster: &mut Cluster,
        template: &Template,
        id: UnitId,
        unit: &UnitSpec,
        spreads: bool,
    ) -> TemplateId {
        let sub_cluster = cluster.catalogue_mut().demanded_sub_cluster(&template.node_selector);
        let profile = self.profiles.choose(&unit.profile, unit.class, sub_cluster);
        let counts_work = cluster.taken().work.is_active() && self.profiles.of(&profile).counts_work();
        let work = if counts_work { WorkKind::of(unit) } else { WorkKind::Neutral };
        self.templates.intern(cluster, template, unit.pool, profile, spreads, work, id)
    }

    /// The template of replicas for which a node keeps volumes, `template` being that of the other replicas of their task group. It counts as
    /// one use.
    pub fn intern_on(&mut self, template: TemplateId, node: NodeId) -> TemplateId {
        self.templates.intern_on(template, node)
    }

    /// Before `wanted` replicas of one unit: a kept list is used on, or dropped. That of a unit that spreads is its own.
    pub fn begin(&mut self, cluster: &mut Cluster, template: TemplateId, unit: UnitId, wanted: usize) {
        let entry = self.templates.get_mut(template);
        if entry.ask.spreads() {
            cluster.units_mut().count(unit);
        }
        let profile = self.profiles.of(&entry.profile);
        profile.prepare(cluster, &mut entry.ask);
        let candidates = &mut entry.candidates;
        if self.keeps && std::mem::replace(&mut candidates.unit, unit) == unit {
            return;
        }
        match candidates.uses_left.checked_sub(wanted) {
            Some(left) if self.keeps && !entry.ask.spreads() => candidates.uses_left = left,
            _ => candidates.clear(),
        }
        if !cluster.catalogue().demand(entry.ask.shape()).devices.is_empty() {
            let ties = mix_unit(self.seed, unit);
            Rater { cluster, profile, typical: &self.typical, ties }.rate_changed(&self.view, entry, wanted);
        }
    }

    /// Whether the groupers of some profile split nodes for units without topology keys as well.
    #[inline]
    pub fn groups_all(&self) -> bool {
        self.groups_all
    }

    /// Returns the groupers of the profile that a template is placed by.
    pub fn groupers(&self, template: TemplateId) -> &Groupers {
        self.profiles.of(&self.templates.get(template).profile).groupers()
    }

    /// Looks for places of a template in one group of nodes from now on, or everywhere.
    pub fn set_group(&mut self, template: TemplateId, group: Option<GroupRef>) {
        let entry = self.templates.get_mut(template);
        entry.ask.set_within(group);
        entry.candidates.clear();
    }

    /// Whether the free room of a group could hold so many replicas of a template, each looked at by itself: false only if it
    /// cannot.
    pub fn may_hold(&self, cluster: &Cluster, template: TemplateId, nodes: &[u32], wanted: u32) -> bool {
        let shape = self.templates.get(template).ask.shape();
        adds_up(cluster, nodes, wanted, |idx, left| cluster.free().n_fit_together(shape, idx, left))
    }

    /// The same if nothing ran there.
    pub fn could_hold(&self, cluster: &Cluster, template: TemplateId, nodes: &[u32], wanted: u32) -> bool {
        let shape = self.templates.get(template).ask.shape();
        adds_up(cluster, nodes, wanted, |idx, left| cluster.free().n_fit_empty(shape, idx, left))
    }

    /// The best node known for one more replica of a template, `wanted` of which are still to be placed; `None`
    /// when no node that may be used holds it. The caller takes the room before it asks again.
    pub fn next(
        &mut self,
        cluster: &mut Cluster,
        template: TemplateId,
        unit: UnitId,
        wanted: usize,
    ) -> Option<PlacementChoice> {
        if !self.keeps {
            self.templates.get_mut(template).candidates.clear();
        }
        let ties = mix_unit(self.seed, unit);
        if self.templates.get(template).ask.unit().is_some() {
            // What others placed counts on other nodes as well.
            self.rate_all(cluster, template, ties, wanted);
        }
        if let Some(choice) = self.best(cluster, template, ties) {
            let candidates = &mut self.templates.get_mut(template).candidates;
            if !candidates.is_outranked() {
                self.hits += 1;
                return Some(choice);
            }
            candidates.clear();
        }
        for reach in self.view.reaches() {
            self.misses += 1;
            self.scan(cluster, template, ties, wanted, *reach);
            if let Some(choice) = self.best(cluster, template, ties) {
                return Some(choice);
            }
        }
        None
    }

    /// Rates all candidates of a list as of now.
    fn rate_all(&mut self, cluster: &Cluster, template: TemplateId, ties: u64, wanted: usize) {
        let entry = self.templates.get_mut(template);
        let profile = self.profiles.of(&entry.profile);
        Rater { cluster, profile, typical: &self.typical, ties }.rate_again(
            &self.view,
            entry,
            wanted,
            |_| true,
        );
    }

    /// The best candidate that still fits. It stays in the list: once its node has changed it is rated again.
    fn best(&mut self, cluster: &Cluster, template: TemplateId, ties: u64) -> Option<PlacementChoice> {
        let entry = self.templates.get_mut(template);
        let rater =
            Rater { cluster, profile: self.profiles.of(&entry.profile), typical: &self.typical, ties };
        while let Some(best) = entry.candidates.best() {
            let node = best.node();
            if best.generation() == cluster.free().generations().of(node)
                && let Some(allocation) = cluster.free().pick(entry.ask.shape(), node)
            {
                return Some(PlacementChoice { node, allocation });
            }
            // It may have moved, or be gone from a list that was read meanwhile.
            let is_near = node.idx() < cluster.free().n_indices()
                && self.view.reaches_node(entry.candidates.reach, node.idx());
            let room = if is_near { cluster.free().room_for(entry.ask.shape(), node.idx()) } else { None };
            let fresh = room.and_then(|allocation| rater.rate(entry, node.idx(), allocation));
            entry.candidates.replace_best(fresh);
        }
        None
    }

    /// Fills an empty candidate list from the nodes within `reach`; of a template that a locator concerns only the blocks that
    /// it names are looked at.
    fn scan(
        &mut self,
        cluster: &mut Cluster,
        template: TemplateId,
        ties: u64,
        wanted: usize,
        reach: NodeReach,
    ) {
        let entry = self.templates.get_mut(template);
        if entry.ask.is_nowhere() {
            return;
        }
        let profile = self.profiles.of(&entry.profile);
        let locator = profile.locator(cluster, &entry.ask);
        let located = locator.and_then(|locator| locator.locate(cluster, &entry.ask));
        // From here on indices are those of the located blocks put side by side.
        let n_nodes = located.map_or(cluster.free().n_indices(), |blocks| blocks.len() * BLOCK);
        if n_nodes == 0 {
            return;
        }
        let limit = if self.limits { wanted.saturating_add(self.surplus) } else { usize::MAX };
        let mut found = entry.candidates.take_all();
        let cursor = self.cursors.of(entry.ask.sub_cluster());
        let start = (self.view.origin(n_nodes) + *cursor) % n_nodes;
        let mut looked = 0;
        let mut idx = start;
        // From the start to the end, then from the first node to the start: block by block.
        let mut left = n_nodes;
        while left > 0 && found.len() < limit {
            let first = idx / BLOCK * BLOCK;
            let end = (first + BLOCK).min(n_nodes).min(idx + left);
            let blocks = locator.and_then(|locator| locator.locate(cluster, &entry.ask));
            let (block, located) = blocks.map_or((idx / BLOCK, BlockMask::MAX), |blocks| blocks[idx / BLOCK]);
            let nodes = self.view.within(reach, block) & located & between(idx - first, end - first);
            let mut past = end;
            looked += 1;
            if nodes != 0 && cluster.free().block_may_fit(block, entry.ask.shape()) {
                let rater = Rater { cluster, profile, typical: &self.typical, ties };
                let seen = rater.scan(entry, block * BLOCK, nodes, limit, &mut found);
                looked += seen.n_nodes - 1;
                past = seen.stopped_at.map_or(end, |at| first + at);
                if !seen.has_room {
                    let pool = cluster.catalogue().shape(entry.ask.shape()).pool;
                    cluster.free_mut().tighten(block, pool);
                }
            }
            left -= past - idx;
            idx = if past == n_nodes { 0 } else { past };
        }
        *cursor = (*cursor + ((n_nodes - left) / CURSOR_DIVISOR).max(1)) % n_nodes;
        entry.candidates.reach = reach;
        entry.candidates.fill(found, wanted);
        self.n_looked += looked;
        // A scan that had to look at many nodes for few serves some more units.
        let dear = looked / limit.saturating_mul(4).max(1) * wanted;
        let has_devices = !cluster.catalogue().demand(entry.ask.shape()).devices.is_empty();
        entry.candidates.uses_left = if has_devices { dear } else { dear.max(self.surplus / USES_DIVISOR) };
    }

    /// Returns a given node for a replica of a template, if it may be used and holds the replica.
    pub fn choose_on(
        &mut self,
        cluster: &Cluster,
        template: TemplateId,
        node: NodeId,
    ) -> Option<PlacementChoice> {
        let may_use = self.view.reaches().iter().any(|reach| self.view.reaches_node(*reach, node.idx()));
        if may_use { self.choose_kept(cluster, template, node) } else { None }
    }

    /// The same of a node where room is kept for the replica alone: whoever owns the node, no other replica gets that room.
    pub fn choose_kept(
        &mut self,
        cluster: &Cluster,
        template: TemplateId,
        node: NodeId,
    ) -> Option<PlacementChoice> {
        let is_located =
            cluster.catalogue().sub_clusters().has(self.templates.get(template).ask.sub_cluster(), node);
        if !is_located || !self.admits(cluster, template, node) {
            return None;
        }
        let allocation = cluster.free().room_for(self.templates.get(template).ask.shape(), node.idx())?;
        Some(PlacementChoice { node, allocation })
    }

    /// Whether a node holds one more replica of a template now.
    pub fn fits(&mut self, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
        let entry = self.templates.get_mut(template);
        self.profiles.of(&entry.profile).prepare(cluster, &mut entry.ask);
        node.idx() < cluster.free().n_indices()
            && cluster.free().room_for(entry.ask.shape(), node.idx()).is_some()
            && entry.ask.admits(cluster, node.idx())
    }

    /// How many replicas of a template a node has room for, `max` at most: 1 at least where one fits, and no more of those
    /// that ask for devices, or are of a daemon.
    pub fn n_fit(&mut self, cluster: &Cluster, template: TemplateId, node: NodeId, max: u32) -> u32 {
        if !self.fits(cluster, template, node) {
            return 0;
        }
        let ask = &self.templates.get(template).ask;
        if ask.daemon().is_some() { 1 } else { cluster.free().n_fit(ask.shape(), node.idx(), max).max(1) }
    }

    /// Whether a node would take a replica of a template if it had room for it, as things are now: with what was placed before.
    pub fn admits(&mut self, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
        let entry = self.templates.get_mut(template);
        self.profiles.of(&entry.profile).prepare(cluster, &mut entry.ask);
        node.idx() < cluster.free().n_indices()
            && entry.ask.within().is_none_or(|group| cluster.domains().groups.is_in(group, node.idx()))
            && entry.ask.admits(cluster, node.idx())
    }

    /// Nodes that would take a replica of a template if they had room for it, ascending; its `own` ones, or all that may
    /// be used.
    pub fn with_room_aside(&mut self, cluster: &Cluster, template: TemplateId, own: bool) -> Vec<usize> {
        let entry = self.templates.get_mut(template);
        let profile = self.profiles.of(&entry.profile);
        profile.prepare(cluster, &mut entry.ask);
        let own = own || self.view.is_confined();
        let may = |idx: &usize| (!own || self.view.is_own(*idx)) && entry.ask.admits(cluster, *idx);
        cluster.free().located(profile.locate(cluster, &entry.ask)).filter(may).collect()
    }

    /// Searches for victims only find out what domains cost, or not any more: nobody rates the nodes of a domain that is not taken.
    /// Returns what was said before.
    pub fn set_compares(&mut self, compares: bool) -> bool {
        std::mem::replace(&mut self.compares, compares)
    }

    /// How a search for victims chooses among nodes for replicas of a template of a unit. [`Self::with_room_aside`] has to have
    /// prepared the template.
    pub fn preference(&self, template: TemplateId, unit: UnitId) -> Preference<'_> {
        let entry = self.templates.get(template);
        let profile = self.profiles.of(&entry.profile);
        Preference {
            mode: profile.preemption(),
            sort: profile.candidate_sort(),
            start: mix(mix_unit(self.seed, unit)),
            scores: (!self.compares).then_some((profile, &entry.ask, &self.typical)),
        }
    }

    /// What each node that may be used says of one more replica.
    pub fn explain(&mut self, cluster: &Cluster, template: TemplateId) -> Refusals {
        let entry = self.templates.get_mut(template);
        let profile = self.profiles.of(&entry.profile);
        profile.prepare(cluster, &mut entry.ask);
        let mut counts = BTreeMap::new();
        if let ProfileChoice::Unknown(name) = &entry.profile {
            let refused = Unfit::Other { reason: self.profiles.unknown(name) };
            counts.insert((WaitReason::Profile.name(), refused), cluster.nodes().count());
            return crate::explain::summary(cluster, &entry.ask, None, counts, cluster.nodes().count());
        }
        let may = |node: &NodeId| !self.view.is_confined() || self.view.is_own(node.idx());
        let locator = profile.locator(cluster, &entry.ask);
        let located = locator.and_then(|locator| locator.locate(cluster, &entry.ask));
        let mut nodes = 0;
        cluster.nodes().located(located).filter(may).for_each(|node| {
            nodes += 1;
            if let Err(refused) = profile.check(cluster, &entry.ask, node) {
                *counts.entry(refused).or_insert(0u32) += 1;
            }
        });
        // The nodes elsewhere are counted without being looked at.
        let elsewhere = locator.and_then(|locator| locator.elsewhere(cluster, &entry.ask));
        if let Some(refused) = elsewhere.filter(|_| !self.view.is_confined())
            && nodes < cluster.nodes().count()
        {
            *counts.entry(refused).or_insert(0) += cluster.nodes().count() - nodes;
            nodes = cluster.nodes().count();
        }
        crate::explain::summary(cluster, &entry.ask, located, counts, nodes)
    }

    /// Without effect on what comes after: for trials.
    pub fn set_cursors(&mut self, cursors: Cursors) {
        self.cursors = cursors;
    }

    /// Returns where the next scans begin.
    pub fn cursors(&self) -> Cursors {
        self.cursors.clone()
    }
}

/// Whether usable nodes hold so many together, `n_fit` being how many of those left each of them holds.
fn adds_up(cluster: &Cluster, nodes: &[u32], wanted: u32, n_fit: impl Fn(usize, u32) -> u32) -> bool {
    let mut left = wanted;
    for node in nodes {
        let idx = *node as usize;
        if left == 0 {
            break;
        }
        if cluster.nodes().is_usable(idx) {
            left -= n_fit(idx, left);
        }
    }
    left == 0
}

/// Mixes the seed with the unit, so that ties between nodes fall differently for each unit.
fn mix_unit(seed: u64, unit: UnitId) -> u64 {
    seed ^ unit.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
