//! Configuration of the rescheduler.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use godel_core_rescheduler::{
    DriverTerms, MoveRate, N_LOOKS_KEPT_MAX, Protection, QuietTime, RescheduleConfig,
};
use godel_core_rescheduler_leader::{RescheduleLeaderConfig, SnapshotConfig};
use godel_domain::{
    defaults,
    label_expression::{self, LabelExpression},
    sub_cluster,
    unit::WorkloadClass,
};
use godel_kit::config::{
    BadKey, ClientConfig, HumanDuration, IdentityConfig, LeaseConfig, ServerConfig, TelemetryConfig,
    TxnConfig,
};

pub use self::policies::PolicySpec;

mod policies;

/// Most moves of one movement: its record has to fit into one transaction.
const MOVES_MAX: usize = 1_000;

godel_kit::section! {
    /// The rescheduler: it finds running units that should be elsewhere, and moves them.
    pub struct Config {
        /// Run the rescheduler in `godel up`. `godel serve rescheduler` runs it in any case.
        pub enabled: bool = true,
        /// Policies by name, in a file: `{pack: {kind: binpack, every: 10m, args: {use_max: 0.4}}}`. See docs/rescheduler.md for all
        /// keys of a policy. They are read again while the rescheduler runs, and are refused as a whole if anything is wrong.
        pub policies: BTreeMap<String, PolicySpec> = BTreeMap::new(),
        /// Workload classes whose running units are never moved. Daemons, units of class `yarn` and units that a move would end never
        /// are.
        pub protected_classes: Vec<String> = Vec::new(),
        /// Units that are never moved, as `namespace/name`.
        pub protected_units: Vec<String> = Vec::new(),
        /// Conditions on labels of units, as `tier = gold, pinned`: a unit that meets one of them is never moved.
        pub protected_labels: String = String::new(),
        /// Replicas of one unit that may be moved within `rate_window`.
        pub rate_moves: u32 = 10,
        /// See `rate_moves`. What was moved is remembered over restarts.
        pub rate_window: HumanDuration = HumanDuration::from_secs(3_600),
        /// While more units than this wait for a place, policies do not run by themselves.
        pub quiet_pending_max: u64 = 100,
        /// Nor do they until this long after.
        pub quiet_for: HumanDuration = HumanDuration::from_secs(60),
        /// Whether load that is not godel's makes nodes hot and keeps moves away from them. False where several agents run on one machine without
        /// containers or limits of their own: each of them measures all of it.
        pub other_load: bool = true,
        /// A movement stops when more of its moves than this have failed, percent of those that ended; two failures never stop one.
        pub failed_max_percent: u32 = 20,
        /// A gang that has waited for this long, and that the nodes alone keep out, asks for moves that let it in; if there are none, again
        /// after twice as long. 0s: room is made only when somebody asks for it.
        pub make_room_after: HumanDuration = HumanDuration::from_secs(0),
        /// A plan of which nothing has begun after this time is made anew.
        pub plan_max_age: HumanDuration = HumanDuration::from_secs(5),
        /// Time in which the solver looks for the best that any plan could reach, when somebody asks for the plan of a policy with a small
        /// scope. 0s: it does not look.
        pub bound_time: HumanDuration = HumanDuration::from_secs(2),
        /// Maximum number of times that the rest of a movement is planned anew because a target was taken.
        pub replans_max: u32 = 3,
        /// Maximum number of moves of one movement, 1,000 at most.
        pub moves_max: usize = 500,
        /// A move whose running unit does not run again within this time has failed; its target is held for so long.
        pub move_timeout: HumanDuration = HumanDuration::from_secs(600),
        /// A movement makes no further moves after this time.
        pub movement_timeout: HumanDuration = HumanDuration::from_secs(7_200),
        /// Shortest time until the binder is asked again for a move that it refused for now.
        pub retry_min: HumanDuration = HumanDuration::from_millis(500),
        /// Longest time until then.
        pub retry_max: HumanDuration = HumanDuration::from_secs(15),
        /// Maximum number of ended movements that are kept; the newest one always is.
        pub movements_max: usize = 200,
        /// Ended movements are kept for this long.
        pub movements_ttl: HumanDuration = HumanDuration::from_secs(604_800),
        /// Time from leaving a node until a running unit does again what it did, as costs of moves count it, unless the unit says
        /// otherwise (label `godel.dev/restart-time`).
        pub restart_time: HumanDuration = HumanDuration::from_secs(30),
        /// File with the traffic between units, a pair per line as `default/web default/cache 120`. Not set: only what is
        /// reported is known.
        pub traffic_file: Option<PathBuf> = None,
        /// Maximum number of pairs of units whose traffic is known.
        pub traffic_max: usize = 100_000,
        /// Time between looks at what running units and others use of nodes, while `other_load` is set or a policy balances load.
        pub usage_interval: HumanDuration = HumanDuration::from_secs(30),
        /// Plans rest on what others, and policies that balance load on what running units, used within this time: 100 times `usage_interval` at most.
        pub usage_window: HumanDuration = HumanDuration::from_secs(600),
        /// The percentile of that, from 1 to 100 (the highest use), which so many per cent of the looks did not exceed.
        pub usage_percentile: u32 = 95,
        /// Time between looks at the files of the configuration.
        pub reload_interval: HumanDuration = HumanDuration::from_secs(5),
        /// Node label whose value is the sub-cluster of the node; if the label is absent, the attribute of that name.
        /// Must equal the dispatcher's key.
        pub sub_cluster_key: String = sub_cluster::KEY.to_owned(),
        /// Seed of what looks random in plans. 0: a new one with each start.
        pub seed: u64 = 0,
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is armed.
        pub crash_points: String = String::new(),
    }
    sections {
        /// The gRPC server. `POST /policies/NAME/run` is answered where it serves metrics, if that is a loopback address.
        pub server: ServerConfig = ServerConfig::on_port(7705),
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

/// Everything that is wrong with the policies of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadPolicies(pub Vec<String>);

impl Config {
    /// Returns what the decisions depend on.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn rescheduling(&self) -> Result<RescheduleConfig, BadPolicies> {
        let mut faults = Vec::new();
        let mut policies = BTreeMap::new();
        for (name, spec) in &self.policies {
            match spec.read() {
                Ok(policy) => {
                    policies.insert(name.clone(), policy);
                }
                Err(wrong) => {
                    faults.extend(wrong.into_iter().map(|wrong| format!("policy `{name}`: {wrong}")));
                }
            }
        }
        let has_all = policies.len() == self.policies.len();
        let config = RescheduleConfig {
            policies,
            protection: self.protection(&mut faults),
            rate: MoveRate { n_moves_max: self.rate_moves, within_ms: self.rate_window.ms() },
            quiet: QuietTime { n_pending_max: self.quiet_pending_max, for_ms: self.quiet_for.ms() },
            failed_max_percent: self.failed_max_percent,
            plan_age_max_ms: self.plan_max_age.ms(),
        };
        if !(1..=MOVES_MAX).contains(&self.moves_max) {
            faults.push(format!("`moves_max` is {}, and must be from 1 to {MOVES_MAX}", self.moves_max));
        }
        if self.retry_min > self.retry_max {
            faults.push("`retry_min` is above `retry_max`".to_owned());
        }
        let n_looks_max = u64::try_from(N_LOOKS_KEPT_MAX).unwrap_or(u64::MAX);
        let (interval_ms, window_ms) = (self.usage_interval.ms(), self.usage_window.ms());
        let n_looks = window_ms.div_ceil(interval_ms.max(1));
        if interval_ms == 0 || window_ms < interval_ms || n_looks > n_looks_max {
            faults.push(format!(
                "`usage_window` must be from one to {n_looks_max} times as long as `usage_interval`, and is {n_looks} times as long"
            ));
        }
        if !(1..=100).contains(&self.usage_percentile) {
            faults
                .push(format!("`usage_percentile` is {}, and must be from 1 to 100", self.usage_percentile));
        }
        let of_core = config.faults().into_iter().filter(|fault| {
            // A check that names a policy which is there, but cannot be read, is no second fault.
            has_all || !matches!(fault, godel_core_rescheduler::ConfigFault::UnknownCheck { .. })
        });
        faults.extend(of_core.map(|fault| fault.to_string()));
        if faults.is_empty() { Ok(config) } else { Err(BadPolicies(faults)) }
    }

    fn protection(&self, faults: &mut Vec<String>) -> Protection {
        let mut classes = BTreeSet::new();
        for name in &self.protected_classes {
            match class_named(name) {
                Some(class) => {
                    classes.insert(class);
                }
                None => faults.push(format!("`protected_classes`: there is no workload class `{name}`")),
            }
        }
        let labels = conditions(&self.protected_labels)
            .map_err(|wrong| faults.push(format!("`protected_labels`: {wrong}")))
            .unwrap_or_default();
        Protection { classes, labels, units: self.protected_units.iter().cloned().collect() }
    }

    /// Returns what the leader is configured with beside its policies.
    pub(crate) fn leader(&self) -> RescheduleLeaderConfig {
        RescheduleLeaderConfig {
            driver: DriverTerms {
                move_timeout_ms: self.move_timeout.ms(),
                movement_timeout_ms: self.movement_timeout.ms(),
                retry_ms: (self.retry_min.ms(), self.retry_max.ms()),
                failed_max_percent: self.failed_max_percent,
                plan_age_max_ms: self.plan_max_age.ms(),
                n_replans_max: self.replans_max,
            },
            snapshot: SnapshotConfig {
                sub_cluster_key: self.sub_cluster_key.clone(),
                other_load: self.other_load,
                restart_ms: self.restart_time.ms(),
            },
            moves_max: self.moves_max,
            bound_ms: self.bound_time.ms(),
            make_room_after_ms: self.make_room_after.ms(),
            movements_max: self.movements_max,
            movements_ttl_ms: self.movements_ttl.ms(),
        }
    }

    /// Whether the policies are sound.
    ///
    /// # Errors
    /// What is wrong, all of it.
    pub fn check(&self) -> Result<(), BadKey> {
        let bad = |BadPolicies(faults)| BadKey {
            key: "rescheduler.policies".to_owned(),
            reason: faults.join("; "),
        };
        self.rescheduling().map(drop).map_err(bad)
    }
}

/// Conditions of a text; none if it is empty.
fn conditions(text: &str) -> Result<Vec<LabelExpression>, label_expression::BadExpression> {
    if text.trim().is_empty() { Ok(Vec::new()) } else { label_expression::parse(text) }
}

fn class_named(name: &str) -> Option<WorkloadClass> {
    defaults::TABLE.iter().map(|line| line.class).find(|class| defaults::class_name(*class) == name)
}

#[cfg(test)]
mod tests {
    use godel_core_rescheduler::{RescheduleKind, Trigger};
    use godel_kit::config::Loader;

    use super::*;

    fn load(text: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("godel.yaml");
        std::fs::write(&path, text).unwrap();
        Loader::new().file(path).load().unwrap()
    }

    #[test]
    fn policies_of_every_kind_are_read() {
        let config = load(
            "policies:\n\
             \x20 pack: {kind: binpack, every: 10m, jitter: 1m, args: {use_max: 0.4, ends_within: 5m}}\n\
             \x20 balance: {kind: load-balance, cron: '0 3 * * *', signal: true, request: false, checked_by: [pack], args: {hot: 0.9}}\n\
             \x20 spread: {kind: spread, dry_run: true, checked_by: [pack, balance], args: {level: rack, domains: 3}}\n\
             \x20 talk: {kind: colocation, checked_by: [pack, balance, spread], queues: [prod]}\n\
             \x20 room: {kind: defragmentation, checked_by: [pack, balance, spread, talk], node_labels: 'gpu, zone in (a, b)',\n\
             \x20   args: {requests: {cpu: 8, memory: 64Gi}, devices: [{kind: gpu, count: 8}], enough: 4, typical: [{requests: {cpu: 1}, weight: 2}]}}\n\
             \x20 rate: {kind: defragmentation, enabled: false, args: {rate_max: 0.05}}\n\
             protected_classes: [gang]\nprotected_labels: 'tier = gold, pinned'\n",
        );
        let config = config.rescheduling().unwrap();
        assert_eq!(config.policies.len(), 6);
        let pack = &config.policies["pack"];
        assert_eq!(
            pack.triggers,
            [Trigger::Period { every_ms: 600_000, jitter_ms: 60_000 }, Trigger::Request]
        );
        assert!(matches!(&pack.kind, RescheduleKind::Binpack(one) if one.ends_within_ms == 300_000));
        assert_eq!(config.policies["balance"].triggers.len(), 2);
        assert_eq!(config.policies["room"].scope.node_labels.len(), 2);
        assert!(config.policies["spread"].dry_run && !config.policies["rate"].enabled);
        assert_eq!((config.protection.classes.len(), config.protection.labels.len()), (1, 2));
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let config = load(
            "policies:\n\
             \x20 a: {kind: binpak}\n\
             \x20 b: {kind: binpack, cron: '61 * * * *', node_labels: '==', args: {use_maxi: 1}}\n\
             \x20 c: {kind: binpack, every: 1ms, args: {use_max: 2}}\n\
             \x20 d: {kind: spread, args: {domains: 3}, checked_by: [a]}\n\
             protected_classes: [gold]\nmoves_max: 0\nretry_min: 1m\nusage_interval: 1s\nusage_window: 1h\nusage_percentile: 0\n",
        );
        let BadPolicies(faults) = config.rescheduling().unwrap_err();
        for expected in [
            "policy `a`: there is no kind `binpak`; there are binpack, colocation, defragmentation, load-balance, spread",
            "policy `b`: `cron`: `61`",
            "policy `b`: `node_labels`",
            "policy `b`: `args`: unknown field `use_maxi`",
            "policy `c` runs more often",
            "policy `c`: use_max is 2",
            "policies `c` and `d` are enabled and neither is checked by the other",
            "`protected_classes`: there is no workload class `gold`",
            "`moves_max` is 0",
            "`retry_min` is above",
            "`usage_window` must be from one to 100 times as long as `usage_interval`, and is 3600 times",
            "`usage_percentile` is 0",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:#?}");
        }
        assert!(!faults.iter().any(|fault| fault.contains("no enabled policy")), "{faults:#?}");
    }
}
