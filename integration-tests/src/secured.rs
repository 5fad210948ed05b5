//! A cluster that speaks TLS: parts of it as processes of the binary or in this process, by a clock that a test steps, and simulated agents that have
//! an identity and a connection each.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use godel_base::time::Millis;
use godel_cli::{args::Layers, config};
use godel_client::{administrator::LocalAdministrator, client::Client, context::ContextToken};
use godel_kit::{
    CancellationToken,
    clock::{Clock, SharedClock, SystemClock},
    member::GivenToken,
    security::Role,
};
use godel_proto::{raw, v1};
use prost::Message as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    cluster::{free_address, own_ip},
    process::{CommandLine, Process},
    settings::godel_bin,
    wait::wait_for,
};

/// Longest wait for all of a thousand agents.
const PATIENCE: Duration = Duration::from_secs(180);

/// The machine's clock, with a wall clock that a test steps. The monotonic clock is not stepped, as none is.
pub struct SteppedClock {
    clock: SharedClock,
    ahead_ms: AtomicI64,
}

impl SteppedClock {
    /// As the machine's.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::shared(), ahead_ms: AtomicI64::new(0) })
    }

    /// Steps it forward, or back where that is negative.
    pub fn step(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }
}

/// See the module. What it has started ends with it.
pub struct SecuredCluster {
    processes: Vec<Process>,
    /// What runs in this process, by name; none of it ends before `stop`.
    inside: JoinSet<(String, Result<()>)>,
    agents: Vec<watch::Receiver<godel_agent::Stats>>,
    /// Nodes of agents that are processes.
    n_nodes_outside: usize,
    stop: CancellationToken,
    /// `KEY=VALUE` for the parts to which they belong.
    settings: Vec<(String, String)>,
    ip: IpAddr,
    state: SocketAddr,
    /// Where the YARN adapter serves REST.
    pub yarn_rest: SocketAddr,
    administrator: LocalAdministrator,
    /// The administrator's, at the socket of state.
    pub client: Client,
    dir: TempDir,
}

/// What must not be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// How often a node was not ready.
    pub nodes: usize,
    /// Replicas that ended or were placed anew.
    pub replicas: usize,
}

impl SecuredCluster {
    /// Nothing runs yet. `settings`: keys of the configuration and their values.
    pub fn new(settings: &[(&str, &str)]) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let dir = tempfile::Builder::new().prefix("godel-it-").tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        fs::create_dir(&data).expect("a directory of one's own");
        let socket = data.join("godel.sock");
        let ip = own_ip();
        let mut settings: Vec<(String, String)> =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        settings.push(("state.tls".to_owned(), "on".to_owned()));
        settings.push(("state.data_dir".to_owned(), data.join("state").display().to_string()));
        Self {
            processes: Vec::new(),
            inside: JoinSet::new(),
            agents: Vec::new(),
            n_nodes_outside: 0,
            stop: CancellationToken::new(),
            settings,
            ip,
            state: free_address(ip),
            yarn_rest: free_address(ip),
            administrator: LocalAdministrator::at(&socket).expect("a short path"),
            client: Client::patient(&format!("unix:{}", socket.display())).expect("a valid address"),
            dir,
        }
    }

    /// A file in the cluster's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a part as a process, as `godel serve`.
    pub async fn start(&mut self, part: &str, name: &str) {
        let mut args = vec!["serve".to_owned(), part.to_owned()];
        let mut settings = self.settings_of(part, name);
        if part != "state" {
            let token = self.token(part, name).await;
            settings.push((format!("{part}.identity.join_file"), self.keep_token(name, &token)));
        }
        args.extend(settings.iter().map(|(key, value)| format!("--set={key}={value}")));
        self.start_process(name, args);
    }

    /// Starts a part in this process, by that clock.
    pub async fn start_inside(&mut self, part: &str, name: &str, clock: &SharedClock) {
        let mut root = self.config(self.settings_of(part, name));
        let (clock, stop, named) = (Arc::clone(clock), self.stop.clone(), name.to_owned());
        if part == "state" {
            let deps = godel_state::Deps { clock, ..godel_state::Deps::default() };
            let serving = godel_state::serve(root.state, deps, stop);
            self.inside.spawn(async move { (named, serving.await.map_err(Into::into)) });
            return;
        }
        let token = GivenToken::new(&self.token(part, name).await);
        let deps = godel_kit::deps::Deps { clock, ..godel_kit::deps::Deps::default() };
        match part {
            "dispatcher" => {
                root.dispatcher.identity.token = token;
                let serving = godel_dispatcher::serve(root.dispatcher, deps, stop);
                self.inside.spawn(async move { (named, serving.await.map_err(Into::into)) });
            }
            "binder" => {
                root.binder.identity.token = token;
                let serving = godel_binder::serve(root.binder, deps, stop);
                self.inside.spawn(async move { (named, serving.await.map_err(Into::into)) });
            }
            "scheduler" => {
                root.scheduler.identity.token = token;
                let serving = godel_scheduler::serve(root.scheduler, deps, stop);
                self.inside.spawn(async move { (named, serving.await.map_err(Into::into)) });
            }
            "yarn" => {
                root.yarn.identity.token = token;
                let serving = godel_yarn::serve(root.yarn, deps, stop);
                self.inside.spawn(async move { (named, serving.await.map_err(Into::into)) });
            }
            other => panic!("{other} is not started in this process"),
        }
    }

    /// Starts agents of one simulated node each in this process, by that clock.
    pub async fn start_agents_inside(&mut self, n: usize, clock: &SharedClock) {
        for number in 0..n {
            let shape = format!("1x name=sim{number},cpu=8,memory=16Gi");
            let nodes = godel_agent::inventory::parse_shape(&shape).expect("a valid shape");
            let name = nodes[0].name.clone();
            let mut config = self.config(self.settings_of("agent", &name)).agent;
            config.identity.token = GivenToken::new(&self.token("agent", &name).await);
            let (stats, connected) = watch::channel(godel_agent::Stats::default());
            let deps = godel_agent::Deps {
                nodes,
                mode: godel_agent::Mode::Simulated,
                clock: Arc::clone(clock),
                stats,
                says_goodbye: false,
                keeper: Vec::new(),
            };
            let serving = godel_agent::serve(config, deps, self.stop.clone());
            self.inside.spawn(async move { (name, serving.await.map_err(Into::into)) });
            self.agents.push(connected);
        }
    }

    /// Starts an agent that runs commands as a process, with a node of that name, which has the attribute `kind=real`.
    pub async fn start_agent(&mut self, name: &str) {
        let token = self.token("agent", name).await;
        let inventory = self.path("inventory.toml");
        fs::write(&inventory, "[attributes]\nkind = \"real\"\n").expect("a file in an own directory");
        let mut settings = self.settings_of("agent", name);
        settings.push(("agent.identity.join_file".to_owned(), self.keep_token(name, &token)));
        settings
            .push(("agent.state_dir".to_owned(), self.path(&format!("{name}.state")).display().to_string()));
        settings.push(("agent.inventory".to_owned(), inventory.display().to_string()));
        settings.push(("agent.cgroups".to_owned(), "false".to_owned()));
        settings.push(("agent.docker".to_owned(), "off".to_owned()));
        if rustix::process::geteuid().is_root() {
            settings.push(("agent.users".to_owned(), "nobody".to_owned()));
        }
        let mut args = vec!["agent".to_owned(), format!("--name={name}")];
        args.extend(settings.iter().map(|(key, value)| format!("--set={key}={value}")));
        self.start_process(name, args);
        self.n_nodes_outside += 1;
    }

    /// Waits until every node has a session and is ready, and a scheduler is attached.
    pub async fn wait_ready(&self) {
        wait_for("a cluster that can take work", PATIENCE, async || {
            self.check_all_connected().await?;
            let nodes = self.client.list_nodes(&[]).await?;
            let is_ready = |node: &&v1::Node| node.report.as_ref().is_some_and(|report| report.ready);
            let n_ready = nodes.iter().filter(is_ready).count();
            ensure!(n_ready == self.n_nodes(), "{n_ready} nodes are ready");
            let schedulers = self.client.schedulers().await?.schedulers;
            ensure!(schedulers.iter().any(|scheduler| scheduler.attached), "no scheduler is attached");
            Ok(())
        })
        .await;
    }

    /// Fails unless each node has a session, and everything runs that was started.
    pub async fn check_all_connected(&self) -> Result<()> {
        let n_nodes = u64::try_from(self.n_nodes())?;
        let sessions = self.client.store_status().await?.sessions;
        ensure!(sessions == n_nodes, "{sessions} of {n_nodes} nodes have a session");
        let n_away = self.agents.iter().filter(|stats| stats.borrow().connected == 0).count();
        ensure!(n_away == 0, "{n_away} agents have no session");
        Ok(())
    }

    /// Sessions that agents of this process have lost so far.
    pub fn n_sessions_lost(&self) -> u64 {
        self.agents.iter().map(|stats| stats.borrow().lost).sum()
    }

    /// That nothing has ended that was started.
    pub fn assert_all_run(&mut self) {
        if let Some(ended) = self.inside.try_join_next() {
            panic!("a part has ended: {ended:?}");
        }
        for process in &mut self.processes {
            assert!(process.is_running(), "{} has ended:\n{}", process.name(), process.tail(20));
        }
    }

    /// Submits a unit, and returns its id.
    pub async fn submit(&self, unit: v1::UnitSpec) -> Result<u64> {
        let request = v1::SubmitUnitRequest { unit: Some(unit) };
        let submitted = self.client.units(async |mut units| units.submit_unit(request.clone()).await).await;
        Ok(submitted?.unit_id)
    }

    /// Waits until so many replicas of a unit run.
    pub async fn wait_running(&self, name: &str, n: u32) {
        wait_for(&format!("{name} to run"), PATIENCE, async || {
            let unit = self.client.get_unit("default", name).await?.unit;
            let counts = unit.and_then(|unit| unit.counts).context("no such unit")?;
            ensure!(counts.running == n, "{counts:?}");
            Ok(())
        })
        .await;
    }

    /// Leases of services, with the epochs of their last grants.
    pub async fn leases(&self) -> Result<BTreeMap<String, u64>> {
        let members = self.client.directory().members("").await?;
        Ok(members.into_iter().map(|member| (member.lease, member.epoch)).collect())
    }

    /// The present revision.
    pub async fn revision(&self) -> u64 {
        self.client.store_status().await.expect("state answers").revision
    }

    /// What was lost since a revision: of the replicas those of these units.
    pub async fn lost_since(&self, revision: u64, units: &[u64]) -> Result<Lost> {
        let until = self.revision().await;
        let request = v1::WatchRequest {
            from_revision: revision + 1,
            kinds: [v1::Kind::Rows, v1::Kind::NodeReport].map(i32::from).into(),
            ..v1::WatchRequest::default()
        };
        let mut stream = self.client.state().watch(request).await?.into_inner();
        let (mut lost, mut read) = (Lost::default(), revision);
        while read < until {
            let answer = stream.message().await?.context("the watch ended")?;
            read = read.max(answer.revision);
            for op in answer.commits.iter().flat_map(|commit: &raw::Commit| &commit.ops) {
                lost.count(v1::Op::decode(op.clone())?, units);
            }
        }
        Ok(lost)
    }

    /// Who was issued certificates, and state's clock.
    pub async fn identities(&self) -> Result<v1::ListIdentitiesResponse> {
        Ok(self.client.identities().list_identities(v1::ListIdentitiesRequest::default()).await?.into_inner())
    }

    /// The roots that are trusted, in hexadecimal.
    pub async fn roots(&self) -> Result<Vec<Vec<u8>>> {
        let answer = self.client.identities().get_trust(v1::GetTrustRequest {}).await?.into_inner();
        Ok(answer.fingerprints)
    }

    /// Makes another root.
    pub async fn rotate(&self) -> Result<v1::RotateCaResponse> {
        Ok(self.client.identities().rotate_ca(v1::RotateCaRequest {}).await?.into_inner())
    }

    /// A client of a principal that is made for it.
    pub async fn person(&self, name: &str, terms: v1::PrincipalTerms) -> Client {
        self.person_with_token(name, terms).await.0
    }

    /// The same with its token.
    pub async fn person_with_token(&self, name: &str, terms: v1::PrincipalTerms) -> (Client, String) {
        let request =
            v1::CreateTokenRequest { principal: name.to_owned(), terms: Some(terms), ..Default::default() };
        let made = self.client.identities().create_token(request).await.expect("a token").into_inner();
        let token = made.token.clone();
        let state = format!("https://{}", self.state);
        let mut context = self.administrator.context(&state).await.expect("the roots of the cluster");
        let expires_ms = made.info.map_or(0, |info| info.ends_ms);
        context.token = Some(ContextToken { token: made.token, expires_ms });
        (Client::new(context.access().expect("valid roots")).expect("a valid address"), token)
    }

    /// What a command of the client prints, called by the owner of the socket of state.
    pub fn godel(&self, args: &[&str]) -> String {
        let socket = self.path("data").join("godel.sock");
        let mut command = std::process::Command::new(godel_bin());
        let output = command.args(args).env("GODEL_ADDR", format!("unix:{}", socket.display())).output();
        let output = output.expect("the binary is built");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Stops what runs in this process, and waits for it.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.inside.join_next().await {
            let (name, ended) = ended.expect("no part panics");
            ended.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    fn n_nodes(&self) -> usize {
        self.agents.len() + self.n_nodes_outside
    }

    fn config(&self, settings: Vec<(String, String)>) -> config::Root {
        let layers = Layers { files: Vec::new(), set: settings };
        config::load(&layers, &[]).expect("valid settings")
    }

    /// Settings of a part, and where it is.
    fn settings_of(&self, part: &str, name: &str) -> Vec<(String, String)> {
        let own = self.settings.iter().filter(|(key, _)| key.split('.').next() == Some(part));
        let mut settings: Vec<(String, String)> = own.cloned().collect();
        let mut set = |key: &str, value: String| settings.push((format!("{part}.{key}"), value));
        if part != "agent" {
            let listen = if part == "state" { self.state } else { free_address(self.ip) };
            set("server.listen", listen.to_string());
            set("server.metrics", "false".to_owned());
        }
        if part != "state" {
            set("client.state", format!("https://{}", self.state));
            set("identity.name", name.to_owned());
            set("identity.dir", self.path(&format!("{name}.identity")).display().to_string());
        }
        if part == "scheduler" {
            set("name", name.to_owned());
        }
        if part == "yarn" {
            for face in ["client", "master", "admin"] {
                set(&format!("{face}_address"), free_address(self.ip).to_string());
            }
            set("rest_address", self.yarn_rest.to_string());
        }
        settings
    }

    async fn token(&self, part: &str, name: &str) -> String {
        let role: Role = part.parse().expect("a role");
        self.administrator.join_token(role, name).await.expect("a join token")
    }

    /// A file with a token; its path.
    fn keep_token(&self, name: &str, token: &str) -> String {
        let path = self.path(&format!("{name}.token"));
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&path).expect("a new file");
        std::io::Write::write_all(&mut file, token.as_bytes()).expect("room for a token");
        path.display().to_string()
    }

    fn start_process(&mut self, name: &str, args: Vec<String>) {
        let command = CommandLine { program: godel_bin(), args, env: Vec::new() };
        let mut process = Process::new(name, command, self.dir.path());
        process.start(&[]);
        self.processes.push(process);
    }
}

impl Drop for SecuredCluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill();
        }
        crate::cluster::kept::end(self.dir.path());
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            for process in &self.processes {
                let _unread =
                    writeln!(std::io::stderr(), "---- {} ----\n{}", process.name(), process.tail(10));
            }
        }
    }
}

impl Lost {
    fn count(&mut self, op: v1::Op, units: &[u64]) {
        use v1::{
            RunPhase::{Failed, Stopped, Succeeded},
            op::Op,
        };
        match op.op {
            Some(Op::PutNodeReport(report)) => self.nodes += usize::from(!report.ready),
            Some(Op::RunStatus(statuses)) if units.contains(&statuses.unit_id) => {
                let ended = |phase: &v1::RunPhase| matches!(phase, Succeeded | Failed | Stopped);
                self.replicas += statuses.phases().filter(ended).count();
            }
            Some(Op::Requeue(requeue)) if units.contains(&requeue.unit_id) => {
                self.replicas += requeue.ordinals.len();
            }
            _ => {}
        }
    }
}
