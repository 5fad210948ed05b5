//! Whether a node takes one more running unit: by its free room, its devices, its state, its labels and its taints.

use std::collections::BTreeMap;

use godel_domain::{demand::Pool, ids::NodeId, node::Toleration};

use super::{
    Cluster,
    labels::is_tolerated,
    shapes::{Shape, ShapeId},
    unfit::Unfit,
};

impl Cluster {
    /// Whether the free room of a node holds one more of a shape: resources, then devices. Says nothing of
    /// readiness, labels and taints.
    ///
    /// # Errors
    /// What is short.
    pub fn fits(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        self.fits_resources(shape, node)?;
        self.fits_devices(shape, node)
    }

    /// Whether a node has the resources that a shape asks for; devices aside.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_resources(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        let idx = self.known(node).ok_or(Unfit::Gone)?;
        let shape = self.shapes.get(shape);
        if let Some(name) = &shape.unknown {
            return Err(Unfit::Resource { name: name.clone() });
        }
        match self.room_of(shape).shortage(idx, &shape.asks) {
            Some(id) => Err(Unfit::Resource { name: self.names.name(usize::from(id)).to_owned() }),
            None => Ok(()),
        }
    }

    /// Whether a node has the devices that a shape asks for; resources aside.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_devices(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        let idx = self.known(node).ok_or(Unfit::Gone)?;
        let shape = self.shapes.get(shape);
        let (Some(ask), Some(request)) = (&shape.devices, &shape.demand.devices) else { return Ok(()) };
        let devices = &self.nodes[idx].devices;
        if devices.pick(ask).is_some() { Ok(()) } else { Err(devices.shortage(ask, request, &self.classes)) }
    }

    /// How many of a shape the free room of a node holds, `max` at most; one of those that ask for devices.
    pub fn n_fit(&self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        let shape = self.shapes.get(shape);
        let max = if shape.devices.is_some() { max.min(1) } else { max };
        shape.n_fit(self.room_of(shape).free(idx), max)
    }

    /// As [`Self::fits`], for the cycle: no words.
    pub fn has_resources(&self, shape: ShapeId, idx: usize) -> bool {
        let shape = self.shapes.get(shape);
        shape.fits(self.room_of(shape).free(idx))
    }

    /// Like [`Self::fits_devices`], without building an error message (hot path).
    #[inline]
    pub fn has_devices(&self, shape: ShapeId, idx: usize) -> bool {
        self.devices_for(self.shapes.get(shape), idx).is_some()
    }

    /// The devices that one more of a shape would take, as [`Self::pick_devices`], if the node's free room holds it.
    #[inline]
    pub fn room_for(&self, shape: ShapeId, idx: usize) -> Option<u64> {
        let shape = self.shapes.get(shape);
        if shape.fits(self.room_of(shape).free(idx)) { self.devices_for(shape, idx) } else { None }
    }

    fn devices_for(&self, shape: &Shape, idx: usize) -> Option<u64> {
        let Some(ask) = &shape.devices else { return Some(0) };
        let (room, least) = (self.device_room[idx], shape.least_devices);
        let may_fit = room.whole >= least.whole && room.share >= least.share;
        if may_fit { self.nodes[idx].devices.pick(ask) } else { None }
    }

    /// The devices that one more of a shape should take on a node: 0 for a shape without devices, `None`
    /// when they are short. Whole devices of lowest index; for a share the fitting device with the least
    /// left, lowest index on ties.
    pub fn pick_devices(&self, shape: ShapeId, node: NodeId) -> Option<u64> {
        let idx = self.known(node)?;
        match &self.shapes.get(shape).devices {
            Some(ask) => self.nodes[idx].devices.pick(ask),
            None => Some(0),
        }
    }

    /// The devices of a node that a shape gets now: the ones in `wanted`, or those that [`Self::pick_devices`]
    /// finds when others took some of these.
    ///
    /// # Errors
    /// What is wrong with the wanted ones, or that they are taken and no others are free.
    pub fn grant_devices(&self, shape: ShapeId, node: NodeId, wanted: u64) -> Result<u64, Unfit> {
        let idx = self.known(node).ok_or(Unfit::Gone)?;
        let shape = self.shapes.get(shape);
        match (&shape.devices, &shape.demand.devices) {
            (Some(ask), Some(request)) => self.nodes[idx].devices.grant(ask, request, wanted),
            (_, _) if wanted == 0 => Ok(0),
            (_, _) => Err(Unfit::Device { reason: "devices chosen, none asked".to_owned() }),
        }
    }

    /// Whether a node exists, is ready and neither cordoned nor drained, and all of its records can be read.
    ///
    /// # Errors
    /// The first of these that fails.
    #[inline]
    pub fn usable(&self, node: NodeId) -> Result<(), Unfit> {
        if self.frozen.has_node(node) {
            return Err(Unfit::Unreadable);
        }
        let spec = self.spec(node).ok_or(Unfit::Gone)?;
        if !self.report(node).is_some_and(|report| report.ready) {
            return Err(Unfit::NotReady);
        }
        if spec.is_closed() { Err(Unfit::Cordoned) } else { Ok(()) }
    }

    /// Whether labels and taints of a node allow a template.
    ///
    /// # Errors
    /// The first label or taint that does not.
    pub fn allows(
        &self,
        selector: &BTreeMap<String, String>,
        tolerations: &[Toleration],
        node: NodeId,
    ) -> Result<(), Unfit> {
        self.has_labels(selector, node)?;
        self.is_tolerated_on(tolerations, node)
    }

    /// Whether a node has every label of a selector.
    ///
    /// # Errors
    /// The first label that it lacks, in order of key.
    pub fn has_labels(&self, selector: &BTreeMap<String, String>, node: NodeId) -> Result<(), Unfit> {
        for (key, value) in selector {
            if self.label(node, key) != Some(value.as_str()) {
                return Err(Unfit::Selector { key: key.clone(), value: value.clone() });
            }
        }
        Ok(())
    }

    /// Whether tolerations accept every hard taint of a node.
    ///
    /// # Errors
    /// The first hard taint that is not tolerated.
    pub fn is_tolerated_on(&self, tolerations: &[Toleration], node: NodeId) -> Result<(), Unfit> {
        let spec = self.spec(node).ok_or(Unfit::Gone)?;
        for taint in &spec.taints {
            if taint.effect.is_hard() && !is_tolerated(taint, tolerations) {
                let separator = if taint.value.is_empty() { "" } else { "=" };
                return Err(Unfit::Taint { taint: format!("{}{separator}{}", taint.key, taint.value) });
            }
        }
        Ok(())
    }

    /// False only if no node of the block has room for the shape.
    pub fn block_may_fit(&self, block: usize, shape: ShapeId) -> bool {
        let shape = self.shapes.get(shape);
        shape.unknown.is_none() && self.room_of(shape).block_may_fit(block, &shape.asks, shape.least_devices)
    }

    /// Nodes of a block were looked at in vain for a shape: its bounds may be too high.
    pub fn tighten(&mut self, block: usize, shape: ShapeId) {
        let device_room = &self.device_room;
        let room = match (self.shapes.get(shape).pool, &mut self.best_effort) {
            (Pool::BestEffort, Some(best_effort)) => &mut best_effort.room,
            (Pool::Guaranteed, _) | (Pool::BestEffort, None) => &mut self.room,
        };
        room.tighten(block, |idx| device_room[idx]);
    }
}
