//! Who leaves and who comes, as far as a search has got.

use std::{cmp::Reverse, collections::BTreeSet};

use godel_base::ids::{IdMap, IdSet, NodeId, RunningUnitId, UnitId};
use godel_cluster::{Cluster, ShapeId};
use godel_domain::{
    allocation::Allocation,
    running_units::{RunningUnit, RunningUnits},
};
use godel_framework::{
    plugins::victims::whole_gang::{is_staying, min_member, staying},
    point::{CountedVictim, Rank, Seeker, Spared, VictimInput, WholeUnit},
    registry::{CandidateSort, PlaceCost, may_leave, may_leave_whole},
};
use godel_queueing::{QueueIdx, Quota};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{Cost, Found, Lent, N_VICTIMS_MAX, NodeTrial, QueueTally, Rights, SoFar, VictimQuery};

mod budgets;
mod candidates;
mod known;
mod queues;
mod relief;

pub(super) use self::queues::claimed_tally;
pub use self::queues::paid;
use self::{
    budgets::BudgetSpending,
    candidates::{VictimCandidate, by_unit, parts},
    known::{Known, NOBODY, UnitMembers, known_groups, unclaimed},
};

/// The best for one more replica on a node.
#[derive(Clone, Debug)]
pub(super) struct NodeChoice {
    pub(super) cost: Cost,
    /// Wherever they are.
    pub(super) victims: Vec<(UnitId, u32)>,
    pub(super) allocation: Allocation,
    /// Places that were taken by then.
    n_places: usize,
}

pub(super) struct VictimPlan<'a> {
    cluster: &'a Cluster,
    seeker: Seeker,
    sort: CandidateSort,
    /// Units that the seeker was preempted for.
    preemptors: &'a [UnitId],
    claimed: &'a FxHashSet<(UnitId, u32)>,
    /// What the decision has already that the search is for.
    so_far: &'a SoFar,
    rights: Option<&'a Rights<'a>>,
    /// Holds that may be taken over.
    lent: &'a Lent,
    /// What leaves of queues, for decisions under way and by this plan.
    tally: QueueTally,
    /// Some queue borrows no more since ranks were looked at.
    is_turned: bool,
    shape: ShapeId,
    units: IdMap<UnitId, Known>,
    /// No node has more running units.
    n_most: usize,
    /// Where somebody leaves for a decision under way, and how many that stay otherwise of each unit do.
    claimed_on: FxHashSet<NodeId>,
    n_claimed: IdMap<UnitId, usize>,
    /// Who leaves by this plan, or for the decision already so that others may have the room.
    gone: FxHashSet<(UnitId, u32)>,
    /// Where they are.
    gone_from: FxHashSet<NodeId>,
    places: Vec<(NodeId, Allocation)>,
    /// The same by node, with those that rest on who leaves already.
    placed: FxHashMap<NodeId, SmallVec<[Allocation; 2]>>,
    loops: IdSet<UnitId>,
    /// Somebody was spared who is the master of an application.
    is_master_spared: bool,
    retry_ms: Option<i64>,
    budgets: BudgetSpending<'a>,
    /// Only running units below this queue may leave.
    below: Option<(&'a Quota, QueueIdx)>,
}

impl<'a> VictimPlan<'a> {
    pub(super) fn new(cluster: &'a Cluster, query: &VictimQuery<'a>) -> Self {
        let VictimQuery { seeker, shape, rights, claimed, so_far, lent } = *query;
        let (mut claimed_on, mut n_claimed) = (FxHashSet::default(), IdMap::default());
        for (unit, ordinal) in claimed {
            let Some(rows) = cluster.rows().of(*unit) else { continue };
            let row = rows.row(*ordinal);
            claimed_on.insert(row.node);
            if is_staying(&row) {
                *n_claimed.entry(*unit).or_default() += 1;
            }
        }
        let tally = lent.tally.clone().unwrap_or_else(|| claimed_tally(cluster, claimed, rights));
        Self {
            cluster,
            seeker: *seeker,
            sort: CandidateSort::default(),
            preemptors: cluster.rows().of(seeker.unit).map_or(&[], RunningUnits::preemptors),
            claimed,
            so_far,
            rights,
            lent,
            tally,
            is_turned: false,
            shape,
            units: IdMap::default(),
            n_most: 0,
            claimed_on,
            n_claimed,
            gone: so_far.leaving.keys().copied().collect(),
            gone_from: so_far.leaving.values().copied().collect(),
            places: Vec::new(),
            placed: so_far.placed.clone(),
            loops: IdSet::default(),
            is_master_spared: false,
            retry_ms: None,
            budgets: BudgetSpending::new(cluster),
            below: None,
        }
    }

    /// Places are compared in this order from now on.
    pub(super) fn sort_by(&mut self, sort: CandidateSort) {
        self.sort = sort;
    }

    /// Whether masters of applications stay from now on. Says what held so far.
    pub(super) fn spare_masters(&mut self, spares: bool) -> bool {
        if self.seeker.spares_masters != spares {
            // Who may leave whole is looked at again.
            self.units.values_mut().for_each(|known| known.members = None);
        }
        std::mem::replace(&mut self.seeker.spares_masters, spares)
    }

    /// Whether somebody was spared who is the master of an application.
    pub(super) fn is_master_spared(&self) -> bool {
        self.is_master_spared
    }

    pub(super) fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    pub(super) fn n_places(&self) -> usize {
        self.places.len()
    }

    /// Budgets allow these beside what leaves already.
    pub(super) fn affords(&self, victims: &[(UnitId, u32)]) -> bool {
        self.budgets.affords(victims)
    }

    /// Running units that leave.
    pub(super) fn n_gone(&self) -> usize {
        self.gone.len()
    }

    /// The fewest victims on a node for one more replica.
    pub(super) fn choose(&mut self, idx: usize) -> Option<NodeChoice> {
        let node = NodeId(u32::try_from(idx).ok()?);
        let shape = self.cluster.catalogue().shape(self.shape);
        if self.cluster.held().is_shrunk_of(shape, idx) {
            return None;
        }
        let trial = self.trial(node);
        if let Some(allocation) = trial.pick(shape) {
            return Some(self.choice(self.cost(idx, &[], &BTreeSet::new()), Vec::new(), allocation));
        }
        let mut items = self.items(node);
        loop {
            let (leaving, forced, allocation) = self.least(&items, trial.clone())?;
            let (unit, ordinal) = match self.overdrawn(&leaving, &forced) {
                Some(overdrawn) => overdrawn,
                None => {
                    let victims = self.victims(&leaving, &forced);
                    let Some(spared) = self.budgets.first_spared(&items, &victims, &forced) else {
                        return Some(self.choice(self.cost(idx, &victims, &forced), victims, allocation));
                    };
                    spared
                }
            };
            items.retain(|item| item.unit != unit || ordinal.is_some_and(|ordinal| ordinal != item.ordinal));
        }
    }

    fn choice(&self, cost: Cost, victims: Vec<(UnitId, u32)>, allocation: Allocation) -> NodeChoice {
        NodeChoice { cost, victims, allocation, n_places: self.places.len() }
    }

    /// Whether it is to be looked at again, since others were taken: of several that leave together the last may have to
    /// stay then, though its queue borrows still. It can only have become dearer.
    pub(super) fn is_stale(&self, choice: &NodeChoice) -> bool {
        self.rights.is_some() && choice.victims.len() > 1 && choice.n_places < self.places.len()
    }

    /// The victims among `items`, the units that go whole, and what is free for the replica then.
    fn least(
        &self,
        items: &[VictimCandidate],
        mut all_gone: NodeTrial,
    ) -> Option<(Vec<VictimCandidate>, BTreeSet<UnitId>, Allocation)> {
        for item in items {
            all_gone.shift(self.cluster.catalogue().shape(item.shape), item.allocation, 1);
        }
        all_gone.pick(self.cluster.catalogue().shape(self.shape))?;
        let mut forced: BTreeSet<UnitId> = BTreeSet::new();
        loop {
            let (leaving, allocation) = self.spare(items, &forced, &all_gone)?;
            let mut broken = Vec::new();
            for of_unit in by_unit(&leaving) {
                let known = &self.units[&of_unit[0].unit];
                let breaks = known.is_broken_by(of_unit.iter().map(|item| item.group));
                if breaks && !forced.contains(&of_unit[0].unit) {
                    broken.push(of_unit[0].unit);
                }
            }
            if broken.is_empty() {
                return Some((leaving, forced, allocation));
            }
            forced.extend(broken);
        }
    }

    /// The least that a node can cost, without asking anything of those on it: the first look. `None` if too little of
    /// it would be free without everyone who might be of lower rank.
    pub(super) fn glance(&mut self, idx: usize) -> Option<Cost> {
        let node = NodeId(u32::try_from(idx).ok()?);
        let shape = self.cluster.catalogue().shape(self.shape);
        if self.cluster.held().is_shrunk_of(shape, idx) {
            return None;
        }
        let mut free: SmallVec<[i64; 8]> =
            SmallVec::from_slice(self.cluster.free().room(self.shape).free(idx));
        let (has_gone, has_claimed) = (self.gone_from.contains(&node), self.claimed_on.contains(&node));
        let is_as_it_is =
            !has_gone && !has_claimed && !self.placed.contains_key(&node) && !self.lent.has(node);
        let has_room = if is_as_it_is {
            let devices = || {
                !shape.is_placed && shape.devices.is_empty()
                    || self.cluster.free().hardware(idx).pick(shape).is_some()
            };
            shape.fits(&free) && devices()
        } else {
            let trial = self.trial(node);
            let picked = trial.pick(shape);
            free = trial.free;
            picked.is_some()
        };
        if has_room {
            return Some(self.priced(PlaceCost::NOBODY, idx));
        }
        let is_guaranteed = self.rights.is_some_and(Rights::is_guaranteed);
        let occupants = self.cluster.taken().occupants.on(node);
        self.n_most = self.n_most.max(occupants.len());
        // The lowest priority, and since when those have run.
        let (mut lowest, mut ran_ms, mut bound_time_ms) = (None, i64::MAX, i64::MIN);
        for one in occupants {
            let Some(priority) = one.priority.filter(|_| one.pool == self.seeker.pool) else { continue };
            let may_be_lower = priority < self.seeker.priority || is_guaranteed;
            let leaves = |of: &FxHashSet<_>| of.contains(&(one.unit, one.ordinal));
            if !may_be_lower || has_gone && leaves(&self.gone) || has_claimed && leaves(self.claimed) {
                continue;
            }
            if one.is_master && self.seeker.spares_masters {
                self.is_master_spared = true;
                continue;
            }
            lowest = Some(lowest.map_or(priority, |lowest: i32| lowest.min(priority)));
            ran_ms = ran_ms.min(self.ran_ms(one.since_ms));
            bound_time_ms = bound_time_ms.max(one.since_ms);
            for (id, amount) in &self.cluster.catalogue().shape(one.shape).asks {
                let free = &mut free[usize::from(*id)];
                *free = free.saturating_add(*amount);
            }
        }
        let rank = Rank { guaranteed: false, priority: lowest.filter(|_| shape.fits(&free))? };
        let least = CountedVictim { rank, bound_time_ms, ran_ms, ends_gang: false, is_master: false };
        Some(self.priced(PlaceCost::NOBODY.with(&least), idx))
    }

    fn priced(&self, cost: PlaceCost, idx: usize) -> Cost {
        Cost { key: self.sort.key(cost), idx }
    }

    fn ran_ms(&self, since_ms: i64) -> i64 {
        self.seeker.now_ms.saturating_sub(since_ms).max(0)
    }

    /// Candidates of a node in the order in which they are spared.
    fn items(&mut self, node: NodeId) -> Vec<VictimCandidate> {
        let ask = self.cluster.catalogue().shape(self.shape);
        let devices = self.cluster.free().devices(node.idx());
        let mut items: Vec<VictimCandidate> = Vec::new();
        for one in self.cluster.taken().occupants.on(node) {
            let (Some(priority), Some(rows)) = (one.priority, self.cluster.rows().of(one.unit)) else {
                continue;
            };
            let row = rows.row(one.ordinal);
            if !self.is_candidate(one.unit, one.ordinal, rows, &row) {
                continue;
            }
            items.push(VictimCandidate {
                unit: one.unit,
                ordinal: one.ordinal,
                group: row.group,
                rank: Rank { guaranteed: self.sides(rows, &row).other, priority },
                is_master: one.is_master,
                shape: one.shape,
                allocation: row.allocation,
                since: row.bound_time_ms,
                breaks: false,
                parts: parts(ask, self.cluster.catalogue().shape(one.shape), devices, row.allocation.devices),
            });
        }
        self.in_order(items)
    }

    /// Whether a running unit may leave; if so, what matters of its unit is known from now on.
    fn is_candidate(&mut self, unit: UnitId, ordinal: u32, rows: &RunningUnits, row: &RunningUnit) -> bool {
        let key = (unit, ordinal);
        let leaves = self.gone.contains(&key) || self.claimed.contains(&key);
        if leaves || self.below.is_some_and(|(quota, queue)| !relief::is_below(quota, queue, rows, row)) {
            return false;
        }
        let candidate =
            VictimInput { spent: Some(self.budgets.spent()), ..self.victim(unit, rows, ordinal, row) };
        match may_leave(&candidate) {
            Ok(()) => {}
            Err(Spared::Loop) => {
                self.loops.insert(unit);
                return false;
            }
            Err(Spared::Until(free_at)) => {
                self.retry_ms = Some(self.retry_ms.map_or(free_at, |other| other.min(free_at)));
                return false;
            }
            Err(Spared::Budget) => {
                self.budgets.note_spared();
                return false;
            }
            Err(Spared::Last) => {
                self.is_master_spared = true;
                return false;
            }
            Err(Spared::Refused(_)) => return false,
        }
        let n_claimed = self.n_claimed.get(&unit).copied().unwrap_or_default();
        let claimed = self.claimed;
        self.units.entry(unit).or_insert_with(|| Known {
            n_members: staying(rows).count().saturating_sub(n_claimed),
            min_member: min_member(rows),
            groups: known_groups(unit, rows, claimed),
            members: None,
            n_gone: 0,
        });
        true
    }

    /// Candidates in the order in which they are spared.
    fn in_order(&mut self, mut items: Vec<VictimCandidate>) -> Vec<VictimCandidate> {
        // Of each unit those go first that have run shortest, and its master last; beyond what it can spare it breaks.
        items.sort_unstable_by_key(|item| (item.unit, item.is_master, Reverse(item.since), item.ordinal));
        let mut kept: Vec<VictimCandidate> = Vec::with_capacity(items.len());
        for of_unit in items.chunk_by(|a, b| a.unit == b.unit) {
            let mut spare = self.units[&of_unit[0].unit].spare();
            let breaks: SmallVec<[bool; 8]> = of_unit.iter().map(|item| !spare.take(item.group)).collect();
            let may_go_whole = breaks.contains(&true) && self.members(of_unit[0].unit).may_leave;
            for (item, breaks) in of_unit.iter().zip(breaks) {
                if !breaks || may_go_whole {
                    kept.push(VictimCandidate { breaks, ..*item });
                }
            }
        }
        kept.sort_unstable_by_key(|item| {
            let of_rank = (Reverse(item.rank), !item.breaks, item.parts);
            (!item.is_master, of_rank, item.since, item.unit, item.ordinal)
        });
        kept
    }

    /// A possible victim, as the rules see it.
    fn victim<'v>(
        &'v self,
        unit: UnitId,
        rows: &'v RunningUnits,
        ordinal: u32,
        row: &'v RunningUnit,
    ) -> VictimInput<'v> {
        let sides = self.sides(rows, row);
        VictimInput::new(self.cluster, &self.seeker, self.preemptors, unit, rows, ordinal, row, sides)
    }

    /// All of a unit with candidates.
    fn members(&mut self, unit: UnitId) -> &UnitMembers {
        if self.units.get(&unit).is_none_or(|known| known.members.is_none()) {
            let (members, is_master_spared) = self.list_members(unit);
            self.is_master_spared |= is_master_spared;
            if let Some(known) = self.units.get_mut(&unit) {
                known.members = Some(members);
            }
        }
        self.units.get(&unit).and_then(|known| known.members.as_ref()).unwrap_or(&NOBODY)
    }

    /// Who is of a unit, and whether its master keeps it from leaving whole.
    fn list_members(&self, unit: UnitId) -> (UnitMembers, bool) {
        let (mut all, mut n_spared, mut is_master_spared) = (Vec::new(), 0, false);
        if let Some(rows) = self.cluster.rows().of(unit) {
            for (ordinal, row) in unclaimed(unit, rows, self.claimed) {
                if let Err(spared) = may_leave(&self.victim(unit, rows, ordinal, row)) {
                    n_spared += 1;
                    is_master_spared |= spared == Spared::Last;
                }
                all.push((ordinal, row.node));
            }
        }
        let may_leave = may_leave_whole(&WholeUnit { n_spared }) && all.len() <= N_VICTIMS_MAX;
        (UnitMembers { all, may_leave }, is_master_spared)
    }

    /// Spares those that can stay; `all_gone` is the node without any of them. Those of `forced` units leave in any case.
    fn spare(
        &self,
        items: &[VictimCandidate],
        forced: &BTreeSet<UnitId>,
        all_gone: &NodeTrial,
    ) -> Option<(Vec<VictimCandidate>, Allocation)> {
        let shape = self.cluster.catalogue().shape(self.shape);
        let mut trial = all_gone.clone();
        let mut leaving = Vec::new();
        for item in items {
            let takes = self.cluster.catalogue().shape(item.shape);
            trial.shift(takes, item.allocation, -1);
            if forced.contains(&item.unit) || trial.pick(shape).is_none() {
                trial.shift(takes, item.allocation, 1);
                leaving.push(*item);
            }
        }
        leaving.sort_unstable_by_key(|item| (item.unit, item.ordinal));
        Some((leaving, trial.pick(shape)?))
    }

    /// Those that leave a node, and of `forced` units everyone else.
    fn victims(&mut self, leaving: &[VictimCandidate], forced: &BTreeSet<UnitId>) -> Vec<(UnitId, u32)> {
        let mut victims: Vec<(UnitId, u32)> = leaving.iter().map(|item| (item.unit, item.ordinal)).collect();
        for unit in forced {
            let members: Vec<u32> = self.members(*unit).all.iter().map(|(ordinal, _)| *ordinal).collect();
            let members = members.into_iter().map(|ordinal| (*unit, ordinal));
            victims.extend(members.filter(|member| !self.gone.contains(member)));
        }
        victims.sort_unstable();
        victims.dedup();
        victims
    }

    /// What a node costs with some victims, in order, the units of `forced` being evicted whole.
    fn cost(&self, idx: usize, victims: &[(UnitId, u32)], forced: &BTreeSet<UnitId>) -> Cost {
        let mut cost = PlaceCost::NOBODY;
        let mut last = None;
        for (unit, ordinal) in victims {
            let Some(rows) = self.cluster.rows().of(*unit) else { continue };
            let row = rows.row(*ordinal);
            let standing = rows.standing(row.group);
            let priority = standing.map_or(0, |standing| standing.priority);
            cost = cost.with(&CountedVictim {
                rank: Rank { guaranteed: self.sides(rows, &row).other, priority },
                bound_time_ms: row.bound_time_ms,
                ran_ms: self.ran_ms(row.bound_time_ms),
                ends_gang: last != Some(*unit) && forced.contains(unit),
                is_master: standing.is_some_and(|standing| standing.is_master(*ordinal)),
            });
            last = Some(*unit);
        }
        self.priced(cost, idx)
    }

    /// Takes a choice; the nodes that it concerns, ascending.
    pub(super) fn take(&mut self, idx: usize, choice: &NodeChoice) -> BTreeSet<usize> {
        let mut concerned = BTreeSet::from([idx]);
        self.evict_victims(&choice.victims);
        for of_unit in choice.victims.chunk_by(|a, b| a.0 == b.0) {
            // Elsewhere it matters once some of it may be all that it can spare.
            let unit = of_unit[0].0;
            if self.units.get(&unit).is_none_or(|known| known.least_spare() < self.n_most) {
                concerned.extend(self.members(unit).all.iter().map(|(_, node)| node.idx()));
            }
        }
        let node = NodeId(u32::try_from(idx).unwrap_or(0));
        self.places.push((node, choice.allocation));
        self.placed.entry(node).or_default().push(choice.allocation);
        concerned
    }

    /// These leave.
    fn evict_victims(&mut self, victims: &[(UnitId, u32)]) {
        for victim in victims {
            self.gone.insert(*victim);
            let row = self.cluster.rows().of(victim.0).map(|rows| rows.row(victim.1)).unwrap_or_default();
            self.gone_from.extend(self.cluster.rows().of(victim.0).map(|_| row.node));
            if let Some(known) = self.units.get_mut(&victim.0) {
                known.note_gone(row.group);
            }
        }
        self.budgets.spend(victims);
        self.tally(victims);
    }

    /// A node as it is. What decisions under way take there is covered by those who leave for them; what these give
    /// back beyond that is nobody's before they have left.
    fn now(&self, node: NodeId) -> NodeTrial {
        let idx = node.idx();
        let mut trial = NodeTrial::new(self.cluster, self.shape, idx);
        if !self.claimed_on.contains(&node) {
            return trial;
        }
        // Places of the decision itself rest on those who leave for it: both come with what is taken by this plan.
        for given in self.so_far.placed.get(&node).into_iter().flatten() {
            trial.shift(self.cluster.catalogue().shape(self.shape), *given, 1);
        }
        let before = trial.clone();
        let is_others = |unit: UnitId, ordinal: u32| {
            self.claimed.contains(&(unit, ordinal)) && !self.so_far.has(unit, ordinal)
        };
        for one in self.cluster.taken().occupants.on(node) {
            if is_others(one.unit, one.ordinal)
                && let Some(rows) = self.cluster.rows().of(one.unit)
            {
                trial.shift(self.cluster.catalogue().shape(one.shape), rows.row(one.ordinal).allocation, 1);
            }
        }
        trial.cap(&before);
        trial
    }

    /// A node as it is once everyone who leaves by this plan has left, and who comes is there.
    fn trial(&self, node: NodeId) -> NodeTrial {
        let mut trial = self.now(node);
        let shapes = self.cluster.catalogue().shapes();
        self.lent.give(self.cluster, node, &mut trial);
        if self.gone_from.contains(&node) {
            for one in self.cluster.taken().occupants.on(node) {
                if self.gone.contains(&(one.unit, one.ordinal))
                    && let Some(rows) = self.cluster.rows().of(one.unit)
                {
                    trial.shift(shapes.get(one.shape), rows.row(one.ordinal).allocation, 1);
                }
            }
        }
        for given in self.placed.get(&node).into_iter().flatten() {
            trial.shift(shapes.get(self.shape), *given, -1);
        }
        trial
    }

    pub(super) fn found(self) -> Found {
        let mut found = Found {
            n_loops: self.loops.len(),
            retry_ms: self.retry_ms,
            is_kept: self.budgets.is_limiting(),
            is_master_spared: self.is_master_spared,
            ..Found::default()
        };
        let shape = self.cluster.catalogue().shape(self.shape);
        let nodes: BTreeSet<NodeId> = self.places.iter().map(|(node, _)| *node).collect();
        for node in nodes.iter().filter(|node| self.lent.has(**node)) {
            let needed = self.lent.needed(self.cluster, *node, shape, self.trial(*node));
            if !needed.is_empty() {
                found.taken.insert(*node, needed);
            }
        }
        let mut gone: Vec<(UnitId, u32)> = self.gone.into_iter().collect();
        gone.sort_unstable();
        for (unit, ordinal) in gone {
            let Some(rows) = self.cluster.rows().of(unit) else { continue };
            let row = rows.row(ordinal);
            let member = RunningUnitId::new(unit, ordinal, row.incarnation);
            if self.so_far.has(unit, ordinal) {
                found.freed.extend(nodes.contains(&row.node).then_some(member));
            } else if self.placed.contains_key(&row.node) {
                found.claims.entry(row.node).or_default().push(member);
            } else {
                found.others.push(member);
            }
        }
        found.places = self.places;
        found
    }
}
