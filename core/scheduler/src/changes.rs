//! Committed changes of records, and what each of them brings about.

use std::sync::Arc;

use godel_domain::{
    change::{Block, Change, Partition},
    ids::Revision,
    running_units::RunChange,
    time::Millis,
    unreadable::Subject,
};
use godel_rules::budget::{Identity, Wanted};

use super::Scheduler;

impl Scheduler {
    /// A committed change of a node, of rows, of holds, of the partition, of a queue, of a reservation, of a disruption
    /// budget, of a unit as far as budgets select it (see [`Self::selection`]), or of a priority class; other changes are
    /// ignored.
    pub fn on_change(&mut self, change: &Change, revision: Revision, time_ms: i64, now: Millis) {
        self.on_wall(time_ms);
        if is_of_nodes(change) {
            self.seen = self.seen.max(revision);
        }
        if matches!(change, Change::Rows(..) | Change::Hold(_) | Change::HoldDeleted(_)) {
            self.used_as_of = self.used_as_of.max(revision);
        }
        if !self.note_unreadable(change) {
            return;
        }
        if changes_nodes(change) {
            self.seek_anew(now);
        }
        let n_gains = self.cluster.budgets().n_gains();
        match change {
            Change::NodeSpec(spec) => self.cluster.put_spec(spec.clone(), revision),
            Change::NodeReport(report) => self.cluster.put_report(report.clone(), revision),
            Change::NodeGrant(node, allocatable) => {
                self.cluster.put_grant(*node, allocatable.clone(), revision)
            }
            Change::NodeUsage(usage) => self.cluster.put_usage(usage.clone(), revision),
            Change::NodeDeleted(node) => self.cluster.remove_node(*node),
            Change::Rows(unit, rows) => {
                let turns = self.cluster.apply_rows(*unit, rows, revision, time_ms);
                self.count_turns(*unit, &turns);
                self.seek_after(*unit, &turns, now);
                if let RunChange::Bind(bind) = rows {
                    self.leave_out_bound(*unit, Some(&bind.ordinals));
                }
            }
            Change::RowsLoaded(unit, rows) => {
                self.count_unit(*unit, -1);
                self.cluster.load_rows(*unit, rows.clone());
                self.count_unit(*unit, 1);
                self.leave_out_bound(*unit, None);
            }
            Change::UnitDeleted(unit) => {
                self.count_unit(*unit, -1);
                self.cluster.remove_unit(*unit);
                self.on_revoke(*unit);
            }
            Change::Hold(hold) => {
                self.cluster.put_hold(Arc::clone(hold));
                self.count_hold(hold);
                self.try_held(hold.unit);
                self.seek_after_hold(hold, now);
            }
            Change::HoldDeleted(id) => {
                let hold = self.cluster.remove_hold(*id);
                self.count_hold_out(*id);
                if let Some(hold) = hold {
                    self.requeue_after_hold(&hold);
                }
            }
            Change::Partition(partition) => self.on_partition(partition),
            Change::PartitionBlock(block) => self.put_block(block.clone()),
            Change::PriorityClass(class) => {
                self.classes.put(class.clone());
                self.follow_class(&class.name);
            }
            Change::PriorityClassDeleted(name) => {
                self.classes.remove(name);
                self.follow_class(name);
            }
            Change::Pause(pause) => {
                self.pauses.put(pause.clone());
                self.pause_seeks(&pause.scope, true);
            }
            Change::PauseDeleted(scope) => {
                self.pauses.remove(scope);
                self.pause_seeks(scope, false);
            }
            Change::Queue(record) => {
                if self.put_queue(record) {
                    self.wake_all();
                }
            }
            Change::QueueDeleted(path) => {
                if self.remove_queue(path) {
                    self.wake_all();
                }
            }
            Change::Budget(spec) => self.put_budget(spec, revision),
            Change::BudgetDeleted(name) => self.cluster.remove_budget(name),
            Change::Reservation(spec) => {
                self.cluster.put_reservation(Arc::clone(spec));
                // Others may own it now.
                self.wake_all();
            }
            Change::ReservationDeleted(name) => self.cluster.remove_reservation(name),
            Change::UnitSpec(spec) => {
                self.cluster.offer(spec.id, &Identity::of(spec), || Wanted::of(spec));
            }
            Change::Unreadable(unreadable) => self.go_without(&unreadable.subject),
            Change::Lease(_) | Change::UnreadableGone(_) => {}
        }
        if self.cluster.budgets().n_gains() > n_gains {
            self.seek_after_gain(now);
        }
    }

    /// What cannot be read is taken as if there were no such record.
    fn go_without(&mut self, subject: &Subject) {
        match subject {
            Subject::Reservation(name) => self.cluster.remove_reservation(name),
            Subject::Partition => self.on_partition(&Partition::default()),
            Subject::PartitionBlock(number) => self.put_block(Block { number: *number, slots: Vec::new() }),
            _ => {}
        }
    }

    fn put_block(&mut self, block: Block) {
        let moved = self.placer.view.put_block(block);
        self.note_moved(moved);
    }

    /// Follows what cannot be read. Whether the change is to be applied. Units that cannot be read are the dispatcher's and
    /// the binder's business: their records are followed here now and then only.
    fn note_unreadable(&mut self, change: &Change) -> bool {
        if let Change::Unreadable(unreadable) = change
            && matches!(unreadable.subject, Subject::Unit(_))
        {
            return false;
        }
        let noted = self.cluster.note_unreadable(change);
        if noted.is_news {
            // What was not looked for, or in vain, may be found now.
            self.wake_all();
            self.seek_again(Millis(0));
        }
        !noted.is_void
    }
}

/// Whether the binder follows it too: to wait until it has read any other revision would be to wait for its next bookmark.
fn is_of_nodes(change: &Change) -> bool {
    match change {
        Change::NodeSpec(_)
        | Change::NodeReport(_)
        | Change::NodeGrant(..)
        | Change::NodeUsage(_)
        | Change::NodeDeleted(_)
        | Change::Rows(..)
        | Change::RowsLoaded(..)
        | Change::UnitDeleted(_)
        | Change::Hold(_)
        | Change::HoldDeleted(_)
        | Change::Queue(_)
        | Change::QueueDeleted(_)
        | Change::Budget(_)
        | Change::BudgetDeleted(_)
        | Change::Reservation(_)
        | Change::ReservationDeleted(_) => true,
        Change::Lease(_)
        | Change::Partition(_)
        | Change::PartitionBlock(_)
        | Change::UnitSpec(_)
        | Change::PriorityClass(_)
        | Change::PriorityClassDeleted(_)
        | Change::Pause(_)
        | Change::PauseDeleted(_)
        | Change::Unreadable(_)
        | Change::UnreadableGone(_) => false,
    }
}

/// Whether a change may let somebody have others leave without anybody coming or going.
fn changes_nodes(change: &Change) -> bool {
    matches!(
        change,
        Change::NodeSpec(_)
            | Change::NodeReport(_)
            | Change::NodeGrant(..)
            | Change::NodeUsage(_)
            | Change::HoldDeleted(_)
            | Change::RowsLoaded(..)
    )
}
