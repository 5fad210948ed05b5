//! One transaction under construction: operations, preconditions without repetitions, and who asked for what.

use std::sync::Arc;

use bytes::Bytes;
use godel_core_binder::{Accepted, Departure, RequeueWork};
use godel_domain::{
    hold::{GangTurn, Hold},
    ids::{HoldId, IdSet, Revision, UnitId},
    running_units::RunChange,
};
use godel_proto::v1;
use godel_queueing::QueueIdx;
use godel_wire::to_proto;
use prost::Message as _;
use rustc_hash::FxHashMap;

use super::{jobs::JobId, queue::Queued};

/// Something that a transaction does.
#[derive(Debug)]
pub(crate) enum Item {
    /// Binds what a decision asked for.
    Decision { queued: Box<Queued>, accepted: Box<Accepted> },
    /// Binds what was held.
    Convert(Box<Accepted>),
    /// Holds slots of a reservation, by the revision of its record.
    Reserve { reservation: (String, Revision), holds: Vec<Arc<Hold>> },
    /// Gives holds up.
    Drop { holds: Vec<(HoldId, Revision)>, why: &'static str },
    /// Running units come back.
    Requeue(RequeueWork),
    /// Running units begin to leave.
    Evict { job: JobId, departure: Box<Departure>, attempts: u32 },
}

impl Item {
    /// Running units concerned.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Decision { accepted, .. } | Self::Convert(accepted) => {
                let held = accepted.holds.iter().map(|hold| hold.ordinals.len());
                accepted.binds.iter().map(|bind| bind.ordinals.len()).chain(held).sum()
            }
            Self::Reserve { holds, .. } => holds.len(),
            Self::Drop { holds, .. } => holds.len(),
            Self::Requeue(work) => work.requeue.ordinals.len(),
            Self::Evict { departure, .. } => departure.evict.ordinals.len(),
        }
    }

    /// Disruption budgets that it rests on, with the revisions of their records.
    fn budgets(&self) -> &[(String, Revision)] {
        match self {
            Self::Decision { accepted, .. } | Self::Convert(accepted) => &accepted.budgets,
            Self::Evict { departure, .. } => &departure.budgets,
            Self::Reserve { .. } | Self::Drop { .. } | Self::Requeue(_) => &[],
        }
    }
}

/// A transaction and the items it consists of.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<Item>,
    pub(crate) ops: Vec<Bytes>,
    pub(crate) preconditions: Vec<v1::Precondition>,
    /// Turns of gangs that end with it, and why.
    pub(crate) turn_ends: Vec<(UnitId, GangTurn, &'static str)>,
    /// What each precondition is about: these stay when the preconditions are sent.
    needed: Vec<Needed>,
    /// Index of the item, per operation.
    op_items: Vec<usize>,
    units: IdSet<UnitId>,
    /// Of each queue with units in it the preconditions that it and those above it have.
    queues: FxHashMap<QueueIdx, Vec<usize>>,
    /// The precondition of each queue that has one.
    levels: FxHashMap<QueueIdx, usize>,
    /// The precondition of each disruption budget that has one.
    budgets: FxHashMap<String, usize>,
    n_bytes: usize,
    n_placements: usize,
    /// What the leader had read when it was made: the nodes that it binds to were known as of then.
    pub(crate) read: Revision,
}

/// What a precondition is about.
#[derive(Clone, Copy, Debug)]
enum Needed {
    Unit(UnitId),
    Queue,
    Budget,
    /// Of the item at this position.
    Reservation(usize),
}

impl Batch {
    /// Without items, made on records up to `read`.
    pub(crate) fn new(read: Revision) -> Self {
        Self { read, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of operations and preconditions.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Running units in it.
    pub(crate) fn n_placements(&self) -> usize {
        self.n_placements
    }

    /// Adds an item with its operations and preconditions.
    pub(crate) fn push(&mut self, mut item: Item) {
        self.n_placements += item.len();
        self.need_budgets(item.budgets());
        match &mut item {
            Item::Decision { accepted, .. } | Item::Convert(accepted) => {
                self.need_unit(accepted.unit, accepted.unit_revision);
                for bind in std::mem::take(&mut accepted.binds) {
                    let change = RunChange::Bind(bind);
                    self.op(to_proto::row_op(accepted.unit, &change));
                    if let RunChange::Bind(bind) = change {
                        accepted.binds.push(bind);
                    }
                }
                for (unit, evict) in &accepted.evictions {
                    self.op(to_proto::row_op(*unit, &RunChange::Evict(evict.clone())));
                }
                for hold in accepted.holds.iter().chain(&accepted.slots) {
                    self.op(to_proto::put_hold(hold));
                }
                let gone = accepted.gone.iter().map(|(hold, _)| *hold);
                for hold in accepted.ends.iter().map(|(hold, _)| *hold).chain(gone) {
                    self.op(to_proto::delete(v1::Kind::Hold, hold.0));
                }
            }
            Item::Reserve { reservation: (name, revision), holds } => {
                let needed = Needed::Reservation(self.items.len());
                let kind = v1::Kind::Reservation;
                self.need(needed, to_proto::precondition_named(kind, name, *revision));
                for hold in holds {
                    self.op(to_proto::put_hold(hold));
                }
            }
            Item::Drop { holds, .. } => {
                for (hold, _) in holds {
                    self.op(to_proto::delete(v1::Kind::Hold, hold.0));
                }
            }
            Item::Requeue(work) => {
                self.need_unit(work.unit, work.unit_revision);
                self.op(to_proto::row_op(work.unit, &RunChange::Requeue(work.requeue.clone())));
            }
            Item::Evict { departure, .. } => {
                let Departure { unit, evict, .. } = departure.as_ref();
                self.op(to_proto::row_op(*unit, &RunChange::Evict(evict.clone())));
            }
        }
        self.items.push(item);
    }

    /// The records of a queue and those above it are preconditions already.
    pub(crate) fn rests_on(&self, queue: QueueIdx) -> bool {
        self.queues.contains_key(&queue)
    }

    /// Makes the records of a queue and those above it preconditions: their maxima were read from them.
    pub(crate) fn need_queues<'a>(
        &mut self,
        queue: QueueIdx,
        records: impl Iterator<Item = (QueueIdx, &'a str, Revision)>,
    ) {
        let mut needed = Vec::new();
        for (level, path, revision) in records {
            let idx = match self.levels.get(&level) {
                Some(&idx) => idx,
                None => {
                    let kind = v1::Kind::Queue;
                    self.need(Needed::Queue, to_proto::precondition_named(kind, path, revision));
                    self.levels.insert(level, self.needed.len() - 1);
                    self.needed.len() - 1
                }
            };
            needed.push(idx);
        }
        self.queues.insert(queue, needed);
    }

    /// Positions of the items that a refusal at precondition `idx` is about.
    pub(crate) fn items_of_precondition(&self, idx: usize) -> Vec<usize> {
        let Some(&needed) = self.needed.get(idx) else { return Vec::new() };
        if let Needed::Reservation(item) = needed {
            return vec![item];
        }
        let about = |item: &Item| match (item, needed) {
            (Item::Decision { accepted, .. } | Item::Convert(accepted), Needed::Unit(unit)) => {
                accepted.unit == unit
            }
            (Item::Decision { accepted, .. }, Needed::Queue) => {
                self.queues.get(&accepted.queue).is_some_and(|needed| needed.contains(&idx))
            }
            (Item::Requeue(work), Needed::Unit(unit)) => work.unit == unit,
            (item, Needed::Budget) => {
                item.budgets().iter().any(|(name, _)| self.budgets.get(name) == Some(&idx))
            }
            (_, Needed::Reservation(_))
            | (Item::Requeue(_) | Item::Convert(_), Needed::Queue)
            | (
                Item::Evict { .. } | Item::Reserve { .. } | Item::Drop { .. },
                Needed::Unit(_) | Needed::Queue,
            ) => false,
        };
        self.items.iter().enumerate().filter(|(_, item)| about(item)).map(|(idx, _)| idx).collect()
    }

    /// Position of the item that operation `idx` belongs to.
    pub(crate) fn item_of_op(&self, idx: usize) -> Vec<usize> {
        self.op_items.get(idx).copied().into_iter().collect()
    }

    fn need_budgets(&mut self, budgets: &[(String, Revision)]) {
        for (name, revision) in budgets {
            if !self.budgets.contains_key(name) {
                let kind = v1::Kind::DisruptionBudget;
                self.need(Needed::Budget, to_proto::precondition_named(kind, name, *revision));
                self.budgets.insert(name.clone(), self.needed.len() - 1);
            }
        }
    }

    fn need_unit(&mut self, unit: UnitId, revision: Revision) {
        if self.units.insert(unit) {
            let kind = v1::Kind::UnitSpec;
            self.need(Needed::Unit(unit), to_proto::precondition(kind, unit.0, revision));
        }
    }

    fn need(&mut self, needed: Needed, precondition: v1::Precondition) {
        self.needed.push(needed);
        // Tag and length: 2 bytes more for the longest path.
        self.n_bytes += precondition.encoded_len() + 4;
        self.preconditions.push(precondition);
    }

    fn op(&mut self, op: Bytes) {
        // Tag and length: at most 4 bytes for an operation below 1 MiB.
        self.n_bytes += op.len() + 4;
        self.ops.push(op);
        self.op_items.push(self.items.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict(unit: u64, budgets: &[&str]) -> Item {
        let evict = godel_domain::running_units::Evict {
            ordinals: vec![0, 1],
            incarnations: Vec::new(),
            reason: godel_domain::running_units::EvictionReason::Drained,
            by: String::new(),
            preemptor: UnitId(0),
        };
        let budgets = budgets.iter().map(|name| ((*name).to_owned(), Revision(5))).collect();
        Item::Evict {
            job: JobId(1),
            departure: Box::new(Departure { unit: UnitId(unit), evict, budgets }),
            attempts: 0,
        }
    }

    #[test]
    fn a_refusal_finds_its_item() {
        let mut batch = Batch::default();
        batch.push(evict(1, &[]));
        for unit in [7, 8, 7] {
            batch.push(Item::Requeue(RequeueWork {
                unit: UnitId(unit),
                unit_revision: Revision(3),
                requeue: godel_domain::running_units::Requeue { ordinals: vec![4], incarnations: vec![1] },
            }));
        }
        assert_eq!((batch.ops.len(), batch.preconditions.len(), batch.n_placements()), (4, 2, 5));
        assert_eq!(batch.items_of_precondition(0), [1, 3]);
        assert_eq!(batch.items_of_precondition(1), [2]);
        assert!(batch.items_of_precondition(9).is_empty());
        assert_eq!(batch.item_of_op(0), [0]);
        assert_eq!(batch.item_of_op(3), [3]);
        assert!(batch.item_of_op(4).is_empty());
    }

    #[test]
    fn evictions_rest_on_their_budgets() {
        let mut batch = Batch::default();
        for (unit, budgets) in [(1, &["web", "all"][..]), (2, &["all"]), (3, &[])] {
            batch.push(evict(unit, budgets));
        }
        let names = batch.preconditions.iter().map(|one| one.key.as_ref().map_or("", |key| &key.name));
        assert_eq!(names.collect::<Vec<_>>(), ["web", "all"]);
        assert!(batch.preconditions.iter().all(|one| one.revision == 5));
        assert_eq!(batch.items_of_precondition(0), [0]);
        assert_eq!(batch.items_of_precondition(1), [0, 1]);
    }
}
