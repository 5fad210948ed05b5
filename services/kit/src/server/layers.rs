//! The layers of the stack, outermost first: span, metrics, caller, deadline, limit.
//!
//! They answer with gRPC statuses themselves, so that nothing but a status ever reaches a caller.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Instant;
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};
use tracing::{Instrument as _, field};

mod body;
mod caller;
mod limit;
mod message;
mod words;

pub(super) use self::{
    caller::{CallerLayer, ForwardedFrom, call_address},
    limit::LimitLayer,
    words::{Served, named},
};

use self::body::{CountedBody, code_in};
use super::connections::Connection;
use crate::{
    client::{is_stream_path, request_id_value},
    config::ServerConfig,
    metrics::RpcMetrics,
    telemetry::{CURRENT_REQUEST_ID, REQUEST_ID, new_request_id},
};

type LayerFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Gives every RPC a request id and a span, and answers with the id.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanLayer;

/// Counts RPCs by method and code and times them; says in answers what is not served here.
#[derive(Clone)]
pub(super) struct MetricsLayer {
    metrics: RpcMetrics,
    served: Served,
}

/// Ends RPCs that are not streams at the caller's deadline, within the longest there is, or at the default one.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadlineLayer {
    default: Duration,
    longest: Duration,
}

/// A service under one of the layers.
#[derive(Clone)]
pub(super) struct Layered<L, S> {
    layer: L,
    inner: S,
}

impl MetricsLayer {
    pub(super) fn new(metrics: RpcMetrics, served: Served) -> Self {
        Self { metrics, served }
    }
}

impl DeadlineLayer {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self { default: *config.request_deadline, longest: *config.request_deadline_max }
    }
}

macro_rules! layer {
    ($layer:ident) => {
        impl<S> Layer<S> for $layer {
            type Service = Layered<Self, S>;

            fn layer(&self, inner: S) -> Self::Service {
                Layered { layer: self.clone(), inner }
            }
        }

        impl<S> Service<Request<Body>> for Layered<$layer, S>
        where
            S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
            S::Future: Send + 'static,
        {
            type Response = Response<Body>;
            type Error = Infallible;
            type Future = LayerFuture;

            fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                self.inner.poll_ready(cx)
            }

            fn call(&mut self, request: Request<Body>) -> LayerFuture {
                self.layer.clone().around(request, |request| self.inner.call(request))
            }
        }
    };
}

layer!(SpanLayer);
layer!(MetricsLayer);
layer!(DeadlineLayer);

impl SpanLayer {
    fn around<F>(self, mut request: Request<Body>, call: impl FnOnce(Request<Body>) -> F) -> LayerFuture
    where
        F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    {
        let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
        // An id of a stranger must not fill the logs.
        let id = given.filter(|id| (1..=128).contains(&id.len())).map_or_else(new_request_id, str::to_owned);
        let value = request_id_value(&id);
        if let Some(value) = value.clone() {
            request.headers_mut().insert(REQUEST_ID, value);
        }
        let method = request.uri().path();
        let span = tracing::info_span!(parent: None, "rpc", method, request_id = id, code = field::Empty);
        let answer = span.in_scope(|| call(request));
        let served = async move {
            let mut response = answer.await?;
            if let Some(code) = code_in(response.headers()) {
                tracing::Span::current().record("code", code_name(code));
                if code != Code::Ok {
                    tracing::debug!("rpc refused");
                }
            }
            if let Some(value) = value {
                response.headers_mut().insert(REQUEST_ID, value);
            }
            Ok(response)
        };
        Box::pin(CURRENT_REQUEST_ID.scope(id, served).instrument(span))
    }
}

impl MetricsLayer {
    fn around<F>(self, request: Request<Body>, call: impl FnOnce(Request<Body>) -> F) -> LayerFuture
    where
        F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    {
        let Self { metrics, served } = self;
        let start = Instant::now();
        let method = request.uri().path().to_owned();
        let connection = request.extensions().get::<Arc<Connection>>();
        // What a stranger calls keeps no connection open: those go first when there are too many.
        let open_call = connection.filter(|_| !caller::is_of_stranger(&request)).map(Connection::call);
        let answer = call(request);
        let open = body::CountedCall::new(metrics.clone(), method, open_call);
        Box::pin(async move {
            let mut open = open;
            let response = words::spoken(answer.await?, open.method(), &served);
            open.opened(start.elapsed(), code_in(response.headers()));
            Ok(response.map(|inner| Body::new(CountedBody::new(inner, open))))
        })
    }
}

impl DeadlineLayer {
    fn around<F>(self, request: Request<Body>, call: impl FnOnce(Request<Body>) -> F) -> LayerFuture
    where
        F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    {
        let given = request.headers().get("grpc-timeout").and_then(|value| value.to_str().ok());
        // A little earlier than the caller gives up, so that it gets an answer that says why.
        let given = given.and_then(grpc_timeout).map(|limit| limit - (limit / 16).min(ANSWER_TIME));
        let limit = match given {
            given if is_stream_path(request.uri().path()) => given,
            Some(given) => Some(given.min(self.longest)),
            None => Some(self.default),
        };
        let answer = call(request);
        let Some(limit) = limit else {
            return Box::pin(answer);
        };
        Box::pin(async move {
            match tokio::time::timeout(limit, answer).await {
                Ok(response) => response,
                Err(_elapsed) => Ok(Status::deadline_exceeded("the deadline has passed").into_http()),
            }
        })
    }
}

/// Time for a refusal to reach a caller before its own deadline.
const ANSWER_TIME: Duration = Duration::from_millis(20);

/// `grpc-timeout`: at most eight digits and a unit. `None` when malformed.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The code's name as the gRPC specification spells it.
pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_are_read_as_the_protocol_says() {
        assert_eq!(grpc_timeout("250m"), Some(Duration::from_millis(250)));
        assert_eq!(grpc_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "S", "1", "123456789S", "-1S", "1x", "1µ"] {
            assert_eq!(grpc_timeout(bad), None, "{bad}");
        }
    }
}
