//! What queues use, for the rank of units and for what is lacking under their maxima: counted from rows, holds and own
//! decisions as long as some queue guarantees something, or others have to leave a full one, and not at all otherwise.
//!
//! Holds and rows say which queue pays, so units need not be followed. The binder counts the same, and has the last
//! word: it knows of what is under way from others.

use std::sync::Arc;

use godel_base::{
    ids::{HoldId, IdMap, IdSet, RunningUnitId, UnitId},
    time::Millis,
};
use godel_cluster::{Cluster, GroupDeltas, ShapeId};
use godel_domain::{
    decision::Decision,
    hold::{Hold, MoverShare},
    queue_spec::QueueSpec,
};
use godel_placement::{
    place::templates::Templates,
    preempt::{Rights, paid},
};
use godel_queueing::{Amounts, AskId, Lack, Need, QueueIdx, QueueTree, Quota, Reliefs, at};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::assigned_unit::AssignedUnit;

/// What a unit or a decision takes of its queue.
pub(super) type QueueNeeds = SmallVec<[Need; 1]>;

/// What queues use.
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
    /// What holds for replicas that move count for: those without a running unit, and those of which the old incarnation leaves.
    movers: IdMap<HoldId, (QueueIdx, Need, MoverShare)>,
    /// What decisions change whose effect is not in the records that were read, by their ids.
    decisions: IdMap<u64, DecisionUsage>,
    /// The path asked for last.
    last: (String, QueueIdx),
}

/// What a decision changes.
#[derive(Debug)]
struct DecisionUsage {
    queue: QueueIdx,
    needs: QueueNeeds,
    victims: Vec<(QueueIdx, Need)>,
    /// What its victims give up for it, where a maximum is why they leave.
    lent: Vec<(QueueIdx, Amounts)>,
}

/// What only those need who ask for room in full queues is forgotten after this time without one, milliseconds.
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

    /// What `n` running units of a shape take.
    pub(super) fn need(&mut self, shape: ShapeId, n: usize, cluster: &Cluster) -> Need {
        if self.asks.len() <= shape.idx() {
            self.asks.resize(shape.idx() + 1, None);
        }
        let usage = self.quota.usage_mut();
        let ask =
            *self.asks[shape.idx()].get_or_insert_with(|| usage.intern(cluster.catalogue().demand(shape)));
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
                let n = usage.guarantees().fits_within(level, &before, &ask).min(need.n);
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

    fn add_deltas(&mut self, unit: UnitId, deltas: &GroupDeltas, sign: i64, cluster: &Cluster) {
        self.reliefs.look_at(unit);
        let both =
            deltas.iter().map(|delta| (delta, false)).chain(deltas.leaving().map(|delta| (delta, true)));
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
        let path = cluster.rows().of(unit)?.standing(group).and_then(|standing| standing.queue.as_deref());
        let queue = path.map_or(QueueIdx::DEFAULT, |path| self.queue(path));
        Some((cluster.rows().group_shape(unit, group)?, queue))
    }

    fn add_decision(&mut self, decision: &DecisionUsage, sign: i64) {
        let usage = self.quota.usage_mut();
        for need in &decision.needs {
            if sign > 0 { usage.add(decision.queue, *need) } else { usage.sub(decision.queue, *need) }
        }
        for (queue, need) in &decision.victims {
            usage.note_promised(*queue, *need, sign);
        }
        for (level, amounts) in &decision.lent {
            usage.sums_mut().lend(*level, amounts, i128::from(sign));
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

    /// A hold counts no longer.
    pub(super) fn drop_hold(&mut self, id: HoldId) {
        if let Some((queue, need, hold)) = self.holds.remove(&id) {
            self.quota.usage_mut().sub(queue, need);
            self.reliefs.remove(&hold);
        }
        if let Some((queue, need, share)) = self.movers.remove(&id) {
            self.shift_mover(queue, need, share, -1);
        }
    }

    /// What is lacking under the maxima from a queue upwards for all of this; nothing may be counted late.
    pub(super) fn lacks(&mut self, queue: QueueIdx, needs: &[Need], cluster: &Cluster) -> Vec<Lack> {
        self.settle_reliefs(cluster);
        let asked = self.quota.usage().sum(needs);
        self.quota.usage().sums().lacks(queue, &asked)
    }

    fn settle_reliefs(&mut self, cluster: &Cluster) {
        if self.reliefs.is_stale() {
            self.reliefs.recount(&mut self.quota, |quota, victim| pays_still(quota, victim, cluster));
        }
    }

    /// Units with running units in a queue or below it, in order.
    pub(super) fn running_below(&mut self, queue: QueueIdx, cluster: &Cluster) -> Vec<UnitId> {
        let mut units: Vec<UnitId> = Vec::new();
        let mut below = vec![queue];
        while let Some(level) = below.pop() {
            below.extend(self.quota.tree().paths_below(level));
            if let Some(running) = self.running.get_mut(&level) {
                running
                    .retain(|unit| cluster.rows().of(*unit).is_some_and(|rows| rows.live().next().is_some()));
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
    /// Follows queues that have changed. True if that may change who outranks whom.
    fn follow_queues(&mut self, cluster: &mut Cluster) -> bool {
        let had_guarantees =
            std::mem::replace(&mut self.has_guarantees, self.quota.usage().guarantees().is_any());
        self.count_if_needed(cluster);
        had_guarantees || self.has_guarantees
    }

    /// Begins to count when somebody needs it, and stops when nobody does.
    fn count_if_needed(&mut self, cluster: &mut Cluster) {
        let was_counted = self.is_counted;
        self.is_counted = self.has_guarantees || self.full_at.is_some();
        if self.is_counted && !was_counted {
            self.count_all(cluster);
        } else if was_counted && !self.is_counted {
            self.quota.usage_mut().clear();
            (self.holds, self.movers, self.decisions, self.reliefs) = Default::default();
        }
    }

    /// Somebody asks for room in a full queue.
    pub(super) fn count_for_maxima(&mut self, cluster: &mut Cluster, now: Millis) {
        if let Some(at) = &mut self.full_at {
            *at = now.max(*at);
            return;
        }
        self.full_at = Some(now);
        for (unit, rows) in cluster.rows().all() {
            for (group, n) in GroupDeltas::of(rows).iter() {
                if n > 0
                    && let Some((_, queue)) = self.pays(unit, group, cluster)
                {
                    self.running.entry(queue).or_default().insert(unit);
                }
            }
        }
        self.count_if_needed(cluster);
    }

    /// Forgets what only those need who ask for room in full queues, once nobody has asked for a while.
    pub(super) fn forget_maxima(&mut self, cluster: &mut Cluster, now: Millis) {
        if self.full_at.take_if(|at| now.since(*at) >= FULL_IDLE_MS).is_some() {
            self.running.clear();
            self.count_if_needed(cluster);
        }
    }

    /// When [`Self::forget_maxima`] has something to do.
    pub(super) fn maxima_end(&self) -> Option<Millis> {
        self.full_at.map(|at| at.plus(FULL_IDLE_MS))
    }

    /// A queue's record. True if it may change who outranks whom.
    pub(super) fn put_queue(&mut self, record: &Arc<QueueSpec>, cluster: &mut Cluster) -> bool {
        self.quota.put(Arc::clone(record));
        self.follow_queues(cluster)
    }

    /// A queue's record is gone. True if that may change who outranks whom.
    pub(super) fn remove_queue(&mut self, path: &str, cluster: &mut Cluster) -> bool {
        self.quota.remove(path);
        self.follow_queues(cluster)
    }

    /// A list follows: what is decided stays.
    pub(super) fn reset(&mut self) {
        self.quota.reset();
        (self.is_counted, self.has_guarantees, self.full_at) = (false, false, None);
        (self.holds, self.movers, self.reliefs, self.running) = Default::default();
    }

    /// `O(units that were ever bound)`: once, when the first queue guarantees something.
    fn count_all(&mut self, cluster: &mut Cluster) {
        for (unit, rows) in cluster.rows().all() {
            self.add_deltas(unit, &GroupDeltas::of(rows), 1, cluster);
        }
        self.put_holds(cluster);
        let decisions = std::mem::take(&mut self.decisions);
        decisions.values().for_each(|decision| self.add_decision(decision, 1));
        self.decisions = decisions;
    }

    /// What queues use now, counted for this once where it is not anyway. `O(units that were ever bound)` then.
    pub(super) fn counted_now(&self, cluster: &mut Cluster) -> Self {
        let mut now = Self { quota: self.quota.clone(), asks: self.asks.clone(), ..Self::default() };
        if self.is_counted && !self.reliefs.is_stale() {
            return now;
        }
        now.quota.usage_mut().clear();
        for (unit, rows) in cluster.rows().all() {
            now.add_deltas(unit, &GroupDeltas::of(rows), 1, cluster);
        }
        now.put_holds(cluster);
        now.settle_reliefs(cluster);
        now
    }

    /// Rows of a unit began or ceased to take room.
    pub(super) fn count_deltas(&mut self, unit: UnitId, deltas: &GroupDeltas, cluster: &Cluster) {
        if self.is_counted {
            self.add_deltas(unit, deltas, 1, cluster);
            self.settle_movers(unit, cluster);
        }
    }

    /// All that a unit takes counts, or does no longer.
    pub(super) fn count_unit(&mut self, unit: UnitId, sign: i64, cluster: &Cluster) {
        if self.is_counted
            && let Some(rows) = cluster.rows().of(unit)
        {
            self.add_deltas(unit, &GroupDeltas::of(rows), sign, cluster);
        }
        self.settle_movers(unit, cluster);
    }

    /// A hold counts, unless it is a reservation's slot; of a replica that moves as long as it is between its nodes.
    pub(super) fn count_hold(&mut self, hold: &Arc<Hold>, cluster: &mut Cluster) {
        if self.is_counted {
            self.put_any(hold, cluster);
        }
    }

    fn put_holds(&mut self, cluster: &mut Cluster) {
        let holds: Vec<Arc<Hold>> = cluster.holds().all().into_iter().cloned().collect();
        holds.iter().for_each(|hold| self.put_any(hold, cluster));
    }

    fn put_any(&mut self, hold: &Arc<Hold>, cluster: &mut Cluster) {
        if hold.movement.is_some() {
            self.put_mover(hold, cluster);
        } else if hold.counts_in_queue() {
            self.put_hold(hold, cluster);
        }
    }

    /// What the counted running units of each task group take.
    pub(super) fn needs(
        &mut self,
        assigned: &AssignedUnit,
        counts: impl IntoIterator<Item = (u16, usize)>,
        templates: &Templates,
        cluster: &Cluster,
    ) -> QueueNeeds {
        let mut needs = QueueNeeds::new();
        for (group, n) in counts.into_iter().filter(|(_, n)| *n > 0) {
            let template = assigned.groups[usize::from(group)].template;
            let shape = templates.get(template).ask.shape();
            needs.push(self.need(shape, n, cluster));
        }
        needs
    }

    /// A decision is made: what it takes counts, and whom it has leave does no longer.
    pub(super) fn count_decision(
        &mut self,
        assigned: &AssignedUnit,
        decision: &Decision,
        templates: &Templates,
        cluster: &Cluster,
    ) {
        if !self.is_counted {
            return;
        }
        let counts = decision.groups.iter().map(|group| (group.group, group.ordinals.len()));
        let needs = self.needs(assigned, counts, templates, cluster);
        let mut victims = Vec::new();
        for victim in decision.claim.victims() {
            let Some(rows) = cluster.rows().of(victim.unit) else { continue };
            let group = rows.row(victim.replica.ordinal).group;
            if let Some((shape, queue)) = self.pays(victim.unit, group, cluster) {
                victims.push((queue, self.need(shape, 1, cluster)));
            }
        }
        let mut lent = Vec::new();
        if assigned.permit.at_maximum {
            let victims: Vec<RunningUnitId> = decision.claim.victims().copied().collect();
            let asked = self.quota.usage().sum(&needs);
            let pays = |quota: &Quota, victim: &RunningUnitId| pays_still(quota, victim, cluster);
            lent = godel_queueing::lent(&self.quota, assigned.queue, &asked, &victims, pays);
        }
        let usage = DecisionUsage { queue: assigned.queue, needs, victims, lent };
        self.add_decision(&usage, 1);
        self.decisions.insert(decision.id, usage);
        self.settle_movers(decision.unit, cluster);
    }

    /// A decision came to nothing, or the records that were read show what it took.
    pub(super) fn end_decision(&mut self, id: u64) {
        if let Some(usage) = self.decisions.remove(&id) {
            self.add_decision(&usage, -1);
        }
    }

    /// Counts the replicas of a unit that move as they are to be counted now: from the end of the old incarnation until they are placed, or
    /// their hold goes. Call after rows or assumptions of the unit have changed.
    pub(super) fn settle_movers(&mut self, unit: UnitId, cluster: &Cluster) {
        if self.movers.is_empty() {
            return;
        }
        for id in cluster.holds().of(unit) {
            let Some((queue, need, was)) = self.movers.get(&id).copied() else { continue };
            let is =
                cluster.holds().get(id).map(|hold| cluster.taken().mover_share(hold)).unwrap_or_default();
            if is != was {
                self.shift_mover(queue, need, was, -1);
                self.shift_mover(queue, need, is, 1);
                self.movers.insert(id, (queue, need, is));
            }
        }
    }

    fn put_mover(&mut self, hold: &Hold, cluster: &mut Cluster) {
        self.drop_hold(hold.id);
        let shape = cluster.shape(&hold.demand, hold.pool);
        let need = self.need(shape, 1, cluster);
        let queue = hold.queue.as_deref().map_or(QueueIdx::DEFAULT, |path| self.queue(path));
        self.movers.insert(hold.id, (queue, need, MoverShare::default()));
        self.settle_movers(hold.unit, cluster);
    }

    fn shift_mover(&mut self, queue: QueueIdx, need: Need, share: MoverShare, sign: i64) {
        let usage = self.quota.usage_mut();
        let counted = Need { n: share.n_counted, ..need };
        if sign > 0 {
            usage.add(queue, counted)
        } else {
            usage.sub(queue, counted)
        }
        usage.note_leaving(queue, Need { n: share.n_returning, ..need }, -sign);
    }
}

/// The queue of a victim that is still there, and what it takes of it.
fn pays_still(quota: &Quota, victim: &RunningUnitId, cluster: &Cluster) -> Option<(QueueIdx, Amounts)> {
    let row = cluster.rows().remains(victim)?;
    Some(paid(quota, cluster.rows().of(victim.unit)?, row))
}
