//! Preemption: a unit without a place looks for running units of lower rank. What is decided takes effect once they have
//! left; until then the binder holds the room.

use std::sync::Arc;

use godel_cluster::{GroupDeltas, Owned};
use godel_domain::{
    budget_spec::BudgetSpec,
    decision::{Claim, Decision, GroupPlacement, Preemption},
    hold::{Hold, Member},
    ids::{HoldId, NodeId, Revision, UnitId},
    pause::Scope,
    time::Millis,
};
use godel_placement::{
    place::templates::TemplateId,
    preempt::{self, Found, Lent, N_VICTIMS_MAX, Seeker},
};
use godel_queueing::{Need, QueueIdx};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Scheduler,
    assigned_unit::{AssignedUnit, Wanted},
    cycle::Try,
    park::WaitKey,
    shares::Needs,
};

/// Replicas for which one search looks, a first binding apart: the next ones follow at once.
const N_SOUGHT_MAX: usize = 1_024;
/// A search in vain is not repeated so soon, milliseconds.
pub(super) const SEEK_EVERY_MS: u64 = 1_000;
/// Searches in vain that are remembered.
const N_VAIN_MAX: usize = 4_096;
/// Without a search for so long nobody keeps who is on which node, milliseconds.
const IDLE_MS: u64 = 60_000;

/// What is known of searches for victims.
#[derive(Debug, Default)]
pub(super) struct PreemptionSearch {
    /// Time of day, Unix milliseconds.
    pub(super) wall_ms: i64,
    /// Parked units search again then.
    pub(super) again_at: Option<Millis>,
    /// Parked units above this priority search again then: somebody like that has got room that they did not see free.
    pub(super) newly_below: Option<(Millis, i32)>,
    /// Running units held since a revision that is not read yet: assumed until then.
    pub(super) held_since: Vec<(Revision, Decision)>,
    pub(super) n_tried: u64,
    pub(super) n_victims: u64,
    pub(super) n_loops: u64,
    /// Victims of decisions without an outcome, or whose holds are not read yet.
    claimed: FxHashSet<(UnitId, u32)>,
    /// Holds that such decisions take over.
    taken: FxHashSet<HoldId>,
    vain: FxHashMap<WaitKey, FailedSearch>,
    /// Counts what might let a search find somebody.
    change_count: u64,
    last: Millis,
    /// Some did not search while there seemed to be room for them.
    pub(super) was_put_off: bool,
    /// By an administrator.
    pub(super) is_paused: bool,
    /// A search in vain spared somebody because of a disruption budget.
    is_kept: bool,
    /// Rises when budgets select others than they did.
    n_selections: u64,
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
    /// Victims of decisions under way.
    pub(super) fn claimed(&self) -> &FxHashSet<(UnitId, u32)> {
        &self.claimed
    }

    /// What a plan must not change.
    pub(super) fn marks(&self) -> (u64, u64, bool) {
        (self.n_victims, self.n_loops, self.is_kept)
    }

    pub(super) fn restore(&mut self, marks: (u64, u64, bool)) {
        (self.n_victims, self.n_loops, self.is_kept) = marks;
    }
}

impl Scheduler {
    /// Whether a search might find something: preemption is on, somebody of lower rank is there, and no search of this
    /// need and rank was in vain just now; nor, while the need is settled, since it is.
    pub(super) fn may_seek(
        &mut self,
        assigned: &AssignedUnit,
        need: &WaitKey,
        is_settled: bool,
        now: Millis,
    ) -> bool {
        let priority = assigned.turn.0.0;
        let may_find = self.may_outrank(assigned.queue, priority);
        if !self.config.preemption || self.seeks.is_paused || self.cluster.frozen().keeps_all() || !may_find {
            return false;
        }
        match self.seeks.vain.get(need).copied().filter(|vain| priority <= vain.priority) {
            None => true,
            // What it rested on is as it was.
            Some(vain) if vain.change_count == self.seeks.change_count => false,
            Some(vain) if now < vain.until => {
                self.seek_again(vain.until);
                false
            }
            Some(_) => !is_settled,
        }
    }

    /// Whether somebody is there, or room is held for somebody, that a unit might outrank.
    fn may_outrank(&self, queue: QueueIdx, priority: i32) -> bool {
        self.cluster.has_below(priority)
            || self.cluster.has_claims_below(Some(priority))
            || ((self.cluster.has_preemptible() || self.cluster.has_claims_below(None))
                && self.shares.may_claim(queue))
    }

    /// Room is held: a unit of higher rank may take it over.
    pub(super) fn seek_after_hold(&mut self, hold: &Hold, now: Millis) {
        if let Some(priority) = hold.priority.filter(|_| hold.is_claim()) {
            self.note_change();
            let lowest = if self.shares.told_apart(QueueIdx::ROOT).is_some() { i32::MIN } else { priority };
            self.seek_above(lowest, now);
        }
    }

    /// An administrator lets nobody leave for others, or does again.
    pub(super) fn pause_seeks(&mut self, scope: &Scope, paused: bool) {
        if *scope != Scope::Preemption || paused == self.seeks.is_paused {
            return;
        }
        self.seeks.is_paused = paused;
        if !paused {
            self.seek_again(Millis(0));
        }
    }

    /// Something that a search in vain did not know.
    pub(super) fn note_change(&mut self) {
        self.seeks.change_count += 1;
    }

    /// Others might find somebody now, whoever they are above.
    pub(super) fn seek_anew(&mut self, now: Millis) {
        self.note_change();
        self.seek_above(i32::MIN, now);
    }

    /// Parked units of higher priority search in a while.
    fn seek_above(&mut self, priority: i32, now: Millis) {
        if !self.parked.is_idle() {
            let (at, lowest) = self.seeks.newly_below.unwrap_or((now.plus(SEEK_EVERY_MS), priority));
            self.seeks.newly_below = Some((at, lowest.min(priority)));
        }
    }

    pub(super) fn seek_again(&mut self, at: Millis) {
        self.seeks.again_at = Some(self.seeks.again_at.map_or(at, |other| other.min(at)));
    }

    /// Running units came or went: there may be new ones of lower rank, and where queues guarantee something, ranks
    /// are others now.
    pub(super) fn seek_after(&mut self, unit: UnitId, turns: &GroupDeltas, now: Millis) {
        self.note_change();
        if self.parked.is_idle() {
            return;
        }
        if self.shares.told_apart(QueueIdx::ROOT).is_some() {
            if turns.iter().chain(turns.leaving()).next().is_some() {
                self.seek_again(now.plus(SEEK_EVERY_MS));
            }
            return;
        }
        let Some(rows) = self.cluster.rows(unit) else { return };
        let came = turns.iter().filter(|(_, n)| *n > 0).filter_map(|(group, _)| rows.standing(group));
        let lowest = came.filter(|standing| standing.preemptible).map(|standing| standing.priority).min();
        if let Some(lowest) = lowest {
            self.seek_above(lowest, now);
        }
    }

    /// A budget's record.
    pub(super) fn put_budget(&mut self, spec: &Arc<BudgetSpec>, revision: Revision) {
        let selects_others = self.cluster.put_budget(Arc::clone(spec), revision);
        self.seeks.n_selections += u64::from(selects_others);
    }

    /// Which units budgets select has to be found out, from the records of all units, whenever this is another number;
    /// `None` while there is no budget, and no need to read them.
    pub fn selection(&self) -> Option<u64> {
        (!self.cluster.budgets().is_empty()).then_some(self.seeks.n_selections)
    }

    /// Some budget allows more than before.
    pub(super) fn seek_after_gain(&mut self, now: Millis) {
        if std::mem::take(&mut self.seeks.is_kept) && !self.parked.is_idle() {
            self.seek_again(now.plus(SEEK_EVERY_MS));
        }
    }

    /// Parked units search again whose time has come.
    pub(super) fn wake_seekers(&mut self, now: Millis) {
        self.forget_maxima(now);
        if self.seeks.again_at.is_some_and(|at| at <= now) {
            self.seeks.again_at = None;
            self.seeks.was_put_off |= self.parked.has_open();
            self.note_change();
            for need in self.parked.without_room() {
                self.wake(&need);
            }
        }
        if let Some((_, lowest)) = self.seeks.newly_below.take_if(|(at, _)| *at <= now) {
            self.seeks.was_put_off |= self.parked.has_open();
            for need in self.parked.above(lowest) {
                self.wake(&need);
            }
        }
        if now.since(self.seeks.last) >= IDLE_MS && self.seeks.n_tried > 0 {
            self.cluster.forget_occupants();
            self.seeks.vain.clear();
            self.seeks.last = now;
        }
    }

    /// Places what is missing of a first binding, or else some of what is pending, where others have to leave.
    pub(super) fn seek(
        &mut self,
        assigned: &AssignedUnit,
        need: &WaitKey,
        together: usize,
        left: usize,
        tried: &mut Try,
        now: Millis,
    ) {
        if assigned.pending() == 0 || !self.may_seek(assigned, need, false, now) {
            return;
        }
        if tried.n_placed > 0 && (self.is_admitted(assigned) || !self.owned(assigned).is_empty()) {
            // A decision for which others leave enters neither slots nor what others gather.
            self.undo(assigned.unit(), &tried.groups);
            *tried = self.place_in(assigned, &Owned::new(), left.max(together));
            if tried.n_placed >= together.max(1) {
                return;
            }
        }
        self.seeks.n_tried += 1;
        self.seeks.last = now;
        let seeker = Seeker {
            unit: assigned.unit(),
            priority: assigned.turn.0.0,
            pool: assigned.pool,
            now_ms: self.seeks.wall_ms,
        };
        let missing = together.saturating_sub(tried.n_placed);
        let wanted = match missing {
            0 if assigned.one_by_one => 1,
            0 => left.min(N_SOUGHT_MAX),
            _ => missing,
        };
        for wanted in self.portions(assigned, missing, wanted) {
            let retry_ms = match self.seek_for(assigned, &seeker, (missing, wanted), tried) {
                Ok(()) => return,
                Err(retry_ms) => retry_ms,
            };
            self.note_vain(need, seeker.priority, retry_ms, now);
            if missing > 0 {
                // The caller takes back what was assumed.
                return;
            }
        }
    }

    /// The search of a plan: for all that are not placed yet, of which so many are needed `together`. Nothing is remembered
    /// of it.
    pub(super) fn plan_seek(
        &mut self,
        assigned: &AssignedUnit,
        together: usize,
        quota: usize,
        tried: &mut Try,
    ) {
        let priority = assigned.turn.0.0;
        let may_find = self.may_outrank(assigned.queue, priority);
        if !self.config.preemption || self.seeks.is_paused || !may_find {
            return;
        }
        if tried.n_placed > 0 && !self.owned(assigned).is_empty() {
            // A decision for which others leave enters no slots.
            self.undo(assigned.unit(), &tried.groups);
            *tried = self.place_in(assigned, &Owned::new(), quota);
        }
        let seeker =
            Seeker { unit: assigned.unit(), priority, pool: assigned.pool, now_ms: self.seeks.wall_ms };
        let missing = together.saturating_sub(tried.n_placed);
        let wanted = quota.saturating_sub(tried.n_placed).min(N_SOUGHT_MAX).max(missing);
        let had_some = tried.n_placed > 0;
        for wanted in self.portions(assigned, missing, wanted) {
            if self.seek_for(assigned, &seeker, (missing, wanted), tried).is_ok() || missing > 0 {
                return;
            }
            if had_some && tried.groups.is_empty() {
                // What was placed without anybody leaving went with what was found in vain.
                *tried = self.place(assigned, quota);
            }
        }
    }

    /// For how many to look, one after the other: those that are within a guarantee come before the others.
    pub(super) fn portions(&mut self, assigned: &AssignedUnit, missing: usize, wanted: usize) -> Vec<usize> {
        if missing > 0 || !self.shares.may_claim(assigned.queue) {
            return vec![wanted];
        }
        let counts = (0u16..).zip(&assigned.groups).map(|(group, work)| (group, work.pending().len()));
        let pending = self.needs(assigned, counts);
        let mut portions = self.shares.portions(assigned.queue, &pending);
        portions.iter_mut().for_each(|n| *n = wanted.min(*n));
        portions.dedup();
        if portions.is_empty() { vec![wanted] } else { portions }
    }

    /// One search, for `wanted` replicas of which `missing` have to be found.
    ///
    /// # Errors
    /// Too few were found: when somebody will have run long enough, Unix milliseconds.
    fn seek_for(
        &mut self,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        (missing, wanted): (usize, usize),
        tried: &mut Try,
    ) -> Result<(), Option<i64>> {
        let mut preemption = Preemption::default();
        let mut retry_ms: Option<i64> = None;
        let (mut n_found, mut n_loops) = (0, 0);
        let mut reach = 0;
        for (group, work) in (0u16..).zip(&assigned.groups) {
            let at = tried.groups.iter().position(|placement| placement.group == group);
            let n_placed = at.map_or(0, |at| tried.groups[at].ordinals.len());
            let pending = &work.pending()[n_placed..];
            let pending = &pending[..pending.len().min(wanted - n_found)];
            if pending.is_empty() {
                continue;
            }
            let needs = self.claimed_needs(assigned, tried, (group, pending.len()));
            reach |= self.shares.rights(assigned.queue, &needs).map_or(0, |rights| rights.reach());
            let found =
                self.search(seeker, (assigned.queue, &needs), (work.template, pending.len()), &preemption);
            self.seeks.n_loops += found.n_loops as u64;
            self.seeks.is_kept |= found.is_kept;
            n_loops += found.n_loops;
            retry_ms = retry_ms.into_iter().chain(found.retry_ms).min();
            n_found += found.places.len();
            let at = at.unwrap_or_else(|| {
                tried.groups.push(GroupPlacement { group, ..GroupPlacement::default() });
                tried.groups.len() - 1
            });
            self.take_found(assigned, (group, pending), found, &mut tried.groups[at], &mut preemption);
        }
        tried.n_loops = n_loops;
        if n_found < missing.max(1)
            || preemption.n_victims() > N_VICTIMS_MAX
            || !self.still_reaches(assigned, tried, reach)
        {
            self.unclaim(&preemption);
            if missing == 0 && n_found > 0 {
                self.undo(assigned.unit(), &std::mem::take(&mut tried.groups));
            }
            return Err(retry_ms);
        }
        tried.n_placed += n_found;
        preemption.claims.sort_unstable();
        preemption.others.sort_unstable();
        self.seeks.n_victims += preemption.n_victims() as u64;
        tried.preemption = (!preemption.is_empty()).then(|| Box::new(preemption));
        Ok(())
    }

    /// All that is asked of the queue at once: what is placed, and so many more of one group.
    fn claimed_needs(&mut self, assigned: &AssignedUnit, tried: &Try, (group, n): (u16, usize)) -> Needs {
        if self.shares.told_apart(assigned.queue).is_none() {
            return Needs::new();
        }
        let placed = tried.groups.iter().map(|placement| (placement.group, placement.ordinals.len()));
        self.needs(assigned, placed.chain([(group, n)]))
    }

    /// Whether all that was found is within the guarantees that each part of it was looked for with.
    pub(super) fn still_reaches(&mut self, assigned: &AssignedUnit, tried: &Try, reach: u64) -> bool {
        if reach == 0 || assigned.groups.len() < 2 {
            return true;
        }
        let needs = self.claimed_needs(assigned, tried, (0, 0));
        self.shares.rights(assigned.queue, &needs).is_some_and(|rights| rights.reach() & reach == reach)
    }

    /// Own nodes first, if that is how nodes are split, then all. Where too few would leave, what is held for units of lower
    /// rank is room too, but on nodes of which the decision takes some over already.
    fn search(
        &mut self,
        seeker: &Seeker,
        (queue, needs): (QueueIdx, &[Need]),
        (template, n): (TemplateId, usize),
        preemption: &Preemption,
    ) -> Found {
        let Self { placer, cluster, seeks, shares, .. } = self;
        let shape = placer.templates.get(template).ask.shape();
        let rights = shares.rights(queue, needs);
        let pays = |hold: &Hold| shares.pays_for(hold.id);
        let beside = match seeks.taken.is_empty() {
            true => Lent::default(),
            false => preempt::beside(cluster, rights.as_ref(), pays, (&seeks.taken, &seeks.claimed)),
        };
        let by = (rights.as_ref(), &beside);
        if placer.view.is_preferred() {
            let own = placer.with_room_aside(cluster, template, true);
            let found = preempt::search_lent(cluster, seeker, &seeks.claimed, by, shape, own, n);
            if found.places.len() >= n {
                return found;
            }
        }
        let all = placer.with_room_aside(cluster, template, false);
        let found = preempt::search_lent(cluster, seeker, &seeks.claimed, by, shape, all, n);
        if found.places.len() >= n || !cluster.has_claims_below(None) {
            return found;
        }
        let nodes: Vec<NodeId> = preemption.claims.iter().map(|claim| claim.node).collect();
        let except = (&nodes[..], &seeks.taken, &seeks.claimed);
        let lent = preempt::lendable(cluster, seeker, rights.as_ref(), pays, except);
        if lent.is_empty() {
            return found;
        }
        let all = placer.with_room_aside(cluster, template, false);
        let with_lent = (rights.as_ref(), &lent);
        let more = preempt::search_lent(cluster, seeker, &seeks.claimed, with_lent, shape, all, n);
        if more.places.len() > found.places.len() { more } else { found }
    }

    pub(super) fn take_found(
        &mut self,
        assigned: &AssignedUnit,
        (group, pending): (u16, &[Wanted]),
        found: Found,
        placement: &mut GroupPlacement,
        preemption: &mut Preemption,
    ) {
        let shape = self.placer.templates.get(assigned.groups[usize::from(group)].template).ask.shape();
        let has_devices = self.cluster.demand(shape).devices.is_some();
        let n_before = placement.ordinals.len();
        for (&(ordinal, incarnation), &(node, mask)) in pending.iter().zip(&found.places) {
            self.cluster.assume(assigned.unit(), ordinal, incarnation, shape, node, mask);
            placement.ordinals.push(ordinal);
            placement.nodes.push(node);
            if incarnation > 0 && placement.incarnations.is_empty() {
                placement.incarnations.resize(placement.ordinals.len() - 1, 0);
            }
            if incarnation > 0 || !placement.incarnations.is_empty() {
                placement.incarnations.push(incarnation);
            }
            if has_devices {
                placement.device_masks.resize(placement.device_masks.len().max(n_before), 0);
                placement.device_masks.push(mask);
            }
        }
        let mut taken = found.taken;
        for (node, victims) in found.claims {
            self.claim(&victims);
            let holds = taken.remove(&node).unwrap_or_default();
            self.seeks.taken.extend(&holds);
            preemption.claims.push(Claim { group, node, victims, holds });
        }
        for (node, holds) in taken {
            self.seeks.taken.extend(&holds);
            preemption.claims.push(Claim { group, node, victims: Vec::new(), holds });
        }
        self.claim(&found.others);
        preemption.others.extend(found.others);
    }

    fn note_vain(&mut self, need: &WaitKey, priority: i32, retry_ms: Option<i64>, now: Millis) {
        if self.seeks.vain.len() >= N_VAIN_MAX {
            self.seeks.vain.clear();
        }
        let known = self.seeks.vain.get(need).filter(|vain| now < vain.until);
        let priority = known.map_or(priority, |vain| vain.priority.max(priority));
        let vain =
            FailedSearch { priority, until: now.plus(SEEK_EVERY_MS), change_count: self.seeks.change_count };
        self.seeks.vain.insert(need.clone(), vain);
        if let Some(retry_ms) = retry_ms {
            let wait = u64::try_from(retry_ms.saturating_sub(self.seeks.wall_ms)).unwrap_or(0);
            self.seek_again(now.plus(wait.max(SEEK_EVERY_MS)));
        }
    }

    /// The victims of a decision are not for others.
    pub(super) fn claim(&mut self, victims: &[Member]) {
        self.seeks.claimed.extend(victims.iter().map(|victim| (victim.unit, victim.ordinal)));
        self.cluster.depart(victims.iter().map(|victim| (victim.unit, victim.ordinal)));
    }

    /// The victims of a decision are free for others: it was not made or not accepted, or the records show that they leave.
    pub(super) fn unclaim(&mut self, preemption: &Preemption) {
        let members = || preemption.victims().map(|victim| (victim.unit, victim.ordinal));
        members().for_each(|member| {
            self.seeks.claimed.remove(&member);
        });
        self.cluster.arrive(members());
        for hold in preemption.taken() {
            self.seeks.taken.remove(&hold);
        }
    }

    /// A decision is held since `revision`: its room stays assumed until the hold's record is read.
    pub(super) fn keep_until(&mut self, revision: Revision, decision: Decision) {
        self.seeks.held_since.push((revision, decision));
        self.forget_held();
    }

    /// Running units of a unit whose holds were answered and are not read yet.
    pub(super) fn unread_holds_of(&self, unit: UnitId) -> impl Iterator<Item = Wanted> + '_ {
        let is_unread =
            move |(since, decision): &&(Revision, Decision)| *since > self.revision && decision.unit == unit;
        let decisions = self.seeks.held_since.iter().filter(is_unread).map(|(_, decision)| decision);
        decisions.flat_map(|decision| &decision.groups).flat_map(GroupPlacement::members)
    }

    /// Ends assumptions that the records of holds have taken the place of.
    pub(super) fn forget_held(&mut self) {
        let read = self.revision;
        while let Some(at) = self.seeks.held_since.iter().position(|(since, _)| *since <= read) {
            let (_, decision) = self.seeks.held_since.swap_remove(at);
            if let Some(preemption) = &decision.preemption {
                self.unclaim(preemption);
            }
            for group in &decision.groups {
                for (idx, ordinal) in group.ordinals.iter().enumerate() {
                    self.cluster.forget(decision.unit, *ordinal, group.incarnation(idx));
                }
            }
        }
    }
}
