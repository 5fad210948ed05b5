//! Co-location: units that talk to one another share nodes.
//!
//! Traffic between two units is between each replica of one and all replicas of the other alike, so the share of it that stays on
//! a node is the lesser of the shares of their replicas there; the sum over nodes is what a pair keeps. The planner anneals: most
//! steps bring a replica to a node that has replicas of a unit that its own talks to.

use rustc_hash::FxHashMap;

use crate::{
    columns::enumerate_columns,
    goal::{CheckPoint, EPSILON, Goal},
    layout::{Layout, NodeIdx, OwnerIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason},
    search::{Annealing, Draws, anneal, descend, n_steps_of},
    workspace::Workspace,
};

/// Of so many steps, one goes to any node.
const ONE_ANYWHERE: usize = 8;
/// Of so many steps, one is of any running unit, so that those that talk to nobody make room.
const ONE_ANYONE: usize = 16;
/// Steps of a search of a small cluster, at most.
const N_STEPS_MAX: u64 = 14_000_000;
/// Nodes of partners that are looked at for each running unit before the annealing of a large cluster.
const N_TARGETS: usize = 16;

/// The policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Colocation {
    /// The share of traffic between nodes that is good enough.
    pub remote_max: f64,
    /// Steps of the search for each running unit that talks.
    pub n_steps_each: u64,
    /// The rise of the objective that the search accepts at first, as a multiple of what one replica keeps in the mean.
    pub heat: f64,
}

impl Default for Colocation {
    fn default() -> Self {
        Self { remote_max: 0.1, n_steps_each: 3_000, heat: 4.0 }
    }
}

/// Who talks to whom, and where they are.
struct TrafficGoal {
    /// Partners of each unit, with the share of all traffic that is between both.
    partners: Vec<Vec<(OwnerIdx, f64)>>,
    /// One divided by the number of its replicas, of each unit.
    part: Vec<f64>,
    count: FxHashMap<(OwnerIdx, NodeIdx), u32>,
    kept: f64,
    at_first: f64,
}

impl TrafficGoal {
    fn new(layout: &Layout<'_>) -> Self {
        let snapshot = layout.snapshot();
        let n_units = snapshot.units.len();
        let ids: FxHashMap<_, _> =
            snapshot.units.iter().enumerate().map(|(at, unit)| (unit.id, OwnerIdx::at(at))).collect();
        let mut goal = Self {
            partners: vec![Vec::new(); n_units],
            part: vec![0.0; n_units],
            count: FxHashMap::default(),
            kept: 0.0,
            at_first: 0.0,
        };
        let sound = |weight: f64| weight.is_finite() && weight > 0.0;
        let pairs = snapshot.traffic.iter().filter_map(|pair| {
            let (one, other) = (*ids.get(&pair.between.0)?, *ids.get(&pair.between.1)?);
            let has_both = !layout.replicas(one).is_empty() && !layout.replicas(other).is_empty();
            (one != other && sound(pair.weight) && has_both).then_some((one, other, pair.weight))
        });
        let pairs: Vec<_> = pairs.collect();
        let total: f64 = pairs.iter().map(|(_, _, weight)| weight).sum();
        for (one, other, weight) in pairs {
            goal.partners[one.idx()].push((other, weight / total));
            goal.partners[other.idx()].push((one, weight / total));
        }
        for (at, part) in goal.part.iter_mut().enumerate() {
            let n = u32::try_from(layout.replicas(OwnerIdx::at(at)).len()).unwrap_or(u32::MAX);
            *part = 1.0 / f64::from(n.max(1));
        }
        for unit in layout.running() {
            let owner = layout.owner(unit);
            if !goal.partners[owner.idx()].is_empty() {
                *goal.count.entry((owner, layout.node_of(unit))).or_default() += 1;
            }
        }
        let kept = goal.count.iter().map(|((owner, node), n)| goal.kept_by(*owner, *node, *n));
        // In an order that follows from the input alone, so that sums round alike.
        let mut kept: Vec<f64> = kept.collect();
        kept.sort_by(f64::total_cmp);
        goal.kept = kept.into_iter().sum::<f64>() / 2.0;
        goal.at_first = goal.value();
        goal
    }

    fn on(&self, owner: OwnerIdx, node: NodeIdx) -> u32 {
        self.count.get(&(owner, node)).copied().unwrap_or(0)
    }

    /// Returns the traffic that a unit keeps on a node with so many replicas there.
    fn kept_by(&self, owner: OwnerIdx, node: NodeIdx, n: u32) -> f64 {
        let own = f64::from(n) * self.part[owner.idx()];
        let partners = self.partners[owner.idx()].iter();
        partners
            .map(|(other, weight)| {
                weight * own.min(f64::from(self.on(*other, node)) * self.part[other.idx()])
            })
            .sum()
    }

    fn has_traffic(&self) -> bool {
        self.partners.iter().any(|partners| !partners.is_empty())
    }
}

impl Goal for TrafficGoal {
    fn value(&self) -> f64 {
        if self.has_traffic() { (1.0 - self.kept).max(0.0) } else { 0.0 }
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        let (owner, from) = (layout.owner(unit), layout.node_of(unit));
        if from == to || self.partners[owner.idx()].is_empty() {
            return 0.0;
        }
        let (here, there) = (self.on(owner, from), self.on(owner, to));
        let part = self.part[owner.idx()];
        let [less, all] = [here.saturating_sub(1), here].map(|n| f64::from(n) * part);
        let [now, more] = [there, there + 1].map(|n| f64::from(n) * part);
        let partners = self.partners[owner.idx()].iter();
        partners
            .map(|(other, weight)| {
                let part = self.part[other.idx()];
                let [near, far] = [from, to].map(|node| f64::from(self.on(*other, node)) * part);
                weight * ((all.min(near) - less.min(near)) - (more.min(far) - now.min(far)))
            })
            .sum()
    }

    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        let owner = layout.owner(unit);
        if from == to || self.partners[owner.idx()].is_empty() {
            return;
        }
        let (here, there) = (self.on(owner, from), self.on(owner, to));
        self.kept -= self.kept_by(owner, from, here) - self.kept_by(owner, from, here.saturating_sub(1));
        self.kept += self.kept_by(owner, to, there + 1) - self.kept_by(owner, to, there);
        if here <= 1 {
            self.count.remove(&(owner, from));
        } else {
            self.count.insert((owner, from), here - 1);
        }
        self.count.insert((owner, to), there + 1);
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        let rises = self.value() + self.change(layout, unit, to) > self.at_first + EPSILON;
        rises.then_some(CheckPoint::Leave)
    }
}

impl Detector for Colocation {
    fn detect(&self, layout: &Layout<'_>, goal: &dyn Goal) -> Detection {
        if goal.value() <= self.remote_max {
            return Detection::default();
        }
        let traffic = TrafficGoal::new(layout);
        let talks = |unit: &RunIdx| !traffic.partners[layout.owner(*unit).idx()].is_empty();
        Detection {
            suspects: layout.running().filter(talks).collect(),
            finding: format!(
                "{:.1} % of the traffic is between nodes, more than {:.1} %",
                100.0 * goal.value(),
                100.0 * self.remote_max
            ),
        }
    }
}

impl Algorithm for Colocation {
    fn improve(&self, work: &mut Workspace<'_>, detection: &Detection) {
        let traffic = TrafficGoal::new(work.layout());
        let suspects = &detection.suspects;
        let n_suspects = u32::try_from(suspects.len()).unwrap_or(u32::MAX).max(1);
        let first = self.heat / f64::from(n_suspects);
        let n_wanted = self.n_steps_each.saturating_mul(u64::from(n_suspects));
        let n_steps = n_steps_of(self.n_steps_each, u64::from(n_suspects), N_STEPS_MAX);
        let annealing = Annealing { n_steps, first, last: first / 1_000.0 };
        if !annealing.is_whole(n_wanted) {
            descend(work, suspects, &mut |layout, unit, nodes| {
                let partners = traffic.partners[layout.owner(unit).idx()].iter();
                let near = partners.flat_map(|(partner, _)| layout.replicas(*partner));
                nodes.extend(near.take(N_TARGETS).map(|near| layout.node_of(*near)));
            });
        }
        let annealing = annealing.cooled(n_wanted);
        anneal(work, &annealing, &mut |layout: &Layout<'_>, draws: &mut Draws| {
            if draws.below(ONE_ANYONE) == 0 {
                let unit = RunIdx::at(draws.below(layout.n_running()));
                return Some((unit, NodeIdx::at(draws.below(layout.n_nodes()))));
            }
            let unit = *suspects.get(draws.below(suspects.len()))?;
            let partners = &traffic.partners[layout.owner(unit).idx()];
            if draws.below(ONE_ANYWHERE) == 0 {
                return Some((unit, NodeIdx::at(draws.below(layout.n_nodes()))));
            }
            let (partner, _) = partners.get(draws.below(partners.len()))?;
            let replicas = layout.replicas(*partner);
            let near = *replicas.get(draws.below(replicas.len()))?;
            Some((unit, layout.node_of(near)))
        });
        enumerate_columns(work);
    }
}

impl Policy for Colocation {
    fn name(&self) -> &'static str {
        "colocation"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        Box::new(TrafficGoal::new(layout))
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        let (was, is) = (TrafficGoal::new(before), TrafficGoal::new(after));
        let reason = |unit: &RunIdx| {
            let (from, to) = (before.node_of(*unit), after.node_of(*unit));
            let owner = before.owner(*unit);
            let partners = &was.partners[owner.idx()];
            let near = |goal: &TrafficGoal, node: NodeIdx| -> f64 {
                partners.iter().map(|(partner, _)| f64::from(goal.on(*partner, node))).sum()
            };
            let name = &before.owner_facts(*unit).name;
            let why_unit = if partners.is_empty() {
                format!("`{name}` talks to nobody and makes room")
            } else {
                format!("`{name}` talks to {} units", partners.len())
            };
            Reason {
                why_unit,
                why_node: format!("`{}` is where more of their replicas are", before.node(to).name),
                why_now: String::new(),
                numbers: vec![
                    ("replicas that it talks to on its node before", near(&was, from)),
                    ("replicas that it talks to on the target before", near(&was, to)),
                    ("replicas that it talks to on the target after", near(&is, to)),
                ],
            }
        };
        moved.iter().map(reason).collect()
    }
}
