//! Reservations: room that is kept for running units of some units, whether these are there yet or not.
//!
//! A reservation has so many *slots*, each with room for one running unit. The binder holds a slot wherever there is room
//! (`choose`), and says so with a [`Hold`](crate::hold::Hold); nobody but an owner gets that room. A running unit of an
//! owner that a slot has everything for takes the slot when it is bound on its node. As long as it is there the slot keeps
//! no more than what the running unit leaves of it; then all of it again, on the same node.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{cluster::Cluster, demand::Demand, ids::NodeId};

pub mod check;
pub mod spec;
#[cfg(test)]
mod tests;

use spec::ReservationSpec;

/// Reservations that a unit owns, in order of name; mostly none.
pub(crate) type Owned = SmallVec<[Arc<ReservationSpec>; 1]>;

/// Whether a slot with room for `slot` has all that `asked` takes.
pub fn covers(slot: &Demand, asked: &Demand) -> bool {
    let devices = match (&slot.devices, &asked.devices) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(slot), Some(asked)) => {
            (&slot.kind, &slot.models, slot.milli) == (&asked.kind, &asked.models, asked.milli)
                && slot.count >= asked.count
        }
    };
    devices && asked.requests.iter().all(|(name, amount)| amount <= slot.requests.get(name))
}

/// Nodes of `among`, which are ascending, that may have slots of a reservation.
///
/// Room aside: they are there, ready and open, have its labels, and no taint, as nobody knows what its owners tolerate.
pub(crate) fn choose(cluster: &Cluster, spec: &ReservationSpec, among: &[NodeId]) -> Vec<NodeId> {
    let may = |node: &&NodeId| {
        cluster.usable(**node).is_ok() && cluster.allows(&spec.node_selector, &[], **node).is_ok()
    };
    among.iter().filter(may).copied().collect()
}
