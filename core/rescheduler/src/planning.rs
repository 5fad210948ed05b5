//! From a snapshot to what a movement executes: the plan of one policy, or the moves that make room for a gang, with the order of its moves.

use std::time::Duration;

use godel_base::ids::{NodeId, Revision};

use crate::{
    config::RescheduleConfig,
    eligibility::{MoveLog, limits_of},
    filters::Filters,
    generator::{MoveBatches, order_moves_within},
    goal::EPSILON,
    kept::{count_kept, kept_reason},
    layout::{BadSnapshot, Layout, RunIdx},
    load_balance::is_busy,
    movement::{MovePhase, MovementMove, MovementPhase, MovementRecord, RecordedReason, RunCause},
    policy::{CheckedBy, PlanRefusal, PlannedMove, Policy, ReschedulePlan, make_plan},
    referee::{PlanBound, bound_of},
    room::{WaitingGang, let_in},
    snapshot::ClusterSnapshot,
    workspace::PlanLimits,
};

/// What bounds one plan, beside its policy and the configuration.
#[derive(Clone, Copy, Debug)]
pub struct PlanTerms<'a> {
    /// When replicas of units were moved.
    pub log: &'a MoveLog,
    /// Whether each running unit of the snapshot stays where it is whatever a policy wants, by position; one that is missing does not.
    pub fixed: &'a [bool],
    /// Most moves of the plan.
    pub n_moves_max: usize,
    /// What choices at random follow from.
    pub seed: u64,
    /// How long the solver may look for the bound of a policy's plan; `None`: there is no bound. The moves do not depend on it.
    pub bound_within: Option<Duration>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFault {
    /// There is no such policy.
    #[error("there is no policy `{0}`")]
    NoPolicy(String),
    /// The snapshot contradicts itself.
    #[error(transparent)]
    Snapshot(#[from] BadSnapshot),
}

/// A plan with the order of its moves.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderedPlan {
    /// The objective before and after the moves that can be made.
    pub objective: (f64, f64),
    /// What no plan within the same limits can do better, as [`bound_of`] says; `None`: nobody asked, or nobody knows. It depends on how
    /// fast the machine is.
    pub bound: Option<PlanBound>,
    /// What was found.
    pub finding: String,
    /// The moves by batch, as a movement has them.
    pub moves: Vec<MovementMove>,
    /// How many batches there are.
    pub n_batches: u32,
    /// How few there would be at least, by budgets alone.
    pub n_batches_min: u32,
    /// Moves that no order makes possible.
    pub n_impossible: u32,
    /// Moves that were tried and refused: in words, and how many, the most frequent first.
    pub refusals: Vec<(String, u64)>,
    /// Running units in scope that stay where they are whatever is planned: in words, and how many, the most frequent first.
    pub kept: Vec<(String, u64)>,
}

impl OrderedPlan {
    /// Returns what all moves cost, milliseconds of work.
    pub fn cost_ms(&self) -> u64 {
        self.moves.iter().fold(0, |sum, one| sum.saturating_add(one.cost_ms))
    }

    /// Returns a movement that executes the plan, named by its policy, or as room for a unit where the policy is empty, and its number. `read` is
    /// the revision that the plan rests on.
    pub fn movement(
        &self,
        number: u64,
        policy: &str,
        cause: RunCause,
        read: Revision,
        created_ms: i64,
    ) -> MovementRecord {
        MovementRecord {
            name: format!("{}-{number}", if policy.is_empty() { "room" } else { policy }),
            policy: policy.to_owned(),
            number,
            for_unit: None,
            created_ms,
            plan_revision: read,
            objective: self.objective,
            finding: self.finding.clone(),
            phase: MovementPhase::Running,
            ending: None,
            ended_ms: 0,
            message: String::new(),
            n_batches: self.n_batches,
            batch: 0,
            n_replans: 0,
            cause,
            moves: self.moves.clone(),
        }
    }
}

/// Makes the plan of one policy of a configuration, enabled or not, with the checks that the configuration names.
///
/// # Errors
/// There is no such policy, or the snapshot contradicts itself.
pub fn plan_policy(
    config: &RescheduleConfig,
    name: &str,
    snapshot: &ClusterSnapshot,
    filters: &dyn Filters,
    terms: PlanTerms<'_>,
) -> Result<OrderedPlan, PlanFault> {
    let known = config.policies.get(name).ok_or_else(|| PlanFault::NoPolicy(name.to_owned()))?;
    let layout = Layout::new(snapshot)?;
    let limits = limits_of(&layout, known, &config.protection, config.rate, terms.log, terms.seed);
    let limits = bounded(limits, &layout, config, terms);
    let checks: Vec<CheckedBy<'_>> = known
        .checked_by
        .iter()
        .filter_map(|check| config.policies.get(check).filter(|check| check.enabled))
        .map(|check| CheckedBy { policy: check.kind.policy() })
        .collect();
    let plan = make_plan(known.kind.policy(), &layout, &checks, filters, &limits);
    let bound = terms.bound_within.and_then(|time_limit| {
        let mut after = layout.clone();
        after.apply(&plan.moves);
        bound_of(&known.kind, &after, filters, &limits, time_limit)
    });
    let plan = ordered(plan, &layout, Some(known.kind.policy()), filters, &limits);
    let is_in_scope = |unit: RunIdx| {
        known.scope.has_unit(layout.owner_facts(unit)) && known.scope.has_node(layout.node(layout.home(unit)))
    };
    let kept = count_kept(&layout, &config.protection, &is_in_scope);
    Ok(OrderedPlan { bound, kept: in_words(&kept), ..plan })
}

/// Finds the cheapest moves that let a waiting gang in. Without moves, `finding` says whether it has room already.
///
/// # Errors
/// The snapshot contradicts itself.
pub fn plan_room(
    config: &RescheduleConfig,
    gang: &WaitingGang,
    snapshot: &ClusterSnapshot,
    filters: &dyn Filters,
    terms: PlanTerms<'_>,
) -> Result<OrderedPlan, PlanFault> {
    let layout = Layout::new(snapshot)?;
    let protects: Vec<bool> = snapshot.units.iter().map(|unit| config.protection.protects(unit)).collect();
    let movable = layout
        .running()
        .map(|unit| kept_reason(&layout, unit, protects[layout.owner(unit).idx()]).is_none())
        .collect();
    let owner_left =
        snapshot.units.iter().map(|unit| terms.log.n_left(unit.id, config.rate, snapshot.now)).collect();
    let limits = PlanLimits {
        n_moves_max: terms.n_moves_max,
        movable,
        in_scope: Vec::new(),
        busy: Vec::new(),
        owner_left,
        seed: terms.seed,
    };
    let limits = bounded(limits, &layout, config, terms);
    let plan = let_in(gang, &layout, filters, &limits);
    let stands_apart = gang.parts.iter().any(|part| !part.limits.is_empty());
    let none = match stands_apart {
        true => {
            "no moves that are allowed make room for it as its members stand to one another (`host_ports`, `apart`, `spread`), or it has room already"
        }
        false => "no moves that are allowed make room for it, or it has room already",
    };
    let plan = plan.map_or_else(
        || OrderedPlan { finding: none.to_owned(), ..OrderedPlan::default() },
        |plan| ordered(plan, &layout, None, filters, &limits),
    );
    let kept = count_kept(&layout, &config.protection, &|_| true);
    Ok(OrderedPlan { kept: in_words(&kept), ..plan })
}

/// Keeps what is fixed where it is, the number of moves within what one movement has, and nodes that are hot by other load free of more.
fn bounded(
    limits: PlanLimits,
    layout: &Layout<'_>,
    config: &RescheduleConfig,
    terms: PlanTerms<'_>,
) -> PlanLimits {
    let mut limits = limits;
    let hot = config.hot();
    limits.busy = layout.nodes().map(|node| is_busy(layout.node(node), hot)).collect();
    limits.n_moves_max = limits.n_moves_max.min(terms.n_moves_max);
    let is_free = |at: usize| !terms.fixed.get(at).copied().unwrap_or(false);
    limits.movable.iter_mut().enumerate().for_each(|(at, movable)| *movable &= is_free(at));
    limits
}

/// Orders the moves of a plan. Where some of them cannot be made, the objective counts the others alone, and a plan whose others gain nothing is
/// empty.
fn ordered(
    plan: ReschedulePlan,
    layout: &Layout<'_>,
    policy: Option<&dyn Policy>,
    filters: &dyn Filters,
    limits: &PlanLimits,
) -> OrderedPlan {
    let MoveBatches { batches, n_batches_min, impossible } =
        order_moves_within(layout, &plan.moves, filters, limits);
    let mut refusals: Vec<(String, u64)> =
        plan.refusals.iter().map(|(refusal, n)| (refusal.to_string(), *n)).collect();
    refusals.sort_by(|a, b| (std::cmp::Reverse(a.1), &a.0).cmp(&(std::cmp::Reverse(b.1), &b.0)));
    let mut after = plan.after;
    let is_worthless = match policy {
        Some(policy) if !impossible.is_empty() => {
            after = value_without(layout, &plan, &impossible, policy);
            after > plan.before - EPSILON
        }
        // Less than the whole room is no room.
        None => !impossible.is_empty(),
        Some(_) => false,
    };
    let mut ordered = OrderedPlan {
        objective: (plan.before, plan.before),
        finding: plan.finding.clone(),
        n_impossible: count(impossible.len()),
        refusals,
        ..OrderedPlan::default()
    };
    if is_worthless || plan.moves.is_empty() {
        return ordered;
    }
    ordered.objective.1 = after;
    ordered.n_batches = count(batches.len());
    ordered.n_batches_min = count(n_batches_min);
    let mut has_gone = vec![false; layout.n_running()];
    for (batch, steps) in (0..).zip(&batches) {
        for step in steps {
            let Some(planned) = plan.moves.iter().find(|planned| planned.unit == step.unit) else { continue };
            let mut id = planned.id;
            if std::mem::replace(&mut has_gone[step.unit.idx()], true) {
                // The second leg is that of the successor that the first one made.
                id.replica.incarnation = id.replica.incarnation.saturating_add(1);
            }
            let named = |node| -> (NodeId, String) {
                let facts = layout.node(node);
                (facts.id, facts.name.clone())
            };
            ordered.moves.push(MovementMove {
                id,
                unit: layout.owner_facts(step.unit).name.clone(),
                from: named(step.from),
                to: named(step.to),
                devices: step.devices,
                batch,
                is_detour: step.is_detour,
                cost_ms: planned.cost_ms,
                reason: reason_of(planned, step.is_detour),
                phase: MovePhase::Waiting,
                actual: None,
                detail: String::new(),
                n_tries: 0,
                changed_ms: 0,
                surge_ordinal: None,
            });
        }
    }
    ordered
}

fn reason_of(planned: &PlannedMove, is_detour: bool) -> RecordedReason {
    let reason = &planned.reason;
    let why_node = match is_detour {
        true => "a spare node on the way: no order of moves gets by without one".to_owned(),
        false => reason.why_node.clone(),
    };
    RecordedReason {
        why_unit: reason.why_unit.clone(),
        why_node,
        why_now: reason.why_now.clone(),
        numbers: reason.numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    }
}

/// Returns the objective of a policy with those moves of a plan that can be made.
fn value_without(
    layout: &Layout<'_>,
    plan: &ReschedulePlan,
    impossible: &[RunIdx],
    policy: &dyn Policy,
) -> f64 {
    let made: Vec<PlannedMove> =
        plan.moves.iter().filter(|planned| !impossible.contains(&planned.unit)).cloned().collect();
    let mut after = layout.clone();
    after.apply(&made);
    policy.goal(&mut after).value()
}

fn in_words<T: ToString>(counts: &[(T, u64)]) -> Vec<(String, u64)> {
    counts.iter().map(|(reason, n)| (reason.to_string(), *n)).collect()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl std::fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Filters => f.write_str("a filter of the scheduler refuses the node"),
            Self::Protected => {
                f.write_str("the running unit stays where it is, or is not in the scope of the policy")
            }
            Self::Scope => f.write_str("the node is not in the scope of the policy"),
            Self::OtherLoad => f.write_str("the node is hot by load that is not godel's"),
            Self::PlanLimit => f.write_str("the plan has as many moves as it may have"),
            Self::OwnerRate => f.write_str("the unit has moved as often as its rate allows"),
            Self::Check(policy, point) => write!(f, "a check of policy kind `{policy}`: {point}"),
        }
    }
}
