//! Clients: what they are shown and told.

use godel_hadoop::yarn::{
    ApplicationUpdateTimeoutMapProto, ApplicationsRequestScopeProto, FailApplicationAttemptRequestProto,
    FailApplicationAttemptResponseProto, FinalApplicationStatusProto, GetApplicationAttemptsRequestProto,
    GetApplicationAttemptsResponseProto, GetApplicationsRequestProto, GetApplicationsResponseProto,
    GetClusterMetricsRequestProto, GetClusterMetricsResponseProto, GetClusterNodesRequestProto,
    GetClusterNodesResponseProto, GetContainersRequestProto, GetContainersResponseProto,
    GetQueueInfoRequestProto, GetQueueInfoResponseProto, KillApplicationRequestProto,
    KillApplicationResponseProto, MoveApplicationAcrossQueuesRequestProto,
    MoveApplicationAcrossQueuesResponseProto, NodeStateProto, PriorityProto,
    UpdateApplicationPriorityRequestProto, UpdateApplicationPriorityResponseProto,
    UpdateApplicationTimeoutsRequestProto, UpdateApplicationTimeoutsResponseProto,
    YarnApplicationAttemptStateProto, YarnApplicationStateProto,
};
use prost::Message as _;

use super::*;

fn named(name: &str) -> ApplicationSubmissionContextProto {
    ApplicationSubmissionContextProto {
        application_name: Some(name.to_owned()),
        ..ApplicationSubmissionContextProto::default()
    }
}

#[tokio::test]
async fn an_application_is_submitted_watched_and_killed() {
    let rig = Rig::new(FaceSettings::default()).await;
    let mut anna = rig.client("anna").await;
    let id = submit(&mut anna, named("first")).await;
    let shown = report(&mut anna, id).await;
    assert_eq!(
        (shown.name(), shown.user(), shown.queue(), shown.application_type()),
        ("first", "anna", "default", "YARN")
    );
    assert_eq!(shown.yarn_application_state(), YarnApplicationStateProto::Accepted);
    assert_eq!((shown.host(), shown.rpc_port(), shown.tracking_url()), ("N/A", -1, "N/A"));
    assert_eq!(shown.am_rm_token, None, "its master is started by godel");
    assert_eq!(shown.current_application_attempt_id.unwrap().attempt_id(), 1);
    let submitted = rig.manager.submitted.lock()[0].clone();
    assert_eq!(submitted.0, super::super::ids::application(Some(id)).unwrap());
    assert_eq!(ContainerLaunchContextProto::decode(&*submitted.1.launch).unwrap().command, ["true"]);

    let request = GetApplicationAttemptsRequestProto { application_id: Some(id) };
    let attempts: GetApplicationAttemptsResponseProto =
        anna.call("getApplicationAttempts", &request).await.unwrap();
    let [attempt] = &attempts.application_attempts[..] else { panic!("{attempts:?}") };
    assert_eq!(
        attempt.yarn_application_attempt_state(),
        YarnApplicationAttemptStateProto::AppAttemptLaunched
    );
    let request = GetContainersRequestProto { application_attempt_id: attempt.application_attempt_id };
    let containers: GetContainersResponseProto = anna.call("getContainers", &request).await.unwrap();
    assert_eq!(containers.containers[0].container_id, attempt.am_container_id);
    assert_eq!(containers.containers[0].node_id.as_ref().unwrap().host(), "n1");

    let fail = FailApplicationAttemptRequestProto { application_attempt_id: attempt.application_attempt_id };
    let _failed: FailApplicationAttemptResponseProto =
        anna.call("failApplicationAttempt", &fail).await.unwrap();
    assert_eq!(report(&mut anna, id).await.current_application_attempt_id.unwrap().attempt_id(), 2);

    let kill =
        KillApplicationRequestProto { application_id: Some(id), diagnostics: Some("too old.".to_owned()) };
    let killed: KillApplicationResponseProto = anna.call("forceKillApplication", &kill).await.unwrap();
    assert!(killed.is_kill_completed());
    let shown = report(&mut anna, id).await;
    assert_eq!(shown.yarn_application_state(), YarnApplicationStateProto::Killed);
    assert_eq!(shown.final_application_status(), FinalApplicationStatusProto::AppKilled);
    let said = shown.diagnostics();
    assert!(
        said.contains(
            "too old. Application application_1700000000000_0001 was killed by user anna at 127.0.0.1"
        ),
        "{said}"
    );
    let request = GetApplicationAttemptsRequestProto { application_id: Some(id) };
    let attempts: GetApplicationAttemptsResponseProto =
        anna.call("getApplicationAttempts", &request).await.unwrap();
    assert!(attempts.application_attempts.iter().all(|attempt| attempt.diagnostics() == said));
}

#[tokio::test]
async fn applications_are_listed_by_what_is_asked() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (mut anna, mut bob) = (rig.client("anna").await, rig.client("bob").await);
    // The newest comes first.
    submit(&mut bob, named("b")).await;
    submit(&mut anna, named("a")).await;
    async fn names(client: &mut Client, request: GetApplicationsRequestProto) -> Vec<String> {
        let found: GetApplicationsResponseProto = client.call("getApplications", &request).await.unwrap();
        found.applications.into_iter().map(|report| report.name.unwrap()).collect()
    }
    let all = GetApplicationsRequestProto::default();
    assert_eq!(names(&mut anna, all.clone()).await, ["a", "b"]);
    let own =
        GetApplicationsRequestProto { scope: Some(ApplicationsRequestScopeProto::Own.into()), ..all.clone() };
    assert_eq!(names(&mut bob, own.clone()).await, ["b"]);
    let none = GetApplicationsRequestProto { users: vec!["anna".to_owned()], ..own };
    assert!(names(&mut bob, none).await.is_empty());
    let running = YarnApplicationStateProto::Running.into();
    assert!(
        names(&mut anna, GetApplicationsRequestProto { application_states: vec![running], ..all.clone() })
            .await
            .is_empty()
    );
    assert_eq!(
        names(&mut anna, GetApplicationsRequestProto { name: Some("b".to_owned()), ..all }).await,
        ["b"]
    );
}

#[tokio::test]
async fn applications_are_moved_and_get_priorities_and_ends() {
    let rig = Rig::new(FaceSettings::default()).await;
    let mut anna = rig.client("anna").await;
    let id = submit(&mut anna, named("a")).await;
    let move_to = |queue: &str| MoveApplicationAcrossQueuesRequestProto {
        application_id: id,
        target_queue: queue.to_owned(),
    };
    let _moved: MoveApplicationAcrossQueuesResponseProto =
        anna.call("moveApplicationAcrossQueues", &move_to("prod")).await.unwrap();
    let nowhere = move_to("nope");
    let nowhere = anna
        .call::<_, MoveApplicationAcrossQueuesResponseProto>("moveApplicationAcrossQueues", &nowhere)
        .await;
    assert!(refused(nowhere).message.contains("there is no queue `nope`"));
    let raise = UpdateApplicationPriorityRequestProto {
        application_id: id,
        application_priority: PriorityProto { priority: Some(99) },
    };
    let raised: UpdateApplicationPriorityResponseProto =
        anna.call("updateApplicationPriority", &raise).await.unwrap();
    assert_eq!(raised.application_priority.unwrap().priority(), 10, "what the manager lets");
    let end_at = |text: &str| UpdateApplicationTimeoutsRequestProto {
        application_id: id,
        application_timeouts: vec![ApplicationUpdateTimeoutMapProto {
            expire_time: Some(text.to_owned()),
            ..ApplicationUpdateTimeoutMapProto::default()
        }],
    };
    let later = end_at("2999-01-01T00:00:00.000+0100");
    let set: UpdateApplicationTimeoutsResponseProto =
        anna.call("updateApplicationTimeouts", &later).await.unwrap();
    assert_eq!(set.application_timeouts, later.application_timeouts);
    for (text, said) in [("soon", "ISO8601"), ("2001-01-01T00:00:00.000+0000", "less than current time")] {
        let refusal = refused(
            anna.call::<_, UpdateApplicationTimeoutsResponseProto>(
                "updateApplicationTimeouts",
                &end_at(text),
            )
            .await,
        );
        assert!(refusal.message.contains(said), "{refusal}");
    }
    let shown = report(&mut anna, id).await;
    let timeout = shown.app_timeouts[0].application_timeout.as_ref().unwrap();
    assert_eq!((shown.queue(), timeout.expire_time()), ("prod", "2998-12-31T23:00:00.000+0000"));
    assert!(timeout.remaining_time() > 0);
}

#[tokio::test]
async fn the_cluster_and_its_queues_are_shown() {
    let rig = Rig::new(FaceSettings::default()).await;
    let mut anna = rig.client("anna").await;
    let id = submit(&mut anna, named("a")).await;
    let metrics: GetClusterMetricsResponseProto =
        anna.call("getClusterMetrics", &GetClusterMetricsRequestProto {}).await.unwrap();
    assert_eq!(metrics.cluster_metrics.unwrap().num_active_nms(), 2);
    let states = |state: NodeStateProto| GetClusterNodesRequestProto { node_states: vec![state.into()] };
    let lost: GetClusterNodesResponseProto =
        anna.call("getClusterNodes", &states(NodeStateProto::NsLost)).await.unwrap();
    assert!(lost.node_reports.is_empty());
    let running: GetClusterNodesResponseProto =
        anna.call("getClusterNodes", &states(NodeStateProto::NsRunning)).await.unwrap();
    assert_eq!(running.node_reports.len(), 2);
    let request = GetQueueInfoRequestProto {
        queue_name: Some("default".to_owned()),
        include_applications: Some(true),
        ..GetQueueInfoRequestProto::default()
    };
    let info: GetQueueInfoResponseProto = anna.call("getQueueInfo", &request).await.unwrap();
    let info = info.queue_info.unwrap();
    assert_eq!((info.queue_name(), info.applications[0].application_id), ("default", Some(id)));
    let request = GetQueueInfoRequestProto { queue_name: Some("nope".to_owned()), ..request };
    let nothing: GetQueueInfoResponseProto = anna.call("getQueueInfo", &request).await.unwrap();
    assert_eq!(nothing.queue_info, None, "clients of YARN show that as such");
}

#[tokio::test]
async fn refusals_reach_clients_with_their_class() {
    let rig = Rig::new(FaceSettings::default()).await;
    let mut anna = rig.client("anna").await;
    let unknown = GetApplicationReportRequestProto {
        application_id: Some(ApplicationIdProto { id: Some(7), cluster_timestamp: Some(1) }),
    };
    let refusal =
        refused(anna.call::<_, GetApplicationReportResponseProto>("getApplicationReport", &unknown).await);
    assert!(refusal.class.ends_with(".ApplicationNotFoundException"), "{refusal}");
    assert!(refusal.message.starts_with("Application with id 'application_1_0007' doesn't exist in RM."));
    let mut class = async |method: &str| {
        let call = anna.call::<_, GetNewApplicationResponseProto>(method, &GetNewApplicationRequestProto {});
        refused(call.await).class.rsplit('.').next().unwrap().to_owned()
    };
    assert_eq!(class("getDelegationToken").await, "IOException");
    assert_eq!(class("submitReservation").await, "YarnException");
    assert_eq!(class("getResourceProfiles").await, "YARNFeatureNotEnabledException");
    assert_eq!(class("unheardOf").await, "RpcNoSuchMethodException");
    *rig.manager.refusal.lock() = Some(ManagerRefusal::Standby(None));
    assert_eq!(class("getNewApplication").await, "StandbyException");
}
