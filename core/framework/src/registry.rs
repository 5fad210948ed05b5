//! The one list of all plugins.

mod preempt;

use std::sync::Arc;

use godel_cluster::{Cluster, Unfit};
use godel_domain::ids::NodeId;
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
    profile::did_you_mean,
};

pub use godel_cluster::RESERVES;

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
            (ask, concerned): (NodeAsk<'_>, ConcernedFilters),
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

/// Arguments that a score refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadArgs {
    /// The argument that is wrong; `None`: they do not go together.
    pub field: Option<String>,
    /// What is wrong, and what is allowed.
    pub reason: String,
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
    let args = match args {
        Value::Null => S::Args::default(),
        given => {
            serde_json::from_value(given.clone()).map_err(|wrong| bad_args::<S>(given, &wrong.to_string()))?
        }
    };
    Ok(Arc::new(S::new(args).map_err(|reason| BadArgs { field: None, reason })?))
}

/// Which argument is wrong, and what it may be.
fn bad_args<S: Score>(given: &Value, wrong: &str) -> BadArgs {
    let fields = <S::Args as PluginArgs>::FIELDS;
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    let Some(given) = given.as_object() else {
        return BadArgs { field: None, reason: format!("{wrong}: a map of arguments is expected") };
    };
    if let Some(unknown) = given.keys().find(|name| !names.contains(&name.as_str())) {
        let meant = did_you_mean(unknown, &names);
        let known =
            if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
        let reason = format!("`{}` has no argument `{unknown}`{meant}; {known}", S::NAME);
        return BadArgs { field: Some(unknown.clone()), reason };
    }
    // Each by itself, so that the one that is wrong is known.
    let is_wrong = |name: &str| {
        let alone = given
            .get(name)
            .map(|value| Value::Object([(name.to_owned(), value.clone())].into_iter().collect()));
        alone.is_some_and(|alone| serde_json::from_value::<S::Args>(alone).is_err())
    };
    match fields.iter().find(|field| is_wrong(field.name)) {
        Some(field) => BadArgs {
            field: Some(field.name.to_owned()),
            reason: format!("{wrong}; allowed is: {}", field.kind),
        },
        None => BadArgs { field: None, reason: wrong.to_owned() },
    }
}
