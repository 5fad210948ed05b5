//! What scenarios cover: a code for everything that one of them has to provoke, taken from the lists that the code itself
//! works with. `scenarios/COVERAGE.md` shows which scenario covers which.
//!
//! A scenario that claims a code must leave its trace: `Traces` keeps what the store, units and metrics show. Only what a
//! plugin does leaves none.

use std::{collections::BTreeSet, fmt};

use godel_domain::{
    change::PartitionMode,
    decision::RejectionReason,
    defaults::{on_below_min_name, on_eviction_name, on_failure_name, restart_name},
    queue_spec::QueuePolicy,
    refusals::WaitReason,
    running_units::{EvictionReason, PhaseChange},
    unit::{OnBelowMin, OnEviction, OnFailure, RestartPolicy, UnitEnd},
};
use godel_framework::{
    profile::PreemptionMode,
    registry::{CANDIDATE_COSTS, FILTERS, GROUPERS, LOCATORS, RECOMMENDERS, RESERVES, SCORES, VICTIM_RULES},
};
use serde::{Deserialize, Deserializer};

use super::scalar::Scalar;

/// A kind of codes.
#[derive(Debug)]
pub struct Kind {
    /// Before the `/` of its codes.
    pub name: &'static str,
    /// A heading.
    pub title: &'static str,
    /// The values of the API's enums that begin so are its codes, and their comments say what they mean; `None`: the code
    /// says so itself.
    pub api: Option<&'static str>,
    /// Whether a scenario that covers a code leaves a trace of it.
    leaves_trace: bool,
    items: fn() -> Vec<Item>,
}

/// What a code stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Behind the `/` of its code.
    pub name: String,
    /// What it is; empty: the API says so.
    pub what: String,
}

/// Of a plugin: what it does shows in what is placed where.
pub const PLUGIN: &str = "plugin";
/// Of a unit that waits: what keeps it.
pub const WAITING: &str = "waiting";
/// Of a rejection.
pub const REASON: &str = "reason";
/// Of a change of a running unit's phase.
pub const TRANSITION: &str = "transition";
/// Of a search for victims: what it does shows in who leaves.
pub const PREEMPTION: &str = "preemption";
const POLICY: &str = "policy";
const PARTITION: &str = "partition";
const ON_EVICTION: &str = "on-eviction";
const ON_BELOW_MIN: &str = "on-below-min";
const ON_FAILURE: &str = "on-failure";
const RESTART_POLICY: &str = "restart-policy";
const ENDED: &str = "ended";
const EVICTION: &str = "eviction";

/// Every kind.
pub static KINDS: [Kind; 13] = [
    Kind { name: PLUGIN, title: "Plugins", api: None, leaves_trace: false, items: plugins },
    Kind {
        name: PREEMPTION,
        title: "Preemption modes of profiles",
        api: None,
        leaves_trace: false,
        items: preemption_modes,
    },
    named(POLICY, "Policies of queues", "QUEUE_POLICY_", || names(QueuePolicy::ALL, QueuePolicy::name)),
    named(PARTITION, "Partition modes", "PARTITION_MODE_", || names(PartitionMode::ALL, PartitionMode::name)),
    named(ON_EVICTION, "`on_eviction` of units", "ON_EVICTION_", || names(OnEviction::ALL, on_eviction_name)),
    named(ON_BELOW_MIN, "`on_below_min` of units", "ON_BELOW_MIN_", || {
        names(OnBelowMin::ALL, on_below_min_name)
    }),
    named(ON_FAILURE, "`on_failure` of units", "ON_FAILURE_", || names(OnFailure::ALL, on_failure_name)),
    named(RESTART_POLICY, "Restart policies", "RESTART_POLICY_", || names(RestartPolicy::ALL, restart_name)),
    named(REASON, "Rejections of the binder", "REJECTION_REASON_", || {
        names(RejectionReason::ALL, RejectionReason::name)
    }),
    Kind { name: WAITING, title: "Why a unit waits", api: None, leaves_trace: true, items: waiting },
    named(ENDED, "Why the dispatcher ended a unit", "UNIT_END_", || names(UnitEnd::ALL, UnitEnd::name)),
    named(EVICTION, "Why a running unit is evicted", "EVICTION_REASON_", || {
        names(EvictionReason::ALL, EvictionReason::name)
    }),
    Kind {
        name: TRANSITION,
        title: "Transitions of running units",
        api: None,
        leaves_trace: true,
        items: transitions,
    },
];

const fn named(
    name: &'static str,
    title: &'static str,
    prefix: &'static str,
    items: fn() -> Vec<Item>,
) -> Kind {
    Kind { name, title, api: Some(prefix), leaves_trace: true, items }
}

fn names<T: Copy, const N: usize>(all: [T; N], name: fn(T) -> &'static str) -> Vec<Item> {
    all.map(|one| Item { name: name(one).to_owned(), what: String::new() }).into()
}

fn item(name: &str, what: &str) -> Item {
    Item { name: name.to_owned(), what: what.to_owned() }
}

fn plugins() -> Vec<Item> {
    let filters = FILTERS.iter().map(|filter| item(filter.name(), filter.doc()));
    let locators = LOCATORS.iter().map(|locator| item(locator.name(), locator.doc()));
    let scores = SCORES.iter().map(|score| item(score.name, score.doc));
    let recommenders = RECOMMENDERS.iter().map(|one| item(one.name(), one.doc()));
    let reserves = RESERVES.iter().map(|kind| item(kind.name, kind.doc));
    let preemption = VICTIM_RULES.iter().chain(&CANDIDATE_COSTS).map(|one| item(one.name, one.doc));
    let groupers = GROUPERS.iter().map(|grouper| item(grouper.name, grouper.doc));
    let placing = filters.chain(locators).chain(recommenders).chain(groupers).chain(scores);
    placing.chain(reserves).chain(preemption).collect()
}

fn preemption_modes() -> Vec<Item> {
    PreemptionMode::ALL.map(|mode| item(mode.name(), mode.doc())).into()
}

fn waiting() -> Vec<Item> {
    let filters = FILTERS.iter().map(|filter| item(filter.name(), "Nodes do not pass this filter."));
    filters.chain(WaitReason::ALL.iter().map(|why| item(why.name(), why.doc()))).collect()
}

fn transitions() -> Vec<Item> {
    let item = |(change, when): (PhaseChange, &str)| item(&change.to_string(), when);
    PhaseChange::all().into_iter().map(item).collect()
}

impl Kind {
    /// Returns what its codes stand for, in order.
    pub fn items(&self) -> Vec<Item> {
        (self.items)()
    }
}

/// A code, as `plugin/taints`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code {
    kind: &'static str,
    name: String,
}

impl Code {
    /// Returns the code of something.
    ///
    /// # Errors
    /// There is no such thing; with everything that there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all = |names: Vec<String>| names.join(", ");
        let (kind, name) = text.split_once('/').unwrap_or((text, ""));
        let Some(kind) = KINDS.iter().find(|known| known.name == kind) else {
            let kinds = all(KINDS.iter().map(|kind| format!("{}/", kind.name)).collect());
            return Err(format!("`{text}` is of no kind: a code begins with one of {kinds}"));
        };
        let names: Vec<String> = kind.items().into_iter().map(|item| item.name).collect();
        if !names.iter().any(|known| known == name) {
            return Err(format!("there is no {}/{name}: there are {}", kind.name, all(names)));
        }
        Ok(Self { kind: kind.name, name: name.to_owned() })
    }

    fn leaves_trace(&self) -> bool {
        KINDS.iter().any(|kind| kind.name == self.kind && kind.leaves_trace)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("a code as `plugin/taints`", Self::parse))
    }
}

/// What has been seen of codes that leave a trace.
#[derive(Debug, Default)]
pub(super) struct Traces(BTreeSet<(&'static str, String)>);

impl Traces {
    /// A value of one of the API's enums was seen.
    pub(super) fn add_value(&mut self, value_name: &str) {
        let prefixed = |kind: &&Kind| kind.api.is_some_and(|prefix| value_name.starts_with(prefix));
        if let Some(kind) = KINDS.iter().find(prefixed) {
            let word = value_name.strip_prefix(kind.api.unwrap_or_default()).unwrap_or_default();
            self.add(kind.name, word.to_lowercase().replace('_', "-"));
        }
    }

    pub(super) fn add(&mut self, kind: &'static str, name: String) {
        self.0.insert((kind, name));
    }

    /// Codes that should have left a trace.
    pub(super) fn missing<'a>(&self, claimed: &'a [Code]) -> Vec<&'a Code> {
        let is_seen = |code: &Code| self.0.contains(&(code.kind, code.name.clone()));
        claimed.iter().filter(|code| code.leaves_trace() && !is_seen(code)).collect()
    }
}
