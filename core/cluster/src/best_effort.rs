//! Room of the best-effort pool: what guaranteed running units do not use.
//!
//! Of a node it is allocatable, less what its [`NodeUsage`] reserves for those whose use is known, less the requests of
//! those bound after that (their assumptions and holds included): a guaranteed binding lowers it by its request at once.
//! Only cpu and memory are measured; of everything else requests count, and so they do on a node of which no use is known.
//!
//! A pure function of the records. It is kept from the first best-effort demand on: a cluster without any pays nothing.

use godel_base::resources::{CPU, MEMORY};
use godel_domain::{node::NodeUsage, running_units::RunningUnit};

use super::{
    room::{Asks, DeviceRoom, Room},
    shapes::{ShapeId, Shapes},
};

/// What the best-effort pool has on each node, and what its size rests on.
#[derive(Clone, Debug, Default)]
pub(crate) struct BestEffort {
    /// Taken is what best-effort running units take, and what is kept from them.
    pub(crate) room: Room,
    /// By node: up to when the use of guaranteed running units is known, Unix milliseconds; `i64::MIN`: it is not.
    as_of_ms: Vec<i64>,
    /// By node: guaranteed running units whose requests count in full, by commit time of their binding.
    recent: Vec<Vec<(i64, ShapeId)>>,
}

impl BestEffort {
    /// Returns the pool's room on empty nodes, of the same size as the guaranteed pool's.
    pub(crate) fn beside(guaranteed: &Room, n_resources: usize, devices: &[DeviceRoom]) -> Self {
        let mut kept = Self::default();
        kept.grow(devices.len(), n_resources);
        for (idx, devices) in devices.iter().enumerate() {
            let allocatable: Vec<(u8, i64)> =
                (0u8..).zip(guaranteed.allocatable(idx)).map(|(id, amount)| (id, *amount)).collect();
            kept.room.set_allocatable(idx, &allocatable);
            kept.room.raise_devices(idx, *devices);
        }
        kept
    }

    /// Makes place for `n_nodes` nodes and `stride` resources; never shrinks.
    pub(crate) fn grow(&mut self, n_nodes: usize, stride: usize) {
        self.room.grow(n_nodes, stride);
        if self.recent.len() < n_nodes {
            self.recent.resize_with(n_nodes, Vec::new);
            self.as_of_ms.resize(n_nodes, i64::MIN);
        }
    }

    /// The first use of a node that is known, before any row was followed.
    pub(crate) fn begin_usage(&mut self, idx: usize, usage: &NodeUsage) {
        self.as_of_ms[idx] = usage.as_of_ms;
        self.room.shift(idx, &reserved(usage), 1);
    }

    /// The use of a node is known up to a later time. Returns whether room was gained.
    pub(crate) fn put_usage(
        &mut self,
        shapes: &Shapes,
        idx: usize,
        was: Option<&NodeUsage>,
        now: &NodeUsage,
    ) -> bool {
        self.as_of_ms[idx] = now.as_of_ms;
        let as_of_ms = now.as_of_ms;
        let (was, now) = (was.map(reserved), reserved(now));
        let mut gains = was.iter().flatten().zip(&now).any(|((_, was), (_, now))| now < was);
        self.room.shift(idx, &now, 1);
        self.room.shift(idx, &was.unwrap_or_default(), -1);
        for (_, shape) in self.recent[idx].extract_if(.., |(bound_ms, _)| *bound_ms <= as_of_ms) {
            self.room.shift(idx, &shapes.get(shape).measured(), -1);
            gains = true;
        }
        gains
    }

    /// A guaranteed row of which `measured` was taken (`sign` 1) or given back (-1) in full. Less counts if it is in the use
    /// that is known. Returns whether room was gained.
    pub(crate) fn count_row(&mut self, shape: ShapeId, measured: &Asks, row: &RunningUnit, sign: i8) -> bool {
        let idx = row.node.idx();
        if row.bound_time_ms <= self.as_of_ms[idx] {
            // It is in the use that is reserved.
            self.room.shift(idx, measured, i64::from(-sign));
            return sign > 0;
        }
        let recent = &mut self.recent[idx];
        let bound = (row.bound_time_ms, shape);
        if sign > 0 {
            recent.push(bound);
        } else if let Some(at) = recent.iter().rposition(|one| *one == bound) {
            recent.swap_remove(at);
        }
        false
    }
}

/// What is kept from best-effort running units, by the integers that cpu and memory have in every cluster.
fn reserved(usage: &NodeUsage) -> Asks {
    [(0, CPU), (1, MEMORY)].into_iter().map(|(id, name)| (id, usage.reserved.get(name))).collect()
}

#[cfg(test)]
mod tests {
    use godel_base::{ids::NodeId, resources::Resources};
    use godel_domain::demand::{Demand, Pool};

    use super::*;
    use crate::catalogue::Catalogue;

    #[test]
    fn a_row_counts_in_full_until_its_use_is_known() {
        let mut catalogue = Catalogue::default();
        let requests = Resources::new([(CPU, 400)]).unwrap();
        let shape = catalogue.intern(
            &Demand { requests, devices: Vec::new(), host_ports: Vec::new(), zones: None },
            Pool::Guaranteed,
        );
        let mut guaranteed = Room::default();
        guaranteed.grow(1, catalogue.n_resources());
        guaranteed.set_allocatable(0, &[(0, 1000)]);
        let mut kept = BestEffort::beside(&guaranteed, catalogue.n_resources(), &[DeviceRoom::default()]);
        let usage = |cpu, as_of_ms| NodeUsage {
            id: NodeId(0),
            reserved: Resources::new([(CPU, cpu)]).unwrap(),
            as_of_ms,
            ..NodeUsage::default()
        };
        let cpu_free = |kept: &BestEffort| kept.room.free(0)[0];

        // Two rows are bound, each of which takes its request in full.
        let measured = catalogue.shape(shape).measured();
        for bound_time_ms in [5, 15] {
            kept.room.shift(0, &catalogue.shape(shape).asks, 1);
            let row = RunningUnit { node: NodeId(0), bound_time_ms, ..RunningUnit::default() };
            assert!(!kept.count_row(shape, &measured, &row, 1));
        }
        assert_eq!(cpu_free(&kept), 200);
        // The use of the first is known, then that of both.
        assert!(kept.put_usage(catalogue.shapes(), 0, None, &usage(100, 10)));
        assert_eq!(cpu_free(&kept), 500);
        assert!(kept.put_usage(catalogue.shapes(), 0, Some(&usage(100, 10)), &usage(350, 20)));
        assert_eq!(cpu_free(&kept), 650);
        // More is used: nothing is gained.
        assert!(!kept.put_usage(catalogue.shapes(), 0, Some(&usage(350, 20)), &usage(700, 30)));
        assert_eq!(cpu_free(&kept), 300);
    }
}
