//! A whole control plane of real processes, with simulated nodes.
//!
//! Each cluster has a loopback address of its own (127.128.0.0/9, chosen by process id): nobody else
//! takes its ports, so that a killed state comes back at the same address. Everything a cluster started ends with it; when a test fails,
//! the ends of all logs are printed and the directory stays.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicU16, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use godel_proto::v1;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    api::{Api, Records},
    check,
    flood::Flood,
    process::{CommandLine, Process},
    proxy::Proxy,
    settings,
    submit::{self, Acknowledged, Plan},
    trace,
    wait::{LIMIT, wait_for},
};

mod commands;

use commands::Service;

/// Default TTL of a lease.
pub const LEASE_TTL: Duration = Duration::from_secs(3);

/// What an audit judges.
const N_INVARIANTS: usize = 10;
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
    /// Environment of single processes, by name, for every start: small limits.
    pub env: Vec<(&'static str, &'static str, String)>,
    /// Keys of the configuration and their values, for every service whose part is the first word of the key.
    pub settings: Vec<(String, String)>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            n_nodes: 100,
            n_dispatchers: 2,
            n_schedulers: 3,
            n_binders: 3,
            is_proxied: false,
            env: Vec::new(),
            settings: Vec::new(),
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
            announced: Vec::new(),
            layout,
            ip,
            n_submitters: 0,
            started: Instant::now(),
            api: Api::new(state).expect("a socket address is a valid address"),
            dir,
        };
        let service = cluster.service("state", "state", state, state, state);
        cluster.add("state", service);
        cluster.wait_state().await;
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
            cluster.add("agent", commands::agent(to_state, &nodes));
        }
        cluster.wait_ready().await;
        cluster
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
        self.add(name, commands::agent_of(to_state, shapes, settings));
        self.layout.n_nodes += n_nodes;
    }

    /// Adds the agent of this machine, which runs commands; its node has the name of the process.
    pub async fn start_agent_of_this_machine(&mut self, name: &str) {
        let to_state = self.route_to_state(name).await;
        let state_dir = self.path(&format!("{name}.state"));
        self.add(name, commands::agent_of_this_machine(to_state, name, &state_dir));
        self.layout.n_nodes += 1;
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
        let address = self.metrics_address(name).with_context(|| format!("{name} has no metrics"))?;
        Self::metrics_at(address).await
    }

    /// What somebody shows on `/metrics` at an address.
    pub async fn metrics_at(address: SocketAddr) -> Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
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

    /// Waits until a process has ended by itself, and clears it for the next start.
    pub async fn wait_ended(&mut self, name: &str) {
        let process = self.process(name);
        let what = format!("the end of {name}");
        wait_for(&what, LIMIT, async || process.ended().map(drop).context("still runs")).await;
        process.kill();
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

    /// Starts a submitter process; answers the path of its ledger.
    pub fn submit_tasks(&mut self, n_tasks: usize, interval_ms: u64, duration_ms: u64) -> Submission {
        self.submit_ranked(n_tasks, (interval_ms, duration_ms), 0, "")
    }

    /// The same with a priority, in a queue.
    pub fn submit_ranked(
        &mut self,
        n_tasks: usize,
        (interval_ms, duration_ms): (u64, u64),
        priority: i32,
        queue: &str,
    ) -> Submission {
        self.n_submitters += 1;
        let name = format!("submitter-{}", self.n_submitters);
        let plan = Plan {
            state: self.addresses["state"],
            ledger: self.path(&format!("{name}.ledger")),
            tasks: n_tasks,
            prefix: format!("s{}", self.n_submitters),
            interval_ms,
            duration_ms,
            seed: settings::seed() + u64::try_from(self.n_submitters).expect("few submitters"),
            priority,
            queue: queue.to_owned(),
        };
        let program = test_bin("godel-test-submitter");
        self.add(&name, CommandLine { program, args: plan.args(), env: Vec::new() });
        Submission { process: name, ledger: plan.ledger, n_tasks }
    }

    /// Waits until `n_acknowledged` submissions are in the ledger.
    pub async fn wait_acknowledged(&self, submission: &Submission, n_acknowledged: usize) {
        let what = format!("{n_acknowledged} acknowledgements");
        wait_for(&what, LIMIT, async || {
            let n_entries = submission.read()?.len();
            ensure!(n_entries >= n_acknowledged, "{n_entries} so far");
            Ok(())
        })
        .await;
    }

    /// Waits until a submitter has had everything acknowledged; answers its ledger.
    pub async fn wait_submitted(&mut self, submission: &Submission) -> Vec<Acknowledged> {
        let process = self.process(&submission.process);
        let status =
            wait_for("the submitter's end", 2 * LIMIT, async || process.ended().context("still submits"))
                .await;
        assert!(status.success(), "the submitter failed: {}", process.tail(TAIL_LINES));
        let ledger = submission.read().expect("a ledger that the submitter wrote");
        assert_eq!(ledger.len(), submission.n_tasks, "every submission is acknowledged once");
        ledger
    }

    /// Waits until every running unit of `n_units` units has a place.
    pub async fn wait_all_bound(&self, n_units: usize) -> Records {
        wait_for("a place for every running unit", LIMIT, async || {
            let records = self.api.records().await?;
            let (names, n_unbound) = check::unbound(&records);
            ensure!(records.units.len() >= n_units, "{} of {n_units} units exist", records.units.len());
            ensure!(n_unbound == 0, "{n_unbound} have none: {names:?}");
            Ok(records)
        })
        .await
    }

    /// Waits until the dispatcher counts `n_units` units in phase Running and none in any other.
    pub async fn wait_all_running(&self, n_units: u64) {
        wait_for("every unit to run", LIMIT, async || {
            let phases = self.api.dispatcher_status().await?.phases;
            let n_running = phases.get("Running").copied().unwrap_or_default();
            ensure!(n_running == n_units && phases.values().sum::<u64>() == n_units, "{phases:?}");
            Ok(())
        })
        .await;
    }

    /// The end of most tests: everything submitted is there and bound, nothing is over-committed, and the
    /// audit of the live system holds.
    pub async fn wait_complete(&self, ledgers: &[&Submission]) -> Records {
        let mut acknowledged = Vec::new();
        for submission in ledgers {
            acknowledged.extend(submission.read().expect("a ledger that the submitter wrote"));
        }
        let records = self.wait_all_bound(acknowledged.len()).await;
        assert_eq!(check::problems(&records, &acknowledged), Vec::<String>::new());
        self.audit(ledgers);
        records
    }

    /// `godel audit` against the ledgers: every invariant is judged, and holds.
    pub fn audit(&self, ledgers: &[&Submission]) {
        let ledgers = ledgers.iter().map(|submission| format!("--ledger={}", submission.ledger.display()));
        let ledgers: Vec<String> = ledgers.collect();
        if let Err(shown) = self.audited(&ledgers) {
            panic!("the audit does not hold:\n{shown}");
        }
    }

    /// `godel audit` with these arguments, strictly: what it said unless everything was judged and holds. Of I3 alone
    /// something may be open, for a test may have stopped agents.
    pub fn audited(&self, args: &[String]) -> Result<(), String> {
        let mut all = vec!["audit", "-o", "json"];
        all.extend(args.iter().map(String::as_str));
        let output = self.godel(&all);
        let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let invariants = view["invariants"].as_array().cloned().unwrap_or_default();
        let holds = |one: &serde_json::Value| {
            one["verdict"] == "ok" || (one["verdict"] == "not_judged" && one["id"] == "I3")
        };
        let is_right = invariants.len() == N_INVARIANTS && invariants.iter().all(holds);
        if is_right { Ok(()) } else { Err(shown(&output)) }
    }

    /// Runs a client verb to its end.
    pub fn godel(&self, args: &[&str]) -> Output {
        let CommandLine { program, args, env } = commands::client(self.addresses["state"], args);
        std::process::Command::new(&program)
            .args(&args)
            .envs(env)
            .output()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", program.display()))
    }

    /// Starts a client verb and does not wait for its end; what it prints goes to its log.
    pub fn start_godel(&self, name: &str, args: &[&str]) -> Process {
        let mut process =
            Process::new(name, commands::client(self.addresses["state"], args), self.dir.path());
        process.start(&[]);
        process
    }

    /// Log lines at ERROR or WARN that contain `pattern` are expected in this test.
    pub fn announce(&mut self, patterns: &[&'static str]) {
        self.announced.extend_from_slice(patterns);
    }

    /// No log line at ERROR or WARN, and no panic, that was not announced.
    pub fn assert_quiet(&self) {
        let unexpected = self.complaints(&self.announced);
        assert!(unexpected.is_empty(), "log lines that were not announced:\n{}", unexpected.join("\n"));
    }

    /// Log lines at ERROR or WARN, and panics, beside those that contain one of these.
    pub fn complaints(&self, announced: &[impl AsRef<str>]) -> Vec<String> {
        let mut unexpected = Vec::new();
        for process in self.processes.values() {
            let lines = process.complaints().into_iter();
            let lines = lines.filter(|line| !announced.iter().any(|pattern| line.contains(pattern.as_ref())));
            unexpected.extend(lines.map(|line| format!("{}: {line}", process.name())));
        }
        unexpected
    }

    /// Waits until state answers.
    pub async fn wait_state(&self) {
        wait_for("state to answer", LIMIT, async || self.api.store_status().await.map(drop)).await;
    }

    /// Waits until both leaders are elected, all schedulers are attached and all nodes are there.
    pub async fn wait_ready(&self) {
        let n_schedulers = self.processes.keys().filter(|name| name.starts_with("scheduler-")).count();
        wait_for("a cluster that can take work", LIMIT, async || {
            self.api.holder("binder").await?;
            let schedulers = self.api.list_schedulers().await?;
            let n_attached = schedulers.iter().filter(|scheduler| scheduler.attached).count();
            ensure!(n_attached >= n_schedulers, "{n_attached} of {n_schedulers} schedulers are attached");
            let status = self.api.store_status().await?;
            let n_nodes = u64::try_from(self.layout.n_nodes)?;
            ensure!(status.sessions >= n_nodes, "{} of {n_nodes} nodes are there", status.sessions);
            let records = self.api.records().await?;
            let n_ready = records.nodes.values().filter(|node| node.ready).count();
            ensure!(n_ready >= self.layout.n_nodes, "{n_ready} of {n_nodes} nodes are ready");
            Ok(())
        })
        .await;
    }

    /// Waits until another process than `old` holds `lease` under a higher epoch than `epoch`.
    pub async fn wait_other_leader(&self, lease: &str, epoch: u64) -> v1::Member {
        let what = format!("another holder of {lease}");
        wait_for(&what, LIMIT, async || {
            let member = self.api.holder(lease).await?;
            ensure!(member.epoch > epoch, "{} still holds epoch {}", member.address, member.epoch);
            Ok(member)
        })
        .await
    }

    /// The process whose address a lease shows.
    pub fn process_at(&self, address: &str) -> Option<String> {
        let matches = |candidate: SocketAddr| address.trim_start_matches("http://") == candidate.to_string();
        let direct = self.addresses.iter().find(|(_, listen)| matches(**listen)).map(|(name, _)| name);
        let proxied =
            self.to_service.iter().find(|(_, proxy)| matches(proxy.address())).map(|(name, _)| name);
        direct.or(proxied).cloned()
    }

    fn service<'a>(
        &'a self,
        part: &'a str,
        name: &'a str,
        listen: SocketAddr,
        advertise: SocketAddr,
        state: SocketAddr,
    ) -> CommandLine {
        let settings = &self.layout.settings;
        commands::serve(Service { part, name, listen, advertise, state, settings, dir: self.dir.path() })
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

/// A submitter process and its ledger.
#[derive(Clone, Debug)]
pub struct Submission {
    process: String,
    ledger: PathBuf,
    n_tasks: usize,
}

impl Submission {
    /// What has been acknowledged so far.
    pub fn read(&self) -> Result<Vec<Acknowledged>> {
        submit::read_ledger(&self.ledger)
    }

    /// A ledger that another program wrote in the same format.
    pub fn of_file(ledger: &Path, n_tasks: usize) -> Self {
        Self { process: String::new(), ledger: ledger.to_owned(), n_tasks }
    }
}

/// Standard output and error of a finished command.
pub fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A loopback address that no other cluster on this machine uses now.
fn own_ip() -> IpAddr {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let number = CLUSTERS.fetch_add(1, Ordering::SeqCst) & 0xf;
    let host = 0x80_0000 | (std::process::id() & 0x7_ffff) << 4 | number;
    IpAddr::V4(Ipv4Addr::from(0x7f00_0000 | host))
}

/// A port that is free because the address is ours, and stays free because it is below those that the kernel gives to
/// outgoing connections: these leave from the same address.
fn free_address(ip: IpAddr) -> SocketAddr {
    static PORTS: AtomicU16 = AtomicU16::new(10_000);
    SocketAddr::new(ip, PORTS.fetch_add(1, Ordering::SeqCst))
}

/// The submitter is a binary of this package, next to the test executables.
fn test_bin(name: &str) -> PathBuf {
    let bin = settings::next_to_tests(name);
    assert!(bin.is_file(), "no {}: it is built with the tests", bin.display());
    bin
}
