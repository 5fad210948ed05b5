//! A state, one or more dispatchers, and actors around them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use godel_base::ids::{NodeId, UnitId};
use godel_dispatcher::{Config, Deps};
use godel_domain::{
    allocation::DeviceSet,
    running_units::{Bind, Evict, EvictionReason, RunChange},
};
use godel_kit::{
    CancellationToken,
    client::{Channel, channel},
    config::{ClientConfig, HumanDuration, LeaseConfig, ServerConfig, TxnConfig},
    leader::{LeaderGrant, LeaderTerms},
    lease::{Election, LeaseSpec},
    metrics::Metrics,
    server::{Server, bind},
    status,
    txn::{Conditions, Receipt, TxnPipeline},
};
use godel_proto::v1::{
    self,
    bind_service_server::{BindService, BindServiceServer},
    dispatch_service_client::DispatchServiceClient,
    node_service_client::NodeServiceClient,
    queue_service_client::QueueServiceClient,
    unit_service_client::UnitServiceClient,
};
use godel_wire::to_proto;
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// Everything that a test waits for comes within this, on a slow machine too.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) state: Channel,
    pub(crate) state_address: String,
    pub(crate) stop: CancellationToken,
    pub(crate) state_stop: CancellationToken,
    pub(crate) state_task: JoinHandle<()>,
    state_metrics: Metrics,
    lease: LeaseConfig,
}

/// One dispatcher process.
pub(crate) struct Process {
    pub(crate) address: String,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

async fn free() -> (TcpListener, String) {
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    (listener, address)
}

fn server() -> ServerConfig {
    ServerConfig { metrics: false, stop_grace: HumanDuration::from_millis(200), ..ServerConfig::on_port(0) }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_lease(HumanDuration::from_secs(2)).await
    }

    pub(crate) async fn with_lease(ttl: HumanDuration) -> Self {
        let (listener, state_address) = free().await;
        let stop = CancellationToken::new();
        let state_stop = stop.child_token();
        let config = godel_state::Config {
            engine: godel_state::EngineKind::Memory,
            tls: Some(godel_state::TlsMode::Off),
            server: server(),
            ..godel_state::Config::default()
        };
        let state_metrics = Metrics::new("state");
        let deps = godel_state::Deps {
            listener: Some(listener),
            metrics: state_metrics.clone(),
            ..godel_state::Deps::default()
        };
        let serving = godel_state::serve(config, deps, state_stop.clone());
        let state_task = tokio::spawn(async move { serving.await.unwrap() });
        let state = channel(&state_address, &ClientConfig::default()).unwrap();
        let lease = LeaseConfig { ttl };
        Self { state, state_address, stop, state_stop, state_task, state_metrics, lease }
    }

    /// Calls that state has answered whose path ends so.
    pub(crate) fn n_calls(&self, method: &str) -> u64 {
        let text = self.state_metrics.encode();
        let of_method = |line: &&str| line.contains("rpc_finished") && line.contains(&format!("/{method}\""));
        let count = |line: &str| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
        text.lines().filter(of_method).filter_map(count).sum()
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            server: server(),
            client: ClientConfig { state: self.state_address.clone(), ..ClientConfig::default() },
            lease: self.lease.clone(),
            partition_debounce: HumanDuration::from_millis(50),
            evict_retry: HumanDuration::from_millis(200),
            ..Config::default()
        }
    }

    pub(crate) async fn dispatcher(&self) -> Process {
        self.dispatcher_with(self.config()).await
    }

    pub(crate) async fn dispatcher_with(&self, config: Config) -> Process {
        let (listener, address) = free().await;
        let stop = self.stop.child_token();
        let deps = Deps { listener: Some(listener), ..Deps::default() };
        let serving = godel_dispatcher::serve(config, deps, stop.clone());
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Process { address, stop, task }
    }

    /// Registers a node with so many milli-cores; its id.
    pub(crate) async fn node(&self, name: &str, cpu: i64) -> u32 {
        let request = v1::RegisterNodeRequest {
            meta: Some(v1::ObjectMeta {
                name: name.to_owned(),
                uid: uuid::Uuid::now_v7().to_string(),
                ..v1::ObjectMeta::default()
            }),
            report: Some(v1::NodeReport {
                capacity: Some(v1::Resources { amounts: [("cpu".to_owned(), cpu)].into() }),
                devices: vec![v1::Device {
                    kind: "gpu".into(),
                    model: "A10".into(),
                    numa_zone: 0,
                    details: None,
                }],
                ready: true,
                ..v1::NodeReport::default()
            }),
            ..v1::RegisterNodeRequest::default()
        };
        let state = self.state.clone();
        eventually("a node registers", || {
            let (state, request) = (state.clone(), request.clone());
            async move { NodeServiceClient::new(state).register_node(request).await.ok() }
        })
        .await
        .into_inner()
        .node_id
    }

    /// Stops everything and waits for it.
    pub(crate) async fn end(self, processes: impl IntoIterator<Item = Process>) {
        for process in processes {
            process.stop.cancel();
            process.task.await.unwrap();
        }
        self.stop.cancel();
        self.state_task.await.unwrap();
    }
}

impl Process {
    pub(crate) fn units(&self) -> UnitServiceClient<Channel> {
        UnitServiceClient::new(channel(&self.address, &ClientConfig::default()).unwrap())
    }

    pub(crate) fn queues(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(channel(&self.address, &ClientConfig::default()).unwrap())
    }

    pub(crate) fn dispatch(&self) -> DispatchServiceClient<Channel> {
        DispatchServiceClient::new(channel(&self.address, &ClientConfig::default()).unwrap())
    }

    pub(crate) async fn leads(&self) {
        let client = self.dispatch();
        eventually("the dispatcher leads", || {
            let mut client = client.clone();
            async move { client.get_dispatcher_status(v1::GetDispatcherStatusRequest {}).await.ok() }
        })
        .await;
    }

    pub(crate) async fn status(&self) -> v1::GetDispatcherStatusResponse {
        self.dispatch().get_dispatcher_status(v1::GetDispatcherStatusRequest {}).await.unwrap().into_inner()
    }

    pub(crate) async fn get(&self, name: &str) -> v1::GetUnitResponse {
        let request = v1::GetUnitRequest { name: name.to_owned(), ..Default::default() };
        self.units().get_unit(request).await.unwrap().into_inner()
    }

    /// Waits until the unit is in `phase`.
    pub(crate) async fn phase(&self, name: &str, phase: v1::UnitPhase) -> v1::Unit {
        eventually(&format!("{name} is {phase:?}"), || async {
            let request = v1::GetUnitRequest { name: name.to_owned(), ..Default::default() };
            let unit = self.units().get_unit(request).await.ok()?.into_inner().unit?;
            (unit.phase() == phase).then_some(unit)
        })
        .await
    }

    pub(crate) async fn submit(&self, unit: v1::UnitSpec) -> v1::SubmitUnitResponse {
        let request = v1::SubmitUnitRequest { unit: Some(unit) };
        self.units().submit_unit(request).await.unwrap().into_inner()
    }
}

pub(crate) fn unit(name: &str, replicas: u32) -> v1::UnitSpec {
    let requests = v1::Resources { amounts: [("cpu".to_owned(), 500)].into() };
    let demand =
        v1::Demand { requests: Some(requests), devices: Vec::new(), host_ports: Vec::new(), zones: None };
    let template = v1::Template { demand: Some(demand), ..v1::Template::default() };
    v1::UnitSpec {
        meta: Some(v1::ObjectMeta {
            name: name.to_owned(),
            uid: uuid::Uuid::now_v7().to_string(),
            ..v1::ObjectMeta::default()
        }),
        task_groups: vec![v1::TaskGroup { replicas, template: Some(template), ..v1::TaskGroup::default() }],
        ..v1::UnitSpec::default()
    }
}

pub(crate) async fn eventually<T, F, Fut>(what: &str, mut look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "never: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A registered scheduler with an open stream.
pub(crate) struct Scheduler {
    pub(crate) name: String,
    pub(crate) epoch: u64,
    pub(crate) up: mpsc::Sender<v1::AttachRequest>,
    down: Streaming<v1::AttachResponse>,
    registration: Option<(CancellationToken, Election)>,
}

impl Scheduler {
    /// Registers and attaches, without anything in hand.
    pub(crate) async fn new(world: &World, to: &Process, name: &str, credits: u32) -> Self {
        Self::counting(world, to, name, credits, || vec![("placed", 7)]).await
    }

    /// The same, with what it says of itself at each renewal of its lease.
    pub(crate) async fn counting(
        world: &World,
        to: &Process,
        name: &str,
        credits: u32,
        counters: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> Self {
        let stop = CancellationToken::new();
        let spec = LeaseSpec::new(format!("scheduler/{name}"), "http://127.0.0.1:1", world.lease.clone())
            .with_counters(counters);
        let election = Election::spawn(spec, world.state.clone(), stop.clone());
        let epoch = elected(world, &election).await.fence.epoch();
        let mut scheduler = Self::attach(to, name, epoch.0, &[], credits).await.unwrap();
        scheduler.registration = Some((stop, election));
        scheduler
    }

    pub(crate) async fn attach(
        to: &Process,
        name: &str,
        epoch: u64,
        inventory: &[(u64, u64)],
        credits: u32,
    ) -> Result<Self, Status> {
        let (up, messages) = mpsc::channel(16);
        let held = |(unit_id, spec_revision): &(u64, u64)| v1::HeldUnit {
            unit_id: *unit_id,
            spec_revision: *spec_revision,
        };
        let mut parts = inventory.chunks(30_000).map(|part| part.iter().map(held).collect()).peekable();
        let inventory = parts.next().unwrap_or_default();
        let more = parts.peek().is_some();
        let open = v1::AttachOpen { name: name.into(), epoch, inventory, credits, more, store_id: 0 };
        up.send(v1::AttachRequest { message: Some(v1::attach_request::Message::Open(open)) }).await.unwrap();
        while let Some(units) = parts.next() {
            let part = v1::Inventory { units, more: parts.peek().is_some() };
            let message = Some(v1::attach_request::Message::Inventory(part));
            up.send(v1::AttachRequest { message }).await.unwrap();
        }
        let mut down = to.dispatch().attach(ReceiverStream::new(messages)).await?.into_inner();
        let first = timeout(LONG, down.message()).await.expect("an answer to open")?;
        let Some(v1::attach_response::Message::Welcome(_)) = first.and_then(|first| first.message) else {
            panic!("not welcome");
        };
        Ok(Self { name: name.into(), epoch, up, down, registration: None })
    }

    /// Attaches again, here or at another dispatcher, under the same lease.
    pub(crate) async fn again(&mut self, to: &Process, inventory: &[(u64, u64)], credits: u32) {
        let fresh = Self::attach(to, &self.name, self.epoch, inventory, credits).await.unwrap();
        let Self { up, down, .. } = fresh;
        (self.up, self.down) = (up, down);
    }

    pub(crate) async fn say(&self, message: v1::attach_request::Message) {
        self.up.send(v1::AttachRequest { message: Some(message) }).await.unwrap();
    }

    pub(crate) async fn report(
        &self,
        unit: &godel_proto::raw::UnitAssignment,
        state: v1::UnitReportState,
        reason: &str,
    ) {
        let reason = v1::RefusalCount { plugin: "resources-fit".into(), reason: reason.into(), nodes: 3 };
        let refusals =
            v1::Refusals { reasons: vec![reason], nodes: 3, attempts: 1, ..v1::Refusals::default() };
        let report = v1::UnitReport {
            unit_id: record_of(unit).unit_id,
            spec_revision: unit.spec_revision,
            state: state.into(),
            refusals: Some(refusals),
            need: record_of(unit).unit_id,
            unplaced: None,
            lacking_groups: Vec::new(),
            assigned: 0,
        };
        self.say(v1::attach_request::Message::Reports(v1::UnitReports { reports: vec![report] })).await;
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Option<v1::attach_response::Message> {
        let next = timeout(LONG, self.down.message()).await.expect("a message for the scheduler");
        next.ok().flatten().and_then(|next| next.message)
    }

    /// The next so many units.
    pub(crate) async fn units(&mut self, n_units: usize) -> Vec<godel_proto::raw::UnitAssignment> {
        let mut units = Vec::new();
        while units.len() < n_units {
            match self.next().await {
                Some(v1::attach_response::Message::Assign(assign)) => units.extend(assign.units),
                other => panic!("not an assignment: {other:?}"),
            }
        }
        assert_eq!(units.len(), n_units);
        units
    }

    /// Units of the next message.
    pub(crate) async fn units_of_next(&mut self) -> Vec<godel_proto::raw::UnitAssignment> {
        match self.next().await {
            Some(v1::attach_response::Message::Assign(assign)) => assign.units,
            other => panic!("not an assignment: {other:?}"),
        }
    }

    pub(crate) async fn revoked(&mut self) -> Vec<u64> {
        match self.next().await {
            Some(v1::attach_response::Message::Revoke(revoke)) => revoke.unit_ids,
            other => panic!("not a revocation: {other:?}"),
        }
    }

    /// Gives its lease back, as a graceful stop does.
    pub(crate) async fn leave(self) {
        let (stop, election) = self.registration.unwrap();
        stop.cancel();
        election.released().await;
    }
}

/// The binder: commits what it is told, and takes requests to evict.
#[derive(Clone)]
pub(crate) struct Binder {
    pipeline: TxnPipeline,
    _election: Arc<Election>,
}

/// Waits for the grant of an election.
async fn elected(world: &World, election: &Election) -> LeaderGrant {
    let mut terms = LeaderTerms::new(election.watch(), world.state.clone(), TxnConfig::default());
    loop {
        terms.changed().await.unwrap();
        if let Some(grant) = terms.valid_grant() {
            return grant.clone();
        }
    }
}

impl Binder {
    pub(crate) async fn new(world: &World) -> Self {
        let (listener, address) = free().await;
        let spec = LeaseSpec::new("binder", address, world.lease.clone());
        let election = Election::spawn(spec, world.state.clone(), world.stop.clone());
        let pipeline = elected(world, &election).await.pipeline;
        let binder = Self { pipeline, _election: Arc::new(election) };
        let serving = Server::new(&server(), &Metrics::new("binder"))
            .add(BindServiceServer::new(binder.clone()))
            .serve(listener, world.stop.clone());
        tokio::spawn(serving);
        binder
    }

    pub(crate) async fn commit(&self, ops: Vec<Bytes>) -> Receipt {
        self.pipeline.submit(ops, Conditions::default()).await.unwrap().await.unwrap()
    }

    pub(crate) async fn bind(&self, unit: u64, ordinals: &[u32], node: u32, mask: u64) -> Receipt {
        let bind = Bind {
            ordinals: ordinals.to_vec(),
            nodes: vec![NodeId(node); ordinals.len()],
            devices: vec![DeviceSet(mask); ordinals.len()],
            ..Bind::default()
        };
        self.commit(vec![to_proto::row_op(UnitId(unit), &RunChange::Bind(bind))]).await
    }
}

#[tonic::async_trait]
impl BindService for Binder {
    type DecideStream = ReceiverStream<Result<v1::DecideResponse, Status>>;

    async fn decide(
        &self,
        _: Request<Streaming<v1::DecideRequest>>,
    ) -> Result<Response<Self::DecideStream>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn evict_running_units(
        &self,
        request: Request<v1::EvictRunningUnitsRequest>,
    ) -> Result<Response<v1::EvictRunningUnitsResponse>, Status> {
        let ops = request.into_inner().evictions.into_iter().map(|eviction| {
            let reason = match eviction.reason() {
                v1::EvictionReason::Cancelled => EvictionReason::Cancelled,
                v1::EvictionReason::ScaledIn => EvictionReason::ScaledIn,
                other => panic!("{other:?}"),
            };
            let evict = Evict {
                ordinals: eviction.ordinals,
                incarnations: eviction.incarnations,
                reason,
                by: eviction.by,
                preemptor: UnitId(0),
            };
            to_proto::row_op(UnitId(eviction.unit_id), &RunChange::Evict(evict))
        });
        let committed = self.commit(ops.collect()).await;
        Ok(Response::new(v1::EvictRunningUnitsResponse { revision: committed.revision.0 }))
    }

    async fn move_running_units(
        &self,
        _: Request<v1::MoveRunningUnitsRequest>,
    ) -> Result<Response<v1::MoveRunningUnitsResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn get_binder_status(
        &self,
        _: Request<v1::GetBinderStatusRequest>,
    ) -> Result<Response<v1::GetBinderStatusResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }
}

/// Code and the fields named.
pub(crate) fn fields(status: &Status) -> (Code, Vec<String>) {
    (status.code(), status::violations_of(status).into_iter().map(|bad| bad.path).collect())
}

/// The unit handed out.
pub(crate) fn record_of(unit: &godel_proto::raw::UnitAssignment) -> v1::UnitRecord {
    prost::Message::decode(unit.record.clone()).unwrap()
}
