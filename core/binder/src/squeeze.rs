//! When best-effort running units have to leave: nodes that are above their best-effort room, since when, and why.
//!
//! A node gets a grace: use that falls again, or a running unit that ends, spares the eviction. Nothing is kept that the
//! records do not say: a new leader looks at every node once, and each has its grace anew.

use std::{collections::BTreeMap, fmt};

use godel_domain::{
    demand::Pool,
    hold::Member,
    ids::{NodeId, UnitId},
    running_units::{Bind, Evict, EvictionReason},
};

use super::Binder;
use crate::squeeze_victims;

/// Nodes are above their room for so long by default before somebody leaves, milliseconds.
const GRACE_MS: u64 = 2_000;
/// Evictions asked for are read by then, or asked for again, milliseconds.
const AGAIN_MS: i64 = 1_000;
/// Running units asked to leave in one go; more follow.
const N_AT_ONCE: usize = 4_096;

/// Nodes above their best-effort room.
#[derive(Debug, Default)]
pub(super) struct Squeezes {
    over: BTreeMap<NodeId, Over>,
    /// Any node may be above its room.
    look_at_all: bool,
    grace_ms: Option<u64>,
    /// Not after the time at which there is something to do.
    next_ms: Option<i64>,
}

#[derive(Debug)]
struct Over {
    at_ms: i64,
    cause: Cause,
}

/// Why a node is above its best-effort room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// Its report or what is allocatable of it.
    Node,
    /// What its guaranteed running units use.
    Usage,
    /// Room that this unit was given.
    Unit(UnitId),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Usage => f.write_str("usage"),
            Self::Unit(unit) => write!(f, "unit {unit}"),
        }
    }
}

impl Squeezes {
    pub(super) fn lead(&mut self, grace_ms: u64) {
        self.grace_ms = Some(grace_ms);
    }

    /// Nothing is known: look at every node.
    pub(super) fn reset(&mut self) {
        self.over.clear();
        self.next_ms = None;
        self.look_at_all = true;
    }

    fn grace_ms(&self) -> i64 {
        i64::try_from(self.grace_ms.unwrap_or(GRACE_MS)).unwrap_or(i64::MAX)
    }
}

impl Binder {
    /// Nodes above their best-effort room, in their grace too.
    pub fn n_over(&self) -> usize {
        self.squeezes.over.len() + usize::from(self.squeezes.look_at_all && self.cluster.has_best_effort())
    }

    /// Somebody may have to leave now.
    pub fn has_squeezes(&self) -> bool {
        (self.squeezes.look_at_all && self.cluster.has_best_effort())
            || self.squeezes.next_ms.is_some_and(|at| at <= self.now_ms)
    }

    /// Evictions of best-effort running units that are above the room of their nodes for longer than the grace. What is
    /// asked for and does not come to pass is asked for again.
    pub fn take_squeezes(&mut self) -> Vec<(UnitId, Evict)> {
        if self.squeezes.look_at_all && self.cluster.has_best_effort() {
            self.squeezes.look_at_all = false;
            let nodes: Vec<NodeId> = self.cluster.nodes().collect();
            nodes.into_iter().for_each(|node| self.look_for_squeeze(node, Cause::Usage));
        }
        let mut by_unit: BTreeMap<(UnitId, Cause), Vec<Member>> = BTreeMap::new();
        let mut n_asked = 0;
        let now_ms = self.now_ms;
        let due: Vec<NodeId> = self
            .squeezes
            .over
            .iter()
            .filter(|(_, over)| over.at_ms <= now_ms)
            .map(|(node, _)| *node)
            .collect();
        for node in due {
            if n_asked >= N_AT_ONCE {
                break;
            }
            let Some(over) = self.squeezes.over.get_mut(&node) else { continue };
            let victims = squeeze_victims::victims(&mut self.cluster, node, |unit, ordinal| {
                self.holds.is_leaving(unit, ordinal)
            });
            if victims.is_empty() {
                self.squeezes.over.remove(&node);
                continue;
            }
            n_asked += victims.len();
            over.at_ms = now_ms.saturating_add(AGAIN_MS);
            for victim in victims {
                by_unit.entry((victim.unit, over.cause)).or_default().push(victim);
            }
        }
        self.squeezes.next_ms = self.squeezes.over.values().map(|over| over.at_ms).min();
        by_unit.into_iter().map(|((unit, cause), victims)| (unit, eviction(cause, victims))).collect()
    }

    /// A binding was read.
    pub(super) fn look_at_bind(&mut self, unit: UnitId, bind: &Bind) {
        if bind.pool == Pool::Guaranteed && self.cluster.has_best_effort() {
            for node in &bind.nodes {
                self.look_for_squeeze(*node, Cause::Unit(unit));
            }
        }
    }

    /// The best-effort room of a node may have become less. A unit that took room names itself also where the node is
    /// above its room already: what is not committed counts, so a usage report can find the node over before the binding
    /// that made it so is read.
    pub(super) fn look_for_squeeze(&mut self, node: NodeId, cause: Cause) {
        if !self.cluster.is_over(node) {
            return;
        }
        let at_ms = self.now_ms.saturating_add(self.squeezes.grace_ms());
        let over = self.squeezes.over.entry(node).or_insert(Over { at_ms, cause });
        if matches!((over.cause, cause), (Cause::Node | Cause::Usage, Cause::Unit(_))) {
            over.cause = cause;
        }
        self.squeezes.next_ms = Some(self.squeezes.next_ms.map_or(at_ms, |next| next.min(at_ms)));
    }
}

fn eviction(cause: Cause, mut victims: Vec<Member>) -> Evict {
    victims.sort_unstable();
    let (ordinals, incarnations) = victims.iter().map(|one| (one.ordinal, one.incarnation)).unzip();
    Evict {
        ordinals,
        incarnations,
        reason: EvictionReason::Squeezed,
        by: cause.to_string(),
        preemptor: UnitId(0),
    }
}
