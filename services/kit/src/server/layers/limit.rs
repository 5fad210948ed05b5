//! The limit of RPCs at work. Leases, streams that open and ordinary calls have slots of their own, so that no
//! flood of one kind shuts out another; within each, connections share ([`super::super::slots`]).

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::{
    super::{
        connections::{Connection, ConnectionShares},
        slots::{CallSlot, SlotPool},
        unread::UnreadWait,
    },
    LayerFuture, Layered,
    caller::ForwardedFrom,
    message,
};
use crate::{
    client::{MethodShape, shape},
    config::ServerConfig,
    metrics::RpcMetrics,
    status::{self, reason},
};

/// Leases and health have the slots that nobody else may take.
const LEASES: [&str; 2] = ["/godel.v1.MemberService/", "/grpc.health.v1.Health/Check"];
/// Streams whose first message says what they are for; until then they are nothing.
const OPENED_BY_A_MESSAGE: [&str; 4] = [
    "/godel.v1.NodeService/Session",
    "/godel.v1.DispatchService/Attach",
    "/godel.v1.BindService/Decide",
    "/godel.v1.LogService/SendLog",
];

/// Refuses RPCs beyond the limit at once. A slot is taken when the request message is there.
#[derive(Clone)]
pub(in super::super) struct LimitLayer {
    pools: Arc<Pools>,
    retry_after: Duration,
    message_timeout: Duration,
    metrics: RpcMetrics,
}

struct Pools {
    calls: Arc<SlotPool>,
    streams: Arc<SlotPool>,
    leases: Arc<SlotPool>,
    /// Calls whose message has not come.
    waiting: Arc<SlotPool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lease,
    Stream,
    Call,
}

fn kind(path: &str, shape: MethodShape) -> Kind {
    if LEASES.iter().any(|prefix| path.starts_with(prefix)) {
        Kind::Lease
    } else if shape == MethodShape::Unary {
        Kind::Call
    } else {
        Kind::Stream
    }
}

impl LimitLayer {
    pub(in super::super) fn new(config: &ServerConfig, metrics: RpcMetrics) -> Self {
        let pools = Pools {
            calls: SlotPool::new(config.concurrency_limit),
            streams: SlotPool::new(config.concurrency_limit),
            leases: SlotPool::new(config.concurrency_limit),
            waiting: SlotPool::new(config.messages_waiting_max),
        };
        Self {
            pools: Arc::new(pools),
            retry_after: *config.retry_after,
            message_timeout: *config.message_timeout,
            metrics,
        }
    }

    fn at_work(&self, kind: Kind, shares: &ConnectionShares) -> Result<CallSlot, Status> {
        let slot = match kind {
            Kind::Lease => self.pools.leases.take(&shares.leases),
            Kind::Stream => self.pools.streams.take(&shares.streams),
            Kind::Call => self.pools.calls.take(&shares.calls),
        };
        slot.ok_or_else(|| self.refusal("too many requests at once"))
    }

    fn waiting(&self, shares: &ConnectionShares) -> Result<CallSlot, Status> {
        let slot = self.pools.waiting.take(&shares.waiting);
        slot.ok_or_else(|| self.refusal("too many calls without their request message"))
    }

    fn refusal(&self, message: &str) -> Status {
        self.metrics.shed.inc();
        status::resource_exhausted(reason::OVERLOADED, message, self.retry_after)
    }

    /// Serves a call; `inner` is ready.
    async fn serve<S>(self, mut inner: S, request: Request<Body>) -> Result<Response<Body>, Status>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    {
        let path = request.uri().path();
        let shape = shape(path);
        let kind = kind(path, shape);
        let origin = request.extensions().get::<ForwardedFrom>().map(|from| from.0);
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let unknown;
        let shares = match &connection {
            Some(connection) => &connection.shares,
            None => {
                unknown = ConnectionShares::default();
                &unknown
            }
        };
        let (request, slot) = match shape {
            MethodShape::ClientStream => {
                let slot = self.at_work(kind, shares)?;
                let waiting = self.waiting(shares)?;
                let wait = OPENED_BY_A_MESSAGE.contains(&path).then_some(self.message_timeout);
                (request.map(|body| Body::new(message::Opening::new(body, waiting, wait))), slot)
            }
            MethodShape::Unary | MethodShape::ServerStream => {
                let (parts, body) = request.into_parts();
                let body = message::of_call(body, self.message_timeout, &|| self.waiting(shares)).await?;
                (Request::from_parts(parts, body), self.at_work(kind, shares)?)
            }
        };
        let Ok(response) = inner.call(request).await;
        let Some(connection) = &connection else { return Ok(response) };
        // The slot is held until the answer is made.
        let wait = match kind {
            Kind::Lease => UnreadWait::Never,
            Kind::Stream => UnreadWait::ForRoom,
            Kind::Call => UnreadWait::Refuse,
        };
        let counted = connection.unread.reader(origin).counted(response, wait, self.retry_after);
        let counted = counted.await.inspect_err(|_| {
            self.metrics.shed.inc();
        })?;
        drop(slot);
        Ok(counted)
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Layered<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { layer: self.clone(), inner }
    }
}

impl<S> Service<Request<Body>> for Layered<LimitLayer, S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = LayerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> LayerFuture {
        let next = self.inner.clone();
        // The one that is ready.
        let inner = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.serve(inner, request).await.unwrap_or_else(Status::into_http)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_streams_have_slots_of_their_own() {
        let kind = |path: &str| kind(path, shape(path));
        assert_eq!(kind("/godel.v1.MemberService/RenewLease"), Kind::Lease);
        assert_eq!(kind("/grpc.health.v1.Health/Check"), Kind::Lease);
        assert_eq!(kind("/godel.v1.NodeService/Session"), Kind::Stream);
        assert_eq!(kind("/godel.v1.StateService/Watch"), Kind::Stream);
        assert_eq!(kind("/godel.v1.StateService/GetStoreStatus"), Kind::Call);
        assert_eq!(kind("/made.up/Method"), Kind::Call);
        for path in OPENED_BY_A_MESSAGE {
            assert_eq!(shape(path), MethodShape::ClientStream, "{path}");
        }
    }
}
