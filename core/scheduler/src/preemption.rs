//! Preemption: a unit without a place looks for running units of lower rank. What is decided takes effect once they have
//! left; until then the binder holds the room.

use godel_base::{
    ids::{HoldId, NodeId, ReplicaId, RunningUnitId, UnitId},
    time::Millis,
};
use godel_cluster::{Cluster, GroupDeltas, Owned};
use godel_domain::{
    decision::{Claim, GroupPlacement, NodeVictims, Preemption},
    hold::Hold,
    pause::Scope,
};
use godel_framework::point::Seeker;
use godel_placement::preempt::{self, Found, Lent, N_VICTIMS_MAX, VictimQuery};
use godel_queueing::QueueIdx;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    assigned_unit::AssignedUnit,
    assigned_units::AssignedUnits,
    park::{Parked, WaitKey},
    picture::{
        Picture, Try,
        topology::{is_one_by_one, required_level, rules_of_parts},
    },
};

mod domains;
mod maxima;
mod parts;
mod search_times;
mod so_far;

pub(super) use self::maxima::{full_refusals, lacks_of};
use self::{
    maxima::{claimed_needs, portions, still_reaches},
    parts::{PartsIn, find_parts},
    search_times::{SEARCH_EVERY_MS, SearchTimes},
    so_far::{SoughtReplicas, add_victims, back},
};

/// Replicas for which one search looks, a first binding apart: the next ones follow at once.
const N_SOUGHT_MAX: usize = 1_024;
/// Searches that failed and are remembered.
const N_FAILED_MAX: usize = 4_096;
/// After this time without a search the index of who is on which node is dropped, milliseconds.
const IDLE_MS: u64 = 60_000;

/// What is known of searches for victims.
#[derive(Debug)]
pub(super) struct PreemptionSearch {
    /// As configured.
    is_enabled: bool,
    /// By an administrator.
    is_paused: bool,
    /// When parked units search again.
    pub(super) times: SearchTimes,
    /// Victims of decisions without an outcome, or whose holds are not read yet.
    claimed: FxHashSet<(UnitId, u32)>,
    /// Holds that such decisions take over.
    taken: FxHashSet<HoldId>,
    failed: FxHashMap<WaitKey, FailedSearch>,
    /// Counts what might let a search find somebody.
    change_count: u64,
    last: Millis,
    n_tried: u64,
    counters: SearchCounters,
}

/// Counts what searches came to, which a plan must not change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SearchCounters {
    /// A failed search spared somebody because of a disruption budget.
    is_kept_by_budget: bool,
    n_victims: u64,
    n_loops: u64,
}

/// A search that found nobody.
#[derive(Clone, Copy, Debug)]
struct FailedSearch {
    /// The highest that searched.
    priority: i32,
    /// It is not repeated before, whatever happens.
    until: Millis,
    /// What it knew.
    change_count: u64,
}

impl PreemptionSearch {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self {
            is_enabled,
            is_paused: false,
            times: SearchTimes::default(),
            claimed: FxHashSet::default(),
            taken: FxHashSet::default(),
            failed: FxHashMap::default(),
            change_count: 0,
            last: Millis(0),
            n_tried: 0,
            counters: SearchCounters::default(),
        }
    }

    /// Searches made.
    pub(super) fn n_tried(&self) -> u64 {
        self.n_tried
    }

    /// Running units that decisions have leave.
    pub(super) fn n_victims(&self) -> u64 {
        self.counters.n_victims
    }

    /// Units spared because the one that searched had been preempted for them.
    pub(super) fn n_loops(&self) -> u64 {
        self.counters.n_loops
    }

    pub(super) fn counters(&self) -> SearchCounters {
        self.counters
    }

    pub(super) fn restore_counters(&mut self, counters: SearchCounters) {
        self.counters = counters;
    }

    /// Nobody may be made to leave for others.
    fn is_off(&self) -> bool {
        !self.is_enabled || self.is_paused
    }

    /// Whether running units of lower rank may be made to leave their queues for a unit.
    fn may_relieve(&self, picture: &Picture, assigned: &AssignedUnit) -> bool {
        let Picture { cluster, shares, .. } = picture;
        let may_find = cluster.taken().ranks.has_below(assigned.priority())
            || (cluster.taken().ranks.has_preemptible() && shares.may_claim(assigned.queue));
        !self.is_off() && !cluster.nodes().frozen().keeps_all() && may_find
    }

    /// Returns false while the last search with the same need and of the same or a higher rank has failed and nothing changed
    /// since, or not long enough ago; where the need is settled, until its group is woken. Nor may a unit search where
    /// preemption is off, or nobody of lower rank is there.
    pub(super) fn may_search(
        &mut self,
        picture: &Picture,
        assigned: &AssignedUnit,
        need: &WaitKey,
        is_settled: bool,
        now: Millis,
    ) -> bool {
        let priority = assigned.priority();
        let may_find = may_outrank(picture, assigned.queue, priority);
        if self.is_off() || picture.cluster.nodes().frozen().keeps_all() || !may_find {
            return false;
        }
        match self.failed.get(need).copied().filter(|failed| priority <= failed.priority) {
            None => true,
            // What it rested on is as it was.
            Some(failed) if failed.change_count == self.change_count => false,
            Some(failed) if now < failed.until => {
                self.times.search_again_at(failed.until);
                false
            }
            Some(_) => !is_settled,
        }
    }

    /// A hold is read: a unit of higher rank may take its room over.
    pub(super) fn on_hold(&mut self, hold: &Hold, picture: &Picture, parked: &Parked, now: Millis) {
        if let Some(priority) = hold.priority.filter(|_| hold.is_claim()) {
            self.note_change();
            let by_queue = picture.shares.told_apart(QueueIdx::ROOT).is_some();
            self.times.search_above(if by_queue { i32::MIN } else { priority }, parked, now);
        }
    }

    /// An administrator lets nobody leave for others, or does again.
    pub(super) fn set_paused(&mut self, scope: &Scope, paused: bool) {
        if *scope != Scope::Preemption || paused == self.is_paused {
            return;
        }
        self.is_paused = paused;
        if !paused {
            self.times.search_again_at(Millis(0));
        }
    }

    /// Something has changed that a failed search did not know.
    pub(super) fn note_change(&mut self) {
        self.change_count += 1;
    }

    /// Others might find somebody now, whatever their priority is.
    pub(super) fn on_nodes_changed(&mut self, parked: &Parked, now: Millis) {
        self.note_change();
        self.times.search_above(i32::MIN, parked, now);
    }

    /// Running units came or went, or stand by other terms: there may be new ones of lower rank, and where queues guarantee
    /// something, ranks have changed.
    pub(super) fn on_running_units(
        &mut self,
        unit: UnitId,
        deltas: &GroupDeltas,
        picture: &Picture,
        parked: &Parked,
        now: Millis,
    ) {
        self.note_change();
        if parked.is_idle() {
            return;
        }
        if picture.shares.told_apart(QueueIdx::ROOT).is_some() {
            if deltas.iter().chain(deltas.leaving()).next().is_some() {
                self.times.search_again_at(now.plus(SEARCH_EVERY_MS));
            }
            return;
        }
        let Some(rows) = picture.cluster.rows().of(unit) else { return };
        let came = deltas.iter().filter(|(_, n)| *n > 0).filter_map(|(group, _)| rows.standing(group));
        let lowest = came.filter(|standing| standing.preemptible).map(|standing| standing.priority).min();
        if let Some(lowest) = lowest {
            self.times.search_above(lowest, parked, now);
        }
    }

    /// Some budget allows more than before.
    pub(super) fn on_budget_gain(&mut self, parked: &Parked, now: Millis) {
        if std::mem::take(&mut self.counters.is_kept_by_budget) && !parked.is_idle() {
            self.times.search_again_at(now.plus(SEARCH_EVERY_MS));
        }
    }

    /// Parked units search again whose time has come.
    pub(super) fn wake_due(&mut self, units: &mut AssignedUnits, picture: &mut Picture, now: Millis) {
        let templates = &mut picture.placer.templates;
        if let Some(needs) = self.times.take_all_due(&units.parked, now) {
            self.note_change();
            needs.iter().for_each(|need| units.wake(need, templates));
        }
        if let Some(needs) = self.times.take_above_due(&units.parked, now) {
            needs.iter().for_each(|need| units.wake(need, templates));
        }
        if now.since(self.last) >= IDLE_MS && self.n_tried > 0 {
            picture.cluster.taken_mut().occupants.forget();
            self.failed.clear();
            self.last = now;
        }
    }

    /// Places what is missing of a first binding, or else some of what is pending, where others leave. `together` of
    /// the unit's running units have to be placed, `left` may be.
    pub(super) fn find_victims(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        need: &WaitKey,
        together: usize,
        left: usize,
        tried: &mut Try,
        now: Millis,
    ) {
        if assigned.pending() == 0 || !self.may_search(picture, assigned, need, false, now) {
            return;
        }
        if tried.n_placed > 0 && (picture.may_borrow(assigned) || !picture.owned(assigned).is_empty()) {
            // A decision for which others leave enters neither slots nor what others gather.
            picture.take_back(tried);
            *tried = picture.place_with(assigned, &Owned::new(), left.max(together));
            if tried.n_placed >= together.max(1) {
                return;
            }
        }
        self.n_tried += 1;
        self.last = now;
        let seeker = seeker_of(picture, assigned);
        if let Some(level) = required_level(picture, assigned) {
            if let Err(retry_ms) =
                self.find_in_domain(picture, assigned, &seeker, together, left, &level, tried)
            {
                self.note_failed(need, &seeker, retry_ms, now);
            }
            return;
        }
        if let Some(rules) = rules_of_parts(picture, assigned) {
            let parts = PartsIn { together, within: None, is_full: false };
            if let Err(retry_ms) = find_parts(self, picture, assigned, &rules, &seeker, parts, tried) {
                self.note_failed(need, &seeker, retry_ms, now);
            }
            return;
        }
        let missing = together.saturating_sub(tried.n_placed);
        let wanted = match missing {
            0 if assigned.tries.one_by_one => 1,
            0 => left.min(N_SOUGHT_MAX),
            _ => missing,
        };
        for wanted in portions(picture, assigned, missing, wanted) {
            let retry_ms = match self.find_for(picture, assigned, &seeker, missing, wanted, tried) {
                Ok(()) => return,
                Err(retry_ms) => retry_ms,
            };
            self.note_failed(need, &seeker, retry_ms, now);
            if missing > 0 {
                // The caller takes back what was assumed.
                return;
            }
        }
    }

    /// The search of a plan: for all that are not placed yet, of which `together` are needed at once. Nothing is remembered
    /// of it.
    pub(super) fn plan_victims(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        together: usize,
        quota: usize,
        tried: &mut Try,
    ) {
        if self.is_off() || !may_outrank(picture, assigned.queue, assigned.priority()) {
            return;
        }
        if tried.n_placed > 0 && !picture.owned(assigned).is_empty() {
            // A decision for which others leave enters no slots.
            picture.take_back(tried);
            *tried = picture.place_with(assigned, &Owned::new(), quota);
        }
        let seeker = seeker_of(picture, assigned);
        if let Some(level) = required_level(picture, assigned) {
            // Where nobody is found, nothing is placed.
            let _ = self.find_in_domain(picture, assigned, &seeker, together, quota, &level, tried);
            return;
        }
        if let Some(rules) = rules_of_parts(picture, assigned) {
            let parts = PartsIn { together, within: None, is_full: false };
            if find_parts(self, picture, assigned, &rules, &seeker, parts, tried).is_err() {
                // What has places without anybody leaving keeps them.
                *tried = picture.place_with(assigned, &Owned::new(), quota);
            }
            return;
        }
        let missing = together.saturating_sub(tried.n_placed);
        let wanted = quota.saturating_sub(tried.n_placed).min(N_SOUGHT_MAX).max(missing);
        let had_some = tried.n_placed > 0;
        for wanted in portions(picture, assigned, missing, wanted) {
            if self.find_for(picture, assigned, &seeker, missing, wanted, tried).is_ok() || missing > 0 {
                return;
            }
            if had_some && tried.groups.is_empty() {
                // What was placed without anybody leaving went with what the failed search had found.
                *tried = picture.place(assigned, quota);
            }
        }
    }

    /// One search, for `wanted` replicas of which `missing` have to be found.
    ///
    /// # Errors
    /// Too few were found: when somebody will have run long enough, Unix milliseconds.
    fn find_for(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        missing: usize,
        wanted: usize,
        tried: &mut Try,
    ) -> Result<(), Option<i64>> {
        let mut preemption = Preemption::default();
        let mut retry_ms: Option<i64> = None;
        let (mut n_found, mut n_loops) = (0, 0);
        let (mut reach, mut n_searches) = (0, 0);
        let one_by_one = is_one_by_one(picture, assigned);
        // What task groups lack of their own minima comes first; without that the others are worth nothing.
        let minima = assigned.minima();
        let all = assigned.works().map(|work| (work, work.pending().len()));
        let mut is_worthless = false;
        for (at, (work, most)) in minima.iter().copied().chain(all).enumerate() {
            let is_minimum = at < minima.len();
            let (group, at) = (work.group, tried.part_of(work));
            let n_placed = at.map_or(0, |at| tried.groups[at].ordinals.len());
            let pending = work.pending().get(n_placed..most).unwrap_or_default();
            let pending = &pending[..pending.len().min(wanted - n_found)];
            if pending.is_empty() || is_worthless {
                continue;
            }
            let at = at.unwrap_or_else(|| {
                tried.groups.push(GroupPlacement { group, ..GroupPlacement::default() });
                tried.groups.len() - 1
            });
            for pending in pending.chunks(if one_by_one { 1 } else { pending.len() }) {
                let needs = claimed_needs(picture, assigned, tried, group, pending.len());
                reach |= picture.shares.rights(assigned.queue, &needs).map_or(0, |rights| rights.reach());
                let (cluster, placed) = (&picture.cluster, tried.groups.iter());
                let sought =
                    SoughtReplicas::new(cluster, assigned, work, pending.len(), &needs, &preemption, placed);
                let found = self.search(picture, seeker, &sought);
                n_searches += 1;
                self.counters.n_loops += found.n_loops as u64;
                self.counters.is_kept_by_budget |= found.is_kept;
                n_loops += found.n_loops;
                retry_ms = retry_ms.into_iter().chain(found.retry_ms).min();
                let n = found.places.len();
                n_found += n;
                let placement = &mut tried.groups[at];
                let _ = self.take_found(picture, assigned, pending, found, placement, &mut preemption);
                if n < pending.len() {
                    is_worthless |= is_minimum;
                    break;
                }
            }
        }
        tried.n_loops = n_loops;
        if n_found < missing.max(1)
            || is_worthless
            || preemption.n_victims() > N_VICTIMS_MAX
            || n_searches > 1 && !still_reaches(picture, assigned, tried, reach)
        {
            self.unclaim(&mut picture.cluster, &preemption);
            if missing == 0 && n_found > 0 {
                picture.cluster.take_back(tried.mark);
                tried.groups.clear();
            }
            return Err(retry_ms);
        }
        tried.n_placed += n_found;
        preemption.nodes.sort_unstable();
        preemption.others.sort_unstable();
        self.counters.n_victims += preemption.n_victims() as u64;
        tried.claim = if preemption.is_empty() { Claim::FreeRoom } else { preemption.into() };
        Ok(())
    }

    /// Looks without masters of applications everywhere, and once more with them where too few of the others would leave.
    fn search(&self, picture: &mut Picture, seeker: &Seeker, sought: &SoughtReplicas<'_>) -> Found {
        let of_others = self.search_as(picture, &seeker.sparing_masters(), sought);
        if of_others.places.len() >= sought.n || !of_others.is_master_spared {
            return of_others;
        }
        let of_all = self.search_as(picture, seeker, sought);
        if of_all.places.len() > of_others.places.len() { of_all } else { of_others }
    }

    /// Own nodes first, if that is how nodes are split, then all. Where too few would leave, what is held for units of lower
    /// rank is room too, but on nodes of which the decision takes some over already.
    fn search_as(&self, picture: &mut Picture, seeker: &Seeker, sought: &SoughtReplicas<'_>) -> Found {
        let SoughtReplicas { template, n, queue, needs, preemption, ref so_far } = *sought;
        let (claimed, taken) = (&self.claimed, &self.taken);
        let Picture { placer, cluster, shares, .. } = picture;
        let shape = placer.templates.get(template).ask.shape();
        let rights = shares.rights(queue, needs);
        let pays = |hold: &Hold| shares.pays_for(hold.id);
        let beside = match taken.is_empty() {
            true => Lent::default(),
            false => preempt::beside(cluster, rights.as_ref(), pays, taken, claimed),
        };
        let query = VictimQuery { seeker, shape, rights: rights.as_ref(), claimed, so_far, lent: &beside };
        // Where masters leave, the own nodes were not enough without them.
        if placer.view.is_preferred() && seeker.spares_masters {
            let own = placer.with_room_aside(cluster, template, true);
            let preference = placer.preference(template, seeker.unit);
            let found = preempt::search_lent(cluster, &query, own, n, &preference);
            if found.places.len() >= n {
                return found;
            }
        }
        let all = placer.with_room_aside(cluster, template, false);
        let preference = placer.preference(template, seeker.unit);
        let found = preempt::search_lent(cluster, &query, all, n, &preference);
        if found.places.len() >= n || !cluster.holds().has_claims_below(None) {
            return found;
        }
        let nodes: Vec<NodeId> = preemption.nodes.iter().map(|on| on.node).collect();
        let lent = preempt::lendable(cluster, seeker, rights.as_ref(), pays, &nodes, taken, claimed);
        if lent.is_empty() {
            return found;
        }
        let all = placer.with_room_aside(cluster, template, false);
        let preference = placer.preference(template, seeker.unit);
        let more = preempt::search_lent(cluster, &VictimQuery { lent: &lent, ..query }, all, n, &preference);
        if more.places.len() > found.places.len() { more } else { found }
    }

    /// Assumes what a search has found for the `pending` running units of the task group of a placement, and claims those who
    /// leave. Returns those who leave for another part of the decision, and back what is placed here.
    fn take_found(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        pending: &[ReplicaId],
        found: Found,
        placement: &mut GroupPlacement,
        preemption: &mut Preemption,
    ) -> Vec<RunningUnitId> {
        let Picture { placer, cluster, .. } = picture;
        let group = placement.group;
        let shape = placer.templates.get(assigned.groups[usize::from(group)].template).ask.shape();
        for (&replica, &(node, allocation)) in pending.iter().zip(&found.places) {
            cluster.try_out(RunningUnitId { unit: assigned.unit(), replica }, shape, node, allocation);
            placement.push(replica, node, allocation);
        }
        let mut taken = found.taken;
        for (node, victims) in found.claims {
            self.claim(cluster, &victims);
            let holds = taken.remove(&node).unwrap_or_default();
            self.taken.extend(&holds);
            add_victims(preemption, NodeVictims { group, node, victims, holds });
        }
        for (node, holds) in taken {
            self.taken.extend(&holds);
            add_victims(preemption, NodeVictims { group, node, victims: Vec::new(), holds });
        }
        self.claim(cluster, &found.others);
        preemption.others.extend(found.others);
        back(cluster, preemption, group, found.freed)
    }

    fn note_failed(&mut self, need: &WaitKey, seeker: &Seeker, retry_ms: Option<i64>, now: Millis) {
        if self.failed.len() >= N_FAILED_MAX {
            self.failed.clear();
        }
        let known = self.failed.get(need).filter(|failed| now < failed.until);
        let priority = known.map_or(seeker.priority, |failed| failed.priority.max(seeker.priority));
        let failed =
            FailedSearch { priority, until: now.plus(SEARCH_EVERY_MS), change_count: self.change_count };
        self.failed.insert(need.clone(), failed);
        if let Some(retry_ms) = retry_ms {
            let wait = u64::try_from(retry_ms.saturating_sub(seeker.now_ms)).unwrap_or(0);
            self.times.search_again_at(now.plus(wait.max(SEARCH_EVERY_MS)));
        }
    }

    /// The victims of a decision are not for others.
    fn claim(&mut self, cluster: &mut Cluster, victims: &[RunningUnitId]) {
        self.claimed.extend(victims.iter().map(|victim| (victim.unit, victim.replica.ordinal)));
        cluster.taken_mut().depart(victims.iter().map(|victim| (victim.unit, victim.replica.ordinal)));
    }

    /// The victims of a decision are free for others: it was not made or not accepted, or the records show that they leave.
    pub(super) fn unclaim(&mut self, cluster: &mut Cluster, preemption: &Preemption) {
        let members = || preemption.victims().map(|victim| (victim.unit, victim.replica.ordinal));
        members().for_each(|member| {
            self.claimed.remove(&member);
        });
        cluster.taken_mut().arrive(members());
        for hold in preemption.taken() {
            self.taken.remove(&hold);
        }
    }
}

fn seeker_of(picture: &Picture, assigned: &AssignedUnit) -> Seeker {
    Seeker {
        unit: assigned.unit(),
        priority: assigned.priority(),
        pool: assigned.facts.pool,
        now_ms: picture.wall_ms,
        spares_masters: false,
    }
}

/// Whether somebody is there, or room is held for somebody, that a unit might outrank.
fn may_outrank(picture: &Picture, queue: QueueIdx, priority: i32) -> bool {
    let Picture { cluster, shares, .. } = picture;
    cluster.taken().ranks.has_below(priority)
        || cluster.holds().has_claims_below(Some(priority))
        || ((cluster.taken().ranks.has_preemptible() || cluster.holds().has_claims_below(None))
            && shares.may_claim(queue))
}
