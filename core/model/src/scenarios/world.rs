//! Nodes and units of the scenarios.

use std::sync::Arc;

use godel_base::{
    ids::{NodeId, UnitId},
    resources::{CPU, MEMORY, Resources},
    seed::mix,
};
use godel_cluster::Cluster;
use godel_domain::{
    allocation::DeviceSet,
    change::Change,
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec, Taint, TaintEffect},
    records::Record,
    running_units::{GroupDemand, Phase, RunningUnit, RunningUnits},
    submission::{DeviceSubmission, Given, GroupSubmission, Submission, TolerationSubmission},
    unit::{UnitRecord, WorkloadClass},
};
use godel_rules::admission::admit;

use super::{
    Checksum,
    trace::{NODES, NodeShape, TASKS, TaskShape},
};

const MIB: i64 = 1 << 20;
/// Label of nodes whose value is their rack.
pub(super) const RACK: &str = "rack";
/// Label of every node; a constrained unit asks for one of its values.
const ZONE: &str = "zone";
const N_ZONES: u64 = 10;
/// Taint of one node in this many.
const TAINTED_EVERY: u32 = 20;
const TAINT: &str = "dedicated";

/// Numbers that look random and are the same each time.
pub(super) struct ScenarioNumbers(u64);

impl ScenarioNumbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % end
    }
}

/// Nodes with 100 CPU and 400 GiB each.
pub(super) fn equal_nodes(n_nodes: u32) -> Vec<Change> {
    let shape = NodeShape { n_nodes: 1, cpu_milli: 100_000, memory_mib: 400 << 10, n_gpus: 0, model: "" };
    (1..=n_nodes).flat_map(|id| node(id, &shape)).collect()
}

/// The same in racks of so many.
pub(super) fn racked_nodes(n_nodes: u32, of_rack: u32) -> Vec<Change> {
    let in_rack = |change: Change| match change {
        Change::Put(Record::NodeSpec(mut spec)) => {
            spec.labels.insert(RACK.to_owned(), format!("r{}", (spec.id.0 - 1) / of_rack));
            Change::Put(Record::NodeSpec(spec))
        }
        other => other,
    };
    equal_nodes(n_nodes).into_iter().map(in_rack).collect()
}

/// The trace's nodes over and over, mixed.
pub(super) fn trace_nodes(n_nodes: u32) -> Vec<Change> {
    let mut numbers = ScenarioNumbers::new(1);
    (1..=n_nodes).flat_map(|id| node(id, draw(&NODES, |shape| shape.n_nodes, &mut numbers))).collect()
}

fn node(id: u32, shape: &NodeShape) -> [Change; 2] {
    let taint =
        Taint { key: TAINT.to_owned(), value: String::new(), effect: TaintEffect::NoSchedule, added_ms: 0 };
    let spec = NodeSpec {
        id: NodeId(id),
        name: format!("node-{id:05}"),
        uid: String::new(),
        labels: [(ZONE.to_owned(), format!("z{}", u64::from(id) % N_ZONES))].into(),
        cordoned: false,
        taints: if shape.model.is_empty() || !id.is_multiple_of(TAINTED_EVERY) {
            Vec::new()
        } else {
            vec![taint]
        },
        ..NodeSpec::default()
    };
    let gpu = Device { kind: "gpu".to_owned(), model: shape.model.to_owned(), numa_zone: 0, details: None };
    let report = NodeReport {
        id: NodeId(id),
        capacity: amounts(shape.cpu_milli, shape.memory_mib),
        devices: vec![gpu; shape.n_gpus],
        ready: true,
        ..NodeReport::default()
    };
    [Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))]
}

fn amounts(cpu_milli: i64, memory_mib: i64) -> Resources {
    Resources::new([(CPU, cpu_milli), (MEMORY, memory_mib * MIB)]).expect("amounts are positive")
}

/// Rows that leave `free_pct` per cent of each node's CPU and memory, and none of its devices.
pub(super) fn fill(nodes: &[Change], free_pct: impl Fn(NodeId) -> i64) -> RunningUnits {
    let mut rows = RunningUnits::default();
    let reports = nodes.iter().filter_map(|change| match change {
        Change::Put(Record::NodeReport(report)) => Some(report),
        _ => None,
    });
    for report in reports {
        let n_gpus = u32::try_from(report.devices.len()).unwrap_or(0);
        let used = 100 - free_pct(report.id);
        let devices = (n_gpus > 0).then(|| DeviceRequest {
            kind: "gpu".to_owned(),
            count: n_gpus,
            milli: 1000,
            models: Vec::new(),
            terms: None,
        });
        let of = |name| report.capacity.get(name) * used / 100;
        let requests = Resources::new([(CPU, of(CPU)), (MEMORY, of(MEMORY))]).expect("capacity is positive");
        let demand =
            Demand { requests, devices: devices.into_iter().collect(), host_ports: Vec::new(), zones: None };
        let same = |group: &Option<GroupDemand>| group.as_ref().is_some_and(|group| *group.demand == demand);
        let group = rows.groups.iter().position(same).unwrap_or_else(|| {
            rows.groups.push(Some(GroupDemand {
                demand: Arc::new(demand),
                pool: Pool::Guaranteed,
                standing: None,
            }));
            rows.groups.len() - 1
        });
        rows.rows.push(RunningUnit {
            node: report.id,
            allocation: DeviceSet((1 << n_gpus) - 1).into(),
            phase: Phase::Running,
            group: u16::try_from(group).expect("shapes are few"),
            ..RunningUnit::default()
        });
    }
    rows
}

/// A unit as a client submits it.
pub(super) fn submission(id: u64, class: WorkloadClass, replicas: u32, group: GroupSubmission) -> Submission {
    Submission {
        name: format!("unit-{id}"),
        uid: format!("0190163d-8694-739b-aea5-{id:012x}"),
        class: Given::Value(class),
        task_groups: vec![GroupSubmission { replicas, ..group }],
        ..Submission::default()
    }
}

/// As it becomes a record.
pub(super) fn unit(id: u64, class: WorkloadClass, replicas: u32, group: GroupSubmission) -> UnitRecord {
    let admitted = admit(submission(id, class, replicas, group)).expect("a scenario's units are valid");
    UnitRecord::new(UnitId(id), admitted.spec)
}

/// 500 milli-cores and 1 GiB.
pub(super) fn plain() -> GroupSubmission {
    let requests = vec![(CPU.to_owned(), 500), (MEMORY.to_owned(), 1024 * MIB)];
    GroupSubmission { requests, ..GroupSubmission::default() }
}

/// A task of the trace; one in ten is bound to a zone, and half of those go to tainted nodes as well.
pub(super) fn trace_task(numbers: &mut ScenarioNumbers) -> GroupSubmission {
    let task: &TaskShape = draw(&TASKS, |shape| shape.n_tasks, numbers);
    let devices = (task.n_gpus > 0).then(|| DeviceSubmission {
        kind: String::new(),
        count: task.n_gpus,
        milli: Some(task.gpu_milli),
        models: task.models.iter().map(|model| (*model).to_owned()).collect(),
        ..DeviceSubmission::default()
    });
    let requests = vec![(CPU.to_owned(), task.cpu_milli), (MEMORY.to_owned(), task.memory_mib * MIB)];
    let devices = devices.into_iter().collect();
    let mut group = GroupSubmission { requests, devices, ..GroupSubmission::default() };
    let constraint = numbers.below(20);
    if constraint < 2 {
        group.node_selector = [(ZONE.to_owned(), format!("z{}", numbers.below(N_ZONES)))].into();
    }
    if constraint == 1 {
        let toleration =
            TolerationSubmission { key: TAINT.to_owned(), any_value: true, ..Default::default() };
        group.tolerations = vec![toleration];
    }
    group
}

/// Replicas of a unit of the mixed workload: 60 % have one, 30 % up to 10, 10 % up to 100.
pub(super) fn mixed_replicas(numbers: &mut ScenarioNumbers) -> u32 {
    let replicas = match numbers.below(10) {
        0 => 11 + numbers.below(90),
        1..=3 => 2 + numbers.below(9),
        _ => 1,
    };
    u32::try_from(replicas).expect("at most 100")
}

fn draw<'a, T>(of: &'a [T], weight: impl Fn(&T) -> u32, numbers: &mut ScenarioNumbers) -> &'a T {
    let sum = of.iter().map(|one| u64::from(weight(one))).sum();
    let mut left = numbers.below(sum);
    for one in of {
        match left.checked_sub(u64::from(weight(one))) {
            Some(rest) => left = rest,
            None => return one,
        }
    }
    unreachable!("the number is below the sum of the weights")
}

/// Where the running units of some units are.
pub(super) fn placements(cluster: &Cluster, units: impl IntoIterator<Item = UnitId>) -> super::Done {
    let (mut n_ops, mut checksum) = (0, Checksum::default());
    for unit in units {
        let rows = cluster.rows().of(unit).into_iter().flat_map(|rows| &rows.rows);
        for (ordinal, row) in rows.filter(|(_, row)| row.phase != Phase::Pending) {
            n_ops += 1;
            for value in [unit.0, u64::from(ordinal), u64::from(row.node.0), row.allocation.devices.0] {
                checksum.add(value);
            }
        }
    }
    super::Done { n_ops, checksum: checksum.0 }
}
