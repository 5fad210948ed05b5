//! ApplicationMasterProtocol, which masters call. The token of the connection says whose master it is.
//!
//! A master gets the NM token of a node with the first container there, and again when the answer was lost or the key has rolled over. It gets its
//! own next token once for each key. Which ones a master has is remembered here only: a master that registers again gets all of them again.

use std::sync::Arc;

use godel_core_yarn::{
    adapter::{AllocatedContainer, CompletedContainer, Registration},
    exit_status::YarnExitStatus,
    ids::YarnAttemptId,
};
use godel_core_yarn_leader::{ContainerPlace, LaunchNode, MasterAnswer, YarnAmount};
use godel_hadoop::{
    Caller, Exception, Protocol,
    yarn::{
        AllocateRequestProto, AllocateResponseProto, AmrmTokenIdentifierProto, ContainerProto,
        ContainerStateProto, ContainerStatusProto, FinishApplicationMasterRequestProto,
        FinishApplicationMasterResponseProto, NmTokenProto, PreemptionContainerProto, PreemptionMessageProto,
        RegisterApplicationMasterRequestProto, RegisterApplicationMasterResponseProto,
        SchedulerResourceTypes, StrictPreemptionContractProto,
    },
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{
    amounts, asks, ids,
    refusal::{for_masters, refused},
    reports,
    tokens::{ContainerFacts, Tokens},
};
use crate::ResourceManager;

const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
/// Masters of which is remembered which tokens they have. All of it is forgotten when there are more, and masters get tokens again.
const N_MASTERS_MAX: usize = 20_000;

/// What a master has.
#[derive(Debug, Default)]
struct Told {
    /// Key of the newest token of its own.
    master_key: Option<i32>,
    /// Key of the tokens for nodes.
    node_key: Option<i32>,
    /// Nodes that it has a token for, with the response in which the token was.
    nodes: FxHashMap<(String, u16), i32>,
}

/// Serves masters.
#[derive(Debug)]
pub(super) struct MasterFace {
    manager: Arc<dyn ResourceManager>,
    tokens: Tokens,
    told: Mutex<FxHashMap<YarnAttemptId, Told>>,
}

pub(super) fn protocol(face: MasterFace) -> Protocol {
    let face = Arc::new(face);
    let (registers, allocates, finishes) = (Arc::clone(&face), Arc::clone(&face), face);
    Protocol::new(PROTOCOL, 1)
        .method("registerApplicationMaster", move |caller, request| {
            Arc::clone(&registers).register(caller, request)
        })
        .method("allocate", move |caller, request| Arc::clone(&allocates).allocate(caller, request))
        .method("finishApplicationMaster", move |caller, request| {
            Arc::clone(&finishes).finish(caller, request)
        })
}

/// Whose master calls, and the key of its token.
fn who(caller: &Caller) -> Result<(YarnAttemptId, i32), Exception> {
    let token: AmrmTokenIdentifierProto = caller.identity.token()?;
    let key = token.key_id();
    Ok((ids::attempt(token.app_attempt_id)?, key))
}

impl MasterFace {
    pub(super) fn new(manager: Arc<dyn ResourceManager>, tokens: Tokens) -> Self {
        Self { manager, tokens, told: Mutex::default() }
    }

    async fn register(
        self: Arc<Self>,
        caller: Caller,
        request: RegisterApplicationMasterRequestProto,
    ) -> Result<RegisterApplicationMasterResponseProto, Exception> {
        let (attempt, _) = who(&caller)?;
        if !request.placement_constraints.is_empty() {
            return Err(refused(
                "godel places no containers by placement constraints of YARN: register without them, and ask with ResourceRequests",
            ));
        }
        asks::judge_address("host", request.host())?;
        asks::judge_address("tracking URL", request.tracking_url())?;
        let registration = Registration {
            host: request.host.unwrap_or_default(),
            rpc_port: request.rpc_port.unwrap_or(-1),
            tracking_url: request.tracking_url.unwrap_or_default(),
        };
        let answer = self.manager.register(attempt, registration).await.map_err(for_masters)?;
        self.told.lock().remove(&attempt);
        let containers = self.containers(&answer.containers, &answer.places, &answer.user)?;
        let tokens = self.node_tokens(attempt, &answer.places, &answer.user, 0)?;
        Ok(RegisterApplicationMasterResponseProto {
            maximum_capability: Some(amounts::pb(&answer.maximum)),
            containers_from_previous_attempts: containers,
            queue: Some(answer.queue),
            nm_tokens_from_previous_attempts: tokens,
            scheduler_resource_types: vec![
                SchedulerResourceTypes::Memory.into(),
                SchedulerResourceTypes::Cpu.into(),
            ],
            resource_types: amounts::types(&answer.maximum),
        })
    }

    async fn allocate(
        self: Arc<Self>,
        caller: Caller,
        request: AllocateRequestProto,
    ) -> Result<AllocateResponseProto, Exception> {
        let (attempt, key) = who(&caller)?;
        let bounds = || {
            let cluster = self.manager.cluster().map_err(for_masters)?;
            Ok((cluster.minimum_allocation, cluster.maximum_allocation))
        };
        let asks::Asked { call, progress, not_updated } = asks::read(request, attempt, &bounds)?;
        let answer = self.manager.allocate(attempt, &call, progress).await.map_err(for_masters)?;
        let MasterAnswer { answer, places, user, updated_nodes, headroom, n_nodes, preempted, priority } =
            answer;
        let allocated_containers = self.containers(&answer.allocated, &places, &user)?;
        let nm_tokens = self.node_tokens(attempt, &places, &user, answer.response_id)?;
        Ok(AllocateResponseProto {
            response_id: Some(answer.response_id),
            allocated_containers,
            completed_container_statuses: answer.completed.iter().map(ended).collect(),
            limit: Some(amounts::pb(&headroom)),
            updated_nodes: updated_nodes.iter().map(reports::changed_node).collect(),
            num_cluster_nodes: Some(i32::try_from(n_nodes).unwrap_or(i32::MAX)),
            preempt: (!preempted.is_empty()).then(|| PreemptionMessageProto {
                strict_contract: Some(StrictPreemptionContractProto {
                    container: preempted
                        .into_iter()
                        .map(|id| PreemptionContainerProto { id: Some(ids::container_pb(id)) })
                        .collect(),
                }),
            }),
            nm_tokens,
            am_rm_token: self.next_token(attempt, key)?,
            application_priority: Some(reports::priority(priority)),
            update_errors: not_updated,
        })
    }

    async fn finish(
        self: Arc<Self>,
        caller: Caller,
        request: FinishApplicationMasterRequestProto,
    ) -> Result<FinishApplicationMasterResponseProto, Exception> {
        let (attempt, _) = who(&caller)?;
        asks::judge_address("tracking URL", request.tracking_url())?;
        let said = reports::final_status_of(request.final_application_status());
        let finished = self.manager.finish(attempt, said, request.tracking_url(), request.diagnostics());
        let is_unregistered = finished.await.map_err(for_masters)?;
        if is_unregistered {
            self.told.lock().remove(&attempt);
        }
        Ok(FinishApplicationMasterResponseProto { is_unregistered: Some(is_unregistered) })
    }

    /// Containers with their tokens.
    fn containers(
        &self,
        containers: &[AllocatedContainer],
        places: &[ContainerPlace],
        user: &str,
    ) -> Result<Vec<ContainerProto>, Exception> {
        if containers.len() != places.len() {
            let (n, n_places) = (containers.len(), places.len());
            return Err(refused(format!("{n} containers have {n_places} places: this is a defect of godel")));
        }
        let both = containers.iter().zip(places);
        both.map(|(container, place)| self.container(container, place, user)).collect()
    }

    fn container(
        &self,
        AllocatedContainer { id, key, .. }: &AllocatedContainer,
        ContainerPlace { node, unit }: &ContainerPlace,
        user: &str,
    ) -> Result<ContainerProto, Exception> {
        let resource = amounts::pb(&YarnAmount::from_capability(&key.group.capability));
        let execution = reports::execution_pb(key.group.execution);
        let token = self.tokens.container(ContainerFacts {
            id: *id,
            node,
            unit: *unit,
            user,
            resource: resource.clone(),
            priority: key.group.priority,
            is_master: false,
            execution,
            label: &key.group.label,
            allocation_request_id: key.allocation_request_id,
        })?;
        Ok(ContainerProto {
            id: Some(ids::container_pb(*id)),
            node_id: Some(ids::node_pb(&node.host, node.port)),
            node_http_address: Some(reports::web_address(&node.host)),
            resource: Some(resource),
            priority: Some(reports::priority(key.group.priority)),
            container_token: Some(token),
            execution_type: Some(execution.into()),
            allocation_request_id: Some(key.allocation_request_id),
            version: Some(0),
        })
    }

    /// Tokens for the nodes that the master has none for, or got one for with this same response, whose answer was lost.
    fn node_tokens(
        &self,
        attempt: YarnAttemptId,
        places: &[ContainerPlace],
        user: &str,
        response_id: i32,
    ) -> Result<Vec<NmTokenProto>, Exception> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let mut missing: Vec<&LaunchNode> = Vec::new();
        {
            let mut told = self.told.lock();
            if told.len() >= N_MASTERS_MAX && !told.contains_key(&attempt) {
                told.clear();
            }
            let told = told.entry(attempt).or_default();
            let key = self.tokens.node_key_id();
            if told.node_key != key {
                told.node_key = key;
                told.nodes.clear();
            }
            for ContainerPlace { node, .. } in places {
                let in_response = *told.nodes.entry((node.host.clone(), node.port)).or_insert(response_id);
                let is_listed = |listed: &&LaunchNode| (&listed.host, listed.port) == (&node.host, node.port);
                if in_response == response_id && !missing.iter().any(is_listed) {
                    missing.push(node);
                }
            }
        }
        let token = |node: &LaunchNode| {
            let token = self.tokens.node(attempt, node, user)?;
            Ok(NmTokenProto { node_id: Some(ids::node_pb(&node.host, node.port)), token: Some(token) })
        };
        missing.into_iter().map(token).collect()
    }

    /// The next token of a master whose connection was opened with an older key, once for each key.
    fn next_token(
        &self,
        attempt: YarnAttemptId,
        key: i32,
    ) -> Result<Option<godel_hadoop::common::TokenProto>, Exception> {
        let current = self.tokens.master_key_id();
        if current == Some(key) || current.is_none() {
            return Ok(None);
        }
        {
            let mut told = self.told.lock();
            if told.len() >= N_MASTERS_MAX && !told.contains_key(&attempt) {
                told.clear();
            }
            let told = told.entry(attempt).or_default();
            if told.master_key == current {
                return Ok(None);
            }
            told.master_key = current;
        }
        self.tokens.master(attempt).map(Some)
    }
}

/// A container that has ended.
fn ended(CompletedContainer { id, exit }: &CompletedContainer) -> ContainerStatusProto {
    ContainerStatusProto {
        container_id: Some(ids::container_pb(*id)),
        state: Some(ContainerStateProto::CComplete.into()),
        diagnostics: Some(why(*exit)),
        exit_status: Some(exit.0),
        ..ContainerStatusProto::default()
    }
}

fn why(exit: YarnExitStatus) -> String {
    let said = match exit {
        YarnExitStatus(0) => return String::new(),
        YarnExitStatus::ABORTED => {
            "Container released by its master, not started in time, or lost with its node"
        }
        YarnExitStatus::DISKS_FAILED => "Container ended because the disks of its node failed",
        YarnExitStatus::PREEMPTED => "Container preempted by scheduler",
        YarnExitStatus::KILLED_EXCEEDED_PMEM => {
            "Container killed because it took more memory than it asked for"
        }
        YarnExitStatus::KILLED_BY_APPMASTER => "Container killed by the ApplicationMaster",
        YarnExitStatus::KILLED_BY_RESOURCEMANAGER => "Container killed by the ResourceManager",
        YarnExitStatus::KILLED_AFTER_APP_COMPLETION => "Container killed because its application was over",
        YarnExitStatus(code) => return format!("Container exited with exit status {code}"),
    };
    said.to_owned()
}
