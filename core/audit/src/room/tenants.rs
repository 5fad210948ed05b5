//! What takes room on each node, kept from commit to commit, so that each commit is judged by what it does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{NodeId, UnitId},
    resources::{RUNNING_UNITS, Resources},
};
use godel_domain::{allocation::DeviceSet, demand::Pool, hold::Hold, running_units::Bind};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    super::{
        verdict::Findings,
        world::{Commit, Versioned, World, WorldNode, WorldRow, WorldUnit},
    },
    Excess, NodeSums, Of, astray_kinds, best_effort_excess, beyond, excess, non_zero, usage,
};

/// What a commit has bound on a node, and how many of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound<'a>(SmallVec<[(&'a Bind, i64); 2]>);

impl<'a> Bound<'a> {
    pub(crate) fn add(&mut self, bind: &'a Bind) {
        match self.0.last_mut() {
            Some((last, n)) if std::ptr::eq(*last, bind) => *n += 1,
            _ => self.0.push((bind, 1)),
        }
    }

    /// Whether some of a pool was.
    fn has(&self, pool: Pool) -> bool {
        self.0.iter().any(|(bind, _)| bind.pool == pool)
    }

    /// Whether what was bound of a pool takes of what is short; devices are of both.
    fn takes(&self, pool: Pool, of: &Excess) -> bool {
        self.0.iter().any(|(bind, _)| match &of.of {
            Of::Resource(resource) => {
                bind.pool == pool && (resource == RUNNING_UNITS || bind.demand.requests.get(resource) > 0)
            }
            Of::Device => !bind.demand.devices.is_empty(),
            // Whoever holds it is of a kind that is short.
            Of::Port => !bind.demand.host_ports.is_empty(),
            Of::Zone(zone) => bind.zones.iter().any(|given| given.zones.contains(*zone)),
            Of::Gone => false,
            Of::Kind(kind) => bind.demand.devices.iter().any(|request| request.kind == *kind),
        })
    }
}

/// What takes room on each node, kept while a history is replayed.
#[derive(Default)]
pub(crate) struct Tenants {
    by_node: FxHashMap<NodeId, OfNode>,
}

#[derive(Default)]
struct OfNode {
    all: NodeSums,
    /// Those of them that are told to leave.
    leaving: NodeSums,
    /// How many guaranteed ones there are, by when they were bound, unit and task group.
    guaranteed: BTreeMap<(i64, UnitId, u16), usize>,
    /// How many hold the same devices, by unit, task group, devices and whether they are told to leave.
    devices: BTreeMap<(UnitId, u16, DeviceSet, bool), usize>,
}

impl OfNode {
    /// Kinds of devices of which some that are held are not there, or are others; what `holds` keep beyond their victims
    /// is held too.
    fn short_kinds<'a>(
        &self,
        world: &'a World,
        node: &WorldNode,
        holds: &'a [Versioned<Arc<Hold>>],
    ) -> BTreeSet<&'a str> {
        let demand = |(unit, group, devices, _): &(UnitId, u16, DeviceSet, bool)| {
            let (demand, _) = world.units.get(unit)?.demands.get(group)?;
            Some((demand.as_ref(), *devices))
        };
        let held = holds.iter().map(|hold| &*hold.value).filter(|hold| hold.turn.is_none()).map(|hold| {
            let (beyond, covered) = beyond(world, hold, false);
            let covers = |idx: usize| covered.devices.get(idx).copied().unwrap_or(0);
            let own = beyond.devices.iter().enumerate().filter(|(idx, milli)| **milli > covers(*idx));
            (hold.demand.as_ref(), own.map(|(idx, _)| idx).collect())
        });
        let all = self.devices.keys().filter_map(demand).chain(held);
        all.flat_map(|(demand, devices)| astray_kinds(node, demand, devices)).collect()
    }

    fn staying(&self) -> NodeSums {
        let mut staying = self.all.clone();
        staying.subtract(&self.leaving);
        staying
    }

    /// What guaranteed running units keep from best-effort ones.
    fn kept(&self, world: &World, node: &WorldNode) -> Resources {
        let Some(as_of_ms) = node.usage.as_ref().map(|usage| usage.value.as_of_ms) else {
            return self.all.guaranteed.clone();
        };
        let mut kept = Resources::default();
        let mut keep = |requests: &Resources, bound_time_ms| {
            node.kept(requests, bound_time_ms).for_each(|(name, amount)| kept.add_amount(name, amount));
        };
        // Those bound by then keep no more of what is measured, so one sum does for them.
        let mut old = self.all.guaranteed.clone();
        let since = (as_of_ms.saturating_add(1), UnitId(0), 0);
        for ((bound_time_ms, unit, group), n) in self.guaranteed.range(since..) {
            let Some((demand, _)) = world.units.get(unit).and_then(|unit| unit.demands.get(group)) else {
                continue;
            };
            let mut requests = Resources::default();
            requests.add(&demand.requests, i64::try_from(*n).unwrap_or(i64::MAX));
            requests.add_amount(RUNNING_UNITS, i64::try_from(*n).unwrap_or(i64::MAX));
            old.add(&requests, -1);
            keep(&requests, *bound_time_ms);
        }
        keep(&old, as_of_ms);
        kept
    }
}

/// One more, or one less.
fn count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, is_new: bool) {
    let n = counts.get(&key).copied().unwrap_or(0);
    match if is_new { n + 1 } else { n.saturating_sub(1) } {
        0 => counts.remove(&key),
        n => counts.insert(key, n),
    };
}

impl Tenants {
    /// All that is bound to a node.
    pub(crate) fn of_node(&self, node: NodeId) -> NodeSums {
        self.by_node.get(&node).map(|of_node| of_node.all.clone()).unwrap_or_default()
    }

    /// A row of a unit changes.
    pub(crate) fn move_row(
        &mut self,
        nodes: &BTreeMap<NodeId, WorldNode>,
        id: UnitId,
        unit: &WorldUnit,
        before: &WorldRow,
        after: &WorldRow,
    ) {
        let takes =
            |row: &WorldRow| row.is_live().then_some((row.node, row.allocation, row.eviction.is_some()));
        if takes(before) == takes(after) {
            return;
        }
        for (row, is_new) in [(before, false), (after, true)] {
            let Some((demand, pool)) = unit.demands.get(&row.group).filter(|_| row.is_live()) else {
                continue;
            };
            let of_node = self.by_node.entry(row.node).or_default();
            let leaving = Some(&mut of_node.leaving).filter(|_| row.eviction.is_some());
            for usage in leaving.into_iter().chain([&mut of_node.all]) {
                if is_new {
                    usage.add(nodes.get(&row.node), demand, *pool, row.allocation);
                } else {
                    usage.remove(nodes.get(&row.node), demand, *pool, row.allocation);
                }
            }
            if *pool == Pool::Guaranteed {
                count(&mut of_node.guaranteed, (row.bound_time_ms, id, row.group), is_new);
            }
            if !row.allocation.devices.is_empty() {
                let key = (id, row.group, row.allocation.devices, row.eviction.is_some());
                count(&mut of_node.devices, key, is_new);
            }
        }
    }

    /// A node has other devices: what running units take of each follows from what it is now.
    pub(crate) fn settle_devices(&mut self, world: &World, id: NodeId) {
        let Some(OfNode { all, leaving, devices, .. }) = self.by_node.get_mut(&id) else { return };
        let node = world.nodes.get(&id);
        all.devices.clear();
        leaving.devices.clear();
        for ((unit, group, held, is_leaving), n) in devices {
            let demand = world.units.get(unit).and_then(|unit| unit.demands.get(group));
            let Some((demand, _)) = demand else { continue };
            for _ in 0..*n {
                all.add_devices(node, demand, *held);
                if *is_leaving {
                    leaving.add_devices(node, demand, *held);
                }
            }
        }
    }

    /// Whether these are the sums over the rows as they are now.
    pub(crate) fn agree_with(&self, world: &World) -> bool {
        let (all, leaving) = (usage(world, |_| true), usage(world, |row| row.eviction.is_some()));
        let none = NodeSums::default();
        let nodes: BTreeSet<NodeId> = self.by_node.keys().chain(all.keys()).copied().collect();
        nodes.into_iter().all(|id| {
            let no_tenant = OfNode::default();
            let of_node = self.by_node.get(&id).unwrap_or(&no_tenant);
            let all = all.get(&id).unwrap_or(&none);
            let kept = world.nodes.get(&id).map(|node| of_node.kept(world, node));
            of_node.all.takes_as(all)
                && of_node.leaving.takes_as(leaving.get(&id).unwrap_or(&none))
                && kept.is_none_or(|kept| non_zero(&kept).eq(non_zero(&all.kept)))
        })
    }

    /// I1 for one node after a commit: what stays fits, and what is held; if something was bound in it, everything fits,
    /// holds as far as their victims have left. A node that has come to have less keeps what it has, as long as nothing
    /// is bound there that takes of what is short. `holds` are those of the node. Whether everything fits.
    pub(crate) fn check(
        &self,
        world: &World,
        id: NodeId,
        bound: &Bound<'_>,
        holds: &[Versioned<Arc<Hold>>],
        commit: &Commit,
        findings: &mut Findings,
    ) -> bool {
        let (revision, bound_now) = (commit.revision, !bound.0.is_empty());
        let bound_best_effort = bound.has(Pool::BestEffort);
        let of_node = self.by_node.get(&id).filter(|of_node| of_node.all.n > 0);
        if of_node.is_none() && holds.is_empty() {
            return true;
        }
        let Some(node) = world.nodes.get(&id) else {
            // What is held there goes as soon as the binder hears of it.
            if of_node.is_some() {
                findings
                    .add(|| format!("revision {revision}: running units on node {id}, which does not exist"));
            }
            return true;
        };
        let tenants = of_node.map(|of_node| if bound_now { of_node.all.clone() } else { of_node.staying() });
        let mut sums = tenants.unwrap_or_default();
        if bound_best_effort {
            sums.kept = of_node.map(|of_node| of_node.kept(world, node)).unwrap_or_default();
            // What was bound along with it may have been bound after it.
            for (bind, n) in bound.0.iter().filter(|(bind, _)| bind.pool == Pool::Guaranteed) {
                let kept = node.kept(&bind.demand.requests, commit.time_ms);
                kept.for_each(|(name, amount)| sums.kept.add_amount(name, amount.saturating_mul(-n)));
                sums.kept.add_amount(RUNNING_UNITS, -n);
            }
        }
        for hold in holds {
            sums.add_hold(world, &hold.value, !bound_now);
            if bound_best_effort && hold.revision < revision {
                sums.keep_hold(world, &hold.value, !bound_now);
            }
        }
        let is_shrunk = world.shrunk.contains(&id);
        let none = OfNode::default();
        let of_node = of_node.unwrap_or(&none);
        let short = if is_shrunk { of_node.short_kinds(world, node, holds) } else { BTreeSet::new() };
        let mut wrong = excess(node, &sums);
        wrong.extend(short.into_iter().map(|kind| Excess {
            of: Of::Kind(kind.to_owned()),
            words: format!("{kind} held that it no longer has"),
        }));
        let worse = wrong.iter().filter(|wrong| !is_shrunk || bound.takes(Pool::Guaranteed, wrong));
        let beyond = if bound_best_effort { best_effort_excess(node, &sums) } else { Vec::new() };
        let taken = beyond.iter().filter(|wrong| bound.takes(Pool::BestEffort, wrong));
        for wrong in worse.chain(taken) {
            findings.add(|| format!("node {}: {} (revision {revision})", node.name(), wrong.words));
        }
        // Those that leave are there until they have left.
        wrong.is_empty() && (!is_shrunk || excess(node, &of_node.all).is_empty())
    }
}
