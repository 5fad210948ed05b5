//! Servers played by the test: every stream that a scheduler opens is handed to the test.

use godel_kit::{CancellationToken, metrics::Metrics, server::Server};
use godel_proto::v1::{
    self, attach_request, attach_response,
    bind_service_server::{BindService, BindServiceServer},
    decide_request, decide_response,
    dispatch_service_server::{DispatchService, DispatchServiceServer},
};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::harness::{listener, server_config, soon};

/// One end of a stream that a scheduler opened.
pub(crate) struct Stream<Req, Res> {
    requests: Streaming<Req>,
    responses: mpsc::Sender<Result<Res, Status>>,
}

pub(crate) type AttachStream = Stream<v1::AttachRequest, v1::AttachResponse>;
pub(crate) type DecideStream = Stream<v1::DecideRequest, v1::DecideResponse>;

struct Handler<Req, Res> {
    opened: mpsc::Sender<Stream<Req, Res>>,
}

impl<Req, Res> Handler<Req, Res> {
    async fn open(
        &self,
        request: Request<Streaming<Req>>,
    ) -> Result<Response<ReceiverStream<Result<Res, Status>>>, Status> {
        let (responses, outgoing) = mpsc::channel(64);
        let stream = Stream { requests: request.into_inner(), responses };
        self.opened.send(stream).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// A server played by the test.
pub(crate) struct Played<Req, Res> {
    pub(crate) url: String,
    opened: Mutex<mpsc::Receiver<Stream<Req, Res>>>,
    _stop: tokio_util::sync::DropGuard,
}

pub(crate) type Dispatcher = Played<v1::AttachRequest, v1::AttachResponse>;
pub(crate) type PlayedBinder = Played<v1::DecideRequest, v1::DecideResponse>;

impl<Req, Res> Played<Req, Res> {
    async fn start(server: impl FnOnce(Server, Handler<Req, Res>) -> Server) -> Self {
        let listener = listener().await;
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (opened, streams) = mpsc::channel(8);
        let stop = CancellationToken::new();
        let server = server(Server::new(&server_config(), &Metrics::new("played")), Handler { opened });
        let serving = server.serve(listener, stop.clone());
        tokio::spawn(async move { serving.await.unwrap() });
        Self { url, opened: Mutex::new(streams), _stop: stop.drop_guard() }
    }

    /// The next stream that is opened.
    pub(crate) async fn stream(&self) -> Stream<Req, Res> {
        let mut opened = self.opened.lock().await;
        soon("a stream is opened", opened.recv()).await.unwrap()
    }
}

impl Dispatcher {
    pub(crate) async fn new() -> Self {
        Self::start(|server, handler| server.add(DispatchServiceServer::new(handler))).await
    }

    /// The next stream, with its opening message answered.
    pub(crate) async fn attached(&self) -> (AttachStream, v1::AttachOpen) {
        let mut stream = self.stream().await;
        let Some(attach_request::Message::Open(open)) =
            stream.next().await.and_then(|request| request.message)
        else {
            panic!("the first message is not open")
        };
        let welcome = attach_response::Message::Welcome(v1::AttachWelcome { epoch: 1 });
        // It may have ended meanwhile: its next message says so.
        let _ = stream.responses.send(Ok(v1::AttachResponse { message: Some(welcome) })).await;
        (stream, open)
    }
}

impl PlayedBinder {
    pub(crate) async fn new() -> Self {
        Self::start(|server, handler| server.add(BindServiceServer::new(handler))).await
    }

    /// The next stream, with its opening message answered.
    pub(crate) async fn connected(&self) -> (DecideStream, v1::DecideOpen) {
        let mut stream = self.stream().await;
        let Some(decide_request::Message::Open(open)) =
            stream.next().await.and_then(|request| request.message)
        else {
            panic!("the first message is not open")
        };
        let welcome = decide_response::Message::Welcome(v1::DecideWelcome { epoch: 1 });
        // It may have ended meanwhile: its next message says so.
        let _ = stream.responses.send(Ok(v1::DecideResponse { message: Some(welcome) })).await;
        (stream, open)
    }
}

impl<Req, Res> Stream<Req, Res> {
    /// The next message; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Req> {
        soon("the scheduler sends", self.requests.message()).await.ok().flatten()
    }

    pub(crate) async fn send(&self, response: Res) {
        self.responses.send(Ok(response)).await.unwrap();
    }
}

impl AttachStream {
    pub(crate) async fn assign(&self, units: Vec<godel_proto::raw::UnitAssignment>) {
        let assign = attach_response::Message::Assign(v1::UnitAssignments { units });
        self.send(v1::AttachResponse { message: Some(assign) }).await;
    }

    pub(crate) async fn revoke(&self, unit_ids: &[u64]) {
        let revoke = attach_response::Message::Revoke(v1::UnitRevocations { unit_ids: unit_ids.to_vec() });
        self.send(v1::AttachResponse { message: Some(revoke) }).await;
    }

    /// The next reports.
    pub(crate) async fn reports(&mut self) -> Vec<v1::UnitReport> {
        loop {
            match self.next().await.expect("the stream goes on").message {
                Some(attach_request::Message::Reports(reports)) => return reports.reports,
                Some(attach_request::Message::Credits(_) | attach_request::Message::Rooms(_)) => {}
                Some(attach_request::Message::Open(_) | attach_request::Message::Inventory(_)) | None => {
                    panic!("not a report")
                }
            }
        }
    }

    /// Reads until the scheduler says that there is room.
    pub(crate) async fn room(&mut self) -> v1::RoomReport {
        loop {
            if let Some(attach_request::Message::Rooms(rooms)) =
                self.next().await.expect("the stream goes on").message
                && let Some(room) = rooms.rooms.into_iter().find(|room| room.places > 0)
            {
                return room;
            }
        }
    }

    /// Reads reports until one is as wanted.
    pub(crate) async fn report(&mut self, unit_id: u64, state: v1::UnitReportState) -> v1::UnitReport {
        loop {
            let reports = self.reports().await;
            if let Some(found) =
                reports.into_iter().find(|one| one.unit_id == unit_id && one.state() == state)
            {
                return found;
            }
        }
    }
}

impl DecideStream {
    /// The next decisions.
    pub(crate) async fn decisions(&mut self) -> Vec<v1::Decision> {
        match self.next().await.expect("the stream goes on").message {
            Some(decide_request::Message::Decisions(decisions)) => decisions.decisions,
            Some(decide_request::Message::Open(_)) | None => panic!("not decisions"),
        }
    }

    pub(crate) async fn answer(&self, outcomes: Vec<v1::Outcome>) {
        let outcomes = decide_response::Message::Outcomes(v1::Outcomes { outcomes });
        self.send(v1::DecideResponse { message: Some(outcomes) }).await;
    }
}

#[tonic::async_trait]
impl BindService for Handler<v1::DecideRequest, v1::DecideResponse> {
    type DecideStream = ReceiverStream<Result<v1::DecideResponse, Status>>;

    async fn decide(
        &self,
        request: Request<Streaming<v1::DecideRequest>>,
    ) -> Result<Response<Self::DecideStream>, Status> {
        self.open(request).await
    }

    async fn evict_running_units(
        &self,
        _request: Request<v1::EvictRunningUnitsRequest>,
    ) -> Result<Response<v1::EvictRunningUnitsResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn move_running_units(
        &self,
        _request: Request<v1::MoveRunningUnitsRequest>,
    ) -> Result<Response<v1::MoveRunningUnitsResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn get_binder_status(
        &self,
        _request: Request<v1::GetBinderStatusRequest>,
    ) -> Result<Response<v1::GetBinderStatusResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }
}

#[tonic::async_trait]
impl DispatchService for Handler<v1::AttachRequest, v1::AttachResponse> {
    type AttachStream = ReceiverStream<Result<v1::AttachResponse, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        self.open(request).await
    }

    async fn list_schedulers(
        &self,
        _request: Request<v1::ListSchedulersRequest>,
    ) -> Result<Response<v1::ListSchedulersResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn set_partition_mode(
        &self,
        _request: Request<v1::SetPartitionModeRequest>,
    ) -> Result<Response<v1::SetPartitionModeResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn get_drain(
        &self,
        _request: Request<v1::GetDrainRequest>,
    ) -> Result<Response<v1::GetDrainResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn resume_evictions(
        &self,
        _request: Request<v1::ResumeEvictionsRequest>,
    ) -> Result<Response<v1::ResumeEvictionsResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn set_pause(
        &self,
        _request: Request<v1::SetPauseRequest>,
    ) -> Result<Response<v1::SetPauseResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn get_dispatcher_status(
        &self,
        _request: Request<v1::GetDispatcherStatusRequest>,
    ) -> Result<Response<v1::GetDispatcherStatusResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }
}
