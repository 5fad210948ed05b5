//! Checks of where the running units of a unit, or of a task group, go in relation to one another.

use godel_domain::{
    limits::REPLICAS_MAX,
    names,
    unit::UnitSpec,
    unit_topology::{N_LEVELS_MAX, UnitTopology},
};

use super::ViolationList;

/// Why a task group of a unit with segments has no topology.
pub(super) const SEGMENTS_OF_UNIT: &str =
    "the unit has segments of its own: give segments to its task groups, or no topology to them";

pub(super) fn unit_topology(given: UnitTopology, report: &mut ViolationList) -> UnitTopology {
    check("topology", &given, report);
    given
}

pub(super) fn of_group(idx: usize, given: UnitTopology, report: &mut ViolationList) -> UnitTopology {
    check(&format!("task_groups[{idx}].topology"), &given, report);
    given
}

/// Checks that the topologies of a unit and of its task groups can be told apart: segments are of one level only.
pub(super) fn check_levels(spec: &UnitSpec, report: &mut ViolationList) {
    if spec.topology.segments.is_none() {
        return;
    }
    for (idx, _) in spec.task_groups.iter().enumerate().filter(|(_, group)| group.topology.is_some()) {
        report.add(format_args!("task_groups[{idx}].topology"), SEGMENTS_OF_UNIT);
    }
}

fn check(path: &str, given: &UnitTopology, report: &mut ViolationList) {
    for (field, key) in [("required", &given.required), ("homogeneous", &given.homogeneous)] {
        if !key.is_empty() {
            report.named(format_args!("{path}.{field}"), names::label_key(key));
        }
    }
    if given.preferred.len() > N_LEVELS_MAX {
        report.add(
            format_args!("{path}.preferred"),
            format_args!("{} keys; at most {N_LEVELS_MAX}", given.preferred.len()),
        );
    }
    for (at, key) in given.preferred.iter().enumerate().take(N_LEVELS_MAX) {
        report.named(format_args!("{path}.preferred[{at}]"), names::label_key(key));
        if given.preferred[..at].contains(key) || *key == given.required {
            report.add(format_args!("{path}.preferred[{at}]"), format_args!("duplicate key `{key}`"));
        }
    }
    if let Some(segments) = &given.segments {
        if !(1..=REPLICAS_MAX).contains(&segments.size) {
            report.add(
                format_args!("{path}.segments.size"),
                format_args!("{} is not in 1..={REPLICAS_MAX}", segments.size),
            );
        }
        report.named(format_args!("{path}.segments.within"), names::label_key(&segments.within));
    }
}
