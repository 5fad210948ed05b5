//! The beans that monitoring reads at `/jmx`.

use godel_core_yarn::application::PublicAppState;
use godel_core_yarn_leader::{ClusterReport, ManagerRefusal, YarnNodeState};
use serde_json::{Value, json};

use super::{Call, json::left, problem::Problem};

impl Call {
    pub(super) fn jmx(&self) -> Result<Value, Problem> {
        let cluster = match self.face.manager.cluster() {
            Err(ManagerRefusal::Standby(_)) => ClusterReport::default(),
            cluster => cluster?,
        };
        let wanted = self.query.first("qry").unwrap_or("*:*");
        let mut beans = beans(&cluster);
        beans.retain(|bean| bean["name"].as_str().is_some_and(|name| is_like(wanted, name)));
        Ok(json!({ "beans": beans }))
    }
}

/// Whether a name is as a pattern says, in which `*` stands for anything.
fn is_like(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

fn beans(cluster: &ClusterReport) -> Vec<Value> {
    let nodes = |state| cluster.nodes.get(&state).copied().unwrap_or(0);
    let apps = |states: &[PublicAppState]| {
        states.iter().filter_map(|state| cluster.applications.get(state)).sum::<u64>()
    };
    use PublicAppState as App;
    let rest = left(&cluster.total, &cluster.used);
    vec![
        json!({
            "name": "Hadoop:service=ResourceManager,name=ClusterMetrics",
            "modelerType": "ClusterMetrics",
            "tag.ClusterMetrics": "ResourceManager",
            "NumActiveNMs": nodes(YarnNodeState::Running),
            "NumDecommissioningNMs": nodes(YarnNodeState::Decommissioning),
            "NumDecommissionedNMs": nodes(YarnNodeState::Decommissioned),
            "NumLostNMs": nodes(YarnNodeState::Lost),
            "NumUnhealthyNMs": nodes(YarnNodeState::Unhealthy),
            "NumRebootedNMs": 0,
            "NumShutdownNMs": 0,
            "CapabilityMB": cluster.total.memory_mb,
            "CapabilityVirtualCores": cluster.total.vcores,
        }),
        json!({
            "name": "Hadoop:service=ResourceManager,name=QueueMetrics,q0=root",
            "modelerType": "QueueMetrics,q0=root",
            "tag.Queue": "root",
            "AppsSubmitted": cluster.applications.values().sum::<u64>(),
            "AppsRunning": apps(&[App::Running]),
            "AppsPending": apps(&[App::New, App::NewSaving, App::Submitted, App::Accepted]),
            "AppsCompleted": apps(&[App::Finished]),
            "AppsKilled": apps(&[App::Killed]),
            "AppsFailed": apps(&[App::Failed]),
            "AllocatedMB": cluster.used.memory_mb,
            "AllocatedVCores": cluster.used.vcores,
            "AllocatedContainers": cluster.n_containers,
            "AvailableMB": rest.memory_mb,
            "AvailableVCores": rest.vcores,
            "PendingMB": cluster.pending.memory_mb,
            "PendingVCores": cluster.pending.vcores,
            "PendingContainers": cluster.n_pending_containers,
            "ReservedMB": 0,
            "ReservedVCores": 0,
            "ReservedContainers": 0,
        }),
        json!({
            "name": "Hadoop:service=ResourceManager,name=RMInfo",
            "modelerType": "org.apache.hadoop.yarn.server.resourcemanager.RMInfo",
            "State": if cluster.is_active { "active" } else { "standby" },
            "SecurityEnabled": false,
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_beans() {
        let name = "Hadoop:service=ResourceManager,name=QueueMetrics,q0=root";
        for pattern in ["*", "*:*", name, "Hadoop:*", "Hadoop:*,name=QueueMetrics,*", "*root"] {
            assert!(is_like(pattern, name), "{pattern}");
        }
        for pattern in ["", "Hadoop", "*x", "Hadoop:*,name=ClusterMetrics,*", "java.lang:*"] {
            assert!(!is_like(pattern, name), "{pattern}");
        }
    }
}
