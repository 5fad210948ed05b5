//! How the dispatcher works.

use godel_domain::sub_cluster;
use godel_queueing as queue;
use godel_rules::{lost_nodes, partition::StrategyKind, partition_mode};

use super::{history::HistoryLimits, policy::PolicyKind};

/// How the dispatcher works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which scheduler gets a unit.
    pub policy: PolicyKind,
    /// After the start, units read from the store wait so long at most for schedulers that may hold them,
    /// milliseconds. One lease.
    pub settle_ms: u64,
    /// An eviction without effect is asked for again after this, milliseconds.
    pub evict_retry_ms: u64,
    /// Changes of schedulers and nodes are gathered so long before nodes are split anew, milliseconds.
    pub partition_debounce_ms: u64,
    /// Between two passes of the reconciler, milliseconds.
    pub reconcile_ms: u64,
    /// A unit reported as done whose rows still say otherwise after this is queued again, milliseconds.
    pub done_grace_ms: u64,
    /// Gangs that found no place for so long gather room in turn, milliseconds; 0: never.
    pub gang_hold_after_ms: u64,
    /// Ended units kept at most.
    pub n_ended_max: usize,
    /// How much is kept of units that are deleted.
    pub history: HistoryLimits,
    /// Replicas of units that grow are compacted so long after their end, milliseconds.
    pub compact_after_ms: u64,
    /// How queues are served.
    pub queues: queue::Config,
    /// When nodes count as lost.
    pub losses: lost_nodes::Config,
    /// When the mode in which nodes are split changes by itself.
    pub shuffle: partition_mode::Config,
    /// What is balanced when nodes are split.
    pub strategy: StrategyKind,
    /// Label or attribute of nodes whose value says what fails together.
    pub topology_key: String,
    /// Label or attribute of nodes whose value is their sub-cluster; empty: there are none.
    pub sub_cluster_key: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::LeastLoaded,
            settle_ms: 3_000,
            evict_retry_ms: 2_000,
            partition_debounce_ms: 500,
            reconcile_ms: 2_000,
            done_grace_ms: 5_000,
            gang_hold_after_ms: 60_000,
            n_ended_max: 100_000,
            history: HistoryLimits {
                n_units_max: 10_000,
                n_runs_max: 500_000,
                age_ms: 30 * 24 * 3_600 * 1_000,
            },
            compact_after_ms: 10 * 60 * 1_000,
            queues: queue::Config::default(),
            losses: lost_nodes::Config::default(),
            shuffle: partition_mode::Config::default(),
            strategy: StrategyKind::default(),
            topology_key: "rack".to_owned(),
            sub_cluster_key: sub_cluster::KEY.to_owned(),
        }
    }
}
