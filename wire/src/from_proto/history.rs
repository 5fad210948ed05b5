//! What is kept of units that are deleted.

use godel_base::ids::NodeId;
use godel_domain::{
    lifecycle::UnitPhase,
    unit_history::{RunHistory, UnitHistory},
};
use godel_proto::v1;

use super::{Result, phase, unit::unit_end, unit_id, workload_class};
use crate::BadField;

/// What is kept of a unit.
///
/// # Errors
/// A field is out of range.
pub fn unit_history(pb: v1::UnitHistory) -> Result<UnitHistory> {
    let v1::UnitHistory {
        unit_id: id,
        namespace,
        name,
        uid,
        owner,
        queue,
        workload_class: class,
        phase: ended_in,
        ended,
        create_time_ms,
        bound_time_ms,
        ended_time_ms,
        replicas,
        succeeded,
        failed,
        run_ms,
        resource_seconds,
        runs: columns,
        is_kept: _,
        starts,
        principal,
    } = pb;
    Ok(UnitHistory {
        id: unit_id(id, "unit_id")?,
        namespace,
        name,
        uid,
        owner,
        queue,
        class: workload_class(class)?.ok_or_else(|| BadField::new("workload_class", "missing"))?,
        phase: terminal(ended_in)?,
        ended: unit_end(ended)?,
        created_ms: create_time_ms,
        bound_ms: bound_time_ms,
        ended_ms: ended_time_ms,
        replicas,
        succeeded,
        failed,
        run_ms,
        used: resource_seconds.into_iter().collect(),
        runs: runs(&columns.unwrap_or_default()).map_err(|bad| bad.under("runs"))?,
        starts,
        principal,
    })
}

fn terminal(number: i32) -> Result<UnitPhase> {
    match v1::UnitPhase::try_from(number) {
        Ok(v1::UnitPhase::Completed) => Ok(UnitPhase::Completed),
        Ok(v1::UnitPhase::Failed) => Ok(UnitPhase::Failed),
        Ok(v1::UnitPhase::Cancelled) => Ok(UnitPhase::Cancelled),
        _ => Err(BadField::new("phase", format!("{number} is no end"))),
    }
}

fn runs(columns: &v1::RunHistoryColumns) -> Result<Vec<RunHistory>> {
    let n = columns.ordinals.len();
    for (name, len) in [
        ("incarnations", columns.incarnations.len()),
        ("phases", columns.phases.len()),
        ("node_ids", columns.node_ids.len()),
        ("exit_codes", columns.exit_codes.len()),
        ("restarts", columns.restarts.len()),
        ("bound_times_ms", columns.bound_times_ms.len()),
        ("ended_times_ms", columns.ended_times_ms.len()),
    ] {
        if len != n {
            return Err(BadField::new(name, format!("{len} values for {n} replicas")));
        }
    }
    (0..n)
        .map(|idx| {
            Ok(RunHistory {
                ordinal: columns.ordinals[idx],
                incarnation: columns.incarnations[idx],
                phase: phase(columns.phases[idx])?,
                node: NodeId(columns.node_ids[idx]),
                exit_code: columns.exit_codes[idx],
                restarts: columns.restarts[idx],
                bound_ms: columns.bound_times_ms[idx],
                ended_ms: columns.ended_times_ms[idx],
            })
        })
        .collect()
}
