//! Assignments, reports and plans between wire and domain; leniently where the sender is a leader.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_core_scheduler::{PlanOutcome, PlanReport};
use godel_domain::{
    assignment::{Assignment, Permit},
    change::NodeScope,
    unit::UnitSpec,
    unit_report::{ReportState, RoomReport, UnitReport},
};
use godel_proto::{raw, v1};
use godel_rules::admission;
use godel_wire::{BadField, from_proto, to_proto};
use prost::Message as _;

/// An assignment as sent.
///
/// # Errors
/// The unit is wrong, or columns differ in length.
pub(crate) fn assignment(pb: raw::UnitAssignment) -> Result<Assignment, BadField> {
    let raw::UnitAssignment {
        record,
        spec_revision,
        ordinals,
        incarnations,
        bound,
        scope,
        at_maximum,
        turn,
        called,
        places_max,
        read_revision,
    } = pb;
    if !incarnations.is_empty() && incarnations.len() != ordinals.len() {
        return Err(BadField::new("incarnations", "empty, or one per ordinal"));
    }
    let record =
        v1::UnitRecord::decode(record).map_err(|error| BadField::new("record", error.to_string()))?;
    let record = from_proto::unit_record(record).map_err(|bad| bad.under("record"))?;
    // One that this version does not know is the narrower one.
    let scope = match v1::AssignmentScope::try_from(scope) {
        Ok(v1::AssignmentScope::Global) => NodeScope::Global,
        Ok(v1::AssignmentScope::Unspecified) | Err(_) => NodeScope::Partition,
    };
    let (record, revision, read) = (Arc::new(record), Revision(spec_revision), Revision(read_revision));
    let permit = Permit { scope, at_maximum, turn, called, places_max, read };
    Ok(Assignment { record, revision, ordinals, incarnations, bound, permit })
}

/// What became of a try.
pub(crate) fn report(report: &UnitReport) -> v1::UnitReport {
    let UnitReport { unit, spec_revision, state, refusals, need, unplaced, lacking, assigned } = report;
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
        need: *need,
        unplaced: *unplaced,
        lacking_groups: lacking.clone(),
        assigned: *assigned,
    }
}

/// Room for parked units.
pub(crate) fn room(room: &RoomReport) -> v1::RoomReport {
    let RoomReport { need, places, assigned, revision } = *room;
    v1::RoomReport { need, places, assigned, revision: revision.0 }
}

/// Most replicas that a plan places: one message has room for so many node names.
const N_PLAN_REPLICAS_MAX: u32 = 10_000;

/// In place of the uid that a submission would get.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// A unit to plan, as the dispatcher would admit it.
///
/// # Errors
/// It is not there, what the dispatcher would refuse, or too many replicas.
pub(crate) fn planned_unit(pb: Option<v1::UnitSpec>) -> Result<UnitSpec, Vec<BadField>> {
    let pb = pb.ok_or_else(|| vec![BadField::new("unit", "missing")])?;
    let mut submission = from_proto::submission(pb);
    if submission.uid.is_empty() {
        // Whichever it would get.
        submission.uid = NO_UID.to_owned();
    }
    let admitted = admission::admit(submission).map_err(|wrong| {
        wrong.into_iter().map(|one| BadField::new(one.field, one.description)).collect::<Vec<_>>()
    })?;
    let n_replicas: u64 = admitted.spec.task_groups.iter().map(|group| u64::from(group.replicas)).sum();
    if n_replicas > u64::from(N_PLAN_REPLICAS_MAX) {
        let description = format!("a plan covers at most {N_PLAN_REPLICAS_MAX} replicas");
        return Err(vec![BadField::new("task_groups", description)]);
    }
    Ok(admitted.spec)
}

/// What would become of a unit, with the names of the nodes.
pub(crate) fn plan(plan: PlanReport, nodes: Vec<String>) -> v1::PlanResponse {
    let PlanReport { outcome, nodes: _, unplaced, refusals, victims, why } = plan;
    let outcome = match outcome {
        PlanOutcome::Fits => v1::PlanOutcome::Fits,
        PlanOutcome::Partly => v1::PlanOutcome::Partly,
        PlanOutcome::Preempts => v1::PlanOutcome::Preempts,
        PlanOutcome::Waits => v1::PlanOutcome::Waits,
        PlanOutcome::Never => v1::PlanOutcome::Never,
    };
    let victims = victims.into_iter();
    v1::PlanResponse {
        nodes,
        unplaced,
        refusals: refusals.as_deref().map(to_proto::refusals),
        outcome: outcome.into(),
        victims: victims.map(|(unit, n)| v1::PlanVictims { unit_id: unit.0, running_units: n }).collect(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_assignments_and_plans_are_named() {
        let short = raw::UnitAssignment { ordinals: vec![0, 1], incarnations: vec![1], ..Default::default() };
        assert_eq!(assignment(short).unwrap_err().path, "incarnations");
        assert_eq!(
            assignment(raw::UnitAssignment::default()).unwrap_err().path,
            "record.spec.workload_class"
        );
        let wrong = |unit| planned_unit(unit).unwrap_err()[0].path.clone();
        assert_eq!(wrong(None), "unit");
        let group = |replicas| v1::TaskGroup {
            min_member: None,
            topology: None,
            name: format!("g{replicas}"),
            replicas,
            template: Some(v1::Template::default()),
        };
        let unit = |replicas: &[u32]| {
            let task_groups = replicas.iter().map(|replicas| group(*replicas)).collect();
            let meta = Some(v1::ObjectMeta { name: "u".to_owned(), ..Default::default() });
            Some(v1::UnitSpec { meta, task_groups, ..Default::default() })
        };
        assert_eq!(wrong(unit(&[])), "task_groups");
        assert_eq!(wrong(unit(&[1, 100_001])), "task_groups[1].replicas");
        assert_eq!(wrong(unit(&[6_000, 6_001])), "task_groups");
        let spec = planned_unit(unit(&[2, 3])).unwrap();
        assert_eq!((spec.task_groups[1].replicas, spec.min_member), (3, 1));
    }

    #[test]
    fn what_submission_refuses_a_plan_refuses_with_the_same_words() {
        let meta = |name: &str| Some(v1::ObjectMeta { name: name.to_owned(), ..Default::default() });
        let group =
            v1::TaskGroup { replicas: 2, template: Some(v1::Template::default()), ..Default::default() };
        let fine = v1::UnitSpec { meta: meta("u"), task_groups: vec![group], ..Default::default() };
        assert!(planned_unit(Some(fine.clone())).is_ok());
        for unit in [
            v1::UnitSpec { meta: meta("No"), ..fine.clone() },
            v1::UnitSpec { meta: None, ..fine.clone() },
            v1::UnitSpec { min_member: Some(3), ..fine.clone() },
            v1::UnitSpec { priority: Some(i32::MAX), ..fine.clone() },
            v1::UnitSpec { min_run_ms: u64::MAX, ..fine.clone() },
            v1::UnitSpec { workload_class: 99, ..fine.clone() },
            v1::UnitSpec { queue: "a..b".to_owned(), ..fine },
        ] {
            let mut submission = from_proto::submission(unit.clone());
            submission.uid = NO_UID.to_owned();
            let submitted = admission::admit(submission).unwrap_err();
            let planned = planned_unit(Some(unit)).unwrap_err();
            let words: Vec<_> = submitted.into_iter().map(|one| (one.field, one.description)).collect();
            let same: Vec<_> = planned.into_iter().map(|bad| (bad.path, bad.description)).collect();
            assert!(!words.is_empty());
            assert_eq!(words, same);
        }
    }
}
