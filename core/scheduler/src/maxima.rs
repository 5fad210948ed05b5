//! A unit whose queue is at a maximum: it has a place once running units of lower rank there have left.
//!
//! The dispatcher hands such a unit out when somebody below that queue may be of lower rank, and has it back at once if nobody
//! can be made to leave: it knows when that is worth another try. What the unit takes and what its victims give up is counted
//! as the binder counts it, so that one decision says all who have to leave, for the queue and for room on nodes.

use std::sync::Arc;

use godel_cluster::Owned;
use godel_domain::{
    decision::{Decision, GroupPlacement, Preemption},
    ids::UnitId,
    refusals::{RefusalCount, Refusals},
    time::Millis,
};
use godel_placement::preempt::{self, Found, Full, N_VICTIMS_MAX, Seeker, paid};
use godel_queueing::{Amounts, Lack, PendingReason, QueueIdx, sum_of};

use super::{
    Scheduler,
    assigned_unit::{AssignedUnit, State},
    cycle::Try,
    shares::Needs,
};

/// Replicas that one decision asks room for in a full queue.
const N_ASKED_MAX: usize = 256;
/// If so many are too many one less is tried; of more, half of them.
const N_ONE_BY_ONE: usize = 8;

impl Scheduler {
    /// A queue of a unit that was just assigned is at a maximum.
    pub fn set_at_maximum(&mut self, unit: UnitId, now: Millis) {
        if let Some(assigned) = self.units.get_mut(&unit) {
            assigned.at_maximum = true;
            self.count_for_maxima(now);
        }
    }

    /// Tries a unit that was handed out as one of a full queue; `None`, with the unit, if there is room for it by now. Returns
    /// how many running units it tried to place.
    pub(super) fn try_at_maximum(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        (together, left): (usize, usize),
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> Result<usize, Box<AssignedUnit>> {
        self.count_for_maxima(now);
        let least = together.max(1);
        let lacks = self.lacks_of(&assigned, least);
        if lacks.is_empty() {
            assigned.at_maximum = false;
            return Err(assigned);
        }
        // Whoever leaves already makes room enough: that is waited for where it is known.
        let is_coming = lacks.iter().all(|lack| lack.is_coming);
        let mut n_loops = 0;
        if !is_coming && self.may_have_leave(&assigned) {
            for wanted in self.sizes(&assigned, together, left) {
                self.seeks.n_tried += 1;
                match self.seek_full(&assigned, wanted) {
                    Ok(tried) => {
                        let n_tried = tried.n_placed;
                        self.decide(&mut assigned, tried, decisions);
                        self.attach(assigned, State::Ready);
                        return Ok(n_tried);
                    }
                    Err(n) => n_loops = n_loops.max(n),
                }
            }
        }
        let reason = self.full_words(&lacks, n_loops);
        let reason = RefusalCount { plugin: "queue", reason, nodes: 0 };
        let refusals = Refusals { reasons: vec![reason], attempts: assigned.attempts, ..Refusals::default() };
        self.return_full(assigned, Arc::new(refusals));
        Ok(1)
    }

    /// The search of a plan in full queues: for so many together, or else for as many as there can be.
    pub(super) fn plan_full(&mut self, assigned: &AssignedUnit, together: usize) -> Option<Try> {
        self.count_for_maxima(Millis(0));
        let is_coming = self.lacks_of(assigned, together.max(1)).iter().all(|lack| lack.is_coming);
        if is_coming || !self.may_have_leave(assigned) {
            return None;
        }
        let sizes = self.sizes(assigned, if together > 1 { together } else { 0 }, assigned.pending());
        sizes.into_iter().find_map(|wanted| self.seek_full(assigned, wanted).ok())
    }

    /// Whether anybody may be made to leave for a unit.
    fn may_have_leave(&self, assigned: &AssignedUnit) -> bool {
        let may_find = self.cluster.has_below(assigned.turn.0.0)
            || (self.cluster.has_preemptible() && self.shares.may_claim(assigned.queue));
        self.config.preemption && !self.seeks.is_paused && !self.cluster.frozen().keeps_all() && may_find
    }

    /// For how many to look, one after the other, until some are found.
    fn sizes(&mut self, assigned: &AssignedUnit, together: usize, left: usize) -> Vec<usize> {
        if together > 0 || assigned.one_by_one {
            return vec![together.max(1)];
        }
        let most = assigned.pending().min(left).clamp(1, N_ASKED_MAX);
        let mut sizes = self.portions(assigned, 0, most);
        let less = |n: &usize| Some(if *n > N_ONE_BY_ONE { n / 2 } else { n - 1 }).filter(|n| *n > 0);
        sizes.extend(std::iter::successors(Some(most), less));
        sizes.retain(|n| *n > 0);
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        sizes
    }

    /// What is lacking in queues for the first so many running units.
    fn lacks_of(&mut self, assigned: &AssignedUnit, n: usize) -> Vec<Lack> {
        let needs = self.first_needs(assigned, n);
        self.shares.lacks(assigned.queue, &needs, &self.cluster)
    }

    fn first_needs(&mut self, assigned: &AssignedUnit, n: usize) -> Needs {
        let mut left = n;
        let counts: Vec<(u16, usize)> = (0u16..)
            .zip(&assigned.groups)
            .map(|(group, work)| {
                let taken = work.pending().len().min(left);
                left -= taken;
                (group, taken)
            })
            .collect();
        self.needs(assigned, counts)
    }

    /// One search, for the first so many running units.
    ///
    /// # Errors
    /// They cannot all be placed: how many units were spared because they preempted this one before.
    fn seek_full(&mut self, assigned: &AssignedUnit, wanted: usize) -> Result<Try, usize> {
        let seeker = Seeker {
            unit: assigned.unit(),
            priority: assigned.turn.0.0,
            pool: assigned.pool,
            now_ms: self.seeks.wall_ms,
        };
        if let Some(relieved) = self.relieve(assigned, &seeker, wanted) {
            return relieved;
        }
        let (mut tried, mut preemption) = (Try::default(), Preemption::default());
        let mut reach = 0;
        for (group, work) in (0u16..).zip(&assigned.groups) {
            let pending = &work.pending()[..work.pending().len().min(wanted - tried.n_placed)];
            if pending.is_empty() {
                continue;
            }
            let placed = tried.groups.iter().map(|placement| (placement.group, placement.ordinals.len()));
            let needs = self.needs(assigned, placed.chain([(group, pending.len())]));
            reach |= self.shares.rights(assigned.queue, &needs).map_or(0, |rights| rights.reach());
            let found = self.search_full(&seeker, (assigned, &needs), (group, pending.len()), &preemption);
            let (n_found, n_loops) = (found.places.len(), found.n_loops);
            tried.n_loops += n_loops;
            self.seeks.n_loops += n_loops as u64;
            let mut placement = GroupPlacement { group, ..GroupPlacement::default() };
            self.take_found(assigned, (group, pending), found, &mut placement, &mut preemption);
            tried.groups.push(placement);
            tried.n_placed += n_found;
            if n_found < pending.len() {
                break;
            }
        }
        let n_victims = preemption.n_victims();
        if tried.n_placed < wanted.max(1)
            || n_victims == 0
            || n_victims > N_VICTIMS_MAX
            || !self.still_reaches(assigned, &tried, reach)
        {
            self.unclaim(&preemption);
            self.undo(assigned.unit(), &tried.groups);
            return Err(tried.n_loops);
        }
        preemption.claims.sort_unstable();
        preemption.others.sort_unstable();
        self.seeks.n_victims += n_victims as u64;
        tried.preemption = Some(Box::new(preemption));
        Ok(tried)
    }

    /// Where all of it has places as things are, those that have to leave its queues. `None`: it has not.
    fn relieve(
        &mut self,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        wanted: usize,
    ) -> Option<Result<Try, usize>> {
        // A decision for which others leave enters no slots.
        let mut tried = self.place_in(assigned, &Owned::new(), wanted);
        if tried.n_placed < wanted {
            self.undo(assigned.unit(), &tried.groups);
            return None;
        }
        let placed = tried.groups.iter().map(|placement| (placement.group, placement.ordinals.len()));
        let needs = self.needs(assigned, placed);
        let lacks = self.shares.lacks(assigned.queue, &needs, &self.cluster);
        let units = self.units_below(&lacks);
        let Self { placer, cluster, seeks, shares, .. } = self;
        let shape = placer.templates.get(assigned.groups[0].template).ask.shape();
        let rights = shares.rights(assigned.queue, &needs);
        let full = Full { quota: shares.quota(), lacks: &lacks, units: &units };
        let who = (seeker, seeks.claimed());
        let (found, is_relieved) = preempt::relieve(cluster, who, rights.as_ref(), shape, &full);
        seeks.n_loops += found.n_loops as u64;
        if !is_relieved || found.others.is_empty() {
            self.undo(assigned.unit(), &tried.groups);
            return Some(Err(found.n_loops));
        }
        self.claim(&found.others);
        self.seeks.n_victims += found.others.len() as u64;
        tried.n_loops = found.n_loops;
        tried.preemption = Some(Box::new(Preemption { others: found.others, ..Preemption::default() }));
        Some(Ok(tried))
    }

    /// Units with running units below the highest of some full queues, in order.
    fn units_below(&mut self, lacks: &[Lack]) -> Vec<UnitId> {
        let highest = lacks.last().map(|lack| lack.queue);
        highest.map(|queue| self.shares.running_below(queue, &self.cluster)).unwrap_or_default()
    }

    /// Own nodes first, if that is how nodes are split, then all.
    fn search_full(
        &mut self,
        seeker: &Seeker,
        (assigned, needs): (&AssignedUnit, &Needs),
        (group, n): (u16, usize),
        before: &Preemption,
    ) -> Found {
        let given = self.given(assigned.queue, before);
        let mut lacks = self.shares.lacks(assigned.queue, needs, &self.cluster);
        for lack in &mut lacks {
            if let Some((_, given)) = given.iter().find(|(level, _)| *level == lack.queue) {
                sum_of(&mut lack.amounts, given, -1);
            }
        }
        lacks.retain(|lack| lack.amounts.iter().any(|amount| *amount > 0));
        let units = self.units_below(&lacks);
        let template = assigned.groups[usize::from(group)].template;
        let Self { placer, cluster, seeks, shares, .. } = self;
        let shape = placer.templates.get(template).ask.shape();
        let rights = shares.rights(assigned.queue, needs);
        let full = Full { quota: shares.quota(), lacks: &lacks, units: &units };
        let who = (seeker, seeks.claimed());
        if placer.view.is_preferred() {
            let own: Vec<usize> = placer.with_room_aside(cluster, template, true);
            let found = preempt::search_full(cluster, who, rights.as_ref(), shape, &own, n, &full);
            if found.places.len() >= n {
                return found;
            }
        }
        let all: Vec<usize> = placer.with_room_aside(cluster, template, false);
        preempt::search_full(cluster, who, rights.as_ref(), shape, &all, n, &full)
    }

    /// What these victims give back of a queue and of those above it.
    fn given(&self, queue: QueueIdx, preemption: &Preemption) -> Vec<(QueueIdx, Amounts)> {
        let quota = self.shares.quota();
        let mut given: Vec<(QueueIdx, Amounts)> = Vec::new();
        for victim in preemption.victims() {
            let Some(rows) = self.cluster.rows(victim.unit) else { continue };
            let (of, takes) = paid(quota, rows, &rows.row(victim.ordinal));
            for level in
                quota.tree().upwards(of).filter(|level| quota.tree().upwards(queue).any(|own| own == *level))
            {
                match given.iter_mut().find(|(known, _)| *known == level) {
                    Some((_, sum)) => sum_of(sum, &takes, 1),
                    None => given.push((level, takes.clone())),
                }
            }
        }
        given
    }

    fn full_words(&self, lacks: &[Lack], n_loops: usize) -> String {
        let quota = self.shares.quota();
        let Some(first) = lacks.first() else { return String::new() };
        let (queue, resource) = quota.limit(quota.usage().first_of(first));
        let full = PendingReason::Full { queue: queue.to_owned(), resource: resource.to_owned() };
        match n_loops {
            0 => full.to_string(),
            n => format!(
                "{full}; {} spared that preempted this one before",
                godel_domain::words::count(n, "unit")
            ),
        }
    }
}
