//! What all sessions report, made durable in batches by one committer.
//!
//! Sessions put their reports into one bounded queue; the committer takes whatever has queued, drops what the
//! rows already say or do not allow, groups the rest by unit and commits it. An acknowledgement goes out when
//! its reports are durable *and* the feed has delivered everything up to that commit: an assignment of a
//! running unit therefore always leaves before the acknowledgement of its end.

use godel_base::ids::{RunningUnitId, UnitId};
use godel_domain::{
    run_end::RunEnd,
    running_units::{Phase, Progress, RunningUnit},
};
use godel_membership::agent_admission::AssignmentRefusal;
use godel_proto::v1;
use godel_wire::{ops, to_proto};

use super::cell::CellReport;

/// Most bytes of one transaction.
pub(crate) const TXN_BYTES_MAX: usize = 512 * 1024;
/// Most running units in one operation: about 200 KiB of columns.
const N_ROWS_MAX: usize = 8_192;
/// Worst case of one running unit in the columns: ordinal 5, incarnation 5, phase 1, exit code 5, restarts 5, reason 2, two times
/// of 10.
const ROW_BYTES: usize = 43;
/// Worst case of an operation without its rows: tags, lengths, unit id.
const OP_BYTES: usize = 64;

/// Whether `report` of an agent on `node` would change `row`.
pub(crate) fn changes(row: &RunningUnit, node: u32, report: &CellReport) -> bool {
    row.node.0 == node
        && row.incarnation == report.key.replica.incarnation
        && row.progress().may_become(report.progress())
}

/// Groups reports into operations, one or more per unit, and the operations into transactions of at most
/// [`TXN_BYTES_MAX`]. Of several reports of one running unit the furthest counts, of several ends the first;
/// the count of restarts is of all together.
pub(crate) fn group(mut reports: Vec<CellReport>) -> Vec<Vec<v1::RunStatuses>> {
    // Stable: reports of one running unit keep their order.
    reports.sort_by_key(|report| report.key);
    reports.dedup_by(|later, kept| {
        let same = later.key == kept.key;
        if same && kept.progress().may_become(later.progress()) {
            let Progress { phase, restarts } = kept.progress().followed_by(later.progress());
            *kept = CellReport { phase, restarts, ..*later };
        }
        same
    });
    let mut txns: Vec<Vec<v1::RunStatuses>> = Vec::new();
    let mut room = 0;
    for unit in reports.chunk_by(|a, b| a.key.unit == b.key.unit) {
        for chunk in unit.chunks(N_ROWS_MAX) {
            let bytes = OP_BYTES + ROW_BYTES * chunk.len();
            match txns.last_mut() {
                Some(txn) if room >= bytes => {
                    txn.push(columns(chunk));
                    room -= bytes;
                }
                Some(_) | None => {
                    txns.push(vec![columns(chunk)]);
                    room = TXN_BYTES_MAX.saturating_sub(bytes);
                }
            }
        }
    }
    txns
}

fn columns(reports: &[CellReport]) -> v1::RunStatuses {
    let ends: Vec<RunEnd> = reports.iter().map(|report| report.end).collect();
    let (reasons, started_times_ms, ended_times_ms) = ops::ends_to_proto(&ends);
    v1::RunStatuses {
        unit_id: reports.first().map_or(0, |report| report.key.unit.0),
        ordinals: reports.iter().map(|report| report.key.replica.ordinal).collect(),
        incarnations: column(reports, |report| report.key.replica.incarnation),
        phases: reports.iter().map(|report| to_proto::phase(report.phase).into()).collect(),
        exit_codes: column(reports, |report| report.exit_code),
        restarts: column(reports, |report| report.restarts),
        reasons,
        started_times_ms,
        ended_times_ms,
    }
}

/// A column, empty when it is all 0.
fn column<T: Default + PartialEq>(reports: &[CellReport], of: impl Fn(&CellReport) -> T) -> Vec<T> {
    if reports.iter().all(|report| of(report) == T::default()) {
        return Vec::new();
    }
    reports.iter().map(of).collect()
}

/// A status from the wire; the error names the wrong field.
pub(crate) fn report(status: &v1::RunStatus) -> Result<CellReport, &'static str> {
    let phase = match v1::RunPhase::try_from(status.phase) {
        Ok(v1::RunPhase::Bound) => Phase::Bound,
        Ok(v1::RunPhase::Starting) => Phase::Starting,
        Ok(v1::RunPhase::Running) => Phase::Running,
        Ok(v1::RunPhase::Succeeded) => Phase::Succeeded,
        Ok(v1::RunPhase::Failed) => Phase::Failed,
        Ok(v1::RunPhase::Stopped) => Phase::Stopped,
        Ok(v1::RunPhase::Unspecified) | Err(_) => return Err("phase"),
    };
    if status.unit_id == 0 {
        return Err("unit_id");
    }
    let key = RunningUnitId::new(UnitId(status.unit_id), status.ordinal, status.incarnation);
    let end = RunEnd {
        reason: ops::run_end_reason_from_proto(status.reason),
        started_ms: status.started_time_ms,
        ended_ms: status.ended_time_ms,
    };
    Ok(CellReport { key, phase, exit_code: status.exit_code, restarts: status.restarts, end })
}

/// Why an agent did not start it; one that this version does not know is for want of room.
pub(crate) fn refused(status: &v1::RunStatus) -> Option<AssignmentRefusal> {
    match v1::AssignmentRefusal::try_from(status.refused) {
        Ok(v1::AssignmentRefusal::Unspecified) => None,
        Ok(v1::AssignmentRefusal::Room) | Err(_) => Some(AssignmentRefusal::Room),
        Ok(v1::AssignmentRefusal::Devices) => Some(AssignmentRefusal::Devices),
        Ok(v1::AssignmentRefusal::Zones) => Some(AssignmentRefusal::Zones),
        Ok(v1::AssignmentRefusal::Told) => Some(AssignmentRefusal::Told),
        Ok(v1::AssignmentRefusal::Disk) => Some(AssignmentRefusal::Disk),
        Ok(v1::AssignmentRefusal::Engine) => Some(AssignmentRefusal::Engine),
        Ok(v1::AssignmentRefusal::Keeper) => Some(AssignmentRefusal::Keeper),
        Ok(v1::AssignmentRefusal::Lacks) => Some(AssignmentRefusal::Lacks),
    }
}

#[cfg(test)]
mod tests {
    use godel_base::ids::NodeId;
    use godel_domain::run_end::RunEndReason;
    use prost::Message as _;

    use super::*;

    fn says(unit: u64, ordinal: u32, phase: Phase) -> CellReport {
        let key = RunningUnitId::new(UnitId(unit), ordinal, 0);
        CellReport { key, phase, exit_code: 0, restarts: 0, end: RunEnd::default() }
    }

    #[test]
    fn reports_are_grouped_by_unit_and_the_furthest_counts() {
        let end = RunEnd { reason: Some(RunEndReason::OutOfMemory), started_ms: 5, ended_ms: 8 };
        let failed = CellReport { exit_code: 9, end, ..says(2, 0, Phase::Failed) };
        let txns = group(vec![
            says(2, 0, Phase::Running),
            says(1, 3, Phase::Running),
            failed,
            says(2, 1, Phase::Starting),
            says(2, 0, Phase::Stopped),
            says(1, 3, Phase::Starting),
        ]);
        let [txn] = &txns[..] else { panic!("{txns:?}") };
        assert_eq!((txn[0].unit_id, &txn[0].ordinals[..], txn[0].phases[0]), (1, &[3][..], 3));
        assert!(txn[0].incarnations.is_empty() && txn[0].exit_codes.is_empty() && txn[0].restarts.is_empty());
        assert_eq!((txn[1].unit_id, &txn[1].ordinals[..], &txn[1].phases[..]), (2, &[0, 1][..], &[5, 2][..]));
        assert_eq!(txn[1].exit_codes, [9, 0]);
        assert_eq!((&txn[1].reasons[..], &txn[1].started_times_ms[..]), (&[3, 0][..], &[5, 0][..]));
        assert_eq!((&txn[1].ended_times_ms[..], txn[0].reasons.len()), (&[8, 0][..], 0));
        assert!(group(Vec::new()).is_empty());
    }

    #[test]
    fn restarts_reported_together_are_one_change() {
        let again = |phase, restarts| CellReport { restarts, ..says(1, 0, phase) };
        let last = |reports: &[CellReport]| {
            let txns = group(reports.to_vec());
            (txns[0][0].phases.clone(), txns[0][0].restarts.clone())
        };
        let mut reports = vec![again(Phase::Running, 0), again(Phase::Starting, 1), again(Phase::Running, 1)];
        reports.push(again(Phase::Starting, 2));
        assert_eq!(last(&reports), (vec![2], vec![2]));
        reports.push(again(Phase::Running, 1));
        assert_eq!(last(&reports), (vec![2], vec![2]), "an older one that comes again");
        reports.push(again(Phase::Stopped, 0));
        assert_eq!(last(&reports), (vec![6], vec![2]), "its end, from an agent that counts from 0");
        reports.push(again(Phase::Running, 9));
        assert_eq!(last(&reports), (vec![6], vec![2]), "an end is final");
    }

    #[test]
    fn transactions_stay_small() {
        let mut reports = Vec::new();
        for unit in 1..=4 {
            reports.extend((0..40_000).map(|ordinal| CellReport {
                key: RunningUnitId::new(UnitId(unit), u32::MAX - ordinal, u32::MAX),
                phase: Phase::Failed,
                exit_code: i32::MIN,
                restarts: u32::MAX,
                end: RunEnd {
                    reason: Some(RunEndReason::CannotStart),
                    started_ms: i64::MIN,
                    ended_ms: i64::MIN,
                },
            }));
        }
        let txns = group(reports);
        let n: usize = txns.iter().flatten().map(|op| op.ordinals.len()).sum();
        assert_eq!(n, 160_000);
        for txn in &txns {
            let bytes: usize = txn.iter().map(|op| op.encoded_len() + 8).sum();
            assert!(bytes <= TXN_BYTES_MAX, "{bytes}");
        }
    }

    #[test]
    fn what_the_row_does_not_allow_is_dropped() {
        let row = RunningUnit {
            node: NodeId(3),
            phase: Phase::Running,
            incarnation: 1,
            restarts: 1,
            ..RunningUnit::default()
        };
        let report = |incarnation, phase| CellReport {
            key: RunningUnitId::new(UnitId(1), 0, incarnation),
            phase,
            exit_code: 0,
            restarts: 1,
            end: RunEnd::default(),
        };
        let again = |phase, restarts| CellReport { restarts, ..report(1, phase) };
        for (node, report, expect) in [
            (3, report(1, Phase::Succeeded), true),
            (3, report(1, Phase::Running), false),
            (3, report(1, Phase::Starting), false),
            (3, report(0, Phase::Succeeded), false),
            (4, report(1, Phase::Succeeded), false),
            (3, again(Phase::Starting, 2), true),
            (3, again(Phase::Running, 2), true),
            (3, again(Phase::Starting, 0), false),
            (3, again(Phase::Running, 0), false),
            (3, again(Phase::Stopped, 0), true),
            (3, again(Phase::Bound, 2), false),
        ] {
            assert_eq!(changes(&row, node, &report), expect, "{node} {report:?}");
        }
    }

    #[test]
    fn bad_statuses_name_their_field() {
        let good = v1::RunStatus { unit_id: 1, phase: 3, ..v1::RunStatus::default() };
        assert!(report(&good).is_ok());
        assert_eq!(report(&v1::RunStatus { unit_id: 0, ..good }), Err("unit_id"));
        assert_eq!(report(&v1::RunStatus { phase: 0, ..good }), Err("phase"));
        assert_eq!(report(&v1::RunStatus { phase: 99, ..good }), Err("phase"));
    }
}
