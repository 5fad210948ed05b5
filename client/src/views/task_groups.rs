//! How far the task groups of a unit are.

use godel_proto::v1;
use serde::Serialize;

use super::RunningUnitView;
use crate::output::{View, ViewColumn};

/// A task group and what there is of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskGroupView {
    /// Unique in its unit.
    pub name: String,
    /// Wanted.
    pub replicas: u32,
    /// The first binding has at least so many of it; 0: it has no minimum of its own.
    pub min_member: u32,
    /// On a node, or over by themselves: what counts for the minimum.
    pub placed: usize,
    /// Running.
    pub running: usize,
}

/// The task groups of a unit with several.
pub(super) fn task_groups(spec: &v1::UnitSpec, running_units: &[RunningUnitView]) -> Vec<TaskGroupView> {
    if spec.task_groups.len() < 2 {
        return Vec::new();
    }
    let view = |group: &v1::TaskGroup| {
        let count = |phases: &[&str]| {
            let of_group = running_units.iter().filter(|run| run.task_group == group.name);
            of_group.filter(|run| phases.contains(&run.phase.as_str())).count()
        };
        TaskGroupView {
            name: group.name.clone(),
            replicas: group.replicas,
            min_member: group.min_member.unwrap_or_default(),
            placed: count(&["Bound", "Starting", "Running", "Succeeded", "Failed"]),
            running: count(&["Running"]),
        }
    };
    spec.task_groups.iter().map(view).collect()
}

impl View for TaskGroupView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("GROUP", |view| view.name.clone()),
        ("REPLICAS", |view| view.replicas.to_string()),
        ("MIN", |view| if view.min_member == 0 { String::new() } else { view.min_member.to_string() }),
        ("PLACED", |view| view.placed.to_string()),
        ("RUNNING", |view| view.running.to_string()),
    ];
}
