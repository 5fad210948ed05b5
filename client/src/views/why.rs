//! Why a unit waits, how it ended, and what becomes of its replicas, in a few words.

use godel_base::words;
use godel_proto::v1;

/// Why a unit waits, or how it ended, for a column of a table.
pub(super) fn reason(unit: &v1::Unit) -> String {
    let counts = unit.counts.unwrap_or_default();
    let status = unit.status.clone().unwrap_or_default();
    match unit.phase() {
        v1::UnitPhase::Failed if status.ended() != v1::UnitEnd::Unspecified => ended(status.ended()),
        v1::UnitPhase::Failed if counts.failed > 0 => {
            format!("{} of {} failed", counts.failed, words::count(counts.replicas, "replica"))
        }
        v1::UnitPhase::Queued | v1::UnitPhase::Scheduling | v1::UnitPhase::Unschedulable => {
            let top = unit.refusals.as_ref().and_then(|refusals| refusals.reasons.first());
            match top {
                _ if !unit.waits_for.is_empty() => unit.waits_for.clone(),
                Some(top) if top.nodes > 0 => {
                    format!("{} ({})", top.reason, words::count(top.nodes, "node"))
                }
                Some(top) => top.reason.clone(),
                None => String::new(),
            }
        }
        _ => String::new(),
    }
}

pub(super) fn ended(end: v1::UnitEnd) -> String {
    match end {
        v1::UnitEnd::Unspecified => String::new(),
        end => end.as_str_name().trim_start_matches("UNIT_END_").to_lowercase().replace('_', "-"),
    }
}

/// Replicas that start before those stop that they replace: `3 replaces 1 for movement m-1`.
pub(super) fn replacements(status: &v1::UnitStatus) -> Vec<String> {
    let shown = |surge: &v1::Surge| {
        let v1::Surge { ordinal, replaces, movement, expires_ms: _ } = surge;
        format!("{ordinal} replaces {replaces} for movement {movement}")
    };
    status.surges.iter().map(shown).collect()
}
