//! What the store says has changed.

use std::sync::atomic::Ordering;

use godel_domain::{
    change::{Change as StoreChange, Commit, Partition},
    ids::{Revision, UnitId},
    running_units::RunChange,
    time::Millis,
    unreadable::Subject,
};
use godel_kit::informer::FollowEvent;

use super::DispatcherLeader;

impl DispatcherLeader<'_> {
    pub(super) fn on_follow(&mut self, event: FollowEvent) {
        let now = self.now();
        match event {
            FollowEvent::Reset { store } => {
                if !self.handle.store.may_be(store) {
                    // The lease of this term is over too: the next one begins with nothing.
                    tracing::warn!(
                        before = self.handle.store.0,
                        store = store.0,
                        "the store is another one, the term ends"
                    );
                    self.pipeline.fence().revoke();
                }
                self.core.on_reset();
            }
            FollowEvent::Loaded(records) => {
                for record in records {
                    let created = (record.create_revision, record.create_time_ms);
                    self.on_change(record.change, record.revision, created, record.create_time_ms, now);
                }
            }
            FollowEvent::Synced { revision } => self.on_read(revision, now),
            FollowEvent::Committed(Commit { revision, time_ms, changes }) => {
                for change in changes {
                    self.on_change(change, revision, (revision, time_ms), time_ms, now);
                }
                self.on_read(revision, now);
            }
        }
    }

    /// Everything up to `revision` has been read.
    fn on_read(&mut self, revision: Revision, now: Millis) {
        if revision < self.since {
            return;
        }
        let first = !self.core.is_loaded();
        self.handle.read.store(revision.0, Ordering::Relaxed);
        if first || self.core.is_listing() {
            self.core.on_synced(revision, now);
            self.watches.begin(revision);
        } else {
            self.core.on_revision(revision);
        }
        if first {
            tracing::info!(revision = revision.0, units = self.core.n_units(), "read, dispatching");
            self.publish.send_replace(Some(self.handle.clone()));
        }
    }

    fn on_change(
        &mut self,
        change: StoreChange,
        revision: Revision,
        created: (Revision, i64),
        time_ms: i64,
        now: Millis,
    ) {
        if !self.core.note_unreadable(&change, revision, now) {
            return;
        }
        match change {
            StoreChange::NodeSpec(spec) => self.core.on_node_spec(&spec, now),
            StoreChange::NodeReport(report) => self.core.on_node_report(&report, now),
            StoreChange::UnitSpec(spec) => {
                let unit = spec.id;
                self.core.on_unit(spec, revision, created, now);
                self.watches.touch(&self.core, unit);
            }
            StoreChange::Lease(lease) => self.core.on_lease(&lease, now),
            StoreChange::Partition(partition) => self.on_partition(partition, revision),
            StoreChange::PartitionBlock(block) => self.core.on_partition_block(block, revision),
            StoreChange::Queue(queue) => self.core.on_queue(queue, revision, created),
            StoreChange::QueueDeleted(path) => self.core.on_queue_deleted(&path),
            StoreChange::PriorityClass(class) => self.core.on_priority_class(class, revision, created),
            StoreChange::PriorityClassDeleted(name) => self.core.on_priority_class_deleted(&name),
            StoreChange::Budget(budget) => self.core.on_budget(budget, revision, created),
            StoreChange::BudgetDeleted(name) => self.core.on_budget_deleted(&name),
            StoreChange::Reservation(spec) => self.core.on_reservation(spec, revision, created),
            StoreChange::ReservationDeleted(name) => self.core.on_reservation_deleted(&name),
            StoreChange::Hold(hold) => {
                let unit = self.core.on_hold(hold, now);
                self.watches.touch(&self.core, unit);
            }
            StoreChange::HoldDeleted(id) => {
                if let Some(unit) = self.core.on_hold_deleted(id, now) {
                    self.watches.touch(&self.core, unit);
                }
            }
            StoreChange::Pause(pause) => self.core.on_pause(pause, now),
            StoreChange::PauseDeleted(scope) => self.core.on_pause_deleted(&scope, now),
            StoreChange::NodeDeleted(node) => self.core.on_node_deleted(node, now),
            StoreChange::UnitDeleted(unit) => self.forget(unit, revision, now),
            StoreChange::Rows(unit, change) => {
                self.core.on_rows(unit, &change, revision, time_ms, now);
                if matches!(change, RunChange::Bind(_)) {
                    self.overload.release(unit);
                }
                self.watches.touch(&self.core, unit);
            }
            StoreChange::RowsLoaded(unit, rows) => {
                self.core.on_rows_loaded(unit, rows, now);
                self.watches.touch(&self.core, unit);
            }
            // Allocatable in force is the schedulers' and the binder's business. What cannot be read was noted above.
            StoreChange::NodeGrant(..) | StoreChange::NodeUsage(_) | StoreChange::UnreadableGone(_) => {}
            StoreChange::Unreadable(unreadable) => {
                if let Subject::Unit(unit) | Subject::Rows(unit) = unreadable.subject {
                    self.watches.touch(&self.core, unit);
                }
            }
        }
    }

    pub(super) fn forget(&mut self, unit: UnitId, revision: Revision, now: Millis) {
        self.watches.gone(&self.core, unit, revision);
        self.core.on_unit_deleted(unit, now);
        self.overload.release(unit);
        self.encoded.forget(unit);
    }

    /// What a split changes is durable.
    pub(super) fn on_partition_written(&mut self, changes: Vec<StoreChange>, revision: Revision) {
        let head = changes.iter().find_map(|change| match change {
            StoreChange::Partition(partition) => Some(partition),
            _ => None,
        });
        if let Some(partition) = head {
            self.log_partition(partition, revision);
        }
        self.core.on_partition_written(changes, revision);
    }

    fn on_partition(&mut self, partition: Partition, revision: Revision) {
        self.log_partition(&partition, revision);
        self.core.on_partition(partition, revision);
    }

    fn log_partition(&self, partition: &Partition, revision: Revision) {
        let before = self.core.partition().0;
        let is_news = (before.mode, before.by_hand) != (partition.mode, partition.by_hand);
        if is_news && revision > self.core.partition().1 {
            tracing::info!(
                mode = partition.mode.name(),
                by_hand = partition.by_hand,
                reason = partition.reason,
                "the mode in which nodes are split changed"
            );
        }
    }
}
