//! Records that this version cannot read, as followers note them.
//!
//! What is frozen because of them is decided by `godel_domain::frozen`.

use std::fmt;

use smallvec::SmallVec;

use crate::{
    change::Change,
    records::{RecordKey, RecordKind},
};
use godel_base::ids::{NodeId, UnitId};

impl Change {
    /// Returns the records that a change replaces or deletes, where that can thaw them.
    pub fn settles(&self) -> SmallVec<[RecordKey; 4]> {
        match self {
            Self::Put(record) => SmallVec::from_iter([record.key()]),
            Self::Gone(RecordKey::NodeSpec(node)) => SmallVec::from_buf(RecordKey::all_of_node(*node)),
            Self::Gone(RecordKey::Unit(unit)) => {
                SmallVec::from_iter([RecordKey::Unit(*unit), RecordKey::Rows(*unit)])
            }
            Self::Gone(key) => SmallVec::from_iter([key.clone()]),
            Self::RowsLoaded(unit, _) => SmallVec::from_iter([RecordKey::Rows(*unit)]),
            // A row operation tells nothing of the one that was missed before it.
            Self::Rows(..) | Self::Unreadable(_) => SmallVec::new(),
        }
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
    pub key: RecordKey,
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
    pub fn new(key: RecordKey, field: impl Into<String>, problem: impl Into<String>) -> Self {
        let nodes = match (key.node(), key.kind()) {
            (Some(node), _) => AffectedNodes::Of(vec![node]),
            (None, None | Some(RecordKind::Rows | RecordKind::Hold)) => AffectedNodes::Any,
            (None, Some(_)) => AffectedNodes::default(),
        };
        let (field, problem) = (field.into(), problem.into());
        Self { key, nodes, unit: None, queue: None, name: None, field, problem }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read: {}: {}", self.key, self.field, self.problem)
    }
}
