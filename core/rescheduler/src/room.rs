//! Room on demand: the moves that let one gang in that waits.
//!
//! A gang has parts: what has to be in one domain together, as a task group or a segment. Part by part, the dearest first, a domain is cleared as by
//! [`Defragmentation`](crate::Defragmentation), and its room is kept from the parts that come after it. Where all parts have to be in one
//! domain together, those domains are tried one by one, and the cheapest moves of all count.

use std::cmp::Reverse;

use godel_domain::demand::Demand;

use crate::{
    defragmentation::{RoomGoal, clear_domains, reason},
    domains::LayoutDomains,
    filters::Filters,
    goal::Goal,
    layout::{Layout, NodeIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason, ReschedulePlan, moves_of, plan_with_layout},
    whole_shapes::WholeShapes,
    workspace::{MoveRefusals, PlanLimits, Workspace},
};

/// A gang that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingGang {
    /// What is to be placed.
    pub parts: Vec<GangPart>,
    /// Label of the nodes that all parts must share; `None`: anywhere.
    pub within: Option<String>,
}

/// Members of a gang that take the same and go to one domain.
#[derive(Clone, Debug, PartialEq)]
pub struct GangPart {
    /// What each member takes.
    pub demand: Demand,
    /// How many members begin together.
    pub n_members: u32,
    /// Label of the nodes that they must share; `None`: anywhere that the gang may be.
    pub level: Option<String>,
}

/// The whole cluster as one domain.
const EVERYWHERE: &str = "";
/// Tries of one part in one domain of the gang, at most: each looks at all nodes.
const N_TRIES_MAX: usize = 128;

/// Returns the cheapest moves found that let a gang in; `None`: it has room already, or no moves that are allowed make any.
///
/// Sources: the clearing of domains is that of defragmentation; which part comes first is the rule of first-fit decreasing (Johnson, *Near-optimal
/// bin packing algorithms*, 1973). `O(tries × (nodes + running units))` beside the moves themselves.
pub fn let_in(
    gang: &WaitingGang,
    layout: &Layout<'_>,
    filters: &dyn Filters,
    limits: &PlanLimits,
) -> Option<ReschedulePlan> {
    let mut parts: Vec<&GangPart> = gang.parts.iter().collect();
    parts.sort_by_key(|part| Reverse(part.size()));
    let first = parts.first()?;
    let mut best: Option<ReschedulePlan> = None;
    for within in gang.domains(layout, first, N_TRIES_MAX.div_ceil(parts.len())) {
        let rooms: Vec<PartRoom<'_>> =
            parts.iter().map(|part| PartRoom { part, within: within.as_ref() }).collect();
        let Some(plan) = make_rooms(&rooms, layout, filters, limits) else { continue };
        if plan.moves.is_empty() {
            return None;
        }
        if best.as_ref().is_none_or(|best| plan.cost_ms() < best.cost_ms()) {
            best = Some(plan);
        }
    }
    best
}

/// A label and its value.
type Domain = (String, String);

impl WaitingGang {
    /// Returns the domains that could hold the whole gang, those with most room for its first part first, `n_max` at most; `[None]` if it may be
    /// anywhere.
    fn domains(&self, layout: &Layout<'_>, first: &GangPart, n_max: usize) -> Vec<Option<Domain>> {
        let Some(label) = &self.within else { return vec![None] };
        let mut layout = layout.clone();
        let shape = layout.intern(&first.demand);
        let domains = LayoutDomains::new(&layout, Some(label));
        let whole = WholeShapes::new(&layout, shape, first.n_members, domains);
        let all = 0..u32::try_from(whole.domains().len()).unwrap_or(u32::MAX);
        let mut found: Vec<u32> = all.filter(|domain| whole.is_possible(*domain)).collect();
        found.sort_by_key(|domain| Reverse(whole.in_domain(*domain)));
        found.truncate(n_max);
        let value = |domain: u32| {
            let node = whole.domains().nodes(domain).first()?;
            layout.node(*node).labels.get(label).map(|value| Some((label.clone(), value.clone())))
        };
        found.into_iter().filter_map(value).collect()
    }
}

impl GangPart {
    /// What is hard to place comes first: many devices, then many members.
    fn size(&self) -> (u64, u32) {
        let of_one = self.demand.devices.iter().map(|ask| u64::from(ask.count) * u64::from(ask.milli));
        (of_one.sum::<u64>() * u64::from(self.n_members), self.n_members)
    }
}

/// Makes room for some parts one after the other; `None`: one of them finds none.
fn make_rooms<'a>(
    rooms: &'a [PartRoom<'a>],
    layout: &Layout<'a>,
    filters: &'a dyn Filters,
    limits: &'a PlanLimits,
) -> Option<ReschedulePlan> {
    let mut at = layout.clone();
    let (mut before, mut finding, mut refusals) = (0.0, String::new(), MoveRefusals::new());
    for room in rooms {
        let (step, after) = plan_with_layout(room, &at, &[], filters, limits);
        at = after;
        before += step.before;
        if finding.is_empty() {
            finding = step.finding;
        }
        step.refusals.into_iter().for_each(|(refusal, n)| *refusals.entry(refusal).or_default() += n);
        if !room.keep(&mut at) {
            return None;
        }
    }
    let mut moves: Vec<_> = moves_of(&at).collect();
    for planned in &mut moves {
        planned.reason = Reason { why_now: finding.clone(), ..reason(layout, &at, planned.unit) };
    }
    let policy = rooms.first()?.name();
    Some(ReschedulePlan { policy, before, after: 0.0, moves, finding, refusals })
}

/// The wish that some domain has room for a part of a gang.
struct PartRoom<'a> {
    part: &'a GangPart,
    /// The domain in which all of the gang has to be.
    within: Option<&'a Domain>,
}

impl PartRoom<'_> {
    fn room_goal(&self, layout: &mut Layout<'_>) -> RoomGoal {
        let whole = self.whole(layout);
        RoomGoal::new(layout, whole, Some(1), &[])
    }

    fn whole(&self, layout: &mut Layout<'_>) -> WholeShapes {
        let GangPart { demand, n_members, level } = self.part;
        let shape = layout.intern(demand);
        let domains = LayoutDomains::new(layout, Some(level.as_deref().unwrap_or(EVERYWHERE)));
        let domains = match self.within {
            Some((label, value)) => domains.inside(layout, label, value),
            None => domains,
        };
        WholeShapes::new(layout, shape, *n_members, domains)
    }

    /// Keeps the room from whoever comes next; says whether there is some.
    fn keep(&self, layout: &mut Layout<'_>) -> bool {
        let whole = self.whole(layout);
        let all = 0..u32::try_from(whole.domains().len()).unwrap_or(u32::MAX);
        let Some(domain) = all.into_iter().find(|domain| whole.is_whole(*domain)) else { return false };
        let mut left = whole.n_copies();
        let nodes: Vec<NodeIdx> = whole.domains().nodes(domain).to_vec();
        for node in nodes.into_iter().filter(|node| whole.on_node(*node) > 0) {
            while left > 0 && layout.keep(whole.shape(), node) {
                left -= 1;
            }
        }
        left == 0
    }
}

impl Detector for PartRoom<'_> {
    fn detect(&self, layout: &Layout<'_>, goal: &dyn Goal) -> Detection {
        if goal.value() <= 0.0 {
            return Detection::default();
        }
        let n_members = self.part.n_members;
        let finding = format!("no domain has room for {n_members} of what the gang lacks");
        Detection { suspects: layout.running().collect(), finding }
    }
}

impl Algorithm for PartRoom<'_> {
    fn improve(&self, work: &mut Workspace<'_>, _detection: &Detection) {
        let goal = self.room_goal(&mut work.layout().clone());
        clear_domains(work, goal, usize::MAX);
    }
}

impl Policy for PartRoom<'_> {
    fn name(&self) -> &'static str {
        "defragmentation"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        Box::new(self.room_goal(layout))
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        moved.iter().map(|unit| reason(before, after, *unit)).collect()
    }
}
