//! A real state service in this process, agents and a dispatcher played by the test, and a wire that can be
//! frozen. Shared with the scheduler's tests.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use godel_base::ids::UnitId;
use godel_domain::{
    change::Change,
    running_units::{RunChange, RunningUnit, RunningUnits},
    unit::UnitRecord,
};
use godel_kit::{
    CancellationToken,
    client::{Channel, channel},
    config::{ClientConfig, LeaseConfig, ServerConfig},
};
use godel_proto::{
    raw,
    v1::{
        self, member_service_client::MemberServiceClient, node_service_client::NodeServiceClient,
        state_service_client::StateServiceClient,
    },
};
use godel_testkit::BuildUnit as _;
use godel_wire::{from_proto, to_proto};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

/// Longest time that anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `check` gives something.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut check: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for `future`.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// A listener on a free port.
pub(crate) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A server without metrics.
pub(crate) fn server_config() -> ServerConfig {
    ServerConfig { metrics: false, stop_grace: Duration::from_millis(50).into(), ..ServerConfig::default() }
}

/// A client of the state service at `url`.
pub(crate) fn client_config(url: &str) -> ClientConfig {
    ClientConfig {
        state: url.to_owned(),
        directory_interval: Duration::from_millis(30).into(),
        ..ClientConfig::default()
    }
}

/// Leases that are lost quickly, and not by a leader that others keep from its CPU for a moment.
pub(crate) fn lease_config() -> LeaseConfig {
    LeaseConfig { ttl: Duration::from_secs(3).into() }
}

/// A state service in memory.
pub(crate) struct State {
    pub(crate) url: String,
    pub(crate) channel: Channel,
    stop: tokio_util::sync::DropGuard,
    serving: tokio::task::JoinHandle<()>,
}

impl State {
    pub(crate) async fn start() -> Self {
        Self::start_on(listener().await).await
    }

    /// Stops it and starts another one at its address, with a store of its own in which there is nothing.
    pub(crate) async fn replace(self) -> Self {
        drop(self.stop);
        soon("state stops", self.serving).await.unwrap();
        let address = self.url.strip_prefix("http://").unwrap();
        Self::start_on(TcpListener::bind(address).await.unwrap()).await
    }

    async fn start_on(listener: TcpListener) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = godel_state::Config {
            engine: godel_state::EngineKind::Memory,
            tls: Some(godel_state::TlsMode::Off),
            server: server_config(),
            watch_bookmark_interval: Duration::from_millis(50).into(),
            ..godel_state::Config::default()
        };
        let deps = godel_state::Deps { listener: Some(listener), ..godel_state::Deps::default() };
        let stop = CancellationToken::new();
        let serving = godel_state::serve(config, deps, stop.clone());
        let serving = godel_kit::task::spawn("state", async move { serving.await.unwrap() });
        let channel = channel(&url, &client_config(&url)).unwrap();
        let state = Self { url, channel, stop: stop.drop_guard(), serving };
        eventually("state answers", || async { state.try_status().await }).await;
        state
    }

    async fn try_status(&self) -> Option<v1::GetStoreStatusResponse> {
        let mut client = StateServiceClient::new(self.channel.clone());
        Some(client.get_store_status(v1::GetStoreStatusRequest {}).await.ok()?.into_inner())
    }

    pub(crate) async fn status(&self) -> v1::GetStoreStatusResponse {
        self.try_status().await.unwrap()
    }

    async fn members(&self, prefix: &str) -> Vec<v1::Member> {
        let request = v1::ListMembersRequest { prefix: prefix.to_owned() };
        let answer = MemberServiceClient::new(self.channel.clone()).list_members(request).await;
        answer.unwrap().into_inner().members
    }

    /// The holder of a lease, if somebody holds it.
    pub(crate) async fn holder(&self, lease: &str) -> Option<v1::Member> {
        self.members(lease)
            .await
            .into_iter()
            .find(|member| member.lease == lease && !member.holder.is_empty())
    }

    pub(crate) async fn rows(&self, unit: u64) -> RunningUnits {
        let request = v1::ListRecordsRequest {
            kinds: vec![v1::Kind::Rows.into()],
            ..v1::ListRecordsRequest::default()
        };
        let page =
            StateServiceClient::new(self.channel.clone()).list_records(request).await.unwrap().into_inner();
        let rows = page.records.into_iter().filter_map(|record| match record.record {
            Some(v1::record::Record::Rows(rows)) => Some(from_proto::unit_rows(rows).unwrap()),
            _ => None,
        });
        rows.into_iter().find(|(id, _)| id.0 == unit).map(|(_, rows)| rows).unwrap_or_default()
    }

    /// Waits until a row is as wanted.
    pub(crate) async fn row(
        &self,
        unit: u64,
        ordinal: u32,
        wanted: impl Fn(&RunningUnit) -> bool,
    ) -> RunningUnit {
        eventually("the row is as wanted", || async {
            Some(self.rows(unit).await.row(ordinal)).filter(|row| wanted(row))
        })
        .await
    }

    /// Nodes of each of the first `n` ordinals, once all are bound.
    pub(crate) async fn bound(&self, unit: u64, n: u32) -> Vec<u32> {
        eventually("all are bound", || async {
            let rows = self.rows(unit).await;
            let nodes: Vec<u32> = (0..n).map(|ordinal| rows.row(ordinal).node.0).collect();
            nodes.iter().all(|node| *node != 0).then_some(nodes)
        })
        .await
    }

    /// Every binding ever committed of an ordinal, by replaying the watch: it must be one per incarnation.
    pub(crate) async fn assert_bound_once(&self) {
        let end = self.status().await.revision;
        let request = v1::WatchRequest {
            from_revision: 0,
            kinds: vec![v1::Kind::Rows.into()],
            ..v1::WatchRequest::default()
        };
        let mut watch =
            StateServiceClient::new(self.channel.clone()).watch(request).await.unwrap().into_inner();
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let message = soon("the watch goes on", watch.message()).await.unwrap().unwrap();
            for op in message.commits.iter().flat_map(|commit| commit.ops.iter()) {
                let Ok(Change::Rows(unit, RunChange::Bind(bind))) = from_proto::op(op) else { continue };
                for (idx, ordinal) in bind.ordinals.iter().enumerate() {
                    let incarnation = bind.incarnations.get(idx).copied().unwrap_or(0);
                    assert!(seen.insert((unit, *ordinal, incarnation)), "{unit}/{ordinal} is bound twice");
                }
            }
            if message.revision >= end {
                return;
            }
        }
    }

    /// A transaction as the holder of a lease.
    pub(crate) async fn txn(&self, writer: v1::Writer, ops: Vec<v1::op::Op>) -> Result<u64, tonic::Status> {
        let ops = ops.into_iter().map(raw::encode_op).collect();
        let request = raw::TxnRequest { writer: Some(writer), ops, ..raw::TxnRequest::default() };
        Ok(StateServiceClient::new(self.channel.clone()).txn(request).await?.into_inner().revision)
    }

    /// Takes a lease for a minute.
    pub(crate) async fn acquire(&self, lease: &str, holder: &str, address: &str) -> u64 {
        let request = v1::AcquireLeaseRequest {
            lease: lease.to_owned(),
            holder: holder.to_owned(),
            address: address.to_owned(),
            ttl_ms: 60_000,
        };
        let answer = MemberServiceClient::new(self.channel.clone()).acquire_lease(request).await;
        answer.unwrap().into_inner().epoch
    }
}

/// Writes units as the dispatcher.
pub(crate) struct Units<'a> {
    state: &'a State,
    epoch: u64,
    sequence: AtomicU64,
}

impl<'a> Units<'a> {
    /// Takes the dispatcher's lease; `address` is where a dispatcher is played, if anywhere.
    pub(crate) async fn new(state: &'a State, address: &str) -> Self {
        let epoch = state.acquire("dispatcher", "test", address).await;
        Self { state, epoch, sequence: AtomicU64::new(0) }
    }

    /// Puts a unit; its revision.
    pub(crate) async fn put(&self, record: &UnitRecord) -> u64 {
        self.write(v1::op::Op::PutUnit(to_proto::unit_record(record))).await
    }

    /// Puts or deletes another record of the dispatcher's; its revision.
    pub(crate) async fn write(&self, op: v1::op::Op) -> u64 {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let writer = v1::Writer { lease: "dispatcher".to_owned(), epoch: self.epoch, sequence };
        self.state.txn(writer, vec![op]).await.unwrap()
    }
}

/// A unit of one group.
pub(crate) fn unit(id: u64, replicas: u32, min_member: u32, cpu: i64) -> UnitRecord {
    godel_testkit::unit(format!("unit{id}"))
        .id(UnitId(id))
        .uid(format!("00000000-0000-4000-8000-{id:012}"))
        .replicas(replicas)
        .cpu(cpu)
        .min_member(min_member)
        .preemptible(false)
}

/// An agent of one node, ready as long as it lives.
pub(crate) struct Agent {
    pub(crate) node_id: u32,
    requests: mpsc::Sender<v1::SessionRequest>,
    sequence: u64,
    _responses: tokio::task::JoinHandle<()>,
}

impl Agent {
    pub(crate) async fn start(state: &State, name: &str, cpu: i64) -> Self {
        let mut client = NodeServiceClient::new(state.channel.clone());
        let uid = uuid::Uuid::now_v7().to_string();
        let meta = v1::ObjectMeta { name: name.to_owned(), uid: uid.clone(), ..v1::ObjectMeta::default() };
        let report = v1::NodeReport {
            capacity: Some(v1::Resources { amounts: [("cpu".to_owned(), cpu)].into() }),
            ..v1::NodeReport::default()
        };
        let (meta, report) = (Some(meta), Some(report));
        let request = v1::RegisterNodeRequest { meta, report, ..v1::RegisterNodeRequest::default() };
        let registered = client.register_node(request).await.unwrap().into_inner();
        let (requests, outgoing) = mpsc::channel(64);
        let open = v1::SessionOpen {
            node_id: registered.node_id,
            uid,
            epoch: registered.epoch,
            ..v1::SessionOpen::default()
        };
        let open = v1::session_request::Message::Open(open);
        requests.send(v1::SessionRequest { message: Some(open) }).await.unwrap();
        let mut responses = client.session(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        let reader = tokio::spawn(async move { while let Ok(Some(_)) = responses.message().await {} });
        let agent = Self { node_id: registered.node_id, requests, sequence: 0, _responses: reader };
        let get = v1::GetNodeRequest { name: name.to_owned() };
        eventually("the node is ready", || {
            let (mut client, get) = (client.clone(), get.clone());
            async move {
                let node = client.get_node(get).await.ok()?.into_inner().node?;
                node.report.is_some_and(|report| report.ready).then_some(())
            }
        })
        .await;
        agent
    }

    /// Reports a phase of a running unit.
    pub(crate) async fn report(&mut self, unit_id: u64, ordinal: u32, incarnation: u32, phase: v1::RunPhase) {
        self.sequence += 1;
        let status =
            v1::RunStatus { unit_id, ordinal, incarnation, phase: phase.into(), ..v1::RunStatus::default() };
        let report = v1::RunStatusReport { sequence: self.sequence, statuses: vec![status] };
        let message = Some(v1::session_request::Message::Status(report));
        self.requests.send(v1::SessionRequest { message }).await.unwrap();
    }
}

/// A wire to a server that can be frozen: bytes stay where they are, connections stay open.
pub(crate) struct Wire {
    pub(crate) url: String,
    frozen: watch::Sender<bool>,
    _stop: tokio_util::sync::DropGuard,
}

impl Wire {
    pub(crate) async fn to(url: &str) -> Self {
        let target: SocketAddr = url.trim_start_matches("http://").parse().unwrap();
        let listener = listener().await;
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (frozen, gate) = watch::channel(false);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stopped.cancelled() => return,
                };
                let Ok((near, _)) = accepted else { return };
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(pump(near_read, far_write, gate.clone()));
                tokio::spawn(pump(far_read, near_write, gate.clone()));
            }
        });
        Self { url, frozen, _stop: stop.drop_guard() }
    }

    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub(crate) fn thaw(&self) {
        self.frozen.send_replace(false);
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gate: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if gate.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}
