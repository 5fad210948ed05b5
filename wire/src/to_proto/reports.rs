//! What becomes of running units on their nodes.

use godel_domain::{
    ids::UnitId,
    running_units::{Requeue, Statuses},
};
use godel_proto::v1;

use super::phase;
use crate::ops::ends_to_proto;

/// What agents reported.
pub fn statuses(unit: UnitId, statuses: &Statuses) -> v1::RunStatuses {
    let Statuses { ordinals, incarnations, phases, exit_codes, restarts, ends } = statuses;
    let (reasons, started_times_ms, ended_times_ms) = ends_to_proto(ends);
    v1::RunStatuses {
        unit_id: unit.0,
        ordinals: ordinals.clone(),
        incarnations: incarnations.clone(),
        phases: phases.iter().map(|one| phase(*one).into()).collect(),
        exit_codes: exit_codes.clone(),
        restarts: restarts.clone(),
        reasons,
        started_times_ms,
        ended_times_ms,
    }
}

/// Ended running units that become pending again.
pub fn requeue(unit: UnitId, requeue: &Requeue) -> v1::Requeue {
    let Requeue { ordinals, incarnations, anew } = requeue;
    let (ordinals, incarnations) = (ordinals.clone(), incarnations.clone());
    v1::Requeue { unit_id: unit.0, ordinals, incarnations, anew: *anew }
}
