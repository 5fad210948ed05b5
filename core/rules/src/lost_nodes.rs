//! Lost nodes: which of them are past their grace, and whether so many were lost at once that it is not believed.
//!
//! A node is absent while it is not ready. Past the grace what ran there comes back elsewhere. When more nodes than
//! a share of all became absent within a short time, the fault is more likely here than there: the *brake* keeps
//! everything where it is until enough of them are back, or until somebody says that it is true.
//!
//! Nothing survives a restart: a new leader sees every absent node for the first time, gives each its grace anew,
//! and brakes again if they are too many.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{ids::NodeId, time::Millis};

/// When nodes count as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// From the moment that a node is not ready to the end of what runs there, milliseconds.
    pub grace_ms: u64,
    /// More than this share of all nodes lost within the window engages the brake, percent.
    pub brake_percent: u32,
    /// And at least so many.
    pub brake_nodes_min: usize,
    /// See `brake_percent`, milliseconds.
    pub brake_window_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { grace_ms: 60_000, brake_percent: 10, brake_nodes_min: 2, brake_window_ms: 60_000 }
    }
}

/// What a look at the losses has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrakeChange {
    /// So many of so many nodes were lost at once: nothing is evicted from now on.
    Engaged {
        /// Lost within the window.
        lost: usize,
        /// All nodes.
        nodes: usize,
    },
    /// Enough nodes are back, or somebody resumed: evictions go on.
    Released,
}

/// All nodes, and since when those are absent that are.
#[derive(Debug, Default)]
pub struct Losses {
    config: Config,
    nodes: BTreeSet<NodeId>,
    absent: BTreeMap<NodeId, Absence>,
    /// While it is engaged: losses after this moment hold it.
    brake: Option<Millis>,
    /// Since the last look at the brake.
    is_changed: bool,
    /// What was there at the start is known: a new node that is not ready has never been.
    is_started: bool,
}

#[derive(Clone, Copy, Debug)]
struct Absence {
    since: Millis,
    /// For the brake: not one that had nothing to lose, nor one that somebody said to be lost.
    counts: bool,
}

impl Losses {
    /// Without nodes.
    pub fn new(config: Config) -> Self {
        Self { config, ..Self::default() }
    }

    /// A node's readiness, as often as it is heard.
    pub fn put(&mut self, node: NodeId, ready: bool, now: Millis) {
        let is_new = self.nodes.insert(node);
        self.is_changed |= is_new || ready == self.absent.contains_key(&node);
        if ready {
            self.absent.remove(&node);
        } else {
            let counts = !(is_new && self.is_started);
            self.absent.entry(node).or_insert(Absence { since: now, counts });
        }
    }

    /// Whether a node was ever heard of.
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// A node is gone for good.
    pub fn remove(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        self.absent.remove(&node);
        self.is_changed = true;
    }

    /// After a list: all others are gone.
    pub fn retain(&mut self, is_listed: impl Fn(NodeId) -> bool) {
        self.nodes.retain(|node| is_listed(*node));
        self.absent.retain(|node, _| is_listed(*node));
        self.is_changed = true;
    }

    /// All nodes that were there at the start are known. Absent ones have their grace from now on, however long a standby has seen them so, and
    /// those on which nothing runs are no news.
    pub fn start(&mut self, is_empty: impl Fn(NodeId) -> bool, now: Millis) {
        self.is_started = true;
        for (node, absence) in &mut self.absent {
            absence.counts &= !is_empty(*node);
            absence.since = now;
        }
    }

    /// Absent nodes, ascending.
    pub fn absent(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.absent.keys().copied()
    }

    /// All nodes.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Evictions from lost nodes are paused.
    pub fn is_braked(&self) -> bool {
        self.brake.is_some()
    }

    /// Engages or releases the brake. Look after every change of a node, and before [`Self::lost`].
    pub fn check(&mut self, now: Millis) -> Option<BrakeChange> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        match self.brake {
            None => {
                let from = Millis(now.0.saturating_sub(self.config.brake_window_ms));
                let lost = self.n_lost(from);
                if !self.are_many(lost) {
                    return None;
                }
                self.brake = Some(from);
                Some(BrakeChange::Engaged { lost, nodes: self.nodes.len() })
            }
            Some(from) if self.are_many(self.n_lost(from)) => None,
            Some(_) => {
                self.brake = None;
                Some(BrakeChange::Released)
            }
        }
    }

    /// Somebody says that what is absent now is lost. Whether the brake was engaged.
    pub fn resume(&mut self) -> bool {
        for absence in self.absent.values_mut() {
            absence.counts = false;
        }
        self.brake.take().is_some()
    }

    /// Nodes past their grace, ascending; none while the brake is engaged.
    pub fn lost(&self, now: Millis) -> impl Iterator<Item = NodeId> {
        let is_over = move |absence: &Absence| now.since(absence.since) >= self.config.grace_ms;
        let seen = self.absent.iter().filter(|_| self.brake.is_none());
        seen.filter(move |(_, absence)| is_over(absence)).map(|(node, _)| *node)
    }

    /// When the grace of the next one is over that is not `known` to be lost.
    pub fn next_at(&self, known: impl Fn(NodeId) -> bool) -> Option<Millis> {
        let next = self.absent.iter().filter(|(node, _)| self.brake.is_none() && !known(**node));
        next.map(|(_, absence)| absence.since.plus(self.config.grace_ms)).min()
    }

    /// Those that count, absent since later than `from` or from the beginning.
    fn n_lost(&self, from: Millis) -> usize {
        let counts = |absence: &&Absence| absence.counts && (absence.since > from || from == Millis(0));
        self.absent.values().filter(counts).count()
    }

    fn are_many(&self, lost: usize) -> bool {
        let share = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX);
        let n_lost = u64::try_from(lost).unwrap_or(u64::MAX);
        lost >= self.config.brake_nodes_min.max(1)
            && n_lost.saturating_mul(100) > share.saturating_mul(u64::from(self.config.brake_percent))
    }
}

#[cfg(test)]
mod tests;
