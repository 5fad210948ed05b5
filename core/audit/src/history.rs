//! I4, I6 and the historical halves of I1 and I3: a watch from its floor, replayed.

mod evictions;

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    change::Change,
    node::NodeReport,
    records::{Record, RecordKey},
    running_units::{EvictionReason, Phase, RunChange},
};
use rustc_hash::FxHashMap;

pub(super) use self::evictions::check_evictions;
use self::evictions::{check_eviction, check_victim, may_be_older};
use super::{
    History, Start,
    budgets::BudgetLedger,
    compaction,
    moved::MovedReplicas,
    movements,
    order::{Probe, Service},
    preemptions::{self, Dropped, Preemptions, RunTurn},
    room::{self, Bound, Tenants, wrong_devices, wrong_zones},
    surges,
    targets::Targets,
    terms::Terms,
    turns,
    verdict::Findings,
    world::{Commit, RowStep, World, WorldRow, WorldUnit, column, shown},
};

/// A binder that decides for something that has ended is no later than this, milliseconds.
pub(super) const LATE_MS: i64 = 60_000;

/// What a replay found.
#[derive(Default)]
pub(super) struct Replay {
    /// State at the end.
    pub(super) world: World,
    /// Over-commitment at some revision.
    pub(super) room: Findings,
    /// An incarnation placed twice.
    pub(super) placements: Findings,
    /// Placements seen.
    pub(super) n_placements: usize,
    /// First bindings below `min_member`.
    pub(super) first_bindings: Findings,
    /// Evictions without a legal reason.
    pub(super) evictions: Findings,
    /// Evictions seen.
    pub(super) n_evictions: usize,
    /// Those among them for a drain or a suspension that may have ended before the judgement begins.
    pub(super) n_before: usize,
    /// When the first commit was made that is judged on a state that was there before; `None` if nothing was.
    pub(super) began_ms: Option<i64>,
    /// Preemptions among them.
    pub(super) n_preempted: usize,
    /// Their ranks.
    pub(super) preemptions: Preemptions,
    /// What disruption budgets allowed.
    pub(super) budgets: BudgetLedger,
    /// What became of moves.
    pub(super) moved: MovedReplicas,
    /// Revisions out of order.
    pub(super) order: Findings,
    /// Units whose rows or records the history touched.
    pub(super) touched_units: BTreeSet<UnitId>,
    /// What running units have to be apart from, and together with.
    pub(super) terms: Terms,
    /// What is bound while others move.
    pub(super) targets: Targets,
    /// Whose turn it was; `None` where there was nothing to compare.
    pub(super) queues: Option<Probe>,
    /// Nodes on which there was more than they have where the judgement begins.
    pub(super) began_above: BTreeSet<NodeId>,
}

/// What is followed from commit to commit.
#[derive(Default)]
struct Follower {
    tenants: Tenants,
    /// Which incarnations were placed, and where.
    placed: FxHashMap<RunningUnitId, NodeId>,
    /// Units that were bound.
    first_bound: BTreeSet<UnitId>,
    n_first: usize,
    /// Of which it is not known whether they were bound before.
    n_unknown: usize,
    /// Nodes that are not judged, for something of them cannot be read.
    left_out: BTreeSet<NodeId>,
}

/// Replays a history, checking each commit on the way from where the state is known.
///
/// `listed` says which units were created within a history whose beginning is not.
pub(super) fn replay(
    history: &History,
    listed: &World,
    left_out: &BTreeSet<NodeId>,
    service: &Service,
) -> Replay {
    let targets = Targets::new(service.known_after_ms);
    let mut replay = Replay { queues: Probe::new(history, service), targets, ..Replay::default() };
    if let Start::Kept(world) = &history.start {
        replay.world = (**world).clone();
    }
    let mut follower = Follower { left_out: left_out.clone(), ..Follower::default() };
    let mut last = Revision(history.floor.0.max(1) - 1);
    let mut is_begun = false;
    for commit in &history.commits {
        check_order(&mut replay.order, last, commit.revision);
        last = last.max(commit.revision);
        if commit.revision <= history.judged_after() {
            replay.world.apply(commit, |_, _| {});
            continue;
        }
        if !std::mem::replace(&mut is_begun, true) && history.has_start() {
            begin(&mut replay, &mut follower, commit.time_ms);
        }
        step(&mut replay, &mut follower, commit, history.has_start());
        judge_first_bindings(&mut replay, &mut follower, commit, history, listed);
    }
    if !is_begun && history.has_start() {
        begin(&mut replay, &mut follower, 0);
    }
    debug_assert!(
        !history.has_start() || follower.tenants.agree_with(&replay.world),
        "sums that were kept from row to row"
    );
    if let Some(last) = history.commits.last() {
        turns::check_left(&replay.world, last.time_ms, &mut replay.first_bindings);
        movements::check_left(&replay.world, last.time_ms, &mut replay.evictions);
    }
    if follower.n_unknown > 0 {
        let n_unknown = follower.n_unknown;
        replay.first_bindings.not_judged(format!(
            "{n_unknown} units that were submitted before revision {}, where the history begins, may have been bound before",
            history.floor
        ));
    }
    replay.first_bindings.checked(format!("{} first bindings{}", follower.n_first, history.since()));
    replay
}

/// Takes over what is there where the judgement begins.
fn begin(replay: &mut Replay, follower: &mut Follower, time_ms: i64) {
    let world = &replay.world;
    for (id, unit) in &world.units {
        for (ordinal, row) in &unit.rows {
            follower.tenants.move_row(&world.nodes, *id, unit, &WorldRow::default(), row);
            if row.phase != Phase::Pending {
                follower.placed.insert(RunningUnitId::new(*id, *ordinal, row.incarnation), row.node);
            }
            if row.phase != Phase::Pending || row.incarnation > 0 {
                follower.first_bound.insert(*id);
            }
        }
    }
    replay.preemptions.begin(world);
    replay.terms.begin(world);
    replay.moved.begin(world);
    replay.budgets.begin(world, time_ms);
    if let Some(order) = &mut replay.queues {
        order.begin(world, time_ms);
    }
    replay.began_ms = (world.revision > Revision(0)).then_some(time_ms);
    replay.began_above = room::above(world);
    replay.world.shrunk.extend(replay.began_above.iter().copied());
}

/// One commit.
fn step(replay: &mut Replay, follower: &mut Follower, commit: &Commit, complete: bool) {
    let Follower { tenants, placed, left_out, .. } = follower;
    let mut world = std::mem::take(&mut replay.world);
    let mut touched: BTreeMap<NodeId, Bound<'_>> = BTreeMap::new();
    let mut order = replay.queues.take();
    if let Some(order) = &mut order {
        order.before(&world, tenants, commit);
    }
    note_records(replay, &world, tenants, commit, &mut touched);
    replay.terms.before(&world, commit);
    replay.targets.before(&world, commit);
    replay.preemptions.before(&world, commit);
    let dropped = dropped_holds(&world, commit);
    turns::check(&world, commit, &mut replay.first_bindings);
    if complete {
        movements::check(&world, commit, &mut replay.evictions);
        replay.moved.before(&world, commit, &mut replay.evictions);
        surges::check(&world, commit, &mut replay.placements);
    }
    let mut turns: Vec<RunTurn<'_>> = Vec::new();
    world.apply(commit, |world, step| {
        match step.change {
            RunChange::Bind(_) => on_bind(replay, placed, world, &step, commit.revision, complete),
            RunChange::Evict(evict) if step.after.is_some() && complete => {
                replay.n_evictions += 1;
                if may_be_older(replay.began_ms, world, &step, evict.reason, commit) {
                    replay.n_before += 1;
                } else {
                    let (unit, ordinal) = (step.unit, step.ordinal);
                    check_eviction(&mut replay.evictions, world, unit, ordinal, &step.before, evict.reason);
                }
                if evict.reason == EvictionReason::Preempted {
                    replay.n_preempted += 1;
                    check_victim(&mut replay.evictions, world, &step, evict.preemptor, commit);
                }
            }
            RunChange::Requeue(_) if step.after.is_some() && complete => {
                let before = &step.before;
                let by_itself =
                    matches!(before.phase, Phase::Succeeded | Phase::Failed) && before.eviction.is_none();
                let record = world.units.get(&step.unit).and_then(|unit| unit.record.as_ref());
                let next = record.map_or(&[][..], |record| &record.value.status.next_incarnations);
                let is_asked_for = next.contains(&(step.ordinal, before.incarnation + 1));
                if by_itself && !is_asked_for && !world.restarted.contains(&step.unit) {
                    let (ordinal, revision) = (step.ordinal, commit.revision);
                    let name = world.units.get(&step.unit).map_or_else(String::new, |unit| unit.name());
                    replay.placements.add(|| {
                        format!(
                            "{name}/{ordinal} came back after it had ended by itself (revision {revision})"
                        )
                    });
                }
            }
            RunChange::Compact(compaction) if complete => {
                let incarnation = compaction.incarnations.get(step.idx).copied().unwrap_or_default();
                compaction::check(&mut replay.placements, world, &step, incarnation, commit.revision);
            }
            _ => {}
        }
        if let Some(order) = &mut order {
            order.on_row(world, &step, commit.time_ms);
        }
        if let Some(after) = step.after {
            let node = after.node;
            if complete {
                let RowStep { unit, ordinal, before, change, .. } = step;
                turns.push(RunTurn { unit, ordinal, before, after, change });
            }
            if let Some(unit) = world.units.get(&step.unit) {
                tenants.move_row(&world.nodes, step.unit, unit, &step.before, &after);
            }
            let reported = matches!(step.change, RunChange::Statuses(_));
            // Who only goes on, or ends, takes nothing; but a node that has shrunk may fit again.
            if !reported || !step.before.is_live() && after.is_live() || world.shrunk.contains(&node) {
                let bound = touched.entry(node).or_default();
                if let RunChange::Bind(bind) = step.change {
                    bound.add(bind);
                }
            }
        }
    });
    for change in &commit.changes {
        if let Change::Put(Record::NodeReport(NodeReport { id, .. }))
        | Change::Gone(RecordKey::NodeSpec(id)) = change
        {
            tenants.settle_devices(&world, *id);
        }
    }
    if let Some(order) = &mut order {
        order.after(&world, commit);
    }
    replay.queues = order;
    if complete {
        replay.preemptions.on_commit(&world, commit, &turns, &dropped);
        replay.budgets.on_commit(&world, commit, &turns);
        replay.terms.after(&world, commit, &mut replay.room);
        replay.targets.after(&world, commit, &replay.terms, &mut replay.evictions);
        touched.retain(|node, _| !left_out.contains(node));
        check_room(&mut replay.room, &mut world, tenants, commit, touched);
    }
    replay.world = world;
}

/// What a commit binds of units of which nothing was bound before.
fn judge_first_bindings(
    replay: &mut Replay,
    follower: &mut Follower,
    commit: &Commit,
    history: &History,
    listed: &World,
) {
    for (unit, bound) in bound_by(commit) {
        if !follower.first_bound.insert(unit) {
            continue;
        }
        let created =
            listed.units.get(&unit).and_then(|unit| unit.record.as_ref()).map(|record| record.created);
        let known = history.has_start() || created.is_some_and(|created| created >= history.floor);
        let record = replay.world.units.get(&unit).and_then(|unit| unit.record.as_ref()).filter(|_| known);
        let Some(record) = record.map(|record| &record.value) else {
            follower.n_unknown += 1;
            continue;
        };
        follower.n_first += 1;
        let n: usize = bound.values().sum();
        let (name, revision, least) = (shown(record), commit.revision, record.spec.min_member);
        if n < usize::try_from(least).unwrap_or(usize::MAX) {
            let wrong =
                format!("unit {name}: first binding of {n} at revision {revision}, min_member {least}");
            replay.first_bindings.add(|| wrong);
        }
        for (idx, group) in (0u16..).zip(&record.spec.task_groups) {
            let (n, least) = (bound.get(&idx).copied().unwrap_or(0), group.min_member);
            if n < usize::try_from(least).unwrap_or(usize::MAX) {
                let of = &group.name;
                let wrong = format!(
                    "unit {name}: first binding of {n} of task group {of} at revision {revision}, its min_member is {least}"
                );
                replay.first_bindings.add(|| wrong);
            }
        }
    }
}

/// I4.
pub(super) fn check_first_bindings(history: &History, replay: &Replay) -> Findings {
    let mut findings = replay.first_bindings.clone();
    if let Some(gap) = history.gap() {
        findings.not_judged(gap);
    }
    findings
}

fn check_order(order: &mut Findings, last: Revision, revision: Revision) {
    if revision <= last {
        order.add(|| format!("revision {revision} delivered after {last}"));
    } else if revision.0 != last.0 + 1 {
        order.add(|| format!("revisions {} to {} were not delivered", last.0 + 1, revision.0 - 1));
    }
}

/// Nodes whose allocatable may change with this commit, and units that go.
fn note_records(
    replay: &mut Replay,
    world: &World,
    tenants: &mut Tenants,
    commit: &Commit,
    touched: &mut BTreeMap<NodeId, Bound<'_>>,
) {
    for change in &commit.changes {
        replay.touched_units.extend(change.unit());
        let node = match change {
            Change::Put(Record::Hold(hold)) => Some(hold.node),
            // What it is called, and what is used of it, leaves it as large as it was.
            Change::Put(Record::NodeSpec(_) | Record::NodeUsage(_)) => None,
            _ => change.node(),
        };
        if let Some(node) = node {
            touched.entry(node).or_default();
        }
        let Change::Gone(RecordKey::Unit(unit)) = change else { continue };
        replay.preemptions.forget(world, *unit);
        replay.budgets.forget(*unit);
        let Some(gone) = world.units.get(unit) else { continue };
        for (ordinal, row) in gone.rows.iter().filter(|(_, row)| row.is_live()) {
            tenants.move_row(&world.nodes, *unit, gone, row, &WorldRow::default());
            replay.placements.add(|| {
                format!(
                    "{}/{ordinal} ran when its unit was deleted at revision {}",
                    gone.name(),
                    commit.revision
                )
            });
        }
    }
}

fn on_bind(
    replay: &mut Replay,
    placed: &mut FxHashMap<RunningUnitId, NodeId>,
    world: &World,
    step: &RowStep<'_>,
    revision: Revision,
    complete: bool,
) {
    let RunChange::Bind(bind) = step.change else { return };
    let incarnation = column(&bind.incarnations, step.idx);
    let node = column(&bind.nodes, step.idx);
    replay.n_placements += 1;
    let name = || world.units.get(&step.unit).map_or_else(|| "?".to_owned(), WorldUnit::name);
    if let Some(earlier) = placed.insert(RunningUnitId::new(step.unit, step.ordinal, incarnation), node) {
        replay.placements.add(|| {
            format!(
                "{}/{} incarnation {incarnation} placed again at revision {revision}: on {} after {}",
                name(),
                step.ordinal,
                node_name(world, node),
                node_name(world, earlier),
            )
        });
    } else if step.after.is_some() {
        let unit = world.units.get(&step.unit);
        let record = unit.and_then(|unit| unit.record.as_ref());
        let group = record.and_then(|record| {
            record.value.group_of(step.ordinal).and_then(|group| record.value.spec.task_groups.get(group))
        });
        let has_volumes = group.is_some_and(|group| !group.template.run.volumes.is_empty());
        let keeper = world.nodes.get(&step.before.node).filter(|_| has_volumes && step.before.node != node);
        if let Some(keeper) = keeper {
            replay.room.add(|| {
                format!(
                    "{}/{} bound on {} at revision {revision}, and its volumes are on {}",
                    name(),
                    step.ordinal,
                    node_name(world, node),
                    keeper.name(),
                )
            });
        }
        let demand = unit.and_then(|unit| unit.demands.get(&bind.group));
        if let (true, Some((demand, _)), Some(on)) = (complete, demand, world.nodes.get(&node))
            && let Some(wrong) = wrong_devices(on, demand, bind.allocation(step.idx).devices)
                .or_else(|| wrong_zones(on, demand, bind.allocation(step.idx).zones))
        {
            replay.room.add(|| {
                format!("{}/{} on {}: {wrong} (revision {revision})", name(), step.ordinal, on.name())
            });
        }
    } else if complete || step.before.revision.0 > 0 {
        replay.placements.add(|| {
            format!(
                "{}/{} bound at revision {revision} as incarnation {incarnation} while incarnation {} was {:?}",
                name(),
                step.ordinal,
                step.before.incarnation,
                step.before.phase,
            )
        });
    }
}

/// I1 for the nodes that a commit touched.
fn check_room(
    findings: &mut Findings,
    world: &mut World,
    tenants: &Tenants,
    commit: &Commit,
    touched: BTreeMap<NodeId, Bound<'_>>,
) {
    let mut holds: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
    for hold in world.holds.values().filter(|hold| touched.contains_key(&hold.value.node)) {
        holds.entry(hold.value.node).or_default().push(hold.clone());
    }
    for (node, bound) in touched {
        let holds = holds.remove(&node).unwrap_or_default();
        if tenants.check(world, node, &bound, &holds, commit, findings) {
            world.shrunk.remove(&node);
        }
    }
}

/// What the holds that a commit ends kept, and for whom.
fn dropped_holds(world: &World, commit: &Commit) -> BTreeMap<u64, Dropped> {
    let mut dropped = BTreeMap::new();
    for change in &commit.changes {
        if let Change::Gone(RecordKey::Hold(id)) = change
            && let Some(hold) =
                world.holds.get(id).map(|hold| &hold.value).filter(|hold| preemptions::stays_held(hold))
        {
            let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
            let queue = preemptions::queue_of_hold(world, hold).to_owned();
            let takes = preemptions::times(&preemptions::takes(&hold.demand), n);
            let (unit, priority) = (hold.unit, hold.priority.filter(|_| hold.is_claim()));
            dropped
                .insert(id.0, Dropped { unit, queue, takes, priority, taken_from: hold.taken_from.clone() });
        }
    }
    dropped
}

pub(super) fn node_name(world: &World, id: NodeId) -> String {
    world.nodes.get(&id).map_or_else(|| format!("node {id}"), |node| node.name().to_owned())
}

/// Numbers of running units that a commit binds, by unit and task group.
fn bound_by(commit: &Commit) -> BTreeMap<UnitId, BTreeMap<u16, usize>> {
    let mut bound: BTreeMap<UnitId, BTreeMap<u16, usize>> = BTreeMap::new();
    for change in &commit.changes {
        if let Change::Rows(unit, RunChange::Bind(bind)) = change {
            *bound.entry(*unit).or_default().entry(bind.group).or_default() += bind.ordinals.len();
        }
    }
    bound
}
