//! Integer programs, and what the solver proves of them within a time limit.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use good_lp::{
    Expression, ProblemVariables, Solution as _, SolutionStatus, SolverModel as _, Variable, WithMipGap as _,
    WithTimeLimit as _, constraint, microlp,
    solvers::microlp::{MicroLpProblem, MicroLpSolution},
    variable,
};

use super::PlanBound;

/// Columns and rows of a program, at most: 300 running units that are all different, and 60 nodes. The linear relaxations of random scopes
/// of this size took 0.01 to 0.5 s, but for co-location.
pub(super) const N_COLUMNS_MAX: usize = 20_000;
const N_ROWS_MAX: usize = 20_000;
/// Columns of a program of co-location, at most: relaxations of 4,400 columns took 0.2 s with few moves and more than 5 s with many, and those
/// of 15,000 always more than 5 s.
const N_TRAFFIC_COLUMNS_MAX: usize = 6_000;
/// A bound is this much lower than what the solver says, which computes in floating point: what it says is right to 1e-7 at worst. A whole
/// number that is greater by no more is that number.
const ROUNDING: f64 = 1e-6;
/// Two whole numbers that are less apart than this are the same.
const WHOLE_GAP: f64 = 0.99;

/// A column of a program, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ColumnIdx(usize);

/// A number that is to be chosen, from zero up.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramColumn {
    /// What one more of it adds to the objective.
    pub(super) cost: f64,
    /// Its greatest value.
    pub(super) most: f64,
    /// Whether it is a whole number.
    pub(super) is_whole: bool,
    /// Its value in the solution that is known, from which the search begins.
    pub(super) known: f64,
}

/// A sum over columns that is at most a number.
#[derive(Clone, Debug)]
struct ProgramRow {
    terms: Vec<(ColumnIdx, f64)>,
    most: f64,
}

/// A program that minimises an objective, with a solution that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct IntegerProgram {
    columns: Vec<ProgramColumn>,
    rows: Vec<ProgramRow>,
    /// What the objective is beside what the columns add.
    pub(super) constant: f64,
    /// Whether the objective of every solution is a whole number.
    pub(super) is_whole: bool,
    /// Whether the objective is about traffic, which is harder than others.
    pub(super) is_traffic: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Relaxation {
    Linear,
    None,
}

impl IntegerProgram {
    pub(super) fn add_column(&mut self, column: ProgramColumn) -> ColumnIdx {
        self.columns.push(column);
        ColumnIdx(self.columns.len() - 1)
    }

    /// Returns the greatest value of a column.
    pub(super) fn most(&self, column: ColumnIdx) -> f64 {
        self.columns[column.0].most
    }

    /// Has one more of a column add this to the objective, beside what it adds.
    pub(super) fn add_cost(&mut self, column: ColumnIdx, cost: f64) {
        self.columns[column.0].cost += cost;
    }

    /// Returns the greatest value of a sum if nothing bounds it but its columns.
    pub(super) fn greatest(&self, terms: &[(ColumnIdx, f64)]) -> f64 {
        terms.iter().map(|(column, factor)| factor.max(0.0) * self.most(*column)).sum()
    }

    /// Demands that a sum is at most `most`. A sum that is never above it costs no row.
    pub(super) fn add_row(&mut self, terms: Vec<(ColumnIdx, f64)>, most: f64) {
        if self.greatest(&terms) > most {
            self.rows.push(ProgramRow { terms, most });
        }
    }

    /// Solves the linear relaxation, and within what is left of the time the program itself.
    pub(super) fn solve(&self, time_limit: Duration) -> Option<PlanBound> {
        if self.columns.is_empty() {
            return Some(PlanBound { value: self.constant, is_exact: true });
        }
        let n_columns_max = if self.is_traffic { N_TRAFFIC_COLUMNS_MAX } else { N_COLUMNS_MAX };
        if self.columns.len() > n_columns_max || self.rows.len() > N_ROWS_MAX {
            return None;
        }
        let (model, variables) = self.model(Relaxation::Linear);
        let relaxed = run(model, time_limit)?;
        if !matches!(relaxed.status(), SolutionStatus::Optimal) {
            return None;
        }
        let is_integral = self.columns.iter().zip(&variables).all(|(column, variable)| {
            let value = relaxed.value(*variable);
            !column.is_whole || (value - value.round()).abs() < ROUNDING
        });
        let relaxed = relaxed.into_inner();
        let value = self.proved(relaxed.objective());
        let is_exact = is_integral || self.is_met(value, self.known());
        let time_left = time_limit.saturating_sub(relaxed.stats().elapsed);
        let bound = PlanBound { value, is_exact };
        Some(if is_exact || time_left.is_zero() { bound } else { self.solve_whole(bound, time_left) })
    }

    /// Raises the bound of the relaxation by branching.
    fn solve_whole(&self, relaxed: PlanBound, time_limit: Duration) -> PlanBound {
        let (model, _) = self.model(Relaxation::None);
        let Ok(model) = model.with_mip_gap(self.gap()) else { return relaxed };
        let Some(solved) = run(model, time_limit) else { return relaxed };
        let is_optimal = matches!(solved.status(), SolutionStatus::Optimal);
        let solved = solved.into_inner();
        let proved = if is_optimal { Some(solved.objective()) } else { solved.stats().best_bound };
        let value = proved.map_or(relaxed.value, |proved| self.proved(proved).max(relaxed.value));
        PlanBound { value, is_exact: is_optimal || self.is_met(value, solved.objective()) }
    }

    /// Returns the bound that follows from a value of the solver, which does not know the constant.
    fn proved(&self, solved: f64) -> f64 {
        let value = solved + self.constant - ROUNDING;
        (if self.is_whole { value.ceil() } else { value }).max(0.0)
    }

    /// Whether a bound is as high as a solution of the solver.
    fn is_met(&self, bound: f64, solution: f64) -> bool {
        bound > solution + self.constant - 2.0 * ROUNDING
    }

    /// Returns what the columns add to the objective in the solution that is known.
    fn known(&self) -> f64 {
        self.columns.iter().map(|column| column.cost * column.known).sum()
    }

    fn model(&self, relaxation: Relaxation) -> (MicroLpProblem, Vec<Variable>) {
        let mut problem = ProblemVariables::new();
        let variables: Vec<Variable> = self
            .columns
            .iter()
            .map(|column| {
                let definition = variable().min(0.0).max(column.most);
                problem.add(match relaxation {
                    Relaxation::Linear => definition,
                    Relaxation::None if column.is_whole => definition.integer().initial(column.known),
                    Relaxation::None => definition.initial(column.known),
                })
            })
            .collect();
        let costs = self.columns.iter().zip(&variables).map(|(column, variable)| column.cost * *variable);
        let mut model = problem.minimise(costs.sum::<Expression>()).using(microlp);
        for row in &self.rows {
            let terms = row.terms.iter().map(|(column, factor)| *factor * variables[column.0]);
            model.add_constraint(constraint!(terms.sum::<Expression>() <= row.most));
        }
        (model, variables)
    }

    /// Returns at which gap between its best solution and its bound the solver may end, as a share of that solution: where both
    /// round to the same whole number.
    fn gap(&self) -> f32 {
        // The best solution is no higher than the one that is known.
        let gap = if self.is_whole { WHOLE_GAP / self.known().max(1.0) } else { 0.0 };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the gap is less than one, and need not be exact"
        )]
        let gap = gap as f32;
        gap
    }
}

/// Runs the solver; `None`: it found nothing in the time that it has, or failed. Where its numbers go wrong it panics, which must not cost
/// the plan.
fn run(model: MicroLpProblem, time_limit: Duration) -> Option<MicroLpSolution> {
    let model = model.with_time_limit(time_limit.as_secs_f64());
    catch_unwind(AssertUnwindSafe(|| model.solve())).ok()?.ok()
}
