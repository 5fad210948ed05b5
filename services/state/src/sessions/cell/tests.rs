use godel_base::ids::{RunningUnitId, UnitId};
use godel_domain::run_end::RunEnd;

use super::*;

fn key(unit: u64) -> RunningUnitId {
    RunningUnitId::new(UnitId(unit), 0, 0)
}

fn says(unit: u64, phase: Phase) -> CellReport {
    CellReport { key: key(unit), phase, exit_code: 0, restarts: 0, end: RunEnd::default() }
}

fn taken(cell: &mut Cell, id: u64) -> (Vec<u64>, Vec<u64>, Option<u64>) {
    match cell.take(id, Waker::noop()) {
        Taken::Send(out) => {
            let units = |keys: Vec<RunningUnitId>| keys.into_iter().map(|key| key.unit.0).collect();
            (units(out.assign), units(out.stop), out.ack)
        }
        Taken::Idle | Taken::Closed(_) => (Vec::new(), Vec::new(), None),
    }
}

fn bound(units: impl IntoIterator<Item = u64>) -> Cell {
    let mut cell = Cell::default();
    for unit in units {
        assert!(cell.bind(key(unit)).is_none());
    }
    cell
}

#[test]
fn an_opening_agent_gets_missing_runs_and_stops_old_ones() {
    let mut cell = bound(1..=4);
    cell.evict(key(3));
    cell.evict(key(4));
    let running =
        [says(1, Phase::Running), says(3, Phase::Running), says(9, Phase::Running), says(8, Phase::Failed)];
    let (record, _) = cell.open(1, 5, &running).unwrap();
    // 4 was told to leave and the agent does not have it: it is over.
    assert_eq!(record, [says(1, Phase::Running), says(3, Phase::Running), says(4, Phase::Stopped)]);
    assert_eq!(taken(&mut cell, 1), (vec![2], vec![3, 4, 9], None));
    assert_eq!(cell.take(1, Waker::noop()), Taken::Idle);
}

#[test]
fn an_unacknowledged_end_is_recorded_and_not_started_again() {
    let mut cell = bound([1]);
    let (record, _) = cell.open(1, 1, &[says(1, Phase::Succeeded)]).unwrap();
    assert_eq!(record, [says(1, Phase::Succeeded)]);
    assert_eq!(taken(&mut cell, 1), (vec![], vec![], None));
    cell.end(key(1));
    cell.ack(1, 0, 1);
    assert_eq!(taken(&mut cell, 1), (vec![], vec![], None), "an acknowledgement waits for company");
    cell.flush_ack(1);
    assert_eq!(taken(&mut cell, 1), (vec![], vec![], Some(0)));
    assert!(cell.entries().is_empty());
}

#[test]
fn a_life_goes_through_assignment_reports_eviction_and_end() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    cell.bind(key(7));
    cell.bind(key(8));
    assert_eq!(taken(&mut cell, 1), (vec![7, 8], vec![], None));
    assert_eq!(cell.report(says(7, Phase::Running)), SessionVerdict::Record);
    cell.evict(key(7));
    cell.evict(key(7));
    assert_eq!(taken(&mut cell, 1), (vec![], vec![7], None), "told once");
    assert_eq!(cell.report(says(7, Phase::Stopped)), SessionVerdict::Record);
    cell.end(key(7));
    cell.end(key(7));
    assert_eq!(taken(&mut cell, 1), (vec![], vec![], None));
    // An end that the agent does not know of (its unit was given away meanwhile): stop it here.
    assert_eq!(cell.report(says(8, Phase::Running)), SessionVerdict::Record);
    cell.end(key(8));
    assert_eq!(taken(&mut cell, 1), (vec![], vec![8], None));
    assert_eq!(cell.report(says(8, Phase::Stopped)), SessionVerdict::Ignore);
    assert!(cell.entries().is_empty());
}

#[test]
fn a_newer_session_replaces_and_an_older_is_refused() {
    let mut cell = bound([1]);
    cell.open(1, 3, &[says(1, Phase::Running)]).unwrap();
    assert_eq!(cell.open(2, 2, &[]).unwrap_err(), StaleSession { current: 3 });
    assert!(cell.is_connected());
    cell.open(3, 3, &[]).unwrap();
    assert_eq!(cell.take(1, Waker::noop()), Taken::Closed(Close::Replaced));
    assert_eq!(taken(&mut cell, 3), (vec![1], vec![], None), "the new session runs nothing");
    cell.leave(1);
    assert!(cell.is_connected(), "the end of a replaced stream is not the session's");
    cell.ack(1, 9, 0);
    assert!(cell.flush_ack(1).is_none());
    assert_eq!(taken(&mut cell, 3), (vec![], vec![], None), "nor are its acknowledgements");
    cell.leave(3);
    assert!(!cell.is_connected());
}

#[test]
fn a_full_outbox_is_replaced_by_a_comparison() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    let n = N_OUTBOX_MAX as u64 + 100;
    for unit in 0..n {
        cell.bind(key(unit));
    }
    let (first, _, _) = taken(&mut cell, 1);
    assert_eq!(first.len(), N_OUTBOX_MAX);
    for unit in 0..n - 1 {
        cell.report(says(unit, Phase::Starting));
    }
    assert_eq!(taken(&mut cell, 1), (vec![n - 1], vec![], None));
}

#[test]
fn an_agent_is_not_read_while_too_much_waits_for_the_disk() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    cell.hand_over(1, N_UNACKED_MAX);
    assert_eq!((cell.take(1, Waker::noop()), cell.may_read(1)), (Taken::Idle, false));
    cell.ack(1, 1, 1);
    assert!(cell.flush_ack(1).is_some());
    assert_eq!(taken(&mut cell, 1).2, Some(1));
    assert!(cell.may_read(1));
}

#[test]
fn an_agent_that_reports_endless_strangers_is_cut_off() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    for unit in 0..=N_UNBOUND_MAX as u64 {
        cell.report(says(unit, Phase::Running));
    }
    assert_eq!(cell.take(1, Waker::noop()), Taken::Closed(Close::Flooded));
}

#[test]
fn after_missed_changes_the_rows_decide() {
    let mut cell = bound(1..=3);
    cell.open(1, 1, &[says(1, Phase::Running), says(2, Phase::Running)]).unwrap();
    taken(&mut cell, 1);
    cell.reload(&[(key(2), true), (key(5), false)]);
    assert_eq!(taken(&mut cell, 1), (vec![5], vec![1, 2], None));
    let keys: Vec<u64> = cell.entries().iter().map(|entry| entry.key.unit.0).collect();
    assert_eq!(keys, [1, 2, 5]);
}

#[test]
fn an_acknowledgement_goes_along_with_an_assignment() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    cell.ack(1, 4, 0);
    cell.ack(1, 3, 0);
    cell.bind(key(7));
    assert_eq!(taken(&mut cell, 1), (vec![7], vec![], Some(4)));
    cell.flush_ack(1);
    assert_eq!(taken(&mut cell, 1), (vec![], vec![], None), "said once");
}

#[test]
fn a_newer_incarnation_ends_what_was_said_of_older_ones() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    let newer = RunningUnitId::new(UnitId(7), 0, 1);
    cell.report(says(7, Phase::Running));
    cell.bind(newer);
    cell.report(CellReport { key: newer, ..says(7, Phase::Running) });
    let keys: Vec<RunningUnitId> = cell.entries().iter().map(|entry| entry.key).collect();
    assert_eq!(keys, [newer]);
}

#[test]
fn a_recorded_restart_outdates_earlier_statuses() {
    let mut cell = Cell::default();
    cell.open(1, 1, &[]).unwrap();
    cell.bind(key(7));
    let again = |phase, restarts| CellReport { restarts, ..says(7, phase) };
    for (report, kept) in [
        (again(Phase::Running, 0), again(Phase::Running, 0)),
        (again(Phase::Starting, 1), again(Phase::Starting, 1)),
        (again(Phase::Running, 0), again(Phase::Starting, 1)),
        (again(Phase::Running, 1), again(Phase::Running, 1)),
    ] {
        assert_eq!(cell.report(report), SessionVerdict::Record, "the rows decide");
        assert_eq!(cell.reports().next().unwrap(), kept, "{report:?}");
    }
    // A new session says it with its count.
    let (record, _) = cell.open(2, 2, &[again(Phase::Starting, 2)]).unwrap();
    assert_eq!(record, [again(Phase::Starting, 2)]);
    assert_eq!(cell.reports().next().unwrap(), again(Phase::Starting, 2));
}

#[test]
fn room_made_for_a_burst_goes_with_it() {
    let mut cell = bound(1..=1000);
    assert!(cell.entries.capacity() >= 1000);
    for unit in 1..=998 {
        cell.end(key(unit));
        assert!(cell.entries.capacity() <= N_ROOM_KEPT.max(8 * cell.entries.len()), "{unit}");
    }
    assert_eq!(cell.entries().iter().map(|entry| entry.key.unit.0).collect::<Vec<_>>(), [999, 1000]);
}

#[test]
fn a_conflict_is_told_once_to_the_agent_that_lives() {
    let mut cell = Cell::default();
    let rival = || Rival {
        kind: godel_membership::node_identity::RivalKind::OtherInstallation,
        address: "10.0.0.7:1".to_owned(),
        uid: "u".to_owned(),
    };
    assert!(cell.note_rival(rival(), 1_000).0, "without a session nobody hears it");
    cell.open(1, 1, &[]).unwrap();
    assert_eq!(cell.take(1, Waker::noop()), Taken::Idle);
    assert!(!cell.note_rival(rival(), 2_000).0);
    assert_eq!(cell.take(1, Waker::noop()), Taken::Idle, "it is no news");
    assert!(cell.note_rival(rival(), 61_000).0);
    let Taken::Send(NodeOutgoing { conflict: Some(conflict), .. }) = cell.take(1, Waker::noop()) else {
        panic!()
    };
    assert_eq!((conflict.n_attempts, conflict.first_ms, conflict.last_ms), (3, 1_000, 61_000));
    assert_eq!(cell.take(1, Waker::noop()), Taken::Idle);
    // The one that was refused has the node at last: there is no conflict any more, and the next one is news.
    cell.agent.instances.open(7);
    cell.replace();
    assert_eq!((&cell.agent.conflict, &cell.agent.instances), (&None, &NodeInstances::default()));
    assert!(cell.note_rival(rival(), 62_000).0);
}
