//! How long plans take on a made-up cluster of any size: ten running units a node, five policies.

use std::{io::Write, time::Instant};

use godel_base::{
    ids::{NodeId, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, NETWORK, Resources},
};
use godel_core_rescheduler::{
    Aim, Binpack, ClusterSnapshot, Colocation, Defragmentation, Draws, FailureDomainSpread, Layout,
    LoadBalance, MeasuredUse, NodeFacts, NodeFilters, PlanLimits, Policy, RunningFacts, TrafficShare,
    TypicalDemand, UnitFacts, make_plan, order_moves,
};
use godel_domain::{allocation::DeviceSet, demand::Demand, node::Device, unit::WorkloadClass};
use godel_testkit::BuildDemand as _;

/// Running units of a node, replicas of a unit, GPUs of a node.
const N_EACH: usize = 10;
const N_REPLICAS: usize = 5;
const N_GPUS: usize = 8;

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn gpu(count: u32, milli: u32) -> Demand {
    godel_testkit::demand(4_000).memory(8 << 30).gpus(count, milli, &[])
}

fn cluster(n_nodes: usize) -> ClusterSnapshot {
    let mut draws = Draws::new(7);
    let device = Device { kind: "gpu".to_owned(), model: "a".to_owned(), numa_zone: 0, details: None };
    let capacity = [(CPU, 96_000), (MEMORY, 512 << 30), (NETWORK, 25_000_000_000)];
    let id = |at: usize| NodeId(u32::try_from(at + 1).unwrap_or(u32::MAX));
    let nodes = (0..n_nodes).map(|at| NodeFacts {
        devices: vec![device.clone(); N_GPUS],
        labels: [("rack".to_owned(), format!("rack-{}", at / 16))].into(),
        ..NodeFacts::new(id(at), format!("node-{at}"), Resources::new(capacity).unwrap_or_default())
    });
    let n_units = n_nodes * N_EACH / N_REPLICAS;
    let units = (1..=n_units).map(|at| {
        let id = UnitId(u64::try_from(at).unwrap_or(0));
        UnitFacts::new(id, format!("unit-{at}"), WorkloadClass::Service, 1_000)
    });
    let mut running = Vec::new();
    let mut next = vec![0u32; n_units];
    for at in 0..n_nodes {
        let mut gpu_milli = 0;
        for _ in 0..draws.below(2 * N_EACH + 1) {
            let owner = draws.below(n_units);
            let (demand, devices) = match draws.below(4) {
                0 if gpu_milli < N_GPUS => {
                    gpu_milli += 1;
                    (gpu(1, 1_000), [gpu_milli - 1].into_iter().collect())
                }
                _ => {
                    let cpu = 1_000 + signed(draws.below(5_000));
                    (godel_testkit::demand(cpu).memory(4 << 30), DeviceSet::NONE)
                }
            };
            let ordinal = next[owner];
            next[owner] += 1;
            let unit = UnitId(u64::try_from(owner + 1).unwrap_or(0));
            running.push(RunningFacts {
                devices,
                usage: MeasuredUse {
                    cpu_milli: signed(draws.below(9_000)),
                    network_bps: signed(draws.below(2_200_000_000)),
                },
                ..RunningFacts::new(RunningUnitId::new(unit, ordinal, 0), id(at), demand)
            });
        }
    }
    let mut unit = || UnitId(u64::try_from(1 + draws.below(n_units)).unwrap_or(1));
    let traffic = (0..n_units).map(|_| TrafficShare { between: (unit(), unit()), weight: 1.0 }).collect();
    ClusterSnapshot {
        nodes: nodes.collect(),
        units: units.collect(),
        running,
        traffic,
        ..ClusterSnapshot::default()
    }
}

/// Prints how long the plan of each policy takes.
pub(crate) fn measure(out: &mut dyn Write, n_nodes: usize) -> anyhow::Result<()> {
    let snapshot = cluster(n_nodes);
    let begin = Instant::now();
    let layout = Layout::new(&snapshot)?;
    writeln!(
        out,
        "{n_nodes} nodes, {} running units; layout in {} ms",
        layout.n_running(),
        begin.elapsed().as_millis()
    )?;
    let typical = vec![
        TypicalDemand { demand: gpu(1, 500), weight: 2.0 },
        TypicalDemand { demand: gpu(1, 1_000), weight: 2.0 },
        TypicalDemand { demand: gpu(8, 1_000), weight: 1.0 },
    ];
    let room = Aim::Room {
        demand: gpu(8, 1_000),
        n_copies: 1,
        level: None,
        n_enough: None,
        n_moves_each_max: Some(8),
    };
    let whole = Defragmentation { aim: room, typical: typical.clone() };
    let rate = Defragmentation { aim: Aim::Rate { n_steps_each: 8, rate_max: 0.0 }, typical };
    let spread = FailureDomainSpread { level: Some("rack".to_owned()), n_domains: 4 };
    let colocation = Colocation { n_steps_each: 40, ..Colocation::default() };
    let (balance, pack) = (LoadBalance::default(), Binpack::default());
    let policies: [(&str, &dyn Policy); 6] = [
        ("defragmentation, whole nodes", &whole),
        ("defragmentation, rate", &rate),
        ("load balance", &balance),
        ("spread", &spread),
        ("bin packing", &pack),
        ("co-location", &colocation),
    ];
    for (name, policy) in policies {
        let begin = Instant::now();
        let plan =
            make_plan(policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(layout.n_running() / 10));
        let plan_ms = begin.elapsed().as_millis();
        let begin = Instant::now();
        let batches = order_moves(&layout, &plan.moves, &NodeFilters);
        let order_ms = begin.elapsed().as_millis();
        writeln!(
            out,
            "{name:<30} {:>12.4} -> {:<12.4} {:>6} moves {:>4} batches   plan {plan_ms:>6} ms, order {order_ms:>6} ms",
            plan.before,
            plan.after,
            plan.moves.len(),
            batches.batches.len()
        )?;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: not known");
    writeln!(out, "most memory: {}", peak.trim_start_matches("VmHWM:").trim())?;
    Ok(())
}
