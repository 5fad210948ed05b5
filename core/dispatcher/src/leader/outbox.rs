//! What the leader says to others, and what it writes.

use std::sync::Arc;

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    assignment::Assignment,
    change::{Change, Partition},
    lifecycle::UnitPhase,
    pause::{Pause, Scope},
    txn::{TxnBuilder, TxnRefusal},
    unit::{UnitRecord, UnitSpec},
    unwelcome::Unwelcome,
};
use godel_rules::admission::{SpecViolation, retry::RetryRefusal};

use crate::{
    DeleteRefusal, Dispatcher, EndedView, EvictRequest, SessionId, Unresolved,
    moves::NoRoomToMove,
    record_changes::{EditOutcome, EditRefusal},
};

use super::submissions::UnitBatch;

/// Where the leader's messages and transactions go.
///
/// The types are the driver's own: the leader keeps what it is given and hands it back with the answer.
pub trait DispatcherOutbox: Sized {
    /// Who submitted a unit and waits to hear of it.
    type Submitter;
    /// Who asked for the change of a unit, of the partition mode or of a pause.
    type Caller;
    /// Who asked for a change of queues, priority classes, disruption budgets or reservations.
    type Editor;
    /// A unit's record in the form in which it is sent to the store.
    type Record;
    /// A transaction that is built.
    type Txn: TxnBuilder;

    /// The record of a unit as it is sent, and its size in a transaction, bytes.
    fn encode(&mut self, record: &UnitRecord) -> (Self::Record, usize);

    /// Begins a transaction.
    fn begin(&mut self) -> Self::Txn;

    /// Sends a transaction; its answer comes with the ticket.
    ///
    /// # Errors
    /// It was not sent: the ticket, and why.
    #[allow(
        clippy::result_large_err,
        reason = "the ticket comes back to its only owner, a few times a second"
    )]
    fn submit(&mut self, txn: Self::Txn, ticket: TxnTicket<Self>) -> Result<(), (TxnTicket<Self>, NotSent)>;

    /// Sends a transaction of new units; its answer comes with a ticket of them.
    ///
    /// # Errors
    /// It was not sent: the units, and why.
    fn submit_units(&mut self, batch: UnitBatch<Self>) -> Result<(), (UnitBatch<Self>, NotSent)>;

    /// A new unit has its id and waits for its transaction. The default does nothing.
    fn admitted(&mut self, _unit: UnitId, _submitter: &mut Self::Submitter) {}

    /// A unit is durable, or was before (`is_duplicate`).
    fn submitted(
        &mut self,
        core: &Dispatcher,
        submitter: Self::Submitter,
        spec: &UnitSpec,
        unit: UnitId,
        revision: Revision,
        is_duplicate: bool,
    );

    /// A unit was not taken.
    fn not_submitted(&mut self, submitter: Self::Submitter, spec: UnitSpec, why: NotSubmitted);

    /// The answer to a change: its revision; `None` for a pause that was so already. The default does nothing.
    fn answer(&mut self, _caller: Self::Caller, _answer: Result<Option<Revision>, ChangeFailure>) {}

    /// The answer to a change of queues and other named records. The default does nothing.
    fn edited(&mut self, _editor: Self::Editor, _answer: Result<Edited, EditFailure>) {}

    /// What a step sends to schedulers and to the binder, in order. Returns the streams that took no more.
    fn send(&mut self, messages: Vec<Outgoing>) -> Vec<SessionId>;

    /// A name for a queue that is new.
    fn new_uid(&mut self) -> String;

    /// Something happened that others wait for, or that is counted or logged. The default does nothing.
    fn note(&mut self, _core: &Dispatcher, _note: DispatcherNote<'_>) {}
}

/// What a transaction was for.
pub enum TxnTicket<O: DispatcherOutbox> {
    /// New units.
    Units(UnitBatch<O>),
    /// Another record of a unit; without a caller it is the dispatcher's own change.
    Change(Arc<UnitRecord>, Option<O::Caller>),
    /// The deletion of a unit's record that somebody asked for.
    Delete(UnitId, O::Caller),
    /// A change of queues, priority classes, disruption budgets or reservations.
    Edit(Box<Edited>, O::Editor),
    /// A pause begins.
    Pause(Pause, O::Caller),
    /// A pause ends.
    PauseEnd(Scope, O::Caller),
    /// Units whose time is over.
    Deletes(Vec<UnitId>),
    /// What was kept of units, and is too old.
    HistoryDeletes,
    /// What a split of the nodes changes.
    Partition(Vec<Change>, Option<O::Caller>),
}

/// Why a transaction was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Too many are under way.
    Full,
    /// It can never be sent, or this dispatcher leads no longer.
    Failed(TxnFailure),
}

/// Why a transaction is not (known to be) durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnFailure {
    /// The store refused it; nothing of it was applied.
    Refused(TxnRefusal),
    /// The leadership ended before the answer: whoever leads next will see it.
    LeaseLost,
}

/// Messages to schedulers and to the binder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Hand a unit to a scheduler, or hand it over again.
    Assign(SessionId, Assignment),
    /// Take a unit away from a scheduler.
    Revoke(SessionId, UnitId),
    /// End a scheduler's stream: its lease is lost, or it has a newer stream.
    Close(SessionId),
    /// Ask the binder to make running units leave.
    Evict(EvictRequest),
}

/// Why a submission was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSubmitted {
    /// The dispatcher knows as many units as it takes.
    TooManyUnits,
    /// Its queue, priority class or sub-cluster does not take it.
    Unwelcome(Vec<Unwelcome>),
    /// Another unit has the name.
    NameTaken(NameHolder),
    /// Its uid is that of a unit that differs from it; in what.
    UidTaken {
        /// The unit's namespace and name.
        known: (String, String),
        /// The fields that differ.
        differences: String,
    },
    /// Its uid was that of another unit, which is deleted.
    UidUsed(UnitId),
    /// Its transaction failed.
    Txn(TxnFailure),
}

/// The unit that has a name which another one asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// It has ended and is retained.
    Ended(EndedView),
    /// It has ended and has yet to leave its nodes.
    Leaving(UnitPhase),
    /// It is there, in this phase.
    Present(UnitPhase),
    /// It is on its way to the store.
    Coming,
}

/// Why a change came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeFailure {
    /// Too much waits already; what, in words.
    Overloaded(&'static str),
    /// The name is not that of one unit.
    Unresolved {
        /// Where it was looked for.
        namespace: String,
        /// The name.
        name: String,
        /// What was found instead.
        why: Unresolved,
    },
    /// The unit's record is gone.
    UnitGone,
    /// The unit has another revision than its caller expects.
    Revision {
        /// The revision that it has.
        current: Revision,
        /// The revision that was expected.
        expected: Revision,
    },
    /// The unit, as `namespace/name`, is over.
    UnitOver(String, UnitPhase),
    /// The request is wrong.
    Invalid(Vec<SpecViolation>),
    /// All ordinals of the unit, as `namespace/name`, were used up.
    OrdinalsUsedUp(String),
    /// Who asks may not change what the unit, as `namespace/name`, runs: this principal has submitted it, or nobody who was judged.
    NotOwn(String, String),
    /// The unit, as `namespace/name`, cannot be deleted.
    NotDeleted(String, DeleteRefusal),
    /// The queue or priority class that the unit is to have does not take it.
    Unwelcome(Vec<Unwelcome>),
    /// The queue that the unit is to have has no room for what runs of it.
    NoRoomToMove(NoRoomToMove),
    /// The unit, as `namespace/name`, cannot be retried while it has not ended.
    NotEnded(String, UnitPhase),
    /// The unit, as `namespace/name`, does not run again.
    NotRetried(String, RetryRefusal),
    /// There is no such queue.
    UnknownQueue(String),
    /// There are no sub-clusters to be paused.
    NoSubClusters(Scope),
    /// The transaction failed.
    Txn(TxnFailure),
}

/// A change of named records that is made, or that was made before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// Of the transaction; of what was there as given, if nothing was to be written.
    pub revision: Revision,
    /// Uid of the only queue.
    pub uid: String,
    /// Of each queue asked for, by position.
    pub queues: Vec<EditOutcome>,
    /// Of each priority class asked for, by position.
    pub classes: Vec<EditOutcome>,
    /// Of each disruption budget asked for, by position.
    pub budgets: Vec<EditOutcome>,
    /// Of each reservation asked for, by position.
    pub reservations: Vec<EditOutcome>,
}

/// Why a change of named records came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditFailure {
    /// Too many wait.
    Overloaded,
    /// The records do not allow it.
    Refused(EditRefusal),
    /// It does not fit into one transaction; its size, bytes.
    TooLarge(usize),
    /// Its transaction failed.
    Txn(TxnFailure),
}

/// Something that others wait for, or that is counted or logged.
#[derive(Clone, Copy, Debug)]
pub enum DispatcherNote<'a> {
    /// Everything up to a revision has been read, which is more than the leader needs to know to act. `is_list`: a list
    /// is complete; `is_first`: the first one of this leadership.
    Read {
        /// Read up to here.
        revision: Revision,
        /// A list is complete.
        is_list: bool,
        /// The first list of this leadership is complete.
        is_first: bool,
    },
    /// A unit's record, running units or holds changed.
    UnitChanged(UnitId),
    /// A scheduler has tried a unit, or it is durable: it may wait for something else now.
    UnitTried(UnitId),
    /// Running units of a unit were bound.
    UnitBound(UnitId),
    /// A unit's record goes, by the transaction of this revision; it is still known here.
    UnitGone(UnitId, Revision),
    /// Nothing comes of a unit that was admitted.
    UnitFailed(UnitId),
    /// New units are durable; their answers follow.
    UnitsDurable,
    /// A unit is ended by the dispatcher, or starts again as a whole.
    UnitEnds(&'a UnitRecord),
    /// A daemon gets the replicas that the nodes want.
    DaemonFollows(&'a UnitRecord),
    /// A replica of a unit is to run before the one stops that it replaces, or that is over.
    Surges(&'a UnitRecord),
    /// How nodes are split changed, by the transaction of this revision; the split before is still known here.
    Partition(&'a Partition, Revision),
    /// A pause is in force.
    Paused(&'a Pause),
    /// A pause is over.
    PauseEnded(&'a Scope),
}
