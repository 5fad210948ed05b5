//! Plans of the rescheduler as shown.

use std::collections::BTreeMap;

use godel_proto::v1;

use crate::view;

use super::{MoveView, WIDTH, listed, number, objective};
use crate::output;

view! {
    /// What a policy recommends.
    pub struct ReschedulePlanView from (plan: &v1::ReschedulePlan) {
        /// The policy; empty: room for a unit is made.
        pub policy: String = plan.policy.clone(),
        /// Store revision that it rests on.
        pub revision: u64 = plan.revision,
        /// What was found.
        pub finding: String = plan.finding.clone(),
        /// Objective as things are; lower is better.
        pub objective_before: f64 = plan.objective_before,
        /// Objective after the moves.
        pub objective_after: f64 = plan.objective_after,
        /// No plan with the same limits has a lower objective; not there if that is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub objective_bound: Option<f64> = plan.objective_bound,
        /// Whether the program that the bound comes from was solved to its end.
        pub bound_is_exact: bool = plan.bound_is_exact,
        /// Batches in which the moves are made.
        pub batches: u32 = plan.n_batches,
        /// Fewest batches that disruption budgets alone allow.
        pub batches_min: u32 = plan.n_batches_min,
        /// Moves that were left out because no order makes them possible.
        pub impossible: u32 = plan.impossible,
        /// What all moves cost, milliseconds of work.
        pub cost_ms: u64 = plan.cost_ms,
        /// How long it took to make the plan, milliseconds.
        pub planning_ms: u64 = plan.planning_ms,
        /// Why nothing would be moved now; empty: it would be.
        pub held_back: String = plan.held_back.clone(),
        /// Moves that were tried and refused, by what refused them.
        pub refusals: BTreeMap<String, u64> =
            plan.refusals.iter().map(|refused| (refused.reason.clone(), refused.n)).collect(),
        /// Running units in scope that no plan moves, by what keeps them in place.
        pub kept: BTreeMap<String, u64> =
            plan.kept.iter().map(|kept| (kept.reason.clone(), kept.n)).collect(),
        /// The moves, by batch.
        pub moves: Vec<MoveView> = plan.moves.iter().map(MoveView::from).collect(),
    }
}

/// Reasons with their numbers, the most frequent first.
fn counted(reasons: &BTreeMap<String, u64>) -> String {
    let mut reasons: Vec<(&String, &u64)> = reasons.iter().collect();
    reasons.sort_by_key(|(reason, n)| (std::cmp::Reverse(**n), reason.as_str()));
    reasons.into_iter().map(|(reason, n)| format!("{reason}: {n}")).collect::<Vec<_>>().join(", ")
}

/// Differences of objectives smaller than this are rounding.
const SAME: f64 = 1e-5;

impl ReschedulePlanView {
    /// How far from the best the plan is at most.
    fn bound_text(&self, bound: f64) -> String {
        let bound_shown = number(bound);
        match (self.objective_after <= bound + SAME, self.bound_is_exact) {
            (true, _) => format!("{bound_shown}: no plan can do better"),
            (false, true) => {
                format!("{bound_shown}: the best, if checks, budgets and thresholds did not matter")
            }
            (false, false) => format!("{bound_shown} at least: the best was not found in time"),
        }
    }

    /// For people: what was found, what would change, and each move with why it is made.
    pub fn text(&self, is_wide: bool) -> String {
        let field = |title: &str, text: &str| output::field(WIDTH, title, text);
        let batches = match self.batches {
            0 => String::new(),
            n => format!(" in {}", output::count(n, "batch")),
        };
        let left_out = match self.impossible {
            0 => String::new(),
            n => format!("; {n} left out, because no order makes them possible"),
        };
        let mut text = String::new();
        if !self.policy.is_empty() {
            text.push_str(&field("policy", &self.policy));
        }
        text.push_str(&field("finding", &self.finding));
        text.push_str(&field("objective", &objective(self.objective_before, self.objective_after)));
        if let Some(bound) = self.objective_bound {
            text.push_str(&field("bound", &self.bound_text(bound)));
        }
        text.push_str(&field(
            "moves",
            &format!("{}{batches}{left_out}", output::count(self.moves.len(), "move")),
        ));
        text.push_str(&field("cost", &output::span(self.cost_ms)));
        text.push_str(&field("refused", &counted(&self.refusals)));
        if !self.kept.is_empty() {
            text.push_str(&field("stay", &counted(&self.kept)));
        }
        text.push_str(&field("held-back", &self.held_back));
        if !self.moves.is_empty() {
            text.push('\n');
            text.push_str(&self.table(is_wide));
        }
        text
    }

    /// Moves that are not made yet: nothing is where it should be, and no phase says anything.
    fn table(&self, is_wide: bool) -> String {
        let mut headers = vec!["BATCH", "RUNNING-UNIT", "FROM", "TO", "COST", "WHY"];
        if is_wide {
            headers.extend(["DEVICES", "ZONES", "NUMBERS"]);
        }
        let row = |one: &MoveView| {
            let mut row = vec![
                one.batch.to_string(),
                one.running_unit(),
                one.from_node.clone(),
                one.target(),
                output::span(one.cost_ms),
                one.why(),
            ];
            if is_wide {
                row.extend([listed(&one.devices), listed(&one.zones), one.numbers()]);
            }
            row
        };
        output::columns(&headers, &self.moves.iter().map(row).collect::<Vec<_>>())
    }
}
