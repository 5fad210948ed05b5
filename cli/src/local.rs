//! The control plane in this process: every part with its own listener, talking over gRPC as anywhere else.
//!
//! With TLS each part joins as it would elsewhere, with a token from the unix socket of state.

mod private_dir;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use godel_agent::{NodeDef, inventory};
use godel_client::{
    access::Access,
    administrator::LocalAdministrator,
    client::Client,
    context::Context,
    exit::{Code, Failure},
};
use godel_kit::{
    CancellationToken,
    address::{Speech, advertised},
    clock::SystemClock,
    config::{ClientConfig, IdentityConfig, ServerConfig},
    member::{GivenToken, NewMember},
    security::Role,
    server::{self, ServerError},
    task,
};
use godel_rescheduler::Reload;
use godel_state::EngineKind;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use crate::{args::SimulatedNodes, config::Root};
use private_dir::PrivateDir;

/// Port of state unless flags say otherwise; the other parts follow.
pub(crate) const DEFAULT_PORT: u16 = 7700;

/// A part that is not up by then has a problem.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How many of each part, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Port of state; 0 takes free ones everywhere.
    pub port: u16,
    /// How many.
    pub dispatchers: u16,
    /// How many.
    pub schedulers: u16,
    /// How many.
    pub binders: u16,
    /// Whether the YARN adapter runs.
    pub yarn: bool,
    /// Whether the rescheduler runs.
    pub rescheduler: bool,
}

/// Which part is to listen, and where.
struct Place {
    name: String,
    /// Port of state; 0: free ones.
    base: u16,
    /// From there to the port of the first of its kind.
    offset: u16,
    /// Which one of its kind.
    idx: u16,
    speech: Speech,
}

/// What a part is told about where it serves, where state is, and who it is.
struct PartConfig<'a> {
    server: &'a mut ServerConfig,
    client: &'a mut ClientConfig,
    identity: &'a mut IdentityConfig,
}

impl<'a> PartConfig<'a> {
    fn of(
        server: &'a mut ServerConfig,
        client: &'a mut ClientConfig,
        identity: &'a mut IdentityConfig,
    ) -> Self {
        Self { server, client, identity }
    }
}

/// A running control plane.
pub struct Local {
    /// Parts by name, with their addresses, in order of start.
    pub parts: Vec<(String, String)>,
    /// Where state is, and what the person shows who has started all this.
    pub access: Access,
    /// The same to be kept, with TLS.
    pub context: Option<Context>,
    admin: Option<LocalAdministrator>,
    private_dir: Option<PrivateDir>,
    stop: CancellationToken,
    /// What failed first: the rest only follows from it.
    cause: Arc<Mutex<Option<Failure>>>,
    services: JoinSet<(String, Result<(), Failure>)>,
    agents: JoinSet<Result<(), Failure>>,
}

impl Local {
    /// Starts every part and waits until they answer. `reload` reads the configuration of the rescheduler again.
    ///
    /// # Errors
    /// A port is taken, a part ends, or they do not answer in time.
    pub async fn start(
        root: Root,
        layout: &Layout,
        reload: Option<Reload>,
        stop: CancellationToken,
    ) -> Result<Self, Failure> {
        let mut local = Self {
            parts: Vec::new(),
            access: Access::from(""),
            context: None,
            admin: None,
            private_dir: None,
            stop,
            cause: Arc::default(),
            services: JoinSet::new(),
            agents: JoinSet::new(),
        };
        let started = local.start_parts(root, layout, reload).await;
        let client = match started {
            Ok(()) => Client::direct(&local.access),
            Err(failure) => Err(failure),
        };
        let ready = match client {
            Ok(client) => local.until_ready(&client).await,
            Err(failure) => Err(failure),
        };
        match ready {
            Ok(()) => Ok(local),
            Err(failure) => {
                let cause = Arc::clone(&local.cause);
                // Only when all have ended has the one that failed first said so.
                let stopped = local.stop().await;
                let cause = cause.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(cause.or(stopped.err()).unwrap_or(failure))
            }
        }
    }

    async fn start_parts(
        &mut self,
        root: Root,
        layout: &Layout,
        reload: Option<Reload>,
    ) -> Result<(), Failure> {
        let Root { state, dispatcher, scheduler, binder, yarn, rescheduler, .. } = root;
        let mode =
            state.prepare_tls().map_err(|error| Failure::chain(Code::Failed, &error).during("state"))?;
        let speech = mode.speech();
        let place = Place { name: "state".to_owned(), base: layout.port, offset: 0, idx: 0, speech };
        let (config, listener) = self.listen(&state.server, &place).await?;
        let mut state = godel_state::Config { server: config, ..state };
        self.access = Access::from(&self.parts[0].1);
        if speech == Speech::Tls && state.engine == EngineKind::Memory {
            state.socket = Some(self.private_dir.insert(PrivateDir::make()?).path().join("godel.sock"));
        }
        let socket = state.socket();
        let deps = godel_state::Deps { listener: Some(listener), ..godel_state::Deps::default() };
        self.run("state".to_owned(), godel_state::serve(state, deps, self.stop.clone()));
        if let Some(socket) = socket.filter(|_| speech == Speech::Tls) {
            self.secure(&socket).await?;
        }
        for idx in 0..layout.dispatchers {
            let place = self.place(numbered("dispatcher", idx, layout.dispatchers), layout, 1, idx);
            let mut config = dispatcher.clone();
            let parts = PartConfig::of(&mut config.server, &mut config.client, &mut config.identity);
            let listener = self.prepare(&place, Role::Dispatcher, None, parts).await?;
            let deps =
                godel_dispatcher::Deps { listener: Some(listener), ..godel_dispatcher::Deps::default() };
            self.run(place.name, godel_dispatcher::serve(config, deps, self.stop.clone()));
        }
        for idx in 0..layout.binders {
            let place = self.place(numbered("binder", idx, layout.binders), layout, 2, idx);
            let mut config = binder.clone();
            let parts = PartConfig::of(&mut config.server, &mut config.client, &mut config.identity);
            let listener = self.prepare(&place, Role::Binder, None, parts).await?;
            let deps = godel_binder::Deps { listener: Some(listener), ..godel_binder::Deps::default() };
            self.run(place.name, godel_binder::serve(config, deps, self.stop.clone()));
        }
        for idx in 0..layout.schedulers {
            let own = format!("s{}", idx + 1);
            let place = self.place(format!("scheduler {own}"), layout, 3, idx);
            let mut config = godel_scheduler::Config { name: own.clone(), ..scheduler.clone() };
            let parts = PartConfig::of(&mut config.server, &mut config.client, &mut config.identity);
            let listener = self.prepare(&place, Role::Scheduler, Some(own), parts).await?;
            let deps = godel_scheduler::Deps { listener: Some(listener), ..godel_scheduler::Deps::default() };
            self.run(place.name, godel_scheduler::serve(config, deps, self.stop.clone()));
        }
        if layout.yarn {
            let place = self.place("yarn".to_owned(), layout, 4, 0);
            let mut config = yarn;
            let parts = PartConfig::of(&mut config.server, &mut config.client, &mut config.identity);
            let listener = self.prepare(&place, Role::Yarn, None, parts).await?;
            let deps = godel_yarn::Deps { listener: Some(listener), ..godel_yarn::Deps::default() };
            self.run(place.name, godel_yarn::serve(config, deps, self.stop.clone()));
        }
        if layout.rescheduler {
            let place = self.place("rescheduler".to_owned(), layout, 5, 0);
            let mut config = rescheduler;
            let parts = PartConfig::of(&mut config.server, &mut config.client, &mut config.identity);
            let listener = self.prepare(&place, Role::Rescheduler, None, parts).await?;
            let deps =
                godel_rescheduler::Deps { listener: Some(listener), ..godel_rescheduler::Deps::default() };
            let service = godel_rescheduler::serve(config, reload, deps, self.stop.clone());
            self.run(place.name, service);
        }
        Ok(())
    }

    fn place(&self, name: String, layout: &Layout, offset: u16, idx: u16) -> Place {
        let speech = if self.admin.is_some() { Speech::Tls } else { Speech::PlainText };
        Place { name, base: layout.port, offset, idx, speech }
    }

    /// Waits until state answers at its socket, and takes what people show: parts join by that.
    async fn secure(&mut self, socket: &Path) -> Result<(), Failure> {
        let admin = LocalAdministrator::at(socket)?;
        // With `migrate` state tells others its address in plain text, and speaks TLS there too.
        let address = self.parts[0].1.replacen("http://", "https://", 1);
        let context = tokio::select! {
            context = admin.context(&address) => context?,
            () = self.stop.cancelled() => return Err(Failure::failed("stopped before it was ready")),
        };
        self.access = context.access().map_err(|error| Failure::chain(Code::Failed, &error))?;
        self.context = Some(context);
        self.admin = Some(admin);
        Ok(())
    }

    /// Binds the port of a part, and tells it where state is and how it joins.
    async fn prepare(
        &mut self,
        place: &Place,
        role: Role,
        own_name: Option<String>,
        PartConfig { server, client, identity }: PartConfig<'_>,
    ) -> Result<TcpListener, Failure> {
        let (config, listener) = self.listen(server, place).await?;
        *server = config;
        client.state.clone_from(&self.access.address);
        if let Some(admin) = &self.admin {
            identity.name = own_name.unwrap_or_else(|| format!("local-{}", place.idx + 1));
            identity.token = GivenToken::new(&admin.join_token(role, &identity.name).await?);
        }
        Ok(listener)
    }

    /// Binds a part's port: `base + offset` for the first of its kind, a free one for the others.
    async fn listen(
        &mut self,
        server: &ServerConfig,
        Place { name, base, offset, idx, speech }: &Place,
    ) -> Result<(ServerConfig, TcpListener), Failure> {
        let (base, offset, idx) = (*base, *offset, *idx);
        let port = if base == 0 || idx > 0 { 0 } else { base.saturating_add(offset) };
        let default = ServerConfig::on_port(DEFAULT_PORT.saturating_add(offset)).metrics_listen.port();
        let is_set = server.metrics_listen.port() != default;
        let mut server = ServerConfig { listen: SocketAddr::new(server.listen.ip(), port), ..server.clone() };
        if idx > 0 || !is_set {
            server.metrics_listen.set_port(if port == 0 { 0 } else { port.saturating_add(100) });
        }
        let listener = server::listen_as(&server, *speech).await.map_err(|error| {
            let failure = Failure::chain(Code::Failed, &error).during(name);
            match error {
                ServerError::Address(_) | ServerError::Socket(_) => failure,
                ServerError::Bind { .. } | ServerError::Reflection(_) | ServerError::Metrics { .. } => {
                    failure.hint("is another `godel up` running? --port 0 takes free ports")
                }
            }
        })?;
        let local = listener.local_addr().unwrap_or_else(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = advertised(&server, *speech, local)
            .map_err(|error| Failure::chain(Code::Usage, &error).during(name))?;
        self.parts.push((name.clone(), address));
        Ok((server, listener))
    }

    fn run<E: std::error::Error + Send + Sync + 'static>(
        &mut self,
        name: String,
        service: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let (stop, cause) = (self.stop.clone(), Arc::clone(&self.cause));
        self.services.spawn(async move {
            let running = task::spawn("service", service);
            let ended = match running.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(Failure::chain(Code::Failed, &error).during(&name)),
                Err(_) => Err(Failure::failed(format!("{name} panicked"))),
            };
            if let Err(failure) = &ended {
                cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| failure.clone());
                stop.cancel();
            }
            (name, ended)
        });
    }

    async fn until_ready(&mut self, client: &Client) -> Result<(), Failure> {
        tokio::select! {
            ready = client.wait_ready(READY_TIMEOUT) => ready,
            ended = self.ended() => ended.and_then(|()| Err(Failure::failed("stopped before it was ready"))),
        }
    }

    /// Starts simulated nodes and waits until all of them are connected.
    ///
    /// # Errors
    /// The agents end, or do not connect in time.
    pub async fn simulate(
        &mut self,
        mut config: godel_agent::Config,
        nodes: Vec<NodeDef>,
    ) -> Result<(), Failure> {
        let n_nodes = nodes.len();
        config.client.state.clone_from(&self.access.address);
        if let Some(admin) = &self.admin {
            let agent = NewMember::agent_of(nodes.iter().map(|node| node.name.as_str()));
            config.identity.token = GivenToken::new(&admin.join_token(agent.role, &agent.name).await?);
            config.identity.name = agent.name;
        }
        let (stats_tx, mut stats) = watch::channel(godel_agent::Stats::default());
        let deps = godel_agent::Deps {
            nodes,
            mode: godel_agent::Mode::Simulated,
            clock: SystemClock::shared(),
            stats: stats_tx,
            // State ends along with them.
            says_goodbye: false,
            keeper: Vec::new(),
        };
        let (stop, cause) = (self.stop.clone(), Arc::clone(&self.cause));
        self.agents.spawn(async move {
            let ended = godel_agent::serve(config, deps, stop.clone()).await;
            ended.map_err(|error| {
                let failure = Failure::chain(Code::Failed, &error).during("agents");
                cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| failure.clone());
                stop.cancel();
                failure
            })
        });
        let bar = godel_client::output::progress(n_nodes, "nodes");
        let all = async {
            loop {
                let connected = stats.borrow_and_update().connected;
                bar.set_position(u64::try_from(connected).unwrap_or(0));
                if connected >= n_nodes || stats.changed().await.is_err() {
                    return;
                }
            }
        };
        let waited = tokio::select! {
            waited = tokio::time::timeout(READY_TIMEOUT, all) => {
                waited.map_err(|_| Failure::new(Code::Timeout, "the simulated nodes did not connect"))
            }
            ended = self.ended() => ended.and_then(|()| Err(Failure::failed("stopped before the nodes were connected"))),
        };
        bar.finish_and_clear();
        waited
    }

    /// Waits until a part ends by itself, or the stop.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn ended(&mut self) -> Result<(), Failure> {
        let ended = self.first_end().await;
        // A part that ends because another failed is not what counts.
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(ended, Err)
    }

    async fn first_end(&mut self) -> Result<(), Failure> {
        tokio::select! {
            Some(ended) = self.services.join_next() => {
                let (name, ended) = ended.map_err(|_| Failure::failed("a service panicked"))?;
                ended?;
                if self.stop.is_cancelled() { Ok(()) } else { Err(Failure::failed(format!("{name} ended"))) }
            }
            Some(ended) = self.agents.join_next() => {
                ended.map_err(|_| Failure::failed("the agents panicked"))??;
                if self.stop.is_cancelled() { Ok(()) } else { Err(Failure::failed("the agents ended")) }
            }
            () = self.stop.cancelled() => Ok(()),
        }
    }

    /// Stops everything and waits for it.
    ///
    /// # Errors
    /// The first part that did not end well.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.stop.cancel();
        let mut outcome = Ok(());
        while let Some(ended) = self.services.join_next().await {
            let ended = ended.map_err(|_| Failure::failed("a service panicked")).and_then(|(_, ended)| ended);
            outcome = outcome.and(ended);
        }
        while let Some(ended) = self.agents.join_next().await {
            let ended = ended.map_err(|_| Failure::failed("the agents panicked")).and_then(|ended| ended);
            outcome = outcome.and(ended);
        }
        outcome
    }
}

fn numbered(kind: &str, idx: u16, n: u16) -> String {
    if n == 1 { kind.to_owned() } else { format!("{kind} {}", idx + 1) }
}

/// The nodes that flags ask for.
///
/// # Errors
/// A list cannot be read, or a shape is wrong.
pub fn nodes(wanted: &SimulatedNodes) -> Result<Vec<NodeDef>, Failure> {
    let mut nodes = Vec::new();
    if let Some(file) = &wanted.nodes {
        nodes.extend(read_nodes(file)?);
    }
    for shape in &wanted.simulate {
        nodes.extend(inventory::parse_shape(shape).map_err(|error| Failure::chain(Code::Usage, &error))?);
    }
    Ok(nodes)
}

/// The nodes of a list.
///
/// # Errors
/// It cannot be read.
pub fn read_nodes(file: &Path) -> Result<Vec<NodeDef>, Failure> {
    inventory::read_file(file).map_err(|error| Failure::chain(Code::Usage, &error).during(file.display()))
}
