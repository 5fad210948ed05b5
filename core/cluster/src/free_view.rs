//! Nodes and what is free on them, as deciders see them.

use godel_base::{ids::NodeId, resources::Resources};
use godel_domain::{demand::Pool, host_port::HostPort};
use smallvec::SmallVec;

use super::{
    catalogue::Catalogue,
    devices::NodeDevices,
    free::FreeRoom,
    gathering::GatheringHolds,
    generations::Generations,
    hardware::NodeHardware,
    records::NodeRecords,
    room::Room,
    shapes::{COUNT, Shape, ShapeId},
    sub_clusters::{NodeBlocks, nodes_of},
    unfit::Unfit,
};

/// What is free, with the words and shapes by which it is asked for. Whether room suffices is said in `fit`.
#[derive(Clone, Copy, Debug)]
pub struct FreeView<'a> {
    pub(crate) records: &'a NodeRecords,
    pub(crate) free: &'a FreeRoom,
    pub(crate) catalogue: &'a Catalogue,
}

impl<'a> FreeView<'a> {
    #[inline]
    pub(crate) fn shape(self, shape: ShapeId) -> &'a Shape {
        self.catalogue.shape(shape)
    }

    /// Node ids are below this.
    #[inline]
    pub fn n_indices(self) -> usize {
        self.free.len()
    }

    /// Returns the indices of the nodes of some blocks, ascending; of all nodes for `None`.
    #[inline]
    pub fn located(self, blocks: NodeBlocks<'_>) -> impl Iterator<Item = usize> + use<'_> {
        let all = if blocks.is_none() { 0..self.n_indices() } else { 0..0 };
        all.chain(blocks.into_iter().flat_map(nodes_of))
    }

    /// Returns when nodes changed last.
    #[inline]
    pub fn generations(self) -> &'a Generations {
        &self.free.generations
    }

    /// Returns the holds that gather.
    #[inline]
    pub fn gathering(self) -> &'a GatheringHolds {
        &self.free.gathering
    }

    /// Returns the devices of the node at an index.
    #[inline]
    pub fn devices(self, idx: usize) -> &'a NodeDevices {
        &self.hardware(idx).devices
    }

    /// Returns the devices and zones of the node at an index.
    #[inline]
    pub fn hardware(self, idx: usize) -> &'a NodeHardware {
        &self.free.hardware[idx]
    }

    /// Returns the room of a shape's pool.
    #[inline]
    pub fn room(self, shape: ShapeId) -> &'a Room {
        self.room_of(self.shape(shape))
    }

    /// Returns the room of the pool that a shape is of.
    #[inline]
    pub fn room_of(self, shape: &Shape) -> &'a Room {
        self.free.room_of(shape)
    }

    /// Returns what running units on a node count in scores beyond what they take, of cpu and memory.
    #[inline]
    pub fn nominal(self, idx: usize) -> [i64; 2] {
        self.free.nominal.of(idx)
    }

    /// Returns what is taken on a node of the guaranteed pool, assumptions included and foreign notes not, and the
    /// thousandths free per device.
    #[inline]
    pub fn node_state(self, node: NodeId) -> Option<(Resources, Vec<u32>)> {
        self.pool_state(node, Pool::Guaranteed)
    }

    /// Returns the same of either pool. Of best-effort room what guaranteed running units use is taken too.
    #[inline]
    pub fn pool_state(self, node: NodeId, pool: Pool) -> Option<(Resources, Vec<u32>)> {
        let idx = self.free.known(node)?;
        let devices = self.devices(idx);
        let free = (0..devices.len()).map(|device| devices.free_seen(device)).collect();
        Some((self.catalogue.resources(&self.free.pools.of(pool).taken(idx)), free))
    }

    /// Returns the allocatable in force; empty when the node has not reported.
    #[inline]
    pub fn allocatable(self, node: NodeId) -> Option<Resources> {
        let row = self.free.pools.guaranteed().allocatable(self.free.known(node)?);
        let mut amounts: SmallVec<[i64; 8]> = SmallVec::from_slice(row);
        // No node reports the number of running units as a resource.
        if let Some(count) = amounts.get_mut(usize::from(COUNT)) {
            *count = 0;
        }
        Some(self.catalogue.resources(&amounts))
    }

    /// Whether some best-effort demand was ever seen.
    #[inline]
    pub fn has_best_effort(self) -> bool {
        self.free.pools.best_effort().is_some()
    }

    /// Whether more is taken of a node's best-effort room than there is, those that leave included.
    #[inline]
    pub fn is_over(self, node: NodeId) -> bool {
        // What a node has is not known while its records cannot be read.
        !self.records.frozen().has_node(node) && self.best_effort_free(node).iter().any(|left| *left < 0)
    }

    /// Returns the free best-effort room of a node by resource integer, those that leave still taking theirs; empty while
    /// nothing of best-effort is known.
    #[inline]
    pub fn best_effort_free(self, node: NodeId) -> &'a [i64] {
        match (self.free.pools.best_effort(), self.free.known(node)) {
            (Some(best_effort), Some(idx)) => best_effort.room.free(idx),
            (Some(_), None) | (None, _) => &[],
        }
    }

    /// Returns the first port of a shape that is taken on the node at an index (hot path).
    #[inline]
    pub fn taken_port(self, shape: ShapeId, idx: usize) -> Option<HostPort> {
        let shape = self.shape(shape);
        if shape.has_ports { self.free.ports.first_taken(idx, &shape.demand.host_ports) } else { None }
    }

    /// Whether the ports that a shape listens on are free on a node.
    ///
    /// # Errors
    /// A port is taken.
    #[inline]
    pub fn fits_ports(self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        match self.taken_port(shape, node.idx()) {
            None => Ok(()),
            Some(port) => Err(Unfit::Port { port: port.to_string() }),
        }
    }

    /// Like [`Self::fits_zones`], without building an error message (hot path).
    #[inline]
    pub fn has_zones(self, shape: ShapeId, idx: usize) -> bool {
        let shape = self.shape(shape);
        !shape.is_placed || self.hardware(idx).pick(shape).is_some()
    }

    /// Whether so many zones of the node at an index are used as little as a shape accepts that it could be given enough of them; true
    /// on a node without zones, and for a shape that says nothing of them.
    #[inline]
    pub fn has_calm_zones(self, shape: ShapeId, idx: usize) -> bool {
        let topology = self.hardware(idx).topology.as_deref();
        topology.is_none_or(|topology| topology.has_calm(self.shape(shape)))
    }
}
