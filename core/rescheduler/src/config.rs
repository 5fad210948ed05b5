//! Which policies there are, when each runs and on what: the configuration, and everything that is wrong with one.

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::{label_expression::LabelExpression, names, unit::WorkloadClass};

use crate::{
    binpack::Binpack,
    colocation::Colocation,
    defragmentation::Defragmentation,
    failure_domains::FailureDomainSpread,
    fragmentation::TypicalDemand,
    load_balance::{HOT, LoadBalance},
    policy::Policy,
    trigger::Trigger,
};

/// Most policies of one configuration.
pub const N_POLICIES_MAX: usize = 32;
/// Shortest period of a policy, milliseconds.
pub const PERIOD_MIN_MS: u64 = 1_000;

/// The configuration of the rescheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RescheduleConfig {
    /// The policies, by a name of their own.
    pub policies: BTreeMap<String, PolicyConfig>,
    /// What is never moved.
    pub protection: Protection,
    /// How often replicas of one unit may be moved.
    pub rate: MoveRate,
    /// When nothing is moved.
    pub quiet: QuietTime,
    /// A run stops when more of its moves than this have failed, percent of those that ended.
    pub failed_max_percent: u32,
    /// A plan older than this is made again, not executed; milliseconds.
    pub plan_age_max_ms: u64,
}

impl RescheduleConfig {
    /// Returns the share of its CPU or network above which a node is hot: the least that a policy of load balance says, or else the default of
    /// these.
    pub fn hot(&self) -> f64 {
        let hot = self.policies.values().filter_map(|policy| match &policy.kind {
            RescheduleKind::LoadBalance(balance) => Some(balance.hot),
            RescheduleKind::Colocation(_)
            | RescheduleKind::Defragmentation(_)
            | RescheduleKind::Spread(_)
            | RescheduleKind::Binpack(_) => None,
        });
        hot.min_by(f64::total_cmp).unwrap_or(HOT)
    }
}

/// One policy of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    /// What it does.
    pub kind: RescheduleKind,
    /// Whether it runs.
    pub enabled: bool,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// What makes it run.
    pub triggers: Vec<Trigger>,
    /// What it may move, and where to.
    pub scope: PolicyScope,
    /// Names of the policies whose rules its moves keep.
    pub checked_by: BTreeSet<String>,
    /// Most running units that one plan moves, percent of those in scope.
    pub moved_max_percent: u32,
}

/// What a policy does, with its thresholds.
#[derive(Clone, Debug, PartialEq)]
pub enum RescheduleKind {
    /// Units that talk share nodes.
    Colocation(Colocation),
    /// No node is hot.
    LoadBalance(LoadBalance),
    /// Whole devices, nodes or domains become free.
    Defragmentation(Defragmentation),
    /// No domain takes too many replicas of a unit down with it.
    Spread(FailureDomainSpread),
    /// Few nodes have work.
    Binpack(Binpack),
}

impl RescheduleKind {
    /// Returns the policy itself.
    pub fn policy(&self) -> &dyn Policy {
        match self {
            Self::Colocation(policy) => policy,
            Self::LoadBalance(policy) => policy,
            Self::Defragmentation(policy) => policy,
            Self::Spread(policy) => policy,
            Self::Binpack(policy) => policy,
        }
    }
}

/// What a policy may move, and where to. Empty parts admit everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyScope {
    /// Sub-clusters by name.
    pub sub_clusters: BTreeSet<String>,
    /// Conditions on labels of nodes, all of which hold.
    pub node_labels: Vec<LabelExpression>,
    /// Queues by name; only units that these pay for are moved.
    pub queues: BTreeSet<String>,
}

/// What is never moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Kinds of work; daemons never move, whatever stands here.
    pub classes: BTreeSet<WorkloadClass>,
    /// Conditions on labels of units: a unit that meets one of them is protected.
    pub labels: Vec<LabelExpression>,
    /// Units by name.
    pub units: BTreeSet<String>,
}

/// How many replicas of one unit may be moved within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveRate {
    /// Moves.
    pub n_moves_max: u32,
    /// Within this, milliseconds.
    pub within_ms: u64,
}

impl Default for MoveRate {
    /// One hour, and as many moves as a unit of moderate size has replicas.
    fn default() -> Self {
        Self { n_moves_max: 10, within_ms: 3_600_000 }
    }
}

/// When nothing is moved: the cluster is not at rest while much waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietTime {
    /// Nothing is moved while more units than this wait.
    pub n_pending_max: u64,
    /// Nor until this long after, milliseconds.
    pub for_ms: u64,
}

impl Default for QuietTime {
    fn default() -> Self {
        Self { n_pending_max: 100, for_ms: 60_000 }
    }
}

/// Something that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFault {
    /// There are too many.
    #[error("{0} policies; at most {N_POLICIES_MAX} are possible")]
    TooMany(usize),
    /// No policy is left of those in force: a file that is empty by mistake says the same.
    #[error(
        "it has no policy, and {0} are in force, which stay: set `enabled = false` for each that is not to run, or restart the rescheduler"
    )]
    NoneLeft(usize),
    /// The name is none.
    #[error("policy `{name}`: its name: {wrong}")]
    Name {
        /// As written.
        name: String,
        /// What is wrong with it.
        wrong: names::BadName,
    },
    /// It can never run.
    #[error("policy `{0}` is enabled and has no trigger")]
    NoTrigger(String),
    /// It would run all the time.
    #[error("policy `{0}` runs more often than once in {PERIOD_MIN_MS} ms")]
    Period(String),
    /// It checks itself.
    #[error("policy `{0}` is checked by itself, which its objective does already")]
    ChecksItself(String),
    /// A check names a policy that is not there.
    #[error("policy `{policy}` is checked by `{check}`, which is no enabled policy")]
    UnknownCheck {
        /// The policy.
        policy: String,
        /// What it names.
        check: String,
    },
    /// Two policies could undo one another.
    #[error("policies `{0}` and `{1}` are enabled and neither is checked by the other")]
    Unrelated(String, String),
    /// A share is not one.
    #[error("{of}: {field} is {value}, and must be from {least} to {most}")]
    OutOfRange {
        /// Of what: a policy or the whole.
        of: String,
        /// Which number.
        field: &'static str,
        /// As written.
        value: String,
        /// The least.
        least: &'static str,
        /// The greatest.
        most: &'static str,
    },
    /// A condition on labels is none.
    #[error("{of}: {wrong}")]
    Labels {
        /// Of what: a policy, or what is protected.
        of: String,
        /// What is wrong with it.
        wrong: godel_domain::label_expression::BadExpression,
    },
}

impl RescheduleConfig {
    /// Returns everything that is wrong; empty: the configuration is sound.
    pub fn faults(&self) -> Vec<ConfigFault> {
        let mut faults = Vec::new();
        if self.policies.len() > N_POLICIES_MAX {
            faults.push(ConfigFault::TooMany(self.policies.len()));
        }
        for (name, policy) in &self.policies {
            self.policy_faults(name, policy, &mut faults);
        }
        let enabled: Vec<(&String, &PolicyConfig)> =
            self.policies.iter().filter(|(_, policy)| policy.enabled).collect();
        for (at, (one, policy)) in enabled.iter().enumerate() {
            for (other, other_policy) in &enabled[at + 1..] {
                if !policy.checked_by.contains(*other) && !other_policy.checked_by.contains(*one) {
                    faults.push(ConfigFault::Unrelated((*one).clone(), (*other).clone()));
                }
            }
        }
        let whole = || "rescheduler".to_owned();
        percent(&whole(), "failed_max_percent", self.failed_max_percent, &mut faults);
        if self.rate.within_ms == 0 {
            faults.push(out_of_range(&whole(), "rate.within_ms", 0, "1", "any"));
        }
        label_faults("what is protected", &self.protection.labels, &mut faults);
        faults
    }

    fn policy_faults(&self, name: &str, policy: &PolicyConfig, faults: &mut Vec<ConfigFault>) {
        if let Err(wrong) = names::label(name) {
            faults.push(ConfigFault::Name { name: name.to_owned(), wrong });
        }
        if policy.enabled && policy.triggers.is_empty() {
            faults.push(ConfigFault::NoTrigger(name.to_owned()));
        }
        let is_short = |trigger: &Trigger| match trigger {
            Trigger::Period { every_ms, .. } => *every_ms < PERIOD_MIN_MS,
            Trigger::Cron(_) | Trigger::Signal | Trigger::Request => false,
        };
        if policy.triggers.iter().any(is_short) {
            faults.push(ConfigFault::Period(name.to_owned()));
        }
        for check in &policy.checked_by {
            if check == name {
                faults.push(ConfigFault::ChecksItself(name.to_owned()));
            } else if policy.enabled && !self.policies.get(check).is_some_and(|other| other.enabled) {
                faults.push(ConfigFault::UnknownCheck { policy: name.to_owned(), check: check.clone() });
            }
        }
        let of = format!("policy `{name}`");
        percent(&of, "moved_max_percent", policy.moved_max_percent, faults);
        label_faults(&of, &policy.scope.node_labels, faults);
        match &policy.kind {
            RescheduleKind::Colocation(Colocation { remote_max, heat, .. }) => {
                share(&of, "remote_max", *remote_max, faults);
                if !heat.is_finite() || *heat <= 0.0 {
                    faults.push(out_of_range(&of, "heat", heat, "above 0", "any finite number"));
                }
            }
            RescheduleKind::LoadBalance(LoadBalance { hot, calm }) => {
                share(&of, "hot", *hot, faults);
                share(&of, "calm", *calm, faults);
                if calm > hot {
                    faults.push(out_of_range(&of, "calm", calm, "0", "hot"));
                }
            }
            RescheduleKind::Defragmentation(Defragmentation { typical, .. }) => {
                let is_sound = |one: &TypicalDemand| one.weight.is_finite() && one.weight >= 0.0;
                if let Some(bad) = typical.iter().find(|one| !is_sound(one)) {
                    faults.push(out_of_range(&of, "weight", bad.weight, "0", "any finite number"));
                }
            }
            RescheduleKind::Spread(FailureDomainSpread { n_domains, .. }) => {
                if *n_domains < 2 {
                    faults.push(out_of_range(&of, "n_domains", n_domains, "2", "any"));
                }
            }
            RescheduleKind::Binpack(Binpack { use_max, .. }) => share(&of, "use_max", *use_max, faults),
        }
    }
}

fn out_of_range(
    of: &str,
    field: &'static str,
    value: impl ToString,
    least: &'static str,
    most: &'static str,
) -> ConfigFault {
    ConfigFault::OutOfRange { of: of.to_owned(), field, value: value.to_string(), least, most }
}

fn percent(of: &str, field: &'static str, value: u32, faults: &mut Vec<ConfigFault>) {
    if value > 100 {
        faults.push(out_of_range(of, field, value, "0", "100"));
    }
}

fn share(of: &str, field: &'static str, value: f64, faults: &mut Vec<ConfigFault>) {
    if !(0.0..=1.0).contains(&value) {
        faults.push(out_of_range(of, field, value, "0", "1"));
    }
}

fn label_faults(of: &str, labels: &[LabelExpression], faults: &mut Vec<ConfigFault>) {
    let wrong = labels.iter().filter_map(|expression| expression.check().err());
    faults.extend(wrong.map(|wrong| ConfigFault::Labels { of: of.to_owned(), wrong }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(policies: &[(&str, RescheduleKind, &[&str])]) -> RescheduleConfig {
        let one = |(name, kind, checks): &(&str, RescheduleKind, &[&str])| {
            let policy = PolicyConfig {
                kind: kind.clone(),
                enabled: true,
                dry_run: false,
                triggers: vec![Trigger::Request],
                scope: PolicyScope::default(),
                checked_by: checks.iter().map(|check| (*check).to_owned()).collect(),
                moved_max_percent: 10,
            };
            ((*name).to_owned(), policy)
        };
        RescheduleConfig { policies: policies.iter().map(one).collect(), ..RescheduleConfig::default() }
    }

    fn balance() -> RescheduleKind {
        RescheduleKind::LoadBalance(LoadBalance::default())
    }

    fn pack() -> RescheduleKind {
        RescheduleKind::Binpack(Binpack::default())
    }

    #[test]
    fn two_enabled_policies_need_a_check_between_them() {
        let unrelated = config(&[("a", balance(), &[]), ("b", pack(), &[])]);
        assert_eq!(unrelated.faults(), [ConfigFault::Unrelated("a".to_owned(), "b".to_owned())]);
        assert_eq!(config(&[("a", balance(), &[]), ("b", pack(), &["a"])]).faults(), []);
        let mut off = unrelated;
        if let Some(policy) = off.policies.get_mut("b") {
            policy.enabled = false;
        }
        assert_eq!(off.faults(), []);
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let mut bad = config(&[
            ("A b", RescheduleKind::LoadBalance(LoadBalance { hot: 0.5, calm: 0.9 }), &["A b", "gone"]),
            ("c", RescheduleKind::Spread(FailureDomainSpread { level: None, n_domains: 1 }), &["A b"]),
        ]);
        for policy in bad.policies.values_mut() {
            policy.triggers = vec![Trigger::Period { every_ms: 10, jitter_ms: 0 }];
            policy.moved_max_percent = 101;
            policy.scope.node_labels = vec![LabelExpression::is("", "x")];
        }
        bad.failed_max_percent = 200;
        bad.rate.within_ms = 0;
        let faults: Vec<String> = bad.faults().iter().map(ToString::to_string).collect();
        for expected in [
            "its name",
            "policy `A b` runs more often",
            "policy `A b` is checked by itself",
            "checked by `gone`",
            "calm is 0.9",
            "n_domains is 1",
            "moved_max_percent is 101",
            "failed_max_percent is 200",
            "rate.within_ms is 0",
            "label ``",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:#?}");
        }
        let mut idle = config(&[("a", pack(), &[])]);
        if let Some(policy) = idle.policies.get_mut("a") {
            policy.triggers.clear();
        }
        assert_eq!(idle.faults(), [ConfigFault::NoTrigger("a".to_owned())]);
    }
}
