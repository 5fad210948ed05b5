//! A unit whose queue is at a maximum: it has a place once running units of lower rank there have left.
//!
//! The dispatcher hands such a unit out when somebody below that queue may be of lower rank, and has it back at once if nobody
//! can be made to leave: it knows when that is worth another try. What the unit takes and what its victims give up is counted
//! as the binder counts it, so that one decision names all victims, for the queue and for room on nodes.

use godel_base::{ids::UnitId, time::Millis};
use godel_cluster::{Cluster, Owned};
use godel_domain::{
    decision::{GroupPlacement, Preemption},
    refusals::{RefusalCount, Refusals, WaitReason},
};
use godel_framework::point::Seeker;
use godel_placement::preempt::{self, Found, Full, Lent, N_VICTIMS_MAX, SoFar, VictimQuery, paid};
use godel_queueing::{Amounts, Lack, PendingReason, QueueIdx, Quota, sum_of};

use super::{
    PreemptionSearch,
    parts::{PartsIn, find_parts},
    seeker_of,
    so_far::SoughtReplicas,
};
use crate::{
    assigned_unit::AssignedUnit,
    picture::{
        LevelGroup, Picture, Try,
        topology::{is_one_by_one, look_within, required_level, rules_of_parts},
    },
    shares::QueueNeeds,
};

/// Replicas that one decision asks room for in a full queue.
const N_ASKED_MAX: usize = 256;
/// Up to this number of replicas the next search is for one less, beyond it for half of them.
const N_ONE_BY_ONE: usize = 8;

impl PreemptionSearch {
    /// Finds victims in the full queues of a unit, for as many of its running units as possible. `lacks`: what is lacking for
    /// the fewest that can be placed at once.
    ///
    /// # Errors
    /// No victims were found: how many units were spared because they preempted this one before.
    pub(crate) fn relieve_queues(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        together: usize,
        left: usize,
        lacks: &[Lack],
    ) -> Result<Try, usize> {
        // Those that leave already make room enough: that is waited for where it is known.
        let is_coming = lacks.iter().all(|lack| lack.is_coming);
        let mut n_loops = 0;
        if !is_coming && self.may_relieve(picture, assigned) {
            for wanted in sizes(picture, assigned, together, left) {
                self.n_tried += 1;
                match self.find_in_full(picture, assigned, wanted) {
                    Ok(tried) => return Ok(tried),
                    Err(n) => n_loops = n_loops.max(n),
                }
            }
        }
        Err(n_loops)
    }

    /// The search of a plan in full queues: for `together` replicas, or else for as many as there can be.
    pub(crate) fn plan_relief(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        together: usize,
    ) -> Option<Try> {
        picture.shares.count_for_maxima(&mut picture.cluster, Millis(0));
        let is_coming = lacks_of(picture, assigned, together.max(1)).iter().all(|lack| lack.is_coming);
        if is_coming || !self.may_relieve(picture, assigned) {
            return None;
        }
        let together = if together > 1 { together } else { 0 };
        let sizes = sizes(picture, assigned, together, assigned.pending());
        sizes.into_iter().find_map(|wanted| self.find_in_full(picture, assigned, wanted).ok())
    }

    /// One search, for the first `wanted` running units.
    ///
    /// # Errors
    /// They cannot all be placed: how many units were spared because they preempted this one before.
    fn find_in_full(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        wanted: usize,
    ) -> Result<Try, usize> {
        let seeker = seeker_of(picture, assigned);
        if let Some(relieved) = self.relieve_placed(picture, assigned, &seeker, wanted) {
            return relieved;
        }
        let Some(level) = required_level(picture, assigned) else {
            return self.find_places_in_full(picture, assigned, &seeker, wanted, None);
        };
        let found = self.cheapest_domain(picture, assigned, wanted, &level, |search, picture, within| {
            search.find_places_in_full(picture, assigned, &seeker, wanted, Some(within))
        });
        found.map_err(|loops| loops.into_iter().max().unwrap_or(0))
    }

    /// The same in one group of nodes if there is one: part by part where some replicas go to one domain together, or else node by
    /// node.
    fn find_places_in_full(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        wanted: usize,
        within: Option<LevelGroup>,
    ) -> Result<Try, usize> {
        if let Some(rules) = rules_of_parts(picture, assigned) {
            let mut tried = Try::begin(&picture.cluster);
            let parts = PartsIn { together: wanted, within, is_full: true };
            let found = find_parts(self, picture, assigned, &rules, seeker, parts, &mut tried);
            return match found {
                Ok(()) => Ok(tried),
                Err(_) => Err(tried.n_loops),
            };
        }
        look_within(picture, assigned, within);
        let found = self.find_nodes_in_full(picture, assigned, seeker, wanted);
        look_within(picture, assigned, None);
        found
    }

    /// The same, node by node.
    fn find_nodes_in_full(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        wanted: usize,
    ) -> Result<Try, usize> {
        let (mut tried, mut preemption) = (Try::begin(&picture.cluster), Preemption::default());
        let mut reach = 0;
        let one_by_one = is_one_by_one(picture, assigned);
        for (work, n) in assigned.first(wanted) {
            let group = work.group;
            let pending = &work.pending()[..n];
            if pending.is_empty() {
                continue;
            }
            let mut placement = GroupPlacement { group, ..GroupPlacement::default() };
            for pending in pending.chunks(if one_by_one { 1 } else { pending.len() }) {
                let placed = tried.groups.iter().map(|placed| (placed.group, placed.ordinals.len()));
                let of_group = (group, placement.ordinals.len() + pending.len());
                let needs = picture.needs(assigned, placed.chain([of_group]));
                reach |= picture.shares.rights(assigned.queue, &needs).map_or(0, |rights| rights.reach());
                let (cluster, placed) = (&picture.cluster, tried.groups.iter().chain([&placement]));
                let sought =
                    SoughtReplicas::new(cluster, assigned, work, pending.len(), &needs, &preemption, placed);
                let found = self.search_full(picture, seeker, &sought);
                let (n_found, n_loops) = (found.places.len(), found.n_loops);
                tried.n_loops += n_loops;
                self.counters.n_loops += n_loops as u64;
                let _ = self.take_found(picture, assigned, pending, found, &mut placement, &mut preemption);
                tried.n_placed += n_found;
                if n_found < pending.len() {
                    break;
                }
            }
            let is_whole = placement.ordinals.len() == pending.len();
            tried.groups.push(placement);
            if !is_whole {
                break;
            }
        }
        let n_victims = preemption.n_victims();
        if tried.n_placed < wanted.max(1)
            || n_victims == 0
            || n_victims > N_VICTIMS_MAX
            || !still_reaches(picture, assigned, &tried, reach)
        {
            self.unclaim(&mut picture.cluster, &preemption);
            picture.cluster.take_back(tried.mark);
            return Err(tried.n_loops);
        }
        preemption.nodes.sort_unstable();
        preemption.others.sort_unstable();
        self.counters.n_victims += n_victims as u64;
        tried.claim = preemption.into();
        Ok(tried)
    }

    /// The victims in its queues where all of a unit has places as things are. `None`: it has not.
    fn relieve_placed(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        wanted: usize,
    ) -> Option<Result<Try, usize>> {
        // A decision for which others leave enters no slots.
        let mut tried = picture.place_with(assigned, &Owned::new(), wanted);
        if tried.n_placed < wanted {
            picture.cluster.take_back(tried.mark);
            return None;
        }
        let placed = tried.groups.iter().map(|placement| (placement.group, placement.ordinals.len()));
        let needs = picture.needs(assigned, placed);
        let lacks = picture.shares.lacks(assigned.queue, &needs, &picture.cluster);
        let units = units_below(picture, &lacks);
        let Picture { placer, cluster, shares, .. } = &mut *picture;
        let shape = placer.templates.get(assigned.groups[0].template).ask.shape();
        let rights = shares.rights(assigned.queue, &needs);
        let full = Full { quota: shares.quota(), lacks: &lacks, units: &units };
        let (so_far, lent) = (&SoFar::default(), &Lent::default());
        let (claimed, rights) = (&self.claimed, rights.as_ref());
        let relieve = |cluster: &mut Cluster, seeker: &Seeker| {
            let query = VictimQuery { seeker, shape, rights, claimed, so_far, lent };
            preempt::relieve(cluster, &query, &full)
        };
        let mut relieved = relieve(cluster, &seeker.sparing_masters());
        if !relieved.1 && relieved.0.is_master_spared {
            relieved = relieve(cluster, seeker);
        }
        let (found, is_relieved) = relieved;
        self.counters.n_loops += found.n_loops as u64;
        if !is_relieved || found.others.is_empty() {
            picture.cluster.take_back(tried.mark);
            return Some(Err(found.n_loops));
        }
        self.claim(cluster, &found.others);
        self.counters.n_victims += found.others.len() as u64;
        tried.n_loops = found.n_loops;
        tried.claim = Preemption { others: found.others, ..Preemption::default() }.into();
        Some(Ok(tried))
    }

    /// Looks without masters of applications everywhere, and once more with them where too few of the others would leave.
    pub(super) fn search_full(
        &self,
        picture: &mut Picture,
        seeker: &Seeker,
        sought: &SoughtReplicas<'_>,
    ) -> Found {
        let of_others = self.search_full_as(picture, &seeker.sparing_masters(), sought);
        if of_others.places.len() >= sought.n || !of_others.is_master_spared {
            return of_others;
        }
        let of_all = self.search_full_as(picture, seeker, sought);
        if of_all.places.len() > of_others.places.len() { of_all } else { of_others }
    }

    /// Own nodes first, if that is how nodes are split, then all.
    fn search_full_as(&self, picture: &mut Picture, seeker: &Seeker, sought: &SoughtReplicas<'_>) -> Found {
        let SoughtReplicas { template, n, queue, needs, preemption, ref so_far } = *sought;
        let given = given(picture, queue, preemption);
        let mut lacks = picture.shares.lacks(queue, needs, &picture.cluster);
        for lack in &mut lacks {
            if let Some((_, given)) = given.iter().find(|(level, _)| *level == lack.queue) {
                sum_of(&mut lack.amounts, given, -1);
            }
        }
        lacks.retain(|lack| lack.amounts.iter().any(|amount| *amount > 0));
        let units = units_below(picture, &lacks);
        let Picture { placer, cluster, shares, .. } = picture;
        let shape = placer.templates.get(template).ask.shape();
        let rights = shares.rights(queue, needs);
        let full = Full { quota: shares.quota(), lacks: &lacks, units: &units };
        let (claimed, lent) = (&self.claimed, &Lent::default());
        let query = VictimQuery { seeker, shape, rights: rights.as_ref(), claimed, so_far, lent };
        if placer.view.is_preferred() && seeker.spares_masters {
            let own: Vec<usize> = placer.with_room_aside(cluster, template, true);
            let preference = placer.preference(template, seeker.unit);
            let found = preempt::search_full(cluster, &query, &own, n, &full, &preference);
            if found.places.len() >= n {
                return found;
            }
        }
        let all: Vec<usize> = placer.with_room_aside(cluster, template, false);
        let preference = placer.preference(template, seeker.unit);
        preempt::search_full(cluster, &query, &all, n, &full, &preference)
    }
}

/// For how many to search, one after the other, until some are found.
fn sizes(picture: &mut Picture, assigned: &AssignedUnit, together: usize, left: usize) -> Vec<usize> {
    if together > 0 || assigned.tries.one_by_one {
        return vec![together.max(1)];
    }
    let most = assigned.pending().min(left).clamp(1, N_ASKED_MAX);
    let mut sizes = portions(picture, assigned, 0, most);
    let less = |n: &usize| Some(if *n > N_ONE_BY_ONE { n / 2 } else { n - 1 }).filter(|n| *n > 0);
    sizes.extend(std::iter::successors(Some(most), less));
    sizes.retain(|n| *n > 0);
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    sizes
}

/// What is lacking in queues for the first `n` running units.
pub(crate) fn lacks_of(picture: &mut Picture, assigned: &AssignedUnit, n: usize) -> Vec<Lack> {
    let needs = first_needs(picture, assigned, n);
    picture.shares.lacks(assigned.queue, &needs, &picture.cluster)
}

fn first_needs(picture: &mut Picture, assigned: &AssignedUnit, n: usize) -> QueueNeeds {
    let counts: Vec<(u16, usize)> =
        assigned.first(n).into_iter().map(|(work, taken)| (work.group, taken)).collect();
    picture.needs(assigned, counts)
}

/// Units with running units below the highest of some full queues, in order.
fn units_below(picture: &mut Picture, lacks: &[Lack]) -> Vec<UnitId> {
    let highest = lacks.last().map(|lack| lack.queue);
    highest.map(|queue| picture.shares.running_below(queue, &picture.cluster)).unwrap_or_default()
}

/// What these victims give back of a queue and of those above it.
fn given(picture: &Picture, queue: QueueIdx, preemption: &Preemption) -> Vec<(QueueIdx, Amounts)> {
    let quota = picture.shares.quota();
    let mut given: Vec<(QueueIdx, Amounts)> = Vec::new();
    for victim in preemption.victims() {
        let Some(rows) = picture.cluster.rows().of(victim.unit) else { continue };
        let (of, takes) = paid(quota, rows, &rows.row(victim.replica.ordinal));
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

/// Why a unit goes back whose queue is full.
pub(crate) fn full_refusals(
    quota: &Quota,
    assigned: &AssignedUnit,
    lacks: &[Lack],
    n_loops: usize,
) -> Refusals {
    let reason = full_words(quota, lacks, n_loops);
    let reason = RefusalCount::waits(WaitReason::Queue, reason);
    Refusals { reasons: vec![reason], attempts: assigned.tries.attempts, ..Refusals::default() }
}

fn full_words(quota: &Quota, lacks: &[Lack], n_loops: usize) -> String {
    let Some(first) = lacks.first() else { return String::new() };
    let (queue, resource) = quota.limit(first.first());
    let full = PendingReason::Full { queue: queue.to_owned(), resource: resource.to_owned() };
    match n_loops {
        0 => full.to_string(),
        n => {
            let spared = godel_base::words::count(n, "unit");
            format!("{full}; {spared} spared that preempted this one before")
        }
    }
}

/// For how many to search, one after the other: those that are within a guarantee come before the others.
pub(super) fn portions(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    missing: usize,
    wanted: usize,
) -> Vec<usize> {
    if missing > 0 || !picture.shares.may_claim(assigned.queue) {
        return vec![wanted];
    }
    let counts = assigned.groups.iter().map(|work| (work.group, work.pending().len()));
    let pending = picture.needs(assigned, counts);
    let mut portions = picture.shares.portions(assigned.queue, &pending);
    portions.iter_mut().for_each(|n| *n = wanted.min(*n));
    portions.dedup();
    if portions.is_empty() { vec![wanted] } else { portions }
}

/// All that is asked of the queue at once: what is placed, and `n` more of one group.
pub(super) fn claimed_needs(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    tried: &Try,
    group: u16,
    n: usize,
) -> QueueNeeds {
    if picture.shares.told_apart(assigned.queue).is_none() {
        return QueueNeeds::new();
    }
    let placed = tried.groups.iter().map(|placement| (placement.group, placement.ordinals.len()));
    picture.needs(assigned, placed.chain([(group, n)]))
}

/// Whether all that was found is within the guarantees that each part of it was looked for with.
pub(super) fn still_reaches(picture: &mut Picture, assigned: &AssignedUnit, tried: &Try, reach: u64) -> bool {
    if reach == 0 {
        return true;
    }
    let needs = claimed_needs(picture, assigned, tried, 0, 0);
    picture.shares.rights(assigned.queue, &needs).is_some_and(|rights| rights.reach() & reach == reach)
}
