//! The one state machine: every record and row, one revision counter, leases with their fences.
//!
//! It is changed only by transactions. The writer's copy validates and applies (`transact`); the
//! readers' copy, and recovery, replay what was committed ([`State::replay`]). Both go through the same
//! `apply`. Nothing here is soft: a restart rebuilds exactly this.

mod changes;
mod load;
mod rows;
mod transact;
mod undo;
mod window;

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, StoreId, UnitId};
use godel_domain::running_units::RunningUnit;
use godel_proto::{
    kinds::{WHOLE, is_of_node},
    v1,
};
use godel_wire::ops::ParsedOp;
use prost::Message as _;

use self::window::Windows;
use crate::{
    feed::Published,
    record::{Key, Record},
};

pub use changes::first_change_id;
pub(crate) use load::Counters;
pub use rows::RowsByUnit;
pub use transact::{Committed, RefusalReason, TxnRefusal};
pub(crate) use transact::{TxnOutcome, txn_bytes};
pub(crate) use window::Window;

/// Everything that is durable, in memory.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) store_id: StoreId,
    /// Goes into the next commit, while the store has no id.
    given_id: StoreId,
    /// What was committed up to here, Unix milliseconds, was in the store before the last restore or truncation.
    pub(crate) renewed_ms: i64,
    /// Epochs up to this one may have been given in a store before this one: none of them is in force.
    pub(crate) epoch_floor: u64,
    pub(crate) revision: Revision,
    pub(crate) commit_time_ms: i64,
    /// By position of the kind in [`WHOLE`].
    records: [BTreeMap<Key, Record>; WHOLE.len()],
    rows: RowsByUnit,
    /// The lease records, decoded.
    pub(crate) leases: BTreeMap<String, v1::LeaseRecord>,
    windows: Windows,
    pub(crate) last_unit_id: UnitId,
    next_node_id: NodeId,
    /// The newest of all NodeSpecs and NodeReports, or newer.
    nodes_changed: Revision,
    /// The newest of all NodeUsages, or newer.
    node_usages_changed: Revision,
    value_bytes: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            store_id: StoreId(0),
            given_id: StoreId(0),
            renewed_ms: i64::MIN,
            epoch_floor: 0,
            revision: Revision(0),
            commit_time_ms: 0,
            records: Default::default(),
            rows: RowsByUnit::default(),
            leases: BTreeMap::new(),
            windows: Windows::default(),
            last_unit_id: UnitId(0),
            next_node_id: NodeId(1),
            nodes_changed: Revision(0),
            node_usages_changed: Revision(0),
            value_bytes: 0,
        }
    }
}

fn kind_idx(kind: v1::Kind) -> Option<usize> {
    WHOLE.iter().position(|known| *known == kind)
}

impl State {
    /// Which store this is; 0 before the first transaction.
    pub fn store_id(&self) -> StoreId {
        self.store_id
    }

    /// Which store this is, or will be with the first transaction.
    pub fn coming_store_id(&self) -> StoreId {
        if self.store_id.0 == 0 { self.given_id } else { self.store_id }
    }

    /// The id that the store gets with its next transaction, if it has none.
    pub(crate) fn give_id(&mut self, id: StoreId) {
        self.given_id = id;
    }

    /// What was committed up to here, Unix milliseconds, was in the store before the last restore or truncation;
    /// [`i64::MIN`] if there was none.
    pub fn renewed_ms(&self) -> i64 {
        self.renewed_ms
    }

    /// Epochs of leases up to this one may have been given in a store before this one: none of them is in force, and
    /// the next one is above it.
    pub fn epoch_floor(&self) -> u64 {
        self.epoch_floor
    }

    /// Of the last transaction; 0 before the first.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Of the last transaction, Unix milliseconds.
    pub fn commit_time_ms(&self) -> i64 {
        self.commit_time_ms
    }

    /// Highest unit id ever used; 0 before the first.
    pub fn last_unit_id(&self) -> UnitId {
        self.last_unit_id
    }

    /// The id that the next new node gets: every id below was used or skipped.
    pub fn next_node_id(&self) -> NodeId {
        self.next_node_id
    }

    /// A record; never for [`v1::Kind::Rows`].
    pub fn record(&self, kind: v1::Kind, key: &Key) -> Option<&Record> {
        self.records[kind_idx(kind)?].get(key)
    }

    /// Records of `kind` in key order, from the first behind `after`.
    pub fn records(
        &self,
        kind: v1::Kind,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&Key, &Record)> + use<'_> {
        let range = kind_idx(kind).map(|idx| self.records[idx].range((behind(after), Bound::Unbounded)));
        range.into_iter().flatten()
    }

    /// Records of `kind` in reverse order of keys, from the last before `before`.
    pub fn records_back(
        &self,
        kind: v1::Kind,
        before: Option<&Key>,
    ) -> impl Iterator<Item = (&Key, &Record)> + use<'_> {
        let end = before.map_or(Bound::Unbounded, Bound::Excluded);
        let range = kind_idx(kind).map(|idx| self.records[idx].range((Bound::Unbounded, end)));
        range.into_iter().flatten().rev()
    }

    /// Number of records of `kind`; for rows, of units that have some.
    pub fn count(&self, kind: v1::Kind) -> usize {
        kind_idx(kind).map_or_else(
            || if kind == v1::Kind::Rows { self.rows.n_units() } else { 0 },
            |idx| self.records[idx].len(),
        )
    }

    /// The rows of all units.
    pub fn rows(&self) -> &RowsByUnit {
        &self.rows
    }

    /// A lease as last granted; its holder is empty once it was released or has expired.
    pub fn lease(&self, name: &str) -> Option<&v1::LeaseRecord> {
        self.leases.get(name)
    }

    /// All leases in order of name.
    pub fn leases(&self) -> impl Iterator<Item = &v1::LeaseRecord> {
        self.leases.values()
    }

    /// Bytes of all record values and rows.
    pub fn live_bytes(&self) -> u64 {
        self.value_bytes + self.rows.n_rows() * size_of::<RunningUnit>() as u64
    }

    /// Applies a committed transaction; the next one, or on recovery one that a snapshot has seen already.
    ///
    /// Whatever is older than what is there is skipped, so replaying onto a snapshot that was taken while
    /// transactions went on ends in the same state as replaying onto the state before them.
    pub fn replay(&mut self, published: &Published) {
        let commit = &published.commit;
        let revision = Revision(commit.revision);
        self.take_id(commit.store_id);
        for op in &published.changes {
            self.apply(op, revision, commit.commit_time_ms, None);
        }
        if let Some(writer) = &commit.writer {
            self.windows.remember(writer, Committed { revision, commit_time_ms: commit.commit_time_ms });
        }
        self.revision = self.revision.max(revision);
        self.commit_time_ms = self.commit_time_ms.max(commit.commit_time_ms);
    }

    fn take_id(&mut self, id: u64) {
        if id != 0 {
            self.store_id = StoreId(id);
        }
    }

    /// The one way in which anything changes.
    fn apply(&mut self, op: &ParsedOp, revision: Revision, time_ms: i64, undo: Option<&mut undo::Undo>) {
        match op {
            ParsedOp::Put { kind, key, value } => self.put(*kind, key, value, revision, time_ms, undo),
            ParsedOp::Delete { kind, key } => self.delete(*kind, key, revision, undo),
            ParsedOp::Rows { unit, change } => self.rows.apply(*unit, change, revision, time_ms, undo),
        }
    }

    fn put(
        &mut self,
        kind: v1::Kind,
        key: &Key,
        value: &Bytes,
        revision: Revision,
        time_ms: i64,
        mut undo: Option<&mut undo::Undo>,
    ) {
        let Some(idx) = kind_idx(kind) else { return };
        let record = match self.records[idx].get(key) {
            Some(before) if before.revision > revision => return,
            Some(before) => Record { revision, value: value.clone(), ..before.clone() },
            None => {
                Record { create_revision: revision, revision, create_time_ms: time_ms, value: value.clone() }
            }
        };
        match (kind, key) {
            (v1::Kind::Unit, Key::Id(id)) => self.last_unit_id = self.last_unit_id.max(UnitId(*id)),
            (v1::Kind::NodeSpec, Key::Id(id)) => {
                let next = u32::try_from(*id).unwrap_or(u32::MAX).saturating_add(1);
                self.next_node_id = self.next_node_id.max(NodeId(next));
            }
            (v1::Kind::TaskGroup, Key::Name(name)) => self.touch_unit(name, revision, undo.as_deref_mut()),
            _ => {}
        }
        self.set_record(idx, key, Some(record), undo);
    }

    /// A task group that was added to a unit is a part of it: the unit's record has the revision of its last change. Its
    /// value is not written again.
    fn touch_unit(&mut self, task_group: &str, revision: Revision, undo: Option<&mut undo::Undo>) {
        let (Some(idx), Some(unit)) = (kind_idx(v1::Kind::Unit), unit_of_group(task_group)) else { return };
        let unit = self.records[idx].get(&unit).map(|record| (unit, record.clone()));
        if let Some((unit, record)) = unit.filter(|(_, record)| record.revision < revision) {
            self.set_record(idx, &unit, Some(Record { revision, ..record }), undo);
        }
    }

    /// The task groups that were added to a unit, in order of their keys.
    pub fn task_groups(&self, unit: UnitId) -> impl Iterator<Item = &Record> {
        let [from, to] = group_keys(unit);
        let groups = kind_idx(v1::Kind::TaskGroup).map(|idx| self.records[idx].range(from..to));
        groups.into_iter().flatten().map(|(_, record)| record)
    }

    fn delete(&mut self, kind: v1::Kind, key: &Key, revision: Revision, mut undo: Option<&mut undo::Undo>) {
        // With a node go all records that are about it.
        let goes = |other: &v1::Kind| *other == kind || kind == v1::Kind::NodeSpec && is_of_node(*other);
        for idx in WHOLE.iter().filter(|other| goes(other)).filter_map(|kind| kind_idx(*kind)) {
            if self.records[idx].get(key).is_some_and(|record| record.revision <= revision) {
                self.set_record(idx, key, None, undo.as_deref_mut());
            }
        }
        match (kind, key) {
            (v1::Kind::Unit, Key::Id(id)) => {
                self.remove_task_groups(UnitId(*id), revision, undo.as_deref_mut());
                self.rows.remove(UnitId(*id), undo);
            }
            (v1::Kind::TaskGroup, Key::Name(name)) => self.touch_unit(name, revision, undo),
            _ => {}
        }
    }

    fn remove_task_groups(&mut self, unit: UnitId, revision: Revision, mut undo: Option<&mut undo::Undo>) {
        let Some(idx) = kind_idx(v1::Kind::TaskGroup) else { return };
        let [from, to] = group_keys(unit);
        let groups = self.records[idx].range(from..to);
        let groups: Vec<Key> =
            groups.filter(|(_, it)| it.revision <= revision).map(|(key, _)| key.clone()).collect();
        for key in groups {
            self.set_record(idx, &key, None, undo.as_deref_mut());
        }
    }

    fn note_node(&mut self, record: Option<&Record>) {
        let revision = record.map_or(Revision(0), |record| record.revision);
        self.nodes_changed = self.nodes_changed.max(revision);
    }

    /// Replaces or removes a record with everything derived from it.
    fn set_record(&mut self, idx: usize, key: &Key, record: Option<Record>, undo: Option<&mut undo::Undo>) {
        match (WHOLE[idx], key) {
            (v1::Kind::Lease, Key::Name(name)) => self.set_lease(name, record.as_ref()),
            (v1::Kind::NodeSpec, Key::Id(id)) => {
                self.rows.nodes.slot(NodeId(u32::try_from(*id).unwrap_or(0))).registered = record.is_some();
                self.note_node(record.as_ref());
            }
            (v1::Kind::NodeReport, _) => self.note_node(record.as_ref()),
            (v1::Kind::NodeUsage, _) => {
                let revision = record.as_ref().map_or(Revision(0), |record| record.revision);
                self.node_usages_changed = self.node_usages_changed.max(revision);
            }
            _ => {}
        }
        let after = record.as_ref().map_or(0, |record| record.value.len() as u64);
        let before = match record {
            Some(record) => self.records[idx].insert(key.clone(), record),
            None => self.records[idx].remove(key),
        };
        let before_bytes = before.as_ref().map_or(0, |record| record.value.len() as u64);
        self.value_bytes = self.value_bytes + after - before_bytes;
        if let Some(undo) = undo {
            undo.record(idx, key.clone(), before);
        }
    }

    fn set_lease(&mut self, name: &str, record: Option<&Record>) {
        match record.and_then(|record| v1::LeaseRecord::decode(record.value.clone()).ok()) {
            Some(lease) => self.leases.insert(name.to_owned(), lease),
            None => self.leases.remove(name),
        };
    }
}

/// The key of the unit that a task group was added to.
fn unit_of_group(task_group: &str) -> Option<Key> {
    Some(Key::Id(task_group.split_once('/')?.0.parse().ok()?))
}

/// Between these are the keys of the task groups that were added to a unit: `0` follows `/`.
fn group_keys(unit: UnitId) -> [Key; 2] {
    ['/', '0'].map(|end| Key::Name(format!("{unit}{end}")))
}

fn behind<K>(after: Option<&K>) -> Bound<&K> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

impl PartialEq for State {
    /// Equal in everything that a transaction or a reader can tell; rows that never changed count as absent.
    fn eq(&self, other: &Self) -> bool {
        let identity = |state: &Self| (state.store_id, state.renewed_ms, state.epoch_floor);
        identity(self) == identity(other)
            && self.revision == other.revision
            && self.commit_time_ms == other.commit_time_ms
            && self.records == other.records
            && self.leases == other.leases
            && self.windows == other.windows
            && self.last_unit_id == other.last_unit_id
            && self.next_node_id == other.next_node_id
            && self.rows == other.rows
    }
}

#[cfg(test)]
mod tests;
