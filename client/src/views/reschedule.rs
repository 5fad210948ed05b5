//! Policies, plans and movements of the rescheduler as shown.

mod plans;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use godel_proto::v1;

pub use self::plans::ReschedulePlanView;

use super::{listed, shown_time};
use crate::{
    output::{self, View, ViewColumn},
    view,
};

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

view! {
    /// A policy of the configuration.
    pub struct ReschedulePolicyView from (policy: &v1::ReschedulePolicy) with {
        let policy = policy.clone();
    } {
        /// Name in the configuration.
        pub name: String = policy.name,
        /// What it does: `binpack` and so on.
        pub kind: String = policy.kind,
        /// It runs.
        pub enabled: bool = policy.enabled,
        /// It only says what it would do.
        pub dry_run: bool = policy.dry_run,
        /// What makes it run.
        pub triggers: Vec<String> = policy.triggers,
        /// Policies whose rules its moves keep.
        pub checked_by: Vec<String> = policy.checked_by,
        /// When it ran last, Unix milliseconds; 0: not since the leader began.
        pub last_run_ms: i64 = policy.last_run_ms,
        /// What its last run came to.
        pub last_result: String = policy.last_result,
        /// When it runs by itself, Unix milliseconds; 0: it does not.
        pub next_run_ms: i64 = policy.next_run_ms,
        /// Its last movement; empty: none since the leader began.
        pub last_movement: String = policy.last_movement,
        /// Runs since the leader began.
        pub runs: u64 = policy.runs,
    }
}

impl View for ReschedulePolicyView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("KIND", |view| view.kind.clone()),
        ("STATE", |view| {
            let state = match (view.enabled, view.dry_run) {
                (false, _) => "disabled",
                (true, true) => "dry-run",
                (true, false) => "enabled",
            };
            state.to_owned()
        }),
        ("TRIGGERS", |view| view.triggers.join(", ")),
        ("LAST-RUN", |view| shown_time(view.last_run_ms)),
        ("NEXT-RUN", |view| shown_time(view.next_run_ms)),
        ("LAST-RESULT", |view| view.last_result.clone()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("CHECKED-BY", |view| view.checked_by.join(",")),
        ("RUNS", |view| view.runs.to_string()),
        ("LAST-MOVEMENT", |view| view.last_movement.clone()),
    ];
}

view! {
    /// Why a running unit moves.
    #[derive(Default)]
    pub struct MoveReasonView from (reason: v1::MovementReason) {
        /// Why this unit.
        pub why_unit: String = reason.why_unit,
        /// Why this node.
        pub why_node: String = reason.why_node,
        /// Why now.
        pub why_now: String = reason.why_now,
        /// The numbers that it follows from.
        pub numbers: BTreeMap<String, f64> =
            reason.numbers.into_iter().map(|number| (number.name, number.value)).collect(),
    }
}

view! {
    /// One running unit that moves.
    pub struct MoveView from (one: &v1::MovementMove) with {
        let phase = match one.phase() {
            v1::MovePhase::Unspecified => v1::MovePhase::Waiting,
            phase => phase,
        };
    } {
        /// The batch that makes it, from 1.
        pub batch: u32 = one.batch.saturating_add(1),
        /// Namespace and name of its unit.
        pub unit: String = one.unit.clone(),
        /// The replica.
        pub ordinal: u32 = one.ordinal,
        /// The incarnation that leaves.
        pub incarnation: u32 = one.incarnation,
        /// The ordinal that replaces it, where replacements start first.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub surge_ordinal: Option<u32> = one.surge_ordinal,
        /// Node that it leaves.
        pub from_node: String = one.from_node.clone(),
        /// Node that is recommended.
        pub to_node: String = one.to_node.clone(),
        /// Devices that are recommended, by index.
        pub devices: Vec<u32> = bits(one.device_mask),
        /// Zones that are recommended, by index; empty: the binder chooses.
        pub zones: Vec<u32> = bits(one.zone_mask),
        /// The recommended node is a spare one on the way.
        pub is_detour: bool = one.is_detour,
        /// What the move costs, milliseconds of work.
        pub cost_ms: u64 = one.cost_ms,
        /// How far it is; `waiting` in a plan.
        pub phase: String = word(phase.as_str_name(), "MOVE_PHASE_"),
        /// Node on which the next incarnation is bound; empty: none.
        pub actual_node: String = one.actual_node.clone(),
        /// Why it was refused, or is asked for again later.
        pub detail: String = one.detail.clone(),
        /// How often the binder was asked for it.
        pub tries: u32 = one.n_tries,
        /// Time of its last change of phase, Unix milliseconds; 0: none.
        pub changed_ms: i64 = one.changed_ms,
        /// Why it is made.
        pub reason: MoveReasonView = one.reason.clone().unwrap_or_default().into(),
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
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("BATCH", |view| view.batch.to_string()),
        ("RUNNING-UNIT", |view| view.running_unit()),
        ("FROM", |view| view.from_node.clone()),
        ("TO", |view| view.target()),
        ("ACTUAL", |view| view.actual_node.clone()),
        ("PHASE", |view| view.phase.clone()),
        ("COST", |view| output::span(view.cost_ms)),
        ("WHY", |view| view.why()),
        ("DETAIL", |view| view.detail.clone()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("DEVICES", |view| listed(&view.devices)),
        ("ZONES", |view| listed(&view.zones)),
        ("TRIES", |view| view.tries.to_string()),
        ("CHANGED", |view| shown_time(view.changed_ms)),
        ("NUMBERS", |view| view.numbers()),
    ];
}

/// Columns of titles.
const WIDTH: usize = 13;

view! {
    /// A movement.
    pub struct MovementView from (movement: &v1::Movement) with {
        use v1::MovePhase::{Aborted, Mismatched, Moved, Refused, TimedOut};
        let n = |phases: &[v1::MovePhase]| {
            let n = movement.moves.iter().filter(|one| phases.contains(&one.phase())).count();
            u32::try_from(n).unwrap_or(u32::MAX)
        };
    } {
        /// The policy and a number.
        pub name: String = movement.name.clone(),
        /// Policy that created it; empty: it makes room for a unit.
        pub policy: String = movement.policy.clone(),
        /// What caused it.
        pub trigger: String = movement.trigger.clone(),
        /// How far it is.
        pub phase: String = word(movement.phase().as_str_name(), "MOVEMENT_PHASE_"),
        /// All of its moves.
        pub n_moves: u32 = u32::try_from(movement.moves.len()).unwrap_or(u32::MAX),
        /// Those that run on the recommended node.
        pub moved: u32 = n(&[Moved]),
        /// Those that run on another node.
        pub mismatched: u32 = n(&[Mismatched]),
        /// Those that were refused, timed out, or were not made before it ended.
        pub failed: u32 = n(&[Refused, Aborted, TimedOut]),
        /// The batch that is being made, from 1.
        pub batch: u32 = movement.batch.saturating_add(1).min(movement.n_batches),
        /// All batches.
        pub batches: u32 = movement.n_batches,
        /// Objective as things were; lower is better.
        pub objective_before: f64 = movement.objective_before,
        /// Objective after all moves of the plan.
        pub objective_after: f64 = movement.objective_after,
        /// What the policy found.
        pub finding: String = movement.finding.clone(),
        /// Why it ended as it did.
        pub message: String = movement.message.clone(),
        /// How often the rest of its plan was made anew.
        pub replans: u32 = movement.n_replans,
        /// Store revision that its plan rests on.
        pub plan_revision: u64 = movement.plan_revision,
        /// When it was created, Unix milliseconds.
        pub created_ms: i64 = movement.created_ms,
        /// When it ended, Unix milliseconds; 0: it goes on.
        pub ended_ms: i64 = movement.ended_ms,
        /// Its moves, by batch; only in `describe`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub moves: Vec<MoveView> = movement.moves.iter().map(MoveView::from).collect(),
    }
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
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("PHASE", |view| view.phase.clone()),
        ("BATCH", |view| format!("{}/{}", view.batch, view.batches)),
        ("MOVES", |view| view.n_moves.to_string()),
        ("MOVED", |view| view.moved.to_string()),
        ("MISMATCHED", |view| view.mismatched.to_string()),
        ("FAILED", |view| view.failed.to_string()),
        ("OBJECTIVE", |view| objective(view.objective_before, view.objective_after)),
        ("CREATED", |view| shown_time(view.created_ms)),
        ("ENDED", |view| shown_time(view.ended_ms)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("POLICY", |view| view.policy.clone()),
        ("TRIGGER", |view| view.trigger.clone()),
        ("REPLANS", |view| view.replans.to_string()),
        ("FINDING", |view| view.finding.clone()),
        ("MESSAGE", |view| view.message.clone()),
    ];
}

view! {
    /// What the rescheduler does.
    pub struct RescheduleStatusView from (status: &v1::GetRescheduleStatusResponse) with {
        let status = status.clone();
    } {
        /// Policies that run.
        pub enabled_policies: u32 = status.enabled_policies,
        /// Movement that is being made; empty: none.
        pub movement: String = status.movement,
        /// Its moves that are being made.
        pub moving: u32 = status.moving,
        /// Units that wait for a place.
        pub pending_units: u64 = status.pending_units,
        /// Nothing is moved until then because much waits, Unix milliseconds; 0: nothing is held back.
        pub quiet_until_ms: i64 = status.quiet_until_ms,
        /// Moves to the recommended node since the leader began.
        pub moved: u64 = status.moved,
        /// Moves to another node since the leader began.
        pub mismatched: u64 = status.mismatched,
        /// Moves that failed since the leader began.
        pub failed: u64 = status.failed,
        /// Movements that state keeps.
        pub movements: u32 = status.movements,
        /// Pairs of units whose traffic is known.
        pub traffic_pairs: u64 = status.traffic_pairs,
        /// Running units that have reported when they saved their work last.
        pub checkpoints: u64 = status.checkpoints,
        /// Store revision that the rescheduler has read.
        pub revision: u64 = status.revision,
        /// When the configuration in force was read, Unix milliseconds.
        pub config_read_ms: i64 = status.config_read_ms,
        /// Faults of the configuration that was read last.
        pub config_faults: Vec<String> = status.config_faults,
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
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("POLICIES", |view| view.enabled_policies.to_string()),
        ("MOVEMENT", |view| view.movement.clone()),
        ("MOVING", |view| view.moving.to_string()),
        ("PENDING-UNITS", |view| view.pending_units.to_string()),
        ("QUIET-UNTIL", |view| shown_time(view.quiet_until_ms)),
        ("MOVED", |view| view.moved.to_string()),
        ("MISMATCHED", |view| view.mismatched.to_string()),
        ("FAILED", |view| view.failed.to_string()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("MOVEMENTS", |view| view.movements.to_string()),
        ("TRAFFIC-PAIRS", |view| view.traffic_pairs.to_string()),
        ("CHECKPOINTS", |view| view.checkpoints.to_string()),
        ("REVISION", |view| view.revision.to_string()),
        ("CONFIG-READ", |view| shown_time(view.config_read_ms)),
    ];
}
