//! The extension points: what a plugin can do, and when it is asked.
//!
//! | point | asked | says |
//! |---|---|---|
//! | [`Recommend`] | once per try of a task group, and for each of its replicas | which nodes come before any that a scan finds |
//! | [`Locate`] | once per scan | which blocks of nodes to look at, so that the others cost nothing |
//! | [`Group`] | once per try of a unit's first replicas, or of those of a task group with a topology of its own | which groups of nodes are tried, level by level, in which order, and whether a level binds |
//! | [`Filter`] | prepared once per template, then for each node with room; once more by the binder | whether the node can take a replica |
//! | [`Score`] | for each node that passed | how good the node is |
//! | `Reserve`, in `godel_cluster` | for each replica that is placed, bound, ended or forgotten | what the replica takes on its node, and gives back |
//! | [`VictimRule`] | for each running unit that might leave for a preemptor; once more by the binder | whether it may leave |
//! | [`CandidateCost`] | for each victim of each place that is compared | what the place costs |
//!
//! What a plugin does not concern costs nothing per node: a filter that finds nothing to check when it is prepared is left out.
//!
//! Points are added together with their first plugin. How the queues of a preemptor and a victim stand, `godel_placement::preempt` finds out and
//! gives to the rules, because this crate does not know queues.

use std::{fmt, sync::Arc};

use godel_base::ids::{NodeId, ReplicaId, UnitId};
use godel_cluster::{Cluster, NodeBlocks, Owned, Unfit};
use godel_domain::{allocation::Allocation, decision::RejectionReason};
use smallvec::SmallVec;

use crate::{
    args::PluginArgs,
    ask::{Ask, NodeAsk},
    typical::Typical,
};

mod group;
mod preempt;

pub use self::{
    group::{AnyGrouper, Group, GroupInput, GroupLevel, GroupOrder, Split},
    preempt::{
        CandidateCost, CountedVictim, Rank, Seeker, Sides, Spared, VictimInput, VictimRule, WholeUnit,
    },
};

/// Best score of one plugin: 100 points in thousandths.
pub const SCORE_MAX: i64 = 100_000;
/// Binary digits of [`SCORE_MAX`].
const SCORE_BITS: u32 = i64::BITS - SCORE_MAX.leading_zeros();

/// What every plugin says of itself.
pub trait Plugin: fmt::Debug + Sized + Send + Sync + 'static {
    /// The name in profiles, in the reasons of waiting units and in the docs; unique among all plugins.
    const NAME: &'static str;
    /// What it does, in a few sentences for the docs.
    const DOC: &'static str;
}

/// What the verdict of a filter rests on, which says when the filter has to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestsOn {
    /// The free room of the node. Scans look at that first, for all such filters at once, and the binder takes the room itself.
    Room,
    /// The records of the node. The binder asks only if the node has changed since the revision that a decision rests on.
    Records,
    /// Anything else. The binder asks for every running unit.
    Anything,
}

/// Says which nodes cannot take a replica. A filter has no arguments: the binder has to come to the same verdict, and knows
/// no profile.
pub trait Filter: Plugin {
    /// What its verdict rests on.
    const RESTS_ON: RestsOn;
    /// The reasons of the rejections that the binder makes of its refusals. A filter whose refusals are [`Unfit::Other`]
    /// leaves this as it is.
    const REASONS: &'static [RejectionReason] = &[RejectionReason::Filter];
    /// What it keeps of one template.
    type State: fmt::Debug + Send + Sync;

    /// Resolves what a template asks for, as the cluster is now; `None` if every node passes. This is done again whenever the
    /// cluster learns new labels or taints; whatever else changes, [`Self::passes`] has to read from the cluster.
    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<Self::State>;

    /// Whether the node at `idx` passes: equal to [`Self::check`], without building an error message (hot path).
    fn passes(state: &Self::State, cluster: &Cluster, idx: usize) -> bool;

    /// False only if every node passes for replicas like this one, whatever else they ask for: the binder leaves the filter out
    /// then. Whether a node keeps volumes for the replica is not known here.
    #[inline]
    fn concerns(&self, _cluster: &Cluster, _ask: &NodeAsk<'_>) -> bool {
        true
    }

    /// Whether a node passes.
    ///
    /// # Errors
    /// The most specific reason why not.
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit>;
}

/// Knows where the only nodes are that can pass a filter, so that a scan need not look at the others. It drops no node that the
/// filter would let pass. If several locators concern a template, a scan uses the one with the fewest blocks.
pub trait Locate: Plugin {
    /// The blocks of nodes to look at; `None` if it does not concern the template.
    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a>;

    /// The filter that refuses all other nodes, and why it does.
    fn elsewhere(&self, cluster: &Cluster, ask: &Ask) -> Option<(&'static str, Unfit)>;
}

/// Recommends nodes that come before any that a scan finds. A recommended node is taken only if it passes the filters and has room: a
/// recommendation refuses nothing, and scans find the places of replicas for which none holds.
pub trait Recommend: Plugin {
    /// Whether it may recommend nodes to replicas of a unit. Where it does not, nothing else is asked of it.
    fn concerns(&self, of: &RecommendInput<'_>) -> bool;

    /// Returns nodes for replicas of a template, whichever they are, the best first. A node stands there once for each replica that
    /// it is recommended to.
    fn for_any(&self, _cluster: &Cluster, _of: &RecommendInput<'_>) -> Vec<NodeId> {
        Vec::new()
    }

    /// Returns the node for one replica.
    fn for_replica(
        &self,
        _cluster: &Cluster,
        _of: &RecommendInput<'_>,
        _replica: ReplicaId,
    ) -> Option<NodeId> {
        None
    }
}

/// Whose replicas nodes are recommended to.
#[derive(Clone, Copy, Debug)]
pub struct RecommendInput<'a> {
    /// What one replica asks for.
    pub ask: &'a Ask,
    /// Its unit.
    pub unit: UnitId,
    /// Reservations that the unit owns.
    pub owned: &'a Owned,
    /// Whether its replicas prefer the nodes on which they ran.
    pub returns: bool,
    /// Whether movements hold room for some of its replicas.
    pub moves: bool,
}

/// Says how good a node is that passed all filters.
pub trait Score: Plugin {
    /// Its arguments in a profile.
    type Args: PluginArgs;

    /// Returns the plugin with arguments.
    ///
    /// # Errors
    /// What is wrong with them.
    fn new(args: Self::Args) -> Result<Self, String>;

    /// Whether it reads the running units by kind of work, which the cluster counts only if somebody does.
    fn counts_work(&self) -> bool {
        false
    }

    /// Whether it tells nodes apart for what a template asks for. Where it does not, it is left out of the sum.
    fn concerns(&self, _ask: &Ask) -> bool {
        true
    }

    /// 0 to [`SCORE_MAX`], higher is better.
    fn score(&self, place: &ScoreInput<'_>) -> i64;
}

/// A place that is possible.
#[derive(Debug)]
pub struct ScoreInput<'a> {
    /// The cluster before the placement.
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

/// Returns the score of a share: 0 for none of `whole`, [`SCORE_MAX`] for all of it or more, and between them in proportion, rounded
/// down. Exact unless `whole` has more than 110 binary digits; products of real amounts of two resources have fewer.
#[inline]
pub fn points_of(part: i128, whole: i128) -> i64 {
    if part >= whole {
        return SCORE_MAX;
    }
    if part <= 0 {
        return 0;
    }
    // Digits that do not show in the quotient make place for those of the factor.
    let shift = if whole >> (i128::BITS - 1 - SCORE_BITS) == 0 { 0 } else { SCORE_BITS };
    let points = (part >> shift) * i128::from(SCORE_MAX) / (whole >> shift);
    i64::try_from(points).unwrap_or(SCORE_MAX)
}

/// A [`Filter`], for the registry.
pub trait AnyFilter: Send + Sync {
    /// [`Plugin::NAME`].
    fn name(&self) -> &'static str;
    /// [`Plugin::DOC`].
    fn doc(&self) -> &'static str;
    /// [`Filter::RESTS_ON`].
    fn rests_on(&self) -> RestsOn;
    /// [`Filter::REASONS`].
    fn reasons(&self) -> &'static [RejectionReason];
    /// [`Filter::prepare`].
    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<Arc<dyn Gate>>;
    /// [`Filter::check`].
    ///
    /// # Errors
    /// The most specific reason why a node does not pass.
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit>;
}

impl<F: Filter> AnyFilter for F {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn doc(&self) -> &'static str {
        F::DOC
    }

    fn rests_on(&self) -> RestsOn {
        F::RESTS_ON
    }

    fn reasons(&self) -> &'static [RejectionReason] {
        F::REASONS
    }

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<Arc<dyn Gate>> {
        let state = Filter::prepare(self, cluster, ask)?;
        Some(Arc::new(PreparedFilter::<F>(state)))
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        Filter::check(self, cluster, ask, node)
    }
}

/// A [`Locate`], for the registry.
pub trait AnyLocator: Send + Sync {
    /// [`Plugin::NAME`].
    fn name(&self) -> &'static str;
    /// [`Plugin::DOC`].
    fn doc(&self) -> &'static str;
    /// [`Locate::locate`].
    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a>;
    /// [`Locate::elsewhere`].
    fn elsewhere(&self, cluster: &Cluster, ask: &Ask) -> Option<(&'static str, Unfit)>;
}

impl<L: Locate> AnyLocator for L {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn doc(&self) -> &'static str {
        L::DOC
    }

    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a> {
        Locate::locate(self, cluster, ask)
    }

    fn elsewhere(&self, cluster: &Cluster, ask: &Ask) -> Option<(&'static str, Unfit)> {
        Locate::elsewhere(self, cluster, ask)
    }
}

/// A [`Recommend`], for the registry.
pub trait AnyRecommender: Send + Sync {
    /// [`Plugin::NAME`].
    fn name(&self) -> &'static str;
    /// [`Plugin::DOC`].
    fn doc(&self) -> &'static str;
    /// [`Recommend::concerns`].
    fn concerns(&self, of: &RecommendInput<'_>) -> bool;
    /// [`Recommend::for_any`].
    fn for_any(&self, cluster: &Cluster, of: &RecommendInput<'_>) -> Vec<NodeId>;
    /// [`Recommend::for_replica`].
    fn for_replica(&self, cluster: &Cluster, of: &RecommendInput<'_>, replica: ReplicaId) -> Option<NodeId>;
}

impl<R: Recommend> AnyRecommender for R {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn doc(&self) -> &'static str {
        R::DOC
    }

    fn concerns(&self, of: &RecommendInput<'_>) -> bool {
        Recommend::concerns(self, of)
    }

    fn for_any(&self, cluster: &Cluster, of: &RecommendInput<'_>) -> Vec<NodeId> {
        Recommend::for_any(self, cluster, of)
    }

    fn for_replica(&self, cluster: &Cluster, of: &RecommendInput<'_>, replica: ReplicaId) -> Option<NodeId> {
        Recommend::for_replica(self, cluster, of, replica)
    }
}

/// A [`Score`] with its arguments.
pub trait AnyScore: fmt::Debug + Send + Sync {
    /// [`Plugin::NAME`].
    fn name(&self) -> &'static str;
    /// [`Score::counts_work`].
    fn counts_work(&self) -> bool;
    /// [`Score::concerns`].
    fn concerns(&self, ask: &Ask) -> bool;
    /// [`Score::score`].
    fn score(&self, place: &ScoreInput<'_>) -> i64;
}

impl<S: Score> AnyScore for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn counts_work(&self) -> bool {
        Score::counts_work(self)
    }

    fn concerns(&self, ask: &Ask) -> bool {
        Score::concerns(self, ask)
    }

    #[inline]
    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        Score::score(self, place)
    }
}

/// A filter, prepared for one template.
pub trait Gate: fmt::Debug + Send + Sync {
    /// The name of the filter.
    fn name(&self) -> &'static str;
    /// [`Filter::passes`].
    fn passes(&self, cluster: &Cluster, idx: usize) -> bool;
}

struct PreparedFilter<F: Filter>(F::State);

impl<F: Filter> Gate for PreparedFilter<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    #[inline]
    fn passes(&self, cluster: &Cluster, idx: usize) -> bool {
        F::passes(&self.0, cluster, idx)
    }
}

impl<F: Filter> fmt::Debug for PreparedFilter<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(F::NAME).field(&self.0).finish()
    }
}

/// Filters that may refuse a node with room for a template, as the cluster is now.
#[derive(Clone, Default)]
pub struct Gates(SmallVec<[Arc<dyn Gate>; 4]>);

impl Gates {
    /// Whether all let the node at `idx` pass.
    #[inline]
    pub fn admit(&self, cluster: &Cluster, idx: usize) -> bool {
        self.0.iter().all(|gate| gate.passes(cluster, idx))
    }
}

impl FromIterator<Arc<dyn Gate>> for Gates {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Gate>>>(gates: I) -> Self {
        Self(gates.into_iter().collect())
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|gate| gate.name())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_in_proportion() {
        let most = i128::from(i64::MAX);
        for (part, whole, expected) in [
            (0, 3, 0),
            (1, 3, 33_333),
            (2, 3, 66_666),
            (3, 3, 100_000),
            (4, 3, 100_000),
            (-1, 3, 0),
            (-1, 0, 0),
            (0, 0, 100_000),
            (1, 1 << 17, 0),
            (1 << 60, 1 << 61, 50_000),
            (most / 3, most, 33_333),
            (most - 1, most, 99_999),
            ((1 << 110) - 1, 1 << 110, 99_999),
            (most * (most / 7), most * most, 14_285),
            (1 << 125, 1 << 126, 50_000),
            (i128::MAX / 2, i128::MAX, 49_999),
            (i128::MAX - 1, i128::MAX, 100_000),
        ] {
            assert_eq!(points_of(part, whole), expected, "{part} of {whole}");
        }
    }
}
