//! Queues with something that may be served stand in the orders of those above them.

use godel_domain::queue_spec::Band;
use smallvec::SmallVec;

use super::{Branch, Queues, by_path};
use crate::{limit_gate::LimitRow, tree::QueueIdx, usage::Need};

impl Queues {
    /// A class of a queue may be served.
    pub(crate) fn entered(&mut self, queue: QueueIdx, band: Band, need: Need) {
        if self.n_gates == 0 {
            return self.activate(queue, band);
        }
        let usage = self.quota.usage();
        let row = usage.limited_upwards(queue).next().map(|_| usage.amounts(need));
        self.show(queue, band, row.unwrap_or_default());
    }

    /// Something of a queue may be served that needs at least `least`: the queue, and what is above it, stand in their
    /// parents' orders, up to the first one under whose maximum all of that does not fit.
    fn show(&mut self, queue: QueueIdx, band: Band, mut least: LimitRow) {
        self.activate(queue, band);
        let limited: SmallVec<[QueueIdx; 8]> = self.quota.usage().limited_upwards(queue).collect();
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
                let turn = self.quota.usage().turn(tree.paths_below(above)[only as usize]);
                order.set(only, turn, &|a, b| by_path(&self.quota, above, a, b));
            }
            order.set(place, self.quota.usage().turn(level), &|a, b| by_path(&self.quota, above, a, b));
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
