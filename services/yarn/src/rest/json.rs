//! Pieces of JSON that many answers have.

use godel_core_yarn::{
    application::{EndTarget, FinalStatus},
    attempt::AttemptState,
    container::PublicContainerState,
};
use godel_core_yarn_leader::{YarnAmount, YarnNodeState};
use serde_json::{Map, Value, json};

/// Parts of an application that callers may leave out.
pub(super) const DESELECTS: [&str; 5] =
    ["resourceRequests", "timeouts", "appNodeLabelExpression", "amNodeLabelExpression", "resourceInfo"];
/// States of nodes that may be asked for.
pub(super) const NODE_STATES: [&str; 8] =
    ["NEW", "RUNNING", "UNHEALTHY", "DECOMMISSIONED", "LOST", "REBOOTED", "DECOMMISSIONING", "SHUTDOWN"];

pub(super) fn final_status(status: FinalStatus) -> &'static str {
    match status {
        FinalStatus::Undefined => "UNDEFINED",
        FinalStatus::Succeeded => "SUCCEEDED",
        FinalStatus::Failed => "FAILED",
        FinalStatus::Killed => "KILLED",
    }
}

pub(super) fn attempt_state(state: AttemptState) -> &'static str {
    match state {
        AttemptState::New => "NEW",
        AttemptState::Submitted | AttemptState::LaunchedUnmanagedSaving => "SUBMITTED",
        AttemptState::Scheduled => "SCHEDULED",
        AttemptState::AllocatedSaving => "ALLOCATED_SAVING",
        AttemptState::Allocated => "ALLOCATED",
        AttemptState::Launched => "LAUNCHED",
        AttemptState::Running => "RUNNING",
        AttemptState::Finishing
        | AttemptState::FinalSaving { target: EndTarget::Finishing | EndTarget::Finished } => "FINISHING",
        AttemptState::Finished => "FINISHED",
        AttemptState::Failed | AttemptState::FinalSaving { target: EndTarget::Failed } => "FAILED",
        AttemptState::Killed | AttemptState::FinalSaving { target: EndTarget::Killed } => "KILLED",
    }
}

pub(super) fn container_state(state: PublicContainerState) -> &'static str {
    match state {
        PublicContainerState::New => "NEW",
        PublicContainerState::Running => "RUNNING",
        PublicContainerState::Complete => "COMPLETE",
    }
}

pub(super) fn node_state(state: YarnNodeState) -> &'static str {
    match state {
        YarnNodeState::Running => "RUNNING",
        YarnNodeState::Decommissioning => "DECOMMISSIONING",
        YarnNodeState::Decommissioned => "DECOMMISSIONED",
        YarnNodeState::Lost => "LOST",
        YarnNodeState::Unhealthy => "UNHEALTHY",
    }
}

/// A number as Java prints a `float`: as few digits as tell it apart.
pub(super) fn float(number: f32) -> Value {
    let shown: f64 = number.to_string().parse().unwrap_or_default();
    if shown.is_finite() { json!(shown) } else { json!(0.0) }
}

/// A share of a whole, per cent.
pub(super) fn per_cent(part: i64, whole: i64) -> Value {
    if whole <= 0 {
        return json!(0.0);
    }
    let thousandths = i128::from(part) * 100_000 / i128::from(whole);
    let thousandths = i32::try_from(thousandths).unwrap_or(i32::MAX);
    json!(f64::from(thousandths) / 1_000.0)
}

/// A resource object.
pub(super) fn resource(amount: &YarnAmount) -> Value {
    let YarnAmount { memory_mb, vcores, others } = amount;
    let information = |name: &str, units: &str, value: i64| {
        json!({
            "attributes": {},
            "maximumAllocation": i64::MAX,
            "minimumAllocation": 0,
            "name": name,
            "resourceType": "COUNTABLE",
            "units": units,
            "value": value,
        })
    };
    let mut all = vec![information("memory-mb", "Mi", *memory_mb), information("vcores", "", *vcores)];
    all.extend(others.iter().map(|(name, value)| information(name, "", *value)));
    json!({
        "memory": memory_mb,
        "vCores": vcores,
        "resourceInformations": { "resourceInformation": all },
    })
}

/// A resource in words.
pub(super) fn resource_text(amount: &YarnAmount) -> String {
    let YarnAmount { memory_mb, vcores, others } = amount;
    let others: String = others.iter().map(|(name, value)| format!(", {name}: {value}")).collect();
    format!("<memory:{memory_mb}, vCores:{vcores}{others}>")
}

/// What is left of a whole.
pub(super) fn left(total: &YarnAmount, used: &YarnAmount) -> YarnAmount {
    let less = |total: i64, used: i64| total.saturating_sub(used).max(0);
    let others = total
        .others
        .iter()
        .map(|(name, amount)| (name.clone(), less(*amount, used.others.get(name).copied().unwrap_or(0))));
    YarnAmount {
        memory_mb: less(total.memory_mb, used.memory_mb),
        vcores: less(total.vcores, used.vcores),
        others: others.collect(),
    }
}

/// A list in YARN's newer encoding: `{"apps": {"app": [..]}}`, or `{"apps": null}` if it is empty.
pub(super) fn list(outer: &str, inner: &str, items: Vec<Value>) -> Value {
    let items = if items.is_empty() { Value::Null } else { json!({ inner: items }) };
    json!({ outer: items })
}

/// The same in YARN's older encoding, for objects that Hadoop does not list for the newer one: numbers and booleans are texts.
pub(super) fn as_texts(value: Value) -> Value {
    match value {
        Value::Bool(flag) => Value::String(flag.to_string()),
        Value::Number(number) => Value::String(number.to_string()),
        Value::Array(items) => Value::Array(items.into_iter().map(as_texts).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, as_texts(value))).collect())
        }
        Value::Null | Value::String(_) => value,
    }
}

/// A list in YARN's older encoding: one item stands there without its list, and an empty list not at all.
pub(super) fn old_list(name: &str, mut items: Vec<Value>) -> Value {
    let mut fields = Map::new();
    match items.len() {
        0 => {}
        1 => fields.extend(items.pop().map(|item| (name.to_owned(), item))),
        _ => fields.extend([(name.to_owned(), Value::Array(items))]),
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_java() {
        assert_eq!(float(30.000_002).to_string(), "30.000002");
        assert_eq!(float(10.5).to_string(), "10.5");
        assert_eq!(float(f32::NAN).to_string(), "0.0");
        assert_eq!(float(100.0).to_string(), "100.0");
        assert_eq!((per_cent(1, 3), per_cent(5, 0)), (json!(33.333), json!(0.0)));
    }

    #[test]
    fn lists_have_both_encodings_of_yarn() {
        assert_eq!(list("apps", "app", vec![]), json!({ "apps": null }));
        assert_eq!(list("apps", "app", vec![json!(1)]), json!({ "apps": { "app": [1] } }));
        assert_eq!(old_list("node", vec![json!("a")]), json!({ "node": "a" }));
        assert_eq!(old_list("node", vec![json!("a"), json!("b")]), json!({ "node": ["a", "b"] }));
        assert_eq!(old_list("node", vec![]), json!({}));
        assert_eq!(as_texts(json!({ "a": [1, true, "x", null] })), json!({ "a": ["1", "true", "x", null] }));
    }

    #[test]
    fn what_is_left_is_never_below_nothing() {
        let amount = |memory_mb, gpu: i64| YarnAmount {
            memory_mb,
            vcores: 1,
            others: [("yarn.io/gpu".to_owned(), gpu)].into(),
        };
        let rest = left(&amount(5, 2), &amount(7, 1));
        assert_eq!((rest.memory_mb, rest.vcores, rest.others["yarn.io/gpu"]), (0, 0, 1));
        assert_eq!(resource_text(&amount(5, 2)), "<memory:5, vCores:1, yarn.io/gpu: 2>");
    }
}
