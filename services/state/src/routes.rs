//! Three methods that do not go through the generated servers; every other one does.
//!
//! - `Session`: tonic gives every stream two buffers of 8 KiB; with 20,000 sessions that alone would be
//!   320 MiB. Session messages are tens of bytes, so they get small buffers that grow when needed.
//! - `WatchLeader`: the same, since an agent that knows several states has such a stream to each.
//! - `ListRecords`: the answer carries records as they are stored, encoded; the generated server would have
//!   them decoded and encoded again.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use godel_kit::message::RECEIVED_BYTES_MAX;
use godel_proto::{
    codec::{GodelCodec, SmallCodec},
    v1::{
        ListRecordsRequest, SessionRequest, SessionResponse, WatchLeaderRequest, WatchLeaderResponse,
        member_service_server::{MemberService as _, MemberServiceServer},
        node_service_server::{NodeService, NodeServiceServer},
        state_service_server::StateServiceServer,
    },
};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::Codec,
    server::{Grpc, NamedService, ServerStreamingService, StreamingService, UnaryService},
};
use tower::Service;

use crate::{
    leader_watch::LeaderStream,
    members::Members,
    state_service::{RawPage, StateRpc},
};

const LEADER_PATH: &str = "/godel.v1.MemberService/WatchLeader";
const LIST_PATH: &str = "/godel.v1.StateService/ListRecords";
const SESSION_PATH: &str = "/godel.v1.NodeService/Session";

/// The generated server, with `Session` on small buffers.
#[derive(Debug)]
pub(crate) struct NodeServer<T> {
    service: Arc<T>,
    rest: NodeServiceServer<T>,
}

impl<T: NodeService> NodeServer<T> {
    pub(crate) fn new(service: Arc<T>) -> Self {
        Self {
            rest: NodeServiceServer::from_arc(Arc::clone(&service))
                .max_decoding_message_size(RECEIVED_BYTES_MAX),
            service,
        }
    }
}

impl<T> Clone for NodeServer<T> {
    fn clone(&self) -> Self {
        Self { service: Arc::clone(&self.service), rest: self.rest.clone() }
    }
}

impl<T> NamedService for NodeServer<T> {
    const NAME: &'static str = "godel.v1.NodeService";
}

impl<T: NodeService> Service<http::Request<Body>> for NodeServer<T> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != SESSION_PATH {
            return self.rest.call(request);
        }
        let open = OpenSession(Arc::clone(&self.service));
        Box::pin(async move { Ok(limited(SmallCodec::default()).streaming(open, request).await) })
    }
}

/// The generated server, with `WatchLeader` on small buffers.
#[derive(Clone)]
pub(crate) struct MemberServer {
    service: Members,
    rest: MemberServiceServer<Members>,
}

impl MemberServer {
    pub(crate) fn new(service: Members) -> Self {
        let rest = MemberServiceServer::new(service.clone()).max_decoding_message_size(RECEIVED_BYTES_MAX);
        Self { service, rest }
    }
}

impl NamedService for MemberServer {
    const NAME: &'static str = "godel.v1.MemberService";
}

impl Service<http::Request<Body>> for MemberServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != LEADER_PATH {
            return self.rest.call(request);
        }
        let watch = WatchLeader(self.service.clone());
        Box::pin(async move { Ok(limited(SmallCodec::default()).server_streaming(watch, request).await) })
    }
}

/// The generated server, with `ListRecords` answered in encoded records.
#[derive(Clone)]
pub(crate) struct StateServer {
    service: Arc<StateRpc>,
    rest: StateServiceServer<StateRpc>,
}

impl StateServer {
    pub(crate) fn new(service: Arc<StateRpc>) -> Self {
        Self {
            rest: StateServiceServer::from_arc(Arc::clone(&service))
                .max_decoding_message_size(RECEIVED_BYTES_MAX),
            service,
        }
    }
}

impl NamedService for StateServer {
    const NAME: &'static str = "godel.v1.StateService";
}

impl Service<http::Request<Body>> for StateServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != LIST_PATH {
            return self.rest.call(request);
        }
        let list = List(Arc::clone(&self.service));
        Box::pin(async move { Ok(limited(GodelCodec::default()).unary(list, request).await) })
    }
}

/// With the limit that the generated servers have.
fn limited<C: Codec>(codec: C) -> Grpc<C> {
    Grpc::new(codec).apply_max_message_size_config(Some(RECEIVED_BYTES_MAX), None)
}

struct List(Arc<StateRpc>);

impl UnaryService<ListRecordsRequest> for List {
    type Response = RawPage;
    type Future = std::future::Ready<Result<Response<RawPage>, Status>>;

    fn call(&mut self, request: Request<ListRecordsRequest>) -> Self::Future {
        std::future::ready(self.0.raw_page(&request).map(Response::new))
    }
}

struct WatchLeader(Members);

impl ServerStreamingService<WatchLeaderRequest> for WatchLeader {
    type Response = WatchLeaderResponse;
    type ResponseStream = LeaderStream;
    type Future = Pin<Box<dyn Future<Output = Result<Response<LeaderStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<WatchLeaderRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { service.watch_leader(request).await })
    }
}

struct OpenSession<T>(Arc<T>);

impl<T: NodeService> StreamingService<SessionRequest> for OpenSession<T> {
    type Response = SessionResponse;
    type ResponseStream = T::SessionStream;
    type Future = Pin<Box<dyn Future<Output = Result<Response<T::SessionStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<SessionRequest>>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move { service.session(request).await })
    }
}
