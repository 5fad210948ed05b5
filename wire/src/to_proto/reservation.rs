//! Reservations.

use godel_domain::reservation_spec::ReservationSpec;
use godel_proto::v1;

/// A reservation.
pub fn reservation(spec: &ReservationSpec) -> v1::Reservation {
    let ReservationSpec { name, namespace, selector, slots, demand, node_selector, expires_ms, description } =
        spec;
    v1::Reservation {
        name: name.clone(),
        namespace: namespace.clone(),
        selector: super::map(selector),
        slots: *slots,
        demand: Some(super::demand(demand)),
        node_selector: super::map(node_selector),
        expires_ms: *expires_ms,
        description: description.clone(),
    }
}
