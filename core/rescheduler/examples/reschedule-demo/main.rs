//! `make reschedule-demo`: what each policy of the rescheduler does on real traces, beside baselines and bounds.
//!
//! `--seeds N` bounds the seeds, `--only NAME` chooses a policy, `--heat` and `--steps` change the search of co-location, `--scale
//! NODES` measures time on a made-up cluster instead.

mod baseline;
mod bounds;
mod m3;
mod openb;
mod scale;

use std::{
    io::{self, Write},
    path::Path,
    time::Instant,
};

use godel_core_rescheduler::{
    Aim, Colocation, Defragmentation, FailureDomainSpread, Fragmentation, Layout, LoadBalance, MoveBatches,
    NodeFilters, PlanLimits, Policy, ReschedulePlan, make_plan, order_moves,
};
use godel_domain::demand::Demand;
use godel_testkit::BuildDemand as _;

use crate::openb::{Chooses, PlacedTask, Trace, churn};

/// Seeds of the churn.
const SEEDS: std::ops::Range<u64> = 42..52;

/// A plan with its batches and how long both took.
struct Made {
    plan: ReschedulePlan,
    batches: MoveBatches,
    plan_ms: u128,
    order_ms: u128,
}

fn make(policy: &dyn Policy, layout: &Layout<'_>, n_moves_max: usize, seed: u64) -> Made {
    let limits = PlanLimits { seed, ..PlanLimits::of_moves(n_moves_max) };
    let begin = Instant::now();
    let plan = make_plan(policy, layout, &[], &NodeFilters, &limits);
    let plan_ms = begin.elapsed().as_millis();
    let begin = Instant::now();
    let batches = order_moves(layout, &plan.moves, &NodeFilters);
    Made { plan, batches, plan_ms, order_ms: begin.elapsed().as_millis() }
}

/// The layout after a plan.
fn after<'a>(layout: &Layout<'a>, plan: &ReschedulePlan) -> Layout<'a> {
    let mut after = layout.clone();
    after.apply(&plan.moves);
    after
}

/// The median, and the worst by a direction.
fn summary(out: &mut dyn Write, what: &str, mut values: Vec<f64>, higher_is_better: bool) -> io::Result<()> {
    values.sort_by(f64::total_cmp);
    if !higher_is_better {
        values.reverse();
    }
    let (Some(worst), Some(median)) = (values.first(), values.get(values.len() / 2)) else { return Ok(()) };
    writeln!(out, "  {what}: median {median:.3}, worst {worst:.3}")
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// A whole node of eight GPUs.
fn eight_gpus() -> Demand {
    Demand::default().gpus(8, 1_000, &[])
}

fn whole_nodes(
    out: &mut dyn Write,
    trace: &Trace,
    clusters: &[(u64, Vec<PlacedTask>)],
) -> anyhow::Result<()> {
    writeln!(
        out,
        "\n## Defragmentation: wholly free nodes of eight GPUs (openb after churn, scorer `fragmentation-gradient`)"
    )?;
    writeln!(
        out,
        "seed  whole      bound  moves  per GPU  fragmentation %   batches detours  plan ms order ms   evicting baseline: whole, moves, per GPU, fragmentation %"
    )?;
    let (mut whole_after, mut per_gpus) = (Vec::new(), Vec::new());
    for (seed, tasks) in clusters {
        let snapshot = openb::snapshot(trace, tasks, *seed);
        let layout = Layout::new(&snapshot)?;
        let policy = Defragmentation {
            aim: Aim::Room {
                demand: eight_gpus(),
                n_copies: 1,
                level: None,
                n_enough: None,
                n_moves_each_max: Some(8),
            },
            typical: trace.typical(),
        };
        let made = make(&policy, &layout, tasks.len() / 10, *seed);
        let after = after(&layout, &made.plan);
        let is_whole = |layout: &Layout<'_>| {
            let of_node = |node| {
                layout.rooms().devices_left(node).len() == 8
                    && layout.rooms().devices_left(node).iter().all(|left| *left == 1_000)
            };
            layout.nodes().filter(|node| of_node(*node)).count()
        };
        let (before_n, after_n) = (is_whole(&layout), is_whole(&after));
        let rate =
            |layout: &Layout<'_>| 100.0 * Fragmentation::new(&mut layout.clone(), &trace.typical()).rate();
        let per_gpu = count(made.plan.moves.len()) / (8.0 * count(after_n.saturating_sub(before_n))).max(1.0);
        let other = baseline::empty_nodes(trace, tasks, *seed);
        let other_gained = 8.0 * (count(other.n_whole) - count(before_n));
        let bound = bounds::most_whole_nodes(trace, tasks).unwrap_or(f64::NAN);
        writeln!(
            out,
            "{seed}  {before_n:>4} -> {after_n:<4} {bound:>5.0} {:>6} {per_gpu:>7.2}   {:>6.2} -> {:<6.2} {:>6} {:>6} {:>9} {:>7}   {:>4} {:>5} {:>6.2} {:>6.2}",
            made.plan.moves.len(),
            rate(&layout),
            rate(&after),
            made.batches.batches.len(),
            made.batches.n_detours(),
            made.plan_ms,
            made.order_ms,
            other.n_whole,
            other.n_moves,
            count(other.n_moves) / other_gained.max(1.0),
            100.0 * other.rate,
        )?;
        whole_after.push(count(after_n));
        per_gpus.push(per_gpu);
    }
    summary(out, "wholly free nodes", whole_after, true)?;
    summary(out, "moves per GPU freed", per_gpus, false)?;
    Ok(())
}

fn rate(
    out: &mut dyn Write,
    trace: &Trace,
    clusters: &[(u64, Vec<PlacedTask>)],
    title: &str,
) -> anyhow::Result<()> {
    writeln!(out, "\n## Defragmentation: fragmentation rate, {title}")?;
    writeln!(
        out,
        "seed  rate %             fall %  bound %  gap %  moves  batches detours impossible  plan ms order ms   evicting baseline: rate %, moves"
    )?;
    let mut falls = Vec::new();
    for (seed, tasks) in clusters {
        let snapshot = openb::snapshot(trace, tasks, *seed);
        let layout = Layout::new(&snapshot)?;
        let policy =
            Defragmentation { aim: Aim::Rate { n_steps_each: 200, rate_max: 0.0 }, typical: trace.typical() };
        let made = make(&policy, &layout, tasks.len() / 10, *seed);
        let fall = 100.0 * (1.0 - made.plan.after / made.plan.before);
        let bound = 100.0 * bounds::least_rate(trace, tasks).unwrap_or(f64::NAN);
        let other = baseline::evict_fragmenting(trace, tasks, *seed);
        writeln!(
            out,
            "{seed}  {:>6.2} -> {:<6.2} {fall:>8.1} {bound:>8.2} {:>6.2} {:>6} {:>8} {:>7} {:>9} {:>9} {:>7}   {:>6.2} {:>6}",
            100.0 * made.plan.before,
            100.0 * made.plan.after,
            100.0 * made.plan.after - bound,
            made.plan.moves.len(),
            made.batches.batches.len(),
            made.batches.n_detours(),
            made.batches.impossible.len(),
            made.plan_ms,
            made.order_ms,
            100.0 * other.rate,
            other.n_moves,
        )?;
        falls.push(fall);
    }
    summary(out, "fall, %", falls, true)?;
    Ok(())
}

fn load(out: &mut dyn Write, trace: &Trace, clusters: &[(u64, Vec<PlacedTask>)]) -> anyhow::Result<()> {
    writeln!(
        out,
        "\n## Load balance: hot nodes above 85 %, of {}; by one unit alone apart",
        trace.nodes.len()
    )?;
    writeln!(
        out,
        "seed  CPU-hot (alone)       network-hot (alone)   moves (at least)  batches detours  plan ms order ms   evicting baseline: CPU, network, moves"
    )?;
    let (mut cpu_left, mut network_left) = (Vec::new(), Vec::new());
    for (seed, tasks) in clusters {
        let snapshot = openb::snapshot(trace, tasks, *seed);
        let layout = Layout::new(&snapshot)?;
        let policy = LoadBalance::default();
        let made = make(&policy, &layout, tasks.len() / 10, *seed);
        let ([cpu, network], [cpu_after, network_after]) =
            (policy.hot_nodes(&layout), policy.hot_nodes(&after(&layout, &made.plan)));
        let least = bounds::least_moves_to_cool(&layout, policy.hot);
        let ([other_cpu, other_network], other_moves) = baseline::cool_nodes(trace, tasks, *seed, policy)?;
        writeln!(
            out,
            "{seed}  {:>4} ({}) -> {:<4} ({})   {:>4} ({}) -> {:<4} ({})   {:>5} {least:>8.1} {:>8} {:>7} {:>9} {:>7}   {:>4} {:>4} {:>5}",
            cpu.hot,
            cpu.alone,
            cpu_after.hot,
            cpu_after.alone,
            network.hot,
            network.alone,
            network_after.hot,
            network_after.alone,
            made.plan.moves.len(),
            made.batches.batches.len(),
            made.batches.n_detours(),
            made.plan_ms,
            made.order_ms,
            other_cpu.hot,
            other_network.hot,
            other_moves,
        )?;
        cpu_left.push(count(cpu_after.hot) / count(cpu.hot).max(1.0));
        network_left.push(100.0 * count(network_after.hot) / count(trace.nodes.len()));
    }
    summary(out, "CPU-hot nodes left, as a share", cpu_left, false)?;
    summary(out, "network-hot nodes left, % of all nodes", network_left, false)?;
    Ok(())
}

fn spread(out: &mut dyn Write, path: &Path) -> anyhow::Result<()> {
    let snapshot = m3::read(path)?;
    let layout = Layout::new(&snapshot)?;
    writeln!(out, "\n## Spread: services of at least two replicas over racks of 16 machines (m3)")?;
    writeln!(
        out,
        "no rack has more than one part of  services so spread %  bound %   moves  batches detours impossible  plan ms order ms"
    )?;
    for n_domains in [2, 3, 6] {
        let policy = FailureDomainSpread { level: Some("rack".to_owned()), n_domains };
        let made = make(&policy, &layout, layout.n_running(), 42);
        let after = after(&layout, &made.plan);
        let bound = 100.0 * bounds::most_spread(&layout, "rack", n_domains);
        writeln!(
            out,
            "{n_domains:>31}      {:>7.2} -> {:<7.2} {bound:>8.2} {:>9} {:>8} {:>7} {:>9} {:>9} {:>7}",
            100.0 * policy.share_spread(&layout),
            100.0 * policy.share_spread(&after),
            made.plan.moves.len(),
            made.batches.batches.len(),
            made.batches.n_detours(),
            made.batches.impossible.len(),
            made.plan_ms,
            made.order_ms,
        )?;
    }
    Ok(())
}

fn colocation(out: &mut dyn Write, path: &Path, policy: Colocation) -> anyhow::Result<()> {
    let snapshot = m3::read(path)?;
    let layout = Layout::new(&snapshot)?;
    writeln!(out, "\n## Co-location: traffic kept on a machine (m3)")?;
    writeln!(
        out,
        "moved at most  kept %            bound %   latency ms        moves  batches detours impossible  plan ms order ms"
    )?;
    let n = layout.n_running();
    for (name, n_moves_max) in [("10 %", n / 10), ("a third", n / 3), ("all", n)] {
        let made = make(&policy, &layout, n_moves_max, 42);
        let bound = 100.0 * bounds::most_traffic_kept(&snapshot, &layout, n_moves_max).unwrap_or(f64::NAN);
        let latency = |remote: f64| 0.1 + 0.4 * remote;
        writeln!(
            out,
            "{name:>13}  {:>5.1} -> {:<6.1} {bound:>9.1}   {:.3} -> {:.3} {:>9} {:>8} {:>7} {:>9} {:>9} {:>7}",
            100.0 * (1.0 - made.plan.before),
            100.0 * (1.0 - made.plan.after),
            latency(made.plan.before),
            latency(made.plan.after),
            made.plan.moves.len(),
            made.batches.batches.len(),
            made.batches.n_detours(),
            made.batches.impossible.len(),
            made.plan_ms,
            made.order_ms,
        )?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let n_seeds = value("--seeds").and_then(|text| text.parse().ok()).unwrap_or(SEEDS.count());
    let only = value("--only");
    let wants = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    let m3 = data.join("m3/M3.json");
    let mut out = io::stdout().lock();
    if let Some(n_nodes) = value("--scale") {
        return scale::measure(&mut out, n_nodes.parse()?);
    }
    if ["defragmentation", "rate", "load-balance"].iter().any(|name| wants(name)) {
        let trace = Trace::read(&data.join("openb"))?;
        let churned = |chooses| -> Vec<(u64, Vec<PlacedTask>)> {
            SEEDS.take(n_seeds).map(|seed| (seed, churn(&trace, seed, chooses))).collect()
        };
        let clusters = churned(Chooses::ByGradient);
        if wants("defragmentation") {
            whole_nodes(&mut out, &trace, &clusters)?;
        }
        if wants("rate") {
            rate(&mut out, &trace, &clusters, "placed by `fragmentation-gradient`")?;
            rate(&mut out, &trace, &churned(Chooses::AtRandom), "placed at random")?;
        }
        if wants("load-balance") {
            load(&mut out, &trace, &clusters)?;
        }
    }
    if wants("spread") {
        spread(&mut out, &m3)?;
    }
    if wants("colocation") {
        let default = Colocation::default();
        let heat = value("--heat").and_then(|text| text.parse().ok()).unwrap_or(default.heat);
        let n_steps_each =
            value("--steps").and_then(|text| text.parse().ok()).unwrap_or(default.n_steps_each);
        colocation(&mut out, &m3, Colocation { heat, n_steps_each, ..default })?;
    }
    Ok(())
}
