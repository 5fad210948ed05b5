//! Who has to leave which node: running units on lost nodes.
//!
//! Rows are not kept by node: there may be a million units, and nodes are lost rarely. When a node has to be left, a
//! sweep over the units finds those with rows there, a bounded slice at a time; bindings that come meanwhile are
//! added. Then each pass asks the binder for what may go now, and again after a while for what did not.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Dispatcher, EvictRequest, Settle, step::EVICT_ORDINALS_MAX};
use crate::{
    ids::{NodeId, UnitId},
    losses::BrakeChange,
    rows::{Bind, EvictionReason, UnitRows},
    time::Millis,
};

/// Between two passes while somebody has to leave, milliseconds.
const PASS_MS: u64 = 250;
/// Units looked at in one step of a sweep.
const SWEEP_UNITS: usize = 20_000;
/// Units asked to leave in one pass.
const UNITS_PER_PASS: usize = 1_000;

/// Nodes to be left and the units there.
#[derive(Debug, Default)]
pub(super) struct Departures {
    nodes: BTreeSet<NodeId>,
    /// Of `nodes`: not looked for yet.
    unswept: BTreeSet<NodeId>,
    sweep: Option<Sweep>,
    /// With their rows on `nodes`, a superset.
    units: BTreeMap<UnitId, BTreeSet<NodeId>>,
    /// Asked of the binder, and when again.
    asked: BTreeMap<UnitId, Millis>,
    pass_at: Millis,
    /// Where the next pass begins.
    next: UnitId,
}

/// A look at all units for some nodes.
#[derive(Debug)]
struct Sweep {
    nodes: BTreeSet<NodeId>,
    next: UnitId,
}

impl Departures {
    /// The nodes to be left are these.
    fn set_nodes(&mut self, nodes: BTreeSet<NodeId>) {
        self.unswept.extend(nodes.difference(&self.nodes));
        self.unswept.retain(|node| nodes.contains(node));
        self.nodes = nodes;
    }

    /// New rows, perhaps on a node to be left.
    pub(super) fn on_bind(&mut self, unit: UnitId, bind: &Bind) {
        if self.nodes.is_empty() {
            return;
        }
        let leaving = bind.nodes.iter().filter(|node| self.nodes.contains(node)).copied();
        for node in leaving {
            self.units.entry(unit).or_default().insert(node);
        }
    }

    /// What was asked for shows.
    pub(super) fn on_evicted(&mut self, unit: UnitId) {
        self.asked.remove(&unit);
    }

    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        self.units.remove(&unit);
        self.asked.remove(&unit);
    }

    fn note_rows(&mut self, unit: UnitId, rows: &UnitRows, nodes: &BTreeSet<NodeId>) {
        let there: BTreeSet<NodeId> =
            rows.live().map(|(_, row)| row.node).filter(|node| nodes.contains(node)).collect();
        if !there.is_empty() {
            self.units.entry(unit).or_default().extend(there);
        }
    }
}

impl Dispatcher {
    /// After the first list: nodes that were absent before and have nothing to lose are no news.
    pub(super) fn start_losses(&mut self) {
        let absent: BTreeSet<NodeId> = self.losses.absent().collect();
        let mut taken = BTreeSet::new();
        if !absent.is_empty() {
            let rows = self.units.values().flat_map(|entry| entry.rows.live());
            taken.extend(rows.map(|(_, row)| row.node).filter(|node| absent.contains(node)));
        }
        self.losses.start(|node| !taken.contains(&node));
    }

    /// Somebody says that the nodes that are absent now are lost. Whether evictions were paused.
    pub fn resume_evictions(&mut self) -> bool {
        let was_braked = self.losses.resume();
        if was_braked {
            self.brake_changes.push(BrakeChange::Released);
        }
        was_braked
    }

    /// Changes of the brake since the last call, for the log.
    pub fn take_brake_changes(&mut self) -> Vec<BrakeChange> {
        std::mem::take(&mut self.brake_changes)
    }

    /// Looks for units on nodes that have to be left, and asks the binder for those that may go.
    pub(super) fn depart(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if let Some(change) = self.losses.check(now) {
            self.brake_changes.push(change);
        }
        // While a list is under way, what is known may be old.
        if self.settle == Settle::Loading || self.listed.is_some() {
            return;
        }
        let is_idle = self.losses.absent().len() == 0 && self.departures.nodes.is_empty();
        if is_idle || (now < self.departures.pass_at && self.departures.sweep.is_none()) {
            return;
        }
        let nodes: BTreeSet<NodeId> = self.losses.lost(now).collect();
        self.departures.set_nodes(nodes);
        self.sweep();
        self.departures.pass_at = now.plus(PASS_MS);
        self.ask_to_leave(now, actions);
    }

    /// When the next look is due, `None` while nobody has to leave.
    pub(super) fn departures_due(&self, now: Millis) -> Option<Millis> {
        let departures = &self.departures;
        if departures.sweep.is_some() {
            return Some(now);
        }
        let lost = self.losses.next_at(|node| departures.nodes.contains(&node));
        let waits = !departures.units.is_empty() || !departures.unswept.is_empty();
        let next = if waits { Some(departures.pass_at) } else { lost };
        next.map(|at| at.max(departures.pass_at))
    }

    /// A bounded part of the look at all units for nodes that have to be left since lately.
    fn sweep(&mut self) {
        let departures = &mut self.departures;
        if departures.sweep.is_none() && !departures.unswept.is_empty() {
            let nodes = std::mem::take(&mut departures.unswept);
            departures.sweep = Some(Sweep { nodes, next: UnitId(0) });
        }
        let Some(Sweep { nodes, next }) = departures.sweep.take() else { return };
        for (seen, &unit) in self.unit_ids.range(next..).enumerate() {
            if seen >= SWEEP_UNITS {
                departures.sweep = Some(Sweep { nodes, next: unit });
                return;
            }
            if let Some(entry) = self.units.get(&unit) {
                departures.note_rows(unit, &entry.rows, &nodes);
            }
        }
    }

    fn ask_to_leave(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Departures { nodes, units, asked, next, .. } = &mut self.departures;
        asked.retain(|_, again_at| *again_at > now);
        let turn: Vec<UnitId> =
            units.range(*next..).map(|(unit, _)| *unit).take(UNITS_PER_PASS + 1).collect();
        *next = turn.get(UNITS_PER_PASS).copied().unwrap_or(UnitId(0));
        for unit in turn.into_iter().take(UNITS_PER_PASS) {
            let Some(entry) = self.units.get(&unit) else {
                units.remove(&unit);
                continue;
            };
            let (mut there, mut lost) = (BTreeSet::new(), Vec::new());
            for (ordinal, row) in entry.rows.live().filter(|(_, row)| nodes.contains(&row.node)) {
                there.insert(row.node);
                lost.push((ordinal, row.incarnation));
            }
            if there.is_empty() {
                units.remove(&unit);
                continue;
            }
            units.insert(unit, there);
            if asked.contains_key(&unit) {
                continue;
            }
            lost.truncate(EVICT_ORDINALS_MAX);
            asked.insert(unit, now.plus(self.config.evict_retry_ms));
            let (ordinals, incarnations) = lost.into_iter().unzip();
            let (reason, by) = (EvictionReason::NodeLost, "node loss".to_owned());
            actions.push(Action::Evict(EvictRequest { unit, reason, ordinals, incarnations, by }));
        }
    }
}
