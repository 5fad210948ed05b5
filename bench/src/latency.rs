//! `godel bench latency`: single replicas offered at a steady rate, whatever became of those before (an open loop).
//! Latency counts from the moment at which a unit was due, so that a system that falls behind cannot hide it.

use std::time::Duration;

use clap::Args as ClapArgs;
use godel_client::{exit::Failure, output::Format};

use super::{
    cluster::BenchCluster,
    load::SubmitWay,
    report::Run,
    setup::{Setup, at_least_one},
    workload::{Passing, Wanted, Workload},
};

/// `godel bench latency`.
#[derive(Clone, Debug, ClapArgs)]
pub struct LatencyArgs {
    /// Units offered per second.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Units offered in total.
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one)]
    units: usize,
    /// Percentage of the nodes' room to keep allocated: agents run each replica accordingly and report its end; the run
    /// ends when all reports are recorded. Without it there are no agents and nothing ends.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    fill: Option<u32>,
    /// CPUs of each node with `--fill`, with 4 GiB per CPU.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000), requires = "fill")]
    node_cpu: u32,
    #[command(flatten)]
    setup: Setup,
}

pub(super) async fn run(wanted: LatencyArgs, format: Format) -> Result<(), Failure> {
    let workload = Wanted {
        workload: Workload::Single,
        nodes: wanted.setup.nodes,
        units: Some(wanted.units),
        replicas: Some(1),
        online_share: 0,
        ends: false,
        seed: wanted.setup.seed,
        trace: "".into(),
        trace_nodes: "".into(),
    };
    let passing = wanted.fill.map(|fill| Passing {
        nodes: wanted.setup.nodes,
        node_cpu: wanted.node_cpu,
        rate: wanted.rate,
        units: wanted.units,
        fill,
        seed: wanted.setup.seed,
    });
    let way = SubmitWay::Paced { interval: Duration::from_secs(1) / wanted.rate };
    wanted
        .setup
        .repeat(format, "latency", async |layout| {
            let plan = passing.map_or_else(|| workload.plan(), |passing| passing.plan())?;
            let mut cluster = BenchCluster::start(layout, &plan.shapes, passing.is_some()).await?;
            let mut measured = Vec::new();
            for step in plan.steps {
                measured.push(cluster.run(step.load, way).await?);
            }
            let run = cluster.verify(measured).await?.into_iter().next();
            let run = run.ok_or_else(|| Failure::failed("nothing was measured"))?;
            Ok(Run { offered_per_s: Some(wanted.rate), filled_percent: wanted.fill, ..run })
        })
        .await
}
