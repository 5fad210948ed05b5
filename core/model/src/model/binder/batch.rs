//! One transaction of the binder under construction, and who asked for what.

use std::sync::Arc;

use godel_core_binder::{Accepted, Departure, RequeueWork};
use godel_domain::{
    change::Change,
    decision::Decision,
    hold::Hold,
    ids::{Epoch, HoldId, Revision},
    running_units::RunChange,
};

use super::super::store::Condition;

/// A decision and whose it is.
pub(super) struct Queued {
    pub(super) scheduler: usize,
    pub(super) epoch: Epoch,
    pub(super) decision: Decision,
    pub(super) priority: i32,
    pub(super) sequence: u64,
    pub(super) attempts: u32,
    pub(super) arrived: u64,
}

/// Something that a transaction does.
pub(super) enum Item {
    Decision(Queued, Box<Accepted>),
    Convert(Box<Accepted>),
    Reserve((String, Revision), Vec<Arc<Hold>>),
    Drop(Vec<(HoldId, Revision)>),
    Requeue(RequeueWork),
    Evict { job: u64, departure: Departure, attempts: u32 },
}

/// A transaction and the items that it consists of.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    pub(super) read: Revision,
    pub(super) ops: Vec<Change>,
    /// Of each operation the item.
    pub(super) op_items: Vec<usize>,
    pub(super) conditions: Vec<Condition>,
    /// Of each condition the items.
    pub(super) condition_items: Vec<Vec<usize>>,
}

impl Batch {
    pub(super) fn push(&mut self, item: Item) {
        let at = self.items.len();
        match &item {
            Item::Decision(_, accepted) | Item::Convert(accepted) => {
                self.need(Condition::Unit(accepted.unit, accepted.unit_revision), at);
                let binds = accepted.binds.iter();
                self.ops(at, binds.map(|bind| Change::Rows(accepted.unit, RunChange::Bind(bind.clone()))));
                let evictions = accepted.evictions.iter();
                self.ops(
                    at,
                    evictions.map(|(unit, evict)| Change::Rows(*unit, RunChange::Evict(evict.clone()))),
                );
                let holds = accepted.holds.iter().chain(&accepted.slots);
                self.ops(at, holds.map(|hold| Change::Hold(hold.clone())));
                self.ops(at, accepted.ends.iter().map(|(id, _)| Change::HoldDeleted(*id)));
                self.ops(at, accepted.gone.iter().map(|(id, _)| Change::HoldDeleted(*id)));
            }
            Item::Reserve((name, revision), holds) => {
                self.need(Condition::Reservation(name.clone(), *revision), at);
                self.ops(at, holds.iter().map(|hold| Change::Hold(hold.clone())));
            }
            Item::Drop(holds) => self.ops(at, holds.iter().map(|(id, _)| Change::HoldDeleted(*id))),
            Item::Requeue(work) => {
                self.need(Condition::Unit(work.unit, work.unit_revision), at);
                self.ops(at, [Change::Rows(work.unit, RunChange::Requeue(work.requeue.clone()))]);
            }
            Item::Evict { departure: Departure { unit, evict, budgets }, .. } => {
                let budgets = budgets.iter().cloned();
                budgets.for_each(|(name, revision)| self.need(Condition::Budget(name, revision), at));
                self.ops(at, [Change::Rows(*unit, RunChange::Evict(evict.clone()))]);
            }
        }
        self.items.push(item);
    }

    fn ops(&mut self, item: usize, ops: impl IntoIterator<Item = Change>) {
        for op in ops {
            self.ops.push(op);
            self.op_items.push(item);
        }
    }

    pub(super) fn need(&mut self, condition: Condition, item: usize) {
        match self.conditions.iter().position(|known| *known == condition) {
            Some(at) => self.condition_items[at].push(item),
            None => {
                self.conditions.push(condition);
                self.condition_items.push(vec![item]);
            }
        }
    }
}
