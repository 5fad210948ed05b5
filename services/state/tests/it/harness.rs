//! A state service of its own for each test, and clients for it.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use godel_crash::CrashPoints;
use godel_etcd::model::Session;
use godel_kit::CancellationToken;
use godel_proto::{
    raw,
    v1::{
        self, member_service_client::MemberServiceClient, node_service_client::NodeServiceClient,
        state_service_client::StateServiceClient,
    },
};
use godel_state::{Config, Deps, Error, TlsMode};
use godel_store::{
    Engine, Role, Store, StoreConfig,
    log::{etcd::EtcdConfig, memory::MemoryDisk},
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Status, Streaming, transport::Channel};

/// Longest wait of any test for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Every running unit that an assignment is for, as (unit, ordinal, incarnation).
pub(crate) fn assigned(one: &v1::Assignment) -> impl Iterator<Item = (u64, u32, u32)> {
    let ordinals = std::iter::once(one.ordinal).chain(one.more_ordinals.iter().copied());
    ordinals.map(|ordinal| (one.unit_id, ordinal, one.incarnation))
}

pub(crate) struct State {
    pub(crate) channel: Channel,
    pub(crate) uri: String,
    engine: Option<Engine>,
    config: Config,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), Error>>,
}

impl State {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { tls: Some(TlsMode::Off), ..Config::default() };
        config.server.metrics = false;
        change(&mut config);
        Self::start_on(config, Some(Engine::Memory(MemoryDisk::default()))).await
    }

    /// On a store that holds records of identities already.
    pub(crate) async fn start_with_records(change: impl FnOnce(&mut Config), ops: Vec<v1::op::Op>) -> Self {
        let mut config = Config { tls: Some(TlsMode::Off), ..Config::default() };
        config.server.metrics = false;
        change(&mut config);
        let engine = Engine::Memory(MemoryDisk::default());
        let store =
            Store::open(StoreConfig::new(engine.clone()), Arc::new(|| 1), CrashPoints::default()).unwrap();
        let ops = ops.into_iter().map(raw::encode_op).collect();
        let txn = raw::TxnRequest { ops, ..raw::TxnRequest::default() };
        store.submit(txn, Role::Identities).await.unwrap();
        store.close().await;
        Self::start_on(config, Some(engine)).await
    }

    /// One of several states with one store in the etcd of `session`, called `name`, whose directory is `dir`.
    pub(crate) async fn start_one_of(session: Arc<Session>, name: &str, dir: &Path) -> Self {
        let mut config = Config { tls: Some(TlsMode::Off), name: name.to_owned(), ..Config::default() };
        config.server.metrics = false;
        config.data_dir = dir.join(name);
        config.etcd.shared = true;
        let engine = Engine::Etcd(EtcdConfig::new(session, &config.data_dir));
        Self::start_on(config, Some(engine)).await
    }

    /// On the engine that the configuration names.
    pub(crate) async fn start_as_configured(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { tls: Some(TlsMode::Off), ..Config::default() };
        config.server.metrics = false;
        change(&mut config);
        Self::start_on(config, None).await
    }

    async fn start_on(config: Config, engine: Option<Engine>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let deps = Deps { listener: Some(listener), engine: engine.clone(), ..Deps::default() };
        let serving = tokio::spawn(godel_state::serve(config.clone(), deps, stop.clone()));
        let channel = connect(&uri).await;
        Self { channel, uri, engine, config, stop, serving }
    }

    /// Stops it in order and starts it again on the same disk, at another address.
    pub(crate) async fn restart(self) -> Self {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
        Self::start_on(self.config, self.engine).await
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
    }

    pub(crate) fn state(&self) -> StateServiceClient<Channel> {
        StateServiceClient::new(self.channel.clone())
    }

    pub(crate) fn members(&self) -> MemberServiceClient<Channel> {
        MemberServiceClient::new(self.channel.clone())
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone())
    }

    /// Takes a lease and writes under it.
    pub(crate) async fn writer(&self, lease: &str) -> Writer {
        let granted = acquire(&self.channel, lease, "tester", 60_000).await.unwrap();
        Writer { client: self.state(), lease: lease.to_owned(), epoch: granted.epoch, sequence: 0 }
    }

    /// Registers a node of 10 CPUs and two GPUs.
    pub(crate) async fn register(&self, name: &str) -> v1::RegisterNodeResponse {
        self.nodes().register_node(registration(name, &uid(name))).await.unwrap().into_inner()
    }

    pub(crate) async fn node(&self, name: &str) -> v1::Node {
        let request = v1::GetNodeRequest { name: name.to_owned() };
        self.nodes().get_node(request).await.unwrap().into_inner().node.unwrap()
    }

    pub(crate) async fn row_phases(&self, unit: u64) -> Vec<i32> {
        let records = self.list(&[v1::Kind::Rows]).await;
        let rows = records.into_iter().filter_map(|record| match record.record {
            Some(v1::record::Record::Rows(rows)) if rows.unit_id == unit => Some(rows),
            _ => None,
        });
        rows.flat_map(|rows| rows.blocks).flat_map(|block| block.phases).collect()
    }

    /// Every record of some kinds, over all pages of two.
    pub(crate) async fn list(&self, kinds: &[v1::Kind]) -> Vec<v1::Record> {
        let kinds: Vec<i32> = kinds.iter().map(|kind| *kind as i32).collect();
        let (mut records, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListRecordsRequest { kinds: kinds.clone(), page_size: 2, page_token };
            let page = self.state().list_records(request).await.unwrap().into_inner();
            records.extend(page.records);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return records;
            }
        }
    }
}

pub(crate) async fn connect(uri: &str) -> Channel {
    Channel::from_shared(uri.to_owned()).unwrap().connect_lazy()
}

pub(crate) async fn acquire(
    channel: &Channel,
    lease: &str,
    holder: &str,
    ttl_ms: u32,
) -> Result<v1::AcquireLeaseResponse, Status> {
    let request = v1::AcquireLeaseRequest {
        lease: lease.to_owned(),
        holder: holder.to_owned(),
        address: format!("http://{holder}"),
        ttl_ms,
    };
    Ok(MemberServiceClient::new(channel.clone()).acquire_lease(request).await?.into_inner())
}

/// A holder of a lease that writes transactions.
pub(crate) struct Writer {
    pub(crate) client: StateServiceClient<Channel>,
    pub(crate) lease: String,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
}

impl Writer {
    pub(crate) fn next(&mut self) -> v1::Writer {
        self.sequence += 1;
        v1::Writer { lease: self.lease.clone(), epoch: self.epoch, sequence: self.sequence }
    }

    pub(crate) fn txn(&mut self, ops: impl IntoIterator<Item = v1::op::Op>) -> raw::TxnRequest {
        let ops = ops.into_iter().map(raw::encode_op).collect();
        raw::TxnRequest { writer: Some(self.next()), ops, ..raw::TxnRequest::default() }
    }

    pub(crate) async fn write(&mut self, ops: impl IntoIterator<Item = v1::op::Op>) -> Result<u64, Status> {
        let txn = self.txn(ops);
        Ok(self.client.txn(txn).await?.into_inner().revision)
    }
}

pub(crate) fn put_unit(unit_id: u64) -> v1::op::Op {
    put_unit_of(unit_id, 0)
}

/// The same with so many replicas.
pub(crate) fn put_unit_of(unit_id: u64, replicas: u32) -> v1::op::Op {
    let name = format!("unit-{unit_id}");
    let run =
        v1::RunSpec { simulated_duration_ms: Some(unit_id), stop_grace_ms: 70, ..v1::RunSpec::default() };
    let template = v1::Template { demand: Some(demand()), run: Some(run), ..v1::Template::default() };
    let group = v1::TaskGroup {
        name: "main".to_owned(),
        replicas,
        template: Some(template),
        ..v1::TaskGroup::default()
    };
    let meta = v1::ObjectMeta { namespace: "default".to_owned(), name, ..v1::ObjectMeta::default() };
    let spec = v1::UnitSpec {
        meta: Some(meta),
        task_groups: vec![group],
        workload_class: v1::WorkloadClass::Batch.into(),
        restart_policy: v1::RestartPolicy::Never.into(),
        profile: "most-allocated".to_owned(),
        ..v1::UnitSpec::default()
    };
    let ordinals = v1::OrdinalRanges { ranges: vec![v1::OrdinalRange { start: 0, end: replicas }] };
    let status = v1::UnitStatus { ordinals: vec![ordinals], ..v1::UnitStatus::default() };
    v1::op::Op::PutUnit(v1::UnitRecord { unit_id, spec: Some(spec), status: Some(status) })
}

/// The same with so many bytes more.
pub(crate) fn put_large_unit(unit_id: u64, n_bytes: usize) -> v1::op::Op {
    let v1::op::Op::PutUnit(mut record) = put_unit(unit_id) else { unreachable!() };
    let group = &mut record.spec.as_mut().unwrap().task_groups[0];
    let run = group.template.as_mut().and_then(|template| template.run.as_mut());
    run.unwrap().command = vec!["x".repeat(n_bytes)];
    v1::op::Op::PutUnit(record)
}

pub(crate) fn demand() -> v1::Demand {
    v1::Demand {
        requests: Some(resources(&[("cpu", 500)])),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: None,
    }
}

pub(crate) fn resources(amounts: &[(&str, i64)]) -> v1::Resources {
    v1::Resources { amounts: amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect() }
}

pub(crate) fn bind(unit_id: u64, ordinals: &[u32], node_id: u32) -> v1::op::Op {
    v1::op::Op::Bind(v1::Binding {
        unit_id,
        demand: Some(demand()),
        pool: v1::Pool::Guaranteed.into(),
        ordinals: ordinals.to_vec(),
        node_ids: vec![node_id; ordinals.len()],
        ..v1::Binding::default()
    })
}

pub(crate) fn evict(unit_id: u64, ordinals: &[u32]) -> v1::op::Op {
    v1::op::Op::Evict(v1::Eviction {
        unit_id,
        ordinals: ordinals.to_vec(),
        reason: v1::EvictionReason::Drained.into(),
        ..v1::Eviction::default()
    })
}

/// A UUID made of a name.
pub(crate) fn uid(name: &str) -> String {
    let number = name.bytes().fold(7u128, |sum, byte| sum.wrapping_mul(131).wrapping_add(u128::from(byte)));
    uuid_text(number)
}

fn uuid_text(number: u128) -> String {
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

pub(crate) fn registration(name: &str, uid: &str) -> v1::RegisterNodeRequest {
    let meta = v1::ObjectMeta {
        name: name.to_owned(),
        uid: uid.to_owned(),
        labels: HashMap::from([("zone".to_owned(), "z1".to_owned())]),
        ..v1::ObjectMeta::default()
    };
    let gpu = v1::Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
    let report = v1::NodeReport {
        capacity: Some(resources(&[("cpu", 10_000), ("memory", 1 << 30)])),
        devices: vec![gpu; 2],
        attributes: HashMap::from([("rack".to_owned(), "r1".to_owned())]),
        ..v1::NodeReport::default()
    };
    v1::RegisterNodeRequest { meta: Some(meta), report: Some(report), ..v1::RegisterNodeRequest::default() }
}

/// An agent's side of a session.
pub(crate) struct Agent {
    up: mpsc::Sender<v1::SessionRequest>,
    down: Streaming<v1::SessionResponse>,
    sequence: u64,
}

impl Agent {
    /// Opens a session and waits for the welcome.
    pub(crate) async fn open(
        channel: &Channel,
        name: &str,
        registered: v1::RegisterNodeResponse,
        running: Vec<v1::RunStatus>,
    ) -> Self {
        let mut agent = Self::try_open(channel, name, registered, running).await;
        match agent.next().await {
            v1::session_response::Message::Welcome(welcome) => assert!(welcome.heartbeat_interval_ms > 0),
            other => panic!("expected a welcome, got {other:?}"),
        }
        agent
    }

    pub(crate) async fn try_open(
        channel: &Channel,
        name: &str,
        registered: v1::RegisterNodeResponse,
        running: Vec<v1::RunStatus>,
    ) -> Self {
        Self::try_open_from(0, channel, name, registered, running).await
    }

    /// The same with what it has of a store.
    pub(crate) async fn try_open_from(
        store_id: u64,
        channel: &Channel,
        name: &str,
        registered: v1::RegisterNodeResponse,
        running: Vec<v1::RunStatus>,
    ) -> Self {
        let v1::RegisterNodeResponse { node_id, epoch, .. } = registered;
        let uid = uid(name);
        let open = v1::SessionOpen { node_id, uid, epoch, running, store_id, ..v1::SessionOpen::default() };
        Self::open_with(channel, open).await
    }

    /// Opens a session with a message of the test's own, and does not wait for the answer.
    pub(crate) async fn open_with(channel: &Channel, open: v1::SessionOpen) -> Self {
        let (up, requests) = mpsc::channel(1_024);
        up.send(v1::SessionRequest { message: Some(v1::session_request::Message::Open(open)) })
            .await
            .unwrap();
        let mut client = NodeServiceClient::new(channel.clone());
        let down = client.session(ReceiverStream::new(requests)).await.unwrap().into_inner();
        Self { up, down, sequence: 0 }
    }

    pub(crate) async fn send(&self, message: v1::session_request::Message) {
        self.up.send(v1::SessionRequest { message: Some(message) }).await.unwrap();
    }

    /// Sends to a session that may be over.
    pub(crate) async fn send_late(&self, message: v1::session_request::Message) {
        drop(self.up.send(v1::SessionRequest { message: Some(message) }).await);
    }

    pub(crate) async fn heartbeat(&self, usage: Option<v1::Resources>) {
        self.send(v1::session_request::Message::Heartbeat(v1::Heartbeat { usage, ..Default::default() }))
            .await;
    }

    /// Reports; returns the sequence.
    pub(crate) async fn report(&mut self, statuses: Vec<v1::RunStatus>) -> u64 {
        self.sequence += 1;
        let report = v1::RunStatusReport { sequence: self.sequence, statuses };
        self.send(v1::session_request::Message::Status(report)).await;
        self.sequence
    }

    pub(crate) async fn next(&mut self) -> v1::session_response::Message {
        self.try_next().await.unwrap().message.unwrap()
    }

    pub(crate) async fn try_next(&mut self) -> Result<v1::SessionResponse, Status> {
        let next = tokio::time::timeout(PATIENCE, self.down.next()).await.expect("a message in time");
        next.unwrap_or_else(|| Err(Status::cancelled("the session ended")))
    }

    /// The next assignments, as (unit, ordinal, incarnation).
    pub(crate) async fn assigned(&mut self) -> Vec<(u64, u32, u32)> {
        match self.next().await {
            v1::session_response::Message::Assign(assign) => {
                assign.assignments.iter().flat_map(assigned).collect()
            }
            other => panic!("expected assignments, got {other:?}"),
        }
    }

    /// The next stops.
    pub(crate) async fn stopped(&mut self) -> Vec<(u64, u32, u32)> {
        match self.next().await {
            v1::session_response::Message::Stop(stop) => {
                stop.stops.iter().map(|one| (one.unit_id, one.ordinal, one.grace_ms)).collect()
            }
            other => panic!("expected stops, got {other:?}"),
        }
    }

    /// Waits until everything up to `sequence` is acknowledged.
    pub(crate) async fn acked(&mut self, sequence: u64) {
        loop {
            match self.next().await {
                v1::session_response::Message::AckSequence(acked) if acked >= sequence => return,
                v1::session_response::Message::AckSequence(_) => {}
                other => panic!("expected an acknowledgement, got {other:?}"),
            }
        }
    }
}

pub(crate) fn says(unit_id: u64, ordinal: u32, phase: v1::RunPhase) -> v1::RunStatus {
    v1::RunStatus { unit_id, ordinal, phase: phase.into(), ..v1::RunStatus::default() }
}

/// Tries until `look` finds something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}
