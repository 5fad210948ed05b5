//! The scheduler against a naive binder.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{NodeId, ReplicaId},
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    allocation::DeviceSet,
    assignment::{Assignment, Permit},
    change::{Change, NodeScope, Partition},
    decision::{Decision, FreshNode, GroupPlacement, Outcome, Rejection, RejectionReason},
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec},
    refusals::{RefusalCount, WaitReason},
    running_units::{Bind, Phase, RunChange},
    unit::{Template, UnitRecord, WorkloadClass},
    unit_report::ReportState,
};
use godel_testkit::BuildUnit as _;

use super::{
    assigned_unit::{AssignedUnit, UnitState},
    *,
};

mod cases;
mod daemons;
mod follows;
mod groups;
mod model;
mod movements;
mod ordinals;
mod partition;
mod preemption;
mod spread;
mod sub_clusters;
mod trace;
mod volumes;

pub(super) fn resources(cpu: i64, memory: i64) -> Resources {
    Resources::new([(CPU, cpu), (MEMORY, memory)]).unwrap()
}

pub(super) fn gpus(count: u32, milli: u32, models: &[&str]) -> Vec<DeviceRequest> {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    let gpus =
        (count > 0).then(|| DeviceRequest { kind: "gpu".to_owned(), count, milli, models, terms: None });
    gpus.into_iter().collect()
}

pub(super) fn node_spec(id: u32) -> NodeSpec {
    NodeSpec { id: NodeId(id), name: format!("n{id}"), ..NodeSpec::default() }
}

pub(super) fn node_report(id: u32, capacity: Resources, n_gpus: usize, model: &str) -> NodeReport {
    let gpu = Device { kind: "gpu".to_owned(), model: model.to_owned(), numa_zone: 0, details: None };
    NodeReport { id: NodeId(id), capacity, devices: vec![gpu; n_gpus], ready: true, ..NodeReport::default() }
}

/// As a dispatcher that serves by priority and then in order of dispatch: calls as many parked units as have places.
pub(super) fn call(scheduler: &mut Scheduler, rooms: &[RoomReport]) {
    for room in rooms {
        let Scheduler { units, picture, .. } = &mut *scheduler;
        for position in units.parked.first_of(room.need, room.places) {
            let Some(mut assigned) = units.detach(position.2) else { continue };
            units.count_assignment(true);
            // A call comes with an assignment.
            (assigned.permit.called, assigned.state) = (true, UnitState::Waiting);
            units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
        }
    }
}

/// A step, and another one with the units called that it said had room.
pub(super) fn step_and_call(scheduler: &mut Scheduler, now: Millis, budget: usize) -> Step {
    let mut step = scheduler.step(now, budget);
    call(scheduler, &step.rooms);
    let second = scheduler.step(now, budget);
    step.decisions.extend(second.decisions);
    step.reports.extend(second.reports);
    step
}

/// A unit of one task group with ordinals from 0.
pub(super) fn unit(id: u64, replicas: u32, min_member: u32, demand: Demand) -> UnitRecord {
    godel_testkit::unit(format!("u{id}"))
        .id(UnitId(id))
        .main_group(replicas, demand)
        .min_member(min_member)
        .profile("most-allocated")
}

/// What of a unit is pending is handed over, as the dispatcher does it.
pub(super) fn assignment(
    record: &UnitRecord,
    revision: Revision,
    pending: &[ReplicaId],
    bound: u32,
) -> Assignment {
    let (ordinals, incarnations) = ReplicaId::columns(pending.iter().copied());
    let record = Arc::new(record.clone());
    Assignment { record, revision, ordinals, incarnations, bound, permit: Permit::default() }
}

/// All nodes may be used.
pub(super) const ANYWHERE: Permit = Permit {
    scope: NodeScope::Global,
    at_maximum: false,
    turn: false,
    called: false,
    places_max: None,
    read: Revision(0),
};

pub(super) fn all(record: &UnitRecord) -> Vec<ReplicaId> {
    record.iter_ordinals().map(|ordinal| ReplicaId::new(ordinal, 0)).collect()
}

/// Replicas by ordinal and incarnation.
pub(super) fn replicas(of: &[(u32, u32)]) -> Vec<ReplicaId> {
    of.iter().map(|(ordinal, incarnation)| ReplicaId::new(*ordinal, *incarnation)).collect()
}

/// A unit of which everything is pending, assigned as the `order`-th one.
pub(super) fn assigned(picture: &mut Picture, record: &UnitRecord, order: u64) -> Box<AssignedUnit> {
    let (groups, _) = picture.group_work(record, Revision(1), all(record).into_iter());
    Box::new(AssignedUnit::new(picture, record, Revision(1), order, groups))
}

/// One node as a naive binder keeps it.
#[derive(Clone, Debug)]
pub(super) struct NaiveNode {
    pub(super) free: [i64; 2],
    pub(super) capacity: [i64; 2],
    pub(super) gpus: Vec<i64>,
    pub(super) model: String,
    pub(super) cordoned: bool,
}

/// Commits what fits, in the plainest way.
#[derive(Clone, Debug, Default)]
pub(super) struct NaiveBinder {
    pub(super) nodes: BTreeMap<NodeId, NaiveNode>,
    pub(super) bound: BTreeMap<(UnitId, u32), (NodeId, DeviceSet, Demand)>,
    pub(super) ever_bound: BTreeMap<UnitId, usize>,
    pub(super) revision: u64,
}

fn gpu_ask(demand: &Demand) -> (u32, i64, &[String]) {
    demand.devices.first().map_or((0, 0, &[]), |gpus| (gpus.count, i64::from(gpus.milli), &gpus.models))
}

impl NaiveNode {
    pub(super) fn new(cpu: i64, memory: i64, n_gpus: usize, model: &str) -> Self {
        let capacity = [cpu, memory];
        Self { free: capacity, capacity, gpus: vec![1000; n_gpus], model: model.to_owned(), cordoned: false }
    }

    /// Could one more be placed at all?
    pub(super) fn fits(&self, demand: &Demand) -> bool {
        let (count, milli, models) = gpu_ask(demand);
        let cpu = demand.requests.get(CPU) <= self.free[0].max(0);
        let memory = demand.requests.get(MEMORY) <= self.free[1].max(0);
        let free = self.gpus.iter().filter(|left| **left >= milli).count();
        !self.cordoned && cpu && memory && (count == 0 || (free >= count as usize && self.accepts(models)))
    }

    fn accepts(&self, models: &[String]) -> bool {
        models.is_empty() || models.contains(&self.model)
    }

    fn takes(&self, demand: &Demand, given: DeviceSet) -> bool {
        let (count, milli, _) = gpu_ask(demand);
        self.fits(demand)
            && given.len() == count
            && given.iter().all(|idx| self.gpus.get(idx).is_some_and(|left| *left >= milli))
    }

    fn shift(&mut self, demand: &Demand, given: DeviceSet, sign: i64) {
        self.free[0] -= sign * demand.requests.get(CPU);
        self.free[1] -= sign * demand.requests.get(MEMORY);
        for idx in given.iter() {
            self.gpus[idx] -= sign * gpu_ask(demand).1;
        }
    }
}

impl NaiveBinder {
    /// Decides as the real one, all members of a decision one by one. Returns the outcome and what to watch.
    pub(super) fn decide(&mut self, record: &UnitRecord, decision: &Decision) -> (Outcome, Vec<Change>) {
        let mut outcome = Outcome { decision_id: decision.id, unit: decision.unit, ..Outcome::default() };
        let mut binds = Vec::new();
        let mut n_bound = 0;
        for group in &decision.groups {
            let template = &record.spec.task_groups[usize::from(group.group)].template;
            let mut bind =
                Bind { group: group.group, demand: Arc::new(template.demand.clone()), ..Bind::default() };
            for (idx, &ordinal) in group.ordinals.iter().enumerate() {
                let (node, devices) = (group.nodes[idx], group.allocation(idx).devices);
                let reason = match self.nodes.get_mut(&node) {
                    _ if self.bound.contains_key(&(decision.unit, ordinal)) => RejectionReason::AlreadyBound,
                    None => RejectionReason::NodeGone,
                    Some(naive) if naive.takes(&template.demand, devices) => {
                        naive.shift(&template.demand, devices, 1);
                        self.bound.insert((decision.unit, ordinal), (node, devices, template.demand.clone()));
                        bind.ordinals.push(ordinal);
                        bind.incarnations.push(group.incarnation(idx));
                        bind.nodes.push(node);
                        bind.devices.push(devices);
                        n_bound += 1;
                        continue;
                    }
                    Some(_) => RejectionReason::InsufficientResources,
                };
                outcome.rejections.push(Rejection {
                    reason,
                    ordinals: vec![ordinal],
                    node,
                    detail: String::new(),
                });
                outcome.nodes.extend(self.fresh(node));
            }
            binds.push(Change::Rows(decision.unit, RunChange::Bind(bind)));
        }
        let existing = self.ever_bound.get(&decision.unit).copied().unwrap_or(0);
        if n_bound > 0 && n_bound + existing < record.spec.min_member as usize {
            for group in &decision.groups {
                for ordinal in &group.ordinals {
                    self.unbind(decision.unit, *ordinal);
                }
            }
            let ordinals = decision.groups.iter().flat_map(|group| group.ordinals.clone()).collect();
            let reason = RejectionReason::MinMember;
            outcome.rejections = vec![Rejection { reason, ordinals, node: NodeId(0), detail: String::new() }];
            return (outcome, Vec::new());
        }
        if n_bound == 0 {
            return (outcome, Vec::new());
        }
        *self.ever_bound.entry(decision.unit).or_default() += n_bound;
        self.revision += 1;
        outcome.revision = Revision(self.revision);
        (outcome, binds)
    }

    fn unbind(&mut self, unit: UnitId, ordinal: u32) {
        if let Some((node, devices, demand)) = self.bound.remove(&(unit, ordinal))
            && let Some(naive) = self.nodes.get_mut(&node)
        {
            naive.shift(&demand, devices, -1);
        }
    }

    fn fresh(&self, node: NodeId) -> Option<FreshNode> {
        let naive = self.nodes.get(&node)?;
        let taken = resources(naive.capacity[0] - naive.free[0], naive.capacity[1] - naive.free[1]);
        let free = naive.gpus.iter().map(|left| u32::try_from(*left).unwrap()).collect();
        let revision = Revision(self.revision);
        Some(FreshNode { node, pool: Pool::Guaranteed, allocated: taken, device_free_milli: free, revision })
    }

    /// How many of one demand the nodes would hold together.
    pub(super) fn how_many(&self, demand: &Demand) -> usize {
        let mut nodes = self.nodes.clone();
        let mut n = 0;
        for node in nodes.values_mut() {
            while node.fits(demand) && n < 1000 {
                let milli = gpu_ask(demand).1;
                let devices = match gpu_ask(demand).0 {
                    0 => DeviceSet::NONE,
                    count => {
                        let mut free: Vec<usize> =
                            (0..node.gpus.len()).filter(|idx| node.gpus[*idx] >= milli).collect();
                        free.sort_by_key(|idx| node.gpus[*idx]);
                        free.iter().copied().take(count as usize).collect()
                    }
                };
                node.shift(demand, devices, 1);
                n += 1;
            }
        }
        n
    }

    /// A running unit is over: its room is free.
    pub(super) fn end(&mut self, unit: UnitId, ordinal: u32) -> bool {
        let Some((node, devices, demand)) = self.bound.get(&(unit, ordinal)).cloned() else { return false };
        if let Some(naive) = self.nodes.get_mut(&node) {
            naive.shift(&demand, devices, -1);
        }
        // The row stays bound in this incarnation: it cannot be placed again.
        self.bound.insert((unit, ordinal), (NodeId(0), DeviceSet::NONE, Demand::default()));
        self.revision += 1;
        true
    }
}
