//! A double of the state service for tests: leases, transactions and watches over real gRPC, with knobs for
//! what goes wrong.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use godel_base::ids::{Revision, StoreId};
use godel_proto::{
    raw,
    v1::{
        self,
        member_service_server::{MemberService, MemberServiceServer},
        state_service_server::{StateService, StateServiceServer},
    },
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    client::{Channel, channel},
    config::{ClientConfig, ServerConfig},
    metrics::Metrics,
    security::{self, Caller},
    server::{Listeners, Server, bind, connection_number},
    status,
};

/// What the double remembers and how it behaves. Clones share it.
#[derive(Clone)]
pub(crate) struct Fake {
    world: Arc<Mutex<World>>,
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
pub(crate) struct World {
    /// Which store it is.
    pub(crate) store_id: u64,
    pub(crate) revision: u64,
    pub(crate) commits: Vec<raw::Commit>,
    /// First revision that a watch can deliver.
    pub(crate) floor: u64,
    pub(crate) records: Vec<v1::Record>,
    /// Revision that the list says; the present one if 0.
    pub(crate) list_revision: u64,
    pub(crate) page_len: usize,
    pub(crate) leases: BTreeMap<String, Grant>,
    /// Revisions by (epoch, sequence).
    pub(crate) applied: HashMap<(u64, u64), u64>,
    /// Sequences as they arrived.
    pub(crate) arrived: Vec<u64>,
    /// Transactions applied per stream until it breaks, the last one without an answer.
    pub(crate) break_transact_after: Option<usize>,
    /// Transactions are neither applied nor answered.
    pub(crate) hold_transact: bool,
    /// Sequences refused for a failed precondition.
    pub(crate) refuse: Vec<u64>,
    /// Every transaction is refused as stale.
    pub(crate) stale: bool,
    /// Commits per watch until it breaks; each new watch repeats the commit before its first.
    pub(crate) break_watch_after: Option<usize>,
    pub(crate) watches: usize,
    pub(crate) lists: usize,
    /// Renewals are refused as stale, once.
    pub(crate) refuse_renewal: bool,
    /// GetStoreStatus waits.
    pub(crate) block_status: bool,
    pub(crate) status_calls: usize,
    /// Request ids as they arrived at GetStoreStatus.
    pub(crate) request_ids: Vec<String>,
    /// GetStoreStatus answers NOT_LEADER with this address.
    pub(crate) leader: Option<String>,
    /// What WatchLeader says.
    pub(crate) leads: bool,
    pub(crate) term: u64,
    /// Open streams of WatchLeader.
    pub(crate) leader_watches: usize,
    /// By whom calls of GetStoreStatus were judged.
    pub(crate) callers: Vec<Caller>,
    /// The connection of the last one.
    pub(crate) connection: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Grant {
    pub(crate) holder: String,
    pub(crate) address: String,
    pub(crate) epoch: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) status: v1::MemberStatus,
}

/// A running double.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) done: tokio::task::JoinHandle<()>,
}

impl Served {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn channel(&self) -> Channel {
        channel(&self.url(), &client_config()).unwrap()
    }

    /// Stops at once and waits for the end.
    pub(crate) async fn kill(self) -> SocketAddr {
        self.stop.cancel();
        self.done.await.unwrap();
        self.address
    }
}

pub(crate) fn client_config() -> ClientConfig {
    ClientConfig {
        retry_base: Duration::from_millis(1).into(),
        retry_max: Duration::from_millis(5).into(),
        directory_interval: Duration::from_millis(20).into(),
        ..ClientConfig::default()
    }
}

/// Waits until `check` gives something; panics after 10 s.
pub(crate) async fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for `future`; panics after 10 s.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(10), future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

impl Fake {
    pub(crate) fn new() -> Self {
        let world = World { page_len: 2, ..World::default() };
        Self { world: Arc::new(Mutex::new(world)), changed: Arc::new(watch::channel(0).0) }
    }

    /// Reads or changes it, and wakes whoever waits.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut World) -> R) -> R {
        let result = change(&mut self.world.lock());
        self.changed.send_modify(|version| *version += 1);
        result
    }

    /// Commits operations.
    pub(crate) fn commit(&self, ops: Vec<Bytes>) -> u64 {
        self.with(|world| world.commit(ops))
    }

    pub(crate) async fn serve(&self) -> Served {
        self.serve_with("127.0.0.1:0".parse().unwrap(), &ServerConfig::default()).await
    }

    pub(crate) async fn serve_with(&self, address: SocketAddr, config: &ServerConfig) -> Served {
        let config = ServerConfig { stop_grace: Duration::from_millis(1).into(), ..config.clone() };
        self.serve_metered(address, &config, &Metrics::new("fake")).await
    }

    pub(crate) async fn serve_metered(
        &self,
        address: SocketAddr,
        config: &ServerConfig,
        metrics: &Metrics,
    ) -> Served {
        let listener = bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        self.serve_at(listener.into(), address, config, metrics)
    }

    /// Serves on listeners, one of which is at `address`.
    pub(crate) fn serve_at(
        &self,
        listeners: Listeners,
        address: SocketAddr,
        config: &ServerConfig,
        metrics: &Metrics,
    ) -> Served {
        let server = Server::new(config, metrics)
            .add(StateServiceServer::new(self.clone()))
            .add(MemberServiceServer::new(self.clone()));
        let stop = CancellationToken::new();
        let token = stop.clone();
        let done = crate::task::spawn("fake", async move { server.serve(listeners, token).await.unwrap() });
        Served { address, stop, done }
    }

    async fn until(&self, mut check: impl FnMut(&mut World) -> bool) {
        let mut changed = self.changed.subscribe();
        while !check(&mut self.world.lock()) {
            changed.changed().await.unwrap();
        }
    }
}

impl World {
    pub(crate) fn commit(&mut self, ops: Vec<Bytes>) -> u64 {
        self.revision += 1;
        let commit_time_ms = i64::try_from(self.revision).unwrap() * 10;
        let commit = raw::Commit { revision: self.revision, commit_time_ms, ops, ..raw::Commit::default() };
        self.commits.push(commit);
        self.revision
    }

    fn is_other_store(&self, asked: u64) -> bool {
        !StoreId(self.store_id).may_be(StoreId(asked))
    }

    /// The answer to a transaction; a repeated sequence gets the first one.
    fn transact(&mut self, request: raw::TxnRequest) -> v1::TxnResponse {
        let writer = request.writer.unwrap();
        self.arrived.push(writer.sequence);
        let refusal = |reason: v1::TxnRefusalReason| v1::TxnResponse {
            refusal: Some(v1::TxnRefusal { reason: reason.into(), ..v1::TxnRefusal::default() }),
            sequence: writer.sequence,
            ..v1::TxnResponse::default()
        };
        if self.is_other_store(request.store_id) {
            return refusal(v1::TxnRefusalReason::StoreChanged);
        }
        if self.stale {
            return refusal(v1::TxnRefusalReason::StaleEpoch);
        }
        if self.refuse.contains(&writer.sequence) {
            return refusal(v1::TxnRefusalReason::Precondition);
        }
        let key = (writer.epoch, writer.sequence);
        let revision = match self.applied.get(&key) {
            Some(first) => *first,
            None => self.commit(request.ops),
        };
        self.applied.insert(key, revision);
        v1::TxnResponse { revision, commit_time_ms: 1, refusal: None, sequence: writer.sequence }
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl StateService for Fake {
    async fn txn(&self, request: Request<raw::TxnRequest>) -> Result<Response<v1::TxnResponse>, Status> {
        Ok(Response::new(self.with(|world| world.transact(request.into_inner()))))
    }

    type TransactStream = Answers<v1::TxnResponse>;

    async fn transact(
        &self,
        request: Request<Streaming<raw::TxnRequest>>,
    ) -> Result<Response<Self::TransactStream>, Status> {
        let mut requests = request.into_inner();
        let (sender, receiver) = mpsc::channel(16);
        let fake = self.clone();
        crate::task::spawn("fake-transact", async move {
            let mut n_applied = 0;
            while let Ok(Some(request)) = requests.message().await {
                fake.until(|world| !world.hold_transact).await;
                let answer = fake.with(|world| world.transact(request));
                n_applied += 1;
                if fake.with(|world| world.break_transact_after.is_some_and(|limit| n_applied >= limit)) {
                    let _ = sender.send(Err(Status::unavailable("broken on purpose"))).await;
                    return;
                }
                if sender.send(Ok(answer)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list_records(
        &self,
        request: Request<v1::ListRecordsRequest>,
    ) -> Result<Response<v1::ListRecordsResponse>, Status> {
        let request = request.into_inner();
        let start: usize =
            if request.page_token.is_empty() { 0 } else { request.page_token.parse().unwrap() };
        Ok(Response::new(self.with(|world| {
            world.lists += usize::from(start == 0);
            let end = (start + world.page_len).min(world.records.len());
            let more = end < world.records.len();
            v1::ListRecordsResponse {
                records: world.records[start..end].to_vec(),
                next_page_token: if more { end.to_string() } else { String::new() },
                revision: if world.list_revision == 0 { world.revision } else { world.list_revision },
                store_id: world.store_id,
            }
        })))
    }

    type WatchStream = Answers<v1::WatchResponse>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let v1::WatchRequest { from_revision: from, store_id, .. } = request.into_inner();
        let (floor, breaks, id, last) = self.with(|world| {
            world.watches += 1;
            (world.floor, world.break_watch_after, StoreId(world.store_id), world.revision)
        });
        if !id.may_be(StoreId(store_id)) {
            return Err(status::store_changed(StoreId(store_id), id));
        }
        if from > last + 1 {
            return Err(status::future_revision(Revision(from), Revision(last)));
        }
        if from < floor {
            return Err(status::compacted(floor));
        }
        let (sender, receiver) = mpsc::channel(1);
        let fake = self.clone();
        crate::task::spawn("fake-watch", async move {
            // A watch that breaks repeats what came before its first revision.
            let mut next = if breaks.is_some() { from.saturating_sub(1).max(1) } else { from };
            let mut n_sent = 0;
            loop {
                let ready = fake.until(|world| world.revision >= next);
                tokio::select! {
                    () = ready => {}
                    () = sender.closed() => return,
                }
                let commit =
                    fake.with(|world| world.commits.iter().find(|commit| commit.revision >= next).cloned());
                let present = fake.with(|world| world.revision);
                // A revision without a commit here stands for one that had nothing for the watcher.
                let message = match commit {
                    Some(commit) => v1::WatchResponse { revision: commit.revision, commits: vec![commit] },
                    None => v1::WatchResponse { revision: present, commits: vec![] },
                };
                next = message.revision + 1;
                if breaks.is_some_and(|limit| n_sent >= limit) {
                    let _ = sender.send(Err(slow_watcher())).await;
                    return;
                }
                n_sent += 1;
                if sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type ReadFloorStream = Answers<v1::ReadFloorResponse>;

    async fn read_floor(
        &self,
        _request: Request<v1::ReadFloorRequest>,
    ) -> Result<Response<Self::ReadFloorStream>, Status> {
        Err(Status::unimplemented("the fake keeps no snapshots"))
    }

    type ReadStoreStream = Answers<v1::ReadStoreResponse>;

    async fn read_store(
        &self,
        _request: Request<v1::ReadStoreRequest>,
    ) -> Result<Response<Self::ReadStoreStream>, Status> {
        Err(Status::unimplemented("the fake keeps no chunks"))
    }

    type ListAgentReportsStream = Answers<v1::ListAgentReportsResponse>;

    async fn list_agent_reports(
        &self,
        _request: Request<v1::ListAgentReportsRequest>,
    ) -> Result<Response<Self::ListAgentReportsStream>, Status> {
        Err(Status::unimplemented("not in the double"))
    }

    async fn get_revision(
        &self,
        _: Request<v1::GetRevisionRequest>,
    ) -> Result<Response<v1::GetRevisionResponse>, Status> {
        Err(Status::unimplemented("no state follows this one"))
    }

    async fn get_store_status(
        &self,
        request: Request<v1::GetStoreStatusRequest>,
    ) -> Result<Response<v1::GetStoreStatusResponse>, Status> {
        let id =
            request.metadata().get(crate::telemetry::REQUEST_ID).map(|id| id.to_str().unwrap().to_owned());
        let (caller, connection) = (security::caller(&request).clone(), connection_number(&request));
        self.with(|world| {
            world.status_calls += 1;
            world.request_ids.extend(id);
            world.callers.push(caller);
            world.connection = connection;
        });
        self.until(|world| !world.block_status).await;
        if let Some(leader) = self.with(|world| world.leader.clone()) {
            return Err(status::not_leader(Some(&leader)));
        }
        Ok(Response::new(v1::GetStoreStatusResponse::default()))
    }
}

#[tonic::async_trait]
impl MemberService for Fake {
    type WatchLeaderStream = Answers<v1::WatchLeaderResponse>;

    async fn watch_leader(
        &self,
        _request: Request<v1::WatchLeaderRequest>,
    ) -> Result<Response<Self::WatchLeaderStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let fake = self.clone();
        self.with(|world| world.leader_watches += 1);
        crate::task::spawn("fake-watch-leader", async move {
            let mut told = None;
            loop {
                let changes = fake.until(|world| told != Some((world.leads, world.term)));
                tokio::select! {
                    () = changes => {}
                    () = sender.closed() => break,
                }
                let (leads, term) = fake.with(|world| (world.leads, world.term));
                told = Some((leads, term));
                let message = v1::WatchLeaderResponse { leads, term, ..v1::WatchLeaderResponse::default() };
                if sender.send(Ok(message)).await.is_err() {
                    break;
                }
            }
            fake.with(|world| world.leader_watches -= 1);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn acquire_lease(
        &self,
        request: Request<v1::AcquireLeaseRequest>,
    ) -> Result<Response<v1::AcquireLeaseResponse>, Status> {
        let request = request.into_inner();
        self.with(|world| {
            let known = world.leases.get(&request.lease).cloned().unwrap_or_default();
            let free =
                known.holder.is_empty() || known.deadline.is_none_or(|deadline| deadline <= Instant::now());
            if !free && known.holder != request.holder {
                return Err(lease_held(&request.lease, &known.holder, &known.address));
            }
            let grant = Grant {
                holder: request.holder,
                address: request.address,
                epoch: known.epoch + 1,
                deadline: Some(Instant::now() + Duration::from_millis(u64::from(request.ttl_ms))),
                status: v1::MemberStatus::default(),
            };
            let answer = v1::AcquireLeaseResponse {
                epoch: grant.epoch,
                ttl_ms: request.ttl_ms,
                revision: 1,
                store_id: world.store_id,
            };
            world.leases.insert(request.lease, grant);
            Ok(Response::new(answer))
        })
    }

    async fn renew_lease(
        &self,
        request: Request<v1::RenewLeaseRequest>,
    ) -> Result<Response<v1::RenewLeaseResponse>, Status> {
        let request = request.into_inner();
        self.with(|world| {
            if world.is_other_store(request.store_id) {
                let (asked, id) = (StoreId(request.store_id), StoreId(world.store_id));
                return Err(status::lease_of_other_store(&request.lease, asked, id));
            }
            let refused = std::mem::take(&mut world.refuse_renewal);
            let grant =
                world.leases.get_mut(&request.lease).filter(|grant| grant.epoch == request.epoch && !refused);
            let Some(grant) = grant else {
                return Err(status::stale_epoch(&request.lease, request.epoch));
            };
            grant.deadline = Some(Instant::now() + TTL);
            grant.status = request.status.unwrap_or_default();
            Ok(Response::new(v1::RenewLeaseResponse { ttl_ms: u32::try_from(TTL.as_millis()).unwrap() }))
        })
    }

    async fn release_lease(
        &self,
        request: Request<v1::ReleaseLeaseRequest>,
    ) -> Result<Response<v1::ReleaseLeaseResponse>, Status> {
        let request = request.into_inner();
        self.with(|world| {
            if let Some(grant) =
                world.leases.get_mut(&request.lease).filter(|grant| grant.epoch == request.epoch)
            {
                grant.holder.clear();
            }
        });
        Ok(Response::new(v1::ReleaseLeaseResponse {}))
    }

    async fn list_members(
        &self,
        request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersResponse>, Status> {
        let prefix = request.into_inner().prefix;
        let members = self.with(|world| {
            let leases = world.leases.iter().filter(|(lease, _)| lease.starts_with(&prefix));
            let member = |(lease, grant): (&String, &Grant)| v1::Member {
                lease: lease.clone(),
                holder: grant.holder.clone(),
                address: grant.address.clone(),
                epoch: grant.epoch,
                remaining_ms: 1,
                status: Some(grant.status.clone()),
                standbys: Vec::new(),
            };
            leases.map(member).collect()
        });
        Ok(Response::new(v1::ListMembersResponse { members }))
    }
}

/// TTL that the double grants on renewal.
pub(crate) const TTL: Duration = Duration::from_millis(600);

/// FAILED_PRECONDITION: somebody else holds the lease.
pub(crate) fn lease_held(lease: &str, holder: &str, address: &str) -> Status {
    let info = [("lease", lease), ("holder", holder), ("address", address)];
    let message = format!("{holder} holds lease {lease}");
    status::with_info(Code::FailedPrecondition, status::reason::LEASE_HELD, message, info)
}

/// ABORTED: the watcher did not keep up.
pub(crate) fn slow_watcher() -> Status {
    let message = "the watcher is too slow: resume from the last revision seen";
    status::with_info(Code::Aborted, status::reason::SLOW_WATCHER, message, [("resume_from", "0")])
}
