//! The tree of queues, as the CapacityScheduler shows it.

use std::collections::BTreeMap;

use godel_core_yarn_leader::{QueueReport, YarnAmount};
use serde_json::{Map, Value, json};

use super::{
    Call,
    json::{float, resource, resource_text},
    problem::Problem,
};

/// Levels of queues below `root` that are shown; godel has fewer.
const DEPTH_MAX: usize = 32;
/// A number without a limit.
const UNLIMITED: i32 = i32::MAX;

/// Queues by the path above them.
type Below<'a> = BTreeMap<&'a str, Vec<&'a QueueReport>>;

impl Call {
    pub(super) fn scheduler(&self) -> Result<Value, Problem> {
        let manager = &self.face.manager;
        let (queues, maximum) = (manager.queues()?, manager.cluster()?.maximum_allocation);
        Ok(tree(&queues, &maximum))
    }
}

/// The answer of `/scheduler`.
fn tree(queues: &[QueueReport], maximum: &YarnAmount) -> Value {
    let mut below = Below::new();
    for queue in queues {
        let above = queue.path.rsplit_once('.').map_or("", |(above, _)| above);
        below.entry(above).or_default().push(queue);
    }
    let roots = below.get("").map(Vec::as_slice).unwrap_or_default();
    let root = roots.iter().find(|queue| queue.path == "root");
    let mut info = Map::new();
    let (capacity, used, most) =
        root.map_or((100.0, 0.0, 100.0), |root| (root.capacity, root.used_capacity, root.maximum_capacity));
    info.insert("type".to_owned(), json!("capacityScheduler"));
    info.insert("queueName".to_owned(), json!("root"));
    info.insert("capacity".to_owned(), float(capacity));
    info.insert("usedCapacity".to_owned(), float(used));
    info.insert("maxCapacity".to_owned(), float(most));
    info.insert("queuePriority".to_owned(), json!(0));
    info.insert("orderingPolicyInfo".to_owned(), json!("utilization"));
    info.insert("maximumAllocation".to_owned(), resource(maximum));
    if let Some(root) = root {
        info.insert("capacities".to_owned(), capacities(root));
        info.insert("queueAcls".to_owned(), acls(root));
    }
    info.insert("queues".to_owned(), children("root", &below, maximum, 0));
    json!({ "scheduler": { "schedulerInfo": info } })
}

/// The queues below one; `null` for none.
fn children(above: &str, below: &Below<'_>, maximum: &YarnAmount, depth: usize) -> Value {
    let queues = below.get(above).map(Vec::as_slice).unwrap_or_default();
    if queues.is_empty() || depth >= DEPTH_MAX {
        return Value::Null;
    }
    // YARN shows those without queues below them first.
    let (leaves, others): (Vec<_>, Vec<_>) = queues.iter().partition(|queue| queue.is_leaf);
    let shown = leaves.into_iter().chain(others).map(|queue| {
        let mut fields = fields(queue, maximum);
        if queue.is_leaf {
            fields.extend(leaf(queue));
        } else {
            fields.insert("queues".to_owned(), children(&queue.path, below, maximum, depth + 1));
        }
        Value::Object(fields)
    });
    json!({ "queue": shown.collect::<Vec<_>>() })
}

/// What every queue below `root` has.
fn fields(queue: &QueueReport, maximum: &YarnAmount) -> Map<String, Value> {
    let QueueReport { path, used, pending, .. } = queue;
    let none = YarnAmount::default();
    let resources = json!({
        "resourceUsagesByPartition": [{
            "partitionName": "",
            "used": resource(used),
            "reserved": resource(&none),
            "pending": resource(pending),
        }]
    });
    let fields = json!({
        "queuePath": path,
        "queueName": path.rsplit('.').next().unwrap_or_default(),
        "capacity": float(queue.capacity),
        "usedCapacity": float(queue.used_capacity),
        "maxCapacity": float(queue.maximum_capacity),
        "absoluteCapacity": float(queue.absolute_capacity),
        "absoluteMaxCapacity": float(queue.absolute_maximum_capacity),
        "absoluteUsedCapacity": float(queue.absolute_used_capacity),
        "numApplications": queue.n_active.saturating_add(queue.n_pending),
        "state": if queue.is_running { "RUNNING" } else { "STOPPED" },
        "isAbsoluteResource": false,
        "resourcesUsed": resource(used),
        "usedResources": resource_text(used),
        "allocatedContainers": queue.n_containers,
        "reservedContainers": 0,
        "pendingContainers": queue.n_pending_containers,
        "hideReservationQueues": false,
        "nodeLabels": ["*"],
        "capacities": capacities(queue),
        "resources": resources,
        "maximumAllocation": resource(maximum),
        "queueAcls": acls(queue),
        "queuePriority": 0,
        "autoCreateChildQueueEnabled": false,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// What a queue without queues below it has beside that.
fn leaf(queue: &QueueReport) -> Map<String, Value> {
    let fields = json!({
        "type": "capacitySchedulerLeafQueueInfo",
        "numActiveApplications": queue.n_active,
        "numPendingApplications": queue.n_pending,
        "numContainers": queue.n_containers,
        "maxApplications": UNLIMITED,
        "maxApplicationsPerUser": UNLIMITED,
        "maxActiveApplications": UNLIMITED,
        "maxActiveApplicationsPerUser": UNLIMITED,
        "userLimit": 100,
        "userLimitFactor": 1.0,
        "users": null,
        "orderingPolicyInfo": "fifo",
        "preemptionDisabled": false,
        "intraQueuePreemptionDisabled": true,
        "defaultPriority": 0,
        "isAutoCreatedLeafQueue": false,
        "maxApplicationLifetime": -1,
        "defaultApplicationLifetime": -1,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn capacities(queue: &QueueReport) -> Value {
    json!({
        "queueCapacitiesByPartition": [{
            "partitionName": "",
            "capacity": float(queue.capacity),
            "usedCapacity": float(queue.used_capacity),
            "maxCapacity": float(queue.maximum_capacity),
            "absoluteCapacity": float(queue.absolute_capacity),
            "absoluteUsedCapacity": float(queue.absolute_used_capacity),
            "absoluteMaxCapacity": float(queue.absolute_maximum_capacity),
            "maxAMLimitPercentage": 100.0,
        }]
    })
}

/// Who may do what; everybody is `*`, users stand before a blank and groups behind it.
fn acls(queue: &QueueReport) -> Value {
    let owners = &queue.submit_owners;
    let submit = if owners.is_empty() { "*".to_owned() } else { format!("{} ", owners.join(",")) };
    json!({
        "queueAcl": [
            { "accessType": "SUBMIT_APP", "accessControlList": submit },
            { "accessType": "ADMINISTER_QUEUE", "accessControlList": "*" },
            { "accessType": "APPLICATION_MAX_PRIORITY", "accessControlList": "*" },
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::samples::queue;

    #[test]
    fn queues_stand_below_each_other() {
        let parent = |path| QueueReport { is_leaf: false, ..queue(path, 40.0) };
        let owned =
            QueueReport { submit_owners: vec!["ann".into(), "bob".into()], ..queue("root.a.x", 30.5) };
        let queues = [parent("root"), parent("root.a"), owned, queue("root.b", 60.0)];
        let tree = tree(&queues, &YarnAmount { memory_mb: 8_192, ..YarnAmount::default() });
        let info = &tree["scheduler"]["schedulerInfo"];
        assert_eq!((&info["type"], &info["queueName"]), (&json!("capacityScheduler"), &json!("root")));
        // Leaves come first.
        let below = info["queues"]["queue"].as_array().unwrap();
        let names: Vec<&Value> = below.iter().map(|queue| &queue["queueName"]).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(below[0]["type"], "capacitySchedulerLeafQueueInfo");
        assert_eq!((below[0]["users"].clone(), below[1].get("type")), (Value::Null, None));
        let x = &below[1]["queues"]["queue"][0];
        assert_eq!((&x["queuePath"], &x["capacity"]), (&json!("root.a.x"), &json!(30.5)));
        assert_eq!(x["usedResources"], "<memory:2048, vCores:2>");
        assert_eq!(x["queueAcls"]["queueAcl"][0]["accessControlList"], "ann,bob ");
        assert_eq!(x["capacities"]["queueCapacitiesByPartition"][0]["partitionName"], "");
        assert_eq!(below[0]["queueAcls"]["queueAcl"][0]["accessControlList"], "*");
    }

    #[test]
    fn a_cluster_without_queues_has_a_root() {
        let info = tree(&[], &YarnAmount::default())["scheduler"]["schedulerInfo"].clone();
        assert_eq!((&info["queueName"], &info["queues"]), (&json!("root"), &Value::Null));
        assert_eq!(info["capacity"], json!(100.0));
    }
}
