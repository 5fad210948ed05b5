//! Masters: what they get, when and how often.

use godel_hadoop::{
    token::check,
    yarn::{
        AllocateRequestProto, AllocateResponseProto, ContainerTokenIdentifierProto,
        FinalApplicationStatusProto, FinishApplicationMasterRequestProto,
        FinishApplicationMasterResponseProto, NmTokenIdentifierProto, PriorityProto,
        RegisterApplicationMasterRequestProto, RegisterApplicationMasterResponseProto, ResourceRequestProto,
        SchedulerResourceTypes, YarnApplicationStateProto,
    },
};

use super::*;

async fn register(master: &mut Client) -> Result<RegisterApplicationMasterResponseProto, CallError> {
    let request = RegisterApplicationMasterRequestProto {
        host: Some("here".to_owned()),
        rpc_port: Some(7),
        tracking_url: Some("http://here:1/".to_owned()),
        ..RegisterApplicationMasterRequestProto::default()
    };
    master.call("registerApplicationMaster", &request).await
}

fn asks(seen: i32, n: i32) -> AllocateRequestProto {
    let row = ResourceRequestProto {
        priority: Some(PriorityProto { priority: Some(1) }),
        resource_name: Some("*".to_owned()),
        capability: Some(ResourceProto {
            memory: Some(1_024),
            virtual_cores: Some(1),
            resource_value_map: Vec::new(),
        }),
        num_containers: Some(n),
        ..ResourceRequestProto::default()
    };
    let ask = if n > 0 { vec![row] } else { Vec::new() };
    AllocateRequestProto { ask, response_id: Some(seen), ..AllocateRequestProto::default() }
}

async fn allocate(
    master: &mut Client,
    request: AllocateRequestProto,
) -> Result<AllocateResponseProto, CallError> {
    master.call("allocate", &request).await
}

#[tokio::test]
async fn a_master_gets_containers_with_their_tokens() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (attempt, token) = unmanaged(&rig).await;
    let mut master = rig.master(&token).await;
    let early = refused(allocate(&mut master, asks(0, 1)).await);
    assert!(early.class.ends_with(".ApplicationMasterNotRegisteredException"), "{early}");
    let registered = register(&mut master).await.unwrap();
    assert_eq!(
        (registered.queue(), registered.maximum_capability.as_ref().unwrap().memory()),
        ("default", 8_192)
    );
    assert!(registered.scheduler_resource_types().any(|kind| kind == SchedulerResourceTypes::Cpu));

    allocate(&mut master, asks(0, 3)).await.unwrap();
    let got = allocate(&mut master, asks(1, 0)).await.unwrap();
    assert_eq!((got.response_id(), got.allocated_containers.len(), got.num_cluster_nodes()), (2, 3, 2));
    assert_eq!(got.nm_tokens.len(), 2, "two nodes");
    let container = &got.allocated_containers[0];
    let said: ContainerTokenIdentifierProto =
        check(container.container_token.as_ref().unwrap(), &rig.container.borrow()).unwrap();
    let node = container.node_id.as_ref().unwrap();
    assert_eq!(said.nm_host_addr(), format!("{}:{}", node.host(), node.port()));
    assert_eq!((said.container_id, said.app_submitter()), (container.id, "anna"));
    assert_eq!(said.running_unit.as_ref().unwrap().ordinal(), 1);
    let for_node: NmTokenIdentifierProto =
        check(got.nm_tokens[0].token.as_ref().unwrap(), &rig.nm.borrow()).unwrap();
    assert_eq!(for_node.app_attempt_id, Some(super::super::ids::attempt_pb(attempt)));

    let again = allocate(&mut master, asks(1, 0)).await.unwrap();
    assert_eq!((again.response_id(), again.allocated_containers.len(), again.nm_tokens.len()), (2, 3, 2));
    allocate(&mut master, asks(2, 2)).await.unwrap();
    let more = allocate(&mut master, asks(3, 0)).await.unwrap();
    assert_eq!((more.allocated_containers.len(), more.nm_tokens.len()), (2, 0), "it has both");
    let wrong = refused(allocate(&mut master, asks(9, 0)).await);
    assert!(wrong.class.ends_with(".InvalidApplicationMasterRequestException"), "{wrong}");

    let release = AllocateRequestProto { release: vec![container.id.unwrap()], ..asks(4, 0) };
    let ended = allocate(&mut master, release).await.unwrap().completed_container_statuses;
    assert_eq!((ended.len(), ended[0].container_id, ended[0].exit_status()), (1, container.id, -100));
}

#[tokio::test]
async fn addresses_that_no_record_can_keep_are_refused() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (_, token) = unmanaged(&rig).await;
    let mut master = rig.master(&token).await;
    let long = Some("x".repeat(4_097));
    let host = RegisterApplicationMasterRequestProto { host: long.clone(), ..Default::default() };
    let url = RegisterApplicationMasterRequestProto { tracking_url: long.clone(), ..Default::default() };
    for (request, what) in [(host, "host"), (url, "tracking URL")] {
        let registered = master.call("registerApplicationMaster", &request).await;
        let said = refused::<RegisterApplicationMasterResponseProto>(registered).message;
        assert!(said.contains(&format!("the {what} has 4097 bytes; at most 4096 are taken")), "{said}");
    }
    register(&mut master).await.unwrap();
    let request = FinishApplicationMasterRequestProto { tracking_url: long, ..Default::default() };
    let finished = master.call("finishApplicationMaster", &request).await;
    let said = refused::<FinishApplicationMasterResponseProto>(finished).message;
    assert!(said.contains("the tracking URL has 4097 bytes; at most 4096 are taken"), "{said}");
}

#[tokio::test]
async fn a_master_whose_key_is_old_gets_a_new_token_once() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (_, token) = unmanaged(&rig).await;
    let mut master = rig.master(&token).await;
    register(&mut master).await.unwrap();
    assert_eq!(allocate(&mut master, asks(0, 1)).await.unwrap().am_rm_token, None);
    rig.amrm.send_replace(keys("amrm", &[1, 2]));
    let renewed = allocate(&mut master, asks(1, 0)).await.unwrap().am_rm_token.unwrap();
    assert_eq!(allocate(&mut master, asks(2, 0)).await.unwrap().am_rm_token, None);
    let mut master = rig.master(&renewed).await;
    assert_eq!(allocate(&mut master, asks(3, 1)).await.unwrap().am_rm_token, None);
    // Tokens for nodes are made again when their key has rolled over.
    rig.nm.send_replace(keys("nm", &[1, 2]));
    let got = allocate(&mut master, asks(4, 0)).await.unwrap();
    assert_eq!((got.allocated_containers.len(), got.nm_tokens.len()), (1, 1));
}

#[tokio::test]
async fn masters_say_goodbye_and_strangers_are_told_to_end() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (attempt, token) = unmanaged(&rig).await;
    let mut master = rig.master(&token).await;
    register(&mut master).await.unwrap();
    assert!(
        refused(register(&mut master).await).class.ends_with(".InvalidApplicationMasterRequestException")
    );
    let request = FinishApplicationMasterRequestProto {
        final_application_status: Some(FinalApplicationStatusProto::AppSucceeded.into()),
        ..FinishApplicationMasterRequestProto::default()
    };
    let finished: FinishApplicationMasterResponseProto =
        master.call("finishApplicationMaster", &request).await.unwrap();
    assert!(finished.is_unregistered());
    let mut client = rig.client("anna").await;
    let shown = report(&mut client, super::super::ids::application_pb(attempt.application)).await;
    assert_eq!(shown.yarn_application_state(), YarnApplicationStateProto::Finished);
    assert_eq!((shown.host(), shown.am_rm_token.clone()), ("here", None));

    let stranger = YarnAttemptId { number: 9, ..attempt };
    let mut stranger = rig.master(&rig.tokens.master(stranger).unwrap()).await;
    let told = refused(allocate(&mut stranger, asks(0, 0)).await);
    assert!(told.class.ends_with(".ApplicationAttemptNotFoundException"), "{told}");
    *rig.manager.refusal.lock() = Some(ManagerRefusal::Standby(None));
    let told = refused(allocate(&mut stranger, asks(0, 0)).await);
    assert!(told.class.ends_with(".StandbyException"), "{told}");
}
