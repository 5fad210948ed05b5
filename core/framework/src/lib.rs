//! The scheduling framework: what a plugin is, and the profiles that select and weigh plugins.
//!
//! # Modules
//!
//! - `plugins`: the plugins, one file each, and their registry.

use std::{cmp::Reverse, fmt};

use godel_cluster::{
    Cluster, ShapeId, SubClusterId, Unfit,
    labels::{Constraint, TaintVerdict},
};
use godel_domain::{
    allocation::Allocation,
    demand::Pool,
    ids::NodeId,
    unit::{ScoringProfile, Template},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::plugins::{FILTERS, SCORES};

pub mod plugins;

/// Best score of one plugin: 100 points in thousandths.
pub const SCORE_MAX: i64 = 100_000;

/// Heaviest score of a profile: sums of all of them are far from overflowing.
pub const WEIGHT_MAX: i64 = 1_000_000;

/// What one replica asks for, resolved once per template.
#[derive(Clone, Debug)]
pub struct Ask {
    shape: ShapeId,
    sub_cluster: Option<SubClusterId>,
    constraint: Constraint,
    spreads: bool,
}

impl Ask {
    /// Interns what a template asks for.
    pub fn new(cluster: &mut Cluster, template: &Template, pool: Pool) -> Self {
        let shape = cluster.shape(&template.demand, pool);
        Self::of_shape(cluster, shape, template)
    }

    /// Like [`Self::new`], for a demand that has been interned before.
    pub fn of_shape(cluster: &mut Cluster, shape: ShapeId, template: &Template) -> Self {
        Self {
            shape,
            sub_cluster: cluster.demanded_sub_cluster(&template.node_selector),
            constraint: Constraint::new(&template.node_selector, &template.tolerations),
            spreads: false,
        }
    }

    /// Of a unit whose replicas are to be on different nodes where that costs little.
    pub fn spreading(self, spreads: bool) -> Self {
        Self { spreads, ..self }
    }

    /// Whether it is; the cluster has to count that unit then.
    pub fn spreads(&self) -> bool {
        self.spreads
    }

    /// Brings it up to the labels and taints that the cluster knows now; to be called before filters.
    pub fn prepare(&mut self, cluster: &Cluster) {
        self.constraint.resolve(cluster.labels());
    }

    /// Its demand.
    pub fn shape(&self) -> ShapeId {
        self.shape
    }

    /// Whose nodes it may use; `None`: all.
    pub fn sub_cluster(&self) -> Option<SubClusterId> {
        self.sub_cluster
    }

    /// Returns the node selector and the tolerations.
    pub fn constraint(&self) -> &Constraint {
        &self.constraint
    }

    /// Why the nodes of other sub-clusters refuse it, with the plugin that says so; `None` if it demands no sub-cluster.
    pub fn not_located(&self, cluster: &Cluster) -> Option<(&'static str, Unfit)> {
        self.sub_cluster?;
        let key = cluster.sub_cluster_key();
        let value = self.constraint.selector.get(key)?;
        let refusal = Unfit::Selector { key: key.to_owned(), value: value.clone() };
        Some((refusal.plugin(), refusal))
    }
}

/// Says which nodes cannot take a replica.
pub trait Filter: Sync {
    /// Unique among filters.
    fn name(&self) -> &'static str;
    /// False when it lets every node pass, as the ask and the cluster are now: then nodes need not be asked.
    fn concerns(&self, _cluster: &Cluster, _ask: &Ask) -> bool {
        true
    }
    /// Whether it judges nothing but the free room of a node: scans look at that first, for all such filters at once.
    fn is_room(&self) -> bool {
        false
    }
    /// Whether the node at index `idx` passes; equal to [`Self::check`], without words.
    fn passes(&self, cluster: &Cluster, ask: &Ask, idx: usize) -> bool;
    /// Whether a node passes.
    ///
    /// # Errors
    /// The most specific reason why not.
    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Unfit>;
}

/// Says how good a node is that passed all filters.
pub trait Score: Sync {
    /// Unique among scores.
    fn name(&self) -> &'static str;
    /// 0 to [`SCORE_MAX`], higher is better.
    fn score(&self, place: &ScoreInput<'_>) -> i64;
}

/// A place that is possible.
#[derive(Debug)]
pub struct ScoreInput<'a> {
    /// As it is before the placement.
    pub cluster: &'a Cluster,
    /// What is to be placed.
    pub ask: &'a Ask,
    /// Index of the node.
    pub idx: usize,
    /// What the replica would be given.
    pub allocation: Allocation,
    /// The device work seen most.
    pub typical: &'a Typical,
}

/// Order of nodes that passed all filters: the greatest is taken. Field order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeScore {
    /// Soft taints (`PreferNoSchedule`) not tolerated: fewer first.
    pub soft_taints: Reverse<u32>,
    /// Weighted sum of the profile's scores.
    pub score: i64,
    /// Seeded hash of node and unit.
    pub tie: u32,
}

impl NodeScore {
    /// One number in the same order: comparing it takes two instructions.
    #[inline]
    pub fn packed(self) -> u128 {
        let score = self.score.cast_unsigned() ^ (1 << 63);
        u128::from(!self.soft_taints.0) << 96 | u128::from(score) << 32 | u128::from(self.tie)
    }
}

/// Filters that may refuse a node with room for a template, as the cluster is now.
#[derive(Clone, Default)]
pub struct Gates(SmallVec<[&'static dyn Filter; 4]>);

impl Gates {
    /// Whether all let the node at `idx` pass.
    #[inline]
    pub fn admit(&self, cluster: &Cluster, ask: &Ask, idx: usize) -> bool {
        self.0.iter().all(|filter| filter.passes(cluster, ask, idx))
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|filter| filter.name())).finish()
    }
}

/// A selection of plugins.
#[derive(Clone)]
pub struct Profile {
    filters: Vec<&'static dyn Filter>,
    scores: Vec<(&'static dyn Score, i64)>,
}

/// A profile that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No plugin has this name.
    #[error("no plugin is named {0:?}")]
    Unknown(String),
    /// The binder checks it in any case: a profile without it would only collect rejections.
    #[error("filter {0:?} cannot be left out")]
    Missing(&'static str),
    /// It would not tell one node from another, or overflow.
    #[error("score {0:?} weighs {1}: not in 1..={WEIGHT_MAX}")]
    Weight(String, i64),
    /// All nodes would be alike.
    #[error("there is no score in it")]
    NoScore,
}

impl Profile {
    /// Selects filters by name and scores by name and weight; a name given twice counts once.
    ///
    /// # Errors
    /// A name that the registry does not know, a filter left out that the binder checks anyway, a weight out of range, or
    /// no score at all.
    pub fn new(filters: &[&str], scores: &[(&str, i64)]) -> Result<Self, ProfileError> {
        for name in filters {
            if !FILTERS.iter().any(|filter| filter.name() == *name) {
                return Err(ProfileError::Unknown((*name).to_owned()));
            }
        }
        if let Some(left_out) = FILTERS.iter().find(|filter| !filters.contains(&filter.name())) {
            return Err(ProfileError::Missing(left_out.name()));
        }
        let mut selected: Vec<(&'static dyn Score, i64)> = Vec::new();
        for (name, weight) in scores {
            let score = SCORES.iter().find(|score| score.name() == *name);
            let score = *score.ok_or_else(|| ProfileError::Unknown((*name).to_owned()))?;
            if !(1..=WEIGHT_MAX).contains(weight) {
                return Err(ProfileError::Weight((*name).to_owned(), *weight));
            }
            selected.retain(|(other, _)| other.name() != *name);
            selected.push((score, *weight));
        }
        if selected.is_empty() {
            return Err(ProfileError::NoScore);
        }
        // In registry order, whatever the order of names: it decides whom a refused node is counted for.
        Ok(Self { filters: FILTERS.to_vec(), scores: selected })
    }

    /// All filters, and scores by name and weight, as [`Self::new`].
    ///
    /// # Errors
    /// A name that the registry does not know, a weight out of range, or no score at all.
    pub fn of_scores(scores: &[(&str, i64)]) -> Result<Self, ProfileError> {
        Self::new(&FILTERS.map(|filter| filter.name()), scores)
    }

    /// The profile of a [`ScoringProfile`] with default weights.
    ///
    /// Stranded devices weigh 1,000 times as much as packing or spreading: one whole point of either is worth
    /// about a sixth of a thousandth of a device, so they decide between places that strand alike.
    pub fn preset(scoring: ScoringProfile) -> Self {
        let names: &[&str] = match scoring {
            ScoringProfile::LeastAllocated => &["least-allocated", "spread"],
            ScoringProfile::MostAllocated => &["most-allocated"],
        };
        let scores = SCORES.iter().filter_map(|score| match score.name() {
            "device-stranding" => Some((*score, 1_000)),
            other => names.contains(&other).then_some((*score, 1)),
        });
        Self { filters: FILTERS.to_vec(), scores: scores.collect() }
    }

    /// What is to be asked of nodes with room; the last filters of the registry refuse most often: first.
    pub fn gates(&self, cluster: &Cluster, ask: &Ask) -> Gates {
        let concerned = |filter: &&&'static dyn Filter| !filter.is_room() && filter.concerns(cluster, ask);
        Gates(self.filters.iter().rev().filter(concerned).copied().collect())
    }

    /// Whether a node passes all filters, with the plugin and the reason if not.
    ///
    /// # Errors
    /// The first filter that refuses, and why.
    pub fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), (&'static str, Unfit)> {
        for filter in &self.filters {
            filter.check(cluster, ask, node).map_err(|refusal| (filter.name(), refusal))?;
        }
        Ok(())
    }

    /// NodeScore of a place that passed.
    #[inline]
    pub fn rank(&self, place: &ScoreInput<'_>, tie: u32) -> NodeScore {
        let taints = place.cluster.node_taints(place.idx);
        let soft_taints = match place.ask.constraint().verdict(taints) {
            TaintVerdict::Soft(taints) => Reverse(taints),
            TaintVerdict::Refused => Reverse(u32::MAX),
        };
        let score =
            self.scores.iter().map(|(score, weight)| score.score(place).saturating_mul(*weight)).sum();
        NodeScore { soft_taints, score, tie }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scores: Vec<_> = self.scores.iter().map(|(score, weight)| (score.name(), weight)).collect();
        let filters: Vec<_> = self.filters.iter().map(|filter| filter.name()).collect();
        f.debug_struct("Profile").field("filters", &filters).field("scores", &scores).finish()
    }
}

impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Eq for Profile {}

/// The device work seen most: shapes with weights.
#[derive(Clone, Debug, Default)]
pub struct Typical {
    counts: FxHashMap<ShapeId, u64>,
    seen: u64,
    refresh_at: u64,
    shapes: Vec<(ShapeId, i64)>,
}

impl Typical {
    /// Weights add up to about this.
    pub const WEIGHT_SUM: i64 = 1 << 10;
    /// Shapes kept. On the openb trace 8 to 24 place alike; each costs time in every score of a device node.
    const N_SHAPES: usize = 16;
    /// Counts are halved at this sum, so that yesterday's work fades.
    const SEEN_MAX: u64 = 1 << 20;

    /// Running units of a shape with devices arrived.
    pub fn note(&mut self, shape: ShapeId, n_running_units: u64) {
        *self.counts.entry(shape).or_default() += n_running_units;
        self.seen += n_running_units;
        if self.seen >= self.refresh_at {
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        if self.seen >= Self::SEEN_MAX {
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            self.seen = self.counts.values().sum();
        }
        let mut counted: Vec<_> = self.counts.iter().map(|(shape, count)| (*shape, *count)).collect();
        counted.sort_unstable_by_key(|(shape, count)| (Reverse(*count), *shape));
        counted.truncate(Self::N_SHAPES);
        let sum: u64 = counted.iter().map(|(_, count)| count).sum();
        let weight = |count: u64| i64::try_from(count * (1 << 10) / sum.max(1)).unwrap_or(0);
        self.shapes = counted.into_iter().map(|(shape, count)| (shape, weight(count).max(1))).collect();
        // Again when an eighth has been added: cheap, and early work counts soon.
        self.refresh_at = self.seen + self.seen / 8 + 1;
    }

    /// Most frequent first.
    pub fn shapes(&self) -> &[(ShapeId, i64)] {
        &self.shapes
    }
}
