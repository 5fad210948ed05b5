//! The accept loop, and the life of each connection.

mod handshake;

use std::{
    convert::Infallible, error::Error as _, io, net::SocketAddr, os::fd::AsRawFd as _, pin::Pin, sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::body::Body;
use tower::Service;

use super::{
    connections::{Connection, Connections, Leave, Place},
    descriptors::{Supply, supply},
    frames::FrameBudget,
    handshakes::Handshakes,
    io::Paced,
    listeners::{Listeners, Origin, Socket},
};
use crate::{
    client::{CONNECTION_WINDOW, STREAM_WINDOW},
    config::ServerConfig,
    idle::relieve,
    metrics::ConnectionMetrics,
    quiet::Quiet,
    tls::ByteStream,
};

/// Pause after an accept that failed for want of descriptors or memory.
const FAILED_PAUSE: Duration = Duration::from_millis(100);
/// Time for connections that were asked to leave to do so, before the next one is accepted.
const RELIEF_PAUSE: Duration = Duration::from_millis(1);
const RELIEF_PAUSES_MAX: usize = 20;
/// Time for a connection without calls to end in good order.
const LEAVE_TIME: Duration = Duration::from_secs(1);
/// A connection that has not sent a byte by then is no client.
const SILENT_MAX: Duration = Duration::from_secs(10);

/// What each connection is served with.
pub(super) struct Serving<S> {
    pub(super) service: S,
    pub(super) config: ServerConfig,
    pub(super) connections: Arc<Connections>,
    pub(super) handshakes: Arc<Handshakes>,
    pub(super) metrics: ConnectionMetrics,
    /// Connections end when their calls have.
    pub(super) stop: CancellationToken,
    /// Connections end at once.
    pub(super) cut: CancellationToken,
    /// Lines that a flood must not multiply.
    pub(super) ended: Quiet,
    pub(super) strange: Quiet,
}

impl<S> Serving<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    /// Accepts until `stop`, then waits until every connection has ended.
    pub(super) async fn run(self, mut listeners: Listeners) {
        let this = Arc::new(self);
        let tasks = TaskTracker::new();
        let warnings = Warnings::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = this.stop.cancelled() => break,
                accepted = listeners.accept() => accepted,
            };
            match accepted {
                Ok((socket, origin)) => this.accepted(socket, origin, &tasks, &warnings).await,
                Err(error) => this.failed(&error, &warnings).await,
            }
        }
        // The ports are free as soon as nobody new can be served.
        drop(listeners);
        tasks.close();
        tasks.wait().await;
    }

    async fn accepted(
        self: &Arc<Self>,
        socket: Socket,
        origin: Origin,
        tasks: &TaskTracker,
        warnings: &Warnings,
    ) {
        let supply = supply(socket.as_raw_fd());
        if supply != Supply::Enough {
            let open_before = self.metrics.open.get();
            let n_closed = relieve();
            if warnings.short.may_speak() {
                tracing::warn!(
                    n_closed,
                    "file descriptors run short: connections without an open call are closed; raise `ulimit -n`"
                );
            }
            if supply == Supply::Out {
                self.metrics.refused.inc();
                drop(socket);
            } else {
                self.spawn(socket, origin, tasks);
            }
            self.until_gone(open_before, n_closed).await;
        } else {
            self.spawn(socket, origin, tasks);
        }
    }

    /// Waits a little until most of those that were asked to leave have: the next connection needs their room.
    async fn until_gone(&self, open_before: i64, n_closed: usize) {
        let enough = open_before - i64::try_from(n_closed / 2).unwrap_or(i64::MAX);
        for _ in 0..RELIEF_PAUSES_MAX {
            tokio::time::sleep(RELIEF_PAUSE).await;
            if self.metrics.open.get() <= enough {
                return;
            }
        }
    }

    fn spawn(self: &Arc<Self>, socket: Socket, origin: Origin, tasks: &TaskTracker) {
        let place = self.connections.add(origin);
        let this = Arc::clone(self);
        tasks.spawn(async move {
            let cut = this.cut.clone();
            // However far it is, a cut drops it.
            let _served = cut.run_until_cancelled(this.serve(socket, place)).await;
        });
    }

    async fn failed(&self, error: &io::Error, warnings: &Warnings) {
        if is_of_one_connection(error) {
            return;
        }
        self.metrics.accept_errors.inc();
        let n_closed = relieve();
        if warnings.failed.may_speak() {
            tracing::warn!(%error, n_closed, "cannot accept connections; those without an open call are closed");
        }
        tokio::time::sleep(FAILED_PAUSE).await;
    }

    /// Says of a connection that sent what it must not that it did, once in a while.
    fn ended(&self, error: &hyper::Error, address: SocketAddr) {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
        if cause.and_then(h2::Error::reason) != Some(h2::Reason::ENHANCE_YOUR_CALM) {
            tracing::debug!(%error, "a connection failed");
            return;
        }
        self.metrics.ended.inc();
        if self.ended.may_speak() {
            tracing::warn!(%address, "ended a connection that reset its calls at once, or flooded");
        }
    }

    async fn serve(&self, socket: Socket, place: Place) {
        let connection = &place.connection;
        // Until the first byte a connection costs its socket and nothing else.
        let first = tokio::select! {
            first = tokio::time::timeout(SILENT_MAX, socket.first_byte()) => first.ok().flatten(),
            _ = connection.asked_to_leave() => None,
            () = self.stop.cancelled() => None,
        };
        let Some(first) = first else { return };
        let Some(stream) = self.opened(socket, first, connection).await else { return };
        connection.speaks();
        let _plain_text = self.count_plain_text(&stream);
        let ServerConfig { calls_per_second, frames_per_second, .. } = self.config;
        let budget = FrameBudget::new(calls_per_second, frames_per_second, Instant::now());
        let io = TokioIo::new(Paced::new(stream, Arc::clone(connection), budget));
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Arc::clone(connection));
            self.service.clone().call(request)
        });
        let mut http = std::pin::pin!(self.builder().serve_connection(io, service));
        loop {
            let leave = tokio::select! {
                ended = &mut http => {
                    if let Err(error) = ended {
                        self.ended(&error, connection.peer);
                    }
                    return;
                }
                () = self.stop.cancelled() => {
                    http.as_mut().graceful_shutdown();
                    return until_ended(http.as_mut(), connection).await;
                }
                leave = connection.asked_to_leave() => leave,
            };
            let time = match leave {
                Leave::Revoked => return,
                Leave::Idle => LEAVE_TIME,
                Leave::InAHurry => Duration::ZERO,
            };
            // A call may have come meanwhile.
            if connection.is_idle() {
                http.as_mut().graceful_shutdown();
                let left = tokio::time::timeout(time, http.as_mut()).await;
                if left.is_ok() || connection.is_idle() {
                    return;
                }
                // A call was under way when the other side was told: it is served, and then the connection ends.
                return until_ended(http.as_mut(), connection).await;
            }
            connection.cancel_close();
        }
    }

    /// Counts a connection in plain text over TCP for as long as what it returns is kept.
    fn count_plain_text(&self, stream: &ByteStream) -> Option<OnePlainText<'_>> {
        matches!(stream, ByteStream::Tcp(_)).then(|| {
            self.metrics.plain_text.inc();
            OnePlainText(&self.metrics)
        })
    }

    fn builder(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(self.config.max_concurrent_streams)
            // Streams that were reset before they were accepted: h2's own bound. Sessions that are dropped all at
            // once do not count, they were accepted long ago.
            .max_pending_accept_reset_streams(None)
            .keep_alive_interval(Some(*self.config.keepalive_interval))
            .keep_alive_timeout(*self.config.keepalive_timeout);
        builder
    }
}

/// Waits until a connection that takes no further calls has ended, or its leaf counts no more.
async fn until_ended<H: Future>(mut http: Pin<&mut H>, connection: &Connection) {
    loop {
        tokio::select! {
            _ended = http.as_mut() => return,
            leave = connection.asked_to_leave() => {
                if leave == Leave::Revoked {
                    return;
                }
            }
        }
    }
}

/// A connection in plain text, while it is served.
struct OnePlainText<'a>(&'a ConnectionMetrics);

impl Drop for OnePlainText<'_> {
    fn drop(&mut self) {
        self.0.plain_text.dec();
    }
}

/// Lines that a flood must not multiply.
#[derive(Default)]
struct Warnings {
    short: Quiet,
    failed: Quiet,
}

/// Whether the next accept may go well all the same.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted | Kind::ConnectionReset | Kind::Interrupted | Kind::WouldBlock
    )
}
