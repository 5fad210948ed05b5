//! A double of the node service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use godel_proto::v1::{
    self,
    node_service_server::{NodeService, NodeServiceServer},
    session_request, session_response,
};
use godel_wire::BadField;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

type Said = (u32, session_request::Message);
type Down = mpsc::Sender<Result<v1::SessionResponse, Status>>;
type WeakDown = mpsc::WeakSender<Result<v1::SessionResponse, Status>>;

pub(crate) struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
    said: mpsc::UnboundedReceiver<Said>,
    tries: watch::Receiver<u64>,
    /// Messages read while another was looked for.
    kept: Vec<Said>,
}

struct Shared {
    heartbeat_ms: u32,
    said: mpsc::UnboundedSender<Said>,
    tries: watch::Sender<u64>,
    world: Mutex<World>,
}

#[derive(Default)]
struct World {
    registered: Vec<v1::RegisterNodeRequest>,
    ids: BTreeMap<String, u32>,
    epochs: BTreeMap<u32, u64>,
    sessions: BTreeMap<u32, Down>,
    /// The store that it stands for.
    store_id: u64,
    /// Units of which it says that they are left over, to who comes from another store.
    left_over: Vec<u64>,
    /// In welcomes.
    report_statuses_max: Option<u32>,
    /// Heartbeats are not answered.
    deaf: bool,
    refuse: Option<Status>,
    /// Names that are refused.
    refused: BTreeSet<String>,
}

impl Fake {
    pub(crate) async fn start(heartbeat_ms: u32) -> Self {
        let (tx, said) = mpsc::unbounded_channel();
        let (tries_tx, tries) = watch::channel(0);
        let shared =
            Arc::new(Shared { heartbeat_ms, said: tx, tries: tries_tx, world: Mutex::new(World::default()) });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = NodeServiceServer::new(Service(Arc::clone(&shared)));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        godel_kit::task::spawn("fake", async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Self { address, shared, said, tries, kept: Vec::new() }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn registered(&self) -> Vec<v1::RegisterNodeRequest> {
        self.shared.world.lock().unwrap().registered.clone()
    }

    /// Whether heartbeats are left without answers; everything else goes on.
    pub(crate) fn turn_deaf(&self, deaf: bool) {
        self.shared.world.lock().unwrap().deaf = deaf;
    }

    /// From here on welcomes say how many statuses a report may have.
    pub(crate) fn limit_reports(&self, n_statuses: u32) {
        self.shared.world.lock().unwrap().report_statuses_max = Some(n_statuses);
    }

    /// From here on it stands for another store, which does not know these units.
    pub(crate) fn change_store(&self, store_id: u64, left_over: &[u64]) {
        let mut world = self.shared.world.lock().unwrap();
        (world.store_id, world.left_over) = (store_id, left_over.to_vec());
    }

    pub(crate) fn refuse_registrations(&self, refuse: bool) {
        self.shared.world.lock().unwrap().refuse = refuse.then(|| Status::unavailable("not now"));
    }

    /// Registrations are refused with this, for good.
    pub(crate) fn refuse_with(&self, status: Status) {
        self.shared.world.lock().unwrap().refuse = Some(status);
    }

    /// Registrations of these names are refused as state refuses what it can never take.
    pub(crate) fn refuse_names(&self, names: &[&str]) {
        self.shared.world.lock().unwrap().refused = names.iter().map(|name| (*name).to_owned()).collect();
    }

    pub(crate) async fn next_register(&mut self) {
        self.tries.changed().await.unwrap();
    }

    pub(crate) fn send(&self, node: u32, message: session_response::Message) {
        let down = self.shared.world.lock().unwrap().sessions[&node].clone();
        down.try_send(Ok(v1::SessionResponse { message: Some(message) })).unwrap();
    }

    pub(crate) fn ack(&self, node: u32, sequence: u64) {
        self.send(node, session_response::Message::AckSequence(sequence));
    }

    /// Ends a session with this.
    pub(crate) fn end_session(&self, node: u32, status: Status) {
        let down = self.shared.world.lock().unwrap().sessions.remove(&node).unwrap();
        down.try_send(Err(status)).unwrap();
    }

    pub(crate) fn drop_session(&self, node: u32) {
        self.shared.world.lock().unwrap().sessions.remove(&node);
    }

    pub(crate) async fn next(&mut self) -> Said {
        tokio::time::timeout(Duration::from_secs(20), self.said.recv()).await.unwrap().unwrap()
    }

    pub(crate) async fn find<T>(&mut self, pick: impl Fn(&Said) -> Option<T>) -> T {
        if let Some((idx, found)) =
            self.kept.iter().enumerate().find_map(|(idx, said)| Some((idx, pick(said)?)))
        {
            self.kept.remove(idx);
            return found;
        }
        loop {
            let said = self.next().await;
            if let Some(found) = pick(&said) {
                return found;
            }
            self.kept.push(said);
        }
    }

    pub(crate) async fn report_of(&mut self, node: u32) -> v1::RunStatusReport {
        self.find(|(of, message)| match message {
            session_request::Message::Status(report) if *of == node => Some(report.clone()),
            _ => None,
        })
        .await
    }

    /// What the next heartbeat asks to be sent back.
    pub(crate) async fn echo_of(&mut self, node: u32) -> u64 {
        self.find(|(of, message)| match message {
            session_request::Message::Heartbeat(v1::Heartbeat { echo, .. }) if *of == node => Some(*echo),
            _ => None,
        })
        .await
    }

    /// The newest way in which a node opened a session after its first.
    pub(crate) async fn open_of(&mut self, node: u32) -> v1::SessionOpen {
        self.find(|(of, message)| match message {
            session_request::Message::Open(open) if *of == node && open.epoch > 1 => Some(open.clone()),
            _ => None,
        })
        .await
    }
}

pub(crate) fn assignment(unit_id: u64, duration_ms: u64, exit_code: i32) -> session_response::Message {
    assign(simulated(unit_id, duration_ms, exit_code))
}

pub(crate) fn simulated(unit_id: u64, duration_ms: u64, exit_code: i32) -> v1::Assignment {
    let run = v1::RunSpec {
        // 0 runs until it is stopped.
        simulated_duration_ms: (duration_ms > 0).then_some(duration_ms),
        simulated_exit_code: exit_code,
        ..v1::RunSpec::default()
    };
    of_run(unit_id, run)
}

pub(crate) fn command(unit_id: u64, command: &[&str]) -> v1::Assignment {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    of_run(unit_id, v1::RunSpec { command, ..v1::RunSpec::default() })
}

fn of_run(unit_id: u64, run: v1::RunSpec) -> v1::Assignment {
    v1::Assignment { unit_id, run: Some(run), unit_name: "default/u".to_owned(), ..v1::Assignment::default() }
}

pub(crate) fn assign(assignment: v1::Assignment) -> session_response::Message {
    session_response::Message::Assign(v1::Assignments { assignments: vec![assignment], again: false })
}

pub(crate) fn stop_request(unit_id: u64) -> session_response::Message {
    let stop = v1::StopRequest { unit_id, grace_ms: 10_000, ..v1::StopRequest::default() };
    session_response::Message::Stop(v1::StopRequests { stops: vec![stop], left_over: false })
}

impl Shared {
    fn answer(&self, answers: &WeakDown, message: &session_request::Message) {
        let session_request::Message::Heartbeat(v1::Heartbeat { echo, .. }) = message else { return };
        let answers = answers.upgrade().filter(|_| *echo > 0 && !self.world.lock().unwrap().deaf);
        if let Some(answers) = answers {
            let message = Some(session_response::Message::HeartbeatEcho(*echo));
            answers.try_send(Ok(v1::SessionResponse { message })).unwrap();
        }
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl NodeService for Service {
    async fn register_node(
        &self,
        request: Request<v1::RegisterNodeRequest>,
    ) -> Result<Response<v1::RegisterNodeResponse>, Status> {
        self.0.tries.send_modify(|n| *n += 1);
        let mut world = self.0.world.lock().unwrap();
        if let Some(status) = &world.refuse {
            return Err(status.clone());
        }
        let request = request.into_inner();
        let name = request.meta.clone().unwrap_or_default().name;
        if world.refused.contains(&name) {
            let bad = BadField::new("report.devices[0]", "kind is missing");
            return Err(godel_kit::status::invalid_argument([bad]));
        }
        let next = u32::try_from(world.ids.len()).unwrap() + 1;
        let node_id = *world.ids.entry(name).or_insert(next);
        world.registered.push(request);
        let epoch = world.epochs.entry(node_id).or_default();
        *epoch += 1;
        let epoch = *epoch;
        Ok(Response::new(v1::RegisterNodeResponse { node_id, epoch, store_id: world.store_id }))
    }

    type ListRunUsageStream = tokio_stream::Empty<Result<v1::ListRunUsageResponse, Status>>;

    async fn list_run_usage(
        &self,
        _: Request<v1::ListRunUsageRequest>,
    ) -> Result<Response<Self::ListRunUsageStream>, Status> {
        Err(Status::unimplemented("a double"))
    }

    type ListRunProcessesStream = tokio_stream::Empty<Result<v1::ListRunProcessesResponse, Status>>;

    async fn list_run_processes(
        &self,
        _: Request<v1::ListRunProcessesRequest>,
    ) -> Result<Response<Self::ListRunProcessesStream>, Status> {
        Err(Status::unimplemented("a double"))
    }

    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionResponse, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut up = request.into_inner();
        let first = up.next().await.ok_or_else(|| Status::cancelled("no open"))??;
        let Some(session_request::Message::Open(open)) = first.message else {
            return Err(Status::invalid_argument("the first message must be `open`"));
        };
        let node = open.node_id;
        let (tx, rx) = mpsc::channel(64);
        let heartbeat_interval_ms = self.0.heartbeat_ms;
        let (store_id, left_over) = {
            let world = self.0.world.lock().unwrap();
            (world.store_id, world.left_over.clone())
        };
        if ![0, store_id].contains(&open.store_id) {
            let stop = |unit_id| v1::StopRequest { unit_id, grace_ms: 10_000, ..v1::StopRequest::default() };
            let stops = left_over.into_iter().map(stop).collect();
            let stop = session_response::Message::Stop(v1::StopRequests { stops, left_over: true });
            tx.try_send(Ok(v1::SessionResponse { message: Some(stop) })).unwrap();
        }
        let lease_ttl_ms = 3 * heartbeat_interval_ms;
        let report_statuses_max = self.0.world.lock().unwrap().report_statuses_max;
        let welcome = v1::SessionWelcome {
            heartbeat_interval_ms,
            lease_ttl_ms,
            store_id,
            report_statuses_max,
            heartbeat_jitter_percent: None,
        };
        tx.try_send(Ok(v1::SessionResponse { message: Some(session_response::Message::Welcome(welcome)) }))
            .unwrap();
        self.0.world.lock().unwrap().sessions.insert(node, tx.clone());
        let answers = tx.downgrade();
        drop(tx);
        // A test that is over does not listen any more.
        let _over = self.0.said.send((node, session_request::Message::Open(open)));
        let shared = Arc::clone(&self.0);
        godel_kit::task::spawn("fake.session", async move {
            while let Some(Ok(request)) = up.next().await {
                if let Some(message) = request.message {
                    if matches!(message, session_request::Message::Leave(_)) {
                        // State ends the session then.
                        shared.world.lock().unwrap().sessions.remove(&node);
                    }
                    shared.answer(&answers, &message);
                    let _over = shared.said.send((node, message));
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }

    async fn get_node(
        &self,
        _: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        Err(Status::unimplemented("a double"))
    }

    async fn list_nodes(
        &self,
        _: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        Err(Status::unimplemented("a double"))
    }

    async fn update_node(
        &self,
        _: Request<v1::UpdateNodeRequest>,
    ) -> Result<Response<v1::UpdateNodeResponse>, Status> {
        Err(Status::unimplemented("a double"))
    }

    async fn give_notice(
        &self,
        _: Request<v1::GiveNoticeRequest>,
    ) -> Result<Response<v1::GiveNoticeResponse>, Status> {
        Err(Status::unimplemented("a double"))
    }

    async fn deregister_node(
        &self,
        _: Request<v1::DeregisterNodeRequest>,
    ) -> Result<Response<v1::DeregisterNodeResponse>, Status> {
        Err(Status::unimplemented("a double"))
    }

    async fn delete_node(
        &self,
        _: Request<v1::DeleteNodeRequest>,
    ) -> Result<Response<v1::DeleteNodeResponse>, Status> {
        Err(Status::unimplemented("a double"))
    }
}
