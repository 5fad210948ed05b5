//! A whole control plane of real processes, with simulated nodes.
//!
//! Each cluster has a loopback address of its own (127.128.0.0/9, chosen by process id): nobody else
//! takes its ports, so that a killed state comes back at the same address. Everything a cluster started ends with it; when a test fails,
//! the ends of all logs are printed and the directory stays.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicU16, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use godel_kit::{
    client::open,
    config::ClientConfig,
    security::{ClientSecurity, ExpectedServer, Role},
    tls::HttpVersion,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    api::Api,
    flood::Flood,
    process::{CommandLine, Process},
    proxy::Proxy,
    settings, trace,
    wait::{LIMIT, wait_for},
};

mod audit;
mod commands;
pub mod kept;
mod submissions;
mod waits;

use commands::{Route, Service};

pub use submissions::Submission;

/// Default TTL of a lease.
pub const LEASE_TTL: Duration = Duration::from_secs(3);

/// File with [`Layout::config_file`], in the cluster's own directory.
const CONFIG_FILE: &str = "godel.yaml";

/// How a verb ends that finds nothing of the name.
const NOT_FOUND: i32 = 4;

/// Lines of each log that are printed when a test fails.
const TAIL_LINES: usize = 30;

/// What to start.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Simulated nodes, taken from the trace's list; 0: none, and no agent.
    pub n_nodes: usize,
    /// One leads.
    pub n_dispatchers: usize,
    /// All work.
    pub n_schedulers: usize,
    /// One leads.
    pub n_binders: usize,
    /// Everybody reaches everybody through a proxy of their own.
    pub is_proxied: bool,
    /// Everybody speaks plain text. Otherwise members and agents join and speak TLS, and clients call at the socket of state.
    pub is_plain: bool,
    /// Environment of single processes, by name, for every start: small limits.
    pub env: Vec<(&'static str, &'static str, String)>,
    /// Keys of the configuration and their values, for every service whose part is the first word of the key.
    pub settings: Vec<(String, String)>,
    /// Text of a configuration file that schedulers and reschedulers read, YAML, for what does not fit into `settings`; empty: none.
    pub config_file: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            n_nodes: 100,
            n_dispatchers: 2,
            n_schedulers: 3,
            n_binders: 3,
            is_proxied: false,
            is_plain: false,
            env: Vec::new(),
            settings: Vec::new(),
            config_file: String::new(),
        }
    }
}

/// Running processes.
#[derive(Debug)]
pub struct Cluster {
    // Before `dir`: processes end before their files go.
    processes: BTreeMap<String, Process>,
    /// To state, by the name of who connects.
    to_state: BTreeMap<String, Proxy>,
    /// To a service, by its name.
    to_service: BTreeMap<String, Proxy>,
    addresses: BTreeMap<String, SocketAddr>,
    announced: Vec<&'static str>,
    layout: Layout,
    ip: IpAddr,
    n_submitters: usize,
    started: Instant,
    /// Raw clients of this cluster.
    pub api: Api,
    dir: TempDir,
}

impl Cluster {
    /// Starts everything and waits until it can take work.
    pub async fn start(layout: Layout) -> Self {
        let ip = own_ip();
        let dir = tempfile::Builder::new().prefix("godel-it-").tempdir().expect("a temporary directory");
        let state = free_address(ip);
        let mut cluster = Self {
            processes: BTreeMap::new(),
            to_state: BTreeMap::new(),
            to_service: BTreeMap::new(),
            addresses: BTreeMap::from([("state".to_owned(), state)]),
            announced: if layout.is_plain { vec!["state answers plain text"] } else { Vec::new() },
            ip,
            n_submitters: 0,
            started: Instant::now(),
            api: Api::new(&Route { state, dir: dir.path(), is_plain: layout.is_plain }.client_address())
                .expect("a valid address"),
            layout,
            dir,
        };
        if !cluster.layout.config_file.is_empty() {
            let file = cluster.path(CONFIG_FILE);
            std::fs::write(&file, &cluster.layout.config_file).expect("a file in an own directory");
        }
        let service = cluster.service("state", "state", state, state, state);
        cluster.add("state", service);
        cluster.wait_state().await;
        if !cluster.layout.is_plain {
            cluster.prepare_joining().await;
        }
        for (part, n_processes) in [
            ("dispatcher", cluster.layout.n_dispatchers),
            ("binder", cluster.layout.n_binders),
            ("scheduler", cluster.layout.n_schedulers),
        ] {
            for number in 1..=n_processes {
                cluster.add_service(part, &format!("{part}-{number}")).await;
            }
        }
        if cluster.layout.n_nodes > 0 {
            let nodes = cluster.path("nodes.csv");
            trace::write_nodes(cluster.layout.n_nodes, &nodes).expect("the trace is in data/openb");
            let to_state = cluster.route_to_state("agent").await;
            cluster.add("agent", commands::agent(cluster.route(to_state), &nodes));
        }
        cluster.wait_ready().await;
        cluster
    }

    /// Makes a join token for each role, which is used as often as a test likes, and lets agents of this machine run units as whoever runs the tests.
    async fn prepare_joining(&self) {
        for role in commands::JOINING {
            let token = self.api.make_join_token(role).await.expect("state makes join tokens");
            let file = commands::join_token(self.dir.path(), role);
            let options = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
            options
                .and_then(|mut file| file.write_all(token.as_bytes()))
                .expect("a file in an own directory");
        }
        let users = "agent: {users: [{user: root, administers: true}]}\n";
        std::fs::write(self.path(commands::USERS_FILE), users).expect("a file in an own directory");
    }

    /// How a process reaches state at this address.
    fn route(&self, state: SocketAddr) -> Route<'_> {
        Route { state, dir: self.dir.path(), is_plain: self.layout.is_plain }
    }

    /// Where clients call.
    pub fn client_address(&self) -> String {
        self.route(self.addresses["state"]).client_address()
    }

    /// Environment by which any part joins that somebody else starts.
    pub fn member_env(&self) -> Vec<(String, String)> {
        commands::member_env(self.route(self.addresses["state"]))
    }

    /// Says how far a test has come, on standard error: shown when it fails.
    pub fn note(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "{:>9.3} s  {what}", self.started.elapsed().as_secs_f64());
    }

    /// Where logs and data are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file in the cluster's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where a process listens.
    pub fn address(&self, name: &str) -> SocketAddr {
        self.addresses[name]
    }

    /// Adds one more service process, as `scheduler-4`.
    pub async fn add_service(&mut self, part: &str, name: &str) {
        let listen = free_address(self.ip);
        self.addresses.insert(name.to_owned(), listen);
        let to_state = self.route_to_state(name).await;
        let mut advertise = listen;
        if self.layout.is_proxied {
            let proxy = Proxy::start(self.ip, listen, settings::seed()).await.expect("a proxy can listen");
            advertise = proxy.address();
            self.to_service.insert(name.to_owned(), proxy);
        }
        let service = self.service(part, name, listen, advertise, to_state);
        self.add(name, service);
    }

    /// Adds one more agent, as `agent-2`, with simulated nodes of shapes and with settings `KEY=VALUE`.
    pub async fn start_agent(&mut self, name: &str, shapes: &[String], settings: &[String], n_nodes: usize) {
        let to_state = self.route_to_state(name).await;
        let command = commands::agent_of(self.route(to_state), shapes, settings);
        self.add(name, command);
        self.layout.n_nodes += n_nodes;
    }

    /// Adds an agent of this machine, which runs commands, as a process and a node of these names, with settings `KEY=VALUE`.
    pub async fn start_agent_of_this_machine(&mut self, name: &str, node: &str, settings: &[String]) {
        let state_dir = self.state_dir(name);
        self.start_agent_with(name, node, &state_dir, settings).await;
        self.layout.n_nodes += 1;
    }

    /// The same with a state directory of the test's own; the node may be one that another agent has.
    pub async fn start_agent_with(&mut self, name: &str, node: &str, state_dir: &Path, settings: &[String]) {
        let to_state = self.route_to_state(name).await;
        let program = settings::godel_bin();
        let route = self.route(to_state);
        let command = commands::agent_of_this_machine(program, route, (node, state_dir), settings);
        self.add(name, command);
    }

    /// The same with another binary; its node has the name of the process.
    pub async fn start_agent_of_this_machine_by(
        &mut self,
        name: &str,
        program: PathBuf,
        settings: &[String],
    ) {
        let to_state = self.route_to_state(name).await;
        let state_dir = self.state_dir(name);
        let route = self.route(to_state);
        let command = commands::agent_of_this_machine(program, route, (name, &state_dir), settings);
        self.add(name, command);
        self.layout.n_nodes += 1;
    }

    /// Stops an agent and deletes its node, unless it has left by itself: what comes next on this cluster has nodes of its own.
    pub async fn retire_agent(&mut self, name: &str, node: &str) {
        let has_ended = !self.is_running(name);
        if !has_ended {
            self.stop(name).await;
        }
        wait_for(&format!("the end of node {node}"), LIMIT, async || {
            let output = self.godel(&["node", "delete", node]);
            let has_left = has_ended && output.status.code() == Some(NOT_FOUND);
            ensure!(output.status.success() || has_left, "{}", shown(&output));
            Ok(())
        })
        .await;
        self.layout.n_nodes -= 1;
    }

    /// Cancels units, waits for their end and deletes them.
    pub fn delete_units(&self, names: &[&str]) {
        let output = self.godel(&[&["unit", "delete", "--cancel"], names].concat());
        assert!(output.status.success(), "{}", shown(&output));
    }

    /// The state directory of an agent of this machine.
    pub fn state_dir(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.state"))
    }

    /// kill -9.
    pub fn kill(&mut self, name: &str) {
        self.process(name).kill();
    }

    /// Starts a killed process again with the same address and data.
    pub fn restart(&mut self, name: &str) {
        self.process(name).start(&[]);
    }

    /// The same, with environment for this start alone.
    pub fn restart_with(&mut self, name: &str, env: &[(String, String)]) {
        self.process(name).start(env);
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(&mut self, name: &str) {
        self.process(name).terminate();
        self.wait_ended(name).await;
    }

    /// SIGSTOP.
    pub fn freeze(&mut self, name: &str) {
        self.process(name).freeze();
    }

    /// SIGCONT.
    pub fn thaw(&mut self, name: &str) {
        self.process(name).thaw();
    }

    /// Whether a process is frozen.
    pub fn is_frozen(&self, name: &str) -> bool {
        self.processes.get(name).is_some_and(Process::is_frozen)
    }

    /// Names of all processes.
    pub fn processes(&self) -> impl Iterator<Item = &str> {
        self.processes.keys().map(String::as_str)
    }

    /// Where a service shows its metrics.
    pub fn metrics_address(&self, name: &str) -> Option<SocketAddr> {
        self.addresses.get(name).copied().map(commands::metrics_address)
    }

    /// What a service shows on `/metrics`.
    pub async fn metrics(&self, name: &str) -> Result<String> {
        self.ask_page(name, "GET /metrics", "").await
    }

    /// Asks a service for a page, as `GET /metrics`, as the administrator; with further headers, each with its end.
    pub async fn ask_page(&self, name: &str, what: &str, headers: &str) -> Result<String> {
        let address = self.metrics_address(name).with_context(|| format!("{name} has no metrics"))?;
        if self.layout.is_plain {
            return read_page(TcpStream::connect(address).await?, what, headers).await;
        }
        let config = ClientConfig { security: ClientSecurity::unverified(), ..ClientConfig::default() };
        let whoever = ExpectedServer::any_of(Role::State);
        let stream = open(&format!("https://{address}"), &whoever, &config, HttpVersion::One).await?;
        let headers = format!("Authorization: Bearer {}\r\n{headers}", self.api.token().await?);
        read_page(stream, what, &headers).await
    }

    /// What somebody shows on `/metrics` at an address, in plain text.
    pub async fn metrics_at(address: SocketAddr) -> Result<String> {
        read_page(TcpStream::connect(address).await?, "GET /metrics", "").await
    }

    /// The value of a metric, over all its labels.
    pub async fn metric(&self, process: &str, name: &str) -> Result<u64> {
        let text = self.metrics(process).await?;
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' ']).then_some(())?;
            rest.rsplit(' ').next()?.parse::<u64>().ok()
        };
        let values: Vec<u64> = text.lines().filter_map(value).collect();
        ensure!(!values.is_empty(), "{process} shows no {name}");
        Ok(values.into_iter().sum())
    }

    /// Process id of a running process.
    pub fn pid(&self, name: &str) -> u32 {
        self.processes[name].id()
    }

    /// What a process has written so far.
    pub fn log(&self, name: &str) -> String {
        self.processes[name].text()
    }

    /// As `ulimit -n`, for a running process.
    pub fn limit_descriptors(&mut self, name: &str, n: u64) {
        self.process(name).limit_descriptors(n);
    }

    /// Starts a flooder process, called `name`.
    pub fn start_flood(&mut self, name: &str, flood: &Flood) {
        let program = test_bin("godel-test-flooder");
        self.processes.remove(name);
        self.add(name, CommandLine { program, args: flood.args(), env: Vec::new() });
    }

    /// Whether a process runs.
    pub fn is_running(&mut self, name: &str) -> bool {
        self.process(name).is_running()
    }

    /// Names of all service processes and the agent.
    pub fn names(&self) -> Vec<String> {
        self.addresses.keys().cloned().chain(["agent".to_owned()]).collect()
    }

    /// The proxy between a process and state.
    pub fn proxy_to_state(&self, name: &str) -> &Proxy {
        &self.to_state[name]
    }

    /// All proxies.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.to_state.values().chain(self.to_service.values())
    }

    /// The process that holds a lease, once somebody does.
    pub async fn leader(&self, lease: &str) -> String {
        let what = format!("a process that holds {lease}");
        wait_for(&what, LIMIT, async || {
            let member = self.api.holder(lease).await?;
            self.process_at(&member.address).with_context(|| format!("nobody of ours at {}", member.address))
        })
        .await
    }

    /// Runs a client verb to its end.
    pub fn godel(&self, args: &[&str]) -> Output {
        let CommandLine { program, args, env } = commands::client(self.route(self.addresses["state"]), args);
        std::process::Command::new(&program)
            .args(&args)
            .envs(env)
            .output()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", program.display()))
    }

    /// Starts a client verb and does not wait for its end; what it prints goes to its log.
    pub fn start_godel(&self, name: &str, args: &[&str]) -> Process {
        let mut process =
            Process::new(name, commands::client(self.route(self.addresses["state"]), args), self.dir.path());
        process.start(&[]);
        process
    }

    /// Log lines at ERROR or WARN that contain `pattern` are expected in this test.
    pub fn announce(&mut self, patterns: &[&'static str]) {
        self.announced.extend_from_slice(patterns);
    }

    /// No log line at ERROR or WARN, and no panic, that was not announced.
    pub fn assert_quiet(&self) {
        let unexpected = self.complaints(&[""; 0]);
        assert!(unexpected.is_empty(), "log lines that were not announced:\n{}", unexpected.join("\n"));
    }

    /// Log lines at ERROR or WARN, and panics, that were not announced, beside those that contain one of these.
    pub fn complaints(&self, announced: &[impl AsRef<str>]) -> Vec<String> {
        let is_announced = |line: &String| {
            let mut patterns = self.announced.iter().copied().chain(announced.iter().map(AsRef::as_ref));
            patterns.any(|pattern| line.contains(pattern))
        };
        self.all_complaints().into_iter().filter(|line| !is_announced(line)).collect()
    }

    /// Log lines at ERROR or WARN, and panics, whether they were announced or not.
    pub fn all_complaints(&self) -> Vec<String> {
        let of_process = |process: &Process| {
            let lines = process.complaints().into_iter();
            lines.map(|line| format!("{}: {line}", process.name())).collect::<Vec<_>>()
        };
        self.processes.values().flat_map(of_process).collect()
    }

    /// The process whose address a lease shows.
    pub fn process_at(&self, address: &str) -> Option<String> {
        let place = address.split_once("://").map_or(address, |(_, place)| place);
        let matches = |candidate: SocketAddr| place == candidate.to_string();
        let direct = self.addresses.iter().find(|(_, listen)| matches(**listen)).map(|(name, _)| name);
        let proxied =
            self.to_service.iter().find(|(_, proxy)| matches(proxy.address())).map(|(name, _)| name);
        direct.or(proxied).cloned()
    }

    fn service(
        &self,
        part: &str,
        name: &str,
        listen: SocketAddr,
        advertise: SocketAddr,
        state: SocketAddr,
    ) -> CommandLine {
        let Layout { settings, config_file, .. } = &self.layout;
        let has_config = ["scheduler", "rescheduler"].contains(&part) && !config_file.is_empty();
        let config = has_config.then(|| self.path(CONFIG_FILE));
        let (config, route) = (config.as_deref(), self.route(state));
        commands::serve(Service { part, name, listen, advertise, route, settings, config })
    }

    fn add(&mut self, name: &str, mut command: CommandLine) {
        let env = self.layout.env.iter().filter(|(of, _, _)| *of == name);
        command.env.extend(env.map(|(_, key, value)| ((*key).to_owned(), value.clone())));
        let mut process = Process::new(name, command, self.dir.path());
        process.start(&[]);
        self.processes.insert(name.to_owned(), process);
    }

    fn process(&mut self, name: &str) -> &mut Process {
        self.processes.get_mut(name).unwrap_or_else(|| panic!("no process {name}"))
    }

    async fn route_to_state(&mut self, name: &str) -> SocketAddr {
        let state = self.addresses["state"];
        if !self.layout.is_proxied {
            return state;
        }
        let proxy = Proxy::start(self.ip, state, settings::seed()).await.expect("a proxy can listen");
        let address = proxy.address();
        self.to_state.insert(name.to_owned(), proxy);
        address
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What agents of this machine run goes on without them.
        for process in self.processes.values_mut() {
            process.kill();
        }
        kept::end(self.dir.path());
        if !std::thread::panicking() {
            return;
        }
        self.dir.disable_cleanup(true);
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "logs and data are kept in {}", self.dir.path().display());
        for process in self.processes.values() {
            let _ = writeln!(out, "---- {} ----\n{}", process.name(), process.tail(TAIL_LINES));
        }
    }
}

/// The answer to an HTTP request without a body.
async fn read_page(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    what: &str,
    headers: &str,
) -> Result<String> {
    let request =
        format!("{what} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// Standard output and error of a finished command.
pub fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A loopback address that no other cluster on this machine uses now.
pub(crate) fn own_ip() -> IpAddr {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let number = CLUSTERS.fetch_add(1, Ordering::SeqCst) & 0xf;
    let host = 0x80_0000 | (std::process::id() & 0x7_ffff) << 4 | number;
    IpAddr::V4(Ipv4Addr::from(0x7f00_0000 | host))
}

/// A port that is free because the address is ours, and stays free because it is below those that the kernel gives to
/// outgoing connections: these leave from the same address.
pub(crate) fn free_address(ip: IpAddr) -> SocketAddr {
    static PORTS: AtomicU16 = AtomicU16::new(10_000);
    SocketAddr::new(ip, PORTS.fetch_add(1, Ordering::SeqCst))
}

/// The submitter is a binary of this package, next to the test executables.
fn test_bin(name: &str) -> PathBuf {
    let bin = settings::next_to_tests(name);
    assert!(bin.is_file(), "no {}: it is built with the tests", bin.display());
    bin
}
