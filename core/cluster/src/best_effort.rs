//! Room of the best-effort pool: what guaranteed running units do not use.
//!
//! Of a node it is allocatable, less what its [`NodeUsage`] reserves for those whose use is known, less the requests of
//! those bound after that (their assumptions and holds included): a guaranteed binding lowers it by its request at once.
//! Only cpu and memory are measured; of everything else requests count, and so they do on a node of which no use is known.
//!
//! A pure function of the records. It is kept from the first best-effort demand on: a cluster without any pays nothing.

use godel_domain::{
    demand::Pool,
    ids::{NodeId, Revision},
    node::NodeUsage,
    resources::{CPU, MEMORY},
    running_units::RunningUnit,
};

use super::{
    Cluster,
    room::{Asks, Room},
    shapes::ShapeId,
};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct BestEffort {
    /// Taken is what best-effort running units take, and what is kept from them.
    pub(super) room: Room,
    /// By node: guaranteed running units whose requests count in full, by commit time of their binding.
    recent: Vec<Vec<(i64, ShapeId)>>,
}

impl BestEffort {
    pub(super) fn grow(&mut self, n_nodes: usize, stride: usize) {
        self.room.grow(n_nodes, stride);
        if self.recent.len() < n_nodes {
            self.recent.resize_with(n_nodes, Vec::new);
        }
    }

    /// A guaranteed row of which `measured` was taken (`sign` 1) or given back (-1) in full. Whether room was gained.
    fn follow(
        &mut self,
        idx: usize,
        (shape, measured): (ShapeId, &Asks),
        bound_ms: i64,
        as_of_ms: i64,
        sign: i8,
    ) -> bool {
        if bound_ms <= as_of_ms {
            // It is in the use that is reserved.
            self.room.shift(idx, measured, i64::from(-sign));
            return sign > 0;
        }
        let recent = &mut self.recent[idx];
        if sign > 0 {
            recent.push((bound_ms, shape));
        } else if let Some(at) = recent.iter().rposition(|one| *one == (bound_ms, shape)) {
            recent.swap_remove(at);
        }
        false
    }
}

impl Cluster {
    /// What state says of a node's use; older than what is known is ignored.
    pub fn put_usage(&mut self, usage: NodeUsage, revision: Revision) {
        let Some(idx) = self.node_index(usage.id) else { return };
        let before = self.nodes[idx].usage.take();
        if before.as_ref().is_some_and(|known| known.1 > revision) {
            self.nodes[idx].usage = before;
            return;
        }
        let as_of_ms = usage.as_of_ms;
        let (was, now) = (before.as_ref().map(|(usage, _)| reserved(usage)), reserved(&usage));
        let was_as_of = before.map_or(i64::MIN, |(usage, _)| usage.as_of_ms);
        self.nodes[idx].usage = Some((usage, revision));
        if as_of_ms < was_as_of {
            self.forget_usage();
            return;
        }
        let Some(best_effort) = &mut self.best_effort else { return };
        let mut gains = was.iter().flatten().zip(&now).any(|((_, was), (_, now))| now < was);
        best_effort.room.shift(idx, &now, 1);
        best_effort.room.shift(idx, &was.unwrap_or_default(), -1);
        for (_, shape) in best_effort.recent[idx].extract_if(.., |(bound_ms, _)| *bound_ms <= as_of_ms) {
            best_effort.room.shift(idx, &self.shapes.get(shape).measured(), -1);
            gains = true;
        }
        if gains { self.note_gain(idx) } else { self.touch(idx) }
    }

    /// Whether some best-effort demand was ever seen.
    pub fn has_best_effort(&self) -> bool {
        self.best_effort.is_some()
    }

    /// More is taken of a node's best-effort room than there is, those that leave included.
    pub fn is_over(&self, node: NodeId) -> bool {
        // What a node has is not known while its records cannot be read.
        !self.frozen.has_node(node) && self.best_effort_free(node).iter().any(|left| *left < 0)
    }

    /// Free best-effort room of a node by resource integer, those that leave still taking theirs; empty while nothing of
    /// best-effort is known.
    pub fn best_effort_free(&self, node: NodeId) -> &[i64] {
        match (&self.best_effort, self.known(node)) {
            (Some(best_effort), Some(idx)) => best_effort.room.free(idx),
            (Some(_), None) | (None, _) => &[],
        }
    }

    /// From now on there may be demands of this pool.
    pub(super) fn keep_pool(&mut self, pool: Pool) {
        if pool == Pool::BestEffort && self.best_effort.is_none() {
            self.keep_best_effort();
        }
    }

    /// Begins to keep it, if it is not kept yet. `O(running units + nodes)` the first time.
    pub(super) fn keep_best_effort(&mut self) {
        if self.best_effort.is_some() {
            return;
        }
        let mut kept = Box::<BestEffort>::default();
        kept.grow(self.nodes.len(), self.names.len());
        for (idx, node) in self.nodes.iter().enumerate() {
            let allocatable: Vec<(u8, i64)> =
                (0u8..).zip(self.room.allocatable(idx)).map(|(id, amount)| (id, *amount)).collect();
            kept.room.set_allocatable(idx, &allocatable);
            kept.room.raise_devices(idx, self.device_room[idx]);
            if let Some((usage, _)) = &node.usage {
                kept.room.shift(idx, &reserved(usage), 1);
            }
        }
        for taken in self.units.values() {
            for (_, row) in taken.rows.live() {
                let shape = taken.shapes.get(usize::from(row.group)).copied().flatten();
                let (Some(shape), Some(idx)) = (shape, self.known(row.node)) else { continue };
                let of = self.shapes.get(shape);
                kept.room.shift(idx, &of.asks, 1);
                if of.pool == Pool::Guaranteed {
                    kept.follow(idx, (shape, &of.measured()), row.bound_time_ms, self.as_of(idx), 1);
                }
            }
        }
        for (_, _, assumed) in self.assumptions.iter() {
            if let Some(idx) = self.known(assumed.node) {
                kept.room.shift(idx, &self.shapes.get(assumed.shape).asks, 1);
            }
        }
        for (node, asks) in self.held() {
            if let Some(idx) = self.known(node) {
                kept.room.shift(idx, asks, 1);
            }
        }
        self.best_effort = Some(kept);
    }

    /// Usage of a node is known no longer, or of an earlier time: what was left out counts again.
    pub(super) fn forget_usage(&mut self) {
        if self.best_effort.take().is_some() {
            self.keep_best_effort();
            for idx in 0..self.nodes.len() {
                self.touch(idx);
            }
        }
    }

    /// A row's full request was taken (`sign` 1) or is given back (-1): less counts if it is in the use that is known.
    pub(super) fn follow_row(&mut self, shape: ShapeId, row: &RunningUnit, sign: i8) {
        let Some(best_effort) = &mut self.best_effort else { return };
        let resolved = self.shapes.get(shape);
        let Some(node) = self.nodes.get(row.node.idx()) else { return };
        if resolved.pool == Pool::Guaranteed {
            let as_of_ms = node.usage.as_ref().map_or(i64::MIN, |(usage, _)| usage.as_of_ms);
            let of = (shape, &resolved.measured());
            if best_effort.follow(row.node.idx(), of, row.bound_time_ms, as_of_ms, sign) {
                self.note_gain(row.node.idx());
            }
        }
    }

    pub(super) fn room_mut(&mut self, pool: Pool) -> Option<&mut Room> {
        match pool {
            Pool::Guaranteed => Some(&mut self.room),
            Pool::BestEffort => self.best_effort.as_mut().map(|best_effort| &mut best_effort.room),
        }
    }

    /// Something unseen is believed of a node.
    pub(super) fn has_foreign(&self, idx: usize) -> bool {
        self.room.has_foreign(idx)
            || self.nodes[idx].devices.has_foreign()
            || self.best_effort.as_ref().is_some_and(|best_effort| best_effort.room.has_foreign(idx))
    }

    fn as_of(&self, idx: usize) -> i64 {
        self.nodes[idx].usage.as_ref().map_or(i64::MIN, |(usage, _)| usage.as_of_ms)
    }
}

/// What is kept from best-effort running units, by the integers that cpu and memory have in every cluster.
fn reserved(usage: &NodeUsage) -> Asks {
    [(0, CPU), (1, MEMORY)].into_iter().map(|(id, name)| (id, usage.reserved.get(name))).collect()
}
