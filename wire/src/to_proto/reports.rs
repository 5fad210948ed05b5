//! What becomes of running units that are bound.

use godel_base::ids::UnitId;
use godel_domain::running_units::{Compaction, Evict, Requeue, Statuses, UnitTerms};
use godel_proto::v1;

use super::{eviction_reason, phase};
use crate::ops::{ends_to_proto, standing_to_proto};

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

/// Running units that begin to leave.
pub fn evict(unit: UnitId, evict: &Evict) -> v1::Eviction {
    let Evict { ordinals, incarnations, reason, by, preemptor } = evict;
    v1::Eviction {
        unit_id: unit.0,
        ordinals: ordinals.clone(),
        incarnations: incarnations.clone(),
        reason: eviction_reason(Some(*reason)).into(),
        by: by.clone(),
        preemptor_id: preemptor.0,
    }
}

/// Running units of which nothing is kept any more.
pub fn compaction(unit: UnitId, compaction: &Compaction) -> v1::Compaction {
    let Compaction { ordinals, incarnations, groups } = compaction;
    v1::Compaction {
        unit_id: unit.0,
        ordinals: ordinals.clone(),
        incarnations: incarnations.clone(),
        task_groups: groups.iter().copied().map(u32::from).collect(),
    }
}

/// Preemption terms of all that is bound of a unit.
pub fn terms(unit: UnitId, terms: &UnitTerms) -> v1::TermsChange {
    let UnitTerms { others, group_minima } = terms;
    let standing = Some(standing_to_proto(others));
    v1::TermsChange { unit_id: unit.0, standing, group_minima: group_minima.clone() }
}
