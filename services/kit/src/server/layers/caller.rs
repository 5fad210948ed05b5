//! By whom a call is judged, and whether that one may make it.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use godel_identity::{caller::Caller, leaves::LeafTimes};
use http::{Request, Response};
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};

use super::{super::connections::Connection, LayerFuture, Layered};
use crate::security::{ServerSecurity, Transport};

/// Puts the [`Caller`] of each call into its extensions, with the [`LeafTimes`] of the leaf that it has shown, or refuses the call. It stands before the slots, so that
/// strangers take none. Without security it does nothing.
#[derive(Clone, Debug)]
pub(in super::super) struct CallerLayer {
    security: Option<ServerSecurity>,
}

impl CallerLayer {
    pub(in super::super) fn new(security: &ServerSecurity) -> Self {
        Self { security: security.speaks_tls().then(|| security.clone()) }
    }
}

impl<S> Layer<S> for CallerLayer {
    type Service = Layered<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { layer: self.clone(), inner }
    }
}

impl<S> Service<Request<Body>> for Layered<CallerLayer, S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = LayerFuture>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = LayerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> LayerFuture {
        let Some(security) = &self.layer.security else { return self.inner.call(request) };
        match judge(security, &request) {
            Ok(caller) => {
                if let Some(times) = leaf_times(&request, &caller) {
                    request.extensions_mut().insert(times);
                }
                request.extensions_mut().insert(caller);
                self.inner.call(request)
            }
            Err(refusal) => Box::pin(std::future::ready(Ok(refusal.into_http()))),
        }
    }
}

/// Whether a call comes over TLS from somebody who has shown nothing.
pub(super) fn is_of_stranger(request: &Request<Body>) -> bool {
    let connection = request.extensions().get::<Arc<Connection>>();
    let has_leaf =
        connection.is_none_or(|connection| *connection.transport() != Transport::Tls { leaf: None });
    !has_leaf && !request.headers().contains_key(http::header::AUTHORIZATION)
}

fn judge(security: &ServerSecurity, request: &Request<Body>) -> Result<Caller, Status> {
    // A call without a connection comes from nobody.
    let transport = request.extensions().get::<Arc<Connection>>().map(|connection| connection.transport());
    let transport = transport.unwrap_or(&Transport::Tls { leaf: None });
    security.judge(transport, request.uri().path(), request.headers())
}

/// When the leaf counts by which `caller` is known; `None`: it is known by something else.
fn leaf_times(request: &Request<Body>, caller: &Caller) -> Option<LeafTimes> {
    match request.extensions().get::<Arc<Connection>>()?.transport() {
        Transport::Tls { leaf: Some(leaf) } if leaf.caller == *caller => Some(leaf.presented.times),
        Transport::Tls { .. } | Transport::PlainText | Transport::Unix => None,
    }
}

/// Whether a call with this end may have been one of a method that does not exist, which its caller was not told.
pub(super) fn is_refusal(code: Option<Code>) -> bool {
    matches!(code, Some(Code::Unauthenticated | Code::PermissionDenied))
}
