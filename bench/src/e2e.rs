//! `godel bench e2e`: submits a workload to real processes and measures until its last durable binding is seen.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum as _};
use godel_client::{exit::Failure, output::Format};

use super::{
    cap,
    cluster::{BenchCluster, Layout},
    load::SubmitWay,
    report::Run,
    setup::{Setup, at_least_one},
    workload::{Plan, Step, Wanted, Workload},
};

/// `godel bench e2e`.
#[derive(Clone, Debug, ClapArgs)]
pub struct E2e {
    /// The workload.
    #[arg(long, value_enum, default_value = "service")]
    workload: Workload,
    /// Agents stay connected, run the replicas and report them; the run ends when all reports are recorded.
    #[arg(long)]
    agents: bool,
    /// Number of units. The default keeps the cluster at most half full.
    #[arg(long)]
    units: Option<usize>,
    /// Replicas of each unit. Default 1,000, or 100 for a gang. For the mix, replicas of each service: default 1.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: Option<u32>,
    /// Percentage of the running units of the mix that belong to services.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    online_share: u32,
    /// Number of clients of the unary workload.
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    clients: usize,
    /// Limit each scheduler to this many hundredths of a core after its start; needs root.
    #[arg(long, value_name = "PCT", value_parser = clap::value_parser!(u32).range(cap::PER_CENT_MIN..=100))]
    cap_cpu: Option<u32>,
    /// Tasks of the mixed workload: CSV as for `godel trace replay`.
    #[arg(long, default_value = "data/openb/openb_pod_list_default.csv", value_name = "FILE")]
    trace: PathBuf,
    /// Nodes of the mixed workload: CSV `sn,cpu_milli,memory_mib,gpu,model`.
    #[arg(long, default_value = "data/openb/openb_node_list_all_node.csv", value_name = "FILE")]
    trace_nodes: PathBuf,
    /// Everybody speaks TLS, and has joined.
    #[arg(long)]
    tls: bool,
    /// A principal of role `user` submits the units, with a token of its own, instead of the administrator.
    #[arg(long, requires = "tls")]
    user: bool,
    #[command(flatten)]
    setup: Setup,
}

pub(super) async fn run(wanted: E2e, format: Format) -> Result<(), Failure> {
    let workload = Wanted {
        workload: wanted.workload,
        nodes: wanted.setup.nodes,
        units: wanted.units,
        replicas: wanted.replicas,
        online_share: wanted.online_share,
        ends: wanted.agents,
        seed: wanted.setup.seed,
        trace: wanted.trace.clone(),
        trace_nodes: wanted.trace_nodes.clone(),
    };
    let name =
        wanted.workload.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    wanted.setup.repeat(format, &name, async |layout| measure(&wanted, layout, workload.plan()?).await).await
}

async fn measure(wanted: &E2e, layout: Layout, plan: Plan) -> Result<Run, Failure> {
    // Whatever happens, the caps end after the processes.
    let mut caps = Vec::new();
    let layout = Layout { tls: wanted.tls, by_user: wanted.user, ..layout };
    let mut cluster = BenchCluster::start(layout, &plan.shapes, wanted.agents).await?;
    if let Some(per_cent) = wanted.cap_cpu {
        cluster.cap_schedulers(per_cent, &mut caps)?;
    }
    let way = match wanted.workload {
        Workload::Unary => SubmitWay::Unary(wanted.clients),
        _ => SubmitWay::Stream,
    };
    let mut measured = Vec::new();
    for Step { load, measured: counts } in plan.steps {
        let run = cluster.run(load, way).await?;
        measured.extend(counts.then_some(run));
    }
    let online_share = (wanted.workload == Workload::Mix).then_some(wanted.online_share);
    let runs = cluster.verify(measured).await?.into_iter();
    let mut runs = runs.map(|run| Run { online_share, scheduler_cpu_per_cent: wanted.cap_cpu, ..run });
    match (runs.next(), runs.next()) {
        (Some(before), Some(run)) => Ok(Run { half_full: Some(Box::new(before)), ..run }),
        (Some(run), None) => Ok(run),
        (None, _) => Err(Failure::failed("nothing was measured")),
    }
}
