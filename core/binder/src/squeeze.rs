//! When best-effort running units have to leave: nodes that are above their best-effort room, since when, and why.
//!
//! A node gets a grace: use that falls again, or a running unit that ends, spares the eviction. Nothing is kept that the
//! records do not say: a new leader looks at every node once, and each has its grace anew.

use std::{collections::BTreeMap, fmt};

use godel_base::ids::{NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::{
    demand::Pool,
    running_units::{Bind, Evict, EvictionReason},
};

use super::{pending_evictions::PendingEvictions, picture::BinderPicture, squeeze_victims};

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
            Self::Node => f.write_str("less room on the node"),
            Self::Usage => f.write_str("use of guaranteed running units on the node"),
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

    /// Nodes above their best-effort room, in their grace too.
    pub(super) fn n_over(&self, cluster: &Cluster) -> usize {
        self.over.len() + usize::from(self.look_at_all && cluster.free().has_best_effort())
    }

    /// Somebody may have to leave now.
    pub(super) fn is_due(&self, picture: &BinderPicture) -> bool {
        (self.look_at_all && picture.cluster.free().has_best_effort())
            || self.next_ms.is_some_and(|at| at <= picture.now_ms)
    }

    /// As [`Binder::take_squeezes`](crate::Binder::take_squeezes).
    pub(super) fn take(
        &mut self,
        picture: &mut BinderPicture,
        evictions: &PendingEvictions,
    ) -> Vec<(UnitId, Evict)> {
        if self.look_at_all && picture.cluster.free().has_best_effort() {
            self.look_at_all = false;
            picture.cluster.nodes().ids().for_each(|node| self.look_at(node, Cause::Usage, picture));
        }
        let mut by_unit: BTreeMap<(UnitId, Cause), Vec<RunningUnitId>> = BTreeMap::new();
        let mut n_asked = 0;
        let now_ms = picture.now_ms;
        let due = self.over.iter().filter(|(_, over)| over.at_ms <= now_ms);
        let due: Vec<NodeId> = due.map(|(node, _)| *node).collect();
        for node in due {
            if n_asked >= N_AT_ONCE {
                break;
            }
            let Some(over) = self.over.get_mut(&node) else { continue };
            let victims = squeeze_victims::victims(&mut picture.cluster, node, |unit, ordinal| {
                evictions.is_victim(unit, ordinal)
            });
            if victims.is_empty() {
                self.over.remove(&node);
                continue;
            }
            n_asked += victims.len();
            over.at_ms = now_ms.saturating_add(AGAIN_MS);
            for victim in victims {
                by_unit.entry((victim.unit, over.cause)).or_default().push(victim);
            }
        }
        self.next_ms = self.over.values().map(|over| over.at_ms).min();
        by_unit.into_iter().map(|((unit, cause), victims)| (unit, eviction(cause, victims))).collect()
    }

    /// A binding was read.
    pub(super) fn on_bind(&mut self, unit: UnitId, bind: &Bind, picture: &BinderPicture) {
        if bind.pool == Pool::Guaranteed && picture.cluster.free().has_best_effort() {
            for node in &bind.nodes {
                self.look_at(*node, Cause::Unit(unit), picture);
            }
        }
    }

    /// The best-effort room of a node may have become less. A unit that took room names itself also where the node is
    /// above its room already: what is not committed counts, so a usage report can find the node over before the binding
    /// that made it so is read.
    pub(super) fn look_at(&mut self, node: NodeId, cause: Cause, picture: &BinderPicture) {
        if !picture.cluster.free().is_over(node) {
            return;
        }
        let at_ms = picture.now_ms.saturating_add(self.grace_ms());
        let over = self.over.entry(node).or_insert(Over { at_ms, cause });
        if matches!((over.cause, cause), (Cause::Node | Cause::Usage, Cause::Unit(_))) {
            over.cause = cause;
        }
        self.next_ms = Some(self.next_ms.map_or(at_ms, |next| next.min(at_ms)));
    }
}

fn eviction(cause: Cause, mut victims: Vec<RunningUnitId>) -> Evict {
    victims.sort_unstable();
    let (ordinals, incarnations) = ReplicaId::columns(victims.iter().map(|victim| victim.replica));
    Evict {
        ordinals,
        incarnations,
        reason: EvictionReason::Squeezed,
        by: cause.to_string(),
        preemptor: UnitId(0),
    }
}
