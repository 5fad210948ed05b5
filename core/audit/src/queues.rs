//! I5: what each queue uses, summed anew, and no binding that raises it above a maximum. What is bound of a unit counts in the
//! queue that its record names, and its preemption terms name the same one.
//!
//! A maximum may be set below what is used: that evicts nobody, so only a history tells a queue that was lowered from
//! one that was raised. It is replayed with the records as they were.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{Revision, UnitId},
    resources::Resources,
};
use godel_domain::{
    change::Change,
    demand::Demand,
    hold::Hold,
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::RunChange,
};

use super::{
    Evidence, History, Start,
    movers::{self, MoverChange, QueuedMovers},
    moves::{QueueMove, check_terms, counted, moves},
    owners,
    preemptions::queue_of_hold,
    room,
    verdict::Findings,
    world::{World, WorldRow},
};

/// What a queue and those below it use. Devices count by their kind in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    amounts: Resources,
    running_units: i64,
}

impl Used {
    pub(super) fn add(&mut self, demand: &Demand, times: i64) {
        self.amounts.add(&demand.requests, times);
        for devices in &demand.devices {
            let milli = i64::from(devices.count) * i64::from(devices.milli);
            self.amounts.add(&Resources::new([(devices.kind.as_str(), milli)]).unwrap_or_default(), times);
        }
        self.running_units += times;
    }

    pub(super) fn shift(&mut self, other: &Self, times: i64) {
        self.amounts.add(&other.amounts, times);
        self.running_units += other.running_units * times;
    }

    /// So much less.
    pub(super) fn negative(&self) -> Self {
        let mut negative = Self::default();
        negative.shift(self, -1);
        negative
    }

    /// Of each that is more than nothing.
    pub(super) fn where_positive(&self) -> Self {
        let amounts = self.amounts.iter().map(|(name, amount)| (name, amount.max(0)));
        let amounts = Resources::new(amounts).unwrap_or_default();
        Self { amounts, running_units: self.running_units.max(0) }
    }

    /// Of each the smaller.
    fn least(&self, other: &Self) -> Self {
        let amounts = self.amounts.iter().map(|(name, amount)| (name, amount.min(other.amounts.get(name))));
        let running_units = self.running_units.min(other.running_units);
        Self { amounts: Resources::new(amounts).unwrap_or_default(), running_units }
    }

    fn of<'a>(demands: impl Iterator<Item = &'a Demand>) -> Self {
        let mut used = Self::default();
        demands.for_each(|demand| used.add(demand, 1));
        used
    }

    /// Each maximum of a queue, its own 0 included: of what, used, most.
    fn against<'a>(&'a self, spec: &'a QueueSpec) -> impl Iterator<Item = (&'a str, i64, i64)> {
        let amounts = spec.max.iter().map(|(name, max)| (name.as_str(), self.amounts.get(name), *max));
        let n_max = i64::from(spec.max_running_units);
        amounts.chain((n_max > 0).then_some((RUNNING_UNITS, self.running_units, n_max)))
    }

    pub(super) fn get(&self, name: &str) -> i64 {
        if name == RUNNING_UNITS { self.running_units } else { self.amounts.get(name) }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.amounts.iter().map(|(name, _)| name).chain([RUNNING_UNITS])
    }
}

pub(super) const RUNNING_UNITS: &str = "running units"; // No resource has a blank in its name.

/// What the queues of a world use, and may.
#[derive(Clone, Debug)]
pub(super) struct QueueRoom<'a> {
    world: &'a World,
    used: BTreeMap<&'a str, Used>,
    n_running_units: usize,
}

impl<'a> QueueRoom<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        let mut room = Self::beside_victims(world);
        for (queue, lent) in lent(world) {
            if let Some(used) = room.used.get_mut(queue.as_str()) {
                used.shift(&lent, -1);
            }
        }
        room
    }

    /// With holds beside the victims that back them.
    fn beside_victims(world: &'a World) -> Self {
        let mut room = Self { world, used: BTreeMap::new(), n_running_units: 0 };
        for unit in world.units.values() {
            let queue = unit.record.as_ref().map(|record| record.value.spec.queue.as_str());
            for row in unit.rows.values().filter(|row| row.is_live()) {
                room.n_running_units += 1;
                if let (Some(queue), Some((demand, _))) = (queue, unit.demands.get(&row.group)) {
                    levels(queue).for_each(|level| room.used.entry(level).or_default().add(demand, 1));
                }
            }
        }
        for hold in world.holds.values() {
            let Some((queue, n)) = movers::held(world, &hold.value) else { continue };
            levels(queue).for_each(|level| room.used.entry(level).or_default().add(&hold.value.demand, n));
        }
        room
    }

    /// Whether the queue and those above it may use so much more.
    pub(super) fn holds<'d>(&self, queue: &str, demands: impl Iterator<Item = &'d Demand>) -> bool {
        self.short_of(queue, demands).next().is_none()
    }

    /// Of the queue and those above it the ones that may not use so much more.
    pub(super) fn short_of<'q, 'd>(
        &self,
        queue: &'q str,
        demands: impl Iterator<Item = &'d Demand>,
    ) -> impl Iterator<Item = &'q str> {
        let asked = Used::of(demands);
        levels(queue).filter(move |level| {
            let Some(record) = self.world.queues.get(*level) else { return false };
            let used = self.used.get(*level).cloned().unwrap_or_default();
            let mut maxima = used.against(&record.value);
            maxima.any(|(name, used, max)| asked.get(name) > 0 && used + asked.get(name) > max)
        })
    }
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    let (world, history) = (&evidence.listed, &evidence.history);
    for (id, unit) in world.units.iter().filter(|(_, unit)| unit.record.is_none()) {
        if unit.rows.values().any(WorldRow::is_live) {
            findings.add(|| format!("unit id {id} has running units but no record: no queue pays for them"));
        }
    }
    let room = QueueRoom::new(world);
    let on_nodes: usize = room::usage(world, |_| true).values().map(|usage| usage.n).sum();
    if on_nodes != room.n_running_units {
        let n = room.n_running_units;
        findings.add(|| format!("queues pay for {n} running units, nodes hold {on_nodes}"));
    }
    let how = match history.gap() {
        None => {
            owners::check(evidence, &mut findings);
            let (n_maxima, n_commits) = replay(history, &mut findings);
            format!("{n_maxima} with a maximum, kept by each of {n_commits} commits{}", history.since())
        }
        Some(gap) => {
            let n_maxima = judge_last_bindings(&room, history, &mut findings);
            findings.not_judged(gap);
            format!("{n_maxima} with a maximum, kept by the last bindings")
        }
    };
    let (n_queues, n_running_units) = (room.used.len(), room.n_running_units);
    findings.checked(format!("{n_queues} queues pay for {n_running_units} running units; {how}"));
    findings
}

/// Every level of the tree pays: `a.b` counts in `a` and in `a.b`.
pub(super) fn levels(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('.').map(|(idx, _)| idx).chain([path.len()]).map(|end| &path[..end])
}

/// Looks at each queue in which a commit bound something. Returns how many ever had a maximum, and how many commits were
/// judged.
fn replay(history: &History, findings: &mut Findings) -> (usize, usize) {
    let mut world = match &history.start {
        Start::Kept(world) => (**world).clone(),
        Start::Empty | Start::Unknown(_) => World::default(),
    };
    let is_before = |revision: Revision| revision <= history.judged_after();
    for commit in history.commits.iter().filter(|commit| is_before(commit.revision)) {
        world.apply(commit, |_, _| {});
    }
    let of_start = QueueRoom::beside_victims(&world);
    let mut used: BTreeMap<String, Used> =
        of_start.used.into_iter().map(|(queue, used)| (queue.to_owned(), used)).collect();
    let with_maximum = world.queues.iter().filter(|(_, record)| record.value.has_limits());
    let mut limited: BTreeSet<String> = with_maximum.map(|(queue, _)| queue.clone()).collect();
    let mut n_commits = 0;
    for commit in history.commits.iter().filter(|commit| !is_before(commit.revision)) {
        n_commits += 1;
        for change in &commit.changes {
            match change {
                Change::Put(Record::Queue(spec)) if spec.has_limits() => {
                    limited.insert(spec.name.clone());
                }
                Change::Gone(RecordKey::Unit(id)) => {
                    let Some(unit) = world.units.get(id) else { continue };
                    for row in unit.rows.values().filter(|row| row.is_live()) {
                        count(&mut used, &world, *id, row.group, -1);
                    }
                }
                _ => {}
            }
        }
        let mut moved = Vec::new();
        for QueueMove { unit, from, to } in moves(&world, commit) {
            for (demand, n) in counted(&world, unit, WorldRow::is_live) {
                count_at(&mut used, from, demand, -n);
                count_at(&mut used, to, demand, n);
            }
            moved.push(unit);
        }
        let movers = QueuedMovers::of(&world);
        let mut bound: BTreeMap<String, Used> = BTreeMap::new();
        // Room held counts as bound, and what takes its place adds nothing.
        let mut freed: Vec<Arc<Hold>> = Vec::new();
        // Of whom holds at a maximum ended.
        let mut ended: BTreeSet<UnitId> = BTreeSet::new();
        for change in &commit.changes {
            match change {
                Change::Put(Record::Hold(hold)) if !world.holds.contains_key(&hold.id) => {
                    count_hold(&mut used, &world, hold, 1);
                    count_hold(&mut bound, &world, hold, 1);
                }
                Change::Gone(RecordKey::Hold(id)) => {
                    let hold = world.holds.get(id).map(|hold| Arc::clone(&hold.value));
                    ended.extend(hold.iter().filter(|hold| hold.at_maximum).map(|hold| hold.unit));
                    freed.extend(hold);
                }
                _ => {}
            }
        }
        // How many of a group became live in it, and how many ended.
        let mut turned: BTreeMap<(UnitId, u16), (i64, i64)> = BTreeMap::new();
        world.apply(commit, |_, step| {
            let Some(after) = step.after else { return };
            match (step.before.is_live(), after.is_live()) {
                (false, true) => turned.entry((step.unit, after.group)).or_default().0 += 1,
                (true, false) => turned.entry((step.unit, step.before.group)).or_default().1 += 1,
                (true, true) | (false, false) => {}
            }
        });
        for ((unit, group), (n_bound, n_ended)) in turned {
            count(&mut used, &world, unit, group, n_bound - n_ended);
            count(&mut bound, &world, unit, group, n_bound);
        }
        for hold in freed {
            count_hold(&mut used, &world, &hold, -1);
            count_hold(&mut bound, &world, &hold, -1);
        }
        // The place of who moves is kept, and its own binding takes nothing more.
        for MoverChange { queue, demand, n, is_bound } in movers.changes(&QueuedMovers::of(&world)) {
            count_at(&mut used, queue, demand, n);
            if is_bound {
                count_at(&mut bound, queue, demand, n);
            }
        }
        check_terms(&world, commit, &moved, findings);
        judge(&world, &used, &bound, commit.revision, findings);
        for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| hold.at_maximum) {
            if ended.remove(&hold.unit) {
                let (unit, revision) = (hold.unit, commit.revision);
                findings.add(|| format!("unit id {unit}: some of what is held at a maximum ends without the rest (revision {revision})"));
            }
        }
    }
    (limited.len(), n_commits)
}

fn count(used: &mut BTreeMap<String, Used>, world: &World, id: UnitId, group: u16, times: i64) {
    if times == 0 {
        return;
    }
    let Some(unit) = world.units.get(&id) else { return };
    let (Some(record), Some((demand, _))) = (&unit.record, unit.demands.get(&group)) else { return };
    count_at(used, &record.value.spec.queue, demand, times);
}

/// Every level of a path pays.
fn count_at(used: &mut BTreeMap<String, Used>, queue: &str, demand: &Demand, times: i64) {
    for level in levels(queue) {
        match used.get_mut(level) {
            Some(used) => used.add(demand, times),
            None => used.entry(level.to_owned()).or_default().add(demand, times),
        }
    }
}

/// The queue in which all of a hold counts; slots of reservations count in none, and of what moves [`movers`] says when it counts.
pub(super) fn payer<'a>(world: &'a World, hold: &'a Hold) -> Option<&'a str> {
    hold.counts_in_queue().then(|| queue_of_hold(world, hold))
}

fn count_hold(used: &mut BTreeMap<String, Used>, world: &World, hold: &Hold, sign: i64) {
    let Some(queue) = payer(world, hold) else { return };
    let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
    count_at(used, queue, &hold.demand, n.saturating_mul(sign));
}

/// What victims that are still there take of each queue for the holds that they back: no more than all such holds of one unit
/// ask for together.
fn lent(world: &World) -> BTreeMap<String, Used> {
    let mut by_unit: BTreeMap<UnitId, Vec<&Hold>> = BTreeMap::new();
    for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| hold.at_maximum) {
        by_unit.entry(hold.unit).or_default().push(hold);
    }
    let mut lent: BTreeMap<String, Used> = BTreeMap::new();
    for holds in by_unit.values() {
        let mut asked = Used::default();
        for hold in holds {
            asked.add(&hold.demand, i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX));
        }
        let victims: BTreeSet<_> = holds.iter().flat_map(|hold| hold.all_victims()).collect();
        let mut given: BTreeMap<&str, Used> = BTreeMap::new();
        for victim in victims {
            let Some(unit) = world.units.get(&victim.unit) else { continue };
            let row = unit.rows.get(&victim.replica.ordinal);
            let row = row.filter(|row| row.is_live() && row.incarnation == victim.replica.incarnation);
            let (Some(row), Some(record)) = (row, &unit.record) else { continue };
            let Some((demand, _)) = unit.demands.get(&row.group) else { continue };
            levels(&record.value.spec.queue).for_each(|level| given.entry(level).or_default().add(demand, 1));
        }
        for level in holds.iter().filter_map(|hold| payer(world, hold)).take(1).flat_map(levels) {
            if let Some(given) = given.get(level) {
                lent.entry(level.to_owned()).or_default().shift(&given.least(&asked), 1);
            }
        }
    }
    lent
}

/// What a commit bound may not raise above a maximum; what it did not ask for may be above one since before.
fn judge(
    world: &World,
    used: &BTreeMap<String, Used>,
    bound: &BTreeMap<String, Used>,
    revision: Revision,
    findings: &mut Findings,
) {
    for (queue, bound) in bound {
        let (Some(record), Some(used)) = (world.queues.get(queue), used.get(queue)) else { continue };
        let is_above = |used: &Used| {
            let mut above = used.against(&record.value);
            above.any(|(name, used, max)| used > max && bound.get(name) > 0)
        };
        if !is_above(used) {
            continue;
        }
        let mut net = used.clone();
        lent(world).get(queue).into_iter().for_each(|lent| net.shift(lent, -1));
        let above = net.against(&record.value).filter(|(name, used, max)| used > max && bound.get(name) > 0);
        for (name, used, max) in above {
            findings.add(|| {
                let kept = movers::kept_in(world, queue);
                format!("queue {queue}: {name} {used} of {max}{kept} (revision {revision})")
            });
        }
    }
}

/// Without the whole history: what is live now was live at the last binding that asked for the same resource, so
/// that binding was too much if it is above a maximum that was in force by then. Returns how many have a maximum.
fn judge_last_bindings(room: &QueueRoom<'_>, history: &History, findings: &mut Findings) -> usize {
    let mut last: BTreeMap<(&str, String), Revision> = BTreeMap::new();
    for commit in &history.commits {
        if commit.changes.iter().any(|change| matches!(change, Change::Gone(RecordKey::Hold(_)))) {
            // What was held counted before.
            continue;
        }
        for change in &commit.changes {
            let Change::Rows(unit, RunChange::Bind(bind)) = change else { continue };
            let record = room.world.units.get(unit).and_then(|unit| unit.record.as_ref());
            let asked = Used::of([bind.demand.as_ref()].into_iter());
            for level in record.iter().flat_map(|record| levels(&record.value.spec.queue)) {
                for name in asked.names() {
                    last.insert((level, name.to_owned()), commit.revision);
                }
            }
        }
    }
    let limited = room.world.queues.iter().filter(|(_, record)| record.value.has_limits());
    for (queue, record) in limited.clone() {
        let Some(used) = room.used.get(queue.as_str()) else { continue };
        for (name, used, max) in used.against(&record.value).filter(|(_, used, max)| used > max) {
            let bound_at = last.get(&(queue.as_str(), name.to_owned()));
            if let Some(revision) = bound_at.filter(|revision| **revision > record.revision) {
                findings.add(|| format!("queue {queue}: {name} {used} of {max} (revision {revision})"));
            }
        }
    }
    limited.count()
}

#[cfg(test)]
mod tests;
