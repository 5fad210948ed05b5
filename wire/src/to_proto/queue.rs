//! Queues and priority classes.

use std::collections::BTreeMap;

use godel_domain::queue_spec::{PriorityClass, QueuePolicy, QueueSpec};
use godel_proto::v1;

/// A queue. Revisions and times of its metadata are left 0: the store keeps them.
pub fn queue(spec: &QueueSpec) -> v1::Queue {
    let QueueSpec {
        name,
        uid,
        labels,
        owner,
        min,
        max,
        weight,
        policy,
        submit_owners,
        max_running_units,
        owner_weights,
        max_per_owner,
        am_share_milli,
    } = spec;
    v1::Queue {
        meta: Some(v1::ObjectMeta {
            name: name.clone(),
            uid: uid.clone(),
            labels: super::map(labels),
            owner: owner.clone(),
            ..v1::ObjectMeta::default()
        }),
        min: amounts(min),
        max: amounts(max),
        weight: Some(*weight),
        policy: queue_policy(*policy).into(),
        submit_owners: submit_owners.clone(),
        max_running_units: super::unit::above_zero(*max_running_units),
        owner_weights: owner_weights.iter().map(|(owner, weight)| (owner.clone(), *weight)).collect(),
        max_per_owner: amounts(max_per_owner),
        am_share_milli: super::unit::above_zero(*am_share_milli),
    }
}

/// Order of a queue's units.
pub fn queue_policy(policy: QueuePolicy) -> v1::QueuePolicy {
    match policy {
        QueuePolicy::Fifo => v1::QueuePolicy::Fifo,
        QueuePolicy::Priority => v1::QueuePolicy::Priority,
        QueuePolicy::Drf => v1::QueuePolicy::Drf,
        QueuePolicy::FairShare => v1::QueuePolicy::FairShare,
    }
}

/// A priority class.
pub fn priority_class(class: &PriorityClass) -> v1::PriorityClass {
    let PriorityClass { name, value, preemptible, description } = class;
    v1::PriorityClass {
        name: name.clone(),
        value: *value,
        preemptible: *preemptible,
        description: description.clone(),
    }
}

fn amounts(amounts: &BTreeMap<String, i64>) -> Option<v1::Resources> {
    (!amounts.is_empty()).then(|| v1::Resources { amounts: amounts.clone() })
}
