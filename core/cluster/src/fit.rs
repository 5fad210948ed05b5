//! Whether a node has room for one more running unit: by its free room and its devices.
//!
//! Whether the node may be used at all, its labels and its taints are `records`' business.

use godel_base::ids::NodeId;
use godel_domain::allocation::{Allocation, GivenZones};

use super::{
    free::FreeRoom,
    free_view::FreeView,
    shapes::{Shape, ShapeId},
    unfit::Unfit,
};

impl FreeRoom {
    /// Whether a node has the resources that a shape asks for; devices aside.
    #[inline(always)]
    fn has_resources(&self, shape: &Shape, idx: usize) -> bool {
        shape.fits(self.room_of(shape).free(idx))
    }
}

/// For the cycle: nothing is said in words.
impl FreeView<'_> {
    /// Returns how many of a shape the free room of a node holds, `max` at most; at most one of those that ask for devices, zones or ports.
    pub fn n_fit(self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        let shape = self.shape(shape);
        let max = if shape.is_plain { max } else { max.min(1) };
        shape.n_fit(self.room_of(shape).free(idx), max)
    }

    /// Returns how many of a shape the free room of a node holds at most, `max` at most, with those that ask for devices: each device request by itself.
    pub fn n_fit_together(self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        let shape = self.shape(shape);
        if !shape.fits(self.room_of(shape).free(idx)) {
            return 0;
        }
        let of_devices = shape.devices.iter().map(|ask| self.devices(idx).n_fit(ask)).min();
        let of_zones = self.hardware(idx).n_fit_zones(shape, false);
        shape.n_fit(self.room_of(shape).free(idx), max).min(of_devices.unwrap_or(u32::MAX)).min(of_zones)
    }

    /// The same if nothing ran there.
    pub fn n_fit_empty(self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        let shape = self.shape(shape);
        let allocatable = self.room_of(shape).allocatable(idx);
        if !shape.fits(allocatable) {
            return 0;
        }
        let of_devices = shape.devices.iter().map(|ask| self.devices(idx).n_fit_empty(ask)).min();
        let of_zones = self.hardware(idx).n_fit_zones(shape, true);
        shape.n_fit(allocatable, max).min(of_devices.unwrap_or(u32::MAX)).min(of_zones)
    }

    /// Whether a node has the resources that a shape asks for, without building an error message (hot path).
    #[inline]
    pub fn has_resources(self, shape: ShapeId, idx: usize) -> bool {
        self.free.has_resources(self.shape(shape), idx)
    }

    /// Returns what one more of a shape would be given, as by [`Self::pick`], if the node's free room holds it.
    #[inline(always)]
    pub fn room_for(self, shape: ShapeId, idx: usize) -> Option<Allocation> {
        let shape = self.shape(shape);
        if self.free.has_resources(shape, idx) { self.allocation_for(shape, idx) } else { None }
    }

    /// Returns the devices and zones that one more of a shape would be given, if they are free: none where it asks for none.
    #[inline]
    pub(crate) fn allocation_for(self, shape: &Shape, idx: usize) -> Option<Allocation> {
        if shape.is_plain {
            return Some(Allocation::default());
        }
        let (room, least) = (self.free.device_room[idx], shape.least_devices);
        let may_fit = room.whole >= least.whole && room.share >= least.share;
        if may_fit { self.hardware(idx).pick(shape) } else { None }
    }

    /// Like [`Self::fits_devices`], without building an error message (hot path).
    #[inline]
    pub fn has_devices(self, shape: ShapeId, idx: usize) -> bool {
        let shape = self.shape(shape);
        if shape.is_placed {
            shape.devices.iter().all(|ask| self.hardware(idx).has_for(shape, ask))
        } else {
            self.allocation_for(shape, idx).is_some()
        }
    }

    /// Returns what one more of a shape should be given on a node: nothing for a shape without devices, `None` when these
    /// are short. Whole devices of lowest index; for a share the fitting device with the least
    /// left, lowest index on ties.
    #[inline]
    pub fn pick(self, shape: ShapeId, node: NodeId) -> Option<Allocation> {
        let shape = self.shape(shape);
        let idx = self.free.known(node)?;
        if shape.is_plain { Some(Allocation::default()) } else { self.hardware(idx).pick(shape) }
    }

    /// False only if no node of the block has room for the shape.
    #[inline]
    pub fn block_may_fit(self, block: usize, shape: ShapeId) -> bool {
        let shape = self.shape(shape);
        shape.unknown.is_none() && self.room_of(shape).block_may_fit(block, &shape.asks, shape.least_devices)
    }
}

/// With words for what is short.
impl FreeView<'_> {
    /// Whether the free room of a node holds one more of a shape: resources, then devices and zones. Says nothing of
    /// readiness, labels and taints.
    ///
    /// # Errors
    /// What is short.
    #[inline(always)]
    pub fn fits(self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        let asked = self.shape(shape);
        if asked.is_plain && self.free.has_resources(asked, idx) {
            Ok(())
        } else {
            self.fits_in_parts(shape, node)
        }
    }

    /// Looks at resources, devices and zones, one after the other.
    fn fits_in_parts(self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        self.fits_resources(shape, node)?;
        self.fits_devices(shape, node)?;
        self.fits_zones(shape, node)
    }

    /// Whether a node has the resources that a shape asks for; devices aside.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_resources(self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        let shape = self.shape(shape);
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        is_known(shape)?;
        self.room_of(shape).shortage(idx, &shape.asks).map_or(Ok(()), |id| Err(self.catalogue.short_of(id)))
    }

    /// Whether a node has the devices that a shape asks for; resources aside.
    ///
    /// # Errors
    /// What is short.
    #[inline]
    pub fn fits_devices(self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        let shape = self.shape(shape);
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        if shape.devices.is_empty() {
            return Ok(());
        }
        let node = self.hardware(idx);
        let mut requests = shape.devices.iter().zip(&shape.demand.devices);
        let short = requests.find(|(ask, _)| !node.has_for(shape, ask));
        short.map_or(Ok(()), |(ask, request)| {
            Err(node.request_shortage(ask, request, self.catalogue.classes()))
        })
    }

    /// Whether a node has devices and zones that go together as a shape asks for; resources of the whole node aside.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_zones(self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        let shape = self.shape(shape);
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        if !shape.is_placed || self.hardware(idx).pick(shape).is_some() {
            return Ok(());
        }
        Err(self.hardware(idx).placed_shortage(shape, self.catalogue.classes()))
    }

    /// Returns what one more of a shape is given of a node now, as by [`Self::grant`], if the node's free room holds it.
    ///
    /// # Errors
    /// What is short, or wrong with what is wanted.
    #[inline]
    pub fn give(self, shape: ShapeId, node: NodeId, wanted: Allocation) -> Result<Allocation, Unfit> {
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        let asked = self.shape(shape);
        if asked.is_plain && wanted.is_empty() && self.free.has_resources(asked, idx) {
            return Ok(wanted);
        }
        self.fits(shape, node)?;
        self.grant(shape, node, wanted)
    }

    /// Returns what a shape is given of a node now: `wanted`, or what [`Self::pick`] finds when others took some of these
    /// devices.
    ///
    /// # Errors
    /// What is wrong with the wanted ones, or that they are taken and no others are free.
    #[inline]
    pub fn grant(self, shape: ShapeId, node: NodeId, wanted: Allocation) -> Result<Allocation, Unfit> {
        let shape = self.shape(shape);
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        if shape.is_plain && wanted.is_empty() {
            return Ok(wanted);
        }
        self.grant_given(shape, idx, wanted)
    }

    /// The same of a node of which devices or zones are asked for, or wanted all the same.
    fn grant_given(self, shape: &Shape, idx: usize, wanted: Allocation) -> Result<Allocation, Unfit> {
        if shape.is_placed {
            return self.hardware(idx).grant_placed(shape, wanted, self.catalogue.classes());
        }
        no_zones(wanted.zones)?;
        if !shape.devices.is_empty() {
            let granted = self.devices(idx).grant(&shape.devices, &shape.demand.devices, wanted.devices)?;
            return Ok(granted.into());
        }
        if wanted.devices.is_empty() { Ok(Allocation::default()) } else { Err(none_asked()) }
    }

    /// Whether what was chosen for a running unit is what its shape asks for, taken or not.
    ///
    /// # Errors
    /// It is not, or the node is gone.
    pub fn suits(self, shape: ShapeId, node: NodeId, chosen: Allocation) -> Result<(), Unfit> {
        let shape = self.shape(shape);
        let Some(idx) = self.free.known(node) else { return Err(Unfit::Gone) };
        if self.hardware(idx).suits(shape, chosen) {
            return Ok(());
        }
        if shape.is_placed {
            let reason = "zones and devices chosen are not those asked for".to_owned();
            return Err(Unfit::Zone { reason });
        }
        no_zones(chosen.zones)?;
        if shape.devices.is_empty() {
            return Err(none_asked());
        }
        Err(Unfit::Device { reason: "devices chosen are not those asked for".to_owned() })
    }
}

/// The error names a resource that no node has ever had.
pub(super) fn is_known(shape: &Shape) -> Result<(), Unfit> {
    shape.unknown.as_ref().map_or(Ok(()), |name| Err(Unfit::Resource { name: name.clone() }))
}

pub(super) fn no_zones(chosen: GivenZones) -> Result<(), Unfit> {
    if chosen.is_empty() {
        Ok(())
    } else {
        Err(Unfit::Zone { reason: "zones chosen, none asked".to_owned() })
    }
}

fn none_asked() -> Unfit {
    Unfit::Device { reason: "devices chosen, none asked".to_owned() }
}
