//! One committed change, as followers see it.

use std::sync::Arc;

use crate::{
    budget_spec::BudgetSpec,
    hold::Hold,
    node::{NodeReport, NodeSpec, NodeUsage},
    pause::{self, Pause},
    queue_spec::{PriorityClass, QueueSpec},
    reservation_spec::ReservationSpec,
    running_units::{RunChange, RunningUnits},
    task_group_record::TaskGroupRecord,
    unit::UnitRecord,
    unit_history::UnitHistory,
    unreadable::{Subject, Unreadable},
    yarn_keys::YarnKeys,
};
use godel_base::{
    ids::{Epoch, HoldId, NodeId, Revision, UnitId},
    resources::Resources,
};

/// One committed transaction, as every follower reads it: the deciders take it whole by their `apply`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// The store's revision after it.
    pub revision: Revision,
    /// Commit time, Unix milliseconds.
    pub time_ms: i64,
    /// What it changed, in the order in which it was written.
    pub changes: Vec<Change>,
}

/// A record or some rows changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An administrator's record of a node.
    NodeSpec(NodeSpec),
    /// An agent's record of a node.
    NodeReport(NodeReport),
    /// Allocatable in force.
    NodeAllocatable(NodeId, Resources),
    /// What the use of a node's guaranteed running units leaves to best-effort ones.
    NodeUsage(NodeUsage),
    /// A unit: of the store its own record, for deciders whole.
    Unit(Arc<UnitRecord>),
    /// A task group that was added to a unit. Deciders see it as part of its unit, see [`crate::task_group_record`].
    TaskGroup(Arc<TaskGroupRecord>),
    /// The record of an added task group is gone, and its unit is not: by a repair of the store alone.
    TaskGroupDeleted(UnitId, u16),
    /// What is kept of a unit that is deleted.
    UnitHistory(Arc<UnitHistory>),
    /// It is kept no longer.
    UnitHistoryDeleted(UnitId),
    /// A lease was granted, released or expired.
    Lease(Lease),
    /// How nodes are split was changed: the mode, or who the schedulers are.
    Partition(Partition),
    /// Nodes of a block have other owners.
    PartitionBlock(Block),
    /// A queue, whole.
    Queue(Arc<QueueSpec>),
    /// A priority class, whole.
    PriorityClass(PriorityClass),
    /// A disruption budget, whole.
    Budget(Arc<BudgetSpec>),
    /// A reservation, whole.
    Reservation(Arc<ReservationSpec>),
    /// Room kept for someone, whole.
    Hold(Arc<Hold>),
    /// Keys of YARN's tokens, whole; without keys: the record is gone.
    YarnKeys(YarnKeys),
    /// The record of an application of YARN, by its id. What it says is read by the YARN adapter alone.
    YarnApplication(String),
    /// The record of an application of YARN is gone.
    YarnApplicationDeleted(String),
    /// The record of a movement, by its name. What it says is read by the rescheduler alone.
    Movement(String),
    /// The record of a movement is gone.
    MovementDeleted(String),
    /// When replicas of a unit were moved: read by the rescheduler alone.
    MoveRate(UnitId),
    /// When replicas of a unit were moved is no longer remembered.
    MoveRateDeleted(UnitId),
    /// Something is paused.
    Pause(Pause),
    /// It is paused no more.
    PauseDeleted(pause::Scope),
    /// A hold is gone: bound, or given up.
    HoldDeleted(HoldId),
    /// A node's records are gone.
    NodeDeleted(NodeId),
    /// A unit's records and rows are gone.
    UnitDeleted(UnitId),
    /// A queue's record is gone. Another one may come under its name.
    QueueDeleted(String),
    /// A priority class's record is gone. Another one may come under its name.
    PriorityClassDeleted(String),
    /// A disruption budget's record is gone. Another one may come under its name.
    BudgetDeleted(String),
    /// A reservation's record is gone. Another one may come under its name.
    ReservationDeleted(String),
    /// Rows of a unit changed.
    Rows(UnitId, RunChange),
    /// Rows of a unit, whole though perhaps of several revisions (from a list only).
    RowsLoaded(UnitId, RunningUnits),
    /// A record was written, or rows changed, in a way that this version cannot read.
    Unreadable(Box<Unreadable>),
    /// A record is gone whose key this version cannot read.
    UnreadableGone(Subject),
}

/// A lease as granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// `dispatcher`, `binder`, `scheduler/<name>`.
    pub name: String,
    /// Empty: nobody.
    pub holder: String,
    /// Where the holder serves.
    pub address: String,
    /// Rises with each grant.
    pub epoch: Epoch,
    /// Time to live.
    pub ttl_ms: u32,
}

/// How nodes are split over schedulers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Meaning of the split.
    pub mode: PartitionMode,
    /// Rises with each change of the record.
    pub generation: u64,
    /// Scheduler names by slot.
    pub schedulers: Vec<String>,
    /// Slot per node, ascending; a node not listed is in slot `node_id % schedulers`. Of a record: empty, the slots stand in
    /// [`Block`]s. One of an earlier version lists every node, and then no block counts.
    pub slots: Vec<(NodeId, u32)>,
    /// The mode was set by hand and stays; otherwise it follows the load.
    pub by_hand: bool,
    /// Of the last change of the mode, in words.
    pub reason: String,
    /// When that was, Unix milliseconds.
    pub changed_ms: i64,
}

/// Owners of some nodes, neighbours by id: one record, so that a node that moves costs no more than this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Of nodes whose id divided by [`Self::N_NODES`] is this.
    pub number: u32,
    /// By place in the block the slot and 1; 0: not listed, as nodes beyond the end. Empty: there is no record.
    pub slots: Vec<u32>,
}

impl Block {
    /// Nodes of a block.
    pub const N_NODES: u32 = 64;

    /// The block of a node.
    pub fn of(node: NodeId) -> u32 {
        node.0 / Self::N_NODES
    }

    /// Nodes that are listed with their slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        let first = self.number.saturating_mul(Self::N_NODES);
        let listed = (0..Self::N_NODES).zip(&self.slots);
        listed.filter_map(move |(at, slot)| Some((NodeId(first.saturating_add(at)), slot.checked_sub(1)?)))
    }
}

/// Meaning of the split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PartitionMode {
    /// Every scheduler sees all nodes alike.
    #[default]
    Global,
    /// Own nodes first, then the others.
    Preferred,
    /// Own nodes only.
    Strict,
}

impl PartitionMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Global, Self::Preferred, Self::Strict];

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Preferred => "preferred",
            Self::Strict => "strict",
        }
    }
}

/// Which nodes a scheduler may use for a unit in [`PartitionMode::Strict`]; in other modes it makes no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NodeScope {
    /// Its own.
    #[default]
    Partition,
    /// All of them, its own first: no partition alone can hold the unit.
    Global,
}
