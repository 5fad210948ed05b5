//! YARN containers on a real agent: the test plays state, the ResourceManager and a master.

use std::{net::SocketAddr, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use godel_agent::{Mode, NodeDef};
use godel_domain::yarn_keys::{YARN_SECRET_LEN, YarnKey};
use godel_hadoop::{
    client::{CallError, Client, Shows},
    token::{Identifier, issue},
    yarn::{
        ApplicationAttemptIdProto, ApplicationIdProto, ContainerIdProto, ContainerLaunchContextProto,
        ContainerStateProto, ContainerStatusProto, ContainerTokenIdentifierProto,
        GetContainerStatusesRequestProto, GetContainerStatusesResponseProto, LocalResourceProto,
        LocalResourceTypeProto, NmTokenIdentifierProto, NodeIdProto, RunningUnitProto,
        SignalContainerCommandProto, SignalContainerRequestProto, SignalContainerResponseProto,
        StartContainerRequestProto, StartContainersRequestProto, StartContainersResponseProto,
        StopContainersRequestProto, StopContainersResponseProto, StringLocalResourceMapProto,
        StringStringMapProto, UrlProto,
    },
};
use godel_proto::v1::{self, RunPhase, session_request, session_response};

use super::{Agents, LONG, fake, phases};
use crate::fake::{Fake, assign};

const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB";

fn key(id: i32) -> YarnKey {
    YarnKey { id, secret: [u8::try_from(id).unwrap(); YARN_SECRET_LEN], from_ms: 0 }
}

/// Keys of masters and of containers, as state sends them.
fn keys() -> session_response::Message {
    let pb = |YarnKey { id, secret, from_ms }| v1::YarnKey { key_id: id, secret: secret.to_vec(), from_ms };
    let of = |name: &str, id| v1::YarnKeys { name: name.to_owned(), keys: vec![pb(key(id))] };
    let keys = vec![of("nm", 1), of("container", 2)];
    session_response::Message::YarnKeys(v1::NodeYarnKeys { revision: 7, keys })
}

fn attempt(application: i32) -> ApplicationAttemptIdProto {
    let application = ApplicationIdProto { id: Some(application), cluster_timestamp: Some(1_000) };
    ApplicationAttemptIdProto { application_id: Some(application), attempt_id: Some(1) }
}

/// The container of running unit 0 of a unit, in application 1.
fn container(unit: u64) -> ContainerIdProto {
    let id = Some(i64::try_from(unit).unwrap());
    ContainerIdProto { app_id: None, app_attempt_id: Some(attempt(1)), id }
}

/// An agent that starts containers, as state knows it.
struct Node {
    fake: Fake,
    agents: Agents,
    port: u16,
}

impl Node {
    /// Starts it at a port, 0 for a free one, and waits until it knows the keys.
    async fn start(mut fake: Fake, dir: &Path, port: u16) -> Self {
        let node = NodeDef { address: "127.0.0.1".to_owned(), ..super::this_node(dir) };
        let mut agents = Agents::start(&fake, vec![node], Mode::Processes, |config| {
            config.state_dir = Some(dir.to_owned());
            config.yarn.enabled = true;
            config.yarn.listen.set_port(port);
        });
        agents.connected(1).await;
        let asked = fake.find(|(_, message)| match message {
            session_request::Message::YarnKeys(request) => Some(request.revision),
            _ => None,
        });
        assert_eq!(asked.await, 0, "it has no keys");
        fake.send(1, keys());
        let report = fake.registered().pop().unwrap().report.unwrap();
        let port = report.attributes["godel.dev/yarn-port"].parse().unwrap();
        Self { fake, agents, port }
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// A master of an application.
    async fn master(&self, application: i32) -> Client {
        let node = NodeIdProto { host: Some("127.0.0.1".to_owned()), port: Some(self.port.into()) };
        let said = NmTokenIdentifierProto {
            app_attempt_id: Some(attempt(application)),
            node_id: Some(node),
            ..NmTokenIdentifierProto::default()
        };
        let shows = Shows::Token(issue(said, &key(1), ""));
        let connected = async {
            // The keys may be on their way.
            loop {
                match Client::connect(self.address(), PROTOCOL, 1, &shows, LONG).await {
                    Ok(client) => return client,
                    Err(CallError::Refused(error)) if error.message.contains("not known here yet") => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        tokio::time::timeout(LONG, connected).await.unwrap()
    }

    /// The container token of a unit, of the right key or another one.
    fn token(&self, unit: u64, submitter: &str, key_id: i32) -> godel_hadoop::common::TokenProto {
        let running = RunningUnitProto { unit_id: Some(unit), ordinal: Some(0), incarnation: Some(0) };
        let said = ContainerTokenIdentifierProto {
            container_id: Some(container(unit)),
            nm_host_addr: Some(self.address().to_string()),
            app_submitter: Some(submitter.to_owned()),
            expiry_time_stamp: Some(i64::MAX),
            running_unit: Some(running),
            ..ContainerTokenIdentifierProto::default()
        };
        assert_eq!(ContainerTokenIdentifierProto::KIND, "ContainerToken");
        let signs = YarnKey { id: 2, ..key(key_id) };
        issue(said, &signs, self.address().to_string())
    }

    /// Starts a container; returns why not.
    async fn start_container(
        &self,
        master: &mut Client,
        token: godel_hadoop::common::TokenProto,
        context: ContainerLaunchContextProto,
    ) -> Result<(), String> {
        let start = StartContainerRequestProto {
            container_launch_context: Some(context),
            container_token: Some(token),
        };
        let request = StartContainersRequestProto { start_container_request: vec![start] };
        let answer: StartContainersResponseProto = master.call("startContainers", &request).await.unwrap();
        match (&answer.succeeded_requests[..], &answer.failed_requests[..]) {
            ([_], []) => Ok(()),
            ([], [failed]) => Err(failed.exception.clone().unwrap().message.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Binds a unit whose command comes later.
    fn bind(&self, unit: u64, within_ms: u64) {
        let mut awaited = fake::command(unit, &[]);
        awaited.run.as_mut().unwrap().await_command_ms = Some(within_ms);
        self.fake.send(1, assign(awaited));
    }

    /// Waits for the end of a unit, and returns its phase and exit code.
    async fn end_of(&mut self, unit: u64) -> (RunPhase, i32) {
        loop {
            let said = phases(&self.fake.report_of(1).await);
            let ended = said.into_iter().find(|(of, phase, _)| *of == unit && *phase != RunPhase::Running);
            if let Some((_, phase, exit_code)) = ended.filter(|(_, phase, _)| *phase != RunPhase::Starting) {
                return (phase, exit_code);
            }
        }
    }
}

fn context(command: &str) -> ContainerLaunchContextProto {
    let pair =
        |(key, value): (&str, String)| StringStringMapProto { key: Some(key.to_owned()), value: Some(value) };
    ContainerLaunchContextProto {
        environment: vec![
            pair(("GREETING", "{{WORD}} there".to_owned())),
            pair(("WORD", "hello".to_owned())),
        ],
        command: vec![format!("{command} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr")],
        ..ContainerLaunchContextProto::default()
    }
}

/// A resource of a container.
fn resource(link: &str, source: &Path, kind: LocalResourceTypeProto) -> StringLocalResourceMapProto {
    let metadata = std::fs::metadata(source).unwrap();
    let url = UrlProto {
        scheme: Some("file".to_owned()),
        file: Some(source.display().to_string()),
        ..UrlProto::default()
    };
    let value = LocalResourceProto {
        resource: Some(url),
        size: Some(i64::try_from(metadata.len()).unwrap()),
        timestamp: Some(metadata.mtime() * 1_000 + metadata.mtime_nsec() / 1_000_000),
        r#type: Some(kind.into()),
        ..LocalResourceProto::default()
    };
    StringLocalResourceMapProto { key: Some(link.to_owned()), value: Some(value) }
}

/// What the log of running unit 0 of a unit says, once it says this.
async fn log_with(dir: &Path, unit: u64, expected: &str) -> String {
    let log = dir.join(format!("logs/{unit}-0-0"));
    let said = async {
        loop {
            let bytes = godel_agent::logs::read(&log, 0, 10_000).map(|read| read.bytes).unwrap_or_default();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            if text.contains(expected) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, said).await.unwrap_or_else(|_| panic!("the log never says {expected}"))
}

async fn status(master: &mut Client, unit: u64) -> ContainerStatusProto {
    let request = GetContainerStatusesRequestProto { container_id: vec![container(unit)] };
    let answer: GetContainerStatusesResponseProto =
        master.call("getContainerStatuses", &request).await.unwrap();
    answer.status.into_iter().next().unwrap_or_else(|| panic!("{:?}", answer.failed_requests))
}

/// The status of a container once it is over.
async fn final_status(master: &mut Client, unit: u64) -> i32 {
    let status = status(master, unit).await;
    assert_eq!(status.state(), ContainerStateProto::CComplete, "its end was reported before");
    status.exit_status()
}

#[tokio::test]
async fn a_container_survives_its_agent_and_ends_by_its_master() {
    let dir = tempfile::tempdir().unwrap();
    let (data, tar) = (dir.path().join("data.txt"), dir.path().join("conf.tar"));
    std::fs::write(&data, "a file\n").unwrap();
    let mut archive = tar::Builder::new(std::fs::File::create(&tar).unwrap());
    archive.append_path_with_name(&data, "inner/f").unwrap();
    archive.finish().unwrap();
    drop(archive);
    let state_dir = dir.path().join("agent");
    let node = Node::start(Fake::start(10_000).await, &state_dir, 0).await;
    let mut master = node.master(1).await;
    node.bind(1, 600_000);
    let script =
        "{ cat data/x conf/inner/f; echo $GREETING from $CONTAINER_ID; pwd; while :; do sleep 0.05; done; }";
    let asked = ContainerLaunchContextProto {
        local_resources: vec![
            resource("data/x", &data, LocalResourceTypeProto::File),
            resource("conf", &tar, LocalResourceTypeProto::Archive),
        ],
        tokens: Some(b"HDTS".as_slice().into()),
        ..context(script)
    };
    let token = |node: &Node| node.token(1, "anna", 2);
    let forged = node.start_container(&mut master, node.token(1, "anna", 3), asked.clone()).await;
    assert!(forged.unwrap_err().contains("not that of its identifier"));
    let mut stranger = node.master(2).await;
    let strange = node.start_container(&mut stranger, token(&node), asked.clone()).await;
    assert!(strange.unwrap_err().contains("was used for starting container with container token issued for"));
    node.start_container(&mut master, token(&node), asked.clone()).await.unwrap();
    let log = log_with(&state_dir, 1, "runs/1-0-0.0/container\n").await;
    let expected = "a file\na file\nhello there from container_1000_0001_01_000001\n";
    assert!(log.starts_with(expected), "{log}");
    assert_eq!(status(&mut master, 1).await.state(), ContainerStateProto::CRunning);
    let work_dir = state_dir.join("runs/1-0-0.0/container");
    assert_eq!(std::fs::read(work_dir.join("container_tokens")).unwrap(), b"HDTS");

    let Node { fake, agents, port } = node;
    agents.end().await;
    let mut node = Node::start(fake, &state_dir, port).await;
    let mut master = node.master(1).await;
    assert_eq!(status(&mut master, 1).await.state(), ContainerStateProto::CRunning, "it went on");
    let again = node.start_container(&mut master, token(&node), asked).await;
    assert!(again.unwrap_err().contains("Attempt to relaunch the same container"));
    let mut stranger = node.master(2).await;
    let request = StopContainersRequestProto {
        container_id: vec![container(1)],
        ..StopContainersRequestProto::default()
    };
    let answer: StopContainersResponseProto = stranger.call("stopContainers", &request).await.unwrap();
    assert!(answer.succeeded_requests.is_empty());
    let answer: StopContainersResponseProto = master.call("stopContainers", &request).await.unwrap();
    assert_eq!(answer.succeeded_requests, [container(1)]);
    assert_eq!(node.end_of(1).await, (RunPhase::Failed, 143));
    assert_eq!(final_status(&mut master, 1).await, -105);
    node.agents.end().await;
    assert!(!work_dir.exists(), "its directories go with the run");
}

#[tokio::test]
async fn places_without_their_command_are_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(Fake::start(10_000).await, dir.path(), 0).await;
    let mut master = node.master(1).await;
    node.bind(1, 1);
    assert_eq!(node.end_of(1).await, (RunPhase::Failed, 127));
    let late = node.start_container(&mut master, node.token(1, "anna", 2), context("true")).await;
    assert!(late.unwrap_err().contains("does not wait for a command"));
    node.bind(2, 600_000);
    node.start_container(&mut master, node.token(2, "anna", 2), context("exit 3")).await.unwrap();
    assert_eq!(node.end_of(2).await, (RunPhase::Failed, 3));
    assert_eq!(final_status(&mut master, 2).await, 3);

    // What nobody will start any more is given back before its time is over.
    node.bind(3, 600_000);
    let refused = ContainerLaunchContextProto::default();
    let refused = node.start_container(&mut master, node.token(3, "anna", 2), refused).await;
    assert!(refused.unwrap_err().contains("has no command"));
    let stop = |token| StopContainersRequestProto {
        container_id: vec![container(3)],
        container_token: Vec::from_iter(token),
    };
    let answer: StopContainersResponseProto = master.call("stopContainers", &stop(None)).await.unwrap();
    assert_eq!(answer.failed_requests.len(), 1, "without its token nobody knows which it is");
    let forged = stop(Some(node.token(3, "anna", 3)));
    let forged: Result<StopContainersResponseProto, CallError> = master.call("stopContainers", &forged).await;
    assert!(matches!(forged, Err(CallError::Refused(_))));
    let signed = stop(Some(node.token(3, "anna", 2)));
    let answer: StopContainersResponseProto = master.call("stopContainers", &signed).await.unwrap();
    assert_eq!(answer.succeeded_requests, [container(3)]);
    assert_eq!(node.end_of(3).await, (RunPhase::Failed, 127));
    let late = node.start_container(&mut master, node.token(3, "anna", 2), context("true")).await;
    assert!(late.unwrap_err().contains("does not wait for a command"));
    // The master may be quicker than the assignment.
    let early = StopContainersRequestProto {
        container_id: vec![container(4)],
        container_token: vec![node.token(4, "anna", 2)],
    };
    let stopping = async {
        let answer: StopContainersResponseProto = master.call("stopContainers", &early).await.unwrap();
        assert_eq!(answer.succeeded_requests, [container(4)]);
    };
    let assigning = async { node.bind(4, 600_000) };
    tokio::join!(stopping, assigning);
    assert_eq!(node.end_of(4).await, (RunPhase::Failed, 127));
    node.agents.end().await;
}

#[tokio::test]
async fn containers_run_as_their_submitter_where_the_agent_is_root() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(Fake::start(10_000).await, dir.path(), 0).await;
    let mut master = node.master(1).await;
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    node.bind(1, 600_000);
    let asked = context("{ echo $USER is $(id -un); sleep 100; }");
    node.start_container(&mut master, node.token(1, "nobody", 2), asked).await.unwrap();
    let log = log_with(dir.path(), 1, "nobody is").await;
    assert_eq!(log.contains("nobody is nobody\n"), is_root, "{log}");
    let signal = SignalContainerRequestProto {
        container_id: container(1),
        command: SignalContainerCommandProto::ForcefulShutdown.into(),
    };
    let _answer: SignalContainerResponseProto = master.call("signalToContainer", &signal).await.unwrap();
    assert_eq!(node.end_of(1).await.0, RunPhase::Failed);
    assert_eq!(final_status(&mut master, 1).await, -105);

    // What only the agent may read is not brought into a container of somebody else.
    node.bind(2, 600_000);
    let local_resources = vec![resource("x", &secret, LocalResourceTypeProto::File)];
    let asked = ContainerLaunchContextProto { local_resources, ..context("cat x") };
    node.start_container(&mut master, node.token(2, "nobody", 2), asked).await.unwrap();
    let (_, exit_code) = node.end_of(2).await;
    assert_eq!(exit_code == 127, is_root);
    if is_root {
        log_with(dir.path(), 2, "the resource x cannot be localised from").await;
        assert_eq!(final_status(&mut master, 2).await, -1_000);
    }
    node.agents.end().await;
}
