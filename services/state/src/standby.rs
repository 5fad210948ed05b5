//! A state that follows: it shows what it has read, passes on what only the leader may do, and takes the leader's place.
//!
//! Nothing of a state that follows outlives its time as one: whoever leads begins with what is in the store, as after a start. Only the store goes on,
//! with what it has in memory.
//!
//! # Modules
//!
//! - `front`: what becomes of calls.
//! - `succession`: the watch over the leader, and taking its place.

mod front;
mod succession;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use godel_base::ids::{Epoch, Revision};
use godel_identity::change_log::ChangeLimits;
use godel_kit::{
    CancellationToken,
    client::{Directory, channel},
    config::{ClientConfig, ServerConfig},
    lease::{LeaseSpec, Membership},
    message::RECEIVED_BYTES_MAX,
    security::{ExpectedServer, Role},
    server::Server,
    status,
};
use godel_membership::leases::LeaseRequest;
use godel_proto::v1::{
    self, change_service_server::ChangeServiceServer, state_service_client::StateServiceClient,
};
use godel_store::Store;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::Status;

pub(crate) use self::front::LeaderFront;
use self::{
    front::{StandbyFront, leader_address},
    succession::LeaderWatcher,
};
use crate::{
    changes::{ChangeLog, ChangeRpc},
    config::TlsMode,
    error::Error,
    freshness::RevisionQuestions,
    identities::{Identities, ServiceTasks, judge_plain_text},
    leader_watch::{LeaderView, LeaderWatch, show_leader},
    members::Members,
    routes::{MemberServer, StateServer},
    serve::{StateParts, new_hub, open_doors, own_registration, show_pages},
    state_service::{OwnSecurity, StateRpc},
};

/// How often a state looks whether there is a leader, and whether that one has made the CA.
const LOOK: Duration = Duration::from_millis(50);
/// Time for the leader to say which revision it has.
const REVISION_TIMEOUT: Duration = Duration::from_secs(1);

/// How the time of a state as one that follows has ended.
pub(crate) enum StandbyEnd {
    /// It leads now. What it served is served on until there is something better.
    Leads(ServedMeanwhile),
    /// The service is to stop.
    Stopped,
    /// It can follow no more, for this reason.
    Failed(String),
}

/// What a state that followed serves while it prepares to lead: mostly, that it leads.
pub(crate) struct ServedMeanwhile {
    phase: CancellationToken,
    server: JoinHandle<Result<(), Error>>,
}

impl ServedMeanwhile {
    /// Ends it, with all its connections.
    pub(crate) async fn end(self) {
        self.phase.cancel();
        if let Ok(Err(error)) = self.server.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "what was served meanwhile has ended");
        }
    }
}

/// A state that follows.
pub(crate) struct Standby {
    pub(crate) parts: StateParts,
    pub(crate) store: Store,
}

impl Standby {
    /// Follows until this state leads, or `stop`. Answers calls on `listener` meanwhile. It leaves a store that nobody holds to others for `holds_back`.
    ///
    /// # Errors
    /// The configuration is impossible, or the server fails.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        holds_back: Duration,
        stop: &CancellationToken,
    ) -> Result<StandbyEnd, Error> {
        let phase = stop.child_token();
        let client = Arc::new(OnceLock::new());
        let watcher = LeaderWatcher {
            store: self.store.clone(),
            client: Arc::clone(&client),
            own_address: self.parts.place.address.clone(),
            holds_back,
            stop: phase.clone(),
        };
        let leads = watcher.start()?;
        let store = self.store.clone();
        let mut server = tokio::spawn(self.serve(listener, client, phase.clone()));
        let end = tokio::select! {
            why = leads => match why {
                Ok(why) => {
                    tracing::info!(why = why.words(), "this state leads from now on");
                    return Ok(StandbyEnd::Leads(ServedMeanwhile { phase, server }));
                }
                Err(_) => StandbyEnd::Stopped,
            },
            why = store.ended() => StandbyEnd::Failed(why),
            served = &mut server => {
                served.map_err(|_| Error::Panicked)??;
                return Ok(StandbyEnd::Stopped);
            }
            () = stop.cancelled() => StandbyEnd::Stopped,
        };
        ServedMeanwhile { phase, server }.end().await;
        Ok(end)
    }

    /// Serves until the phase ends.
    async fn serve(
        self,
        listener: TcpListener,
        client: Arc<OnceLock<ClientConfig>>,
        phase: CancellationToken,
    ) -> Result<(), Error> {
        let mut running = Vec::new();
        let mut tasks = ServiceTasks { service: &phase, end: &phase, running: &mut running };
        let served = self.answer(listener, &client, &mut tasks).await;
        phase.cancel();
        for task in running {
            task.await.map_err(|_| Error::Panicked)?;
        }
        served
    }

    /// Answers calls, once it is known who may make them.
    async fn answer(
        &self,
        listener: TcpListener,
        client: &OnceLock<ClientConfig>,
        tasks: &mut ServiceTasks<'_>,
    ) -> Result<(), Error> {
        let Self { parts, store } = self;
        let StateParts { config, mode, place, clock, metrics, counted, .. } = parts;
        let phase = tasks.service;
        metrics.judge_health(|| Err("state has not read its store".to_owned()));
        // Until somebody leads there is nothing to pass on: who calls waits, mostly for this state to lead.
        while leader_address(store, &place.address).is_none() {
            if phase.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
                return Ok(());
            }
        }
        let identities = match mode {
            TlsMode::Off => {
                judge_plain_text(config, store, &place.address)?;
                None
            }
            TlsMode::On | TlsMode::Migrate => loop {
                match Identities::follow(config, store, Arc::clone(clock), &place.hosts(config), tasks)
                    .await?
                {
                    Some(identities) => break Some(identities),
                    None if phase.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() => {
                        return Ok(());
                    }
                    None => {}
                }
            },
        };
        let security = identities.as_ref().map(|identities| identities.security(*mode)).unwrap_or_default();
        let served_with = ServerConfig { security, ..config.server.clone() };
        let calls = ClientConfig { security: served_with.security.forwards(), ..ClientConfig::default() };
        // It is set once.
        let _ = client.set(calls.clone());
        let hub = new_hub(parts, store);
        let (views, leader) = watch::channel(LeaderView::default());
        tasks.spawn(
            "leader",
            show_leader(store.clone(), place.address.clone(), Epoch(0), views, tasks.end.clone()),
        );
        let leader = LeaderWatch::new(store.clone(), leader, tasks.service.clone());
        // It grants nothing: calls about leases go to the leader.
        let (members, _) = Members::new(
            store.clone(),
            Arc::clone(clock),
            hub.crash.clone(),
            counted.clone(),
            own_registration(parts),
            leader,
        );
        let limits = ChangeLimits { age_ms: u64::MAX, n_max: usize::MAX };
        let (log, _) = ChangeLog::new(store.clone(), Arc::clone(clock), limits, None);
        let changes = ChangeRpc::new(Arc::clone(&hub), log, Arc::clone(clock), tasks.service.clone());
        let own_security = OwnSecurity::new(&served_with.security, metrics, identities.as_ref());
        let rpc = StateRpc::new(hub, *config.watch_bookmark_interval, own_security, tasks.service.clone());
        let questions = RevisionQuestions::default();
        let states = Directory::new(&ClientConfig { state: place.address.clone(), ..calls.clone() })?;
        tasks.spawn(
            "leader-revision",
            ask_leader(store.clone(), states, questions.clone(), tasks.end.clone()),
        );
        self.register(&calls, tasks);
        metrics.judge_health(|| Ok(()));
        tracing::info!(address = place.address, revision = store.status().revision.0, "state follows");
        let listeners = open_doors(config, listener, identities.is_some()).await?;
        let front = StandbyFront {
            own: place.address.clone(),
            store: store.clone(),
            clock: Arc::clone(clock),
            questions,
        };
        let server = Server::new(&served_with, metrics)
            .forward(Arc::new(front), config.forwarded_max)
            .add(StateServer::new(Arc::new(rpc)))
            .add(MemberServer::new(members))
            .add(ChangeServiceServer::new(changes).max_decoding_message_size(RECEIVED_BYTES_MAX));
        let pages = show_pages(parts, &served_with, tasks.service).await?;
        let served = phase.run_until_cancelled(server.serve(listeners, phase.clone())).await;
        if let Some(pages) = pages {
            pages.ended().await;
        }
        Ok(served.unwrap_or(Ok(()))?)
    }

    /// Registers this state as a member, by a call of its own that it passes on to whoever leads.
    fn register(&self, calls: &ClientConfig, tasks: &ServiceTasks<'_>) {
        let own = match channel(&self.parts.place.address, calls) {
            Ok(own) => own,
            Err(bad) => return tracing::warn!(%bad, "this state is not shown among the members"),
        };
        let store = self.store.clone();
        let counters = move || {
            let age_ms = u64::try_from(store.age().as_millis()).unwrap_or(u64::MAX);
            vec![("revision", store.read(|state| state.revision().0)), ("log_age_ms", age_ms)]
        };
        let LeaseRequest { name, address, .. } = own_registration(&self.parts);
        let spec = LeaseSpec::new(name, address, self.parts.config.lease.clone());
        // It ends with the token: the leader registers itself.
        drop(Membership::spawn(spec.with_counters(counters), own, tasks.end.clone()));
    }
}

/// Asks the leader for its last revision, for reads that wait.
async fn ask_leader(store: Store, states: Directory, questions: RevisionQuestions, stop: CancellationToken) {
    let question = || {
        let (store, states) = (store.clone(), states.clone());
        async move {
            let address =
                leader_address(&store, &states.config().state).ok_or_else(|| status::not_leader(None))?;
            let channel = states.channel(&ExpectedServer::any_of(Role::State), &address)?;
            let mut leader = StateServiceClient::new(channel);
            let asked = leader.get_revision(v1::GetRevisionRequest {});
            let answer = tokio::time::timeout(REVISION_TIMEOUT, asked).await;
            let silent = |_| Status::unavailable(format!("the leader at {address} does not answer"));
            Ok(Revision(answer.map_err(silent)??.into_inner().revision))
        }
    };
    tokio::select! {
        () = questions.answer(question) => {}
        () = stop.cancelled() => {}
    }
}
