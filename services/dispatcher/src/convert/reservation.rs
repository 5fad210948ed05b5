//! Reservations as shown.

use godel_core_dispatcher::{
    queues::Versions,
    reservations::{ReservationView, SlotView},
};
use godel_proto::v1;
use godel_wire::to_proto;

/// A reservation as shown.
pub(crate) fn reservation(view: ReservationView) -> v1::ReservationStatus {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (held, used, waiting) = (count(view.n_held()), count(view.n_used()), count(view.n_waiting()));
    let ReservationView { spec, versions, slots, is_expired } = view;
    let Versions { create_revision, revision, create_time_ms } = versions;
    v1::ReservationStatus {
        reservation: Some(to_proto::reservation(&spec)),
        create_revision: create_revision.0,
        revision: revision.0,
        create_time_ms,
        held,
        used,
        waiting,
        expired: is_expired,
        places: slots.into_iter().map(slot).collect(),
    }
}

fn slot(view: SlotView) -> v1::ReservedPlace {
    let SlotView { number, node, occupant } = view;
    let (unit, ordinal) = occupant.unwrap_or_default();
    v1::ReservedPlace { slot: number, node, unit, ordinal }
}
