//! The skeleton of a service: what each of them does to start, to serve, and to end in order.
//!
//! A service starts with [`Service::start`], which binds its listener, serves its metrics and says under which address others
//! reach it. It holds a lease ([`Service::lease`]), has one task that owns its state (its *engine*), and serves calls that
//! send messages to that task ([`Service::run`]). At the end the server stops first, then the engine, and the lease is
//! given back last, when the last transaction has been answered.

use std::future::Future;

use godel_crash::{CrashPoints, CrashPointsError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    address::{host_name, server_hosts},
    client::{BadAddress, Channel},
    clock::SharedClock,
    config::{ClientConfig, IdentityConfig, LeaseConfig, ServerConfig},
    deps::Deps,
    informer::{FollowConfig, Informer, Shared, UNREAD_COUNTER, UnreadCount},
    lease::{Election, LeaseSpec, Membership},
    member::{JoinError, NewMember, speech_of, take_identity},
    metrics::{Metrics, PLAIN_TEXT_COUNTER},
    security::{Role, ServerSecurity},
    server::{Server, ServerError, advertised, listen_as},
    task,
};
use godel_domain::records::RecordKind;

/// Why a service cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of the state service is malformed.
    #[error("the address of the state service")]
    State(#[from] BadAddress),
    /// The configured crash points make no sense.
    #[error(transparent)]
    CrashPoints(#[from] CrashPointsError),
    /// Something that the configuration names cannot be used.
    #[error("{0}")]
    Config(String),
    /// It has no identity.
    #[error(transparent)]
    Identity(#[from] JoinError),
    /// The server cannot serve.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The task that follows the store is gone.
    #[error("the store can no longer be followed")]
    Informer,
    /// The task that holds the lease is gone.
    #[error("the lease can no longer be held")]
    Lease,
    /// The task that owns the state of the service panicked.
    #[error("the engine of the {0} has ended; see the log")]
    Engine(&'static str),
}

/// What a service is, and the parts of its configuration that every service has.
pub struct ServiceStart<'a> {
    /// The word for it.
    pub name: &'static str,
    /// Its role in the cluster.
    pub role: Role,
    /// Its own name, which its certificate bears unless `identity` names it; `None`: that of the host.
    pub own_name: Option<&'a str>,
    /// Where it serves.
    pub server: &'a ServerConfig,
    /// With what it calls others.
    pub client: &'a ClientConfig,
    /// Its certificate.
    pub identity: &'a IdentityConfig,
    /// Where a test kills the process; they win over those in [`Deps`].
    pub crash_points: &'a str,
}

/// A service that has started and does not serve yet.
pub struct Service {
    name: &'static str,
    listener: TcpListener,
    server: ServerConfig,
    /// The address that others reach it under.
    pub address: String,
    /// With what it calls others.
    pub client: ClientConfig,
    /// Its metrics.
    pub metrics: Metrics,
    /// Counts records that this version cannot read.
    pub unread: UnreadCount,
    /// Time as decisions see it.
    pub clock: SharedClock,
    /// Where a test may kill the process.
    pub crash: CrashPoints,
    /// Ends the service. It is a child of the caller's token: what fails here does not stop others that share that one.
    pub stop: CancellationToken,
    /// Ends the holding of the lease, after the engine.
    lease_stop: CancellationToken,
}

/// The lease that a service holds.
#[derive(Debug)]
pub enum Lease {
    /// Several processes want it, and one leads.
    Leader(Election),
    /// It is this process's alone.
    Member(Membership),
}

impl Lease {
    /// A service works while state answers it, and a member only under its own name.
    fn judge(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let (heard, own) = match self {
            Self::Leader(election) => (election.heard(), None),
            Self::Member(membership) => (membership.heard(), Some(membership.watch())),
        };
        move || {
            heard.check()?;
            match &own {
                Some(own) if own.borrow().fence().is_none() => Err("it is not registered".to_owned()),
                Some(_) | None => Ok(()),
            }
        }
    }
}

impl Service {
    /// Binds the listener, takes the identity of the service and serves the metrics. `None`: it was stopped before it had joined.
    ///
    /// # Errors
    /// An address cannot be bound, the service has no identity, or the crash points make no sense.
    pub async fn start(
        ServiceStart { name, role, own_name, server, client, identity, crash_points }: ServiceStart<'_>,
        metrics: Metrics,
        deps: Deps,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, Error> {
        let stop = stop.child_token();
        let crash = match crash_points {
            "" => deps.crash,
            armed => CrashPoints::parse(armed)?,
        };
        let listener = match deps.listener {
            Some(listener) => listener,
            None => listen_as(server, speech_of(client, identity)?).await?,
        };
        let local =
            listener.local_addr().map_err(|source| ServerError::Bind { address: server.listen, source })?;
        let own_name = [identity.name.as_str()].into_iter().chain(own_name).find(|name| !name.is_empty());
        let member = NewMember {
            role,
            name: own_name.map_or_else(host_name, |name| Ok(name.to_owned()))?,
            hosts: server_hosts(&server.advertise, local, &identity.san),
        };
        let taken = match take_identity(identity, member, client, deps.clock.clone(), &stop).await {
            Err(JoinError::Stopped) => return Ok(None),
            taken => taken?,
        };
        let (mut server, mut client) = (server.clone(), client.clone());
        if let Some(own) = taken {
            (server.security, client.security) = (own.server, own.client);
        }
        let address = advertised(&server, local)?;
        metrics.judge_health(|| Err("the service starts".to_owned()));
        if server.metrics {
            metrics.serve_secured(server.metrics_listen, &server.security, stop.clone()).await?;
        }
        let unread = UnreadCount::register(&metrics);
        let clock = deps.clock;
        let lease_stop = CancellationToken::new();
        Ok(Some(Self {
            name,
            listener,
            server,
            address,
            client,
            metrics,
            unread,
            clock,
            crash,
            stop,
            lease_stop,
        }))
    }

    /// What the server speaks and whom it believes.
    pub fn security(&self) -> &ServerSecurity {
        &self.server.security
    }

    /// What to hold: `counters` are read before each renewal, and the process may be killed at `crash_point`.
    pub fn lease(
        &self,
        name: impl Into<String>,
        config: LeaseConfig,
        crash_point: &'static str,
        counters: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> LeaseSpec {
        let (unread, metrics) = (self.unread.clone(), self.metrics.clone());
        LeaseSpec::new(name, self.address.clone(), config)
            .with_counters(move || {
                let mut counters = counters();
                counters.push((UNREAD_COUNTER, unread.get()));
                counters.push((PLAIN_TEXT_COUNTER, metrics.plain_text_connections()));
                counters
            })
            .with_crash(self.crash.clone(), crash_point)
    }

    /// Stands for election to a lease until the engine has ended.
    pub fn elect(&self, lease: LeaseSpec, state: Channel) -> Election {
        Election::spawn(lease, state, self.lease_stop.clone())
    }

    /// Keeps a registration until the engine has ended.
    pub fn register(&self, lease: LeaseSpec, state: Channel) -> Membership {
        Membership::spawn(lease, state, self.lease_stop.clone())
    }

    /// Follows records of these kinds.
    pub fn follow(&self, state: Channel, kinds: &[RecordKind]) -> Informer {
        let shared = Shared { unread: self.unread.clone(), ..Shared::default() };
        Informer::spawn_with(state, kinds, FollowConfig::default(), shared, self.stop.clone())
    }

    /// Serves calls beside the engine until one of them ends or the service is stopped, then ends what is left in order.
    ///
    /// # Errors
    /// The server cannot serve, the engine panicked, or the engine ended with an error.
    pub async fn run<E>(
        self,
        engine: impl Future<Output = Result<(), E>> + Send + 'static,
        lease: Lease,
        add: impl FnOnce(Server) -> Server,
    ) -> Result<(), E>
    where
        E: From<Error> + Send + 'static,
    {
        let Self { name, listener, server, metrics, stop, lease_stop, .. } = self;
        let engine_stop = stop.clone();
        let engine = task::spawn_service(name, &stop, async move {
            let ended = engine.await;
            // Without its engine the service is worth nothing.
            engine_stop.cancel();
            ended
        });
        let judge = lease.judge();
        metrics.judge_health(judge);
        let served = add(Server::new(&server, &metrics)).serve(listener, stop.clone()).await;
        stop.cancel();
        let ended = engine.await.map_err(|_| Error::Engine(name));
        lease_stop.cancel();
        match lease {
            Lease::Leader(election) => election.released().await,
            Lease::Member(membership) => membership.released().await,
        }
        served.map_err(Error::Server)?;
        ended?
    }
}
