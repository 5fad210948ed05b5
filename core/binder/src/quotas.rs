//! What queues may use, and do use by committed rows and by bindings under way.
//!
//! Every binding and every end is counted, whether its queue has a maximum or not: a maximum may be set later.

use std::sync::Arc;

use godel_base::ids::{Revision, UnitId};
use godel_cluster::{Cluster, GroupDeltas, ShapeId};
use godel_domain::queue_spec::QueueSpec;
use godel_queueing::{AskId, Need, PayerIdx, QueueIdx, QueueMaximum, Quota};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::unit::Unit;

/// What a binding under way takes of its queue, by task group.
pub(super) type GroupNeeds = SmallVec<[(u16, Need); 1]>;

/// What a running unit takes of a queue: its demand, and whether it is an application master.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaShape {
    pub(super) shape: ShapeId,
    pub(super) is_of_master: bool,
}

impl From<ShapeId> for QuotaShape {
    fn from(shape: ShapeId) -> Self {
        Self { shape, is_of_master: false }
    }
}

/// Queues, their records' revisions and their usage.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    quota: Quota,
    /// By queue; 0 without a record.
    revisions: Vec<Revision>,
    /// By shape, each held for good as the shape is.
    asks: Vec<Option<AskId>>,
    /// By what it is without that: what an application master takes. Held for good, too.
    of_masters: FxHashMap<AskId, AskId>,
    /// By queue, replicas that move and count there though they are not on a node.
    n_movers: FxHashMap<QueueIdx, u32>,
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
        self.n_movers.clear();
        self.revisions.fill(Revision(0));
    }

    /// The index of a path, given now if it is new.
    pub(super) fn queue(&mut self, path: &str) -> QueueIdx {
        let queue = self.quota.queue(path);
        self.revisions.resize(self.quota.tree().len(), Revision(0));
        queue
    }

    /// Who pays for the running units of one more unit of a queue; kept until [`Self::leave`].
    pub(super) fn enter(&mut self, queue: QueueIdx, owner: &str) -> PayerIdx {
        self.quota.enter(queue, owner)
    }

    /// Ends one use of a payer.
    pub(super) fn leave(&mut self, payer: PayerIdx) {
        self.quota.leave(payer);
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
        payer: PayerIdx,
        shape: QuotaShape,
        n: u32,
        cluster: &Cluster,
    ) -> (Need, Option<QueueMaximum>) {
        let ask = self.ask(shape, cluster);
        let headroom = self.quota.usage().headroom(payer, ask);
        let need = Need { ask, n: n.min(headroom.n) };
        if need.n > 0 {
            self.quota.usage_mut().add(payer, need);
        }
        (need, headroom.limit.filter(|_| need.n < n))
    }

    /// How many running units of a shape fit under every maximum now. `O(depth)`.
    pub(super) fn n_fit(&mut self, payer: PayerIdx, shape: QuotaShape, cluster: &Cluster) -> u32 {
        let ask = self.ask(shape, cluster);
        self.quota.usage().headroom(payer, ask).n
    }

    /// Counts a binding under way (again).
    pub(super) fn add(&mut self, payer: PayerIdx, needs: &GroupNeeds) {
        for (_, need) in needs {
            self.quota.usage_mut().add(payer, *need);
        }
    }

    /// What so many running units of a shape take, without taking it.
    pub(super) fn need(&mut self, shape: QuotaShape, n: u32, cluster: &Cluster) -> Need {
        Need { ask: self.ask(shape, cluster), n }
    }

    /// The same need of application masters.
    pub(super) fn need_of_masters(&mut self, need: Need) -> Need {
        let usage = self.quota.usage_mut();
        let of_master = self.of_masters.entry(need.ask).or_insert_with(|| usage.intern_master(need.ask));
        Need { ask: *of_master, ..need }
    }

    /// Takes whatever the maxima say: it was taken before.
    pub(super) fn add_need(&mut self, payer: PayerIdx, need: Need) {
        self.quota.usage_mut().add(payer, need);
    }

    /// Ends a [`Self::take`].
    pub(super) fn give_back(&mut self, payer: PayerIdx, need: Need) {
        self.quota.usage_mut().sub(payer, need);
    }

    /// Rows of a unit began or ceased to take room; `sign` -1: the opposite.
    pub(super) fn charge_groups(
        &mut self,
        id: UnitId,
        unit: &Unit,
        turns: &GroupDeltas,
        sign: i64,
        cluster: &Cluster,
    ) {
        for (group, n) in turns.iter() {
            let Some(shape) = cluster.rows().group_shape(id, group) else { continue };
            let ask = self.ask(unit.in_quota(group, shape), cluster);
            let need = Need { ask, n: u32::try_from(n.unsigned_abs()).unwrap_or(u32::MAX) };
            match (n * sign).signum() {
                1 => self.quota.usage_mut().add(unit.payer, need),
                -1 => self.quota.usage_mut().sub(unit.payer, need),
                _ => {}
            }
        }
        for (group, n) in turns.leaving() {
            let Some(shape) = cluster.rows().group_shape(id, group) else { continue };
            let need = Need { ask: self.ask(unit.in_quota(group, shape), cluster), n: 1 };
            self.quota.usage_mut().note_leaving(unit.queue, need, n * sign);
        }
    }

    /// Counts what is about to be told to leave (`sign` 1), or is no more (-1).
    pub(super) fn promise(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.quota.usage_mut().note_promised(queue, need, sign);
    }

    /// Counts replicas that move (`sign` 1), or does no longer (-1): `need` those that are not on a node, `n_returning` those of which
    /// the old incarnation counts and leaves, as what stays.
    pub(super) fn count_movers(
        &mut self,
        queue: QueueIdx,
        payer: PayerIdx,
        need: Need,
        n_returning: u32,
        sign: i64,
    ) {
        if need.n > 0 {
            let usage = self.quota.usage_mut();
            if sign > 0 {
                usage.add(payer, need)
            } else {
                usage.sub(payer, need)
            }
            let n_movers = self.n_movers.entry(queue).or_default();
            *n_movers = if sign > 0 { *n_movers + need.n } else { n_movers.saturating_sub(need.n) };
            if *n_movers == 0 {
                self.n_movers.remove(&queue);
            }
        }
        if n_returning > 0 {
            self.quota.usage_mut().note_leaving(queue, Need { n: n_returning, ..need }, -sign);
        }
    }

    /// A maximum that is reached, in words.
    pub(super) fn words(&self, limit: QueueMaximum) -> String {
        let full = self.quota.full(limit).to_string();
        let is_below = |queue: &QueueIdx| self.quota.tree().upwards(*queue).any(|level| level == limit.queue);
        let of_movers = self.n_movers.iter().filter(|(queue, _)| is_below(queue));
        match of_movers.map(|(_, n)| *n).sum::<u32>() {
            0 => full,
            1 => format!("{full}; the place of 1 replica that moves is kept there"),
            n => format!("{full}; the places of {n} replicas that move are kept there"),
        }
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

    fn ask(&mut self, QuotaShape { shape, is_of_master }: QuotaShape, cluster: &Cluster) -> AskId {
        if self.asks.len() <= shape.idx() {
            self.asks.resize(shape.idx() + 1, None);
        }
        let asks = &mut self.asks[shape.idx()];
        let ask =
            *asks.get_or_insert_with(|| self.quota.usage_mut().intern(cluster.catalogue().demand(shape)));
        if is_of_master { self.need_of_masters(Need { ask, n: 1 }).ask } else { ask }
    }
}
