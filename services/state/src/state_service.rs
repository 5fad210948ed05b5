//! `StateService`: transactions, lists, watches, and what agents and the store say of themselves.

mod disk_stream;
mod floor;
mod kept;
mod list;
mod own_security;
mod transact;
mod watch;

use std::{sync::Arc, time::Duration};

use godel_base::ids::{Revision, StoreId};
use godel_identity::{caller::Caller, names};
use godel_kit::{
    VERSION, message,
    room::Messages,
    security, server,
    status::{self, reason, with_info},
};
use godel_proto::{kinds::is_hidden, raw, v1};
use godel_store::{RefusalReason, Role, WatchRefused};
use godel_wire::{BadField, ops::run_end_reason_to_proto, to_proto};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};
use transact::Answers;

use crate::{
    check, error, rights,
    sessions::{NodeEntry, NodeSessions},
};

use disk_stream::{DiskAnswers, DiskReading};

pub(crate) use list::RawPage;
pub(crate) use own_security::OwnSecurity;

/// The service.
pub(crate) struct StateRpc {
    hub: Arc<NodeSessions>,
    bookmark_interval: Duration,
    floor: DiskReading,
    kept: DiskReading,
    security: OwnSecurity,
    stop: CancellationToken,
}

type AgentReports = Box<dyn Iterator<Item = Result<v1::ListAgentReportsResponse, Status>> + Send>;

impl StateRpc {
    pub(crate) fn new(
        hub: Arc<NodeSessions>,
        bookmark_interval: Duration,
        security: OwnSecurity,
        stop: CancellationToken,
    ) -> Self {
        let (floor, kept) = (DiskReading::new("start of the history"), DiskReading::new("store for backups"));
        Self { hub, bookmark_interval, floor, kept, security, stop }
    }

    /// A page of records, encoded.
    pub(crate) fn raw_page(&self, request: &Request<v1::ListRecordsRequest>) -> Result<RawPage, Status> {
        list::page(&self.hub, request.get_ref(), security::caller(request))
    }
}

#[tonic::async_trait]
impl v1::state_service_server::StateService for StateRpc {
    type TransactStream = Answers;
    type WatchStream = Messages<v1::WatchResponse, Status>;
    type ReadFloorStream = DiskAnswers<v1::ReadFloorResponse>;
    type ReadStoreStream = DiskAnswers<v1::ReadStoreResponse>;
    type ListAgentReportsStream = tokio_stream::Iter<AgentReports>;

    async fn txn(&self, request: Request<raw::TxnRequest>) -> Result<Response<v1::TxnResponse>, Status> {
        let lease = request.get_ref().writer.as_ref().map_or("", |writer| &writer.lease);
        rights::check_lease(security::caller(&request), lease)?;
        let txn = request.into_inner();
        let writer = txn.writer.clone();
        let submitted = match check::readable(&txn) {
            Ok(()) => self.hub.store.submit(txn, Role::Leased).await,
            Err(refusal) => Err(refusal),
        };
        self.hub.crash.hit("state.before-answer");
        match submitted {
            Ok(committed) => {
                self.hub.metrics.txns.inc();
                Ok(Response::new(v1::TxnResponse {
                    revision: committed.revision.0,
                    commit_time_ms: committed.commit_time_ms,
                    refusal: None,
                    sequence: writer.map_or(0, |writer| writer.sequence),
                }))
            }
            Err(refusal) => {
                self.hub.metrics.refused(error::reason_name(refusal.reason));
                if matches!(refusal.reason, RefusalReason::StaleEpoch | RefusalReason::StoreChanged) {
                    tracing::info!(%refusal, "a transaction of a lost lease was refused");
                }
                Err(error::status(&refusal, writer.as_ref()))
            }
        }
    }

    async fn transact(
        &self,
        request: Request<Streaming<raw::TxnRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (hub, stop) = (Arc::clone(&self.hub), self.stop.clone());
        let caller = security::caller(&request).clone();
        Ok(Response::new(transact::start(hub, request.into_inner(), caller, stop)))
    }

    async fn list_records(
        &self,
        request: Request<v1::ListRecordsRequest>,
    ) -> Result<Response<v1::ListRecordsResponse>, Status> {
        // Not the way of the service itself: see `routes`.
        let page = self.raw_page(&request)?.encode_to_vec();
        let page = v1::ListRecordsResponse::decode(&page[..]);
        page.map(Response::new).map_err(|_| Status::internal("a stored record does not decode"))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let v1::WatchRequest { from_revision, store_id, .. } = *request.get_ref();
        let share = server::unread_share(&request);
        let kinds = watch::mask(&request.get_ref().kinds, security::caller(&request))?;
        let is_of_all = request.get_ref().kinds.is_empty();
        let id = self.hub.store_id();
        if !id.may_be(StoreId(store_id)) {
            self.hub.metrics.refused(reason::STORE_CHANGED);
            return Err(status::store_changed(StoreId(store_id), id));
        }
        let from = Revision(from_revision);
        let watcher = self.hub.store.watch(from).map_err(|refused| match refused {
            WatchRefused::Compacted(compacted) => {
                self.hub.metrics.refused(reason::COMPACTED);
                status::compacted(compacted.floor.0)
            }
            WatchRefused::Future { last } => {
                self.hub.metrics.refused(reason::FUTURE_REVISION);
                status::future_revision(from, last)
            }
        })?;
        let watch = watch::StoreWatch {
            hub: Arc::clone(&self.hub),
            kinds,
            is_of_all,
            bookmark_interval: self.bookmark_interval,
            share,
        };
        Ok(Response::new(watch.start(watcher, self.stop.clone())))
    }

    async fn read_floor(
        &self,
        request: Request<v1::ReadFloorRequest>,
    ) -> Result<Response<Self::ReadFloorStream>, Status> {
        let (store, caller) = (self.hub.store.clone(), security::caller(&request).clone());
        let run = |messages| floor::run(store, caller, messages);
        self.floor.start(self.stop.clone(), run).map(Response::new)
    }

    async fn read_store(
        &self,
        request: Request<v1::ReadStoreRequest>,
    ) -> Result<Response<Self::ReadStoreStream>, Status> {
        let (hub, request) = (Arc::clone(&self.hub), request.into_inner());
        kept::check(&hub, &request)?;
        self.kept.start(self.stop.clone(), |messages| kept::run(hub, request, messages)).map(Response::new)
    }

    async fn list_agent_reports(
        &self,
        _: Request<v1::ListAgentReportsRequest>,
    ) -> Result<Response<Self::ListAgentReportsStream>, Status> {
        let hub = Arc::clone(&self.hub);
        let slots = hub.slots();
        let reports: AgentReports =
            Box::new(slots.into_iter().flat_map(move |slot| agent_reports(&hub, &slot)).map(Ok));
        Ok(Response::new(tokio_stream::iter(reports)))
    }

    async fn get_revision(
        &self,
        _: Request<v1::GetRevisionRequest>,
    ) -> Result<Response<v1::GetRevisionResponse>, Status> {
        let (revision, store_id) = self.hub.store.read(|state| (state.revision().0, state.store_id().0));
        Ok(Response::new(v1::GetRevisionResponse { revision, store_id }))
    }

    async fn get_store_status(
        &self,
        _: Request<v1::GetStoreStatusRequest>,
    ) -> Result<Response<v1::GetStoreStatusResponse>, Status> {
        let status = self.hub.store.status();
        self.hub.metrics.store(&status);
        let usage = total_use(&self.hub);
        Ok(Response::new(v1::GetStoreStatusResponse {
            revision: status.revision.0,
            floor_revision: status.floor.0,
            engine: status.engine.to_owned(),
            disk_bytes: status.disk_bytes,
            log_bytes: status.log_bytes,
            live_bytes: status.live_bytes,
            units: status.units,
            nodes: status.nodes,
            rows: status.rows,
            commits: status.commits,
            stale_epoch_refusals: status.stale_epoch_refusals,
            full: status.full,
            sessions: self.hub.n_sessions(),
            last_unit_id: status.last_unit_id,
            watchers: status.watchers,
            history_bytes: status.history_bytes,
            history_age_ms: status.history_age_ms,
            node_grace_ms: u64::from(self.hub.timing.node_grace_ms),
            usage: Some(usage.all),
            guaranteed_usage: Some(usage.guaranteed),
            capacity: Some(usage.capacity),
            store_id: status.store_id,
            security: Some(self.security.to_proto()),
            version: VERSION.to_owned(),
            now_ms: self.hub.wall_ms(),
            waiting_for: status.waiting_for.unwrap_or_default(),
        }))
    }
}

/// Use as last measured, over all nodes.
#[derive(Default)]
struct TotalUse {
    all: v1::Resources,
    guaranteed: v1::Resources,
    capacity: v1::Resources,
}

fn total_use(hub: &NodeSessions) -> TotalUse {
    let mut total = TotalUse::default();
    let add = |sum: &mut v1::Resources, more: Option<&v1::Resources>| {
        for (name, amount) in more.into_iter().flat_map(|more| &more.amounts) {
            match sum.amounts.get_mut(name) {
                Some(sum) => *sum = sum.saturating_add(*amount),
                None => {
                    sum.amounts.insert(name.clone(), *amount);
                }
            }
        }
    };
    hub.for_each_slot(|slot| {
        let cell = slot.cell.lock();
        add(&mut total.all, cell.agent.usage.as_ref());
        add(&mut total.guaranteed, cell.agent.guaranteed_usage.as_ref());
        add(&mut total.capacity, Some(&cell.measure.capacity()));
    });
    total
}

/// What the agent of one node says, in one message or more.
fn agent_reports(hub: &NodeSessions, slot: &NodeEntry) -> Vec<v1::ListAgentReportsResponse> {
    let node = hub.names.read().of(slot.node).map(|(name, _)| name.to_owned()).unwrap_or_default();
    let cell = slot.cell.lock();
    let running = cell.reports().map(|report| v1::RunStatus {
        unit_id: report.key.unit.0,
        ordinal: report.key.replica.ordinal,
        incarnation: report.key.replica.incarnation,
        phase: to_proto::phase(report.phase).into(),
        exit_code: report.exit_code,
        restarts: report.restarts,
        refused: v1::AssignmentRefusal::Unspecified.into(),
        reason: run_end_reason_to_proto(report.end.reason).into(),
        started_time_ms: report.end.started_ms,
        ended_time_ms: report.end.ended_ms,
    });
    let (node_id, connected) = (slot.node.0, cell.is_connected());
    let mut parts = message::parts(running);
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let report = |running| v1::ListAgentReportsResponse { node_id, node: node.clone(), connected, running };
    parts.into_iter().map(report).collect()
}

/// Whether a caller is shown records of a kind: the keys of YARN's tokens go to the YARN adapter alone, and to nodes with their sessions; the change log is for
/// people.
fn is_shown(kind: v1::Kind, caller: &Caller) -> bool {
    let is_process = matches!(caller, Caller::Member { .. } | Caller::Agent { .. });
    if is_process && kind == v1::Kind::Change {
        return false;
    }
    match caller {
        Caller::Unjudged | Caller::Member { role: names::Role::Yarn, .. } => !is_hidden(kind),
        Caller::Member { .. } | Caller::Agent { .. } | Caller::Person { .. } | Caller::Anonymous => {
            kind != v1::Kind::YarnKeys && !is_hidden(kind)
        }
    }
}

/// The kinds asked for, each once, in the order asked. What state keeps to itself is refused, whoever asks.
fn kinds(numbers: &[i32]) -> Result<Vec<v1::Kind>, Status> {
    let mut kinds = Vec::new();
    for (idx, number) in numbers.iter().enumerate() {
        match v1::Kind::try_from(*number) {
            Ok(v1::Kind::Unspecified) | Err(_) => {
                let description = format!("{number} is not a kind of record");
                return Err(BadField::new(format!("kinds[{idx}]"), description).into());
            }
            Ok(kind) if is_hidden(kind) => {
                let message =
                    format!("kinds[{idx}]: state keeps {} to itself; leave it out", kind.as_str_name());
                return Err(with_info(
                    Code::PermissionDenied,
                    reason::FORBIDDEN,
                    message,
                    [("kind", kind.as_str_name())],
                ));
            }
            Ok(kind) if kinds.contains(&kind) => {}
            Ok(kind) => kinds.push(kind),
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use godel_wire::ops::kind_bit;

    use super::*;

    #[test]
    fn keys_of_yarn_go_to_its_adapter_alone() {
        let member = |role| Caller::Member { role, name: "a".to_owned() };
        let readers = [
            (Caller::Unjudged, true),
            (member(names::Role::Yarn), true),
            (member(names::Role::Scheduler), false),
            (member(names::Role::State), false),
            (Caller::admin(), false),
            (Caller::Anonymous, false),
        ];
        for (caller, is_shown_keys) in &readers {
            let is_shown_keys = *is_shown_keys;
            assert_eq!(is_shown(v1::Kind::YarnKeys, caller), is_shown_keys, "{caller:?}");
            let bits = |kinds: &[v1::Kind]| {
                let numbers: Vec<i32> = kinds.iter().map(|kind| *kind as i32).collect();
                watch::mask(&numbers, caller).unwrap()
            };
            let keys = kind_bit(v1::Kind::YarnKeys);
            assert_eq!(bits(&[]) & keys != 0, is_shown_keys);
            assert_eq!(bits(&[v1::Kind::YarnKeys]), if is_shown_keys { keys } else { 0 });
            assert_eq!(bits(&[v1::Kind::Unit]), kind_bit(v1::Kind::Unit));
            // And what state keeps to itself nobody.
            for hidden in godel_proto::kinds::HIDDEN {
                assert!(!is_shown(hidden, caller) && bits(&[]) & kind_bit(hidden) == 0);
                assert!(watch::mask(&[hidden as i32], caller).is_err());
            }
            assert_ne!(bits(&[]) & kind_bit(v1::Kind::Identity), 0);
        }
    }
}
