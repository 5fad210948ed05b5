//! Checks of where the running units of a unit go in relation to one another.

use godel_domain::{
    names,
    unit_topology::{N_LEVELS_MAX, UnitTopology},
};

use super::{REPLICAS_MAX, ViolationList};

pub(super) fn unit_topology(given: UnitTopology, report: &mut ViolationList) -> UnitTopology {
    for (field, key) in [("required", &given.required), ("homogeneous", &given.homogeneous)] {
        if !key.is_empty() {
            report.named(format_args!("topology.{field}"), names::label_key(key));
        }
    }
    if given.preferred.len() > N_LEVELS_MAX {
        report.add(
            format_args!("topology.preferred"),
            format_args!("{} keys; at most {N_LEVELS_MAX}", given.preferred.len()),
        );
    }
    for (at, key) in given.preferred.iter().enumerate().take(N_LEVELS_MAX) {
        report.named(format_args!("topology.preferred[{at}]"), names::label_key(key));
        if given.preferred[..at].contains(key) || *key == given.required {
            report.add(format_args!("topology.preferred[{at}]"), format_args!("duplicate key `{key}`"));
        }
    }
    if let Some(segments) = &given.segments {
        if !(1..=REPLICAS_MAX).contains(&segments.size) {
            report.add(
                format_args!("topology.segments.size"),
                format_args!("{} is not in 1..={REPLICAS_MAX}", segments.size),
            );
        }
        report.named(format_args!("topology.segments.within"), names::label_key(&segments.within));
    }
    given
}
