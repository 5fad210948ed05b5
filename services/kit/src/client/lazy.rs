//! Channels that open themselves, and open anew once the client has another leaf.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use godel_pki::leaves::OwnLeaf;
use http::{Request, Response};
use parking_lot::Mutex;
use tonic::{body::Body, transport::channel::ResponseFuture};
use tower::Service;

use crate::security::ClientSecurity;

/// A channel that opens itself. A server judges each call by the leaf that the connection began with, so a client whose leaf was renewed makes
/// its next call over a new connection; streams end on the old one. Cheap to clone, and clones share connections.
#[derive(Clone)]
pub struct LazyChannel {
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
        Self { channel, renewal: None }
    }

    /// One that `open` opens now, and again once the client shows another leaf.
    pub(super) fn renewed(
        security: ClientSecurity,
        open: impl Fn() -> tonic::transport::Channel + Send + Sync + 'static,
    ) -> Self {
        let (own, channel) = (security.own_leaf(), open());
        let latest = Mutex::new(LatestChannel { own: own.clone(), channel: channel.clone() });
        let shared = Arc::new(SharedChannel { security, open: Box::new(open), latest });
        Self { channel, renewal: Some(Renewal { own, shared }) }
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

fn is_same(one: Option<&Arc<OwnLeaf>>, other: Option<&Arc<OwnLeaf>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

impl Service<Request<Body>> for LazyChannel {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if let Some(channel) = self.renewal.as_mut().and_then(Renewal::newer) {
            self.channel = channel;
        }
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        self.channel.call(request)
    }
}

impl fmt::Debug for LazyChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyChannel").finish_non_exhaustive()
    }
}
