//! Replicas of stateful units start and leave in order.

use super::*;

/// A stateful unit, of which these are where they are.
fn ordered(replicas: u32, phases: &[RowPhase]) -> (UnitRecord, RunningUnits) {
    let record = unit(replicas, 1).class(WorkloadClass::Stateful);
    let row = |phase: &RowPhase| RunningUnit { phase: *phase, node: NodeId(1), ..RunningUnit::default() };
    (record, RunningUnits { rows: phases.iter().map(row).collect(), ..RunningUnits::default() })
}

#[test]
fn replicas_of_a_stateful_unit_start_one_after_the_other() {
    use RowPhase::{Bound, Failed, Pending, Running, Starting, Stopped, Succeeded};
    let cases: [(&[RowPhase], &[u32]); 9] = [
        (&[], &[0]),
        (&[Bound], &[]),
        (&[Starting], &[]),
        (&[Running], &[1]),
        (&[Running, Running, Running], &[]),
        (&[Succeeded, Failed], &[2]),
        (&[Pending, Running, Running], &[0]),
        (&[Stopped, Running], &[]),
        (&[Running, Pending, Pending], &[1]),
    ];
    for (phases, expected) in cases {
        let (record, rows) = ordered(3, phases);
        assert_eq!(pending(&record, &rows).0, expected, "{phases:?}");
        let is_awaited = expected.is_empty() && !phases.iter().all(|phase| *phase == Running);
        assert_eq!(awaited(&record, &rows), is_awaited.then_some(0), "{phases:?}");
    }
    let (mut record, rows) = ordered(3, &[Bound]);
    record.spec.min_member = 2;
    assert_eq!(pending(&record, &rows).0, [1, 2], "the first ones start together");
}

#[test]
fn replicas_of_a_stateful_unit_leave_in_reverse_order() {
    let (record, mut rows) = ordered(3, &[RowPhase::Running; 3]);
    let cancelled = record.clone().cancelled(true);
    for expected in [[2].as_slice(), &[1], &[0], &[]] {
        let (reason, ordinals, _) = surplus(&cancelled, &rows, 100);
        assert_eq!((reason, ordinals.as_slice()), (EvictionReason::Cancelled, expected));
        let Some(leaving) = ordinals.first().map(|ordinal| rows.rows.get_mut(*ordinal).unwrap()) else {
            break;
        };
        leaving.eviction = Some(EvictionReason::Cancelled);
        assert_eq!(surplus(&cancelled, &rows, 100).1, [0; 0], "the next one goes once it has left");
        rows.rows.get_mut(expected[0]).unwrap().phase = RowPhase::Stopped;
    }
    let (record, rows) = ordered(3, &[RowPhase::Running; 3]);
    let scaled = scale(&record, &rows, "", 1).unwrap().unwrap();
    assert_eq!(surplus(&scaled, &rows, 100).1, [2]);
    let ended = record.edit(|record| record.status.ended = Some(UnitEnd::Deadline));
    assert_eq!(surplus(&ended, &rows, 100).1, [2, 1, 0], "its time is over");
}
