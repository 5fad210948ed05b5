//! Prometheus metrics: one registry per service, shown on `/metrics`, with `/healthz` beside it.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};
use parking_lot::Mutex;
pub use prometheus_client;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::{Metric, Registry},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The metrics of one service. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    rpc: RpcMetrics,
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

impl Metrics {
    /// An empty registry; every metric is called `godel_…` and has the label `service`.
    pub fn new(service: &str) -> Self {
        Self::with_labels(service, [])
    }

    /// Like [`Metrics::new`] with further labels, as the name of a scheduler.
    pub fn with_labels<'a>(service: &'a str, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let labels = [("service", service)].into_iter().chain(labels);
        let labels = labels.map(|(key, value)| (key.to_owned().into(), value.to_owned().into()));
        let mut registry = Registry::with_prefix_and_labels("godel", labels);
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
        Self { registry: Arc::new(Mutex::new(registry)), rpc }
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

    /// A new histogram of seconds; the name should end in `_seconds`.
    pub fn durations(&self, name: &str, help: &str) -> Histogram {
        self.register(name, help, duration_histogram())
    }

    /// All metrics as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry.lock());
        text
    }

    pub(crate) fn rpc(&self) -> &RpcMetrics {
        &self.rpc
    }

    /// Serves `/metrics` and `/healthz` on `address` until `stop`; returns the bound address at once.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn serve(&self, address: SocketAddr, stop: CancellationToken) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        let routes = Router::new()
            .route("/metrics", get(show))
            .route("/healthz", get(|| async { "ok\n" }))
            .with_state(self.clone());
        crate::task::spawn("metrics", async move {
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
        Ok(local)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

async fn show(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.encode())
}
