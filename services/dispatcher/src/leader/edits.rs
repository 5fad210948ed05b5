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

use bytes::Bytes;
use godel_core_dispatcher::record_changes::{Edit, EditRefusal, Plan, RecordName, Write};
use godel_domain::{
    ids::Revision,
    queue_spec::{DEFAULT_QUEUE, QueueSpec},
    record_change::RecordChange,
    unit::UnitSpec,
};
use godel_kit::{
    status,
    txn::{Conditions, Pending, Receipt, TXN_BYTES_MAX, TxnError},
};
use godel_proto::v1;
use godel_wire::{BadField, to_proto};
use tonic::Status;

use super::{DEFERRED_MAX, DispatcherLeader, Ticket, overloaded, refused};
use crate::{
    convert,
    requests::{EditCall, Edited, Page, PageCall, PendingSubmission, Reply},
};

/// A page that has so many bytes takes no further record; a queue has at most 400 KiB, mostly owners.
const PAGE_BYTES: usize = 512 << 10;

/// Changes that wait, the one that is made, and who waits for it.
#[derive(Default)]
pub(super) struct Edits {
    waiting: VecDeque<EditCall>,
    current: Option<Current>,
    /// Submissions that name what the present change closes.
    held: Vec<PendingSubmission>,
    /// Units on their way to the store that name a record, by record.
    coming: BTreeMap<RecordName, usize>,
}

struct Current {
    closes: BTreeSet<RecordName>,
    stage: Stage,
}

enum Stage {
    /// Waits for submissions on their way, or for room in the pipeline.
    Asked(EditCall),
    /// On its way to the store.
    Sent,
    /// Durable; the watch has yet to show it.
    Durable(Edited, Reply<Result<Edited, Status>>),
}

/// What became of a change that was checked.
enum Sending {
    Sent(Pending, Edited),
    /// There is no room for its transaction now.
    Full,
    /// There is no transaction.
    Answered(Result<Edited, Status>),
}

/// What is told once a transaction is durable.
pub(super) struct SentEdit {
    edited: Edited,
    reply: Reply<Result<Edited, Status>>,
}

impl Edits {
    /// A unit that names records is on its way.
    pub(super) fn enter(&mut self, spec: &UnitSpec) {
        for name in names(spec) {
            *self.coming.entry(name).or_default() += 1;
        }
    }

    /// It is durable, or refused.
    pub(super) fn leave(&mut self, spec: &UnitSpec) {
        for name in names(spec) {
            if let Some(n) = self.coming.get_mut(&name) {
                *n -= 1;
                if *n == 0 {
                    self.coming.remove(&name);
                }
            }
        }
    }

    /// Keeps a submission back that names what the present change closes; gives any other one back.
    pub(super) fn hold(&mut self, item: PendingSubmission) -> Option<PendingSubmission> {
        let closes = self.current.as_ref().map(|current| &current.closes);
        let is_closed = |closes: &BTreeSet<RecordName>| names(&item.spec).any(|name| closes.contains(&name));
        if closes.is_some_and(is_closed) {
            self.held.push(item);
            return None;
        }
        Some(item)
    }

    fn is_clear(&self, closes: &BTreeSet<RecordName>) -> bool {
        !closes.iter().any(|name| self.coming.contains_key(name))
    }
}

/// Records that a unit names, but for `default`, which is never closed.
fn names(spec: &UnitSpec) -> impl Iterator<Item = RecordName> {
    let queue = (spec.queue != DEFAULT_QUEUE).then(|| RecordName::Queue(spec.queue.clone()));
    let class = (!spec.priority_class.is_empty()).then(|| RecordName::Class(spec.priority_class.clone()));
    queue.into_iter().chain(class)
}

impl DispatcherLeader<'_> {
    pub(super) fn edit(&mut self, call: EditCall) {
        if self.edits.waiting.len() < DEFERRED_MAX {
            self.edits.waiting.push_back(call);
        } else {
            let _ = call.reply.send(Err(overloaded("too many changes of queues wait")));
        }
    }

    /// Goes on with changes as far as they can.
    pub(super) fn go_on_with_edits(&mut self) {
        loop {
            let Some(Current { closes, stage }) = self.edits.current.take() else {
                for item in std::mem::take(&mut self.edits.held) {
                    self.admit(item);
                }
                let Some(call) = self.edits.waiting.pop_front() else { return };
                self.edits.current = Some(Current { closes: call.edit.closes(), stage: Stage::Asked(call) });
                continue;
            };
            let stage = match stage {
                // While a list is under way, what is known may be old.
                Stage::Asked(call) if self.core.is_listing() || !self.edits.is_clear(&closes) => {
                    Some(Stage::Asked(call))
                }
                Stage::Asked(call) => self.try_edit(call),
                Stage::Durable(edited, reply) if self.core.revision() >= edited.revision => {
                    // Whoever asked may be gone.
                    let _ = reply.send(Ok(edited));
                    None
                }
                stage @ (Stage::Sent | Stage::Durable(..)) => Some(stage),
            };
            if let Some(stage) = stage {
                self.edits.current = Some(Current { closes, stage });
                return;
            }
        }
    }

    /// The answer to the transaction of a change.
    pub(super) fn on_edit(&mut self, sent: SentEdit, result: Result<Receipt, TxnError>) {
        let SentEdit { mut edited, reply } = sent;
        match (result, &mut self.edits.current) {
            (Ok(committed), Some(current)) => {
                edited.revision = committed.revision;
                current.stage = Stage::Durable(edited, reply);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                let _ = reply.send(Err(refused(&error)));
                self.edits.current = None;
            }
        }
    }

    /// Checks a change and sends it. `None` when it has its answer.
    fn try_edit(&mut self, call: EditCall) -> Option<Stage> {
        let planned = self.core.plan(&call.edit);
        let planned = match planned {
            Ok(_) if !call.unread.is_empty() => {
                let (queues, classes) = (Vec::new(), Vec::new());
                let (budgets, reservations) = (Vec::new(), Vec::new());
                Err(EditRefusal::Violations { queues, classes, budgets, reservations })
            }
            planned => planned,
        };
        let EditCall { edit, unread, is_apply, reply } = call;
        let answer = match planned {
            Ok(plan) => match self.send_edit(&edit, plan) {
                Sending::Sent(pending, edited) => {
                    self.ticket(pending, Ticket::Edit(Box::new(SentEdit { edited, reply })));
                    return Some(Stage::Sent);
                }
                // Answers make room.
                Sending::Full => return Some(Stage::Asked(EditCall { edit, unread, is_apply, reply })),
                Sending::Answered(answer) => answer,
            },
            Err(refusal) if is_apply => Err(convert::queue::refusal_of_all(refusal, unread)),
            Err(refusal) => Err(convert::queue::refusal_of_one(refusal, unread)),
        };
        let _ = reply.send(answer);
        None
    }

    /// Sends the transaction of a change.
    fn send_edit(&self, edit: &Edit, plan: Plan) -> Sending {
        let Plan { queues, classes, budgets, reservations, writes, conditions } = plan;
        let (revision, uid) = (self.core.revision(), String::new());
        let mut edited = Edited { revision, uid, queues, classes, budgets, reservations };
        if writes.is_empty() {
            edited.uid = self.uid_of(edit);
            return Sending::Answered(Ok(edited));
        }
        let mut ops: Vec<Bytes> = Vec::with_capacity(writes.len());
        for write in writes {
            ops.push(match write {
                Write::Queue(spec) => {
                    let spec = with_uid(spec);
                    edited.uid.clone_from(&spec.uid);
                    to_proto::put_queue(&spec)
                }
                Write::Class(class) => to_proto::put_priority_class(&class),
                Write::Budget(spec) => to_proto::put_budget(&spec),
                Write::Reservation(spec) => to_proto::put_reservation(&spec),
                Write::Gone(RecordName::Queue(path)) => to_proto::delete_named(v1::Kind::Queue, &path),
                Write::Gone(RecordName::Class(name)) => {
                    to_proto::delete_named(v1::Kind::PriorityClass, &name)
                }
                Write::Gone(RecordName::Budget(name)) => {
                    to_proto::delete_named(v1::Kind::DisruptionBudget, &name)
                }
                Write::Gone(RecordName::Reservation(name)) => {
                    to_proto::delete_named(v1::Kind::Reservation, &name)
                }
            });
        }
        let preconditions: Vec<v1::Precondition> = conditions
            .iter()
            .map(|(name, revision)| match name {
                RecordName::Queue(path) => to_proto::precondition_named(v1::Kind::Queue, path, *revision),
                RecordName::Class(name) => {
                    to_proto::precondition_named(v1::Kind::PriorityClass, name, *revision)
                }
                RecordName::Budget(name) => {
                    to_proto::precondition_named(v1::Kind::DisruptionBudget, name, *revision)
                }
                RecordName::Reservation(name) => {
                    to_proto::precondition_named(v1::Kind::Reservation, name, *revision)
                }
            })
            .collect();
        // As the store counts them.
        let n_bytes = ops.iter().map(|op| op.len() + 4).sum::<usize>()
            + preconditions.len() * size_of::<v1::Precondition>()
            + 64;
        if n_bytes > TXN_BYTES_MAX {
            let description =
                format!("{n_bytes} bytes in one transaction; at most {TXN_BYTES_MAX}: apply fewer at once");
            let bad = status::invalid_argument([BadField::new("queues", description)]);
            return Sending::Answered(Err(bad));
        }
        match self.pipeline.try_submit(ops, Conditions { preconditions, nodes_as_of: Revision(0) }) {
            Ok(Some(pending)) => Sending::Sent(pending, edited),
            Ok(None) => Sending::Full,
            Err(error) => Sending::Answered(Err(refused(&error))),
        }
    }

    /// Of the first queue that an edit is about.
    fn uid_of(&self, edit: &Edit) -> String {
        let path = edit.queues.first().map(|change| match change {
            RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => &spec.name,
            RecordChange::Delete(path) => path,
        });
        let tree = self.core.quota().tree();
        let record = path.and_then(|path| tree.record(tree.find(path)?));
        record.map(|spec| spec.uid.clone()).unwrap_or_default()
    }

    pub(super) fn show_queue(&self, name: &str) -> Option<v1::QueueStatus> {
        self.core.queue_view(name).map(convert::queue::queue)
    }

    pub(super) fn list_queues(&self, call: PageCall<v1::QueueStatus>) {
        let tree = self.core.quota().tree();
        let names = tree.after(&call.after).map(|queue| tree.path(queue));
        let has_record = tree.find(DEFAULT_QUEUE).is_some_and(|queue| tree.record(queue).is_some());
        let total = tree.n_records() + usize::from(!has_record);
        self.page(call, total, names, |name| self.show_queue(name));
    }

    pub(super) fn show_class(&self, name: &str) -> Option<v1::PriorityClassStatus> {
        self.core.classes().get(name).map(|class| convert::queue::priority_class(&self.core, class))
    }

    pub(super) fn list_classes(&self, call: PageCall<v1::PriorityClassStatus>) {
        let classes = self.core.classes();
        let after = call.after.clone();
        let names = classes.iter().map(|class| class.name.as_str()).filter(|name| **name > *after);
        self.page(call, classes.iter().count(), names, |name| self.show_class(name));
    }

    pub(super) fn show_budget(&self, name: &str) -> Option<v1::DisruptionBudgetStatus> {
        self.core.budget_view(name).map(convert::budget::budget)
    }

    pub(super) fn list_budgets(&self, call: PageCall<v1::DisruptionBudgetStatus>) {
        let budgets = self.core.budgets();
        let after = call.after.clone();
        let names = budgets.iter().map(|budget| budget.spec.name.as_str()).filter(|name| **name > *after);
        self.page(call, budgets.len(), names, |name| self.show_budget(name));
    }

    pub(super) fn show_reservation(&self, name: &str) -> Option<v1::ReservationStatus> {
        self.core.reservation_view(name).map(convert::reservation::reservation)
    }

    /// Without the slots one by one: who wants these asks for one reservation.
    pub(super) fn list_reservations(&self, call: PageCall<v1::ReservationStatus>) {
        let reservations = self.core.reservations();
        let after = call.after.clone();
        let names = reservations.keys().map(String::as_str).filter(|name| **name > *after);
        self.page(call, reservations.len(), names, |name| {
            let status = self.show_reservation(name)?;
            Some(v1::ReservationStatus { places: Vec::new(), ..status })
        });
    }

    fn page<'a, T: prost::Message>(
        &self,
        call: PageCall<T>,
        total: usize,
        names: impl Iterator<Item = &'a str>,
        show: impl Fn(&str) -> Option<T>,
    ) {
        let PageCall { n_max, reply, .. } = call;
        let (mut items, mut n_bytes, mut next) = (Vec::new(), 0, "");
        let mut names = names.peekable();
        while let Some(name) = names.next() {
            let Some(item) = show(name) else { continue };
            n_bytes += item.encoded_len();
            items.push(item);
            if (items.len() >= n_max || n_bytes >= PAGE_BYTES) && names.peek().is_some() {
                next = name;
                break;
            }
        }
        let revision = self.core.revision();
        let _ = reply.send(Page { items, next: next.to_owned(), total, revision });
    }
}

fn with_uid(spec: Arc<QueueSpec>) -> Arc<QueueSpec> {
    if !spec.uid.is_empty() {
        return spec;
    }
    Arc::new(QueueSpec { uid: uuid::Uuid::now_v7().to_string(), ..(*spec).clone() })
}
