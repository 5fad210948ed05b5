//! Slots of reservations: held wherever there is room, given up when their reservation or their node is not what it was.
//!
//! Nobody asks for a slot as a unit asks for a place, so no scheduler chooses its node: the binder does, slot by slot and
//! as evenly over the nodes as room allows, in the step before it checks decisions. What found no room is tried again on
//! nodes that have come to have more. All of it is in the records: what a reservation wants, and the hold of each slot with
//! who took it last.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId};
use godel_cluster::{Cluster, Owned};
use godel_domain::{
    allocation::Allocation,
    decision::Decision,
    demand::Pool,
    hold::{Hold, Slot},
    reservation_spec::ReservationSpec,
};
use godel_queueing::QueueIdx;

use super::{
    check::PlacedReplica,
    holds::{BinderHolds, HoldWork},
    picture::BinderPicture,
    unit::Unit,
};

/// Slots in one piece of work: about 100 bytes each, of a transaction of 1 MiB.
const N_PART: usize = 1_024;

/// Reservations by name.
#[derive(Debug, Default)]
pub(super) struct ReservedSlots {
    known: BTreeMap<String, (Arc<ReservationSpec>, Revision)>,
    /// Some slots have found no room.
    is_short: bool,
    /// Something is wanted that was not looked for on all nodes.
    looks_anew: bool,
}

impl ReservedSlots {
    pub(super) fn reset(&mut self) {
        *self = Self { looks_anew: true, ..Self::default() };
    }

    /// Slots that stay as they are may be given up, or held, now.
    pub(super) fn look_anew(&mut self) {
        self.looks_anew = true;
    }

    /// When reservations expire, Unix milliseconds.
    pub(super) fn expiries(&self) -> impl Iterator<Item = i64> {
        self.known.values().filter_map(|(spec, _)| spec.expires_ms)
    }

    pub(super) fn put(&mut self, spec: Arc<ReservationSpec>, revision: Revision, cluster: &mut Cluster) {
        cluster.holds_mut().put_reservation(Arc::clone(&spec));
        self.known.insert(spec.name.clone(), (spec, revision));
        self.looks_anew = true;
    }

    pub(super) fn remove(&mut self, name: &str, cluster: &mut Cluster) {
        cluster.holds_mut().remove_reservation(name);
        self.known.remove(name);
        self.looks_anew = true;
    }

    /// Slots may be held, or may have to be given up, that could not before.
    pub(super) fn has_work(&self, cluster: &Cluster) -> bool {
        self.looks_anew || (self.is_short && cluster.free().generations().has_gained())
    }

    /// Gives up the slots that must not stay, and holds those that are missing.
    pub(super) fn reserve(
        &mut self,
        work: &mut Vec<HoldWork>,
        picture: &mut BinderPicture,
        held: &mut BinderHolds,
    ) {
        let has_lost = held.take_lost_slot();
        if self.known.is_empty() && !picture.cluster.held().has_slots() {
            self.looks_anew = false;
            return;
        }
        let mut ended: BTreeMap<&'static str, Vec<HoldId>> = BTreeMap::new();
        // A slot that was given up may have been taken in the same moment: then it is there beside the one in its place.
        let mut seen = BTreeSet::new();
        for hold in held.known.slots() {
            let name = hold.slot.as_ref().map(|slot| &*slot.reservation);
            let why = if seen.insert((name, &hold.ordinals)) {
                self.why_not(hold, picture)
            } else {
                Some("changed")
            };
            let why = why.filter(|_| !picture.is_slot_frozen(hold));
            if let Some(why) = why {
                ended.entry(why).or_default().push(hold.id);
            }
        }
        drop(seen);
        for (why, ids) in ended {
            ids.iter().for_each(|id| picture.cluster.holds_mut().close_slot(*id, true));
            work.extend(ids.chunks(N_PART).map(|ids| held.end(ids, why)));
        }
        let looks_anew = std::mem::take(&mut self.looks_anew) || has_lost;
        let mut gained = Vec::new();
        picture.cluster.free_mut().generations.take_gained(&mut gained);
        let looks_again = self.is_short && !gained.is_empty();
        if !looks_anew && !looks_again {
            return;
        }
        self.is_short = false;
        let nodes = if looks_anew {
            picture.cluster.nodes().ids().collect()
        } else {
            gained.sort_unstable();
            gained
        };
        let mut there: BTreeMap<Arc<str>, BTreeSet<u32>> = BTreeMap::new();
        for hold in picture.cluster.holds().all() {
            let of = hold.slot.as_ref().map(|slot| Arc::clone(&slot.reservation));
            of.into_iter().for_each(|of| there.entry(of).or_default().extend(&hold.ordinals));
        }
        let wanted = self.known.values().filter(|(spec, _)| !spec.is_expired(picture.now_ms));
        for (spec, revision) in wanted.cloned().collect::<Vec<_>>() {
            let there = there.get(spec.name.as_str());
            let is_missing = |slot: &u32| !there.is_some_and(|there| there.contains(slot));
            let missing: Vec<u32> = (0..spec.slots).filter(is_missing).collect();
            let holds = hold_slots(&spec, &missing, &nodes, picture, held);
            self.is_short |= holds.len() < missing.len();
            for holds in holds.chunks(N_PART) {
                let reservation = (spec.name.clone(), revision);
                work.push(HoldWork::Reserve { reservation, holds: holds.to_vec() });
            }
        }
    }

    /// Why a slot has to go, if it has to.
    fn why_not(&self, hold: &Hold, picture: &BinderPicture) -> Option<&'static str> {
        let slot = hold.slot.as_ref()?;
        if picture.is_slot_frozen(hold) {
            return None;
        }
        let occupant = picture.cluster.held().occupant_of(hold.id);
        if let Some(RunningUnitId { unit, replica }) = occupant
            && picture.cluster.taken().assumptions.get(unit, replica.ordinal).is_some()
        {
            // Somebody is about to take it: looked at again when that is known.
            return None;
        }
        let Some((spec, _)) = self.known.get(&*slot.reservation) else { return Some("changed") };
        if spec.is_expired(picture.now_ms) {
            return Some("expired");
        }
        if hold.ordinals.iter().any(|slot| *slot >= spec.slots) || *hold.demand != spec.demand {
            return Some("changed");
        }
        if occupant.is_some() {
            // It goes with its node, or is looked at again when it has left.
            return None;
        }
        if picture.cluster.nodes().usable(hold.node).is_err() {
            return Some("node-lost");
        }
        if picture.cluster.nodes().allows(&spec.node_selector, &[], hold.node).is_err() {
            return Some("changed");
        }
        (!picture.cluster.held().is_sound(hold.id)).then_some("no-room")
    }
}

/// Reservations that a unit owns.
pub(super) fn owned(unit: &Unit, cluster: &Cluster) -> Owned {
    if !cluster.held().has_slots() {
        return Owned::new();
    }
    cluster.held().owned(unit.pool, |spec| unit.identity.is_labelled(&spec.namespace, &spec.selector))
}

/// Slots that members of a decision take, as they are to be written.
pub(super) fn slots_taken(
    decision: &Decision,
    accepted: &[PlacedReplica],
    cluster: &Cluster,
) -> Vec<Arc<Hold>> {
    if !cluster.held().has_slots() {
        return Vec::new();
    }
    let taken = accepted.iter().filter_map(|member| {
        let placement = &decision.groups[member.group];
        let id = RunningUnitId { unit: decision.unit, replica: placement.replica(member.idx) };
        let hold = cluster.holds().get(cluster.held().slot_of(&id)?)?;
        let slot = hold.slot.clone().map(|slot| Slot { occupant: Some(id), ..slot });
        Some(Arc::new(Hold { slot, ..(**hold).clone() }))
    });
    taken.collect()
}

/// Takes room for slots, one on each node that has some, then a second one, and so on.
fn hold_slots(
    spec: &ReservationSpec,
    missing: &[u32],
    nodes: &[NodeId],
    picture: &mut BinderPicture,
    held: &mut BinderHolds,
) -> Vec<Arc<Hold>> {
    let mut holds = Vec::new();
    if missing.is_empty() {
        return holds;
    }
    let name: Arc<str> = Arc::from(spec.name.as_str());
    let shape = picture.cluster.shape(&spec.demand, Pool::Guaranteed);
    let need = picture.quotas.need(shape.into(), 0, &picture.cluster);
    let mut nodes = usable_nodes(&picture.cluster, spec, nodes);
    let mut missing = missing.iter().copied().peekable();
    while missing.peek().is_some() && !nodes.is_empty() {
        let mut have_more = Vec::with_capacity(nodes.len());
        for node in nodes {
            let fits = picture.cluster.free().fits(shape, node).ok();
            let picked = fits.and_then(|()| picture.cluster.free().pick(shape, node));
            let Some(Allocation { devices, zones }) = picked else { continue };
            let Some(slot) = missing.next() else { break };
            let hold = Arc::new(Hold {
                id: held.issuer.next(),
                node,
                unit: UnitId(0),
                demand: Arc::clone(picture.cluster.catalogue().demand(shape)),
                pool: Pool::Guaranteed,
                ordinals: vec![slot],
                devices: if devices.is_empty() { Vec::new() } else { vec![devices] },
                zones: if zones.is_empty() { Vec::new() } else { vec![zones] },
                judged: picture.revision,
                slot: Some(Slot { reservation: Arc::clone(&name), occupant: None }),
                ..Hold::default()
            });
            picture.cluster.held_mut().put(Arc::clone(&hold));
            // Nobody may take it before it is there.
            picture.cluster.holds_mut().close_slot(hold.id, true);
            held.begin(Arc::clone(&hold), QueueIdx::DEFAULT, QueueIdx::DEFAULT.into(), need);
            holds.push(hold);
            have_more.push(node);
        }
        nodes = have_more;
    }
    holds
}

/// Nodes of `among`, which are ascending, that may have slots of a reservation.
///
/// Room aside: they are there, ready and open, have its labels, and no taint, as nobody knows what its owners tolerate.
fn usable_nodes(cluster: &Cluster, spec: &ReservationSpec, among: &[NodeId]) -> Vec<NodeId> {
    let may = |node: &&NodeId| {
        cluster.nodes().usable(**node).is_ok()
            && cluster.nodes().allows(&spec.node_selector, &[], **node).is_ok()
    };
    among.iter().filter(may).copied().collect()
}
