//! Reservations: their records, and what they are shown with.

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::{
    hold::{Hold, Member},
    ids::{HoldId, Revision},
    record_change::{N_USERS_NAMED, Users},
    reservation_spec::ReservationSpec,
};

use super::{Dispatcher, queues::Versions};

/// Slots that are there, by number.
type SlotsByNumber = BTreeMap<(u32, HoldId), Arc<Hold>>;

/// Reservations, and their slots.
#[derive(Debug, Default)]
pub(super) struct ReservationRecords {
    pub(super) specs: BTreeMap<String, Arc<ReservationSpec>>,
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

impl Dispatcher {
    /// A reservation's record as committed at `revision`, from the watch in its order. `created`: revision and commit time
    /// of the transaction that created it, used when it is new.
    pub fn on_reservation(
        &mut self,
        spec: Arc<ReservationSpec>,
        revision: Revision,
        created: (Revision, i64),
    ) {
        if let Some(listed) = &mut self.listed {
            listed.reservations.insert(spec.name.clone());
        }
        self.records.note_reservation(&spec.name, revision, created);
        self.reservations.specs.insert(spec.name.clone(), spec);
    }

    /// A reservation's record is gone.
    pub fn on_reservation_deleted(&mut self, name: &str) {
        self.records.forget_reservation(name);
        self.reservations.specs.remove(name);
    }

    /// Reservations by name.
    pub fn reservations(&self) -> &BTreeMap<String, Arc<ReservationSpec>> {
        &self.reservations.specs
    }

    /// A reservation as shown; `None` if there is no such reservation. `O(its slots)`.
    pub fn reservation_view(&self, name: &str) -> Option<ReservationView> {
        let spec = self.reservations.specs.get(name)?;
        let slots = self.reservations.slots.get(name).into_iter().flatten().map(|((number, _), hold)| {
            let known = self.node_names.get(&hold.node);
            let node = known.map_or_else(|| hold.node.to_string(), |name| name.to_string());
            let occupant = self.occupant(hold).map(|member| (self.unit_name(&member), member.ordinal));
            SlotView { number: *number, node, occupant }
        });
        Some(ReservationView {
            spec: Arc::clone(spec),
            versions: self.reservation_versions(name).unwrap_or_default(),
            slots: slots.collect(),
            is_expired: spec.is_expired(self.wall_ms),
        })
    }

    /// Units with running units in slots of a reservation.
    pub(super) fn reservation_users(&self, name: &str) -> Users {
        let holds = self.reservations.slots.get(name).into_iter().flatten().map(|(_, hold)| hold);
        let mut members: Vec<Member> = holds.filter_map(|hold| self.occupant(hold)).collect();
        members.sort_unstable();
        members.dedup_by_key(|member| member.unit);
        let first = members.iter().take(N_USERS_NAMED).map(|member| self.unit_name(member)).collect();
        Users { n: members.len(), first }
    }

    pub(super) fn on_slot(&mut self, hold: &Arc<Hold>) {
        if let Some((reservation, key)) = slot(hold) {
            let slots = self.reservations.slots.entry(reservation).or_default();
            slots.insert(key, Arc::clone(hold));
        }
    }

    pub(super) fn on_slot_gone(&mut self, hold: &Hold) {
        let Some((reservation, key)) = slot(hold) else { return };
        if let Some(slots) = self.reservations.slots.get_mut(&reservation) {
            slots.remove(&key);
            if slots.is_empty() {
                self.reservations.slots.remove(&reservation);
            }
        }
    }

    /// Who is in a slot.
    fn occupant(&self, hold: &Hold) -> Option<Member> {
        let member = hold.slot.as_ref()?.occupant?;
        let row = self.units.get(&member.unit)?.rows.row(member.ordinal);
        let is_in = row.phase.is_live() && (row.incarnation, row.node) == (member.incarnation, hold.node);
        is_in.then_some(member)
    }

    fn unit_name(&self, member: &Member) -> String {
        let entry = self.units.get(&member.unit);
        entry.map_or_else(String::new, |entry| format!("{}/{}", entry.spec.namespace, entry.spec.name))
    }
}

/// Whose slot a hold is, and which.
fn slot(hold: &Hold) -> Option<(Arc<str>, (u32, HoldId))> {
    let slot = hold.slot.as_ref()?;
    Some((Arc::clone(&slot.reservation), (*hold.ordinals.first()?, hold.id)))
}
