//! One committed change, as followers see it.

use crate::{
    records::{Record, RecordKey, RecordKind},
    running_units::{RunChange, RunningUnits},
    unreadable::Unreadable,
};
use godel_base::ids::{Epoch, NodeId, Revision, UnitId};

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
    /// A record was written, whole.
    Put(Record),
    /// A record is gone, and another one may come under its key. With the node spec of a node all of its records go, with a unit its rows.
    Gone(RecordKey),
    /// Rows of a unit changed.
    Rows(UnitId, RunChange),
    /// Rows of a unit, whole though perhaps of several revisions (from a list only).
    RowsLoaded(UnitId, RunningUnits),
    /// A record was written, or rows changed, in a way that this version cannot read.
    Unreadable(Box<Unreadable>),
}

impl Change {
    /// Returns the kind of the record that is written, or gone; `None` where it cannot be read.
    pub fn kind(&self) -> Option<RecordKind> {
        match self {
            Self::Put(record) => Some(record.kind()),
            Self::Gone(key) => key.kind(),
            Self::Rows(..) | Self::RowsLoaded(..) => Some(RecordKind::Rows),
            Self::Unreadable(_) => None,
        }
    }

    /// Returns the node whose record is written, or gone.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::Put(record) => record.node(),
            Self::Gone(key) => key.node(),
            Self::Rows(..) | Self::RowsLoaded(..) | Self::Unreadable(_) => None,
        }
    }

    /// Returns the unit of which a record or rows are written, or gone.
    pub fn unit(&self) -> Option<UnitId> {
        match self {
            Self::Put(record) => record.unit(),
            Self::Gone(key) => key.unit(),
            Self::Rows(unit, _) | Self::RowsLoaded(unit, _) => Some(*unit),
            Self::Unreadable(_) => None,
        }
    }
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
