//! Calls that another member answers: passed on as bytes, in both directions, and never decoded.
//!
//! A forwarded call has passed all layers of this server: it has a deadline, a request id and a slot, and it counts in the
//! metrics. It holds a further slot until its answer has ended, because the answer takes memory until the caller has read it.
//! What a caller does not read stays with the member by HTTP/2 flow control; each stream has a window of its own, so that
//! one slow reader holds up nobody else.
//!
//! A server with security says in headers by whom a call is judged ([`CALLER_HEADER`]), what a person may do ([`PRINCIPAL_HEADER`]), and where the call came from
//! ([`ADDRESS_HEADER`]). They count because
//! the leaf of the connection is one of role `state`, as [`FORWARDED`] does; a token that came with the call goes no further.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use godel_identity::{
    caller::{ADDRESS_HEADER, CALLER_HEADER, Caller, PRINCIPAL_HEADER},
    names::Role,
    permission::PrincipalTerms,
};
use godel_membership::front_door::{Forwarding, SERVICES, ServingPart, forwarding};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response,
    header::{AUTHORIZATION, HOST},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service, ServiceExt as _};

use super::{
    connections::Connection,
    layers::{call_address, named},
    slots::{CallSlot, SlotPool, SlotShare},
};
use crate::{
    client::{KnownChannels, LazyChannel, MethodShape, connect_lazily, is_known, leaf_status_in, shape},
    config::{ClientConfig, ServerConfig},
    security::{ExpectedServer, PersonCall, expected_scheduler},
    status::{self, OUTCOME, OUTCOME_UNKNOWN, reason, with_info},
};

/// Header with the name of the scheduler that a call is for.
pub const SCHEDULER: &str = "godel-scheduler";
/// Header of calls that were forwarded, with the number of the connection on which they came: nobody forwards them again.
pub const FORWARDED: &str = "godel-forwarded";

/// Bytes of one answer that are under way to this server.
const WINDOW: u32 = 128 << 10;
/// Bytes of all answers of one member that are under way: more than there are windows, so that no stream waits for another.
const WINDOW_OF_ALL: u32 = 1 << 30;
/// Members whose connections are kept.
const N_CHANNELS_MAX: usize = 64;

/// Says where calls go.
pub trait ForwardTo: Send + Sync + 'static {
    /// The address of the member of `part` that answers; of schedulers the one called `scheduler`, if a name is given.
    ///
    /// # Errors
    /// There is none now.
    fn address(&self, part: ServingPart, scheduler: Option<&str>) -> Result<String, Status>;

    /// What becomes of a call of `path`.
    fn forwarding(&self, path: &str) -> Forwarding {
        forwarding(path)
    }

    /// Ends once calls that went to the address of `part` before are to end, because another member is to answer them; `None`: never.
    fn moved(&self, _part: ServingPart) -> Option<Moved> {
        None
    }

    /// What a call of `path` waits for that is answered here; `None`: nothing.
    fn admit(&self, _path: &str, _headers: &HeaderMap) -> Option<Admission> {
        None
    }
}

/// Ends once another member is to answer.
pub type Moved = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Ends once a call may be answered, with headers for the answer, or with why it may not.
pub type Admission = Pin<Box<dyn Future<Output = Result<HeaderMap, Status>> + Send>>;

/// Services of other members.
pub(super) fn services() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().filter(|(_, part)| *part != ServingPart::State).map(|(name, _)| *name)
}

/// What calls are forwarded with.
pub(super) struct Forwarded {
    to: Arc<dyn ForwardTo>,
    client: ClientConfig,
    channels: KnownChannels<LazyChannel>,
    calls: Arc<SlotPool>,
    streams: Arc<SlotPool>,
    retry_after: Duration,
}

impl Forwarded {
    pub(super) fn new(to: Arc<dyn ForwardTo>, n_max: usize, config: &ServerConfig) -> Self {
        Self {
            to,
            client: ClientConfig { security: config.security.forwards(), ..ClientConfig::default() },
            channels: KnownChannels::new(N_CHANNELS_MAX, config.security.forwards()),
            calls: SlotPool::new(n_max),
            streams: SlotPool::new(n_max),
            retry_after: *config.retry_after,
        }
    }

    async fn forward(&self, part: ServingPart, mut request: Request<Body>) -> Result<Response<Body>, Status> {
        let shape = shape(request.uri().path());
        if request.headers().contains_key(FORWARDED) && part == ServingPart::State {
            // The state that forwarded it took this one for the leader.
            return Err(status::not_leader(self.to.address(part, None).ok().as_deref()));
        }
        if request.headers().contains_key(FORWARDED) {
            let message = "the call was forwarded already; a member is registered with the address of state";
            return Err(Status::internal(message));
        }
        let connection = request.extensions().get::<Arc<Connection>>();
        // The member shares out its room over the clients of this server.
        let origin = HeaderValue::from(connection.map_or(0, |connection| connection.number));
        let slot = self.slot(shape, connection)?;
        let scheduler = scheduler(request.headers())?;
        // First, so that no change is missed.
        let mut moved = self.to.moved(part);
        let address = self.to.address(part, scheduler)?;
        let expected = match scheduler {
            Some(name) => expected_scheduler(name),
            None => ExpectedServer::any_of(role_of(part)),
        };
        let unreachable = |status| unreachable(part, &address, status);
        let channel = self.channel(shape, &address, &expected).map_err(unreachable)?;
        // Without security nobody would believe it.
        let caller = request.extensions().get::<Caller>().filter(|_| self.client.security.speaks_tls());
        let named = caller.map(|caller| in_header(caller, caller)).transpose()?;
        let principal = request.extensions().get::<PersonCall>().and_then(PersonCall::principal);
        let principal = principal.filter(|_| named.is_some());
        let terms = principal.map(|principal| in_header(&PrincipalTerms(principal), &principal.name));
        let terms = terms.transpose()?;
        let came_from =
            HeaderValue::from_str(&call_address(&request, false)).ok().filter(|_| named.is_some());
        let headers = request.headers_mut();
        headers.insert(HeaderName::from_static(FORWARDED), origin);
        headers.remove(HOST);
        headers.remove(CALLER_HEADER);
        headers.remove(PRINCIPAL_HEADER);
        headers.remove(ADDRESS_HEADER);
        if let Some(came_from) = came_from {
            headers.insert(HeaderName::from_static(ADDRESS_HEADER), came_from);
        }
        if let Some(terms) = terms {
            headers.insert(HeaderName::from_static(PRINCIPAL_HEADER), terms);
        }
        if let Some(named) = named {
            headers.remove(AUTHORIZATION);
            headers.insert(HeaderName::from_static(CALLER_HEADER), named);
        }
        // Those of the connection to this server mean nothing to the next one.
        *request.extensions_mut() = http::Extensions::new();
        let answer = match &mut moved {
            None => channel.oneshot(request).await,
            Some(moved) => tokio::select! {
                answer = channel.oneshot(request) => answer,
                () = moved => return Err(replaced(part, &address)),
            },
        };
        let answer = answer.map_err(|error| unreachable(Status::from_error(Box::new(error))))?;
        if let Some(refusal) = self.own_refusal(answer.headers()) {
            return Err(refused_state(part, &address, &refusal));
        }
        Ok(answer.map(|inner| Body::new(ForwardedBody { inner, part, address, moved, _slot: slot })))
    }

    /// Returns the refusal of a member that does not accept the leaf of this server, because it has expired or was revoked. The caller is not
    /// at fault.
    fn own_refusal(&self, answer: &HeaderMap) -> Option<Status> {
        let own = self.client.security.own_leaf()?;
        leaf_status_in(answer, &own.leaf().identity)
    }

    fn slot(&self, shape: MethodShape, connection: Option<&Arc<Connection>>) -> Result<CallSlot, Status> {
        let unknown = SlotShare::default();
        let (pool, share) = match shape {
            MethodShape::Unary => (&self.calls, connection.map(|from| &from.shares.forwarded_calls)),
            MethodShape::ServerStream | MethodShape::ClientStream => {
                (&self.streams, connection.map(|from| &from.shares.forwarded_streams))
            }
        };
        pool.take(share.unwrap_or(&unknown)).ok_or_else(|| {
            let message = "too many forwarded calls at once";
            status::resource_exhausted(reason::OVERLOADED, message, self.retry_after)
        })
    }

    /// The connection for a call. A stream of the caller's has its own: a member that stops reading it fills the window of
    /// its connection, and would hold up all others.
    fn channel(
        &self,
        shape: MethodShape,
        address: &str,
        expected: &ExpectedServer,
    ) -> Result<LazyChannel, Status> {
        if shape == MethodShape::ClientStream {
            return self.connection(address, expected);
        }
        self.channels.get_or_open(expected, address, || self.connection(address, expected))
    }

    fn connection(&self, address: &str, expected: &ExpectedServer) -> Result<LazyChannel, Status> {
        let opened = connect_lazily(address, expected, &self.client, |endpoint| {
            endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW_OF_ALL)
        });
        Ok(opened?.channel)
    }
}

/// The role of the members of a part.
fn role_of(part: ServingPart) -> Role {
    match part {
        ServingPart::State => Role::State,
        ServingPart::Dispatcher => Role::Dispatcher,
        ServingPart::Binder => Role::Binder,
        ServingPart::Scheduler => Role::Scheduler,
        ServingPart::Yarn => Role::Yarn,
        ServingPart::Rescheduler => Role::Rescheduler,
    }
}

fn in_header(value: &impl std::fmt::Display, caller: &impl std::fmt::Display) -> Result<HeaderValue, Status> {
    let value = HeaderValue::from_str(&value.to_string());
    value.map_err(|_| Status::internal(format!("the caller {caller} cannot be named in a header")))
}

/// The scheduler that the caller names.
fn scheduler(headers: &HeaderMap) -> Result<Option<&str>, Status> {
    let Some(value) = headers.get(SCHEDULER) else { return Ok(None) };
    let name =
        value.to_str().map_err(|_| Status::invalid_argument(format!("header {SCHEDULER}: is no text")))?;
    Ok(Some(name))
}

/// What a caller hears of a member that did not answer, or not to the end: the call may be made again. If the member may
/// have done what was asked for, the details say that the outcome is not known.
fn unreachable(part: ServingPart, address: &str, status: Status) -> Status {
    let message = format!("{} at {address} does not answer: {}", named(part), status.message());
    // A member that was never reached has done nothing.
    let outcome = (status.code() != Code::Unavailable).then_some((OUTCOME, OUTCOME_UNKNOWN));
    let metadata = [("address", address)].into_iter().chain(outcome);
    with_info(Code::Unavailable, reason::UNREACHABLE, message, metadata)
}

/// What a caller hears of a member in whose place another one answers now. It may have done what was asked for.
fn replaced(part: ServingPart, address: &str) -> Status {
    unreachable(part, address, Status::aborted("another one has taken its place"))
}

/// Returns the error for a call that a member refused because it does not accept the leaf of state. The member has done nothing, and the
/// caller may retry: state renews its leaf by itself.
fn refused_state(part: ServingPart, address: &str, refusal: &Status) -> Status {
    let message = format!("{} at {address} refuses the call of state: {}", named(part), refusal.message());
    with_info(Code::Unavailable, reason::UNREACHABLE, message, [("address", address)])
}

/// The answer of a member. If it breaks off, the caller gets a status all the same.
struct ForwardedBody {
    inner: Body,
    part: ServingPart,
    address: String,
    moved: Option<Moved>,
    _slot: CallSlot,
}

impl ForwardedBody {
    /// Ends the answer with a status.
    fn end(&mut self, status: &Status) -> Option<Result<Frame<Bytes>, Status>> {
        self.inner = Body::empty();
        self.moved = None;
        let mut trailers = HeaderMap::new();
        let written = status.add_header(&mut trailers);
        Some(written.map(|()| Frame::trailers(trailers)))
    }
}

impl HttpBody for ForwardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(moved) = &mut this.moved
            && moved.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(this.end(&replaced(this.part, &this.address)));
        }
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Err(broken))) => {
                Poll::Ready(this.end(&unreachable(this.part, &this.address, broken)))
            }
            answered => answered,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Forwards calls before the services of this server see them.
#[derive(Clone)]
pub(super) struct ForwardLayer(Option<Arc<Forwarded>>);

impl ForwardLayer {
    pub(super) fn new(forwarded: Option<Forwarded>) -> Self {
        Self(forwarded.map(Arc::new))
    }
}

impl<S> Layer<S> for ForwardLayer {
    type Service = Forwarder<S>;

    fn layer(&self, inner: S) -> Forwarder<S> {
        Forwarder { forwarded: self.0.clone(), inner }
    }
}

/// A service under the layer.
#[derive(Clone)]
pub(super) struct Forwarder<S> {
    forwarded: Option<Arc<Forwarded>>,
    inner: S,
}

type ForwardFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S> Service<Request<Body>> for Forwarder<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ForwardFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> ForwardFuture {
        // Nobody's made-up path goes any further.
        let Some(forwarded) = self.forwarded.as_ref().filter(|_| is_known(request.uri().path())) else {
            return Box::pin(self.inner.call(request));
        };
        match forwarded.to.forwarding(request.uri().path()) {
            Forwarding::Here => {
                let Some(admission) = forwarded.to.admit(request.uri().path(), request.headers()) else {
                    return Box::pin(self.inner.call(request));
                };
                let ready = self.inner.clone();
                let mut inner = std::mem::replace(&mut self.inner, ready);
                Box::pin(async move {
                    let headers = match admission.await {
                        Ok(headers) => headers,
                        Err(refusal) => return Ok(refusal.into_http()),
                    };
                    let mut answer = inner.call(request).await?;
                    answer.headers_mut().extend(headers);
                    Ok(answer)
                })
            }
            Forwarding::Refused(part) => {
                let message = format!(
                    "{} is a call between members, which state does not forward; call {}, whose address \
                     MemberService/ListMembers returns",
                    request.uri().path().trim_start_matches('/'),
                    named(part)
                );
                Box::pin(async move { Ok(Status::unimplemented(message).into_http()) })
            }
            Forwarding::To(part) => {
                let forwarded = Arc::clone(forwarded);
                Box::pin(async move {
                    Ok(forwarded.forward(part, request).await.unwrap_or_else(Status::into_http))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_dies_while_it_works_leaves_the_outcome_open_and_is_unavailable() {
        let said = |status| unreachable(ServingPart::Dispatcher, "http://127.0.0.1:7701", status);
        for broken in
            [Status::unknown("h2 protocol error"), Status::cancelled("gone"), Status::internal("io")]
        {
            let status = said(broken);
            assert_eq!(status.code(), Code::Unavailable);
            assert!(!status::is_retryable(&status) && status::is_retryable_idempotent(&status));
        }
        let status = said(Status::unavailable("connection refused"));
        assert!(status::is_retryable(&status) && status::has_reason(&status, reason::UNREACHABLE));
    }
}
