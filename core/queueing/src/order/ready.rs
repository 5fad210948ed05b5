//! Queues with something that may be served stand in the orders of those above them. Opening or shutting a room changes
//! which these are.

use std::{cmp::Ordering, collections::BTreeSet};

use godel_domain::queue_spec::Band;
use smallvec::SmallVec;

use super::{Branch, Queues, Waiting, by_path};
use crate::{limit_gate::LimitRow, rooms::RoomIdx, tree::QueueIdx, usage::Need};

impl Queues {
    /// Units of a room are served from now on, or are not.
    pub fn set_open(&mut self, room: RoomIdx, is_open: bool) {
        for (queue, spot) in self.rooms.set_open(room, is_open) {
            let leaf = &mut self.branches[queue.idx()].leaf;
            leaf.set_shut(spot, !is_open, self.quota.usage());
            let is_stalled = leaf.lane(spot.band, spot.seat).and_then(|lane| lane.stall);
            if is_open {
                if let Some(need) = leaf.ready_need(spot) {
                    self.entered(queue, spot.band, need);
                }
            } else {
                if is_stalled.is_some_and(|stall| stall.class == spot.class) {
                    self.set_stall(queue, spot, None);
                }
                self.deactivate(queue, spot.band);
            }
        }
    }

    /// Rooms for which somebody began or ended to wait since this was asked last.
    pub fn take_touched(&mut self) -> BTreeSet<RoomIdx> {
        self.rooms.take_touched()
    }

    /// Of the units that wait for a room the one whose turn would come first if there were a place. `O(classes of it)`.
    pub fn first_lacking(&self, room: RoomIdx) -> Option<&Waiting> {
        let heads = self.rooms.spots(room).filter_map(|(queue, spot)| {
            let (_, waiting) = self.branches[queue.idx()].leaf.head(*spot)?;
            Some(waiting)
        });
        heads.min_by(|a, b| self.order(a, b))
    }

    /// Whose turn comes first of two units that wait, or did, whether there is room for them or not. `O(depth)`.
    pub fn order(&self, a: &Waiting, b: &Waiting) -> Ordering {
        let in_queue = || self.branches[a.queue.idx()].leaf.order(a, b, self.quota.usage());
        self.order_of_queues(a, b).then_with(in_queue)
    }

    /// The same by their bands and queues.
    pub fn order_of_queues(&self, a: &Waiting, b: &Waiting) -> Ordering {
        a.band.cmp(&b.band).then_with(|| {
            if a.queue == b.queue {
                return Ordering::Equal;
            }
            let (tree, usage) = (self.quota.tree(), self.quota.usage());
            let (of_a, of_b) = (tree.way_to(a.queue), tree.way_to(b.queue));
            let parting = of_a.iter().zip(&of_b).find(|(a, b)| a != b);
            // Units of a queue that got others below it later come before those.
            parting.map_or(of_a.len().cmp(&of_b.len()), |(a, b)| {
                let by_share = usage.share_key(*a).cmp(&usage.share_key(*b));
                by_share.then_with(|| tree.path(*a).cmp(tree.path(*b)))
            })
        })
    }

    /// Whether the queue of one that waits comes before that of another unit even if it has this one. Of one queue none does.
    pub fn is_before_even_with(&self, waiting: &Waiting, other: &Waiting) -> bool {
        if waiting.band != other.band || waiting.queue == other.queue {
            return waiting.band < other.band;
        }
        let tree = self.quota.tree();
        let (own, others) = (tree.way_to(waiting.queue), tree.way_to(other.queue));
        let parting = own.iter().zip(&others).find(|(a, b)| a != b);
        let usage = self.quota.usage();
        parting.is_some_and(|(own, other)| usage.share_key_with(*own, waiting.need) < usage.share_key(*other))
    }

    /// A maximum of its queue is in the way of one that waits.
    pub fn is_at_maximum(&self, waiting: &Waiting) -> bool {
        self.n_gates > 0 && self.quota.usage().shortage(waiting.payer, waiting.need).is_some()
    }

    /// Whether what comes free is shared out: units of other queues or bands wait for room as well, or owners of the same queue
    /// take turns.
    pub fn is_contested(&self, queue: QueueIdx, band: Band) -> bool {
        self.branches[queue.idx()].leaf.policy().is_by_owner() || self.rooms.has_others(queue, band)
    }

    /// A class of a queue may be served.
    pub(crate) fn entered(&mut self, queue: QueueIdx, band: Band, need: Need) {
        if self.n_gates == 0 {
            return self.activate(queue, band);
        }
        let usage = self.quota.usage();
        let row = usage
            .sums()
            .limited_upwards(queue)
            .next()
            .map(|_| usage.asks().amounts(need, usage.columns().len()));
        self.show(queue, band, row.unwrap_or_default());
    }

    /// Something of a queue may be served that needs at least `least`: the queue, and what is above it, stand in their
    /// parents' orders, up to the first one under whose maximum all of that does not fit.
    fn show(&mut self, queue: QueueIdx, band: Band, mut least: LimitRow) {
        self.activate(queue, band);
        let limited: SmallVec<[QueueIdx; 8]> = self.quota.usage().sums().limited_upwards(queue).collect();
        for level in limited {
            let Branch { gate, is_closed, .. } = &mut self.branches[level.idx()];
            let Some(gate) = gate else { continue };
            gate.lower(band, &least);
            if !is_closed[band.idx()] {
                continue;
            }
            if gate.is_shut(level, band, self.quota.usage()) {
                return;
            }
            // What else waits behind it shows again, too.
            is_closed[band.idx()] = false;
            least.clone_from(gate.least(band));
            self.activate(level, band);
        }
    }

    /// Puts a queue with something ready into its parent's order, and on upwards.
    pub(crate) fn activate(&mut self, queue: QueueIdx, band: Band) {
        let mut level = queue;
        while level != QueueIdx::ROOT {
            let branch = &self.branches[level.idx()];
            if branch.is_closed[band.idx()] || !branch.is_ready(band) {
                return;
            }
            let tree = self.quota.tree();
            let (above, place) = (tree.parent(level), tree.place(level));
            let was_ready = self.branches[above.idx()].is_ready(band);
            let order = &mut self.branches[above.idx()].order[band.idx()];
            if order.contains(place) {
                return;
            }
            if let Some(only) = order.only() {
                let turn = self.quota.usage().share_key(tree.paths_below(above)[only as usize]);
                order.set(only, turn, &|a, b| by_path(&self.quota, above, a, b));
            }
            order.set(place, self.quota.usage().share_key(level), &|a, b| by_path(&self.quota, above, a, b));
            if was_ready {
                return;
            }
            level = above;
        }
    }

    /// Takes a queue with nothing ready out of its parent's order, and on upwards.
    pub(crate) fn deactivate(&mut self, queue: QueueIdx, band: Band) {
        let mut level = queue;
        while !self.branches[level.idx()].is_ready(band) {
            if let Some(gate) = &mut self.branches[level.idx()].gate {
                gate.forget_least(band);
            }
            if level == QueueIdx::ROOT {
                return;
            }
            level = self.leave_order(level, band);
        }
    }

    /// Nothing below a queue can fit now.
    pub(crate) fn close(&mut self, queue: QueueIdx, band: Band) {
        self.branches[queue.idx()].is_closed[band.idx()] = true;
        let above = self.leave_order(queue, band);
        self.deactivate(above, band);
    }

    /// Something below a queue may fit again.
    pub(crate) fn reopen(&mut self, queue: QueueIdx, band: Band) {
        let Branch { gate, is_closed, .. } = &mut self.branches[queue.idx()];
        let was_closed = std::mem::take(&mut is_closed[band.idx()]);
        if let Some(gate) = gate.as_ref().filter(|_| was_closed) {
            let least = gate.least(band).clone();
            if self.branches[queue.idx()].is_ready(band) {
                self.show(queue, band, least);
            }
        }
    }

    /// Returns the queue above.
    fn leave_order(&mut self, queue: QueueIdx, band: Band) -> QueueIdx {
        let tree = self.quota.tree();
        let (above, place) = (tree.parent(queue), tree.place(queue));
        let order = &mut self.branches[above.idx()].order[band.idx()];
        order.remove(place, &|a, b| by_path(&self.quota, above, a, b));
        above
    }
}
