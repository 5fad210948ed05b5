//! Queues and priority classes as shown.

use std::collections::BTreeMap;

use godel_base::{
    quantity,
    resources::{CPU, MEMORY},
};
use godel_domain::queue_spec::{QueuePolicy, show_share};
use godel_proto::v1;
use godel_wire::to_proto;
use serde::Serialize;

use super::{amounts, pairs};
use crate::{output::View, unit_file::show_amount};

/// Of the devices that columns show.
const GPU: &str = "gpu";

/// A queue and what it uses. Devices count by their kind in thousandths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueView {
    /// Path.
    pub name: String,
    /// Of its creation.
    pub uid: String,
    /// Who runs it.
    pub owner: String,
    /// For selection.
    pub labels: BTreeMap<String, String>,
    /// Guaranteed, as set.
    pub min: BTreeMap<String, i64>,
    /// Most it may use, as set.
    pub max: BTreeMap<String, i64>,
    /// Most running units; 0 for no limit.
    pub max_running_units: u32,
    /// Share among its siblings.
    pub weight: u32,
    /// `fifo`, `priority`, `drf`, `fair-share`.
    pub policy: String,
    /// Who may submit.
    pub submit_owners: Vec<String>,
    /// What owners weigh beside each other, where it is not 1.
    pub owner_weights: BTreeMap<String, u32>,
    /// Most that running units of any one owner take, as set.
    pub max_per_owner: BTreeMap<String, i64>,
    /// Share of each maximum that application masters may take, as `0.1`; empty for no limit.
    pub am_share: String,
    /// By its own running units.
    pub used: BTreeMap<String, i64>,
    /// By those below it, too.
    pub used_with_children: BTreeMap<String, i64>,
    /// In force.
    pub guaranteed: BTreeMap<String, i64>,
    /// Used above what is guaranteed.
    pub borrowed: BTreeMap<String, i64>,
    /// In force.
    pub max_in_force: BTreeMap<String, i64>,
    /// Units of it and those below it that wait.
    pub pending_units: u64,
    /// Running units of it and those below it.
    pub running_units: u64,
    /// Of its record; 0 without one.
    pub revision: u64,
    /// Of its record, Unix milliseconds.
    pub create_time_ms: i64,
}

impl From<&v1::QueueStatus> for QueueView {
    fn from(status: &v1::QueueStatus) -> Self {
        let queue = status.queue.clone().unwrap_or_default();
        let policy = policy(queue.policy());
        let meta = queue.meta.unwrap_or_default();
        let usage = status.usage.clone().unwrap_or_default();
        Self {
            name: meta.name,
            uid: meta.uid,
            owner: meta.owner,
            labels: meta.labels.into_iter().collect(),
            min: amounts(queue.min.as_ref()),
            max: amounts(queue.max.as_ref()),
            max_running_units: queue.max_running_units.unwrap_or_default(),
            weight: queue.weight.unwrap_or(1),
            policy: policy.to_owned(),
            submit_owners: queue.submit_owners,
            owner_weights: queue.owner_weights.into_iter().collect(),
            max_per_owner: amounts(queue.max_per_owner.as_ref()),
            am_share: queue.am_share_milli.map(show_share).unwrap_or_default(),
            used: amounts(usage.used.as_ref()),
            used_with_children: amounts(usage.used_with_children.as_ref()),
            guaranteed: amounts(usage.guaranteed.as_ref()),
            borrowed: amounts(usage.borrowed.as_ref()),
            max_in_force: amounts(usage.max.as_ref()),
            pending_units: usage.pending_units,
            running_units: usage.running_units,
            revision: meta.revision,
            create_time_ms: meta.create_time_ms,
        }
    }
}

/// A policy by its word.
pub fn parse_policy(word: &str) -> Option<v1::QueuePolicy> {
    QueuePolicy::ALL.into_iter().find(|policy| policy.name() == word).map(to_proto::queue_policy)
}

fn policy(policy: v1::QueuePolicy) -> &'static str {
    let known = QueuePolicy::ALL.into_iter().find(|known| to_proto::queue_policy(*known) == policy);
    known.unwrap_or_default().name()
}

impl QueueView {
    /// `used/guaranteed/max`, with `+borrowed` where there is some; a maximum that is not there is `-`.
    pub fn share(&self, name: &str) -> String {
        let of = |amounts: &BTreeMap<String, i64>| amounts.get(name).copied();
        let show_one = |amount: i64| match quantity::is_saturated(amount) {
            true => quantity::UNCOUNTED.to_owned(),
            false => show_amount(name, amount),
        };
        let show = |amount: Option<i64>| show_one(amount.unwrap_or(0));
        let max = of(&self.max_in_force).map_or_else(|| "-".to_owned(), |max| show_amount(name, max));
        let share = format!("{}/{}/{max}", show(of(&self.used_with_children)), show(of(&self.guaranteed)));
        match of(&self.borrowed).unwrap_or(0) {
            0 => share,
            borrowed => format!("{share} +{}", show_one(borrowed)),
        }
    }

    /// Every resource that anything is said of, in order of name.
    pub fn resources(&self) -> Vec<&str> {
        let of = [&self.used_with_children, &self.guaranteed, &self.max_in_force];
        let names: std::collections::BTreeSet<&str> =
            of.into_iter().flat_map(|amounts| amounts.keys().map(String::as_str)).collect();
        names.into_iter().collect()
    }

    fn weights(&self) -> String {
        let weights = self.owner_weights.iter().map(|(owner, weight)| format!("{owner}={weight}"));
        weights.collect::<Vec<_>>().join(",")
    }

    fn per_owner(&self) -> String {
        let limits = self.max_per_owner.iter();
        let shown = limits.map(|(name, amount)| format!("{name}={}", show_amount(name, *amount)));
        shown.collect::<Vec<_>>().join(",")
    }

    fn others(&self) -> String {
        let others = self.resources().into_iter().filter(|name| ![CPU, MEMORY, GPU].contains(name));
        others.map(|name| format!("{name}={}", self.share(name))).collect::<Vec<_>>().join(",")
    }
}

impl View for QueueView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "WEIGHT", "POLICY", "PENDING", "RUNNING", "CPU", "MEMORY", "GPU"];
    const WIDE: &'static [&'static str] = &[
        "OTHERS",
        "SUBMIT-OWNERS",
        "OWNER-WEIGHTS",
        "MAX-PER-OWNER",
        "AM-SHARE",
        "OWNER",
        "REVISION",
        "LABELS",
    ];

    fn row(&self) -> Vec<String> {
        let running = match self.max_running_units {
            0 => self.running_units.to_string(),
            max => format!("{}/{max}", self.running_units),
        };
        vec![
            self.name.clone(),
            self.weight.to_string(),
            self.policy.clone(),
            self.pending_units.to_string(),
            running,
            self.share(CPU),
            self.share(MEMORY),
            self.share(GPU),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.others(),
            self.submit_owners.join(","),
            self.weights(),
            self.per_owner(),
            self.am_share.clone(),
            self.owner.clone(),
            self.revision.to_string(),
            pairs(&self.labels),
        ]
    }
}

/// A priority class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriorityClassView {
    /// Unique.
    pub name: String,
    /// Priority of units that have none of their own.
    pub value: i32,
    /// Its running units may be made to leave for others.
    pub preemptible: bool,
    /// It has no record and stays as it is.
    pub built_in: bool,
    /// Free text.
    pub description: String,
    /// Of its record; 0 if built in.
    pub revision: u64,
    /// Of its record, Unix milliseconds.
    pub create_time_ms: i64,
}

impl From<&v1::PriorityClassStatus> for PriorityClassView {
    fn from(status: &v1::PriorityClassStatus) -> Self {
        let class = status.priority_class.clone().unwrap_or_default();
        Self {
            name: class.name,
            value: class.value,
            preemptible: class.preemptible,
            built_in: status.built_in,
            description: class.description,
            revision: status.revision,
            create_time_ms: status.create_time_ms,
        }
    }
}

impl View for PriorityClassView {
    const HEADERS: &'static [&'static str] = &["NAME", "VALUE", "PREEMPTIBLE", "BUILT-IN", "DESCRIPTION"];
    const WIDE: &'static [&'static str] = &["REVISION"];

    fn row(&self) -> Vec<String> {
        let yes_or_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        vec![
            self.name.clone(),
            self.value.to_string(),
            yes_or_no(self.preemptible),
            yes_or_no(self.built_in),
            self.description.clone(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![self.revision.to_string()]
    }
}
