//! Calls to nodes in the name of a master, over ContainerManagementProtocol.
//!
//! A connection shows the NM token of one attempt, and a master is started and stopped once: each call has a connection of its own. How many
//! there are at a time is bounded, and each call has a deadline.

use std::{sync::Arc, time::Duration};

use godel_core_yarn::ids::YarnAttemptId;
use godel_core_yarn_leader::LaunchNode;
use godel_hadoop::{
    Exception,
    client::{CallError, Client, Shows},
    common::TokenProto,
    yarn::{
        ContainerExceptionMapProto, ContainerIdProto, SignalContainerCommandProto,
        SignalContainerRequestProto, SignalContainerResponseProto, StartContainerRequestProto,
        StartContainersRequestProto, StartContainersResponseProto, StopContainersRequestProto,
        StopContainersResponseProto,
    },
};
use tokio::{sync::Semaphore, time::timeout};

use super::tokens::Tokens;

const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB";
/// Calls at the same time.
const N_CALLS_MAX: usize = 64;
/// For everything of a call. A node waits up to 10 seconds for the assignment of the running unit.
const WITHIN: Duration = Duration::from_secs(30);

/// Who calls which node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeCall<'a> {
    /// Whose master.
    pub(super) attempt: YarnAttemptId,
    /// Who submitted the application.
    pub(super) user: &'a str,
    /// The node.
    pub(super) node: &'a LaunchNode,
}

/// Why a call to a node has not done what it should.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeError {
    /// The node could not be asked, or its answer is not known.
    Unavailable(String),
    /// The node refuses.
    Refused(Exception),
}

/// Calls nodes.
#[derive(Clone, Debug)]
pub struct NodeCalls {
    tokens: Tokens,
    calls: Arc<Semaphore>,
    within: Duration,
}

impl NodeCalls {
    /// Calls nodes with these tokens.
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens, calls: Arc::new(Semaphore::new(N_CALLS_MAX)), within: WITHIN }
    }

    /// The same with another deadline of calls.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    pub(super) async fn start(
        &self,
        call: NodeCall<'_>,
        request: StartContainerRequestProto,
    ) -> Result<(), NodeError> {
        let request = StartContainersRequestProto { start_container_request: vec![request] };
        let answer: StartContainersResponseProto = self.call(call, "startContainers", &request).await?;
        all_done(answer.failed_requests)
    }

    pub(super) async fn stop(
        &self,
        call: NodeCall<'_>,
        container: ContainerIdProto,
        token: TokenProto,
    ) -> Result<(), NodeError> {
        let request =
            StopContainersRequestProto { container_id: vec![container], container_token: vec![token] };
        let answer: StopContainersResponseProto = self.call(call, "stopContainers", &request).await?;
        all_done(answer.failed_requests)
    }

    pub(super) async fn signal(
        &self,
        call: NodeCall<'_>,
        container: ContainerIdProto,
        command: SignalContainerCommandProto,
    ) -> Result<(), NodeError> {
        let request = SignalContainerRequestProto { container_id: container, command: command.into() };
        let _done: SignalContainerResponseProto = self.call(call, "signalToContainer", &request).await?;
        Ok(())
    }

    async fn call<Q: prost::Message, A: prost::Message + Default>(
        &self,
        NodeCall { attempt, user, node }: NodeCall<'_>,
        method: &str,
        request: &Q,
    ) -> Result<A, NodeError> {
        let token = self.tokens.node(attempt, node, user);
        let token = token.map_err(|exception| NodeError::Unavailable(exception.message))?;
        let called = async {
            // The semaphore is never closed; without a permit the call goes on all the same.
            let _permit = self.calls.acquire().await.ok();
            let mut addresses = tokio::net::lookup_host((node.host.as_str(), node.port)).await?;
            let address = addresses.next().ok_or_else(|| std::io::Error::other("it has no address"))?;
            let mut client = Client::connect(address, PROTOCOL, 1, &Shows::Token(token), self.within).await?;
            client.call(method, request).await
        };
        let failed = match timeout(self.within, called).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(CallError::Refused(exception))) => return Err(NodeError::Refused(exception)),
            Ok(Err(CallError::Io(error))) => format!("cannot be called: {error}"),
            Ok(Err(error @ CallError::Malformed)) => format!("has answered something else: {error}"),
            Ok(Err(CallError::Timeout)) | Err(_) => "has not answered in time".to_owned(),
        };
        let LaunchNode { name, host, port } = node;
        Err(NodeError::Unavailable(format!("node {name} ({host}:{port}) {failed}")))
    }
}

/// Whether the one container of a request was served.
fn all_done(failed: Vec<ContainerExceptionMapProto>) -> Result<(), NodeError> {
    let Some(failed) = failed.into_iter().next() else { return Ok(()) };
    let exception = failed.exception.unwrap_or_default();
    Err(NodeError::Refused(Exception::new(exception.class_name().to_owned(), exception.message())))
}
