//! Servers: one stack of tower layers for all of them, health and reflection included.
//!
//! From the outside in: request id and span, metrics, concurrency limit with shedding, deadline. Handlers of
//! streams must answer at once and read the stream afterwards: until the answer they hold a slot.

mod io;
mod layers;

#[cfg(test)]
mod tests;

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::response::IntoResponse;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    server::NamedService,
    service::{Routes, RoutesBuilder},
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower::{Service, ServiceBuilder};

use crate::{
    client::{CONNECTION_WINDOW, STREAM_WINDOW},
    config::ServerConfig,
    metrics::Metrics,
};

/// Why a server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The descriptors do not make a reflection service.
    #[error("cannot set up reflection")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The server failed while serving.
    #[error("the server failed")]
    Serve(#[source] tonic::transport::Error),
}

/// Binds a listener; port 0 takes a free one.
///
/// # Errors
/// The address cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|source| ServerError::Bind { address, source })
}

/// Builds a server: add services, then serve.
pub struct Server {
    config: ServerConfig,
    metrics: Metrics,
    routes: RoutesBuilder,
    names: Vec<&'static str>,
    health: HealthReporter,
}

impl Server {
    /// A server without services yet.
    pub fn new(config: &ServerConfig, metrics: &Metrics) -> Self {
        Self {
            config: config.clone(),
            metrics: metrics.clone(),
            routes: Routes::builder(),
            names: Vec::new(),
            health: HealthReporter::new(),
        }
    }

    /// Adds a generated service, as `StateServiceServer::new(handler)`. Its health is SERVING from the start.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "nobody adds servers up")]
    pub fn add<S>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.routes.add_service(service);
        self.names.push(S::NAME);
        self
    }

    /// Reports the health of this server's services; the name of a service, or empty for the whole server.
    pub fn health(&self) -> HealthReporter {
        self.health.clone()
    }

    /// Serves until `stop`, then lets open RPCs end for at most `stop_grace` and cuts the rest.
    ///
    /// # Errors
    /// Reflection cannot be set up, or the listener fails.
    pub async fn serve(mut self, listener: TcpListener, stop: CancellationToken) -> Result<(), ServerError> {
        self.add_own_services().await?;
        let Self { config, metrics, routes, names, health } = self;
        let stack = ServiceBuilder::new()
            .layer(layers::SpanLayer)
            .layer(layers::MetricsLayer::new(metrics.rpc().clone()))
            .layer(layers::LimitLayer::new(&config, metrics.rpc().clone()))
            .layer(layers::DeadlineLayer::new(*config.request_deadline))
            .into_inner();
        let mut builder = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(config.max_concurrent_streams)
            // A process that hosts thousands of sessions may drop them all at once without being taken for an
            // attacker.
            .http2_max_pending_accept_reset_streams(usize::try_from(config.max_concurrent_streams).ok())
            .http2_keepalive_interval(Some(*config.keepalive_interval))
            .http2_keepalive_timeout(Some(*config.keepalive_timeout))
            .layer(stack);
        let cut = CancellationToken::new();
        // However this ends (also when it is dropped), no connection outlives it.
        let _guard = cut.clone().drop_guard();
        let local = listener.local_addr().ok();
        let incoming = io::incoming(listener, cut.clone());
        let stopped = stop.clone();
        let routes = routes.routes();
        let serving = builder.add_routes(routes).serve_with_incoming_shutdown(incoming, async move {
            stopped.cancelled().await;
            for name in names.into_iter().chain([""]) {
                health.set_service_status(name, ServingStatus::NotServing).await;
            }
        });
        tracing::info!(address = ?local, "serving");
        let grace = *config.stop_grace;
        let cutter = async {
            stop.cancelled().await;
            tokio::time::sleep(grace).await;
            cut.cancel();
            // Cut connections end as soon as they are polled.
            tokio::time::sleep(CUT_TIME).await;
        };
        tokio::select! {
            result = serving => result.map_err(ServerError::Serve),
            () = cutter => Ok(()),
        }
    }

    async fn add_own_services(&mut self) -> Result<(), ServerError> {
        let health = tonic_health::pb::health_server::HealthServer::new(
            tonic_health::server::HealthService::from_health_reporter(self.health.clone()),
        );
        let names: Vec<&'static str> = self.names.clone();
        for name in names.iter().copied().chain([""]) {
            self.health.set_service_status(name, ServingStatus::Serving).await;
        }
        let reflection = || {
            let mut builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(godel_proto::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
                .include_reflection_service(false);
            let own = [
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ];
            for name in names.iter().copied().chain(own) {
                builder = builder.with_service_name(name);
            }
            builder
        };
        let v1 = reflection().build_v1()?;
        let v1alpha = reflection().build_v1alpha()?;
        self.routes.add_service(health).add_service(v1).add_service(v1alpha);
        Ok(())
    }
}

/// Time for cut connections to close before the server is left anyway.
const CUT_TIME: Duration = Duration::from_millis(200);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("services", &self.names).finish_non_exhaustive()
    }
}
