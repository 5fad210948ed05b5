//! What the profile of a preemptor says about a search for victims: how far it looks, and which of the nodes that cost the same
//! it prefers.

use godel_cluster::Cluster;
use godel_domain::allocation::Allocation;
use godel_framework::{
    Ask, Profile, ScoreInput, Typical,
    profile::{NodeScore, PreemptionMode},
    registry::CandidateSort,
};

use super::{
    Cost, N_ALIKE_MAX, N_FAST_DOMAINS, N_FAST_MORE,
    looks::{Look, Looks},
    plan::{NodeChoice, VictimPlan},
};

/// How a search chooses among nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preference<'a> {
    /// How far it looks.
    pub mode: PreemptionMode,
    /// The order in which it compares what places cost.
    pub sort: CandidateSort,
    /// Where a fast search begins: all searches of all schedulers on the same nodes would meet.
    pub start: u64,
    /// Rates nodes that cost the same, as they are now; `None`: the first one is taken.
    pub scores: Option<(&'a Profile, &'a Ask, &'a Typical)>,
}

impl Preference<'_> {
    /// Returns how many domains in which enough can leave are compared at most.
    pub fn n_domains_max(&self) -> usize {
        match self.mode {
            PreemptionMode::Best => usize::MAX,
            PreemptionMode::Fast => N_FAST_DOMAINS,
        }
    }

    fn score(&self, cluster: &Cluster, idx: usize, allocation: Allocation) -> Option<NodeScore> {
        let (profile, ask, typical) = self.scores?;
        Some(profile.rank(&ScoreInput { cluster, ask, idx, allocation, typical }, 0))
    }

    /// Takes places, the cheapest first, until there are `wanted` of them, or no more: without masters of applications as long as there
    /// are some, then with them if the seeker does not spare them.
    pub(super) fn fill(
        &self,
        plan: &mut VictimPlan<'_>,
        nodes: impl IntoIterator<Item = usize>,
        wanted: usize,
    ) {
        let nodes: Vec<usize> = nodes.into_iter().collect();
        let spares = plan.spare_masters(true);
        self.fill_with(plan, &nodes, wanted);
        plan.spare_masters(spares);
        if !spares && plan.n_places() < wanted && plan.is_master_spared() {
            self.fill_with(plan, &nodes, wanted);
        }
    }

    /// The same with those who may leave as the plan has it.
    ///
    /// A fast search looks at the nodes in turn until enough could leave on as many as are wanted and [`N_FAST_MORE`] more, and takes
    /// the cheapest of these; where too few can leave, it goes on with the next ones.
    fn fill_with(&self, plan: &mut VictimPlan<'_>, nodes: &[usize], wanted: usize) {
        plan.sort_by(self.sort);
        match self.mode {
            PreemptionMode::Best => self.fill_from(plan, nodes.iter().copied(), wanted),
            PreemptionMode::Fast => {
                let mut nodes = nodes.to_vec();
                let n_nodes = nodes.len().max(1) as u64;
                nodes.rotate_left(usize::try_from(self.start % n_nodes).unwrap_or(0));
                let mut nodes = nodes.into_iter();
                while plan.n_places() < wanted {
                    let n = wanted - plan.n_places() + N_FAST_MORE;
                    let some: Vec<usize> =
                        nodes.by_ref().filter(|idx| plan.glance(*idx).is_some()).take(n).collect();
                    if some.is_empty() {
                        return;
                    }
                    self.fill_from(plan, some, wanted);
                }
            }
        }
    }

    fn fill_from(&self, plan: &mut VictimPlan<'_>, nodes: impl IntoIterator<Item = usize>, wanted: usize) {
        let mut looks = Looks::new(nodes, |idx| plan.glance(idx));
        while plan.n_places() < wanted
            && let Some((idx, look)) = looks.cheapest()
        {
            let Some(choice) = settled(plan, &mut looks, idx, look) else { continue };
            let (idx, choice) = self.preferred(plan, &mut looks, idx, choice);
            if plan.n_gone() + choice.victims.len() > super::N_VICTIMS_MAX {
                continue;
            }
            let mut concerned = plan.take(idx, &choice);
            if plan.is_turned() {
                concerned.extend(looks.all());
            }
            for idx in concerned {
                if looks.has(idx) {
                    looks.set(idx, plan.glance(idx).map(Look::Glance));
                }
            }
        }
    }

    /// Of the nodes that cost as much as the cheapest one the one that the scores prefer, the first of these if they rate it alike.
    fn preferred(
        &self,
        plan: &mut VictimPlan<'_>,
        looks: &mut Looks,
        idx: usize,
        choice: NodeChoice,
    ) -> (usize, NodeChoice) {
        if self.scores.is_none() {
            return (idx, choice);
        }
        let cost = choice.cost;
        let mut alike = vec![(idx, choice)];
        for _ in 0..N_ALIKE_MAX {
            let Some((idx, look)) = looks.cheapest() else { break };
            if !look.cost().is_as_dear(&cost) {
                looks.set(idx, Some(look));
                break;
            }
            alike.extend(settled(plan, looks, idx, look).map(|choice| (idx, choice)));
        }
        let score = |(idx, choice): &(usize, NodeChoice)| self.score(plan.cluster(), *idx, choice.allocation);
        let scores: Vec<Option<NodeScore>> = alike.iter().map(score).collect();
        let best = (1..alike.len()).fold(0, |best, at| if scores[at] > scores[best] { at } else { best });
        let best = alike.swap_remove(best);
        for (idx, choice) in alike {
            looks.set(idx, Some(Look::Close(choice)));
        }
        best
    }
}

/// What a node offers if that is known for sure; else it is looked at closely, and its turn comes again.
fn settled(plan: &mut VictimPlan<'_>, looks: &mut Looks, idx: usize, look: Look) -> Option<NodeChoice> {
    match look {
        Look::Close(choice) if !plan.is_stale(&choice) && plan.affords(&choice.victims) => Some(choice),
        Look::Close(_) | Look::Glance(_) => {
            looks.set(idx, plan.choose(idx).map(Look::Close));
            None
        }
    }
}

impl Cost {
    /// Whether nothing but the place of the node tells two costs apart.
    fn is_as_dear(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
