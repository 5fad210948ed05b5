//! Room on demand: the moves that let one gang in that waits.
//!
//! A gang has parts: what has to be in one domain together, as a task group or a segment. Part by part, the dearest first, a domain is cleared as by
//! [`Defragmentation`](crate::Defragmentation), and its room is kept from the parts that come after it. Where all parts have to be in one
//! domain together, those domains are tried one by one, and the cheapest moves of all count.

use std::{cell::RefCell, cmp::Reverse, collections::BTreeMap};

use godel_domain::demand::Demand;

use crate::{
    defragmentation::{RoomGoal, clear_domains, reason},
    domains::LayoutDomains,
    filters::Filters,
    goal::Goal,
    layout::{Layout, NodeIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason, ReschedulePlan, moves_of, plan_with_layout},
    whole_shapes::{ShareLimits, WholeShapes},
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
    /// How many of them may stand together.
    pub limits: Vec<MemberLimit>,
}

/// How many members of a gang may be on nodes that are alike in a label, those of all parts with this label together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLimit {
    /// The label; a node that lacks it has no limit.
    pub label: String,
    /// Most members by value of the label, and by any other value.
    pub most: (BTreeMap<String, u32>, u32),
    /// Whether no two nodes have the same value.
    pub is_by_node: bool,
}

/// Members for which room is kept, by label and value.
type KeptMembers = BTreeMap<(String, String), u32>;

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
        let rooms: Vec<PartRoom<'_>> = parts
            .iter()
            .map(|part| PartRoom { part, within: within.as_ref(), kept: RefCell::default() })
            .collect();
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
        let shape = layout.rooms_mut().intern(&first.demand);
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
    let mut kept = KeptMembers::new();
    for room in rooms {
        room.kept.borrow_mut().clone_from(&kept);
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
        kept.clone_from(&room.kept.borrow());
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
    /// Members of the parts before it, and in the end of its own.
    kept: RefCell<KeptMembers>,
}

impl MemberLimit {
    fn value<'l>(&self, layout: &Layout<'l>, node: NodeIdx) -> Option<&'l String> {
        layout.node(node).labels.get(&self.label)
    }

    /// Returns how many more members may be on nodes with a value.
    fn left(&self, value: &str, kept: &KeptMembers) -> u32 {
        let most = self.most.0.get(value).copied().unwrap_or(self.most.1);
        let n_kept = kept.get(&(self.label.clone(), value.to_owned())).copied().unwrap_or(0);
        most.saturating_sub(n_kept)
    }
}

impl PartRoom<'_> {
    /// Returns how many members may be on each node, and in each share of a domain: at most one of the limits is not by node.
    fn share_limits(&self, layout: &Layout<'_>, domains: &LayoutDomains) -> ShareLimits {
        let kept = self.kept.borrow();
        let mut limits = ShareLimits::default();
        for limit in &self.part.limits {
            if limit.is_by_node {
                limits.of_node.resize(layout.n_nodes(), u32::MAX);
                for node in layout.nodes() {
                    let left = limit.value(layout, node).map_or(u32::MAX, |value| limit.left(value, &kept));
                    limits.of_node[node.idx()] = limits.of_node[node.idx()].min(left);
                }
                continue;
            }
            let mut shares: BTreeMap<(u32, &String), u32> = BTreeMap::new();
            limits.share_of = vec![None; layout.n_nodes()];
            for node in layout.nodes() {
                let Some((domain, value)) = domains.of(node).zip(limit.value(layout, node)) else { continue };
                let next = u32::try_from(limits.of_share.len()).unwrap_or(u32::MAX);
                let share = *shares.entry((domain, value)).or_insert(next);
                if share == next {
                    limits.of_share.push(limit.left(value, &kept));
                }
                limits.share_of[node.idx()] = Some(share);
            }
        }
        limits
    }

    fn room_goal(&self, layout: &mut Layout<'_>) -> RoomGoal {
        let whole = self.whole(layout);
        RoomGoal::new(layout, whole, Some(1), &[])
    }

    fn whole(&self, layout: &mut Layout<'_>) -> WholeShapes {
        let GangPart { demand, n_members, level, limits: _ } = self.part;
        let shape = layout.rooms_mut().intern(demand);
        let domains = LayoutDomains::new(layout, Some(level.as_deref().unwrap_or(EVERYWHERE)));
        let domains = match self.within {
            Some((label, value)) => domains.inside(layout, label, value),
            None => domains,
        };
        let limits = self.share_limits(layout, &domains);
        WholeShapes::within(layout, shape, *n_members, domains, limits)
    }

    fn note_kept(&self, layout: &Layout<'_>, node: NodeIdx, n: u32) {
        let mut kept = self.kept.borrow_mut();
        for limit in &self.part.limits {
            if let Some(value) = limit.value(layout, node) {
                *kept.entry((limit.label.clone(), value.clone())).or_default() += n;
            }
        }
    }

    /// Keeps the room from whoever comes next; says whether there is some.
    fn keep(&self, layout: &mut Layout<'_>) -> bool {
        let whole = self.whole(layout);
        let all = 0..u32::try_from(whole.domains().len()).unwrap_or(u32::MAX);
        let Some(domain) = all.into_iter().find(|domain| whole.is_whole(*domain)) else { return false };
        let mut left = whole.n_copies();
        let nodes: Vec<NodeIdx> = whole.domains().nodes(domain).to_vec();
        let mut left_in: BTreeMap<u32, u32> = BTreeMap::new();
        for node in nodes.into_iter().filter(|node| whole.on_node(*node) > 0) {
            let share = whole.limits().share(node);
            let in_share = share.map(|share| {
                *left_in.entry(share).or_insert_with(|| {
                    whole.limits().of_share.get(share as usize).copied().unwrap_or(u32::MAX)
                })
            });
            let most = whole.on_node(node).min(left).min(in_share.unwrap_or(u32::MAX));
            let mut n_kept = 0;
            while n_kept < most && layout.keep(whole.shape(), node) {
                n_kept += 1;
            }
            left -= n_kept;
            if let Some(in_share) = share.and_then(|share| left_in.get_mut(&share)) {
                *in_share -= n_kept;
            }
            self.note_kept(layout, node, n_kept);
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
