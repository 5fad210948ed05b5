//! The accept loop, and the life of each connection.

use std::{
    convert::Infallible, error::Error as _, io, net::SocketAddr, os::fd::AsRawFd as _, sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::body::Body;
use tower::Service;

use super::{
    connections::{Connections, Place},
    descriptors::{Supply, supply},
    frames::FrameBudget,
    io::Paced,
};
use crate::{
    client::{CONNECTION_WINDOW, STREAM_WINDOW},
    config::ServerConfig,
    idle::relieve,
    metrics::ConnectionMetrics,
    quiet::Quiet,
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
    pub(super) metrics: ConnectionMetrics,
    /// Connections end when their calls have.
    pub(super) stop: CancellationToken,
    /// Connections end at once.
    pub(super) cut: CancellationToken,
    /// A line that a flood must not multiply.
    pub(super) ended: Quiet,
}

impl<S> Serving<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    /// Accepts until `stop`, then waits until every connection has ended.
    pub(super) async fn run(self, listener: TcpListener) {
        let this = Arc::new(self);
        let tasks = TaskTracker::new();
        let warnings = Warnings::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = this.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => this.accepted(stream, address, &tasks, &warnings).await,
                Err(error) => this.failed(&error, &warnings).await,
            }
        }
        // The port is free as soon as nobody new can be served.
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }

    async fn accepted(
        self: &Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        tasks: &TaskTracker,
        warnings: &Warnings,
    ) {
        let supply = supply(stream.as_raw_fd());
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
                drop(stream);
            } else {
                self.spawn(stream, address, tasks);
            }
            self.until_gone(open_before, n_closed).await;
        } else {
            self.spawn(stream, address, tasks);
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

    fn spawn(self: &Arc<Self>, stream: TcpStream, address: SocketAddr, tasks: &TaskTracker) {
        let place = self.connections.add(address);
        let this = Arc::clone(self);
        tasks.spawn(async move {
            let cut = this.cut.clone();
            // However far it is, a cut drops it.
            let _served = cut.run_until_cancelled(this.serve(stream, address, place)).await;
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

    async fn serve(&self, stream: TcpStream, address: SocketAddr, place: Place) {
        let connection = &place.connection;
        // Until the first byte a connection costs its socket and nothing else.
        let mut first = [0];
        let speaks = tokio::select! {
            peeked = tokio::time::timeout(SILENT_MAX, stream.peek(&mut first)) => matches!(peeked, Ok(Ok(1))),
            _ = connection.asked_to_leave() => false,
            () = self.stop.cancelled() => false,
        };
        if !speaks || stream.set_nodelay(true).is_err() {
            return;
        }
        connection.speaks();
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
            let in_a_hurry = tokio::select! {
                ended = &mut http => {
                    if let Err(error) = ended {
                        self.ended(&error, address);
                    }
                    return;
                }
                () = self.stop.cancelled() => {
                    http.as_mut().graceful_shutdown();
                    let _ended = http.await;
                    return;
                }
                in_a_hurry = connection.asked_to_leave() => in_a_hurry,
            };
            // A call may have come meanwhile.
            if connection.is_idle() {
                http.as_mut().graceful_shutdown();
                let time = if in_a_hurry { Duration::ZERO } else { LEAVE_TIME };
                let left = tokio::time::timeout(time, http.as_mut()).await;
                if left.is_ok() || connection.is_idle() {
                    return;
                }
                // A call was under way when the other side was told: it is served, and then the connection ends.
                let _ended = http.await;
                return;
            }
            connection.cancel_close();
        }
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
