//! Calls to nodes: masters are started and stopped with tokens that a node believes.

use std::sync::Mutex;

use godel_core_yarn::ids::{YarnApplicationId, YarnContainerId};
use godel_core_yarn_leader::{LaunchNode, LaunchRefusal, LaunchUnit, MasterLaunch};
use godel_hadoop::{
    Authentication, Protocol,
    credentials::Credentials,
    exception,
    token::{KeyedPasswords, check},
    yarn::{
        AmrmTokenIdentifierProto, ContainerExceptionMapProto, ContainerTokenIdentifierProto,
        ContainerTypeProto, NmTokenIdentifierProto, SerializedExceptionProto, StartContainersRequestProto,
        StartContainersResponseProto, StopContainersRequestProto, StopContainersResponseProto,
    },
};
use prost::Message as _;

use super::*;
use crate::{hadoop::launch::NodeLauncher, launcher::Launcher, tests::samples::amount};

/// What a node answers to the next start.
type Next = Arc<Mutex<Vec<Option<(&'static str, String)>>>>;
type Seen = Arc<Mutex<Vec<StartContainersRequestProto>>>;

fn failed(class: &str, message: String) -> Vec<ContainerExceptionMapProto> {
    let exception = SerializedExceptionProto {
        message: Some(message),
        class_name: Some(class.to_owned()),
        ..SerializedExceptionProto::default()
    };
    vec![ContainerExceptionMapProto { container_id: None, exception: Some(exception) }]
}

/// A node that remembers what it is told to start.
fn node_server(rig: &Rig, next: Next, seen: Seen) -> Server {
    let passwords = KeyedPasswords::<NmTokenIdentifierProto>::new(rig.nm.subscribe());
    let protocol = Protocol::new("org.apache.hadoop.yarn.api.ContainerManagementProtocolPB", 1)
        .method("startContainers", move |caller: godel_hadoop::Caller, request| {
            let said: NmTokenIdentifierProto = caller.identity.token().unwrap();
            assert_eq!(said.app_submitter(), "anna");
            seen.lock().unwrap().push(request);
            let mut answer = StartContainersResponseProto::default();
            if let Some(Some((class, message))) = next.lock().unwrap().pop() {
                answer.failed_requests = failed(class, message);
            }
            std::future::ready(Ok(answer))
        })
        .method("stopContainers", |_, _: StopContainersRequestProto| {
            let message = "Container container_1 is not handled by this NodeManager".to_owned();
            let failed_requests = failed(exception::YARN, message);
            std::future::ready(Ok(StopContainersResponseProto { failed_requests, ..Default::default() }))
        });
    Server::new(Authentication::Token(Arc::new(passwords))).protocol(protocol)
}

fn launch(port: u16) -> MasterLaunch {
    let application = YarnApplicationId { cluster_timestamp: 9, number: 1 };
    let attempt = YarnAttemptId { application, number: 1 };
    let context = ContainerLaunchContextProto { command: vec!["run".to_owned()], ..Default::default() };
    MasterLaunch {
        attempt,
        container: YarnContainerId { attempt, epoch: 0, number: 1 },
        node: LaunchNode { name: "n1".to_owned(), host: "127.0.0.1".to_owned(), port },
        unit: LaunchUnit { unit_id: 7, ordinal: 0, incarnation: 0 },
        amount: amount(1_024, 1),
        user: "anna".to_owned(),
        queue: "default".to_owned(),
        launch: context.encode_to_vec().into(),
        submit_ms: 5,
        max_attempts: 2,
    }
}

#[tokio::test]
async fn a_node_starts_a_master_that_it_believes() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (next, seen) = (Next::default(), Seen::default());
    let stop = CancellationToken::new();
    let at = serve(node_server(&rig, Arc::clone(&next), Arc::clone(&seen)), &stop).await;
    let launcher = NodeLauncher::new(NodeCalls::new(rig.tokens.clone()).within(Duration::from_secs(10)));
    launcher.launch(launch(at.port())).await.unwrap();
    let started = seen.lock().unwrap().pop().unwrap().start_container_request.remove(0);
    let said: ContainerTokenIdentifierProto =
        check(started.container_token.as_ref().unwrap(), &rig.container.borrow()).unwrap();
    assert_eq!(said.container_type(), ContainerTypeProto::ApplicationMaster);
    assert_eq!(said.nm_host_addr(), format!("127.0.0.1:{}", at.port()));
    assert_eq!(said.running_unit.unwrap().unit_id(), 7);
    let context = started.container_launch_context.unwrap();
    let credentials = Credentials::read(context.tokens.clone().unwrap()).unwrap();
    let token = credentials.tokens.values().next().unwrap();
    let master: AmrmTokenIdentifierProto = check(token, &rig.amrm.borrow()).unwrap();
    assert_eq!(master.app_attempt_id.unwrap().attempt_id(), 1);
    assert!(context.environment.iter().any(|pair| pair.key() == "APPLICATION_WEB_PROXY_BASE"));

    let answered = async |class, message: &str| {
        next.lock().unwrap().push(Some((class, message.to_owned())));
        launcher.launch(launch(at.port())).await
    };
    let again = answered(exception::YARN, "Attempt to relaunch the same container with id container_1").await;
    assert_eq!(again, Ok(()));
    let late = answered(exception::YARN, "container_1 is not awaited on this node").await;
    assert!(matches!(late, Err(LaunchRefusal::Unavailable(_))));
    let never = answered(exception::YARN, "the launch context has no command").await;
    assert!(matches!(never, Err(LaunchRefusal::Refused(_))));
    assert_eq!(launcher.stop(launch(at.port())).await, Ok(()), "it is not there any more");
    stop.cancel();
}

#[tokio::test]
async fn a_node_that_is_not_there_is_asked_again() {
    let rig = Rig::new(FaceSettings::default()).await;
    let launcher = NodeLauncher::new(NodeCalls::new(rig.tokens.clone()).within(Duration::from_secs(5)));
    let refusal = launcher.launch(launch(1)).await.unwrap_err();
    let LaunchRefusal::Unavailable(why) = refusal else { panic!("{refusal}") };
    assert!(why.starts_with("node n1 (127.0.0.1:1) cannot be called"), "{why}");
    let broken = MasterLaunch { launch: [0xff].into(), ..launch(1) };
    assert!(matches!(launcher.launch(broken).await, Err(LaunchRefusal::Hopeless(_))));
    rig.nm.send_replace(YarnKeys::default());
    let refusal = launcher.launch(launch(1)).await;
    assert!(matches!(refusal, Err(LaunchRefusal::Unavailable(_))), "{refusal:?}");
}
