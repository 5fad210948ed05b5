//! Queues and priority classes: their records, who names them, and what they are shown with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    priority_classes::PriorityClasses,
    queue_spec::{PriorityClass, QueueSpec},
    record_change::{N_USERS_NAMED, Users},
    running_units::UnitTerms,
    txn::Receipt,
    unit::{UnitRecord, UnitSpec},
};
use godel_queueing::{Config, PendingReason, QueueIdx, Queues, Quota, RoomIdx, Waiting};
use godel_rules::admission::welcome;
use rustc_hash::FxHashMap;

use super::{
    nodes::Nodes,
    unit_entry::{UnitEntry, Whereabouts},
    units::Units,
};

pub use godel_domain::unwelcome::Unwelcome;

/// When a record was written; all 0 without a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of the creating transaction.
    pub create_revision: Revision,
    /// Of the last change.
    pub revision: Revision,
    /// Of the creating transaction, Unix milliseconds.
    pub create_time_ms: i64,
}

/// When each record of a kind was written, by name.
#[derive(Debug, Default)]
pub(super) struct RecordVersions(BTreeMap<String, Versions>);

impl RecordVersions {
    pub(super) fn get(&self, name: &str) -> Option<Versions> {
        self.0.get(name).copied()
    }

    /// Revision of a record; 0: there is none.
    pub(super) fn revision(&self, name: &str) -> Revision {
        self.get(name).unwrap_or_default().revision
    }

    /// A record as committed at `revision`.
    pub(super) fn note(&mut self, name: &str, revision: Revision, created: Receipt) {
        let fresh = Versions { create_revision: created.revision, revision, create_time_ms: created.time_ms };
        self.0.entry(name.to_owned()).and_modify(|versions| versions.revision = revision).or_insert(fresh);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Names of the records.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.0.keys().cloned()
    }
}

/// A queue as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its record, or what `default` is without one.
    pub spec: Arc<QueueSpec>,
    /// Of its record.
    pub versions: Versions,
    /// Requests of its own running units, bound and not ended.
    pub used: BTreeMap<String, i64>,
    /// The same of the queue and those below it.
    pub used_with_children: BTreeMap<String, i64>,
    /// Guarantee in force.
    pub guaranteed: BTreeMap<String, i64>,
    /// What `used_with_children` is above `guaranteed`.
    pub borrowed: BTreeMap<String, i64>,
    /// Maximum in force.
    pub max: BTreeMap<String, i64>,
    /// Units of the queue and those below it with running units to be bound.
    pub pending_units: u64,
    /// Running units of the queue and those below it, bound and not ended.
    pub running_units: u64,
}

/// Records by name, and who names them.
#[derive(Debug, Default)]
pub(super) struct QueueRecords {
    pub(super) queues: RecordVersions,
    pub(super) classes: RecordVersions,
    /// Units by queue. Not those of `default`: they are most units of a cluster without queues, and who names it
    /// never matters.
    by_queue: FxHashMap<QueueIdx, BTreeSet<UnitId>>,
    by_class: BTreeMap<String, BTreeSet<UnitId>>,
    /// By queue, units of its own with running units to be bound.
    n_wanting: Vec<u64>,
}

impl QueueRecords {
    pub(super) fn note_unit(&mut self, record: &UnitRecord, queue: QueueIdx) {
        if queue != QueueIdx::DEFAULT {
            self.by_queue.entry(queue).or_default().insert(record.id);
        }
        if !record.spec.priority_class.is_empty() {
            self.by_class.entry(record.spec.priority_class.clone()).or_default().insert(record.id);
        }
    }

    pub(super) fn forget_unit(&mut self, record: &UnitRecord, queue: QueueIdx, is_wanting: bool) {
        if let Some(units) = self.by_queue.get_mut(&queue) {
            units.remove(&record.id);
        }
        if let Some(units) = self.by_class.get_mut(&record.spec.priority_class) {
            units.remove(&record.id);
            if units.is_empty() {
                self.by_class.remove(&record.spec.priority_class);
            }
        }
        if is_wanting {
            self.note_wanting(queue, false);
        }
    }

    pub(super) fn note_wanting(&mut self, queue: QueueIdx, is_wanting: bool) {
        if self.n_wanting.len() <= queue.idx() {
            self.n_wanting.resize(queue.idx() + 1, 0);
        }
        let n = &mut self.n_wanting[queue.idx()];
        *n = if is_wanting { *n + 1 } else { n.saturating_sub(1) };
    }
}

/// Queues with the units that wait in them, priority classes, and who names them.
#[derive(Debug)]
pub struct Queueing {
    pub(super) queues: Queues,
    pub(super) classes: PriorityClasses,
    pub(super) records: QueueRecords,
}

impl Queueing {
    pub(super) fn new(config: Config) -> Self {
        Self {
            queues: Queues::new(config),
            classes: PriorityClasses::default(),
            records: QueueRecords::default(),
        }
    }

    /// A queue's record as committed.
    pub(super) fn on_queue(&mut self, spec: Arc<QueueSpec>, revision: Revision, created: Receipt) {
        self.records.queues.note(&spec.name, revision, created);
        self.queues.put(spec);
    }

    /// A queue's record is gone.
    pub(super) fn on_queue_deleted(&mut self, path: &str) {
        self.records.queues.remove(path);
        self.queues.remove_record(path);
    }

    /// A priority class's record as committed: units that name it and have no priority of their own follow.
    pub(super) fn on_class(
        &mut self,
        class: PriorityClass,
        revision: Revision,
        created: Receipt,
        units: &mut Units,
    ) {
        let name = class.name.clone();
        self.records.classes.note(&name, revision, created);
        self.classes.put(class);
        self.follow_class(&name, units);
    }

    /// A priority class's record is gone.
    pub(super) fn on_class_deleted(&mut self, name: &str, units: &mut Units) {
        self.records.classes.remove(name);
        self.classes.remove(name);
        self.follow_class(name, units);
    }

    /// Another record of a known unit: it may need something else at once now.
    pub(super) fn enroll_again(&mut self, unit: UnitId, record: Arc<UnitRecord>, units: &mut Units) {
        let Units { entries, tally, .. } = units;
        let Some(entry) = entries.get_mut(&unit) else { return };
        if let Some(waiting) = entry.place.waiting() {
            self.queues.remove(waiting);
        }
        entry.discharge(&mut self.queues);
        self.queues.forget_unit(&entry.account);
        self.records.forget_unit(&entry.record, entry.account.queue, entry.is_wanting);
        tally.uncount(entry.account.queue, entry.phase);
        entry.account = self.queues.enroll(&record.spec);
        tally.enter(entry.account.queue, entry.phase);
        self.records.note_unit(&record, entry.account.queue);
        if entry.is_wanting {
            self.records.note_wanting(entry.account.queue, true);
        }
        entry.record = record;
        entry.recount();
        entry.charge(&mut self.queues);
        entry.choose(&mut self.queues);
        if let Some(old) = entry.place.waiting().copied() {
            // Another record: whether there is room for it is not known, until the scheduler that has it has heard of it.
            let room = if old.held_by.is_some() { old.room } else { RoomIdx::NONE };
            let new = Waiting { room, held_by: old.held_by, ..entry.waiting(old.again, &self.classes) };
            self.push_again(entry, new);
        }
    }

    /// Brings what a unit's queue is told of it up to date.
    pub(super) fn charge(&mut self, entry: &mut UnitEntry) {
        entry.charge(&mut self.queues);
        let is_wanting = entry.counts.pending > 0;
        if is_wanting != entry.is_wanting {
            entry.is_wanting = is_wanting;
            self.records.note_wanting(entry.account.queue, is_wanting);
        }
    }

    /// A unit is gone. It does not wait any more.
    pub(super) fn remove(&mut self, entry: &mut UnitEntry) {
        self.records.forget_unit(&entry.record, entry.account.queue, entry.is_wanting);
        entry.discharge(&mut self.queues);
        self.queues.forget_unit(&entry.account);
    }

    /// A unit that was taken out of its queue waits as this from now on.
    fn push_again(&mut self, entry: &mut UnitEntry, new: Waiting) {
        if let Some(waiting) = entry.place.waiting_mut() {
            *waiting = new;
            self.queues.push(new);
        }
    }

    fn follow_class(&mut self, name: &str, units: &mut Units) {
        for unit in self.records.by_class.get(name).cloned().into_iter().flatten() {
            let Some(entry) = units.get_mut(unit) else { continue };
            if let Some(old) = entry.place.waiting().copied() {
                let new = entry.waiting_again(&old, &self.classes);
                self.queues.remove(&old);
                self.push_again(entry, new);
            }
        }
    }

    /// Whether a unit may be submitted where it wants to go by somebody with these names, as far as records say that can be read.
    pub(super) fn admit(
        &self,
        spec: &UnitSpec,
        names: &[String],
        sub_cluster_key: &str,
    ) -> Result<(), Vec<Unwelcome>> {
        welcome::check(spec, names, self.quota().tree(), &self.classes, sub_cluster_key)
    }

    /// Queues and what they use, what was handed out included.
    pub fn quota(&self) -> &Quota {
        self.queues.quota()
    }

    /// Priority classes.
    pub fn classes(&self) -> &PriorityClasses {
        &self.classes
    }

    /// When a queue's record was written; `None` without one.
    pub fn queue_versions(&self, path: &str) -> Option<Versions> {
        self.records.queues.get(path)
    }

    /// When a priority class's record was written; `None` without one.
    pub fn class_versions(&self, name: &str) -> Option<Versions> {
        self.records.classes.get(name)
    }

    /// Preemption terms of what is bound of a unit once its spec is another one; `None` if they stay.
    pub(super) fn changed_terms(&self, old: &UnitSpec, new: &UnitSpec) -> Option<UnitTerms> {
        let terms = UnitTerms::of(new, &self.classes);
        (terms != UnitTerms::of(old, &self.classes)).then_some(terms)
    }

    /// Units, not ended and expired, that name a queue. Those of `default` are not told.
    pub(super) fn queue_users(&self, path: &str, units: &Units) -> Users {
        let queue = self.quota().tree().find(path);
        users(queue.and_then(|queue| self.records.by_queue.get(&queue)), units)
    }

    /// Units, not ended and expired, that name a priority class.
    pub(super) fn class_users(&self, name: &str, units: &Units) -> Users {
        users(self.records.by_class.get(name), units)
    }

    /// What running units that are bound and have not ended ask for, of both pools, and what all nodes have, by resource.
    /// Devices count by their kind, in thousandths.
    pub fn allocated(&self, nodes: &Nodes) -> (BTreeMap<String, i64>, BTreeMap<String, i64>) {
        (shown(self.quota().usage().bound(QueueIdx::ROOT).1), nodes.capacities.total())
    }

    /// Why a unit that waits for a scheduler is not handed out, as of `at`; `None` if it only waits for its turn.
    pub(super) fn pending_reason(&self, entry: &UnitEntry, at: Millis) -> Option<PendingReason> {
        match &entry.place {
            Whereabouts::Queued(waiting) if waiting.room == RoomIdx::NONE => {
                self.queues.pending_reason(waiting, at)
            }
            Whereabouts::Queued(_) => None,
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Dispatched(_) => {
                None
            }
        }
    }

    /// A queue as shown; `None` if there is no such queue.
    pub fn queue_view(&self, path: &str) -> Option<QueueView> {
        let (tree, usage) = (self.quota().tree(), self.quota().usage());
        let queue = tree.find(path).filter(|queue| tree.exists(*queue))?;
        let with_children: BTreeMap<&str, i128> = usage.bound(queue).1.collect();
        let mut own = with_children.clone();
        for child in tree.paths_below(queue) {
            for (name, amount) in usage.bound(*child).1 {
                own.entry(name).and_modify(|own| *own -= amount);
            }
        }
        let guaranteed = tree.guaranteed(queue).clone();
        let above = |name: &str, amount: i128| {
            (amount - i128::from(guaranteed.get(name).copied().unwrap_or(0))).max(0)
        };
        let borrowed = with_children.iter().map(|(name, amount)| (*name, above(name, *amount)));
        Some(QueueView {
            spec: tree.record(queue).cloned().unwrap_or_else(|| Arc::new(QueueSpec::new(path))),
            versions: self.records.queues.get(path).unwrap_or_default(),
            borrowed: shown(borrowed),
            used: shown(own),
            used_with_children: shown(with_children),
            guaranteed,
            max: tree.max_in_force(queue),
            pending_units: self.n_wanting(queue),
            running_units: u64::try_from(usage.bound(queue).0).unwrap_or(0),
        })
    }

    fn n_wanting(&self, queue: QueueIdx) -> u64 {
        let own = self.records.n_wanting.get(queue.idx()).copied().unwrap_or(0);
        let below = self.quota().tree().paths_below(queue);
        own + below.iter().map(|child| self.n_wanting(*child)).sum::<u64>()
    }
}

/// Units that name a record, the first of them by name.
fn users(named_by: Option<&BTreeSet<UnitId>>, units: &Units) -> Users {
    let first = named_by.into_iter().flatten().take(N_USERS_NAMED).filter_map(|unit| units.name(*unit));
    Users { n: named_by.map_or(0, BTreeSet::len), first: first.collect() }
}

/// Amounts that are something.
fn shown<'a>(amounts: impl IntoIterator<Item = (&'a str, i128)>) -> BTreeMap<String, i64> {
    let some = amounts.into_iter().filter(|(_, amount)| *amount > 0);
    some.map(|(name, amount)| (name.to_owned(), i64::try_from(amount).unwrap_or(i64::MAX))).collect()
}
