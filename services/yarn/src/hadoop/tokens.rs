//! The tokens that masters get: who they are to the ResourceManager and to nodes, and what they may start.

use std::sync::Arc;

use godel_core_yarn::ids::{YarnAttemptId, YarnContainerId};
use godel_core_yarn_leader::{LaunchNode, LaunchUnit, ManagerRefusal};
use godel_domain::yarn_keys::{YarnKey, YarnKeys};
use godel_hadoop::{
    Exception,
    common::TokenProto,
    token::{Identifier, issue},
    yarn::{
        AmrmTokenIdentifierProto, ContainerTokenIdentifierProto, ContainerTypeProto, ExecutionTypeProto,
        NmTokenIdentifierProto, PriorityProto, ResourceProto, RunningUnitProto,
    },
};
use godel_kit::clock::SharedClock;
use tokio::sync::watch;

use super::{ids, refusal};

/// Makes tokens by the keys that there are at the time.
#[derive(Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

struct Inner {
    /// Of masters, to the ResourceManager.
    amrm: watch::Receiver<YarnKeys>,
    /// Of masters, to nodes.
    nm: watch::Receiver<YarnKeys>,
    /// Of containers.
    container: watch::Receiver<YarnKeys>,
    clock: SharedClock,
    container_life_ms: i64,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { amrm, nm, container, .. } = &*self.inner;
        f.debug_struct("Tokens")
            .field("amrm", &*amrm.borrow())
            .field("nm", &*nm.borrow())
            .field("container", &*container.borrow())
            .finish_non_exhaustive()
    }
}

/// The keys of the three kinds of tokens.
#[derive(Clone, Debug)]
pub struct TokenKeys {
    /// By which masters are known to the ResourceManager (`amrm`).
    pub amrm: watch::Receiver<YarnKeys>,
    /// By which masters are known to nodes (`nm`).
    pub nm: watch::Receiver<YarnKeys>,
    /// By which nodes know what may be started (`container`).
    pub container: watch::Receiver<YarnKeys>,
}

/// What the token of a container says.
#[derive(Clone, Debug)]
pub(super) struct ContainerFacts<'a> {
    pub(super) id: YarnContainerId,
    pub(super) node: &'a LaunchNode,
    pub(super) unit: LaunchUnit,
    pub(super) user: &'a str,
    pub(super) resource: ResourceProto,
    pub(super) priority: i32,
    pub(super) is_master: bool,
    pub(super) execution: ExecutionTypeProto,
    pub(super) label: &'a str,
    pub(super) allocation_request_id: i64,
}

/// There is no key yet: the adapter has just begun.
fn no_key<I: Identifier>() -> Exception {
    refusal::for_clients(ManagerRefusal::Unavailable(format!(
        "there is no key for {} tokens yet: try again in a moment",
        I::KIND
    )))
}

impl Tokens {
    /// Makes tokens with these keys. A container has to be started within `container_life_ms` after its token was made.
    pub fn new(
        TokenKeys { amrm, nm, container }: TokenKeys,
        clock: SharedClock,
        container_life_ms: i64,
    ) -> Self {
        let inner = Inner { amrm, nm, container, clock, container_life_ms };
        Self { inner: Arc::new(inner) }
    }

    pub(super) fn master_keys(&self) -> watch::Receiver<YarnKeys> {
        self.inner.amrm.clone()
    }

    fn sign<I: Identifier>(
        &self,
        keys: &watch::Receiver<YarnKeys>,
        said: I,
        service: String,
    ) -> Result<TokenProto, Exception> {
        let now_ms = self.inner.clock.wall_ms();
        let key: YarnKey = keys.borrow().current(now_ms).cloned().ok_or_else(no_key::<I>)?;
        Ok(issue(said, &key, service))
    }

    /// The key that signs tokens of masters now.
    pub(super) fn master_key_id(&self) -> Option<i32> {
        self.inner.amrm.borrow().current(self.inner.clock.wall_ms()).map(|key| key.id)
    }

    /// The key that signs tokens for nodes now.
    pub(super) fn node_key_id(&self) -> Option<i32> {
        self.inner.nm.borrow().current(self.inner.clock.wall_ms()).map(|key| key.id)
    }

    /// By which a master is known to the ResourceManager. The client fills in the service.
    pub(super) fn master(&self, attempt: YarnAttemptId) -> Result<TokenProto, Exception> {
        let said = AmrmTokenIdentifierProto { app_attempt_id: Some(ids::attempt_pb(attempt)), key_id: None };
        self.sign(&self.inner.amrm, said, String::new())
    }

    /// By which a master is known to a node.
    pub(super) fn node(
        &self,
        attempt: YarnAttemptId,
        node: &LaunchNode,
        user: &str,
    ) -> Result<TokenProto, Exception> {
        let said = NmTokenIdentifierProto {
            app_attempt_id: Some(ids::attempt_pb(attempt)),
            node_id: Some(ids::node_pb(&node.host, node.port)),
            app_submitter: Some(user.to_owned()),
            key_id: None,
        };
        self.sign(&self.inner.nm, said, format!("{}:{}", node.host, node.port))
    }

    /// By which a node knows what may be started.
    pub(super) fn container(&self, facts: ContainerFacts<'_>) -> Result<TokenProto, Exception> {
        let ContainerFacts { id, node, unit, user, resource, priority, is_master, execution, label, .. } =
            facts;
        let now_ms = self.inner.clock.wall_ms();
        let address = format!("{}:{}", node.host, node.port);
        let kind = if is_master { ContainerTypeProto::ApplicationMaster } else { ContainerTypeProto::Task };
        let LaunchUnit { unit_id, ordinal, incarnation } = unit;
        let said = ContainerTokenIdentifierProto {
            container_id: Some(ids::container_pb(id)),
            nm_host_addr: Some(address.clone()),
            app_submitter: Some(user.to_owned()),
            resource: Some(resource),
            expiry_time_stamp: Some(now_ms.saturating_add(self.inner.container_life_ms)),
            master_key_id: None,
            rm_identifier: Some(id.attempt.application.cluster_timestamp),
            priority: Some(PriorityProto { priority: Some(priority) }),
            creation_time: Some(now_ms),
            log_aggregation_context: None,
            node_label_expression: Some(label.to_owned()),
            container_type: Some(kind.into()),
            execution_type: Some(execution.into()),
            version: Some(0),
            allocation_request_id: Some(facts.allocation_request_id),
            allocation_tags: Vec::new(),
            running_unit: Some(RunningUnitProto {
                unit_id: Some(unit_id),
                ordinal: Some(ordinal),
                incarnation: Some(incarnation),
            }),
        };
        self.sign(&self.inner.container, said, address)
    }
}
