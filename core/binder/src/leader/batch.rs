//! One transaction under construction: operations, preconditions without repetitions, and who asked for what.

use std::sync::Arc;

use godel_base::ids::{HoldId, IdSet, Revision, UnitId};
use godel_domain::{
    change::Change,
    hold::{GangTurn, Hold},
    records::{Record, RecordKey},
    running_units::RunChange,
    txn::{RecordRef, TxnBuilder},
};
use godel_queueing::QueueIdx;
use rustc_hash::FxHashMap;

use super::{evict_jobs::JobId, move_jobs::MovePart, queue::Queued};
use crate::{Accepted, AcceptedMove, Departure, RequeueWork};

/// Something that a transaction does.
#[derive(Debug)]
pub(super) enum Item {
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
    /// Room is held for a running unit on another node, and it begins to leave.
    Move { part: MovePart, accepted: Box<AcceptedMove> },
}

impl Item {
    /// Running units concerned.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Decision { accepted, .. } | Self::Convert(accepted) => {
                let held = accepted.holds.iter().map(|hold| hold.ordinals.len());
                accepted.binds.iter().map(|bind| bind.ordinals.len()).chain(held).sum()
            }
            Self::Reserve { holds, .. } => holds.len(),
            Self::Drop { holds, .. } => holds.len(),
            Self::Requeue(work) => work.requeue.ordinals.len(),
            Self::Evict { departure, .. } => departure.evict.ordinals.len(),
            Self::Move { .. } => 1,
        }
    }

    /// Disruption budgets that it rests on, with the revisions of their records.
    fn budgets(&self) -> &[(String, Revision)] {
        match self {
            Self::Decision { accepted, .. } | Self::Convert(accepted) => &accepted.budgets,
            Self::Evict { departure, .. } => &departure.budgets,
            Self::Move { accepted, .. } => &accepted.budgets,
            Self::Reserve { .. } | Self::Drop { .. } | Self::Requeue(_) => &[],
        }
    }
}

/// A transaction and the items it consists of. Its operations and preconditions stand in a [`TxnBuilder`] beside it.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) items: Vec<Item>,
    /// Turns of gangs that end with it, and why.
    pub(super) turn_ends: Vec<(UnitId, GangTurn, &'static str)>,
    /// What each precondition is about.
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
    pub(super) read: Revision,
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
    pub(super) fn new(read: Revision) -> Self {
        Self { read, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of operations and preconditions.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// What the leader had read when the transaction was made: the nodes that it binds to were known as of then.
    pub fn nodes_as_of(&self) -> Revision {
        self.read
    }

    /// Running units in it.
    pub(super) fn n_placements(&self) -> usize {
        self.n_placements
    }

    /// Adds an item with its operations and preconditions.
    pub(super) fn push(&mut self, mut item: Item, txn: &mut impl TxnBuilder) {
        self.n_placements += item.len();
        self.need_budgets(item.budgets(), txn);
        match &mut item {
            Item::Decision { accepted, .. } | Item::Convert(accepted) => {
                let unit = accepted.unit;
                self.need_unit(unit, accepted.unit_revision, txn);
                for (victim, revision) in &accepted.victims {
                    self.need_unit(*victim, *revision, txn);
                }
                for bind in &mut accepted.binds {
                    // A bind is large: it is lent to the operation, not copied.
                    let change = Change::Rows(unit, RunChange::Bind(std::mem::take(bind)));
                    self.op(&change, txn);
                    if let Change::Rows(_, RunChange::Bind(lent)) = change {
                        *bind = lent;
                    }
                }
                for (unit, evict) in &accepted.evictions {
                    self.op(&Change::Rows(*unit, RunChange::Evict(evict.clone())), txn);
                }
                for hold in accepted.holds.iter().chain(&accepted.slots) {
                    self.op(&Change::Put(Record::Hold(Arc::clone(hold))), txn);
                }
                let gone = accepted.gone.iter().map(|(hold, _)| *hold);
                for hold in accepted.ends.iter().map(|(hold, _)| *hold).chain(gone) {
                    self.op(&Change::Gone(RecordKey::Hold(hold)), txn);
                }
            }
            Item::Reserve { reservation: (name, revision), holds } => {
                let needed = Needed::Reservation(self.items.len());
                self.need(needed, RecordRef::Reservation(name), *revision, txn);
                for hold in holds {
                    self.op(&Change::Put(Record::Hold(Arc::clone(hold))), txn);
                }
            }
            Item::Drop { holds, .. } => {
                for (hold, _) in holds {
                    self.op(&Change::Gone(RecordKey::Hold(*hold)), txn);
                }
            }
            Item::Requeue(work) => {
                self.need_unit(work.unit, work.unit_revision, txn);
                self.op(&Change::Rows(work.unit, RunChange::Requeue(work.requeue.clone())), txn);
            }
            Item::Evict { departure, .. } => {
                let Departure { unit, evict, .. } = departure.as_ref();
                self.op(&Change::Rows(*unit, RunChange::Evict(evict.clone())), txn);
            }
            Item::Move { accepted, .. } => {
                let AcceptedMove { unit, unit_revision, hold, evict, .. } = accepted.as_ref();
                self.need_unit(*unit, *unit_revision, txn);
                if let Some(evict) = evict {
                    self.op(&Change::Rows(*unit, RunChange::Evict(evict.clone())), txn);
                }
                self.op(&Change::Put(Record::Hold(Arc::clone(hold))), txn);
            }
        }
        self.items.push(item);
    }

    /// The records of a queue and those above it are preconditions already.
    pub(super) fn rests_on(&self, queue: QueueIdx) -> bool {
        self.queues.contains_key(&queue)
    }

    /// Makes the records of a queue and those above it preconditions: their maxima were read from them.
    pub(super) fn need_queues<'a>(
        &mut self,
        queue: QueueIdx,
        records: impl Iterator<Item = (QueueIdx, &'a str, Revision)>,
        txn: &mut impl TxnBuilder,
    ) {
        let mut needed = Vec::new();
        for (level, path, revision) in records {
            let idx = match self.levels.get(&level) {
                Some(&idx) => idx,
                None => {
                    self.need(Needed::Queue, RecordRef::Queue(path), revision, txn);
                    self.levels.insert(level, self.needed.len() - 1);
                    self.needed.len() - 1
                }
            };
            needed.push(idx);
        }
        self.queues.insert(queue, needed);
    }

    /// Positions of the items that a refusal at precondition `idx` is about.
    pub(super) fn items_of_precondition(&self, idx: usize) -> Vec<usize> {
        let Some(&needed) = self.needed.get(idx) else { return Vec::new() };
        if let Needed::Reservation(item) = needed {
            return vec![item];
        }
        let about = |item: &Item| match (item, needed) {
            (Item::Decision { accepted, .. } | Item::Convert(accepted), Needed::Unit(unit)) => {
                accepted.unit == unit || accepted.victims.iter().any(|(victim, _)| *victim == unit)
            }
            (Item::Decision { accepted, .. }, Needed::Queue) => {
                self.queues.get(&accepted.queue).is_some_and(|needed| needed.contains(&idx))
            }
            (Item::Move { accepted, .. }, Needed::Queue) => {
                let needed = accepted.queue.and_then(|queue| self.queues.get(&queue));
                needed.is_some_and(|needed| needed.contains(&idx))
            }
            (Item::Requeue(work), Needed::Unit(unit)) => work.unit == unit,
            (Item::Move { accepted, .. }, Needed::Unit(unit)) => accepted.unit == unit,
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
    pub(super) fn item_of_op(&self, idx: usize) -> Vec<usize> {
        self.op_items.get(idx).copied().into_iter().collect()
    }

    fn need_budgets(&mut self, budgets: &[(String, Revision)], txn: &mut impl TxnBuilder) {
        for (name, revision) in budgets {
            if !self.budgets.contains_key(name) {
                self.need(Needed::Budget, RecordRef::Budget(name), *revision, txn);
                self.budgets.insert(name.clone(), self.needed.len() - 1);
            }
        }
    }

    fn need_unit(&mut self, unit: UnitId, revision: Revision, txn: &mut impl TxnBuilder) {
        if self.units.insert(unit) {
            self.need(Needed::Unit(unit), RecordRef::Unit(unit), revision, txn);
        }
    }

    fn need(&mut self, needed: Needed, record: RecordRef<'_>, revision: Revision, txn: &mut impl TxnBuilder) {
        self.needed.push(needed);
        self.n_bytes += txn.require(record, revision);
    }

    fn op(&mut self, change: &Change, txn: &mut impl TxnBuilder) {
        self.n_bytes += txn.push(change);
        self.op_items.push(self.items.len());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Txn, *};

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
        let (mut batch, mut txn) = (Batch::default(), Txn::default());
        batch.push(evict(1, &[]), &mut txn);
        for unit in [7, 8, 7] {
            let work = RequeueWork {
                unit: UnitId(unit),
                unit_revision: Revision(3),
                requeue: godel_domain::running_units::Requeue {
                    ordinals: vec![4],
                    incarnations: vec![1],
                    anew: false,
                },
            };
            batch.push(Item::Requeue(work), &mut txn);
        }
        assert_eq!((txn.changes.len(), txn.required.len(), batch.n_placements()), (4, 2, 5));
        assert_eq!(batch.items_of_precondition(0), [1, 3]);
        assert_eq!(batch.items_of_precondition(1), [2]);
        assert!(batch.items_of_precondition(9).is_empty());
        assert_eq!(batch.item_of_op(0), [0]);
        assert_eq!(batch.item_of_op(3), [3]);
        assert!(batch.item_of_op(4).is_empty());
    }

    #[test]
    fn evictions_rest_on_their_budgets() {
        let (mut batch, mut txn) = (Batch::default(), Txn::default());
        for (unit, budgets) in [(1, &["web", "all"][..]), (2, &["all"]), (3, &[])] {
            batch.push(evict(unit, budgets), &mut txn);
        }
        assert_eq!(txn.required, [r#"Budget("web") 5"#, r#"Budget("all") 5"#]);
        assert_eq!(batch.items_of_precondition(0), [0]);
        assert_eq!(batch.items_of_precondition(1), [0, 1]);
    }

    #[test]
    fn a_claim_rests_on_the_records_of_its_victims() {
        let mut claim = Accepted {
            ticket: crate::Ticket(1),
            unit: UnitId(1),
            unit_revision: Revision(3),
            queue: QueueIdx::DEFAULT,
            binds: Vec::new(),
            holds: Vec::new(),
            evictions: Vec::new(),
            victims: vec![(UnitId(7), Revision(4)), (UnitId(8), Revision(5))],
            ends: Vec::new(),
            rejections: Vec::new(),
            budgets: Vec::new(),
            slots: Vec::new(),
            gone: Vec::new(),
        };
        let (mut batch, mut txn) = (Batch::default(), Txn::default());
        batch.push(Item::Convert(Box::new(claim.clone())), &mut txn);
        (claim.unit, claim.victims) = (UnitId(2), vec![(UnitId(8), Revision(5))]);
        batch.push(Item::Convert(Box::new(claim)), &mut txn);
        assert_eq!(txn.required.len(), 4);
        assert_eq!(batch.items_of_precondition(1), [0], "unit 7");
        assert_eq!(batch.items_of_precondition(2), [0, 1], "unit 8");
        assert_eq!(batch.items_of_precondition(3), [1], "unit 2");
    }
}
