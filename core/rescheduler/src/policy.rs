//! What a policy is: a detector, an algorithm, a goal, and reasons. The planner runs all of them alike.

use std::fmt;

use godel_base::ids::{NodeId, RunningUnitId};
use godel_domain::allocation::DeviceSet;

use crate::{
    goal::{CheckPoint, EPSILON, Goal},
    layout::{Layout, NodeIdx, RunIdx},
    workspace::{MoveRefusals, PlanLimits, Workspace},
};

use crate::filters::Filters;

/// Whether something is wrong, and what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detection {
    /// Running units that are where they should not be, most pressing first. Empty: nothing is to be done.
    pub suspects: Vec<RunIdx>,
    /// What was found, as a sentence: it is the "why now" of every move of the plan.
    pub finding: String,
}

/// Says whether rescheduling is worth anything now.
pub trait Detector {
    /// Looks at a layout as it is.
    fn detect(&self, layout: &Layout<'_>, goal: &dyn Goal) -> Detection;
}

/// Finds better nodes.
pub trait Algorithm {
    /// Moves running units in a workspace, which refuses what filters, checks and limits forbid.
    fn improve(&self, work: &mut Workspace<'_>, detection: &Detection);
}

/// One policy of the rescheduler.
pub trait Policy: Detector + Algorithm {
    /// Returns its name, as configuration and metrics have it.
    fn name(&self) -> &'static str;

    /// Returns what it wants, for a layout as it is.
    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a>;

    /// Says of each move why this unit and why this node, with the numbers that it follows from. `before` and `after` are the
    /// layouts without and with all moves of the plan, `moved` are the running units that move; a reason for each.
    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason>;
}

/// Why a running unit moves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reason {
    /// Why this unit.
    pub why_unit: String,
    /// Why this node.
    pub why_node: String,
    /// Why now; the planner fills it in from the detection.
    pub why_now: String,
    /// The numbers that say so, by name.
    pub numbers: Vec<(&'static str, f64)>,
}

/// A running unit that should be elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedMove {
    /// The running unit, by its position in the snapshot.
    pub unit: RunIdx,
    /// Its id.
    pub id: RunningUnitId,
    /// Where it is, by position and id.
    pub from: (NodeIdx, NodeId),
    /// Where it should be, by position and id.
    pub to: (NodeIdx, NodeId),
    /// The devices that it should have there.
    pub devices: DeviceSet,
    /// What the move costs, milliseconds of work.
    pub cost_ms: u64,
    /// Why.
    pub reason: Reason,
}

/// What a policy recommends.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct ReschedulePlan {
    /// The policy.
    pub policy: &'static str,
    /// Its objective as things are.
    pub before: f64,
    /// Its objective after the moves: lower, unless there are none.
    pub after: f64,
    /// The moves, by position in the snapshot.
    pub moves: Vec<PlannedMove>,
    /// What was found before.
    pub finding: String,
    /// Moves that were tried and refused, by what refused them.
    pub refusals: MoveRefusals,
}

impl ReschedulePlan {
    /// Returns what all moves cost, milliseconds of work.
    pub fn cost_ms(&self) -> u64 {
        self.moves.iter().fold(0, |sum, one| sum.saturating_add(one.cost_ms))
    }
}

impl fmt::Display for ReschedulePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, before, after, moves, .. } = self;
        write!(f, "{policy}: {} moves, objective {before:.3} -> {after:.3}", moves.len())
    }
}

/// A policy whose rules a plan keeps.
#[derive(Clone, Copy)]
pub struct CheckedBy<'p> {
    /// The policy.
    pub policy: &'p dyn Policy,
}

/// Makes the plan of one policy for a layout, which must be as its snapshot. The plan is empty if the policy finds nothing
/// wrong, or nothing better. It never raises the policy's own objective, nor the bound of a policy that checks it.
pub fn make_plan(
    policy: &dyn Policy,
    layout: &Layout<'_>,
    checks: &[CheckedBy<'_>],
    filters: &dyn Filters,
    limits: &PlanLimits,
) -> ReschedulePlan {
    plan_with_layout(policy, layout, checks, filters, limits).0
}

/// Makes the plan of one policy, for a layout from which some running units may have moved already: the moves are all from the snapshot on.
/// Returns the layout after them as well.
pub(crate) fn plan_with_layout<'a>(
    policy: &'a dyn Policy,
    layout: &Layout<'a>,
    checks: &[CheckedBy<'a>],
    filters: &'a dyn Filters,
    limits: &'a PlanLimits,
) -> (ReschedulePlan, Layout<'a>) {
    let mut start = layout.clone();
    let goal = policy.goal(&mut start);
    let checks = checks.iter().map(|check| (check.policy.name(), check.policy.goal(&mut start))).collect();
    let detection = policy.detect(&start, &*goal);
    let before = goal.value();
    let mut plan = ReschedulePlan {
        policy: policy.name(),
        before,
        after: before,
        moves: Vec::new(),
        finding: detection.finding.clone(),
        refusals: MoveRefusals::default(),
    };
    if detection.suspects.is_empty() {
        return (plan, start);
    }
    let mut work = Workspace::new(start.clone(), goal, checks, filters, limits);
    policy.improve(&mut work, &detection);
    work.send_home_what_gains_nothing();
    plan.refusals = work.refusals().clone();
    if work.goal().value() > before - EPSILON {
        return (plan, start);
    }
    plan.after = work.goal().value();
    let after = work.into_layout();
    plan.moves = moves_of(&after).collect();
    let moved: Vec<RunIdx> = plan.moves.iter().map(|planned| planned.unit).collect();
    let reasons = policy.reasons(&start, &after, &moved);
    for (planned, mut reason) in plan.moves.iter_mut().zip(reasons) {
        reason.why_now.clone_from(&detection.finding);
        planned.reason = reason;
    }
    (plan, after)
}

/// Returns the moves that make a layout of its snapshot, without reasons.
pub fn moves_of<'l>(after: &'l Layout<'_>) -> impl Iterator<Item = PlannedMove> + 'l {
    after.running().filter(|unit| after.is_moved(*unit)).map(|unit| {
        let (from, to) = (after.home(unit), after.node_of(unit));
        PlannedMove {
            unit,
            id: after.facts(unit).id,
            from: (from, after.node(from).id),
            to: (to, after.node(to).id),
            devices: after.devices(unit),
            cost_ms: after.cost(unit),
            reason: Reason::default(),
        }
    })
}

/// Why a move is not made, other than for lack of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanRefusal {
    /// The scheduler's filters refuse the node.
    Filters,
    /// The running unit is protected, or out of the scope of the policy.
    Protected,
    /// The node is out of the scope of the policy.
    Scope,
    /// The node is hot by load that is not its running units'.
    OtherLoad,
    /// As many moves as one plan may have are made.
    PlanLimit,
    /// The unit has moved as often as its rate allows.
    OwnerRate,
    /// A check of another policy forbids it.
    Check(&'static str, CheckPoint),
}
