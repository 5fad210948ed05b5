//! The other process: answers at once and does nothing.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
};

use godel_kit::{
    CancellationToken,
    config::ServerConfig,
    metrics::Metrics,
    server::{self, Server},
};
use godel_proto::v1::{
    self,
    bind_service_server::{BindService, BindServiceServer},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use godel_client::{
    exit::{Code, Failure},
    output,
};

/// Bytes in flight on a stream and on a connection: as the services have it.
pub(super) const STREAM_WINDOW: u32 = 4 << 20;
/// See [`STREAM_WINDOW`].
pub(super) const CONNECTION_WINDOW: u32 = 8 << 20;

/// Serves until it is killed: bare, and with the layers of the services. Says both addresses in a line.
pub(crate) async fn run() -> Result<(), Failure> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let failed = |error: &dyn std::error::Error| Failure::chain(Code::Failed, error);
    let bare = server::bind(any).await.map_err(|error| failed(&error))?;
    let service = server::bind(any).await.map_err(|error| failed(&error))?;
    let [first, second] = [&bare, &service].map(|listener| listener.local_addr());
    let (first, second) = (first.map_err(|error| failed(&error))?, second.map_err(|error| failed(&error))?);
    let serving_bare = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(BindServiceServer::new(Nothing))
        .serve_with_incoming(TcpListenerStream::new(bare));
    let serving = Server::new(&ServerConfig::default(), &Metrics::new("bench"))
        .add(BindServiceServer::new(Nothing))
        .serve(service, CancellationToken::new());
    output::print(&format!("{first} {second}\n"))?;
    tokio::select! {
        ended = serving_bare => ended.map_err(|error| failed(&error)),
        ended = serving => ended.map_err(|error| failed(&error)),
    }
}

/// A binder that binds nothing.
#[derive(Clone, Copy)]
struct Nothing;

#[tonic::async_trait]
impl BindService for Nothing {
    type DecideStream = Pin<Box<dyn Stream<Item = Result<v1::DecideResponse, Status>> + Send>>;

    /// One outcome for each message: that of its last decision.
    async fn decide(
        &self,
        request: Request<Streaming<v1::DecideRequest>>,
    ) -> Result<Response<Self::DecideStream>, Status> {
        let answers = request.into_inner().map(|message| {
            let decisions = match message?.message {
                Some(v1::decide_request::Message::Decisions(decisions)) => decisions.decisions,
                Some(v1::decide_request::Message::Open(_)) | None => Vec::new(),
            };
            let outcomes = decisions.last().map(|last| v1::Outcome {
                decision_id: last.decision_id,
                unit_id: last.unit_id,
                revision: last.spec_revision,
                ..v1::Outcome::default()
            });
            let outcomes = v1::Outcomes { outcomes: outcomes.into_iter().collect() };
            Ok(v1::DecideResponse { message: Some(v1::decide_response::Message::Outcomes(outcomes)) })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn evict_running_units(
        &self,
        request: Request<v1::EvictRunningUnitsRequest>,
    ) -> Result<Response<v1::EvictRunningUnitsResponse>, Status> {
        let unit = request.into_inner().evictions.first().map_or(0, |eviction| eviction.unit_id);
        Ok(Response::new(v1::EvictRunningUnitsResponse { revision: unit }))
    }

    async fn move_running_units(
        &self,
        _request: Request<v1::MoveRunningUnitsRequest>,
    ) -> Result<Response<v1::MoveRunningUnitsResponse>, Status> {
        Ok(Response::new(v1::MoveRunningUnitsResponse::default()))
    }

    async fn get_binder_status(
        &self,
        _request: Request<v1::GetBinderStatusRequest>,
    ) -> Result<Response<v1::GetBinderStatusResponse>, Status> {
        Ok(Response::new(v1::GetBinderStatusResponse::default()))
    }
}
