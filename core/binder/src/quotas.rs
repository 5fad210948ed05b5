//! What queues may use, and do use by committed rows and by bindings under way.
//!
//! Every binding and every end is counted, whether its queue has a maximum or not: a maximum may be set later.

use std::sync::Arc;

use godel_cluster::{Cluster, GroupDeltas, ShapeId};
use godel_domain::{
    ids::{Revision, UnitId},
    queue_spec::QueueSpec,
};
use godel_queueing::{AskId, Need, PendingReason, QueueIdx, QueueMaximum, Quota};
use smallvec::SmallVec;

/// What a binding under way takes of its queue, by task group.
pub(super) type GroupNeeds = SmallVec<[(u16, Need); 1]>;

/// Queues, their records' revisions and their usage.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    quota: Quota,
    /// By queue; 0 without a record.
    revisions: Vec<Revision>,
    /// By shape, each held for good as the shape is.
    asks: Vec<Option<AskId>>,
}

impl Quotas {
    /// A queue's record; older ones than the one known are ignored.
    pub(super) fn put(&mut self, record: Arc<QueueSpec>, revision: Revision) {
        let queue = self.queue(&record.name);
        if self.revision(queue) < revision {
            self.revisions[queue.idx()] = revision;
            self.quota.put(record);
        }
    }

    /// A queue's record is gone, unless a newer one is known.
    pub(super) fn remove(&mut self, path: &str, revision: Revision) {
        let queue = self.queue(path);
        if self.revision(queue) < revision {
            self.revisions[queue.idx()] = Revision(0);
            self.quota.remove(path);
        }
    }

    /// Forgets records and usage.
    pub(super) fn reset(&mut self) {
        self.quota.reset();
        self.revisions.fill(Revision(0));
    }

    /// The index of a path, given now if it is new.
    pub(super) fn queue(&mut self, path: &str) -> QueueIdx {
        let queue = self.quota.queue(path);
        self.revisions.resize(self.quota.tree().len(), Revision(0));
        queue
    }

    /// Path of a queue as records that units leave name it: none for `default`.
    pub(super) fn path(&self, queue: QueueIdx) -> Option<&Arc<str>> {
        (queue != QueueIdx::DEFAULT).then(|| self.quota.tree().shared_path(queue))
    }

    /// The queue and those above it, each with its path and its record's revision.
    pub(super) fn records(&self, queue: QueueIdx) -> impl Iterator<Item = (QueueIdx, &str, Revision)> {
        let tree = self.quota.tree();
        tree.upwards(queue).map(|level| (level, tree.path(level), self.revision(level)))
    }

    /// Takes as many of `n` running units as fit under every maximum. Fewer than `n`: the maximum that ends it.
    /// `O(depth)`.
    pub(super) fn take(
        &mut self,
        queue: QueueIdx,
        shape: ShapeId,
        n: u32,
        cluster: &Cluster,
    ) -> (Need, Option<QueueMaximum>) {
        let ask = self.ask(shape, cluster);
        let headroom = self.quota.usage().headroom(queue, ask);
        let need = Need { ask, n: n.min(headroom.n) };
        if need.n > 0 {
            self.quota.usage_mut().add(queue, need);
        }
        (need, headroom.limit.filter(|_| need.n < n))
    }

    /// How many running units of a shape fit under every maximum now. `O(depth)`.
    pub(super) fn n_fit(&mut self, queue: QueueIdx, shape: ShapeId, cluster: &Cluster) -> u32 {
        let ask = self.ask(shape, cluster);
        self.quota.usage().headroom(queue, ask).n
    }

    /// Counts a binding under way (again).
    pub(super) fn add(&mut self, queue: QueueIdx, needs: &GroupNeeds) {
        for (_, need) in needs {
            self.quota.usage_mut().add(queue, *need);
        }
    }

    /// What so many running units of a shape take, without taking it.
    pub(super) fn need(&mut self, shape: ShapeId, n: u32, cluster: &Cluster) -> Need {
        Need { ask: self.ask(shape, cluster), n }
    }

    /// Takes whatever the maxima say: it was taken before.
    pub(super) fn add_need(&mut self, queue: QueueIdx, need: Need) {
        self.quota.usage_mut().add(queue, need);
    }

    /// Ends a [`Self::take`].
    pub(super) fn give_back(&mut self, queue: QueueIdx, need: Need) {
        self.quota.usage_mut().sub(queue, need);
    }

    /// Rows of a unit of this queue began or ceased to take room; `sign` -1: the opposite.
    pub(super) fn charge_groups(
        &mut self,
        (queue, unit): (QueueIdx, UnitId),
        turns: &GroupDeltas,
        sign: i64,
        cluster: &Cluster,
    ) {
        for (group, n) in turns.iter() {
            let Some(shape) = cluster.group_shape(unit, group) else { continue };
            let ask = self.ask(shape, cluster);
            let need = Need { ask, n: u32::try_from(n.unsigned_abs()).unwrap_or(u32::MAX) };
            match (n * sign).signum() {
                1 => self.quota.usage_mut().add(queue, need),
                -1 => self.quota.usage_mut().sub(queue, need),
                _ => {}
            }
        }
        for (group, n) in turns.leaving() {
            let Some(shape) = cluster.group_shape(unit, group) else { continue };
            let need = Need { ask: self.ask(shape, cluster), n: 1 };
            self.quota.usage_mut().note_leaving(queue, need, n * sign);
        }
    }

    /// Counts what is about to be told to leave (`sign` 1), or is no more (-1).
    pub(super) fn promise(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.quota.usage_mut().note_promised(queue, need, sign);
    }

    /// A maximum that is reached, in words.
    pub(super) fn words(&self, limit: QueueMaximum) -> String {
        let (path, resource) = self.quota.limit(limit);
        PendingReason::Full { queue: path.to_owned(), resource: resource.to_owned() }.to_string()
    }

    pub(super) fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(super) fn quota_mut(&mut self) -> &mut Quota {
        &mut self.quota
    }

    fn revision(&self, queue: QueueIdx) -> Revision {
        self.revisions.get(queue.idx()).copied().unwrap_or(Revision(0))
    }

    fn ask(&mut self, shape: ShapeId, cluster: &Cluster) -> AskId {
        if self.asks.len() <= shape.idx() {
            self.asks.resize(shape.idx() + 1, None);
        }
        let asks = &mut self.asks[shape.idx()];
        *asks.get_or_insert_with(|| self.quota.usage_mut().intern(cluster.demand(shape)))
    }
}
