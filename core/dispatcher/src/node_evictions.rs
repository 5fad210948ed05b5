//! Who has to leave which node: running units on lost nodes at once, on drained ones as their units can spare them, on
//! tainted ones once the time is over for which they tolerate that, unless so many nodes were lost that nobody knows.
//!
//! Rows are not kept by node: there may be a million units, and nodes are lost rarely. When a node has to be left, a
//! sweep over the units finds those with rows there, a bounded slice at a time; bindings that come meanwhile are
//! added. Then each pass asks the binder for what may go now, and again after a while for what did not.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::{NodeId, ReplicaId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    node::{self, Drain, NodeSpec, Taint, TaintEffect},
    running_units::{Bind, EvictionReason, Phase, RunningUnits},
};
use godel_rules::{
    budget::{Budgets, Spent},
    drain::{self, DrainBlock},
    lost_nodes::{BrakeChange, Config, Losses},
};

use super::{
    Action, EvictRequest, assignments::Assignments, ends::EVICT_ORDINALS_MAX, evicted_by::Grounds,
    following::Following, nodes::Nodes, unit_entry::UnitEntry, units::Units,
};

/// Between two passes while somebody has to leave, milliseconds.
const PASS_MS: u64 = 250;
/// Units looked at in one step of a sweep.
const SWEEP_UNITS: usize = 20_000;
/// Units in one pass whose tolerated time is over.
const DUE_PER_PASS: usize = 20_000;
/// Units asked to leave in one pass.
const UNITS_PER_PASS: usize = 1_000;

/// Nodes to be left and the units there.
#[derive(Debug)]
pub struct NodeEvictions {
    losses: Losses,
    /// Since they were last taken.
    brake_changes: Vec<BrakeChange>,
    drains: BTreeMap<NodeId, Drain>,
    /// Those that evict, of nodes that have some.
    taints: BTreeMap<NodeId, Vec<Taint>>,
    grounds: Grounds,
    /// When to look at units on tainted nodes again, Unix milliseconds: what tolerates a taint for ever is nowhere here.
    later: BTreeSet<(i64, UnitId, NodeId)>,
    /// Lost, drained or tainted.
    nodes: BTreeSet<NodeId>,
    /// Of `nodes`: not looked for yet.
    unswept: BTreeSet<NodeId>,
    sweep: Option<Sweep>,
    /// With their rows on `nodes`, a superset.
    units: BTreeMap<UnitId, BTreeSet<NodeId>>,
    /// Units of which the binder was asked to make some leave, which the rows do not show yet.
    asked: BTreeMap<UnitId, AskedToLeave>,
    pass_at: Millis,
    /// Where the next pass begins.
    next: UnitId,
    /// Units whose running units on drained nodes stay for now.
    blocked: BTreeMap<UnitId, DrainBlock>,
    /// Drained nodes with running units, as of the last pass.
    n_draining: usize,
    retry_ms: u64,
}

/// A request to the binder that the rows do not show yet.
#[derive(Debug)]
struct AskedToLeave {
    /// When to ask again.
    again_at: Millis,
    /// Running units that disruption budgets count as leaving.
    told: Vec<(UnitId, u32)>,
}

/// The replicas of a unit on nodes to be left.
#[derive(Debug, Default)]
struct ReplicasToEvict {
    nodes: BTreeSet<NodeId>,
    /// On lost nodes.
    lost: Vec<ReplicaId>,
    /// On tainted nodes, not told to leave: not tolerated, or not any longer.
    tainted: Vec<ReplicaId>,
    /// On tainted nodes and tolerated for a while: the first for whom that ends, Unix milliseconds.
    later: Option<(i64, NodeId)>,
    /// On drained nodes, not told to leave: past the deadline, or not running yet.
    free: Vec<ReplicaId>,
    /// On drained nodes, running.
    running: Vec<ReplicaId>,
}

/// What a drained node waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainView {
    /// Units with running units there.
    pub n_units: usize,
    /// Of those, the first whose running units stay for now, and why.
    pub blocked: Vec<(UnitId, DrainBlock)>,
}

/// A look at all units for some nodes.
#[derive(Debug)]
struct Sweep {
    nodes: BTreeSet<NodeId>,
    next: UnitId,
}

impl NodeEvictions {
    pub(super) fn new(losses: Config, retry_ms: u64) -> Self {
        Self {
            losses: Losses::new(losses),
            brake_changes: Vec::new(),
            drains: BTreeMap::new(),
            taints: BTreeMap::new(),
            grounds: Grounds::default(),
            later: BTreeSet::new(),
            nodes: BTreeSet::new(),
            unswept: BTreeSet::new(),
            sweep: None,
            units: BTreeMap::new(),
            asked: BTreeMap::new(),
            pass_at: Millis::default(),
            next: UnitId::default(),
            blocked: BTreeMap::new(),
            n_draining: 0,
            retry_ms,
        }
    }

    /// The nodes to be left are these.
    fn set_nodes(&mut self, nodes: BTreeSet<NodeId>) {
        self.unswept.extend(nodes.difference(&self.nodes));
        self.unswept.retain(|node| nodes.contains(node));
        self.nodes = nodes;
    }

    /// New rows, perhaps on a node to be left.
    pub(super) fn on_bind(&mut self, unit: UnitId, bind: &Bind) {
        if self.nodes.is_empty() {
            return;
        }
        let leaving = bind.nodes.iter().filter(|node| self.nodes.contains(node)).copied();
        for node in leaving {
            self.units.entry(unit).or_default().insert(node);
        }
    }

    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        self.units.remove(&unit);
        self.blocked.remove(&unit);
    }

    pub(super) fn on_node_spec(&mut self, spec: &NodeSpec) {
        self.grounds.on_node_spec(spec);
        match spec.drain {
            Some(drain) => self.drains.insert(spec.id, drain),
            None => self.drains.remove(&spec.id),
        };
        let evicts = |taint: &&Taint| taint.effect == TaintEffect::NoExecute;
        let known = self.taints.get(&spec.id).map_or(&[][..], Vec::as_slice);
        if spec.taints.iter().filter(evicts).eq(known) {
            return;
        }
        let taints: Vec<Taint> = spec.taints.iter().filter(evicts).cloned().collect();
        if taints.is_empty() {
            self.taints.remove(&spec.id);
        } else {
            self.taints.insert(spec.id, taints);
            // Who is there is looked for once more.
            self.nodes.remove(&spec.id);
        }
    }

    /// An agent's record of a node.
    pub(super) fn on_node_report(&mut self, node: NodeId, ready: bool, now: Millis) {
        self.losses.put(node, ready, now);
    }

    /// An administrator's record of a node is gone, or cannot be read: nobody knows that it is to be left.
    pub(super) fn forget_spec(&mut self, node: NodeId) {
        self.grounds.forget(node);
        self.drains.remove(&node);
        self.taints.remove(&node);
    }

    /// A node is gone.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.losses.remove(node);
        self.forget_spec(node);
    }

    /// What runs on nodes that nobody knows is lost with them. Returns how many of them are news.
    pub(super) fn give_up(&mut self, unknown: BTreeSet<NodeId>, now: Millis) -> u64 {
        let mut n = 0;
        for node in unknown {
            if !self.losses.contains(node) {
                self.losses.put(node, false, now);
                n += 1;
            }
        }
        n
    }

    /// After a list: all other nodes are gone.
    pub(super) fn retain_nodes(&mut self, is_listed: &impl Fn(NodeId) -> bool) {
        self.losses.retain(is_listed);
        self.drains.retain(|node, _| is_listed(*node));
        self.taints.retain(|node, _| is_listed(*node));
        self.grounds.retain(is_listed);
    }

    /// Nodes known.
    pub(super) fn n_nodes(&self) -> usize {
        self.losses.n_nodes()
    }

    /// Nodes that are not ready.
    pub(super) fn n_not_ready(&self) -> usize {
        self.losses.absent().len()
    }

    /// So many nodes were lost at once that nothing is evicted from them.
    pub(super) fn is_braked(&self) -> bool {
        self.losses.is_braked()
    }

    pub(super) fn n_draining(&self) -> usize {
        self.n_draining
    }

    /// Units for some of which the tolerated time is over are looked at.
    fn take_due(&mut self, wall_ms: i64) {
        for _ in 0..DUE_PER_PASS {
            let Some((_, unit, node)) = self.later.first().copied().filter(|(at_ms, ..)| *at_ms <= wall_ms)
            else {
                return;
            };
            self.later.pop_first();
            self.units.entry(unit).or_default().insert(node);
        }
    }

    fn note_rows(&mut self, unit: UnitId, rows: &RunningUnits, nodes: &BTreeSet<NodeId>) {
        let there: BTreeSet<NodeId> =
            rows.live().map(|(_, row)| row.node).filter(|node| nodes.contains(node)).collect();
        if !there.is_empty() {
            self.units.entry(unit).or_default().extend(there);
        }
    }

    /// At the beginning of a leadership: nodes that were absent before and have nothing to lose are no news.
    pub(super) fn start_losses(&mut self, units: &Units, now: Millis) {
        let absent: BTreeSet<NodeId> = self.losses.absent().collect();
        let mut taken = BTreeSet::new();
        if !absent.is_empty() {
            let rows = units.entries.values().flat_map(|entry| entry.rows.live());
            taken.extend(rows.map(|(_, row)| row.node).filter(|node| absent.contains(node)));
        }
        self.losses.start(|node| !taken.contains(&node), now);
    }

    /// Somebody says that the nodes that are absent now are lost. Whether evictions were paused.
    pub(super) fn resume_evictions(&mut self) -> bool {
        let was_braked = self.losses.resume();
        if was_braked {
            self.brake_changes.push(BrakeChange::Released);
        }
        was_braked
    }

    /// Changes of the brake since the last call, for the log.
    pub fn take_brake_changes(&mut self) -> Vec<BrakeChange> {
        std::mem::take(&mut self.brake_changes)
    }

    /// What a drained node waits for; at most `n_max` units that stay for now.
    pub fn drain_view(&self, node: NodeId, n_max: usize) -> DrainView {
        let there = self.units.iter().filter(|(_, nodes)| nodes.contains(&node));
        let mut view = DrainView::default();
        for (unit, _) in there {
            view.n_units += 1;
            if let Some(block) = self.blocked.get(unit).filter(|_| view.blocked.len() < n_max) {
                view.blocked.push((*unit, block.clone()));
            }
        }
        view
    }

    /// Looks for units on nodes that have to be left, and asks the binder for those that may go.
    pub(super) fn depart(
        &mut self,
        assignments: &Assignments,
        nodes: &Nodes,
        budgets: &mut Budgets,
        following: &Following,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        if let Some(change) = self.losses.check(now) {
            self.brake_changes.push(change);
        }
        // While a list is under way, what is known may be old.
        if assignments.settling.is_loading() || following.is_listing() {
            return;
        }
        let is_idle = self.losses.absent().len() == 0
            && self.nodes.is_empty()
            && self.drains.is_empty()
            && self.taints.is_empty();
        if is_idle || (now < self.pass_at && self.sweep.is_none()) {
            return;
        }
        let lost: BTreeSet<NodeId> = self.losses.lost(now).collect();
        let told = self.drains.keys().chain(self.taints.keys());
        self.set_nodes(lost.iter().chain(told).copied().collect());
        self.sweep(&assignments.units);
        self.take_due(assignments.wall_ms);
        self.pass_at = now.plus(PASS_MS);
        self.ask_to_leave(&lost, assignments, nodes, budgets, following.revision, now, actions);
    }

    /// When the next look is due, `None` while nobody has to leave.
    pub(super) fn next_at(&self, wall_ms: i64, now: Millis) -> Option<Millis> {
        if self.sweep.is_some() {
            return Some(now);
        }
        let lost = self.losses.next_at(|node| self.nodes.contains(&node));
        let mut told = self.drains.keys().chain(self.taints.keys());
        let are_new = told.any(|node| !self.nodes.contains(node));
        let waits = !self.units.is_empty() || !self.unswept.is_empty() || are_new;
        let tolerated = self
            .later
            .first()
            .map(|(at_ms, ..)| now.plus(u64::try_from(at_ms.saturating_sub(wall_ms)).unwrap_or(0)));
        let next = if waits { Some(self.pass_at) } else { lost.into_iter().chain(tolerated).min() };
        next.map(|at| at.max(self.pass_at))
    }

    /// A bounded part of the look at all units for nodes that have to be left since lately.
    fn sweep(&mut self, known: &Units) {
        if self.sweep.is_none() && !self.unswept.is_empty() {
            let nodes = std::mem::take(&mut self.unswept);
            self.sweep = Some(Sweep { nodes, next: UnitId(0) });
        }
        let Some(Sweep { nodes, next }) = self.sweep.take() else { return };
        for (seen, &unit) in known.ids.range(next..).enumerate() {
            if seen >= SWEEP_UNITS {
                self.sweep = Some(Sweep { nodes, next: unit });
                return;
            }
            if let Some(entry) = known.get(unit) {
                self.note_rows(unit, &entry.rows, &nodes);
            }
        }
    }

    /// What was asked for shows, or the unit is gone.
    pub(super) fn on_evicted(&mut self, unit: UnitId, budgets: &mut Budgets, units: &Units) {
        let Some(AskedToLeave { told, .. }) = self.asked.remove(&unit) else { return };
        if !told.is_empty() {
            budgets.arrive(unit, &told, units.get(unit).map(|entry| &entry.rows));
        }
    }

    fn ask_to_leave(
        &mut self,
        lost: &BTreeSet<NodeId>,
        assignments: &Assignments,
        known: &Nodes,
        budgets: &mut Budgets,
        read: Revision,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        let (wall_ms, frozen) = (assignments.wall_ms, &assignments.gates.frozen);
        let in_vain = self.asked.iter().filter(|(_, asked)| asked.again_at <= now);
        for unit in in_vain.map(|(unit, _)| *unit).collect::<Vec<_>>() {
            self.on_evicted(unit, budgets, &assignments.units);
        }
        let is_braked = self.losses.is_braked();
        let Self {
            drains, taints, grounds, later, units, asked, next, blocked, n_draining, retry_ms, ..
        } = self;
        let turn: Vec<UnitId> =
            units.range(*next..).map(|(unit, _)| *unit).take(UNITS_PER_PASS + 1).collect();
        *next = turn.get(UNITS_PER_PASS).copied().unwrap_or(UnitId(0));
        for unit in turn.into_iter().take(UNITS_PER_PASS) {
            let found = assignments
                .units
                .get(unit)
                .map(|entry| (entry, leaving(entry, lost, drains, taints, wall_ms)));
            later
                .extend(found.iter().filter_map(|(_, leaving)| leaving.later).map(|(at, on)| (at, unit, on)));
            let Some((entry, leaving)) = found.filter(|(_, leaving)| !leaving.nodes.is_empty()) else {
                units.remove(&unit);
                blocked.remove(&unit);
                continue;
            };
            let ReplicasToEvict { nodes, lost, mut tainted, later: _, mut free, mut running } = leaving;
            units.insert(unit, nodes);
            if asked.contains_key(&unit) {
                continue;
            }
            blocked.remove(&unit);
            if frozen.unit(unit).is_some() {
                // Lost ones have ended whatever its record says; of the others it is not known who may leave.
                blocked.insert(unit, DrainBlock::Unreadable);
                tainted.clear();
                free.clear();
                running.clear();
            }
            if is_braked {
                tainted.clear();
            }
            if !running.is_empty() {
                let going = drain::spared(&entry.record, &entry.rows, running);
                let is_kept = frozen.keeps_budgets();
                let going =
                    going.and_then(|going| if is_kept { Err(DrainBlock::Unreadable) } else { Ok(going) });
                match going.and_then(|going| affordable(budgets, entry, going)) {
                    Ok(going) => free.extend(going),
                    Err(block) => {
                        blocked.insert(unit, block);
                    }
                }
            }
            let reasons = [
                (EvictionReason::NodeLost, lost),
                (EvictionReason::Tainted, tainted),
                (EvictionReason::Drained, free),
            ];
            for (reason, mut members) in reasons.into_iter().filter(|(_, members)| !members.is_empty()) {
                members.truncate(EVICT_ORDINALS_MAX);
                let fresh = || AskedToLeave { again_at: now.plus(*retry_ms), told: Vec::new() };
                let asked = asked.entry(unit).or_insert_with(fresh);
                if reason == EvictionReason::Drained && budgets.selects(unit) {
                    let told: Vec<_> = members.iter().map(|replica| (unit, replica.ordinal)).collect();
                    budgets.depart(unit, &told, Some(&entry.rows));
                    asked.told = told;
                }
                let by = grounds.by(reason, &members, &entry.rows, known, taints);
                let (ordinals, incarnations) = ReplicaId::columns(members);
                actions.push(Action::Evict(EvictRequest { unit, reason, ordinals, incarnations, by, read }));
            }
        }
        let taken: BTreeSet<NodeId> = match drains.is_empty() {
            true => BTreeSet::new(),
            false => units.values().flatten().filter(|node| drains.contains_key(node)).copied().collect(),
        };
        *n_draining = taken.len();
    }
}

/// Those of a unit's running units that budgets let go beside what leaves already; of a gang all of them.
fn affordable(
    budgets: &Budgets,
    entry: &UnitEntry,
    going: Vec<ReplicaId>,
) -> Result<Vec<ReplicaId>, DrainBlock> {
    let unit = entry.record.id;
    if !budgets.selects(unit) {
        return Ok(going);
    }
    let (mut allowed, mut block, mut spent) = (Vec::new(), None, Spent::default());
    for member in going {
        let (ordinal, row) = (member.ordinal, entry.rows.row(member.ordinal));
        match budgets.forbids(unit, ordinal, &row, &spent) {
            None => {
                budgets.spend(unit, ordinal, &row, &mut spent);
                allowed.push(member);
            }
            Some(budget) => block = block.or(Some(budget)),
        }
    }
    match block.and_then(|budget| budgets.at(budget)) {
        Some(budget) if allowed.is_empty() || drain::is_whole(&entry.record.spec) => {
            Err(DrainBlock::by(budget))
        }
        Some(_) | None => Ok(allowed),
    }
}

/// Rows of a unit on nodes that are lost, drained or tainted. What its unit does not want is not a drain's business, nor a
/// taint's.
fn leaving(
    entry: &UnitEntry,
    lost: &BTreeSet<NodeId>,
    drains: &BTreeMap<NodeId, Drain>,
    taints: &BTreeMap<NodeId, Vec<Taint>>,
    wall_ms: i64,
) -> ReplicasToEvict {
    let mut leaving = ReplicasToEvict::default();
    for (ordinal, row) in entry.rows.live() {
        let member = ReplicaId::new(ordinal, row.incarnation);
        let drain = drains.get(&row.node);
        let group =
            || entry.record.group_of(ordinal).filter(|_| entry.record.is_wanted() && row.eviction.is_none());
        let due_ms = taints.get(&row.node).and_then(|taints| {
            let tolerations = &entry.record.spec.task_groups[group()?].template.tolerations;
            node::leaves_at(taints, tolerations, row.bound_time_ms)
        });
        if let Some(at_ms) = due_ms.filter(|at_ms| *at_ms > wall_ms) {
            leaving.later = leaving.later.into_iter().chain([(at_ms, row.node)]).min();
        }
        if lost.contains(&row.node) {
            leaving.lost.push(member);
        } else if due_ms.is_some_and(|at_ms| at_ms <= wall_ms) {
            leaving.tainted.push(member);
        } else if let Some(drain) = drain {
            if group().is_some() {
                let is_free = drain.is_overdue(wall_ms) || row.phase != Phase::Running;
                if is_free { leaving.free.push(member) } else { leaving.running.push(member) }
            }
        } else {
            continue;
        }
        leaving.nodes.insert(row.node);
    }
    leaving
}
