//! Policy `vacate`: nodes with a label become empty, so that they can be given back.

use godel_core_rescheduler::{
    Algorithm, CheckPoint, Detection, Detector, Goal, Layout, NodeIdx, Policy, Reason, RunIdx, Workspace,
    evacuate,
};
use godel_domain::unit::WorkloadClass;

/// Nodes with room that are rated for each running unit that leaves.
const N_LOOKS: usize = 64;

/// The policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vacate {
    /// Nodes with this label become empty, whatever its value.
    pub label: String,
}

impl Vacate {
    /// Whether a running unit should not be on a node. Daemons stay: they are on every node.
    fn is_out_of_place(&self, layout: &Layout<'_>, unit: RunIdx, node: NodeIdx) -> bool {
        let is_daemon = layout.owner_facts(unit).class == WorkloadClass::Daemon;
        !is_daemon && layout.node(node).labels.contains_key(&self.label)
    }
}

/// How many running units are out of place.
struct VacateGoal<'a> {
    policy: &'a Vacate,
    n_left: u32,
}

impl Goal for VacateGoal<'_> {
    fn value(&self) -> f64 {
        f64::from(self.n_left)
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        let on = |node| f64::from(u8::from(self.policy.is_out_of_place(layout, unit, node)));
        on(to) - on(layout.node_of(unit))
    }

    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        self.n_left -= u32::from(self.policy.is_out_of_place(layout, unit, from));
        self.n_left += u32::from(self.policy.is_out_of_place(layout, unit, to));
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        (self.change(layout, unit, to) > 0.0).then_some(CheckPoint::Enter)
    }
}

impl Detector for Vacate {
    fn detect(&self, layout: &Layout<'_>, _goal: &dyn Goal) -> Detection {
        let is_suspect = |unit: &RunIdx| self.is_out_of_place(layout, *unit, layout.node_of(*unit));
        let suspects: Vec<RunIdx> = layout.running().filter(is_suspect).collect();
        let finding =
            format!("{} running units are on nodes with the label `{}`", suspects.len(), self.label);
        Detection { suspects, finding }
    }
}

impl Algorithm for Vacate {
    fn improve(&self, work: &mut Workspace<'_>, detection: &Detection) {
        for unit in &detection.suspects {
            // The node with most running units first. Who finds no place stays, and the others leave all the same.
            evacuate(work, &[*unit], N_LOOKS, &mut |work, unit, to| {
                let layout = work.layout();
                let n_there = u32::try_from(layout.on(to).len()).unwrap_or(u32::MAX);
                (!self.is_out_of_place(layout, unit, to)).then(|| -f64::from(n_there))
            });
        }
    }
}

impl Policy for Vacate {
    fn name(&self) -> &'static str {
        "vacate"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        let suspects =
            layout.running().filter(|unit| self.is_out_of_place(layout, *unit, layout.node_of(*unit)));
        Box::new(VacateGoal { policy: self, n_left: u32::try_from(suspects.count()).unwrap_or(u32::MAX) })
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        let reason = |unit: &RunIdx| {
            let (from, to) = (before.node(before.node_of(*unit)), after.node(after.node_of(*unit)));
            Reason {
                why_unit: format!("`{}` has the label `{}`, so it becomes empty", from.name, self.label),
                why_node: format!("`{}` has room and most running units", to.name),
                ..Reason::default()
            }
        };
        moved.iter().map(reason).collect()
    }
}
