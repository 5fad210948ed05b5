//! ResourceManagerAdministrationProtocol and HAServiceProtocol, which `yarn rmadmin` calls.
//!
//! What YARN keeps in files that have to be read again, godel keeps in its store: those calls answer what to do instead, because an answer that all
//! is well would not be true.

use std::{collections::BTreeSet, sync::Arc};

use godel_core_yarn_leader::{ManagerRefusal, YarnNodeState};
use godel_hadoop::{
    Caller, Exception, Identity, Protocol,
    common::{
        GetServiceStatusRequestProto, GetServiceStatusResponseProto, HaServiceStateProto,
        MonitorHealthRequestProto, MonitorHealthResponseProto,
    },
    exception,
    yarn::{
        CheckForDecommissioningNodesRequestProto, CheckForDecommissioningNodesResponseProto,
        DecommissionTypeProto, GetGroupsForUserRequestProto, GetGroupsForUserResponseProto,
        RefreshNodesRequestProto, RefreshNodesResponseProto, RefreshUserToGroupsMappingsRequestProto,
        RefreshUserToGroupsMappingsResponseProto,
    },
};
use tokio::sync::Mutex;

use super::{
    FaceSettings, excluded, groups, ids,
    refusal::{for_clients, refused},
};
use crate::{ResourceManager, YarnCaller};

const ADMINISTRATION: &str = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB";
const AVAILABILITY: &str = "org.apache.hadoop.ha.HAServiceProtocol";
/// The row of the permissions of the one call that changes something.
const REFRESH_NODES: &str = "hadoop/ResourceManagerAdministrationProtocol/refreshNodes";
/// Bytes of the file of excluded nodes.
const EXCLUDE_BYTES_MAX: u64 = 16 << 20;

/// Calls that change what godel keeps elsewhere, with what to do instead.
const REFUSED: [(&str, &str); 11] = [
    (
        "refreshQueues",
        "godel reads no capacity-scheduler.xml while it runs: import it with `godel yarn import-queues --conf DIR`, or change queues with \
         `godel apply`; both have effect at once",
    ),
    (
        "refreshSuperUserGroupsConfiguration",
        "godel has no configuration of proxy users: with simple authentication clients are who they say they are",
    ),
    (
        "refreshAdminAcls",
        "the adapter reads the lists in the folder that `yarn.conf_dir` names when it starts: start it again",
    ),
    ("refreshServiceAcls", "godel reads no hadoop-policy.xml: there is nothing to read again"),
    (
        "refreshClusterMaxPriority",
        "godel reads no yarn-site.xml while it runs: there is nothing to read again",
    ),
    ("updateNodeResource", NODES_SAY),
    ("refreshNodesResources", NODES_SAY),
    ("addToClusterNodeLabels", NODES_HAVE),
    ("removeFromClusterNodeLabels", NODES_HAVE),
    ("replaceLabelsOnNodes", NODES_HAVE),
    (
        "mapAttributesToNodes",
        "attributes of a node are its labels and what its agent says: set a label with `godel node label NODE KEY=VALUE`",
    ),
];
const NODES_SAY: &str = "what a node has is what its agent says: set `[capacity]` in the inventory file of the agent (`agent.inventory`)";
const NODES_HAVE: &str = "the label of a node is that of godel which `yarn.label_key` names, and the cluster knows those that nodes have: set it with \
                          `godel node label NODE godel.dev/yarn-label=LABEL`";

/// Serves administrators.
#[derive(Debug)]
pub(super) struct AdminFace {
    manager: Arc<dyn ResourceManager>,
    settings: FaceSettings,
    /// Hosts that the file of excluded nodes has taken out of service. One refresh at a time.
    excluded: Mutex<BTreeSet<String>>,
}

/// Both protocols: administration and availability.
pub(super) fn protocols(face: AdminFace) -> [Protocol; 2] {
    let face = Arc::new(face);
    [administration(&face), availability(&face)]
}

fn administration(face: &Arc<AdminFace>) -> Protocol {
    let (nodes, checks) = (Arc::clone(face), Arc::clone(face));
    let mut protocol = Protocol::new(ADMINISTRATION, 1)
        .method("refreshNodes", move |caller, request| Arc::clone(&nodes).refresh_nodes(caller, request))
        .method("checkForDecommissioningNodes", move |_, _: CheckForDecommissioningNodesRequestProto| {
            std::future::ready(checks.decommissioning())
        })
        // Groups are read from their files at each call: there is nothing to forget.
        .method("refreshUserToGroupsMappings", |_, _: RefreshUserToGroupsMappingsRequestProto| {
            std::future::ready(Ok(RefreshUserToGroupsMappingsResponseProto {}))
        })
        .method("getGroupsForUser", |_, request| groups_of(request));
    for (name, instead) in REFUSED {
        protocol = protocol.refuse(name, exception::YARN, instead);
    }
    protocol
}

fn availability(face: &Arc<AdminFace>) -> Protocol {
    let (states, health) = (Arc::clone(face), Arc::clone(face));
    let mut protocol = Protocol::new(AVAILABILITY, 1)
        .method("getServiceStatus", move |_, _: GetServiceStatusRequestProto| {
            std::future::ready(states.status())
        })
        .method("monitorHealth", move |_, _: MonitorHealthRequestProto| std::future::ready(health.health()));
    for name in ["transitionToActive", "transitionToStandby", "transitionToObserver"] {
        protocol = protocol.refuse(
            name,
            exception::ACCESS_CONTROL,
            "Manual failover for this ResourceManager is disallowed, because automatic failover is enabled: YARN adapters of godel hold a lease, and \
             the next one leads when the leader is stopped",
        );
    }
    protocol
}

async fn groups_of(
    request: GetGroupsForUserRequestProto,
) -> Result<GetGroupsForUserResponseProto, Exception> {
    let read = |path: &'static str| async move {
        let text = tokio::fs::read_to_string(path).await;
        text.map_err(|error| Exception::new(exception::IO, format!("{path} cannot be read: {error}")))
    };
    let (passwd, group) = (read("/etc/passwd").await?, read("/etc/group").await?);
    let user = request.user;
    let groups = groups::of_user(&user, &passwd, &group).ok_or_else(|| {
        Exception::new(exception::IO, format!("the machine of the YARN adapter has no user {user}"))
    })?;
    Ok(GetGroupsForUserResponseProto { groups })
}

impl AdminFace {
    pub(super) fn new(manager: Arc<dyn ResourceManager>, settings: FaceSettings) -> Self {
        Self { manager, settings, excluded: Mutex::default() }
    }

    async fn refresh_nodes(
        self: Arc<Self>,
        caller: Caller,
        request: RefreshNodesRequestProto,
    ) -> Result<RefreshNodesResponseProto, Exception> {
        let Identity::User { effective: user, .. } = &caller.identity else {
            return Err(Exception::new(exception::ACCESS_CONTROL, "this call is for administrators"));
        };
        let by = YarnCaller::new(user, REFRESH_NODES, &caller.address.to_string());
        self.manager.allow_administration(&by).map_err(for_clients)?;
        let Some(file) = &self.settings.exclude_file else {
            return Err(refused(
                "godel has no file of excluded nodes: name one in `yarn.exclude_file`, or take nodes out of service with `godel node drain NODE`",
            ));
        };
        let failed = |error: &dyn std::fmt::Display| {
            Exception::new(exception::IO, format!("{} cannot be read: {error}", file.display()))
        };
        let n_bytes = tokio::fs::metadata(file).await.map_err(|error| failed(&error))?.len();
        if n_bytes > EXCLUDE_BYTES_MAX {
            return Err(failed(&format!("it has more than {EXCLUDE_BYTES_MAX} bytes")));
        }
        let text = tokio::fs::read_to_string(file).await.map_err(|error| failed(&error))?;
        let listed = excluded::hosts(&text).map_err(|why| failed(&why))?;
        let mut before = self.excluded.lock().await;
        let nodes = self.manager.nodes().map_err(for_clients)?;
        let excluded::Changes { exclude, include } = excluded::compare(&listed, &before, &nodes);
        if !exclude.is_empty() {
            let timeout = self.timeout_ms(&request);
            self.manager.decommission(&exclude, Some(timeout), &by).await.map_err(for_clients)?;
            before.extend(exclude);
        }
        if !include.is_empty() {
            self.manager.decommission(&include, None, &by).await.map_err(for_clients)?;
            before.retain(|host| !include.contains(host));
        }
        Ok(RefreshNodesResponseProto {})
    }

    /// How long nodes may take to become empty, milliseconds.
    fn timeout_ms(&self, request: &RefreshNodesRequestProto) -> u64 {
        match request.decommission_type() {
            DecommissionTypeProto::Normal | DecommissionTypeProto::Forceful => 0,
            DecommissionTypeProto::Graceful => {
                // Below 0 stands for ever.
                let asked = request.decommission_timeout;
                let asked = asked.map(|seconds| u64::try_from(seconds).unwrap_or(u64::from(u32::MAX)));
                asked.map_or(self.settings.decommission_timeout_ms, |seconds| seconds.saturating_mul(1_000))
            }
        }
    }

    fn decommissioning(&self) -> Result<CheckForDecommissioningNodesResponseProto, Exception> {
        let nodes = self.manager.nodes().map_err(for_clients)?;
        let leaving = nodes.iter().filter(|node| node.state == YarnNodeState::Decommissioning);
        Ok(CheckForDecommissioningNodesResponseProto {
            decommissioning_nodes: leaving.map(|node| ids::node_pb(&node.host, node.port)).collect(),
        })
    }

    fn is_active(&self) -> Result<bool, Exception> {
        match self.manager.cluster() {
            Ok(cluster) => Ok(cluster.is_active),
            Err(ManagerRefusal::Standby(_)) => Ok(false),
            Err(other) => Err(for_clients(other)),
        }
    }

    fn status(&self) -> Result<GetServiceStatusResponseProto, Exception> {
        let state =
            if self.is_active()? { HaServiceStateProto::Active } else { HaServiceStateProto::Standby };
        Ok(GetServiceStatusResponseProto {
            state: state.into(),
            ready_to_become_active: Some(true),
            not_ready_reason: None,
        })
    }

    fn health(&self) -> Result<MonitorHealthResponseProto, Exception> {
        self.is_active().map(|_| MonitorHealthResponseProto {})
    }
}
