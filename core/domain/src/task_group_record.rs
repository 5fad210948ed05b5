//! Task groups that were added to a unit after its submission: records of their own, and the unit as all of them make it.
//!
//! What is committed is the unit's own record, which has the groups of its submission, and a [`TaskGroupRecord`] for each
//! group that was added. Deciders see neither apart: [`UnitJoin`] stands between what is committed and a follower, and makes
//! of both the one [`UnitRecord`] that has every group. It keeps only units to which groups were added, and nothing that
//! survives a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    change::Change,
    records::{Record, RecordKey, RecordKind},
    unit::{TaskGroup, UnitRecord},
    unreadable::Unreadable,
};
use godel_base::ids::{IdMap, UnitId};

/// Task groups of a unit, those of its submission and those added together.
pub const TASK_GROUPS_MAX: usize = 1_024;

/// The key of a task group that was added to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskGroupKey {
    /// The unit.
    pub unit: UnitId,
    /// The position of the group among all task groups of the unit.
    pub idx: u16,
}

/// A task group that was added to a unit, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGroupRecord {
    /// Its unit.
    pub unit: UnitId,
    /// Its position among all task groups of the unit.
    pub idx: u16,
    /// The group.
    pub group: TaskGroup,
    /// Its ordinals, as in [`crate::unit::UnitStatus::ordinals`].
    pub ordinals: Vec<(u32, u32)>,
}

/// What is known of one record.
#[derive(Clone, Debug)]
enum Stored<T> {
    Read(Arc<T>),
    Unreadable(Box<Unreadable>),
}

/// A unit to which groups were added.
#[derive(Clone, Debug, Default)]
struct JoinedUnit {
    /// `None` until it was seen: a list shows groups before their units.
    own: Option<Stored<UnitRecord>>,
    added: BTreeMap<u16, Stored<TaskGroupRecord>>,
}

/// Makes whole units of the records that are committed.
#[derive(Clone, Debug, Default)]
pub struct UnitJoin {
    units: IdMap<UnitId, JoinedUnit>,
}

impl UnitJoin {
    /// A list follows.
    pub fn reset(&mut self) {
        self.units.clear();
    }

    /// Returns the changes of one commit, or one listed record, as a follower sees them: a unit of which some record changes
    /// comes once, whole, where the first of these stands. Nothing comes of a group whose unit was not seen yet. A unit of
    /// which one record cannot be read cannot be read.
    ///
    /// Costs one comparison per change while no unit has added groups, and the number of groups of each that changes.
    pub fn join(&mut self, changes: Vec<Change>) -> Vec<Change> {
        if self.units.is_empty() && !changes.iter().any(begins) {
            return changes;
        }
        let mut done = BTreeSet::new();
        let mut joined = Vec::with_capacity(changes.len());
        let concerned: Vec<Option<UnitId>> = changes.iter().map(|change| self.note(change)).collect();
        for (change, unit) in changes.into_iter().zip(concerned) {
            match unit {
                None => joined.push(change),
                Some(unit) if done.insert(unit) => {
                    joined.extend(self.units.get(&unit).and_then(|known| known.whole(unit)));
                }
                Some(_) => {}
            }
        }
        joined
    }

    /// Follows one change. Returns the unit that takes its place.
    fn note(&mut self, change: &Change) -> Option<UnitId> {
        match change {
            Change::Put(record) => self.note_record(record),
            Change::Gone(key) => self.note_gone(key),
            Change::Unreadable(unreadable) => self.note_unreadable(unreadable),
            Change::Rows(..) | Change::RowsLoaded(..) => None,
        }
    }

    fn note_record(&mut self, record: &Record) -> Option<UnitId> {
        let unit = record.unit()?;
        if let Record::TaskGroup(record) = record {
            let known = self.units.entry(unit).or_default();
            known.added.insert(record.idx, Stored::Read(Arc::clone(record)));
            return Some(unit);
        }
        let Record::Unit(record) = record else { return None };
        if record.status.own_groups == 0 && !self.units.contains_key(&unit) {
            return None;
        }
        self.units.entry(unit).or_default().own = Some(Stored::Read(Arc::clone(record)));
        Some(unit)
    }

    fn note_gone(&mut self, key: &RecordKey) -> Option<UnitId> {
        if let RecordKey::TaskGroup(TaskGroupKey { unit, idx }) = key {
            self.units.get_mut(unit)?.added.remove(idx);
            return Some(*unit);
        }
        if let RecordKey::Unit(unit) = key {
            self.units.remove(unit);
        }
        None
    }

    fn note_unreadable(&mut self, unreadable: &Unreadable) -> Option<UnitId> {
        let key = &unreadable.key;
        let unit = key.unit()?;
        if let RecordKey::TaskGroup(TaskGroupKey { idx, .. }) = key {
            let known = self.units.entry(unit).or_default();
            known.added.insert(*idx, Stored::Unreadable(Box::new(unreadable.clone())));
        } else if key.kind() == Some(RecordKind::Unit) {
            self.units.get_mut(&unit)?.own = Some(Stored::Unreadable(Box::new(unreadable.clone())));
        } else {
            return None;
        }
        Some(unit)
    }
}

/// Whether a change concerns a unit with added groups, of which none was seen before.
fn begins(change: &Change) -> bool {
    match change {
        Change::Put(Record::Unit(record)) => record.status.own_groups > 0,
        Change::Unreadable(unreadable) => unreadable.key.kind() == Some(RecordKind::TaskGroup),
        _ => matches!(change, Change::Put(_)) && change.kind() == Some(RecordKind::TaskGroup),
    }
}

impl JoinedUnit {
    /// The unit as a follower sees it.
    fn whole(&self, unit: UnitId) -> Option<Change> {
        let own = match self.own.as_ref()? {
            Stored::Read(own) => own,
            Stored::Unreadable(unreadable) => return Some(Change::Unreadable(unreadable.clone())),
        };
        if self.added.is_empty() {
            return Some(Change::Put(Record::Unit(Arc::clone(own))));
        }
        let broken = |idx: u16, field: &str, problem: &str| {
            let field = format!("task_groups[{idx}]{}{field}", if field.is_empty() { "" } else { "." });
            let unreadable = Unreadable {
                name: Some((own.spec.namespace.clone(), own.spec.name.clone())),
                ..Unreadable::new(RecordKey::Unit(unit), field, problem)
            };
            Some(Change::Unreadable(Box::new(unreadable)))
        };
        let mut whole = own.own();
        let first = u16::try_from(whole.spec.task_groups.len()).unwrap_or(u16::MAX);
        for (wanted, (idx, added)) in (first..).zip(&self.added) {
            match added {
                _ if wanted != *idx => return broken(wanted, "", "has no record"),
                Stored::Unreadable(bad) => return broken(*idx, &bad.field, &bad.problem),
                Stored::Read(added) => {
                    whole.spec.task_groups.push(added.group.clone());
                    whole.status.ordinals.push(added.ordinals.clone());
                }
            }
        }
        Some(Change::Put(Record::Unit(Arc::new(whole))))
    }
}

impl UnitRecord {
    /// The unit's own record: what of it is stored without the groups that were added.
    pub fn own(&self) -> Self {
        let mut own = self.clone();
        own.spec.task_groups.truncate(self.n_own_groups());
        own.status.ordinals.truncate(self.n_own_groups());
        own
    }

    /// The records of the groups that were added and that differ from those of `before`.
    pub fn added_since(&self, before: &Self) -> impl Iterator<Item = TaskGroupRecord> {
        let all = self.spec.task_groups.iter().zip(&self.status.ordinals).enumerate();
        all.skip(self.n_own_groups()).filter_map(|(idx, (group, ordinals))| {
            let known = (before.spec.task_groups.get(idx), before.status.ordinals.get(idx));
            let is_same = idx >= before.n_own_groups() && known == (Some(group), Some(ordinals));
            let record = TaskGroupRecord {
                unit: self.id,
                idx: u16::try_from(idx).ok()?,
                group: group.clone(),
                ordinals: ordinals.clone(),
            };
            (!is_same).then_some(record)
        })
    }
}
