//! Whether a node has room for one more running unit: by its free room and its devices.
//!
//! Whether the node may be used at all, its labels and its taints are `records`' business.

use godel_base::ids::NodeId;
use godel_domain::{
    allocation::{Allocation, GivenZones},
    demand::Pool,
    hold::Hold,
};

use super::{
    catalogue::Catalogue,
    charge::Charge,
    devices::DeviceAsk,
    free::FreeRoom,
    shapes::{Shape, ShapeId},
    shrunk::frozen_words,
    unfit::Unfit,
};

/// For the cycle: nothing is said in words.
impl FreeRoom {
    /// Returns how many of a shape the free room of a node holds, `max` at most; at most one of those that ask for
    /// devices, zones or ports.
    pub(crate) fn n_fit(&self, shape: &Shape, idx: usize, max: u32) -> u32 {
        let max = if shape.is_plain { max } else { max.min(1) };
        shape.n_fit(self.room_of(shape).free(idx), max)
    }

    /// Returns how many of a shape the free room of a node holds at most, `max` at most, each device request by itself.
    pub(crate) fn n_fit_together(&self, shape: &Shape, idx: usize, max: u32) -> u32 {
        if !shape.fits(self.room_of(shape).free(idx)) {
            return 0;
        }
        let of_devices = shape.devices.iter().map(|ask| self.devices[idx].n_fit(ask)).min();
        let of_zones = self.devices[idx].n_fit_zones(shape, false);
        shape.n_fit(self.room_of(shape).free(idx), max).min(of_devices.unwrap_or(u32::MAX)).min(of_zones)
    }

    /// The same if nothing ran there.
    pub(crate) fn n_fit_empty(&self, shape: &Shape, idx: usize, max: u32) -> u32 {
        let allocatable = self.room_of(shape).allocatable(idx);
        if !shape.fits(allocatable) {
            return 0;
        }
        let of_devices = shape.devices.iter().map(|ask| self.devices[idx].n_fit_empty(ask)).min();
        let of_zones = self.devices[idx].n_fit_zones(shape, true);
        shape.n_fit(allocatable, max).min(of_devices.unwrap_or(u32::MAX)).min(of_zones)
    }

    /// Whether a node has the resources that a shape asks for; devices aside.
    #[inline]
    pub(crate) fn has_resources(&self, shape: &Shape, idx: usize) -> bool {
        shape.fits(self.room_of(shape).free(idx))
    }

    /// Returns what one more of a shape would be given, if the node's free room holds it.
    #[inline]
    pub(crate) fn room_for(&self, shape: &Shape, idx: usize) -> Option<Allocation> {
        if self.has_resources(shape, idx) { self.allocation_for(shape, idx) } else { None }
    }

    /// Returns the devices and zones that one more of a shape would be given, if they are free: none where it asks for none.
    #[inline]
    pub(crate) fn allocation_for(&self, shape: &Shape, idx: usize) -> Option<Allocation> {
        if shape.is_plain {
            return Some(Allocation::default());
        }
        let (room, least) = (self.device_room[idx], shape.least_devices);
        let may_fit = room.whole >= least.whole && room.share >= least.share;
        if may_fit { self.devices[idx].pick(shape) } else { None }
    }

    /// Whether the devices that one more of a shape would take are free, wherever on the node they are.
    #[inline]
    pub(crate) fn has_devices(&self, shape: &Shape, idx: usize) -> bool {
        if shape.is_placed {
            shape.devices.iter().all(|ask| self.devices[idx].has_for(shape, ask))
        } else {
            self.allocation_for(shape, idx).is_some()
        }
    }

    /// Returns what one more of a shape should be given on a node, whatever else is free there.
    #[inline]
    pub(crate) fn pick(&self, shape: &Shape, node: NodeId) -> Option<Allocation> {
        let idx = self.known(node)?;
        if shape.is_plain { Some(Allocation::default()) } else { self.devices[idx].pick(shape) }
    }

    /// False only if no node of the block has room for the shape.
    #[inline]
    pub(crate) fn block_may_fit(&self, block: usize, shape: &Shape) -> bool {
        shape.unknown.is_none() && self.room_of(shape).block_may_fit(block, &shape.asks, shape.least_devices)
    }

    /// Returns of what a guaranteed shape asks for that of which a node has less than nothing left.
    pub(crate) fn overdrawn<'a>(
        &'a self,
        shape: &'a Shape,
        idx: usize,
    ) -> impl Iterator<Item = &'a (u8, i64)> {
        let free = self.pools.guaranteed().free(idx);
        let asks = shape.asks.iter().filter(|_| shape.pool == Pool::Guaranteed);
        asks.filter(|(id, _)| free[usize::from(*id)] < 0)
    }

    /// Whether less is there of some resource than is taken of it, or of devices that a shape asks for than are held.
    pub(crate) fn is_overfull(&self, catalogue: &Catalogue, shape: ShapeId, node: NodeId) -> bool {
        self.known(node).is_some_and(|idx| {
            self.pools.guaranteed().free(idx).iter().any(|free| *free < 0)
                || self.shrunk_of(catalogue, catalogue.shape(shape), idx).is_some()
        })
    }
}

/// With words for what is short.
impl FreeRoom {
    /// Whether the free room of a node holds one more of a shape: resources, then devices, then zones.
    #[inline]
    pub(crate) fn fits(&self, catalogue: &Catalogue, shape: &Shape, node: NodeId) -> Result<(), Unfit> {
        let Some(idx) = self.known(node) else { return Err(Unfit::Gone) };
        if shape.is_plain && self.has_resources(shape, idx) {
            return Ok(());
        }
        self.fits_resources(catalogue, shape, node)?;
        self.fits_devices(catalogue, shape, node)?;
        self.fits_zones(catalogue, shape, node)
    }

    /// Whether a node has the resources that a shape asks for; devices aside.
    pub(crate) fn fits_resources(
        &self,
        catalogue: &Catalogue,
        shape: &Shape,
        node: NodeId,
    ) -> Result<(), Unfit> {
        let Some(idx) = self.known(node) else { return Err(Unfit::Gone) };
        is_known(shape)?;
        self.room_of(shape).shortage(idx, &shape.asks).map_or(Ok(()), |id| Err(catalogue.short_of(id)))
    }

    /// Whether a node has the devices that a shape asks for; resources aside.
    #[inline]
    pub(crate) fn fits_devices(
        &self,
        catalogue: &Catalogue,
        shape: &Shape,
        node: NodeId,
    ) -> Result<(), Unfit> {
        let Some(idx) = self.known(node) else { return Err(Unfit::Gone) };
        if shape.devices.is_empty() {
            return Ok(());
        }
        let devices = &self.devices[idx];
        let mut requests = shape.devices.iter().zip(&shape.demand.devices);
        let short = requests.find(|(ask, _)| !devices.has_for(shape, ask));
        short
            .map_or(Ok(()), |(ask, request)| Err(devices.request_shortage(ask, request, catalogue.classes())))
    }

    /// Whether a node has devices and zones that go together as a shape asks for; resources of the whole node aside.
    pub(crate) fn fits_zones(&self, catalogue: &Catalogue, shape: &Shape, node: NodeId) -> Result<(), Unfit> {
        let Some(idx) = self.known(node) else { return Err(Unfit::Gone) };
        if !shape.is_placed || self.devices[idx].pick(shape).is_some() {
            return Ok(());
        }
        Err(self.devices[idx].placed_shortage(shape, catalogue.classes()))
    }

    /// Returns what a shape is given of a node now: `wanted`, or other devices when those in it are taken.
    #[inline]
    pub(crate) fn grant(
        &self,
        catalogue: &Catalogue,
        shape: &Shape,
        node: NodeId,
        wanted: Allocation,
    ) -> Result<Allocation, Unfit> {
        let Some(idx) = self.known(node) else { return Err(Unfit::Gone) };
        if shape.is_plain && wanted.is_empty() {
            return Ok(wanted);
        }
        self.grant_given(catalogue, shape, idx, wanted)
    }

    /// The same of a node of which devices or zones are asked for, or wanted all the same.
    fn grant_given(
        &self,
        catalogue: &Catalogue,
        shape: &Shape,
        idx: usize,
        wanted: Allocation,
    ) -> Result<Allocation, Unfit> {
        if shape.is_placed {
            return self.devices[idx].grant_placed(shape, wanted, catalogue.classes());
        }
        no_zones(wanted.zones)?;
        if !shape.devices.is_empty() {
            let granted = self.devices[idx].grant(&shape.devices, &shape.demand.devices, wanted.devices)?;
            return Ok(granted.into());
        }
        if wanted.devices.is_empty() { Ok(Allocation::default()) } else { Err(none_asked()) }
    }

    /// Whether what was chosen for a running unit is what its shape asks for, taken or not.
    pub(crate) fn suits(&self, shape: &Shape, node: NodeId, chosen: Allocation) -> Result<(), Unfit> {
        let Some(idx) = self.known(node) else { return Err(Unfit::Gone) };
        if self.devices[idx].suits(shape, chosen) {
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

    /// Whether a node has enough for all running units of a hold, free or not.
    pub(crate) fn could_hold(&self, catalogue: &Catalogue, shape: &Shape, hold: &Hold) -> Result<(), Unfit> {
        let Some(idx) = self.known(hold.node) else { return Err(Unfit::Gone) };
        let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
        is_known(shape)?;
        if shape.is_placed {
            (0..hold.ordinals.len()).try_for_each(|at| self.suits(shape, hold.node, hold.allocation(at)))?;
        } else {
            hold.zones.iter().try_for_each(|zones| no_zones(*zones))?;
        }
        let allocatable = self.room_of(shape).allocatable(idx);
        let is_short = |(id, amount): &&(u8, i64)| amount.saturating_mul(n) > allocatable[usize::from(*id)];
        if let Some((id, _)) = shape.asks.iter().find(is_short) {
            return Err(catalogue.short_of(*id));
        }
        let is_short = |ask: &DeviceAsk| {
            let (accepted, _) = self.devices[idx].count(ask);
            i64::from(accepted).saturating_mul(ask.per_device) < n.saturating_mul(i64::from(ask.count))
        };
        if shape.devices.iter().any(is_short) {
            return Err(Unfit::Device { reason: "the node has too few".to_owned() });
        }
        Ok(())
    }

    /// Whether the free room of a node suffices for what a hold takes of it, and the node has no less than what is there
    /// already takes.
    pub(crate) fn fits_charge(
        &self,
        catalogue: &Catalogue,
        shape: &Shape,
        idx: usize,
        charge: &Charge,
    ) -> Result<(), Unfit> {
        is_known(shape)?;
        if let Some(refusal) = self.shrunk_of(catalogue, shape, idx) {
            return Err(refusal);
        }
        if let Some(id) = self.room_of(shape).shortage(idx, &charge.asks) {
            return Err(catalogue.short_of(id));
        }
        let devices = &self.devices[idx];
        if !devices.has_zones_for(charge) {
            return Err(Unfit::Zone { reason: "too little left of the zones for a hold".to_owned() });
        }
        for &(device, milli) in &charge.devices {
            let is_short = usize::from(device) >= devices.len() || devices.free(usize::from(device)) < milli;
            if is_short && !self.has_devices_beside_gathered(catalogue, idx, &charge.devices) {
                return Err(Unfit::Device { reason: format!("device {device}: too little left for a hold") });
            }
        }
        Ok(())
    }

    /// Returns what a node has too little of for what is there already, of all that a guaranteed shape asks for: none of it
    /// is given away there until that fits, whoever would leave. Best-effort room is often below nothing, and those above
    /// it leave by themselves. For the binder: whoever assumes more than is free sees the same.
    pub(crate) fn shrunk_of(&self, catalogue: &Catalogue, shape: &Shape, idx: usize) -> Option<Unfit> {
        if let Some(at) = self.devices[idx].first_frozen(&shape.devices) {
            return Some(Unfit::Device { reason: frozen_words(&shape.demand.devices[at].kind) });
        }
        let (id, _) = self.overdrawn(shape, idx).next()?;
        Some(catalogue.short_of(*id))
    }
}

/// The error names a resource that no node has ever had.
fn is_known(shape: &Shape) -> Result<(), Unfit> {
    shape.unknown.as_ref().map_or(Ok(()), |name| Err(Unfit::Resource { name: name.clone() }))
}

fn no_zones(chosen: GivenZones) -> Result<(), Unfit> {
    if chosen.is_empty() {
        Ok(())
    } else {
        Err(Unfit::Zone { reason: "zones chosen, none asked".to_owned() })
    }
}

fn none_asked() -> Unfit {
    Unfit::Device { reason: "devices chosen, none asked".to_owned() }
}
