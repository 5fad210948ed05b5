//! `godel bench agents`: what agents cost state while nothing happens but their heartbeats, each with usage.
//!
//! Memory of a session is what state holds with all of them, less what it holds of the same nodes after a restart
//! without agents. The sessions are spread over the agents' connections, as everywhere.

use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use godel_client::{
    audit,
    client::Client,
    exit::Failure,
    output::{self, Format},
    usage,
};
use serde::Serialize;

use super::{
    cases::per,
    cluster::{self, Layout},
    once::{Figures, Once},
    processes::BenchProcesses,
    report::{count, mib, wide},
};

/// How agents and state are set: a heartbeat each ten seconds, three of which may be missed.
const SETTINGS: [&str; 2] = ["state.heartbeat_interval=10s", "state.node_lease_ttl=30s"];
const HEARTBEAT_S: f64 = 10.0;

/// `godel bench agents`.
#[derive(Clone, Debug, ClapArgs)]
pub struct AgentsArgs {
    /// Measured seconds, after everything is connected. More than 30 prove that heartbeats arrive: without them nodes
    /// would no longer be ready.
    #[arg(long, default_value_t = 35, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct Agents {
    workload: &'static str,
    nodes: usize,
    sessions: u64,
    seconds: f64,
    heartbeats_per_s: f64,
    /// Of one core.
    state_cpu_per_cent: f64,
    /// Of one core, for the process that hosts them.
    agents_cpu_per_cent: f64,
    /// CPU time of state for each.
    state_cpu_us_per_heartbeat: f64,
    /// Of state, at the end of the window.
    state_rss_mib: f64,
    /// Of a restarted state with the same nodes and no session.
    state_rss_without_sessions_mib: f64,
    bytes_per_session: f64,
    /// To disks, by state in the window.
    bytes_written: u64,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

pub(super) async fn run(wanted: AgentsArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "agents", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &AgentsArgs, mut layout: Layout) -> Result<Agents, Failure> {
    layout.set.splice(0..0, SETTINGS.map(str::to_owned));
    let (mut processes, client) = cluster::bring_up(&layout, &wanted.once.shapes(), true).await?;
    output::say("every node is connected");
    let load_average = usage::load_average();
    let (before, started) = (AgentsUse::of(&processes)?, Instant::now());
    tokio::time::sleep(Duration::from_secs(wanted.seconds)).await;
    let (after, seconds) = (AgentsUse::of(&processes)?, started.elapsed().as_secs_f64());
    processes.check()?;
    let sessions = client.store_status().await?.sessions;
    let all_ready = cluster::is_ready(&client, layout.n_nodes, true).await?;
    if !all_ready {
        return Err(Failure::failed("not all nodes are connected and ready at the end"));
    }
    let audit_s = cluster::audited(&client).await?;
    let without = without_sessions(&mut processes, &layout).await?;
    let heartbeats_per_s = wide(sessions) / HEARTBEAT_S;
    let state_s = after.state.saturating_sub(before.state).as_secs_f64();
    let agents_s = after.agents.saturating_sub(before.agents).as_secs_f64();
    Ok(Agents {
        workload: "agents",
        nodes: layout.n_nodes,
        sessions,
        seconds,
        heartbeats_per_s,
        state_cpu_per_cent: state_s / seconds * 100.0,
        agents_cpu_per_cent: agents_s / seconds * 100.0,
        state_cpu_us_per_heartbeat: per(state_s * 1e6, heartbeats_per_s * seconds),
        state_rss_mib: mib(after.rss),
        state_rss_without_sessions_mib: mib(without),
        bytes_per_session: per(wide(after.rss.saturating_sub(without)), count(layout.n_nodes)),
        bytes_written: after.written.saturating_sub(before.written),
        load_average,
        audit: true,
        audit_s,
    })
}

/// What the system says.
struct AgentsUse {
    state: Duration,
    agents: Duration,
    /// Of state.
    rss: u64,
    /// By state.
    written: u64,
}

impl AgentsUse {
    fn of(processes: &BenchProcesses) -> Result<Self, Failure> {
        let pids = processes.pids();
        let pid = |wanted: &str| pids.iter().find(|(name, _)| name == wanted).map(|(_, pid)| *pid);
        let used = pid("state").zip(pid("agents")).and_then(|(state, agents)| {
            Some(Self {
                state: usage::cpu_time(state)?,
                agents: usage::cpu_time(agents)?,
                rss: usage::rss_bytes(state)?,
                written: usage::bytes_written(state)?,
            })
        });
        used.ok_or_else(|| Failure::failed("CPU time and memory of state and the agents are not known"))
    }
}

/// SIGKILL for everything; what a restarted state holds of the same nodes, all of which it must list.
async fn without_sessions(processes: &mut BenchProcesses, layout: &Layout) -> Result<u64, Failure> {
    processes.kill_all().await;
    let address = cluster::start_state(processes, layout, true).await?;
    let client = Client::direct(&address)?;
    let status = client.store_status().await?;
    let pids = processes.pids();
    let state = pids.iter().find(|(name, _)| name == "state");
    let held = state.and_then(|(_, pid)| usage::rss_bytes(*pid));
    let n_listed = audit::list(&client).await?.nodes.len();
    processes.kill_all().await;
    if n_listed != layout.n_nodes || status.sessions != 0 {
        let text = format!("after a kill state lists {n_listed} nodes and {} sessions", status.sessions);
        return Err(Failure::failed(text));
    }
    held.ok_or_else(|| Failure::failed("the memory of a restarted state is not known"))
}

impl Figures for Agents {
    fn text(&self) -> String {
        let Self { sessions, seconds, state_cpu_per_cent, state_cpu_us_per_heartbeat, .. } = self;
        format!(
            "{sessions} agents, {:.0} heartbeats/s over {seconds:.0} s\n\
             state        {state_cpu_per_cent:.2} % of a core, {state_cpu_us_per_heartbeat:.1} CPU us a heartbeat, {} bytes written\n\
             agents       {:.2} % of a core\n\
             memory       state {:.0} MiB, without sessions {:.0} MiB: {:.0} bytes a session\n\
             load before  {:.2}\n\
             audit        ok in {:.1} s\n",
            self.heartbeats_per_s,
            self.bytes_written,
            self.agents_cpu_per_cent,
            self.state_rss_mib,
            self.state_rss_without_sessions_mib,
            self.bytes_per_session,
            self.load_average,
            self.audit_s,
        )
    }
}
