//! Changes of queues, priority classes, disruption budgets and reservations: one at a time, and no submission beside one that
//! could spoil what was checked.
//!
//! A change waits until the submissions on their way that name what it deletes, or what gets its first queue below it,
//! are durable or refused; those that come meanwhile wait for it. Its answer leaves once the watch has shown it, so
//! that whoever hears it finds it in force here. Its transaction is conditional on the records that it was checked
//! against, whoever wrote them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use godel_domain::{
    change::Change,
    queue_spec::{DEFAULT_QUEUE, QueueSpec},
    record_change::RecordChange,
    records::{Record, RecordKey},
    txn::{Receipt, RecordRef, TxnBuilder},
    unit::UnitSpec,
};

use super::{
    DEFERRED_MAX, DispatcherLeaderConfig, DispatcherOutbox, EditFailure, Edited, NotSent, TxnFailure,
    TxnTicket, submissions::UnitSubmission,
};
use crate::{
    Dispatcher,
    record_changes::{Edit, EditPlan, EditRefusal, KnownRecords, RecordName, Write},
};

/// A change of named records that somebody asks for.
pub struct EditRequest<O: DispatcherOutbox> {
    /// The change.
    pub edit: Edit,
    /// Some fields of it could not be read: it is checked, and not made.
    pub is_unreadable: bool,
    /// Who waits for the answer.
    pub editor: O::Editor,
}

/// Changes that wait, the one that is made, and who waits for it.
pub(super) struct Edits<O: DispatcherOutbox> {
    waiting: VecDeque<EditRequest<O>>,
    current: Option<Current<O>>,
    /// Submissions that name what the present change closes.
    kept_back: Vec<UnitSubmission<O>>,
    /// Units on their way to the store that name a record, by record.
    coming: BTreeMap<RecordName, usize>,
}

struct Current<O: DispatcherOutbox> {
    closes: BTreeSet<RecordName>,
    stage: Stage<O>,
}

enum Stage<O: DispatcherOutbox> {
    /// Waits for submissions on their way, or for room in the pipeline.
    Asked(EditRequest<O>),
    /// On its way to the store.
    Sent,
    /// Durable; the watch has yet to show it.
    Durable(Edited, O::Editor),
}

impl<O: DispatcherOutbox> Edits<O> {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), current: None, kept_back: Vec::new(), coming: BTreeMap::new() }
    }

    /// A unit that names records is on its way.
    pub(super) fn enter(&mut self, spec: &UnitSpec) {
        for name in names(spec) {
            *self.coming.entry(name).or_default() += 1;
        }
    }

    /// It is durable, or refused.
    pub(super) fn remove_unit(&mut self, spec: &UnitSpec) {
        for name in names(spec) {
            if let Some(n) = self.coming.get_mut(&name) {
                *n -= 1;
                if *n == 0 {
                    self.coming.remove(&name);
                }
            }
        }
    }

    /// Keeps a submission back that names what the present change closes; returns any other one.
    pub(super) fn keep_back(&mut self, item: UnitSubmission<O>) -> Option<UnitSubmission<O>> {
        let closes = self.current.as_ref().map(|current| &current.closes);
        let is_closed = |closes: &BTreeSet<RecordName>| names(&item.spec).any(|name| closes.contains(&name));
        if closes.is_some_and(is_closed) {
            self.kept_back.push(item);
            return None;
        }
        Some(item)
    }

    /// Whether the present change closes a record that a unit names.
    pub(super) fn is_closing(&self, spec: &UnitSpec) -> bool {
        let closes = self.current.as_ref().map(|current| &current.closes);
        closes.is_some_and(|closes| names(spec).any(|name| closes.contains(&name)))
    }

    fn is_clear(&self, closes: &BTreeSet<RecordName>) -> bool {
        !closes.iter().any(|name| self.coming.contains_key(name))
    }

    /// Somebody asks for a change.
    pub(super) fn ask(&mut self, request: EditRequest<O>, out: &mut O) {
        if self.waiting.len() < DEFERRED_MAX {
            self.waiting.push_back(request);
        } else {
            out.edited(request.editor, Err(EditFailure::Overloaded));
        }
    }

    /// Goes on with changes as far as they can. Returns the submissions that waited for one which is made now; none of
    /// them means that there is nothing more to do.
    pub(super) fn go_on(
        &mut self,
        core: &Dispatcher,
        config: &DispatcherLeaderConfig,
        out: &mut O,
    ) -> Vec<UnitSubmission<O>> {
        loop {
            let Some(Current { closes, stage }) = self.current.take() else {
                if !self.kept_back.is_empty() {
                    return std::mem::take(&mut self.kept_back);
                }
                let Some(request) = self.waiting.pop_front() else { return Vec::new() };
                let closes = request.edit.closes();
                self.current = Some(Current { closes, stage: Stage::Asked(request) });
                continue;
            };
            let stage = match stage {
                // While a list is under way, what is known may be old.
                Stage::Asked(request) if core.following().is_listing() || !self.is_clear(&closes) => {
                    Some(Stage::Asked(request))
                }
                Stage::Asked(request) => send(request, core, config, out),
                Stage::Durable(edited, editor) if core.following().revision() >= edited.revision => {
                    out.edited(editor, Ok(edited));
                    None
                }
                stage @ (Stage::Sent | Stage::Durable(..)) => Some(stage),
            };
            if let Some(stage) = stage {
                self.current = Some(Current { closes, stage });
                return Vec::new();
            }
        }
    }

    /// The answer to the transaction of a change.
    pub(super) fn on_answer(
        &mut self,
        mut edited: Edited,
        editor: O::Editor,
        answer: Result<Receipt, TxnFailure>,
        out: &mut O,
    ) {
        match (answer, &mut self.current) {
            (Ok(receipt), Some(current)) => {
                edited.revision = receipt.revision;
                current.stage = Stage::Durable(edited, editor);
            }
            (Ok(_), None) => {}
            (Err(failure), _) => {
                out.edited(editor, Err(EditFailure::Txn(failure)));
                self.current = None;
            }
        }
    }
}

/// Records that a unit names, but for `default`, which is never closed.
fn names(spec: &UnitSpec) -> impl Iterator<Item = RecordName> {
    let queue = (spec.queue != DEFAULT_QUEUE).then(|| RecordName::Queue(spec.queue.clone()));
    let class = (!spec.priority_class.is_empty()).then(|| RecordName::Class(spec.priority_class.clone()));
    queue.into_iter().chain(class)
}

/// Checks a change and sends it. `None` when it has its answer.
fn send<O: DispatcherOutbox>(
    request: EditRequest<O>,
    core: &Dispatcher,
    config: &DispatcherLeaderConfig,
    out: &mut O,
) -> Option<Stage<O>> {
    let plan = match KnownRecords::of(core).plan(&request.edit) {
        Ok(_) if request.is_unreadable => {
            let (queues, classes) = (Vec::new(), Vec::new());
            let (budgets, reservations) = (Vec::new(), Vec::new());
            Err(EditRefusal::Violations { queues, classes, budgets, reservations })
        }
        planned => planned,
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(refusal) => {
            out.edited(request.editor, Err(EditFailure::Refused(refusal)));
            return None;
        }
    };
    let EditPlan { queues, classes, budgets, reservations, writes, conditions } = plan;
    let mut edited = Edited {
        revision: core.following().revision(),
        uid: String::new(),
        queues,
        classes,
        budgets,
        reservations,
    };
    if writes.is_empty() {
        edited.uid = uid_of(&request.edit, core);
        out.edited(request.editor, Ok(edited));
        return None;
    }
    let (mut txn, mut n_bytes) = (out.begin(), 0);
    for write in writes {
        let change = change(write, out);
        if let Change::Put(Record::Queue(spec)) = &change {
            edited.uid.clone_from(&spec.uid);
        }
        n_bytes += txn.push(&change);
    }
    for (name, revision) in &conditions {
        n_bytes += txn.require(record(name), *revision);
    }
    if n_bytes > config.edit_bytes_max {
        out.edited(request.editor, Err(EditFailure::TooLarge(n_bytes)));
        return None;
    }
    let EditRequest { edit, is_unreadable, editor } = request;
    match out.submit(txn, TxnTicket::Edit(Box::new(edited), editor)) {
        Ok(()) => Some(Stage::Sent),
        // Answers make room.
        Err((TxnTicket::Edit(_, editor), NotSent::Full)) => {
            Some(Stage::Asked(EditRequest { edit, is_unreadable, editor }))
        }
        Err((TxnTicket::Edit(_, editor), NotSent::Failed(failure))) => {
            out.edited(editor, Err(EditFailure::Txn(failure)));
            None
        }
        Err(_) => unreachable!("the ticket that was given comes back"),
    }
}

/// What a planned write changes; a queue that is new gets its uid.
fn change<O: DispatcherOutbox>(write: Write, out: &mut O) -> Change {
    match write {
        Write::Queue(spec) if spec.uid.is_empty() => Change::Put(Record::Queue(Arc::new(QueueSpec {
            uid: out.new_uid(),
            ..Arc::unwrap_or_clone(spec)
        }))),
        Write::Queue(spec) => Change::Put(Record::Queue(spec)),
        Write::Class(class) => Change::Put(Record::PriorityClass(class)),
        Write::Budget(spec) => Change::Put(Record::Budget(spec)),
        Write::Reservation(spec) => Change::Put(Record::Reservation(spec)),
        Write::Gone(RecordName::Queue(path)) => Change::Gone(RecordKey::Queue(path)),
        Write::Gone(RecordName::Class(name)) => Change::Gone(RecordKey::PriorityClass(name)),
        Write::Gone(RecordName::Budget(name)) => Change::Gone(RecordKey::Budget(name)),
        Write::Gone(RecordName::Reservation(name)) => Change::Gone(RecordKey::Reservation(name)),
    }
}

fn record(name: &RecordName) -> RecordRef<'_> {
    match name {
        RecordName::Queue(path) => RecordRef::Queue(path),
        RecordName::Class(name) => RecordRef::PriorityClass(name),
        RecordName::Budget(name) => RecordRef::Budget(name),
        RecordName::Reservation(name) => RecordRef::Reservation(name),
    }
}

/// Uid of the first queue that an edit is about.
fn uid_of(edit: &Edit, core: &Dispatcher) -> String {
    let path = edit.queues.first().map(|change| match change {
        RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => &spec.name,
        RecordChange::Delete(path) => path,
    });
    let tree = core.queueing().quota().tree();
    let record = path.and_then(|path| tree.record(tree.find(path)?));
    record.map(|spec| spec.uid.clone()).unwrap_or_default()
}
