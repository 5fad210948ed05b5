//! Records that this version cannot read, as followers note them.
//!
//! What is frozen because of them is decided by `godel_domain::frozen`.

use std::fmt;

use smallvec::SmallVec;

use crate::change::Change;
use godel_base::ids::{HoldId, NodeId, UnitId};

/// Which record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// An administrator's record of a node.
    NodeSpec(NodeId),
    /// An agent's record of a node.
    NodeReport(NodeId),
    /// Allocatable in force on a node.
    NodeAllocatable(NodeId),
    /// What a node's use leaves to best-effort running units.
    NodeUsage(NodeId),
    /// A unit.
    Unit(UnitId),
    /// A task group that was added to a unit.
    TaskGroup(UnitId, u16),
    /// Rows of a unit, or an operation on them: what a unit's running units are is not known any more.
    Rows(UnitId),
    /// What is kept of a unit that was deleted.
    UnitHistory(UnitId),
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
    /// Keys of YARN's tokens, by what the tokens are for.
    YarnKeys(String),
    /// An application of YARN, by its id.
    YarnApplication(String),
    /// A movement of the rescheduler, by its name.
    Movement(String),
    /// When replicas of a unit were moved.
    MoveRate(UnitId),
    /// Nobody can tell.
    Unknown,
}

impl Subject {
    /// Its kind, as the API names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NodeSpec(_) => "node spec",
            Self::NodeReport(_) => "node report",
            Self::NodeAllocatable(_) => "node allocatable",
            Self::NodeUsage(_) => "node usage",
            Self::Unit(_) => "unit",
            Self::TaskGroup(..) => "task group",
            Self::Rows(_) => "rows of unit",
            Self::UnitHistory(_) => "unit history",
            Self::Queue(_) => "queue",
            Self::PriorityClass(_) => "priority class",
            Self::Budget(_) => "disruption budget",
            Self::Reservation(_) => "reservation",
            Self::Pause(_) => "pause",
            Self::Hold(_) => "hold",
            Self::Lease(_) => "lease",
            Self::Partition => "partition",
            Self::PartitionBlock(_) => "partition block",
            Self::YarnKeys(_) => "YARN keys",
            Self::YarnApplication(_) => "YARN application",
            Self::Movement(_) => "movement",
            Self::MoveRate(_) => "move rate",
            Self::Unknown => "unknown record",
        }
    }

    /// Its key, as the API names it; empty where there is none.
    pub fn key(&self) -> String {
        match self {
            Self::NodeSpec(node)
            | Self::NodeReport(node)
            | Self::NodeAllocatable(node)
            | Self::NodeUsage(node) => node.to_string(),
            Self::Unit(unit) | Self::Rows(unit) | Self::UnitHistory(unit) | Self::MoveRate(unit) => {
                unit.to_string()
            }
            // As its record is filed.
            Self::TaskGroup(unit, idx) => format!("{unit}/{idx}"),
            Self::Queue(name)
            | Self::PriorityClass(name)
            | Self::Budget(name)
            | Self::Reservation(name)
            | Self::Pause(name)
            | Self::YarnKeys(name)
            | Self::YarnApplication(name)
            | Self::Movement(name)
            | Self::Lease(name) => name.clone(),
            Self::Hold(hold) => hold.to_string(),
            // As its record is filed.
            Self::PartitionBlock(number) => number.saturating_add(1).to_string(),
            Self::Partition | Self::Unknown => String::new(),
        }
    }

    /// The record that a change replaces or deletes, where that can thaw it. Of a node and of a unit that are gone these
    /// are several.
    pub fn settled_by(change: &Change) -> SmallVec<[Self; 4]> {
        let one = |subject| SmallVec::from_iter([subject]);
        match change {
            Change::NodeSpec(spec) => one(Self::NodeSpec(spec.id)),
            Change::NodeReport(report) => one(Self::NodeReport(report.id)),
            Change::NodeAllocatable(node, _) => one(Self::NodeAllocatable(*node)),
            Change::NodeUsage(usage) => one(Self::NodeUsage(usage.id)),
            Change::Unit(record) => one(Self::Unit(record.id)),
            Change::TaskGroup(record) => one(Self::TaskGroup(record.unit, record.idx)),
            Change::TaskGroupDeleted(unit, idx) => one(Self::TaskGroup(*unit, *idx)),
            Change::UnitHistory(history) => one(Self::UnitHistory(history.id)),
            Change::UnitHistoryDeleted(unit) => one(Self::UnitHistory(*unit)),
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
            Change::YarnKeys(keys) => one(Self::YarnKeys(keys.name.clone())),
            Change::YarnApplication(id) | Change::YarnApplicationDeleted(id) => {
                one(Self::YarnApplication(id.clone()))
            }
            Change::Movement(name) | Change::MovementDeleted(name) => one(Self::Movement(name.clone())),
            Change::MoveRate(unit) | Change::MoveRateDeleted(unit) => one(Self::MoveRate(*unit)),
            Change::Pause(pause) => one(Self::Pause(pause.scope.to_string())),
            Change::PauseDeleted(scope) => one(Self::Pause(scope.to_string())),
            Change::NodeDeleted(node) => SmallVec::from_buf([
                Self::NodeSpec(*node),
                Self::NodeReport(*node),
                Self::NodeAllocatable(*node),
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
pub enum AffectedNodes {
    /// These.
    Of(Vec<NodeId>),
    /// Nobody can tell which: any of them.
    Any,
}

impl Default for AffectedNodes {
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
    pub nodes: AffectedNodes,
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
            | Subject::NodeAllocatable(node)
            | Subject::NodeUsage(node) => AffectedNodes::Of(vec![*node]),
            Subject::Rows(_) | Subject::Hold(_) | Subject::Unknown => AffectedNodes::Any,
            Subject::Unit(_)
            | Subject::TaskGroup(..)
            | Subject::UnitHistory(_)
            | Subject::Queue(_)
            | Subject::PriorityClass(_)
            | Subject::Budget(_)
            | Subject::Reservation(_)
            | Subject::Pause(_)
            | Subject::Lease(_)
            | Subject::Partition
            | Subject::YarnKeys(_)
            | Subject::YarnApplication(_)
            | Subject::Movement(_)
            | Subject::MoveRate(_)
            | Subject::PartitionBlock(_) => AffectedNodes::default(),
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
