//! I6: what is bound while room is held for replicas that move is not in their way, and goes where they go: it is judged as if they ran on
//! their targets already, and no longer where they leave.
//!
//! `apart`, ports, topologies and segments are judged by what is there. A spread and `near` depend on what may have ended when the
//! commit was made: what has left a domain of late counts there in favour of the commit, and a domain whose nodes have just changed holds no
//! spread back. So what these say is never more than what the binder could know. Not judged: a spread that units make uneven which say
//! nothing about it themselves, as they may, and spreads of best-effort units, whose room on an empty node depends on what is measured there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_base::ids::{NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_domain::{
    change::Change,
    demand::Pool,
    hold::Hold,
    label_expression::LabelExpression,
    records::{Record, RecordKey, RecordKind},
    running_units::{Bind, EvictionReason, Phase, RunChange},
    unit::{Template, UnitSpec},
    unit_affinity::{NODE, UnitTerm},
    unit_topology::Segments,
};

use super::{
    pending::{Free, admits},
    room::NodeSums,
    terms::{Terms, domain, selects},
    verdict::Findings,
    world::{Commit, World, WorldNode, WorldUnit},
};

/// What has left may have been there for a binder that has read as far as others have long before: so many times that.
const N_TIMES_KNOWN: i64 = 10;

/// What is followed from commit to commit, for commits to be judged by what was known when they were decided on.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// Replicas that have left a node, or whose room there was given up, the oldest first.
    left: VecDeque<LeftPlace>,
    /// When the records of nodes changed last.
    changed_ms: BTreeMap<NodeId, i64>,
    /// For so long the binder may not have read it, milliseconds.
    recent_ms: i64,
}

/// A place that counted for terms, and counts no more.
#[derive(Clone, Copy, Debug)]
struct LeftPlace {
    at_ms: i64,
    unit: UnitId,
    node: NodeId,
}

/// A replica that moves, and has no place yet.
#[derive(Clone, Copy, Debug)]
struct UnplacedMover {
    id: RunningUnitId,
    to: NodeId,
    /// Room is held for it by the commit at hand.
    is_new: bool,
}

/// Where replicas stay that a term counts.
#[derive(Default)]
struct CountedReplicas {
    /// Each of them.
    all: Vec<NodeId>,
    /// Those that were there for certain when the commit at hand was decided on.
    known: Vec<NodeId>,
    /// Those that have left of late.
    left: Vec<NodeId>,
}

impl CountedReplicas {
    fn n_in<'a>(nodes: impl IntoIterator<Item = &'a NodeId>, world: &World, key: &str, value: &str) -> usize {
        let is_there = |node: &&NodeId| domain(world, key, **node).as_deref() == Some(value);
        nodes.into_iter().filter(is_there).count()
    }
}

impl Targets {
    /// What is known to those who decide `known_after_ms` later.
    pub(super) fn new(known_after_ms: i64) -> Self {
        Self { recent_ms: known_after_ms.saturating_mul(N_TIMES_KNOWN), ..Self::default() }
    }

    /// A commit, before it is applied.
    pub(super) fn before(&mut self, world: &World, commit: &Commit) {
        let at_ms = commit.time_ms;
        let since_ms = at_ms.saturating_sub(self.recent_ms);
        while self.left.front().is_some_and(|left| left.at_ms < since_ms) {
            self.left.pop_front();
        }
        let mut leave = |unit: UnitId, node: NodeId| self.left.push_back(LeftPlace { at_ms, unit, node });
        for change in &commit.changes {
            match change {
                Change::Rows(unit, rows) => {
                    let ordinals: Vec<u32> = match rows {
                        RunChange::Statuses(statuses) => {
                            let of = statuses.ordinals.iter().zip(&statuses.phases);
                            of.filter(|(_, phase)| !phase.is_live()).map(|(ordinal, _)| *ordinal).collect()
                        }
                        RunChange::Evict(evict) if leaves_at_once(evict.reason) => evict.ordinals.clone(),
                        _ => continue,
                    };
                    let rows = world.units.get(unit).map(|unit| &unit.rows);
                    let rows = ordinals.iter().filter_map(|ordinal| rows?.get(ordinal));
                    rows.filter(|row| row.is_live()).for_each(|row| leave(*unit, row.node));
                }
                Change::Gone(RecordKey::Hold(id)) => {
                    let hold = world.holds.get(id).map(|hold| &hold.value);
                    if let Some(hold) = hold.filter(|hold| hold.movement.is_some()) {
                        leave(hold.unit, hold.node);
                    }
                }
                Change::Put(record) if record.kind() != RecordKind::NodeUsage => {
                    self.changed_ms.extend(record.node().map(|node| (node, at_ms)));
                }
                Change::Gone(RecordKey::NodeSpec(node)) => {
                    self.changed_ms.remove(node);
                }
                _ => {}
            }
        }
    }

    /// The commit, once it is applied.
    pub(super) fn after(&self, world: &World, commit: &Commit, terms: &Terms, findings: &mut Findings) {
        let is_new = |hold: &Hold| {
            let made =
                |change: &Change| matches!(change, Change::Put(Record::Hold(made)) if made.id == hold.id);
            commit.changes.iter().any(made)
        };
        let targets: Vec<&Hold> =
            world.holds.values().map(|hold| &*hold.value).filter(|hold| hold.movement.is_some()).collect();
        if targets.is_empty() || !terms.are_labels_settled(commit.revision) {
            return;
        }
        let movers = targets.iter().flat_map(|hold| {
            let awaited = hold.replicas().filter(|replica| awaits(world, hold.unit, *replica));
            let mover = |replica| UnplacedMover {
                id: RunningUnitId { unit: hold.unit, replica },
                to: hold.node,
                is_new: is_new(hold),
            };
            awaited.map(mover)
        });
        let movers: Vec<UnplacedMover> = movers.collect();
        for change in &commit.changes {
            let Change::Rows(id, RunChange::Bind(bind)) = change else { continue };
            let mut wrong: Vec<String> = Vec::new();
            for hold in &targets {
                wrong.extend(stands_in_the_way(world, *id, bind, hold));
            }
            wrong.extend(self.astray(world, *id, bind, &movers, commit));
            for wrong in wrong {
                let (unit, revision) = (name_of(world, *id), commit.revision);
                findings.add(|| format!("unit {unit}: {wrong} (revision {revision})"));
            }
        }
    }

    /// What of a unit is bound near nobody, or where it makes a spread uneven, while replicas are on the way that count for it, in words.
    fn astray(
        &self,
        world: &World,
        id: UnitId,
        bind: &Bind,
        movers: &[UnplacedMover],
        commit: &Commit,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let Some(unit) = world.units.get(&id) else { return wrong };
        let Some(record) = &unit.record else { return wrong };
        let spec = &record.value.spec;
        let counts_one = |units: &[LabelExpression]| {
            movers.iter().find(|mover| {
                let of = world.units.get(&mover.id.unit);
                of.is_some_and(|of| selects(id, spec, units, mover.id.unit, of))
            })
        };
        for term in spec.affinity.near.iter().filter(|term| term.weight == 0) {
            let Some(mover) = counts_one(&term.units) else { continue };
            let is_own = selects(id, spec, &term.units, id, unit);
            let counted = self.counted(world, id, spec, &term.units, movers, commit);
            for (ordinal, node) in bind.ordinals.iter().zip(&bind.nodes) {
                let Some(value) = domain(world, &term.topology, *node) else { continue };
                let near = counted.all.iter().chain(&counted.left);
                let others = CountedReplicas::n_in(near, world, &term.topology, &value) > usize::from(is_own);
                // The first one of those that are near to themselves goes anywhere.
                if !(others || is_own && counted.known.is_empty()) {
                    let (key, to) = (&term.topology, shown(world, mover));
                    wrong.push(format!(
                        "running unit {ordinal} is in a {key} without what it is to be near, and {to}"
                    ));
                }
            }
        }
        let template = spec.task_groups.get(usize::from(bind.group)).map(|group| &group.template);
        let spreads = spec.affinity.spread.iter().filter(|term| term.weight == 0);
        for term in spreads.filter(|_| spec.pool == Pool::Guaranteed) {
            let (Some(mover), Some(template)) = (counts_one(&term.units), template) else { continue };
            let counted = self.counted(world, id, spec, &term.units, movers, commit);
            let open = self.open_domains(world, &term.topology, template, commit.time_ms);
            let own = bind.nodes.iter().filter(|_| selects(id, spec, &term.units, id, unit));
            let full = counted.known.iter().chain(own);
            let full: Vec<NodeId> = full.copied().collect();
            let into: BTreeSet<String> =
                bind.nodes.iter().filter_map(|node| domain(world, &term.topology, *node)).collect();
            for value in &into {
                let n = CountedReplicas::n_in(&full, world, &term.topology, value);
                let least = open.iter().filter(|open| *open != value).map(|open| {
                    let all = counted.all.iter().chain(&counted.left);
                    (CountedReplicas::n_in(all, world, &term.topology, open), open)
                });
                if let Some((least, open)) = least.min()
                    && n > least + term.max_skew as usize
                {
                    let (key, to) = (&term.topology, shown(world, mover));
                    wrong.push(format!(
                        "{key} {value} has {n} of a spread, and {open} has {least}, where {to}"
                    ));
                }
            }
        }
        wrong
    }

    /// Where replicas stay that a term of a unit counts: who moves counts on its target.
    fn counted(
        &self,
        world: &World,
        id: UnitId,
        spec: &UnitSpec,
        units: &[LabelExpression],
        movers: &[UnplacedMover],
        commit: &Commit,
    ) -> CountedReplicas {
        let mut counted = CountedReplicas::default();
        let is_bound_now = |unit: UnitId| {
            commit
                .changes
                .iter()
                .any(|change| matches!(change, Change::Rows(bound, RunChange::Bind(_)) if *bound == unit))
        };
        let selected = world.units.iter().filter(|(other, of)| selects(id, spec, units, **other, of));
        for (id, unit) in selected {
            for (ordinal, row) in unit.rows.iter().filter(|(_, row)| row.is_live()) {
                let is_on_the_way =
                    movers.iter().any(|mover| (mover.id.unit, mover.id.replica.ordinal) == (*id, *ordinal));
                if is_on_the_way || row.eviction == Some(EvictionReason::Rescheduled) {
                    continue;
                }
                counted.all.push(row.node);
                if row.revision < commit.revision || !is_bound_now(*id) {
                    counted.known.push(row.node);
                }
            }
            for mover in movers.iter().filter(|mover| mover.id.unit == *id) {
                counted.all.push(mover.to);
                counted.known.extend((!mover.is_new).then_some(mover.to));
            }
            counted.left.extend(self.left.iter().filter(|left| left.unit == *id).map(|left| left.node));
        }
        counted
    }

    /// The domains that have a node which takes replicas of a template if nothing runs there, and whose records have not just changed.
    fn open_domains(&self, world: &World, key: &str, template: &Template, now_ms: i64) -> BTreeSet<String> {
        let since_ms = now_ms.saturating_sub(self.recent_ms);
        let is_open = |(id, node): &(&NodeId, &WorldNode)| {
            let mut empty = Free::new(node, &NodeSums::default(), &BTreeSet::new());
            self.changed_ms.get(id).is_none_or(|changed| *changed < since_ms)
                && admits(node, template).is_ok()
                && empty.take(node, template, Pool::Guaranteed).is_ok()
        };
        world.nodes.iter().filter(is_open).filter_map(|(id, _)| domain(world, key, *id)).collect()
    }
}

/// Whether a replica counts no more where it was as soon as it is evicted.
fn leaves_at_once(reason: EvictionReason) -> bool {
    matches!(reason, EvictionReason::Rescheduled | EvictionReason::NodeLost)
}

/// Whether an incarnation of a replica is yet to be bound.
fn awaits(world: &World, unit: UnitId, replica: ReplicaId) -> bool {
    let row = world.units.get(&unit).and_then(|unit| unit.rows.get(&replica.ordinal));
    row.is_none_or(|row| {
        row.incarnation < replica.incarnation
            || (row.incarnation == replica.incarnation && row.phase == Phase::Pending)
    })
}

/// Who moves where, in words.
fn shown(world: &World, UnplacedMover { id, to, .. }: &UnplacedMover) -> String {
    let (unit, ordinal) = (name_of(world, id.unit), id.replica.ordinal);
    format!("unit {unit}, {ordinal} moves to {}", super::history::node_name(world, *to))
}

fn name_of(world: &World, unit: UnitId) -> String {
    world.units.get(&unit).map_or_else(|| "?".to_owned(), WorldUnit::name)
}

/// What of a unit is bound where it keeps away a replica that moves, or is kept away by it, in words.
fn stands_in_the_way(world: &World, id: UnitId, bind: &Bind, hold: &Hold) -> Vec<String> {
    let mut wrong = Vec::new();
    let moving = hold.replicas().next().filter(|moving| {
        let row = world.units.get(&hold.unit).and_then(|unit| unit.rows.get(&moving.ordinal));
        // The commit that binds it ends its hold: that is judged elsewhere.
        row.is_none_or(|row| row.incarnation < moving.incarnation || !row.is_live())
    });
    let (Some(moving), Some(unit), Some(of)) = (moving, world.units.get(&id), world.units.get(&hold.unit))
    else {
        return wrong;
    };
    let (Some(record), Some(other)) = (&unit.record, &of.record) else { return wrong };
    let (spec, other_spec) = (&record.value.spec, &other.value.spec);
    let who = format!("where unit {}, {} moves to", of.name(), moving.ordinal);
    let meets = |key: &str, ordinals: &[(u32, u32)]| {
        let is_of = |ordinal: u32| {
            ordinals.is_empty() || ordinals.iter().any(|(start, end)| (*start..*end).contains(&ordinal))
        };
        let target = domain(world, key, hold.node);
        let bound = bind.ordinals.iter().zip(&bind.nodes);
        let bound = bound.filter(|(ordinal, _)| !(id == hold.unit && **ordinal == moving.ordinal));
        let bound: Vec<(u32, bool)> = bound
            .filter(|(ordinal, _)| is_of(**ordinal))
            .map(|(ordinal, node)| (*ordinal, target.is_some() && domain(world, key, *node) == target))
            .collect();
        bound
    };
    let required = |term: &&UnitTerm| term.weight == 0;
    for term in spec.affinity.apart.iter().filter(required) {
        if selects(id, spec, &term.units, hold.unit, of)
            && let Some((ordinal, _)) = meets(&term.topology, &[]).iter().find(|(_, is_there)| *is_there)
        {
            wrong.push(format!("running unit {ordinal} is not apart from {who}"));
        }
    }
    for term in other_spec.affinity.apart.iter().filter(required).filter(|term| !term.units.is_empty()) {
        if selects(hold.unit, other_spec, &term.units, id, unit)
            && let Some((ordinal, _)) = meets(&term.topology, &[]).iter().find(|(_, is_there)| *is_there)
        {
            wrong.push(format!("running unit {ordinal} is {who}, which keeps it away"));
        }
    }
    let is_on_port = |port| hold.demand.host_ports.contains(port);
    if bind.nodes.contains(&hold.node) && bind.demand.host_ports.iter().any(is_on_port) {
        let bound = meets(NODE, &[]);
        if let Some((ordinal, _)) = bound.iter().find(|(_, is_there)| *is_there) {
            wrong.push(format!("running unit {ordinal} has a port {who}"));
        }
    }
    if id == hold.unit {
        let of_groups = record.value.group_topologies();
        let of_group = of_groups.iter().filter(|one| one.group == hold.group && one.group == bind.group);
        let of_group = of_group.map(|one| (&one.topology, one.first, &one.ordinals[..]));
        for (topology, first, ordinals) in std::iter::once((&spec.topology, 0, &[][..])).chain(of_group) {
            for key in [&topology.required, &topology.homogeneous].into_iter().filter(|key| !key.is_empty()) {
                if let Some((ordinal, _)) = meets(key, ordinals).iter().find(|(_, is_there)| !is_there) {
                    wrong.push(format!("running unit {ordinal} is in another {key} than {who}"));
                }
            }
            let Some(Segments { size, within }) = &topology.segments else { continue };
            let segment = |ordinal: u32| ordinal.saturating_sub(first) / (*size).max(1);
            let bound = meets(within, ordinals);
            let is_split = |(ordinal, is_there): &&(u32, bool)| {
                !is_there && segment(*ordinal) == segment(moving.ordinal)
            };
            if let Some((ordinal, _)) = bound.iter().find(is_split) {
                wrong
                    .push(format!("running unit {ordinal} of its segment is in another {within} than {who}"));
            }
        }
    }
    wrong
}
