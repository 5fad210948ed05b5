//! Victims for a unit of which some replicas go to one domain together: segments, and task groups with a topology of their own.
//!
//! All that is needed at once is looked for in one decision. A task group that requires a domain is tried in each domain that could
//! hold it if nothing ran there, the cheapest one first, and the task groups after it beside that; a choice that cannot be cheaper
//! than what is known is given up, and the search ends after a number of tries that grows with the domains, not with their
//! combinations. Segments are alike, so that each takes the domain that is cheapest for it beside those before it. What a domain costs
//! is compared as in a search for a whole unit in one domain.

use godel_cluster::UnitRules;
use godel_domain::{
    decision::{Claim, GroupPlacement, Preemption},
    ids::{NodeId, ReplicaId},
};
use godel_placement::preempt::{N_VICTIMS_MAX, Seeker};

use super::{
    PreemptionSearch, add_victims,
    domains::{VictimCost, cost_of},
    still_reaches,
};
use crate::{
    assigned_unit::{AssignedUnit, GroupWork},
    picture::{
        LevelGroup, Picture, Try, append,
        group_domains::{GroupPart, parts_of},
        segments::{LevelDomains, by_segment},
        topology::{is_one_by_one, look_within},
    },
};

/// Tries of a task group in one domain, above four for each domain of each task group.
const N_TRIES_MORE: usize = 64;

/// What was found for some replicas of a task group in one domain.
#[derive(Default)]
struct PartStep {
    /// The first pending replica of the ones that its replicas are of.
    first: Option<ReplicaId>,
    placement: GroupPlacement,
    preemption: Preemption,
}

/// A search under way.
struct PartSearch<'a> {
    victims: &'a mut PreemptionSearch,
    assigned: &'a AssignedUnit,
    rules: &'a UnitRules,
    seeker: &'a Seeker,
    /// The domain of the whole unit.
    within: Option<LevelGroup>,
    /// What was found, in order.
    steps: Vec<PartStep>,
    /// Tries that are left.
    left: usize,
    retry_ms: Option<i64>,
    n_loops: usize,
    reach: u64,
    one_by_one: bool,
}

/// What the next segment costs in a domain.
#[derive(Clone, Copy)]
enum SegmentCost {
    /// It was not looked for yet, or not since the last segment took the domain.
    Unknown,
    /// Too few would leave there.
    NoPlace,
    /// What its victims are worth.
    Known(VictimCost),
}

/// The domains that were chosen for the parts of a unit, and what that costs.
type Choice = (VictimCost, Vec<Option<LevelGroup>>);

/// Places what is missing of a first binding of `together`, or else the next replicas that go together, where others leave; in one group
/// of nodes if there is one. What was placed before is taken back.
///
/// # Errors
/// Too few would leave, and nothing is placed: when somebody will have run long enough, Unix milliseconds.
pub(super) fn find_parts(
    victims: &mut PreemptionSearch,
    picture: &mut Picture,
    (assigned, rules): (&AssignedUnit, &UnitRules),
    seeker: &Seeker,
    (together, within): (usize, Option<LevelGroup>),
    tried: &mut Try,
) -> Result<(), Option<i64>> {
    let before = std::mem::take(tried);
    picture.undo(assigned.unit(), &before.groups);
    let one_by_one = is_one_by_one(picture, assigned);
    let mut search = PartSearch {
        victims: &mut *victims,
        assigned,
        rules,
        seeker,
        within,
        steps: Vec::new(),
        left: 0,
        retry_ms: None,
        n_loops: 0,
        reach: 0,
        one_by_one,
    };
    let found = match together {
        0 | 1 => next_parts(assigned, rules).into_iter().find_map(|part| search.find_all(picture, &[part])),
        _ => search.find_all(picture, &parts_of(rules, &assigned.first(together))),
    };
    let (n_loops, retry_ms) = (search.n_loops, search.retry_ms);
    victims.n_loops += n_loops as u64;
    let Some(found) = found else {
        (tried.failed, tried.n_loops) = (before.failed, n_loops);
        return Err(retry_ms);
    };
    victims.n_victims += found.claim.victims().count() as u64;
    *tried = Try { n_loops, ..found };
    Ok(())
}

impl PartSearch<'_> {
    /// Looks for all of some parts in the domains where that costs least; `None`: nothing is placed.
    fn find_all(&mut self, picture: &mut Picture, parts: &[GroupPart<'_>]) -> Option<Try> {
        let n_domains: usize = parts.iter().map(|part| self.choices(picture, *part).len()).sum();
        self.left = 4 * n_domains + N_TRIES_MORE;
        let mut best: Option<Choice> = None;
        let compared = picture.placer.set_compares(true);
        self.branch(picture, parts, &mut Vec::new(), &mut best);
        picture.placer.set_compares(compared);
        let (_, chosen) = best?;
        (self.n_loops, self.reach) = (0, 0);
        let is_found = parts.iter().zip(chosen).all(|(part, place)| self.take_part(picture, *part, place));
        let mut found = Try::default();
        let mut preemption = Preemption::default();
        let mut works: Vec<(u16, Option<ReplicaId>)> = Vec::new();
        for step in &self.steps {
            let work = (step.placement.group, step.first);
            match works.iter().position(|known| *known == work) {
                Some(at) => append(&mut found.groups[at], &step.placement),
                None => {
                    works.push(work);
                    found.groups.push(step.placement.clone());
                }
            }
            step.preemption.nodes.iter().for_each(|victims| add_victims(&mut preemption, victims.clone()));
            preemption.others.extend(&step.preemption.others);
            found.n_placed += step.placement.ordinals.len();
        }
        if !is_found
            || preemption.n_victims() > N_VICTIMS_MAX
            || !still_reaches(picture, self.assigned, &found, self.reach)
        {
            self.take_back_to(picture, 0);
            return None;
        }
        self.steps.clear();
        preemption.nodes.sort_unstable();
        preemption.others.sort_unstable();
        found.claim = if preemption.is_empty() { Claim::FreeRoom } else { preemption.into() };
        Some(found)
    }

    /// Chooses domains for the remaining parts, beside what was chosen for those before them: the cheapest choice of all that are
    /// tried. Nothing stays assumed.
    fn branch(
        &mut self,
        picture: &mut Picture,
        parts: &[GroupPart<'_>],
        chosen: &mut Vec<Option<LevelGroup>>,
        best: &mut Option<Choice>,
    ) {
        let Some((part, rest)) = parts.split_first() else {
            let cost = self.cost(picture);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                *best = Some((cost, chosen.clone()));
            }
            return;
        };
        let n_max = picture.placer.preference(part.work.template, self.assigned.unit()).n_domains_max();
        let before = self.steps.len();
        let mut options: Vec<(VictimCost, Option<LevelGroup>)> = Vec::new();
        for place in self.choices(picture, *part) {
            if options.len() >= n_max || self.left == 0 {
                break;
            }
            self.left -= 1;
            if self.take_part(picture, *part, place) {
                options.push((self.cost(picture), place));
                self.take_back_to(picture, before);
            }
        }
        options.sort_by_key(|(cost, _)| *cost);
        for (cost, place) in options {
            if best.as_ref().is_some_and(|(least, _)| cost >= *least) {
                return;
            }
            if self.take_part(picture, *part, place) {
                chosen.push(place);
                self.branch(picture, rest, chosen, best);
                chosen.pop();
                self.take_back_to(picture, before);
            }
        }
    }

    /// Takes places for all of a part in a group of nodes, or none.
    fn take_part(&mut self, picture: &mut Picture, part: GroupPart<'_>, place: Option<LevelGroup>) -> bool {
        let rules = self.rules;
        let of_group = rules.of_group(part.work.group).and_then(|rules| rules.segments.as_ref());
        let Some(rule) = rules.segments.as_ref().or(of_group) else {
            let Some(step) = self.look_in(picture, (part.work, part.wanted), place) else { return false };
            self.steps.push(step);
            return true;
        };
        let before = self.steps.len();
        let domains = LevelDomains::new(picture, &rule.level, place);
        let n_max = picture.placer.preference(part.work.template, self.assigned.unit()).n_domains_max();
        let mut costs = vec![SegmentCost::Unknown; domains.inside.len()];
        let mut n_costs_of = 0;
        for segment in by_segment(rule, part.wanted) {
            if segment.len() != n_costs_of {
                costs.fill(SegmentCost::Unknown);
                n_costs_of = segment.len();
            }
            let first = segment.first().map_or(0, |first| first.ordinal);
            let ordinals = rule.ordinals(rule.of(first));
            let there = picture.cluster.node_of_segment(self.assigned.unit(), ordinals, None);
            let wanted = (part.work, segment);
            if !self.take_segment(picture, wanted, (&domains, there, n_max), &mut costs) {
                self.take_back_to(picture, before);
                return false;
            }
        }
        true
    }

    /// Takes places for one segment in the domain that is cheapest for it.
    fn take_segment(
        &mut self,
        picture: &mut Picture,
        (work, segment): (&GroupWork, &[ReplicaId]),
        (domains, there, n_max): (&LevelDomains, Option<NodeId>, usize),
        costs: &mut [SegmentCost],
    ) -> bool {
        let n_wanted = u32::try_from(segment.len()).unwrap_or(u32::MAX);
        loop {
            let mut cheapest: Option<(VictimCost, usize)> = None;
            let mut n_found = 0;
            for (at, domain) in domains.inside.iter().enumerate() {
                let nodes = domains.groups.nodes(*domain);
                if n_found >= n_max || !there.is_none_or(|NodeId(node)| nodes.contains(&node)) {
                    continue;
                }
                let could_hold = |picture: &Picture| {
                    picture.placer.could_hold(&picture.cluster, work.template, nodes, n_wanted)
                };
                let cost = match costs[at] {
                    SegmentCost::Known(cost) => Some(cost),
                    SegmentCost::NoPlace => None,
                    SegmentCost::Unknown if !could_hold(picture) => None,
                    SegmentCost::Unknown => {
                        let compared = picture.placer.set_compares(true);
                        let step = self.look_in(picture, (work, segment), Some((domains.level, *domain)));
                        picture.placer.set_compares(compared);
                        step.map(|step| {
                            let cost = cost_of(picture, step.preemption.victims());
                            self.drop_step(picture, &step);
                            cost
                        })
                    }
                };
                costs[at] = cost.map_or(SegmentCost::NoPlace, SegmentCost::Known);
                n_found += usize::from(cost.is_some());
                if let Some(cost) = cost.filter(|cost| cheapest.is_none_or(|(least, _)| *cost < least)) {
                    cheapest = Some((cost, at));
                }
            }
            let Some((_, at)) = cheapest else { return false };
            let place = Some((domains.level, domains.inside[at]));
            match self.look_in(picture, (work, segment), place) {
                Some(step) => {
                    self.steps.push(step);
                    costs[at] = SegmentCost::Unknown;
                    return true;
                }
                None => costs[at] = SegmentCost::NoPlace,
            }
        }
    }

    /// Looks for places for all of some replicas of one task group in a group of nodes, and takes them; `None`: nothing is taken.
    fn look_in(
        &mut self,
        picture: &mut Picture,
        (work, wanted): (&GroupWork, &[ReplicaId]),
        place: Option<LevelGroup>,
    ) -> Option<PartStep> {
        let assigned = self.assigned;
        look_within(picture, assigned, place);
        let mut step = PartStep { first: work.pending().first().copied(), ..PartStep::default() };
        step.placement.group = work.group;
        let mut is_whole = true;
        for wanted in wanted.chunks(if self.one_by_one { 1 } else { wanted.len().max(1) }) {
            let needs = self.needs(picture, &step, (work.group, wanted.len()));
            self.reach |= picture.shares.rights(assigned.queue, &needs).map_or(0, |rights| rights.reach());
            let nodes = self.steps.iter().flat_map(|step| &step.preemption.nodes);
            let so_far = Preemption {
                nodes: nodes.chain(&step.preemption.nodes).cloned().collect(),
                ..Preemption::default()
            };
            let (on, asked) = ((assigned.queue, &needs[..]), (work.template, wanted.len()));
            let found = self.victims.search(picture, self.seeker, on, asked, &so_far);
            self.n_loops += found.n_loops;
            self.retry_ms = self.retry_ms.into_iter().chain(found.retry_ms).min();
            self.victims.is_kept_by_budget |= found.is_kept;
            is_whole = found.places.len() >= wanted.len();
            self.victims.take_found(
                picture,
                assigned,
                wanted,
                found,
                &mut step.placement,
                &mut step.preemption,
            );
            if !is_whole {
                break;
            }
        }
        look_within(picture, assigned, None);
        if !is_whole {
            self.drop_step(picture, &step);
            return None;
        }
        Some(step)
    }

    fn drop_step(&mut self, picture: &mut Picture, step: &PartStep) {
        self.victims.unclaim(&mut picture.cluster, &step.preemption);
        picture.undo_part(self.assigned.unit(), std::slice::from_ref(&step.placement));
    }

    /// Takes back all but the first steps.
    fn take_back_to(&mut self, picture: &mut Picture, n_kept: usize) {
        while self.steps.len() > n_kept
            && let Some(step) = self.steps.pop()
        {
            self.drop_step(picture, &step);
        }
    }

    /// Where a part may go: in each domain that could hold it, if it has to be in one; `None`: wherever the unit may.
    fn choices(
        &self,
        picture: &mut Picture,
        GroupPart { work, wanted }: GroupPart<'_>,
    ) -> Vec<Option<LevelGroup>> {
        let of_group = self.rules.of_group(work.group);
        let Some(whole) = of_group.filter(|rules| rules.needs_level()).map(|rules| &rules.whole) else {
            return vec![self.within];
        };
        let there = picture.cluster.node_of_segment(self.assigned.unit(), whole.ordinals(0), None);
        let domains = LevelDomains::new(picture, &whole.level, self.within);
        let n_wanted = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
        let may_be = |domain: &usize| {
            let nodes = domains.groups.nodes(*domain);
            there.is_none_or(|NodeId(node)| nodes.contains(&node))
                && picture.placer.could_hold(&picture.cluster, work.template, nodes, n_wanted)
        };
        let inside = domains.inside.iter().copied().filter(may_be);
        inside.map(|domain| Some((domains.level, domain))).collect()
    }

    fn cost(&self, picture: &Picture) -> VictimCost {
        cost_of(picture, self.steps.iter().flat_map(|step| step.preemption.victims()))
    }

    /// All that is asked of the queue at once: what was found, and `n` more of one group.
    fn needs(
        &self,
        picture: &mut Picture,
        step: &PartStep,
        (group, n): (u16, usize),
    ) -> crate::shares::QueueNeeds {
        if picture.shares.told_apart(self.assigned.queue).is_none() {
            return crate::shares::QueueNeeds::new();
        }
        let steps = self.steps.iter().chain([step]);
        let placed = steps.map(|step| (step.placement.group, step.placement.ordinals.len()));
        picture.needs(self.assigned, placed.chain([(group, n)]))
    }
}

/// What may be placed next of each task group of a unit whose first binding is made: the rest of a segment, or one replica.
fn next_parts<'a>(assigned: &'a AssignedUnit, rules: &UnitRules) -> Vec<GroupPart<'a>> {
    let works: Vec<(&GroupWork, usize)> = assigned.pending_groups().map(|work| (work, 1)).collect();
    parts_of(rules, &works)
}
