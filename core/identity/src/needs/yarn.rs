//! What each call of YARN's clients needs: the methods of Hadoop RPC and the paths of the REST API that the adapter serves.
//!
//! Whoever proves nothing calls as `yarn-simple:NAME`, with the role `user` for these calls alone ([`crate::permission::Principal::yarn_simple`]). Which
//! applications are shown in full, YARN's own lists say (`yarn.acl.enable`).

use super::{Needs, OPERATE, READ};
use crate::permission::{ObjectScope, PersonRole::User};

/// Whoever submits and changes applications: its own ones.
pub(super) const APPLICATIONS: Needs = Needs::Person(User, ObjectScope::Application);

/// What calls of clients of YARN need, in order of their names: `hadoop/PROTOCOL/METHOD`, and `rest/METHOD PATH` with words in capitals for what varies.
pub const YARN_NEEDS: &[(&str, Needs)] = &[
    ("hadoop/ApplicationClientProtocol/cancelDelegationToken", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/deleteReservation", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/failApplicationAttempt", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/forceKillApplication", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/getApplicationAttemptReport", READ),
    ("hadoop/ApplicationClientProtocol/getApplicationAttempts", READ),
    ("hadoop/ApplicationClientProtocol/getApplicationReport", READ),
    ("hadoop/ApplicationClientProtocol/getApplications", READ),
    ("hadoop/ApplicationClientProtocol/getAttributesToNodes", READ),
    ("hadoop/ApplicationClientProtocol/getClusterMetrics", READ),
    ("hadoop/ApplicationClientProtocol/getClusterNodeAttributes", READ),
    ("hadoop/ApplicationClientProtocol/getClusterNodeLabels", READ),
    ("hadoop/ApplicationClientProtocol/getClusterNodes", READ),
    ("hadoop/ApplicationClientProtocol/getContainerReport", READ),
    ("hadoop/ApplicationClientProtocol/getContainers", READ),
    ("hadoop/ApplicationClientProtocol/getDelegationToken", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/getLabelsToNodes", READ),
    ("hadoop/ApplicationClientProtocol/getNewApplication", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/getNewReservation", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/getNodeToLabels", READ),
    ("hadoop/ApplicationClientProtocol/getNodesToAttributes", READ),
    ("hadoop/ApplicationClientProtocol/getQueueInfo", READ),
    ("hadoop/ApplicationClientProtocol/getQueueUserAcls", READ),
    ("hadoop/ApplicationClientProtocol/getResourceProfile", READ),
    ("hadoop/ApplicationClientProtocol/getResourceProfiles", READ),
    ("hadoop/ApplicationClientProtocol/getResourceTypeInfo", READ),
    ("hadoop/ApplicationClientProtocol/listReservations", READ),
    ("hadoop/ApplicationClientProtocol/moveApplicationAcrossQueues", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/renewDelegationToken", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/signalToContainer", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/submitApplication", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/submitReservation", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/updateApplicationPriority", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/updateApplicationTimeouts", APPLICATIONS),
    ("hadoop/ApplicationClientProtocol/updateReservation", APPLICATIONS),
    // A master is known by its token, which is of one attempt.
    ("hadoop/ApplicationMasterProtocol/allocate", Needs::Master),
    ("hadoop/ApplicationMasterProtocol/finishApplicationMaster", Needs::Master),
    ("hadoop/ApplicationMasterProtocol/registerApplicationMaster", Needs::Master),
    // What is refused to everybody says what to do instead, and so is open to everybody.
    ("hadoop/HAServiceProtocol/getServiceStatus", READ),
    ("hadoop/HAServiceProtocol/monitorHealth", READ),
    ("hadoop/HAServiceProtocol/transitionToActive", READ),
    ("hadoop/HAServiceProtocol/transitionToObserver", READ),
    ("hadoop/HAServiceProtocol/transitionToStandby", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/addToClusterNodeLabels", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/checkForDecommissioningNodes", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/getGroupsForUser", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/mapAttributesToNodes", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshAdminAcls", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshClusterMaxPriority", READ),
    // It drains nodes.
    ("hadoop/ResourceManagerAdministrationProtocol/refreshNodes", OPERATE),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshNodesResources", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshQueues", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshServiceAcls", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshSuperUserGroupsConfiguration", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/refreshUserToGroupsMappings", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/removeFromClusterNodeLabels", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/replaceLabelsOnNodes", READ),
    ("hadoop/ResourceManagerAdministrationProtocol/updateNodeResource", READ),
    ("rest/GET /cluster", READ),
    ("rest/GET /cluster/app/ID", READ),
    ("rest/GET /jmx", READ),
    ("rest/GET /proxy/ID", READ),
    ("rest/GET /ws/v1/cluster/apps", READ),
    ("rest/GET /ws/v1/cluster/apps/ID", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/appattempts", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/appattempts/ID", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/appattempts/ID/containers", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/appattempts/ID/containers/ID", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/priority", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/queue", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/state", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/timeouts", READ),
    ("rest/GET /ws/v1/cluster/apps/ID/timeouts/TYPE", READ),
    ("rest/GET /ws/v1/cluster/appstatistics", READ),
    ("rest/GET /ws/v1/cluster/get-node-labels", READ),
    ("rest/GET /ws/v1/cluster/get-node-to-labels", READ),
    ("rest/GET /ws/v1/cluster/info", READ),
    ("rest/GET /ws/v1/cluster/label-mappings", READ),
    ("rest/GET /ws/v1/cluster/metrics", READ),
    ("rest/GET /ws/v1/cluster/nodes", READ),
    ("rest/GET /ws/v1/cluster/nodes/ID", READ),
    ("rest/GET /ws/v1/cluster/nodes/ID/get-labels", READ),
    ("rest/GET /ws/v1/cluster/queues/QUEUE/access", READ),
    ("rest/GET /ws/v1/cluster/scheduler", READ),
    ("rest/GET /ws/v1/cluster/scheduler/activities", READ),
    ("rest/GET /ws/v1/cluster/scheduler/app-activities/ID", READ),
    ("rest/GET /ws/v1/cluster/userinfo", READ),
    ("rest/POST /ws/v1/cluster/apps", APPLICATIONS),
    ("rest/POST /ws/v1/cluster/apps/new-application", APPLICATIONS),
    ("rest/PUT /ws/v1/cluster/apps/ID/priority", APPLICATIONS),
    ("rest/PUT /ws/v1/cluster/apps/ID/queue", APPLICATIONS),
    ("rest/PUT /ws/v1/cluster/apps/ID/state", APPLICATIONS),
    ("rest/PUT /ws/v1/cluster/apps/ID/timeout", APPLICATIONS),
];

/// Whether a call is one of clients of YARN: in their table, or beginning as these do.
pub(crate) fn is_of_yarn(path: &str) -> bool {
    path.starts_with("hadoop/") || path.starts_with("rest/")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{known_path, needs_of},
        *,
    };

    #[test]
    fn the_table_is_in_order_and_apart_from_that_of_the_api() {
        assert!(YARN_NEEDS.is_sorted_by(|(before, _), (after, _)| before < after));
        for (path, needs) in YARN_NEEDS {
            assert_eq!((needs_of(path), known_path(path)), (*needs, Some(*path)));
            assert!(is_of_yarn(path));
        }
        assert!(super::super::NEEDS.iter().all(|(path, _)| !is_of_yarn(path)));
    }
}
