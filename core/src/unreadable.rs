//! Records that this version cannot read, and what is frozen because of them.
//!
//! A follower that meets such a record says so and goes on without it: an older process in a rolling upgrade meets values
//! that only newer ones know. [`Frozen`] keeps which records these are, and answers what must not be decided meanwhile:
//! what the record is about gets nothing new and gives nothing away. The version of the record that was read before is not
//! used instead. A record thaws when a version of it comes that can be read, or when it is deleted.
//!
//! Which rule follows from which record: `docs/adr/0013-unreadable-records.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    change::Change,
    ids::{HoldId, NodeId, UnitId},
    pause::Scope,
    queue::{QueueIdx, QueueTree},
    rows::RowChange,
};

#[cfg(test)]
mod tests;

/// Which record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// An administrator's record of a node.
    NodeSpec(NodeId),
    /// An agent's record of a node.
    NodeReport(NodeId),
    /// Allocatable in force on a node.
    NodeGrant(NodeId),
    /// What a node's use leaves to best-effort running units.
    NodeUsage(NodeId),
    /// A unit.
    Unit(UnitId),
    /// Rows of a unit, or an operation on them: what a unit's running units are is not known any more.
    Rows(UnitId),
    /// A queue, by path.
    Queue(String),
    /// A priority class, by name.
    PriorityClass(String),
    /// A disruption budget, by name.
    Budget(String),
    /// A reservation, by name.
    Reservation(String),
    /// A pause, by its scope as it is written.
    Pause(String),
    /// Room kept for someone.
    Hold(HoldId),
    /// A lease, by name.
    Lease(String),
    /// How nodes are split over schedulers.
    Partition,
    /// Whose the nodes of a block are, by its number.
    PartitionBlock(u32),
    /// Nobody can tell.
    Unknown,
}

impl Subject {
    /// Its kind, as the API names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NodeSpec(_) => "node spec",
            Self::NodeReport(_) => "node report",
            Self::NodeGrant(_) => "node grant",
            Self::NodeUsage(_) => "node usage",
            Self::Unit(_) => "unit",
            Self::Rows(_) => "rows of unit",
            Self::Queue(_) => "queue",
            Self::PriorityClass(_) => "priority class",
            Self::Budget(_) => "disruption budget",
            Self::Reservation(_) => "reservation",
            Self::Pause(_) => "pause",
            Self::Hold(_) => "hold",
            Self::Lease(_) => "lease",
            Self::Partition => "partition",
            Self::PartitionBlock(_) => "partition block",
            Self::Unknown => "unknown record",
        }
    }

    /// Its key, as the API names it; empty where there is none.
    pub fn key(&self) -> String {
        match self {
            Self::NodeSpec(node) | Self::NodeReport(node) | Self::NodeGrant(node) | Self::NodeUsage(node) => {
                node.to_string()
            }
            Self::Unit(unit) | Self::Rows(unit) => unit.to_string(),
            Self::Queue(name)
            | Self::PriorityClass(name)
            | Self::Budget(name)
            | Self::Reservation(name)
            | Self::Pause(name)
            | Self::Lease(name) => name.clone(),
            Self::Hold(hold) => hold.to_string(),
            // As its record is filed.
            Self::PartitionBlock(number) => number.saturating_add(1).to_string(),
            Self::Partition | Self::Unknown => String::new(),
        }
    }

    /// The record that a change replaces or deletes, where that can thaw it. Of a node and of a unit that are gone these
    /// are several.
    fn settled_by(change: &Change) -> SmallVec<[Self; 4]> {
        let one = |subject| SmallVec::from_iter([subject]);
        match change {
            Change::NodeSpec(spec) => one(Self::NodeSpec(spec.id)),
            Change::NodeReport(report) => one(Self::NodeReport(report.id)),
            Change::NodeGrant(node, _) => one(Self::NodeGrant(*node)),
            Change::NodeUsage(usage) => one(Self::NodeUsage(usage.id)),
            Change::UnitSpec(spec) => one(Self::Unit(spec.id)),
            Change::Lease(lease) => one(Self::Lease(lease.name.clone())),
            Change::Partition(_) => one(Self::Partition),
            Change::PartitionBlock(block) => one(Self::PartitionBlock(block.number)),
            Change::Queue(spec) => one(Self::Queue(spec.name.clone())),
            Change::QueueDeleted(path) => one(Self::Queue(path.clone())),
            Change::PriorityClass(class) => one(Self::PriorityClass(class.name.clone())),
            Change::PriorityClassDeleted(name) => one(Self::PriorityClass(name.clone())),
            Change::Budget(spec) => one(Self::Budget(spec.name.clone())),
            Change::BudgetDeleted(name) => one(Self::Budget(name.clone())),
            Change::Reservation(spec) => one(Self::Reservation(spec.name.clone())),
            Change::ReservationDeleted(name) => one(Self::Reservation(name.clone())),
            Change::Hold(hold) => one(Self::Hold(hold.id)),
            Change::HoldDeleted(id) => one(Self::Hold(*id)),
            Change::Pause(pause) => one(Self::Pause(pause.scope.to_string())),
            Change::PauseDeleted(scope) => one(Self::Pause(scope.to_string())),
            Change::NodeDeleted(node) => SmallVec::from_buf([
                Self::NodeSpec(*node),
                Self::NodeReport(*node),
                Self::NodeGrant(*node),
                Self::NodeUsage(*node),
            ]),
            Change::UnitDeleted(unit) => SmallVec::from_iter([Self::Unit(*unit), Self::Rows(*unit)]),
            Change::RowsLoaded(unit, _) => one(Self::Rows(*unit)),
            Change::UnreadableGone(subject) => one(subject.clone()),
            // A row operation tells nothing of the one that was missed before it.
            Change::Rows(..) | Change::Unreadable(_) => SmallVec::new(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key();
        f.write_str(self.kind())?;
        if key.is_empty() { Ok(()) } else { write!(f, " {key}") }
    }
}

/// Nodes whose room a record says something about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// These.
    Of(Vec<NodeId>),
    /// Nobody can tell which: any of them.
    Any,
}

impl Default for Nodes {
    fn default() -> Self {
        Self::Of(Vec::new())
    }
}

/// A record that cannot be read, with those of its facts that could be read all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Which one.
    pub subject: Subject,
    /// Of a hold and of rows: where they are.
    pub nodes: Nodes,
    /// Of a hold: for whom, if for a unit.
    pub unit: Option<UnitId>,
    /// Of a hold: path of the queue that pays.
    pub queue: Option<String>,
    /// Of a unit: namespace and name.
    pub name: Option<(String, String)>,
    /// Path of the field that cannot be read.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Unreadable {
    /// A record of which nothing else could be read.
    pub fn new(subject: Subject, field: impl Into<String>, problem: impl Into<String>) -> Self {
        let nodes = match &subject {
            Subject::NodeSpec(node)
            | Subject::NodeReport(node)
            | Subject::NodeGrant(node)
            | Subject::NodeUsage(node) => Nodes::Of(vec![*node]),
            Subject::Rows(_) | Subject::Hold(_) | Subject::Unknown => Nodes::Any,
            Subject::Unit(_)
            | Subject::Queue(_)
            | Subject::PriorityClass(_)
            | Subject::Budget(_)
            | Subject::Reservation(_)
            | Subject::Pause(_)
            | Subject::Lease(_)
            | Subject::Partition
            | Subject::PartitionBlock(_) => Nodes::default(),
        };
        let (field, problem) = (field.into(), problem.into());
        Self { subject, nodes, unit: None, queue: None, name: None, field, problem }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read: {}: {}", self.subject, self.field, self.problem)
    }
}

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
    records: BTreeMap<Subject, Unreadable>,
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
                if let Some(mut known) = self.records.get(&Subject::Rows(*unit)).cloned() {
                    noted.is_void = true;
                    if let (RowChange::Bind(bind), Nodes::Of(nodes)) = (rows, &mut known.nodes) {
                        nodes.extend(&bind.nodes);
                        self.freeze(known, &mut noted);
                    }
                }
            }
            _ => Subject::settled_by(change).iter().for_each(|subject| self.thaw(subject, &mut noted)),
        }
        noted
    }

    /// A list follows, which shows all records anew.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// After a list: what it did not show can be read, or is gone. Whether that is news.
    pub fn retain(&mut self, listed: &BTreeSet<Subject>) -> bool {
        let gone: Vec<Subject> =
            self.records.keys().filter(|subject| !listed.contains(*subject)).cloned().collect();
        gone.iter().for_each(|subject| self.thaw(subject, &mut Noted::default()));
        !gone.is_empty()
    }

    fn freeze(&mut self, mut unreadable: Unreadable, noted: &mut Noted) {
        if let (Subject::Rows(_), Some(known)) = (&unreadable.subject, self.records.get(&unreadable.subject))
        {
            // Each operation that was missed may have bound others.
            unreadable.nodes = match (&known.nodes, unreadable.nodes) {
                (Nodes::Of(before), Nodes::Of(more)) => {
                    let all: BTreeSet<NodeId> = before.iter().copied().chain(more).collect();
                    Nodes::Of(all.into_iter().collect())
                }
                (Nodes::Any, _) | (_, Nodes::Any) => Nodes::Any,
            };
        }
        self.thaw(&unreadable.subject.clone(), noted);
        self.count(&unreadable, true, noted);
        self.records.insert(unreadable.subject.clone(), unreadable);
    }

    fn thaw(&mut self, subject: &Subject, noted: &mut Noted) {
        if let Some(known) = self.records.remove(subject) {
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
            Nodes::Any => {
                noted.any_node = true;
                step(&mut self.n_any_node, true);
            }
            Nodes::Of(nodes) => {
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
        step(&mut self.n_keep_all, keeps_all(&unreadable.subject));
        step(&mut self.n_keep_budgets, keeps_budgets(&unreadable.subject));
        step(&mut self.n_unknown, unreadable.subject == Subject::Unknown);
    }

    /// Why a record is frozen.
    pub fn get(&self, subject: &Subject) -> Option<&Unreadable> {
        self.records.get(subject)
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
        !self.records.is_empty() && (self.is_all() || self.records.contains_key(&Subject::NodeReport(node)))
    }

    /// A unit is not placed further, and its running units stay: its record or its rows cannot be read, or room that is
    /// kept for it.
    pub fn unit(&self, unit: UnitId) -> Option<&Unreadable> {
        if self.records.is_empty() {
            return None;
        }
        self.records
            .get(&Subject::Unit(unit))
            .or_else(|| self.records.get(&Subject::Rows(unit)))
            .or_else(|| self.records.values().find(|one| one.unit == Some(unit)))
            .or_else(|| self.records.get(&Subject::Unknown))
    }

    /// A priority class cannot be read.
    pub fn class(&self, name: &str) -> Option<&Unreadable> {
        if self.records.is_empty() || name.is_empty() {
            return None;
        }
        self.records.get(&Subject::PriorityClass(name.to_owned()))
    }

    /// A reservation cannot be read: its slots stay as they are.
    pub fn has_reservation(&self, name: &str) -> bool {
        !self.records.is_empty()
            && (self.is_all() || self.records.contains_key(&Subject::Reservation(name.to_owned())))
    }

    /// A hold cannot be read, or which record it is: it stays as it is.
    pub fn has_hold(&self, hold: HoldId) -> bool {
        !self.records.is_empty() && (self.is_all() || self.records.contains_key(&Subject::Hold(hold)))
    }

    /// Some hold cannot be read: nobody knows whose turn it is to gather room.
    pub fn has_holds(&self) -> bool {
        !self.records.is_empty()
            && self.records.keys().any(|one| matches!(one, Subject::Hold(_) | Subject::Unknown))
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
        self.records.values().find_map(|one| match (&one.subject, &one.name) {
            (Subject::Unit(unit), Some((of, called))) if of == namespace && called == name => Some(*unit),
            _ => None,
        })
    }

    /// Why nothing of a queue is handed out or bound: it or one above it cannot be read, or what is taken of a maximum
    /// that it is under cannot be told, because rows or room held are not read. `queue_of` knows the queues of units.
    pub fn queue(
        &self,
        tree: &QueueTree,
        queue: QueueIdx,
        queue_of: impl Fn(UnitId) -> Option<QueueIdx>,
    ) -> Option<&Unreadable> {
        if self.records.is_empty() {
            return None;
        }
        let above: SmallVec<[QueueIdx; 4]> = tree.upwards(queue).collect();
        let is_limited = |level: &QueueIdx| {
            tree.record(*level).is_some_and(|spec| !spec.max.is_empty() || spec.max_running_units > 0)
        };
        let limited: SmallVec<[QueueIdx; 4]> = above.iter().copied().filter(is_limited).collect();
        // What of unknown size is taken counts wherever it may.
        let shares = |other: Option<QueueIdx>| match other {
            Some(other) => tree.upwards(other).any(|level| limited.contains(&level)),
            None => !limited.is_empty(),
        };
        self.records.values().find(|one| match &one.subject {
            Subject::Unknown => true,
            Subject::Queue(path) => above.iter().any(|level| tree.path(*level) == path),
            Subject::Rows(unit) => shares(queue_of(*unit)),
            Subject::Hold(_) => shares(one.queue.as_deref().and_then(|path| tree.find(path))),
            _ => false,
        })
    }

    /// The pause that nothing of a queue is handed out by, as it is written: one that cannot be read is in force, of
    /// everything where its scope cannot be read either.
    pub fn pause(&self, is_in: impl Fn(&Scope) -> bool) -> Option<&Unreadable> {
        self.records.values().find(|one| match &one.subject {
            Subject::Pause(scope) => match Scope::parse(scope) {
                // Of sub-clusters the label that says them is in the record.
                None | Some(Scope::All | Scope::SubCluster(_)) => true,
                Some(Scope::Preemption) => false,
                Some(scope @ Scope::Queue(_)) => is_in(&scope),
            },
            _ => false,
        })
    }
}

fn keeps_all(subject: &Subject) -> bool {
    match subject {
        Subject::Unit(_)
        | Subject::Rows(_)
        | Subject::Queue(_)
        | Subject::PriorityClass(_)
        | Subject::Budget(_)
        | Subject::Pause(_)
        | Subject::Unknown => true,
        Subject::NodeSpec(_)
        | Subject::NodeReport(_)
        | Subject::NodeGrant(_)
        | Subject::NodeUsage(_)
        | Subject::Reservation(_)
        | Subject::Hold(_)
        | Subject::Lease(_)
        | Subject::Partition
        | Subject::PartitionBlock(_) => false,
    }
}

fn keeps_budgets(subject: &Subject) -> bool {
    matches!(subject, Subject::Unit(_) | Subject::Rows(_) | Subject::Budget(_) | Subject::Unknown)
}
