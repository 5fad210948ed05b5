//! What the dispatcher hands over to a scheduler: a unit, and how the scheduler may place it.

use std::sync::Arc;

use godel_base::ids::{ReplicaId, Revision};

use crate::{change::NodeScope, unit::UnitRecord};

/// A unit for a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The unit.
    pub record: Arc<UnitRecord>,
    /// Revision of the record.
    pub revision: Revision,
    /// Ordinals of the replicas to be placed, ascending.
    pub ordinals: Vec<u32>,
    /// Incarnation of each of these replicas; empty: all 0.
    pub incarnations: Vec<u32>,
    /// Number of running units that count towards `min_member` already.
    pub bound: u32,
    /// How the unit may be placed.
    pub permit: Permit,
}

impl Assignment {
    /// Returns the replicas to be placed.
    pub fn pending(&self) -> impl Iterator<Item = ReplicaId> {
        ReplicaId::of_columns(&self.ordinals, &self.incarnations)
    }
}

/// How a scheduler may place a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// The nodes that may be used.
    pub scope: NodeScope,
    /// A queue of the unit is at a maximum: running units of that queue must be evicted first.
    pub at_maximum: bool,
    /// It is the unit's turn to gather room, if it finds no place.
    pub turn: bool,
    /// There is room for the unit, as its scheduler reported: it is tried although others with the same need wait.
    pub called: bool,
    /// Most replicas that are placed before the unit waits for room again; `None`: as many as there is room for.
    pub places_max: Option<u32>,
    /// The scheduler decides once it has read up to here: it has to know the room that is held for replicas that move. 0: it need not
    /// wait.
    pub read: Revision,
}

impl Permit {
    /// Takes placed replicas off the most that may be placed.
    pub fn note_placed(&mut self, n_placed: usize) {
        let n_placed = u32::try_from(n_placed).unwrap_or(u32::MAX);
        self.places_max = self.places_max.map(|n| n.saturating_sub(n_placed));
    }
}
