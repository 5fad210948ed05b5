//! RunningUnit operations and listed rows. The store converts the same columns when it validates a transaction, so
//! the conversions are its own: followers cannot disagree with it.

use godel_base::ids::UnitId;
use godel_domain::running_units::{EvictionReason, Phase, RunChange, RunningUnits};
use godel_proto::{raw, v1};

use super::{BadField, Result};
use crate::ops::{self, OpError};

/// Places for running units of one task group.
///
/// # Errors
/// Columns differ in length, or a field is out of range.
pub fn bind(pb: raw::Binding) -> Result<(UnitId, RunChange)> {
    let (unit, bind) = ops::bind_from_proto(pb).map_err(bad_field)?;
    Ok((unit, RunChange::Bind(bind)))
}

/// Running units that begin to leave.
///
/// # Errors
/// Columns differ in length, or the reason is missing.
pub fn evict(pb: v1::Eviction) -> Result<(UnitId, RunChange)> {
    let (unit, evict) = ops::evict_from_proto(pb).map_err(bad_field)?;
    Ok((unit, RunChange::Evict(evict)))
}

/// What agents reported.
///
/// # Errors
/// Columns differ in length, or a phase is missing.
pub fn statuses(pb: v1::RunStatuses) -> Result<(UnitId, RunChange)> {
    let (unit, statuses) = ops::statuses_from_proto(pb).map_err(bad_field)?;
    Ok((unit, RunChange::Statuses(statuses)))
}

/// Ended running units that become pending again.
///
/// # Errors
/// Columns differ in length.
pub fn requeue(pb: v1::Requeue) -> Result<(UnitId, RunChange)> {
    let (unit, requeue) = ops::requeue_from_proto(pb).map_err(bad_field)?;
    Ok((unit, RunChange::Requeue(requeue)))
}

/// Running units of which nothing is kept any more.
///
/// # Errors
/// Columns differ in length, or a field is out of range.
pub fn compaction(pb: v1::Compaction) -> Result<(UnitId, RunChange)> {
    let (unit, compaction) = ops::compaction_from_proto(pb).map_err(bad_field)?;
    Ok((unit, RunChange::Compact(compaction)))
}

/// Preemption terms of all that is bound of a unit.
///
/// # Errors
/// There are none, or the unit is missing.
pub fn terms(pb: v1::TermsChange) -> Result<(UnitId, RunChange)> {
    let (unit, terms) = ops::terms_from_proto(pb).map_err(bad_field)?;
    Ok((unit, RunChange::Terms(terms)))
}

/// All rows of one unit, as listed.
///
/// # Errors
/// Columns differ in length, or a field is out of range.
pub fn unit_rows(pb: v1::UnitRows) -> Result<(UnitId, RunningUnits)> {
    ops::rows_from_proto(pb).map_err(bad_field)
}

/// Life of a running unit; unspecified is pending.
///
/// # Errors
/// An unknown number.
pub fn phase(number: i32) -> Result<Phase> {
    ops::phase_from_proto(number).map_err(bad_field)
}

/// Why a running unit is made to leave; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn eviction_reason(number: i32) -> Result<Option<EvictionReason>> {
    ops::eviction_reason_from_proto(number).map_err(bad_field)
}

/// Pool that pays; unspecified is the guaranteed one.
///
/// # Errors
/// An unknown number.
pub fn pool(number: i32) -> Result<godel_domain::demand::Pool> {
    ops::pool_from_proto(number).map_err(bad_field)
}

fn bad_field(error: OpError) -> BadField {
    match error {
        OpError::Field { field, problem } => BadField::new(field, problem),
        OpError::Unknown | OpError::Malformed { .. } => BadField::new("op", error.to_string()),
    }
}
