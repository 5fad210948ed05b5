//! What is frozen because of records that this version cannot read.
//!
//! A follower that meets such a record says so and goes on without it: an older process in a rolling upgrade meets values
//! that only newer ones know. [`Frozen`] keeps which records these are, and answers what must not be decided meanwhile:
//! what the record is about gets nothing new and gives nothing away. The version of the record that was read before is not
//! used instead. A record thaws when a version of it comes that can be read, or when it is deleted.
//!
//! Which rule follows from which record: `docs/adr/0013-unreadable-records.md`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    change::Change,
    pause::Scope,
    records::{RecordKey, RecordKind},
    running_units::RunChange,
    unreadable::{AffectedNodes, Unreadable},
};
use godel_base::ids::{HoldId, NodeId, UnitId};
use rustc_hash::FxHashMap;

#[cfg(test)]
mod tests;

/// What a change made of [`Frozen`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Noted {
    /// Whoever follows has nothing to do with the change itself: it builds on what could not be read.
    pub is_void: bool,
    /// Something froze or thawed.
    pub is_news: bool,
    /// Nodes that may have frozen or thawed.
    pub nodes: BTreeSet<NodeId>,
    /// Any node may have.
    pub any_node: bool,
}

/// Records that cannot be read now. Empty mostly: then every question is answered by one comparison.
#[derive(Clone, Debug, Default)]
pub struct Frozen {
    records: BTreeMap<RecordKey, Unreadable>,
    /// How many of `records` freeze a node.
    nodes: FxHashMap<NodeId, u32>,
    /// How many freeze every node.
    n_any_node: usize,
    /// How many keep everybody from leaving for others.
    n_keep_all: usize,
    /// How many keep budgets from letting anybody go.
    n_keep_budgets: usize,
    n_unknown: usize,
}

impl Frozen {
    /// Everything could be read.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many records cannot be read.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// What cannot be read, in order of kind and key.
    pub fn iter(&self) -> impl Iterator<Item = &Unreadable> {
        self.records.values()
    }

    /// Follows a change before it is applied. Nothing happens, at the price of two comparisons, while everything can be
    /// read.
    pub fn note(&mut self, change: &Change) -> Noted {
        let mut noted = Noted::default();
        match change {
            Change::Unreadable(unreadable) => self.freeze((**unreadable).clone(), &mut noted),
            _ if self.records.is_empty() => {}
            Change::Rows(unit, rows) => {
                if let Some(mut known) = self.records.get(&RecordKey::Rows(*unit)).cloned() {
                    noted.is_void = true;
                    if let (RunChange::Bind(bind), AffectedNodes::Of(nodes)) = (rows, &mut known.nodes) {
                        nodes.extend(&bind.nodes);
                        self.freeze(known, &mut noted);
                    }
                }
            }
            _ => change.settles().iter().for_each(|key| self.thaw(key, &mut noted)),
        }
        noted
    }

    /// A list follows, which shows all records anew.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// After a list: what it did not show can be read, or is gone. Whether that is news.
    pub fn retain(&mut self, listed: &BTreeSet<RecordKey>) -> bool {
        let gone: Vec<RecordKey> =
            self.records.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| self.thaw(key, &mut Noted::default()));
        !gone.is_empty()
    }

    fn freeze(&mut self, mut unreadable: Unreadable, noted: &mut Noted) {
        if let (RecordKey::Rows(_), Some(known)) = (&unreadable.key, self.records.get(&unreadable.key)) {
            // Each operation that was missed may have bound others.
            unreadable.nodes = match (&known.nodes, unreadable.nodes) {
                (AffectedNodes::Of(before), AffectedNodes::Of(more)) => {
                    let all: BTreeSet<NodeId> = before.iter().copied().chain(more).collect();
                    AffectedNodes::Of(all.into_iter().collect())
                }
                (AffectedNodes::Any, _) | (_, AffectedNodes::Any) => AffectedNodes::Any,
            };
        }
        self.thaw(&unreadable.key.clone(), noted);
        self.count(&unreadable, true, noted);
        self.records.insert(unreadable.key.clone(), unreadable);
    }

    fn thaw(&mut self, key: &RecordKey, noted: &mut Noted) {
        if let Some(known) = self.records.remove(key) {
            self.count(&known, false, noted);
        }
    }

    fn count(&mut self, unreadable: &Unreadable, more: bool, noted: &mut Noted) {
        noted.is_news = true;
        let step = |n: &mut usize, by: bool| match (by, more) {
            (true, true) => *n += 1,
            (true, false) => *n -= 1,
            (false, _) => {}
        };
        match &unreadable.nodes {
            AffectedNodes::Any => {
                noted.any_node = true;
                step(&mut self.n_any_node, true);
            }
            AffectedNodes::Of(nodes) => {
                for node in nodes.iter().collect::<BTreeSet<_>>() {
                    noted.nodes.insert(*node);
                    let n = self.nodes.entry(*node).or_default();
                    if more {
                        *n += 1
                    } else {
                        *n -= 1
                    }
                    if *n == 0 {
                        self.nodes.remove(node);
                    }
                }
            }
        }
        step(&mut self.n_keep_all, keeps_all(&unreadable.key));
        step(&mut self.n_keep_budgets, keeps_budgets(&unreadable.key));
        step(&mut self.n_unknown, unreadable.key == RecordKey::Unknown);
    }

    /// Why a record is frozen.
    pub fn get(&self, key: &RecordKey) -> Option<&Unreadable> {
        self.records.get(key)
    }

    /// Nobody can tell which record it is that cannot be read: nothing is handed out, bound, evicted, ended or deleted.
    pub fn is_all(&self) -> bool {
        self.n_unknown > 0
    }

    /// Nothing new comes to a node, and what is there stays: one of its records cannot be read, or who is on it.
    pub fn has_node(&self, node: NodeId) -> bool {
        !self.records.is_empty() && (self.n_any_node > 0 || self.nodes.contains_key(&node))
    }

    /// Whether a node is there cannot be told: it is not lost.
    pub fn has_report(&self, node: NodeId) -> bool {
        !self.records.is_empty() && (self.is_all() || self.records.contains_key(&RecordKey::NodeReport(node)))
    }

    /// A unit is not placed further, and its running units stay: its record or its rows cannot be read, or room that is
    /// kept for it.
    pub fn unit(&self, unit: UnitId) -> Option<&Unreadable> {
        if self.records.is_empty() {
            return None;
        }
        self.records
            .get(&RecordKey::Unit(unit))
            .or_else(|| self.records.get(&RecordKey::Rows(unit)))
            .or_else(|| self.records.values().find(|one| one.unit == Some(unit)))
            .or_else(|| self.records.get(&RecordKey::Unknown))
    }

    /// A priority class cannot be read.
    pub fn class(&self, name: &str) -> Option<&Unreadable> {
        if self.records.is_empty() || name.is_empty() {
            return None;
        }
        self.records.get(&RecordKey::PriorityClass(name.to_owned()))
    }

    /// A reservation cannot be read: its slots stay as they are.
    pub fn has_reservation(&self, name: &str) -> bool {
        !self.records.is_empty()
            && (self.is_all() || self.records.contains_key(&RecordKey::Reservation(name.to_owned())))
    }

    /// A hold cannot be read, or which record it is: it stays as it is.
    pub fn has_hold(&self, hold: HoldId) -> bool {
        !self.records.is_empty() && (self.is_all() || self.records.contains_key(&RecordKey::Hold(hold)))
    }

    /// Some hold cannot be read: nobody knows whose turn it is to gather room.
    pub fn has_holds(&self) -> bool {
        !self.records.is_empty()
            && self.records.keys().any(|one| one.kind().is_none_or(|kind| kind == RecordKind::Hold))
    }

    /// Nobody leaves for others: whether somebody may rests on the queues and classes, on all units that budgets count, on
    /// the budgets, and on pauses.
    pub fn keeps_all(&self) -> bool {
        self.n_keep_all > 0
    }

    /// Disruption budgets let nobody go: one of them cannot be read, or a unit that they may count.
    pub fn keeps_budgets(&self) -> bool {
        self.n_keep_budgets > 0
    }

    /// A unit of this namespace and name is there, whatever else it is.
    pub fn has_name(&self, namespace: &str, name: &str) -> Option<UnitId> {
        self.records.values().find_map(|one| match (&one.key, &one.name) {
            (RecordKey::Unit(unit), Some((of, called))) if of == namespace && called == name => Some(*unit),
            _ => None,
        })
    }

    /// The pause that nothing of a queue is handed out by, as it is written: one that cannot be read is in force, of
    /// everything where its scope cannot be read either.
    pub fn pause(&self, is_in: impl Fn(&Scope) -> bool) -> Option<&Unreadable> {
        self.records.values().find(|one| {
            let RecordKey::Pause(scope) = &one.key else { return false };
            match Scope::parse(scope) {
                // Of sub-clusters the label that says them is in the record.
                None | Some(Scope::All | Scope::SubCluster(_)) => true,
                Some(Scope::Preemption) => false,
                Some(scope @ Scope::Queue(_)) => is_in(&scope),
            }
        })
    }
}

fn keeps_all(key: &RecordKey) -> bool {
    use RecordKind::{Budget, Pause, PriorityClass, Queue, Rows, Unit};
    key.kind().is_none_or(|kind| matches!(kind, Unit | Rows | Queue | PriorityClass | Budget | Pause))
}

fn keeps_budgets(key: &RecordKey) -> bool {
    use RecordKind::{Budget, Rows, Unit};
    key.kind().is_none_or(|kind| matches!(kind, Unit | Rows | Budget))
}
