//! The cluster as the adapter follows it: nodes that start containers of YARN, queues, and the units of applications.
//!
//! A change of a unit is handed back as what it means to the application: replicas that were added, running units that got a place, started or
//! ended. What is shown of nodes and queues is summed up once a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_core_yarn::{adapter::MASTER, exit_status::YarnExitStatus, ids::YarnApplicationId};
use godel_domain::{
    change::Change,
    ids::{NodeId, Revision, UnitId},
    node::{NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    resources::Resources,
    run_end::RunEndReason,
    running_units::{EvictionReason, Phase, RunChange, RunningUnit, RunningUnits},
    unit::{UnitRecord, WorkloadClass},
};

use crate::{
    launcher::{LaunchNode, LaunchUnit},
    reports::{YarnAmount, YarnNodeState},
    unit::{HOST_ATTRIBUTE, PORT_ATTRIBUTE, application_of},
};

/// Rack of nodes that do not say theirs, as YARN has it.
const DEFAULT_RACK: &str = "/default-rack";
/// Kind of devices that YARN counts.
const GPU: &str = "gpu";

/// One node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeEntry {
    pub(crate) spec: Option<NodeSpec>,
    pub(crate) report: Option<NodeReport>,
    allocatable: Option<Resources>,
    /// Commit time of its last report, Unix milliseconds.
    pub(crate) heard_ms: i64,
    /// Rises with each change of its state, over all nodes.
    pub(crate) change: u64,
    state: Option<YarnNodeState>,
}

/// The unit of an application.
#[derive(Clone, Debug)]
pub(crate) struct UnitEntry {
    pub(crate) record: Arc<UnitRecord>,
    pub(crate) rows: RunningUnits,
}

/// What happened to the unit of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnitEvent {
    /// Ordinals were added to a task group.
    Added(String, Vec<u32>),
    /// Somebody has cancelled or deleted it, or the dispatcher has ended it.
    Gone,
    /// A running unit has a place.
    Placed { ordinal: u32, incarnation: u32, node: NodeId },
    /// Its command runs.
    Started(u32),
    /// It has ended.
    Ended { ordinal: u32, incarnation: u32, exit: YarnExitStatus },
}

/// What YARN's units take, by node and by queue, as of the last second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) total: YarnAmount,
    pub(crate) used: YarnAmount,
    pub(crate) n_nodes: u32,
    pub(crate) n_containers: u64,
    pub(crate) by_node: BTreeMap<NodeId, (YarnAmount, u32)>,
    /// By path, with those below.
    pub(crate) by_queue: BTreeMap<String, (YarnAmount, u32)>,
    pub(crate) largest: YarnAmount,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    namespace: String,
    rack_key: String,
    pub(crate) nodes: BTreeMap<NodeId, NodeEntry>,
    pub(crate) queues: BTreeMap<String, Arc<QueueSpec>>,
    units: BTreeMap<UnitId, (YarnApplicationId, UnitEntry)>,
    by_application: BTreeMap<YarnApplicationId, UnitId>,
    /// Read up to here; `None` while a list is read.
    pub(crate) read: Option<Revision>,
    /// Changes of states of nodes so far.
    pub(crate) n_node_changes: u64,
    pub(crate) sums: Sums,
}

impl Picture {
    pub(crate) fn new(namespace: &str, rack_key: &str) -> Self {
        Self { namespace: namespace.to_owned(), rack_key: rack_key.to_owned(), ..Self::default() }
    }

    /// A list follows.
    pub(crate) fn reset(&mut self) {
        *self = Self { n_node_changes: self.n_node_changes, ..Self::new(&self.namespace, &self.rack_key) };
    }

    /// Takes one change, listed or committed. What it means to an application, if it is about one.
    pub(crate) fn apply(
        &mut self,
        change: &Change,
        revision: Revision,
        time_ms: i64,
    ) -> Option<(YarnApplicationId, Vec<UnitEvent>)> {
        match change {
            Change::NodeSpec(spec) => {
                self.nodes.entry(spec.id).or_default().spec = Some(spec.clone());
                self.note_node(spec.id);
            }
            Change::NodeReport(report) => {
                let entry = self.nodes.entry(report.id).or_default();
                entry.heard_ms = time_ms;
                entry.report = Some(report.clone());
                self.note_node(report.id);
            }
            Change::NodeAllocatable(id, allocatable) => {
                self.nodes.entry(*id).or_default().allocatable = Some(allocatable.clone());
            }
            Change::NodeDeleted(id) => {
                self.nodes.remove(id);
            }
            Change::Queue(spec) => {
                self.queues.insert(spec.name.clone(), Arc::clone(spec));
            }
            Change::QueueDeleted(name) => {
                self.queues.remove(name);
            }
            Change::Unit(record) => return self.on_unit(record),
            Change::UnitDeleted(id) => {
                let (application, _) = self.units.remove(id)?;
                self.by_application.remove(&application);
                return Some((application, vec![UnitEvent::Gone]));
            }
            Change::RowsLoaded(id, rows) => {
                self.units.get_mut(id)?.1.rows = rows.clone();
            }
            Change::Rows(id, change) => return self.on_rows(*id, change, revision, time_ms),
            _ => {}
        }
        None
    }

    fn on_unit(&mut self, record: &Arc<UnitRecord>) -> Option<(YarnApplicationId, Vec<UnitEvent>)> {
        let spec = &record.spec;
        if spec.namespace != self.namespace || spec.class != WorkloadClass::Yarn {
            return None;
        }
        let application = application_of(&spec.name)?;
        let mut events = Vec::new();
        match self.units.get_mut(&record.id) {
            Some((_, entry)) => {
                for (idx, group) in spec.task_groups.iter().enumerate() {
                    let before = ordinals(&entry.record, idx);
                    let added: Vec<u32> = ordinals(record, idx).difference(&before).copied().collect();
                    if !added.is_empty() {
                        events.push(UnitEvent::Added(group.name.clone(), added));
                    }
                }
                entry.record = Arc::clone(record);
            }
            None => {
                let entry = UnitEntry { record: Arc::clone(record), rows: RunningUnits::default() };
                self.units.insert(record.id, (application, entry));
                self.by_application.insert(application, record.id);
            }
        }
        if record.status.cancelled || record.status.ended.is_some() {
            events.push(UnitEvent::Gone);
        }
        Some((application, events))
    }

    fn on_rows(
        &mut self,
        id: UnitId,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
    ) -> Option<(YarnApplicationId, Vec<UnitEvent>)> {
        let (application, entry) = self.units.get_mut(&id)?;
        let mut events = Vec::new();
        entry.rows.apply(change, revision, time_ms, |ordinal, before, after| {
            events.extend(changes_of(ordinal, *before, *after));
        });
        Some((*application, events))
    }

    /// What the unit of an application is after a start, as if it happened now: the master first.
    pub(crate) fn unit(&self, application: YarnApplicationId) -> Option<(UnitId, &UnitEntry)> {
        let id = self.by_application.get(&application)?;
        Some((*id, &self.units.get(id)?.1))
    }

    /// What a node is called by masters.
    pub(crate) fn launch_node(&self, id: NodeId) -> Option<LaunchNode> {
        let node = self.nodes.get(&id)?;
        let name = &node.spec.as_ref()?.name;
        let port = self.label(node, PORT_ATTRIBUTE)?.parse().ok()?;
        let host = self.label(node, HOST_ATTRIBUTE).unwrap_or(name).to_owned();
        Some(LaunchNode { name: name.clone(), host, port })
    }

    /// The value of a label of a node, or of the attribute of that name.
    pub(crate) fn label<'a>(&'a self, node: &'a NodeEntry, key: &str) -> Option<&'a str> {
        let label = node.spec.as_ref().and_then(|spec| spec.labels.get(key));
        let attribute = || node.report.as_ref().and_then(|report| report.attributes.get(key));
        label.or_else(attribute).map(String::as_str)
    }

    /// The rack of a node, as YARN writes it.
    pub(crate) fn rack(&self, id: NodeId) -> String {
        let rack = self.nodes.get(&id).and_then(|node| self.label(node, &self.rack_key));
        rack.map_or_else(|| DEFAULT_RACK.to_owned(), |rack| format!("/{rack}"))
    }

    /// Where a running unit of an application is.
    pub(crate) fn place(
        &self,
        application: YarnApplicationId,
        ordinal: u32,
    ) -> Option<(LaunchNode, LaunchUnit)> {
        let (id, entry) = self.unit(application)?;
        let row = entry.rows.row(ordinal);
        let unit = LaunchUnit { unit_id: id.0, ordinal, incarnation: row.incarnation };
        Some((self.launch_node(row.node)?, unit))
    }

    fn note_node(&mut self, id: NodeId) {
        let Some(entry) = self.nodes.get(&id) else { return };
        let state = self.launch_node(id).map(|_| state_of(entry, 0));
        if let Some(entry) = self.nodes.get_mut(&id).filter(|entry| entry.state != state) {
            self.n_node_changes += 1;
            (entry.state, entry.change) = (state, self.n_node_changes);
        }
    }

    /// What a node has in all.
    pub(crate) fn total(node: &NodeEntry) -> YarnAmount {
        let Some(report) = &node.report else { return YarnAmount::default() };
        let room = node.allocatable.as_ref().unwrap_or(&report.capacity);
        let mut capability: BTreeMap<String, i64> =
            room.iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
        let n_gpus = report.devices.iter().filter(|device| device.kind == GPU).count();
        if n_gpus > 0 {
            capability
                .insert(GPU.to_owned(), i64::try_from(n_gpus).unwrap_or(i64::MAX).saturating_mul(1_000));
        }
        YarnAmount::from_capability(&capability)
    }

    /// Sums up what is shown of nodes and queues. Costs follow the number of running units of YARN.
    pub(crate) fn sum_up(&mut self) {
        let mut sums = Sums::default();
        for (id, node) in &self.nodes {
            if self.launch_node(*id).is_none() || state_of(node, 0) != YarnNodeState::Running {
                continue;
            }
            let total = Self::total(node);
            sums.n_nodes += 1;
            add(&mut sums.total, &total, 1);
            sums.largest = YarnAmount {
                memory_mb: sums.largest.memory_mb.max(total.memory_mb),
                vcores: sums.largest.vcores.max(total.vcores),
                others: larger(&sums.largest.others, &total.others),
            };
        }
        for (_, entry) in self.units.values() {
            let amounts: Vec<YarnAmount> =
                entry.record.spec.task_groups.iter().map(|group| amount_of(&group.template.demand)).collect();
            for (_, row) in entry.rows.live() {
                let Some(amount) = amounts.get(usize::from(row.group)) else { continue };
                sums.n_containers += 1;
                add(&mut sums.used, amount, 1);
                let node = sums.by_node.entry(row.node).or_default();
                add(&mut node.0, amount, 1);
                node.1 += 1;
                let mut path = Some(entry.record.spec.queue.as_str());
                while let Some(queue) = path {
                    let queue_sum = sums.by_queue.entry(queue.to_owned()).or_default();
                    add(&mut queue_sum.0, amount, 1);
                    queue_sum.1 += 1;
                    path = godel_domain::queue_spec::parent(queue);
                }
            }
        }
        self.sums = sums;
    }
}

/// What a demand is for YARN.
pub(crate) fn amount_of(demand: &godel_domain::demand::Demand) -> YarnAmount {
    let capability = demand.amounts().map(|(name, amount)| (name.to_owned(), amount)).collect();
    YarnAmount::from_capability(&capability)
}

/// Adds `n` times an amount.
pub(crate) fn add(sum: &mut YarnAmount, amount: &YarnAmount, n: i64) {
    sum.memory_mb = sum.memory_mb.saturating_add(amount.memory_mb.saturating_mul(n));
    sum.vcores = sum.vcores.saturating_add(amount.vcores.saturating_mul(n));
    for (name, given) in &amount.others {
        let of = sum.others.entry(name.clone()).or_default();
        *of = of.saturating_add(given.saturating_mul(n));
    }
}

fn larger(one: &BTreeMap<String, i64>, other: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let mut larger = one.clone();
    for (name, amount) in other {
        let known = larger.entry(name.clone()).or_default();
        *known = (*known).max(*amount);
    }
    larger
}

/// Where a node is, as YARN says it; `n_containers` are on it.
pub(crate) fn state_of(node: &NodeEntry, n_containers: u32) -> YarnNodeState {
    let is_ready = node.report.as_ref().is_some_and(|report| report.ready);
    match &node.spec {
        _ if !is_ready => YarnNodeState::Lost,
        Some(spec) if spec.quarantine.is_some() => YarnNodeState::Unhealthy,
        Some(spec) if spec.is_closed() && n_containers > 0 => YarnNodeState::Decommissioning,
        Some(spec) if spec.is_closed() => YarnNodeState::Decommissioned,
        Some(_) | None => YarnNodeState::Running,
    }
}

fn ordinals(record: &UnitRecord, group: usize) -> BTreeSet<u32> {
    let ranges = record.status.ordinals.get(group);
    ranges.into_iter().flatten().flat_map(|(start, end)| *start..*end).collect()
}

/// Ordinals of a task group, by its name; `None`: the unit has no such group.
pub(crate) fn ordinals_of(record: &UnitRecord, group: &str) -> Option<BTreeSet<u32>> {
    let idx = record.spec.task_groups.iter().position(|known| known.name == group)?;
    Some(ordinals(record, idx))
}

/// How a running unit ended, in YARN's numbers.
pub(crate) fn exit_of(row: &RunningUnit) -> YarnExitStatus {
    let told = if row.phase == Phase::Stopped { RunEndReason::Told } else { RunEndReason::Exited };
    let exit = YarnExitStatus::of_run(row.eviction, row.end.reason.unwrap_or(told), row.exit_code);
    // A signal that ended it has a number of its own; nothing of that is success.
    if row.phase == Phase::Failed && exit == YarnExitStatus(0) { YarnExitStatus(1) } else { exit }
}

fn changes_of(ordinal: u32, before: RunningUnit, after: RunningUnit) -> Vec<UnitEvent> {
    let incarnation = after.incarnation;
    let mut events = Vec::new();
    let was = if before.incarnation == incarnation { before.phase } else { Phase::Pending };
    if was == Phase::Pending && after.phase != Phase::Pending {
        events.push(UnitEvent::Placed { ordinal, incarnation, node: after.node });
    }
    if after.phase == Phase::Running && was != Phase::Running && ordinal != MASTER {
        events.push(UnitEvent::Started(ordinal));
    }
    if after.phase.is_ended() && !was.is_ended() {
        events.push(UnitEvent::Ended { ordinal, incarnation, exit: exit_of(&after) });
    }
    events
}

/// Whether a running unit is to leave for others.
pub(crate) fn is_preempted(row: &RunningUnit) -> bool {
    row.phase.is_live()
        && matches!(
            row.eviction,
            Some(
                EvictionReason::Preempted
                    | EvictionReason::Squeezed
                    | EvictionReason::Drained
                    | EvictionReason::Rescheduled
            )
        )
}

#[cfg(test)]
mod tests;
