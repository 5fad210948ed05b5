//! Channels that connect on demand, reconnect once the client has another leaf, and pause while the server refuses the leaf. A channel to several
//! states chooses one of them for each call ([`super::states`]).

use std::{
    fmt, future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use godel_identity::{
    names::Role,
    needs::{Needs, needs_of},
};
use godel_pki::leaves::OwnLeaf;
use http::{HeaderMap, Request, Response};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{
    body::Body,
    transport::{Error, channel::ResponseFuture},
};
use tower::Service;

use super::{
    refused::{GateChange, RefusalGate, refusal_in},
    states::States,
};
use crate::security::ClientSecurity;

/// A channel that opens itself. A server judges each call by the leaf that the connection began with, so a client whose leaf was renewed makes
/// its next call over a new connection; streams end on the old one. Cheap to clone, and clones share connections.
#[derive(Clone)]
pub struct LazyChannel(ChannelKind);

#[derive(Clone)]
enum ChannelKind {
    One(ServerChannel),
    Several(States),
}

/// To one server.
#[derive(Clone)]
struct ServerChannel {
    channel: tonic::transport::Channel,
    /// None in plain text, where there is no leaf.
    renewal: Option<Renewal>,
}

#[derive(Clone)]
struct Renewal {
    /// What the connections of the channel show.
    own: Option<Arc<OwnLeaf>>,
    shared: Arc<SharedChannel>,
}

struct SharedChannel {
    security: ClientSecurity,
    /// Role of the server.
    role: Role,
    gate: RefusalGate,
    open: Box<dyn Fn() -> tonic::transport::Channel + Send + Sync>,
    latest: Mutex<LatestChannel>,
}

struct LatestChannel {
    own: Option<Arc<OwnLeaf>>,
    channel: tonic::transport::Channel,
}

impl LazyChannel {
    /// One that stays.
    pub(super) fn fixed(channel: tonic::transport::Channel) -> Self {
        Self(ChannelKind::One(ServerChannel { channel, renewal: None }))
    }

    /// One to several states.
    pub(super) fn of(states: States) -> Self {
        Self(ChannelKind::Several(states))
    }

    /// One that `open` opens now, and again once the client shows another leaf.
    pub(super) fn renewed(
        security: ClientSecurity,
        role: Role,
        open: impl Fn() -> tonic::transport::Channel + Send + Sync + 'static,
    ) -> Self {
        let (own, channel) = (security.own_leaf(), open());
        let latest = Mutex::new(LatestChannel { own: own.clone(), channel: channel.clone() });
        let gate = RefusalGate::default();
        let shared = Arc::new(SharedChannel { security, role, gate, open: Box::new(open), latest });
        Self(ChannelKind::One(ServerChannel { channel, renewal: Some(Renewal { own, shared }) }))
    }
}

impl Renewal {
    /// The channel for the next call, if it is another one.
    fn newer(&mut self) -> Option<tonic::transport::Channel> {
        let own = self.shared.security.own_leaf();
        if is_same(own.as_ref(), self.own.as_ref()) {
            return None;
        }
        let mut latest = self.shared.latest.lock();
        if !is_same(latest.own.as_ref(), own.as_ref()) {
            *latest = LatestChannel { own: own.clone(), channel: (self.shared.open)() };
        }
        self.own = own;
        Some(latest.channel.clone())
    }
}

impl SharedChannel {
    /// Judges an answer to a call that showed `leaf`, and logs if state refuses the leaf or accepts it again.
    fn judge_answer(&self, leaf: &Arc<OwnLeaf>, headers: &HeaderMap) {
        let holder = &leaf.leaf().identity;
        let (change, words) = match refusal_in(headers, holder) {
            Some(words) => (self.gate.note_refusal(leaf, &words, Instant::now()), words),
            None => (self.gate.note_acceptance(leaf), String::new()),
        };
        if self.role != Role::State || change == GateChange::None {
            return;
        }
        let key = holder.key();
        match change {
            GateChange::Closes if self.security.note_refused(Some(leaf)) => tracing::warn!(
                identity = key,
                why = words,
                "state refuses the certificate of this process: to let it in again, run `godel identity allow {key}` and restart it with a new join \
                 token (`--join-file`); until then it asks about once a minute"
            ),
            GateChange::Opens if self.security.note_refused(None) => {
                tracing::info!(identity = key, "state accepts the certificate of this process again");
            }
            GateChange::Closes | GateChange::Opens | GateChange::None => {}
        }
    }
}

/// The answer to a call.
pub enum ChannelFuture {
    /// From a server that does not judge the leaf of this client.
    Open(ResponseFuture),
    /// From a server that judges the leaf of this client.
    Judged(JudgedAnswer),
    /// Local: the server refused the leaf before.
    Refused(Box<future::Ready<Response<Body>>>),
    /// From one of several states.
    Chosen(Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>),
}

/// The answer of a server that judges the leaf of this client.
pub struct JudgedAnswer {
    answer: ResponseFuture,
    leaf: Arc<OwnLeaf>,
    shared: Arc<SharedChannel>,
}

impl Future for ChannelFuture {
    type Output = Result<Response<Body>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Open(answer) => Pin::new(answer).poll(cx),
            Self::Judged(JudgedAnswer { answer, leaf, shared }) => {
                let answer = ready!(Pin::new(answer).poll(cx));
                if let Ok(answer) = &answer {
                    shared.judge_answer(leaf, answer.headers());
                }
                Poll::Ready(answer)
            }
            Self::Refused(answer) => Pin::new(answer.as_mut()).poll(cx).map(Ok),
            Self::Chosen(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for ChannelFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelFuture").finish_non_exhaustive()
    }
}

fn is_same(one: Option<&Arc<OwnLeaf>>, other: Option<&Arc<OwnLeaf>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

impl Service<Request<Body>> for LazyChannel {
    type Response = Response<Body>;
    type Error = Error;
    type Future = ChannelFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match &mut self.0 {
            ChannelKind::One(server) => server.poll_ready(cx),
            // The one that is chosen is waited for in the call.
            ChannelKind::Several(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<Body>) -> ChannelFuture {
        match &mut self.0 {
            ChannelKind::One(server) => server.call(request),
            ChannelKind::Several(states) => ChannelFuture::Chosen(Box::pin(states.clone().call(request))),
        }
    }
}

impl ServerChannel {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(channel) = self.renewal.as_mut().and_then(Renewal::newer) {
            self.channel = channel;
        }
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> ChannelFuture {
        let judging = self.renewal.as_ref().and_then(|renewal| Some((renewal.own.clone()?, &renewal.shared)));
        // Calls that need no identity are answered although the leaf is refused.
        let judging = judging.filter(|_| needs_of(request.uri().path()) != Needs::Anyone);
        let Some((leaf, shared)) = judging else { return ChannelFuture::Open(self.channel.call(request)) };
        if let Err(refusal) = shared.gate.pass(&leaf, Instant::now()) {
            return ChannelFuture::Refused(Box::new(future::ready(refusal.into_http())));
        }
        let shared = Arc::clone(shared);
        ChannelFuture::Judged(JudgedAnswer { answer: self.channel.call(request), leaf, shared })
    }
}

impl fmt::Debug for LazyChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyChannel").finish_non_exhaustive()
    }
}
