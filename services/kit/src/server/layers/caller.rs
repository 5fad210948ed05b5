//! By whom a call is judged, and whether that one may make it.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use godel_identity::{
    caller::{Caller, SOCKET},
    leaves::LeafTimes,
    needs::{Needs, known_path, needs_of},
};
use http::{HeaderMap, Request, Response};
use tonic::{Code, body::Body};
use tower::{Layer, Service};

use super::{
    super::{connections::Connection, forward::FORWARDED, person_streams::PersonStreams},
    LayerFuture, Layered,
};
use crate::{
    client::is_stream_path,
    security::{
        JudgedCall, PersonCall, RefusedCall, ServerSecurity, Transport, logged_method, passed_on_address,
    },
};

/// Puts the [`Caller`] of each call into its extensions, with the [`LeafTimes`] of the leaf that it has shown and the [`ForwardedFrom`] of state, and of a person's call
/// the [`PersonCall`] and the token; or refuses the call. It stands before the slots, so that strangers take none. A person's stream ends with its token.
#[derive(Clone, Debug)]
pub(in super::super) struct CallerLayer {
    security: ServerSecurity,
    streams: Arc<PersonStreams>,
}

/// The client for which state has forwarded a call: the number of its connection there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct ForwardedFrom(pub(in super::super) u64);

impl CallerLayer {
    pub(in super::super) fn new(security: &ServerSecurity, streams: &Arc<PersonStreams>) -> Self {
        Self { security: security.clone(), streams: Arc::clone(streams) }
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
        let JudgedCall { caller, principal, bearer, may_be_forwarded } =
            match judge(&self.layer.security, &request) {
                Ok(judged) => judged,
                Err(refused) => {
                    let (path, address) =
                        (logged_method(request.uri().path()), call_address(&request, refused.is_passed_on()));
                    let refusal = self.layer.security.note_refused(refused, path, &address);
                    return Box::pin(std::future::ready(Ok(refusal.into_http())));
                }
            };
        if let Some(times) = leaf_times(&request, &caller) {
            request.extensions_mut().insert(times);
        }
        if may_be_forwarded && let Some(from) = forwarded_from(request.headers()) {
            request.extensions_mut().insert(from);
        }
        request.extensions_mut().insert(caller);
        if let (Some(principal), Some(path)) = (principal, known_path(request.uri().path())) {
            let origin = self.layer.security.origin(&call_address(&request, may_be_forwarded));
            request.extensions_mut().insert(PersonCall::new(principal, path).with_origin(origin));
        }
        if let Some(bearer) = &bearer {
            request.extensions_mut().insert(Arc::clone(&bearer.token));
        }
        let Some(bearer) = bearer.filter(|_| is_stream_path(request.uri().path())) else {
            return self.inner.call(request);
        };
        let stream = self.layer.streams.open(bearer);
        let answer = self.inner.call(stream.bound_request(request));
        Box::pin(async move { answer.await.map(|answer| stream.bound_answer(answer)) })
    }
}

/// Whether a call comes over TLS from somebody who has shown nothing, or nothing that was looked at.
pub(super) fn is_of_stranger(request: &Request<Body>) -> bool {
    let connection = request.extensions().get::<Arc<Connection>>();
    let has_leaf =
        connection.is_none_or(|connection| *connection.transport() != Transport::Tls { leaf: None });
    let has_token = || request.headers().contains_key(http::header::AUTHORIZATION);
    !has_leaf && (!has_token() || needs_of(request.uri().path()) == Needs::Anyone)
}

fn forwarded_from(headers: &HeaderMap) -> Option<ForwardedFrom> {
    headers.get(FORWARDED)?.to_str().ok()?.parse().ok().map(ForwardedFrom)
}

/// Where a call came from: if state has passed it on, as state says.
pub(in super::super) fn call_address(request: &Request<Body>, is_passed_on: bool) -> String {
    let said = passed_on_address(request.headers()).filter(|_| is_passed_on);
    let own = || {
        let connection = request.extensions().get::<Arc<Connection>>();
        connection.map_or_else(String::new, |connection| match connection.transport() {
            Transport::Unix => SOCKET.to_owned(),
            Transport::Tls { .. } | Transport::PlainText => connection.peer.to_string(),
        })
    };
    said.map_or_else(own, str::to_owned)
}

fn judge(security: &ServerSecurity, request: &Request<Body>) -> Result<JudgedCall, RefusedCall> {
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
