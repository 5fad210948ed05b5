//! Starts and stops masters on their nodes.
//!
//! A master is a container whose launch context is the client's, with what a ResourceManager adds: the token by which the master is known, and
//! variables that say where its pages are and how often it is tried.

use bytes::Bytes;
use godel_core_yarn_leader::{LaunchRefusal, MasterLaunch};
use godel_hadoop::{
    Exception,
    common::TokenProto,
    credentials::Credentials,
    exception,
    yarn::{
        ContainerLaunchContextProto, ExecutionTypeProto, StartContainerRequestProto, StringStringMapProto,
    },
};
use prost::Message as _;
use tonic::async_trait;

use super::{
    amounts, ids,
    node_calls::{NodeCall, NodeCalls, NodeError},
    tokens::ContainerFacts,
};
use crate::launcher::Launcher;

/// What a node says of a container that it has started already.
const STARTED_ALREADY: &str = "Attempt to relaunch the same container";
/// What a node says of a container whose running unit it does not have, or not yet.
const NOT_AWAITED: &str = "is not awaited on this node";
/// What a node says of a container that it does not have.
const NOT_THERE: &str = "is not handled by this NodeManager";

/// Starts masters by calling their nodes.
#[derive(Clone, Debug)]
pub struct NodeLauncher {
    nodes: NodeCalls,
}

impl NodeLauncher {
    /// Calls nodes this way.
    pub fn new(nodes: NodeCalls) -> Self {
        Self { nodes }
    }

    fn request(&self, launch: &MasterLaunch) -> Result<StartContainerRequestProto, LaunchRefusal> {
        let unavailable = |exception: Exception| LaunchRefusal::Unavailable(exception.message);
        let master = self.nodes.tokens().master(launch.attempt).map_err(unavailable)?;
        Ok(StartContainerRequestProto {
            container_launch_context: Some(context(launch, master)?),
            container_token: Some(self.container_token(launch)?),
        })
    }

    /// What says which running unit the master is.
    fn container_token(&self, launch: &MasterLaunch) -> Result<TokenProto, LaunchRefusal> {
        let token = self.nodes.tokens().container(ContainerFacts {
            id: launch.container,
            node: &launch.node,
            unit: launch.unit,
            user: &launch.user,
            resource: amounts::pb(&launch.amount),
            priority: 0,
            is_master: true,
            execution: ExecutionTypeProto::Guaranteed,
            label: "",
            allocation_request_id: -1,
        });
        token.map_err(|exception| LaunchRefusal::Unavailable(exception.message))
    }
}

/// The launch context of the client, with what a master needs beside.
fn context(launch: &MasterLaunch, master: TokenProto) -> Result<ContainerLaunchContextProto, LaunchRefusal> {
    let refused = |message: String| LaunchRefusal::Hopeless(message);
    let application = launch.attempt.application;
    let mut context = ContainerLaunchContextProto::decode(&*launch.launch)
        .map_err(|error| refused(format!("the launch context of {application} cannot be read: {error}")))?;
    let mut credentials = match context.tokens.take().filter(|tokens| !tokens.is_empty()) {
        Some(tokens) => Credentials::read(tokens)
            .map_err(|error| refused(format!("the tokens of {application}: {error}")))?,
        None => Credentials::default(),
    };
    credentials.tokens.insert(String::new(), master);
    context.tokens = Some(Bytes::from(credentials.write()));
    let added = [
        ("APPLICATION_WEB_PROXY_BASE", format!("/proxy/{application}")),
        ("APP_SUBMIT_TIME_ENV", launch.submit_ms.to_string()),
        ("MAX_APP_ATTEMPTS", launch.max_attempts.to_string()),
    ];
    context.environment.retain(|pair| added.iter().all(|(name, _)| pair.key() != *name));
    context.environment.extend(
        added.map(|(name, value)| StringStringMapProto { key: Some(name.to_owned()), value: Some(value) }),
    );
    Ok(context)
}

fn call(launch: &MasterLaunch) -> NodeCall<'_> {
    NodeCall { attempt: launch.attempt, user: &launch.user, node: &launch.node }
}

/// What a refusal of a node means. A node whose keys are older or that is stopping may take the same call later, and so may one that has not heard
/// of the running unit.
fn judge(error: NodeError) -> LaunchRefusal {
    match error {
        NodeError::Unavailable(why) => LaunchRefusal::Unavailable(why),
        NodeError::Refused(Exception { class, message }) => {
            let may_pass =
                [exception::INVALID_TOKEN, exception::IO].contains(&&*class) || message.contains(NOT_AWAITED);
            if may_pass { LaunchRefusal::Unavailable(message) } else { LaunchRefusal::Refused(message) }
        }
    }
}

fn says(result: &Result<(), NodeError>, words: &str) -> bool {
    matches!(result, Err(NodeError::Refused(exception)) if exception.message.contains(words))
}

#[async_trait]
impl Launcher for NodeLauncher {
    async fn launch(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal> {
        let started = self.nodes.start(call(&launch), self.request(&launch)?).await;
        if says(&started, STARTED_ALREADY) {
            return Ok(());
        }
        started.map_err(judge)
    }

    async fn stop(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal> {
        let token = self.container_token(&launch)?;
        let stopped = self.nodes.stop(call(&launch), ids::container_pb(launch.container), token).await;
        if says(&stopped, NOT_THERE) {
            return Ok(());
        }
        stopped.map_err(judge)
    }
}

#[cfg(test)]
mod tests {
    use godel_core_yarn::ids::{YarnApplicationId, YarnAttemptId, YarnContainerId};
    use godel_core_yarn_leader::{LaunchNode, LaunchUnit, YarnAmount};

    use super::*;

    fn launch(context: &ContainerLaunchContextProto) -> MasterLaunch {
        let application = YarnApplicationId { cluster_timestamp: 9, number: 1 };
        let attempt = YarnAttemptId { application, number: 2 };
        MasterLaunch {
            attempt,
            container: YarnContainerId { attempt, epoch: 0, number: 1 },
            node: LaunchNode { name: "n1".to_owned(), host: "127.0.0.1".to_owned(), port: 1 },
            unit: LaunchUnit { unit_id: 7, ordinal: 0, incarnation: 1 },
            amount: YarnAmount::default(),
            user: "anna".to_owned(),
            queue: "default".to_owned(),
            launch: context.encode_to_vec().into(),
            submit_ms: 5,
            max_attempts: 3,
        }
    }

    fn token(kind: &str) -> TokenProto {
        TokenProto { kind: kind.to_owned(), ..TokenProto::default() }
    }

    #[test]
    fn a_master_finds_its_token_beside_those_of_its_client() {
        let mut submitted = Credentials::default();
        submitted.tokens.insert("hdfs".to_owned(), token("HDFS_DELEGATION_TOKEN"));
        let pair = |name: &str, value: &str| StringStringMapProto {
            key: Some(name.to_owned()),
            value: Some(value.to_owned()),
        };
        let asked = ContainerLaunchContextProto {
            tokens: Some(submitted.write().into()),
            environment: vec![pair("A", "1"), pair("MAX_APP_ATTEMPTS", "9")],
            ..ContainerLaunchContextProto::default()
        };
        let made = context(&launch(&asked), token("YARN_AM_RM_TOKEN")).unwrap();
        let found = Credentials::read(made.tokens.unwrap()).unwrap();
        let kinds: Vec<&str> = found.tokens.values().map(|token| token.kind.as_str()).collect();
        assert_eq!(kinds, ["YARN_AM_RM_TOKEN", "HDFS_DELEGATION_TOKEN"]);
        let expected = [
            pair("A", "1"),
            pair("APPLICATION_WEB_PROXY_BASE", "/proxy/application_9_0001"),
            pair("APP_SUBMIT_TIME_ENV", "5"),
            pair("MAX_APP_ATTEMPTS", "3"),
        ];
        assert_eq!(made.environment, expected);
    }

    #[test]
    fn what_nobody_can_start_is_refused() {
        let broken =
            MasterLaunch { launch: [0xff].into(), ..launch(&ContainerLaunchContextProto::default()) };
        let said = context(&broken, token("T")).unwrap_err().to_string();
        assert!(said.starts_with("the launch context of application_9_0001 cannot be read"), "{said}");
        let other = ContainerLaunchContextProto {
            tokens: Some(Bytes::from_static(b"x")),
            ..ContainerLaunchContextProto::default()
        };
        let said = context(&launch(&other), token("T")).unwrap_err().to_string();
        assert!(said.contains("these are no Hadoop credentials"), "{said}");
    }

    #[test]
    fn nodes_that_may_take_it_later_are_asked_again() {
        let of =
            |class: &'static str, message: &str| judge(NodeError::Refused(Exception::new(class, message)));
        assert!(matches!(of(exception::IO, "stopping"), LaunchRefusal::Unavailable(_)));
        assert!(matches!(of(exception::INVALID_TOKEN, "key 3"), LaunchRefusal::Unavailable(_)));
        let late = of(exception::YARN, "container_1 is not awaited on this node: its place was given back");
        assert!(matches!(late, LaunchRefusal::Unavailable(_)));
        assert!(matches!(of(exception::YARN, "has no command"), LaunchRefusal::Refused(_)));
    }
}
