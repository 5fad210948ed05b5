//! Accounting against a rebuild from scratch, and the choice of devices.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, RUNNING_UNITS, Resources},
};
use godel_domain::{
    allocation::{Allocation, CoreSet, DeviceSet, GivenZones, ZoneSet},
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec, NodeUsage},
    running_units::{
        Bind, Evict, EvictionReason, Phase, PreemptionTerms, Requeue, RunChange, RunningUnits, Statuses,
    },
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};
use godel_testkit::BuildDemand as _;
use proptest::prelude::*;

use devices::{one_node, with_nic};

use super::*;

mod devices;
mod domains;
mod gathering;
mod shrunk;
mod slots;
mod sub_clusters;
mod trial;
mod zones;

const N_NODES: u32 = 5;
const N_UNITS: u64 = 4;

fn gpu(model: &str) -> Device {
    Device { kind: "gpu".to_owned(), model: model.to_owned(), numa_zone: 0, details: None }
}

fn demand(cpu: i64, count: u32, milli: u32, models: &[&str]) -> Demand {
    godel_testkit::demand(cpu).gpus(count, milli, models)
}

fn unit_demand(unit: u64) -> Demand {
    match unit % 4 {
        0 => Demand {
            requests: Resources::new([("fpga", 1), (MEMORY, 5)]).unwrap(),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        },
        1 => demand(100, 2, 1000, &[]),
        2 => with_nic((1, 250, &["A"]), 500),
        _ => zoned(700),
    }
}

fn zoned(cpu: i64) -> Demand {
    let zones = ZoneRequest { policy: ZonePolicy::Restricted, cpu_mode: CpuMode::Shared };
    Demand { zones: Some(zones), ..demand(cpu, 0, 0, &[]) }
}

/// What a running unit is given, whether or not it is what it asks for.
fn given(unit: u64, mask: u64) -> Allocation {
    let cores = CoreSet(mask >> 1);
    let zones = GivenZones { zones: ZoneSet(mask & 0b11), cores };
    let zones = if unit % 4 == 3 && mask & 0b11 > 0 { zones } else { GivenZones::NONE };
    Allocation { devices: DeviceSet(mask), zones }
}

fn unit_pool(unit: u64) -> Pool {
    if unit.is_multiple_of(2) { Pool::BestEffort } else { Pool::Guaranteed }
}

fn time_ms(revision: u64) -> i64 {
    i64::try_from(revision).unwrap() * 10
}

fn usage(node: u32, cpu: i64, as_of_ms: i64) -> NodeUsage {
    NodeUsage {
        id: NodeId(node),
        reserved: Resources::new([(CPU, cpu)]).unwrap(),
        as_of_ms,
        ..NodeUsage::default()
    }
}

#[derive(Clone, Debug)]
enum Event {
    Spec(u32, bool),
    Report(u32, i64, usize, bool),
    Allocatable(u32, i64),
    Remove(u32),
    Bind(u64, u32, u32, u64),
    End(u64, u32),
    Evict(u64, u32),
    Requeue(u64, u32),
    Assume(u64, u32, u32, u64),
    Forget(u64, u32),
    RemoveUnit(u64),
    Foreign(u32, i64, u32),
    ClearForeign(u32),
    Reload(u64),
    Terms(u64, i32),
    Usage(u32, i64, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let node = || 1..=N_NODES;
    let unit = || 1..=N_UNITS;
    prop_oneof![
        (node(), any::<bool>()).prop_map(|(node, cordoned)| Event::Spec(node, cordoned)),
        (node(), 0..2000i64, 0..4usize, any::<bool>())
            .prop_map(|(node, cpu, gpus, ready)| Event::Report(node, cpu, gpus, ready)),
        (node(), 0..2000i64).prop_map(|(node, cpu)| Event::Allocatable(node, cpu)),
        node().prop_map(Event::Remove),
        (unit(), 0..3u32, node(), 0..8u64)
            .prop_map(|(unit, ordinal, node, mask)| Event::Bind(unit, ordinal, node, mask)),
        (unit(), 0..3u32, node(), 0..8u64)
            .prop_map(|(unit, ordinal, node, mask)| Event::Bind(unit, ordinal, node, mask)),
        (unit(), 0..3u32).prop_map(|(unit, ordinal)| Event::End(unit, ordinal)),
        (unit(), 0..3u32).prop_map(|(unit, ordinal)| Event::Evict(unit, ordinal)),
        (unit(), 0..3u32).prop_map(|(unit, ordinal)| Event::Requeue(unit, ordinal)),
        (unit(), 0..3u32, node(), 0..8u64)
            .prop_map(|(unit, ordinal, node, mask)| Event::Assume(unit, ordinal, node, mask)),
        (unit(), 0..3u32).prop_map(|(unit, ordinal)| Event::Forget(unit, ordinal)),
        unit().prop_map(Event::RemoveUnit),
        (node(), 0..3000i64, 0..1001u32).prop_map(|(node, cpu, free)| Event::Foreign(node, cpu, free)),
        node().prop_map(Event::ClearForeign),
        unit().prop_map(Event::Reload),
        (unit(), 0..4i32).prop_map(|(unit, priority)| Event::Terms(unit, priority)),
        // What is bound up to so many revisions ago is in it.
        (node(), 0..1500i64, 0..40u64).prop_map(|(node, cpu, ago)| Event::Usage(node, cpu, ago)),
    ]
}

/// Records as they are now, in the plainest form.
#[derive(Default)]
struct Records {
    specs: BTreeMap<u32, NodeSpec>,
    reports: BTreeMap<u32, NodeReport>,
    allocatables: BTreeMap<u32, Resources>,
    rows: BTreeMap<u64, RunningUnits>,
    assumed: BTreeMap<(u64, u32), (u32, u32, u64)>,
    usages: BTreeMap<u32, NodeUsage>,
}

impl Records {
    fn change(&mut self, cluster: &mut Cluster, unit: u64, change: &RunChange, revision: u64) {
        let rows = self.rows.entry(unit).or_default();
        let time_ms = time_ms(revision);
        rows.apply(change, Revision(revision), time_ms, |_, _, _| {});
        cluster.apply_rows(UnitId(unit), change, Revision(revision), time_ms);
        let is_past = |ordinal: u32, incarnation: u32| {
            let row = rows.row(ordinal);
            row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending)
        };
        self.assumed.retain(|key, assumed| key.0 != unit || !is_past(key.1, assumed.0));
    }

    fn apply(&mut self, cluster: &mut Cluster, event: &Event, revision: u64) {
        match *event {
            Event::Spec(node, cordoned) => {
                let name = format!("n{node}");
                let spec = NodeSpec { id: NodeId(node), name, cordoned, ..NodeSpec::default() };
                self.specs.insert(node, spec.clone());
                cluster.nodes_mut().put_spec(spec, Revision(revision));
            }
            Event::Report(node, cpu, n_gpus, ready) => {
                let capacity = Resources::new([(CPU, cpu), (MEMORY, 10), ("fpga", 1)]).unwrap();
                let devices = vec![gpu(if node % 2 == 0 { "A" } else { "B" }); n_gpus];
                let zone = Zone {
                    kind: "numa".to_owned(),
                    capacity: Resources::new([(CPU, cpu / 2 + 1)]).unwrap(),
                    cpus: vec![0, 1, 2, 3],
                    ..Zone::default()
                };
                let zones = vec![zone; 2 * (n_gpus % 2)];
                let id = NodeId(node);
                let report = NodeReport { id, capacity, devices, zones, ready, ..NodeReport::default() };
                self.reports.insert(node, report.clone());
                cluster.nodes_mut().put_report(report, Revision(revision));
            }
            Event::Allocatable(node, cpu) => {
                let allocatable = Resources::new([(CPU, cpu)]).unwrap();
                self.allocatables.insert(node, allocatable.clone());
                cluster.nodes_mut().put_allocatable(NodeId(node), allocatable, Revision(revision));
            }
            Event::Remove(node) => {
                self.specs.remove(&node);
                self.reports.remove(&node);
                self.allocatables.remove(&node);
                self.usages.remove(&node);
                cluster.nodes_mut().remove(NodeId(node));
            }
            Event::Foreign(node, cpu, free) => {
                let allocated = Resources::new([(CPU, cpu)]).unwrap();
                cluster.nodes_mut().note_foreign(NodeId(node), Pool::Guaranteed, &allocated, &[free, 1000]);
            }
            Event::Usage(node, cpu, ago) => {
                let usage = usage(node, cpu, time_ms(revision.saturating_sub(ago)));
                self.usages.insert(node, usage.clone());
                cluster.nodes_mut().put_usage(usage, Revision(revision));
            }
            Event::ClearForeign(node) => cluster.nodes_mut().clear_foreign(NodeId(node)),
            Event::Assume(unit, ordinal, node, mask) => {
                let incarnation = self.rows.get(&unit).map(|rows| rows.row(ordinal)).unwrap_or_default();
                if incarnation.phase == Phase::Pending {
                    self.assumed.insert((unit, ordinal), (incarnation.incarnation, node, mask));
                }
                let shape = cluster.shape(&unit_demand(unit), unit_pool(unit));
                cluster.assume(
                    RunningUnitId::new(UnitId(unit), ordinal, incarnation.incarnation),
                    shape,
                    NodeId(node),
                    given(unit, mask),
                );
            }
            Event::Forget(unit, ordinal) => {
                let assumed = self.assumed.remove(&(unit, ordinal));
                cluster.forget(RunningUnitId::new(
                    UnitId(unit),
                    ordinal,
                    assumed.map_or(0, |assumed| assumed.0),
                ));
            }
            Event::RemoveUnit(unit) => {
                self.rows.remove(&unit);
                self.assumed.retain(|key, _| key.0 != unit);
                cluster.units_mut().remove(UnitId(unit));
            }
            Event::Reload(unit) => {
                if let Some(rows) = self.rows.get(&unit) {
                    cluster.load_rows(UnitId(unit), rows.clone());
                }
            }
            Event::Terms(unit, priority) => {
                let terms = PreemptionTerms { priority, preemptible: priority > 0, ..Default::default() };
                self.change(cluster, unit, &RunChange::Terms(Arc::new(terms.into())), revision);
            }
            Event::Bind(unit, ordinal, ..)
            | Event::End(unit, ordinal)
            | Event::Evict(unit, ordinal)
            | Event::Requeue(unit, ordinal) => {
                let row = self.rows.get(&unit).map(|rows| rows.row(ordinal)).unwrap_or_default();
                let change = row_change(event, unit, ordinal, row.incarnation);
                self.change(cluster, unit, &change, revision);
            }
        }
    }

    fn rebuild(&self) -> Cluster {
        let mut cluster = Cluster::new();
        for (unit, rows) in &self.rows {
            cluster.load_rows(UnitId(*unit), rows.clone());
        }
        for allocatable in &self.allocatables {
            cluster.nodes_mut().put_allocatable(NodeId(*allocatable.0), allocatable.1.clone(), Revision(1));
        }
        for report in self.reports.values() {
            cluster.nodes_mut().put_report(report.clone(), Revision(1));
        }
        for spec in self.specs.values() {
            cluster.nodes_mut().put_spec(spec.clone(), Revision(1));
        }
        for usage in self.usages.values() {
            cluster.nodes_mut().put_usage(usage.clone(), Revision(1));
        }
        for ((unit, ordinal), (incarnation, node, mask)) in &self.assumed {
            let shape = cluster.shape(&unit_demand(*unit), unit_pool(*unit));
            cluster.assume(
                RunningUnitId::new(UnitId(*unit), *ordinal, *incarnation),
                shape,
                NodeId(*node),
                given(*unit, *mask),
            );
        }
        cluster
    }
}

fn row_change(event: &Event, unit: u64, ordinal: u32, incarnation: u32) -> RunChange {
    let (ordinals, incarnations) = (vec![ordinal], vec![incarnation]);
    match *event {
        Event::Bind(_, _, node, mask) => RunChange::Bind(Bind {
            demand: Arc::new(unit_demand(unit)),
            pool: unit_pool(unit),
            ordinals,
            incarnations,
            nodes: vec![NodeId(node)],
            devices: vec![given(unit, mask).devices],
            zones: vec![given(unit, mask).zones],
            ..Bind::default()
        }),
        Event::Evict(..) => RunChange::Evict(Evict {
            ordinals,
            incarnations,
            reason: EvictionReason::Drained,
            by: String::new(),
            preemptor: UnitId(0),
        }),
        Event::Requeue(..) => {
            RunChange::Requeue(Requeue { ordinals, incarnations: vec![incarnation + 1], anew: false })
        }
        _ => RunChange::Statuses(Statuses {
            ordinals,
            incarnations,
            phases: vec![Phase::Succeeded],
            ..Statuses::default()
        }),
    }
}

/// What is taken of best-effort room, summed the plainest way.
fn best_effort_taken(records: &Records, node: u32) -> Resources {
    let mut taken = records.usages.get(&node).map(|usage| usage.reserved.clone()).unwrap_or_default();
    let as_of_ms = records.usages.get(&node).map(|usage| usage.as_of_ms);
    for (unit, rows) in &records.rows {
        for (_, row) in rows.live().filter(|(_, row)| row.node == NodeId(node)) {
            let is_in_use = unit_pool(*unit) == Pool::Guaranteed
                && as_of_ms.is_some_and(|as_of_ms| row.bound_time_ms <= as_of_ms);
            for (name, amount) in unit_demand(*unit).requests.iter() {
                if !is_in_use || (name != CPU && name != MEMORY) {
                    taken.add(&Resources::new([(name, amount)]).unwrap(), 1);
                }
            }
            taken.add_amount(RUNNING_UNITS, 1);
        }
    }
    for ((unit, _), _) in records.assumed.iter().filter(|(_, (_, on, _))| *on == node) {
        taken.add(&unit_demand(*unit).requests, 1);
        taken.add_amount(RUNNING_UNITS, 1);
    }
    taken
}

/// Everything that a fit depends on.
fn picture(cluster: &mut Cluster) -> Vec<String> {
    let exclusive = ZoneRequest { policy: ZonePolicy::Exclusive, cpu_mode: CpuMode::Shared };
    let demands = [
        demand(300, 0, 0, &[]),
        demand(0, 1, 300, &["A"]),
        demand(10, 2, 1000, &[]),
        unit_demand(4),
        zoned(400),
        Demand { zones: Some(exclusive), ..demand(10, 0, 0, &[]) },
    ];
    let pools = [Pool::Guaranteed, Pool::BestEffort];
    let shapes: Vec<ShapeId> = demands
        .iter()
        .flat_map(|demand| pools.map(|pool| (demand, pool)))
        .map(|(demand, pool)| cluster.shape(demand, pool))
        .collect();
    let below: Vec<bool> = (0..5).map(|priority| cluster.taken().ranks.has_below(priority)).collect();
    let mut lines = vec![format!("{below:?}")];
    cluster.units_mut().count(UnitId(1));
    for node in (1..=N_NODES).map(NodeId) {
        let state = pools.map(|pool| cluster.free().pool_state(node, pool).unwrap_or_default());
        let usable = cluster.nodes().usable(node);
        let allocatable = cluster.free().allocatable(node).unwrap_or_default();
        let fits: Vec<bool> = shapes.iter().map(|shape| cluster.free().fits(*shape, node).is_ok()).collect();
        let picks: Vec<Allocation> =
            shapes.iter().map(|shape| cluster.free().pick(*shape, node).unwrap_or_default()).collect();
        let spread = (cluster.taken().counts.of(node.idx()), cluster.free().nominal(node.idx()));
        lines.push(format!("{node}: {state:?} {allocatable:?} {usable:?} {fits:?} {picks:?} {spread:?}"));
        for (shape, fits) in shapes.iter().zip(&fits) {
            let fits = *fits;
            let idx = node.idx();
            if fits {
                assert!(cluster.free().block_may_fit(idx / room::BLOCK, *shape), "the index hides {node}");
            }
            if idx < cluster.free().n_indices() {
                let has_room =
                    cluster.free().has_resources(*shape, idx) && cluster.free().has_devices(*shape, idx);
                let passes = has_room && cluster.free().has_zones(*shape, idx);
                assert_eq!(passes, fits, "with and without words, on {node}");
            }
        }
    }
    lines
}

proptest! {
    #[test]
    fn accounting_equals_a_rebuild_from_scratch(events in prop::collection::vec(event(), 0..60), tighten in any::<bool>()) {
        let mut cluster = Cluster::new();
        let mut records = Records::default();
        let pools = [Pool::Guaranteed, Pool::BestEffort];
        for (revision, event) in (1u64..).zip(&events) {
            cluster.units_mut().count(UnitId(1));
            records.apply(&mut cluster, event, revision);
            if tighten && cluster.free().n_indices() > 0 {
                pools.into_iter().for_each(|pool| cluster.free_mut().tighten(0, pool));
            }
        }
        for node in 1..=N_NODES {
            cluster.nodes_mut().clear_foreign(NodeId(node));
        }
        let expected = picture(&mut records.rebuild());
        prop_assert_eq!(picture(&mut cluster), expected.clone());
        for node in (1..=N_NODES).filter(|node| NodeId(*node).idx() < cluster.free().n_indices()) {
            let (taken, _) = cluster.free().pool_state(NodeId(node), Pool::BestEffort).unwrap();
            prop_assert_eq!(taken, best_effort_taken(&records, node), "node {}", node);
        }
        // A new list over the same state, with assumptions kept.
        cluster.reset();
        for (unit, rows) in &records.rows {
            cluster.load_rows(UnitId(*unit), rows.clone());
        }
        for (node, spec) in &records.specs {
            cluster.nodes_mut().put_spec(spec.clone(), Revision(u64::from(*node)));
        }
        for (node, report) in &records.reports {
            cluster.nodes_mut().put_report(report.clone(), Revision(u64::from(*node)));
        }
        for (node, allocatable) in &records.allocatables {
            cluster.nodes_mut().put_allocatable(NodeId(*node), allocatable.clone(), Revision(1));
        }
        for usage in records.usages.values() {
            cluster.nodes_mut().put_usage(usage.clone(), Revision(1));
        }
        prop_assert_eq!(picture(&mut cluster), expected);
    }
}

#[test]
fn a_foreign_note_blocks_until_the_binds_of_others_arrive() {
    let mut cluster = one_node(&["A"]);
    let shape = cluster.shape(&demand(600, 1, 600, &[]), Pool::Guaranteed);
    cluster.nodes_mut().note_foreign(
        NodeId(1),
        Pool::Guaranteed,
        &Resources::new([(CPU, 600)]).unwrap(),
        &[400],
    );
    assert!(cluster.free().fits(shape, NodeId(1)).is_err());
    let bind = row_change(&Event::Bind(0, 0, 1, 1), 0, 0, 0);
    let RunChange::Bind(bind) = bind else { unreachable!() };
    let bind = Bind { demand: Arc::new(demand(600, 1, 600, &[])), ..bind };
    cluster.apply_rows(UnitId(9), &RunChange::Bind(bind), Revision(5), 0);
    let small = cluster.shape(&demand(400, 1, 400, &[]), Pool::Guaranteed);
    assert_eq!(cluster.free().fits(small, NodeId(1)), Ok(()), "counted once, not twice");
    cluster.nodes_mut().note_foreign(
        NodeId(1),
        Pool::Guaranteed,
        &Resources::new([(CPU, 1000)]).unwrap(),
        &[0],
    );
    assert!(cluster.free().fits(small, NodeId(1)).is_err());
    cluster.nodes_mut().clear_foreign(NodeId(1));
    assert_eq!(cluster.free().fits(small, NodeId(1)), Ok(()));
}

#[test]
fn old_records_and_impossible_nodes_are_ignored() {
    let mut cluster = one_node(&[]);
    let name = |cluster: &Cluster| cluster.nodes().spec(NodeId(1)).map(|spec| spec.name.clone());
    assert_eq!(name(&cluster).as_deref(), Some("n1"));
    let renamed = NodeSpec { id: NodeId(1), name: "other".to_owned(), ..NodeSpec::default() };
    cluster.nodes_mut().put_spec(renamed.clone(), Revision(0));
    assert_eq!(name(&cluster).as_deref(), Some("n1"));
    cluster.nodes_mut().put_spec(renamed, Revision(2));
    assert_eq!(name(&cluster).as_deref(), Some("other"));
    assert_eq!(cluster.nodes().changed_at(NodeId(1)), Revision(2));
    cluster.nodes_mut().put_spec(NodeSpec { id: NodeId(u32::MAX), ..NodeSpec::default() }, Revision(3));
    assert_eq!(cluster.nodes().ids().collect::<Vec<_>>(), [NodeId(1)]);
    cluster.nodes_mut().remove(NodeId(1));
    assert_eq!(cluster.nodes().usable(NodeId(1)), Err(Unfit::Gone));
    assert_eq!(cluster.nodes().count(), 0);
}
