//! Configuration of the dispatcher.

use godel_core_dispatcher::{self as dispatcher, policy::PolicyKind};
use godel_domain::{change::PartitionMode, sub_cluster};
use godel_kit::config::{ClientConfig, HumanDuration, LeaseConfig, ServerConfig, TelemetryConfig, TxnConfig};
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
    /// Always the same one for a unit.
    Hash,
    /// In turn.
    RoundRobin,
}

/// What schedulers have alike when nodes are split over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitStrategy {
    /// As many nodes.
    EvenCount,
    /// As much free room.
    #[default]
    FreeResources,
    /// The same in whole racks.
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

/// How nodes are split when sharing them does not do.
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
    /// When the mode in which nodes are split changes by itself; see docs/schedulers.md.
    pub struct ShuffleConfig {
        /// Whether it ever does. A mode set by hand stays in any case, until `godel partition set auto`.
        pub automatic: bool = true,
        /// Mode to change to from `global`: `preferred` or `strict`.
        pub split: Split = Split::Preferred,
        /// What schedulers have alike when nodes are split over them: `even-count` (as many nodes), `free-resources` (as
        /// much free room) or `topology` (the same, in whole racks).
        pub strategy: SplitStrategy = SplitStrategy::FreeResources,
        /// Label, or else attribute, of a node whose value names its rack, for `topology`.
        pub topology_key: String = "rack".to_owned(),
        /// Length of the windows in which load is counted.
        pub window: HumanDuration = HumanDuration::from_secs(10),
        /// Nodes are split after so many windows in a row with more conflicts than `conflicts_permille_above` and
        /// `conflicts_per_s_min` say. At least 1.
        pub windows: u32 = 3,
        /// Running units refused by the binder because another party was faster, of a thousand answers.
        pub conflicts_permille_above: u32 = 10,
        /// Fewer of them a second than this are never too many.
        pub conflicts_per_s_min: u64 = 10,
        /// Nodes are split only where the load is high too, in each of the windows: more allocated than
        /// `allocated_percent_above` or more placed than `placed_per_s_above`; and shared again only where it is low.
        pub require_pressure: bool = false,
        /// See `require_pressure`: of the scarcest resource, per cent of what all nodes have.
        pub allocated_percent_above: u32 = 90,
        /// See `require_pressure`: running units bound per second, all schedulers together.
        pub placed_per_s_above: u64 = 2_000,
        /// Nodes are shared again after windows of this length together with fewer conflicts than
        /// `conflicts_permille_below` says.
        pub calm: HumanDuration = HumanDuration::from_secs(60),
        /// Where conflicts come back within the calm before, the next one has to last twice as long, up to this.
        pub calm_max: HumanDuration = HumanDuration::from_secs(1_800),
        /// See `calm`. More than `conflicts_permille_above` counts as that.
        pub conflicts_permille_below: u32 = 5,
        /// See `require_pressure`: nodes are shared again with less than this. More than `allocated_percent_above` counts as
        /// that.
        pub allocated_percent_below: u32 = 80,
        /// See `require_pressure`: the same. More than `placed_per_s_above` counts as that.
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
        /// Bytes of submissions that wait to become durable, in KiB; each one counts at least 1. When full,
        /// unary submitters get RESOURCE_EXHAUSTED with a retry hint and streams pause.
        pub admission_queue_kib: u32 = 16_384,
        /// Units submitted by calls and neither bound nor known to have to wait (for room, a quota, a pause) at most; further
        /// calls get RESOURCE_EXHAUSTED with a retry hint. At least 1.
        pub calls_in_hand_max: u32 = 256,
        /// The same in an overload, which is from the first such refusal until all who call can be in hand again. Few: what
        /// is admitted is bound nearly as soon as without load. As many as `calls_in_hand_max`: more are bound a second,
        /// each later; see docs/api.md.
        pub calls_in_hand_overloaded: u32 = 2,
        /// Streams of submissions are not read while so many units wait for schedulers that could place more if they were
        /// faster.
        pub streams_backlog_max: usize = 65_536,
        /// Units known at once, ended ones included; further ones are refused like at a full queue.
        pub units_max: usize = 2_000_000,
        /// Bytes of units in one transaction.
        pub txn_bytes_max: usize = 512 << 10,
        /// Units in one transaction.
        pub txn_units_max: usize = 4_096,
        /// Transactions of submissions under way at once. Few: while they are, units gather into larger ones.
        pub txns_in_flight_max: usize = 4,
        /// Ended units kept at most; the oldest go first.
        pub ended_units_max: usize = 100_000,
        /// Of the running units handed out at least so many per cent are those of each lower band that waits (`system`,
        /// `online`, `batch`, `best-effort`), whatever waits above it. More than 50 counts as 50.
        pub band_floor_percent: u8 = 5,
        /// A unit that others pass for so long while it waits for room under a queue's maximum gets the room that
        /// gets free there from then on.
        pub head_wait: HumanDuration = HumanDuration::from_secs(60),
        /// A gang that found no place for so long gathers room: what becomes free on nodes chosen for it is held until all
        /// of it fits, of one gang per sub-cluster and pool at a time. 0: never.
        pub gang_hold_after: HumanDuration = HumanDuration::from_secs(60),
        /// Label, or else attribute, of a node whose value is its sub-cluster; the same for schedulers and binders. Empty: there
        /// are none.
        pub sub_cluster_key: String = sub_cluster::KEY.to_owned(),
        /// After a change of leader, units read from the store wait so long at most for schedulers that may
        /// hold them.
        pub settle: HumanDuration = HumanDuration::from_secs(3),
        /// An eviction without effect is asked for again after this.
        pub evict_retry: HumanDuration = HumanDuration::from_secs(2),
        /// When more than this share of all nodes is lost within `loss_window`, percent, and at least `loss_nodes_min`,
        /// nothing is evicted from lost nodes until enough are back or `godel node resume-evictions` says so. 100:
        /// never.
        pub loss_percent_max: u32 = 10,
        /// See `loss_percent_max`. At least 1.
        pub loss_nodes_min: usize = 2,
        /// See `loss_percent_max`.
        pub loss_window: HumanDuration = HumanDuration::from_secs(60),
        /// Changes of schedulers and nodes are gathered so long before nodes are split anew.
        pub partition_debounce: HumanDuration = HumanDuration::from_millis(500),
        /// Between two passes of the reconciler.
        pub reconcile_interval: HumanDuration = HumanDuration::from_secs(2),
        /// Requests that wait for the dispatcher's loop.
        pub calls_queued_max: usize = 4_096,
        /// Messages that may wait on one scheduler's stream; one that does not read them is cut off.
        pub scheduler_queue: usize = 1_024,
        /// Watches of units open at once.
        pub watches_max: usize = 1_024,
        /// For tests: `name[:n][,…]` makes the process die at the n-th hit of a point; empty arms nothing.
        pub crash_points: String = String::new(),
    }
    sections {
        /// When the mode in which nodes are split changes by itself.
        pub shuffle: ShuffleConfig,
        /// Where it serves.
        pub server: ServerConfig = ServerConfig::on_port(7701),
        /// How it calls the state service and the binder.
        pub client: ClientConfig,
        /// Its leadership.
        pub lease: LeaseConfig,
        /// Its transactions.
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
