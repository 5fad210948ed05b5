//! A scheduler at work, with a binder that binds everything at once.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{Revision, UnitId},
    resources::CPU,
    time::Millis,
};
use godel_core_scheduler::{Config, Scheduler};
use godel_domain::{
    assignment::{Assignment, Permit},
    change::Change,
    decision::{Decision, Outcome, Preemption},
    demand::Demand,
    label_expression::LabelExpression,
    running_units::{Bind, End, Evict, EvictionReason, Phase, PreemptionTerms, RunChange, Statuses},
    submission::GroupSubmission,
    unit::{UnitRecord, WorkloadClass},
    unit_affinity::{NODE, SpreadTerm, UnitTerm},
};
use godel_testkit::BuildUnit as _;

use super::{
    Done, Size, Work,
    world::{
        RACK, ScenarioNumbers, equal_nodes, fill, mixed_replicas, placements, plain, racked_nodes,
        trace_nodes, trace_task, unit,
    },
};

/// Running units assigned ahead, as a dispatcher with credits does.
const AHEAD: usize = 8_192;
/// Of one step, as the service is configured.
const BUDGET: usize = 4_096;
const SEED: u64 = 7;
const NOW: Millis = Millis(1_000);
/// Takes up room; no unit of a scenario has this id, nor one of the next ones.
const FILLER: UnitId = UnitId(1 << 40);

struct Assigned {
    assignment: Assignment,
    /// By task group: what a bind carries.
    demands: Vec<Arc<Demand>>,
}

struct Scheduling {
    core: Scheduler,
    revision: u64,
    units: Vec<Assigned>,
}

impl Scheduling {
    fn new(config: Config, nodes: Vec<Change>, units: Vec<UnitRecord>) -> Self {
        let units = units.into_iter().map(Assigned::new).collect();
        let mut new = Self { core: Scheduler::new(config, SEED), revision: 0, units };
        for change in nodes {
            new.watch(&change);
        }
        new
    }

    fn watch(&mut self, change: &Change) {
        self.revision += 1;
        self.core.load(change, Revision(self.revision), 1, NOW);
    }

    /// All of a decision is bound, and all that had to leave has; the outcome arrives before the watch.
    fn bind(&mut self, decision: Decision) {
        let unit = decision.unit;
        let revision = Revision(self.revision + 1);
        let outcome = Outcome { decision_id: decision.id, unit, revision, ..Outcome::default() };
        self.core.on_outcome(&outcome, NOW);
        if let Some(preemption) = decision.claim.preemption() {
            self.evict_victims(unit, preemption);
        }
        for group in decision.groups {
            let of_unit = &self.units[usize::try_from(unit.0 - 1).expect("ids count from 1")];
            let bind = Bind {
                group: group.group,
                demand: Arc::clone(&of_unit.demands[usize::from(group.group)]),
                ordinals: group.ordinals,
                incarnations: group.incarnations,
                nodes: group.nodes,
                devices: group.devices,
                zones: group.zones,
                ..Bind::default()
            };
            self.watch(&Change::Rows(unit, RunChange::Bind(bind)));
        }
    }
}

impl Scheduling {
    /// Fills the nodes with so many running units each, of units of priority 1.
    fn fill_with_victims(&mut self, n_nodes: u32, n_fillers: u32) {
        let standing = PreemptionTerms {
            priority: 1,
            preemptible: true,
            min_run_ms: 0,
            min_member: 1,
            group_min_member: 0,
            queue: None,
            end: End::Unknown,
            has_master: false,
        };
        let standing = Arc::new(standing);
        for filler in 0..n_fillers {
            let mut rows = fill(&equal_nodes(n_nodes), |_| 100 - 100 / i64::from(n_fillers));
            rows.groups.iter_mut().flatten().for_each(|group| group.standing = Some(Arc::clone(&standing)));
            self.watch(&Change::RowsLoaded(UnitId(FILLER.0 + u64::from(filler)), rows));
        }
    }

    fn evict_victims(&mut self, preemptor: UnitId, preemption: &Preemption) {
        let mut by_unit: BTreeMap<UnitId, Vec<u32>> = BTreeMap::new();
        for victim in preemption.victims() {
            by_unit.entry(victim.unit).or_default().push(victim.replica.ordinal);
        }
        for (unit, mut ordinals) in by_unit {
            ordinals.sort_unstable();
            let (reason, by) = (EvictionReason::Preempted, String::new());
            let evict = Evict { ordinals: ordinals.clone(), incarnations: Vec::new(), reason, by, preemptor };
            let phases = vec![Phase::Stopped; ordinals.len()];
            self.watch(&Change::Rows(unit, RunChange::Evict(evict)));
            self.watch(&Change::Rows(
                unit,
                RunChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() }),
            ));
        }
    }
}

impl Assigned {
    fn new(record: UnitRecord) -> Self {
        let demands =
            record.spec.task_groups.iter().map(|group| Arc::new(group.template.demand.clone())).collect();
        let assignment = Assignment {
            ordinals: record.iter_ordinals().collect(),
            incarnations: Vec::new(),
            record: Arc::new(record),
            revision: Revision(1),
            bound: 0,
            permit: Permit::default(),
        };
        Self { assignment, demands }
    }
}

impl Work for Scheduling {
    fn run(&mut self) {
        let (mut next, mut held) = (0, 0);
        loop {
            while held < AHEAD
                && let Some(Assigned { assignment, .. }) = self.units.get(next)
            {
                self.core.on_assign(assignment, NOW);
                held += assignment.ordinals.len();
                next += 1;
            }
            let step = self.core.step(NOW, BUDGET);
            // What is parked is out of the way.
            held = if step.decisions.is_empty() { 0 } else { held };
            if step.decisions.is_empty() && next == self.units.len() {
                return;
            }
            for decision in step.decisions {
                held = held.saturating_sub(decision.len());
                self.bind(decision);
            }
        }
    }

    fn done(&self) -> Done {
        placements(self.core.cluster(), self.units.iter().map(|unit| unit.assignment.record.id))
    }
}

fn equal(n_nodes: u32, n_units: u32, class: WorkloadClass, replicas: u32) -> Scheduling {
    equal_with(Config::default(), n_nodes, n_units, class, replicas)
}

fn equal_with(config: Config, n_nodes: u32, n_units: u32, class: WorkloadClass, replicas: u32) -> Scheduling {
    let units = (1..=u64::from(n_units)).map(|id| unit(id, class, replicas, plain())).collect();
    Scheduling::new(config, equal_nodes(n_nodes), units)
}

pub(super) fn service(size: Size) -> Box<dyn Work> {
    Box::new(equal(size.pick(10_000, 1_000), size.pick(300, 20), WorkloadClass::Service, 1_000))
}

pub(super) fn service_20k(size: Size) -> Box<dyn Work> {
    Box::new(equal(size.pick(20_000, 2_000), size.pick(300, 20), WorkloadClass::Service, 1_000))
}

pub(super) fn single(size: Size) -> Box<dyn Work> {
    Box::new(equal(size.pick(10_000, 1_000), size.pick(50_000, 2_000), WorkloadClass::Service, 1))
}

pub(super) fn single_20k(size: Size) -> Box<dyn Work> {
    Box::new(equal(size.pick(20_000, 2_000), size.pick(50_000, 2_000), WorkloadClass::Service, 1))
}

pub(super) fn gang_10(size: Size) -> Box<dyn Work> {
    Box::new(equal(size.pick(10_000, 1_000), size.pick(10_000, 1_000), WorkloadClass::Gang, 10))
}

pub(super) fn gang_100(size: Size) -> Box<dyn Work> {
    Box::new(equal(size.pick(10_000, 1_000), size.pick(2_000, 100), WorkloadClass::Gang, 100))
}

pub(super) fn single_no_cache(size: Size) -> Box<dyn Work> {
    let config = Config { cache: false, ..Config::default() };
    let n_units = size.pick(20_000, 1_000);
    Box::new(equal_with(config, size.pick(10_000, 1_000), n_units, WorkloadClass::Service, 1))
}

pub(super) fn single_no_limit(size: Size) -> Box<dyn Work> {
    let config = Config { limit_scan: false, ..Config::default() };
    let n_units = size.pick(1_000, 100);
    Box::new(equal_with(config, size.pick(10_000, 1_000), n_units, WorkloadClass::Service, 1))
}

pub(super) fn mixed(size: Size) -> Box<dyn Work> {
    Box::new(mixed_with(Config::default(), size.pick(10_000, 1_000), size.pick(3_000, 150)))
}

pub(super) fn mixed_no_cache(size: Size) -> Box<dyn Work> {
    let config = Config { cache: false, ..Config::default() };
    Box::new(mixed_with(config, size.pick(10_000, 1_000), size.pick(1_000, 30)))
}

pub(super) fn mixed_no_limit(size: Size) -> Box<dyn Work> {
    let config = Config { limit_scan: false, ..Config::default() };
    Box::new(mixed_with(config, size.pick(10_000, 1_000), size.pick(1_000, 30)))
}

/// One unit in five is a gang.
fn mixed_with(config: Config, n_nodes: u32, n_units: u32) -> Scheduling {
    let mut numbers = ScenarioNumbers::new(2);
    let units = (1..=u64::from(n_units)).map(|id| {
        let class = if numbers.below(5) == 0 { WorkloadClass::Gang } else { WorkloadClass::Service };
        let replicas = mixed_replicas(&mut numbers);
        unit(id, class, replicas, trace_task(&mut numbers))
    });
    let units = units.collect();
    Scheduling::new(config, trace_nodes(n_nodes), units)
}

pub(super) fn full_service(size: Size) -> Box<dyn Work> {
    Box::new(full(size.pick(10_000, 1_000), size.pick(15, 1), 1_000))
}

pub(super) fn full_single(size: Size) -> Box<dyn Work> {
    Box::new(full(size.pick(10_000, 1_000), size.pick(15_000, 1_500), 1))
}

/// Of ten nodes nine are full and one is nine tenths full: room for two replicas a node on average.
fn full(n_nodes: u32, n_units: u32, replicas: u32) -> Scheduling {
    let mut scheduling = equal(n_nodes, n_units, WorkloadClass::Service, replicas);
    let rows = fill(&equal_nodes(n_nodes), |node| if node.0.is_multiple_of(10) { 10 } else { 0 });
    scheduling.watch(&Change::RowsLoaded(FILLER, rows));
    scheduling
}

/// Nodes of a rack.
const OF_RACK: u32 = 33;

pub(super) fn rack_gang(size: Size) -> Box<dyn Work> {
    let gang = |id| in_rack(unit(id, WorkloadClass::Gang, 10, plain()));
    let units = (1..=u64::from(size.pick(10_000, 500))).map(gang).collect();
    Box::new(Scheduling::new(Config::default(), racked_nodes(size.pick(10_000, 1_000), OF_RACK), units))
}

fn in_rack(mut record: UnitRecord) -> UnitRecord {
    record.spec.topology.required = RACK.to_owned();
    record
}

/// Services of 100 that keep apart from one another on nodes, are spread over racks, or are near to others, by turns.
pub(super) fn affinity(size: Size) -> Box<dyn Work> {
    let term = |units: &str, topology: &str| UnitTerm {
        units: if units.is_empty() { Vec::new() } else { vec![LabelExpression::is("app", units)] },
        topology: topology.to_owned(),
        weight: 0,
    };
    let with_terms = |id: u64| {
        let mut record = unit(id, WorkloadClass::Service, 100, plain());
        record.spec.labels.insert("app".to_owned(), format!("app-{id}"));
        let affinity = &mut record.spec.affinity;
        match id % 3 {
            0 => affinity.near.push(term(&format!("app-{}", id - 1), RACK)),
            1 => affinity.apart.push(term("", NODE)),
            _ => affinity.spread.push(SpreadTerm {
                units: Vec::new(),
                topology: RACK.to_owned(),
                max_skew: 1,
                weight: 0,
            }),
        }
        record
    };
    let units = (1..=u64::from(size.pick(1_000, 30))).map(with_terms).collect();
    Box::new(Scheduling::new(Config::default(), racked_nodes(size.pick(10_000, 1_000), OF_RACK), units))
}

/// Full of units of lower priority: a gang of 100 has them leave in the rack where that costs least.
pub(super) fn rack_preempt(size: Size) -> Box<dyn Work> {
    let (n_nodes, n_units, n_fillers) = (size.pick(10_000, 660), size.pick(10, 1), 20u32);
    let twentieth =
        || GroupSubmission { requests: vec![(CPU.to_owned(), 5_000)], ..GroupSubmission::default() };
    let gang = |id| in_rack(unit(id, WorkloadClass::Gang, 100, twentieth()).priority(2));
    let nodes = racked_nodes(n_nodes, OF_RACK);
    let units = (1..=u64::from(n_units)).map(gang).collect();
    let mut scheduling = Scheduling::new(Config::default(), nodes, units);
    scheduling.fill_with_victims(n_nodes, n_fillers);
    Box::new(scheduling)
}

/// Full of units of lower priority, with one running unit on each node: for each that comes one has to leave.
pub(super) fn preempt(size: Size) -> Box<dyn Work> {
    let (n_nodes, n_units, n_fillers) = (size.pick(10_000, 1_000), size.pick(50, 5), 20u32);
    let twentieth =
        || GroupSubmission { requests: vec![(CPU.to_owned(), 5_000)], ..GroupSubmission::default() };
    let arriving = |id| unit(id, WorkloadClass::Service, 1_000, twentieth()).priority(2);
    let mut scheduling = Scheduling::new(
        Config::default(),
        equal_nodes(n_nodes),
        (1..=u64::from(n_units)).map(arriving).collect(),
    );
    scheduling.fill_with_victims(n_nodes, n_fillers);
    Box::new(scheduling)
}

/// The watch of a scheduler that decides nothing itself.
struct WatchOnly {
    scheduling: Scheduling,
    changes: Vec<Change>,
}

pub(super) fn follow(size: Size) -> Box<dyn Work> {
    let (n_nodes, n_units) = (size.pick(10_000, 1_000), size.pick(200, 20));
    let mut deciding = equal(n_nodes, n_units, WorkloadClass::Service, 1_000);
    deciding.run();
    let mut changes = Vec::new();
    for Assigned { assignment: Assignment { record, .. }, demands } in &deciding.units {
        let rows = deciding.core.cluster().rows().of(record.id);
        let nodes: Vec<_> =
            rows.into_iter().flat_map(|rows| rows.rows.values()).map(|row| row.node).collect();
        let bind = Bind {
            demand: Arc::clone(&demands[0]),
            ordinals: (0u32..).take(nodes.len()).collect(),
            nodes,
            ..Bind::default()
        };
        let ordinals = bind.ordinals.clone();
        changes.push(Change::Rows(record.id, RunChange::Bind(bind)));
        for phase in [Phase::Running, Phase::Succeeded] {
            let phases = vec![phase; ordinals.len()];
            let statuses = Statuses { ordinals: ordinals.clone(), phases, ..Statuses::default() };
            changes.push(Change::Rows(record.id, RunChange::Statuses(statuses)));
        }
    }
    let scheduling = Scheduling::new(Config::default(), equal_nodes(n_nodes), Vec::new());
    let units = deciding.units;
    Box::new(WatchOnly { scheduling: Scheduling { units, ..scheduling }, changes })
}

impl Work for WatchOnly {
    fn run(&mut self) {
        for change in &self.changes {
            self.scheduling.watch(change);
        }
    }

    fn done(&self) -> Done {
        self.scheduling.done()
    }
}
