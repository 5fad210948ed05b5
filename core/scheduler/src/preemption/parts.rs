//! Victims for a unit of which some replicas go to one domain together: segments, and task groups with a topology of their own.
//!
//! All that is needed at once is looked for in one decision. A task group that requires a domain is tried in each domain that could
//! hold it if nothing ran there, the cheapest one first, and the task groups after it beside that; a choice that cannot be cheaper
//! than what is known is given up, and the search ends after a number of tries that grows with the domains, not with their
//! combinations. Segments are alike, so that each takes the domain that is cheapest for it beside those before it. What a domain costs
//! is compared as in a search for a whole unit in one domain.
//!
//! A victim may take its unit along, which runs in other domains too: what leaves there is room for the parts that come later, and costs
//! nothing more. So a domain that is dear by itself may be the cheapest together with another one: where units leave from several
//! domains, segments are tried in all combinations as well, as far as the tries go.

use godel_base::ids::{NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_cluster::{GroupRef, TrialMark, UnitRules};
use godel_domain::decision::{Claim, GroupPlacement, NodeVictims, Preemption};
use godel_framework::{plugins::victims::whole_gang::min_member, point::Seeker, registry::CandidateKey};
use godel_placement::preempt::N_VICTIMS_MAX;

use super::{
    PreemptionSearch, SoughtReplicas, add_victims, back,
    domains::{cost_of, sort_of},
    still_reaches,
};
use crate::{
    assigned_unit::{AssignedUnit, GroupWork},
    picture::{
        LevelGroup, Picture, Try, append,
        group_domains::{GroupPart, Piece, parts_of, segments_of},
        segments::{LevelDomains, besides, by_segment},
        topology::{is_one_by_one, look_within},
    },
};

/// Tries of a task group in one domain, above four for each domain of each task group.
const N_TRIES_MORE: usize = 64;

/// What was found for some replicas of a task group in one domain.
#[derive(Default)]
struct PartStep {
    /// What had been tried before.
    mark: TrialMark,
    /// The first pending replica of the ones that its replicas are of.
    first: Option<ReplicaId>,
    placement: GroupPlacement,
    preemption: Preemption,
    /// Those who leave for other steps, and whose room is taken.
    freed: Vec<RunningUnitId>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartsIn {
    /// Replicas that have to be placed together; 1 or 0: the next ones that go together.
    pub(super) together: usize,
    /// The domain of the whole unit.
    pub(super) within: Option<LevelGroup>,
    /// The unit's queues are at a maximum: running units below them make room there as well.
    pub(super) is_full: bool,
}

/// A search under way.
struct PartSearch<'a> {
    victims: &'a mut PreemptionSearch,
    assigned: &'a AssignedUnit,
    rules: &'a UnitRules,
    seeker: &'a Seeker,
    /// The domain of the whole unit.
    within: Option<LevelGroup>,
    is_full: bool,
    /// Units leave from several domains.
    spans: bool,
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
    Known(CandidateKey),
}

/// The domains that were chosen for the parts of a unit, and what that costs.
type Choice = (CandidateKey, Vec<Option<LevelGroup>>);

/// Places what is missing of a first binding of `together`, or else the next replicas that go together, where others leave; in one group
/// of nodes if there is one. What was placed before is taken back.
///
/// # Errors
/// Too few would leave, and nothing is placed: when somebody will have run long enough, Unix milliseconds.
pub(super) fn find_parts(
    victims: &mut PreemptionSearch,
    picture: &mut Picture,
    assigned: &AssignedUnit,
    rules: &UnitRules,
    seeker: &Seeker,
    parts: PartsIn,
    tried: &mut Try,
) -> Result<(), Option<i64>> {
    let failed = std::mem::take(&mut tried.failed);
    picture.take_back(tried);
    let one_by_one = is_one_by_one(picture, assigned);
    let mut search = PartSearch {
        victims: &mut *victims,
        assigned,
        rules,
        seeker,
        within: parts.within,
        is_full: parts.is_full,
        spans: false,
        steps: Vec::new(),
        left: 0,
        retry_ms: None,
        n_loops: 0,
        reach: 0,
        one_by_one,
    };
    let found = match parts.together {
        0 | 1 => next_parts(picture, assigned, rules)
            .into_iter()
            .find_map(|part| search.find_all(picture, &[part])),
        together => search.find_all(picture, &parts_of(rules, &assigned.first(together))),
    };
    let (n_loops, retry_ms) = (search.n_loops, search.retry_ms);
    victims.counters.n_loops += n_loops as u64;
    let Some(found) = found else {
        (tried.failed, tried.n_loops) = (failed, n_loops);
        return Err(retry_ms);
    };
    victims.counters.n_victims += found.claim.victims().count() as u64;
    *tried = Try { n_loops, ..found };
    Ok(())
}

impl PartSearch<'_> {
    /// Looks for all of some parts in the domains where that costs least; `None`: nothing is placed.
    fn find_all(&mut self, picture: &mut Picture, parts: &[GroupPart<'_>]) -> Option<Try> {
        let compared = picture.placer.set_compares(true);
        let chosen = self.choose(picture, parts);
        picture.placer.set_compares(compared);
        let chosen = chosen?;
        (self.n_loops, self.reach) = (0, 0);
        let mut found = Try::begin(&picture.cluster);
        let is_found = chosen.into_iter().all(|(piece, place)| self.take_piece(picture, piece, place));
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
        for step in &self.steps {
            back(&picture.cluster, &mut preemption, step.placement.group, step.freed.clone());
        }
        let n_victims = preemption.n_victims();
        if !is_found
            || n_victims > N_VICTIMS_MAX
            || self.is_full && n_victims == 0
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

    /// Chooses a domain for each of some parts, or for each of their segments, where all of them together cost least. Nothing stays
    /// assumed.
    fn choose<'p>(
        &mut self,
        picture: &mut Picture,
        parts: &[GroupPart<'p>],
    ) -> Option<Vec<(Piece<'p>, Option<LevelGroup>)>> {
        self.spans = false;
        let mut pieces: Vec<Piece<'p>> = parts.iter().map(|part| Piece::whole(*part)).collect();
        let n_domains: usize = pieces.iter().map(|piece| self.choices(picture, *piece).len()).sum();
        self.left = 4 * n_domains + N_TRIES_MORE;
        let mut best: Option<Choice> = None;
        self.branch(picture, &pieces, &mut Vec::new(), &mut best);
        let segments = Piece::by_segment(self.rules, parts);
        if self.spans && segments.len() > pieces.len() {
            // Only what is cheaper than that counts.
            let mut cheaper = best.as_ref().map(|(cost, _)| (*cost, Vec::new()));
            self.left = 4 * self.choices(picture, segments[0]).len() + N_TRIES_MORE;
            self.branch(picture, &segments, &mut Vec::new(), &mut cheaper);
            if cheaper.as_ref().is_some_and(|(_, chosen)| chosen.len() == segments.len()) {
                (best, pieces) = (cheaper, segments);
            }
        }
        let (_, chosen) = best?;
        Some(pieces.into_iter().zip(chosen).collect())
    }

    /// Chooses domains for the remaining pieces, beside what was chosen for those before them: the cheapest choice of all that are
    /// tried. Nothing stays assumed.
    fn branch(
        &mut self,
        picture: &mut Picture,
        pieces: &[Piece<'_>],
        chosen: &mut Vec<Option<LevelGroup>>,
        best: &mut Option<Choice>,
    ) {
        let Some((piece, rest)) = pieces.split_first() else {
            let cost = self.cost(picture);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                *best = Some((cost, chosen.clone()));
            }
            return;
        };
        let n_max = picture.placer.preference(piece.part.work.template, self.assigned.unit()).n_domains_max();
        let before = self.steps.len();
        let mut options: Vec<(CandidateKey, Option<LevelGroup>)> = Vec::new();
        for place in self.choices(picture, *piece) {
            if options.len() >= n_max || self.left == 0 {
                break;
            }
            self.left -= 1;
            if self.take_piece(picture, *piece, place) {
                options.push((self.cost(picture), place));
                self.take_back_to(picture, before);
            }
        }
        options.sort_by_key(|(cost, _)| *cost);
        for (cost, place) in options {
            if best.as_ref().is_some_and(|(least, _)| cost >= *least) {
                return;
            }
            if self.take_piece(picture, *piece, place) {
                chosen.push(place);
                self.branch(picture, rest, chosen, best);
                chosen.pop();
                self.take_back_to(picture, before);
            }
        }
    }

    /// Takes places for all of a piece in a group of nodes, or none.
    fn take_piece(
        &mut self,
        picture: &mut Picture,
        Piece { part, is_segment }: Piece<'_>,
        place: Option<LevelGroup>,
    ) -> bool {
        let rules = self.rules;
        let Some(rule) = segments_of(rules, part.work).filter(|_| !is_segment) else {
            let Some(step) = self.look_in(picture, part, place) else { return false };
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
            let there = picture.cluster.taken().node_of_any(self.assigned.unit(), besides(segment, ordinals));
            let segment = GroupPart { wanted: segment, ..part };
            if !self.take_segment(picture, segment, &domains, there, n_max, &mut costs) {
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
        segment: GroupPart<'_>,
        domains: &LevelDomains,
        there: Option<NodeId>,
        n_max: usize,
        costs: &mut [SegmentCost],
    ) -> bool {
        let n_wanted = u32::try_from(segment.wanted.len()).unwrap_or(u32::MAX);
        loop {
            let mut cheapest: Option<(CandidateKey, usize)> = None;
            let mut n_found = 0;
            for (at, domain) in domains.inside.iter().enumerate() {
                let nodes = domains.groups.nodes(*domain);
                if n_found >= n_max || !there.is_none_or(|NodeId(node)| nodes.contains(&node)) {
                    continue;
                }
                let could_hold = |picture: &Picture| {
                    picture.placer.could_hold(&picture.cluster, segment.work.template, nodes, n_wanted)
                };
                let cost = match costs[at] {
                    SegmentCost::Known(cost) => Some(cost),
                    SegmentCost::NoPlace => None,
                    SegmentCost::Unknown if !could_hold(picture) => None,
                    SegmentCost::Unknown => {
                        let compared = picture.placer.set_compares(true);
                        let step = self.look_in(picture, segment, Some((domains.level, *domain)));
                        picture.placer.set_compares(compared);
                        step.map(|step| {
                            let cost =
                                cost_of(picture, sort_of(picture, self.assigned), step.preemption.victims());
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
            match self.look_in(picture, segment, place) {
                Some(step) => {
                    costs[at] = SegmentCost::Unknown;
                    forget_costs(picture, &step, domains, costs);
                    self.steps.push(step);
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
        GroupPart { work, wanted }: GroupPart<'_>,
        place: Option<LevelGroup>,
    ) -> Option<PartStep> {
        let assigned = self.assigned;
        look_within(picture, assigned, place);
        let mut step = PartStep {
            mark: picture.cluster.trial_mark(),
            first: work.pending().first().copied(),
            ..PartStep::default()
        };
        step.placement.group = work.group;
        let mut is_whole = true;
        for wanted in wanted.chunks(if self.one_by_one { 1 } else { wanted.len().max(1) }) {
            let needs = self.needs(picture, &step, work.group, wanted.len());
            self.reach |= picture.shares.rights(assigned.queue, &needs).map_or(0, |rights| rights.reach());
            let preemption = self.leaving(picture, &step);
            let placed = self.steps.iter().chain([&step]).map(|step| &step.placement);
            let (cluster, n) = (&picture.cluster, wanted.len());
            let sought = SoughtReplicas::new(cluster, assigned, work, n, &needs, &preemption, placed);
            let found = match self.is_full {
                true => self.victims.search_full(picture, self.seeker, &sought),
                false => self.victims.search(picture, self.seeker, &sought),
            };
            self.n_loops += found.n_loops;
            self.retry_ms = self.retry_ms.into_iter().chain(found.retry_ms).min();
            self.victims.counters.is_kept_by_budget |= found.is_kept;
            is_whole = found.places.len() >= wanted.len();
            self.spans |= !found.others.is_empty();
            let freed = self.victims.take_found(
                picture,
                assigned,
                wanted,
                found,
                &mut step.placement,
                &mut step.preemption,
            );
            step.freed.extend(freed);
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

    /// Who leaves by all steps and one more, with what each of them backs.
    fn leaving(&self, picture: &Picture, step: &PartStep) -> Preemption {
        let mut leaving = Preemption::default();
        for step in self.steps.iter().chain([step]) {
            leaving.nodes.extend(step.preemption.nodes.iter().cloned());
            leaving.others.extend(&step.preemption.others);
        }
        if leaving.others.is_empty() {
            return leaving;
        }
        for step in self.steps.iter().chain([step]) {
            let group = step.placement.group;
            for member in &step.freed {
                let Some(at) = leaving.others.iter().position(|other| other == member) else { continue };
                leaving.others.swap_remove(at);
                let rows = picture.cluster.rows().of(member.unit);
                let node = rows.map(|rows| rows.row(member.replica.ordinal).node).unwrap_or_default();
                let (victims, holds) = (vec![*member], Vec::new());
                leaving.nodes.push(NodeVictims { group, node, victims, holds });
            }
        }
        leaving
    }

    fn drop_step(&mut self, picture: &mut Picture, step: &PartStep) {
        self.victims.unclaim(&mut picture.cluster, &step.preemption);
        picture.cluster.take_back(step.mark);
    }

    /// Takes back all but the first steps.
    fn take_back_to(&mut self, picture: &mut Picture, n_kept: usize) {
        while self.steps.len() > n_kept
            && let Some(step) = self.steps.pop()
        {
            self.drop_step(picture, &step);
        }
    }

    /// Where a piece may go.
    fn choices(&self, picture: &mut Picture, piece: Piece<'_>) -> Vec<Option<LevelGroup>> {
        piece.choices(picture, self.assigned, self.rules, self.within)
    }

    fn cost(&self, picture: &Picture) -> CandidateKey {
        cost_of(
            picture,
            sort_of(picture, self.assigned),
            self.steps.iter().flat_map(|step| step.preemption.victims()),
        )
    }

    /// All that is asked of the queue at once: what was found, and `n` more of one group.
    fn needs(
        &self,
        picture: &mut Picture,
        step: &PartStep,
        group: u16,
        n: usize,
    ) -> crate::shares::QueueNeeds {
        if !self.is_full && picture.shares.told_apart(self.assigned.queue).is_none() {
            return crate::shares::QueueNeeds::new();
        }
        let steps = self.steps.iter().chain([step]);
        let placed = steps.map(|step| (step.placement.group, step.placement.ordinals.len()));
        picture.needs(self.assigned, placed.chain([(group, n)]))
    }
}

/// Domains in which the units that leave for a step have running units cost something else now: these leave as well, or would take the
/// rest of their unit along.
fn forget_costs(picture: &Picture, step: &PartStep, domains: &LevelDomains, costs: &mut [SegmentCost]) {
    let mut units: Vec<UnitId> = step.preemption.victims().map(|victim| victim.unit).collect();
    units.sort_unstable();
    units.dedup();
    let known = units.into_iter().filter_map(|unit| picture.cluster.rows().of(unit));
    for (_, row) in known.filter(|rows| min_member(rows) > 1).flat_map(|rows| rows.live()) {
        let is_there = |domain: usize| {
            picture.cluster.domains().groups.is_in(GroupRef::new(domains.level, domain), row.node.idx())
        };
        for (cost, domain) in costs.iter_mut().zip(&domains.inside) {
            if is_there(*domain) {
                *cost = SegmentCost::Unknown;
            }
        }
    }
}

/// What may be placed next of each task group of a unit whose first binding is made: the rest of a segment, or one replica. A task group of
/// which nothing is there yet begins where all of it has room, if it has to be in one domain.
fn next_parts<'a>(picture: &Picture, assigned: &'a AssignedUnit, rules: &UnitRules) -> Vec<GroupPart<'a>> {
    let begins = |work: &GroupWork| {
        let of_group = rules.of_group(work.group).filter(|rules| rules.needs_level());
        of_group.is_some_and(|rules| {
            let others = besides(work.pending(), rules.whole.ordinals(0));
            picture.cluster.taken().node_of_any(assigned.unit(), others).is_none()
        })
    };
    let whole = assigned.pending_groups().filter(|work| work.pending().len() > 1 && begins(work));
    let whole = whole.map(|work| (work, work.pending().len()));
    let works: Vec<(&GroupWork, usize)> =
        whole.chain(assigned.pending_groups().map(|work| (work, 1))).collect();
    parts_of(rules, &works)
}
