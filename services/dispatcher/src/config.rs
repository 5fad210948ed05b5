//! Configuration of the dispatcher.

use godel_core_dispatcher::{self as dispatcher, history::HistoryLimits, policy::PolicyKind};
use godel_domain::{change::PartitionMode, sub_cluster};
use godel_kit::config::{
    ClientConfig, HumanDuration, IdentityConfig, LeaseConfig, ServerConfig, TelemetryConfig, TxnConfig,
};
use godel_queueing as queue;
use godel_rules::{lost_nodes, partition::StrategyKind, partition_mode};
use serde::{Deserialize, Serialize};

/// Which scheduler gets a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchPolicy {
    /// Fewest outstanding running units.
    #[default]
    LeastLoaded,
    /// The same scheduler for a unit each time.
    Hash,
    /// One scheduler after the other.
    RoundRobin,
}

/// What is balanced when nodes are split over schedulers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitStrategy {
    /// The number of nodes.
    EvenCount,
    /// The free room.
    #[default]
    FreeResources,
    /// The free room, in whole racks.
    Topology,
}

impl From<SplitStrategy> for StrategyKind {
    fn from(strategy: SplitStrategy) -> Self {
        match strategy {
            SplitStrategy::EvenCount => Self::EvenCount,
            SplitStrategy::FreeResources => Self::FreeResources,
            SplitStrategy::Topology => Self::Topology,
        }
    }
}

impl From<DispatchPolicy> for PolicyKind {
    fn from(policy: DispatchPolicy) -> Self {
        match policy {
            DispatchPolicy::LeastLoaded => Self::LeastLoaded,
            DispatchPolicy::Hash => Self::Hash,
            DispatchPolicy::RoundRobin => Self::RoundRobin,
        }
    }
}

/// The mode in which nodes are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Own nodes first, then the others.
    #[default]
    Preferred,
    /// Own nodes only.
    Strict,
}

godel_kit::section! {
    /// Automatic change of the partition mode. See docs/schedulers.md.
    pub struct ShuffleConfig {
        /// Change between global and partitioned mode automatically. A mode set by hand stays until `godel partition
        /// set auto`.
        pub automatic: bool = true,
        /// Mode to change to from `global`: `preferred` or `strict`.
        pub split: Split = Split::Preferred,
        /// What is balanced when nodes are split over schedulers: `even-count` (number of nodes), `free-resources`
        /// (free room) or `topology` (free room, in whole racks).
        pub strategy: SplitStrategy = SplitStrategy::FreeResources,
        /// Node label whose value is the rack of the node, for `topology`; if the label is absent, the attribute of
        /// that name.
        pub topology_key: String = "rack".to_owned(),
        /// Length of the windows in which the load is measured.
        pub window: HumanDuration = HumanDuration::from_secs(10),
        /// Nodes are split after this many consecutive windows above `conflicts_permille_above` and
        /// `conflicts_per_s_min`. At least 1.
        pub windows: u32 = 3,
        /// Conflicts above which nodes are split: running units that the binder rejected because another party was
        /// faster, per 1,000 answers.
        pub conflicts_permille_above: u32 = 10,
        /// Conflicts per second below which nodes are never split.
        pub conflicts_per_s_min: u64 = 10,
        /// Split nodes only while the load is high too: in each window more than `allocated_percent_above` is
        /// allocated or more than `placed_per_s_above` is placed. Nodes are shared again only while the load is low.
        pub require_pressure: bool = false,
        /// High load for `require_pressure`: percentage of the scarcest resource that is allocated, over all nodes.
        pub allocated_percent_above: u32 = 90,
        /// High load for `require_pressure`: running units bound per second by all schedulers together.
        pub placed_per_s_above: u64 = 2_000,
        /// Nodes are shared again after consecutive windows of this total length with fewer conflicts than
        /// `conflicts_permille_below`.
        pub calm: HumanDuration = HumanDuration::from_secs(60),
        /// Longest calm period. If conflicts return within the length of the last calm period, the next one must last
        /// twice as long, up to this limit.
        pub calm_max: HumanDuration = HumanDuration::from_secs(1_800),
        /// Conflicts per 1,000 answers below which a window counts as calm. Capped at `conflicts_permille_above`.
        pub conflicts_permille_below: u32 = 5,
        /// Low load for `require_pressure`: nodes are shared again below this percentage. Capped at
        /// `allocated_percent_above`.
        pub allocated_percent_below: u32 = 80,
        /// Low load for `require_pressure`: nodes are shared again below this rate. Capped at `placed_per_s_above`.
        pub placed_per_s_below: u64 = 1_500,
    }
}

impl ShuffleConfig {
    fn core(&self) -> partition_mode::Config {
        partition_mode::Config {
            is_on: self.automatic,
            split: match self.split {
                Split::Preferred => PartitionMode::Preferred,
                Split::Strict => PartitionMode::Strict,
            },
            window_ms: self.window.ms().max(1),
            high: partition_mode::ModeLimits {
                allocated_percent: self.allocated_percent_above,
                placed_per_s: self.placed_per_s_above,
                conflicts_permille: self.conflicts_permille_above,
            },
            conflicts_per_s: self.conflicts_per_s_min,
            needs_pressure: self.require_pressure,
            n_windows: self.windows,
            low: partition_mode::ModeLimits {
                allocated_percent: self.allocated_percent_below.min(self.allocated_percent_above),
                placed_per_s: self.placed_per_s_below.min(self.placed_per_s_above),
                conflicts_permille: self.conflicts_permille_below.min(self.conflicts_permille_above),
            },
            calm_ms: self.calm.ms(),
            calm_ms_max: self.calm_max.ms(),
        }
    }
}

godel_kit::section! {
    /// The dispatcher: submission, queues, schedulers.
    pub struct Config {
        /// Which scheduler gets a unit: `least-loaded`, `hash` or `round-robin`.
        pub policy: DispatchPolicy = DispatchPolicy::LeastLoaded,
        /// Size, in KiB, of the submissions that wait to become durable; each one counts at least 1. When full, unary
        /// calls get RESOURCE_EXHAUSTED with a retry hint and streams pause.
        pub admission_queue_kib: u32 = 16_384,
        /// Maximum number of units that calls have submitted and that are neither bound nor known to wait for room, a
        /// quota or a pause. Further calls get RESOURCE_EXHAUSTED with a retry hint. At least 1.
        pub calls_in_hand_max: u32 = 256,
        /// The same limit during an overload, which lasts from the first such refusal until all callers fit into
        /// `calls_in_hand_max`. A low value keeps the latency of admitted units near that without load;
        /// `calls_in_hand_max` binds more units per second, each of them later. See docs/api.md.
        pub calls_in_hand_overloaded: u32 = 2,
        /// Submission streams pause while this many units wait for schedulers that are busy, not for room.
        pub streams_backlog_max: usize = 65_536,
        /// Maximum number of units, ended ones included. Further submissions are refused as at a full queue.
        pub units_max: usize = 2_000_000,
        /// Maximum number of bytes of units in one transaction.
        pub txn_bytes_max: usize = 512 << 10,
        /// Maximum number of units in one transaction.
        pub txn_units_max: usize = 4_096,
        /// Maximum number of submission transactions in progress. A low value makes larger transactions.
        pub txns_in_flight_max: usize = 4,
        /// Maximum number of ended units that are kept. The oldest are deleted first.
        pub ended_units_max: usize = 100_000,
        /// Maximum number of deleted units of which the history is kept (`godel history`). The oldest go first. 0: none
        /// is kept.
        pub history_units_max: usize = 10_000,
        /// Maximum number of replicas that the kept history lists one by one: each takes 40 bytes of a dispatcher's
        /// memory. The oldest units go first.
        pub history_replicas_max: usize = 500_000,
        /// How long the history of a unit is kept after its end.
        pub history_age: HumanDuration = HumanDuration::from_secs(30 * 24 * 3_600),
        /// Replicas of a unit that grows (task groups were added to it, or it is of class `yarn`) are compacted so long after
        /// they ended or were released: only their sums are kept. They go a quarter of this late at most.
        pub compact_after: HumanDuration = HumanDuration::from_secs(10 * 60),
        /// Minimum share, in percent, of the running units handed out that each lower band with waiting units gets
        /// (`system`, `online`, `batch`, `best-effort`), whatever waits in higher bands. Values above 50 count as 50.
        pub band_floor_percent: u8 = 5,
        /// A unit that waits for room under a queue's maximum and has been overtaken for this long gets all room that
        /// becomes free there from then on.
        pub head_wait: HumanDuration = HumanDuration::from_secs(60),
        /// A gang or a large unit that is due and has found no place for this long gathers room: free room on nodes
        /// chosen for it is held until all of it fits, for one unit per sub-cluster and pool at a time. 0: never.
        pub gang_hold_after: HumanDuration = HumanDuration::from_secs(60),
        /// Node label whose value is the sub-cluster of the node; if the label is absent, the attribute of that name.
        /// Schedulers and binders must use the same key. Empty: no sub-clusters.
        pub sub_cluster_key: String = sub_cluster::KEY.to_owned(),
        /// Longest time after a change of leader that units read from the store wait for schedulers that may already
        /// have them.
        pub settle: HumanDuration = HumanDuration::from_secs(3),
        /// An eviction without effect is requested again after this time.
        pub evict_retry: HumanDuration = HumanDuration::from_secs(2),
        /// If more than this percentage of all nodes, and at least `loss_nodes_min`, is lost within `loss_window`,
        /// evictions from lost nodes stop until enough nodes are back or an operator runs `godel node
        /// resume-evictions`. 100: evictions never stop.
        pub loss_percent_max: u32 = 10,
        /// Number of lost nodes below which evictions do not stop (`loss_percent_max`). At least 1.
        pub loss_nodes_min: usize = 2,
        /// Time window in which lost nodes are counted (`loss_percent_max`).
        pub loss_window: HumanDuration = HumanDuration::from_secs(60),
        /// Delay in which changes of schedulers and nodes are collected before nodes are split again.
        pub partition_debounce: HumanDuration = HumanDuration::from_millis(500),
        /// Interval between two passes of the reconciler.
        pub reconcile_interval: HumanDuration = HumanDuration::from_secs(2),
        /// Maximum number of requests that wait for the dispatcher's event loop.
        pub calls_queued_max: usize = 4_096,
        /// Maximum number of messages that wait on one scheduler's stream. The stream of a scheduler that does not
        /// read them is closed.
        pub scheduler_queue: usize = 1_024,
        /// Maximum number of open watches of units.
        pub watches_max: usize = 1_024,
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is
        /// armed.
        pub crash_points: String = String::new(),
    }
    sections {
        /// Automatic change of the partition mode.
        pub shuffle: ShuffleConfig,
        /// The gRPC server.
        pub server: ServerConfig = ServerConfig::on_port(7701),
        /// Clients of the state service and the binder.
        pub client: ClientConfig,
        /// The certificate of the process.
        pub identity: IdentityConfig,
        /// The lease of the leader.
        pub lease: LeaseConfig,
        /// The transactions to the store.
        pub txn: TxnConfig,
        /// Logs.
        pub telemetry: TelemetryConfig,
    }
}

impl Config {
    /// The part that decisions need; `node_grace_ms` is state's.
    pub(crate) fn core(&self, node_grace_ms: u64) -> dispatcher::Config {
        dispatcher::Config {
            policy: self.policy.into(),
            settle_ms: self.settle.ms(),
            evict_retry_ms: self.evict_retry.ms(),
            partition_debounce_ms: self.partition_debounce.ms(),
            reconcile_ms: self.reconcile_interval.ms().max(100),
            gang_hold_after_ms: self.gang_hold_after.ms(),
            n_ended_max: self.ended_units_max,
            history: HistoryLimits {
                n_units_max: self.history_units_max,
                n_runs_max: self.history_replicas_max,
                age_ms: self.history_age.ms(),
            },
            compact_after_ms: self.compact_after.ms(),
            queues: queue::Config {
                floor_percent: self.band_floor_percent,
                head_wait_ms: self.head_wait.ms(),
            },
            losses: lost_nodes::Config {
                grace_ms: node_grace_ms,
                brake_percent: self.loss_percent_max,
                brake_nodes_min: self.loss_nodes_min,
                brake_window_ms: self.loss_window.ms(),
            },
            shuffle: self.shuffle.core(),
            strategy: self.shuffle.strategy.into(),
            topology_key: self.shuffle.topology_key.clone(),
            sub_cluster_key: self.sub_cluster_key.clone(),
            ..dispatcher::Config::default()
        }
    }
}
