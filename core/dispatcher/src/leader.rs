//! What the leading dispatcher does: requests, commits and reports come in; transactions, assignments and answers go out. No I/O.
//!
//! [`DispatcherLeader`] owns the [`Dispatcher`] and what waits for transactions: units on their way to the store, changes of
//! units, of named records, of the partition mode and of pauses. Whoever drives it (the service, the model of the
//! whole control plane) hands it what was read and what came, carries its transactions, and gives it an
//! [`DispatcherOutbox`] for everything that it says. It acts only after it has read everything up to the grant of its lease.
//!
//! # Modules
//!
//! - `changes`: changes of units' records, one at a time for each unit.
//! - `edits`: changes of queues and other named records, one at a time.
//! - `outbox`: what the leader says and writes.
//! - `submissions`: units on their way to the store.

mod changes;
mod edits;
mod outbox;
mod submissions;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc};

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    change::{Change, Commit, Partition},
    pause::{Pause, Scope},
    queue_spec::DEFAULT_QUEUE,
    records::{Record, RecordKey},
    running_units::{EvictionReason, RunChange},
    txn::{Receipt, TxnBuilder},
    unit_report::{RoomReport, UnitReport},
};

use self::{changes::Changes, edits::Edits, submissions::Submissions};
use crate::{Action, Attach, AttachRefusal, Dispatcher, ModeChoice, SchedulerCounts, SessionId};

pub use self::{
    changes::{UnitChange, UnitChangeKind},
    edits::EditRequest,
    outbox::{
        ChangeFailure, DispatcherNote, DispatcherOutbox, EditFailure, Edited, NameHolder, NotSent,
        NotSubmitted, Outgoing, TxnFailure, TxnTicket,
    },
    submissions::{PendingUnit, UnitBatch, UnitSubmission},
};

/// Changes that wait for the watch or for another change, of each kind.
const DEFERRED_MAX: usize = 1_024;

/// What the leading dispatcher is configured with, beside its [`Dispatcher`].
#[derive(Clone, Debug)]
pub struct DispatcherLeaderConfig {
    /// Units that are known; beyond that no more are taken.
    pub units_max: usize,
    /// New units in one transaction.
    pub txn_units_max: usize,
    /// Bytes of new units in one transaction; a single larger one still goes.
    pub txn_bytes_max: usize,
    /// Transactions of new units under way at once.
    pub txns_in_flight_max: usize,
    /// Bytes of a change of queues and other named records, with its preconditions.
    pub edit_bytes_max: usize,
    /// Label, or else attribute, of a node whose value is its sub-cluster; empty: there are none.
    pub sub_cluster_key: String,
}

/// The leading dispatcher, as the module's documentation describes it.
pub struct DispatcherLeader<O: DispatcherOutbox> {
    core: Dispatcher,
    config: DispatcherLeaderConfig,
    /// It acts once everything up to here has been read; `None`: it does not lead.
    since: Option<Revision>,
    submissions: Submissions<O>,
    changes: Changes<O>,
    edits: Edits<O>,
    modes: VecDeque<(ModeChoice, O::Caller)>,
    is_mode_writing: bool,
}

/// What is read.
impl<O: DispatcherOutbox> DispatcherLeader<O> {
    /// A dispatcher that has read nothing; ids of units up to `last_unit` were used.
    pub fn new(mut core: Dispatcher, last_unit: UnitId, config: DispatcherLeaderConfig) -> Self {
        core.assignments.units.directory.set_last_id(last_unit);
        Self {
            core,
            config,
            since: None,
            submissions: Submissions::new(),
            changes: Changes::new(),
            edits: Edits::new(),
            modes: VecDeque::new(),
            is_mode_writing: false,
        }
    }

    /// The state on which it decides.
    pub fn core(&self) -> &Dispatcher {
        &self.core
    }

    /// Leads by a lease that was granted at this revision.
    pub fn lead(&mut self, since: Revision) {
        self.since = Some(since);
    }

    /// A list follows: what is known may be old until it is complete.
    pub fn reset(&mut self) {
        self.core.on_reset();
    }

    /// Everything up to `revision` has been read: a list is complete, or the commits since had nothing for the dispatcher.
    pub fn on_synced(&mut self, revision: Revision, now: Millis, out: &mut O) {
        if self.since.is_none_or(|since| revision < since) {
            return;
        }
        let is_first = !self.core.is_loaded();
        let is_list = is_first || self.core.following().is_listing();
        if is_list {
            self.core.on_synced(revision, now);
        } else {
            self.core.on_revision(revision);
        }
        out.note(&self.core, DispatcherNote::Read { revision, is_list, is_first });
    }

    /// A commit after the list.
    pub fn apply(&mut self, commit: &Commit, now: Millis, out: &mut O) {
        let Commit { revision, time_ms, ref changes } = *commit;
        for change in changes {
            self.load(change, revision, Receipt { revision, time_ms }, now, out);
        }
        self.on_synced(revision, now, out);
    }

    /// A change of the list, with the transaction that created its record, or of a commit.
    pub fn load(&mut self, change: &Change, revision: Revision, created: Receipt, now: Millis, out: &mut O) {
        let core = &mut self.core;
        // What is told of these is what was known before.
        match change {
            Change::Gone(RecordKey::Unit(unit)) => out.note(core, DispatcherNote::UnitGone(*unit, revision)),
            Change::Put(Record::Partition(partition)) => {
                out.note(core, DispatcherNote::Partition(partition, revision));
            }
            _ => {}
        }
        let changed = core.on_change(change, revision, created, now);
        if let Change::Rows(unit, RunChange::Bind(_)) = change {
            out.note(core, DispatcherNote::UnitBound(*unit));
        }
        if let Some(unit) = changed {
            out.note(core, DispatcherNote::UnitChanged(unit));
        }
    }
}

/// A unit's record is gone, by the transaction of `revision`.
fn forget<O: DispatcherOutbox>(
    unit: UnitId,
    revision: Revision,
    core: &mut Dispatcher,
    now: Millis,
    out: &mut O,
) {
    out.note(core, DispatcherNote::UnitGone(unit, revision));
    core.on_unit_deleted(unit, now);
}

/// What others ask and report.
impl<O: DispatcherOutbox> DispatcherLeader<O> {
    /// Somebody submits a unit.
    pub fn submit(&mut self, submission: UnitSubmission<O>, now: Millis, out: &mut O) {
        let Self { core, edits, config, .. } = self;
        self.submissions.admit(submission, core, edits, config, now, out);
    }

    /// Somebody asks for the change of a unit.
    pub fn change(&mut self, change: UnitChange<O>, now: Millis, out: &mut O) {
        self.changes.ask(change, &mut self.core, &mut self.edits, now, out);
    }

    /// Somebody asks for a change of queues, priority classes, disruption budgets or reservations.
    pub fn edit(&mut self, request: EditRequest<O>, out: &mut O) {
        self.edits.ask(request, out);
    }

    /// An administrator chooses the partition mode.
    pub fn set_mode(&mut self, choice: ModeChoice, caller: O::Caller, out: &mut O) {
        if self.modes.len() < DEFERRED_MAX {
            self.modes.push_back((choice, caller));
        } else {
            out.answer(caller, Err(ChangeFailure::Overloaded("too many changes of the mode wait")));
        }
    }

    /// An administrator pauses something (with a reason), or ends a pause.
    pub fn set_pause(
        &mut self,
        scope: Scope,
        paused: bool,
        reason: String,
        caller: O::Caller,
        wall_ms: i64,
        out: &mut O,
    ) {
        if let Scope::Queue(path) = &scope
            && paused
            && path != DEFAULT_QUEUE
            && self.core.queueing().queue_versions(path).is_none()
        {
            return out.answer(caller, Err(ChangeFailure::UnknownQueue(path.clone())));
        }
        let sub_cluster_key = match &scope {
            Scope::SubCluster(_) => self.config.sub_cluster_key.clone(),
            Scope::All | Scope::Preemption | Scope::Queue(_) => String::new(),
        };
        if matches!(scope, Scope::SubCluster(_)) && paused && sub_cluster_key.is_empty() {
            return out.answer(caller, Err(ChangeFailure::NoSubClusters(scope)));
        }
        let known = self.core.pauses().get(&scope);
        let is_same = |known: &Pause| known.reason == reason && known.sub_cluster_key == sub_cluster_key;
        if known.is_some() == paused && known.is_none_or(is_same) {
            return out.answer(caller, Ok(None));
        }
        let since_ms = known.map_or(wall_ms, |known| known.since_ms);
        let mut txn = out.begin();
        let ticket = if paused {
            let pause = Pause { scope, since_ms, reason, sub_cluster_key };
            txn.push(&Change::Put(Record::Pause(pause.clone())));
            TxnTicket::Pause(pause, caller)
        } else {
            txn.push(&Change::Gone(RecordKey::Pause(scope.clone().to_string())));
            TxnTicket::PauseEnd(scope, caller)
        };
        if let Err((TxnTicket::Pause(_, caller) | TxnTicket::PauseEnd(_, caller), why)) =
            out.submit(txn, ticket)
        {
            out.answer(caller, Err(not_sent(why)));
        }
    }

    /// An administrator lets evictions from lost nodes go on. Returns whether they were stopped.
    pub fn resume_evictions(&mut self) -> bool {
        self.core.node_evictions.resume_evictions()
    }

    /// A scheduler opens its stream.
    ///
    /// # Errors
    /// Its lease is not in force.
    pub fn attach(&mut self, attach: Attach, now: Millis) -> Result<(), AttachRefusal> {
        self.core.streams().on_attached(attach, now)
    }

    /// A scheduler's stream has ended.
    pub fn detach(&mut self, session: SessionId) {
        self.core.streams().on_detached(session);
    }

    /// A scheduler takes this many running units.
    pub fn on_credits(&mut self, session: SessionId, credits: u32) {
        self.core.streams().on_credits(session, credits);
    }

    /// A scheduler says what became of units.
    pub fn on_reports(&mut self, session: SessionId, reports: Vec<UnitReport>, now: Millis, out: &mut O) {
        for report in reports {
            let unit = report.unit;
            self.core.streams().on_report(session, report, now);
            out.note(&self.core, DispatcherNote::UnitTried(unit));
        }
    }

    /// A scheduler says how much room there is for units without a place.
    pub fn on_rooms(&mut self, session: SessionId, rooms: &[RoomReport]) {
        self.core.streams().on_rooms(session, rooms);
    }

    /// What schedulers counted.
    pub fn on_counted(&mut self, counted: Vec<SchedulerCounts>) {
        self.core.partition.shuffler.on_counted(counted);
    }

    /// The binder has evicted running units of these units (`is_done`), or they are to be asked for again.
    pub fn on_evicted(&mut self, units: Vec<(UnitId, EvictionReason)>, is_done: bool) {
        for (unit, reason) in units {
            self.core.assignments.ends.on_evict_answer(unit, reason, is_done);
        }
    }
}

/// What is decided and written.
impl<O: DispatcherOutbox> DispatcherLeader<O> {
    /// Decides once, and sends what follows. Returns whether anything did.
    pub fn step(&mut self, now: Millis, wall_ms: i64, out: &mut O) -> bool {
        self.changes.retry(&mut self.core, &mut self.edits, now, out);
        self.next_mode(now, out);
        loop {
            let Self { core, edits, config, submissions, .. } = self;
            let released = edits.go_on(core, config, out);
            if released.is_empty() {
                break;
            }
            for submission in released {
                submissions.admit(submission, core, edits, config, now, out);
            }
        }
        let Self { core, edits, config, submissions, .. } = self;
        submissions.flush(core, edits, config, out);
        core.assignments.wall_ms = wall_ms;
        let actions = core.step(now);
        let is_busy = !actions.is_empty();
        self.carry_out(actions, now, out);
        is_busy
    }

    fn carry_out(&mut self, actions: Vec<Action>, now: Millis, out: &mut O) {
        let (mut messages, mut deletes) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Assign(session, assignment) => {
                    messages.push(Outgoing::Assign(session, assignment));
                }
                Action::Revoke(session, unit) => messages.push(Outgoing::Revoke(session, unit)),
                Action::Close(session) => messages.push(Outgoing::Close(session)),
                Action::Evict(request) => messages.push(Outgoing::Evict(request)),
                Action::End(record, revision) => {
                    if self.changes.write_own(&record, revision, &self.core, out) {
                        out.note(&self.core, DispatcherNote::UnitEnds(&record));
                    }
                }
                Action::Follow(record, revision) => {
                    if self.changes.write_own(&record, revision, &self.core, out) {
                        out.note(&self.core, DispatcherNote::DaemonFollows(&record));
                    }
                }
                Action::Surge(record, revision, rows) => {
                    if self.changes.surge(&record, revision, rows, &self.core, out) {
                        out.note(&self.core, DispatcherNote::Surges(&record));
                    }
                }
                Action::Compact(record, revision, compaction) => {
                    self.changes.compact(&record, revision, compaction, &self.core, out);
                }
                // It is to run again, or goes already.
                Action::Delete(unit) if self.changes.is_changing(unit) => {
                    self.core.assignments.on_delete_failed(unit, now)
                }
                Action::Delete(unit) => deletes.push(unit),
                Action::DeleteHistory(units) => {
                    let mut txn = out.begin();
                    for unit in units {
                        txn.push(&Change::Gone(RecordKey::UnitHistory(unit)));
                    }
                    if out.submit(txn, TxnTicket::HistoryDeletes).is_err() {
                        self.core.assignments.units.histories.on_delete_failed();
                    }
                }
                Action::WritePartition(split) => {
                    if self.write_partition(&split, None, out).is_err() {
                        self.core.partition.on_failed(now);
                    }
                }
            }
        }
        if !messages.is_empty() {
            for session in out.send(messages) {
                self.core.streams().on_detached(session);
            }
        }
        if !deletes.is_empty() {
            let (mut txn, mut n_bytes, mut n_units) = (out.begin(), 0, 0);
            // What is kept of them is written with it. What does not fit is deleted a while later.
            for unit in &deletes {
                if n_bytes > self.config.txn_bytes_max {
                    break;
                }
                n_bytes += txn.push(&Change::Gone(RecordKey::Unit(*unit)));
                if let Some(kept) = self.core.units().history_of(*unit) {
                    n_bytes += txn.push(&Change::Put(Record::UnitHistory(Arc::new(kept))));
                }
                n_units += 1;
            }
            for unit in deletes.split_off(n_units) {
                self.core.assignments.on_delete_failed(unit, now);
            }
            if let Err((TxnTicket::Deletes(units), _)) = out.submit(txn, TxnTicket::Deletes(deletes)) {
                units.into_iter().for_each(|unit| self.core.assignments.on_delete_failed(unit, now));
            }
        }
    }

    fn write_partition(
        &mut self,
        split: &Partition,
        caller: Option<O::Caller>,
        out: &mut O,
    ) -> Result<(), (Option<O::Caller>, NotSent)> {
        let changes = self.core.partition.records.changes_to(split);
        let mut txn = out.begin();
        for change in &changes {
            txn.push(change);
        }
        out.submit(txn, TxnTicket::Partition(changes, caller)).map_err(|(ticket, why)| match ticket {
            TxnTicket::Partition(_, caller) => (caller, why),
            _ => unreachable!("the ticket that was given comes back"),
        })
    }

    /// The next change of the partition mode, if none is on its way.
    fn next_mode(&mut self, now: Millis, out: &mut O) {
        while !self.is_mode_writing && !self.core.partition.is_writing {
            let Some((choice, caller)) = self.modes.pop_front() else { return };
            let Dispatcher { partition, nodes, assignments, .. } = &mut self.core;
            let Some(split) = partition.set_mode(choice, nodes, assignments, now) else {
                out.answer(caller, Ok(Some(partition.records.revision())));
                continue;
            };
            match self.write_partition(&split, Some(caller), out) {
                Ok(()) => self.is_mode_writing = true,
                Err((caller, why)) => {
                    self.core.partition.on_failed(now);
                    caller.into_iter().for_each(|caller| out.answer(caller, Err(not_sent(why.clone()))));
                }
            }
        }
    }

    /// The answer to a transaction.
    pub fn on_answer(
        &mut self,
        ticket: TxnTicket<O>,
        answer: Result<Receipt, TxnFailure>,
        now: Millis,
        out: &mut O,
    ) {
        let Self { core, edits, submissions, changes, .. } = self;
        match ticket {
            TxnTicket::Units(batch) => submissions.on_answer(batch, answer, core, edits, now, out),
            TxnTicket::Change(spec, caller) => {
                let unit = spec.id;
                changes.on_answer(unit, Some(&spec), edits);
                if let Ok(receipt) = answer {
                    core.on_unit(spec, receipt.revision, receipt, now);
                    out.note(core, DispatcherNote::UnitChanged(unit));
                }
                caller.into_iter().for_each(|caller| out.answer(caller, written(answer.clone())));
            }
            TxnTicket::Delete(unit, caller) => {
                changes.on_answer(unit, None, edits);
                match &answer {
                    Ok(receipt) => forget(unit, receipt.revision, core, now, out),
                    Err(_) => core.assignments.on_delete_failed(unit, now),
                }
                out.answer(caller, written(answer));
            }
            TxnTicket::Edit(edited, editor) => edits.on_answer(*edited, editor, answer, out),
            // In force here as soon as it is durable: whoever hears the answer finds it so.
            TxnTicket::Pause(pause, caller) => {
                if let Ok(receipt) = answer {
                    out.note(core, DispatcherNote::Paused(&pause));
                    core.on_change(&Change::Put(Record::Pause(pause)), receipt.revision, receipt, now);
                }
                out.answer(caller, written(answer));
            }
            TxnTicket::PauseEnd(scope, caller) => {
                if answer.is_ok() {
                    out.note(core, DispatcherNote::PauseEnded(&scope));
                    core.assignments.on_pause_deleted(&scope, now);
                }
                out.answer(caller, written(answer));
            }
            // The watch shows which are gone.
            TxnTicket::HistoryDeletes => {
                if answer.is_err() {
                    core.assignments.units.histories.on_delete_failed();
                }
            }
            TxnTicket::Deletes(units) => {
                for unit in units {
                    match &answer {
                        Ok(receipt) => forget(unit, receipt.revision, core, now, out),
                        Err(_) => core.assignments.on_delete_failed(unit, now),
                    }
                }
            }
            TxnTicket::Partition(changes, caller) => {
                match &answer {
                    Ok(receipt) => on_partition_written(changes, receipt.revision, core, out),
                    Err(_) => core.partition.on_failed(now),
                }
                if let Some(caller) = caller {
                    self.is_mode_writing = false;
                    out.answer(caller, written(answer));
                }
            }
        }
    }

    /// When to step again; `None`: when something comes.
    pub fn next_wake(&self, now: Millis) -> Option<Millis> {
        self.core.next_wake(now)
    }

    /// The state on which it decides, for what is taken out of it to be shown.
    pub fn core_mut(&mut self) -> &mut Dispatcher {
        &mut self.core
    }
}

fn on_partition_written<O: DispatcherOutbox>(
    changes: Vec<Change>,
    revision: Revision,
    core: &mut Dispatcher,
    out: &mut O,
) {
    let head = changes.iter().find_map(|change| match change {
        Change::Put(Record::Partition(partition)) => Some(partition),
        _ => None,
    });
    if let Some(partition) = head {
        out.note(core, DispatcherNote::Partition(partition, revision));
    }
    core.partition.on_written(changes, revision);
}

fn written(answer: Result<Receipt, TxnFailure>) -> Result<Option<Revision>, ChangeFailure> {
    answer.map(|receipt| Some(receipt.revision)).map_err(ChangeFailure::Txn)
}

fn not_sent(why: NotSent) -> ChangeFailure {
    match why {
        NotSent::Full => ChangeFailure::Overloaded("too many transactions are under way"),
        NotSent::Failed(failure) => ChangeFailure::Txn(failure),
    }
}
