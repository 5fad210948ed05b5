//! Transactions as the leaders write them: operations, what these rest on, and why the store refuses one.

use crate::change::Change;
use godel_base::ids::{Revision, UnitId};

/// A record whose revision a transaction can rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordRef<'a> {
    /// The record of a unit.
    Unit(UnitId),
    /// The running units of a unit, of which any change counts.
    Rows(UnitId),
    /// A queue, by its path.
    Queue(&'a str),
    /// A priority class, by its name.
    PriorityClass(&'a str),
    /// A disruption budget, by its name.
    Budget(&'a str),
    /// A reservation, by its name.
    Reservation(&'a str),
}

/// The operations and preconditions of one transaction, in the form in which they are sent.
///
/// A leader builds its transactions through this trait: the services encode at once, the model keeps what it is given.
pub trait TxnBuilder {
    /// Adds an operation. Returns its size in the transaction, bytes.
    fn push(&mut self, change: &Change) -> usize;

    /// Adds the precondition that a record still has this revision; 0: that there is none. Returns its size in the
    /// transaction, bytes.
    fn require(&mut self, record: RecordRef<'_>, revision: Revision) -> usize;
}

/// A transaction that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The revision that it made.
    pub revision: Revision,
    /// Its commit time, Unix milliseconds.
    pub time_ms: i64,
}

/// Why the store refused a transaction; nothing of it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnRefusal {
    /// What kind of refusal it is.
    pub reason: TxnRefusalReason,
    /// Position of the precondition or operation that it was refused for, by the reason.
    pub index: usize,
    /// Revision of the record that it collided with; 0: the store does not say.
    pub revision: Revision,
    /// The refusal in words.
    pub message: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnRefusalReason {
    /// A record has another revision than the precondition at `index` says.
    Precondition,
    /// The precondition at `index` names a revision beyond the last one.
    FutureRevision,
    /// A running unit is not in the state that the operation at `index` needs.
    RowConflict,
    /// A node to which the operation at `index` binds has changed since the transaction was made.
    NodeChanged,
    /// The operation at `index`, or the transaction, can never be valid.
    Invalid,
    /// The writer's role may not make the operation at `index`.
    Forbidden,
    /// The disk is full, or too many transactions are under way.
    StoreFull,
    /// The writer's lease is not in force any more.
    StaleEpoch,
    /// The writer's lease was granted in another store.
    StoreChanged,
}

impl TxnRefusalReason {
    /// Whether the same transaction can never be taken.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Invalid | Self::Forbidden)
    }

    /// Whether the writer leads no longer.
    pub fn is_stale(self) -> bool {
        matches!(self, Self::StaleEpoch | Self::StoreChanged)
    }
}
