//! Servers: one stack of tower layers for all of them, health and reflection included.
//!
//! From the outside in: request id and span, metrics, the caller, deadline, the wait for the request message, the limit
//! with shedding. Handlers of streams must answer at once and read the stream afterwards: until the answer they hold
//! a slot.
//!
//! What one client may take is bounded, as `docs/api.md` says: calls and frames a second (`frames`), slots
//! (`slots`), connections without a call (`connections`), TLS handshakes (`handshakes`), and bytes of answers that are not read
//! (`unread`).
//!
//! A TCP port is served in plain text, with TLS, or both, as [`ServerSecurity`](crate::security::ServerSecurity) says; the first byte tells which.

mod accept;
mod connections;
mod descriptors;
mod forward;
mod frames;
mod handshakes;
mod io;
mod layers;
mod listeners;
mod person_streams;
mod slots;
mod unix;
mod unread;

#[cfg(test)]
mod tests;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

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
    address::{self, BadAddress, Speech},
    config::ServerConfig,
    metrics::Metrics,
    quiet::Quiet,
    room::{Room, Share},
};
use accept::Serving;
use connections::{Connection, Connections};
pub(crate) use descriptors::is_short as is_short_of_descriptors;
pub use forward::{Admission, FORWARDED, ForwardTo, Moved, SCHEDULER};
use handshakes::Handshakes;
use layers::ForwardedFrom;
pub use listeners::Listeners;
use person_streams::PersonStreams;
pub use unix::{BadSocket, SOCKET_PATH_BYTES_MAX, UnixDoor};

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
    /// Others could not reach it at the address that it would tell them.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// The unix socket cannot be made.
    #[error(transparent)]
    Socket(#[from] BadSocket),
    /// The address for metrics cannot be bound.
    #[error("metrics: {address}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Binds a listener; port 0 takes a free one.
///
/// # Errors
/// The address cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|source| ServerError::Bind { address, source })
}

/// Binds the listener of a service; port 0 takes a free one.
///
/// # Errors
/// Other machines could reach the service or its metrics and nobody has allowed it, or the address cannot be bound.
pub async fn listen(config: &ServerConfig) -> Result<TcpListener, ServerError> {
    listen_as(config, config.security.speech()).await
}

/// The same for a service that is to speak so, and has no security yet.
///
/// # Errors
/// As [`listen`].
pub async fn listen_as(config: &ServerConfig, speech: Speech) -> Result<TcpListener, ServerError> {
    let metrics = config.metrics.then_some(config.metrics_listen);
    let listens: Vec<SocketAddr> = std::iter::once(config.listen).chain(metrics).collect();
    // With TLS alone, nobody is served who has not said who they are.
    if speech != Speech::Tls {
        may_listen(config.insecure, &listens)?;
    }
    bind(config.listen).await
}

/// Checks that a process may listen on these addresses, and warns of those that other machines can reach.
///
/// # Errors
/// Other machines could reach one of them and nobody has allowed it.
pub fn may_listen(is_insecure: bool, listens: &[SocketAddr]) -> Result<(), BadAddress> {
    for address in address::exposed(is_insecure, listens)? {
        tracing::warn!(%address, "other machines can reach this address; nothing is encrypted, and nobody is asked who they are");
    }
    Ok(())
}

/// The URL that a server which listens on `local` tells others.
///
/// # Errors
/// Others could not reach it there; the error names the setting.
pub fn advertised(config: &ServerConfig, local: SocketAddr) -> Result<String, ServerError> {
    Ok(address::advertised(config, config.security.speech(), local)?)
}

/// Returns the address from which a call comes, that of this machine for calls over a unix socket; `None` where it did not come over a
/// connection of this server. Who calls, [`crate::security::caller`] says.
pub fn peer<T>(request: &tonic::Request<T>) -> Option<SocketAddr> {
    request.extensions().get::<Arc<Connection>>().map(|connection| connection.peer)
}

/// The number of the connection on which a call came, of all that this process has accepted; 0 where it did not come over
/// one.
pub fn connection_number<T>(request: &tonic::Request<T>) -> u64 {
    request.extensions().get::<Arc<Connection>>().map_or(0, |connection| connection.number)
}

/// The connection of somebody who calls.
#[derive(Clone, Debug)]
pub struct CallerConnection {
    /// Of all that this process has accepted.
    pub number: u64,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Cancelled when the connection is gone.
    pub ended: CancellationToken,
}

/// The connection of the one who makes a call. `None`: another server has passed the call on, and the connection is that server's.
pub fn caller_connection<T>(request: &tonic::Request<T>) -> Option<CallerConnection> {
    let connection = request.extensions().get::<Arc<Connection>>();
    let connection = connection.filter(|_| !request.metadata().contains_key(FORWARDED))?;
    let Connection { number, peer, ended, .. } = &**connection;
    Some(CallerConnection { number: *number, peer: *peer, ended: ended.clone() })
}

/// The room that answers to whoever makes a call may take while they are not read: of the connection, or of the client for
/// which the call was forwarded. What an answer is made of belongs there too, once it waits.
pub fn unread_share<T>(request: &tonic::Request<T>) -> Share {
    let origin = request.extensions().get::<ForwardedFrom>().map(|from| from.0);
    match request.extensions().get::<Arc<Connection>>() {
        Some(connection) => connection.unread.reader(origin).share,
        None => Share::unbounded(),
    }
}

/// Builds a server: add services, then serve.
pub struct Server {
    config: ServerConfig,
    metrics: Metrics,
    routes: RoutesBuilder,
    names: Vec<&'static str>,
    health: HealthReporter,
    forwarded: Option<forward::Forwarded>,
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
            forwarded: None,
        }
    }

    /// Forwards calls of the services of other members to where `to` says, at most `n_max` calls and as many streams at a
    /// time. Reflection shows these services, health does not.
    #[must_use]
    pub fn forward(mut self, to: Arc<dyn ForwardTo>, n_max: usize) -> Self {
        self.forwarded = Some(forward::Forwarded::new(to, n_max, &self.config));
        self
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

    /// Serves a port, or several [`Listeners`], until `stop`, then lets open RPCs end for at most `stop_grace` and cuts the rest.
    ///
    /// # Errors
    /// Reflection cannot be set up, or the listener fails.
    pub async fn serve(
        mut self,
        listeners: impl Into<Listeners>,
        stop: CancellationToken,
    ) -> Result<(), ServerError> {
        let listeners = listeners.into();
        self.add_own_services().await?;
        descriptors::raise();
        let mut served = self.shown();
        served.extend(OWN_SERVICES);
        let Self { config, metrics, routes, names, health, forwarded } = self;
        let person_streams = Arc::new(PersonStreams::default());
        let stack = ServiceBuilder::new()
            .layer(layers::SpanLayer)
            .layer(layers::MetricsLayer::new(metrics.rpc().clone(), served.into()))
            .layer(layers::CallerLayer::new(&config.security, &person_streams))
            .layer(layers::DeadlineLayer::new(&config))
            .layer(layers::LimitLayer::new(&config, metrics.rpc().clone()))
            .layer(forward::ForwardLayer::new(forwarded))
            .service(routes.routes().prepare());
        let cut = CancellationToken::new();
        // However this ends (also when it is dropped), no connection outlives it.
        let _guard = cut.clone().drop_guard();
        let connections = Connections::new(
            *config.idle_timeout,
            config.idle_connections_per_address_max,
            metrics.connections().clone(),
            Room::with_reserve(config.unread_bytes_max),
        );
        let sweep_interval = (*config.idle_timeout / 4).clamp(SWEEP_MIN, SWEEP_MAX);
        let grace = *config.stop_grace;
        let security = config.security.clone();
        let serving = Serving {
            service: stack,
            connections: connections.clone(),
            handshakes: Handshakes::new(config.handshakes_max, *config.handshake_timeout),
            config,
            metrics: metrics.connections().clone(),
            stop: stop.clone(),
            cut: cut.clone(),
            ended: Quiet::default(),
            strange: Quiet::default(),
        };
        for address in listeners.places() {
            tracing::info!(address, ?security, "serving");
        }
        let sweeper = async {
            loop {
                tokio::time::sleep(sweep_interval).await;
                connections.sweep(tokio::time::Instant::now());
                if security.speaks_tls() {
                    connections.sweep_leaves(&security);
                    person_streams.sweep(&security);
                }
            }
        };
        let cutter = async {
            stop.cancelled().await;
            for name in names.into_iter().chain([""]) {
                health.set_service_status(name, ServingStatus::NotServing).await;
            }
            tokio::time::sleep(grace).await;
            cut.cancel();
            // Cut connections end as soon as they are polled.
            tokio::time::sleep(CUT_TIME).await;
        };
        tokio::select! {
            () = serving.run(listeners) => {}
            () = cutter => {}
            () = sweeper => {}
        }
        Ok(())
    }

    /// Services that answer here, those that are forwarded included.
    fn shown(&self) -> Vec<&'static str> {
        let forwarded = self.forwarded.iter().flat_map(|_| forward::services());
        self.names.iter().copied().chain(forwarded).collect()
    }

    async fn add_own_services(&mut self) -> Result<(), ServerError> {
        let health = tonic_health::pb::health_server::HealthServer::new(
            tonic_health::server::HealthService::from_health_reporter(self.health.clone()),
        );
        let names = self.shown();
        for name in self.names.iter().copied().chain([""]) {
            self.health.set_service_status(name, ServingStatus::Serving).await;
        }
        let reflection = || {
            let mut builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(godel_proto::FILE_DESCRIPTOR_SET)
                // The details of errors, so that a client that knows reflection only can read them.
                .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
                .include_reflection_service(false);
            for name in names.iter().copied().chain(OWN_SERVICES) {
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

/// Services that every server has.
const OWN_SERVICES: [&str; 3] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];
/// How often connections are looked at, at least and at most.
const SWEEP_MIN: Duration = Duration::from_millis(10);
const SWEEP_MAX: Duration = Duration::from_secs(1);
/// Time for cut connections to close before the server is left anyway.
const CUT_TIME: Duration = Duration::from_millis(200);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("services", &self.names).finish_non_exhaustive()
    }
}
