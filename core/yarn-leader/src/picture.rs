//! The cluster as the adapter follows it: nodes that start containers of YARN, queues, and the units of applications.
//!
//! A change of a unit is handed back as what it means to the application: replicas that were added, running units that got a place, started or
//! ended. What is shown of nodes and queues is summed up once a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    resources::Resources,
};
use godel_core_yarn::{
    adapter::{MASTER, OPPORTUNISTIC},
    exit_status::YarnExitStatus,
    ids::YarnApplicationId,
};
use godel_domain::{
    change::Change,
    node::NodeAllocatable,
    node::{NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    records::{Record, RecordKey, RecordKind},
    run_end::{RunEnd, RunEndReason},
    running_units::{EvictionReason, Phase, RunChange, RunningUnit, RunningUnits},
    unit::{UnitRecord, WorkloadClass},
};

use crate::{
    answers::{LaunchNode, LaunchUnit},
    names::{DEFAULT_RACK, HOST_ATTRIBUTE, PORT_ATTRIBUTE, application_of},
    reports::{YarnAmount, YarnNodeState},
    used::UsedSeconds,
};

pub(crate) use self::room::Applicant;
use self::room::{OtherUnits, Places, RoomSums};

mod room;

/// Records that the adapter follows, rows last: those of its picture of the cluster, and keys.
pub const FOLLOWS: &[RecordKind] = &[
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::NodeAllocatable,
    RecordKind::Queue,
    RecordKind::YarnKeys,
    RecordKind::Unit,
    RecordKind::Rows,
];

/// Kind of devices that YARN counts.
const GPU: &str = "gpu";

/// One node.
#[derive(Clone, Debug, Default)]
pub(crate) struct YarnNode {
    pub(crate) spec: Option<NodeSpec>,
    pub(crate) report: Option<NodeReport>,
    allocatable: Option<Resources>,
    /// Commit time of its last report, Unix milliseconds.
    pub(crate) heard_ms: i64,
    /// Rises with each change of its state, over all nodes.
    pub(crate) change: u64,
    state: Option<YarnNodeState>,
    /// Its host and rack.
    place: Option<(String, String)>,
}

/// A unit of an application.
#[derive(Clone, Debug)]
pub(crate) struct YarnUnit {
    /// Whose it is.
    application: YarnApplicationId,
    /// What its ordinals are counted from: 0, or [`OPPORTUNISTIC`] for the unit of opportunistic containers.
    base: u32,
    pub(crate) record: Arc<UnitRecord>,
    pub(crate) rows: RunningUnits,
    /// Ordinals of the application whose running units are to leave for others. Mostly there are none, and every call of a master asks.
    leaving: BTreeSet<u32>,
    used: UsedSeconds,
}

impl YarnUnit {
    /// An ordinal of the application as the unit counts it.
    pub(crate) fn own(&self, ordinal: u32) -> u32 {
        ordinal - self.base.min(ordinal)
    }

    /// An ordinal of the unit as the application counts it.
    pub(crate) fn shown(&self, ordinal: u32) -> u32 {
        self.base | ordinal
    }

    /// The running unit of an ordinal of the application.
    pub(crate) fn row(&self, ordinal: u32) -> RunningUnit {
        self.rows.row(self.own(ordinal))
    }

    /// How the running unit of an ordinal of the application ended, in YARN's numbers.
    pub(crate) fn exit_of(&self, ordinal: u32) -> YarnExitStatus {
        exit_of(&self.row(ordinal), self.end(ordinal).reason)
    }

    /// When the running unit of an ordinal of the application ran, and why it is over.
    pub(crate) fn end(&self, ordinal: u32) -> RunEnd {
        self.rows.end(self.own(ordinal))
    }

    /// What the containers of each of its task groups take.
    pub(crate) fn amounts(&self) -> Vec<YarnAmount> {
        self.record.spec.task_groups.iter().map(|group| amount_of(&group.template.demand)).collect()
    }

    /// Takes listed rows.
    fn load(&mut self, rows: &RunningUnits) {
        self.rows = rows.clone();
        self.used = UsedSeconds::listed(&self.record, &self.rows);
        let leaving = self.rows.live().filter(|(_, row)| is_preempted(row));
        self.leaving = leaving.map(|(ordinal, _)| self.base | ordinal).collect();
    }

    /// MiB-seconds and CPU-seconds of what ran of it, of its master in the last incarnation.
    fn used_seconds(&self, now_ms: i64) -> (i64, i64) {
        self.used.until(&self.record, &self.rows, now_ms)
    }

    /// Nobody has ended it.
    pub(crate) fn is_alive(&self) -> bool {
        !is_over(&self.record)
    }

    /// When the last of its running units ended, Unix milliseconds; 0: none has run. `None`: some run, or it is alive.
    fn over_since_ms(&self) -> Option<i64> {
        if self.is_alive() || self.rows.live().next().is_some() {
            return None;
        }
        Some(self.rows.ends.values().map(|end| end.ended_ms).max().unwrap_or(0))
    }
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
pub(crate) struct YarnSums {
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
pub(crate) struct YarnPicture {
    namespace: String,
    rack_key: String,
    /// Label of nodes whose value is their label in YARN.
    label_key: String,
    pub(crate) nodes: BTreeMap<NodeId, YarnNode>,
    pub(crate) queues: BTreeMap<String, Arc<QueueSpec>>,
    units: BTreeMap<UnitId, YarnUnit>,
    by_application: BTreeMap<YarnApplicationId, UnitId>,
    /// Units of opportunistic containers.
    opportunistic: BTreeMap<YarnApplicationId, UnitId>,
    /// Read up to here; `None` while a list is read.
    pub(crate) read: Option<Revision>,
    /// Changes of states of nodes so far.
    pub(crate) n_node_changes: u64,
    pub(crate) sums: YarnSums,
    pub(crate) room: RoomSums,
    pub(crate) places: Places,
    /// Units that are not YARN's.
    others: OtherUnits,
}

impl YarnPicture {
    pub(crate) fn new(namespace: &str, rack_key: &str) -> Self {
        Self { namespace: namespace.to_owned(), rack_key: rack_key.to_owned(), ..Self::default() }
    }

    /// With the label of nodes whose value is their label in YARN.
    pub(crate) fn with_label_key(self, label_key: &str) -> Self {
        Self { label_key: label_key.to_owned(), ..self }
    }

    /// A list follows.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            n_node_changes: self.n_node_changes,
            label_key: std::mem::take(&mut self.label_key),
            room: RoomSums::unknown_after(&self.room),
            places: Places::unknown(),
            ..Self::new(&self.namespace, &self.rack_key)
        };
    }

    /// Takes one change, listed or committed. What it means to an application, if it is about one.
    pub(crate) fn apply(
        &mut self,
        change: &Change,
        revision: Revision,
        time_ms: i64,
    ) -> Option<(YarnApplicationId, Vec<UnitEvent>)> {
        match change {
            Change::Put(Record::NodeSpec(spec)) => {
                self.nodes.entry(spec.id).or_default().spec = Some(spec.clone());
                self.note_node(spec.id);
            }
            Change::Put(Record::NodeReport(report)) => {
                let entry = self.nodes.entry(report.id).or_default();
                entry.heard_ms = time_ms;
                entry.report = Some(report.clone());
                self.note_node(report.id);
            }
            Change::Put(Record::NodeAllocatable(NodeAllocatable { id, amounts: allocatable })) => {
                self.nodes.entry(*id).or_default().allocatable = Some(allocatable.clone());
            }
            Change::Gone(RecordKey::NodeSpec(id)) => {
                self.nodes.remove(id);
                self.places.is_stale = true;
            }
            Change::Put(Record::Queue(spec)) => {
                self.queues.insert(spec.name.clone(), Arc::clone(spec));
            }
            Change::Gone(RecordKey::Queue(name)) => {
                self.queues.remove(name);
            }
            Change::Put(Record::Unit(record)) => return self.on_unit(record),
            Change::Gone(RecordKey::Unit(id)) => {
                self.others.remove(*id);
                let (application, has_master) = self.remove(*id)?;
                return has_master.then(|| (application, vec![UnitEvent::Gone]));
            }
            Change::RowsLoaded(id, rows) => match self.units.get_mut(id) {
                Some(unit) => unit.load(rows),
                None => self.others.load(*id, rows),
            },
            Change::Rows(id, change) => return self.on_rows(*id, change, revision, time_ms),
            _ => {}
        }
        None
    }

    fn on_unit(&mut self, record: &Arc<UnitRecord>) -> Option<(YarnApplicationId, Vec<UnitEvent>)> {
        let spec = &record.spec;
        let is_own = spec.namespace == self.namespace && spec.class == WorkloadClass::Yarn;
        let Some((application, is_opportunistic)) = application_of(&spec.name).filter(|_| is_own) else {
            self.others.on_unit(record);
            return None;
        };
        let base = if is_opportunistic { OPPORTUNISTIC } else { 0 };
        let mut events = Vec::new();
        match self.units.get_mut(&record.id) {
            Some(entry) => {
                for (idx, group) in spec.task_groups.iter().enumerate() {
                    let before = ordinals(&entry.record, idx);
                    let after = ordinals(record, idx);
                    let added: Vec<u32> = after.difference(&before).map(|ordinal| base | ordinal).collect();
                    if !added.is_empty() {
                        events.push(UnitEvent::Added(group.name.clone(), added));
                    }
                }
                entry.record = Arc::clone(record);
            }
            // It was forgotten, see `forget_over`.
            None if self.read.is_some() && is_over(record) => return None,
            None => {
                let rows = RunningUnits::default();
                let (leaving, used) = (BTreeSet::new(), UsedSeconds::listed(record, &rows));
                let entry = YarnUnit { application, base, record: Arc::clone(record), rows, leaving, used };
                self.units.insert(record.id, entry);
                let known = if is_opportunistic { &mut self.opportunistic } else { &mut self.by_application };
                known.insert(application, record.id);
            }
        }
        if is_over(record) && !is_opportunistic {
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
        let Some(entry) = self.units.get_mut(&id) else {
            self.others.on_rows(id, change, revision, time_ms);
            return None;
        };
        let mut events = Vec::new();
        let YarnUnit { application, base, rows, leaving, used, record } = entry;
        let mut changed = Vec::new();
        rows.apply(change, revision, time_ms, |own, before, after| {
            changed.push((own, *before, *after));
        });
        for (own, before, after) in changed {
            used.on_change(record, rows, own, &before, &after, time_ms);
            let ordinal = *base | own;
            if is_preempted(&after) {
                leaving.insert(ordinal);
            } else if is_preempted(&before) {
                leaving.remove(&ordinal);
            }
            let exit = exit_of(&after, rows.end(own).reason);
            events.extend(changes_of(ordinal, before, after, exit));
        }
        Some((*application, events))
    }

    /// Forgets units that are over and of which nothing runs, but for the newest ends. An application that has ended needs its unit no more: what
    /// its containers took stands in its own record.
    pub(crate) fn forget_over(&mut self, n_max: usize) {
        let over = self.units.iter().filter_map(|(id, unit)| Some((unit.over_since_ms()?, *id)));
        let mut over: Vec<(i64, UnitId)> = over.collect();
        let Some(n_gone) = over.len().checked_sub(n_max).filter(|n| *n > 0) else { return };
        over.sort_unstable();
        for (_, id) in over.into_iter().take(n_gone) {
            self.remove(id);
        }
    }

    /// The application of a removed unit, and whether it was the one with its master.
    fn remove(&mut self, id: UnitId) -> Option<(YarnApplicationId, bool)> {
        let YarnUnit { application, base, .. } = self.units.remove(&id)?;
        let known = if base > 0 { &mut self.opportunistic } else { &mut self.by_application };
        known.remove(&application);
        Some((application, base == 0))
    }

    /// The unit of an application that has its master.
    pub(crate) fn unit(&self, application: YarnApplicationId) -> Option<&YarnUnit> {
        self.unit_of(application, MASTER)
    }

    /// The unit of an application that has an ordinal.
    pub(crate) fn unit_of(&self, application: YarnApplicationId, ordinal: u32) -> Option<&YarnUnit> {
        let known = if ordinal >= OPPORTUNISTIC { &self.opportunistic } else { &self.by_application };
        self.units.get(known.get(&application)?)
    }

    /// Every unit of an application, the one with its master first.
    pub(crate) fn units_of(&self, application: YarnApplicationId) -> impl Iterator<Item = &YarnUnit> {
        [MASTER, OPPORTUNISTIC].into_iter().filter_map(move |ordinal| self.unit_of(application, ordinal))
    }

    /// Ordinals of an application that are to leave for others.
    pub(crate) fn leaving(&self, application: YarnApplicationId) -> impl Iterator<Item = u32> {
        self.units_of(application).flat_map(|unit| unit.leaving.iter().copied())
    }

    /// MiB-seconds and CPU-seconds of an application until now; `None`: its unit is not known.
    pub(crate) fn used_seconds(&self, application: YarnApplicationId, now_ms: i64) -> Option<(i64, i64)> {
        self.unit(application)?;
        let of_units = self.units_of(application).map(|unit| unit.used_seconds(now_ms));
        let sum = |sum: (i64, i64), of: (i64, i64)| (sum.0.saturating_add(of.0), sum.1.saturating_add(of.1));
        Some(of_units.fold((0, 0), sum))
    }

    /// What a node is called by masters.
    pub(crate) fn launch_node(&self, id: NodeId) -> Option<LaunchNode> {
        let node = self.nodes.get(&id)?;
        let name = &node.spec.as_ref()?.name;
        let port = self.label(node, PORT_ATTRIBUTE)?.parse().ok()?;
        let host = self.label(node, HOST_ATTRIBUTE).unwrap_or(name).to_owned();
        Some(LaunchNode { name: name.clone(), host, port })
    }

    /// What every node that starts containers is called by masters.
    pub(crate) fn launch_nodes(&self) -> impl Iterator<Item = LaunchNode> {
        self.nodes.keys().filter_map(|id| self.launch_node(*id))
    }

    /// The value of a label of a node, or of the attribute of that name.
    pub(crate) fn label<'a>(&'a self, node: &'a YarnNode, key: &str) -> Option<&'a str> {
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
        let entry = self.unit_of(application, ordinal)?;
        let row = entry.row(ordinal);
        let ordinal = entry.own(ordinal);
        let unit = LaunchUnit { unit_id: entry.record.id.0, ordinal, incarnation: row.incarnation };
        Some((self.launch_node(row.node)?, unit))
    }

    fn note_node(&mut self, id: NodeId) {
        let Some(entry) = self.nodes.get(&id) else { return };
        let launch = self.launch_node(id);
        let state = launch.as_ref().map(|_| state_of(entry, 0));
        let place = launch.map(|launch| (launch.host, self.rack(id)));
        if let Some(entry) = self.nodes.get_mut(&id).filter(|entry| entry.place != place) {
            self.places.is_stale = true;
            entry.place = place;
        }
        if let Some(entry) = self.nodes.get_mut(&id).filter(|entry| entry.state != state) {
            self.n_node_changes += 1;
            (entry.state, entry.change) = (state, self.n_node_changes);
        }
    }

    /// What a node has in all.
    pub(crate) fn total(node: &YarnNode) -> YarnAmount {
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

    /// YarnSums up what is shown of nodes and queues. Costs follow the number of running units of YARN.
    pub(crate) fn sum_up(&mut self) {
        let mut sums = YarnSums::default();
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
        for entry in self.units.values().filter(|entry| entry.rows.live().next().is_some()) {
            let amounts = entry.amounts();
            let mut counts = vec![0_u32; amounts.len()];
            for (_, row) in entry.rows.live() {
                let group = usize::from(row.group);
                let Some((amount, n)) = amounts.get(group).zip(counts.get_mut(group)) else { continue };
                *n += 1;
                let node = sums.by_node.entry(row.node).or_default();
                add(&mut node.0, amount, 1);
                node.1 += 1;
            }
            // Containers of one group are alike: their queues take them all at once.
            for (amount, n) in amounts.iter().zip(counts).filter(|(_, n)| *n > 0) {
                sums.n_containers += u64::from(n);
                add(&mut sums.used, amount, n.into());
                let mut path = Some(entry.record.spec.queue.as_str());
                while let Some(queue) = path {
                    let queue_sum = sums.by_queue.entry(queue.to_owned()).or_default();
                    add(&mut queue_sum.0, amount, n.into());
                    queue_sum.1 += n;
                    path = godel_domain::queue_spec::parent(queue);
                }
            }
        }
        self.sums = sums;
        self.sum_room();
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
pub(crate) fn state_of(node: &YarnNode, n_containers: u32) -> YarnNodeState {
    let is_ready = node.report.as_ref().is_some_and(|report| report.ready);
    match &node.spec {
        _ if !is_ready => YarnNodeState::Lost,
        Some(spec) if spec.quarantine.is_some() || spec.identity_expired_since_ms.is_some() => {
            YarnNodeState::Unhealthy
        }
        Some(_) if node.report.as_ref().is_some_and(|report| !report.can_start()) => YarnNodeState::Unhealthy,
        Some(spec) if spec.is_closed() && n_containers > 0 => YarnNodeState::Decommissioning,
        Some(spec) if spec.is_closed() => YarnNodeState::Decommissioned,
        Some(_) | None => YarnNodeState::Running,
    }
}

fn is_over(record: &UnitRecord) -> bool {
    record.status.cancelled || record.status.ended.is_some()
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

/// How a running unit that ended for a reason did so, in YARN's numbers.
fn exit_of(row: &RunningUnit, reason: Option<RunEndReason>) -> YarnExitStatus {
    if row.phase == Phase::Stopped && row.eviction.is_none() && reason.is_none() {
        return YarnExitStatus::KILLED_BY_RESOURCEMANAGER;
    }
    let reason = reason.unwrap_or(RunEndReason::Exited);
    let exit = YarnExitStatus::of_run(row.eviction, reason, row.exit_code);
    // A signal that ended it has a number of its own; nothing of that is success.
    if row.phase == Phase::Failed && exit == YarnExitStatus(0) { YarnExitStatus(1) } else { exit }
}

/// What a change of a running unit means; ordinal 0 of opportunistic containers stands for nothing.
fn changes_of(ordinal: u32, before: RunningUnit, after: RunningUnit, exit: YarnExitStatus) -> Vec<UnitEvent> {
    let incarnation = after.incarnation;
    let mut events = Vec::new();
    if ordinal == OPPORTUNISTIC {
        return events;
    }
    let was = if before.incarnation == incarnation { before.phase } else { Phase::Pending };
    if was == Phase::Pending && after.phase != Phase::Pending {
        events.push(UnitEvent::Placed { ordinal, incarnation, node: after.node });
    }
    if after.phase == Phase::Running && was != Phase::Running && ordinal != MASTER {
        events.push(UnitEvent::Started(ordinal));
    }
    if after.phase.is_ended() && !was.is_ended() {
        events.push(UnitEvent::Ended { ordinal, incarnation, exit });
    }
    events
}

/// Whether a running unit is to leave for others.
fn is_preempted(row: &RunningUnit) -> bool {
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
