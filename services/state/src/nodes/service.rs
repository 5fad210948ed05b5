//! `NodeService`: checks, and hands over to the writer, the views or a session.

use std::sync::Arc;

use godel_base::{ids::NodeId, resources::CPU};
use godel_domain::{change_line::CallCause, names};
use godel_identity::{caller::Caller, leaves::LeafTimes};
use godel_kit::{
    message::{MESSAGE_BYTES_MAX, field_len, parts},
    security, server, status,
};
use godel_proto::v1;
use godel_wire::{BadField, hidden::HideNames as _};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    round::{Job, SpecChange},
    validate, view,
    writer::resolve,
};
use crate::{
    error,
    paging::{self, Token},
    processes, rights,
    sessions::{NodeEntry, NodeSessions, stream::SessionStream},
};

/// Running units of a node in one answer.
const N_BOUND_MAX: usize = 1_000;
/// Nodes of a page have this together at most; the rest of a message is for the page's token and numbers.
const PAGE_BYTES: usize = MESSAGE_BYTES_MAX - 1024;

/// What running units use, node by node.
type RunUsages =
    tokio_stream::Iter<Box<dyn Iterator<Item = Result<v1::ListRunUsageResponse, Status>> + Send + Sync>>;

/// The service.
pub(crate) struct NodeRpc {
    hub: Arc<NodeSessions>,
    jobs: mpsc::Sender<Job>,
    stop: CancellationToken,
}

impl NodeRpc {
    pub(crate) fn new(hub: Arc<NodeSessions>, jobs: mpsc::Sender<Job>, stop: CancellationToken) -> Self {
        Self { hub, jobs, stop }
    }

    /// Whether an agent speaks for a node, whatever it was asked for by.
    fn check_node(&self, caller: &Caller, node: NodeId) -> Result<(), Status> {
        let names = self.hub.names.read();
        rights::check_node(caller, names.of(node).map_or("", |(name, _)| name))
    }

    async fn job<T>(
        &self,
        job: impl FnOnce(super::round::JobReply<T>) -> Job,
    ) -> Result<Response<T>, Status> {
        let (reply, answer) = oneshot::channel();
        self.jobs.try_send(job(reply)).map_err(error::queue)?;
        answer.await.map_err(|_| status::stopping())?.map(Response::new)
    }
}

#[tonic::async_trait]
impl v1::node_service_server::NodeService for NodeRpc {
    type SessionStream = SessionStream;
    type ListRunUsageStream = RunUsages;
    type ListRunProcessesStream = processes::ProcessesStream;

    async fn register_node(
        &self,
        request: Request<v1::RegisterNodeRequest>,
    ) -> Result<Response<v1::RegisterNodeResponse>, Status> {
        let name = request.get_ref().meta.as_ref().map_or("", |meta| &meta.name);
        rights::check_node(security::caller(&request), name)?;
        let peer = server::peer(&request);
        let registration =
            validate::registration(request.into_inner(), peer).map_err(status::invalid_argument)?;
        self.job(|reply| Job::Register(Box::new(registration), reply)).await
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<SessionStream>, Status> {
        let caller = security::caller(&request).clone();
        let leaf_times = request.extensions().get::<LeafTimes>().copied();
        let inbound = request.into_inner();
        Ok(Response::new(SessionStream::new(Arc::clone(&self.hub), caller, leaf_times, inbound)))
    }

    async fn get_node(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        let (caller, sight) = (security::caller(&request).clone(), security::person_call(&request).sight());
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(BadField::new("name", "is required").into());
        }
        let id = resolve(&self.hub, &name)?;
        self.check_node(&caller, id)?;
        let node = view::node(&self.hub, id, &view::HeldRoomByNode::of(&self.hub))
            .ok_or_else(|| Status::not_found(format!("node {name} was deleted")))?;
        let running_units = view::bound(&self.hub, id, N_BOUND_MAX);
        let volumes = volumes(&self.hub, id);
        let answer = v1::GetNodeResponse { node: Some(node), running_units, volumes };
        Ok(Response::new(answer.within_sight(&sight)))
    }

    async fn list_run_usage(
        &self,
        request: Request<v1::ListRunUsageRequest>,
    ) -> Result<Response<RunUsages>, Status> {
        let sight = security::person_call(&request).sight();
        let hub = Arc::clone(&self.hub);
        let slots = hub.slots();
        let usages: Box<dyn Iterator<Item = _> + Send + Sync> = Box::new(
            slots.into_iter().flat_map(move |slot| run_usages(&hub, &slot).within_sight(&sight)).map(Ok),
        );
        Ok(Response::new(tokio_stream::iter(usages)))
    }

    async fn list_run_processes(
        &self,
        _: Request<v1::ListRunProcessesRequest>,
    ) -> Result<Response<processes::ProcessesStream>, Status> {
        processes::ask_all(Arc::clone(&self.hub), self.stop.clone()).map(Response::new)
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let v1::ListNodesRequest { page_size, page_token, label_selector } = request.into_inner();
        let token = Token::parse(&page_token).map_err(|bad| BadField::new("page_token", bad.to_string()))?;
        for key in label_selector.keys() {
            // A key that no label can have is meant otherwise, and would match nothing.
            names::label_key(key)
                .map_err(|bad| BadField::new(format!("label_selector[{key:?}]"), bad.to_string()))?;
        }
        let hub = &self.hub;
        let store_id = paging::of_this_store(token.as_ref(), hub.store_id())?;
        let revision =
            token.as_ref().map_or_else(|| hub.store.read(|state| state.revision().0), |token| token.revision);
        let size = paging::size(page_size, 500, 1_000)?;
        let last = token.map(|token| token.last).unwrap_or_default();
        let (names, total): (Vec<_>, usize) = {
            let names = hub.names.read();
            let after = names.after(&last).map(|(name, node)| (name.to_owned(), node));
            // Without a selector one more than the page says whether there is a next.
            let limit = if label_selector.is_empty() { size + 1 } else { usize::MAX };
            (after.take(limit).collect(), names.len())
        };
        let matches = |node| view::has_labels(hub, node, label_selector.iter());
        let total = if label_selector.is_empty() {
            total
        } else {
            let all: Vec<_> = hub.names.read().after("").map(|(_, node)| node).collect();
            all.into_iter().filter(|node| matches(*node)).count()
        };
        let mut page = v1::ListNodesResponse {
            revision,
            total: u32::try_from(total).unwrap_or(u32::MAX),
            store_id: store_id.0,
            ..Default::default()
        };
        let held = view::HeldRoomByNode::of(hub);
        let mut bytes = 0;
        let mut last_name = last;
        for (name, node) in names {
            if !label_selector.is_empty() && !matches(node) {
                continue;
            }
            let node = view::node(hub, node, &held);
            bytes += node.as_ref().map_or(0, |node| field_len(prost::Message::encoded_len(node)));
            if page.nodes.len() >= size || (bytes > PAGE_BYTES && !page.nodes.is_empty()) {
                page.next_page_token =
                    Token { store: store_id, revision, kind: 0, last: last_name }.to_string();
                break;
            }
            page.nodes.extend(node);
            last_name = name;
        }
        Ok(Response::new(page))
    }

    async fn update_node(
        &self,
        request: Request<v1::UpdateNodeRequest>,
    ) -> Result<Response<v1::UpdateNodeResponse>, Status> {
        let cause = node_cause(&request, &request.get_ref().name);
        let request = request.into_inner();
        let bad = validate::update(&request);
        if !bad.is_empty() {
            return Err(status::invalid_argument(bad));
        }
        self.job(|reply| Job::Update(Box::new(SpecChange::Update(request)), cause, reply)).await
    }

    async fn give_notice(
        &self,
        request: Request<v1::GiveNoticeRequest>,
    ) -> Result<Response<v1::GiveNoticeResponse>, Status> {
        let cause = node_cause(&request, &request.get_ref().name);
        let request = request.into_inner();
        let bad = validate::notice(&request);
        if !bad.is_empty() {
            return Err(status::invalid_argument(bad));
        }
        let updated =
            self.job(|reply| Job::Update(Box::new(SpecChange::Notice(request)), cause, reply)).await?;
        let v1::UpdateNodeResponse { spec, revision, changed } = updated.into_inner();
        Ok(Response::new(v1::GiveNoticeResponse { spec, revision, changed }))
    }

    async fn delete_node(
        &self,
        request: Request<v1::DeleteNodeRequest>,
    ) -> Result<Response<v1::DeleteNodeResponse>, Status> {
        let cause = node_cause(&request, &request.get_ref().name);
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(BadField::new("name", "is required").into());
        }
        self.job(|reply| Job::Delete { name, leaves: false, cause, reply }).await
    }

    async fn deregister_node(
        &self,
        request: Request<v1::DeregisterNodeRequest>,
    ) -> Result<Response<v1::DeregisterNodeResponse>, Status> {
        let caller = security::caller(&request).clone();
        let cause = node_cause(&request, &request.get_ref().name);
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(BadField::new("name", "is required").into());
        }
        if caller.role().is_some() {
            self.check_node(&caller, resolve(&self.hub, &name)?)?;
        }
        let deleted = self.job(|reply| Job::Delete { name, leaves: true, cause, reply }).await?.into_inner();
        Ok(Response::new(v1::DeregisterNodeResponse { revision: deleted.revision }))
    }
}

/// On whose behalf a node is changed.
fn node_cause<T>(request: &Request<T>, name: &str) -> Option<Box<CallCause>> {
    security::person_call(request).cause("", [format!("node/{name}")]).map(Box::new)
}

/// The volumes that a node keeps, with the names of their units.
fn volumes(hub: &NodeSessions, node: NodeId) -> Vec<v1::ReplicaVolumes> {
    let kept = hub.slot(node).map(|slot| slot.cell.lock().agent.volumes.to_vec()).unwrap_or_default();
    let units: Vec<u64> = kept.iter().map(|replica| replica.unit_id).collect();
    let names = hub.templates.unit_names(&hub.store, &units);
    let named = |replica: v1::ReplicaVolumes| v1::ReplicaVolumes {
        unit_name: names.get(&replica.unit_id).cloned().unwrap_or_default(),
        ..replica
    };
    kept.into_iter().map(named).collect()
}

/// What the running units of a node use, and the node itself, in one message or more; nothing if its agent measures neither.
fn run_usages(hub: &NodeSessions, slot: &NodeEntry) -> Vec<v1::ListRunUsageResponse> {
    let cell = slot.cell.lock();
    let is_connected = cell.is_connected();
    let running = if is_connected { cell.agent.running_usage.to_vec() } else { Vec::new() };
    // An agent that measures the network of its node measures the node; others compute its usage from requests.
    let network = cell.agent.network.filter(|_| is_connected);
    let amounts = cell.agent.usage.as_ref().filter(|_| network.is_some());
    let cpu_milli = amounts.and_then(|usage| usage.amounts.get(CPU)).copied();
    drop(cell);
    let node = hub.names.read().of(slot.node).map(|(name, _)| name.to_owned()).unwrap_or_default();
    let parts = parts(running).into_iter().map(|running| {
        let mut units: Vec<u64> = running.iter().map(|usage| usage.unit_id).collect();
        units.dedup();
        let unit_names = hub.templates.unit_names(&hub.store, &units).into_iter().collect();
        v1::ListRunUsageResponse { node: node.clone(), running, unit_names, ..Default::default() }
    });
    let mut messages: Vec<v1::ListRunUsageResponse> = parts.collect();
    if messages.is_empty() && network.is_some() {
        messages.push(v1::ListRunUsageResponse { node: node.clone(), ..Default::default() });
    }
    if let Some(first) = messages.first_mut() {
        (first.cpu_milli, first.network) = (cpu_milli, network);
    }
    messages
}
