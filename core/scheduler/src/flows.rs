//! Workflows: one per sub-cluster and pool, each with a ready queue of its own. They take turns, so that neither a backlog
//! of one nor many of its units without a place keep another waiting.
//!
//! Turns are by deficit round robin (Shreedhar and Varghese: *Efficient Fair Queuing using Deficit Round Robin*, SIGCOMM
//! '95): a turn is worth a number of running units, and what a large unit takes beyond that is owed at the next turns. A try that
//! places nothing ends the turn, as it may have cost a look at every node. With one workflow at work there are no turns.

use std::collections::{BTreeSet, VecDeque};

use godel_base::ids::UnitId;
use godel_cluster::SubClusterId;
use godel_domain::demand::Pool;
use godel_placement::place::templates::Templates;

use super::{assigned_unit::GroupWork, park::QueueKey};

/// Running units of a turn: less than a millisecond of placing, and decisions that are still worth a message.
const QUANTUM: i64 = 1_024;

/// A workflow by small integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowIdx(usize);

impl FlowIdx {
    /// Returns the workflow of the sub-cluster that all of some task groups demand.
    pub(crate) fn of_groups(groups: &[GroupWork], pool: Pool, templates: &Templates) -> Self {
        let of = |group: &GroupWork| templates.get(group.template).ask.sub_cluster();
        let first = groups.first().and_then(of);
        Self::new(first.filter(|_| groups.iter().all(|group| of(group) == first)), pool)
    }

    /// Of the units of a sub-cluster, or of none, in a pool.
    pub(crate) fn new(sub_cluster: Option<SubClusterId>, pool: Pool) -> Self {
        let pool = match pool {
            Pool::Guaranteed => 0,
            Pool::BestEffort => 1,
        };
        Self(sub_cluster.map_or(0, |id| id.idx() + 1) * 2 + pool)
    }
}

/// Units that are ready, by workflow.
#[derive(Debug, Default)]
pub(super) struct Flows {
    flows: Vec<Flow>,
    /// Workflows with ready units, each once; the first one has its turn. Those that ran empty leave when they come first.
    ring: VecDeque<FlowIdx>,
    /// The first one got what its turn is worth.
    has_begun: bool,
    n_ready: usize,
}

#[derive(Debug, Default)]
struct Flow {
    ready: BTreeSet<QueueKey>,
    is_listed: bool,
    /// Running units that it may try; below 0 it owes some.
    credit: i64,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) unit: UnitId,
    flow: FlowIdx,
    /// Running units at most; more only where they have to be placed together.
    pub(super) limit: usize,
}

impl Flows {
    pub(super) fn len(&self) -> usize {
        self.n_ready
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n_ready == 0
    }

    pub(super) fn insert(&mut self, idx: FlowIdx, position: QueueKey) {
        if self.flows.len() <= idx.0 {
            self.flows.resize_with(idx.0 + 1, Flow::default);
        }
        let flow = &mut self.flows[idx.0];
        self.n_ready += usize::from(flow.ready.insert(position));
        if !std::mem::replace(&mut flow.is_listed, true) {
            self.ring.push_back(idx);
        }
    }

    pub(super) fn remove(&mut self, idx: FlowIdx, position: &QueueKey) {
        if let Some(flow) = self.flows.get_mut(idx.0) {
            self.n_ready -= usize::from(flow.ready.remove(position));
        }
    }

    /// The unit to be tried next: the first one of the workflow whose turn it is. Amortised `O(1)` beyond its queue's.
    pub(super) fn next(&mut self) -> Option<Next> {
        loop {
            let idx = *self.ring.front()?;
            let is_alone = self.ring.len() == 1;
            let flow = &mut self.flows[idx.0];
            let Some(&(_, _, unit)) = flow.ready.first() else {
                flow.is_listed = false;
                self.ring.pop_front();
                self.has_begun = false;
                continue;
            };
            if is_alone {
                return Some(Next { unit, flow: idx, limit: usize::MAX });
            }
            if !std::mem::replace(&mut self.has_begun, true) {
                flow.credit = (flow.credit + QUANTUM).min(QUANTUM);
            }
            match usize::try_from(flow.credit) {
                Ok(limit) if limit > 0 => return Some(Next { unit, flow: idx, limit }),
                Ok(_) | Err(_) => {
                    self.ring.rotate_left(1);
                    self.has_begun = false;
                }
            }
        }
    }

    /// Counts a try: how many running units of `next` were tried, and whether any was placed.
    pub(super) fn note_tried(&mut self, next: Next, n_tried: usize, is_placed: bool) {
        if self.ring.len() < 2 {
            return;
        }
        let flow = &mut self.flows[next.flow.0];
        if is_placed {
            flow.credit = flow.credit.saturating_sub(i64::try_from(n_tried.max(1)).unwrap_or(i64::MAX));
        } else {
            flow.credit = flow.credit.min(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;

    fn flow(n: usize) -> FlowIdx {
        FlowIdx(n)
    }

    fn position(unit: u64) -> QueueKey {
        (Reverse(0), unit, UnitId(unit))
    }

    /// Units by flow, each of `n` running units.
    fn flows(units: &[(usize, u64)]) -> Flows {
        let mut flows = Flows::default();
        for (idx, unit) in units {
            flows.insert(flow(*idx), position(*unit));
        }
        flows
    }

    #[test]
    fn alone_there_are_no_turns() {
        let mut flows = flows(&[(3, 1), (3, 2)]);
        for unit in [1, 2] {
            let next = flows.next().unwrap();
            assert_eq!((next.unit, next.limit), (UnitId(unit), usize::MAX));
            flows.note_tried(next, 1_000_000, unit == 1);
            flows.remove(flow(3), &position(unit));
        }
        assert_eq!((flows.next(), flows.len()), (None, 0));
        flows.insert(flow(3), position(3));
        flows.insert(flow(1), position(4));
        assert_eq!(flows.next().unwrap().unit, UnitId(3), "what was tried alone is not owed");
    }

    #[test]
    fn who_places_nothing_passes_its_turn_on() {
        let mut flows = flows(&[(0, 1), (0, 2), (0, 3), (1, 10)]);
        let mut order = Vec::new();
        while let Some(next) = flows.next() {
            order.push(next.unit.0);
            flows.note_tried(next, 0, false);
            flows.remove(next.flow, &position(next.unit.0));
        }
        assert_eq!(order, [1, 10, 2, 3]);
    }

    #[test]
    fn shares_count_running_units_whatever_the_unit_sizes() {
        // One with a gang of ten turns after the other, one with single running units.
        let mut flows = Flows::default();
        let mut n_tried = [0usize; 2];
        let mut unit = 0;
        for _ in 0..100_000 {
            for idx in 0..2 {
                if flows.flows.get(idx).is_none_or(|flow| flow.ready.is_empty()) {
                    unit += 1;
                    flows.insert(flow(idx), position(unit));
                }
            }
            let next = flows.next().unwrap();
            let n = if next.flow == flow(0) { 2_560 } else { 1 };
            n_tried[next.flow.0] += n;
            flows.note_tried(next, n, true);
            flows.remove(next.flow, &position(next.unit.0));
        }
        let [gangs, single] = n_tried;
        assert!(gangs.abs_diff(single) <= 2_560 + 2 * 1_024, "{n_tried:?}");
    }

    #[test]
    fn pools_and_sub_clusters_are_told_apart() {
        let mut cluster = godel_cluster::Cluster::new();
        let ids = [
            None,
            Some(cluster.catalogue_mut().sub_cluster("a")),
            Some(cluster.catalogue_mut().sub_cluster("b")),
        ];
        let both = [Pool::Guaranteed, Pool::BestEffort];
        let all: Vec<_> = ids.iter().flat_map(|id| both.map(|pool| FlowIdx::new(*id, pool).0)).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
    }
}
