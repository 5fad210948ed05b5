//! Reservations: their records, and what they are shown with.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{HoldId, Revision, RunningUnitId};
use godel_domain::{
    hold::Hold,
    record_change::{N_USERS_NAMED, Users},
    reservation_spec::ReservationSpec,
    txn::Receipt,
};

use super::{
    nodes::Nodes,
    queues::{RecordVersions, Versions},
    units::Units,
};

/// Slots that are there, by number.
type SlotsByNumber = BTreeMap<(u32, HoldId), Arc<Hold>>;

/// Reservations, and their slots.
#[derive(Debug, Default)]
pub struct ReservationRecords {
    pub(super) specs: BTreeMap<String, Arc<ReservationSpec>>,
    pub(super) versions: RecordVersions,
    /// By reservation; two of one number are there while one takes the place of the other.
    slots: BTreeMap<Arc<str>, SlotsByNumber>,
}

/// A reservation as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationView {
    /// Its record.
    pub spec: Arc<ReservationSpec>,
    /// Of its record.
    pub versions: Versions,
    /// In order of number; those that are not there wait for room.
    pub slots: Vec<SlotView>,
    /// It holds nothing any more, or soon.
    pub is_expired: bool,
}

/// A slot that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Of the reservation.
    pub number: u32,
    /// Name of its node; its id if it has none.
    pub node: String,
    /// Who is in it, as `namespace/name`, and which replica; `None`: it is held.
    pub occupant: Option<(String, u32)>,
}

impl ReservationView {
    /// Slots that somebody is in.
    pub fn n_used(&self) -> usize {
        self.slots.iter().filter(|slot| slot.occupant.is_some()).count()
    }

    /// Slots that nobody is in.
    pub fn n_held(&self) -> usize {
        self.slots.len() - self.n_used()
    }

    /// Slots without room. None once it has expired.
    pub fn n_waiting(&self) -> usize {
        let wanted = if self.is_expired { 0 } else { self.spec.slots as usize };
        wanted.saturating_sub(self.slots.len())
    }
}

impl ReservationRecords {
    /// Reservations by name.
    pub fn specs(&self) -> &BTreeMap<String, Arc<ReservationSpec>> {
        &self.specs
    }

    /// A reservation's record as committed at `revision`.
    pub(super) fn put(&mut self, spec: Arc<ReservationSpec>, revision: Revision, created: Receipt) {
        self.versions.note(&spec.name, revision, created);
        self.specs.insert(spec.name.clone(), spec);
    }

    /// A reservation's record is gone.
    pub(super) fn remove(&mut self, name: &str) {
        self.versions.remove(name);
        self.specs.remove(name);
    }

    /// A reservation as shown; `None` if there is no such reservation. `O(its slots)`.
    pub fn view(&self, name: &str, units: &Units, nodes: &Nodes, wall_ms: i64) -> Option<ReservationView> {
        let spec = self.specs.get(name)?;
        let slots = self.slots.get(name).into_iter().flatten().map(|((number, _), hold)| {
            let node = nodes.name_or_id(hold.node);
            let occupant = occupant(hold, units)
                .map(|member| (units.name(member.unit).unwrap_or_default(), member.replica.ordinal));
            SlotView { number: *number, node, occupant }
        });
        Some(ReservationView {
            spec: Arc::clone(spec),
            versions: self.versions.get(name).unwrap_or_default(),
            slots: slots.collect(),
            is_expired: spec.is_expired(wall_ms),
        })
    }

    /// Whether where a unit may go depends on its labels: slots go by them, and so do units that keep others away.
    pub(super) fn decide_by_labels(&self, units: &Units) -> bool {
        !self.specs.is_empty() || units.n_keeping > 0
    }

    /// Units with running units in slots of a reservation.
    pub(super) fn users(&self, name: &str, units: &Units) -> Users {
        let holds = self.slots.get(name).into_iter().flatten().map(|(_, hold)| hold);
        let mut members: Vec<RunningUnitId> = holds.filter_map(|hold| occupant(hold, units)).collect();
        members.sort_unstable();
        members.dedup_by_key(|member| member.unit);
        let name = |member: &RunningUnitId| units.name(member.unit).unwrap_or_default();
        let first = members.iter().take(N_USERS_NAMED).map(name).collect();
        Users { n: members.len(), first }
    }

    /// A hold's record, perhaps of a slot.
    pub(super) fn on_slot(&mut self, hold: &Arc<Hold>) {
        if let Some((reservation, key)) = slot(hold) {
            let slots = self.slots.entry(reservation).or_default();
            slots.insert(key, Arc::clone(hold));
        }
    }

    /// A hold's record is gone, perhaps of a slot.
    pub(super) fn on_slot_gone(&mut self, hold: &Hold) {
        let Some((reservation, key)) = slot(hold) else { return };
        if let Some(slots) = self.slots.get_mut(&reservation) {
            slots.remove(&key);
            if slots.is_empty() {
                self.slots.remove(&reservation);
            }
        }
    }
}

/// Who is in a slot.
fn occupant(hold: &Hold, units: &Units) -> Option<RunningUnitId> {
    let member = hold.slot.as_ref()?.occupant?;
    let row = units.get(member.unit)?.rows.row(member.replica.ordinal);
    let is_in = row.phase.is_live() && (row.incarnation, row.node) == (member.replica.incarnation, hold.node);
    is_in.then_some(member)
}

/// Whose slot a hold is, and which.
fn slot(hold: &Hold) -> Option<(Arc<str>, (u32, HoldId))> {
    let slot = hold.slot.as_ref()?;
    Some((Arc::clone(&slot.reservation), (*hold.ordinals.first()?, hold.id)))
}
