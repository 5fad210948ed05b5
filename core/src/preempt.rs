//! The search for victims: who has to leave so that running units of one template find room.
//!
//! A victim is preemptible, of strictly lower rank and of the same pool, has run long enough, does not leave already, and
//! is of no unit that the preemptor was preempted for itself. Of those on a node the search spares as many as it can, the
//! highest rank first. Going below a unit's minimum means that the whole unit leaves, wherever it is, at its whole cost.
//! The node with the least `Cost` is taken, again and again until all replicas have a place: one search serves a whole
//! template, and what leaves for one replica makes room for the next ones.
//!
//! Nodes on which too little could leave are dropped at a first look, without asking anything of their victims.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::{
    cluster::{Cluster, ShapeId, devices::NodeDevices, occupants::Occupant, shapes::Shape},
    demand::Pool,
    hold::Member,
    ids::{NodeId, UnitId},
    rows::{Row, Standing, UnitRows},
};

#[cfg(test)]
mod tests;

/// Most running units that have to leave for one decision.
pub const N_VICTIMS_MAX: usize = 4_096;

/// Who looks for room.
#[derive(Clone, Copy, Debug)]
pub struct Seeker {
    /// Its unit.
    pub unit: UnitId,
    /// Higher wins.
    pub priority: i32,
    /// Pool that pays for it.
    pub pool: Pool,
    /// Unix milliseconds.
    pub now_ms: i64,
}

/// Why a running unit may not be preempted by a seeker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is not there, leaves already, or is the seeker's own.
    Gone,
    /// It is never preempted.
    NotPreemptible,
    /// Its rank is not lower.
    Rank,
    /// Another pool pays for it.
    Pool,
    /// It may be from then on, Unix milliseconds.
    Until(i64),
    /// Its unit preempted the seeker's before.
    Loop,
}

impl Seeker {
    /// Whether a row of another unit may be preempted: the one rule that schedulers search by, the binder checks, and the
    /// audit repeats.
    ///
    /// # Errors
    /// Why not.
    pub fn may_preempt(
        &self,
        unit: UnitId,
        rows: &UnitRows,
        row: &Row,
        own: &[UnitId],
    ) -> Result<(), Spared> {
        if unit == self.unit || !row.phase.is_live() || row.eviction.is_some() {
            return Err(Spared::Gone);
        }
        let pool = rows.groups.get(usize::from(row.group)).and_then(Option::as_ref).map(|group| group.pool);
        if pool != Some(self.pool) {
            return Err(Spared::Pool);
        }
        let Some(standing) = rows.standing(row.group).filter(|standing| standing.preemptible) else {
            return Err(Spared::NotPreemptible);
        };
        if standing.priority >= self.priority {
            return Err(Spared::Rank);
        }
        if own.contains(&unit) {
            return Err(Spared::Loop);
        }
        let free_at = row.bound_time_ms.saturating_add(min_run(standing));
        if free_at > self.now_ms { Err(Spared::Until(free_at)) } else { Ok(()) }
    }
}

fn min_run(standing: &Standing) -> i64 {
    i64::try_from(standing.min_run_ms).unwrap_or(i64::MAX)
}

/// Live running units of a unit that do not leave.
pub(crate) fn staying(rows: &UnitRows) -> impl Iterator<Item = (u32, &Row)> {
    rows.live().filter(|(_, row)| row.eviction.is_none())
}

/// With fewer running units than this the unit is worth nothing.
pub(crate) fn min_member(rows: &UnitRows) -> usize {
    let standings = rows.groups.iter().flatten().filter_map(|group| group.standing.as_ref());
    standings.map(|standing| standing.min_member as usize).max().unwrap_or(0)
}

/// What a place costs; the least is taken. Field order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    /// `None`: nobody (else) has to leave.
    highest: Option<i32>,
    /// Each counted from 1 on, so that one more is never less.
    rank_sum: i64,
    n_victims: usize,
    n_gangs: usize,
    /// Milliseconds that victims have run.
    lost_ms: i64,
    /// Of the one that runs longest.
    start_ms: Reverse<i64>,
    idx: usize,
}

/// Places, and who has to leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Node and devices, one per replica.
    pub(crate) places: Vec<(NodeId, u64)>,
    /// On nodes with places, ascending.
    pub(crate) claims: BTreeMap<NodeId, Vec<Member>>,
    /// On other nodes, ascending.
    pub(crate) others: Vec<Member>,
    /// Units that were spared because the seeker was preempted for them.
    pub(crate) n_loops: usize,
    /// When somebody will have run long enough, Unix milliseconds.
    pub(crate) retry_ms: Option<i64>,
}

/// Looks for places for `wanted` replicas of a shape on some nodes. `claimed` are victims of decisions under way.
///
/// `O(nodes + running units on them)`, and for each place as much again for the nodes that its victims' units are on.
pub(crate) fn search(
    cluster: &mut Cluster,
    seeker: &Seeker,
    claimed: &FxHashSet<(UnitId, u32)>,
    shape: ShapeId,
    nodes: impl IntoIterator<Item = usize>,
    wanted: usize,
) -> Found {
    cluster.keep_occupants();
    let mut plan = Plan::new(cluster, *seeker, claimed, shape);
    let mut order: BTreeSet<Cost> = BTreeSet::new();
    let mut choices: FxHashMap<usize, Option<Choice>> = FxHashMap::default();
    for idx in nodes {
        let choice = plan.choose(idx);
        order.extend(choice.as_ref().map(|choice| choice.cost));
        choices.insert(idx, choice);
    }
    while plan.places.len() < wanted
        && let Some(cost) = order.pop_first()
    {
        let Some(choice) = choices.get_mut(&cost.idx).and_then(Option::take) else { continue };
        if plan.gone.len() + choice.victims.len() > N_VICTIMS_MAX {
            continue;
        }
        for idx in plan.take(cost.idx, &choice) {
            let Some(known) = choices.get_mut(&idx) else { continue };
            if let Some(old) = known.take() {
                order.remove(&old.cost);
            }
            *known = plan.choose(idx);
            order.extend(known.as_ref().map(|choice| choice.cost));
        }
    }
    plan.found()
}

/// The best for one more replica on a node.
#[derive(Clone, Debug)]
struct Choice {
    cost: Cost,
    /// Wherever they are.
    victims: Vec<(UnitId, u32)>,
    mask: u64,
}

/// What is known of a unit with candidates.
#[derive(Clone, Debug)]
struct Known {
    /// Live and not leaving: ordinal, incarnation, node, since.
    members: Vec<(u32, u32, NodeId, i64)>,
    min_member: usize,
    /// All of them may leave.
    whole: bool,
    /// How many leave by this plan.
    n_gone: usize,
}

impl Known {
    /// How many more may leave before the unit is worth nothing.
    fn spare(&self) -> usize {
        self.members.len().saturating_sub(self.n_gone).saturating_sub(self.min_member)
    }
}

/// A candidate on a node.
#[derive(Clone, Copy, Debug)]
struct Item {
    unit: UnitId,
    ordinal: u32,
    priority: i32,
    shape: ShapeId,
    mask: u64,
    since: i64,
    /// Its unit would be too small without it.
    breaks: bool,
    /// Thousandths of the ask that it gives back.
    parts: i64,
}

struct Plan<'a> {
    cluster: &'a Cluster,
    seeker: Seeker,
    /// Units that the seeker was preempted for.
    lineage: &'a [UnitId],
    claimed: &'a FxHashSet<(UnitId, u32)>,
    shape: ShapeId,
    units: FxHashMap<UnitId, Known>,
    gone: FxHashSet<(UnitId, u32)>,
    places: Vec<(NodeId, u64)>,
    loops: FxHashSet<UnitId>,
    retry_ms: Option<i64>,
}

impl<'a> Plan<'a> {
    fn new(
        cluster: &'a Cluster,
        seeker: Seeker,
        claimed: &'a FxHashSet<(UnitId, u32)>,
        shape: ShapeId,
    ) -> Self {
        Self {
            cluster,
            seeker,
            lineage: cluster.rows(seeker.unit).map_or(&[], UnitRows::preemptors),
            claimed,
            shape,
            units: FxHashMap::default(),
            gone: FxHashSet::default(),
            places: Vec::new(),
            loops: FxHashSet::default(),
            retry_ms: None,
        }
    }

    /// The least that has to leave a node for one more replica.
    fn choose(&mut self, idx: usize) -> Option<Choice> {
        let node = NodeId(u32::try_from(idx).ok()?);
        let shape = self.cluster.shapes().get(self.shape);
        let mut trial = self.trial(node);
        if let Some(mask) = trial.pick(shape) {
            return Some(Choice { cost: self.cost(idx, &[], 0), victims: Vec::new(), mask });
        }
        if !self.may_suffice(node, &trial, shape) {
            return None;
        }
        let items = self.items(node);
        for item in &items {
            trial.shift(self.cluster.shapes().get(item.shape), item.mask, 1);
        }
        trial.pick(shape)?;
        let mut forced: BTreeSet<UnitId> = BTreeSet::new();
        loop {
            let (leaving, mask) = self.spare(&items, &forced, &trial)?;
            let mut broken = Vec::new();
            for of_unit in by_unit(&leaving) {
                let known = &self.units[&of_unit[0].unit];
                if of_unit.len() > known.spare() && !forced.contains(&of_unit[0].unit) {
                    broken.push(of_unit[0].unit);
                }
            }
            if broken.is_empty() {
                let victims = self.victims(&leaving, &forced);
                return Some(Choice { cost: self.cost(idx, &victims, forced.len()), victims, mask });
            }
            forced.extend(broken);
        }
    }

    /// Whether the room of a node would do if everyone of lower rank left: the first look.
    fn may_suffice(&self, node: NodeId, trial: &Trial, shape: &Shape) -> bool {
        let lower = |one: &&Occupant| {
            one.pool == self.seeker.pool
                && one.priority.is_some_and(|priority| priority < self.seeker.priority)
        };
        let mut free = trial.free.clone();
        let mut any = false;
        for one in self.cluster.occupants(node).iter().filter(lower) {
            any = true;
            for (id, amount) in &self.cluster.shapes().get(one.shape).asks {
                let free = &mut free[usize::from(*id)];
                *free = free.saturating_add(*amount);
            }
        }
        any && shape.fits(&free)
    }

    /// Candidates of a node in the order in which they are spared.
    fn items(&mut self, node: NodeId) -> Vec<Item> {
        let ask = self.cluster.shapes().get(self.shape);
        let mut items: Vec<Item> = Vec::new();
        for one in self.cluster.occupants(node) {
            let Some(priority) = one.priority else { continue };
            let key = (one.unit, one.ordinal);
            if self.gone.contains(&key) {
                continue;
            }
            let Some(rows) = self.cluster.rows(one.unit) else { continue };
            let row = rows.row(one.ordinal);
            match self.may_leave(one.unit, rows, one.ordinal, &row) {
                Ok(()) => {}
                Err(Spared::Loop) => {
                    self.loops.insert(one.unit);
                    continue;
                }
                Err(Spared::Until(free_at)) => {
                    self.retry_ms = Some(self.retry_ms.map_or(free_at, |other| other.min(free_at)));
                    continue;
                }
                Err(_) => continue,
            }
            if !self.units.contains_key(&one.unit) {
                let known = self.known(one.unit, rows);
                self.units.insert(one.unit, known);
            }
            items.push(Item {
                unit: one.unit,
                ordinal: one.ordinal,
                priority,
                shape: one.shape,
                mask: row.device_mask,
                since: row.bound_time_ms,
                breaks: false,
                parts: parts(ask, self.cluster.shapes().get(one.shape), row.device_mask),
            });
        }
        // Of each unit those go first that have run shortest; beyond what it can spare it breaks.
        items.sort_unstable_by_key(|item| (item.unit, Reverse(item.since), item.ordinal));
        let mut kept: Vec<Item> = Vec::with_capacity(items.len());
        for of_unit in items.chunk_by(|a, b| a.unit == b.unit) {
            let known = &self.units[&of_unit[0].unit];
            for (at, item) in of_unit.iter().enumerate() {
                let breaks = at >= known.spare();
                if !breaks || known.whole {
                    kept.push(Item { breaks, ..*item });
                }
            }
        }
        kept.sort_unstable_by_key(|item| {
            (Reverse(item.priority), !item.breaks, item.parts, item.since, item.unit, item.ordinal)
        });
        kept
    }

    fn may_leave(&self, unit: UnitId, rows: &UnitRows, ordinal: u32, row: &Row) -> Result<(), Spared> {
        if self.claimed.contains(&(unit, ordinal)) {
            return Err(Spared::Gone);
        }
        self.seeker.may_preempt(unit, rows, row, self.lineage)
    }

    fn known(&self, unit: UnitId, rows: &UnitRows) -> Known {
        let mut whole = true;
        let mut members = Vec::new();
        for (ordinal, row) in staying(rows) {
            whole &= self.may_leave(unit, rows, ordinal, row).is_ok();
            members.push((ordinal, row.incarnation, row.node, row.bound_time_ms));
        }
        whole &= members.len() <= N_VICTIMS_MAX;
        Known { members, min_member: min_member(rows), whole, n_gone: 0 }
    }

    /// Spares whoever can stay; `all_gone` is the node without any of them. Those of `forced` units leave in any case.
    fn spare(&self, items: &[Item], forced: &BTreeSet<UnitId>, all_gone: &Trial) -> Option<(Vec<Item>, u64)> {
        let shape = self.cluster.shapes().get(self.shape);
        let mut trial = all_gone.clone();
        let mut leaving = Vec::new();
        for item in items {
            let takes = self.cluster.shapes().get(item.shape);
            trial.shift(takes, item.mask, -1);
            if forced.contains(&item.unit) || trial.pick(shape).is_none() {
                trial.shift(takes, item.mask, 1);
                leaving.push(*item);
            }
        }
        leaving.sort_unstable_by_key(|item| (item.unit, item.ordinal));
        let mask = trial.pick(shape)?;
        Some((leaving, mask))
    }

    /// Those that leave a node, and of `forced` units everyone else.
    fn victims(&self, leaving: &[Item], forced: &BTreeSet<UnitId>) -> Vec<(UnitId, u32)> {
        let mut victims: Vec<(UnitId, u32)> = leaving.iter().map(|item| (item.unit, item.ordinal)).collect();
        for unit in forced {
            let members = self.units[unit].members.iter().map(|(ordinal, ..)| (*unit, *ordinal));
            victims.extend(members.filter(|member| !self.gone.contains(member)));
        }
        victims.sort_unstable();
        victims.dedup();
        victims
    }

    fn cost(&self, idx: usize, victims: &[(UnitId, u32)], n_gangs: usize) -> Cost {
        let mut cost = Cost {
            highest: None,
            rank_sum: 0,
            n_victims: victims.len(),
            n_gangs,
            lost_ms: 0,
            start_ms: Reverse(i64::MAX),
            idx,
        };
        for (unit, ordinal) in victims {
            let Some(rows) = self.cluster.rows(*unit) else { continue };
            let row = rows.row(*ordinal);
            let priority = rows.standing(row.group).map_or(0, |standing| standing.priority);
            cost.highest = cost.highest.max(Some(priority));
            cost.rank_sum += i64::from(priority) - i64::from(i32::MIN) + 1;
            let lost = self.seeker.now_ms.saturating_sub(row.bound_time_ms).max(0);
            cost.lost_ms = cost.lost_ms.saturating_add(lost);
            cost.start_ms = cost.start_ms.max(Reverse(row.bound_time_ms));
        }
        cost
    }

    /// Takes a choice; the nodes that it concerns, ascending.
    fn take(&mut self, idx: usize, choice: &Choice) -> BTreeSet<usize> {
        let mut concerned = BTreeSet::from([idx]);
        for victim in &choice.victims {
            self.gone.insert(*victim);
            if let Some(known) = self.units.get_mut(&victim.0) {
                known.n_gone += 1;
            }
        }
        for of_unit in choice.victims.chunk_by(|a, b| a.0 == b.0) {
            let members = self.units.get(&of_unit[0].0).into_iter().flat_map(|known| &known.members);
            concerned.extend(members.map(|(_, _, node, _)| node.idx()));
        }
        self.places.push((NodeId(u32::try_from(idx).unwrap_or(0)), choice.mask));
        concerned
    }

    /// A node as it is once everyone who leaves by this plan has left, and who comes is there.
    fn trial(&self, node: NodeId) -> Trial {
        let idx = node.idx();
        let mut trial = Trial {
            free: SmallVec::from_slice(self.cluster.room(self.shape).free(idx)),
            devices: self.cluster.devices(idx).clone(),
        };
        let shapes = self.cluster.shapes();
        if !self.gone.is_empty() {
            for one in self.cluster.occupants(node) {
                if self.gone.contains(&(one.unit, one.ordinal))
                    && let Some(rows) = self.cluster.rows(one.unit)
                {
                    trial.shift(shapes.get(one.shape), rows.row(one.ordinal).device_mask, 1);
                }
            }
        }
        for (_, mask) in self.places.iter().filter(|(other, _)| *other == node) {
            trial.shift(shapes.get(self.shape), *mask, -1);
        }
        trial
    }

    fn found(self) -> Found {
        let mut found = Found { n_loops: self.loops.len(), retry_ms: self.retry_ms, ..Found::default() };
        let mut gone: Vec<(UnitId, u32)> = self.gone.into_iter().collect();
        gone.sort_unstable();
        let nodes: FxHashSet<NodeId> = self.places.iter().map(|(node, _)| *node).collect();
        for (unit, ordinal) in gone {
            let Some(rows) = self.cluster.rows(unit) else { continue };
            let row = rows.row(ordinal);
            let member = Member { unit, ordinal, incarnation: row.incarnation };
            if nodes.contains(&row.node) {
                found.claims.entry(row.node).or_default().push(member);
            } else {
                found.others.push(member);
            }
        }
        found.places = self.places;
        found
    }
}

/// Items of one unit each; they stand in order of units.
fn by_unit(items: &[Item]) -> impl Iterator<Item = &[Item]> {
    items.chunk_by(|a, b| a.unit == b.unit)
}

/// Thousandths of an ask that a running unit gives back, of the resource of which it is the least.
fn parts(ask: &Shape, takes: &Shape, mask: u64) -> i64 {
    let of = |id: u8| takes.asks.iter().find(|(known, _)| *known == id).map_or(0, |(_, amount)| *amount);
    let asked = ask.asks.iter().filter(|(_, amount)| *amount > 0);
    let resources = asked.map(|(id, amount)| of(*id).saturating_mul(1000) / amount);
    let devices = ask.devices.as_ref().map(|wanted| {
        let given = i64::from(mask.count_ones()) * i64::from(takes.device_milli());
        given.saturating_mul(1000) / (i64::from(wanted.count) * i64::from(wanted.milli)).max(1)
    });
    resources.chain(devices).min().unwrap_or(0)
}

/// Free room of one node, to be tried out on.
#[derive(Clone, Debug)]
struct Trial {
    free: SmallVec<[i64; 8]>,
    devices: NodeDevices,
}

impl Trial {
    /// Gives back (`sign` 1) or takes (-1).
    fn shift(&mut self, shape: &Shape, mask: u64, sign: i64) {
        for (id, amount) in &shape.asks {
            let free = &mut self.free[usize::from(*id)];
            *free = free.saturating_add(amount.saturating_mul(sign));
        }
        if mask != 0 {
            self.devices.shift(mask, shape.device_milli(), if sign > 0 { -1 } else { 1 });
        }
    }

    fn pick(&self, shape: &Shape) -> Option<u64> {
        if !shape.fits(&self.free) {
            return None;
        }
        shape.devices.as_ref().map_or(Some(0), |ask| self.devices.pick(ask))
    }
}
