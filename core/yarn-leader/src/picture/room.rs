//! What units take on nodes and of queues, and what is free for containers of YARN: the sums behind the room that masters are told of.
//!
//! Units that are not YARN's are followed here, as far as they take room: what they take is kept up to date with each change, because they may
//! be many. Only the guaranteed pool counts: what runs in the best-effort pool gives way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    resources::{CPU, MEMORY},
};
use godel_domain::{
    demand::{Demand, Pool},
    queue_spec::{QueueSpec, parent},
    running_units::{RunChange, RunningUnit, RunningUnits},
    unit::UnitRecord,
};

use rustc_hash::FxHashMap;

use super::{GPU, YarnNode, YarnPicture, YarnUnit, add, state_of};
use crate::reports::{YarnAmount, YarnNodeState};

/// An exact amount, and the number of running units that take it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExactRoom {
    n: i64,
    /// By resource, devices by their kind in thousandths.
    amounts: BTreeMap<String, i64>,
}

impl ExactRoom {
    fn of_demand(demand: &Demand) -> Self {
        Self { n: 1, amounts: demand.amounts().map(|(name, amount)| (name.to_owned(), amount)).collect() }
    }

    /// What a node has.
    fn of_node(node: &YarnNode) -> Self {
        let Some(report) = &node.report else { return Self::default() };
        let whole = node.allocatable.as_ref().unwrap_or(&report.capacity);
        let mut amounts: BTreeMap<String, i64> =
            whole.iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
        for device in &report.devices {
            *amounts.entry(device.kind.clone()).or_default() += 1_000;
        }
        Self { n: 0, amounts }
    }

    /// Adds `times` another one.
    fn add(&mut self, other: &Self, times: i64) {
        self.n = self.n.saturating_add(other.n.saturating_mul(times));
        for (name, amount) in &other.amounts {
            let amount = amount.saturating_mul(times);
            match self.amounts.get_mut(name) {
                Some(known) => *known = known.saturating_add(amount),
                None => drop(self.amounts.insert(name.clone(), amount)),
            }
        }
    }

    fn amount(&self, name: &str) -> i64 {
        self.amounts.get(name).copied().unwrap_or(0)
    }

    /// What containers may have of it: parts of a MiB, a CPU or a device are none.
    fn whole(&self) -> YarnAmount {
        let left = |(name, amount): (&String, &i64)| {
            let unit = unit_of(name);
            (name.clone(), amount.max(&0) / unit * unit)
        };
        YarnAmount::from_capability(&self.amounts.iter().map(left).collect())
    }
}

/// The least of a resource that YARN counts.
fn unit_of(name: &str) -> i64 {
    match name {
        MEMORY => 1 << 20,
        CPU | GPU => 1_000,
        _ => 1,
    }
}

/// A unit that is not YARN's.
#[derive(Clone, Debug)]
struct OtherUnit {
    queue: String,
    owner: String,
    /// What a running unit of each task group takes.
    groups: Vec<ExactRoom>,
    rows: RunningUnits,
}

/// Units that are not YARN's.
#[derive(Clone, Debug, Default)]
pub(super) struct OtherUnits {
    units: BTreeMap<UnitId, OtherUnit>,
    by_node: BTreeMap<NodeId, ExactRoom>,
    /// By path of the queue and owner.
    by_owner: BTreeMap<(String, String), ExactRoom>,
}

impl OtherUnits {
    pub(super) fn on_unit(&mut self, record: &UnitRecord) {
        let spec = &record.spec;
        if spec.pool == Pool::BestEffort {
            return;
        }
        let groups: Vec<ExactRoom> =
            spec.task_groups.iter().map(|group| ExactRoom::of_demand(&group.template.demand)).collect();
        let known = self.units.get(&record.id);
        if known.is_some_and(|known| {
            (&known.queue, &known.owner, &known.groups) == (&spec.queue, &spec.owner, &groups)
        }) {
            return;
        }
        let rows = self.remove(record.id).unwrap_or_default();
        let unit = OtherUnit { queue: spec.queue.clone(), owner: spec.owner.clone(), groups, rows };
        self.count_all(&unit, 1);
        self.units.insert(record.id, unit);
    }

    /// Takes listed rows.
    pub(super) fn load(&mut self, id: UnitId, rows: &RunningUnits) {
        let Some(mut unit) = self.units.remove(&id) else { return };
        self.count_all(&unit, -1);
        unit.rows = rows.clone();
        self.count_all(&unit, 1);
        self.units.insert(id, unit);
    }

    pub(super) fn on_rows(&mut self, id: UnitId, change: &RunChange, revision: Revision, time_ms: i64) {
        let Some(mut unit) = self.units.remove(&id) else { return };
        let mut changed: Vec<(RunningUnit, RunningUnit)> = Vec::new();
        unit.rows.apply(change, revision, time_ms, |_, before, after| {
            let place = |row: &RunningUnit| row.phase.is_live().then_some((row.node, row.group));
            if place(before) != place(after) {
                changed.push((*before, *after));
            }
        });
        for (before, after) in changed {
            self.count(&unit, &before, -1);
            self.count(&unit, &after, 1);
        }
        self.units.insert(id, unit);
    }

    /// Forgets a unit. Its rows.
    pub(super) fn remove(&mut self, id: UnitId) -> Option<RunningUnits> {
        let unit = self.units.remove(&id)?;
        self.count_all(&unit, -1);
        Some(unit.rows)
    }

    fn count_all(&mut self, unit: &OtherUnit, times: i64) {
        for (_, row) in unit.rows.live() {
            self.count(unit, row, times);
        }
    }

    fn count(&mut self, unit: &OtherUnit, row: &RunningUnit, times: i64) {
        let Some(room) = unit.groups.get(usize::from(row.group)).filter(|_| row.phase.is_live()) else {
            return;
        };
        let node = self.by_node.entry(row.node).or_default();
        node.add(room, times);
        if node.n == 0 {
            self.by_node.remove(&row.node);
        }
        let owner = (unit.queue.clone(), unit.owner.clone());
        let sum = self.by_owner.entry(owner.clone()).or_default();
        sum.add(room, times);
        if sum.n == 0 {
            self.by_owner.remove(&owner);
        }
    }
}

/// What is free, and what queues and owners have, as of the last second.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoomSums {
    /// Rises with each sum.
    pub(crate) version: u64,
    /// On nodes that take containers.
    free: BTreeMap<NodeId, YarnAmount>,
    /// The same by the label of the node.
    by_label: BTreeMap<String, YarnAmount>,
    /// By path, with what is below.
    by_queue: BTreeMap<String, ExactRoom>,
    /// By path of queues that limit owners, and owner.
    by_owner: BTreeMap<(String, String), ExactRoom>,
}

impl RoomSums {
    /// Nothing is known any more.
    pub(super) fn unknown_after(last: &Self) -> Self {
        Self { version: last.version.wrapping_add(1), ..Self::default() }
    }
}

/// Where the nodes are that start containers of YARN.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// The rack of each host.
    pub(crate) racks: Arc<BTreeMap<String, String>>,
    /// Nodes by host and by rack.
    by_name: BTreeMap<String, Vec<NodeId>>,
    /// A node has come, gone or moved since.
    pub(super) is_stale: bool,
}

impl Places {
    /// Nothing is known yet.
    pub(super) fn unknown() -> Self {
        Self { is_stale: true, ..Self::default() }
    }
}

/// For whom there is room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) queue: &'a str,
    pub(crate) owner: &'a str,
    /// Labels of the nodes that it may have.
    pub(crate) labels: &'a BTreeSet<&'a str>,
    /// Hosts and racks that it does not want.
    pub(crate) refused: &'a BTreeSet<String>,
}

impl YarnPicture {
    /// YarnSums up what is free on nodes, and what queues and owners have.
    pub(super) fn sum_room(&mut self) {
        if std::mem::take(&mut self.places.is_stale) {
            self.find_places();
        }
        let mut taken = self.others.by_node.clone();
        let mut of_owners = self.others.by_owner.clone();
        for entry in self.units.values().filter(|entry| entry.record.spec.pool != Pool::BestEffort) {
            count_unit(entry, &mut taken, &mut of_owners);
        }
        let mut sums = RoomSums { version: self.room.version.wrapping_add(1), ..RoomSums::default() };
        for (id, node) in self.nodes.iter().filter(|(id, node)| self.takes_containers(**id, node)) {
            let mut room = ExactRoom::of_node(node);
            if let Some(taken) = taken.get(id) {
                room.add(taken, -1);
            }
            let free = room.whole();
            let label = self.label(node, &self.label_key).unwrap_or_default();
            match sums.by_label.get_mut(label) {
                Some(sum) => add(sum, &free, 1),
                None => drop(sums.by_label.insert(label.to_owned(), free.clone())),
            }
            sums.free.insert(*id, free);
        }
        for ((path, owner), room) in of_owners {
            let mut above = Some(path.as_str());
            while let Some(queue) = above {
                sums.by_queue.entry(queue.to_owned()).or_default().add(&room, 1);
                if self.queues.get(queue).is_some_and(|spec| !spec.max_per_owner.is_empty()) {
                    let key = (queue.to_owned(), owner.clone());
                    sums.by_owner.entry(key).or_default().add(&room, 1);
                }
                above = parent(queue);
            }
        }
        self.room = sums;
    }

    /// A new container may be placed there.
    fn takes_containers(&self, id: NodeId, node: &YarnNode) -> bool {
        let is_tainted = |node: &YarnNode| {
            node.spec.as_ref().is_some_and(|spec| spec.taints.iter().any(|taint| taint.effect.is_hard()))
        };
        self.launch_node(id).is_some() && state_of(node, 0) == YarnNodeState::Running && !is_tainted(node)
    }

    fn find_places(&mut self) {
        let (mut racks, mut by_name) = (BTreeMap::new(), BTreeMap::<String, Vec<NodeId>>::new());
        for id in self.nodes.keys() {
            let Some(node) = self.launch_node(*id) else { continue };
            let rack = self.rack(*id);
            for name in [&node.host, &rack] {
                by_name.entry(name.clone()).or_default().push(*id);
            }
            racks.insert(node.host, rack);
        }
        if *self.places.racks != racks {
            self.places.racks = Arc::new(racks);
        }
        self.places.by_name = by_name;
    }

    /// What an application could get now: what is free on the nodes that it may have, within what its queue, those above and their owners may
    /// still take.
    pub(crate) fn headroom(&self, applicant: Applicant<'_>) -> YarnAmount {
        let Applicant { queue, owner, labels, refused } = applicant;
        let sums = &self.room;
        let mut room = YarnAmount::default();
        for free in labels.iter().filter_map(|label| sums.by_label.get(*label)) {
            add(&mut room, free, 1);
        }
        let refused: BTreeSet<NodeId> =
            refused.iter().filter_map(|name| self.places.by_name.get(name)).flatten().copied().collect();
        for id in refused {
            let label = |node| self.label(node, &self.label_key).unwrap_or_default();
            let is_counted = self.nodes.get(&id).is_some_and(|node| labels.contains(label(node)));
            if let Some(free) = sums.free.get(&id).filter(|_| is_counted) {
                add(&mut room, free, -1);
            }
        }
        let mut above = Some(queue);
        while let Some(path) = above {
            if let Some(spec) = self.queues.get(path) {
                self.bound(&mut room, spec, owner);
            }
            above = parent(path);
        }
        room
    }

    /// Bounds an amount by what a queue and an owner in it may still take.
    fn bound(&self, room: &mut YarnAmount, spec: &QueueSpec, owner: &str) {
        let none = ExactRoom::default();
        let used = self.room.by_queue.get(&spec.name).unwrap_or(&none);
        if spec.max_running_units > 0 && used.n >= i64::from(spec.max_running_units) {
            *room = YarnAmount::default();
        }
        let key = (spec.name.clone(), owner.to_owned());
        let of_owner = self.room.by_owner.get(&key).unwrap_or(&none);
        for (limits, used) in [(&spec.max, used), (&spec.max_per_owner, of_owner)] {
            let left = limits.iter().map(|(name, max)| (name.clone(), max.saturating_sub(used.amount(name))));
            let whole = ExactRoom { n: 0, amounts: left.collect() }.whole();
            if limits.contains_key(MEMORY) {
                room.memory_mb = room.memory_mb.min(whole.memory_mb);
            }
            if limits.contains_key(CPU) {
                room.vcores = room.vcores.min(whole.vcores);
            }
            for (name, left) in &whole.others {
                if let Some(known) = room.others.get_mut(name) {
                    *known = (*known).min(*left);
                }
            }
        }
    }

    /// Whether a node that starts containers of YARN has a label, or no such node is known yet.
    pub(crate) fn has_label(&self, label: &str) -> bool {
        self.some_node_has(|node| self.label(node, &self.label_key) == Some(label))
    }

    /// Whether a node that starts containers of YARN has a resource, or no such node is known yet.
    pub(crate) fn has_resource(&self, name: &str) -> bool {
        matches!(name, CPU | MEMORY) || self.some_node_has(|node| ExactRoom::of_node(node).amount(name) > 0)
    }

    fn some_node_has(&self, has: impl Fn(&YarnNode) -> bool) -> bool {
        let mut nodes = self.nodes.iter().filter(|(id, _)| self.launch_node(**id).is_some()).peekable();
        nodes.peek().is_none() || nodes.any(|(_, node)| has(node))
    }
}

/// Adds what the running units of a unit of YARN's take.
fn count_unit(
    entry: &YarnUnit,
    taken: &mut BTreeMap<NodeId, ExactRoom>,
    of_owners: &mut BTreeMap<(String, String), ExactRoom>,
) {
    let spec = &entry.record.spec;
    let mut live = entry.rows.live().peekable();
    if live.peek().is_none() {
        return;
    }
    let groups: Vec<ExactRoom> =
        spec.task_groups.iter().map(|group| ExactRoom::of_demand(&group.template.demand)).collect();
    let sum = of_owners.entry((spec.queue.clone(), spec.owner.clone())).or_default();
    // Many of a group are on one node.
    let mut counts: FxHashMap<(NodeId, u16), i64> = FxHashMap::default();
    for (_, row) in live {
        *counts.entry((row.node, row.group)).or_default() += 1;
    }
    for ((node, group), n) in counts {
        let Some(room) = groups.get(usize::from(group)) else { continue };
        taken.entry(node).or_default().add(room, n);
        sum.add(room, n);
    }
}

#[cfg(test)]
mod tests;
