//! Queues and priority classes.

use std::collections::BTreeMap;

use godel_domain::queue_spec::{PriorityClass, QueuePolicy, QueueSpec, WEIGHT_DEFAULT};
use godel_proto::v1;

use super::{BadField, Result, value};
use crate::to_proto;

/// A queue as stored.
///
/// # Errors
/// It has no name, or a field that no stored queue has so.
pub fn queue(pb: v1::Queue) -> Result<QueueSpec> {
    let (spec, bad) = given_queue(pb);
    if let Some(first) = bad.into_iter().next() {
        return Err(first);
    }
    if spec.name.is_empty() {
        return Err(BadField::new("meta.name", "missing"));
    }
    for (field, amounts) in [("min", &spec.min), ("max", &spec.max), ("max_per_owner", &spec.max_per_owner)] {
        if let Some((name, _)) = amounts.iter().find(|(_, amount)| **amount < 0) {
            return Err(BadField::new(format!("{field}[{name:?}]"), "negative"));
        }
    }
    Ok(spec)
}

/// A queue as a client wrote it, and every field that cannot be read, which is left at its default. What can be
/// read may be wrong all the same: that is for the checks of admission.
pub fn given_queue(pb: v1::Queue) -> (QueueSpec, Vec<BadField>) {
    let v1::Queue {
        meta,
        min,
        max,
        weight,
        policy,
        submit_owners,
        max_running_units,
        owner_weights,
        max_per_owner,
        am_share_milli,
    } = pb;
    let meta = meta.unwrap_or_default();
    let mut bad = Vec::new();
    if !meta.namespace.is_empty() {
        bad.push(BadField::new("meta.namespace", "queues have no namespace"));
    }
    if max_running_units == Some(0) {
        let description = "0 would admit nothing: omit it for no limit, or pause the queue";
        bad.push(BadField::new("max_running_units", description));
    }
    if am_share_milli == Some(0) {
        bad.push(BadField::new("am_share_milli", "0 would start no application: omit it for no limit"));
    }
    let policy = queue_policy(policy).unwrap_or_else(|wrong| {
        bad.push(wrong);
        None
    });
    let spec = QueueSpec {
        name: meta.name,
        uid: meta.uid,
        labels: meta.labels.into_iter().collect(),
        owner: meta.owner,
        min: amounts(min),
        max: amounts(max),
        weight: weight.unwrap_or(WEIGHT_DEFAULT),
        policy: policy.unwrap_or_default(),
        submit_owners,
        max_running_units: max_running_units.unwrap_or(0),
        owner_weights: owner_weights.into_iter().collect(),
        max_per_owner: amounts(max_per_owner),
        am_share_milli: am_share_milli.unwrap_or(0),
    };
    (spec, bad)
}

/// Order of a queue's units; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn queue_policy(number: i32) -> Result<Option<QueuePolicy>> {
    value("policy", number, &QueuePolicy::ALL, to_proto::queue_policy)
}

/// A priority class as stored.
///
/// # Errors
/// It has no name.
pub fn priority_class(pb: v1::PriorityClass) -> Result<PriorityClass> {
    if pb.name.is_empty() {
        return Err(BadField::new("name", "missing"));
    }
    Ok(given_priority_class(pb))
}

/// A priority class as a client wrote it, for the checks of admission: nothing is refused here.
pub fn given_priority_class(pb: v1::PriorityClass) -> PriorityClass {
    let v1::PriorityClass { name, value, preemptible, description } = pb;
    PriorityClass { name, value, preemptible, description }
}

/// Zeros stay: a maximum of nothing is none at all.
fn amounts(pb: Option<v1::Resources>) -> BTreeMap<String, i64> {
    pb.unwrap_or_default().amounts.into_iter().collect()
}
