//! `godel bench simulate`: where adding a scheduler stops paying.
//!
//! The deciders are the real ones: one `core::dispatcher`, any number of `core::scheduler`s each with a picture of its
//! own, one `core::binder`. Decisions, conflicts, rejections, backoff and the decisions made again are theirs. Only
//! time is modelled ([`delays`]): each part has a core of its own and takes so long for a unit and for a running unit,
//! messages and commits take so long. Virtual time is independent of the machine: equal arguments give equal
//! figures.

mod delays;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use clap::{Args as ClapArgs, ValueEnum as _};
use godel_agent::inventory;
use godel_base::ids::{NodeId, UnitId};
use godel_client::{
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn},
};
use godel_core_scheduler::Config;
use godel_domain::{
    change::{Partition, PartitionMode},
    node::{MAX_RUNNING_UNITS, NodeReport, NodeRuntime, NodeSpec},
    unit::UnitRecord,
};
use godel_model::simulation::{
    self, Nanos, SCHEDULERS, SimulationDelays, SimulationOutcome, SimulationSetup, WorkCost,
};
use godel_rules::{
    admission::admit,
    partition::{self, StrategyKind, Traits},
};
use godel_wire::from_proto;
use serde::Serialize;

use self::delays::DelayArgs;
use super::{
    chart,
    load::Load,
    report::joined,
    workload::{self, Workload},
};

/// Another scheduler pays while throughput rises by this much.
const PAYS: f64 = 0.10;

/// `godel bench simulate`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Simulate {
    /// Numbers of schedulers.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "N,…")]
    schedulers: Vec<u32>,
    /// Number of nodes.
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// The partition mode.
    #[arg(long, value_enum, default_value_t)]
    partition: Split,
    /// The workload.
    #[arg(long, value_enum, default_value_t = Workload::Single)]
    workload: Workload,
    /// Number of units. Default as in `bench e2e`, with at most 200,000 running units of services and gangs.
    #[arg(long, value_name = "N")]
    units: Option<usize>,
    /// Replicas of each unit. Default as in `bench e2e`.
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Percentage of the running units of the mix that belong to services.
    #[arg(long, default_value_t = 50, value_name = "PERCENT")]
    online_share: u32,
    /// Seed of the workload, of the schedulers' scans and of ties.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Hundredths of a core that a scheduler may use.
    #[arg(long, default_value_t = 100, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    scheduler_share: u32,
    /// Nodes of the mixed workload.
    #[arg(long, default_value = "data/openb/openb_node_list_all_node.csv", value_name = "FILE")]
    trace_nodes: PathBuf,
    /// Tasks of the mixed workload.
    #[arg(long, default_value = "data/openb/openb_pod_list_default.csv", value_name = "FILE")]
    trace: PathBuf,
    /// Write the runs to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw throughput and conflicts into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    delays: DelayArgs,
}

/// The partition mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Split {
    /// Every scheduler uses all nodes alike.
    Global,
    /// Own nodes first.
    #[default]
    Preferred,
}

/// One number of schedulers.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Run {
    workload: Workload,
    partition: Split,
    nodes: usize,
    schedulers: u32,
    /// Running units bound.
    placements: u64,
    /// Running units that found no place.
    unplaced: u64,
    /// Virtual, from the first submission to the last binding seen.
    seconds: f64,
    placements_per_s: f64,
    /// Running units refused because another scheduler was faster.
    conflicts: u64,
    /// Of the running units decided.
    conflict_share: f64,
    /// Running units decided again.
    retries: u64,
    /// Running units refused, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// Share of the time that each part was at work; of the schedulers, the mean.
    utilisation: Utilisation,
    /// Rise of throughput with each scheduler added since the run before.
    gain: Option<f64>,
    audit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Utilisation {
    schedulers: f64,
    dispatcher: f64,
    binder: f64,
    state: f64,
}

/// All of them.
#[derive(Debug, Serialize)]
struct SweepReport {
    runs: Vec<Run>,
    /// The last number of schedulers that paid.
    knee: Option<u32>,
}

pub(super) fn run(wanted: &Simulate, format: Format) -> Result<(), Failure> {
    let report = sweep(wanted)?;
    if let Some(path) = &wanted.json {
        let text =
            serde_json::to_string_pretty(&report).map_err(|error| Failure::failed(error.to_string()))?;
        chart::write(path, &(text + "\n"))?;
    }
    if let Some(path) = &wanted.svg {
        chart::write(path, &draw(wanted, &report.runs)?)?;
    }
    match format {
        Format::Table | Format::Wide => {
            output::print_list(format, &report.runs, "runs")?;
            if let Some(knee) = report.knee {
                output::say(format!("adding a scheduler pays up to {knee}"));
            }
            Ok(())
        }
        Format::Json | Format::Yaml => output::print_value(format, &report),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

impl View for Run {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("SCHEDULERS", |view| view.schedulers.to_string()),
        ("PLACEMENTS/S", |view| format!("{:.0}", view.placements_per_s)),
        ("GAIN", |view| view.gain.map(|gain| format!("{:+.1} %", 100.0 * gain)).unwrap_or_default()),
        ("CONFLICTS", |view| format!("{:.2} %", 100.0 * view.conflict_share)),
        ("RETRIES", |view| view.retries.to_string()),
        ("SCHEDULER", |view| percent(view.utilisation.schedulers)),
        ("DISPATCHER", |view| percent(view.utilisation.dispatcher)),
        ("BINDER", |view| percent(view.utilisation.binder)),
        ("STATE", |view| percent(view.utilisation.state)),
        ("UNPLACED", |view| view.unplaced.to_string()),
        ("SECONDS", |view| format!("{:.3}", view.seconds)),
    ];
    const WIDE: &'static [ViewColumn<Self>] =
        &[("REFUSED", |view| joined(view.refused.iter().map(|(reason, n)| format!("{reason} {n}"))))];
}

fn sweep(wanted: &Simulate) -> Result<SweepReport, Failure> {
    let plan = wanted.workload()?.plan()?;
    let nodes = nodes(&plan.shapes)?;
    let loads = plan.steps.iter().map(|step| &step.load);
    let units = units(loads)?;
    let mut runs: Vec<Run> = Vec::new();
    for &n_schedulers in &wanted.schedulers {
        let mut run = simulate(wanted, n_schedulers, &nodes, &units)?;
        run.gain = runs.last().map(|before| gain(before, &run));
        runs.push(run);
    }
    Ok(SweepReport { knee: knee(&runs), runs })
}

fn simulate(
    wanted: &Simulate,
    n_schedulers: u32,
    nodes: &[(NodeSpec, NodeReport)],
    units: &[Arc<UnitRecord>],
) -> Result<Run, Failure> {
    let names = (1..=n_schedulers).map(|idx| format!("s{idx}")).collect();
    let ids = nodes.iter().map(|(spec, _)| spec.id).collect();
    let mode = match wanted.partition {
        Split::Global => PartitionMode::Global,
        Split::Preferred => PartitionMode::Preferred,
    };
    let (strategy, traits) = (StrategyKind::EvenCount.strategy(), Traits::default());
    let partition = partition::split(&Partition::default(), mode, &names, &ids, strategy, &traits)
        .ok_or_else(|| Failure::usage("there must be a scheduler"))?;
    let outcomes = simulation::run(&SimulationSetup {
        nodes,
        units,
        partition,
        config: Config::default(),
        seed: wanted.seed,
        delays: &wanted.delays(),
        scheduler_share: wanted.scheduler_share,
    });
    if let Some(broken) = outcomes.audit.iter().find(|report| report.has_failed()) {
        return Err(Failure::failed(format!("{n_schedulers} schedulers: {broken}")));
    }
    let submitted = units.iter().map(|unit| u64::from(unit.spec.replicas())).sum();
    Ok(figures(wanted, n_schedulers, submitted, outcomes))
}

fn figures(wanted: &Simulate, n_schedulers: u32, submitted: u64, outcomes: SimulationOutcome) -> Run {
    let SimulationOutcome { n_bound, last_bound, answers, busy, audit: _ } = outcomes;
    // What is under way at the end counts whole, so the quotient may be a little too high.
    let share = |busy: &[Nanos]| {
        let whole = last_bound.saturating_mul(busy.len() as u64);
        ratio(busy.iter().sum(), whole).min(1.0)
    };
    let seconds = ratio(last_bound, 1_000_000_000);
    Run {
        workload: wanted.workload,
        partition: wanted.partition,
        nodes: wanted.nodes,
        schedulers: n_schedulers,
        placements: n_bound,
        unplaced: submitted - n_bound,
        seconds,
        placements_per_s: ratio(n_bound, 1) / seconds.max(1e-9),
        conflicts: answers.conflicts,
        conflict_share: ratio(answers.conflicts, answers.decided),
        retries: answers.refused.values().sum(),
        refused: answers.refused,
        utilisation: Utilisation {
            schedulers: share(&busy[SCHEDULERS..]),
            dispatcher: share(&busy[simulation::DISPATCHER..=simulation::DISPATCHER]),
            binder: share(&busy[simulation::BINDER..=simulation::BINDER]),
            state: share(&busy[simulation::STATE..=simulation::STATE]),
        },
        gain: None,
        audit: true,
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts and nanoseconds, far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Rise of throughput with each scheduler added from one run to the other.
fn gain(before: &Run, after: &Run) -> f64 {
    let added = f64::from(after.schedulers) - f64::from(before.schedulers);
    (after.placements_per_s / before.placements_per_s).powf(1.0 / added) - 1.0
}

/// The last number of schedulers before adding one gives less than [`PAYS`].
fn knee(runs: &[Run]) -> Option<u32> {
    let pays = |run: &&Run| run.gain.is_none_or(|gain| gain >= PAYS);
    runs.iter().take_while(pays).last().map(|run| run.schedulers)
}

/// Throughput and conflicts, beside what was published.
fn draw(wanted: &Simulate, runs: &[Run]) -> Result<String, Failure> {
    let points = |y: fn(&Run) -> f64| runs.iter().map(|run| (f64::from(run.schedulers), y(run))).collect();
    let workload =
        wanted.workload.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
    let name = format!("{workload}, {} nodes", wanted.nodes);
    let throughput = chart::ChartLine { name, points: points(|run| run.placements_per_s) };
    let conflicts =
        chart::ChartLine { name: "conflicts".to_owned(), points: points(|run| 100.0 * run.conflict_share) };
    chart::by_schedulers(&[throughput], &[conflicts], &[chart::published()])
        .map_err(|error| Failure::failed(error.to_string()))
}

impl Simulate {
    fn workload(&self) -> Result<workload::Wanted, Failure> {
        let of_200_000 = |usual: u32| 200_000 / self.replicas.unwrap_or(usual).max(1) as usize;
        let units = match self.workload {
            Workload::Service => Some(of_200_000(1_000)),
            Workload::Gang => Some(of_200_000(100)),
            Workload::Single | Workload::Mix | Workload::Mixed => None,
            Workload::Unary
            | Workload::Full
            | Workload::Two
            | Workload::Preempt
            | Workload::Affinity
            | Workload::Rack => {
                return Err(Failure::usage("simulated are service, single, gang, mix and mixed"));
            }
        };
        Ok(workload::Wanted {
            workload: self.workload,
            nodes: self.nodes,
            units: self.units.or(units),
            replicas: self.replicas,
            online_share: self.online_share,
            ends: false,
            seed: self.seed,
            trace: self.trace.clone(),
            trace_nodes: self.trace_nodes.clone(),
        })
    }

    fn delays(&self) -> SimulationDelays {
        let by_workload = if self.workload == Workload::Mixed { WorkCost::MIXED } else { WorkCost::PLAIN };
        self.delays.delays(by_workload)
    }
}

/// Nodes as their agents would report them, numbered in an order that has nothing to do with their shapes.
fn nodes(shapes: &[String]) -> Result<Vec<(NodeSpec, NodeReport)>, Failure> {
    let mut defs = Vec::new();
    for shape in shapes {
        defs.extend(inventory::parse_shape(shape).map_err(|error| Failure::chain(Code::Usage, &error))?);
    }
    defs.sort_by(|a, b| a.uid.cmp(&b.uid));
    let record = |(id, def): (u32, inventory::NodeDef)| {
        let id = NodeId(id);
        let spec = NodeSpec { id, name: def.name, uid: def.uid, ..NodeSpec::default() };
        let report = NodeReport {
            id,
            capacity: def.capacity,
            devices: def.devices,
            zones: def.zones,
            profiles: def.profiles,
            ready: true,
            attributes: def.attributes,
            max_running_units: def.max_running_units.unwrap_or(MAX_RUNNING_UNITS),
            runtime: NodeRuntime::Simulated,
            trouble: String::new(),
        };
        (spec, report)
    };
    Ok((1..).zip(defs).map(record).collect())
}

/// Units as admitted, numbered in order.
fn units<'a>(loads: impl Iterator<Item = &'a Load>) -> Result<Vec<Arc<UnitRecord>>, Failure> {
    let mut units = Vec::new();
    for (id, unit) in (1..).zip(loads.flat_map(Load::units)) {
        let unit = unit.map_err(|error| Failure::failed(error.to_string()))?;
        let admitted = admit(from_proto::submission(unit))
            .map_err(|violations| Failure::failed(format!("a unit is refused: {violations:?}")))?;
        let mut spec = admitted.spec;
        spec.uid = format!("0190163d-8694-739b-aea5-{id:012x}");
        units.push(Arc::new(UnitRecord::new(UnitId(id), spec)));
    }
    Ok(units)
}
