//! The service: its lease, its engine and its faces.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use godel_core_yarn_leader::FOLLOWS;
use godel_kit::{
    CancellationToken, Deps,
    address::{BadAddress, reachable},
    client::Directory,
    clock::SharedClock,
    leader::LeaderTerms,
    metrics::Metrics,
    security::Role,
    server::{Server, ServerError},
    service::{Error, Lease, Service, ServiceStart},
    task,
};
use tokio::net::TcpListener;

use crate::{
    callers::YarnCallers,
    config::Config,
    engine::{Manager, ManagerParts},
    grpc,
    hadoop::{
        FaceSettings, HadoopAddresses, HadoopFaces, NodeCalls, TokenKeys, Tokens, launch::NodeLauncher,
    },
    keys::{self, KeyRing},
    launcher::Launcher,
    manager::ResourceManager,
    metrics::YarnMetrics,
    rest, rules,
};

/// Name of the lease that the leader holds.
pub const LEASE: &str = "yarn";

/// What the faces of an adapter have.
#[derive(Clone)]
pub struct FaceContext {
    /// The adapter.
    pub manager: Manager,
    /// The keys that sign tokens.
    pub keys: KeyRing,
    /// Who calls.
    pub callers: YarnCallers,
    /// Time as decisions see it.
    pub clock: SharedClock,
    /// Addresses and limits.
    pub config: Config,
    /// Ends the faces.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for FaceContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaceContext").field("manager", &self.manager).finish_non_exhaustive()
    }
}

/// Runs an adapter with all of its faces until `stop`.
///
/// # Errors
/// The adapter cannot start, or something that it cannot live without is gone.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    let life_ms = i64::try_from(config.container_expiry.ms()).unwrap_or(i64::MAX);
    let calls = move |ring: &KeyRing, clock: &SharedClock| {
        let KeyRing { amrm, nm, container } = ring.clone();
        NodeCalls::new(Tokens::new(TokenKeys { amrm, nm, container }, Arc::clone(clock), life_ms))
    };
    let launcher = move |ring: &KeyRing, clock: &SharedClock| -> Arc<dyn Launcher> {
        Arc::new(NodeLauncher::new(calls(ring, clock)))
    };
    serve_with(config, deps, stop, launcher, move |context| all_faces(context, life_ms)).await
}

/// Hadoop RPC and REST on ports of their own, gRPC on that of the service.
async fn all_faces(
    context: FaceContext,
    life_ms: i64,
) -> Result<Box<dyn FnOnce(Server) -> Server + Send>, Error> {
    let FaceContext { manager, keys: KeyRing { amrm, nm, container }, callers, clock, config, stop } =
        context;
    let manager: Arc<dyn ResourceManager> = Arc::new(manager);
    let tokens = Tokens::new(TokenKeys { amrm, nm, container }, Arc::clone(&clock), life_ms);
    let settings = FaceSettings {
        callers: callers.clone(),
        exclude_file: config.exclude_file.clone(),
        decommission_timeout_ms: config.decommission_timeout.ms(),
    };
    let calls = NodeCalls::new(tokens.clone());
    let hadoop = HadoopFaces::new(Arc::clone(&manager), tokens, calls, Arc::clone(&clock), settings);
    let addresses = HadoopAddresses {
        client: config.client_address,
        master: config.master_address,
        admin: config.admin_address,
    };
    let unusable = |address: SocketAddr| move |source| Error::Server(ServerError::Bind { address, source });
    let hadoop = hadoop.bind(addresses).await.map_err(unusable(config.client_address))?;
    let listener = TcpListener::bind(config.rest_address).await.map_err(unusable(config.rest_address))?;
    let HadoopAddresses { client, master, admin } = hadoop.addresses();
    let at = listener.local_addr().unwrap_or(config.rest_address);
    tracing::info!(%client, %master, %admin, rest = %at, "the faces for clients of YARN listen");
    task::spawn("yarn-hadoop", hadoop.serve(stop.clone()));
    let rest = rest::serve(listener, Arc::clone(&manager), callers, clock, stop.clone());
    task::spawn("yarn-rest", async move {
        if let Err(error) = rest.await {
            tracing::error!(%error, "the REST API has ended");
            stop.cancel();
        }
    });
    Ok(Box::new(move |server| server.add(grpc::service(manager))))
}

/// Checks that clients and masters of YARN may call where they are to, and warns of addresses that other machines can reach.
///
/// # Errors
/// Other machines could reach one of them, and `yarn.simple_auth` does not say that callers are believed.
fn may_face(config: &Config) -> Result<(), BadAddress> {
    let faces = [config.client_address, config.master_address, config.admin_address, config.rest_address];
    for address in reachable(&faces) {
        if !config.simple_auth {
            return Err(BadAddress::Believing(address));
        }
        tracing::warn!(%address, "other machines can reach this address, which has no TLS; clients of YARN without a token are believed whoever they say they are");
    }
    Ok(())
}

/// Where clients of YARN call, by what they call there: none of it has TLS.
fn plain_text_faces(config: &Config) -> HashMap<String, String> {
    let faces = [
        ("client", config.client_address),
        ("master", config.master_address),
        ("admin", config.admin_address),
        ("rest", config.rest_address),
    ];
    faces.map(|(name, address)| (name.to_owned(), address.to_string())).into()
}

/// Runs an adapter until `stop`. `launcher` starts masters with tokens by these keys; `faces` binds what clients and masters call, and adds
/// its services to the gRPC server.
///
/// # Errors
/// The adapter cannot start, or something that it cannot live without is gone.
pub async fn serve_with<F>(
    config: Config,
    deps: Deps,
    stop: CancellationToken,
    launcher: impl FnOnce(&KeyRing, &SharedClock) -> Arc<dyn Launcher>,
    faces: impl FnOnce(FaceContext) -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<Box<dyn FnOnce(Server) -> Server + Send>, Error>>,
{
    may_face(&config).map_err(ServerError::Address)?;
    let rules = rules::load(config.conf_dir.as_deref()).map_err(Error::Config)?;
    let metrics = Metrics::new("yarn");
    let begin = ServiceStart {
        name: "yarn",
        role: Role::Yarn,
        own_name: None,
        server: &config.server,
        client: &config.client,
        identity: &config.identity,
        crash_points: &config.crash_points,
    };
    let Some(service) = Service::start(begin, metrics, deps, &stop).await? else { return Ok(()) };
    let metrics = YarnMetrics::new(&service.metrics);
    let directory = Directory::new(&service.client)?;
    let state = directory.state();
    let (source, keys) = keys::ring();
    let clock = service.clock.clone();
    let callers = YarnCallers::of(service.security());
    let manager = Manager::new(ManagerParts {
        config: config.clone(),
        directory,
        crash: service.crash.clone(),
        metrics,
        launcher: launcher(&keys, &clock),
        clock: clock.clone(),
        rules,
        callers: callers.clone(),
    });
    let context = FaceContext {
        manager: manager.clone(),
        keys,
        callers,
        clock,
        config: config.clone(),
        stop: service.stop.clone(),
    };
    let add = match faces(context).await {
        Ok(add) => add,
        Err(error) => {
            service.stop.cancel();
            return Err(error);
        }
    };
    let lease = service
        .lease(LEASE, config.lease.clone(), "yarn.lease-renew", Vec::new)
        .with_plain_text(plain_text_faces(&config));
    let election = service.elect(lease, state.clone());
    let follower = service.follow(state.clone(), FOLLOWS);
    let terms = LeaderTerms::new(election.watch(), state, config.txn.clone());
    let engine = manager.engine(follower, terms, source, service.stop.clone());
    service.run(engine, Lease::Leader(election), add).await
}
