//! What deciders ask of the cluster before they choose a node. Nothing here changes what is free.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{HoldId, NodeId, RunningUnitId, UnitId},
    resources::Resources,
};
use godel_domain::{
    allocation::Allocation,
    demand::{Demand, Pool},
    hold::{Borrower, Hold, MoverShare},
    node::{NodeRuntime, Toleration},
    node_affinity::NodeAffinity,
    reservation_spec::ReservationSpec,
    running_units::{RunningUnit, RunningUnits},
};
use godel_rules::budget::Budgets;
use smallvec::SmallVec;

use super::{
    Cluster, Owned,
    charge::Charge,
    devices::NodeDevices,
    holds::HoldEntry,
    labels::Labels,
    loads::NodeShares,
    movers,
    occupants::Occupant,
    room::Room,
    shapes::{Shape, ShapeId, Shapes},
    unfit::Unfit,
};

/// Running units that have yet to leave, as shapes and devices.
type Remaining = SmallVec<[(ShapeId, Allocation); 2]>;

/// What the cycle reads, by node index.
impl Cluster {
    /// Node ids are below this.
    pub fn n_indices(&self) -> usize {
        self.free.len()
    }

    /// Whether the node at an index may get something new.
    #[inline]
    pub fn is_usable(&self, idx: usize) -> bool {
        self.records.is_usable(idx)
    }

    /// Returns the label pairs and taint lists of all nodes.
    pub fn labels(&self) -> &Labels {
        self.catalogue.labels()
    }

    /// Returns the label pairs of the node at an index, ascending.
    #[inline]
    pub fn node_labels(&self, idx: usize) -> &[u32] {
        self.records.node_labels(idx)
    }

    /// Returns what becomes of running units on the node at an index.
    #[inline]
    pub fn runtime(&self, idx: usize) -> NodeRuntime {
        self.records.runtime(idx)
    }

    /// Returns the taint list of the node at an index.
    #[inline]
    pub fn node_taints(&self, idx: usize) -> u32 {
        self.records.node_taints(idx)
    }

    /// Returns the devices of the node at an index.
    #[inline]
    pub fn devices(&self, idx: usize) -> &NodeDevices {
        self.free.devices(idx)
    }

    /// Returns what every demand asks for, as integers.
    #[inline]
    pub fn shapes(&self) -> &Shapes {
        self.catalogue.shapes()
    }

    /// Returns the demand of a shape.
    pub fn demand(&self, shape: ShapeId) -> &Arc<Demand> {
        &self.catalogue.shape(shape).demand
    }

    /// Returns the room of a shape's pool.
    #[inline]
    pub fn room(&self, shape: ShapeId) -> &Room {
        self.free.room_of(self.catalogue.shape(shape))
    }

    /// Returns the room of the pool that a shape is of.
    #[inline]
    pub fn room_of(&self, shape: &Shape) -> &Room {
        self.free.room_of(shape)
    }

    /// Returns the name of a resource; `?` for a number that no resource has.
    pub fn resource_name(&self, id: u8) -> &str {
        self.catalogue.resource_name(id)
    }

    /// Returns the integer of a resource; `None`: no node has it and nobody asks for it.
    pub fn resource_id(&self, name: &str) -> Option<usize> {
        self.catalogue.resource_id(name)
    }

    /// Returns how many of a shape the free room of a node holds, `max` at most; at most one of those that ask for devices.
    pub fn n_fit(&self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        self.free.n_fit(self.catalogue.shape(shape), idx, max)
    }

    /// Returns how many of a shape the free room of a node holds at most, `max` at most, with those that ask for devices.
    pub fn n_fit_together(&self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        self.free.n_fit_together(self.catalogue.shape(shape), idx, max)
    }

    /// The same if nothing ran there.
    pub fn n_fit_empty(&self, shape: ShapeId, idx: usize, max: u32) -> u32 {
        self.free.n_fit_empty(self.catalogue.shape(shape), idx, max)
    }

    /// Whether a node has the resources that a shape asks for, without building an error message (hot path).
    pub fn has_resources(&self, shape: ShapeId, idx: usize) -> bool {
        self.free.has_resources(self.catalogue.shape(shape), idx)
    }

    /// Like [`Self::fits_devices`], without building an error message (hot path).
    #[inline]
    pub fn has_devices(&self, shape: ShapeId, idx: usize) -> bool {
        self.free.has_devices(self.catalogue.shape(shape), idx)
    }

    /// Returns what one more of a shape would be given, as by [`Self::pick`], if the node's free room holds it.
    #[inline]
    pub fn room_for(&self, shape: ShapeId, idx: usize) -> Option<Allocation> {
        self.free.room_for(self.catalogue.shape(shape), idx)
    }

    /// False only if no node of the block has room for the shape.
    pub fn block_may_fit(&self, block: usize, shape: ShapeId) -> bool {
        self.free.block_may_fit(block, self.catalogue.shape(shape))
    }

    /// Makes the bounds of a block exact, of whose nodes none had room for a shape: they may be too high.
    pub fn tighten(&mut self, block: usize, shape: ShapeId) {
        self.free.tighten(block, self.catalogue.shape(shape).pool);
    }

    /// Returns what running units on a node count in scores beyond what they take, of cpu and memory.
    #[inline]
    pub fn nominal(&self, idx: usize) -> [i64; 2] {
        self.free.nominal(idx)
    }

    /// Counts running units of this unit by node from now on. `O(running units of both)` if another one was counted.
    pub fn count_unit(&mut self, unit: UnitId) {
        self.taken.count_unit(unit, self.free.len());
    }

    /// Returns how many of the unit that is counted are on a node, assumed or there.
    pub fn n_of_unit(&self, idx: usize) -> u32 {
        self.taken.n_of_unit(idx)
    }
}

/// One node, with words for what it lacks.
impl Cluster {
    /// Returns what is taken on a node of the guaranteed pool, assumptions included and foreign notes not, and the
    /// thousandths free per device.
    pub fn node_state(&self, node: NodeId) -> Option<(Resources, Vec<u32>)> {
        self.pool_state(node, Pool::Guaranteed)
    }

    /// Returns the same of either pool. Of best-effort room what guaranteed running units use is taken too.
    pub fn pool_state(&self, node: NodeId, pool: Pool) -> Option<(Resources, Vec<u32>)> {
        self.free.state(&self.catalogue, node, pool)
    }

    /// Returns the allocatable in force; empty when the node has not reported.
    pub fn allocatable(&self, node: NodeId) -> Option<Resources> {
        self.free.allocatable(&self.catalogue, node)
    }

    /// Whether some best-effort demand was ever seen.
    pub fn has_best_effort(&self) -> bool {
        self.free.pools().best_effort().is_some()
    }

    /// Whether more is taken of a node's best-effort room than there is, those that leave included.
    pub fn is_over(&self, node: NodeId) -> bool {
        // What a node has is not known while its records cannot be read.
        !self.frozen().has_node(node) && self.best_effort_free(node).iter().any(|left| *left < 0)
    }

    /// Returns the free best-effort room of a node by resource integer, those that leave still taking theirs; empty while
    /// nothing of best-effort is known.
    pub fn best_effort_free(&self, node: NodeId) -> &[i64] {
        match (self.free.pools().best_effort(), self.free.known(node)) {
            (Some(best_effort), Some(idx)) => best_effort.room.free(idx),
            (Some(_), None) | (None, _) => &[],
        }
    }

    /// Whether the free room of a node holds one more of a shape: resources, then devices. Says nothing of
    /// readiness, labels and taints.
    ///
    /// # Errors
    /// What is short.
    #[inline]
    pub fn fits(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        self.free.fits(&self.catalogue, self.catalogue.shape(shape), node)
    }

    /// Whether a node has the resources that a shape asks for; devices aside.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_resources(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        self.free.fits_resources(&self.catalogue, self.catalogue.shape(shape), node)
    }

    /// Whether a node has the devices that a shape asks for; resources aside.
    ///
    /// # Errors
    /// What is short.
    #[inline]
    pub fn fits_devices(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        self.free.fits_devices(&self.catalogue, self.catalogue.shape(shape), node)
    }

    /// Like [`Self::fits_zones`], without building an error message (hot path).
    #[inline]
    pub fn has_zones(&self, shape: ShapeId, idx: usize) -> bool {
        let shape = self.catalogue.shape(shape);
        !shape.is_placed || self.free.devices(idx).pick(shape).is_some()
    }

    /// Whether a node has devices and zones that go together as a shape asks for; resources of the whole node aside.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_zones(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        self.free.fits_zones(&self.catalogue, self.catalogue.shape(shape), node)
    }

    /// Returns the measured use of the node at an index, as shares of what the node has; `None`: it is not known.
    #[inline]
    pub fn load(&self, idx: usize) -> Option<&NodeShares> {
        self.records.load(idx)
    }

    /// Whether the ports that a shape listens on are free on the node at an index.
    #[inline]
    pub fn has_ports(&self, shape: ShapeId, idx: usize) -> bool {
        self.free.taken_port(self.catalogue.shape(shape), idx).is_none()
    }

    /// Like [`Self::has_ports`], with the first port that is taken.
    ///
    /// # Errors
    /// A port is taken.
    #[inline]
    pub fn fits_ports(&self, shape: ShapeId, node: NodeId) -> Result<(), Unfit> {
        match self.free.taken_port(self.catalogue.shape(shape), node.idx()) {
            None => Ok(()),
            Some(port) => Err(Unfit::Port { port: port.to_string() }),
        }
    }

    /// Returns what one more of a shape should be given on a node: nothing for a shape without devices, `None` when these
    /// are short. Whole devices of lowest index; for a share the fitting device with the least
    /// left, lowest index on ties.
    #[inline]
    pub fn pick(&self, shape: ShapeId, node: NodeId) -> Option<Allocation> {
        self.free.pick(self.catalogue.shape(shape), node)
    }

    /// Returns what a shape is given of a node now: `wanted`, or what [`Self::pick`] finds when others took some of these
    /// devices.
    ///
    /// # Errors
    /// What is wrong with the wanted ones, or that they are taken and no others are free.
    #[inline]
    pub fn grant(&self, shape: ShapeId, node: NodeId, wanted: Allocation) -> Result<Allocation, Unfit> {
        self.free.grant(&self.catalogue, self.catalogue.shape(shape), node, wanted)
    }

    /// Whether what was chosen for a running unit is what its shape asks for, taken or not.
    ///
    /// # Errors
    /// It is not, or the node is gone.
    pub fn suits(&self, shape: ShapeId, node: NodeId, chosen: Allocation) -> Result<(), Unfit> {
        self.free.suits(self.catalogue.shape(shape), node, chosen)
    }

    /// Whether a node exists, is ready and neither cordoned nor drained, and all of its records can be read.
    ///
    /// # Errors
    /// The first of these that fails.
    #[inline]
    pub fn usable(&self, node: NodeId) -> Result<(), Unfit> {
        self.records.usable(node)
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
        self.records.has_labels(selector, node)
    }

    /// Whether the labels of a node meet one of the required terms.
    ///
    /// # Errors
    /// They meet none.
    pub fn meets(&self, affinity: &NodeAffinity, node: NodeId) -> Result<(), Unfit> {
        self.records.meets(affinity, node)
    }

    /// Whether tolerations accept every hard taint of a node.
    ///
    /// # Errors
    /// The first hard taint that is not tolerated.
    pub fn is_tolerated_on(&self, tolerations: &[Toleration], node: NodeId) -> Result<(), Unfit> {
        self.records.is_tolerated_on(tolerations, node)
    }

    /// Whether a node has too little, of all that a guaranteed shape asks for, for what is committed there already, holds
    /// included: what others have yet to leave may be assumed. Occupants must be kept.
    /// `O(1)` where no more is assumed than there is, else `O(running units of the node)`.
    pub fn is_shrunk_of(&self, shape: &Shape, idx: usize) -> bool {
        if self.free.devices(idx).first_frozen(&shape.devices).is_some() {
            return true;
        }
        let Ok(node) = u32::try_from(idx).map(NodeId) else { return false };
        let allocatable = self.free.pools().guaranteed().allocatable(idx);
        self.free.overdrawn(shape, idx).any(|(id, _)| {
            let there = self.occupants(node).iter().filter(|one| one.pool == Pool::Guaranteed);
            let asks = there.flat_map(|one| &self.catalogue.shape(one.shape).asks);
            let held = self.holds.charges_on(node).flat_map(|charge| &charge.asks);
            let asks = asks.chain(held).filter(|(of, _)| of == id);
            asks.fold(0i64, |sum, (_, amount)| sum.saturating_add(*amount)) > allocatable[usize::from(*id)]
        })
    }
}

/// Running units.
impl Cluster {
    /// Returns the rows of a unit; `None` when none was ever bound.
    pub fn rows(&self, unit: UnitId) -> Option<&RunningUnits> {
        self.taken.rows(unit)
    }

    /// Returns the rows of every unit that was ever bound; in no order that may show.
    pub fn all_rows(&self) -> impl Iterator<Item = (UnitId, &RunningUnits)> {
        self.taken.all_rows()
    }

    /// Returns what a running unit of a task group takes, once one was bound.
    pub fn group_shape(&self, unit: UnitId, group: u16) -> Option<ShapeId> {
        self.taken.group_shape(unit, group)
    }

    /// Returns the node of an assumption and what is given there.
    pub fn assumed(&self, unit: UnitId, ordinal: u32) -> Option<(NodeId, Allocation)> {
        self.taken.assumed(unit, ordinal).map(|assumed| (assumed.node, assumed.allocation))
    }

    /// Returns the row of a victim that still takes room.
    pub fn remains(&self, victim: &RunningUnitId) -> Option<&RunningUnit> {
        self.taken.remains(victim)
    }

    /// Whether some running unit of lower priority may be preempted, however it stands otherwise.
    pub fn has_below(&self, priority: i32) -> bool {
        self.taken.has_below(priority)
    }

    /// Whether some running unit may be preempted, whatever its priority.
    pub fn has_preemptible(&self) -> bool {
        self.taken.has_preemptible()
    }

    /// Whether it is kept who is on which node.
    pub fn has_occupants(&self) -> bool {
        self.taken.has_occupants()
    }

    /// Returns who is on a node; nobody while that is not kept.
    pub fn occupants(&self, node: NodeId) -> &[Occupant] {
        self.taken.occupants(node)
    }

    /// Returns disruption budgets, and what they allow.
    pub fn budgets(&self) -> &Budgets {
        self.taken.budgets()
    }
}

/// Holds.
impl Cluster {
    /// Whether there is any hold, or slot.
    pub fn has_holds(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Returns a hold by id.
    pub fn hold(&self, id: HoldId) -> Option<&Arc<Hold>> {
        self.holds.hold(id)
    }

    /// Returns what a movement's hold counts for in the queue of its unit, beside what runs of the unit and what is assumed of it.
    pub fn mover_share(&self, hold: &Hold) -> MoverShare {
        movers::share(&self.taken, hold)
    }

    /// Returns every hold, in order of ids.
    pub fn holds(&self) -> Vec<&Arc<Hold>> {
        self.holds.all()
    }

    /// Returns the holds of a unit, in order of ids.
    pub fn holds_of(&self, unit: UnitId) -> SmallVec<[HoldId; 2]> {
        self.holds.of(unit)
    }

    /// Whether a unit has any hold.
    pub fn has_holds_of(&self, unit: UnitId) -> bool {
        self.holds.has_of(unit)
    }

    /// Returns the holds on a node but for slots, in no order that may show.
    pub fn holds_on(&self, node: NodeId) -> &[HoldId] {
        self.holds.on(node)
    }

    /// Returns the holds of preemptions, in order of ids.
    pub fn claims(&self) -> Vec<&Hold> {
        self.holds.claims()
    }

    /// Whether some preemption's hold is of a lower priority; `None`: of any.
    pub fn has_claims_below(&self, priority: Option<i32>) -> bool {
        self.holds.has_claims_below(priority)
    }

    /// Whether some running unit of a unit backs a hold.
    pub fn backs_any(&self, unit: UnitId) -> bool {
        self.holds.backs_any(unit)
    }

    /// Returns what a hold takes now, and those who take the rest of its room until they have left.
    pub fn given_by(&self, id: HoldId) -> Option<(&Charge, Remaining)> {
        let entry = self.holds.get(id)?;
        let victims = entry.hold.victims.iter().filter_map(|victim| {
            let row = self.taken.remains(victim).filter(|row| row.node == entry.hold.node)?;
            Some((self.taken.shape_of(victim.unit, row)?, row.allocation))
        });
        Some((self.free.gathering().charge(id).unwrap_or(&entry.charge), victims.collect()))
    }

    /// Whether the free room of its node suffices for a hold beyond what its victims take.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_hold(&self, shape: ShapeId, hold: &Hold) -> Result<(), Unfit> {
        let Some(idx) = self.free.known(hold.node) else { return Err(Unfit::Gone) };
        let charge =
            Charge::beyond_victims(&self.catalogue, &self.taken, shape, hold, self.free.devices(idx));
        self.free.fits_charge(&self.catalogue, self.catalogue.shape(shape), idx, &charge)
    }

    /// Whether a node has enough for all running units of a hold, free or not.
    ///
    /// # Errors
    /// What it has too little of.
    pub fn could_hold(&self, shape: ShapeId, hold: &Hold) -> Result<(), Unfit> {
        self.free.could_hold(&self.catalogue, self.catalogue.shape(shape), hold)
    }
}

/// Holds that gather.
impl Cluster {
    /// Whether somebody gathers room.
    pub fn is_gathering(&self) -> bool {
        self.free.gathering().is_any()
    }

    /// Whether another unit of a pool gathers room on a node.
    pub fn gathers_beside(&self, unit: UnitId, pool: Pool, node: NodeId) -> bool {
        self.free.gathering().gathers_beside(unit, pool, node)
    }

    /// Whether all of some unit's gathering holds have what they need, since [`Self::take_gathered`].
    pub fn is_gathered(&self) -> bool {
        self.free.gathering().is_met()
    }

    /// Whether a hold has all of its room.
    pub fn has_gathered(&self, id: HoldId) -> bool {
        self.free.gathering().has_all(id).unwrap_or(self.hold(id).is_some())
    }

    /// Returns for how many running units a hold has room.
    pub fn n_gathered(&self, id: HoldId) -> usize {
        let whole = || self.hold(id).map_or(0, |hold| hold.ordinals.len());
        self.free.n_gathered(&self.catalogue, id).unwrap_or_else(whole)
    }

    /// Whether a unit may take some of what is gathered.
    pub fn admits(&self, borrower: &Borrower) -> bool {
        self.free.gathering().admits(borrower)
    }
}

/// Slots of reservations.
impl Cluster {
    /// Whether there is any slot.
    pub fn has_slots(&self) -> bool {
        self.holds.slots().is_any()
    }

    /// Returns the reservations that a unit of a pool owns.
    pub fn owned(&self, pool: Pool, owns: impl Fn(&ReservationSpec) -> bool) -> Owned {
        self.holds.slots().owned(pool, owns)
    }

    /// Returns the slots of some reservations that nobody is in and that have all that a shape takes, with their nodes; those
    /// of the first reservation first, then in order of ids. Says nothing of labels and taints.
    pub fn free_slots(&self, owned: &Owned, shape: ShapeId) -> Vec<(HoldId, NodeId)> {
        let shape = self.catalogue.shape(shape);
        self.holds.free_slots(owned, |slot| self.serves(slot, shape))
    }

    /// Returns the slot on a node that one more of a shape takes, and what it is given there.
    pub fn slot_on(&self, owned: &Owned, shape: ShapeId, node: NodeId) -> Option<(HoldId, Allocation)> {
        let idx = self.free.known(node)?;
        let shape = self.catalogue.shape(shape);
        let serves = |slot: &HoldEntry| !slot.is_taken(&self.taken) && self.serves(slot, shape);
        self.holds.slot_on(owned, shape, node, self.free.devices(idx), serves)
    }

    /// Whether some slot of a node would do for a shape, whoever owns it.
    pub fn may_serve(&self, shape: ShapeId, node: NodeId) -> bool {
        let shape = self.catalogue.shape(shape);
        self.holds.may_serve(node, |slot| !slot.is_taken(&self.taken) && self.serves(slot, shape))
    }

    /// Whether a slot is open, and has all that a shape takes, on a node that may be used and has what is taken of it.
    fn serves(&self, slot: &HoldEntry, shape: &Shape) -> bool {
        let node = slot.hold.node;
        slot.has_place_for(shape)
            && self.records.usable(node).is_ok()
            && !self.free.is_overfull(&self.catalogue, slot.shape, node)
    }

    /// Returns the slot that a running unit is in, or about to be.
    pub fn slot_of(&self, member: &RunningUnitId) -> Option<HoldId> {
        self.holds.slot_of(&self.taken, member)
    }

    /// Returns who is in a slot, or about to be.
    pub fn occupant_of(&self, id: HoldId) -> Option<RunningUnitId> {
        self.holds.occupant_of(&self.taken, id)
    }

    /// Whether some running unit of a unit took a slot.
    pub fn is_in_slots(&self, unit: UnitId) -> bool {
        self.holds.slots().has_of(unit)
    }

    /// Whether the node of a slot has what the slot keeps.
    pub fn is_sound(&self, id: HoldId) -> bool {
        let Some(slot) = self.holds.get(id) else { return false };
        let (node, kept) = (slot.hold.node, slot.hold.allocation(0));
        !self.free.is_overfull(&self.catalogue, slot.shape, node)
            && self.suits(slot.shape, node, kept).is_ok()
    }
}
