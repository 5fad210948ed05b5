//! Changes of queues, priority classes, disruption budgets and reservations, made together or not at all: what they come to.
//!
//! Pure: the records that are there, who names them, and what is asked for give what is to be written, and under which
//! conditions. The service makes one such change after the other and lets no submission in beside it that could spoil
//! what was checked ([`Edit::closes`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::ids::Revision;
use godel_domain::{
    budget_spec::BudgetSpec,
    names,
    priority_classes::PriorityClasses,
    queue_spec::{DEFAULT_QUEUE, PriorityClass, QueueSpec, parent},
    record_change::{Ground, RecordChange, Violation},
    reservation_spec::ReservationSpec,
};
use godel_queueing::check::{self, ClassChange, QueueChange};
use godel_rules::{
    budget::check::{self as budget_check, BudgetChange},
    reservation::check::{self as reservation_check, ReservationChange},
};

use super::{
    Dispatcher, budgets::BudgetRecords, queues::Queueing, reservations::ReservationRecords, units::Units,
};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Of queues. A new one without a uid gets one from whoever writes it.
    pub queues: Vec<QueueChange>,
    /// Of priority classes.
    pub classes: Vec<ClassChange>,
    /// Of disruption budgets.
    pub budgets: Vec<BudgetChange>,
    /// Of reservations.
    pub reservations: Vec<ReservationChange>,
    /// Revision that a replaced or deleted record must have; 0: whatever it is.
    pub expected_revision: Revision,
}

/// What names a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordName {
    /// Path of a queue.
    Queue(String),
    /// Name of a priority class.
    Class(String),
    /// Name of a disruption budget.
    Budget(String),
    /// Name of a reservation.
    Reservation(String),
}

/// A record to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Put.
    Queue(Arc<QueueSpec>),
    /// Put.
    Class(PriorityClass),
    /// Put.
    Budget(Arc<BudgetSpec>),
    /// Put.
    Reservation(Arc<ReservationSpec>),
    /// Delete.
    Gone(RecordName),
}

/// What becomes of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditOutcome {
    /// New.
    Created,
    /// Another one now.
    Updated,
    /// It is there as given since this revision.
    Unchanged(Revision),
    /// Gone.
    Deleted,
}

/// What a change comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditPlan {
    /// Of each queue asked for, by position.
    pub queues: Vec<EditOutcome>,
    /// Of each priority class asked for, by position.
    pub classes: Vec<EditOutcome>,
    /// Of each disruption budget asked for, by position.
    pub budgets: Vec<EditOutcome>,
    /// Of each reservation asked for, by position.
    pub reservations: Vec<EditOutcome>,
    /// To be written in one transaction; nothing if everything is as asked for.
    pub writes: Vec<Write>,
    /// Revisions that these records must still have then; 0: there is none.
    pub conditions: BTreeMap<RecordName, Revision>,
}

/// Why a change may not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditRefusal {
    /// The record has another revision than expected.
    Revision {
        /// Its name.
        name: String,
        /// It has this one.
        current: Revision,
    },
    /// Everything wrong, in order.
    Violations {
        /// Of queues.
        queues: Vec<Violation>,
        /// Of priority classes.
        classes: Vec<Violation>,
        /// Of disruption budgets.
        budgets: Vec<Violation>,
        /// Of reservations.
        reservations: Vec<Violation>,
    },
}

impl Edit {
    /// Records that no unit may come to name while the change is made: what is deleted, and what gets its first queue
    /// below it.
    pub fn closes(&self) -> BTreeSet<RecordName> {
        let queues = self.queues.iter().filter_map(|change| match change {
            RecordChange::Delete(path) => Some(path.as_str()),
            RecordChange::Create(spec) | RecordChange::Put(spec) => parent(&spec.name),
            RecordChange::Update(_) => None,
        });
        let classes = self.classes.iter().filter_map(|change| match change {
            RecordChange::Delete(name) => Some(RecordName::Class(name.clone())),
            RecordChange::Create(_) | RecordChange::Update(_) | RecordChange::Put(_) => None,
        });
        let queues = queues.filter(|path| *path != DEFAULT_QUEUE);
        queues.map(|path| RecordName::Queue(path.to_owned())).chain(classes).collect()
    }
}

/// The records that are there, and who names them.
pub(super) struct KnownRecords<'a> {
    pub(super) queueing: &'a Queueing,
    pub(super) budgets: &'a BudgetRecords,
    pub(super) reservations: &'a ReservationRecords,
    pub(super) units: &'a Units,
}

impl<'a> KnownRecords<'a> {
    pub(super) fn of(core: &'a Dispatcher) -> Self {
        let (queueing, units) = (core.queueing(), core.units());
        Self { queueing, budgets: &core.budgets, reservations: &core.reservations, units }
    }

    /// What a change comes to, by the records known.
    ///
    /// # Errors
    /// It may not be made.
    pub(super) fn plan(&self, edit: &Edit) -> Result<EditPlan, EditRefusal> {
        let mut plan = EditPlan::default();
        let (mut queues, mut classes) = (Vec::new(), Vec::new());
        for (idx, change) in edit.queues.iter().enumerate() {
            self.plan_queue(idx, change, edit.expected_revision, &mut plan, &mut queues)?;
        }
        for change in &edit.classes {
            self.plan_class(change, edit.expected_revision, &mut plan)?;
        }
        for change in &edit.budgets {
            self.plan_budget(change, edit.expected_revision, &mut plan)?;
        }
        for change in &edit.reservations {
            self.plan_reservation(change, edit.expected_revision, &mut plan)?;
        }
        // What is created as it is there already was created before.
        let repeated =
            |outcomes: &[EditOutcome], idx: usize| matches!(outcomes[idx], EditOutcome::Unchanged(_));
        let new_queues = edit.queues.iter().enumerate().filter(|(idx, change)| {
            !matches!(change, RecordChange::Create(_)) || !repeated(&plan.queues, *idx)
        });
        let new_classes = edit.classes.iter().enumerate().filter(|(idx, change)| {
            !matches!(change, RecordChange::Create(_)) || !repeated(&plan.classes, *idx)
        });
        let (queue_at, queue_changes): (Vec<usize>, Vec<QueueChange>) =
            new_queues.map(|(idx, change)| (idx, change.clone())).unzip();
        let (class_at, class_changes): (Vec<usize>, Vec<ClassChange>) =
            new_classes.map(|(idx, change)| (idx, change.clone())).unzip();
        let checked =
            self.queueing.quota().check(&queue_changes, &|path| self.queueing.queue_users(path, self.units));
        queues.extend(at(checked.err(), &queue_at));
        let checked = check::classes(&self.queueing.classes, &class_changes, &|name| {
            self.queueing.class_users(name, self.units)
        });
        classes.extend(at(checked.err(), &class_at));
        queues.sort_by_key(|violation| violation.change);
        let new_budgets = edit.budgets.iter().enumerate().filter(|(idx, change)| {
            !matches!(change, RecordChange::Create(_)) || !repeated(&plan.budgets, *idx)
        });
        let (budget_at, budget_changes): (Vec<usize>, Vec<BudgetChange>) =
            new_budgets.map(|(idx, change)| (idx, change.clone())).unzip();
        let checked = budget_check::budgets(self.budgets.all(), &budget_changes);
        let budgets: Vec<Violation> = at(checked.err(), &budget_at).collect();
        let new_reservations = edit.reservations.iter().enumerate().filter(|(idx, change)| {
            !matches!(change, RecordChange::Create(_)) || !repeated(&plan.reservations, *idx)
        });
        let (reservation_at, reservation_changes): (Vec<usize>, Vec<ReservationChange>) =
            new_reservations.map(|(idx, change)| (idx, change.clone())).unzip();
        let users = |name: &str| self.reservations.users(name, self.units);
        let checked = reservation_check::reservations(&self.reservations.specs, &reservation_changes, &users);
        let reservations: Vec<Violation> = at(checked.err(), &reservation_at).collect();
        if [&queues, &classes, &budgets, &reservations].into_iter().all(Vec::is_empty) {
            Ok(plan)
        } else {
            Err(EditRefusal::Violations { queues, classes, budgets, reservations })
        }
    }

    fn plan_reservation(
        &self,
        change: &ReservationChange,
        expected: Revision,
        plan: &mut EditPlan,
    ) -> Result<(), EditRefusal> {
        let revision = |name: &str| self.reservations.versions.revision(name);
        let spec = match change {
            RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => spec,
            RecordChange::Delete(name) => {
                plan.expect(RecordName::Reservation(name.clone()), revision(name), expected)?;
                plan.reservations.push(EditOutcome::Deleted);
                plan.writes.push(Write::Gone(RecordName::Reservation(name.clone())));
                return Ok(());
            }
        };
        let known = self.reservations.specs.get(&spec.name);
        let current = revision(&spec.name);
        if known == Some(spec) {
            plan.reservations.push(EditOutcome::Unchanged(current));
            return Ok(());
        }
        plan.expect(RecordName::Reservation(spec.name.clone()), current, expected)?;
        plan.reservations.push(if known.is_some() { EditOutcome::Updated } else { EditOutcome::Created });
        plan.writes.push(Write::Reservation(Arc::clone(spec)));
        Ok(())
    }

    fn plan_budget(
        &self,
        change: &BudgetChange,
        expected: Revision,
        plan: &mut EditPlan,
    ) -> Result<(), EditRefusal> {
        let revision = |name: &str| self.budgets.versions.revision(name);
        let spec = match change {
            RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => spec,
            RecordChange::Delete(name) => {
                plan.expect(RecordName::Budget(name.clone()), revision(name), expected)?;
                plan.budgets.push(EditOutcome::Deleted);
                plan.writes.push(Write::Gone(RecordName::Budget(name.clone())));
                return Ok(());
            }
        };
        let known = self.budgets.all().get(&spec.name).map(|budget| &budget.spec);
        let current = revision(&spec.name);
        if known == Some(spec) {
            plan.budgets.push(EditOutcome::Unchanged(current));
            return Ok(());
        }
        plan.expect(RecordName::Budget(spec.name.clone()), current, expected)?;
        plan.budgets.push(if known.is_some() { EditOutcome::Updated } else { EditOutcome::Created });
        plan.writes.push(Write::Budget(Arc::clone(spec)));
        Ok(())
    }

    fn plan_queue(
        &self,
        idx: usize,
        change: &QueueChange,
        expected: Revision,
        plan: &mut EditPlan,
        wrong: &mut Vec<Violation>,
    ) -> Result<(), EditRefusal> {
        let (RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec)) = change
        else {
            let RecordChange::Delete(path) = change else { return Ok(()) };
            plan.expect(RecordName::Queue(path.clone()), self.queue_revision(path), expected)?;
            plan.queues.push(EditOutcome::Deleted);
            plan.writes.push(Write::Gone(RecordName::Queue(path.clone())));
            return Ok(());
        };
        let tree = self.queueing.quota().tree();
        let known = tree.find(&spec.name).and_then(|queue| tree.record(queue));
        let is_create = matches!(change, RecordChange::Create(_));
        let wanted = match known {
            Some(known) if !is_create || spec.uid.is_empty() || spec.uid == known.uid => {
                Arc::new(QueueSpec { uid: known.uid.clone(), ..(**spec).clone() })
            }
            Some(_) | None => Arc::clone(spec),
        };
        let revision = self.queue_revision(&spec.name);
        if known == Some(&wanted) {
            plan.queues.push(EditOutcome::Unchanged(revision));
            return Ok(());
        }
        if known.is_none() && !wanted.uid.is_empty() && names::uuid(&wanted.uid).is_none() {
            wrong.push(Violation {
                change: idx,
                ground: Ground::Invalid,
                field: "meta.uid".to_owned(),
                description: "not a hyphenated UUID".to_owned(),
            });
        }
        plan.expect(RecordName::Queue(spec.name.clone()), revision, expected)?;
        if let Some(above) = parent(&spec.name) {
            let revision = self.queue_revision(above);
            plan.conditions.entry(RecordName::Queue(above.to_owned())).or_insert(revision);
        }
        plan.queues.push(if known.is_some() { EditOutcome::Updated } else { EditOutcome::Created });
        plan.writes.push(Write::Queue(wanted));
        Ok(())
    }

    fn plan_class(
        &self,
        change: &ClassChange,
        expected: Revision,
        plan: &mut EditPlan,
    ) -> Result<(), EditRefusal> {
        let class = match change {
            RecordChange::Create(class) | RecordChange::Update(class) | RecordChange::Put(class) => class,
            RecordChange::Delete(name) => {
                plan.expect(RecordName::Class(name.clone()), self.class_revision(name), expected)?;
                plan.classes.push(EditOutcome::Deleted);
                plan.writes.push(Write::Gone(RecordName::Class(name.clone())));
                return Ok(());
            }
        };
        let known =
            self.queueing.classes.get(&class.name).filter(|_| !PriorityClasses::is_built_in(&class.name));
        let revision = self.class_revision(&class.name);
        if known == Some(class) {
            plan.classes.push(EditOutcome::Unchanged(revision));
            return Ok(());
        }
        plan.expect(RecordName::Class(class.name.clone()), revision, expected)?;
        plan.classes.push(if known.is_some() { EditOutcome::Updated } else { EditOutcome::Created });
        plan.writes.push(Write::Class(class.clone()));
        Ok(())
    }

    fn queue_revision(&self, path: &str) -> Revision {
        self.queueing.records.queues.revision(path)
    }

    fn class_revision(&self, name: &str) -> Revision {
        self.queueing.records.classes.revision(name)
    }
}

impl EditPlan {
    /// Notes the revision that a record to be written has, which must be the expected one if there is a record.
    fn expect(&mut self, name: RecordName, current: Revision, expected: Revision) -> Result<(), EditRefusal> {
        if expected > Revision(0) && current > Revision(0) && current != expected {
            let (RecordName::Queue(name)
            | RecordName::Class(name)
            | RecordName::Budget(name)
            | RecordName::Reservation(name)) = name;
            return Err(EditRefusal::Revision { name, current });
        }
        self.conditions.insert(name, current);
        Ok(())
    }
}

/// Violations of changes that stand elsewhere in what was asked for.
fn at(violations: Option<Vec<Violation>>, places: &[usize]) -> impl Iterator<Item = Violation> {
    violations
        .into_iter()
        .flatten()
        .map(|violation| Violation { change: places[violation.change], ..violation })
}
