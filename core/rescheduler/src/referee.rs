//! The referee: what no plan of a policy can do better, by integer programs that share no code with the policies.
//!
//! A program has a whole number for each group of running units that are alike and each node to which they may go: how many of them
//! go there. What has room there, how many moves a plan may have and how often a unit may be moved are its rows; the objective is that of the
//! policy's goal. It leaves out what would only make plans worse: checks of other policies, budgets, which device of a node is whose, and
//! conditions of a policy beside its objective. So its least value is a bound, and where nothing of that is in the way the optimum.
//!
//! The solver (good_lp with microlp, branch and bound over linear relaxations) reads the clock. Its answer is no part of what is planned.

use std::time::Duration;

use crate::{
    config::RescheduleKind,
    defragmentation::{Aim, Defragmentation},
    filters::Filters,
    layout::Layout,
    workspace::PlanLimits,
};

use self::moves::MoveProgram;

mod moves;
mod objectives;
mod program;

/// What no plan within the same limits can do better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanBound {
    /// No plan has a lower objective than this.
    pub value: f64,
    /// Whether the program was solved to its end. Otherwise the optimum of the program may be higher.
    pub is_exact: bool,
}

/// Returns what no plan of a policy that begins with the snapshot of a layout can do better within some limits; `None`: the scope is too
/// large, the policy lowers the fragmentation rate (which is not linear in what is where), or the time ends before the linear relaxation is solved.
///
/// The layout is as the snapshot or as a plan leaves it: the search for the optimum begins there. The scope is too large with more than
/// 300 movable running units, 300 nodes, or 20,000 columns or rows of the program (6,000 columns of co-location). The time limit is
/// that of the solver, which may take some tenths of a second more.
pub fn bound_of(
    kind: &RescheduleKind,
    layout: &Layout<'_>,
    filters: &dyn Filters,
    limits: &PlanLimits,
    time_limit: Duration,
) -> Option<PlanBound> {
    if time_limit.is_zero()
        || matches!(kind, RescheduleKind::Defragmentation(Defragmentation { aim: Aim::Rate { .. }, .. }))
    {
        return None;
    }
    let mut program = MoveProgram::new(kind, layout, filters, limits)?;
    match kind {
        RescheduleKind::Binpack(_) => program.count_nodes_with_work(),
        RescheduleKind::Spread(policy) => program.count_excess_replicas(policy),
        RescheduleKind::Colocation(_) => program.sum_traffic_between_nodes(),
        RescheduleKind::LoadBalance(policy) => program.sum_heat(policy),
        RescheduleKind::Defragmentation(policy) => program.count_domains_without_room(&policy.aim),
    }
    program.solve(time_limit)
}
