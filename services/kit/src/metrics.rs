//! Prometheus metrics: one registry per service, shown on `/metrics`, with `/healthz` beside it.

mod listen;
mod opening;
mod process;

use std::{fmt, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{
        HeaderMap, Method, StatusCode, Uri,
        header::{CONTENT_TYPE, ORIGIN, WWW_AUTHENTICATE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use godel_identity::needs::page_of;
pub use listen::{Few, hold};
pub use opening::GuestTransport;
use parking_lot::Mutex;
pub use prometheus_client;
use prometheus_client::{
    encoding::{
        EncodeLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
        info::Info,
    },
    registry::{Metric, Registry},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{VERSION, security::ServerSecurity, server::ServerError};

/// Name of the counter by which a member says how many connections in plain text are open.
pub const PLAIN_TEXT_COUNTER: &str = "plain_text_connections";

/// The metrics of one service. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    /// What is not called `godel_…`.
    common: Arc<Registry>,
    rpc: RpcMetrics,
    connections: ConnectionMetrics,
    judge: Arc<Mutex<Judge>>,
    posts: Arc<Mutex<Option<Arc<Poster>>>>,
}

/// What somebody posts to the listener of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// The path of the request.
    pub path: String,
    /// Whether it says of which page it is, as browsers do.
    pub has_origin: bool,
}

/// The status of an answer to a post, and its text.
pub type PostAnswer = (u16, String);

/// Answers posts.
type Poster = dyn Fn(Post) -> Pin<Box<dyn Future<Output = PostAnswer> + Send>> + Send + Sync;

/// Says whether a service can do its work, and if not, why.
type Judge = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Counters of the connections of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionMetrics {
    pub(crate) open: Gauge,
    pub(crate) closed_idle: Counter,
    pub(crate) closed_short: Counter,
    pub(crate) refused: Counter,
    pub(crate) slowed: Counter,
    pub(crate) ended: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) answers_cut: Counter,
    /// Of those that are open, in plain text over TCP.
    pub(crate) plain_text: Gauge,
    pub(crate) plain_text_refused: Counter,
    pub(crate) tls_refused: Counter,
    pub(crate) handshakes_failed: Counter,
    pub(crate) handshakes_ended: Counter,
    pub(crate) revoked: Counter,
}

impl ConnectionMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Connections open now", self.open.clone());
        let help = "Connections closed because they were idle for too long, or too many of one address";
        registry.register("connections_closed_idle", help, self.closed_idle.clone());
        let help = "Idle connections closed because file descriptors ran short";
        registry.register("connections_closed_short", help, self.closed_short.clone());
        let help = "Connections refused because file descriptors ran short";
        registry.register("connections_refused", help, self.refused.clone());
        let help = "Connections slowed down because they sent too many calls or frames";
        registry.register("connections_slowed", help, self.slowed.clone());
        let help = "Connections ended because they reset calls at once or flooded frames";
        registry.register("connections_ended", help, self.ended.clone());
        let help = "Answers cut because nobody read them while others waited for room";
        registry.register("answers_cut", help, self.answers_cut.clone());
        registry.register(
            "accept_errors",
            "Connections that could not be accepted",
            self.accept_errors.clone(),
        );
        let help = "Connections open now in plain text over TCP, which have sent something";
        registry.register("connections_plain_text", help, self.plain_text.clone());
        let help = "Connections refused because they came in plain text to a port with TLS";
        registry.register("connections_plain_text_refused", help, self.plain_text_refused.clone());
        let help = "Connections refused because they came with TLS to a port without";
        registry.register("connections_tls_refused", help, self.tls_refused.clone());
        let help = "TLS handshakes that failed, as with a certificate of another cluster";
        registry.register("handshakes_failed", help, self.handshakes_failed.clone());
        let help = "TLS handshakes that were ended because they took too long";
        registry.register("handshakes_ended", help, self.handshakes_ended.clone());
        let help = "Connections ended because their certificate was revoked or replaced";
        registry.register("connections_revoked", help, self.revoked.clone());
    }
}

/// Labels of finished RPCs.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RpcLabels {
    pub(crate) method: String,
    pub(crate) code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct MethodLabels {
    pub(crate) method: String,
}

#[derive(Clone)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        duration_histogram()
    }
}

/// Counters of the RPC layer.
#[derive(Clone)]
pub(crate) struct RpcMetrics {
    finished: Family<RpcLabels, Counter>,
    seconds: Family<MethodLabels, Histogram, Seconds>,
    pub(crate) in_flight: Gauge,
    pub(crate) shed: Counter,
}

impl RpcMetrics {
    pub(crate) fn finish(&self, method: &str, code: &'static str) {
        self.finished.get_or_create(&RpcLabels { method: method.to_owned(), code }).inc();
    }

    pub(crate) fn took(&self, method: &str, duration: Duration) {
        self.seconds
            .get_or_create(&MethodLabels { method: method.to_owned() })
            .observe(duration.as_secs_f64());
    }
}

/// A histogram of seconds from 100 µs to 13 s, doubling.
pub fn duration_histogram() -> Histogram {
    Histogram::new((0..18).map(|power| 1e-4 * f64::from(1u32 << power)))
}

/// A histogram of seconds from 1 ms to 4.5 hours, for what waits.
pub fn wait_histogram() -> Histogram {
    Histogram::new((0..25).map(|power| 1e-3 * f64::from(1u32 << power)))
}

/// Declares the metrics of a service, each by its field, its kind, its name, its help and, unless that is the default, its
/// value. Clones of the struct share the metrics, and `new` registers them in their order.
///
/// ```
/// use godel_kit::metrics::{Metrics, duration_histogram, prometheus_client::metrics::{counter::Counter, histogram::Histogram}};
///
/// godel_kit::metrics! {
///     /// What a kettle counts.
///     pub struct KettleMetrics {
///         pub boils: Counter = "kettle_boils", "Times that the water boiled";
///         pub wait: Histogram = "kettle_wait_seconds", "Time to the boil", duration_histogram();
///     }
/// }
/// let registry = Metrics::new("kettle");
/// KettleMetrics::new(&registry).boils.inc();
/// assert!(registry.encode().contains("godel_kettle_boils_total{service=\"kettle\"} 1"));
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident {
            $($field_vis:vis $field:ident : $kind:ty = $metric:literal, $help:literal $(, $value:expr)?;)*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($field_vis $field: $kind,)*
        }

        impl $name {
            $vis fn new(metrics: &$crate::metrics::Metrics) -> Self {
                Self {
                    $($field: metrics.register($metric, $help, $crate::metrics!(@value $($value)?)),)*
                }
            }
        }
    };
    (@value) => { Default::default() };
    (@value $value:expr) => { $value };
}

impl Metrics {
    /// A registry with the metrics that every service has. Every metric is called `godel_…`, those of the process
    /// `process_…`, and has the label `service`.
    pub fn new(service: &str) -> Self {
        Self::with_labels(service, [])
    }

    /// Like [`Metrics::new`] with further labels, as the name of a scheduler.
    pub fn with_labels<'a>(service: &'a str, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let labels = [("service", service)].into_iter().chain(labels);
        let labels: Vec<_> =
            labels.map(|(key, value)| (key.to_owned().into(), value.to_owned().into())).collect();
        let mut common = Registry::with_labels(labels.clone().into_iter());
        process::register(&mut common);
        let mut registry = Registry::with_prefix_and_labels("godel", labels.into_iter());
        registry.register("build", "Version of godel", Info::new([("version", VERSION)]));
        let rpc = RpcMetrics {
            finished: Family::default(),
            seconds: Family::new_with_constructor(Seconds),
            in_flight: Gauge::default(),
            shed: Counter::default(),
        };
        registry.register("rpc_finished", "Finished RPCs by method and code", rpc.finished.clone());
        let help = "Time to the answer, or to the opening of a stream";
        registry.register("rpc_duration_seconds", help, rpc.seconds.clone());
        registry.register("rpc_in_flight", "RPCs and streams open now", rpc.in_flight.clone());
        registry.register("rpc_shed", "RPCs refused at the concurrency limit", rpc.shed.clone());
        let connections = ConnectionMetrics::default();
        connections.register(&mut registry);
        Self {
            registry: Arc::new(Mutex::new(registry)),
            common: Arc::new(common),
            rpc,
            connections,
            judge: Arc::new(Mutex::new(Box::new(|| Ok(())))),
            posts: Arc::default(),
        }
    }

    /// Adds a metric and returns it.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry.lock().register(name, help, metric.clone());
        metric
    }

    /// A new counter; its name gets the suffix `_total`.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.register(name, help, Counter::default())
    }

    /// A new gauge.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(name, help, Gauge::default())
    }

    /// All metrics as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, &self.registry.lock())
            .and_then(|()| encode_registry(&mut text, &self.common))
            .and_then(|()| encode_eof(&mut text));
        text
    }

    /// What `/healthz` says from now on: `judge` is asked each time, and names what is wrong.
    pub fn judge_health(&self, judge: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        *self.judge.lock() = Box::new(judge);
    }

    /// Has posts to the listener answered from now on. Without this there are none.
    pub fn answer_posts(
        &self,
        answer: impl Fn(Post) -> Pin<Box<dyn Future<Output = PostAnswer> + Send>> + Send + Sync + 'static,
    ) {
        *self.posts.lock() = Some(Arc::new(answer));
    }

    /// Clients that speak plain text over TCP now, by connections.
    pub fn plain_text_connections(&self) -> u64 {
        u64::try_from(self.connections.plain_text.get()).unwrap_or(0)
    }

    pub(crate) fn rpc(&self) -> &RpcMetrics {
        &self.rpc
    }

    pub(crate) fn connections(&self) -> &ConnectionMetrics {
        &self.connections
    }

    /// Serves `/metrics` and `/healthz` on `address` in plain text until `stop`; returns the bound address at once. `/healthz` answers 200, or 503
    /// and why ([`Metrics::judge_health`]).
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn serve(
        &self,
        address: SocketAddr,
        stop: CancellationToken,
    ) -> Result<SocketAddr, ServerError> {
        Ok(self.serve_secured(address, &ServerSecurity::default(), stop).await?.address)
    }

    /// The same as `security` says. With TLS all but `/healthz` is for those who have a certificate of the cluster or a token, and what changes anything
    /// for persons.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn serve_secured(
        &self,
        address: SocketAddr,
        security: &ServerSecurity,
        stop: CancellationToken,
    ) -> Result<ServedPages, ServerError> {
        let failed = |source| ServerError::Metrics { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let mut routes = Router::new().route("/metrics", get(show)).fallback(other);
        if security.speaks_tls() {
            routes = routes.layer(middleware::from_fn_with_state(security.clone(), identified));
        }
        let routes = routes.route("/healthz", get(healthz)).with_state(self.clone());
        let routes = routes.into_make_service_with_connect_info::<GuestTransport>();
        let listener = listen::Few::new(listener).secured(security);
        let task = crate::task::spawn("metrics", async move {
            let served = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
            tokio::select! {
                result = served.into_future() => {
                    if let Err(error) = result {
                        tracing::warn!(%error, "metrics server ended");
                    }
                }
                () = stop.cancelled() => {}
            }
        });
        Ok(ServedPages { address: local, task })
    }
}

/// Pages that are served.
#[derive(Debug)]
pub struct ServedPages {
    /// Where.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl ServedPages {
    /// Waits, after a stop, until the address is free again.
    pub async fn ended(self) {
        // A panic of the task has been logged.
        let _ = self.task.await;
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

async fn healthz(State(metrics): State<Metrics>) -> impl IntoResponse {
    match (metrics.judge.lock())() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Lets requests of those pass who may ask for the page.
async fn identified(
    State(security): State<ServerSecurity>,
    ConnectInfo(transport): ConnectInfo<GuestTransport>,
    request: Request,
    next: Next,
) -> Response {
    let page = page_of(request.method().as_str(), request.uri().path());
    match security.judge_page(transport.get(), request.headers(), page) {
        Ok(caller) if caller.person().is_some() && !request.method().is_safe() => {
            let page = format!("{} {}", request.method(), request.uri().path());
            let answer = next.run(request).await;
            if answer.status().is_success() {
                security.note_page(&caller, &page);
            }
            answer
        }
        Ok(_) => next.run(request).await,
        Err(refusal) if refusal.code() == Code::PermissionDenied => {
            (StatusCode::FORBIDDEN, format!("{}\n", refusal.message())).into_response()
        }
        Err(refusal) => {
            let words = format!("{}\n", refusal.message());
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], words).into_response()
        }
    }
}

async fn show(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.encode())
}

async fn other(
    State(metrics): State<Metrics>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> (StatusCode, String) {
    let answer = metrics.posts.lock().clone().filter(|_| method == Method::POST);
    let Some(answer) = answer else { return (StatusCode::NOT_FOUND, String::new()) };
    let post = Post { path: uri.path().to_owned(), has_origin: headers.contains_key(ORIGIN) };
    let (code, text) = answer(post).await;
    (StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), text)
}
