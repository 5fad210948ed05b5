//! Which units a list has.

use std::collections::BTreeMap;

use godel_base::ids::{NodeId, UnitId};
use godel_domain::{lifecycle::UnitPhase, sight::Sight, unit::WorkloadClass};

use crate::unit_entry::UnitEntry;

/// Which units to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Those that are seen.
    pub sight: Sight,
    /// `None`: all.
    pub phase: Option<UnitPhase>,
    /// Every pair must be a label of the unit.
    pub labels: BTreeMap<String, String>,
    /// Path of a queue: of it and those below it. Empty: all.
    pub queue: String,
    /// Empty: all.
    pub owner: String,
    /// Some of its running units are on this node; `None`: wherever they are.
    pub node: Option<NodeId>,
    /// `None`: all.
    pub class: Option<WorkloadClass>,
}

/// A bounded part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListChunk {
    /// The first matches, in order of namespace and name.
    pub units: Vec<UnitId>,
    /// All matches in the chunk.
    pub n_matched: u32,
    /// The last name looked at; empty after the last chunk.
    pub next: String,
}

impl ListFilter {
    pub(crate) fn matches(&self, entry: &UnitEntry) -> bool {
        let spec = &entry.record.spec;
        self.sight.sees_unit_of(&spec.namespace, &spec.owner)
            && self.phase.is_none_or(|phase| entry.phase == phase)
            && self.class.is_none_or(|class| spec.class == class)
            && (self.owner.is_empty() || spec.owner == self.owner)
            && (self.queue.is_empty() || is_within(&spec.queue, &self.queue))
            && self.labels.iter().all(|(key, value)| spec.labels.get(key) == Some(value))
            && self.node.is_none_or(|node| entry.rows.live().any(|(_, row)| row.node == node))
    }
}

/// Whether a queue is `above` or one of those below it.
pub(crate) fn is_within(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
