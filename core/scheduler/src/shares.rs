//! What queues use, for the rank of units and for what is lacking under their maxima: counted from rows, holds and own
//! decisions as long as some queue guarantees something, or others have to leave a full one, and not at all otherwise.
//!
//! Holds and rows say which queue pays, so units need not be followed. The binder counts the same, and has the last
//! word: it knows of what is under way from others.

use std::sync::Arc;

use godel_cluster::{Cluster, GroupDeltas, ShapeId};
use godel_domain::{
    decision::Decision,
    hold::{Hold, Member},
    ids::{HoldId, IdMap, IdSet, Revision, UnitId},
    queue_spec::QueueSpec,
    time::Millis,
};
use godel_placement::preempt::{Rights, paid};
use godel_queueing::{Amounts, AskId, Lack, Need, QueueIdx, QueueTree, Quota, Reliefs, at};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Scheduler, assigned_unit::AssignedUnit};

/// What a decision takes of its queue.
pub(super) type Needs = SmallVec<[Need; 1]>;

#[derive(Debug, Default)]
pub(super) struct Shares {
    quota: Quota,
    /// By shape.
    asks: Vec<Option<AskId>>,
    is_counted: bool,
    has_guarantees: bool,
    /// Somebody asked for room in a full queue, last then.
    full_at: Option<Millis>,
    /// Units with running units that count in a queue, and maybe some without any by now; while somebody asks for room in a
    /// full one.
    running: FxHashMap<QueueIdx, IdSet<UnitId>>,
    reliefs: Reliefs,
    holds: IdMap<HoldId, (QueueIdx, Need, Arc<Hold>)>,
    /// Decisions without an outcome, then those made since a revision that is not read yet.
    deciding: IdMap<u64, Flight>,
    decided: Vec<(Revision, Flight)>,
    /// The path asked for last.
    last: (String, QueueIdx),
}

/// What a decision changes.
#[derive(Debug)]
struct Flight {
    queue: QueueIdx,
    needs: Needs,
    victims: Vec<(QueueIdx, Need)>,
    /// What its victims give up for it, where a maximum is why they leave.
    lent: Vec<(QueueIdx, Amounts)>,
}

/// Nobody asked for room in a full queue for so long: what only that needs is forgotten, milliseconds.
const FULL_IDLE_MS: u64 = 60_000;

impl Shares {
    /// The queue of a unit.
    pub(super) fn queue(&mut self, path: &str) -> QueueIdx {
        if self.last.0 != path {
            self.last = (path.to_owned(), self.quota.queue(path));
        }
        self.last.1
    }

    /// The queues.
    pub(super) fn tree(&self) -> &QueueTree {
        self.quota.tree()
    }

    /// Neither a queue nor one above it has a maximum.
    pub(super) fn is_unlimited(&self, queue: QueueIdx) -> bool {
        let tree = self.quota.tree();
        let mut records = tree.upwards(queue).filter_map(|level| tree.record(level));
        records.all(|record| record.max.is_empty() && record.max_running_units == 0)
    }

    /// What keeps all of this from fitting under the maxima from a queue upwards, in words.
    pub(super) fn lacking(&self, queue: QueueIdx, needs: &[Need]) -> Option<String> {
        let limit = self.quota.usage().lacking(queue, needs)?;
        let (path, resource) = self.quota.limit(limit);
        Some(format!("no room in queue `{path}`: it is at its maximum of {resource}"))
    }

    /// The queue, where it matters which one a unit is of.
    pub(super) fn told_apart(&self, queue: QueueIdx) -> Option<QueueIdx> {
        self.has_guarantees.then_some(queue)
    }

    /// Some queue from this one upwards may be owed something.
    pub(super) fn may_claim(&self, queue: QueueIdx) -> bool {
        self.is_counted
            && self.quota.tree().upwards(queue).any(|level| !self.quota.tree().guaranteed(level).is_empty())
    }

    /// The queue of a hold, and what it takes of it; nothing while nobody guarantees anything.
    pub(super) fn pays_for(&self, hold: HoldId) -> (QueueIdx, Amounts) {
        match self.holds.get(&hold) {
            Some((queue, need, _)) => (*queue, self.quota.usage().sum(&[*need])),
            None => (QueueIdx::DEFAULT, Amounts::new()),
        }
    }

    pub(super) fn rights(&self, queue: QueueIdx, needs: &[Need]) -> Option<Rights<'_>> {
        if self.is_counted { Rights::new(&self.quota, queue, needs) } else { None }
    }

    /// So many running units of a shape; only while it counts.
    pub(super) fn need(&mut self, shape: ShapeId, n: usize, cluster: &Cluster) -> Need {
        if self.asks.len() <= shape.idx() {
            self.asks.resize(shape.idx() + 1, None);
        }
        let usage = self.quota.usage_mut();
        let ask = *self.asks[shape.idx()].get_or_insert_with(|| usage.intern(cluster.demand(shape)));
        Need { ask, n: u32::try_from(n).unwrap_or(u32::MAX) }
    }

    /// How many of `pending`, in order, are within some guarantee from the queue upwards beside what is placed, the
    /// most first: what is asked for together is judged together.
    pub(super) fn portions(&self, queue: QueueIdx, pending: &[Need]) -> Vec<usize> {
        let usage = self.quota.usage();
        let mut portions: Vec<usize> = Vec::new();
        for level in self.quota.tree().upwards(queue).filter(|_| self.is_counted) {
            let mut before = Amounts::new();
            let mut n_fit = 0;
            for need in pending {
                let ask = usage.sum(&[Need { n: 1, ..*need }]);
                let n = usage.fits_within(level, &before, &ask).min(need.n);
                before = (0..before.len().max(ask.len()))
                    .map(|idx| at(&before, idx) + at(&ask, idx) * i128::from(n))
                    .collect();
                n_fit += n as usize;
                if n < need.n {
                    break;
                }
            }
            portions.extend((n_fit > 0).then_some(n_fit));
        }
        portions.sort_unstable_by(|a, b| b.cmp(a));
        portions.dedup();
        portions
    }

    fn turn(&mut self, unit: UnitId, turns: &GroupDeltas, sign: i64, cluster: &Cluster) {
        self.reliefs.look_at(unit);
        let both = turns.iter().map(|turn| (turn, false)).chain(turns.leaving().map(|turn| (turn, true)));
        for ((group, n), is_leaving) in both {
            let Some((shape, queue)) = self.pays(unit, group, cluster) else { continue };
            let need = self.need(shape, 1, cluster);
            let need = Need { n: u32::try_from(n.unsigned_abs()).unwrap_or(u32::MAX), ..need };
            let usage = self.quota.usage_mut();
            match ((n * sign).signum(), is_leaving) {
                (0, _) => {}
                (sign, true) => usage.note_leaving(queue, need, sign),
                (1, false) => {
                    usage.add(queue, need);
                    if self.full_at.is_some() {
                        self.running.entry(queue).or_default().insert(unit);
                    }
                }
                (_, false) => usage.sub(queue, need),
            }
        }
    }

    /// What each running unit of a bound task group takes, and of which queue.
    fn pays(&mut self, unit: UnitId, group: u16, cluster: &Cluster) -> Option<(ShapeId, QueueIdx)> {
        let path = cluster.rows(unit)?.standing(group).and_then(|standing| standing.queue.as_deref());
        let queue = path.map_or(QueueIdx::DEFAULT, |path| self.queue(path));
        Some((cluster.group_shape(unit, group)?, queue))
    }

    fn fly(&mut self, flight: &Flight, sign: i64) {
        let usage = self.quota.usage_mut();
        for need in &flight.needs {
            if sign > 0 { usage.add(flight.queue, *need) } else { usage.sub(flight.queue, *need) }
        }
        for (queue, need) in &flight.victims {
            usage.note_promised(*queue, *need, sign);
        }
        for (level, amounts) in &flight.lent {
            usage.lend(*level, amounts, i128::from(sign));
        }
    }

    fn put_hold(&mut self, hold: &Arc<Hold>, cluster: &mut Cluster) {
        self.drop_hold(hold.id);
        let shape = cluster.shape(&hold.demand, hold.pool);
        let need = self.need(shape, hold.ordinals.len(), cluster);
        let queue = hold.queue.as_deref().map_or(QueueIdx::DEFAULT, |path| self.queue(path));
        self.quota.usage_mut().add(queue, need);
        self.reliefs.put(hold, queue);
        self.holds.insert(hold.id, (queue, need, Arc::clone(hold)));
    }

    fn drop_hold(&mut self, id: HoldId) {
        if let Some((queue, need, hold)) = self.holds.remove(&id) {
            self.quota.usage_mut().sub(queue, need);
            self.reliefs.remove(&hold);
        }
    }

    /// What is lacking under the maxima from a queue upwards for all of this; nothing may be counted late.
    pub(super) fn lacks(&mut self, queue: QueueIdx, needs: &[Need], cluster: &Cluster) -> Vec<Lack> {
        self.settle(cluster);
        let asked = self.quota.usage().sum(needs);
        self.quota.usage().lacks(queue, &asked)
    }

    fn settle(&mut self, cluster: &Cluster) {
        if self.reliefs.is_stale() {
            self.reliefs.settle(&mut self.quota, |quota, victim| pays_still(quota, victim, cluster));
        }
    }

    /// Units with running units in a queue or below it, in order.
    pub(super) fn running_below(&mut self, queue: QueueIdx, cluster: &Cluster) -> Vec<UnitId> {
        let mut units: Vec<UnitId> = Vec::new();
        let mut below = vec![queue];
        while let Some(level) = below.pop() {
            below.extend(self.quota.tree().paths_below(level));
            if let Some(running) = self.running.get_mut(&level) {
                running.retain(|unit| cluster.rows(*unit).is_some_and(|rows| rows.live().next().is_some()));
                units.extend(running.iter());
            }
        }
        units.sort_unstable();
        units.dedup();
        units
    }

    pub(super) fn quota(&self) -> &Quota {
        &self.quota
    }
}

/// The queue of a victim that is still there, and what it takes of it.
fn pays_still(quota: &Quota, victim: &Member, cluster: &Cluster) -> Option<(QueueIdx, Amounts)> {
    let row = cluster.remains(victim)?;
    Some(paid(quota, cluster.rows(victim.unit)?, row))
}

impl Scheduler {
    /// Queues are others now. True if that may change who outranks whom.
    fn follow_queues(&mut self) -> bool {
        let had_guarantees =
            std::mem::replace(&mut self.shares.has_guarantees, self.shares.quota.usage().has_guarantees());
        self.count_if_needed();
        had_guarantees || self.shares.has_guarantees
    }

    /// Begins to count when somebody needs it, and stops when nobody does.
    fn count_if_needed(&mut self) {
        let shares = &mut self.shares;
        let was_counted = shares.is_counted;
        shares.is_counted = shares.has_guarantees || shares.full_at.is_some();
        if shares.is_counted && !was_counted {
            self.count_all();
        } else if was_counted && !shares.is_counted {
            shares.quota.usage_mut().clear();
            (shares.holds, shares.deciding, shares.decided, shares.reliefs) = Default::default();
        }
    }

    /// Somebody asks for room in a full queue.
    pub(super) fn count_for_maxima(&mut self, now: Millis) {
        if let Some(at) = &mut self.shares.full_at {
            *at = now.max(*at);
            return;
        }
        self.shares.full_at = Some(now);
        for (unit, rows) in self.cluster.all_rows() {
            for (group, n) in GroupDeltas::of(rows).iter() {
                if n > 0
                    && let Some((_, queue)) = self.shares.pays(unit, group, &self.cluster)
                {
                    self.shares.running.entry(queue).or_default().insert(unit);
                }
            }
        }
        self.count_if_needed();
    }

    /// Nobody has asked for a while.
    pub(super) fn forget_maxima(&mut self, now: Millis) {
        if self.shares.full_at.take_if(|at| now.since(*at) >= FULL_IDLE_MS).is_some() {
            self.shares.running.clear();
            self.count_if_needed();
        }
    }

    /// When that is to be looked at.
    pub(super) fn maxima_end(&self) -> Option<Millis> {
        self.shares.full_at.map(|at| at.plus(FULL_IDLE_MS))
    }

    pub(super) fn put_queue(&mut self, record: &Arc<QueueSpec>) -> bool {
        self.shares.quota.put(Arc::clone(record));
        self.follow_queues()
    }

    pub(super) fn remove_queue(&mut self, path: &str) -> bool {
        self.shares.quota.remove(path);
        self.follow_queues()
    }

    /// A list follows: what is decided stays.
    pub(super) fn reset_shares(&mut self) {
        let shares = &mut self.shares;
        shares.quota.reset();
        (shares.is_counted, shares.has_guarantees, shares.full_at) = (false, false, None);
        (shares.holds, shares.reliefs, shares.running) = Default::default();
    }

    /// `O(units that were ever bound)`: once, when the first queue guarantees something.
    fn count_all(&mut self) {
        let Self { shares, cluster, .. } = self;
        for (unit, rows) in cluster.all_rows() {
            shares.turn(unit, &GroupDeltas::of(rows), 1, cluster);
        }
        let holds: Vec<_> = cluster.holds().into_iter().filter(|hold| hold.slot.is_none()).cloned().collect();
        holds.iter().for_each(|hold| shares.put_hold(hold, cluster));
        let deciding = std::mem::take(&mut shares.deciding);
        let decided = std::mem::take(&mut shares.decided);
        for flight in deciding.values().chain(decided.iter().map(|(_, flight)| flight)) {
            shares.fly(flight, 1);
        }
        (shares.deciding, shares.decided) = (deciding, decided);
    }

    /// What queues use now, counted for this once where it is not anyway. `O(units that were ever bound)` then.
    pub(super) fn shares_now(&mut self) -> Shares {
        let Self { shares, cluster, .. } = self;
        let mut now = Shares { quota: shares.quota.clone(), asks: shares.asks.clone(), ..Shares::default() };
        if shares.is_counted && !shares.reliefs.is_stale() {
            return now;
        }
        now.quota.usage_mut().clear();
        for (unit, rows) in cluster.all_rows() {
            now.turn(unit, &GroupDeltas::of(rows), 1, cluster);
        }
        let holds: Vec<_> = cluster.holds().into_iter().filter(|hold| hold.slot.is_none()).cloned().collect();
        holds.iter().for_each(|hold| now.put_hold(hold, cluster));
        now.settle(cluster);
        now
    }

    /// Rows of a unit began or ceased to take room.
    pub(super) fn count_turns(&mut self, unit: UnitId, turns: &GroupDeltas) {
        if self.shares.is_counted {
            self.shares.turn(unit, turns, 1, &self.cluster);
        }
    }

    /// All that a unit takes counts, or does no longer.
    pub(super) fn count_unit(&mut self, unit: UnitId, sign: i64) {
        if self.shares.is_counted
            && let Some(rows) = self.cluster.rows(unit)
        {
            self.shares.turn(unit, &GroupDeltas::of(rows), sign, &self.cluster);
        }
    }

    pub(super) fn count_hold(&mut self, hold: &Arc<Hold>) {
        if self.shares.is_counted && hold.slot.is_none() {
            self.shares.put_hold(hold, &mut self.cluster);
        }
    }

    pub(super) fn count_hold_out(&mut self, id: HoldId) {
        self.shares.drop_hold(id);
    }

    /// What so many running units of each task group take.
    pub(super) fn needs(
        &mut self,
        assigned: &AssignedUnit,
        counts: impl IntoIterator<Item = (u16, usize)>,
    ) -> Needs {
        let mut needs = Needs::new();
        for (group, n) in counts.into_iter().filter(|(_, n)| *n > 0) {
            let template = assigned.groups[usize::from(group)].template;
            let shape = self.placer.templates.get(template).ask.shape();
            needs.push(self.shares.need(shape, n, &self.cluster));
        }
        needs
    }

    /// A decision is made: what it takes counts, and whom it has leave does no longer.
    pub(super) fn count_decision(&mut self, assigned: &AssignedUnit, decision: &Decision) {
        if !self.shares.is_counted {
            return;
        }
        let counts = decision.groups.iter().map(|group| (group.group, group.ordinals.len()));
        let needs = self.needs(assigned, counts);
        let mut victims = Vec::new();
        for victim in decision.preemption.iter().flat_map(|preemption| preemption.victims()) {
            let Some(rows) = self.cluster.rows(victim.unit) else { continue };
            let group = rows.row(victim.ordinal).group;
            if let Some((shape, queue)) = self.shares.pays(victim.unit, group, &self.cluster) {
                victims.push((queue, self.shares.need(shape, 1, &self.cluster)));
            }
        }
        let mut lent = Vec::new();
        if assigned.at_maximum {
            let victims: Vec<Member> =
                decision.preemption.iter().flat_map(|preemption| preemption.victims()).copied().collect();
            let (quota, cluster) = (&self.shares.quota, &self.cluster);
            let asked = quota.usage().sum(&needs);
            let pays = |quota: &Quota, victim: &Member| pays_still(quota, victim, cluster);
            lent = godel_queueing::lent(quota, assigned.queue, &asked, &victims, pays);
        }
        let flight = Flight { queue: assigned.queue, needs, victims, lent };
        self.shares.fly(&flight, 1);
        self.shares.deciding.insert(decision.id, flight);
    }

    /// Its outcome is known: made at a revision, all of it or some, or not at all.
    pub(super) fn count_outcome(&mut self, id: u64, revision: Revision, is_whole: bool) {
        let Some(flight) = self.shares.deciding.remove(&id) else { return };
        if is_whole && revision > self.revision {
            self.shares.decided.push((revision, flight));
        } else {
            self.shares.fly(&flight, -1);
        }
    }

    /// The records show what was decided up to here.
    pub(super) fn end_flights(&mut self) {
        let read = self.revision;
        while let Some(at) = self.shares.decided.iter().position(|(revision, _)| *revision <= read) {
            let (_, flight) = self.shares.decided.swap_remove(at);
            self.shares.fly(&flight, -1);
        }
    }
}
