//! `godel bench reschedule`: how long the rescheduler takes for a plan of each kind on a cluster that runs, with the scheduler's filters and with
//! the checks between policies; no plan is executed.
//!
//! Units of five replicas fill three quarters of the nodes' CPU; a quarter of them has a GPU. Where they are is up to the scheduler. Simulated nodes
//! do not measure single running units: what is asked for counts as used.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Instant};

use clap::Args as ClapArgs;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::Format,
    reschedule, usage,
};
use godel_proto::v1;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;

use super::{
    cluster::{self, Layout, POLL, READY_TIMEOUT},
    load::{Load, SubmitWay},
    once::{Figures, Once},
    processes::BenchProcesses,
    report::mib,
    workload::Maker,
};

const NAME: &str = "rescheduler";
/// Replicas of a unit.
const N_REPLICAS: usize = 5;
/// Nodes of one rack, at most.
const N_NODES_OF_RACK: usize = 200;
/// What a replica asks for, thousandths of a core: on a node of 16 cores, ten of them take three quarters in the mean.
const CPU_MILLI: [i64; 4] = [500, 1_000, 1_500, 2_000];
/// Policies of every kind, each checked by those before it.
const POLICIES: &str = r#"
[rescheduler]
moves_max = 1000
rate_moves = 1000000
[rescheduler.policies.binpack]
kind = "binpack"
args = { use_max = 0.9 }
[rescheduler.policies.load-balance]
kind = "load-balance"
checked_by = ["binpack"]
[rescheduler.policies.spread]
kind = "spread"
checked_by = ["binpack", "load-balance"]
args = { level = "rack", domains = 5 }
[rescheduler.policies.colocation]
kind = "colocation"
checked_by = ["binpack", "load-balance", "spread"]
[rescheduler.policies.whole-nodes]
kind = "defragmentation"
checked_by = ["binpack", "load-balance", "spread", "colocation"]
args = { devices = [{ kind = "gpu", count = 8 }], typical = [{ devices = [{ kind = "gpu", count = 1 }] }] }
[rescheduler.policies.rate]
kind = "defragmentation"
checked_by = ["binpack", "load-balance", "spread", "colocation", "whole-nodes"]
args = { rate_max = 0.0, typical = [{ devices = [{ kind = "gpu", count = 1 }] }, { devices = [{ kind = "gpu", count = 8 }] }] }
"#;
/// Their names, in the order in which they are planned.
const NAMES: [&str; 6] = ["binpack", "load-balance", "spread", "colocation", "whole-nodes", "rate"];

/// `godel bench reschedule`.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_arg("nodes", |nodes| nodes.help("Number of nodes, with 16 CPU, 64 GiB and 8 GPUs each")))]
pub struct RescheduleArgs {
    /// Running units for each node, in the mean.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=12))]
    per_node: u16,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct RescheduleFigures {
    workload: &'static str,
    nodes: usize,
    running_units: usize,
    plans: Vec<PlanFigures>,
    /// The most memory that the rescheduler held after all plans.
    rss_mib: f64,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

#[derive(Clone, Debug, Serialize)]
struct PlanFigures {
    policy: &'static str,
    objective_before: f64,
    objective_after: f64,
    moves: usize,
    batches: u32,
    refused: BTreeMap<String, u64>,
    /// As the rescheduler counts, with the snapshot and the order of moves.
    planning_ms: u64,
    /// As a client sees it.
    answer_ms: u64,
}

pub(super) async fn run(wanted: RescheduleArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "reschedule", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &RescheduleArgs, layout: Layout) -> Result<RescheduleFigures, Failure> {
    let n_nodes = layout.n_nodes;
    let (mut processes, client) = cluster::bring_up(&layout, &shapes(n_nodes), true).await?;
    let (load, traffic) = workload(n_nodes * usize::from(wanted.per_node) / N_REPLICAS);
    let (n_units, running_units) = (load.len(), load.n_replicas());
    Arc::new(load).submit(client.clone(), SubmitWay::Stream, Instant::now()).await?;
    wait_running(&client, &mut processes, n_units).await?;
    let load_average = usage::load_average();
    start(&mut processes, &layout, &client).await?;
    reschedule::report_traffic(&client, &traffic).await?;
    let mut plans = Vec::new();
    for policy in NAMES {
        let asked = Instant::now();
        let plan = reschedule::plan(&client, policy).await.map_err(|failure| failure.during(policy))?;
        processes.check()?;
        plans.push(PlanFigures {
            policy,
            objective_before: plan.objective_before,
            objective_after: plan.objective_after,
            moves: plan.moves.len(),
            batches: plan.n_batches,
            refused: plan.refusals.into_iter().map(|refused| (refused.reason, refused.n)).collect(),
            planning_ms: plan.planning_ms,
            answer_ms: u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
    let pid = processes.pids().into_iter().find(|(name, _)| name == NAME).map(|(_, pid)| pid);
    let rss = pid.and_then(usage::rss_bytes_max).unwrap_or(0);
    let audit_s = cluster::audited(&client).await?;
    Ok(RescheduleFigures {
        workload: "reschedule",
        nodes: n_nodes,
        running_units,
        plans,
        rss_mib: mib(rss),
        load_average,
        audit: true,
        audit_s,
    })
}

/// Nodes in racks, as `godel agent --simulate` takes them.
fn shapes(n_nodes: usize) -> Vec<String> {
    let n_racks = n_nodes.div_ceil(N_NODES_OF_RACK).max(n_nodes.min(N_REPLICAS));
    let rack = |rack: usize| {
        let n = n_nodes / n_racks + usize::from(rack < n_nodes % n_racks);
        format!("{n}x cpu=16,memory=64Gi,gpu=8:A,label.rack=r{rack},name=r{rack}")
    };
    (0..n_racks).map(rack).collect()
}

/// Units, and traffic of each of them with another one.
fn workload(n_units: usize) -> (Load, Vec<v1::UnitTraffic>) {
    let (mut maker, mut rng) = (Maker::new(1, false), StdRng::seed_from_u64(2));
    let mut load = Load::default();
    let mut names = Vec::new();
    for _ in 0..n_units {
        let cpu_milli = CPU_MILLI[rng.random_range(0..CPU_MILLI.len())];
        let replicas = u32::try_from(N_REPLICAS).unwrap_or(1);
        let mut unit = maker.sized(v1::WorkloadClass::Service, replicas, cpu_milli, 1);
        let template = unit.task_groups.iter_mut().find_map(|group| group.template.as_mut());
        if let Some(demand) = template.and_then(|template| template.demand.as_mut())
            && rng.random_ratio(1, 4)
        {
            demand.devices = vec![v1::DeviceRequest {
                kind: "gpu".to_owned(),
                count: 1,
                milli_per_device: Some(1_000),
                ..v1::DeviceRequest::default()
            }];
        }
        names.push(unit.meta.as_ref().map(|meta| meta.name.clone()).unwrap_or_default());
        load.push(&unit);
    }
    let traffic = names.iter().map(|name| v1::UnitTraffic {
        from: name.clone(),
        to: names[rng.random_range(0..names.len())].clone(),
        weight: f64::from(rng.random_range(1..=100u32)),
    });
    let traffic = traffic.collect();
    (load, traffic)
}

async fn wait_running(
    client: &Client,
    processes: &mut BenchProcesses,
    n_units: usize,
) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        processes.check()?;
        let phases = client.dispatcher_status().await?.phases;
        if phases.get("Running").is_some_and(|n| usize::try_from(*n).is_ok_and(|n| n == n_units)) {
            return Ok(());
        }
        if started.elapsed() > READY_TIMEOUT {
            return Err(Failure::new(Code::Timeout, format!("not all of {n_units} units run: {phases:?}")));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Starts the rescheduler and waits until it leads.
async fn start(processes: &mut BenchProcesses, layout: &Layout, client: &Client) -> Result<(), Failure> {
    let file = layout.dir.join("policies.toml");
    let written = std::fs::write(&file, POLICIES);
    written.map_err(|error| Failure::failed(format!("{} cannot be written: {error}", file.display())))?;
    let args = ["serve", "rescheduler", "--address", client.address(), "--config"].map(str::to_owned);
    let args = args.into_iter().chain([file.display().to_string()]).collect();
    cluster::serve(processes, NAME, args, &layout.set).await?;
    let started = Instant::now();
    while let Err(failure) = reschedule::status(client).await {
        processes.check()?;
        if started.elapsed() > READY_TIMEOUT {
            return Err(failure);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

impl Figures for RescheduleFigures {
    fn text(&self) -> String {
        let mut text = format!("{} nodes, {} running units\n", self.nodes, self.running_units);
        for plan in &self.plans {
            let PlanFigures { policy, objective_before, objective_after, moves, batches, .. } = plan;
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{policy:<13} {:>6} ms, answered in {:>6}; {moves} moves in {batches} batches, {objective_before:.3} -> {objective_after:.3}",
                plan.planning_ms, plan.answer_ms
            );
        }
        let _ = writeln!(
            text,
            "memory        {:.0} MiB\nload before   {:.2}\naudit         ok in {:.1} s",
            self.rss_mib, self.load_average, self.audit_s
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_are_in_racks() {
        for n_nodes in [1, 4, 5, 199, 201, 20_000] {
            let counts: Vec<usize> = shapes(n_nodes)
                .iter()
                .map(|shape| shape.split_once('x').unwrap().0.parse().unwrap())
                .collect();
            assert_eq!(counts.iter().sum::<usize>(), n_nodes);
            assert!(counts.iter().all(|n| (1..=N_NODES_OF_RACK).contains(n)), "{n_nodes}: {counts:?}");
        }
    }

    #[test]
    fn units_fit_and_talk() {
        let (load, traffic) = workload(2_000);
        assert_eq!((load.n_replicas(), traffic.len()), (10_000, 2_000));
        let cpu: i64 = load
            .units()
            .map(|unit| unit.unwrap().task_groups[0].template.clone().unwrap())
            .map(|template| template.demand.unwrap().requests.unwrap().amounts["cpu"])
            .sum();
        // Of 1,000 nodes with 16 cores.
        let share = cpu * i64::try_from(N_REPLICAS).unwrap() * 100 / 16_000_000;
        assert!((70..=85).contains(&share), "{share} %");
    }
}
