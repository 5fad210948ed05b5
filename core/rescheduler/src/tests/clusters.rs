//! Clusters for tests, by a seed.

use godel_base::{
    ids::{NodeId, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, NETWORK, Resources},
    time::Millis,
};
use godel_domain::{demand::Demand, node::Device, unit::WorkloadClass};
use godel_testkit::BuildDemand as _;

use crate::{
    layout::{Layout, NodeIdx},
    search::Draws,
    snapshot::{ClusterSnapshot, MeasuredUse, NodeFacts, RunningFacts, TrafficShare, UnitFacts},
};

/// How large a cluster is, and what it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) n_nodes: usize,
    pub(crate) n_units: usize,
    pub(crate) n_running: usize,
    /// Shares of GPUs are asked for as well as whole ones.
    pub(crate) has_shares: bool,
}

pub(crate) const NODE_CPU: i64 = 16_000;
pub(crate) const N_GPUS: usize = 4;

pub(crate) fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap()
}

pub(crate) fn demand(cpu: i64, gpus: u32, milli: u32) -> Demand {
    godel_testkit::demand(cpu).memory(cpu << 20).gpus(gpus, milli, &[])
}

/// Returns a node with sixteen cores and some GPUs, two nodes to a rack.
pub(crate) fn node(at: usize, n_gpus: usize) -> NodeFacts {
    let device = Device { kind: "gpu".to_owned(), model: "a".to_owned(), numa_zone: 0, details: None };
    let capacity = [(CPU, NODE_CPU), (MEMORY, NODE_CPU << 20), (NETWORK, 1_000)];
    let id = NodeId(u32::try_from(at + 1).unwrap());
    NodeFacts {
        devices: vec![device; n_gpus],
        labels: [("rack".to_owned(), format!("r{}", at / 2))].into(),
        ..NodeFacts::new(id, format!("node-{at}"), Resources::new(capacity).unwrap())
    }
}

/// Returns a unit.
pub(crate) fn unit(at: usize, class: WorkloadClass) -> UnitFacts {
    UnitFacts::new(UnitId(u64::try_from(at + 1).unwrap()), format!("unit-{at}"), class, 10)
}

/// Returns a replica of a unit on a node.
pub(crate) fn running(unit: usize, ordinal: u32, at: usize, demand: Demand) -> RunningFacts {
    let id = RunningUnitId::new(UnitId(u64::try_from(unit + 1).unwrap()), ordinal, 0);
    RunningFacts::new(id, NodeId(u32::try_from(at + 1).unwrap()), demand)
}

/// Returns a cluster in which everything is somewhere with room for it; what found no room is not there.
pub(crate) fn random(seed: u64, size: Size) -> ClusterSnapshot {
    let mut draws = Draws::new(seed);
    let mut snapshot = ClusterSnapshot {
        now: Millis(1_000),
        nodes: (0..size.n_nodes).map(|at| node(at, if at % 3 == 2 { 0 } else { N_GPUS })).collect(),
        units: (0..size.n_units)
            .map(|at| {
                unit(at, if draws.below(4) == 0 { WorkloadClass::Training } else { WorkloadClass::Service })
            })
            .collect(),
        ..ClusterSnapshot::default()
    };
    let mut ordinals = vec![0; size.n_units];
    let mut empty = snapshot.clone();
    for _ in 0..size.n_running {
        let owner = draws.below(size.n_units);
        let wanted = match draws.below(if size.has_shares { 4 } else { 3 }) {
            0 => demand(
                1_000 + 500 * signed(draws.below(4)),
                1 + u32::try_from(draws.below(2)).unwrap(),
                1_000,
            ),
            3 => demand(500, 1, 200 + 100 * u32::try_from(draws.below(6)).unwrap()),
            _ => demand(500 + 500 * signed(draws.below(8)), 0, 1_000),
        };
        let mut layout = Layout::new(&empty).unwrap();
        let shape = layout.rooms_mut().intern(&wanted);
        let start = draws.below(size.n_nodes);
        let order = (0..size.n_nodes).map(|step| NodeIdx::at((start + step) % size.n_nodes));
        let Some((at, devices)) = order.filter_map(|at| Some((at, layout.rooms().fit(shape, at)?))).next()
        else {
            continue;
        };
        let mut one = running(owner, ordinals[owner], at.idx(), wanted);
        one.devices = devices;
        one.started_at = Millis(u64::try_from(draws.below(1_000)).unwrap());
        one.usage =
            MeasuredUse { cpu_milli: signed(draws.below(6_000)), network_bps: signed(draws.below(400)) };
        ordinals[owner] += 1;
        empty.running.push(one);
    }
    snapshot.running = empty.running;
    let id = |at: usize| UnitId(u64::try_from(at + 1).unwrap());
    for _ in 0..size.n_units {
        let between = (id(draws.below(size.n_units)), id(draws.below(size.n_units)));
        snapshot.traffic.push(TrafficShare { between, weight: 1.0 + draws.unit() });
    }
    snapshot
}

/// Asserts that no node gives more than it has, counted from the facts alone.
pub(crate) fn assert_room(layout: &Layout<'_>) {
    for at in layout.nodes() {
        let (mut cpu, mut gpus) = (0, vec![0u32; layout.node(at).devices.len()]);
        for unit in layout.on(at) {
            let facts = layout.facts(*unit);
            cpu += facts.demand.requests.get(CPU);
            let milli = facts.demand.devices.first().map_or(0, |request| request.milli);
            let n: u32 = facts.demand.devices.iter().map(|request| request.count).sum();
            assert_eq!(layout.devices(*unit).len(), n, "{}: as many devices as asked for", facts.id.unit);
            layout.devices(*unit).iter().for_each(|device| gpus[device] += milli);
        }
        let has = layout.node(at).capacity.get(CPU);
        assert!(
            cpu <= has && gpus.iter().all(|used| *used <= 1_000),
            "{}: {cpu} {gpus:?}",
            layout.node(at).name
        );
    }
}

/// Returns the snapshot as it is when everything is where a layout has it.
pub(crate) fn settled(layout: &Layout<'_>) -> ClusterSnapshot {
    let mut snapshot = layout.snapshot().clone();
    for unit in layout.running() {
        snapshot.running[unit.idx()].node = layout.node(layout.node_of(unit)).id;
        snapshot.running[unit.idx()].devices = layout.devices(unit);
    }
    snapshot
}
