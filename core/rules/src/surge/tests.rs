use std::sync::Arc;

use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    hold::MovementTarget,
    running_units::{Bind, Evict, EvictionReason, RunChange, Statuses},
    unit::{Template, WorkloadClass},
};
use godel_testkit::BuildUnit as _;
use proptest::prelude::*;

use super::*;
use crate::admission::{scale::scale, stop::stop};

/// A service of three that lets `max_surge` replacements start first.
fn service(max_surge: u32) -> UnitRecord {
    let unit = godel_testkit::unit("web").class(WorkloadClass::Service).max_surge(max_surge);
    unit.task_groups(vec![godel_testkit::group("main", 3, Template::default())])
}

fn hold(ordinal: u32, replaces: u32) -> Hold {
    let from = RunningUnitId::new(UnitId(1), replaces, 0);
    Hold {
        unit: UnitId(1),
        ordinals: vec![ordinal],
        expires_ms: 1_000,
        movement: Some(MovementTarget { movement: Arc::from("m"), from }),
        ..Hold::default()
    }
}

fn apply(rows: &mut RunningUnits, change: RunChange) {
    rows.apply(&change, Revision(1), 1, |_, _, _| {});
}

fn bind(rows: &mut RunningUnits, ordinals: &[u32]) {
    let nodes = vec![NodeId(1); ordinals.len()];
    apply(rows, RunChange::Bind(Bind { ordinals: ordinals.to_vec(), nodes, ..Bind::default() }));
}

fn become_(rows: &mut RunningUnits, ordinal: u32, phase: Phase) {
    let (ordinals, phases) = (vec![ordinal], vec![phase]);
    apply(rows, RunChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() }));
}

fn evict(rows: &mut RunningUnits, ordinal: u32) {
    let (reason, by) = (EvictionReason::Drained, String::new());
    let evict = Evict { ordinals: vec![ordinal], incarnations: Vec::new(), reason, by, preemptor: UnitId(0) };
    apply(rows, RunChange::Evict(evict));
}

/// Three that run.
fn running() -> RunningUnits {
    let mut rows = RunningUnits::default();
    bind(&mut rows, &[0, 1, 2]);
    (0..3).for_each(|ordinal| become_(&mut rows, ordinal, Phase::Running));
    rows
}

/// The service once 3 is to replace 1.
fn begun() -> (UnitRecord, RunningUnits) {
    let rows = running();
    (begin(&service(1), &rows, &hold(3, 1)).unwrap(), rows)
}

fn ordinals(record: &UnitRecord) -> Vec<u32> {
    record.iter_ordinals().collect()
}

#[test]
fn a_replacement_is_added_beside_the_one_that_it_replaces() {
    let (record, rows) = begun();
    assert_eq!((ordinals(&record), record.spec.replicas()), (vec![0, 1, 2, 3], 4));
    let [surge] = &record.status.surges[..] else { panic!("{:?}", record.status.surges) };
    assert_eq!((surge.ordinal, surge.replaces, &*surge.movement, surge.expires_ms), (3, 1, "m", 1_000));
    assert_eq!(
        record.status.submitted.as_ref().unwrap().replicas,
        [3],
        "it is still the one that was submitted"
    );
    assert_eq!(begin(&record, &rows, &hold(3, 1)), None, "it is known");
    assert_eq!(begin(&record, &rows, &hold(4, 2)), None, "one at a time");
    let two = begin(&record.clone().max_surge(2), &rows, &hold(4, 2)).unwrap();
    assert_eq!((ordinals(&two), two.status.surges.len()), (vec![0, 1, 2, 3, 4], 2));
}

#[test]
fn nobody_is_added_whom_the_unit_does_not_want() {
    let rows = running();
    let mut left = running();
    evict(&mut left, 1);
    let of = |record: UnitRecord, rows: &RunningUnits, hold: Hold| begin(&record, rows, &hold).is_some();
    assert!(of(service(1), &rows, hold(3, 1)) && of(service(1), &rows, hold(7, 1)));
    for (case, begins) in [
        ("without leave", of(service(0), &rows, hold(3, 1))),
        ("cancelled", of(service(1).cancelled(true), &rows, hold(3, 1))),
        ("suspended", of(service(1).suspended(true), &rows, hold(3, 1))),
        ("the ordinal is taken", of(service(1), &rows, hold(2, 1))),
        ("nobody is replaced", of(service(1), &rows, hold(8, 7))),
        ("who leaves already", of(service(1), &left, hold(3, 1))),
        ("not on a node", of(service(1), &RunningUnits::default(), hold(3, 1))),
        ("a move without it", of(service(1), &rows, hold(1, 1))),
        ("no movement", of(service(1), &rows, Hold { movement: None, ..hold(3, 1) })),
    ] {
        assert!(!begins, "{case}");
    }
}

#[test]
fn the_old_one_stops_once_the_new_one_runs() {
    let (record, mut rows) = begun();
    assert_eq!(follow(&record, &rows, |_| true, 999), None, "room is held for it");
    bind(&mut rows, &[3]);
    for phase in [Phase::Bound, Phase::Starting] {
        become_(&mut rows, 3, phase);
        assert_eq!(follow(&record, &rows, |_| false, 999), None, "{phase:?}");
    }
    become_(&mut rows, 3, Phase::Running);
    let next = follow(&record, &rows, |_| false, 999).unwrap();
    assert_eq!((ordinals(&next), next.spec.replicas(), next.status.surges.len()), (vec![0, 2, 3], 3, 0));
    assert_eq!(follow(&next, &rows, |_| false, 999), None);
}

#[test]
fn a_replacement_that_does_not_come_is_given_up() {
    let given_up = |rows: &RunningUnits, is_held: bool, now_ms: i64| {
        let (record, _) = begun();
        let next = follow(&record, rows, |_| is_held, now_ms)?;
        assert_eq!((next.spec.replicas(), next.status.surges.len()), (3, 0));
        Some((ordinals(&next), next))
    };
    let (nowhere, next) = given_up(&running(), false, 0).unwrap();
    assert_eq!(nowhere, [0, 1, 2]);
    // Its ordinal never comes back.
    let up = scale(&next, &running(), "", 4).unwrap().unwrap();
    assert_eq!(ordinals(&up), [0, 1, 2, 4]);
    assert!(given_up(&running(), true, 1_000).is_some(), "it takes too long");
    for (phase, is_evicted) in [(Phase::Failed, false), (Phase::Succeeded, false), (Phase::Running, true)] {
        let mut rows = running();
        bind(&mut rows, &[3]);
        if is_evicted {
            evict(&mut rows, 3);
        }
        become_(&mut rows, 3, phase);
        assert_eq!(given_up(&rows, false, 0).unwrap().0, [0, 1, 2], "{phase:?}");
    }
}

#[test]
fn a_replacement_takes_the_place_of_one_that_leaves_before() {
    let (record, _) = begun();
    let mut evicted = running();
    evict(&mut evicted, 1);
    let mut over = running();
    become_(&mut over, 1, Phase::Failed);
    for rows in [evicted, over] {
        let next = follow(&record, &rows, |_| true, 0).unwrap();
        assert_eq!((ordinals(&next), next.status.surges.len()), (vec![0, 2, 3], 0));
    }
}

#[test]
fn whoever_changes_the_size_counts_without_replacements() {
    let (record, rows) = begun();
    let base = without_surges(&record, &rows);
    assert_eq!((ordinals(&base), base.status.surges.len()), (vec![0, 1, 2], 0));
    assert_eq!(scale(&base, &rows, "", 3), Ok(None), "who wants three has three");
    let up = scale(&base, &rows, "", 4).unwrap().unwrap();
    assert_eq!(ordinals(&up), [0, 1, 2, 4], "3 was given");
    let down = scale(&base, &rows, "", 2).unwrap().unwrap();
    assert_eq!(ordinals(&down), [0, 1]);
    assert_eq!(*without_surges(&service(1), &rows), service(1));
}

#[test]
fn a_stop_of_either_one_ends_the_replacement() {
    let (record, rows) = begun();
    let stopped = |ordinal: u32| stop(&record, &rows, &[ordinal]).unwrap().unwrap();
    let (new, old, other) = (stopped(3), stopped(1), stopped(0));
    assert_eq!((ordinals(&new), new.status.surges.len()), (vec![0, 1, 2], 0));
    assert_eq!((ordinals(&old), old.status.surges.len()), (vec![0, 2], 0), "one fewer, as was asked for");
    assert_eq!((ordinals(&other), other.status.surges.len()), (vec![1, 2, 3], 1));
}

proptest! {
    /// Whatever happens in whichever order: no ordinal comes back, as many replicas are wanted as without surges, and none of
    /// them stops but for one that runs, or by itself.
    #[test]
    fn there_are_never_fewer(events in prop::collection::vec((0u8..8, 0u32..8), 1..60)) {
        let (mut record, mut rows) = (service(2), running());
        let (mut held, mut gone): (BTreeSet<u32>, BTreeSet<u32>) = Default::default();
        for (what, ordinal) in events {
            let before = ordinals(&record);
            match what {
                0 => {
                    let next = next_ordinal(&record, &rows).max(held.last().map_or(0, |last| last + 1));
                    if let Some(next_record) = begin(&record, &rows, &hold(next, ordinal)) {
                        held.insert(next);
                        record = next_record;
                    }
                }
                1 if record.group_of(ordinal).is_some() && rows.row(ordinal).phase == Phase::Pending => {
                    bind(&mut rows, &[ordinal]);
                    held.remove(&ordinal);
                }
                2 => become_(&mut rows, ordinal, Phase::Running),
                3 => become_(&mut rows, ordinal, Phase::Failed),
                4 => evict(&mut rows, ordinal),
                5 => { held.remove(&ordinal); }
                _ => {
                    if let Some(next) = follow(&record, &rows, |ordinal| held.contains(&ordinal), 0) {
                        let stopped: Vec<u32> =
                            before.iter().copied().filter(|one| next.group_of(*one).is_none()).collect();
                        for old in stopped.iter().filter(|one| stays(&rows, **one)) {
                            let surge = record.status.surges.iter().find(|surge| surge.replaces == *old);
                            let runs = surge.is_some_and(|surge| rows.row(surge.ordinal).phase == Phase::Running);
                            let is_late = record.status.surges.iter().any(|surge| surge.ordinal == *old);
                            prop_assert!(runs || is_late, "{old} stops: {record:?}");
                        }
                        record = next;
                    }
                }
            }
            let now = ordinals(&record);
            gone.extend(before.iter().filter(|one| !now.contains(one)));
            prop_assert!(now.iter().all(|one| !gone.contains(one)), "{now:?} {gone:?}");
            prop_assert_eq!(now.len(), 3 + record.status.surges.len());
            prop_assert_eq!(record.spec.replicas() as usize, now.len());
        }
    }
}

#[test]
fn what_began_and_ended_is_counted() {
    let (record, mut rows) = begun();
    let before = service(1);
    let started = SurgeCounts { started: 1, ..SurgeCounts::default() };
    assert_eq!(count(&before, &record), started);
    assert_eq!(count(&record, &record), SurgeCounts::default());
    let given_up = follow(&record, &rows, |_| false, 0).unwrap();
    assert_eq!(count(&record, &given_up), SurgeCounts { given_up: 1, ..SurgeCounts::default() });
    assert_eq!(count(&record, &without_surges(&record, &rows)).given_up, 1);
    bind(&mut rows, &[3]);
    become_(&mut rows, 3, Phase::Running);
    let replaced = follow(&record, &rows, |_| false, 0).unwrap();
    assert_eq!(count(&record, &replaced), SurgeCounts { replaced: 1, ..SurgeCounts::default() });
}
