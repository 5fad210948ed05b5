//! The ContainerManagementProtocol: checks who calls and what with, and hands the rest to the task of the node.

use std::{sync::Arc, time::Duration};

use godel_core_agent::{RunKey, container_user};
use godel_domain::{names::yarn_user, yarn_keys::YarnKeys};
use godel_hadoop::{
    Authentication, Caller, Exception, Protocol, Server,
    common::TokenProto,
    exception,
    token::{self, KeyedPasswords},
    yarn::{
        ContainerExceptionMapProto, ContainerIdProto, ContainerStatusProto, ContainerTokenIdentifierProto,
        GetContainerStatusesRequestProto, GetContainerStatusesResponseProto, NmTokenIdentifierProto,
        SerializedExceptionProto, SignalContainerCommandProto, SignalContainerRequestProto,
        SignalContainerResponseProto, StartContainerRequestProto, StartContainersRequestProto,
        StartContainersResponseProto, StopContainersRequestProto, StopContainersResponseProto,
    },
};
use godel_kit::clock::SharedClock;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
};

use super::{
    ids::{AttemptId, ContainerId},
    launch::{Launch, LaunchFacts},
    table::Life,
};
use crate::{Config, NodeDef, shard::containers::ContainerDesk};

/// The attribute of a node that says at which port masters call.
const PORT_ATTRIBUTE: &str = "godel.dev/yarn-port";
/// The attribute that says under which host they do.
const HOST_ATTRIBUTE: &str = "godel.dev/yarn-host";
const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB";
/// Containers in one request.
const N_CONTAINERS_MAX: usize = 1_000;
/// Asks that wait for the task of the node.
const N_ASKS_MAX: usize = 64;
/// Between looks whether an assignment has come: a master may be quicker than state's message to this node.
const PAUSE: Duration = Duration::from_millis(50);
/// Looks until the container is not awaited here.
const N_LOOKS: u32 = 200;
/// Between the polite and the forced end of a container, as NodeManagers have it.
const STOP_GRACE: Duration = Duration::from_millis(250);
/// The same for a container that is asked to end by itself.
const SIGNAL_GRACE: Duration = Duration::from_secs(60);

/// What the server asks of the task of the node.
#[derive(Debug)]
pub(crate) enum Ask {
    /// The command of an awaited running unit.
    Start(Box<Start>, oneshot::Sender<StartAnswer>),
    /// The end of a container.
    Stop {
        id: ContainerId,
        /// Its running unit, whose place is given back if it was never started.
        never_started: Option<Life>,
        grace: Duration,
        answer: oneshot::Sender<Result<(), Exception>>,
    },
    /// What became of a container.
    Status(ContainerId, oneshot::Sender<Result<ContainerStatusProto, Exception>>),
}

/// A container that is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) key: RunKey,
    pub(crate) incarnation: u32,
    pub(crate) launch: Launch,
    /// User that it runs as where there is no table of users; `None`: that of the agent.
    pub(crate) user: Option<String>,
    /// User that it runs as where no row of the table is for its owner; `None`: the default of the table.
    pub(crate) otherwise_user: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum StartAnswer {
    Yes,
    /// The running unit is not assigned to this node, or not yet.
    NotHere,
    Refused(Exception),
}

/// What the methods of the protocol need.
struct Desk {
    asks: mpsc::Sender<Ask>,
    container_keys: watch::Receiver<YarnKeys>,
    facts: LaunchFacts,
    clock: SharedClock,
    /// The agent may run commands as other users.
    is_root: bool,
}

/// The server of a node whose masters have tokens by these keys.
fn server(desk: Desk, master_keys: watch::Receiver<YarnKeys>) -> Server {
    let desk = Arc::new(desk);
    let (starts, stops, statuses, signals) =
        (Arc::clone(&desk), Arc::clone(&desk), Arc::clone(&desk), Arc::clone(&desk));
    let not_done = "agents of godel do not do this";
    let protocol = Protocol::new(PROTOCOL, 1)
        .method("startContainers", move |caller, request| Arc::clone(&starts).start_all(caller, request))
        .method("stopContainers", move |caller, request| Arc::clone(&stops).stop_all(caller, request))
        .method("getContainerStatuses", move |caller, request| {
            Arc::clone(&statuses).statuses(caller, request)
        })
        .method("signalToContainer", move |caller, request| Arc::clone(&signals).signal(caller, request))
        .refuse("increaseContainersResource", exception::YARN, not_done)
        .refuse("updateContainer", exception::YARN, not_done)
        .refuse("localize", exception::YARN, not_done)
        .refuse("reInitializeContainer", exception::YARN, not_done)
        .refuse("restartContainer", exception::YARN, not_done)
        .refuse("rollbackLastReInitialization", exception::YARN, not_done)
        .refuse("commitLastReInitialization", exception::YARN, not_done)
        .refuse("getLocalizationStatuses", exception::YARN, not_done);
    let passwords = KeyedPasswords::<NmTokenIdentifierProto>::new(master_keys);
    Server::new(Authentication::Token(Arc::new(passwords))).protocol(protocol)
}

fn refused(message: impl Into<String>) -> Exception {
    Exception::new(exception::YARN, message)
}

fn stopping<T>(_: T) -> Exception {
    Exception::new(exception::IO, "the agent of this node is stopping: try again when it is back")
}

fn failed(
    container_id: Option<ContainerIdProto>,
    Exception { class, message }: Exception,
) -> ContainerExceptionMapProto {
    let exception = SerializedExceptionProto {
        message: Some(message),
        class_name: Some(class.into_owned()),
        ..SerializedExceptionProto::default()
    };
    ContainerExceptionMapProto { container_id, exception: Some(exception) }
}

fn check_number(n: usize) -> Result<(), Exception> {
    if n > N_CONTAINERS_MAX {
        return Err(refused(format!("{n} containers in one request are more than {N_CONTAINERS_MAX}")));
    }
    Ok(())
}

/// The number that a client wrote for a container.
fn id_of(pb: &ContainerIdProto) -> Result<ContainerId, Exception> {
    ContainerId::of(pb).ok_or_else(|| refused("a container of the request has no whole id"))
}

impl Desk {
    /// The attempt whose master calls, with a token for this node.
    fn attempt_of(&self, caller: &Caller) -> Result<AttemptId, Exception> {
        let token: NmTokenIdentifierProto = caller.identity.token()?;
        let node = token.node_id.as_ref();
        let LaunchFacts { host, port, .. } = &self.facts;
        let is_this_node = node.is_some_and(|node| node.host() == host && node.port() == i32::from(*port));
        let attempt = token.app_attempt_id.as_ref().and_then(AttemptId::of);
        attempt.filter(|_| is_this_node).ok_or_else(|| {
            let message = format!("the NM token is not for this node, which is {host}:{port}");
            Exception::new(exception::INVALID_TOKEN, message)
        })
    }

    /// Asks the task of the node.
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Exception> {
        let (answer, answered) = oneshot::channel();
        self.asks.send(ask(answer)).await.map_err(stopping)?;
        answered.await.map_err(stopping)
    }

    async fn start_all(
        self: Arc<Self>,
        caller: Caller,
        request: StartContainersRequestProto,
    ) -> Result<StartContainersResponseProto, Exception> {
        let attempt = self.attempt_of(&caller)?;
        check_number(request.start_container_request.len())?;
        let mut response = StartContainersResponseProto::default();
        for request in request.start_container_request {
            match self.start(attempt, &request).await {
                Ok(id) => response.succeeded_requests.push(id.to_proto()),
                Err((id, exception)) => response.failed_requests.push(failed(id, exception)),
            }
        }
        Ok(response)
    }

    async fn start(
        &self,
        attempt: AttemptId,
        request: &StartContainerRequestProto,
    ) -> Result<ContainerId, (Option<ContainerIdProto>, Exception)> {
        let token = request.container_token.clone().unwrap_or_default();
        let said = token::check::<ContainerTokenIdentifierProto>(&token, &self.container_keys.borrow());
        let said = said.map_err(|exception| (unchecked_id(&token), exception))?;
        let pb = said.container_id;
        let failed = |exception| (pb, exception);
        let (id, start) = self.judge(attempt, &said, request).map_err(failed)?;
        for _ in 0..N_LOOKS {
            let start = Box::new(start.clone());
            match self.ask(|answer| Ask::Start(start, answer)).await.map_err(failed)? {
                StartAnswer::Yes => return Ok(id),
                StartAnswer::NotHere => tokio::time::sleep(PAUSE).await,
                StartAnswer::Refused(exception) => return Err(failed(exception)),
            }
        }
        Err(failed(refused(format!(
            "{id} is not awaited on this node: its place was given back, or is another one"
        ))))
    }

    /// What is to be started, if the token says so.
    fn judge(
        &self,
        attempt: AttemptId,
        said: &ContainerTokenIdentifierProto,
        request: &StartContainerRequestProto,
    ) -> Result<(ContainerId, Start), Exception> {
        let id = id_of(&said.container_id.unwrap_or_default())?;
        let LaunchFacts { host, port, .. } = &self.facts;
        if !id.attempt.is_same_application(attempt) {
            let of = id.attempt;
            return Err(refused(format!(
                "NMToken for application attempt : {attempt} was used for starting container with container token issued for \
                 application attempt : {of}"
            )));
        }
        if said.nm_host_addr() != format!("{host}:{port}") {
            let message =
                format!("the container token is for {}, and this node is {host}:{port}", said.nm_host_addr());
            return Err(Exception::new(exception::INVALID_TOKEN, message));
        }
        let now_ms = self.clock.wall_ms();
        if said.expiry_time_stamp() < now_ms {
            return Err(refused(format!(
                "This token is expired. current time is {now_ms} found {}\nNote: System times on machines may be out of sync. Check \
                 system time and time zones.",
                said.expiry_time_stamp()
            )));
        }
        let Some(unit) = &said.running_unit else {
            return Err(refused(format!("the token of {id} does not say which running unit of godel it is")));
        };
        let key = RunKey { unit: unit.unit_id(), ordinal: unit.ordinal() };
        let context = request.container_launch_context.clone().unwrap_or_default();
        let submitter = yarn_user(said.app_submitter());
        let launch = Launch::of(id, submitter, &context, &self.facts)?;
        let chosen = self.is_root.then(|| user_of(submitter, &self.facts)).flatten();
        let (user, otherwise_user) = if self.facts.users.is_some() { (None, chosen) } else { (chosen, None) };
        Ok((id, Start { key, incarnation: unit.incarnation(), launch, user, otherwise_user }))
    }

    async fn stop_all(
        self: Arc<Self>,
        caller: Caller,
        request: StopContainersRequestProto,
    ) -> Result<StopContainersResponseProto, Exception> {
        let attempt = self.attempt_of(&caller)?;
        check_number(request.container_id.len().max(request.container_token.len()))?;
        let mut places = Vec::with_capacity(request.container_token.len());
        for token in &request.container_token {
            places.push(self.place_of(attempt, token)?);
        }
        let mut response = StopContainersResponseProto::default();
        for pb in request.container_id {
            let place = places.iter().find(|(id, _)| *id == pb).map(|(_, life)| *life);
            match self.stop(attempt, &pb, place, STOP_GRACE).await {
                Ok(()) => response.succeeded_requests.push(pb),
                Err(exception) => response.failed_requests.push(failed(Some(pb), exception)),
            }
        }
        Ok(response)
    }

    /// The container that a token is for, and its running unit.
    fn place_of(
        &self,
        attempt: AttemptId,
        token: &TokenProto,
    ) -> Result<(ContainerIdProto, Life), Exception> {
        let said = token::check::<ContainerTokenIdentifierProto>(token, &self.container_keys.borrow())?;
        let pb = said.container_id.unwrap_or_default();
        own(attempt, &pb)?;
        let unit = said.running_unit.unwrap_or_default();
        let key = RunKey { unit: unit.unit_id(), ordinal: unit.ordinal() };
        Ok((pb, (key, unit.incarnation())))
    }

    /// Ends a container of the application whose master calls, or gives back the place in which it was never started.
    async fn stop(
        &self,
        attempt: AttemptId,
        pb: &ContainerIdProto,
        never_started: Option<Life>,
        grace: Duration,
    ) -> Result<(), Exception> {
        let id = own(attempt, pb)?;
        let mut n_looks = if never_started.is_some() { N_LOOKS } else { 1 };
        loop {
            n_looks -= 1;
            let stopped = self.ask(|answer| Ask::Stop { id, never_started, grace, answer }).await?;
            if stopped.is_ok() || n_looks == 0 {
                return stopped;
            }
            // Its assignment may be on its way.
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn statuses(
        self: Arc<Self>,
        caller: Caller,
        request: GetContainerStatusesRequestProto,
    ) -> Result<GetContainerStatusesResponseProto, Exception> {
        let attempt = self.attempt_of(&caller)?;
        check_number(request.container_id.len())?;
        let mut response = GetContainerStatusesResponseProto::default();
        for pb in request.container_id {
            let status = match own(attempt, &pb) {
                Ok(id) => self.ask(|answer| Ask::Status(id, answer)).await?,
                Err(exception) => Err(exception),
            };
            match status {
                Ok(status) => response.status.push(status),
                Err(exception) => response.failed_requests.push(failed(Some(pb), exception)),
            }
        }
        Ok(response)
    }

    async fn signal(
        self: Arc<Self>,
        caller: Caller,
        request: SignalContainerRequestProto,
    ) -> Result<SignalContainerResponseProto, Exception> {
        let attempt = self.attempt_of(&caller)?;
        let grace = match request.command() {
            SignalContainerCommandProto::GracefulShutdown => SIGNAL_GRACE,
            SignalContainerCommandProto::ForcefulShutdown => Duration::ZERO,
            SignalContainerCommandProto::OutputThreadDump => {
                let message = "agents of godel send no SIGQUIT: use jstack on the node of the container";
                return Err(refused(message));
            }
        };
        self.stop(attempt, &request.container_id, None, grace).await?;
        Ok(SignalContainerResponseProto {})
    }
}

/// A container of the application of an attempt.
fn own(attempt: AttemptId, pb: &ContainerIdProto) -> Result<ContainerId, Exception> {
    let id = id_of(pb)?;
    if !id.attempt.is_same_application(attempt) {
        return Err(refused(format!("{id} is not of the application of {attempt}, whose token was used")));
    }
    Ok(id)
}

/// What a token that cannot be trusted says, for the answer alone.
fn unchecked_id(token: &TokenProto) -> Option<ContainerIdProto> {
    let said: ContainerTokenIdentifierProto = prost::Message::decode(token.identifier.clone()).ok()?;
    said.container_id
}

/// The user that a container runs as for whose owner no row is; `None`: the default of units, or that of the agent.
fn user_of(submitter: &str, facts: &LaunchFacts) -> Option<String> {
    let LaunchFacts { users, local_user, limit_users, .. } = facts;
    let has = |user: &str| {
        let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        known.lines().any(|line| line.split(':').next() == Some(user))
    };
    let user = container_user(submitter, users.as_deref(), local_user.as_deref(), *limit_users, &has);
    user.map(str::to_owned)
}

/// Listens where masters call a node, and notes the port among the attributes of the node. Returns the server with its listener, and what the
/// task of the node answers with.
///
/// # Errors
/// The address cannot be used.
pub(crate) async fn open(
    config: &Config,
    node: &mut NodeDef,
    clock: SharedClock,
) -> std::io::Result<(Server, TcpListener, ContainerDesk)> {
    let users = config.user_table();
    let config = &config.yarn;
    let listener = TcpListener::bind(config.listen).await?;
    let port = listener.local_addr()?.port();
    node.attributes.insert(PORT_ATTRIBUTE.to_owned(), port.to_string());
    let host = if node.address.is_empty() { node.name.clone() } else { node.address.clone() };
    node.attributes.insert(HOST_ATTRIBUTE.to_owned(), host.clone());
    let facts = LaunchFacts {
        host,
        port,
        java_home: config.java_home.clone(),
        hadoop_conf_dir: config.hadoop_conf_dir.clone(),
        resource_bytes_max: config.resource_max_bytes,
        ca_file: config.resource_ca_file.clone(),
        local_user: config.local_user.clone(),
        users,
        limit_users: config.limit_users,
    };
    let (asks, asked) = mpsc::channel(N_ASKS_MAX);
    let tasks = ContainerDesk::new(asked);
    let container_keys = tasks.container_keys.subscribe();
    let is_root = rustix::process::geteuid().is_root();
    let server = server(Desk { asks, container_keys, facts, clock, is_root }, tasks.master_keys.subscribe());
    tracing::info!(port, "application masters of YARN can start containers");
    Ok((server, listener, tasks))
}
