//! What would become of a unit: the steps that a try takes, on the live picture, without effect.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{NodeId, ReplicaId, Revision, UnitId},
    quantity,
};
use godel_domain::{
    change::NodeScope,
    demand::Demand,
    refusals::Refusals,
    sub_cluster,
    unit::{TaskGroup, UnitRecord, UnitSpec},
};
use godel_placement::place::templates::TemplateId;
use godel_queueing::{QueueIdx, QueueTree};

use super::{
    assigned_unit::{AssignedUnit, GroupWork},
    picture::{Picture, Try},
    preemption::PreemptionSearch,
};

/// No unit has this id, so that the assumptions of one that is planned meet no others.
const PLANNED: UnitId = UnitId(u64::MAX);
/// Most replicas of a daemon that are tried: so many nodes are named in one message.
const N_DAEMON_MAX: u32 = 10_000;

/// What would become of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanOutcome {
    /// Every replica has a place.
    Fits,
    /// At least `min_member` replicas have a place.
    Partly,
    /// Every replica has a place once others have left.
    Preempts,
    /// Fewer than `min_member` have a place now: it waits.
    #[default]
    Waits,
    /// Its queue can never hold `min_member` replicas.
    Never,
}

/// Where a unit would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    /// What would become of it.
    pub outcome: PlanOutcome,
    /// One per replica that would be placed, in order of group and ordinal. A unit that waits has none.
    pub nodes: Vec<NodeId>,
    /// Replicas that would not.
    pub unplaced: u32,
    /// Of the replicas that fit nowhere.
    pub refusals: Option<Arc<Refusals>>,
    /// Running units that would be preempted, by unit.
    pub victims: BTreeMap<UnitId, u32>,
    /// What else keeps replicas from being placed, in words: a queue, a pause. Empty: nothing.
    pub why: String,
}

/// Tries a unit on the live picture, every replica of it, without effect.
pub(super) fn plan(picture: &mut Picture, search: &mut PreemptionSearch, spec: &UnitSpec) -> PlanReport {
    // In whichever partition: it would go from one to the next.
    picture.placer.set_scope(NodeScope::Global);
    let cursors = picture.placer.cursors();
    let (hits, misses) = (picture.placer.hits, picture.placer.misses);
    let (counters, has_occupants) = (search.counters(), picture.cluster.taken().occupants.is_kept());
    let record = UnitRecord::new(PLANNED, spec.clone());
    let record = if spec.is_daemon() { on_all_nodes(picture, record) } else { record };
    let assigned = as_assigned(picture, &record);
    let templates = &mut picture.placer.templates;
    let mut kept: Vec<(TemplateId, _)> = Vec::new();
    for group in &assigned.groups {
        if kept.iter().all(|(template, _)| *template != group.template) {
            let candidates = &mut templates.get_mut(group.template).candidates;
            kept.push((group.template, std::mem::take(candidates)));
        }
    }
    let report = try_out(picture, search, spec, &assigned);
    let templates = &mut picture.placer.templates;
    for (template, candidates) in kept {
        templates.get_mut(template).candidates = candidates;
    }
    assigned.groups.iter().for_each(|group| templates.release(group.template));
    picture.placer.set_cursors(cursors);
    (picture.placer.hits, picture.placer.misses) = (hits, misses);
    search.restore_counters(counters);
    if !has_occupants {
        picture.cluster.taken_mut().occupants.forget();
    }
    if spec.is_daemon() {
        picture.cluster.taken_mut().daemons.remove(PLANNED);
    }
    report
}

/// The record of a daemon with a replica for each node that its template may have now.
fn on_all_nodes(picture: &mut Picture, record: UnitRecord) -> UnitRecord {
    let (work, _) = picture.group_work(&record, Revision(0), std::iter::empty());
    let mut spec = record.spec;
    for (work, group) in work.iter().zip(&mut spec.task_groups) {
        let nodes = picture.placer.with_room_aside(&picture.cluster, work.template, false);
        group.replicas = count(nodes.len()).min(N_DAEMON_MAX);
        picture.placer.templates.release(work.template);
    }
    UnitRecord::new(record.id, spec)
}

/// A unit as if it had just been assigned.
fn as_assigned(picture: &mut Picture, record: &UnitRecord) -> AssignedUnit {
    let pending = record.iter_ordinals().map(|ordinal| ReplicaId::new(ordinal, 0));
    let (groups, _) = picture.group_work(record, Revision(0), pending);
    let mut assigned = AssignedUnit::new(picture, record, Revision(0), u64::MAX, groups);
    (assigned.permit.scope, assigned.tries.attempts) = (NodeScope::Global, 1);
    assigned
}

fn try_out(
    picture: &mut Picture,
    search: &mut PreemptionSearch,
    spec: &UnitSpec,
    assigned: &AssignedUnit,
) -> PlanReport {
    let n_all = assigned.pending();
    let together = usize::try_from(spec.min_member).unwrap_or(usize::MAX).clamp(1, n_all.max(1));
    let waits = |outcome, why| PlanReport { outcome, why, unplaced: count(n_all), ..PlanReport::default() };
    if let Some(why) = never(picture.shares.tree(), assigned.queue, spec, together) {
        return waits(PlanOutcome::Never, why);
    }
    if let Some(pause) = picture.pauses.keeping(&spec.queue, |key| sub_cluster::of(spec, key)) {
        let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
        return waits(PlanOutcome::Waits, format!("`{}` is paused{reason}", pause.scope));
    }
    let (n_in_queue, why) = room_in_queue(picture, assigned);
    let mut tried;
    let mut report = if n_in_queue < together {
        // Others may have to leave its queue.
        let Some(found) = search.plan_relief(picture, assigned, together) else {
            return waits(PlanOutcome::Waits, why);
        };
        tried = found;
        let n_placed = tried.n_placed;
        report_of(picture, assigned, &mut tried, together, n_placed, n_all)
    } else {
        let quota = n_in_queue.min(n_all);
        tried = picture.place(assigned, quota);
        if tried.n_placed < quota {
            search.plan_victims(picture, assigned, together, quota, &mut tried);
        }
        report_of(picture, assigned, &mut tried, together, quota, n_all)
    };
    if report.unplaced > 0 {
        report.why = why;
    }
    picture.cluster.take_back(tried.mark);
    if let Some(preemption) = tried.claim.preemption() {
        search.unclaim(&mut picture.cluster, preemption);
    }
    report
}

fn report_of(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    tried: &mut Try,
    together: usize,
    quota: usize,
    n_all: usize,
) -> PlanReport {
    let Picture { placer, cluster, .. } = picture;
    let refusals = (tried.n_placed < quota).then(|| {
        let failed = tried.failed.first().or(assigned.groups.first().map(|group| &group.template)).copied();
        let refusals = failed.map(|template| placer.explain(cluster, template));
        let mut refusals = Refusals { attempts: 1, ..refusals.unwrap_or_default() };
        if tried.n_placed < together && together > 1 {
            let nearest = std::mem::take(&mut refusals.nearest_miss);
            refusals.nearest_miss = format!("room for {} of {together} together; {nearest}", tried.n_placed);
        }
        Arc::new(refusals)
    });
    if tried.n_placed < together {
        return PlanReport { unplaced: count(n_all), refusals, ..PlanReport::default() };
    }
    let mut victims: BTreeMap<UnitId, u32> = BTreeMap::new();
    if let Some(preemption) = tried.claim.preemption() {
        // Also those that leave already, for what would be taken over.
        let taken = preemption.taken().filter_map(|id| cluster.holds().get(id));
        for victim in preemption.victims().chain(taken.flat_map(|hold| &hold.victims)) {
            *victims.entry(victim.unit).or_default() += 1;
        }
    }
    tried.groups.sort_by_key(|placement| placement.group);
    let nodes = tried.groups.iter().flat_map(|placement| placement.nodes.iter().copied());
    let outcome = match (tried.n_placed < n_all, tried.claim.preemption().is_none()) {
        (true, _) => PlanOutcome::Partly,
        (false, true) => PlanOutcome::Fits,
        (false, false) => PlanOutcome::Preempts,
    };
    let unplaced = count(n_all - tried.n_placed);
    PlanReport { outcome, nodes: nodes.collect(), unplaced, refusals, victims, why: String::new() }
}

/// How many replicas its queue and those above it have room for now, in order, and what is at its maximum if that is not
/// all of them.
fn room_in_queue(picture: &mut Picture, assigned: &AssignedUnit) -> (usize, String) {
    let n_all = assigned.pending();
    let Picture { shares, cluster, placer, .. } = picture;
    if shares.is_unlimited(assigned.queue) {
        return (n_all, String::new());
    }
    let mut now = shares.counted_now(cluster);
    let (mut needs, mut n_fit) = (Vec::new(), 0);
    // In the order in which they are placed: first what task groups need at least.
    let minima = assigned.minima();
    let least = |group: &GroupWork| {
        minima.iter().find(|(known, _)| std::ptr::eq(*known, group)).map_or(0, |(_, n)| *n)
    };
    let beyond = assigned.groups.iter().map(|group| (group, group.pending().len() - least(group)));
    for (group, n) in minima.iter().copied().chain(beyond) {
        let shape = placer.templates.get(group.template).ask.shape();
        // The most that fit beside those before.
        let (mut fits, mut fails) = (0, n + 1);
        while fits + 1 < fails {
            let middle = fits + (fails - fits) / 2;
            needs.push(now.need(shape, middle, cluster));
            if now.lacking(assigned.queue, &needs).is_none() {
                fits = middle;
            } else {
                fails = middle;
            }
            needs.pop();
        }
        n_fit += fits;
        if fits < n {
            needs.push(now.need(shape, fits + 1, cluster));
            return (n_fit, now.lacking(assigned.queue, &needs).unwrap_or_default());
        }
        needs.push(now.need(shape, n, cluster));
    }
    (n_all, String::new())
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Why a queue, or one above it, can never hold `together` replicas of a unit at once, whatever else is there.
fn never(tree: &QueueTree, queue: QueueIdx, spec: &UnitSpec, together: usize) -> Option<String> {
    let least = |name: &str| {
        let of_groups = |n: fn(&TaskGroup) -> u32| {
            spec.task_groups.iter().map(move |group| {
                (asked(&group.template.demand, name), usize::try_from(n(group)).unwrap_or(usize::MAX))
            })
        };
        // Each group up to its own minimum, and beyond that those that ask for least.
        let mut beyond: Vec<(i128, usize)> = of_groups(|group| group.replicas - group.min_member).collect();
        beyond.sort_unstable();
        let (mut left, mut sum) = (together, 0i128);
        for (amount, replicas) in of_groups(|group| group.min_member).chain(beyond) {
            let n = replicas.min(left);
            sum = sum.saturating_add(amount.saturating_mul(i128::try_from(n).unwrap_or(i128::MAX)));
            left -= n;
        }
        sum
    };
    tree.upwards(queue).filter_map(|level| tree.record(level)).find_map(|record| {
        let most = record.max_running_units;
        if most > 0 && together > usize::try_from(most).unwrap_or(usize::MAX) {
            return Some(format!("queue `{}` allows at most {most} running, {together} are asked for together: it can never hold it", record.name));
        }
        record.max.iter().find_map(|(name, max)| {
            let asked = least(name);
            (asked > i128::from(*max)).then(|| {
                let asked = quantity::show(name, i64::try_from(asked).unwrap_or(i64::MAX));
                let max = quantity::show(name, *max);
                let unit = if is_device(spec, name) { " thousandths of" } else { "" };
                format!(
                    "queue `{}` allows at most {max}{unit} {name}, {asked} are asked for together: it can never hold it",
                    record.name
                )
            })
        })
    })
}

fn is_device(spec: &UnitSpec, name: &str) -> bool {
    let mut devices = spec.task_groups.iter().flat_map(|group| &group.template.demand.devices);
    devices.any(|devices| devices.kind == name)
}

/// What one replica asks for of a resource; devices by their kind, in thousandths.
fn asked(demand: &Demand, name: &str) -> i128 {
    let devices = demand.devices.iter().filter(|devices| devices.kind == name);
    let devices = devices.map(|devices| i128::from(devices.count) * i128::from(devices.milli));
    i128::from(demand.requests.get(name)) + devices.sum::<i128>()
}
