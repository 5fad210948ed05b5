//! Policies, plans and movements of the rescheduler as shown.

mod plans;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use godel_proto::v1;
use serde::Serialize;

pub use self::plans::ReschedulePlanView;

use super::shown_time;
use crate::output::{self, View};

/// A number as people read it: at most three decimals, none that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// An objective before and after: `5 → 3`.
fn objective(before: f64, after: f64) -> String {
    format!("{} → {}", number(before), number(after))
}

/// The word of an enumeration value, as in `TIMED_OUT`: `timed-out`.
fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase().replace('_', "-")
}

/// Indices of the bits of a mask, lowest first.
fn bits(mask: u64) -> Vec<u32> {
    (0..u64::BITS).filter(|bit| (mask >> bit) & 1 == 1).collect()
}

fn listed(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A policy of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReschedulePolicyView {
    /// Name in the configuration.
    pub name: String,
    /// What it does: `binpack` and so on.
    pub kind: String,
    /// It runs.
    pub enabled: bool,
    /// It only says what it would do.
    pub dry_run: bool,
    /// What makes it run.
    pub triggers: Vec<String>,
    /// Policies whose rules its moves keep.
    pub checked_by: Vec<String>,
    /// When it ran last, Unix milliseconds; 0: not since the leader began.
    pub last_run_ms: i64,
    /// What its last run came to.
    pub last_result: String,
    /// When it runs by itself, Unix milliseconds; 0: it does not.
    pub next_run_ms: i64,
    /// Its last movement; empty: none since the leader began.
    pub last_movement: String,
    /// Runs since the leader began.
    pub runs: u64,
}

impl From<&v1::ReschedulePolicy> for ReschedulePolicyView {
    fn from(policy: &v1::ReschedulePolicy) -> Self {
        let policy = policy.clone();
        Self {
            name: policy.name,
            kind: policy.kind,
            enabled: policy.enabled,
            dry_run: policy.dry_run,
            triggers: policy.triggers,
            checked_by: policy.checked_by,
            last_run_ms: policy.last_run_ms,
            last_result: policy.last_result,
            next_run_ms: policy.next_run_ms,
            last_movement: policy.last_movement,
            runs: policy.runs,
        }
    }
}

impl View for ReschedulePolicyView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "KIND", "STATE", "TRIGGERS", "LAST-RUN", "NEXT-RUN", "LAST-RESULT"];
    const WIDE: &'static [&'static str] = &["CHECKED-BY", "RUNS", "LAST-MOVEMENT"];

    fn row(&self) -> Vec<String> {
        let state = match (self.enabled, self.dry_run) {
            (false, _) => "disabled",
            (true, true) => "dry-run",
            (true, false) => "enabled",
        };
        vec![
            self.name.clone(),
            self.kind.clone(),
            state.to_owned(),
            self.triggers.join(", "),
            shown_time(self.last_run_ms),
            shown_time(self.next_run_ms),
            self.last_result.clone(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![self.checked_by.join(","), self.runs.to_string(), self.last_movement.clone()]
    }
}

/// Why a running unit moves.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MoveReasonView {
    /// Why this unit.
    pub why_unit: String,
    /// Why this node.
    pub why_node: String,
    /// Why now.
    pub why_now: String,
    /// The numbers that it follows from.
    pub numbers: BTreeMap<String, f64>,
}

/// One running unit that moves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoveView {
    /// The batch that makes it, from 1.
    pub batch: u32,
    /// Namespace and name of its unit.
    pub unit: String,
    /// The replica.
    pub ordinal: u32,
    /// The incarnation that leaves.
    pub incarnation: u32,
    /// The ordinal that replaces it, where replacements start first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surge_ordinal: Option<u32>,
    /// Node that it leaves.
    pub from_node: String,
    /// Node that is recommended.
    pub to_node: String,
    /// Devices that are recommended, by index.
    pub devices: Vec<u32>,
    /// Zones that are recommended, by index; empty: the binder chooses.
    pub zones: Vec<u32>,
    /// The recommended node is a spare one on the way.
    pub is_detour: bool,
    /// What the move costs, milliseconds of work.
    pub cost_ms: u64,
    /// How far it is; `waiting` in a plan.
    pub phase: String,
    /// Node on which the next incarnation is bound; empty: none.
    pub actual_node: String,
    /// Why it was refused, or is asked for again later.
    pub detail: String,
    /// How often the binder was asked for it.
    pub tries: u32,
    /// Time of its last change of phase, Unix milliseconds; 0: none.
    pub changed_ms: i64,
    /// Why it is made.
    pub reason: MoveReasonView,
}

impl From<&v1::MovementMove> for MoveView {
    fn from(one: &v1::MovementMove) -> Self {
        let phase = match one.phase() {
            v1::MovePhase::Unspecified => v1::MovePhase::Waiting,
            phase => phase,
        };
        let v1::MovementReason { why_unit, why_node, why_now, numbers } =
            one.reason.clone().unwrap_or_default();
        let numbers = numbers.into_iter().map(|number| (number.name, number.value)).collect();
        Self {
            batch: one.batch.saturating_add(1),
            unit: one.unit.clone(),
            ordinal: one.ordinal,
            incarnation: one.incarnation,
            surge_ordinal: one.surge_ordinal,
            from_node: one.from_node.clone(),
            to_node: one.to_node.clone(),
            devices: bits(one.device_mask),
            zones: bits(one.zone_mask),
            is_detour: one.is_detour,
            cost_ms: one.cost_ms,
            phase: word(phase.as_str_name(), "MOVE_PHASE_"),
            actual_node: one.actual_node.clone(),
            detail: one.detail.clone(),
            tries: one.n_tries,
            changed_ms: one.changed_ms,
            reason: MoveReasonView { why_unit, why_node, why_now, numbers },
        }
    }
}

impl MoveView {
    /// The running unit: `default/web/3`.
    fn running_unit(&self) -> String {
        format!("{}/{}", self.unit, self.ordinal)
    }

    fn target(&self) -> String {
        let detour = if self.is_detour { " (detour)" } else { "" };
        format!("{}{detour}", self.to_node)
    }

    fn why(&self) -> String {
        let parts = [&self.reason.why_unit, &self.reason.why_node];
        parts.into_iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("; ")
    }

    fn numbers(&self) -> String {
        let shown = |(name, value): (&String, &f64)| format!("{name}: {}", number(*value));
        self.reason.numbers.iter().map(shown).collect::<Vec<_>>().join("; ")
    }
}

impl View for MoveView {
    const HEADERS: &'static [&'static str] =
        &["BATCH", "RUNNING-UNIT", "FROM", "TO", "ACTUAL", "PHASE", "COST", "WHY", "DETAIL"];
    const WIDE: &'static [&'static str] = &["DEVICES", "ZONES", "TRIES", "CHANGED", "NUMBERS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.batch.to_string(),
            self.running_unit(),
            self.from_node.clone(),
            self.target(),
            self.actual_node.clone(),
            self.phase.clone(),
            output::span(self.cost_ms),
            self.why(),
            self.detail.clone(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            listed(&self.devices),
            listed(&self.zones),
            self.tries.to_string(),
            shown_time(self.changed_ms),
            self.numbers(),
        ]
    }
}

/// Columns of titles.
const WIDTH: usize = 13;

/// A movement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovementView {
    /// The policy and a number.
    pub name: String,
    /// Policy that created it; empty: it makes room for a unit.
    pub policy: String,
    /// What caused it.
    pub trigger: String,
    /// How far it is.
    pub phase: String,
    /// All of its moves.
    pub n_moves: u32,
    /// Those that run on the recommended node.
    pub moved: u32,
    /// Those that run on another node.
    pub mismatched: u32,
    /// Those that were refused, timed out, or were not made before it ended.
    pub failed: u32,
    /// The batch that is being made, from 1.
    pub batch: u32,
    /// All batches.
    pub batches: u32,
    /// Objective as things were; lower is better.
    pub objective_before: f64,
    /// Objective after all moves of the plan.
    pub objective_after: f64,
    /// What the policy found.
    pub finding: String,
    /// Why it ended as it did.
    pub message: String,
    /// How often the rest of its plan was made anew.
    pub replans: u32,
    /// Store revision that its plan rests on.
    pub plan_revision: u64,
    /// When it was created, Unix milliseconds.
    pub created_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub ended_ms: i64,
    /// Its moves, by batch; only in `describe`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MoveView>,
}

impl From<&v1::MovementSummary> for MovementView {
    fn from(summary: &v1::MovementSummary) -> Self {
        let movement = summary.movement.clone().unwrap_or_default();
        Self {
            n_moves: summary.moves,
            moved: summary.moved,
            mismatched: summary.mismatched,
            failed: summary.failed,
            ..Self::from(&movement)
        }
    }
}

impl From<&v1::Movement> for MovementView {
    fn from(movement: &v1::Movement) -> Self {
        use v1::MovePhase::{Aborted, Mismatched, Moved, Refused, TimedOut};
        let n = |phases: &[v1::MovePhase]| {
            let n = movement.moves.iter().filter(|one| phases.contains(&one.phase())).count();
            u32::try_from(n).unwrap_or(u32::MAX)
        };
        Self {
            name: movement.name.clone(),
            policy: movement.policy.clone(),
            trigger: movement.trigger.clone(),
            phase: word(movement.phase().as_str_name(), "MOVEMENT_PHASE_"),
            n_moves: u32::try_from(movement.moves.len()).unwrap_or(u32::MAX),
            moved: n(&[Moved]),
            mismatched: n(&[Mismatched]),
            failed: n(&[Refused, Aborted, TimedOut]),
            batch: movement.batch.saturating_add(1).min(movement.n_batches),
            batches: movement.n_batches,
            objective_before: movement.objective_before,
            objective_after: movement.objective_after,
            finding: movement.finding.clone(),
            message: movement.message.clone(),
            replans: movement.n_replans,
            plan_revision: movement.plan_revision,
            created_ms: movement.created_ms,
            ended_ms: movement.ended_ms,
            moves: movement.moves.iter().map(MoveView::from).collect(),
        }
    }
}

impl MovementView {
    /// For people: the movement, and each of its moves.
    pub fn text(&self, format: output::Format) -> String {
        let mut text = output::fields(WIDTH, self);
        if !self.moves.is_empty() {
            text.push_str(&format!("\n{}", output::table(format, &self.moves)));
        }
        text
    }
}

impl View for MovementView {
    const HEADERS: &'static [&'static str] = &[
        "NAME",
        "PHASE",
        "BATCH",
        "MOVES",
        "MOVED",
        "MISMATCHED",
        "FAILED",
        "OBJECTIVE",
        "CREATED",
        "ENDED",
    ];
    const WIDE: &'static [&'static str] = &["POLICY", "TRIGGER", "REPLANS", "FINDING", "MESSAGE"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.phase.clone(),
            format!("{}/{}", self.batch, self.batches),
            self.n_moves.to_string(),
            self.moved.to_string(),
            self.mismatched.to_string(),
            self.failed.to_string(),
            objective(self.objective_before, self.objective_after),
            shown_time(self.created_ms),
            shown_time(self.ended_ms),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.policy.clone(),
            self.trigger.clone(),
            self.replans.to_string(),
            self.finding.clone(),
            self.message.clone(),
        ]
    }
}

/// What the rescheduler does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RescheduleStatusView {
    /// Policies that run.
    pub enabled_policies: u32,
    /// Movement that is being made; empty: none.
    pub movement: String,
    /// Its moves that are being made.
    pub moving: u32,
    /// Units that wait for a place.
    pub pending_units: u64,
    /// Nothing is moved until then because much waits, Unix milliseconds; 0: nothing is held back.
    pub quiet_until_ms: i64,
    /// Moves to the recommended node since the leader began.
    pub moved: u64,
    /// Moves to another node since the leader began.
    pub mismatched: u64,
    /// Moves that failed since the leader began.
    pub failed: u64,
    /// Movements that state keeps.
    pub movements: u32,
    /// Pairs of units whose traffic is known.
    pub traffic_pairs: u64,
    /// Running units that have reported when they saved their work last.
    pub checkpoints: u64,
    /// Store revision that the rescheduler has read.
    pub revision: u64,
    /// When the configuration in force was read, Unix milliseconds.
    pub config_read_ms: i64,
    /// Faults of the configuration that was read last.
    pub config_faults: Vec<String>,
}

impl From<&v1::GetRescheduleStatusResponse> for RescheduleStatusView {
    fn from(status: &v1::GetRescheduleStatusResponse) -> Self {
        let status = status.clone();
        Self {
            enabled_policies: status.enabled_policies,
            movement: status.movement,
            moving: status.moving,
            pending_units: status.pending_units,
            quiet_until_ms: status.quiet_until_ms,
            moved: status.moved,
            mismatched: status.mismatched,
            failed: status.failed,
            movements: status.movements,
            traffic_pairs: status.traffic_pairs,
            checkpoints: status.checkpoints,
            revision: status.revision,
            config_read_ms: status.config_read_ms,
            config_faults: status.config_faults,
        }
    }
}

impl RescheduleStatusView {
    /// For people, with a line for each fault of the configuration.
    pub fn text(&self) -> String {
        let mut text = output::fields(WIDTH, self);
        for fault in &self.config_faults {
            text.push_str(&output::field(WIDTH, "config-fault", fault));
        }
        text
    }
}

impl View for RescheduleStatusView {
    const HEADERS: &'static [&'static str] =
        &["POLICIES", "MOVEMENT", "MOVING", "PENDING-UNITS", "QUIET-UNTIL", "MOVED", "MISMATCHED", "FAILED"];
    const WIDE: &'static [&'static str] =
        &["MOVEMENTS", "TRAFFIC-PAIRS", "CHECKPOINTS", "REVISION", "CONFIG-READ"];

    fn row(&self) -> Vec<String> {
        vec![
            self.enabled_policies.to_string(),
            self.movement.clone(),
            self.moving.to_string(),
            self.pending_units.to_string(),
            shown_time(self.quiet_until_ms),
            self.moved.to_string(),
            self.mismatched.to_string(),
            self.failed.to_string(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.movements.to_string(),
            self.traffic_pairs.to_string(),
            self.checkpoints.to_string(),
            self.revision.to_string(),
            shown_time(self.config_read_ms),
        ]
    }
}
