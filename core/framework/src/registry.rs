//! The one list of all plugins.

mod args;
mod group;
mod preempt;

use std::sync::Arc;

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit};
use serde_json::Value;

use crate::{
    args::{ArgField, PluginArgs},
    ask::NodeAsk,
    plugins::{
        balanced_allocation, complementary, cpu_memory_ratio, daemon, device, device_stranding, dominant_fit,
        former_node, host_ports, least_allocated, load_aware, load_threshold, most_allocated, movement,
        node_affinity, node_class, node_ready, node_selector, numa_topology, reservation, resources_fit,
        runtime, spread, spread_preference, sub_cluster, taints, topology_domain, topology_spread,
        unit_affinity, unit_preference, volume,
    },
    point::{AnyFilter, AnyLocator, AnyRecommender, AnyScore, Filter, RestsOn, Score},
};

pub use godel_cluster::RESERVES;

pub use self::args::BadArgs;
use self::args::parse_args;
pub use self::group::{GROUPERS, GrouperEntry};
pub use self::preempt::{
    CANDIDATE_COSTS, CandidateKey, CandidateSort, PlaceCost, PreemptionEntry, VICTIM_RULES, may_leave,
    may_leave_whole,
};

/// Lists the filters for profiles, and calls each of them by name where the binder asks (hot path).
macro_rules! filters {
    ($($module:ident::$filter:ident),* $(,)?) => {
        /// Every filter. A refused node is counted for the first one in this order: what an administrator decides
        /// before what is merely full.
        pub static FILTERS: [&dyn AnyFilter; [$(stringify!($filter)),*].len()] = [$(&$module::$filter),*];

        /// The position of each filter in [`FILTERS`].
        #[derive(Clone, Copy)]
        enum FilterIdx {
            $($filter),*
        }

        /// Returns the filters that the binder asks about replicas like this one whether or not a node has changed.
        #[inline]
        pub fn concerned(cluster: &Cluster, ask: &NodeAsk<'_>) -> ConcernedFilters {
            let mut bits = 0;
            $(
                if <$module::$filter as Filter>::RESTS_ON == RestsOn::Anything
                    && Filter::concerns(&$module::$filter, cluster, ask)
                {
                    bits |= 1 << FilterIdx::$filter as u32;
                }
            )*
            ConcernedFilters(bits)
        }

        /// Whether a node takes a replica, room aside: the check of the binder, which every filter takes part in. What the
        /// records of the node decide is looked at only if they have changed since the decision was made. `concerned`: what
        /// [`concerned`] said of `ask`.
        ///
        /// # Errors
        /// The reason of the first filter that refuses the node.
        #[inline]
        pub fn admit(
            cluster: &Cluster,
            ask: NodeAsk<'_>,
            concerned: ConcernedFilters,
            node: NodeId,
            has_changed: bool,
        ) -> Result<(), Unfit> {
            $(
                let is_asked = match <$module::$filter as Filter>::RESTS_ON {
                    RestsOn::Room => false,
                    RestsOn::Records => has_changed,
                    RestsOn::Anything => concerned.0 & (1 << FilterIdx::$filter as u32) != 0,
                };
                if is_asked {
                    Filter::check(&$module::$filter, cluster, ask, node)?;
                }
            )*
            Ok(())
        }
    };
}

filters![
    node_ready::NodeReady,
    node_class::NodeClass,
    runtime::Runtime,
    node_selector::NodeSelector,
    taints::Taints,
    daemon::DaemonFilter,
    volume::VolumeFilter,
    unit_affinity::UnitAffinityFilter,
    topology_spread::TopologySpread,
    host_ports::HostPorts,
    load_threshold::LoadThreshold,
    device::Devices,
    resources_fit::ResourcesFit,
    numa_topology::NumaTopology,
];

/// Filters, a bit each in the order of [`FILTERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcernedFilters(u32);

const _: () = assert!(FILTERS.len() <= u32::BITS as usize, "a bit each");

/// Every locator.
pub static LOCATORS: [&dyn AnyLocator; 4] = [
    &topology_domain::TopologyDomain,
    &sub_cluster::SubClusterNodes,
    &daemon::DaemonNodes,
    &volume::VolumeNode,
];

/// Every recommender. A replica takes the first recommended node that it may have, those of the earlier recommender first.
pub static RECOMMENDERS: [&dyn AnyRecommender; 3] =
    [&movement::Movement, &reservation::SlotsFirst, &former_node::FormerNode];

/// Every score.
pub static SCORES: [ScoreEntry; 12] = [
    score::<balanced_allocation::BalancedAllocation>(),
    score::<complementary::Complementary>(),
    score::<cpu_memory_ratio::CpuMemoryRatio>(),
    score::<device_stranding::DeviceStranding>(),
    score::<dominant_fit::DominantFit>(),
    score::<least_allocated::LeastAllocated>(),
    score::<load_aware::LoadAware>(),
    score::<most_allocated::MostAllocated>(),
    score::<node_affinity::NodeAffinityScore>(),
    score::<spread::Spread>(),
    score::<spread_preference::SpreadPreference>(),
    score::<unit_preference::UnitPreference>(),
];

/// A score that profiles can name.
#[derive(Debug)]
pub struct ScoreEntry {
    /// [`Plugin::NAME`](crate::point::Plugin::NAME).
    pub name: &'static str,
    /// [`Plugin::DOC`](crate::point::Plugin::DOC).
    pub doc: &'static str,
    /// [`PluginArgs::FIELDS`].
    pub fields: &'static [ArgField],
    /// Returns the arguments as they are if a profile gives none.
    pub defaults: fn() -> Value,
    build: fn(&Value) -> Result<Arc<dyn AnyScore>, BadArgs>,
}

impl ScoreEntry {
    /// Returns the score with arguments; null stands for the defaults.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn build(&self, args: &Value) -> Result<Arc<dyn AnyScore>, BadArgs> {
        (self.build)(args)
    }
}

const fn score<S: Score>() -> ScoreEntry {
    ScoreEntry {
        name: S::NAME,
        doc: S::DOC,
        fields: <S::Args as PluginArgs>::FIELDS,
        defaults: || serde_json::to_value(S::Args::default()).unwrap_or_default(),
        build: build::<S>,
    }
}

fn build<S: Score>(args: &Value) -> Result<Arc<dyn AnyScore>, BadArgs> {
    let args = parse_args(S::NAME, args)?;
    Ok(Arc::new(S::new(args).map_err(BadArgs::together)?))
}
