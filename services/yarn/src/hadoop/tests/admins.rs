//! Administrators: nodes that leave and come back, availability, and what to do elsewhere.

use godel_hadoop::{
    common::{GetServiceStatusRequestProto, GetServiceStatusResponseProto, HaServiceStateProto},
    yarn::{
        CheckForDecommissioningNodesRequestProto, CheckForDecommissioningNodesResponseProto,
        DecommissionTypeProto, GetGroupsForUserRequestProto, GetGroupsForUserResponseProto,
        RefreshNodesRequestProto, RefreshNodesResponseProto,
    },
};

use super::*;

async fn leaving(admin: &mut Client) -> usize {
    let nodes: CheckForDecommissioningNodesResponseProto = admin
        .call("checkForDecommissioningNodes", &CheckForDecommissioningNodesRequestProto {})
        .await
        .unwrap();
    nodes.decommissioning_nodes.len()
}

#[tokio::test]
async fn nodes_leave_and_come_back_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("excluded");
    let settings = FaceSettings {
        exclude_file: Some(file.clone()),
        decommission_timeout_ms: 1_000,
        ..FaceSettings::default()
    };
    let rig = Rig::new(settings).await;
    let mut admin = rig.admin(ADMIN).await;
    let graceful = RefreshNodesRequestProto {
        decommission_type: Some(DecommissionTypeProto::Graceful.into()),
        decommission_timeout: Some(60),
    };
    let missing = refused(admin.call::<_, RefreshNodesResponseProto>("refreshNodes", &graceful).await);
    assert!(missing.message.contains("cannot be read"), "{missing}");
    for (text, n_leaving) in [("n1 # slow\n", 1), ("n1\nn2\n", 2), ("n2\n", 1), ("", 0)] {
        std::fs::write(&file, text).unwrap();
        let _done: RefreshNodesResponseProto = admin.call("refreshNodes", &graceful).await.unwrap();
        assert_eq!(leaving(&mut admin).await, n_leaving, "{text}");
    }
    std::fs::write(&file, "<hosts/>").unwrap();
    let xml = refused(admin.call::<_, RefreshNodesResponseProto>("refreshNodes", &graceful).await);
    assert!(xml.message.contains("one host a line"), "{xml}");
}

#[tokio::test]
async fn availability_is_shown_and_not_changed_by_hand() {
    let rig = Rig::new(FaceSettings::default()).await;
    let mut admin = rig.admin(AVAILABILITY).await;
    async fn state(admin: &mut Client) -> HaServiceStateProto {
        let status: GetServiceStatusResponseProto =
            admin.call("getServiceStatus", &GetServiceStatusRequestProto {}).await.unwrap();
        status.state()
    }
    assert_eq!(state(&mut admin).await, HaServiceStateProto::Active);
    let call = admin
        .call::<_, GetServiceStatusResponseProto>("transitionToStandby", &GetServiceStatusRequestProto {});
    assert!(refused(call.await).message.contains("Manual failover"));
    *rig.manager.refusal.lock() = Some(ManagerRefusal::Standby(None));
    assert_eq!(state(&mut admin).await, HaServiceStateProto::Standby);
}

#[tokio::test]
async fn what_godel_keeps_elsewhere_is_refused_with_what_to_do() {
    let rig = Rig::new(FaceSettings::default()).await;
    let mut admin = rig.admin(ADMIN).await;
    for (method, said) in [
        ("refreshQueues", "godel yarn import-queues"),
        ("refreshNodes", "yarn.exclude_file"),
        ("replaceLabelsOnNodes", "godel node label"),
        ("updateNodeResource", "agent.inventory"),
    ] {
        let request = RefreshNodesRequestProto::default();
        let refusal = refused(admin.call::<_, RefreshNodesResponseProto>(method, &request).await);
        assert!(refusal.message.contains(said), "{method}: {refusal}");
    }
    let groups = |user: &str| GetGroupsForUserRequestProto { user: user.to_owned() };
    let of_root: GetGroupsForUserResponseProto =
        admin.call("getGroupsForUser", &groups("root")).await.unwrap();
    assert!(!of_root.groups.is_empty());
    let nobody =
        admin.call::<_, GetGroupsForUserResponseProto>("getGroupsForUser", &groups("no such user")).await;
    assert!(refused(nobody).message.contains("has no user no such user"));
}
