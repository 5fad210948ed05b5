//! I1 and I3 to I5 at every commit, by sums over all rows that share nothing with the audit or the parts.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    allocation::DeviceSet,
    change::Change,
    demand::{Demand, Pool},
    hold::Hold,
    records::Record,
    running_units::{Phase, RunChange},
    unit::WorkloadClass,
};

use super::store::Store;

/// By name: amounts, devices in thousandths, running units.
pub(super) type NaiveSums = BTreeMap<String, i64>;

/// See the module.
#[derive(Default)]
pub(super) struct Naive {
    pub(super) n_events: usize,
    /// What queues used before the commit.
    used: BTreeMap<String, NaiveSums>,
    bound: BTreeSet<RunningUnitId>,
    first_bound: BTreeSet<UnitId>,
}

impl Naive {
    /// What these operations may change is counted before.
    pub(super) fn before(&mut self, store: &Store, ops: &[Change]) {
        let takes =
            |op: &Change| matches!(op, Change::Rows(_, RunChange::Bind(_)) | Change::Put(Record::Hold(_)));
        if ops.iter().any(takes) {
            self.used = net(store);
        }
    }

    /// What is wrong with the newest commit.
    pub(super) fn after(&mut self, store: &Store) -> Result<(), String> {
        let Some(commit) = store.commits.last() else { return Ok(()) };
        let mut bound: BTreeMap<UnitId, u32> = BTreeMap::new();
        let mut bound_of: BTreeMap<(UnitId, u16), u32> = BTreeMap::new();
        let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
        for change in &commit.changes {
            match change {
                Change::Rows(unit, RunChange::Bind(bind)) => {
                    let n = u32::try_from(bind.ordinals.len()).expect("small");
                    *bound.entry(*unit).or_default() += n;
                    *bound_of.entry((*unit, bind.group)).or_default() += n;
                    nodes.extend(&bind.nodes);
                    for (idx, ordinal) in bind.ordinals.iter().enumerate() {
                        let incarnation = bind.incarnations.get(idx).copied().unwrap_or(0);
                        if !self.bound.insert(RunningUnitId::new(*unit, *ordinal, incarnation)) {
                            return Err(format!(
                                "naive I3: {unit}/{ordinal} incarnation {incarnation} again"
                            ));
                        }
                    }
                }
                Change::Put(Record::Hold(hold)) if hold.counts_in_queue() => {
                    bound.entry(hold.unit).or_default();
                }
                _ => {}
            }
        }
        if bound.is_empty() {
            return Ok(());
        }
        let used = net(store);
        for (unit, n) in bound {
            let Some(record) = store.record(unit) else { return Err(format!("naive: {unit} has no record")) };
            if n > 0 && self.first_bound.insert(unit) {
                if n < record.spec.min_member {
                    return Err(format!("naive I4: {n} of {} of unit {unit}", record.spec.min_member));
                }
                for (idx, group) in (0u16..).zip(&record.spec.task_groups) {
                    let n = bound_of.get(&(unit, idx)).copied().unwrap_or(0);
                    if n < group.min_member {
                        let least = group.min_member;
                        return Err(format!("naive I4: {n} of {least} of task group {idx} of unit {unit}"));
                    }
                }
            }
            self.check_queues(store, &used, (&record.spec.queue, &record.spec.owner))?;
        }
        nodes.into_iter().try_for_each(|node| check_node(store, node, commit.revision))
    }

    fn check_queues(
        &self,
        store: &Store,
        used: &BTreeMap<String, NaiveSums>,
        (path, owner): (&str, &str),
    ) -> Result<(), String> {
        for level in levels(path) {
            let Some(queue) = store.world.queues.get(level) else { continue };
            let n_max = i64::from(queue.value.max_running_units);
            let maxima = queue.value.max.iter().map(|(name, max)| (name.as_str(), *max));
            let maxima = maxima.chain((n_max > 0).then_some(("", n_max))).map(|of| (level.to_owned(), of));
            let per_owner = queue.value.max_per_owner.iter().map(|(name, max)| (name.as_str(), *max));
            let per_owner = per_owner.map(|of| (of_owner(level, owner), of));
            let of_masters = queue.value.max_of_masters().map(|of| (of_masters(level), of));
            for (whose, (name, max)) in maxima.chain(per_owner).chain(of_masters) {
                let of = |used: &BTreeMap<String, NaiveSums>| {
                    used.get(&whose).and_then(|sums| sums.get(name)).copied().unwrap_or(0)
                };
                let (before, after) = (of(&self.used), of(used));
                if after > max && after > before {
                    return Err(format!("naive I5: {whose} uses {after} of {max} {name}, {before} before"));
                }
            }
        }
        Ok(())
    }
}

/// What an owner takes of a queue is kept under this name: no queue is called so.
pub(super) fn of_owner(level: &str, owner: &str) -> String {
    format!("{level} by {owner}")
}

/// The same of application masters.
pub(super) fn of_masters(level: &str) -> String {
    format!("{level} by masters")
}

/// `a.b` counts in `a` and in `a.b`.
pub(super) fn levels(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('.').map(|(at, _)| &path[..at]).chain([path])
}

fn add(sums: &mut NaiveSums, demand: &Demand, n: i64) {
    for (name, amount) in demand.requests.iter() {
        *sums.entry(name.to_owned()).or_default() += amount * n;
    }
    for devices in &demand.devices {
        let milli = i64::from(devices.count) * i64::from(devices.milli);
        *sums.entry(devices.kind.clone()).or_default() += milli * n;
    }
    *sums.entry(String::new()).or_default() += n;
}

/// What is bound and not ended of each queue and those below it, and what is held for them.
pub(super) fn queues(store: &Store) -> BTreeMap<String, NaiveSums> {
    let mut used: BTreeMap<String, NaiveSums> = BTreeMap::new();
    let mut count = |unit: UnitId, group: u16, demand: &Demand, n: usize| {
        let Some(record) = store.record(unit) else { return };
        for level in levels(&record.spec.queue) {
            let n = i64::try_from(n).expect("small");
            add(used.entry(level.to_owned()).or_default(), demand, n);
            add(used.entry(of_owner(level, &record.spec.owner)).or_default(), demand, n);
            if record.spec.class == WorkloadClass::Yarn && group == 0 {
                add(used.entry(of_masters(level)).or_default(), demand, n);
            }
        }
    };
    for (unit, rows) in &store.rows {
        for (_, row) in rows.live() {
            if let Some(Some(group)) = rows.groups.get(usize::from(row.group)) {
                count(*unit, row.group, &group.demand, 1);
            }
        }
    }
    for hold in store.world.holds.values().filter(|hold| hold.value.slot.is_none()) {
        let n = match &hold.value.movement {
            Some(_) => usize::from(is_between(store, &hold.value)),
            None => hold.value.ordinals.len(),
        };
        count(hold.value.unit, hold.value.group, &hold.value.demand, n);
    }
    used
}

/// Whether the one that moves has left, and is not placed again.
pub(super) fn is_between(store: &Store, hold: &Hold) -> bool {
    let incarnation = hold.incarnations.first().copied().unwrap_or(0);
    let row = store.rows.get(&hold.unit).map(|rows| rows.row(hold.ordinals[0])).unwrap_or_default();
    let has_come =
        row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending);
    !row.phase.is_live() && !has_come
}

/// The same less what victims that are still there take for what is held at a maximum: of one unit no more than it asks for.
fn net(store: &Store) -> BTreeMap<String, NaiveSums> {
    let mut used = queues(store);
    let mut by_unit: BTreeMap<UnitId, Vec<&Hold>> = BTreeMap::new();
    for hold in store.world.holds.values().map(|hold| &hold.value).filter(|hold| hold.at_maximum) {
        by_unit.entry(hold.unit).or_default().push(hold);
    }
    for (unit, holds) in by_unit {
        let Some(record) = store.record(unit) else { continue };
        let mut asked = NaiveSums::new();
        for hold in &holds {
            add(&mut asked, &hold.demand, i64::try_from(hold.ordinals.len()).expect("small"));
        }
        let victims: BTreeSet<_> = holds.iter().flat_map(|hold| hold.all_victims()).collect();
        for level in levels(&record.spec.queue) {
            let mut given = NaiveSums::new();
            for victim in &victims {
                let (Some(of), Some(rows)) = (store.record(victim.unit), store.rows.get(&victim.unit)) else {
                    continue;
                };
                let row = rows.row(victim.replica.ordinal);
                let is_there = row.phase.is_live() && row.incarnation == victim.replica.incarnation;
                if let Some(Some(group)) = rows.groups.get(usize::from(row.group))
                    && is_there
                    && levels(&of.spec.queue).any(|other| other == level)
                {
                    add(&mut given, &group.demand, 1);
                }
            }
            let sums = used.entry(level.to_owned()).or_default();
            for (name, amount) in given {
                let most = asked.get(&name).copied().unwrap_or(0);
                *sums.entry(name).or_default() -= amount.min(most);
            }
        }
    }
    used
}

/// What running units of a pool take of a node, those that leave included, and of each device, and what slots of
/// reservations keep beyond that.
pub(super) fn node(store: &Store, node: NodeId, pool: Pool) -> (NaiveSums, Vec<u32>) {
    let (mut sums, mut devices) = (NaiveSums::new(), vec![0; 64]);
    let report = store.world.nodes.get(&node).and_then(|node| node.report.as_ref());
    let reported = report.map_or(&[][..], |report| &report.value.devices);
    let milli_of = |demand: &Demand, given: DeviceSet, idx: usize| {
        let kind = reported.get(idx).map(|device| device.kind.as_str());
        if given.contains(idx) { demand.device_milli(kind).unwrap_or(0) } else { 0 }
    };
    for rows in store.rows.values() {
        for (_, row) in rows.live().filter(|(_, row)| row.node == node) {
            let Some(Some(group)) = rows.groups.get(usize::from(row.group)) else { continue };
            if group.pool == pool {
                add(&mut sums, &group.demand, 1);
            }
            for (idx, taken) in devices.iter_mut().enumerate() {
                *taken += milli_of(&group.demand, row.allocation.devices, idx);
            }
        }
    }
    for hold in store.world.holds.values().map(|hold| &hold.value).filter(|hold| hold.node == node) {
        let Some(slot) = &hold.slot else { continue };
        let occupant = slot.occupant.and_then(|member| {
            let rows = store.rows.get(&member.unit)?;
            let row = rows.row(member.replica.ordinal);
            let is_in =
                row.phase.is_live() && (row.incarnation, row.node) == (member.replica.incarnation, node);
            let group = rows.groups.get(usize::from(row.group))?.as_ref()?;
            is_in.then_some((&group.demand, row.allocation.devices))
        });
        for (name, amount) in hold.demand.requests.iter().filter(|_| pool == Pool::Guaranteed) {
            let covered = occupant.map_or(0, |(demand, _)| demand.requests.get(name));
            *sums.entry(name.to_owned()).or_default() += (amount - covered).max(0);
        }
        for (idx, taken) in devices.iter_mut().enumerate() {
            let covered = occupant.map_or(0, |(demand, given)| milli_of(demand, given, idx));
            *taken += milli_of(&hold.demand, hold.allocation(0).devices, idx).saturating_sub(covered);
        }
    }
    (sums, devices)
}

fn check_node(store: &Store, id: NodeId, revision: Revision) -> Result<(), String> {
    let report = store.world.nodes.get(&id).and_then(|node| node.report.as_ref());
    let Some(report) = report else { return Err(format!("naive I1: no node {id}")) };
    let (sums, devices) = node(store, id, Pool::Guaranteed);
    for (name, taken) in sums.iter().filter(|(name, _)| !matches!(name.as_str(), "gpu" | "nic" | "")) {
        let has = report.value.capacity.get(name);
        // It may have come to have less under what is there.
        if *taken > has && !store.world.shrunk.contains(&id) {
            return Err(format!("naive I1: node {id}: {taken} of {has} {name} at {revision}"));
        }
    }
    match devices.iter().position(|taken| *taken > 1_000) {
        Some(idx) => Err(format!("naive I1: device {idx} of node {id}: {} milli", devices[idx])),
        None => Ok(()),
    }
}
