//! A unit's turn: nodes on which its room is gathered as it becomes free. And the other side of it: who is admitted to what
//! others gather.

use godel_base::ids::{NodeId, ReplicaId, RunningUnitId};
use godel_cluster::{TopologyLevel, UnitRules};
use godel_domain::{
    decision::{Claim, GroupPlacement},
    hold::Borrower,
};
use godel_placement::gang::{self, GroupAsk};

use super::{
    Picture, Try,
    group_domains::{GroupPart, Piece, parts_of, segments_of},
    placing::append,
    segments::{LevelDomains, LevelGroup, by_segment},
    topology::{could_hold, is_one_by_one, is_placed, look_within, required_level, rules_of_parts},
};
use crate::assigned_unit::{AssignedUnit, GroupWork};

/// Tries of some replicas in one domain, above four for each domain of each of them.
const N_TRIES_MORE: usize = 64;

/// The search for nodes on which room is gathered for a unit. Nothing is assumed there.
pub(crate) struct TurnSearch<'a> {
    picture: &'a mut Picture,
    assigned: &'a AssignedUnit,
}

impl<'a> TurnSearch<'a> {
    pub(crate) fn new(picture: &'a mut Picture, assigned: &'a AssignedUnit) -> Self {
        Self { picture, assigned }
    }

    /// Chooses nodes on which room is gathered for the next `together` running units of the unit.
    /// `None`: there is no such room, or what is in it goes on for good.
    pub(crate) fn for_gang(&mut self, together: usize) -> Option<Try> {
        self.find(&self.assigned.first(together))
    }

    /// The same for one running unit of a unit that is placed one by one: of its first task group for which there are nodes.
    pub(crate) fn for_one(&mut self) -> Option<Try> {
        let mut works = self.assigned.works().filter(|work| !work.pending().is_empty());
        works.find_map(|work| self.find(&[(work, 1)]))
    }

    fn find(&mut self, wanted: &[(&GroupWork, usize)]) -> Option<Try> {
        if self.assigned.facts.has_volumes {
            // Volumes say on which node each replica has to be: what is gathered elsewhere is of no use.
            return None;
        }
        self.picture.cluster.taken_mut().keep_occupants();
        match required_level(self.picture, self.assigned) {
            None => self.find_within(wanted, None).map(|(_, tried)| tried),
            Some(level) => self.find_in_domain(wanted, &level),
        }
    }

    /// The same for a gang that has to be in one domain of a level: in the domain where that is believed to take least time.
    fn find_in_domain(&mut self, wanted: &[(&GroupWork, usize)], level: &TopologyLevel) -> Option<Try> {
        let (number, groups) = self.picture.cluster.taken_mut().domains.groups_at(level);
        let together = wanted.iter().map(|(_, n)| n).sum();
        let mut best: Option<(i64, Try)> = None;
        for group in 0..groups.len() {
            if !could_hold(self.picture, self.assigned, groups.nodes(group), together) {
                continue;
            }
            if let Some((wait_ms, tried)) = self.find_within(wanted, Some((number, group)))
                && best.as_ref().is_none_or(|(least, _)| wait_ms < *least)
            {
                best = Some((wait_ms, tried));
            }
        }
        best.map(|(_, tried)| tried)
    }

    /// The same in one group of nodes, or wherever the unit may go, with how long it is believed to take, milliseconds.
    fn find_within(
        &mut self,
        wanted: &[(&GroupWork, usize)],
        within: Option<LevelGroup>,
    ) -> Option<(i64, Try)> {
        let Self { picture, assigned } = self;
        let (rules, one_by_one) = (rules_of_parts(picture, assigned), is_one_by_one(picture, assigned));
        if rules.is_none() && !one_by_one && !is_placed(picture, assigned) {
            look_within(picture, assigned, within);
            let found = self.find_here(wanted);
            look_within(self.picture, self.assigned, None);
            return found;
        }
        let rules = rules.unwrap_or_default();
        let parts = parts_of(&rules, wanted);
        let search = GatherSearch { assigned, rules: &rules, within, one_by_one, steps: Vec::new(), left: 0 };
        search.find(picture, &parts)
    }

    /// The same on the nodes that are looked at now, with how long it is believed to take, milliseconds.
    fn find_here(&mut self, works: &[(&GroupWork, usize)]) -> Option<(i64, Try)> {
        let Self { picture, assigned } = self;
        let mut asks = Vec::with_capacity(works.len());
        let mut wanted: Vec<(u16, &[ReplicaId])> = Vec::with_capacity(works.len());
        for (work, n) in works {
            let pending = &work.pending()[..*n];
            if pending.is_empty() {
                continue;
            }
            let nodes = nodes_to_gather_on(picture, assigned, work);
            let shape = picture.placer.templates.get(work.template).ask.shape();
            asks.push(GroupAsk { unit: assigned.unit(), shape, nodes, n: pending.len() });
            wanted.push((work.group, pending));
        }
        let chosen = gang::choose(&picture.cluster, &asks, assigned.priority(), picture.wall_ms)?;
        let place = |((group, wanted), places): ((u16, &[ReplicaId]), Vec<_>)| GroupPlacement {
            group,
            ordinals: wanted.iter().map(|replica| replica.ordinal).collect(),
            incarnations: incarnations(wanted),
            // Which devices they get is open until these are free.
            nodes: places.into_iter().map(|(node, _)| node).collect(),
            devices: Vec::new(),
            zones: Vec::new(),
        };
        let tried = Try {
            groups: wanted.into_iter().zip(chosen.places).map(place).collect(),
            n_placed: works.iter().map(|(_, n)| n).sum(),
            claim: Claim::Gathering,
            ..Try::begin(&picture.cluster)
        };
        Some((chosen.wait_ms, tried))
    }
}

impl Picture {
    /// Whether a unit is admitted to what some gang gathers, or to a slot of a reservation.
    pub(crate) fn is_admitted_anywhere(&self, assigned: &AssignedUnit) -> bool {
        self.may_borrow(assigned) || self.has_slots(assigned)
    }

    /// Whether a unit is admitted to what some gang gathers.
    pub(crate) fn may_borrow(&self, assigned: &AssignedUnit) -> bool {
        self.cluster.free().gathering().is_any()
            && self.cluster.free().gathering().admits(&self.borrower(assigned))
    }

    /// Places a unit once more, with room that others gather.
    pub(crate) fn place_in_gathered(&mut self, assigned: &AssignedUnit, quota: usize, tried: &mut Try) {
        if !self.may_borrow(assigned) {
            return;
        }
        self.take_back(tried);
        let borrower = self.borrower(assigned);
        let mut trial = self.cluster.trial();
        trial.lift_gathered(&borrower, None);
        let mark = trial.pause();
        *tried = Try { mark, ..self.place(assigned, quota) };
        self.cluster.resume(mark).join();
    }

    fn borrower(&self, assigned: &AssignedUnit) -> Borrower {
        let queue = self.shares.told_apart(assigned.queue);
        Borrower {
            priority: assigned.priority(),
            pool: assigned.facts.pool,
            active_deadline_ms: assigned.facts.active_deadline_ms,
            leaves_after_ms: assigned.facts.leaves_after_ms,
            queue: queue.map(|queue| self.shares.tree().shared_path(queue).clone()),
            home: Some(self.shares.tree().shared_path(assigned.queue).clone()),
            now_ms: self.wall_ms,
        }
    }
}

/// A search for nodes where the places of replicas depend on one another: each is chosen with those before it assumed.
struct GatherSearch<'a> {
    assigned: &'a AssignedUnit,
    rules: &'a UnitRules,
    /// The domain of the whole unit.
    within: Option<LevelGroup>,
    /// Where one replica goes depends on each of those before it.
    one_by_one: bool,
    /// What is chosen and assumed, in order.
    steps: Vec<GatherStep>,
    /// Tries that are left.
    left: usize,
}

/// Nodes for some replicas of one task group, and how long it is believed to take until there is room, milliseconds.
struct GatherStep {
    wait_ms: i64,
    placement: GroupPlacement,
}

impl GatherSearch<'_> {
    /// Chooses nodes for all of some parts. Nothing stays assumed.
    fn find(mut self, picture: &mut Picture, parts: &[GroupPart<'_>]) -> Option<(i64, Try)> {
        let mark = picture.cluster.trial_mark();
        let pieces = Piece::by_segment(self.rules, parts);
        let n_domains: usize = pieces.iter().map(|piece| self.choices(picture, *piece).len()).sum();
        self.left = 4 * n_domains + N_TRIES_MORE;
        let is_found = self.branch(picture, &pieces);
        let mut tried = Try { mark, claim: Claim::Gathering, ..Try::default() };
        let mut wait_ms = 0;
        for GatherStep { wait_ms: more_ms, placement } in self.steps {
            wait_ms = wait_ms.max(more_ms);
            tried.n_placed += placement.ordinals.len();
            match tried.groups.iter_mut().find(|known| known.group == placement.group) {
                Some(known) => append(known, &placement),
                None => tried.groups.push(placement),
            }
        }
        picture.cluster.take_back(mark);
        for placement in &mut tried.groups {
            let template = self.assigned.groups[usize::from(placement.group)].template;
            let shape = picture.placer.templates.get(template).ask.shape();
            if !picture.cluster.catalogue().shape(shape).is_placed {
                // Which devices they get is open until these are free.
                placement.devices.clear();
            }
        }
        is_found.then_some((wait_ms, tried))
    }

    /// Chooses domains for the remaining pieces beside what is chosen: where each has its room soonest, or if nothing is left for a
    /// later one then, the next best one.
    fn branch(&mut self, picture: &mut Picture, pieces: &[Piece<'_>]) -> bool {
        let Some((piece, rest)) = pieces.split_first() else { return true };
        let mark = picture.cluster.trial_mark();
        let mut options: Vec<(i64, Option<LevelGroup>)> = Vec::new();
        for place in self.choices(picture, *piece) {
            let Some(fewer) = self.left.checked_sub(1) else { break };
            self.left = fewer;
            if let Some(steps) = self.take_piece(picture, *piece, place) {
                options.push((steps.iter().map(|step| step.wait_ms).max().unwrap_or(0), place));
                picture.cluster.take_back(mark);
            }
        }
        options.sort_by_key(|(wait_ms, _)| *wait_ms);
        let n_before = self.steps.len();
        for (_, place) in options {
            let Some(steps) = self.take_piece(picture, *piece, place) else { continue };
            self.steps.extend(steps);
            if self.branch(picture, rest) {
                return true;
            }
            self.steps.truncate(n_before);
            picture.cluster.take_back(mark);
        }
        false
    }

    fn choices(&self, picture: &mut Picture, piece: Piece<'_>) -> Vec<Option<LevelGroup>> {
        piece.choices(picture, self.assigned, self.rules, self.within)
    }

    /// Chooses nodes for all of a piece in a group of nodes, and assumes them.
    fn take_piece(
        &self,
        picture: &mut Picture,
        Piece { part, is_segment }: Piece<'_>,
        place: Option<LevelGroup>,
    ) -> Option<Vec<GatherStep>> {
        let Some(rule) = segments_of(self.rules, part.work).filter(|_| !is_segment) else {
            return self.look_in(picture, part, place).map(|step| vec![step]);
        };
        let domains = LevelDomains::new(picture, &rule.level, place);
        let before = picture.cluster.trial_mark();
        let mut steps = Vec::new();
        for wanted in by_segment(rule, part.wanted) {
            let segment = GroupPart { wanted, ..part };
            let mut soonest: Option<(i64, usize)> = None;
            let mark = picture.cluster.trial_mark();
            for domain in &domains.inside {
                let found = self.look_in(picture, segment, Some((domains.level, *domain)));
                if let Some(step) = found {
                    picture.cluster.take_back(mark);
                    if soonest.is_none_or(|(least, _)| step.wait_ms < least) {
                        soonest = Some((step.wait_ms, *domain));
                    }
                }
            }
            let step =
                soonest.and_then(|(_, domain)| self.look_in(picture, segment, Some((domains.level, domain))));
            let Some(step) = step else {
                picture.cluster.take_back(before);
                return None;
            };
            steps.push(step);
        }
        Some(steps)
    }

    /// Chooses nodes for all of some replicas of one task group in a group of nodes, and assumes them.
    fn look_in(
        &self,
        picture: &mut Picture,
        GroupPart { work, wanted }: GroupPart<'_>,
        place: Option<LevelGroup>,
    ) -> Option<GatherStep> {
        let assigned = self.assigned;
        let shape = picture.placer.templates.get(work.template).ask.shape();
        let placement = GroupPlacement { group: work.group, ..GroupPlacement::default() };
        let mut step = GatherStep { wait_ms: 0, placement };
        let mark = picture.cluster.trial_mark();
        look_within(picture, assigned, place);
        let is_whole = wanted.chunks(if self.one_by_one { 1 } else { wanted.len().max(1) }).all(|wanted| {
            let nodes = nodes_to_gather_on(picture, assigned, work);
            let asks = [GroupAsk { unit: assigned.unit(), shape, nodes, n: wanted.len() }];
            let chosen = gang::choose(&picture.cluster, &asks, assigned.priority(), picture.wall_ms);
            let Some(chosen) = chosen else { return false };
            step.wait_ms = step.wait_ms.max(chosen.wait_ms);
            for (replica, (node, given)) in wanted.iter().zip(chosen.places.into_iter().flatten()) {
                let id = RunningUnitId { unit: assigned.unit(), replica: *replica };
                picture.cluster.try_out(id, shape, node, given);
                step.placement.push(*replica, node, given);
            }
            true
        });
        look_within(picture, assigned, None);
        if !is_whole {
            picture.cluster.take_back(mark);
            return None;
        }
        Some(step)
    }
}

/// Returns the nodes that replicas may use, room aside, and on which nobody else of their pool gathers room; ascending.
fn nodes_to_gather_on(picture: &mut Picture, assigned: &AssignedUnit, work: &GroupWork) -> Vec<usize> {
    let mut nodes = picture.placer.with_room_aside(&picture.cluster, work.template, false);
    if picture.cluster.free().gathering().is_any() {
        let node_of = |idx: usize| u32::try_from(idx).map(NodeId);
        let is_taken = |node| {
            picture.cluster.free().gathering().gathers_beside(assigned.unit(), assigned.facts.pool, node)
        };
        nodes.retain(|idx| node_of(*idx).is_ok_and(|node| !is_taken(node)));
    }
    nodes
}

/// Empty: all 0.
fn incarnations(wanted: &[ReplicaId]) -> Vec<u32> {
    let all_first = wanted.iter().all(|replica| replica.incarnation == 0);
    if all_first { Vec::new() } else { wanted.iter().map(|replica| replica.incarnation).collect() }
}
