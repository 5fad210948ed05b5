//! `godel bench latency`: single replicas offered at a steady rate, whatever became of those before (an open loop).
//! Latency counts from the moment at which a unit was due, so that a system that falls behind cannot hide it.

pub(super) mod snapshot;

use std::time::Duration;

use clap::Args as ClapArgs;
use godel_client::{exit::Failure, output::Format};

use self::snapshot::{BesideSnapshot, Filling};
use super::{
    cluster::{BenchCluster, Layout},
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
    /// Bind this many running units and restart everything first. State then writes a snapshot of them while units are offered, and the
    /// latency before it and beside it is reported.
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "fill")]
    running_units: Option<usize>,
    /// Replicas of the units of `--running-units`.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "running_units")]
    replicas: u32,
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
    let seed = wanted.setup.seed;
    let filling =
        wanted.running_units.map(|running_units| Filling { running_units, replicas: wanted.replicas, seed });
    let way = SubmitWay::Paced { interval: Duration::from_secs(1) / wanted.rate };
    wanted
        .setup
        .repeat(format, "latency", async |layout| {
            if let Some(filling) = filling {
                return beside_snapshot(&wanted, filling, layout, way).await;
            }
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

async fn beside_snapshot(
    wanted: &LatencyArgs,
    filling: Filling,
    layout: Layout,
    way: SubmitWay,
) -> Result<Run, Failure> {
    let (fills, offered) = filling.loads(wanted.setup.nodes, wanted.units)?;
    let mut cluster = snapshot::start_filled(layout, fills, offered.len() as u64).await?;
    let watch = cluster.watch_snapshot();
    let measured = cluster.run(offered, way).await?;
    let run = cluster.verify(vec![measured.beside(watch.end())]).await?.into_iter().next();
    let run = run.ok_or_else(|| Failure::failed("nothing was measured"))?;
    let Filling { running_units, replicas, .. } = filling;
    let snapshot = run.snapshot.map(|beside| BesideSnapshot { running_units, replicas, ..beside });
    Ok(Run { offered_per_s: Some(wanted.rate), snapshot, ..run })
}
