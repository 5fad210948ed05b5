//! Reservations.

use godel_domain::{budget_spec::NAMESPACE_DEFAULT, reservation_spec::ReservationSpec};
use godel_proto::v1;

use super::{BadField, Result};

/// A reservation as stored.
///
/// # Errors
/// It has no name, or a demand that is none.
pub fn reservation(pb: v1::Reservation) -> Result<ReservationSpec> {
    let (spec, bad) = given_reservation(pb);
    match bad.into_iter().next() {
        Some(first) => Err(first),
        None if spec.name.is_empty() => Err(BadField::new("name", "missing")),
        None => Ok(spec),
    }
}

/// A reservation as a client wrote it, and every field that cannot be read, which is left at its default. What can be read
/// may be wrong all the same: that is for the checks of admission.
pub fn given_reservation(pb: v1::Reservation) -> (ReservationSpec, Vec<BadField>) {
    let v1::Reservation { name, namespace, selector, slots, demand, node_selector, expires_ms, description } =
        pb;
    let mut bad = Vec::new();
    let mut demand = demand.unwrap_or_default();
    for devices in demand.devices.iter_mut().filter(|devices| devices.kind.is_empty()) {
        godel_base::quantity::GPU.clone_into(&mut devices.kind);
    }
    if let Some(zones) = demand.zones.as_mut().filter(|zones| zones.cpu_mode() == v1::CpuMode::Dedicated) {
        match zones.policy() {
            // As for replicas.
            v1::ZonePolicy::Unspecified => zones.policy = v1::ZonePolicy::SingleZone.into(),
            v1::ZonePolicy::None => {
                let why =
                    "dedicated CPUs lie in zones: ask for single-zone, restricted, best-effort or exclusive";
                bad.push(BadField::new("demand.zones.policy", why));
            }
            _ => {}
        }
    }
    let demand = super::demand(demand).unwrap_or_else(|wrong| {
        bad.push(wrong.under("demand"));
        godel_domain::demand::Demand::default()
    });
    let namespace = if namespace.is_empty() { NAMESPACE_DEFAULT.to_owned() } else { namespace };
    let spec = ReservationSpec {
        name,
        namespace,
        selector: selector.into_iter().collect(),
        slots,
        demand,
        node_selector: node_selector.into_iter().collect(),
        expires_ms,
        description,
    };
    (spec, bad)
}
