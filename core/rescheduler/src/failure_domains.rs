//! Spread over failure domains: no node, rack or other domain takes too many replicas of a unit down with it.

use rustc_hash::FxHashMap;

use crate::{
    clearing::{cheapest_clearing, evacuate},
    columns::enumerate_columns,
    domains::LayoutDomains,
    goal::{CheckPoint, EPSILON, Goal},
    layout::{Layout, NodeIdx, OwnerIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason},
    workspace::Workspace,
};

/// Nodes with room that are looked at for each replica.
const N_LOOKS: usize = 64;
/// Running units of one node that are tried in an exchange.
const N_EXCHANGES: usize = 16;
/// Nodes that are cleared, or looked at for what leaves one, for one replica.
const N_CLEARED: usize = 24;
/// Passes over all replicas that are too many where they are: each begins with what the last one left.
const N_PASSES: usize = 6;
/// Nodes that all clearings of one plan look at, so that a plan for a large cluster takes no more than seconds.
const N_NODES_LOOKED: usize = 30_000_000;
/// Nodes at which replicas look that find no place, in one plan.
const N_NODES_IN_VAIN: usize = 400_000_000;

/// The policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDomainSpread {
    /// Label of nodes that makes domains; `None`: each node is one.
    pub level: Option<String>,
    /// Over how many domains the replicas of a unit are to be spread: one domain has at most its share of them, rounded up.
    pub n_domains: u32,
}

/// How many replicas of each unit are too many where they are.
struct SpreadGoal {
    domains: LayoutDomains,
    count: FxHashMap<(OwnerIdx, u32), u32>,
    allowed: Vec<u32>,
    n_excess: u32,
}

impl SpreadGoal {
    fn new(layout: &Layout<'_>, policy: &FailureDomainSpread) -> Self {
        let domains = LayoutDomains::new(layout, policy.level.as_deref());
        let n_domains = u32::try_from(domains.len()).unwrap_or(u32::MAX).min(policy.n_domains).max(1);
        let mut n_replicas = vec![0u32; layout.snapshot().units.len()];
        let mut count: FxHashMap<(OwnerIdx, u32), u32> = FxHashMap::default();
        for unit in layout.running() {
            let owner = layout.owner(unit);
            if !layout.owner_facts(unit).class.spreads() {
                continue;
            }
            n_replicas[owner.idx()] += 1;
            if let Some(domain) = domains.of(layout.node_of(unit)) {
                *count.entry((owner, domain)).or_default() += 1;
            }
        }
        let allowed: Vec<u32> =
            n_replicas.iter().map(|n| if *n < 2 { u32::MAX } else { n.div_ceil(n_domains) }).collect();
        let excess = count.iter().map(|((owner, _), n)| n.saturating_sub(allowed[owner.idx()]));
        let n_excess = excess.sum();
        Self { domains, count, allowed, n_excess }
    }

    fn count(&self, owner: OwnerIdx, domain: u32) -> u32 {
        self.count.get(&(owner, domain)).copied().unwrap_or(0)
    }

    fn is_counted(&self, layout: &Layout<'_>, unit: RunIdx) -> bool {
        self.allowed[layout.owner(unit).idx()] != u32::MAX && layout.owner_facts(unit).class.spreads()
    }

    /// Whether one replica less where this one is lowers the objective.
    fn is_too_many(&self, layout: &Layout<'_>, unit: RunIdx) -> bool {
        let owner = layout.owner(unit);
        self.is_counted(layout, unit)
            && self
                .domains
                .of(layout.node_of(unit))
                .is_some_and(|domain| self.count(owner, domain) > self.allowed[owner.idx()])
    }

    /// Whether a domain takes one more replica without harm.
    fn takes(&self, owner: OwnerIdx, node: NodeIdx) -> bool {
        self.domains.of(node).is_some_and(|domain| self.count(owner, domain) < self.allowed[owner.idx()])
    }
}

impl Goal for SpreadGoal {
    fn value(&self) -> f64 {
        f64::from(self.n_excess)
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        let (owner, from) = (layout.owner(unit), self.domains.of(layout.node_of(unit)));
        let to_domain = self.domains.of(to);
        if !self.is_counted(layout, unit) || from == to_domain {
            return 0.0;
        }
        let allowed = self.allowed[owner.idx()];
        let gains = from.is_some_and(|domain| self.count(owner, domain) > allowed);
        let costs = to_domain.is_some_and(|domain| self.count(owner, domain) >= allowed);
        f64::from(u8::from(costs)) - f64::from(u8::from(gains))
    }

    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        if !self.is_counted(layout, unit) {
            return;
        }
        let owner = layout.owner(unit);
        let allowed = self.allowed[owner.idx()];
        if let Some(domain) = self.domains.of(from) {
            let count = self.count.entry((owner, domain)).or_default();
            self.n_excess -= u32::from(*count > allowed);
            *count = count.saturating_sub(1);
        }
        if let Some(domain) = self.domains.of(to) {
            let count = self.count.entry((owner, domain)).or_default();
            *count += 1;
            self.n_excess += u32::from(*count > allowed);
        }
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        (self.change(layout, unit, to) > 0.0).then_some(CheckPoint::Enter)
    }
}

impl FailureDomainSpread {
    /// Returns the share of the units with at least two replicas of which no domain has too many.
    pub fn share_spread(&self, layout: &Layout<'_>) -> f64 {
        let counts = SpreadGoal::new(layout, self);
        let mut is_spread: FxHashMap<OwnerIdx, bool> = FxHashMap::default();
        for unit in layout.running().filter(|unit| counts.is_counted(layout, *unit)) {
            *is_spread.entry(layout.owner(unit)).or_insert(true) &= !counts.is_too_many(layout, unit);
        }
        let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
        let n_spread = is_spread.values().filter(|is_spread| **is_spread).count();
        if is_spread.is_empty() { 1.0 } else { count(n_spread) / count(is_spread.len()) }
    }
}

impl Detector for FailureDomainSpread {
    fn detect(&self, layout: &Layout<'_>, goal: &dyn Goal) -> Detection {
        if goal.value() < 1.0 {
            return Detection::default();
        }
        let counts = SpreadGoal::new(layout, self);
        let suspects: Vec<RunIdx> =
            layout.running().filter(|unit| counts.is_too_many(layout, *unit)).collect();
        let level = self.level.as_deref().unwrap_or("node");
        let finding = format!(
            "{:.0} replicas are too many in their {level} to be spread over {} of them",
            goal.value(),
            self.n_domains
        );
        Detection { suspects, finding }
    }
}

impl Algorithm for FailureDomainSpread {
    fn improve(&self, work: &mut Workspace<'_>, detection: &Detection) {
        let mut counts = SpreadGoal::new(work.layout(), self);
        let n_nodes = work.layout().n_nodes().max(1);
        let mut n_clearings = N_NODES_LOOKED / n_nodes / N_CLEARED;
        let mut n_in_vain_left = N_NODES_IN_VAIN / n_nodes;
        for _ in 0..N_PASSES {
            let before = counts.n_excess;
            for unit in &detection.suspects {
                if !counts.is_too_many(work.layout(), *unit) || !work.may_still_move(*unit) {
                    continue;
                }
                if n_in_vain_left == 0 {
                    return;
                }
                let Some(nodes) = move_or_name(work, &mut counts, *unit) else { continue };
                n_in_vain_left -= 1;
                if !exchange(work, &mut counts, *unit, &nodes) && n_clearings > 0 {
                    n_clearings -= 1;
                    make_room(work, &mut counts, *unit, &nodes);
                }
            }
            if counts.n_excess == 0 || counts.n_excess == before {
                break;
            }
        }
        enumerate_columns(work);
    }
}

/// Moves a replica to a node whose domain takes it. Where none has room, returns nodes that could take it if they had.
fn move_or_name(work: &mut Workspace<'_>, counts: &mut SpreadGoal, unit: RunIdx) -> Option<Vec<NodeIdx>> {
    let from = work.layout().node_of(unit);
    let owner = work.layout().owner(unit);
    let n_nodes = work.layout().n_nodes();
    // Each begins elsewhere, so that replicas of many units do not all go to the same nodes.
    let start = unit.idx().wrapping_mul(7_919);
    let order = || (0..n_nodes).map(|step| NodeIdx::at((start + step) % n_nodes));
    let fitting = || order().filter(|node| counts.takes(owner, *node));
    let with_room: Vec<NodeIdx> =
        fitting().filter(|node| work.layout().has_room(unit, *node)).take(N_LOOKS).collect();
    let nodes: Vec<NodeIdx> =
        if with_room.is_empty() { fitting().take(N_LOOKS).collect() } else { Vec::new() };
    if let Some(to) = with_room.into_iter().find(|node| work.try_move(unit, *node)) {
        counts.on_moved(work.layout(), unit, from, to);
        return None;
    }
    Some(nodes)
}

/// Sends the fewest running units away from a node whose domain takes a replica, to where they do no harm, and the replica there.
fn make_room(work: &mut Workspace<'_>, counts: &mut SpreadGoal, unit: RunIdx, nodes: &[NodeIdx]) {
    let from = work.layout().node_of(unit);
    let shape = work.layout().shape_of(unit);
    for node in nodes.iter().take(N_CLEARED) {
        if !work.layout().node(*node).accepts {
            continue;
        }
        let may_leave = |other: RunIdx| work.may_still_move(other) && has_harmless_place(work, other);
        let Some(clearing) = cheapest_clearing(work.layout(), *node, shape, 1, &may_leave) else { continue };
        let mark = work.mark();
        let is_clear = evacuate(work, &clearing.units, N_CLEARED, &mut |work, other, to| {
            let harms = to == *node || work.change(other, to) > EPSILON;
            (!harms).then(|| -free_share(work.layout(), to))
        });
        if !is_clear {
            continue;
        }
        if work.try_move(unit, *node) {
            for other in clearing.units {
                counts.on_moved(work.layout(), other, *node, work.layout().node_of(other));
            }
            counts.on_moved(work.layout(), unit, from, *node);
            return;
        }
        work.undo_to(mark);
    }
}

/// Whether a node has room for a running unit and does the objective no harm with it, as far as a few of them show.
fn has_harmless_place(work: &Workspace<'_>, unit: RunIdx) -> bool {
    let layout = work.layout();
    let (start, n_nodes) = (layout.node_of(unit).idx(), layout.n_nodes());
    let others = (1..n_nodes).map(|step| NodeIdx::at((start + step) % n_nodes));
    let mut with_room = others.filter(|node| layout.has_room(unit, *node)).take(N_CLEARED);
    with_room.any(|node| work.change(unit, node) <= EPSILON)
}

/// Returns the share of the resource of which a node has least left.
fn free_share(layout: &Layout<'_>, node: NodeIdx) -> f64 {
    let amounts = layout
        .rooms()
        .free_amounts(node)
        .iter()
        .zip(layout.rooms().capacity(node))
        .filter(|(_, has)| **has > 0);
    #[expect(clippy::cast_precision_loss, reason = "shares need no more than 53 bits")]
    let shares = amounts.map(|(free, has)| *free as f64 / *has as f64);
    shares.fold(1.0, f64::min)
}

/// Lets a replica change places with a running unit that its domain can take; says whether one was found.
fn exchange(work: &mut Workspace<'_>, counts: &mut SpreadGoal, unit: RunIdx, nodes: &[NodeIdx]) -> bool {
    let from = work.layout().node_of(unit);
    let here = counts.domains.of(from);
    for to in nodes {
        let others: Vec<RunIdx> = work.layout().on(*to).iter().copied().take(N_EXCHANGES).collect();
        for other in others {
            let owner = work.layout().owner(other);
            let harms = counts.is_counted(work.layout(), other)
                && here.is_some_and(|domain| counts.count(owner, domain) >= counts.allowed[owner.idx()]);
            if !harms && work.may_still_move(other) && work.try_exchange(unit, other) {
                counts.on_moved(work.layout(), unit, from, *to);
                counts.on_moved(work.layout(), other, *to, from);
                return true;
            }
        }
    }
    false
}

impl Policy for FailureDomainSpread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        Box::new(SpreadGoal::new(layout, self))
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        moved.iter().map(|unit| self.reason(before, after, *unit)).collect()
    }
}

impl FailureDomainSpread {
    fn reason(&self, before: &Layout<'_>, after: &Layout<'_>, unit: RunIdx) -> Reason {
        let (was, is) = (SpreadCount::new(before, self, unit), SpreadCount::new(after, self, unit));
        let name = &before.owner_facts(unit).name;
        let level = self.level.as_deref().unwrap_or("node");
        let why_unit = if was.on_from > was.allowed {
            format!("{} replicas of `{name}` share one {level}, of which {} may", was.on_from, was.allowed)
        } else {
            format!("`{name}` makes room for a replica that has to leave its {level}")
        };
        Reason {
            why_unit,
            why_node: format!(
                "the {level} of `{}` has fewer replicas of it",
                before.node(after.node_of(unit)).name
            ),
            why_now: String::new(),
            numbers: vec![
                ("replicas where it is, before", f64::from(was.on_from)),
                ("replicas where it is, after", f64::from(is.on_from)),
                ("replicas where it goes, after", f64::from(is.on_to)),
                ("replicas that one domain may have", f64::from(was.allowed)),
            ],
        }
    }
}

/// The replicas of one unit in the domains that a running unit leaves and enters.
struct SpreadCount {
    on_from: u32,
    on_to: u32,
    allowed: u32,
}

impl SpreadCount {
    fn new(layout: &Layout<'_>, policy: &FailureDomainSpread, unit: RunIdx) -> Self {
        let key = |node: NodeIdx| match &policy.level {
            None => Some(layout.node(node).name.as_str()),
            Some(level) => layout.node(node).labels.get(level).map(String::as_str),
        };
        let owner = layout.owner(unit);
        let (from, to) = (key(layout.home(unit)), key(layout.node_of(unit)));
        let (mut on_from, mut on_to, mut n) = (0, 0, 0u32);
        for other in layout.replicas(owner) {
            let at = key(layout.node_of(*other));
            on_from += u32::from(at == from);
            on_to += u32::from(at == to);
            n += 1;
        }
        Self { on_from, on_to, allowed: n.div_ceil(policy.n_domains.max(1)) }
    }
}
