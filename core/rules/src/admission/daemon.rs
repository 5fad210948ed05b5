//! What a daemon may not say: how many replicas it has, and when they end, follows from the nodes.

use godel_domain::{
    defaults::AppliedDefault,
    unit::{RestartPolicy, UnitSpec},
};

use super::ViolationList;

/// The first binding of a daemon: each of its replicas is worth something to its node.
pub(super) fn min_member(
    given: Option<u32>,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> u32 {
    match given {
        None => defaults.push(AppliedDefault::number("min_member", 1)),
        Some(1) => {}
        Some(given) => report.add(
            "min_member",
            format_args!("{given}, but each replica of a daemon is placed by itself: leave it out"),
        ),
    }
    1
}

/// Checks what a unit of another class may say and a daemon may not.
pub(super) fn check(spec: &UnitSpec, report: &mut ViolationList) {
    if spec.has_volumes() {
        report.add(
            "task_groups[0].template.run.volumes",
            format_args!(
                "a replica of a daemon follows the nodes and keeps no volume: let its command write to a directory of the node"
            ),
        );
    }
    if spec.task_groups.len() > 1 {
        report.add(
            "task_groups",
            format_args!(
                "a daemon has one task group; submit a unit for each of the {}",
                spec.task_groups.len()
            ),
        );
    }
    for (idx, group) in spec.task_groups.iter().enumerate().filter(|(_, group)| group.replicas > 0) {
        report.add(
            format_args!("task_groups[{idx}].replicas"),
            format_args!(
                "{}, but a daemon has one replica on each node that its template may have: leave it out",
                group.replicas
            ),
        );
    }
    if spec.has_group_minima() {
        report.add("task_groups[0].min_member", "each replica of a daemon is placed by itself: leave it out");
    }
    if spec.restart_policy != RestartPolicy::Always {
        report.add(
            "restart_policy",
            "replicas of a daemon always restart, as their nodes need them: leave it out",
        );
    }
    let of_group = spec.has_group_topologies().then_some("task_groups[0].topology");
    for field in of_group.into_iter().chain((!spec.topology.is_empty()).then_some("topology")) {
        report.add(field, "a daemon has a replica on each node that its template may have: leave it out");
    }
}
