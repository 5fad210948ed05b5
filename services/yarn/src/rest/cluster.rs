//! The cluster, its nodes, labels and users.

use std::collections::{BTreeMap, BTreeSet};

use godel_core_yarn::{QueueAccess, application::PublicAppState};
use godel_core_yarn_leader::{ClusterReport, YarnAmount, YarnNodeReport, YarnNodeState};
use godel_domain::names::yarn_user;
use serde_json::{Value, json};

use super::{
    Call,
    json::{NODE_STATES, as_texts, left, list, node_state, old_list, resource},
    problem::{Problem, no_constant},
    query::is_named,
};

/// The version of YARN whose API this is.
const HADOOP_VERSION: &str = "3.3.4";
/// Who the adapter is, to clients that ask for the user of the ResourceManager.
const LOGIN_USER: &str = "godel";

impl Call {
    /// Answered by standbys too.
    pub(super) fn info(&self) -> Value {
        let ClusterReport { cluster_timestamp, started_ms, is_active, .. } =
            self.face.manager.cluster().unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION");
        json!({
            "clusterInfo": {
                "id": cluster_timestamp,
                "startedOn": started_ms,
                "state": "STARTED",
                "haState": if is_active { "ACTIVE" } else { "STANDBY" },
                "rmStateStoreName": "godel",
                "resourceManagerVersion": HADOOP_VERSION,
                "resourceManagerBuildVersion": format!("godel {version}"),
                "resourceManagerVersionBuiltOn": "",
                "hadoopVersion": HADOOP_VERSION,
                "hadoopBuildVersion": format!("godel {version}"),
                "hadoopVersionBuiltOn": "",
                "haZooKeeperConnectionState": "Could not find leader elector. Verify both HA and automatic failover are enabled.",
            }
        })
    }

    pub(super) fn metrics(&self) -> Result<Value, Problem> {
        let cluster = self.face.manager.cluster()?;
        let rest = left(&cluster.total, &cluster.used);
        let nodes = |state| cluster.nodes.get(&state).copied().unwrap_or(0);
        let apps = |state| cluster.applications.get(&state).copied().unwrap_or(0);
        use PublicAppState as App;
        Ok(json!({
            "clusterMetrics": {
                "appsSubmitted": cluster.applications.values().sum::<u64>(),
                "appsCompleted": apps(App::Finished),
                "appsPending":
                    apps(App::New) + apps(App::NewSaving) + apps(App::Submitted) + apps(App::Accepted),
                "appsRunning": apps(App::Running),
                "appsFailed": apps(App::Failed),
                "appsKilled": apps(App::Killed),
                "reservedMB": 0,
                "availableMB": rest.memory_mb,
                "allocatedMB": cluster.used.memory_mb,
                "pendingMB": cluster.pending.memory_mb,
                "reservedVirtualCores": 0,
                "availableVirtualCores": rest.vcores,
                "allocatedVirtualCores": cluster.used.vcores,
                "pendingVirtualCores": cluster.pending.vcores,
                "containersAllocated": cluster.n_containers,
                "containersReserved": 0,
                "containersPending": cluster.n_pending_containers,
                "totalMB": cluster.total.memory_mb,
                "totalVirtualCores": cluster.total.vcores,
                "totalNodes": cluster.nodes.values().sum::<u32>(),
                "lostNodes": nodes(YarnNodeState::Lost),
                "unhealthyNodes": nodes(YarnNodeState::Unhealthy),
                "decommissioningNodes": nodes(YarnNodeState::Decommissioning),
                "decommissionedNodes": nodes(YarnNodeState::Decommissioned),
                "rebootedNodes": 0,
                "activeNodes": nodes(YarnNodeState::Running),
                "shutdownNodes": 0,
                "totalUsedResourcesAcrossPartition": resource(&cluster.used),
                "totalClusterResourcesAcrossPartition": resource(&cluster.total),
                "totalReservedResourcesAcrossPartition": resource(&YarnAmount::default()),
                "totalAllocatedContainersAcrossPartition": cluster.n_containers,
                "crossPartitionMetricsAvailable": true,
            }
        }))
    }

    pub(super) fn nodes(&self) -> Result<Value, Problem> {
        let mut wanted: Option<BTreeSet<String>> = None;
        for word in self.query.words("states") {
            let upper = word.to_ascii_uppercase();
            if !NODE_STATES.contains(&upper.as_str()) {
                return Err(no_constant("NodeState", &upper));
            }
            wanted.get_or_insert_default().insert(upper);
        }
        let nodes = self.face.manager.nodes()?;
        let is_wanted = |node: &&YarnNodeReport| {
            wanted.as_ref().is_none_or(|wanted| wanted.contains(node_state(node.state)))
        };
        Ok(list("nodes", "node", nodes.iter().filter(is_wanted).map(node).collect()))
    }

    pub(super) fn node(&self, id: &str) -> Result<Value, Problem> {
        Ok(json!({ "node": node(&self.found(id)?) }))
    }

    fn found(&self, id: &str) -> Result<YarnNodeReport, Problem> {
        let shown: String = id.chars().take(300).collect();
        let port = id.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            let why = format!("Invalid NodeId [{shown}]. Expected host:port");
            return Err(Problem::IllegalArgument(why));
        }
        let nodes = self.face.manager.nodes()?;
        let found = nodes.into_iter().find(|node| node_id(node) == id);
        found.ok_or_else(|| Problem::not_found(format!("nodeId, {shown}, is not found")))
    }

    pub(super) fn labels(&self) -> Result<Value, Problem> {
        let nodes = self.face.manager.nodes()?;
        let labels: BTreeSet<&str> =
            nodes.iter().map(|node| node.label.as_str()).filter(|label| !label.is_empty()).collect();
        let shown = labels.into_iter().map(|name| label(name, &nodes));
        Ok(old_list("nodeLabelInfo", shown.collect()))
    }

    pub(super) fn labels_of_node(&self, id: &str) -> Result<Value, Problem> {
        let nodes = self.face.manager.nodes()?;
        Ok(labels_of(&self.found(id)?, &nodes))
    }

    pub(super) fn nodes_to_labels(&self) -> Result<Value, Problem> {
        let nodes = self.face.manager.nodes()?;
        let labelled = nodes.iter().filter(|node| !node.label.is_empty());
        let entries = labelled.map(|node| json!({ "key": node_id(node), "value": labels_of(node, &nodes) }));
        Ok(json!({ "nodeToLabels": old_list("entry", entries.collect()) }))
    }

    pub(super) fn labels_to_nodes(&self) -> Result<Value, Problem> {
        let wanted: BTreeSet<&str> = self.query.words("labels").collect();
        let nodes = self.face.manager.nodes()?;
        let mut by_label: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for node in &nodes {
            let is_wanted = wanted.is_empty() || wanted.contains(node.label.as_str());
            if is_wanted && !node.label.is_empty() {
                by_label.entry(&node.label).or_default().push(json!(node_id(node)));
            }
        }
        let entries = by_label
            .into_iter()
            .map(|(name, on)| json!({ "key": label(name, &nodes), "value": old_list("nodes", on) }));
        Ok(json!({ "labelsToNodes": old_list("entry", entries.collect()) }))
    }

    pub(super) fn user_info(&self) -> Value {
        json!({ "clusterUserInfo": { "rmLoginUser": LOGIN_USER, "requestedUser": yarn_user(&self.by.user) } })
    }

    /// Whether a user may submit to a queue, or administer it.
    pub(super) fn access(&self, queue: &str) -> Result<Value, Problem> {
        let user = self.query.first("user").filter(|user| !user.is_empty()).unwrap_or(&self.by.user);
        let kind = self.query.first("queue-acl-type").unwrap_or("SUBMIT_APPLICATIONS");
        if kind != "SUBMIT_APPLICATIONS" && kind != "ADMINISTER_QUEUE" {
            let shown: String = kind.chars().take(100).collect();
            return Err(Problem::bad_request(format!(
                "Specified queueAclType={shown} is not a valid type, valid queue acl \
                 types={{SUBMIT_APPLICATIONS/ADMINISTER_QUEUE}}"
            )));
        }
        let queues = self.face.manager.queues()?;
        let found = queues.iter().find(|known| is_named(known, queue));
        let wanted = if kind == "ADMINISTER_QUEUE" { QueueAccess::Administer } else { QueueAccess::Submit };
        let is_allowed = found.is_some_and(|queue| self.face.manager.may_use(user, queue, wanted));
        let shown: String = queue.chars().take(300).collect();
        let diagnostics = if is_allowed {
            String::new()
        } else {
            format!("User={} doesn't have access to queue={shown} with acl-type={kind}", yarn_user(user))
        };
        Ok(as_texts(json!({ "allowed": is_allowed, "user": yarn_user(user), "diagnostics": diagnostics })))
    }

    /// godel does not record what a scheduler tried: it says why a unit waits.
    pub(super) fn activities(app: Option<String>) -> Value {
        let why = "godel records no activities: `godel unit describe UNIT` says why the unit of an application waits";
        match app {
            None => json!({ "activities": { "diagnostic": why } }),
            Some(app) => json!({ "appActivities": { "applicationId": app, "diagnostic": why } }),
        }
    }
}

fn node_id(node: &YarnNodeReport) -> String {
    format!("{}:{}", node.host, node.port)
}

fn node(node: &YarnNodeReport) -> Value {
    let rest = left(&node.total, &node.used);
    let labels: Vec<&str> = [node.label.as_str()].into_iter().filter(|label| !label.is_empty()).collect();
    let attributes = node.attributes.iter().map(|(name, value)| {
        let (prefix, name) = name.split_once('/').unwrap_or(("", name));
        json!({ "prefix": prefix, "name": name, "type": "STRING", "value": value })
    });
    let is_there = matches!(node.state, YarnNodeState::Running | YarnNodeState::Decommissioning);
    json!({
        "rack": node.rack,
        "state": node_state(node.state),
        "id": node_id(node),
        "nodeHostName": node.host,
        "nodeHTTPAddress": if is_there { node_id(node) } else { String::new() },
        "lastHealthUpdate": node.heard_ms,
        "version": HADOOP_VERSION,
        "healthReport": node.health,
        "numContainers": node.n_containers,
        "usedMemoryMB": node.used.memory_mb,
        "availMemoryMB": rest.memory_mb,
        "usedVirtualCores": node.used.vcores,
        "availableVirtualCores": rest.vcores,
        "numRunningOpportContainers": 0,
        "usedMemoryOpportGB": 0,
        "usedVirtualCoresOpport": 0,
        "numQueuedContainers": 0,
        "nodeLabels": labels,
        "usedResource": resource(&node.used),
        "availableResource": resource(&rest),
        "totalResource": resource(&node.total),
        "nodeAttributesInfo": { "nodeAttributeInfo": attributes.collect::<Vec<_>>() },
    })
}

/// A label, with what nodes that have it have left.
fn label(name: &str, nodes: &[YarnNodeReport]) -> Value {
    let mut available = YarnAmount::default();
    for node in nodes.iter().filter(|node| node.label == name && node.state == YarnNodeState::Running) {
        let rest = left(&node.total, &node.used);
        available.memory_mb = available.memory_mb.saturating_add(rest.memory_mb);
        available.vcores = available.vcores.saturating_add(rest.vcores);
    }
    as_texts(json!({
        "name": name,
        "exclusivity": true,
        "partitionInfo": { "resourceAvailable": { "memory": available.memory_mb, "vCores": available.vcores } },
    }))
}

fn labels_of(node: &YarnNodeReport, nodes: &[YarnNodeReport]) -> Value {
    let labels = [node.label.as_str()].into_iter().filter(|name| !name.is_empty());
    old_list("nodeLabelInfo", labels.map(|name| label(name, nodes)).collect())
}
