//! Assignments, reports and plans between wire and domain; leniently where the sender is a leader.

use std::sync::Arc;

use godel_core::{
    admission::defaults,
    change::Scope,
    ids::Revision,
    scheduler::{ReportState, UnitReport},
    unit::{UnitSpec, WorkloadClass},
};
use godel_kit::{convert::BadField, from_proto, to_proto};
use godel_proto::{raw, v1};
use prost::Message as _;

/// A unit to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) spec: Arc<UnitSpec>,
    pub(crate) spec_revision: Revision,
    /// (ordinal, incarnation).
    pub(crate) pending: Vec<(u32, u32)>,
    /// Bound and not evicting.
    pub(crate) bound: u32,
    /// Whose nodes may be used.
    pub(crate) scope: Scope,
    /// Should it find no place its room is gathered.
    pub(crate) turn: bool,
}

/// An assignment as sent.
///
/// # Errors
/// The unit is wrong, or columns differ in length.
pub(crate) fn assignment(pb: raw::UnitAssignment) -> Result<Assignment, BadField> {
    let raw::UnitAssignment { spec, spec_revision, ordinals, incarnations, bound, scope, turn } = pb;
    if !incarnations.is_empty() && incarnations.len() != ordinals.len() {
        return Err(BadField::new("incarnations", "empty, or one per ordinal"));
    }
    let spec = v1::UnitSpec::decode(spec).map_err(|error| BadField::new("spec", error.to_string()))?;
    let spec = from_proto::unit_spec(spec).map_err(|bad| bad.under("spec"))?;
    let incarnation = |idx: usize| incarnations.get(idx).copied().unwrap_or(0);
    let pending = ordinals.iter().enumerate().map(|(idx, ordinal)| (*ordinal, incarnation(idx))).collect();
    // One that this version does not know is the narrower one.
    let scope = match v1::AssignmentScope::try_from(scope) {
        Ok(v1::AssignmentScope::Global) => Scope::Global,
        Ok(v1::AssignmentScope::Unspecified) | Err(_) => Scope::Partition,
    };
    let (spec, spec_revision) = (Arc::new(spec), Revision(spec_revision));
    Ok(Assignment { spec, spec_revision, pending, bound, scope, turn })
}

/// What became of a try.
pub(crate) fn report(report: &UnitReport) -> v1::UnitReport {
    let UnitReport { unit, spec_revision, state, refusals } = report;
    let state = match state {
        ReportState::Parked => v1::UnitReportState::Parked,
        ReportState::Woken => v1::UnitReportState::Woken,
        ReportState::Returned => v1::UnitReportState::Returned,
        ReportState::QueueFull => v1::UnitReportState::QueueFull,
        ReportState::Done => v1::UnitReportState::Done,
    };
    v1::UnitReport {
        unit_id: unit.0,
        spec_revision: spec_revision.0,
        state: state.into(),
        refusals: refusals.as_deref().map(to_proto::refusals),
    }
}

/// Most replicas that a plan places: one message has room for so many node names.
const N_PLAN_REPLICAS_MAX: u32 = 10_000;

/// A unit to plan: what the dispatcher would fill in may be missing.
///
/// # Errors
/// It names no template, or a field is wrong.
pub(crate) fn planned_unit(pb: Option<v1::UnitSpec>) -> Result<UnitSpec, BadField> {
    let mut pb = pb.ok_or_else(|| BadField::new("unit", "missing"))?;
    let class = from_proto::workload_class(pb.workload_class)?.unwrap_or(WorkloadClass::Batch);
    let defaults = defaults::of(class);
    pb.workload_class = to_proto::workload_class(class).into();
    pb.unit_id = pb.unit_id.max(1);
    if pb.task_groups.is_empty() {
        return Err(BadField::new("unit.task_groups", "empty"));
    }
    if pb.restart_policy == 0 {
        pb.restart_policy = to_proto::restart_policy(defaults.restart_policy).into();
    }
    if pb.scoring_profile == 0 {
        pb.scoring_profile = to_proto::scoring_profile(defaults.scoring).into();
    }
    if pb.pool == 0 {
        pb.pool = to_proto::pool(defaults.pool).into();
    }
    let mut start = 0u32;
    for (idx, group) in pb.task_groups.iter_mut().enumerate() {
        let path = || format!("unit.task_groups[{idx}].replicas");
        if group.replicas == 0 {
            return Err(BadField::new(path(), "at least 1"));
        }
        let end =
            start.checked_add(group.replicas).filter(|end| *end <= N_PLAN_REPLICAS_MAX).ok_or_else(|| {
                BadField::new(path(), format!("a plan is for at most {N_PLAN_REPLICAS_MAX} replicas"))
            })?;
        group.ordinals = vec![v1::OrdinalRange { start, end }];
        start = end;
    }
    if pb.min_member.is_none() {
        pb.min_member = Some(match defaults.min_member {
            defaults::MinMember::One => 1,
            defaults::MinMember::Replicas => start,
        });
    }
    from_proto::unit_spec(pb).map_err(|bad| bad.under("unit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_assignments_and_plans_are_named() {
        let short = raw::UnitAssignment { ordinals: vec![0, 1], incarnations: vec![1], ..Default::default() };
        assert_eq!(assignment(short).unwrap_err().path, "incarnations");
        assert_eq!(assignment(raw::UnitAssignment::default()).unwrap_err().path, "spec.unit_id");
        assert_eq!(planned_unit(None).unwrap_err().path, "unit");
        let group = |replicas| v1::TaskGroup { replicas, ..Default::default() };
        let unit = |replicas: &[u32]| {
            let task_groups = replicas.iter().map(|replicas| group(*replicas)).collect();
            Some(v1::UnitSpec { task_groups, ..Default::default() })
        };
        assert_eq!(planned_unit(unit(&[])).unwrap_err().path, "unit.task_groups");
        assert_eq!(planned_unit(unit(&[1, 0])).unwrap_err().path, "unit.task_groups[1].replicas");
        assert_eq!(planned_unit(unit(&[1, u32::MAX])).unwrap_err().path, "unit.task_groups[1].replicas");
        let spec = planned_unit(unit(&[2, 3])).unwrap();
        assert_eq!((spec.task_groups[1].ordinals[0], spec.min_member), ((2, 5), 1));
    }
}
