//! The cluster as the rescheduler follows it: what schedulers know of nodes and rows, and the records of units.
//!
//! Plans are made on a copy ([`crate::snapshot`]), so that following goes on meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{IdMap, NodeId, Revision, RunningUnitId, StoreId, UnitId},
    time::Millis,
};
use godel_cluster::{AffinityTerms, Cluster, follow_record};
use godel_core_rescheduler::{
    KeptReason, MovementWorld, NodeUseTable, RefusedMoves, ReplicaView, UsageTable,
};
use godel_domain::{
    change::{Change, Commit},
    demand::Pool,
    lifecycle::Counts,
    queue_spec::QueueSpec,
    records::{Record, RecordKey, RecordKind},
    requested_move::evicted_by,
    running_units::{EvictionReason, RunningUnit, RunningUnits},
    surge::Surge,
    unit::UnitRecord,
};
use godel_rules::{
    budget::{UnitIdentity, WantedOrdinals},
    drain,
};

use crate::{
    checkpoints::{Checkpoints, Reported},
    snapshot::kept_by_unit,
};

/// Records that are followed, rows last.
pub const FOLLOWS: &[RecordKind] = &[
    RecordKind::Queue,
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::NodeAllocatable,
    RecordKind::NodeUsage,
    RecordKind::Budget,
    RecordKind::Reservation,
    RecordKind::Unit,
    RecordKind::Hold,
    RecordKind::Rows,
];

/// What became of a report of checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointCounts {
    /// Replicas of which it is the last checkpoint that is known.
    pub n_taken: u32,
    /// Those that have begun since.
    pub n_began_later: u32,
    /// Those of which a later one is known.
    pub n_known_later: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ClusterPicture {
    pub(crate) cluster: Cluster,
    pub(crate) units: IdMap<UnitId, Arc<UnitRecord>>,
    /// By path.
    pub(crate) queues: BTreeMap<String, Arc<QueueSpec>>,
    by_name: BTreeMap<(String, String), UnitId>,
    /// Units that wait for a place.
    waiting: BTreeSet<UnitId>,
    /// Units of which that has to be looked at again.
    changed: BTreeSet<UnitId>,
    /// The store that is read.
    pub(crate) store: StoreId,
    /// Read up to here; `None` while a list is read.
    pub(crate) read: Option<Revision>,
    /// What running units use, as a percentile of what was measured of late.
    pub(crate) usage: Arc<UsageTable>,
    /// When running units saved their work last, as they have reported it.
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// What others than running units use of nodes, by name, as a percentile of what was measured of late.
    pub(crate) other_use: Arc<NodeUseTable>,
    /// What the binder refused of late.
    pub(crate) refused: Arc<RefusedMoves>,
    /// The time of the last look at the clock, Unix milliseconds.
    pub(crate) now_ms: i64,
}

impl ClusterPicture {
    pub(crate) fn new(sub_cluster_key: &str) -> Self {
        let mut cluster = Cluster::new();
        cluster.nodes_mut().set_sub_cluster_key(sub_cluster_key);
        Self { cluster, ..Self::default() }
    }

    /// A list follows. Which of those that have reported checkpoints have ended meanwhile is not known: they report again.
    pub(crate) fn reset(&mut self, store: StoreId, sub_cluster_key: &str) {
        let (usage, other_use) = (Arc::clone(&self.usage), Arc::clone(&self.other_use));
        *self = Self { store, usage, other_use, now_ms: self.now_ms, ..Self::new(sub_cluster_key) };
    }

    /// Returns nodes, rows and holds.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the store that is read.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Returns up to where everything is read; `None`: a list is being read.
    pub fn read(&self) -> Option<Revision> {
        self.read
    }

    /// Returns of how many running units checkpoints are known.
    pub fn n_checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    /// A list is read, as of a revision.
    pub fn on_synced(&mut self, revision: Revision) {
        self.read = self.read.max(Some(revision));
    }

    /// Takes what running units use, and what others use of nodes.
    pub fn set_usage(&mut self, usage: UsageTable, others: NodeUseTable) {
        (self.usage, self.other_use) = (Arc::new(usage), Arc::new(others));
    }

    /// Takes the time at which replicas of a unit saved their work, for those that run: this one, or those of which `is_meant` is true.
    pub fn report_checkpoints(
        &mut self,
        unit: UnitId,
        only: Option<u32>,
        is_meant: impl Fn(u32) -> bool,
        at: Millis,
    ) -> CheckpointCounts {
        let mut counts = CheckpointCounts::default();
        let Some(rows) = self.cluster.rows().of(unit) else { return counts };
        let checkpoints = Arc::make_mut(&mut self.checkpoints);
        let mut report = |ordinal: u32, row: &RunningUnit| {
            let id = RunningUnitId::new(unit, ordinal, row.incarnation);
            match checkpoints.report(id, began_at(rows, ordinal, row), at) {
                Reported::Taken => counts.n_taken += 1,
                Reported::BeganLater => counts.n_began_later += 1,
                Reported::KnownLater => counts.n_known_later += 1,
            }
        };
        match only {
            Some(ordinal) => {
                let row = rows.row(ordinal);
                if row.phase.is_live() {
                    report(ordinal, &row);
                }
            }
            None => rows
                .live()
                .filter(|(ordinal, _)| is_meant(*ordinal))
                .for_each(|(ordinal, row)| report(ordinal, row)),
        }
        counts
    }

    /// Takes one commit.
    pub fn apply(&mut self, commit: &Commit) {
        for change in &commit.changes {
            self.load(change, commit.revision, commit.time_ms);
        }
        self.read = self.read.max(Some(commit.revision));
    }

    /// Takes one record of a list, or one change.
    pub fn load(&mut self, change: &Change, revision: Revision, time_ms: i64) {
        if !matches!(change, Change::Unreadable(unreadable) if matches!(unreadable.key, RecordKey::Unit(_)))
            && self.cluster.nodes_mut().note_unreadable(change).is_void
        {
            return;
        }
        match change {
            Change::Put(Record::Queue(spec)) => {
                self.queues.insert(spec.name.clone(), Arc::clone(spec));
            }
            Change::Gone(RecordKey::Queue(path)) => {
                self.queues.remove(path);
            }
            Change::Put(Record::Budget(spec)) => {
                let counts_others = self.cluster.taken_mut().put_budget(Arc::clone(spec), revision);
                if counts_others {
                    self.offer_all();
                }
            }
            Change::Put(Record::Unit(record)) => self.put_unit(record),
            Change::Gone(RecordKey::Unit(unit)) => self.remove_unit(*unit),
            Change::Rows(unit, change) => {
                self.cluster.apply_rows(*unit, change, revision, time_ms);
                self.changed.insert(*unit);
            }
            Change::RowsLoaded(unit, rows) => {
                self.cluster.load_rows(*unit, rows.clone());
                self.changed.insert(*unit);
            }
            _ => follow_record(&mut self.cluster, change, revision),
        }
    }

    fn put_unit(&mut self, record: &Arc<UnitRecord>) {
        let spec = &record.spec;
        let name = (spec.namespace.clone(), spec.name.clone());
        self.by_name.insert(name, record.id);
        self.units.insert(record.id, Arc::clone(record));
        self.changed.insert(record.id);
        if spec.has_terms() {
            let groups = record.group_topologies();
            if self.cluster.units_mut().put_terms(
                record.id,
                &UnitIdentity::of(spec),
                &AffinityTerms::of(spec, &groups),
            ) {
                self.offer_all();
            }
        }
        if spec.is_daemon() {
            self.cluster.taken_mut().put_daemon(record.id);
        }
        if !self.cluster.taken().budgets().is_empty() || self.cluster.domains().is_active() {
            self.cluster.units_mut().offer(record.id, &UnitIdentity::of(spec), || WantedOrdinals::of(record));
        }
    }

    fn remove_unit(&mut self, unit: UnitId) {
        if let Some(record) = self.units.remove(&unit) {
            let name = (record.spec.namespace.clone(), record.spec.name.clone());
            // Another one may have the name by now.
            if self.by_name.get(&name) == Some(&unit) {
                self.by_name.remove(&name);
            }
        }
        self.cluster.units_mut().remove(unit);
        self.forget_ended(unit);
        self.waiting.remove(&unit);
        self.changed.remove(&unit);
    }

    /// Budgets, or terms of units, select others than before.
    fn offer_all(&mut self) {
        let Self { cluster, units, .. } = self;
        for record in units.values() {
            cluster
                .units_mut()
                .offer(record.id, &UnitIdentity::of(&record.spec), || WantedOrdinals::of(record));
        }
    }

    /// Returns a unit by its name.
    pub fn unit_named(&self, namespace: &str, name: &str) -> Option<&Arc<UnitRecord>> {
        let id = self.by_name.get(&(namespace.to_owned(), name.to_owned()))?;
        self.units.get(id)
    }

    /// Whether a unit waits for a place, as of the last count.
    pub fn waits(&self, unit: UnitId) -> bool {
        self.waiting.contains(&unit)
    }

    /// Returns the gangs among them for which room can be made. A unit of one replica is a gang of one.
    pub(crate) fn waiting_gangs(&self) -> BTreeSet<UnitId> {
        let is_gang = |unit: &&UnitId| {
            self.units.get(unit).is_some_and(|record| {
                let spec = &record.spec;
                let is_whole = spec.min_member > 1 || spec.replicas() == 1;
                is_whole && !spec.is_daemon() && spec.pool != Pool::BestEffort
            })
        };
        self.waiting.iter().filter(is_gang).copied().collect()
    }

    /// Forgets the checkpoints of running units that have ended.
    fn forget_ended(&mut self, unit: UnitId) {
        if !self.checkpoints.has(unit) {
            return;
        }
        let rows = self.cluster.rows().of(unit);
        Arc::make_mut(&mut self.checkpoints).retain(unit, |id| {
            let row = rows.map(|rows| rows.row(id.replica.ordinal)).unwrap_or_default();
            row.phase.is_live() && row.incarnation == id.replica.incarnation
        });
    }

    /// Counts the units that wait for a place, and forgets what was reported of running units that have ended. `O(rows of the units that have
    /// changed)`.
    pub fn count_waiting(&mut self) -> u64 {
        let nothing = RunningUnits::default();
        for unit in std::mem::take(&mut self.changed) {
            self.forget_ended(unit);
            let waits = self.units.get(&unit).is_some_and(|record| {
                let rows = self.cluster.rows().of(unit).unwrap_or(&nothing);
                Counts::of(record, rows).pending > 0
            });
            if waits {
                self.waiting.insert(unit);
            } else {
                self.waiting.remove(&unit);
            }
        }
        u64::try_from(self.waiting.len()).unwrap_or(u64::MAX)
    }
}

/// Returns when a running unit began to run, or as long as that is not known, when it was bound.
pub(crate) fn began_at(rows: &RunningUnits, ordinal: u32, row: &RunningUnit) -> Millis {
    let started_ms = rows.end(ordinal).started_ms;
    let began_ms = if started_ms > 0 { started_ms } else { row.bound_time_ms };
    Millis(u64::try_from(began_ms).unwrap_or(0))
}

impl MovementWorld for ClusterPicture {
    fn replica(&self, unit: UnitId, ordinal: u32) -> Option<ReplicaView> {
        let record = self.units.get(&unit)?;
        let row = self.cluster.rows().of(unit).map(|rows| rows.row(ordinal)).unwrap_or_default();
        ReplicaView::of(record, ordinal, row)
    }

    fn held_ordinal(&self, movement: &str, from: RunningUnitId) -> Option<u32> {
        let of_move =
            self.cluster.holds().of(from.unit).into_iter().filter_map(|id| self.cluster.holds().get(id));
        let held = of_move.into_iter().find(|hold| {
            hold.movement.as_ref().is_some_and(|target| &*target.movement == movement && target.from == from)
        });
        if let Some(hold) = held {
            return hold.ordinals.first().copied();
        }
        // Who replaces it may have been placed by now.
        let mut surges = self.units.get(&from.unit)?.status.surges.iter();
        let is_of_move =
            |surge: &&Surge| surge.replaces == from.replica.ordinal && surge.movement == movement;
        surges.find(is_of_move).map(|surge| surge.ordinal)
    }

    fn was_moved(&self, movement: &str, from: RunningUnitId) -> bool {
        let rows = self.cluster.rows().of(from.unit);
        let last = rows.and_then(|rows| rows.last_eviction(from.replica.ordinal));
        last.is_some_and(|last| last.replica == from.replica && *last.by == evicted_by(movement))
    }

    fn node_name(&self, node: NodeId) -> String {
        self.cluster.nodes().spec(node).map_or_else(|| format!("node {node}"), |spec| spec.name.clone())
    }

    fn may_leave(&self, running: RunningUnitId, missing: &[u32]) -> Result<(), String> {
        let (Some(record), Some(rows)) =
            (self.units.get(&running.unit), self.cluster.rows().of(running.unit))
        else {
            return Ok(());
        };
        // What its unit has starts first: nothing is missing.
        if record.spec.max_surge > 0 {
            return Ok(());
        }
        let mut left = None;
        if !missing.is_empty() {
            let left: &mut RunningUnits = left.insert(rows.clone());
            for ordinal in missing {
                if let Some(row) = left.rows.get_mut(*ordinal) {
                    row.eviction.get_or_insert(EvictionReason::Rescheduled);
                }
            }
        }
        let rows = left.as_ref().unwrap_or(rows);
        match drain::spared(record, rows, vec![running.replica]) {
            Ok(_) => Ok(()),
            Err(block) => Err(block.to_string()),
        }
    }

    fn keeps(&self, running: RunningUnitId) -> Option<KeptReason> {
        let (record, rows) = (self.units.get(&running.unit)?, self.cluster.rows().of(running.unit)?);
        kept_by_unit(record, rows, running.replica.ordinal, self.now_ms)
    }
}

#[cfg(test)]
mod tests {
    use godel_testkit::check_follows;

    use super::*;

    #[test]
    fn the_picture_follows_what_is_declared() {
        check_follows(
            FOLLOWS,
            || ClusterPicture::new(""),
            |picture, change| picture.load(change, Revision(1), 1),
        );
    }
}
