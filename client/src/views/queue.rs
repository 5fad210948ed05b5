//! Queues and priority classes as shown.

use std::collections::BTreeMap;

use godel_base::{
    quantity,
    resources::{CPU, MEMORY},
};
use godel_domain::queue_spec::{QueuePolicy, show_share};
use godel_proto::v1;
use godel_wire::to_proto;

use super::{amounts, pairs};
use crate::{
    output::{View, ViewColumn},
    unit_file::show_amount,
    view,
};

/// Of the devices that columns show.
const GPU: &str = "gpu";

view! {
    /// A queue and what it uses. Devices count by their kind in thousandths.
    pub struct QueueView from (status: &v1::QueueStatus) with {
        let queue = status.queue.clone().unwrap_or_default();
        let policy = policy(queue.policy());
        let meta = queue.meta.unwrap_or_default();
        let usage = status.usage.clone().unwrap_or_default();
    } {
        /// Path.
        pub name: String = meta.name,
        /// Of its creation.
        pub uid: String = meta.uid,
        /// Who runs it.
        pub owner: String = meta.owner,
        /// For selection.
        pub labels: BTreeMap<String, String> = meta.labels.into_iter().collect(),
        /// Guaranteed, as set.
        pub min: BTreeMap<String, i64> = amounts(queue.min.as_ref()),
        /// Most it may use, as set.
        pub max: BTreeMap<String, i64> = amounts(queue.max.as_ref()),
        /// Most running units; 0 for no limit.
        pub max_running_units: u32 = queue.max_running_units.unwrap_or_default(),
        /// Share among its siblings.
        pub weight: u32 = queue.weight.unwrap_or(1),
        /// `fifo`, `priority`, `drf`, `fair-share`.
        pub policy: String = policy.to_owned(),
        /// Who may submit.
        pub submit_owners: Vec<String> = queue.submit_owners,
        /// What owners weigh beside each other, where it is not 1.
        pub owner_weights: BTreeMap<String, u32> = queue.owner_weights.into_iter().collect(),
        /// Most that running units of any one owner take, as set.
        pub max_per_owner: BTreeMap<String, i64> = amounts(queue.max_per_owner.as_ref()),
        /// Share of each maximum that application masters may take, as `0.1`; empty for no limit.
        pub am_share: String = queue.am_share_milli.map(show_share).unwrap_or_default(),
        /// By its own running units.
        pub used: BTreeMap<String, i64> = amounts(usage.used.as_ref()),
        /// By those below it, too.
        pub used_with_children: BTreeMap<String, i64> = amounts(usage.used_with_children.as_ref()),
        /// In force.
        pub guaranteed: BTreeMap<String, i64> = amounts(usage.guaranteed.as_ref()),
        /// Used above what is guaranteed.
        pub borrowed: BTreeMap<String, i64> = amounts(usage.borrowed.as_ref()),
        /// In force.
        pub max_in_force: BTreeMap<String, i64> = amounts(usage.max.as_ref()),
        /// Units of it and those below it that wait.
        pub pending_units: u64 = usage.pending_units,
        /// Running units of it and those below it.
        pub running_units: u64 = usage.running_units,
        /// Of its record; 0 without one.
        pub revision: u64 = meta.revision,
        /// Of its record, Unix milliseconds.
        pub create_time_ms: i64 = meta.create_time_ms,
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
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("WEIGHT", |view| view.weight.to_string()),
        ("POLICY", |view| view.policy.clone()),
        ("PENDING", |view| view.pending_units.to_string()),
        ("RUNNING", |view| match view.max_running_units {
            0 => view.running_units.to_string(),
            max => format!("{}/{max}", view.running_units),
        }),
        ("CPU", |view| view.share(CPU)),
        ("MEMORY", |view| view.share(MEMORY)),
        ("GPU", |view| view.share(GPU)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("OTHERS", |view| view.others()),
        ("SUBMIT-OWNERS", |view| view.submit_owners.join(",")),
        ("OWNER-WEIGHTS", |view| view.weights()),
        ("MAX-PER-OWNER", |view| view.per_owner()),
        ("AM-SHARE", |view| view.am_share.clone()),
        ("OWNER", |view| view.owner.clone()),
        ("REVISION", |view| view.revision.to_string()),
        ("LABELS", |view| pairs(&view.labels)),
    ];
}

view! {
    /// A priority class.
    pub struct PriorityClassView from (status: &v1::PriorityClassStatus) with {
        let class = status.priority_class.clone().unwrap_or_default();
    } {
        /// Unique.
        pub name: String = class.name,
        /// Priority of units that have none of their own.
        pub value: i32 = class.value,
        /// Its running units may be made to leave for others.
        pub preemptible: bool = class.preemptible,
        /// It has no record and stays as it is.
        pub built_in: bool = status.built_in,
        /// Free text.
        pub description: String = class.description,
        /// Of its record; 0 if built in.
        pub revision: u64 = status.revision,
        /// Of its record, Unix milliseconds.
        pub create_time_ms: i64 = status.create_time_ms,
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

impl View for PriorityClassView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("VALUE", |view| view.value.to_string()),
        ("PREEMPTIBLE", |view| yes_or_no(view.preemptible)),
        ("BUILT-IN", |view| yes_or_no(view.built_in)),
        ("DESCRIPTION", |view| view.description.clone()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[("REVISION", |view| view.revision.to_string())];
}
