//! The tree of queues: records by path, what each of them guarantees, who may submit.
//!
//! Follows the records, whatever they say; whether a record may be written is [`check`](super::check)'s. Indices stand
//! for paths for as long as the process lives, so that a record may come before its parent's, after the units that
//! name it, or go and come back.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::UnitId;
use godel_domain::{
    frozen::Frozen,
    queue_spec::{DEFAULT_QUEUE, QueuePolicy, QueueSpec, WEIGHT_DEFAULT, WEIGHT_MAX, lets_submit, parent},
    records::RecordKey,
    unreadable::Unreadable,
    unwelcome::NotAdmitted,
};
use smallvec::SmallVec;

/// A path, interned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueIdx(pub(super) u32);

impl QueueIdx {
    /// Above all queues: has no record and no limits.
    pub const ROOT: Self = Self(0);
    /// Of the queue `default`.
    pub const DEFAULT: Self = Self(1);

    /// As an index into dense arrays.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Amounts by name.
pub(super) type NamedAmounts = BTreeMap<String, i64>;

/// Queues by path.
#[derive(Clone, Debug)]
pub struct QueueTree {
    nodes: Vec<QueueNode>,
    by_path: BTreeMap<Arc<str>, QueueIdx>,
    n_records: usize,
}

#[derive(Clone, Debug)]
struct QueueNode {
    path: Arc<str>,
    parent: QueueIdx,
    /// In its parent's `children`.
    place: u32,
    children: Vec<QueueIdx>,
    record: Option<Arc<QueueSpec>>,
    /// Guarantee in force: of each resource the larger of its own and `below`.
    guaranteed: NamedAmounts,
    /// Sum over its children's `guaranteed`.
    below: NamedAmounts,
}

impl QueueNode {
    fn new(path: Arc<str>, parent: QueueIdx, place: u32) -> Self {
        Self {
            path,
            parent,
            place,
            children: Vec::new(),
            record: None,
            guaranteed: NamedAmounts::new(),
            below: NamedAmounts::new(),
        }
    }
}

impl Default for QueueTree {
    fn default() -> Self {
        let root = QueueNode::new(Arc::from(""), QueueIdx::ROOT, 0);
        let mut tree = Self { nodes: vec![root], by_path: BTreeMap::new(), n_records: 0 };
        tree.intern(DEFAULT_QUEUE);
        tree
    }
}

impl QueueTree {
    /// The index of a path, given now if it is new.
    pub fn intern(&mut self, path: &str) -> QueueIdx {
        if let Some(known) = self.find(path) {
            return known;
        }
        let above = parent(path).map_or(QueueIdx::ROOT, |above| self.intern(above));
        let queue = QueueIdx(number(self.nodes.len()));
        let path: Arc<str> = Arc::from(path);
        let siblings = &mut self.nodes[above.idx()].children;
        let place = number(siblings.len());
        siblings.push(queue);
        self.nodes.push(QueueNode::new(Arc::clone(&path), above, place));
        self.by_path.insert(path, queue);
        queue
    }

    /// The index of a path that was interned.
    pub fn find(&self, path: &str) -> Option<QueueIdx> {
        self.by_path.get(path).copied()
    }

    /// Paths interned, the root included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: the root and `default` are always there.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Queues with a record.
    pub fn n_records(&self) -> usize {
        self.n_records
    }

    /// Path of a queue; empty for the root.
    pub fn path(&self, queue: QueueIdx) -> &str {
        &self.nodes[queue.idx()].path
    }

    /// The same, to be kept.
    pub fn shared_path(&self, queue: QueueIdx) -> &Arc<str> {
        &self.nodes[queue.idx()].path
    }

    /// The queue above; the root is above itself.
    pub fn parent(&self, queue: QueueIdx) -> QueueIdx {
        self.nodes[queue.idx()].parent
    }

    /// Its record; `default` may have none, and a path that was only named has none.
    pub fn record(&self, queue: QueueIdx) -> Option<&Arc<QueueSpec>> {
        self.nodes[queue.idx()].record.as_ref()
    }

    /// There is such a queue: it has a record, or is `default`.
    pub fn exists(&self, queue: QueueIdx) -> bool {
        queue == QueueIdx::DEFAULT || self.record(queue).is_some()
    }

    /// Every queue there is, in order of path.
    pub fn iter(&self) -> impl Iterator<Item = QueueIdx> + '_ {
        self.by_path.values().copied().filter(|queue| self.exists(*queue))
    }

    /// Queues there are after a path, in order of path.
    pub fn after<'a>(&'a self, path: &str) -> impl Iterator<Item = QueueIdx> + use<'a> {
        let from = (std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded);
        self.by_path.range::<str, _>(from).map(|(_, queue)| *queue).filter(|queue| self.exists(*queue))
    }

    /// Paths directly below, those only named included.
    pub fn paths_below(&self, queue: QueueIdx) -> &[QueueIdx] {
        &self.nodes[queue.idx()].children
    }

    /// Its number among the paths named below its parent.
    pub(super) fn place(&self, queue: QueueIdx) -> u32 {
        self.nodes[queue.idx()].place
    }

    /// Queues there are directly below, in order of path.
    pub fn children(&self, queue: QueueIdx) -> Vec<QueueIdx> {
        let mut children: Vec<QueueIdx> = self.below(queue).collect();
        children.sort_unstable_by_key(|child| self.path(*child));
        children
    }

    /// Nothing is below it: it takes units.
    pub fn is_leaf(&self, queue: QueueIdx) -> bool {
        self.below(queue).next().is_none()
    }

    /// Its weight among its siblings.
    pub fn weight(&self, queue: QueueIdx) -> u32 {
        self.record(queue).map_or(WEIGHT_DEFAULT, |record| record.weight.clamp(1, WEIGHT_MAX))
    }

    /// Order of its units.
    pub fn policy(&self, queue: QueueIdx) -> QueuePolicy {
        self.record(queue).map_or_else(QueuePolicy::default, |record| record.policy)
    }

    /// Guarantee in force: of each resource the larger of its own and the sum over its children.
    pub fn guaranteed(&self, queue: QueueIdx) -> &BTreeMap<String, i64> {
        &self.nodes[queue.idx()].guaranteed
    }

    /// Sum of what its children guarantee.
    pub(super) fn guaranteed_below(&self, queue: QueueIdx) -> &NamedAmounts {
        &self.nodes[queue.idx()].below
    }

    /// Maximum in force: of each resource the smallest of its own and those above it.
    pub fn max_in_force(&self, queue: QueueIdx) -> BTreeMap<String, i64> {
        let mut max = NamedAmounts::new();
        let records = self.upwards(queue).filter_map(|level| self.record(level));
        for (name, &amount) in records.flat_map(|record| &record.max) {
            let least = max.entry(name.clone()).or_insert(amount);
            *least = amount.min(*least);
        }
        max
    }

    /// The queue and those above it, without the root.
    pub fn upwards(&self, queue: QueueIdx) -> impl Iterator<Item = QueueIdx> + '_ {
        std::iter::successors(Some(queue), |level| Some(self.parent(*level)))
            .take_while(|level| *level != QueueIdx::ROOT)
    }

    /// A queue and those above it, the highest first.
    pub(super) fn way_to(&self, queue: QueueIdx) -> SmallVec<[QueueIdx; 8]> {
        let above = |queue: &QueueIdx| (*queue != QueueIdx::ROOT).then(|| self.parent(*queue));
        let mut way: SmallVec<[QueueIdx; 8]> = std::iter::successors(Some(queue), above).collect();
        way.reverse();
        way
    }

    /// Why nothing of a queue is handed out or bound: it or one above it cannot be read, or what is taken of a maximum
    /// that it is under cannot be told, because rows or room held are not read. `queue_of` knows the queues of units.
    pub fn frozen_by<'a>(
        &self,
        frozen: &'a Frozen,
        queue: QueueIdx,
        queue_of: impl Fn(UnitId) -> Option<QueueIdx>,
    ) -> Option<&'a Unreadable> {
        if frozen.is_empty() {
            return None;
        }
        let above: SmallVec<[QueueIdx; 4]> = self.upwards(queue).collect();
        let is_limited = |level: &QueueIdx| self.record(*level).is_some_and(|spec| spec.has_limits());
        let limited: SmallVec<[QueueIdx; 4]> = above.iter().copied().filter(is_limited).collect();
        // What of unknown size is taken counts wherever it may.
        let shares = |other: Option<QueueIdx>| match other {
            Some(other) => self.upwards(other).any(|level| limited.contains(&level)),
            None => !limited.is_empty(),
        };
        frozen.iter().find(|one| match &one.key {
            RecordKey::Unknown => true,
            RecordKey::Queue(path) => above.iter().any(|level| self.path(*level) == path),
            RecordKey::Rows(unit) => shares(queue_of(*unit)),
            RecordKey::Hold(_) => shares(one.queue.as_deref().and_then(|path| self.find(path))),
            _ => false,
        })
    }

    /// Where a unit of `owner` that names `path` goes; `names` are those of whoever submits it.
    ///
    /// # Errors
    /// There is no such queue, it has others below it, or the first list from it upwards has neither the owner nor one of the
    /// names; without any list everyone may.
    pub fn admit(&self, path: &str, owner: &str, names: &[String]) -> Result<QueueIdx, NotAdmitted> {
        let known = self.find(path).filter(|queue| self.exists(*queue));
        let queue = known.ok_or_else(|| NotAdmitted::Unknown(path.to_owned()))?;
        if let Some(&below) = self.children(queue).first() {
            let below = self.path(below).to_owned();
            return Err(NotAdmitted::NotALeaf { queue: path.to_owned(), below });
        }
        let records = self.upwards(queue).filter_map(|level| self.record(level));
        match records.into_iter().find(|record| !record.submit_owners.is_empty()) {
            Some(record) if !lets_submit(&record.submit_owners, owner, names) => Err(NotAdmitted::Denied {
                owner: owner.to_owned(),
                queue: path.to_owned(),
                by: record.name.clone(),
            }),
            Some(_) | None => Ok(queue),
        }
    }

    /// A record as committed. Returns its queue and whichever above it guarantee something else now.
    pub fn put(&mut self, record: Arc<QueueSpec>) -> Vec<QueueIdx> {
        let queue = self.intern(&record.name);
        self.set(queue, Some(record))
    }

    /// A record is gone. Returns what [`Self::put`] does; nothing for a path that nobody named.
    pub fn remove(&mut self, path: &str) -> Vec<QueueIdx> {
        self.find(path).map_or_else(Vec::new, |queue| self.set(queue, None))
    }

    fn set(&mut self, queue: QueueIdx, record: Option<Arc<QueueSpec>>) -> Vec<QueueIdx> {
        self.n_records += usize::from(record.is_some());
        let old = std::mem::replace(&mut self.nodes[queue.idx()].record, record);
        self.n_records -= usize::from(old.is_some());
        let mut changed = vec![queue];
        let mut at = queue;
        while at != QueueIdx::ROOT {
            let node = &mut self.nodes[at.idx()];
            let own = node.record.as_ref().map(|record| &record.min);
            let new = guaranteed(own, &node.below);
            let old = std::mem::replace(&mut node.guaranteed, new);
            if old == node.guaranteed {
                break;
            }
            if at != queue {
                changed.push(at);
            }
            let (new, above) = (node.guaranteed.clone(), node.parent);
            let below = &mut self.nodes[above.idx()].below;
            shift(below, &old, -1);
            shift(below, &new, 1);
            at = above;
        }
        changed
    }

    fn below(&self, queue: QueueIdx) -> impl Iterator<Item = QueueIdx> + '_ {
        self.nodes[queue.idx()].children.iter().copied().filter(|child| self.exists(*child))
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("memory ends before 2^32 queues")
}

/// Of each resource the larger of a queue's own guarantee and the sum over its children.
pub(super) fn guaranteed(own: Option<&NamedAmounts>, below: &NamedAmounts) -> NamedAmounts {
    let mut larger = below.clone();
    for (name, &amount) in own.into_iter().flatten() {
        let known = larger.entry(name.clone()).or_default();
        *known = amount.max(*known);
    }
    larger.retain(|_, amount| *amount > 0);
    larger
}

/// Adds `sign` × `amounts`; what becomes zero goes.
pub(super) fn shift(sums: &mut NamedAmounts, amounts: &NamedAmounts, sign: i64) {
    for (name, amount) in amounts {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.saturating_add(amount.saturating_mul(sign));
        if *sum == 0 {
            sums.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
