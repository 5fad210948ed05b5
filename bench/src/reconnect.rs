//! `godel bench reconnect`: SIGKILL for state under agents that have a connection each, and the time until all of them
//! are back.
//!
//! Each node runs a replica all the time. Agents have machines of their own elsewhere; here they get the CPU time that the control
//! plane leaves. The clock starts before state does. Agents find out at once, because the kernel
//! closes the connections of a process that is killed; each waits for a random part of `agent.reconnect_spread` first.
//! With `--hostile` connections that mean harm are there all the time, and for a while after everybody is back: what
//! is lost then counts too.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    usage,
};
use godel_proto::{raw, v1};
use prost::Message as _;
use serde::Serialize;
use tonic::Status;

use super::{
    board::{REQUEUE, RUN_STATUS, unreadable},
    cases::per,
    cluster::{self, AgentProcess, Layout, POLL, READY_TIMEOUT},
    hostile::HostileConnections,
    load::{Load, SubmitWay},
    once::{Figures, Once},
    processes::{self, BenchProcesses},
    report::{count, mib},
    setup::at_least_one,
    workload::Maker,
};

/// Field number of a node's report in `godel.v1.Op`.
const PUT_NODE_REPORT: u32 = 2;
/// So long connections that mean harm go on after everybody is back.
const HARM: Duration = Duration::from_secs(15);

/// `godel bench reconnect`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReconnectArgs {
    /// Processes over which the agents are spread. Those of one process have one certificate.
    #[arg(long, default_value_t = 200, value_parser = at_least_one)]
    agent_processes: usize,
    /// How often state is killed.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    restarts: usize,
    /// Connections from another address: half of them send one byte, the others begin a handshake and never go on.
    #[arg(long, default_value_t = 0)]
    hostile: usize,
    /// Everybody speaks TLS, and has joined.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct Reconnect {
    workload: &'static str,
    nodes: usize,
    agent_processes: usize,
    tls: bool,
    hostile: usize,
    restarts: Vec<Return>,
    /// The longest time until everybody was back.
    all_s: f64,
    state_rss_mib: f64,
    /// Of all processes of agents together.
    agents_rss_mib: f64,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

/// What followed a kill. Times are seconds since state was started again.
#[derive(Clone, Debug, Serialize)]
struct Return {
    /// State answers: the store is open and recovered.
    state_s: f64,
    /// Half of the agents have a session.
    half_s: f64,
    /// 99 of 100 have.
    most_s: f64,
    /// All have.
    all_s: f64,
    /// CPU time until then: of state, of all agents together, of all others.
    state_cpu_s: f64,
    agents_cpu_s: f64,
    others_cpu_s: f64,
    /// Connections that meant harm.
    hostile_opened: u64,
    /// Until everybody was back, and for a while after that where harm was meant.
    lost: Losses,
}

/// What must not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Losses {
    /// Leases of services that were granted anew.
    leases: usize,
    /// Nodes that were not ready at some time.
    nodes: usize,
    /// Replicas that ended or were placed anew.
    replicas: usize,
    /// Sessions that were away after everybody was back.
    sessions: u64,
}

pub(super) async fn run(wanted: ReconnectArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "reconnect", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &ReconnectArgs, mut layout: Layout) -> Result<Reconnect, Failure> {
    layout.tls = wanted.tls;
    let shares = wanted.shares(layout.n_nodes);
    let n_connections = shares.iter().copied().max().unwrap_or(1);
    layout.set.push(format!("agent.connections={n_connections}"));
    let mut cluster = AgentFleet::start(layout, &shares).await?;
    output::say("every node is connected");
    let n_replicas = u32::try_from(cluster.layout.n_nodes).unwrap_or(u32::MAX);
    cluster.fill(Maker::new(1, false).unit(v1::WorkloadClass::Service, n_replicas)).await?;
    let load_average = usage::load_average();
    let mut restarts = Vec::new();
    for _ in 0..wanted.restarts {
        let back = cluster.restart_state(wanted.hostile).await?;
        output::say(back.line());
        restarts.push(back);
    }
    let audit_s = cluster::audited(&cluster.client).await?;
    let of_state = |name: &str| name == "state";
    Ok(Reconnect {
        workload: "reconnect",
        nodes: cluster.layout.n_nodes,
        agent_processes: wanted.agent_processes,
        tls: wanted.tls,
        hostile: wanted.hostile,
        all_s: restarts.iter().map(|back| back.all_s).fold(0.0, f64::max),
        restarts,
        state_rss_mib: cluster.rss_mib(of_state),
        agents_rss_mib: cluster.rss_mib(is_agent),
        load_average,
        audit: true,
        audit_s,
    })
}

impl ReconnectArgs {
    /// Nodes of each process.
    fn shares(&self, n_nodes: usize) -> Vec<usize> {
        let n_processes = self.agent_processes.min(n_nodes);
        (0..n_processes).map(|idx| n_nodes / n_processes + usize::from(idx < n_nodes % n_processes)).collect()
    }
}

fn is_agent(name: &str) -> bool {
    name.starts_with("agents-")
}

/// A cluster whose agents stay.
struct AgentFleet {
    layout: Layout,
    processes: BenchProcesses,
    /// Where state listens, also when it starts again.
    listen: SocketAddr,
    client: Client,
    /// Looks at state without a handshake.
    watcher: Client,
}

impl AgentFleet {
    /// A process of agents for each share, with so many nodes.
    async fn start(layout: Layout, shares: &[usize]) -> Result<Self, Failure> {
        let mut processes = BenchProcesses::new(&layout.dir)?;
        let (address, _parts) = cluster::start_all(&mut processes, &layout, true).await?;
        let client = layout.client(&address).await?;
        client.wait_ready(READY_TIMEOUT).await?;
        for (number, n_nodes) in shares.iter().enumerate() {
            let prefix = format!("p{number:03}");
            let shapes = [format!("{n_nodes}x name={prefix},cpu=100,memory=400Gi")];
            let (name, names) = (format!("agents-{number:03}"), format!("{prefix}-*"));
            let agents = AgentProcess {
                address: &address,
                name: &name,
                names: &names,
                shapes: &shapes,
                is_behind: true,
            };
            cluster::start_agents(&mut processes, &layout, &agents).await?;
        }
        cluster::settle(&mut processes, &layout, &client, true).await?;
        let place = address.rsplit('/').next().unwrap_or_default();
        let listen = place
            .parse()
            .map_err(|_| Failure::failed(format!("state printed `{address}` as its address")))?;
        let watcher = if layout.tls { of_socket(&layout.socket())? } else { client.clone() };
        Ok(Self { layout, processes, listen, client, watcher })
    }

    /// Submits a unit and waits until all of it is bound.
    async fn fill(&self, unit: v1::UnitSpec) -> Result<(), Failure> {
        let mut load = Load::default();
        load.push(&unit);
        let n_replicas = load.n_replicas();
        std::sync::Arc::new(load).submit(self.client.clone(), SubmitWay::Stream, Instant::now()).await?;
        cluster::until("every replica is bound", async || {
            let (units, _) = self.client.list_units(v1::ListUnitsRequest::default(), usize::MAX).await?;
            let running = units.iter().filter_map(|unit| unit.counts.as_ref()).map(|counts| counts.running);
            Ok(running.sum::<u32>() as usize == n_replicas)
        })
        .await
    }

    /// Kills state, starts it again, and waits until everybody is back.
    async fn restart_state(&mut self, n_hostile: usize) -> Result<Return, Failure> {
        let hostile = (n_hostile > 0).then(|| HostileConnections::start(self.listen, n_hostile));
        let revision = self.watcher.store_status().await?.revision;
        let epochs = self.epochs().await?;
        let cpu = self.cpu_s();
        self.processes.kill("state").await;
        let started = Instant::now();
        cluster::start_state_at(&mut self.processes, &self.layout, self.listen).await?;
        let state_s = started.elapsed().as_secs_f64();
        let [half_s, most_s, all_s] = self.until_back(started).await?;
        let used = self.cpu_s();
        let since = |who: &dyn Fn(&str) -> bool| -> f64 {
            let of = |(name, after): (&String, &f64)| {
                // State began with nothing.
                let before = if name == "state" { 0.0 } else { cpu.get(name).copied().unwrap_or_default() };
                who(name).then_some(after - before)
            };
            used.iter().filter_map(of).sum()
        };
        let sessions = if hostile.is_some() { self.away_for(HARM).await? } else { 0 };
        let lost = self.losses(revision, &epochs).await?;
        Ok(Return {
            state_s,
            half_s,
            most_s,
            all_s,
            state_cpu_s: since(&|name| name == "state"),
            agents_cpu_s: since(&is_agent),
            others_cpu_s: since(&|name| name != "state" && !is_agent(name)),
            hostile_opened: hostile.as_ref().map_or(0, HostileConnections::n_opened),
            lost: Losses { sessions, ..lost },
        })
    }

    /// When half of the agents, 99 of 100, and all have a session again: seconds since `started`.
    async fn until_back(&mut self, started: Instant) -> Result<[f64; 3], Failure> {
        let n_nodes = u64::try_from(self.layout.n_nodes).unwrap_or(u64::MAX);
        let goals = [n_nodes.div_ceil(2), (n_nodes * 99).div_ceil(100), n_nodes];
        let mut reached: [Option<f64>; 3] = [None; 3];
        loop {
            // State may be busy with them.
            let sessions = self.watcher.store_status().await.map_or(0, |status| status.sessions);
            let now = started.elapsed();
            for (goal, at) in goals.iter().zip(&mut reached) {
                if sessions >= *goal {
                    at.get_or_insert(now.as_secs_f64());
                }
            }
            if let [Some(half), Some(most), Some(all)] = reached {
                return Ok([half, most, all]);
            }
            if now > READY_TIMEOUT {
                return Err(Failure::new(Code::Timeout, format!("{sessions} of {n_nodes} agents are back")));
            }
            self.processes.check()?;
            tokio::time::sleep(POLL).await;
        }
    }

    /// The most sessions that were away within `time`.
    async fn away_for(&self, time: Duration) -> Result<u64, Failure> {
        let (begun, mut most) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let status = self.watcher.store_status().await?;
            most = most.max(status.nodes.saturating_sub(status.sessions));
            tokio::time::sleep(POLL).await;
        }
        Ok(most)
    }

    /// What was lost since a revision.
    async fn losses(&self, revision: u64, epochs: &BTreeMap<String, u64>) -> Result<Losses, Failure> {
        let until = self.watcher.store_status().await?.revision;
        let request = v1::WatchRequest {
            from_revision: revision + 1,
            kinds: [v1::Kind::Rows, v1::Kind::NodeReport].map(i32::from).into(),
            ..v1::WatchRequest::default()
        };
        let failed = |status: Status| self.client.explain(status).during("the watch");
        let mut stream = self.watcher.state().watch(request).await.map_err(failed)?.into_inner();
        let (mut lost, mut read) = (Losses::default(), revision);
        while read < until {
            let Some(answer) = stream.message().await.map_err(failed)? else { break };
            read = read.max(answer.revision);
            for op in answer.commits.iter().flat_map(|commit| &commit.ops) {
                lost.count(op).map_err(failed)?;
            }
        }
        let granted = self.epochs().await?;
        lost.leases = epochs.iter().filter(|(lease, epoch)| granted.get(*lease) != Some(epoch)).count();
        Ok(lost)
    }

    /// Leases of services and the epochs of their last grants.
    async fn epochs(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let members =
            self.watcher.directory().members("").await.map_err(|status| self.client.explain(status))?;
        let of_services = members.into_iter().filter(|member| !member.lease.starts_with("member/state/"));
        Ok(of_services.map(|member| (member.lease, member.epoch)).collect())
    }

    fn cpu_s(&self) -> BTreeMap<String, f64> {
        let cpu = processes::cpu(&self.processes.pids());
        cpu.into_iter().map(|(name, cpu)| (name, cpu.as_secs_f64())).collect()
    }

    fn rss_mib(&self, of: impl Fn(&str) -> bool) -> f64 {
        let held = processes::each(&self.processes.pids(), usage::rss_bytes);
        held.iter().filter(|(name, _)| of(name)).map(|(_, bytes)| mib(*bytes)).sum()
    }
}

/// A client at the unix socket of state.
fn of_socket(socket: &Path) -> Result<Client, Failure> {
    let socket = std::path::absolute(socket)
        .map_err(|error| Failure::failed(format!("{}: {error}", socket.display())))?;
    Client::patient(format!("unix:{}", socket.display()).as_str())
}

impl Losses {
    /// Counts what a change takes away.
    fn count(&mut self, op: &bytes::Bytes) -> Result<(), Status> {
        use v1::RunPhase::{Failed, Stopped, Succeeded};
        match raw::op_payload(op) {
            Some((PUT_NODE_REPORT, payload)) => {
                let report = v1::NodeReport::decode(payload).map_err(unreadable)?;
                self.nodes += usize::from(!report.ready);
            }
            Some((RUN_STATUS, payload)) => {
                let statuses = v1::RunStatuses::decode(payload).map_err(unreadable)?;
                let ended = |phase: &v1::RunPhase| matches!(phase, Succeeded | Failed | Stopped);
                self.replicas += statuses.phases().filter(ended).count();
            }
            Some((REQUEUE, payload)) => {
                self.replicas += v1::Requeue::decode(payload).map_err(unreadable)?.ordinals.len();
            }
            _ => {}
        }
        Ok(())
    }
}

impl Return {
    fn line(&self) -> String {
        let Self { state_s, half_s, most_s, all_s, state_cpu_s, agents_cpu_s, others_cpu_s, .. } = self;
        let Losses { leases, nodes, replicas, sessions } = self.lost;
        format!(
            "back after {all_s:.2} s (half {half_s:.2}, 99 % {most_s:.2}, state {state_s:.2}); CPU s: state {state_cpu_s:.1}, \
             agents {agents_cpu_s:.1}, others {others_cpu_s:.1}; lost: {leases} leases, {nodes} nodes, {replicas} replicas, {sessions} \
             sessions; {} connections that meant harm",
            self.hostile_opened
        )
    }
}

impl Figures for Reconnect {
    fn text(&self) -> String {
        let Self { nodes, agent_processes, all_s, state_rss_mib, agents_rss_mib, .. } = self;
        let speech = if self.tls { "TLS" } else { "plain text" };
        let lines: String = self.restarts.iter().map(|back| format!("\n  {}", back.line())).collect();
        format!(
            "{nodes} agents in {agent_processes} processes, a connection each, {speech}, {} hostile connections; seconds since the start of state{lines}\n\
             all back     {all_s:.2} at most\n\
             memory       state {state_rss_mib:.0} MiB, agents {agents_rss_mib:.0} MiB, {:.1} a process\n\
             load before  {:.2}\n\
             audit        ok in {:.1} s\n",
            self.hostile,
            per(*agents_rss_mib, count(*agent_processes)),
            self.load_average,
            self.audit_s,
        )
    }

    fn judge(&self) -> Result<(), Failure> {
        let is_lost = |back: &Return| back.lost != Losses::default();
        match self.restarts.iter().find(|back| is_lost(back)) {
            Some(back) => Err(Failure::failed(format!("something was lost: {}", back.line()))),
            None => Ok(()),
        }
    }
}
