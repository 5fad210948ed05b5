//! The service: its lease, its engine and its faces.

use std::sync::Arc;

use godel_kit::{
    CancellationToken, Deps,
    client::Directory,
    clock::SharedClock,
    metrics::Metrics,
    server::{Server, ServerError, may_listen},
    service::{Error, Lease, Service},
};

use crate::{
    config::Config,
    engine::{KINDS, Manager, ManagerParts},
    keys::{self, KeyRing},
    launcher::Launcher,
    metrics::YarnMetrics,
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
    let addresses = [config.client_address, config.master_address, config.admin_address, config.rest_address];
    may_listen(config.server.insecure, &addresses).map_err(ServerError::Address)?;
    let named = ("yarn", Metrics::new("yarn"));
    let service = Service::start(named, &config.server, &config.crash_points, deps, &stop).await?;
    let metrics = YarnMetrics::new(&service.metrics);
    let directory = Directory::new(&config.client)?;
    let state = directory.state();
    let (source, keys) = keys::ring();
    let clock = service.clock.clone();
    let manager = Manager::new(ManagerParts {
        config: config.clone(),
        directory,
        crash: service.crash.clone(),
        metrics,
        launcher: launcher(&keys, &clock),
        clock: clock.clone(),
    });
    let context = FaceContext {
        manager: manager.clone(),
        keys,
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
    let lease = service.lease(LEASE, config.lease.clone(), "yarn.lease-renew", Vec::new);
    let election = service.elect(lease, state.clone());
    let follower = service.follow(state.clone(), KINDS.to_vec());
    let engine = manager.engine(follower, election.watch(), state, source, service.stop.clone());
    service.run(engine, Lease::Leader(election), add).await
}
