//! Units of one band that are served one after the other: a queue's, or one owner's in it.
//!
//! Units that need the same are one class. Under maxima they fit or do not fit together, so that a whole class is set
//! aside at once, however many wait in it.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BinaryHeap},
};

use godel_base::{ids::UnitId, time::Millis};
use godel_domain::queue_spec::QueuePolicy;
use rustc_hash::FxHashMap;

use super::{
    heap::Heap,
    order::Waiting,
    policies::sort_policy,
    rooms::RoomIdx,
    tree::QueueIdx,
    usage::{Need, PayerIdx, QueueMaximum},
};

/// Place in a lane: the order of the fields is the policy, the smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FifoKey {
    rank: i64,
    /// False (dispatched before) first.
    fresh: bool,
    /// Ids rise with age.
    age: UnitId,
}

impl FifoKey {
    /// The place of a unit by a policy.
    pub(super) fn new(policy: QueuePolicy, waiting: &Waiting) -> Self {
        let rank = (sort_policy(policy).key)(waiting);
        Self { rank, fresh: !waiting.again, age: waiting.unit }
    }
}

/// Units of one band in order.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    classes: Vec<Class>,
    free: Vec<u32>,
    by_need: FxHashMap<ClassKey, u32>,
    /// Classes that may fit, by their first unit.
    ready: Heap<FifoKey>,
    /// Classes that wait for room, by their first unit.
    waits: Heap<FifoKey>,
    n_units: usize,
    /// Set while its first unit waits for room.
    pub(super) stall: Option<Stall>,
}

/// What units of one class have in common: what they need, who pays for it, and what they lack on nodes.
pub(super) type ClassKey = (Need, PayerIdx, RoomIdx);

#[derive(Debug)]
struct Class {
    key: ClassKey,
    units: BTreeMap<FifoKey, Waiting>,
    parked: Option<QueueMaximum>,
    /// No node has room for it.
    is_shut: bool,
    /// Needs more than there may ever be: waits for a change of records, not for room.
    is_hopeless: bool,
}

/// The first unit of a lane waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) class: u32,
    /// Whose maximum it waits under.
    pub(super) at: QueueIdx,
    /// When another one was served before it for the first time: until then it only waits for its turn.
    pub(super) since: Option<Millis>,
}

/// A unit put into a lane.
#[derive(Debug)]
pub(super) struct Pushed {
    /// It took the place of this one.
    pub(super) old: Option<Waiting>,
    pub(super) may_fit: bool,
    pub(super) class: u32,
}

/// A unit taken out of a lane.
#[derive(Debug)]
pub(super) struct Removed {
    pub(super) waiting: Waiting,
    pub(super) class: u32,
    /// Its class is gone with it.
    pub(super) is_gone: bool,
    /// Its class was parked there and is gone with it.
    pub(super) parked: Option<QueueMaximum>,
    /// It was the first of the lane and waited for room.
    pub(super) stall: Option<Stall>,
}

impl Fifo {
    pub(super) fn is_empty(&self) -> bool {
        self.n_units == 0
    }

    /// Adds a unit; replaces it if it stands at the same place. `is_shut`: no node has room for what it needs.
    pub(super) fn push(&mut self, key: FifoKey, of: ClassKey, waiting: Waiting, is_shut: bool) -> Pushed {
        let class = match self.by_need.get(&of) {
            Some(class) => *class,
            None => self.open(of, is_shut),
        };
        let Class { units, parked, is_shut, .. } = &mut self.classes[class as usize];
        let (old, may_fit) = (units.insert(key, waiting), parked.is_none() && !*is_shut);
        self.n_units += usize::from(old.is_none());
        self.reposition(class);
        Pushed { old, may_fit, class }
    }

    pub(super) fn contains(&self, key: FifoKey, of: ClassKey) -> bool {
        let class = self.by_need.get(&of);
        class.is_some_and(|class| self.classes[*class as usize].units.contains_key(&key))
    }

    /// Takes a unit out, if it stands there.
    pub(super) fn remove(&mut self, key: FifoKey, of: ClassKey) -> Option<Removed> {
        let class = *self.by_need.get(&of)?;
        let units = &mut self.classes[class as usize].units;
        let was_first = units.first_key_value().is_some_and(|(first, _)| *first == key);
        let waiting = units.remove(&key)?;
        Some(self.removed(class, waiting, was_first))
    }

    /// Takes the first unit of a class out.
    pub(super) fn take(&mut self, class: u32) -> Option<Removed> {
        let (_, waiting) = self.classes.get_mut(class as usize)?.units.pop_first()?;
        Some(self.removed(class, waiting, true))
    }

    /// The class whose first unit comes first of those that may fit.
    pub(super) fn first(&self) -> Option<u32> {
        self.ready.first()
    }

    /// The first unit of a class.
    pub(super) fn head(&self, class: u32) -> Option<(FifoKey, &Waiting)> {
        self.classes.get(class as usize)?.units.first_key_value().map(|(key, waiting)| (*key, waiting))
    }

    /// A class does not fit under this maximum.
    pub(super) fn park(&mut self, class: u32, limit: QueueMaximum, is_hopeless: bool) {
        let parked = &mut self.classes[class as usize];
        (parked.parked, parked.is_hopeless) = (Some(limit), is_hopeless);
        self.reposition(class);
    }

    /// A class may fit again.
    pub(super) fn unpark(&mut self, class: u32) {
        let parked = &mut self.classes[class as usize];
        (parked.parked, parked.is_hopeless) = (None, false);
        self.reposition(class);
    }

    /// There is no room for a class on any node, or there may be again.
    pub(super) fn set_shut(&mut self, class: u32, is_shut: bool) {
        self.classes[class as usize].is_shut = is_shut;
        self.reposition(class);
    }

    /// What a class needs that may fit.
    pub(super) fn ready_need(&self, class: u32) -> Option<Need> {
        let class = self.classes.get(class as usize)?;
        (class.parked.is_none() && !class.is_shut && !class.units.is_empty()).then_some(class.key.0)
    }

    /// A parked class will not fit however much gets free.
    pub(super) fn give_up(&mut self, class: u32) {
        self.classes[class as usize].is_hopeless = true;
        self.reposition(class);
    }

    /// The first unit that waits for room, not passed by anybody yet.
    pub(super) fn next_stall(&self) -> Option<Stall> {
        let class = self.waits.first()?;
        let at = self.classes[class as usize].parked?.queue;
        Some(Stall { class, at, since: None })
    }

    /// Units of each class in order.
    pub(super) fn iter_classes(&self) -> impl Iterator<Item = impl Iterator<Item = (&FifoKey, &Waiting)>> {
        self.classes.iter().map(|class| class.units.iter())
    }

    fn removed(&mut self, class: u32, waiting: Waiting, was_first: bool) -> Removed {
        self.n_units -= 1;
        let stall = self.stall.filter(|stall| was_first && stall.class == class);
        if stall.is_some() {
            self.stall = None;
        }
        self.reposition(class);
        let Class { units, parked, .. } = &self.classes[class as usize];
        let (is_gone, parked) = (units.is_empty(), parked.filter(|_| units.is_empty()));
        if is_gone {
            self.close(class);
        }
        Removed { waiting, class, is_gone, parked, stall }
    }

    fn open(&mut self, key: ClassKey, is_shut: bool) -> u32 {
        let (units, parked) = (BTreeMap::new(), None);
        let fresh = Class { key, units, parked, is_shut, is_hopeless: false };
        let class = match self.free.pop() {
            Some(class) => {
                self.classes[class as usize] = fresh;
                class
            }
            None => {
                self.classes.push(fresh);
                u32::try_from(self.classes.len() - 1).expect("memory ends before 2^32 classes")
            }
        };
        self.by_need.insert(key, class);
        class
    }

    fn close(&mut self, class: u32) {
        let key = self.classes[class as usize].key;
        self.by_need.remove(&key);
        self.free.push(class);
    }

    /// A class stands in `ready` or `waits` by its first unit, or in neither while it has none, no room or no hope.
    fn reposition(&mut self, class: u32) {
        let Class { units, parked, is_shut, is_hopeless, .. } = &self.classes[class as usize];
        let first = units.first_key_value().map(|(key, _)| *key).filter(|_| !is_shut);
        let ready = first.filter(|_| parked.is_none());
        let waits = first.filter(|_| parked.is_some() && !is_hopeless);
        for (order, key) in [(&mut self.ready, ready), (&mut self.waits, waits)] {
            match key {
                Some(key) => order.set(class, key, &by_number),
                None => order.remove(class, &by_number),
            }
        }
    }
}

/// Several orders as one.
pub(super) fn merge<'a>(
    mut sources: Vec<impl Iterator<Item = (&'a FifoKey, &'a Waiting)>>,
) -> impl Iterator<Item = &'a Waiting> {
    let (mut order, mut heads) = (BinaryHeap::new(), Vec::with_capacity(sources.len()));
    for (at, source) in sources.iter_mut().enumerate() {
        let head = source.next();
        order.extend(head.map(|(key, _)| Reverse((*key, at))));
        heads.push(head.map(|(_, waiting)| waiting));
    }
    std::iter::from_fn(move || {
        let Reverse((_, at)) = order.pop()?;
        let next = sources[at].next();
        order.extend(next.map(|(key, _)| Reverse((*key, at))));
        std::mem::replace(&mut heads[at], next.map(|(_, waiting)| waiting))
    })
}

/// Keys name their unit: no two are equal.
fn by_number(a: u32, b: u32) -> Ordering {
    a.cmp(&b)
}
