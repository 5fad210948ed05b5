//! What the dispatcher does not decide while records cannot be read: see [`godel_domain::unreadable`].
//!
//! A unit that must not be placed is set aside as if it were paused. What stands in `units` of a unit whose record cannot
//! be read is shown, and nothing follows from it.

use godel_domain::{
    change::{Block, Change, Partition},
    ids::{Revision, UnitId},
    pause::Scope,
    queue_spec::parent,
    time::Millis,
    unit::UnitSpec,
    unreadable::{Subject, Unreadable},
};
use godel_rules::frozen::Frozen;

use super::{Dispatcher, ListedRecords};

impl Dispatcher {
    /// Follows what of a change cannot be read. Call with every change, before it is applied; it is not to be applied where
    /// this says so.
    #[must_use]
    pub fn note_unreadable(&mut self, change: &Change, revision: Revision, now: Millis) -> bool {
        let noted = self.frozen.note(change);
        if let Change::Unreadable(unreadable) = change {
            self.freeze(unreadable, revision, now);
        }
        if noted.is_news {
            match change {
                Change::Unreadable(unreadable) => self.follow_frozen(&unreadable.subject, now),
                // Who may be placed that might not before.
                Change::Queue(_)
                | Change::QueueDeleted(_)
                | Change::PriorityClass(_)
                | Change::PriorityClassDeleted(_)
                | Change::Pause(_)
                | Change::PauseDeleted(_)
                | Change::Hold(_)
                | Change::HoldDeleted(_)
                | Change::UnitDeleted(_)
                | Change::RowsLoaded(..)
                | Change::UnreadableGone(_) => self.follow_pauses(now),
                // The unit itself, if anybody: what follows from its record follows next.
                Change::UnitSpec(_)
                | Change::Rows(..)
                | Change::NodeSpec(_)
                | Change::NodeReport(_)
                | Change::NodeGrant(..)
                | Change::NodeUsage(_)
                | Change::NodeDeleted(_)
                | Change::Lease(_)
                | Change::Partition(_)
                | Change::PartitionBlock(_)
                | Change::Budget(_)
                | Change::BudgetDeleted(_)
                | Change::Reservation(_)
                | Change::ReservationDeleted(_) => {}
            }
        }
        !noted.is_void
    }

    /// What cannot be read.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// After a list: what it did not show can be read now, or is gone.
    pub(super) fn forget_unreadable(&mut self, listed: &ListedRecords, now: Millis) {
        if self.frozen.retain(&listed.unreadable) {
            self.follow_pauses(now);
        }
    }

    fn freeze(&mut self, unreadable: &Unreadable, revision: Revision, now: Millis) {
        let subject = &unreadable.subject;
        self.note_listed(subject);
        match subject {
            // Whether it is there cannot be told: what runs on it stays.
            Subject::NodeReport(node) => self.losses.put(*node, true, now),
            // Nobody knows that it is to be left.
            Subject::NodeSpec(node) => self.departures.remove_node(*node),
            // Whoever held it takes it anew; what it had in hand is handed out again, and the binder settles conflicts.
            Subject::Lease(name) => self.forget_lease(name, now),
            // As without a record: everybody sees all nodes.
            Subject::Partition => self.on_partition(Partition::default(), revision),
            // The same: its nodes are nobody's until they are split anew.
            Subject::PartitionBlock(number) => {
                self.on_partition_block(Block { number: *number, slots: Vec::new() }, revision);
            }
            Subject::NodeGrant(_)
            | Subject::NodeUsage(_)
            | Subject::Unit(_)
            | Subject::Rows(_)
            | Subject::Queue(_)
            | Subject::PriorityClass(_)
            | Subject::Budget(_)
            | Subject::Reservation(_)
            | Subject::Pause(_)
            | Subject::Hold(_)
            | Subject::Unknown => {}
        }
    }

    /// It is there, whatever it is.
    fn note_listed(&mut self, subject: &Subject) {
        let Some(listed) = &mut self.listed else { return };
        listed.unreadable.insert(subject.clone());
        match subject {
            Subject::NodeReport(node) => drop(listed.nodes.insert(*node)),
            Subject::Unit(unit) => drop(listed.units.insert(*unit)),
            Subject::Queue(path) => drop(listed.queues.insert(path.clone())),
            Subject::PriorityClass(name) => drop(listed.classes.insert(name.clone())),
            Subject::Budget(name) => drop(listed.budgets.insert(name.clone())),
            Subject::Reservation(name) => drop(listed.reservations.insert(name.clone())),
            Subject::Hold(id) => drop(listed.holds.insert(*id)),
            Subject::Pause(scope) => drop(Scope::parse(scope).map(|scope| listed.pauses.insert(scope))),
            Subject::NodeSpec(_)
            | Subject::NodeGrant(_)
            | Subject::NodeUsage(_)
            | Subject::Rows(_)
            | Subject::Lease(_)
            | Subject::Partition
            | Subject::PartitionBlock(_)
            | Subject::Unknown => {}
        }
    }

    /// Units that something new about a record concerns.
    fn follow_frozen(&mut self, subject: &Subject, now: Millis) {
        match subject {
            Subject::Unit(unit) => self.refresh(*unit, now),
            Subject::Rows(_)
            | Subject::Queue(_)
            | Subject::PriorityClass(_)
            | Subject::Pause(_)
            | Subject::Hold(_)
            | Subject::Unknown => self.follow_pauses(now),
            Subject::NodeSpec(_)
            | Subject::NodeReport(_)
            | Subject::NodeGrant(_)
            | Subject::NodeUsage(_)
            | Subject::Budget(_)
            | Subject::Reservation(_)
            | Subject::Lease(_)
            | Subject::Partition
            | Subject::PartitionBlock(_) => {}
        }
    }

    /// Why a unit is not placed further: what cannot be read.
    pub(super) fn frozen_for(&self, unit: UnitId) -> Option<&Unreadable> {
        if self.frozen.is_empty() {
            return None;
        }
        let own = self.frozen.unit(unit);
        own.or_else(|| self.frozen_target(&self.units.get(&unit)?.spec))
    }

    /// Why nothing is admitted where a unit wants to go.
    pub(super) fn frozen_target(&self, spec: &UnitSpec) -> Option<&Unreadable> {
        if self.frozen.is_empty() {
            return None;
        }
        let class = self.frozen.class(&spec.priority_class);
        let is_in = |scope: &Scope| match scope {
            Scope::Queue(paused) => std::iter::successors(Some(spec.queue.as_str()), |path| parent(path))
                .any(|path| path == paused),
            Scope::All | Scope::Preemption | Scope::SubCluster(_) => false,
        };
        let queue_of = |unit: UnitId| self.units.get(&unit).map(|entry| entry.account.queue);
        let tree = self.quota().tree();
        let queue = || match tree.find(&spec.queue) {
            Some(queue) => self.frozen.queue(tree, queue, queue_of),
            None => self.frozen.get(&Subject::Queue(spec.queue.clone())),
        };
        class.or_else(|| self.frozen.pause(is_in)).or_else(queue)
    }
}
